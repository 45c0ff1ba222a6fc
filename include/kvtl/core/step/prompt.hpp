// Prompts: from a lane's rows to units on storage, a segment of them at a time (prompt_rows.hpp).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/step/prompt_attention.hpp>

namespace kvtl { inline namespace v0 {

template <class Types> class prompt_builder : public prompt_attention<Types> {
    using base = prompt_attention<Types>;
    using base::encode_held, base::hold, base::no_storage, base::position_of, base::row_bytes, base::row_k,
        base::row_v;
    using base::first_page_, base::frames_, base::held_, base::p_, base::segment_, base::store_, base::x_;
    using typename base::page_writer, typename base::row_range;

  public:
    using base::probe_queries, base::stage;
    using typename base::clusterer, typename base::element_type, typename base::lane, typename base::parts,
        typename base::store;

    prompt_builder() = default;
    prompt_builder(store& s, const parts& p) noexcept : base(s, p) {}

    /// Turns rows [0, total) into sinks, units and window. The lane must have no units; tokens are set by
    /// commit(). `in`: the prompt's last `chunk` queries.
    template <class Source>
    [[nodiscard]] status organise(std::uint32_t lane_id, std::uint32_t lane_in_layer, const layer_input& in,
                                  std::uint32_t total, std::uint32_t chunk, Source&& source) noexcept {
        const lane l = store_->at(lane_id);
        const std::uint32_t sinks = std::min(total, p_.sizes.sinks);
        const std::uint32_t window = std::min(total - sinks, p_.sizes.window), end = total - window;
        if (status s = keep_in_memory(lane_id, sinks, total, window, source); !s) return s;
        if (end == sinks) return {};
        bool founded = false;
        if constexpr (clusterer::founds) founded = p_.cluster->ready(end - sinks);
        status done;
        for (std::uint32_t first = sinks, n = 0; done.ok() && first < end; first += n) {
            n = std::min(segment_, end - first);
            if (first + n < end && !founded) // so that its units are those of one segment
                n -= n % p_.cluster->sequential_entries();
            done = hold(first, first + n, total, source);
            if (done.ok()) done = organise_segment(lane_id, lane_in_layer, in, {first, n}, founded, chunk);
        }
        if (!done.ok()) {
            forget_units(l);
            return done;
        }
        l.state().founded = founded;
        if constexpr (clusterer::founds)
            if (founded) p_.cluster->founded(l.clusterer(), p_.growth->view(lane_id));
        return {};
    }

    /// Makes an organised lane's tokens count.
    void commit(const lane& l, std::uint32_t total) noexcept {
        lane_state& s = l.state();
        s.sinks = std::min(total, p_.sizes.sinks);
        s.window_begin = total - std::min(total - s.sinks, p_.sizes.window);
        s.tokens = total;
        s.staged = 0;
        store_->release_stream(l);
    }

    /// Undoes stage() of rows behind the first `rows`.
    void forget_staged(const lane& l, std::uint32_t rows) noexcept {
        const std::uint32_t run = store_->layout().run_pages();
        store_->shorten_stream(l, (store_->plain_format().pages_for(rows) + run - 1) / run);
    }

    /// Undoes organise().
    void forget_units(const lane& l) noexcept {
        for (unit_record& u : l.units())
            if (u.where.first != none) store_->layout().release(u.where);
        l.state().units = 0;
        l.state().founded = false;
        l.clusterer() = {};
        l.forget_fit();
    }

    /// Clusters a lane that has been sequential so far: reads all its units, groups them anew, and replaces
    /// them. Only for lanes without resident data (begin() has emptied the pool), of no more entries than a segment.
    [[nodiscard]] status found(std::uint32_t lane_id) noexcept {
        const lane l = store_->at(lane_id);
        lane_state& s = l.state();
        std::uint32_t n = 0;
        std::size_t stored_bytes = 0;
        for (std::uint32_t u = 0; u < s.units; ++u) {
            stored_bytes += store_->bytes_of(l, u);
            if (status done = load_unit(lane_id, u, n); !done) return done;
        }
        const std::uint32_t stored = n;
        for (std::uint32_t i = 0; i < s.buffered; ++i, ++n)
            x_.rows.set(store_->codec(lane_id), n, l.buffer_k(i), l.buffer_v(i),
                        {l.position_of_buffered(i), l.weight_at(l.buffer_w(i))});
        const rows_view<element_type> keys = x_.rows.keys(0, n);
        const bool founded = true;
        const std::uint32_t units = label(keys, founded);
        if (status fits = check_units(l, units); !fits) return fits;
        // The old table stays in the arena until the new units are on storage.
        const std::uint32_t old_units = s.units;
        std::copy_n(&l.unit(0), old_units, x_.old_unit.begin());
        if constexpr (store::ragged) std::copy_n(&l.extent(0), old_units, x_.old_extent.begin());
        make_units(lane_id, 0, 0, keys, units);
        if (status done = place_units(lane_id, 0, {}, 0, units, 0, 0); !done) {
            s.units = old_units;
            std::copy_n(x_.old_unit.begin(), old_units, &l.unit(0));
            if constexpr (store::ragged) std::copy_n(x_.old_extent.begin(), old_units, &l.extent(0));
            refresh_means(lane_id, keys, stored);
            return done;
        }
        for (std::uint32_t u = 0; u < old_units; ++u) store_->layout().release(x_.old_unit[u].where);
        store_->stats().bytes_moved_by_updates += stored_bytes;
        s.buffered = 0;
        s.founded = founded;
        if constexpr (clusterer::founds) p_.cluster->founded(l.clusterer(), p_.growth->view(lane_id));
        return {};
    }

  private:
    /// Sinks and window of a prompt go to the lane.
    template <class Source>
    [[nodiscard]] status keep_in_memory(std::uint32_t lane_id, std::uint32_t sinks, std::uint32_t total,
                                        std::uint32_t window, Source& source) noexcept {
        const lane l = store_->at(lane_id);
        const auto keep = [&](std::uint32_t begin, std::uint32_t end) -> status {
            for (std::uint32_t t = begin; t < end; ++t) {
                if (status s = hold(t, t + 1, total, source); !s) return s;
                const std::uint32_t row = held_.at(t);
                std::memcpy(l.arrival_k(t), row_k(row), row_bytes());
                std::memcpy(l.arrival_v(t), row_v(row), row_bytes());
                if constexpr (Types::weighted) *l.arrival_w(t) = x_.log_weight[row];
                if (t >= sinks) l.set_position(t, position_of(t));
            }
            return {};
        };
        if (status s = keep(0, sinks); !s) return s;
        return keep(total - window, total);
    }

    /// Rows [first, first + count), which the arena holds, become units behind those that there are.
    [[nodiscard]] status organise_segment(std::uint32_t lane_id, std::uint32_t lane_in_layer,
                                          const layer_input& in, row_range rows, bool founded,
                                          std::uint32_t chunk) noexcept {
        const lane l = store_->at(lane_id);
        const std::uint32_t at = held_.at(rows.first), first_unit = l.state().units;
        const rows_view<element_type> keys = x_.rows.keys(at, rows.count);
        store_->fit_codec(lane_id, keys, x_.rows.values(at, rows.count), x_.cluster);
        encode_held(lane_id);
        const std::uint32_t units = label(keys, founded);
        if (status fits = check_units(l, first_unit + units); !fits) return fits;
        make_units(lane_id, first_unit, at, keys, units);
        return place_units(lane_id, lane_in_layer, in, first_unit, units, at, chunk);
    }

    [[nodiscard]] static status check_units(const lane& l, std::uint32_t units) noexcept {
        if (units <= l.table_rows()) return {};
        return status::failure(
            errc::out_of_range,
            "clusterer %s made %u units of a prompt's first tokens; valid: the %u that its "
            "max_units() says",
            clusterer::name.data(), units, l.table_rows());
    }
    /// Gives every row a unit: the clusterer's groups, or sequential ones while there are too few entries.
    std::uint32_t label(rows_view<element_type> keys, bool founded) noexcept {
        const auto n = static_cast<std::uint32_t>(keys.count);
        if constexpr (clusterer::founds)
            if (founded) return detail::group(*p_.cluster, keys, x_.cluster, x_.label.data(), p_.threads);
        static_cast<void>(founded);
        const std::uint32_t step = p_.cluster->sequential_entries();
        for (std::uint32_t i = 0; i < n; ++i) x_.label[i] = i / step;
        return (n + step - 1) / step;
    }

    /// Unit table, statistics and `order` (rows grouped by unit, ascending within one).
    /// Row i is row first_row + i of the arena; label 0 is unit first_unit.
    void make_units(std::uint32_t lane_id, std::uint32_t first_unit, std::uint32_t first_row,
                    rows_view<element_type> keys, std::uint32_t units) noexcept {
        const lane l = store_->at(lane_id);
        const auto n = static_cast<std::uint32_t>(keys.count);
        std::fill_n(x_.begin.begin(), units + 1, 0U);
        for (std::uint32_t i = 0; i < n; ++i) ++x_.begin[x_.label[i] + 1];
        for (std::uint32_t u = 0; u < units; ++u) x_.begin[u + 1] += x_.begin[u];
        for (std::uint32_t i = 0; i < n; ++i) x_.order[x_.begin[x_.label[i]]++] = i;
        for (std::uint32_t u = units; u > 0; --u) x_.begin[u] = x_.begin[u - 1];
        x_.begin[0] = 0;
        l.state().units = first_unit + units;
        for (std::uint32_t i = 0; i < units; ++i) {
            const std::uint32_t u = first_unit + i;
            l.begin_unit(u, {});
            unit_record& unit = l.unit(u);
            unit.entries = x_.begin[i + 1] - x_.begin[i];
            if constexpr (Types::means)
                unit.m2 = p_.sums->set_mean(
                    lane_id, u, keys,
                    std::span<const std::uint32_t>(x_.order.subspan(x_.begin[i], unit.entries)));
            if constexpr (summaries<Types>::any) {
                for (std::uint32_t e = 0; e < unit.entries; ++e) {
                    const std::uint32_t row = first_row + x_.order[x_.begin[i] + e];
                    p_.sums->absorb(lane_id, u, e, row_k(row), row_v(row), p_.sums->building());
                }
            }
        }
    }

    /// The means and summaries of units whose rows lie one after the other in the arena.
    void refresh_means(std::uint32_t lane_id, rows_view<element_type> keys, std::uint32_t stored) noexcept {
        const lane l = store_->at(lane_id);
        for (std::uint32_t u = 0, first = 0; u < l.state().units && first < stored;
             first += l.unit(u++).entries) {
            if constexpr (Types::means) p_.sums->set_mean(lane_id, u, keys.slice(first, l.unit(u).entries));
            if constexpr (summaries<Types>::any) {
                for (std::uint32_t i = 0; i < l.unit(u).entries; ++i)
                    p_.sums->absorb(lane_id, u, i, row_k(first + i), row_v(first + i), p_.sums->building());
            }
        }
    }

    /// Places units [first_unit, first_unit + units) and writes their pages in storage order.
    [[nodiscard]] status place_units(std::uint32_t lane_id, std::uint32_t lane_in_layer,
                                     const layer_input& in, std::uint32_t first_unit, std::uint32_t units,
                                     std::uint32_t first_row, std::uint32_t chunk) noexcept {
        const lane l = store_->at(lane_id);
        const auto& format = store_->format();
        arrange_order(lane_id, lane_in_layer, in, first_unit, units, chunk);
        arrangement a{x_.chain.first(units), x_.strength.first(units), l.units().subspan(first_unit),
                      format.rows};
        if constexpr (store::ragged) {
            for (std::uint32_t i = 0; i < units; ++i) {
                page_format::page_counter count{format.page_bytes};
                for (std::uint32_t e = x_.begin[i]; e < x_.begin[i + 1]; ++e)
                    count.add(x_.rows.record(first_row + x_.order[e]).bytes);
                x_.pages[i] = count.pages;
                l.extent(first_unit + i) = {};
            }
            a.page_count = x_.pages.first(units);
        }
        if (!store_->layout().arrange(a)) return no_storage();
        if (status s = store_->ensure_space(0); !s) return release_placed(a, s);
        page_writer out(*this);
        for (const std::uint32_t i : a.order) {
            const std::uint32_t u = first_unit + i, entries = l.unit(u).entries;
            for (std::uint32_t p = 0, at = 0; at < entries; ++p) {
                std::byte* page = out.next();
                format.begin(page);
                std::uint32_t row = 0;
                for (; at < entries; ++row, ++at) {
                    const entry_record e = x_.rows.record(first_row + x_.order[x_.begin[i] + at]);
                    if (!format.takes(page, row, e.bytes)) break;
                    format.put(page, row, e);
                    if constexpr (store::ragged) {
                        unit_extent& x = l.extent(u);
                        x = {p + 1, format.room(page), x.bytes + e.bytes.entry()};
                    }
                }
                format.pad(page, row);
                if (status s = out.put(store_->layout().page(l.unit(u).where, p)); !s)
                    return release_placed(a, s);
            }
        }
        if (status s = out.finish(); !s) return release_placed(a, s);
        return {};
    }
    status release_placed(const arrangement& a, const status& why) noexcept {
        store_->io().drain(0), store_->io().drain(1);
        for (unit_record& u : a.unit) {
            store_->layout().release(u.where);
            u.where = {};
        }
        return why;
    }

    /// Unit order, or chains of units that the prompt's last queries would retrieve together.
    void arrange_order(std::uint32_t lane_id, std::uint32_t lane_in_layer, const layer_input& in,
                       std::uint32_t first_unit, std::uint32_t units, std::uint32_t chunk) noexcept {
        if constexpr (Types::layout::wants_correlation) {
            if (!in.q.empty() && chunk > 0 && units > 2) {
                const units_view placed = p_.growth->view(lane_id).from(first_unit);
                const std::uint32_t probes = std::min(chunk, probe_queries);
                carver c(x_.pairs);
                co_retrieval pairs(c, probe_queries, units);
                const std::size_t token = std::size_t{p_.model.query_heads()} * p_.model.dim;
                const std::uint32_t budget = p_.sizes.budget_beside(p_.sizes.sinks + p_.sizes.window);
                for (std::uint32_t t = chunk - probes; t < chunk; ++t) {
                    const float* q = simd::widened(in.q, t * token + p_.model.query_offset(lane_in_layer),
                                                   p_.query.data(), p_.model.lane_queries() * p_.model.dim);
                    pairs.add(x_.chosen.first(p_.choose->choose(q, placed, budget, x_.chosen)));
                }
                pairs.chain(x_.chain.first(units), x_.strength.first(units));
                return;
            }
        }
        for (std::uint32_t u = 0; u < units; ++u) x_.chain[u] = u, x_.strength[u] = 0;
    }

    /// Reads the rows of one unit behind row n (the pool is empty, so storage has all of them).
    [[nodiscard]] status load_unit(std::uint32_t lane_id, std::uint32_t u, std::uint32_t& n) noexcept {
        const lane l = store_->at(lane_id);
        decltype(auto) codec = store_->codec(lane_id);
        const auto& format = store_->format();
        const unit_record& unit = l.unit(u);
        const std::uint32_t id = store_->io().free_flight(0, store::step_flights);
        flight& f = store_->io().at(id);
        for (std::uint32_t i = 0; i < store_->pages_of(l, u); ++i)
            f.add(store_->layout().page(unit.where, i), first_page_ + i, none);
        if (status s = store_->io().submit_reads(id, *frames_, true); !s) return s;
        store_->io().drain(id);
        if (!f.error().ok()) return f.error();
        std::uint32_t slot = first_page_;
        for (std::uint32_t left = unit.entries; left > 0; ++slot) {
            const std::uint32_t rows = format.entries_in(frames_->bytes(slot), left);
            for (std::uint32_t row = 0; row < rows; ++row)
                x_.rows.load(codec, n++, format.entry(frames_->bytes(slot), row));
            left -= rows;
        }
        return {};
    }
};

}} // namespace kvtl::v0
