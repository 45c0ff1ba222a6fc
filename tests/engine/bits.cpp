// The net under refactorings: every preset gives the bits that were recorded for it.
//
// One workload: a prompt in chunks, 300 decode steps in which clusters split, a further turn, a rewind, steps again. It is
// played with ample memory in one shard, and with the least memory in two shards, queries and keys as f16, and one write that
// fails. Four presets are played once more with entries as bf16.
//
// bits/<instruction set>.txt holds a line for each preset and run: a hash of the outputs of each chunk, of every ten steps,
// of the turn and of what follows. Bits depend on the width of registers and on the compiler's freedom to fuse products, so
// each instruction set and optimisation level has a file of its own. Where there is none, the test says so and checks only
// that two runs agree; engine/dense.cpp compares with attention by definition everywhere.
//
// A change that alters bits on purpose records them again and says in its commit which presets changed and why:
//   KVTL_RECORD_BITS=1 build/test/bin/test_engine_bits
// SPDX-License-Identifier: MIT
#include <kvtl/io/faulty.hpp>
#include <kvtl/io/in_memory.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/full.hpp>
#include <kvtl/presets/kvswap.hpp>
#include <kvtl/presets/snapkv.hpp>
#include <kvtl/simd/arch.hpp>

#include "any_preset.hpp"
#include "manager_cache.hpp"
#include "support/cache_fixture.hpp"
#include "support/calibrated.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

namespace {

using namespace kvtl_test;

constexpr kvtl::shape model{2, 4, 2, 64};
constexpr std::size_t prompt = 400, chunk = 170, steps = 300, turn = 50, rewound = 2, last_steps = 10;
constexpr std::size_t all_tokens = prompt + steps + turn + last_steps;

/// Hashes by what they are of, in order.
using record = std::vector<std::pair<std::string, std::uint64_t>>;

/// 64-bit FNV-1a over the bytes of floats.
class hash {
  public:
    void add(std::span<const float> x) {
        for (const std::byte b : std::as_bytes(x))
            value_ = (value_ ^ std::to_integer<std::uint64_t>(b)) * 0x100000001b3U;
    }
    [[nodiscard]] std::uint64_t take() { return std::exchange(value_, basis); }

  private:
    static constexpr std::uint64_t basis = 0xcbf29ce484222325U;
    std::uint64_t value_ = basis;
};

/// Numbers of so few digits that neither a mathematical library's last digit nor the order of a sum shows in them.
std::vector<float> rounded(std::span<const float> x) {
    std::vector<float> out;
    for (const float f : x) out.push_back(kvtl::to_float(kvtl::from_float<kvtl::bf16>(f)));
    return out;
}

/// Bases and gates of all kinds for `model`.
class bases_file {
  public:
    bases_file()
        : path_((std::filesystem::temp_directory_path() / ("kvtl-bits-" + std::to_string(::getpid())))
                    .string()) {
        using kind = kvtl::calibration_kind;
        const std::uint32_t width = model.kv_heads * model.head_dim, rank = 64, pairs = 8;
        std::uint64_t seed = 5;
        const auto of_layers = [&](std::size_t heads, auto&& make) {
            std::vector<float> all;
            for (std::size_t i = 0; i < model.layers * heads; ++i) {
                const std::vector<float> one = rounded(make(++seed));
                all.insert(all.end(), one.begin(), one.end());
            }
            return all;
        };
        const auto joint = [&] {
            return of_layers(1, [&](std::uint64_t s) { return random_rotation(width, s); });
        };
        const auto single = [&] {
            return of_layers(model.kv_heads,
                             [&](std::uint64_t s) { return random_rotation(model.head_dim, s); });
        };
        const auto gated = [&] {
            return of_layers(1, [&](std::uint64_t s) { return random_gated_basis(width, s); });
        };
        kvtl::calibration_writer out(model, 1);
        require_ok(out.add(kind::joint_adapter, rank, of_layers(1, [&](std::uint64_t s) {
                               auto r = random_rotation(width, s);
                               r.resize(std::size_t{rank} * width);
                               return r;
                           })));
        require_ok(out.add(kind::pca_basis, model.head_dim, single()));
        require_ok(out.add(kind::skew_basis, model.head_dim, single()));
        require_ok(out.add(kind::joint_keys, width, joint(), true));
        require_ok(out.add(kind::joint_values, width, joint()));
        require_ok(out.add_gated(kind::gated_keys, gated(), 0.2F));
        require_ok(out.add_gated(kind::gated_values, gated(), 0.2F));
        require_ok(out.add(kind::head_keys, model.head_dim, single(), true));
        require_ok(out.add(kind::head_values, model.head_dim, single()));
        require_ok(out.add(kind::prefix_keys, model.head_dim, single()));
        require_ok(out.add(kind::prefix_values, model.head_dim, single()));
        std::vector<std::uint32_t> channels;
        for (std::uint32_t lane = 0; lane < model.layers * model.kv_heads; ++lane)
            for (std::uint32_t i = 0; i < pairs; ++i)
                channels.push_back((3 * lane + 4 * i) % (model.head_dim / 2));
        require_ok(out.add_channels(pairs, channels, 1));
        require_ok(out.write(path_));
    }
    bases_file(const bases_file&) = delete;
    ~bases_file() { std::filesystem::remove(path_); }
    [[nodiscard]] const std::string& path() const { return path_; }

