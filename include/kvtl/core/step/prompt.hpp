// Prompts: from a lane's rows to units on storage.
//
// While a prompt is organised the frames of its pool lend their memory (nothing is resident before the first
// decode step): the lane's rows, the clusterer's scratch and the pages on their way out all lie there, and
// count as frames. Chunks before the last are staged on storage in sequence order.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/grow/unit_growth.hpp>
#include <kvtl/core/step/attend_prompt.hpp>
#include <kvtl/core/step/chooser.hpp>
#include <kvtl/core/step/prompt_arena.hpp>

namespace kvtl { inline namespace v0 {

template <class Types> class prompt_builder {
  public:
    using element_type = typename Types::element_type;
    using store = unit_store<Types>;
    using lane = typename Types::lane;
    using pool = typename Types::pool;
    using clusterer = typename Types::clusterer;
    static constexpr bool by_entry = store::by_entry;
    using arena = prompt_arena<Types>;
    static constexpr std::uint32_t probe_queries = arena::probe_queries;
    static constexpr std::uint32_t staging_limit =
        256; ///< more pages in the air do not make the device faster

    /// Pages on their way to or from storage at once, at least: a sequential unit must fit.
    [[nodiscard]] static std::uint32_t least_staging(std::uint32_t sequential_entries) noexcept {
        return std::max<std::uint32_t>(16, sequential_entries + 1);
    }

    struct parts {
        model_extents model;
        lane_sizes sizes;
        std::uint32_t attend_tokens = 0;
        const typename Types::clusterer_state* cluster = nullptr;
        unit_growth<Types>* growth = nullptr;
        chooser<Types>* choose = nullptr;
        const summaries<Types>* sums = nullptr;
    };

    prompt_builder() = default;
    prompt_builder(store& s, const parts& p) noexcept : store_(&s), p_(p) {}

    /// Bytes of arena that a prompt of `rows` tokens needs in a pool.
    [[nodiscard]] static std::size_t arena_bytes(const model_extents& m, const lane_sizes& s,
                                                 std::uint32_t rows,
                                                 const typename Types::clusterer_state& cluster,
                                                 std::uint32_t page_bytes) noexcept {
        carver c;
        arena::take(c, m, s, rows, cluster);
        return c.used() + (std::size_t{least_staging(cluster.sequential_entries())} + 1) * page_bytes;
    }

    /// Takes over the pool's memory for lanes of up to `rows` rows. Fails when tails cannot be written.
    [[nodiscard]] status begin(pool& frames, std::uint32_t rows) noexcept {
        if (status s = store_->vacate(frames); !s) return s;
        frames_ = &frames;
        carver c(frames.memory());
        x_ = arena::take(c, p_.model, p_.sizes, rows, *p_.cluster);
        const std::uint32_t page = store_->format().page_bytes;
        first_page_ = static_cast<std::uint32_t>((c.used() + page - 1) / page);
        const auto all = static_cast<std::uint32_t>(frames.memory().size() / page);
        pages_ = std::min(all - first_page_, staging_limit);
        frames.note_used(first_page_ + pages_);
        return {};
    }

    /// Encodes a chunk of T tokens behind `before` rows that are (or need not be) there. k, v: (T, H, D).
    void encode(std::uint32_t lane_in_layer, const layer_input& in, std::uint32_t before,
                std::uint32_t tokens) noexcept {
        const std::size_t width = p_.model.width(), token = std::size_t{p_.model.kv_heads} * p_.model.dim;
        const std::size_t offset = p_.model.key_offset(lane_in_layer);
        for (std::uint32_t t = 0; t < tokens; ++t) {
            simd::encode(in.k.data() + t * token + offset, row_k(before + t), width);
            simd::encode(in.v.data() + t * token + offset, row_v(before + t), width);
            if constexpr (Types::weighted) x_.log_weight[before + t] = 0.0F;
        }
    }

    /// Row `row` of one head of the lane, stored as it is. k, v: (D).
    void put(std::uint32_t row, std::uint32_t head, const element_type* k, const element_type* v,
             const entry_facts& facts) noexcept {
        if constexpr (Types::weighted) x_.log_weight[row] = facts.log_weight;
        if constexpr (Types::keeps_positions) x_.position[row] = facts.position;
        static_cast<void>(facts);
        std::copy_n(k, p_.model.dim, row_k(row) + std::size_t{head} * p_.model.dim);
        std::copy_n(v, p_.model.dim, row_v(row) + std::size_t{head} * p_.model.dim);
    }

    /// Reads staged rows [from, to) back. `from` is a multiple of the rows of a page of plain rows.
    [[nodiscard]] status load_staged(const lane& l, std::uint32_t from, std::uint32_t to) noexcept {
        const page_format& format = store_->plain_format();
        const std::uint32_t end = format.pages_for(to);
        for (std::uint32_t i = from / format.rows; i < end;) {
            const std::uint32_t id = store_->io().free_flight(0, store::step_flights);
            flight& f = store_->io().at(id);
            const std::uint32_t first = i;
            for (; i < end && i - first < pages_ && f.room(1); ++i)
                f.add(store_->stream_page(l, i), first_page_ + i - first, none);
            if (status s = store_->io().submit_reads(id, *frames_, true); !s) return s;
            store_->io().drain(id);
            if (!f.error().ok()) return f.error();
            for (std::uint32_t j = first; j < i; ++j) {
                std::byte* page = frames_->bytes(first_page_ + j - first);
                const std::uint32_t rows = std::min(format.rows, to - j * format.rows);
                std::memcpy(row_k(j * format.rows), format.key(page, 0), rows * row_bytes());
                std::memcpy(row_v(j * format.rows), format.value(page, 0), rows * row_bytes());
            }
        }
        return {};
    }

    /// Writes rows [from, to) to the lane's stream; `from` is rounded down to a page.
    [[nodiscard]] status stage(const lane& l, std::uint32_t from, std::uint32_t to) noexcept {
        const page_format& format = store_->plain_format();
        if (to <= from) return {};
        if (!store_->extend_stream(l, format.pages_for(to) - 1)) return no_storage();
        if (status s = store_->ensure_space(0); !s) return s;
        // The page that earlier rows share is written again. Should that fail, the old page still counts.
        std::uint32_t& shared_page = store_->io().checksum(store_->stream_page(l, from / format.rows));
        const std::uint32_t before = shared_page;
        const status done = write_rows(l, from, to);
        if (!done) shared_page = before;
        return done;
    }
    [[nodiscard]] status write_rows(const lane& l, std::uint32_t from, std::uint32_t to) noexcept {
        const page_format& format = store_->plain_format();
        page_writer out(*this);
        for (std::uint32_t i = from / format.rows; i < format.pages_for(to); ++i) {
            const std::uint32_t rows = std::min(format.rows, to - i * format.rows);
            std::byte* page = out.next();
            std::memcpy(format.key(page, 0), row_k(i * format.rows), rows * row_bytes());
            std::memcpy(format.value(page, 0), row_v(i * format.rows), rows * row_bytes());
            format.pad(page, rows);
            if (status s = out.put(store_->stream_page(l, i)); !s) return s;
        }
        return out.finish();
    }

    /// Entry-wise layouts whose records are no plain rows: writes the records of entries [0, count) behind
    /// the staged chunks, whose runs commit() gives back.
    [[nodiscard]] status write_stream(const lane& l, std::uint32_t count) noexcept {
        const page_format& format = store_->format();
        lane_state& s = l.state();
        s.staged_runs = s.runs;
        const std::uint32_t base = s.runs * store_->layout().run_pages();
        if (!store_->extend_stream(l, base + format.pages_for(count) - 1)) return no_storage();
        if (status space = store_->ensure_space(0); !space) return space;
        page_writer out(*this);
        for (std::uint32_t i = 0, e = 0; e < count; ++i) {
            std::byte* page = out.next();
            std::uint32_t row = 0;
            for (; row < format.rows && e < count; ++row, ++e) format.put(page, row, x_.rows.record(e));
            format.pad(page, row);
            if (status done = out.put(store_->stream_page(l, base + i)); !done) return done;
        }
        return out.finish();
    }

    /// Causal attention of the chunk's T queries over rows [0, before + T). out: (T, HQ, D), this lane's
    /// heads only.
    void attend(std::uint32_t lane_in_layer, const layer_input& in, std::uint32_t before,
                std::uint32_t tokens, std::span<float> out) const noexcept {
        attend_prompt(p_.model, lane_in_layer, in, before, tokens, row_k(0), row_v(0), out, x_.causal);
    }

    /// Turns rows [0, total) into sinks, units and window. The lane must have no units; tokens are set by
    /// commit().
    [[nodiscard]] status organise(std::uint32_t lane_id, std::uint32_t lane_in_layer, const layer_input& in,
                                  std::uint32_t total, std::uint32_t chunk) noexcept {
        const lane l = store_->at(lane_id);
        const std::uint32_t sinks = std::min(total, p_.sizes.sinks);
        const std::uint32_t window = std::min(total - sinks, p_.sizes.window);
        const std::uint32_t n = total - sinks - window;
        for (std::uint32_t t = 0; t < sinks; ++t) {
            std::memcpy(l.sink_k(t), row_k(t), row_bytes());
            std::memcpy(l.sink_v(t), row_v(t), row_bytes());
            if constexpr (Types::weighted) *l.sink_w(t) = x_.log_weight[t];
        }
        for (std::uint32_t t = total - window; t < total; ++t) {
            std::memcpy(l.window_k(t), row_k(t), row_bytes());
            std::memcpy(l.window_v(t), row_v(t), row_bytes());
            if constexpr (Types::weighted) *l.window_w(t) = x_.log_weight[t];
            l.set_position(t, position_of(t));
        }
        if (n == 0) {
            if constexpr (by_entry && !Types::plain_records) // chunks that waited are not the stream
                l.state().staged_runs = l.state().runs;
            return {};
        }
        const rows_view<element_type> keys = x_.rows.keys(sinks, n);
        store_->fit_codec(lane_id, keys, x_.rows.values(sinks, n), x_.cluster);
        decltype(auto) codec = store_->codec(lane_id);
        for (std::uint32_t t = by_entry ? 0 : sinks; t < total - window; ++t) // a stream has its sinks too
            x_.rows.encode(codec, t, {position_of(t), Types::weighted ? x_.log_weight[t] : 0.0F});
        bool founded = false;
        const std::uint32_t units = label(keys, founded);
        make_units(lane_id, sinks, keys, units, total);
        l.state().founded = founded;
        status done;
        if constexpr (by_entry) {
            if constexpr (!Types::plain_records)
                done = write_stream(l, total - window);
            else if (l.state().staged < total - window)
                done = stage(l, l.state().staged, total - window);
            if (done.ok()) chain_members(l, units, n, sinks);
        } else {
            done = place_units(lane_id, lane_in_layer, in, units, sinks, chunk);
        }
        if (!done.ok()) {
            forget_units(l);
            return done;
        }
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
        if constexpr (by_entry) {
            store_->release_runs(l, 0, std::exchange(s.staged_runs, 0));
            const std::uint32_t used = store_->format().pages_for(s.window_begin);
            s.stored = used * store_->format().rows;
        } else {
            store_->release_stream(l);
        }
    }

    /// Undoes organise().
    void forget_units(const lane& l) noexcept {
        if constexpr (!by_entry) {
            for (unit_record& u : l.units())
                if (u.where.first != none) store_->layout().release(u.where);
        } else if constexpr (!Types::plain_records) {
            lane_state& s = l.state();
            const std::uint32_t staged = std::exchange(s.staged_runs, 0);
            store_->release_runs(l, staged, s.runs - staged);
        }
        l.state().units = 0;
        l.state().founded = false;
        l.forget_fit();
    }

    /// Clusters a lane that has been sequential so far: reads all its units, groups them anew, and replaces
    /// them. Only for lanes without resident data (begin() has emptied the pool).
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
        for (std::uint32_t i = 0; i < s.buffered; ++i, ++n) {
            x_.rows.set(store_->codec(lane_id), n, l.buffer_k(i), l.buffer_v(i),
                        {l.position_of_buffered(i), l.weight_at(l.buffer_w(i))});
            if constexpr (by_entry) x_.entry[n] = l.buffer_entry(i);
        }
        const rows_view<element_type> keys = x_.rows.keys(0, n);
        bool founded = false;
        const std::uint32_t units = label(keys, founded);
        // The old table stays in the arena until the new units are on storage.
        const std::uint32_t old_units = s.units;
        std::copy_n(&l.unit(0), old_units, x_.old_unit.begin());
        if constexpr (store::ragged) std::copy_n(&l.extent(0), old_units, x_.old_extent.begin());
        make_units(lane_id, 0, keys, units, s.tokens);
        if constexpr (by_entry) {
            static_cast<void>(stored), static_cast<void>(stored_bytes);
            rechain(l, units, n);
        } else {
            if (status done = place_units(lane_id, 0, {}, units, 0, 0); !done) {
                s.units = old_units;
                std::copy_n(x_.old_unit.begin(), old_units, &l.unit(0));
                if constexpr (store::ragged) std::copy_n(x_.old_extent.begin(), old_units, &l.extent(0));
                refresh_means(lane_id, keys, stored);
                return done;
            }
            for (std::uint32_t u = 0; u < old_units; ++u) store_->layout().release(x_.old_unit[u].where);
            store_->stats().bytes_moved_by_updates += stored_bytes;
        }
        s.buffered = 0;
        s.founded = founded;
        if constexpr (clusterer::founds) p_.cluster->founded(l.clusterer(), p_.growth->view(lane_id));
        return {};
    }

