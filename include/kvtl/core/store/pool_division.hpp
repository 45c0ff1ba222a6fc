// Pools of frames whose memory and tables lie side by side: what one has less another has more.
//
//   memory  [ frames of pool 0 | of pool 1 | ... ]          tables  [ records of pool 0 | of pool 1 | ... ], and so on
//
// What:   the pools of the sequences of a shard. divide() moves borders. Frames that a pool keeps have their numbers and what
//         is in them; bytes and records move with the border in front of them.
// Memory: as much as the pools take alone.
// Cost:   of divide() a copy of each frame that is in use behind a border that moves, and a pass over all records.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/store/frame_pool.hpp>

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace kvtl { inline namespace v0 {

/// Frames of a pool of some division: of its own, and those of them that have memory.
struct pool_part {
    std::uint32_t own = 0, there = 0;
};

template <class Replacement> class pool_division {
    using pool = frame_pool<Replacement>;
    using config = typename Replacement::config;

  public:
    pool_division() = default;
    /// Makes pools of equal size: `each` frames of `frame_bytes`, and `lent` borrowed ones. The tables of all of them take no more
    /// than frame_pool::table_bytes() and 64 bytes for each.
    pool_division(const config& c, std::span<pool> pools, std::span<std::byte> memory, std::uint32_t each,
                  std::uint32_t frame_bytes, std::uint32_t unit_pages, std::uint32_t tails,
                  std::size_t running_bytes, carver& metadata, std::span<std::byte> borrowed = {},
                  std::uint32_t lent = 0) noexcept
        : config_(c), pools_(pools), memory_(memory.data()), frame_bytes_(frame_bytes), each_(each),
          lent_(lent), unit_pages_(unit_pages), tails_(std::min(tails, each + lent)),
          running_bytes_(running_bytes) {
        const std::size_t n = pools.size(), bytes = std::size_t{each} * frame_bytes,
                          lent_bytes = std::size_t{lent} * frame_bytes;
        if (n == 1) {
            pools[0] = pool(c, memory.first(bytes), frame_bytes, unit_pages, tails, running_bytes, metadata,
                            borrowed.first(lent_bytes));
            return;
        }
        t_.running = metadata.take<std::byte>(n * tails_ * running_bytes);
        t_.frames = metadata.take<frame_record>(n * (each + lent), alignof(frame_record));
        t_.unsettled = metadata.take<std::uint32_t>(n * (each + lent), alignof(std::uint32_t));
        t_.tails = metadata.take<tail_record>(n * tails_, alignof(tail_record));
        t_.replacement = metadata.take<std::byte>(n * aligned(policy_bytes(each) + spare), alignment);
        places at;
        for (std::size_t i = 0; i < n; ++i)
            pools[i] =
                pool(c, memory.subspan(i * bytes, bytes), frame_bytes, unit_pages, tails, running_bytes,
                     next_tables(at, i, each), borrowed.subspan(i * lent_bytes, lent_bytes));
    }

    /// Frames of each pool at first.
    [[nodiscard]] std::uint32_t each() const noexcept { return each_; }

    /// part(i): what pool i, of several, has from now on: together no more frames than at first. Each pool has come to rest, has no
    /// more frames that are there than it will have, and has borrowed none.
    template <class Part> void divide(Part&& part) noexcept {
        for (pool& p : pools_) p.list_in_order();
        // To the left in order, to the right against it: nothing is overwritten that still has to move.
        std::size_t from = 0, to = 0;
        for (std::size_t i = 0; i < pools_.size(); ++i) {
            if (to < from) shift(i, from, to);
            from += pools_[i].own(), to += part(i).own;
        }
        assert(to <= pools_.size() * each_);
        for (std::size_t i = pools_.size(); i-- > 0;) {
            from -= pools_[i].own(), to -= part(i).own;
            if (to > from) shift(i, from, to);
        }
        places at;
        for (std::size_t i = 0; i < pools_.size(); ++i) {
            const pool_part p = part(i);
            std::byte* const memory = memory_ + at.frames * frame_bytes_;
            pools_[i].move(config_, memory, p.own, p.there, next_tables(at, i, p.own), unit_pages_);
        }
    }

  private:
    /// Of the replacement policy's blocks (slots/replacement.hpp).
    static constexpr std::size_t alignment = 8, spare = 16;
    [[nodiscard]] static constexpr std::size_t aligned(std::size_t n) noexcept {
        return (n + alignment - 1) / alignment * alignment;
    }
    [[nodiscard]] std::size_t policy_bytes(std::uint32_t own) const noexcept {
        return Replacement::state::bytes(own + lent_, unit_pages_);
    }

    /// Where the next pool begins.
    struct places {
        std::size_t frames = 0, policy_bytes = 0;
    };
    [[nodiscard]] typename pool::tables next_tables(places& at, std::size_t i, std::uint32_t own) noexcept {
        const std::size_t first = record_of(at.frames, i), records = own + lent_, block = policy_bytes(own);
        assert(at.policy_bytes + block <= t_.replacement.size());
        const typename pool::tables t{
            t_.frames.subspan(first, records), t_.unsettled.subspan(first, records),
            t_.tails.subspan(i * tails_, tails_),
            t_.running.subspan(i * tails_ * running_bytes_, tails_ * running_bytes_),
            t_.replacement.subspan(at.policy_bytes, block)};
        at.frames += own, at.policy_bytes += aligned(block);
        return t;
    }
    /// The first record of pool i, in front of whose own frames others have so many.
    [[nodiscard]] std::size_t record_of(std::size_t frames, std::size_t i) const noexcept {
        return frames + i * lent_;
    }
    /// What pool i keeps moves.
    void shift(std::size_t i, std::size_t from, std::size_t to) noexcept {
        const pool& p = pools_[i];
        const std::uint32_t kept = p.there();
        for (std::uint32_t n = 0; n < kept; ++n) {
            const std::uint32_t f = to < from ? n : kept - 1 - n;
            if (!p[f].idle())
                std::memmove(memory_ + (to + f) * frame_bytes_, memory_ + (from + f) * frame_bytes_,
                             frame_bytes_);
        }
        std::memmove(&t_.frames[record_of(to, i)], &t_.frames[record_of(from, i)],
                     kept * sizeof(frame_record));
        std::memmove(&t_.unsettled[record_of(to, i)], &t_.unsettled[record_of(from, i)],
                     kept * sizeof(std::uint32_t));
    }

    config config_{};
    std::span<pool> pools_;
    typename pool::tables t_{}; ///< of all pools
    std::byte* memory_ = nullptr;
    std::size_t frame_bytes_ = 0;
    std::uint32_t each_ = 0, lent_ = 0, unit_pages_ = 0, tails_ = 0;
    std::size_t running_bytes_ = 0;
};

}} // namespace kvtl::v0