  private:
    std::string path_;
};

/// The stream that every preset reads: all numbers are bf16, so that f16 and floats have the same ones.
struct stream {
    stream() {
        const drift made(model, all_tokens, 11);
        for (std::size_t l = 0; l < model.layers; ++l) {
            q.push_back(rounded(made.q(l, 0, all_tokens)));
            k.push_back(rounded(made.k(l, 0, all_tokens)));
            v.push_back(rounded(made.v(l, 0, all_tokens)));
            for (auto [from, to] : {std::pair(&q, &q16), std::pair(&k, &k16), std::pair(&v, &v16)}) {
                to->emplace_back();
                for (const float x : from->back()) to->back().push_back(kvtl::from_float<kvtl::f16>(x));
            }
        }
    }
    std::vector<std::vector<float>> q, k, v; ///< by layer
    std::vector<std::vector<kvtl::f16>> q16, k16, v16;
};

struct run {
    bool least = false; ///< the least memory, two shards, 16-bit inputs and one write that fails
    const char* name = "ample";
};

/// Plays the workload and hashes what comes out.
class player {
  public:
    player(engine::kv_cache& cache, const stream& data, const run& how, kvtl::io_faults& faults)
        : cache_(cache), data_(data), how_(how), faults_(faults) {
        auto seq = cache.begin();
        REQUIRE(seq.ok());
        seq_ = *seq;
    }

    record play(std::size_t chunk_tokens) {
        for (std::size_t done = 0; done < prompt; done = token_) {
            prefill(std::min(chunk_tokens, prompt - done), prompt);
            note("prompt to " + std::to_string(token_));
        }
        decode(steps, "step");
        prefill(turn, token_ + turn);
        note("turn");
        require_ok(cache_.rewind(seq_, rewound));
        token_ -= rewound;
        decode(last_steps, "step after the rewind");
        require_ok(cache_.end(seq_));
        out_.emplace_back("the number of calls that failed", failures_);
        return std::move(out_);
    }

  private:
    static constexpr std::size_t query_floats = std::size_t{model.query_heads} * model.head_dim,
                                 key_floats = std::size_t{model.kv_heads} * model.head_dim;

    void note(std::string what) { out_.emplace_back(std::move(what), hash_.take()); }

    void prefill(std::size_t n, std::size_t end) {
        const bool last = token_ + n == end;
        call(n, last, [&](auto layer, const auto& in, auto out, unsigned shard) {
            return cache_.prefill(seq_, layer, in, out, shard);
        });
        token_ += n;
    }
    void decode(std::size_t n, const std::string& what) {
        for (std::size_t i = 0; i < n; ++i) {
            if (how_.least && i == n / 2) faults_.fail_write.first = faults_.writes.load() + 1;
            call(1, true, [&](auto layer, const auto& in, auto out, unsigned shard) {
                if (auto s = cache_.before_query(seq_, layer, shard); !s) return s;
                return cache_.attend(seq_, layer, in, out, shard);
            });
            ++token_;
            if ((i + 1) % 10 == 0) note(what + " " + std::to_string(i + 1));
        }
    }

