// Memory for the frames and the representatives of the layers that need it now: a sequence has two arenas, lent to its
// layers in turn.
//
// What:   under a schedule that virtualises, every layer has a frame pool of its own, whose tables always stay: what
//         is resident, in which frame, and what the replacement policy thinks of it. The frames' bytes lie in an
//         arena while the layer computes; meanwhile those of the next layer are read back into the other one
//         (DynaKV §6.1, pipeline 2). So memory is bounded by two layers, and a layer's cache is what it would be
//         if its memory had never been lent, but for units that its last hot_steps steps did not ask for.
//
//           attend(0)   A: layer 0 attends      B: layer 1 is read in
//           attend(1)   A: layer 2 is read in   B: layer 1 attends
//           attend(2)   A: layer 2 attends      B: layer 3 is read in     ...
//
//         Clean frames are given up without a write. Tails (unfinished pages, which storage has not) are copied
//         aside and back. Writes from an arena land before it is lent. An arena whose owner could not write keeps
//         its owner until the write has been tried again.
//         What a layer knows of its units goes and comes with its frames (lent_representatives.hpp).
// Errors: pages that could not be read in, or came back wrong, take their units out of the pool: they are read
//         when they are asked for. Without its representatives a layer cannot be called.
// Memory: per sequence 2 x frames of a pool and the representatives of its lanes, beside them open_pages of each layer.
// Cost:   per page-in O(frames) and the requests of one io_batch; no system calls but those.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/plan/cache_plan.hpp>
#include <kvtl/core/store/lent_representatives.hpp>
#include <kvtl/core/store/unit_store.hpp>

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

