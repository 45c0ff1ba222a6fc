// How many frames each sequence of a cache has: as many as any other, or as its weight says.
//
//   part of a sequence = max(what its preset needs, level * weight), with the level at which all parts are all frames
//
// What:   weights of the open sequences. Until one is set each of max_sequences has an equal part, whether it is open or not.
//         After that the open sequences divide all frames.
// Cost:   a pass over the sequences of a shard, and one more for each that its weight alone would leave less than the least.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/plan/cache_plan.hpp>
#include <kvtl/status.hpp>
#include <kvtl/version.hpp>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvtl { inline namespace v0 {

/// Frames that each pool of an open cache may have, and has (resize_core.hpp).
struct frame_range {
    std::uint32_t fewest = 0, most = 0, now = 0;
    std::uint32_t fixed = 0;      ///< of each pool, those that stay with it: they carry pages of fixed groups
    std::uint32_t pools = 1;      ///< of each shard
    std::size_t bytes = 0;        ///< of one more or less in every pool
    std::size_t memory_bytes = 0; ///< the config's
    bool in_turn = false;         ///< pools have them in turn: as many as there are
    bool in_common = false;       ///< one pool for several sequences
};

struct rare_shard_calls;

class frame_shares {
  public:
    [[gnu::cold]] void settle(const shard_division& division, std::uint32_t max_sequences) {
        division_ = division;
        weight_ = std::vector<std::atomic<float>>(max_sequences);
        frames_.assign(max_sequences, 0);
    }
    /// What divides the frames, once a weight has been set; before that null.
    [[nodiscard]] const rare_shard_calls* calls() const noexcept { return calls_.load(); }
    /// From now on they are divided, and sequences that are open have a weight of 1. False where that was so.
    template <class IsOpen> bool begin(const rare_shard_calls& calls, IsOpen&& is_open) noexcept {
        if (calls_.exchange(&calls) != nullptr) return false;
        for (std::uint32_t slot = 0; slot < weight_.size(); ++slot)
            weight_[slot] = is_open(slot) ? 1.0F : 0.0F;
        return true;
    }
    /// Nothing has been divided since begin(), and nothing is.
    void cancel() noexcept { calls_ = nullptr; }
    [[nodiscard]] float weight(std::uint32_t slot) const noexcept { return weight_[slot]; }
    /// 0: the sequence has ended, which may come while another thread divides.
    void set_weight(std::uint32_t slot, float weight) noexcept { weight_[slot] = weight; }

    /// Whether a sequence may have such a weight beside those of the others.
    [[nodiscard]] status check(const frame_range& r, std::uint32_t slot, float weight) const noexcept {
        if (!(weight > 0) || !std::isfinite(weight))
            return status::failure(errc::invalid_argument,
                                   "set_share: weight is %g; valid: a positive number",
                                   static_cast<double>(weight));
        double others = 0;
        each_beside(slot, [&](std::uint32_t i) { others += i == slot ? 0.0F : weight_[i].load(); });
        const double all = divided(r), least = r.fewest - r.fixed;
        if (all * weight >= least * (others + weight)) return {};
        return status::failure(
            errc::bound_too_small,
            "set_share: weight is %g, of %g with the weights of the other open sequences; valid: from %.3f, "
            "with which this one has the %.0f frames of %.0f that it needs",
            static_cast<double>(weight), others + weight,
            std::ceil(least * others / (all - least) * 1000) / 1000, least, all);
    }
    /// Frames of each sequence when each pool has r.now on average, `fixed` ones included: valid for the sequences of this shard.
    /// Empty: all have equal parts.
    [[nodiscard]] std::span<const std::uint32_t> divide(const frame_range& r, unsigned shard) noexcept {
        if (calls() == nullptr) return {};
        const std::uint32_t least = r.fewest - r.fixed;
        double left = divided(r), weights = 0;
        each_beside(shard, [&](std::uint32_t i) { weights += weight_[i], frames_[i] = 0; });
        const auto part = [&](std::uint32_t i) { return left * weight_[i] / weights; };
        for (bool again = true; again;) {
            again = false;
            each_beside(shard, [&](std::uint32_t i) {
                if (weight_[i] == 0 || frames_[i] > 0 || part(i) >= least) return;
                frames_[i] = least, left -= least, weights -= weight_[i];
                again = true;
            });
        }
        auto rest = static_cast<std::uint32_t>(left);
        const auto shared = [&](std::uint32_t i) { return weight_[i] > 0 && frames_[i] == 0; };
        each_beside(shard,
                    [&](std::uint32_t i) { rest -= shared(i) ? static_cast<std::uint32_t>(part(i)) : 0; });
        each_beside(shard, [&](std::uint32_t i) {
            if (!shared(i)) return;
            frames_[i] = static_cast<std::uint32_t>(part(i)) + (rest > 0 ? 1 : 0);
            rest -= rest > 0 ? 1 : 0;
        });
        each_beside(shard, [&](std::uint32_t i) { frames_[i] += r.fixed; });
        return frames_;
    }

  private:
    /// Frames of a shard that weights divide.
    [[nodiscard]] static double divided(const frame_range& r) noexcept {
        return static_cast<double>(r.pools) * (r.now - r.fixed);
    }
    /// f(slot) for those that are in a shard of this one, or in this shard: shards and slots count alike.
    template <class F> void each_beside(std::uint32_t slot_or_shard, F&& f) const noexcept {
        const std::uint32_t step = division_.by_sequence ? division_.shards : 1;
        for (std::uint32_t i = slot_or_shard % step; i < weight_.size(); i += step) f(i);
    }

    shard_division division_;
    std::atomic<const rare_shard_calls*> calls_{nullptr};
    std::vector<std::atomic<float>> weight_; ///< per sequence; 0: not open
    std::vector<std::uint32_t> frames_;      ///< per sequence
};

}} // namespace kvtl::v0