    template <class Call> void call(std::size_t n, bool last, Call&& one) {
        for (std::uint32_t l = 0; l < model.layers; ++l) {
            const auto rows = [&](const auto& of, std::size_t floats) {
                return std::span(of[l]).subspan(token_ * floats, n * floats);
            };
            kvtl::layer_input in;
            if (how_.least)
                in = {.q = rows(data_.q16, query_floats),
                      .k = rows(data_.k16, key_floats),
                      .v = rows(data_.v16, key_floats)};
            else
                in = {.q = rows(data_.q, query_floats),
                      .k = rows(data_.k, key_floats),
                      .v = rows(data_.v, key_floats)};
            in = signals_.add_to(in, rows(data_.q, query_floats), model.head_dim);
            in.last_chunk = last;
            std::vector<float> out(n * query_floats, NAN);
            for (unsigned shard = 0; shard < cache_.shards(); ++shard) {
                kvtl::status s = one(l, in, std::span(out), shard);
                for (int tries = 0; !s.ok() && tries < 3; ++tries) { // the write that fails
                    CAPTURE(std::string(s.what()));
                    REQUIRE(how_.least);
                    ++failures_;
                    static_cast<void>(cache_.retry_writes(seq_));
                    s = one(l, in, std::span(out), shard);
                }
                require_ok(s);
            }
            hash_.add(out);
        }
    }

    engine::kv_cache& cache_;
    const stream& data_;
    const run& how_;
    kvtl::io_faults& faults_;
    kvtl::sequence_id seq_{};
    std::size_t token_ = 0;
    std::uint64_t failures_ = 0;
    all_signals signals_;
    hash hash_;
    record out_;
};

constexpr run runs[] = {{.least = false, .name = "ample"}, {.least = true, .name = "least"}};

/// A preset of the registry, over a device in memory whose writes can fail.
record play_preset(std::string_view policy, const run& how, const stream& data, const bases_file& bases) {
    const auto faults = std::make_shared<kvtl::io_faults>();
    engine::cache_options o;
    o.policy = std::string(policy);
    o.shape = model;
    o.max_tokens = all_tokens;
    o.attend_tokens = 96;
    if (engine::policy_wants(policy).evicts) o.keep_tokens = 128, o.prefill_tokens = prompt;
    o.memory_bytes = std::size_t{96} << 20;
    o.shards = how.least ? 2 : 1;
    o.device = kvtl::any_io::of<kvtl::faulty<kvtl::in_memory>>({.inner = {}, .faults = faults});
    o.engine_inputs = engine::model_file_inputs | kvtl::engine_input::external;
    o.calibration = bases.path();
    const gates_file gates(model, gate_inputs_of(policy, model));
    o.gates = engine::policy_wants(policy).trained ? bases.path() : gates.path();
    if (how.least) o.memory_bytes = least_bytes(o, o.memory_bytes);
    auto opened = engine::open_cache(o);
    REQUIRE_MESSAGE(opened.ok(), (opened.ok() ? std::string() : opened.error().message));
    // The least memory of presets that evict holds a prompt in one chunk.
    const bool one_chunk = how.least && engine::policy_wants(policy).evicts;
    return player(**opened, data, how, *faults).play(one_chunk ? prompt : chunk);
}

template <class Preset> struct as_bf16 : Preset {
    using compressor = kvtl::raw<kvtl::bf16>;
    using io = std::conditional_t<kvtl::retrieves<Preset>, kvtl::in_memory, typename Preset::io>;
};

/// A preset with entries of bf16, ample memory.
template <class Preset> record play_bf16(const stream& data, const bases_file& bases) {
    using manager =
        kvtl::kv_manager<as_bf16<Preset>,
                         kvtl::engine_inputs<engine::model_file_inputs, kvtl::engine_input::external>>;
    typename manager::config c;
    c.shape = model;
    c.max_tokens = all_tokens;
    c.attend_tokens = 96;
    if constexpr (kvtl::drops_entries<Preset>) c.keep_tokens = 128, c.prefill_tokens = prompt;
    c.memory_bytes = std::size_t{96} << 20;
    c.calibration = bases.path();
    auto opened = engine::manager_cache<manager>::open(c);
    REQUIRE_MESSAGE(opened.ok(), (opened.ok() ? std::string() : opened.error().message));
    kvtl::io_faults none;
    return player(**opened, data, runs[0], none).play(chunk);
}

/// What bits depend on beside the source: the instruction set and what the compiler may fuse.
std::string set_name() {
    std::string name = kvtl::simd::default_arch::name();
#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)
    name += "+bf16";
#endif
    return name + "." KVTL_BITS_BUILD;
}

class recorded {
  public:
    recorded() : path_(KVTL_SOURCE_DIR "/tests/engine/bits/" + set_name() + ".txt") {
        std::ifstream in(path_);
        for (std::string line; std::getline(in, line);) {
            std::istringstream words(line);
            std::string preset, how;
            words >> preset >> how;
            auto& hashes = of_[preset + " " + how];
            for (std::string h; words >> h;) hashes.push_back(std::strtoull(h.c_str(), nullptr, 16));
        }
    }
    [[nodiscard]] bool empty() const { return of_.empty(); }
    [[nodiscard]] const std::string& path() const { return path_; }