namespace kvtl { inline namespace v0 {

template <class Types> class layer_arenas {
  public:
    using store = unit_store<Types>;
    using pool = typename Types::pool;
    static constexpr std::uint32_t most = 2; ///< arenas of a sequence

    /// A sequence, or all that share their frames.
    struct group {
        std::array<std::uint32_t, most> owner{none, none}; ///< layers that have the arenas
        std::uint32_t latest = 0;                          ///< the arena that was asked for last
        std::uint32_t flying = none;                       ///< layer that is being read in
    };
    /// Tails of a layer that has no arena.
    struct parked {
        std::uint32_t count = 0, peak = 0;
    };
    struct tables {
        std::span<group> groups;
        std::span<parked> tails;        ///< (pools)
        std::span<std::uint32_t> frame; ///< (pools, open_pages) whose bytes wait
        std::span<std::uint8_t> told;   ///< (sequences, layers) before_query() has come
        typename lent_representatives<Types>::tables representatives;

        [[nodiscard]] static tables take(carver& c, const cache_plan& p) noexcept {
            if (p.pool_layers == 1) return {};
            tables t;
            t.groups = c.take<group>(p.pool_groups());
            t.tails = c.take<parked>(p.pools);
            t.frame = c.take<std::uint32_t>(p.parked_frames());
            t.told = c.take<std::uint8_t>(std::size_t{p.max_sequences} * p.model.layers);
            t.representatives = lent_representatives<Types>::tables::take(c, p);
            return t;
        }
    };

    layer_arenas() = default;
    /// memory: of all groups' arenas, then of all pools' tails, then of representatives. first_io_batch: the first of one
    /// io_batch per group, behind which are those of representatives. The plan stays where it is.
    layer_arenas(store& s, const cache_plan& p, std::uint32_t shard, const typename Types::lane_table& lanes,
                 const tables& t, std::span<std::byte> memory, std::uint32_t first_io_batch) noexcept
        : store_(&s), t_(t), layers_(p.pool_layers), count_(p.arenas), tail_frames_(p.open_pages),
          hot_steps_(p.hot_steps), page_bytes_(s.format().page_bytes), first_io_batch_(first_io_batch) {
        const std::size_t arenas = std::size_t{p.pool_groups()} * p.arenas * p.frames * page_bytes_;
        arena_bytes_ = std::size_t{p.frames} * page_bytes_;
        arenas_ = memory.first(arenas);
        aside_ = memory.subspan(arenas, std::size_t{p.parked_frames()} * page_bytes_);
        known_ = lent_representatives<Types>(s, p, shard, lanes, t.representatives,
                                             memory.subspan(arenas + aside_.size()),
                                             first_io_batch + p.page_in_batches());
        for (pool& frames : s.pools()) frames.bind({});
    }

    /// Nothing is lent: each pool has memory of its own, and the calls below do nothing.
    [[nodiscard]] bool idle() const noexcept { return t_.groups.empty(); }

    /// Sees to it that a layer's frames have their bytes, and its lanes their representatives, which the caller may
    /// change. leave(layer) is called for the layer that gives its arena up, and unpins its units. Fails when writes from
    /// every arena failed, which retry_writes() mends, and when representatives cannot be read.
    template <class Leave>
    [[nodiscard]] status bring(std::uint32_t g, std::uint32_t layer, Leave&& leave) noexcept {
        if (idle()) return {};
        if (status s = known_.ensure_space(); !s) return s;
        turn_to(g, layer);
        std::uint32_t a = arena_of(g, layer);
        if (a == none) {
            a = vacant(g, false, leave);
            if (a == none) return write_error(g);
            if (read_in(g, layer, a)) ++late_;
        }
        if (t_.groups[g].flying == layer) land(g);
        t_.groups[g].latest = a;
        return claim(g, a);
    }
    /// The group has done with the layer that was called last, if that is another: what its calls did to its
    /// representatives is written while others compute.
    void turn_to(std::uint32_t g, std::uint32_t layer) noexcept {
        if (layers_ <= count_) return; // none ever leaves
        const group& all = t_.groups[g];
        if (const std::uint32_t last = all.owner[all.latest]; last != none && last != layer)
            known_.begin_write(g, last, all.latest);
    }
    /// Tries again to write representatives: of lanes that still have units.
    [[nodiscard]] status retry_writes(std::uint32_t g) noexcept {
        if (idle()) return {};
        land(g);
        for (std::uint32_t a = 0; a < count_; ++a)
            if (const std::uint32_t layer = t_.groups[g].owner[a]; layer != none)
                static_cast<void>(known_.settle(g, layer, a, true));
        return known_.check_writes(g);
    }
    /// Of representatives.
    [[nodiscard]] status check_writes(std::uint32_t g) noexcept {
        return idle() ? status{} : known_.check_writes(g);
    }
    /// Begins to read a layer in, unless its bytes are there. A hint: the arena that was asked for last stays as it
    /// is, and so do others whose writes failed.
    template <class Leave> void announce(std::uint32_t g, std::uint32_t layer, Leave&& leave) noexcept {
        if (idle() || arena_of(g, layer) != none) return;
        if (const std::uint32_t a = vacant(g, true, leave); a != none)
            static_cast<void>(read_in(g, layer, a));
    }
    /// Lends a layer all memory of the group, for a prompt; of its frames only tails keep their bytes, no unit is
    /// resident. Nobody may have pinned units of the layer.
    template <class Leave>
    [[nodiscard]] status widen(std::uint32_t g, std::uint32_t layer, Leave&& leave) noexcept {
        if (idle()) return {};
        if (status s = known_.ensure_space(); !s) return s;
        land(g);
        group& all = t_.groups[g];
        for (std::uint32_t a = 0; a < count_; ++a) {
            if (all.owner[a] == none) continue;
            if (all.owner[a] != layer) leave(all.owner[a]);
            if (!settles(g, a)) return write_error(g);
        }
        for (std::uint32_t a = 0; a < count_; ++a)
            if (all.owner[a] != none) park(g, a);
        pool& frames = pool_at(g, layer);
        store_->evict_all(frames);
        all.owner[0] = layer, all.latest = 0;
        frames.bind(arenas_.subspan(g * count_ * arena_bytes_, count_ * arena_bytes_));
        unpark(g, layer);
        static_cast<void>(known_.begin_read(g, layer, 0));
        known_.land(g);
        return claim(g, 0);
    }
    /// Waits for what is being read in, before units of the group are forgotten.
    void land(std::uint32_t g) noexcept {
        if (idle()) return;
        const std::uint32_t layer = std::exchange(t_.groups[g].flying, none);
        if (layer == none) return;
        known_.land(g);
        pool& frames = pool_at(g, layer);
        io_batch& f = store_->io().at(first_io_batch_ + g);
        store_->io().drain(first_io_batch_ + g);
        if (!f.error().ok())
            for (const page_transfer& t : f.pages())
                if (frames[t.frame].linked && !store_->io().matches(t.page, frames.bytes(t.frame)))
                    store_->evict(store_->at(frames[t.frame].lane), frames[t.frame].unit, frames);
        f.clear();
    }

    // ------------------------------------------------------------------------------------------------
    // statistics
    void tell(std::uint32_t slot, std::uint32_t layer) noexcept { t_.told[slot * layers_ + layer] = 1; }
    /// A layer is attended: counts when nobody said so before.
    void note_call(std::uint32_t slot, std::uint32_t layer) noexcept {
        if (!idle() && std::exchange(t_.told[slot * layers_ + layer], std::uint8_t{0}) == 0) ++untold_;
    }
    void add_to(statistics& s) const noexcept {
        s.hot_set_bytes += read_bytes_, s.hot_set_reads += reads_;
        s.late_hot_sets += late_, s.unannounced_layers += untold_;
        known_.add_to(s);
    }
    /// Bytes of arenas and tails that were in use, at their peak.
    [[nodiscard]] std::size_t peak_bytes() const noexcept {
        std::size_t frames = 0;
        for (std::uint32_t g = 0; g < t_.groups.size(); ++g) {
            std::array<std::size_t, most> top{}; // the layers that may have them at once
            for (std::uint32_t l = 0; l < layers_; ++l) {
                std::size_t peak = pool_at(g, l).peak();
                for (std::size_t& t : top)
                    if (peak > t) std::swap(peak, t);
            }
            frames += std::min<std::size_t>(top[0] + top[1], count_ * arena_bytes_ / page_bytes_);
        }
        for (const parked& p : t_.tails) frames += p.peak;
        return frames * page_bytes_;
    }

  private:
    [[nodiscard]] std::uint32_t pool_number(std::uint32_t g, std::uint32_t layer) const noexcept {
        return g * layers_ + layer;
    }
    [[nodiscard]] pool& pool_at(std::uint32_t g, std::uint32_t layer) const noexcept {
        return store_->pools()[pool_number(g, layer)];
    }
    [[nodiscard]] std::span<std::byte> memory_of(std::uint32_t g, std::uint32_t a) const noexcept {
        return arenas_.subspan((g * count_ + a) * arena_bytes_, arena_bytes_);
    }
    [[nodiscard]] std::uint32_t arena_of(std::uint32_t g, std::uint32_t layer) const noexcept {
        for (std::uint32_t a = 0; a < count_; ++a)
            if (t_.groups[g].owner[a] == layer) return a;
        return none;
    }
    /// Why an arena cannot be lent.
    [[nodiscard]] status write_error(std::uint32_t g) noexcept {
        for (std::uint32_t l = 0; l < layers_; ++l)
            if (store_->has_failed_writes(pool_at(g, l))) return store_->write_error(pool_at(g, l));
        return known_.check_writes(g);
    }
    /// The owner of an arena is called. What did not come while nobody waited is read again; one whose representatives
    /// cannot be read gives the arena back.
    [[nodiscard]] status claim(std::uint32_t g, std::uint32_t a) noexcept {
        const std::uint32_t layer = t_.groups[g].owner[a];
        if (!known_.arrived(g, a) && known_.begin_read(g, layer, a)) known_.land(g);
        status s = known_.claim(g, a);
        if (!s) park(g, a);
        return s;
    }

    /// An arena without an owner, after its owner has left if need be; none when no owner can leave.
    template <class Leave>
    [[nodiscard]] std::uint32_t vacant(std::uint32_t g, bool but_latest, Leave& leave) noexcept {
        land(g); // its layer may be the one that leaves
        group& all = t_.groups[g];
        for (std::uint32_t a = 0; a < count_; ++a)
            if (all.owner[a] == none) return a;
        const std::array<std::uint32_t, most> by_age{(all.latest + 1) % count_, all.latest};
        for (const std::uint32_t a : by_age) {
            if (but_latest && a == all.latest) continue;
            leave(all.owner[a]);
            if (!settles(g, a)) continue;
            park(g, a);
            return a;
        }
        return none;
    }
    [[nodiscard]] bool settles(std::uint32_t g, std::uint32_t a) noexcept {
        pool& frames = pool_at(g, t_.groups[g].owner[a]);
        store_->settle_all_writes(frames);
        return !store_->has_failed_writes(frames) && known_.settle(g, t_.groups[g].owner[a], a, false);
    }

    /// The owner of an arena gives it up.
    void park(std::uint32_t g, std::uint32_t a) noexcept {
        const std::uint32_t layer = std::exchange(t_.groups[g].owner[a], none), n = pool_number(g, layer);
        pool& frames = pool_at(g, layer);
        parked& p = t_.tails[n];
        p.count = 0;
        for (const tail_record& t : frames.tails()) {
            std::memcpy(&aside_[tail_place(n, p.count)], frames.bytes(t.frame), page_bytes_);
            t_.frame[n * tail_frames_ + p.count++] = t.frame;
        }
        p.peak = std::max(p.peak, p.count);
        frames.bind({});
        known_.unbind(g, layer);
    }
    void unpark(std::uint32_t g, std::uint32_t layer) noexcept {
        const std::uint32_t n = pool_number(g, layer);
        pool& frames = pool_at(g, layer);
        for (std::uint32_t i = 0; i < t_.tails[n].count; ++i)
            std::memcpy(frames.bytes(t_.frame[n * tail_frames_ + i]), &aside_[tail_place(n, i)], page_bytes_);
        t_.tails[n].count = 0;
    }
    [[nodiscard]] std::size_t tail_place(std::uint32_t pool_number, std::uint32_t i) const noexcept {
        return (std::size_t{pool_number} * tail_frames_ + i) * page_bytes_;
    }

    /// Units that no step of late has chosen or updated are not worth reading again before one asks for them.
    void give_up_old(pool& frames) noexcept {
        for (std::uint32_t i = 0; i < frames.size(); ++i)
            if (frames[i].admitted && frames.steps() - frames[i].used > hot_steps_)
                store_->evict(store_->at(frames[i].lane), frames[i].unit, frames);
    }
    /// Gives a vacant arena to a layer and submits the reads of its frames. True when there are any.
    bool read_in(std::uint32_t g, std::uint32_t layer, std::uint32_t a) noexcept {
        group& all = t_.groups[g];
        if (count_ > 1)
            if (const std::uint32_t other = all.owner[1 - a]; other != none) // a prompt may have had both
                pool_at(g, other).bind(memory_of(g, 1 - a));
        pool& frames = pool_at(g, layer);
        all.owner[a] = layer;
        frames.bind(memory_of(g, a));
        unpark(g, layer);
        give_up_old(frames);
        const std::uint32_t id = first_io_batch_ + g;
        io_batch& f = store_->io().at(id);
        f.clear();
        for (std::uint32_t i = 0; i < frames.size(); ++i)
            if (frames[i].linked && !frames[i].dirty) {
                assert(!frames[i].writing && !frames[i].failed && frames[i].pins == 0);
                f.add(frames[i].page, i, none);
            }
        // land() looks what came.
        const bool known = !known_.begin_read(g, layer, a);
        if (known && f.pages().empty()) return false;
        all.flying = layer;
        if (f.pages().empty()) return true;
        static_cast<void>(store_->io().submit_reads(id, frames));
        read_bytes_ += f.pages().size() * page_bytes_;
        reads_ += f.requests();
        return true;
    }

    store* store_ = nullptr;
    tables t_{};
    lent_representatives<Types> known_;
    std::span<std::byte> arenas_, aside_;
    std::uint32_t layers_ = 1, count_ = 1, tail_frames_ = 0, hot_steps_ = none;
    std::uint32_t page_bytes_ = 0, first_io_batch_ = 0;
    std::size_t arena_bytes_ = 0;
    std::uint64_t read_bytes_ = 0, reads_ = 0, late_ = 0, untold_ = 0;
};

/// Of presets whose pools have memory of their own.
struct no_arenas {
    struct tables {
        [[nodiscard]] static tables take(carver&, const cache_plan&) noexcept { return {}; }
    };
    [[nodiscard]] static constexpr bool idle() noexcept { return true; }
    template <class Leave> static status bring(std::uint32_t, std::uint32_t, Leave&&) noexcept { return {}; }
    template <class Leave> static status widen(std::uint32_t, std::uint32_t, Leave&&) noexcept { return {}; }
    template <class Leave> static void announce(std::uint32_t, std::uint32_t, Leave&&) noexcept {}
    static status retry_writes(std::uint32_t) noexcept { return {}; }
    static status check_writes(std::uint32_t) noexcept { return {}; }
    static void turn_to(std::uint32_t, std::uint32_t) noexcept {}
    static void tell(std::uint32_t, std::uint32_t) noexcept {}
    static void note_call(std::uint32_t, std::uint32_t) noexcept {}
    static void land(std::uint32_t) noexcept {}
    static void add_to(statistics&) noexcept {}
    static std::size_t peak_bytes() noexcept { return 0; }
};
template <class Types>
using arenas_of = std::conditional_t<Types::virtualised, layer_arenas<Types>, no_arenas>;

}} // namespace kvtl::v0