    [[nodiscard]] status no_storage() const noexcept {
        return status::failure(errc::disk_full,
                               "the layout has no room left for this prompt's units (%u pages in use); "
                               "raise max_tokens or tokens_per_cluster",
                               store_->layout().used());
    }

  private:
    /// Fills pages in the arena and writes them in batches, one batch filling while the other is in the air.
    class page_writer {
      public:
        explicit page_writer(prompt_builder& b) noexcept
            : b_(&b), half_(std::max<std::uint32_t>(1, b.pages_ / 2)) {}
        [[nodiscard]] std::byte* next() noexcept {
            if (id_ == none) {
                id_ = b_->store_->io().free_flight(0, store::step_flights);
                side_ = 1 - side_;
            }
            return b_->frames_->bytes(slot());
        }
        [[nodiscard]] status put(std::uint32_t page) noexcept {
            b_->store_->io().at(id_).add(page, slot(), none);
            ++used_;
            return used_ == half_ || !b_->store_->io().at(id_).room(1) ? flush() : status{};
        }
        [[nodiscard]] status finish() noexcept {
            if (status s = flush(); !s) return s;
            return settle();
        }

      private:
        [[nodiscard]] std::uint32_t slot() const noexcept { return b_->first_page_ + side_ * half_ + used_; }
        [[nodiscard]] status flush() noexcept {
            if (id_ == none) return {};
            if (status s = settle(); !s) return s;
            flying_ = std::exchange(id_, none);
            used_ = 0;
            return b_->store_->io().submit_writes(flying_, *b_->frames_, true);
        }
        [[nodiscard]] status settle() noexcept {
            if (flying_ == none) return {};
            b_->store_->io().drain(flying_);
            return b_->store_->io().at(std::exchange(flying_, none)).error();
        }
        prompt_builder* b_;
        std::uint32_t half_, used_ = 0, side_ = 1;
        std::uint32_t id_ = none, flying_ = none;
    };

