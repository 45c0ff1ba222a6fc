// How lanes of fixed groups grow: entries leave the window a whole group at a time (KVSwap's rolling buffer:
// an incomplete group stays in DRAM and is attended), go to the lane's stream, and are never moved again.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/store/group_store.hpp>
#include <kvtl/core/store/summaries.hpp>
#include <kvtl/slots/clusterer.hpp>

namespace kvtl { inline namespace v0 {

template <class Types> class group_growth {
  public:
    using store = group_store<Types>;
    using lane = typename Types::lane;
    using pool = typename Types::pool;

    using element_type = typename Types::element_type;
    static constexpr std::uint32_t granule = Types::compressor::granule;

    struct scratch {
        std::span<std::byte> record;  ///< of the entries on their way to their page
        std::span<element_type> k, v; ///< (granule, width), where the window's ring may part them
        static scratch take(carver& c, const lane_sizes& s, std::uint32_t, std::uint32_t) noexcept {
            const std::size_t apart = granule > 1 ? std::size_t{granule} * s.width : 0;
            scratch x;
            x.record = c.take<std::byte>(record_scratch<Types>(s.record));
            x.k = c.take<element_type>(apart);
            x.v = c.take<element_type>(apart);
            return x;
        }
    };

    group_growth() = default;
    group_growth(store& s, const summaries<Types>& sums, const scratch& x) noexcept
        : store_(&s), sums_(&sums), x_(x) {}

    /// What index and selector see of a lane: units of equal size, without records.
    [[nodiscard]] units_view view(std::uint32_t lane_id) const noexcept {
        const lane l = store_->at(lane_id);
        const lane_state& s = l.state();
        return {nullptr,         s.units,  {},   l.sizes().width,
                store_->group(), s.tokens, true, sums_->index_of(lane_id)};
    }

    /// True while the window holds a group more than it should.
    [[nodiscard]] bool overdue(const lane& l) const noexcept {
        const lane_state& s = l.state();
        return s.tokens - s.window_begin >= l.sizes().window + store_->group();
    }

    /// The oldest G entries of the window become a unit. False (and nothing changed) when no page frame or no
    /// storage is left.
    [[nodiscard]] bool place_oldest(std::uint32_t lane_id) noexcept {
        const lane l = store_->at(lane_id);
        lane_state& s = l.state();
        pool& pages = store_->write_pool(lane_id);
        const std::uint32_t first = s.units * store_->group(), end = first + store_->group();
        const std::uint32_t begun = store_->pages_begun(l, store_->group());
        if (s.units >= l.sizes().max_units) return false;
        if (begun > 0 && !store_->extend_to(l, store_->pages_before(l) + begun - 1)) return false;
        std::uint32_t frames = none, last = none; // a chain of the page frames that the group begins
        for (std::uint32_t i = 0; i < begun * Types::fields; ++i) {
            const std::uint32_t f = store_->acquire_free(pages);
            if (f == none) {
                while (frames != none) pages.settle(std::exchange(frames, pages[frames].next));
                return false;
            }
            pages[f].next = none;
            (frames == none ? frames : pages[last].next) = f;
            last = f;
        }
        const std::uint32_t u = s.units;
        if (store::ragged) l.extent(u) = {};
        decltype(auto) codec = store_->codec(lane_id);
        for (std::uint32_t e = first; e < end; e += granule) {
            const std::uint32_t token = s.window_begin + e - first;
            for (std::uint32_t i = 0; i < granule; ++i)
                sums_->absorb(lane_id, u, e - first + i, l.window_k(token + i), l.window_v(token + i),
                              sums_->building());
            const auto [k, v] = window_rows(l, token);
            store_->put_entry(lane_id, e, frames,
                              record_of<Types>(codec, l.sizes().record, k, v,
                                               {l.position_of(token), l.weight_at(l.window_w(token))},
                                               x_.record));
        }
        while (frames != none) pages.settle(std::exchange(frames, pages[frames].next)); // there was more room
        l.begin_unit(u, {});
        ++s.units;
        s.window_begin += store_->group();
        return true;
    }

    // Groups are complete when they are made: nothing ever waits for them.
    static constexpr bool foresees = false; ///< see unit_growth
    bool merge_buffered(std::uint32_t) const noexcept { return false; }

    /// Pages that `tokens` more tokens of a lane may take from the end of the file.
    [[nodiscard]] std::uint32_t worst_case_pages(const lane&, std::uint32_t tokens) const noexcept {
        return store::stream_pages(store_->format().pages_for(tokens)) + 2 * store_->layout().run_pages();
    }

  private:
    struct rows {
        const element_type *k, *v;
    };
    /// A granule of the window, (granule, width) each.
    [[nodiscard]] rows window_rows(const lane& l, std::uint32_t token) const noexcept {
        if (granule > 1) {
            const std::size_t width = l.sizes().width;
            for (std::uint32_t i = 0; i < granule; ++i) {
                std::copy_n(l.window_k(token + i), width, &x_.k[i * width]);
                std::copy_n(l.window_v(token + i), width, &x_.v[i * width]);
            }
            return {x_.k.data(), x_.v.data()};
        } else {
            return {l.window_k(token), l.window_v(token)};
        }
    }

    store* store_ = nullptr;
    const summaries<Types>* sums_ = nullptr;
    scratch x_{};
};

}} // namespace kvtl::v0
