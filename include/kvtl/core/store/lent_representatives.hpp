// Memory for the representatives of the layers that need them now: those of all others are on storage.
//
// What:   what a pool's lanes know of their units (lane.hpp) lies side by side, lane by lane, in one piece per arena
//         (layer_arenas.hpp), and has pages of its own in the file, behind those that the layout places. A layer that
//         gets an arena has its representatives read into the piece; one that loses it has had them written. Only pages
//         that say something of a unit move, and only those are written whose checksum is not that of what the file has:
//         no one has to say what has changed.
// Errors: representatives that cannot be read leave the layer without memory, and its calls fail until they can. A piece
//         that cannot be written keeps its owner.
// Limits: a page that has changed has the checksum it had with a chance of 2^-32, and then the change is lost: a mean is
//         what it was an entry ago, until it changes again. Records of units and entries are never lent.
// Cost:   per turn of a layer two checksums of its representatives, as they come and as they go, and two io_batches.
// Source: DynaKV §6.1, pipeline 1: representatives are streamed before the layer's query is there.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/plan/cache_plan.hpp>
#include <kvtl/core/store/unit_store.hpp>

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace kvtl { inline namespace v0 {

template <class Types> class lent_representatives {
  public:
    using store = unit_store<Types>;
    using pool = typename Types::pool;
    using lane_table = typename Types::lane_table;

    struct piece {
        bool whole = false;   ///< all of its owner's representatives came
        bool written = false; ///< the file has them, or will when an io_batch has landed
        bool failed = false;  ///< they could not be written, and nobody has tried again
    };
    struct tables {
        std::span<pool> memory;            ///< (groups, arenas) pages of each piece
        std::span<piece> pieces;           ///< (groups, arenas)
        std::span<std::uint32_t> arriving; ///< (groups) the arena that is being read into

        [[nodiscard]] static tables take(carver& c, const cache_plan& p) noexcept {
            tables t;
            t.memory = c.take<pool>(std::size_t{p.pool_groups()} * p.arenas);
            t.pieces = c.take<piece>(std::size_t{p.pool_groups()} * p.arenas);
            t.arriving = c.take<std::uint32_t>(p.pool_groups());
            return t;
        }
    };

    lent_representatives() = default;
    /// memory: of all groups' pieces. first_io_batch: of the plan's representative_io_batches().
    lent_representatives(store& s, const cache_plan& p, std::uint32_t shard, const lane_table& lanes,
                         const tables& t, std::span<std::byte> memory, std::uint32_t first_io_batch) noexcept
        : store_(&s), plan_(&p), lanes_(&lanes), t_(t), shard_(shard), first_io_batch_(first_io_batch) {
        const std::uint32_t page_bytes = s.format().page_bytes;
        const std::size_t bytes = std::size_t{p.representative_pages} * page_bytes;
        for (std::size_t i = 0; i < t_.memory.size(); ++i)
            t_.memory[i] = pool::plain(memory.subspan(i * bytes, bytes), page_bytes);
        std::fill(t_.arriving.begin(), t_.arriving.end(), none);
        // The file has no page yet; none shall be taken for one that it has.
        const std::uint32_t zeros = simd::page_checksum(memory.data(), page_bytes);
        for (std::uint32_t page = p.file_pages; page < p.storage_pages(); ++page)
            s.io().checksum(page) = ~zeros;
    }

    /// Sees to it that the file has room for them.
    [[nodiscard]] status ensure_space() noexcept {
        for (const std::uint32_t end = plan_->storage_pages() - plan_->file_pages; reserved_ < end;) {
            const std::uint32_t step = store_->io().map().step_pages,
                                n = std::min(step - reserved_ % step, end - reserved_);
            if (status s = store_->reserve(plan_->file_pages + reserved_, n); !s) return s;
            reserved_ += n;
        }
        return {};
    }

    /// A layer gets an arena whose owner has left: its lanes find their representatives in the piece once they have
    /// landed. True when anything has to be read.
    bool begin_read(std::uint32_t g, std::uint32_t layer, std::uint32_t a) noexcept {
        land(g);
        bind(g, layer, memory_of(g, a).memory().data());
        io_batch& f = reads(g);
        f.clear();
        list(g, layer, f, [](std::uint32_t, std::uint32_t) { return true; });
        piece_of(g, a) = {.whole = f.pages().empty(), .written = true};
        if (f.pages().empty()) return false;
        t_.arriving[g] = a;
        static_cast<void>(store_->io().submit_reads(first_io_batch_ + g, memory_of(g, a), true));
        read_bytes_ += f.pages().size() * memory_of(g, a).frame_bytes();
        return true;
    }
    /// Waits for what is being read.
    void land(std::uint32_t g) noexcept {
        const std::uint32_t a = std::exchange(t_.arriving[g], none);
        if (a == none) return;
        store_->io().drain(first_io_batch_ + g);
        piece_of(g, a).whole = reads(g).error().ok();
    }
    /// All that was read has come, and as it was written.
    [[nodiscard]] bool arrived(std::uint32_t g, std::uint32_t a) const noexcept {
        return t_.pieces[place(g, a)].whole;
    }
    /// The owner of the arena is called. What it does to its representatives, no one says.
    [[nodiscard]] status claim(std::uint32_t g, std::uint32_t a) noexcept {
        if (!piece_of(g, a).whole) return reads(g).error();
        finish_write(g, a); // what is on its way must not change
        piece_of(g, a).written = false;
        return {};
    }
    /// Begins to write what has changed since the file had it. A hint: not what could not be written before.
    void begin_write(std::uint32_t g, std::uint32_t layer, std::uint32_t a) noexcept {
        piece& p = piece_of(g, a);
        finish_write(g, a);
        if (!p.whole || p.written || p.failed) return;
        io_batch& f = writes(g, a);
        pool& memory = memory_of(g, a);
        clear_unused(g, layer, memory.memory());
        f.clear();
        list(g, layer, f, [&](std::uint32_t page, std::uint32_t i) {
            return !store_->io().matches(page, memory.bytes(i));
        });
        p.written = true;
        written_bytes_ += f.pages().size() * memory.frame_bytes();
        if (!f.pages().empty())
            static_cast<void>(store_->io().submit_writes(write_io_batch(g, a), memory, true));
    }
    /// The file has what the arena's owner knows of its units. False when it could not be written; that is tried again
    /// only with `retry`.
    [[nodiscard]] bool settle(std::uint32_t g, std::uint32_t layer, std::uint32_t a, bool retry) noexcept {
        piece& p = piece_of(g, a);
        if (!p.whole) return true; // the file has what could not be read
        finish_write(g, a);
        if (retry) p.failed = false;
        begin_write(g, layer, a);
        finish_write(g, a);
        return p.written;
    }
    /// The owner of an arena has left.
    void unbind(std::uint32_t g, std::uint32_t layer) noexcept { bind(g, layer, nullptr); }

    /// Whether all has been written that was to be, as far as that is known by now.
    [[nodiscard]] status check_writes(std::uint32_t g) noexcept {
        for (std::uint32_t a = 0; a < plan_->arenas; ++a) {
            if (!writes(g, a).in_flight()) finish_write(g, a);
            if (piece_of(g, a).failed)
                return status::failure(errc::writes_pending,
                                       "what is known of a layer's units is kept in memory, appends wait for "
                                       "retry_writes(): %.120s",
                                       writes(g, a).error().what());
        }
        return {};
    }
    void add_to(statistics& s) const noexcept {
        s.representative_bytes_read += read_bytes_, s.representative_bytes_written += written_bytes_;
    }

  private:
    [[nodiscard]] std::size_t place(std::uint32_t g, std::uint32_t a) const noexcept {
        return std::size_t{g} * plan_->arenas + a;
    }
    [[nodiscard]] pool& memory_of(std::uint32_t g, std::uint32_t a) noexcept {
        return t_.memory[place(g, a)];
    }
    [[nodiscard]] piece& piece_of(std::uint32_t g, std::uint32_t a) noexcept {
        return t_.pieces[place(g, a)];
    }
    [[nodiscard]] std::uint32_t write_io_batch(std::uint32_t g, std::uint32_t a) const noexcept {
        return first_io_batch_ + plan_->pool_groups() + static_cast<std::uint32_t>(place(g, a));
    }
    [[nodiscard]] io_batch& reads(std::uint32_t g) noexcept { return store_->io().at(first_io_batch_ + g); }
    [[nodiscard]] io_batch& writes(std::uint32_t g, std::uint32_t a) noexcept {
        return store_->io().at(write_io_batch(g, a));
    }

    /// Waits for a write. Of pages that could not be written no one knows what the file has.
    void finish_write(std::uint32_t g, std::uint32_t a) noexcept {
        io_batch& f = writes(g, a);
        store_->io().drain(write_io_batch(g, a));
        if (!f.error().ok() && !f.pages().empty()) {
            for (const page_transfer& t : f.pages()) store_->io().checksum(t.page) ^= ~0U;
            piece_of(g, a).written = false, piece_of(g, a).failed = true;
        }
        f.truncate(0); // the error stays
    }

    /// visit(lane, its number among the pool's)
    template <class Visit>
    void each_lane(std::uint32_t g, std::uint32_t layer, Visit&& visit) const noexcept {
        const shard_division& d = plan_->division;
        const std::uint32_t lanes = plan_->model.lanes(), first = d.by_sequence ? shard_ : 0,
                            apart = d.by_sequence ? d.shards : 1;
        // A sequence that has pools of its own is the g-th of the shard; else all are one group.
        const bool alone = plan_->pool_groups() > 1;
        const std::uint32_t begin = first + (alone ? g * apart : 0),
                            end = alone ? begin + 1 : plan_->max_sequences;
        std::uint32_t n = 0;
        for (std::uint32_t slot = begin; slot < end; slot += apart)
            for (std::uint32_t i = 0; i < d.lanes_of(lanes, shard_); ++i)
                visit((slot * plan_->model.layers + layer) * lanes + d.lane(i, shard_), n++);
    }
    void bind(std::uint32_t g, std::uint32_t layer, std::byte* memory) noexcept {
        const std::size_t bytes = lanes_->longest.representative_bytes;
        each_lane(g, layer, [&](std::uint32_t lane, std::uint32_t n) {
            lanes_->representatives[lane] = memory == nullptr ? nullptr : memory + n * bytes;
        });
    }
    /// Fills with zeros what pages that are written have beside the parts of units: other sequences may have left it.
    void clear_unused(std::uint32_t g, std::uint32_t layer, std::span<std::byte> memory) const noexcept {
        const std::size_t page_bytes = store_->format().page_bytes,
                          bytes = lanes_->longest.representative_bytes;
        const auto clear = [&](std::size_t begin, std::size_t end) {
            std::fill(&memory[begin], &memory[begin] + (end - begin), std::byte{0});
        };
        std::size_t used = 0; // the end of the part before
        each_lane(g, layer, [&](std::uint32_t lane, std::uint32_t n) {
            lanes_->at(lane).each_representative_part([&](std::size_t first, std::size_t last) {
                const std::size_t begin = n * bytes + first, page = begin / page_bytes * page_bytes,
                                  page_end = (used + page_bytes - 1) / page_bytes * page_bytes;
                if (page >= page_end) clear(used, page_end), used = page;
                clear(used, begin);
                used = n * bytes + last;
            });
        });
        clear(used, (used + page_bytes - 1) / page_bytes * page_bytes);
    }
    /// Adds the pages that say something of a layer's units and are wanted(page of the file, page of the piece).
    template <class Wanted>
    void list(std::uint32_t g, std::uint32_t layer, io_batch& f, Wanted&& wanted) const noexcept {
        const std::size_t page_bytes = store_->format().page_bytes,
                          bytes = lanes_->longest.representative_bytes;
        const std::uint32_t home =
            plan_->file_pages + (g * plan_->pool_layers + layer) * plan_->representative_pages;
        std::uint32_t next = 0; // lanes and their parts ascend
        each_lane(g, layer, [&](std::uint32_t lane, std::uint32_t n) {
            lanes_->at(lane).each_representative_part([&](std::size_t begin, std::size_t end) {
                const auto first = static_cast<std::uint32_t>((n * bytes + begin) / page_bytes),
                           last = static_cast<std::uint32_t>((n * bytes + end - 1) / page_bytes);
                for (next = std::max(next, first); next <= last; ++next)
                    if (wanted(home + next, next)) f.add(home + next, next, none);
            });
        });
    }

    store* store_ = nullptr;
    const cache_plan* plan_ = nullptr;
    const lane_table* lanes_ = nullptr;
    tables t_{};
    std::uint32_t shard_ = 0, first_io_batch_ = 0;
    std::uint32_t reserved_ = 0; ///< pages of theirs that the file has room for
    std::uint64_t read_bytes_ = 0, written_bytes_ = 0;
};

}} // namespace kvtl::v0