    [[nodiscard]] element_type* row_k(std::uint32_t i) const noexcept { return x_.rows.key(i); }
    [[nodiscard]] element_type* row_v(std::uint32_t i) const noexcept { return x_.rows.value(i); }
    /// The position of row `row`: its number, where nothing was dropped before it.
    [[nodiscard]] std::uint32_t position_of(std::uint32_t row) const noexcept {
        if constexpr (Types::keeps_positions)
            return x_.position[row];
        else
            return row;
    }
    [[nodiscard]] std::size_t row_bytes() const noexcept { return p_.sizes.width * sizeof(element_type); }

    /// Gives every row a unit: the clusterer's groups, or sequential ones while there are too few entries.
    std::uint32_t label(rows_view<element_type> keys, bool& founded) noexcept {
        const auto n = static_cast<std::uint32_t>(keys.count);
        if constexpr (clusterer::founds)
            if (p_.cluster->ready(n)) {
                founded = true;
                return p_.cluster->group(keys, x_.cluster, x_.label.data());
            }
        const std::uint32_t step = p_.cluster->sequential_entries();
        for (std::uint32_t i = 0; i < n; ++i) x_.label[i] = i / step;
        return (n + step - 1) / step;
    }

    /// Unit table, statistics and `order` (rows grouped by unit, ascending within one).
    /// Row i is row first_row + i of the arena.
    void make_units(std::uint32_t lane_id, std::uint32_t first_row, rows_view<element_type> keys,
                    std::uint32_t units, std::uint32_t tokens) noexcept {
        const lane l = store_->at(lane_id);
        const auto n = static_cast<std::uint32_t>(keys.count);
        std::fill_n(x_.begin.begin(), units + 1, 0U);
        for (std::uint32_t i = 0; i < n; ++i) ++x_.begin[x_.label[i] + 1];
        for (std::uint32_t u = 0; u < units; ++u) x_.begin[u + 1] += x_.begin[u];
        for (std::uint32_t i = 0; i < n; ++i) x_.order[x_.begin[x_.label[i]]++] = i;
        for (std::uint32_t u = units; u > 0; --u) x_.begin[u] = x_.begin[u - 1];
        x_.begin[0] = 0;
        l.state().units = units;
        for (std::uint32_t u = 0; u < units; ++u) {
            l.begin_unit(u, {});
            unit_record& unit = l.unit(u);
            unit.entries = x_.begin[u + 1] - x_.begin[u];
            unit.updated = tokens;
            if constexpr (Types::means)
                unit.m2 = simd::mean_and_m2(keys, x_.order.subspan(x_.begin[u], unit.entries), l.mean(u));
            if constexpr (summaries<Types>::any) {
                p_.sums->clear(lane_id, u);
                for (std::uint32_t i = 0; i < unit.entries; ++i) {
                    const std::uint32_t row = first_row + x_.order[x_.begin[u] + i];
                    p_.sums->absorb(lane_id, u, i, row_k(row), row_v(row));
                }
            }
        }
    }

