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
#include <kvtl/io/in_memory.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/full.hpp>
#include <kvtl/presets/kvswap.hpp>
#include <kvtl/presets/snapkv.hpp>
#include <kvtl/simd/arch.hpp>

#include "manager_cache.hpp"
#include "workload.hpp"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

namespace {

using namespace kvtl_test;

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
    auto opened = engine::open_manager<manager>(c);
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
