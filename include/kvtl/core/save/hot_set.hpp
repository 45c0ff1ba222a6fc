// Who is resident of a sequence, to or from a stream: the state of its pool of frames without the bytes of its pages.
//
// What:   clusters that grow take an entry only while they are resident, so their next tokens depend on the pool. A save that
//         keeps the pool's tables, its tails and the replacement policy's block lets a loaded sequence go on with the same bits.
//         Pages themselves are saved with their lanes and read back into the frames.
// Limits: only between equal pools: as many frames, tails and rows of tables, the same replacement, the same share of the heads.
//         Elsewhere nothing is loaded, and the sequence begins with no unit in memory. The pool is the sequence's own.
// Memory: while it is loaded, beside memory_bytes: some 70 bytes per frame, and copies of the replacement's state and of the
//         sums beside tails.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/save/branches.hpp>
#include <kvtl/core/store/unit_store.hpp>
#include <kvtl/save/part_stream.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvtl { inline namespace v0 {

template <class Types> class hot_set {
    using store = unit_store<Types>;
    using pool = typename Types::pool;
    using lane = typename Types::lane;

    /// What two pools must have in common.
    struct shape {
        std::uint64_t replacement = 0;
        std::uint32_t part = 0, parts = 1;
        std::uint32_t frames = 0, borrowed = 0, frame_bytes = 0, tails = 0;
        std::uint32_t running_bytes = 0, replacement_bytes = 0;
        std::uint32_t table_rows = 0, tables_trimmed = 0;
        std::uint32_t first_lane = 0,
                      unused = 0; ///< where the replacement's state names lanes: of the sequence
        friend bool operator==(const shape&, const shape&) = default;
    };
    static_assert(std::has_unique_object_representations_v<shape>);

  public:
    /// first_lane: a lane of the sequence, whose pool has frames of no other.
    hot_set(store& s, std::uint32_t first_lane, const pool_role& role) noexcept
        : store_(&s), frames_(&s.pool_of(first_lane)), first_(first_lane),
          lanes_per_slot_(s.lanes().lanes_per_slot), role_(role) {}

    /// Nothing is on its way: no page is being read or written.
    [[nodiscard]] bool at_rest() const noexcept {
        for (std::uint32_t f = 0; f < frames_->size(); ++f) {
            const frame_record& r = (*frames_)[f];
            if (r.writing || r.failed || r.pins > 0 || r.io_batch != frame_record::no_io_batch) return false;
        }
        return true;
    }
    void save(part_stream& io) noexcept {
        shape own = shape_now();
        io.value(own);
        pool_counts counts{0, frames_->tail_count(), frames_->clock()};
        for (std::uint32_t f = 0; f < frames_->size(); ++f) counts.frames += holds((*frames_)[f]) ? 1 : 0;
        io.value(counts);
        std::size_t n = 0;
        std::array<held_frame, 128> held;
        for (std::uint32_t f = 0; f < frames_->size(); ++f) {
            const frame_record& r = (*frames_)[f];
            if (!holds(r)) continue;
            held[n++] = {f, r.next, r.lane % lanes_per_slot_, r.unit, bits_of(r)};
            if (n == held.size()) io.array(held.data(), std::exchange(n, 0));
        }
        io.array(held.data(), n);
        std::vector<tail_record> tails(frames_->tails().begin(), frames_->tails().end());
        io.array(tails.data(), tails.size());
        for (std::uint32_t t = 0; t < counts.tails; ++t)
            io.array(frames_->running_at(t).data(), frames_->running_bytes());
        io.array(frames_->replacement_block().data(), frames_->replacement_block().size());
    }
    /// The lanes are loaded, and none of their units is resident. True: the pool is as it was. False, and nothing has changed but
    /// the length of tables: it differs in shape, or the stream has failed. The replacement policy's state is taken as it comes:
    /// a checksum covers it. A page that cannot be read fails the stream, and the lanes are to be forgotten.
    [[nodiscard]] bool load(part_stream& io) noexcept {
        shape saved;
        io.value(saved);
        if (!io.ok() || !take_tables(io, saved) || saved != shape_now()) return false;
        pool_counts counts;
        io.value(counts);
        if (!io.ok()) return false;
        if (counts.frames > frames_->size() || counts.tails > frames_->tail_quota()) return contradicts(io);
        std::vector<held_frame> held(counts.frames);
        std::vector<tail_record> tails(counts.tails);
        io.array(held.data(), held.size());
        io.array(tails.data(), tails.size());
        std::vector<std::byte> sums(tails.size() * frames_->running_bytes());
        std::vector<std::byte> replacement(frames_->replacement_block().size());
        io.array(sums.data(), sums.size());
        io.array(replacement.data(), replacement.size());
        if (!io.ok() || !hold(io, held, tails, counts)) return false;
        for (std::uint32_t t = 0; t < tails.size(); ++t)
            std::copy_n(sums.data() + t * frames_->running_bytes(), frames_->running_bytes(),
                        frames_->running_at(t).begin());
        std::copy(replacement.begin(), replacement.end(), frames_->replacement_block().begin());
        read_pages(io, held);
        return io.ok();
    }

  private:
    static constexpr bool names_lanes = requires { requires Types::replacement::names_lanes; };
    [[nodiscard]] std::uint32_t slot_begin() const noexcept {
        return first_ / lanes_per_slot_ * lanes_per_slot_;
    }
    [[nodiscard]] shape shape_now() const noexcept {
        const auto& region = store_->lanes().region_of(first_);
        return {.replacement = role_.replacement,
                .part = role_.part,
                .parts = role_.parts,
                .frames = frames_->there(),
                .borrowed = frames_->borrowed(),
                .frame_bytes = frames_->frame_bytes(),
                .tails = frames_->tail_quota(),
                .running_bytes = static_cast<std::uint32_t>(frames_->running_bytes()),
                .replacement_bytes = static_cast<std::uint32_t>(frames_->replacement_block().size()),
                .table_rows = region.at.rows,
                .tables_trimmed = region.roomy ? 0U : 1U,
                .first_lane = names_lanes ? slot_begin() : 0U};
    }
    /// Tables that lend memory to frames become as long as they were, which decides how much they lend.
    [[nodiscard]] bool take_tables(part_stream& io, const shape& saved) noexcept {
        auto& region = store_->lanes().region_of(first_);
        if (region.lent_page > 0) {
            if (status s = store_->vacate(*frames_); !s) return io.fail(std::move(s)), false;
            store_->make_room_for_prompt(first_, saved.table_rows);
            frames_->borrow(saved.borrowed);
        }
        region.roomy = saved.tables_trimmed == 0;
        return true;
    }

    enum : std::uint32_t { linked = 1, dirty = 2, admitted = 4 };
    [[nodiscard]] static bool holds(const frame_record& r) noexcept { return r.linked || r.dirty; }
    [[nodiscard]] static std::uint32_t bits_of(const frame_record& r) noexcept {
        return (r.linked ? linked : 0U) | (r.dirty ? dirty : 0U) | (r.admitted ? admitted : 0U);
    }
    bool contradicts(part_stream& io) noexcept {
        io.fail(status::failure(errc::corrupt, "load: what is saved of the frames contradicts itself"));
        return false;
    }

    /// The frames hold what they held, as far as tables go, and units know their frames. False, and the pool is as it was, where
    /// the saved tables contradict themselves or the lanes.
    [[nodiscard]] bool hold(part_stream& io, std::span<const held_frame> held,
                            std::span<const tail_record> tails, const pool_counts& counts) noexcept {
        std::vector<frame_record> record(frames_->size());
        std::vector<std::uint8_t> behind(frames_->size()); // another frame of the chain comes before it
        for (const held_frame& h : held) {
            if (h.frame >= frames_->size() || (*frames_)[h.frame].away || record[h.frame].unit != none ||
                h.lane >= lanes_per_slot_ || (h.bits & (linked | dirty)) == 0 ||
                (h.next != none && h.next >= frames_->size()))
                return contradicts(io);
            const std::uint32_t lane_id = slot_begin() + h.lane;
            if (&store_->pool_of(lane_id) != frames_ || h.unit >= store_->at(lane_id).state().units)
                return contradicts(io);
            frame_record& r = record[h.frame];
            r.next = h.next, r.lane = lane_id, r.unit = h.unit;
            r.linked = (h.bits & linked) != 0, r.dirty = (h.bits & dirty) != 0;
            r.admitted = (h.bits & admitted) != 0;
            if (h.next != none && behind[h.next]++ != 0) return contradicts(io);
        }
        for (std::uint32_t t = 0; t < tails.size(); ++t) {
            if (tails[t].frame >= record.size()) return contradicts(io);
            frame_record& r = record[tails[t].frame];
            if (!r.dirty || r.tail != none) return contradicts(io);
            r.tail = t;
        }
        std::size_t placed = 0;
        std::vector<std::uint32_t> heads;
        for (const held_frame& h : held) { // heads of chains, and tails of units that are not resident
            if (behind[h.frame] != 0) continue;
            const lane l = store_->at(record[h.frame].lane);
            const std::uint32_t pages = store_->pages_of(l, h.unit);
            const bool resident = record[h.frame].linked;
            std::uint32_t i = resident ? 0 : pages - 1;
            for (std::uint32_t f = h.frame; f != none; f = record[f].next, ++i) {
                frame_record& r = record[f];
                if (i >= pages || r.unit != h.unit || r.lane != record[h.frame].lane ||
                    r.linked != resident || r.dirty != (r.tail != none) || (r.dirty && i + 1 != pages))
                    return contradicts(io);
                r.page = store_->layout().page(l.unit(h.unit).where, i);
                ++placed;
            }
            if (i != pages) return contradicts(io);
            heads.push_back(h.frame);
        }
        if (placed != held.size()) return contradicts(io); // a ring of frames
        const auto unit_of = [&](std::uint32_t f) { return std::pair(record[f].lane, record[f].unit); };
        std::sort(heads.begin(), heads.end(), [&](auto a, auto b) { return unit_of(a) < unit_of(b); });
        if (std::adjacent_find(heads.begin(), heads.end(),
                               [&](auto a, auto b) { return unit_of(a) == unit_of(b); }) != heads.end())
            return contradicts(io); // a unit in two places
        for (const std::uint32_t f : heads) {
            auto& now = store_->at(record[f].lane).residency(record[f].unit);
            record[f].linked ? now.set_frames(f) : now.set_lone_tail(f);
        }
        frames_->hold(record, tails, counts);
        return true;
    }
    /// Pages that the lanes have written are read into the frames that hold them.
    void read_pages(part_stream& io, std::span<const held_frame> held) noexcept {
        auto& transfers = store_->io();
        auto& batch = transfers.at(0);
        batch.clear();
        for (std::size_t i = 0; i <= held.size(); ++i) {
            if (!batch.pages().empty() && (i == held.size() || !batch.room(1))) {
                status s = transfers.submit_reads(0, *frames_, true);
                transfers.drain(0);
                if (s.ok()) s = batch.error();
                batch.clear();
                if (!s.ok()) return io.fail(std::move(s));
            }
            if (i < held.size()) batch.add((*frames_)[held[i].frame].page, held[i].frame, none);
        }
    }

    store* store_;
    pool* frames_;
    std::uint32_t first_, lanes_per_slot_;
    pool_role role_;
};

}} // namespace kvtl::v0