    /// The means and summaries of units whose rows lie one after the other in the arena.
    void refresh_means(std::uint32_t lane_id, rows_view<element_type> keys, std::uint32_t stored) noexcept {
        const lane l = store_->at(lane_id);
        for (std::uint32_t u = 0, first = 0; u < l.state().units && first < stored;
             first += l.unit(u++).entries) {
            if constexpr (Types::means)
                static_cast<void>(simd::mean_and_m2(keys.slice(first, l.unit(u).entries), l.mean(u)));
            if constexpr (summaries<Types>::any) {
                p_.sums->clear(lane_id, u);
                for (std::uint32_t i = 0; i < l.unit(u).entries; ++i)
                    p_.sums->absorb(lane_id, u, i, row_k(first + i), row_v(first + i));
            }
        }
    }

    /// Places all units and writes their pages in storage order.
    [[nodiscard]] status place_units(std::uint32_t lane_id, std::uint32_t lane_in_layer,
                                     const layer_input& in, std::uint32_t units, std::uint32_t first_row,
                                     std::uint32_t chunk) noexcept {
        const lane l = store_->at(lane_id);
        const auto& format = store_->format();
        arrange_order(lane_id, lane_in_layer, in, units, chunk);
        arrangement a{x_.chain.first(units), x_.strength.first(units), l.units(), format.rows};
        if constexpr (store::ragged) {
            for (std::uint32_t u = 0; u < units; ++u) {
                page_format::page_counter count{format.page_bytes};
                for (std::uint32_t i = x_.begin[u]; i < x_.begin[u + 1]; ++i)
                    count.add(x_.rows.record(first_row + x_.order[i]).bytes);
                x_.pages[u] = count.pages;
                l.extent(u) = {};
            }
            a.page_count = x_.pages.first(units);
        }
        if (!store_->layout().arrange(a)) return no_storage();
        if (status s = store_->ensure_space(0); !s) return release_all(l, s);
        page_writer out(*this);
        for (const std::uint32_t u : a.order) {
            const std::uint32_t entries = l.unit(u).entries;
            for (std::uint32_t i = 0, at = 0; at < entries; ++i) {
                std::byte* page = out.next();
                format.begin(page);
                std::uint32_t row = 0;
                for (; at < entries; ++row, ++at) {
                    const entry_record e = x_.rows.record(first_row + x_.order[x_.begin[u] + at]);
                    if (!format.takes(page, row, e.bytes)) break;
                    format.put(page, row, e);
                    if constexpr (store::ragged) {
                        unit_extent& x = l.extent(u);
                        x = {i + 1, format.room(page), x.bytes + e.bytes.entry()};
                    }
                }
                format.pad(page, row);
                if (status s = out.put(store_->layout().page(l.unit(u).where, i)); !s)
                    return release_all(l, s);
            }
        }
        if (status s = out.finish(); !s) return release_all(l, s);
        return {};
    }
    status release_all(const lane& l, const status& why) noexcept {
        store_->io().drain(0), store_->io().drain(1);
        for (unit_record& u : l.units()) {
            store_->layout().release(u.where);
            u.where = {};
        }
        return why;
    }

