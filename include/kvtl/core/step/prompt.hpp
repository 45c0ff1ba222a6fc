// Prompts: from a lane's rows to units on storage.
//
// While a prompt is organised the frames of its pool lend their memory (nothing is resident before the first
// decode step): rows of a segment, the clusterer's scratch and the pages on their way out all lie there, and
// count as frames. A segment is what the clusterer groups together, or less where the pool is smaller; so the pool
// need not hold a lane. Chunks before the last are staged on storage in sequence order and read back segment by
// segment. Attention of a chunk goes over all rows at once where a segment holds them. Else the staged rows pass by as those
// of a further turn do (turn_attention.hpp), in memory that is laid out for that meanwhile.
//
// Cost:   bytes read: the staged rows, once to organise them, and once for as many of a chunk's queries as there is room for.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/grow/unit_growth.hpp>
#include <kvtl/core/step/chooser.hpp>
#include <kvtl/core/step/turn_attention.hpp>
#include <kvtl/core/store/record_rows.hpp>
#include <kvtl/layout/co_retrieval.hpp>
#include <kvtl/lent_threads.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

namespace kvtl { inline namespace v0 {

template <class Types> class prompt_builder {
  public:
    using element_type = typename Types::element_type;
    using store = unit_store<Types>;
    using lane = typename Types::lane;
    using pool = typename Types::pool;
    using clusterer = typename Types::clusterer;
    using attention = turn_attention<element_type, Types::weighted>;
    /// Last queries of the prompt that tell what is co-retrieved.
    static constexpr std::uint32_t probe_queries = 32;
    static constexpr std::uint32_t staging_limit =
        256; ///< more pages in the air do not make the device faster

    /// Rows that a lane may receive at once while it is not clustered.
    static constexpr std::uint32_t unfounded_rows = 16;

    /// Pages on their way to or from storage at once, at least: a unit must fit.
    [[nodiscard]] static std::uint32_t least_staging(std::uint32_t unit_pages) noexcept {
        return std::max<std::uint32_t>(4, unit_pages);
    }

    struct parts {
        model_extents model;
        lane_sizes sizes;
        std::uint32_t unit_pages = 1;
        const typename Types::clusterer_state* cluster = nullptr;
        unit_growth<Types>* growth = nullptr;
        chooser<Types>* choose = nullptr;
        const summaries<Types>* sums = nullptr;
        std::span<float> query; ///< (HQ, D) scratch: queries that come in 16 bits
        lent_threads threads{};
    };

    /// What a segment of a prompt needs while it is organised, laid out in the memory of a pool's frames. rows: tokens of the
    /// segment; units: as many as they may fall into.
    struct arena {
        record_rows<Types> rows;
        std::span<std::uint32_t> label, order; ///< (rows)
        std::span<std::uint32_t> begin;        ///< (units + 1)
        std::span<unit_record> old_unit;
        std::span<unit_extent> old_extent;
        std::span<std::uint32_t> pages; ///< (units) ragged records
        std::span<std::byte> cluster; ///< the clusterer's scratch; before it, the codec's that fits the lane
        std::size_t work_begins = 0;  ///< bytes before these
        std::span<std::uint32_t> chain, strength;
        std::span<chosen_unit> chosen;
        std::span<std::byte> pairs;
        std::span<float> causal;           ///< before these: of attention
        std::span<float> log_weight;       ///< (rows) where entries have them
        std::span<std::uint32_t> position; ///< (rows) where they are not the rows' numbers

        static arena take(carver& c, const model_extents& m, const lane_sizes& s, std::uint32_t rows,
                          const typename Types::clusterer_state& cluster) noexcept {
            arena a;
            const std::uint32_t units = std::min(s.max_units, cluster.max_units(rows));
            a.rows = record_rows<Types>::take(c, rows, s.width, s.record);
            a.log_weight = c.take<float>(Types::weighted ? rows : 0);
            a.position = c.take<std::uint32_t>(Types::keeps_positions ? rows : 0);
            a.label = c.take<std::uint32_t>(rows);
            a.order = c.take<std::uint32_t>(rows);
            a.begin = c.take<std::uint32_t>(units + 1);
            a.old_unit = c.take<unit_record>(units);
            a.old_extent = c.take<unit_extent>(Types::compressor::ragged ? units : 0);
            a.pages = c.take<std::uint32_t>(Types::compressor::ragged ? units : 0);
            a.chain = c.take<std::uint32_t>(units);
            a.strength = c.take<std::uint32_t>(units);
            if constexpr (Types::layout::wants_correlation) {
                a.chosen = c.take<chosen_unit>(units);
                carver inner;
                co_retrieval(inner, probe_queries, units);
                a.pairs = c.take<std::byte>(inner.used());
            }
            // Last, because pages on their way to or from storage lie there too.
            const std::size_t causal = simd::causal_scratch_floats(m.dim);
            static_cast<void>(c.take<std::byte>(0)); // what is taken next begins where work does
            a.work_begins = c.used();
            a.cluster = c.take<std::byte>(
                std::max({cluster.scratch_bytes(rows, s.width), s.codec_fit, causal * sizeof(float)}));
            if (!a.cluster.empty()) a.causal = {reinterpret_cast<float*>(a.cluster.data()), causal};
            return a;
        }
    };

    prompt_builder() = default;
    prompt_builder(store& s, const parts& p) noexcept : store_(&s), p_(p) {}

    /// Bytes of arena that a segment of `rows` tokens needs in a pool.
    [[nodiscard]] static std::size_t arena_bytes(const model_extents& m, const lane_sizes& s,
                                                 std::uint32_t rows, std::uint32_t unit_pages,
                                                 const typename Types::clusterer_state& cluster,
                                                 std::uint32_t page_bytes) noexcept {
        carver c;
        const arena a = arena::take(c, m, s, rows, cluster);
        const std::size_t pages = std::size_t{least_staging(unit_pages)} + 1;
        return std::max(c.used(), a.work_begins + pages * page_bytes);
    }
    /// Rows of the smallest segment, and of one that nothing limits but the clusterer. A page of either format fits.
    [[nodiscard]] static std::uint32_t least_segment(const typename Types::clusterer_state& cluster,
                                                     const lane_sizes& s, std::uint32_t page_rows) noexcept {
        if constexpr (codec_fits_lanes<typename Types::compressor>) return whole(s.max_tokens);
        std::uint32_t rows = cluster.sequential_entries();
        if constexpr (clusterer::clusters_prompt)
            rows = std::max(rows, cluster.least_segment() + s.spare + s.buffer + unfounded_rows);
        return whole(std::max(std::min(rows, s.max_tokens), page_rows));
    }
    [[nodiscard]] static std::uint32_t most_segment(const typename Types::clusterer_state& cluster,
                                                    std::uint32_t max_tokens) noexcept {
        constexpr std::uint32_t some = 8192; // where nothing is grouped together
        if constexpr (codec_fits_lanes<typename Types::compressor>) return whole(max_tokens);
        if constexpr (clusterer::clusters_prompt)
            return std::min(whole(max_tokens), whole(cluster.segment_entries()));
        return std::min(whole(max_tokens), std::max(whole(cluster.sequential_entries()), some));
    }

    [[nodiscard]] static std::uint32_t page_rows(const page_format& records,
                                                 const page_format& plain) noexcept {
        return std::max(records.rows, plain.rows);
    }
    /// Bytes of a pool in which a chunk can be attended: a page and what turn_attention needs.
    [[nodiscard]] static std::size_t attention_bytes(const model_extents& m,
                                                     std::uint32_t page_bytes) noexcept {
        carver c;
        static_cast<void>(c.take<std::byte>(page_bytes));
        static_cast<void>(attention::take(c, m.queries_of(0), 1, 0));
        return c.used();
    }
    /// Bytes of a pool in which any prompt can be organised and attended.
    [[nodiscard]] static std::size_t least_bytes(const model_extents& m, const lane_sizes& s,
                                                 std::uint32_t page_rows, std::uint32_t unit_pages,
                                                 const typename Types::clusterer_state& cluster,
                                                 std::uint32_t page_bytes) noexcept {
        const std::uint32_t rows = least_segment(cluster, s, page_rows);
        const std::size_t organised = arena_bytes(m, s, rows, unit_pages, cluster, page_bytes);
        if (rows >= s.max_tokens) return organised; // one stretch
        return std::max(organised, attention_bytes(m, page_bytes));
    }

    /// Takes over the pool's memory for lanes of up to `rows` rows. Fails when tails cannot be written.
    [[nodiscard]] status begin(pool& frames, std::uint32_t rows) noexcept {
        if (status s = store_->vacate(frames); !s) return s;
        frames_ = &frames;
        const std::uint32_t page = store_->format().page_bytes, least = least_segment();
        std::uint32_t some =
            std::max(least, std::min(most_segment(*p_.cluster, p_.sizes.max_tokens), whole(rows)));
        const auto fits = [&] {
            return arena_bytes(p_.model, p_.sizes, some, p_.unit_pages, *p_.cluster, page) <=
                   frames.memory().size();
        };
        while (some > least && !fits()) some = std::max(least, whole(some / 2));
        lay_out(some);
        return {};
    }

    /// Where the rows of a lane come from: chunks that are staged, up to row `before`, then those of a chunk.
    struct chunk_source {
        prompt_builder* b;
        const layer_input* in;
        std::uint32_t lane_id, lane_in_layer, before;
        /// Rows [first, end) to the arena's first rows.
        [[nodiscard]] status operator()(std::uint32_t first, std::uint32_t end) const noexcept {
            const std::uint32_t staged = std::clamp(before, first, end);
            const auto load = [&](std::uint32_t row, const element_type* k, const element_type* v,
                                  std::uint32_t rows) {
                std::memcpy(b->row_k(row - first), k, rows * b->row_bytes());
                std::memcpy(b->row_v(row - first), v, rows * b->row_bytes());
            };
            if (status s = b->visit_staged(b->store_->at(lane_id), first, staged, load); !s) return s;
            b->encode(lane_in_layer, *in, before, staged, end, first);
            return {};
        }
    };
    /// What the arena holds is of another lane.
    void next_lane() noexcept { held_ = {}; }
    [[nodiscard]] chunk_source rows_of(std::uint32_t lane_id, std::uint32_t lane_in_layer,
                                       const layer_input& in, std::uint32_t before) noexcept {
        next_lane();
        return {this, &in, lane_id, lane_in_layer, before};
    }

    /// Encodes rows [from, to) of a lane, of a chunk that begins with row `before`; `origin` is the arena's first.
    void encode(std::uint32_t lane_in_layer, const layer_input& in, std::uint32_t before, std::uint32_t from,
                std::uint32_t to, std::uint32_t origin) noexcept {
        const std::size_t width = p_.model.width(), token = std::size_t{p_.model.kv_heads} * p_.model.dim;
        const std::size_t offset = p_.model.key_offset(lane_in_layer);
        for (std::uint32_t t = from; t < to; ++t) {
            simd::encode(in.k, (t - before) * token + offset, row_k(t - origin), width);
            simd::encode(in.v, (t - before) * token + offset, row_v(t - origin), width);
            if (Types::weighted) x_.log_weight[t - origin] = 0.0F;
        }
    }

    /// Row `row` of one head of the lane, stored as it is. k, v: (D).
    void put(std::uint32_t row, std::uint32_t head, const element_type* k, const element_type* v,
             const entry_facts& facts) noexcept {
        if (Types::weighted) x_.log_weight[row] = facts.log_weight;
        if (Types::keeps_positions) x_.position[row] = facts.position;
        std::copy_n(k, p_.model.dim, row_k(row) + std::size_t{head} * p_.model.dim);
        std::copy_n(v, p_.model.dim, row_v(row) + std::size_t{head} * p_.model.dim);
    }

    /// Reads staged rows [from, to) back: visit(first row, k, v, rows), page by page.
    template <class Visit>
    [[nodiscard]] status visit_staged(const lane& l, std::uint32_t from, std::uint32_t to,
                                      Visit&& visit) noexcept {
        const page_format& format = store_->plain_format();
        const std::uint32_t end = to > from ? format.pages_for(to) : 0;
        for (std::uint32_t i = from / format.rows; i < end;) {
            const std::uint32_t id = store_->io().free_io_batch(0, store::step_io_batches);
            io_batch& f = store_->io().at(id);
            const std::uint32_t first = i;
            for (; i < end && i - first < pages_ && f.room(1); ++i)
                f.add(store_->stream_page(l, i), first_page_ + i - first, none);
            if (status s = store_->io().submit_reads(id, *frames_, true); !s) return s;
            store_->io().drain(id);
            if (!f.error().ok()) return f.error();
            for (std::uint32_t j = first; j < i; ++j) {
                std::byte* page = frames_->bytes(first_page_ + j - first);
                const std::uint32_t first_row = std::max(from, j * format.rows),
                                    at = first_row - j * format.rows;
                const std::uint32_t rows = std::min(format.rows, to - j * format.rows) - at;
                visit(first_row, reinterpret_cast<const element_type*>(format.key(page, at)),
                      reinterpret_cast<const element_type*>(format.value(page, at)), rows);
            }
        }
        return {};
    }

    /// Writes rows [from, to) to the lane's stream.
    template <class Source>
    [[nodiscard]] status stage(const lane& l, std::uint32_t from, std::uint32_t to,
                               Source&& source) noexcept {
        const page_format& format = store_->plain_format();
        if (to <= from) return {};
        if (status s = stretch_stream(l, format.pages_for(to)); !s) return s;
        // A page that earlier rows share is written again, by itself: should that fail, the old one counts, or the new one
        // where that is what the device has, whose further rows nobody reads, as where only what follows fails.
        if (const std::uint32_t shared = from % format.rows; shared != 0) {
            const std::uint32_t page = store_->stream_page(l, from / format.rows);
            std::uint32_t& checksum = store_->io().checksum(page);
            const std::uint32_t before = checksum, end = std::min(to, from - shared + format.rows);
            if (const status done = write_rows(l, from - shared, end, source); !done) {
                if (!reads_back(page)) checksum = before;
                return done;
            }
            if (end == to) return {};
            from = end;
        }
        return write_rows(l, from, to, source);
    }

    /// Causal attention of the chunk's T queries over rows [0, before + T). out: (T, HQ, D), this lane's
    /// heads only.
    [[nodiscard]] status attend(const chunk_source& chunk, std::uint32_t tokens,
                                const tensor_span& out) noexcept {
        const query_lane queries = p_.model.queries_of(chunk.lane_in_layer);
        const std::uint32_t before = chunk.before, all = before + tokens, organised = segment_;
        if (all <= organised) {
            if (status s = hold(0, all, all, chunk); !s) return s;
            attend_prompt(queries, *chunk.in, before, tokens, row_k(0), row_v(0), out, x_.causal);
            return {};
        }
        attention by_turns = lay_out_for_attention(queries, tokens);
        const status done = by_turns.attend(queries, *chunk.in, before, tokens, out, [&] {
            return visit_staged(store_->at(chunk.lane_id), 0, before,
                                [&](std::uint32_t, const element_type* k, const element_type* v,
                                    std::uint32_t rows) { by_turns.add(k, v, nullptr, rows); });
        });
        lay_out(organised);
        return done;
    }

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
        bool clustered = false;
        if constexpr (clusterer::clusters_prompt) clustered = p_.cluster->ready(end - sinks);
        status done;
        for (std::uint32_t first = sinks, n = 0; done.ok() && first < end; first += n) {
            n = std::min(segment_, end - first);
            if (first + n < end && !clustered) // so that its units are those of one segment
                n -= n % p_.cluster->sequential_entries();
            done = hold(first, first + n, total, source);
            if (done.ok()) done = organise_segment(lane_id, lane_in_layer, in, {first, n}, clustered, chunk);
        }
        if (!done.ok()) {
            forget_units(lane_id);
            return done;
        }
        l.state().clustered = clustered;
        if constexpr (clusterer::clusters_prompt)
            if (clustered) p_.cluster->clustered(l.clusterer(), p_.growth->view(lane_id));
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
    void forget_units(std::uint32_t lane_id) noexcept {
        const lane l = store_->at(lane_id);
        for (unit_record& u : l.units())
            if (u.where.first != none) store_->release_place(lane_id, u.where);
        l.state().units = 0;
        l.state().clustered = false;
        l.clusterer() = {};
        l.forget_fit();
        l.forget_gathered();
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
        const std::uint32_t units = label(keys, true);
        if (status fits = check_units(l, units); !fits) return fits;
        // The old table stays in the arena until the new units are on storage.
        const std::uint32_t old_units = s.units;
        std::copy_n(&l.unit(0), old_units, x_.old_unit.begin());
        if (store::ragged) std::copy_n(&l.extent(0), old_units, x_.old_extent.begin());
        make_units(lane_id, 0, 0, n, units);
        if (status done = place_units(lane_id, 0, {}, 0, units, 0, 0); !done) {
            s.units = old_units;
            std::copy_n(x_.old_unit.begin(), old_units, &l.unit(0));
            if (store::ragged) std::copy_n(x_.old_extent.begin(), old_units, &l.extent(0));
            refresh_means(lane_id, stored);
            return done;
        }
        for (std::uint32_t u = 0; u < old_units; ++u) store_->release_place(lane_id, x_.old_unit[u].where);
        store_->stats().bytes_moved_by_updates += stored_bytes;
        s.buffered = 0;
        s.clustered = true;
        if constexpr (clusterer::clusters_prompt)
            p_.cluster->clustered(l.clusterer(), p_.growth->view(lane_id));
        return {};
    }

  private:
    // ------------------------------------------------------------------------------------------------------
    // rows
    /// `from`: the first of a page.
    template <class Source>
    [[nodiscard]] status write_rows(const lane& l, std::uint32_t from, std::uint32_t to,
                                    Source& source) noexcept {
        const page_format& format = store_->plain_format();
        page_writer out(*this);
        for (std::uint32_t i = from / format.rows; i < format.pages_for(to); ++i) {
            const std::uint32_t first = i * format.rows, rows = std::min(format.rows, to - first);
            if (!held_.has(first, first + rows)) { // the rows come through the pages that carry writes
                if (status s = out.finish(); !s) return s;
                if (status s = hold(first, first + rows, to, source); !s) return s;
            }
            std::byte* page = out.next();
            std::memcpy(format.key(page, 0), row_k(held_.at(first)), rows * row_bytes());
            std::memcpy(format.value(page, 0), row_v(held_.at(first)), rows * row_bytes());
            format.pad(page, rows);
            if (status s = out.put(store_->stream_page(l, i)); !s) return s;
        }
        return out.finish();
    }

    /// Takes runs until the stream has so many pages, all with room in the file; or none.
    [[nodiscard]] status stretch_stream(const lane& l, std::uint32_t pages) noexcept {
        const std::uint32_t runs = l.state().runs;
        status done = store_->extend_stream(l, pages - 1) ? store_->ensure_space(0) : no_storage();
        if (!done) store_->shorten_stream(l, runs);
        return done;
    }
    /// A page can be read and has its checksum. Nothing may be on its way.
    [[nodiscard]] bool reads_back(std::uint32_t page) noexcept {
        const std::uint32_t id = store_->io().free_io_batch(0, store::step_io_batches);
        io_batch& f = store_->io().at(id);
        f.add(page, first_page_, none);
        if (!store_->io().submit_reads(id, *frames_, true)) return false;
        store_->io().drain(id);
        return f.error().ok();
    }
    [[nodiscard]] std::uint32_t least_segment() const noexcept {
        return least_segment(*p_.cluster, p_.sizes, page_rows(store_->format(), store_->plain_format()));
    }
    /// Divides the pool's memory for segments of `rows` rows. Nothing is held then.
    void lay_out(std::uint32_t rows) noexcept {
        const std::uint32_t page = store_->format().page_bytes;
        segment_ = rows;
        held_ = {};
        carver c(frames_->memory());
        x_ = arena::take(c, p_.model, p_.sizes, rows, *p_.cluster);
        first_page_ = static_cast<std::uint32_t>((x_.work_begins + page - 1) / page);
        const auto all = static_cast<std::uint32_t>(frames_->memory().size() / page);
        pages_ = std::min(all - first_page_, staging_limit);
        frames_->note_used(
            std::max(first_page_ + pages_, static_cast<std::uint32_t>((c.used() + page - 1) / page)));
    }
    [[nodiscard]] status no_storage() const noexcept {
        return status::failure(errc::disk_full,
                               "the layout has no room left for this prompt's units (%u pages in use); "
                               "raise max_tokens or tokens_per_cluster",
                               store_->layout().used());
    }

    /// Fills pages in the arena and writes them in batches, one batch filling while the other is in the air.
    class page_writer {
      public:
        explicit page_writer(prompt_builder& b) noexcept
            : b_(&b), half_(std::max<std::uint32_t>(1, b.pages_ / 2)) {}
        [[nodiscard]] std::byte* next() noexcept {
            if (id_ == none) {
                id_ = b_->store_->io().free_io_batch(0, store::step_io_batches);
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

    /// A range of a lane's rows.
    struct row_range {
        std::uint32_t first = 0, count = 0;
        [[nodiscard]] bool has(std::uint32_t begin, std::uint32_t end) const noexcept {
            return begin >= first && end <= first + count;
        }
        /// Where in the arena.
        [[nodiscard]] std::uint32_t at(std::uint32_t row) const noexcept { return row - first; }
    };

    /// Brings rows [begin, end) into the arena, as far as it goes also those behind them that come before `most`.
    template <class Source>
    [[nodiscard]] status hold(std::uint32_t begin, std::uint32_t end, std::uint32_t most,
                              Source& source) noexcept {
        if (held_.has(begin, end)) return {};
        if (most <= segment_) begin = 0; // all of them
        const std::uint32_t count = std::min(segment_, most - begin);
        held_ = {};
        if (status s = source(begin, begin + count); !s) return s;
        held_ = {begin, count};
        return {};
    }
    /// Makes the records of the rows in the arena.
    void encode_held(std::uint32_t lane_id) noexcept {
        decltype(auto) codec = store_->codec(lane_id);
        for (std::uint32_t i = 0; i < held_.count; ++i)
            x_.rows.encode(codec, i,
                           {position_of(held_.first + i), Types::weighted ? x_.log_weight[i] : 0.0F});
    }

    [[nodiscard]] element_type* row_k(std::uint32_t i) const noexcept { return x_.rows.key(i); }
    [[nodiscard]] element_type* row_v(std::uint32_t i) const noexcept { return x_.rows.value(i); }
    /// The position of a row that the arena holds: its number, where nothing was dropped before it.
    [[nodiscard]] std::uint32_t position_of(std::uint32_t row) const noexcept {
        return Types::keeps_positions ? x_.position[held_.at(row)] : row;
    }
    [[nodiscard]] std::size_t row_bytes() const noexcept { return p_.sizes.width * sizeof(element_type); }
    /// Segments are cut where attention's blocks of keys are.
    [[nodiscard]] static constexpr std::uint32_t whole(std::uint32_t rows) noexcept {
        return (rows + simd::causal_tile - 1) / simd::causal_tile * simd::causal_tile;
    }

    /// Divides the pool's memory for attention: pages that are read, and behind them all else. Nothing is held then.
    [[nodiscard]] attention lay_out_for_attention(const query_lane& queries, std::uint32_t tokens) noexcept {
        const std::span<std::byte> all = frames_->memory();
        const std::uint32_t page = store_->format().page_bytes;
        const std::size_t spare = (all.size() - attention_bytes(p_.model, page)) / page;
        held_ = {};
        first_page_ = 0;
        pages_ = std::min(staging_limit, 1 + static_cast<std::uint32_t>(spare / 4));
        frames_->note_used(static_cast<std::uint32_t>(all.size() / page));
        return attention::within(all.subspan(std::size_t{pages_} * page), queries, tokens);
    }

    // ------------------------------------------------------------------------------------------------------
    // units
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
                if (Types::weighted) *l.arrival_w(t) = x_.log_weight[row];
                if (t >= sinks) l.set_position(t, position_of(t));
            }
            return {};
        };
        if (status s = keep(0, sinks); !s) return s;
        return keep(total - window, total);
    }

    /// Rows [first, first + count), which the arena holds, become units behind those that there are.
    [[nodiscard]] status organise_segment(std::uint32_t lane_id, std::uint32_t lane_in_layer,
                                          const layer_input& in, row_range rows, bool clustered,
                                          std::uint32_t chunk) noexcept {
        const lane l = store_->at(lane_id);
        const std::uint32_t at = held_.at(rows.first), first_unit = l.state().units;
        const rows_view<element_type> keys = x_.rows.keys(at, rows.count);
        store_->fit_codec(lane_id, keys, x_.rows.values(at, rows.count),
                          p_.model.queries_of(lane_in_layer).of_chunk(in, chunk), x_.cluster);
        encode_held(lane_id);
        const std::uint32_t units = label(keys, clustered);
        if (status fits = check_units(l, first_unit + units); !fits) return fits;
        make_units(lane_id, first_unit, at, rows.count, units);
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
    std::uint32_t label(rows_view<element_type> keys, bool clustered) noexcept {
        const auto n = static_cast<std::uint32_t>(keys.count);
        if constexpr (clusterer::clusters_prompt)
            if (clustered) return detail::group(*p_.cluster, keys, x_.cluster, x_.label.data(), p_.threads);
        const std::uint32_t step = p_.cluster->sequential_entries();
        for (std::uint32_t i = 0; i < n; ++i) x_.label[i] = i / step;
        return (n + step - 1) / step;
    }

    /// Unit table, statistics and `order` (rows grouped by unit, ascending within one).
    /// Row i is row first_row + i of the arena; label 0 is unit first_unit.
    void make_units(std::uint32_t lane_id, std::uint32_t first_unit, std::uint32_t first_row, std::uint32_t n,
                    std::uint32_t units) noexcept {
        const lane l = store_->at(lane_id);
        std::fill_n(x_.begin.begin(), units + 1, 0U);
        for (std::uint32_t i = 0; i < n; ++i) ++x_.begin[x_.label[i] + 1];
        for (std::uint32_t u = 0; u < units; ++u) x_.begin[u + 1] += x_.begin[u];
        for (std::uint32_t i = 0; i < n; ++i) x_.order[x_.begin[x_.label[i]]++] = i;
        for (std::uint32_t u = units; u > 0; --u) x_.begin[u] = x_.begin[u - 1];
        x_.begin[0] = 0;
        l.state().units = first_unit + units;
        if (first_unit == 0) l.forget_gathered(); // of units that these replace
        for (std::uint32_t i = 0; i < units; ++i) {
            const std::uint32_t u = first_unit + i;
            l.begin_unit(u, {});
            unit_record& unit = l.unit(u);
            unit.entries = x_.begin[i + 1] - x_.begin[i];
            unit.m2 =
                summarise(lane_id, u, [&](std::size_t e) { return first_row + x_.order[x_.begin[i] + e]; });
        }
    }

    /// The means and summaries of units whose rows lie one after the other in the arena.
    void refresh_means(std::uint32_t lane_id, std::uint32_t stored) noexcept {
        const lane l = store_->at(lane_id);
        l.forget_gathered();
        for (std::uint32_t u = 0, first = 0; u < l.state().units && first < stored;
             first += l.unit(u++).entries)
            summarise(lane_id, u, [&](std::size_t e) { return first + static_cast<std::uint32_t>(e); });
    }
    /// Mean and summaries of a unit, whose entry e is row row(e) of the arena. Returns the sum of squared distances to the mean.
    template <class Row> float summarise(std::uint32_t lane_id, std::uint32_t u, const Row& row) noexcept {
        const std::uint32_t entries = store_->at(lane_id).unit(u).entries;
        const float m2 = p_.sums->set_mean(lane_id, u, entries, [&](std::size_t e) { return row_k(row(e)); });
        for (std::uint32_t e = 0; e < entries; ++e) // before sums take the place of the mean
            p_.sums->gather_built(lane_id, row_k(row(e)), row_v(row(e)));
        for (std::uint32_t e = 0; e < entries; ++e)
            p_.sums->absorb(lane_id, u, e, row_k(row(e)), row_v(row(e)), p_.sums->building());
        return m2;
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
        if (store::ragged) {
            for (std::uint32_t i = 0; i < units; ++i) {
                page_format::page_counter count{format.page_bytes};
                for (std::uint32_t e = x_.begin[i]; e < x_.begin[i + 1]; ++e)
                    count.add(x_.rows.record(first_row + x_.order[e]).bytes);
                x_.pages[i] = count.pages;
                l.extent(first_unit + i) = {};
            }
            a.page_count = x_.pages.first(units);
        }
        if (!store_->arrange(lane_id, a)) return no_storage();
        if (status s = store_->ensure_space(0); !s) return release_placed(lane_id, a, s);
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
                    if (store::ragged) {
                        unit_extent& x = l.extent(u);
                        x = {p + 1, format.room(page), x.bytes + e.bytes.entry()};
                    }
                }
                format.pad(page, row);
                if (status s = out.put(store_->layout().page(l.unit(u).where, p)); !s)
                    return release_placed(lane_id, a, s);
            }
        }
        if (status s = out.finish(); !s) return release_placed(lane_id, a, s);
        return {};
    }
    status release_placed(std::uint32_t lane_id, const arrangement& a, const status& why) noexcept {
        store_->io().drain(0), store_->io().drain(1);
        for (unit_record& u : a.unit) {
            store_->release_place(lane_id, u.where);
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
        const std::uint32_t id = store_->io().free_io_batch(0, store::step_io_batches);
        io_batch& f = store_->io().at(id);
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

    store* store_ = nullptr;
    parts p_{};
    pool* frames_ = nullptr;
    arena x_{};
    std::uint32_t segment_ = 0;    ///< rows that the arena has room for
    row_range held_;               ///< rows of the current lane that it holds
    std::uint32_t first_page_ = 0; ///< arena pages that carry transfers begin here
    std::uint32_t pages_ = 0;
};

}} // namespace kvtl::v0