    /// The first place where `now` differs; empty: nowhere.
    [[nodiscard]] std::string difference(const std::string& key, const record& now) const {
        const auto it = of_.find(key);
        if (it == of_.end()) return "is not recorded";
        for (std::size_t i = 0; i < now.size(); ++i)
            if (i >= it->second.size() || it->second[i] != now[i].second)
                return "differs first at " + now[i].first;
        return it->second.size() == now.size() ? "" : "was recorded over a longer workload";
    }

  private:
    std::string path_;
    std::map<std::string, std::vector<std::uint64_t>> of_;
};

/// Compares records with those of the file, or writes the file anew.
class net {
  public:
    net() : recording_(std::getenv("KVTL_RECORD_BITS") != nullptr) {
        if (!recording_ && known_.empty())
            MESSAGE("no bits are recorded for "
                    << set_name()
                    << ": two runs are compared instead; engine/dense.cpp compares with "
                       "attention by definition");
    }
    net(const net&) = delete;

    /// Writes what was recorded, now that all of it is there.
    void finish() const {
        if (!recording_) return;
        std::filesystem::create_directories(std::filesystem::path(known_.path()).parent_path());
        std::ofstream(known_.path()) << lines_.str();
    }
    /// play() -> record, twice where nothing is recorded.
    template <class Play> void see(const std::string& key, Play&& play) {
        CAPTURE(key);
        const record now = play();
        if (recording_) {
            lines_ << key;
            char text[24];
            for (const auto& [what, h] : now) {
                std::snprintf(text, sizeof text, " %016llx", static_cast<unsigned long long>(h));
                lines_ << text;
            }
            lines_ << '\n';
        } else if (known_.empty()) {
            CHECK(now == play());
        } else {
            const std::string difference = known_.difference(key, now);
            CHECK_MESSAGE(difference.empty(), key, " ", difference);
        }
    }

  private:
    recorded known_;
    bool recording_;
    std::ostringstream lines_;
};

} // namespace

TEST_CASE("every preset gives the bits that were recorded for it") {
    const stream data;
    const bases_file bases;
    net all;
    for (const auto policy : engine::policy_names())
        for (const run& how : runs)
            all.see(std::string(policy) + " " + how.name,
                    [&] { return play_preset(policy, how, data, bases); });
    all.see("full bf16", [&] { return play_bf16<kvtl::presets::full>(data, bases); });
    all.see("dynakv bf16", [&] { return play_bf16<kvtl::presets::dynakv>(data, bases); });
    all.see("kvswap bf16", [&] { return play_bf16<kvtl::presets::kvswap>(data, bases); });
    all.see("snapkv_group bf16", [&] { return play_bf16<kvtl::presets::snapkv_group>(data, bases); });
    all.finish();
}
