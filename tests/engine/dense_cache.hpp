// The tests' oracle of a KV cache: everything in memory, attention in double precision, no policy at all.
// SPDX-License-Identifier: MIT
#pragma once

#include "kv_cache.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace engine {

class dense_cache final : public kv_cache {
  public:
    explicit dense_cache(const cache_options& options)
        : options_(options), sequences_(options.max_sequences) {
        options_.shards = std::max(options_.shards, 1U);
    }

    /// From this many tokens on, every append of the last layer fails, as a full disk would.
    void fail_at(std::size_t tokens) { fail_at_ = tokens; }

    /// What the engine shall supply; every call is then checked for it.
    void want(cache_wants wants) { wants_ = wants; }
    [[nodiscard]] cache_wants wants() const noexcept override { return wants_; }
    [[nodiscard]] std::size_t prefetches() const { return prefetches_; }
    [[nodiscard]] const std::vector<float>& last_guess() const {
        return guess_;
    } ///< the query of the last prefetch
    [[nodiscard]] std::size_t last_chunks() const {
        return last_chunks_;
    } ///< prefill calls that ended a prompt

    kvtl::result<kvtl::sequence_id> begin() override {
        for (std::uint32_t slot = 0; slot < sequences_.size(); ++slot) {
            auto& s = sequences_[slot];
            if (s.open) continue;
            s.open = true;
            s.heads.assign(std::size_t{options_.shape.layers} * options_.shape.kv_heads, {});
            return kvtl::sequence_id{slot, ++s.generation};
        }
        return kvtl::error(kvtl::errc::out_of_range, "all sequences are in use");
    }

    kvtl::status prefill(kvtl::sequence_id seq, std::uint32_t layer, const kvtl::layer_input& in,
                         std::span<float> out, unsigned shard) noexcept override {
        if (shard == 0 && in.last_chunk) ++last_chunks_;
        const std::size_t one = std::size_t{options_.shape.kv_heads} * options_.shape.head_dim;
        return append_and_attend(seq, layer, in, out, shard, in.k.size() / one);
    }

    kvtl::status attend(kvtl::sequence_id seq, std::uint32_t layer, const kvtl::layer_input& in,
                        std::span<float> out, unsigned shard) noexcept override {
        return append_and_attend(seq, layer, in, out, shard, 1);
    }

    kvtl::status prefetch(kvtl::sequence_id, std::uint32_t, std::span<const float> q,
                          unsigned shard) noexcept override {
        if (shard == 0) {
            ++prefetches_;
            guess_.assign(q.begin(), q.end());
        }
        return {};
    }

    kvtl::status rewind(kvtl::sequence_id seq, std::size_t n) noexcept override {
        const std::size_t bytes = n * options_.shape.head_dim;
        for (auto& h : sequences_[seq.slot].heads) {
            if (h.k.size() < bytes)
                return kvtl::status::failure(kvtl::errc::out_of_range, "rewind by %zu tokens", n);
            h.k.resize(h.k.size() - bytes);
            h.v.resize(h.v.size() - bytes);
        }
        return {};
    }

    kvtl::status end(kvtl::sequence_id seq) noexcept override {
        sequences_[seq.slot].open = false;
        return {};
    }

    [[nodiscard]] cache_stats stats() const override {
        cache_stats s;
        for (const auto& one : sequences_)
            for (const auto& h : one.heads)
                s.resident_bytes_peak += (h.k.size() + h.v.size()) * sizeof(double);
        s.bytes_by_part = {{"window", s.resident_bytes_peak}};
        s.hit_rate = 1;
        s.io = "memory";
        return s;
    }

    [[nodiscard]] unsigned shards() const noexcept override { return options_.shards; }

  private:
    struct head {
        std::vector<double> k, v; // (T, D)
    };
    struct sequence {
        bool open = false;
        std::uint32_t generation = 0;
        std::vector<head> heads; // (L, H)
    };

    kvtl::status append_and_attend(kvtl::sequence_id seq, std::uint32_t layer, const kvtl::layer_input& in,
                                   std::span<float> out, unsigned shard, std::size_t tokens) noexcept {
        const auto& g = options_.shape;
        const std::size_t dim = g.head_dim;
        const std::size_t q_row = g.query_heads * dim;
        const std::size_t kv_row = g.kv_heads * dim;
        if (in.q.size() != tokens * q_row || in.k.size() != tokens * kv_row ||
            in.v.size() != tokens * kv_row || out.size() != tokens * q_row)
            return kvtl::status::failure(kvtl::errc::invalid_argument,
                                         "views of another shape than %zu tokens", tokens);
        if (contains(wants_.inputs, kvtl::engine_input::k_pre) && in.k_pre.size() != tokens * kv_row)
            return kvtl::status::failure(kvtl::errc::unsupported, "k_pre is missing");
        if (contains(wants_.inputs, kvtl::engine_input::x) && (in.x.empty() || in.x.size() % tokens != 0))
            return kvtl::status::failure(kvtl::errc::unsupported, "x is missing");
        for (std::uint32_t h = shard; h < g.kv_heads; h += options_.shards) {
            head& kept = sequences_[seq.slot].heads[std::size_t{layer} * g.kv_heads + h];
            const std::size_t before = kept.k.size() / dim;
            if (before + tokens > options_.max_tokens)
                return kvtl::status::failure(kvtl::errc::out_of_range, "more than max_tokens = %zu",
                                             options_.max_tokens);
            if (layer + 1 == g.layers && before + tokens >= fail_at_)
                return kvtl::status::failure(kvtl::errc::disk_full, "no space for %zu tokens",
                                             before + tokens);
            for (std::size_t t = 0; t < tokens; ++t)
                for (std::size_t d = 0; d < dim; ++d) {
                    kept.k.push_back(static_cast<double>(in.k.floats()[t * kv_row + h * dim + d]));
                    kept.v.push_back(static_cast<double>(in.v.floats()[t * kv_row + h * dim + d]));
                }
            const std::size_t group = g.query_heads / g.kv_heads;
            for (std::size_t t = 0; t < tokens; ++t)
                for (std::size_t j = 0; j < group; ++j) {
                    const std::size_t at = t * q_row + (h * group + j) * dim;
                    attend_one(in.q.floats().subspan(at, dim), kept, before + t + 1, out.subspan(at, dim));
                }
        }
        return {};
    }

    /// Softmax attention of one query over the first `n` entries.
    static void attend_one(std::span<const float> q, const head& kept, std::size_t n,
                           std::span<float> out) noexcept {
        const std::size_t dim = q.size();
        std::vector<double> weight(n);
        double top = -INFINITY;
        for (std::size_t i = 0; i < n; ++i) {
            double dot = 0;
            for (std::size_t d = 0; d < dim; ++d) dot += static_cast<double>(q[d]) * kept.k[i * dim + d];
            weight[i] = dot / std::sqrt(static_cast<double>(dim));
            top = std::max(top, weight[i]);
        }
        double total = 0;
        std::vector<double> sum(dim, 0.0);
        for (std::size_t i = 0; i < n; ++i) {
            const double w = std::exp(weight[i] - top);
            total += w;
            for (std::size_t d = 0; d < dim; ++d) sum[d] += w * kept.v[i * dim + d];
        }
        for (std::size_t d = 0; d < dim; ++d) out[d] = static_cast<float>(sum[d] / total);
    }

    cache_options options_;
    std::vector<sequence> sequences_;
    cache_wants wants_;
    std::size_t fail_at_ = SIZE_MAX;
    std::size_t prefetches_ = 0;
    std::size_t last_chunks_ = 0;
    std::vector<float> guess_;
};

} // namespace engine
