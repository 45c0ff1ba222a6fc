// The workload that tests of all presets play: a prompt in chunks, decode steps in which clusters split, a further turn, a
// rewind, steps again; and hashes of what comes out.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/io/faulty.hpp>

#include "any_preset.hpp"
#include "support/cache_fixture.hpp"
#include "support/calibrated.hpp"

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvtl_test {

inline constexpr kvtl::shape model{2, 4, 2, 64};
inline constexpr std::size_t prompt = 400, chunk = 170, turn = 50, rewound = 2, last_steps = 10;
inline constexpr std::size_t most_steps = 300;
inline constexpr std::size_t all_tokens = prompt + most_steps + turn + last_steps;

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
inline std::vector<float> rounded(std::span<const float> x) {
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
        add_levels(out, model, ++seed);
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
    explicit stream(std::uint64_t seed = 11) {
        const drift made(model, all_tokens, seed);
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
    player(engine::kv_cache& cache, const stream& data, const run& how, kvtl::io_faults& faults,
           std::size_t steps = most_steps)
        : cache_(&cache), data_(data), how_(how), faults_(faults), steps_(steps) {
        auto seq = cache.begin();
        REQUIRE(seq.ok());
        seq_ = *seq;
    }

    /// between(what came last) is called between tokens; it may have the sequence go on in another cache.
    record play(std::size_t chunk_tokens, const std::function<void(const std::string&)>& between = {}) {
        between_ = between;
        for (std::size_t done = 0; done < prompt; done = token_) {
            prefill(std::min(chunk_tokens, prompt - done), prompt);
            note("prompt to " + std::to_string(token_));
        }
        decode(steps_, "step");
        prefill(turn, token_ + turn);
        note("turn");
        require_ok(cache_->rewind(seq_, rewound));
        for (const follower& f : followers_) require_ok(cache_->rewind(f.seq, rewound));
        token_ -= rewound;
        if (between_) between_("rewind");
        decode(last_steps, "step after the rewind");
        require_ok(cache_->end(seq_));
        out_.emplace_back("the number of calls that failed", failures_);
        return std::move(out_);
    }

    [[nodiscard]] engine::kv_cache& cache() const { return *cache_; }
    [[nodiscard]] kvtl::sequence_id sequence() const { return seq_; }
    [[nodiscard]] std::size_t tokens() const { return token_; }
    void go_on_in(engine::kv_cache& cache, kvtl::sequence_id seq) { cache_ = &cache, seq_ = seq; }

    /// Another sequence of the cache, which takes the same calls from now on.
    struct follower {
        kvtl::sequence_id seq{};
        std::size_t first = 0; ///< of the player's hashes, the one that the first of `out` goes with
        record out;
        hash bits;
    };
    void follow(kvtl::sequence_id seq) { followers_.push_back({seq, out_.size(), {}, {}}); }
    /// It takes no further calls.
    follower part_with(std::size_t i) {
        follower f = std::move(followers_[i]);
        followers_.erase(followers_.begin() + static_cast<std::ptrdiff_t>(i));
        return f;
    }
    [[nodiscard]] const std::vector<follower>& followers() const { return followers_; }

  private:
    static constexpr std::size_t query_floats = std::size_t{model.query_heads} * model.head_dim,
                                 key_floats = std::size_t{model.kv_heads} * model.head_dim;

    void note(std::string what) {
        out_.emplace_back(what, hash_.take());
        for (follower& f : followers_) f.out.emplace_back(what, f.bits.take());
        const bool in_prompt = token_ < prompt;
        if (between_ && !in_prompt) between_(what);
    }

    void prefill(std::size_t n, std::size_t end) {
        const bool last = token_ + n == end;
        call(n, last, [&](auto seq, auto layer, const auto& in, auto out, unsigned shard) {
            return cache_->prefill(seq, layer, in, out, shard);
        });
        token_ += n;
    }
    void decode(std::size_t n, const std::string& what) {
        for (std::size_t i = 0; i < n; ++i) {
            if (how_.least && i == n / 2) faults_.fail_write.first = faults_.writes.load() + 1;
            call(1, true, [&](auto seq, auto layer, const auto& in, auto out, unsigned shard) {
                if (auto s = cache_->before_query(seq, layer, shard); !s) return s;
                return cache_->attend(seq, layer, in, out, shard);
            });
            ++token_;
            if ((i + 1) % 10 == 0) note(what + " " + std::to_string(i + 1));
        }
    }

    template <class Call> void call(std::size_t n, bool last, Call&& one) {
        call_for(seq_, hash_, n, last, one);
        for (follower& f : followers_) call_for(f.seq, f.bits, n, last, one);
    }
    template <class Call>
    void call_for(kvtl::sequence_id seq, hash& bits, std::size_t n, bool last, Call&& one) {
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
            for (unsigned shard = 0; shard < cache_->shards(); ++shard) {
                kvtl::status s = one(seq, l, in, std::span(out), shard);
                for (int tries = 0; !s.ok() && tries < 3; ++tries) { // the write that fails
                    CAPTURE(std::string(s.what()));
                    REQUIRE(how_.least);
                    ++failures_;
                    static_cast<void>(cache_->retry_writes(seq));
                    s = one(seq, l, in, std::span(out), shard);
                }
                require_ok(s);
            }
            bits.add(out);
        }
    }

    engine::kv_cache* cache_;
    const stream& data_;
    const run& how_;
    kvtl::io_faults& faults_;
    kvtl::sequence_id seq_{};
    std::size_t token_ = 0, steps_;
    std::function<void(const std::string&)> between_;
    std::vector<follower> followers_;
    std::uint64_t failures_ = 0;
    all_signals signals_;
    hash hash_;
    record out_;
};

} // namespace kvtl_test
