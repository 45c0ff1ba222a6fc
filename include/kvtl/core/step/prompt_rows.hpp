// The rows of a prompt: how they come into the memory of a pool, a segment at a time, wait on storage, are attended, and
// leave for it as pages.
//
// While a prompt is organised the frames of its pool lend their memory (nothing is resident before the first
// decode step): rows of a segment, the clusterer's scratch and the pages on their way out all lie there, and
// count as frames. A segment is what the clusterer groups together, or less where the pool is smaller; so the pool
// need not hold a lane. Chunks before the last are staged on storage in sequence order and read back segment by
// segment; attention goes through them in the same way, and its bits do not depend on where they are cut.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/grow/unit_growth.hpp>
#include <kvtl/core/step/chooser.hpp>
#include <kvtl/core/step/prompt_arena.hpp>
#include <kvtl/lent_threads.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

namespace kvtl { inline namespace v0 {

template <class Types> class prompt_rows {
  public:
    using element_type = typename Types::element_type;
    using store = unit_store<Types>;
    using lane = typename Types::lane;
    using pool = typename Types::pool;
    using clusterer = typename Types::clusterer;
    using arena = prompt_arena<Types>;
    static constexpr std::uint32_t probe_queries = arena::probe_queries;
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

    prompt_rows() = default;
    prompt_rows(store& s, const parts& p) noexcept : store_(&s), p_(p) {}

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
        if constexpr (detail::codec_fits_lanes<typename Types::compressor>()) return whole(s.max_tokens);
        std::uint32_t rows = cluster.sequential_entries();
        if constexpr (clusterer::founds)
            rows = std::max(rows, cluster.least_segment() + s.spare + s.buffer + unfounded_rows);
        return whole(std::max(std::min(rows, s.max_tokens), page_rows));
    }
    [[nodiscard]] static std::uint32_t most_segment(const typename Types::clusterer_state& cluster,
                                                    std::uint32_t max_tokens) noexcept {
        constexpr std::uint32_t some = 8192; // where nothing is grouped together
        if constexpr (detail::codec_fits_lanes<typename Types::compressor>()) return whole(max_tokens);
        if constexpr (clusterer::founds) return std::min(whole(max_tokens), whole(cluster.segment_entries()));
        return std::min(whole(max_tokens), std::max(whole(cluster.sequential_entries()), some));
    }

    [[nodiscard]] static std::uint32_t page_rows(const page_format& records,
                                                 const page_format& plain) noexcept {
        return std::max(records.rows, plain.rows);
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
        prompt_rows* b;
        const layer_input* in;
        std::uint32_t lane_id, lane_in_layer, before;
        /// Rows [first, end) to the arena's first rows.
        [[nodiscard]] status operator()(std::uint32_t first, std::uint32_t end) const noexcept {
            const std::uint32_t staged = std::clamp(before, first, end);
            if (status s = b->load_staged(b->store_->at(lane_id), first, staged); !s) return s;
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
            if constexpr (Types::weighted) x_.log_weight[t - origin] = 0.0F;
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

    /// Reads staged rows [from, to) back, to the arena's first rows.
    [[nodiscard]] status load_staged(const lane& l, std::uint32_t from, std::uint32_t to) noexcept {
        const page_format& format = store_->plain_format();
        const std::uint32_t end = to > from ? format.pages_for(to) : 0;
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
                const std::uint32_t first_row = std::max(from, j * format.rows),
                                    at = first_row - j * format.rows;
                const std::uint32_t rows = std::min(format.rows, to - j * format.rows) - at;
                std::memcpy(row_k(first_row - from), format.key(page, at), rows * row_bytes());
                std::memcpy(row_v(first_row - from), format.value(page, at), rows * row_bytes());
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

  protected:
    /// Takes runs until the stream has so many pages, all with room in the file; or none.
    [[nodiscard]] status stretch_stream(const lane& l, std::uint32_t pages) noexcept {
        const std::uint32_t runs = l.state().runs;
        status done = store_->extend_stream(l, pages - 1) ? store_->ensure_space(0) : no_storage();
        if (!done) store_->shorten_stream(l, runs);
        return done;
    }
    /// A page can be read and has its checksum. Nothing may be on its way.
    [[nodiscard]] bool reads_back(std::uint32_t page) noexcept {
        const std::uint32_t id = store_->io().free_flight(0, store::step_flights);
        flight& f = store_->io().at(id);
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
        explicit page_writer(prompt_rows& b) noexcept
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
        prompt_rows* b_;
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
        if constexpr (Types::keeps_positions)
            return x_.position[held_.at(row)];
        else
            return row;
    }
    [[nodiscard]] std::size_t row_bytes() const noexcept { return p_.sizes.width * sizeof(element_type); }
    /// Segments are cut where attention's blocks of keys are.
    [[nodiscard]] static constexpr std::uint32_t whole(std::uint32_t rows) noexcept {
        return (rows + simd::causal_tile - 1) / simd::causal_tile * simd::causal_tile;
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
