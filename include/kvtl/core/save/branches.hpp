// Which layers of a branch are still to be copied from its parent.
//
// What:   fork() notes for each layer of the branch the sequence that has it. The first call that touches the layer, of either
//         of them, copies it before it does anything else. So fork() itself costs a note per layer, and what it needs later is
//         set aside by it. A branch of a branch that has not been copied names the sequence that has the layer.
// Shapes: (sequences, stores of the model, core/layer_map.hpp).
// Cost:   4 bytes for each where a cache has several sequences. While nothing waits, one comparison per call; else a look at
//         each sequence.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/plan/cache_plan.hpp>
#include <kvtl/reservation.hpp>
#include <kvtl/statistics.hpp>
#include <kvtl/unit.hpp>

#include <algorithm>
#include <cstdint>
#include <span>

namespace kvtl { inline namespace v0 {

class branch_table {
  public:
    [[nodiscard]] static std::span<std::uint32_t> take(carver& c, std::uint32_t sequences,
                                                       std::uint32_t layers) noexcept {
        return c.take<std::uint32_t>(sequences > 1 ? std::size_t{sequences} * layers : 0);
    }

    branch_table() = default;
    branch_table(std::span<std::uint32_t> memory, std::uint32_t layers) noexcept
        : source_(memory), layers_(layers) {
        std::fill(source_.begin(), source_.end(), none);
    }

    /// The sequence that a layer is still to be copied from, or none.
    [[nodiscard]] std::uint32_t source(std::uint32_t slot, std::uint32_t layer) const noexcept {
        return waiting_ == 0 ? none : source_[std::size_t{slot} * layers_ + layer];
    }
    /// The sequence that has what the layer is.
    [[nodiscard]] std::uint32_t holder(std::uint32_t slot, std::uint32_t layer) const noexcept {
        const std::uint32_t from = source(slot, layer);
        return from == none ? slot : from;
    }
    /// A sequence that still has to copy the layer from this one, or none.
    [[nodiscard]] std::uint32_t next_branch(std::uint32_t slot, std::uint32_t layer) const noexcept {
        for (std::uint32_t b = 0; waiting_ > 0 && b < source_.size() / layers_; ++b)
            if (source(b, layer) == slot) return b;
        return none;
    }
    /// One of two sequences still has to copy a layer from the other.
    [[nodiscard]] bool related(std::uint32_t a, std::uint32_t b) const noexcept {
        for (std::uint32_t layer = 0; waiting_ > 0 && layer < layers_; ++layer)
            if (source(a, layer) == b || source(b, layer) == a) return true;
        return false;
    }
    /// f(sequence, layer) for all that wait.
    template <class F> void each(F&& f) const noexcept {
        for (std::uint32_t i = 0; waiting_ > 0 && i < source_.size(); ++i)
            if (source_[i] != none) f(i / layers_, i % layers_);
    }
    void wait_for(std::uint32_t slot, std::uint32_t layer, std::uint32_t from) noexcept {
        source_[std::size_t{slot} * layers_ + layer] = from;
        ++waiting_;
    }
    void copied(std::uint32_t slot, std::uint32_t layer) noexcept {
        source_[std::size_t{slot} * layers_ + layer] = none;
        --waiting_;
    }

  private:
    std::span<std::uint32_t> source_;
    std::uint32_t layers_ = 1, waiting_ = 0;
};

/// What a shard keeps of each sequence, whatever its stages are.
struct sequence_tables {
    std::span<std::uint32_t> branches;
    std::span<sequence_statistics> calls; ///< (sequences of the shard), by seat

    [[nodiscard]] static sequence_tables take(carver& c, const shard_division& division,
                                              std::uint32_t sequences, std::uint32_t layers) noexcept {
        sequence_tables t;
        t.branches = branch_table::take(c, sequences, layers);
        t.calls = c.take<sequence_statistics>(division.sequences(sequences));
        return t;
    }
};

/// Which part of a sequence a pool has, and what decides who leaves it.
struct pool_role {
    std::uint32_t part = 0, parts = 1; ///< of the shards that have the sequence
    std::uint64_t replacement = 0;     ///< fingerprint of the policy and its settings
};

}} // namespace kvtl::v0