    /// Unit order, or chains of units that the prompt's last queries would retrieve together.
    void arrange_order(std::uint32_t lane_id, std::uint32_t lane_in_layer, const layer_input& in,
                       std::uint32_t units, std::uint32_t chunk) noexcept {
        if constexpr (Types::layout::wants_correlation) {
            if (!in.q.empty() && chunk > 0 && units > 2) {
                const std::uint32_t probes = std::min(chunk, probe_queries);
                carver c(x_.pairs);
                co_retrieval pairs(c, probe_queries, units);
                const std::size_t token = std::size_t{p_.model.query_heads()} * p_.model.dim;
                const std::uint32_t in_memory = p_.sizes.sinks + p_.sizes.window;
                const std::uint32_t budget = p_.attend_tokens > in_memory ? p_.attend_tokens - in_memory : 0;
                for (std::uint32_t t = chunk - probes; t < chunk; ++t) {
                    const float* q = in.q.data() + t * token + p_.model.query_offset(lane_in_layer);
                    pairs.add(
                        x_.chosen.first(p_.choose->choose(q, p_.growth->view(lane_id), budget, x_.chosen)));
                }
                pairs.chain(x_.chain.first(units), x_.strength.first(units));
                return;
            }
        }
        for (std::uint32_t u = 0; u < units; ++u) x_.chain[u] = u, x_.strength[u] = 0;
    }

    /// Entry-wise layouts: member chains of freshly labelled rows; row i is entry first + i of the stream.
    void chain_members(const lane& l, std::uint32_t units, std::uint32_t n, std::uint32_t first) noexcept {
        for (std::uint32_t i = 0; i < n; ++i) x_.entry[i] = first + i;
        rechain(l, units, n);
    }
    void rechain(const lane& l, std::uint32_t units, std::uint32_t n) noexcept {
        static_cast<void>(n);
        for (std::uint32_t u = 0; u < units; ++u) {
            unit_record& unit = l.unit(u);
            for (std::uint32_t i = x_.begin[u]; i < x_.begin[u + 1]; ++i) {
                const std::uint32_t e = x_.entry[x_.order[i]];
                l.next_member(e) = none;
                if (unit.members == none)
                    unit.members = e;
                else
                    l.next_member(unit.last_member) = e;
                unit.last_member = e;
            }
        }
    }

    /// Reads the rows of one unit behind row n (the pool is empty, so storage has all of them).
    [[nodiscard]] status load_unit(std::uint32_t lane_id, std::uint32_t u, std::uint32_t& n) noexcept {
        const lane l = store_->at(lane_id);
        decltype(auto) codec = store_->codec(lane_id);
        const auto& format = store_->format();
        const unit_record& unit = l.unit(u);
        const std::uint32_t id = store_->io().free_flight(0, store::step_flights);
        flight& f = store_->io().at(id);
        std::uint32_t pages = 0, seen = none;
        if constexpr (by_entry) {
            for (std::uint32_t e = unit.members; e != none; e = l.next_member(e))
                if (e / format.rows != seen) {
                    seen = e / format.rows;
                    f.add(store_->stream_page(l, seen), first_page_ + pages++, none);
                }
        } else {
            for (; pages < store_->pages_of(l, u); ++pages)
                f.add(store_->layout().page(unit.where, pages), first_page_ + pages, none);
        }
        if (status s = store_->io().submit_reads(id, *frames_, true); !s) return s;
        store_->io().drain(id);
        if (!f.error().ok()) return f.error();
        const auto copy = [&](std::byte* page, std::uint32_t row, std::uint32_t entry) {
            x_.rows.load(codec, n, format.entry(page, row));
            if constexpr (by_entry)
                x_.entry[n] = entry;
            else
                static_cast<void>(entry);
            ++n;
        };
        if constexpr (by_entry) {
            std::uint32_t slot = first_page_;
            seen = unit.members / format.rows;
            for (std::uint32_t e = unit.members; e != none; e = l.next_member(e)) {
                if (e / format.rows != seen) seen = e / format.rows, ++slot;
                copy(frames_->bytes(slot), e % format.rows, e);
            }
        } else {
            std::uint32_t slot = first_page_;
            for (std::uint32_t left = unit.entries; left > 0; ++slot) {
                const std::uint32_t rows = format.entries_in(frames_->bytes(slot), left);
                for (std::uint32_t row = 0; row < rows; ++row) copy(frames_->bytes(slot), row, none);
                left -= rows;
            }
        }
        return {};
    }

    store* store_ = nullptr;
    parts p_{};
    pool* frames_ = nullptr;
    arena x_{};
    std::uint32_t first_page_ = 0; ///< arena pages that carry transfers begin here
    std::uint32_t pages_ = 0;
};

}} // namespace kvtl::v0
