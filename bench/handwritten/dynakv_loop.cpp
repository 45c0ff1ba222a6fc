// SPDX-License-Identifier: MIT
#include "dynakv_loop.hpp"

#include <algorithm>
#include <new>

namespace bench {

namespace simd = kvtl::simd;
using kvtl::errc;
using kvtl::status;

dynakv_loop::dynakv_loop(const dynakv_sizes& s, page_file file)
    : s_(s), file_(std::move(file)), heads_(std::size_t{s.layers} * s.kv_heads),
      memory_(new (std::align_val_t{4096}) std::byte[std::size_t{s.frames} * page_file::page_bytes]),
      frames_(s.frames), order_(s.frames, cluster_pages) {
    const std::size_t rows = s.waiting + 2;
    for (head& h : heads_) {
        h.sink_k.resize(std::size_t{s.sinks} * dim), h.sink_v.resize(h.sink_k.size());
        h.ring_k.resize((std::size_t{s.window} + 1) * dim), h.ring_v.resize(h.ring_k.size());
        h.wait_k.resize(rows * dim), h.wait_v.resize(rows * dim), h.wait_for.resize(rows);
        h.code.resize(std::size_t{s.max_clusters} * dim), h.scale.resize(s.max_clusters);
        h.clusters.reserve(s.max_clusters);
    }
    for (std::uint32_t f = s.frames; f-- > 0;) free_.push_back(f);
    tails_.reserve(s.tails + 1);
    running_.resize((std::size_t{s.tails} + 1) * dim);
    for (std::uint32_t i = s.tails + 1; i-- > 0;) free_running_.push_back(i);
    half_.reserve(heads_.size() * s.max_clusters);
    query_.resize(dim), distance_.resize(s.max_clusters), score_.resize(s.max_clusters);
    item_.resize(kvtl::partial_floats(s.group, dim)), total_.resize(item_.size());
    attend_.resize(simd::attend_scratch_floats(s.group));
    order_by_score_.resize(s.max_clusters), keys_.resize(s.max_clusters), count_.resize(s.kv_heads);
    chosen_.resize(s.kv_heads * (std::size_t{s.attend_tokens} + 1));
    reads_.reserve(chosen_.size() * cluster_pages);
    const std::size_t split_rows = 2 * std::size_t{max_entries()};
    split_k_.resize(split_rows * dim), split_v_.resize(split_rows * dim), side_.resize(split_rows);
    halves_.resize(kvtl::halve_scratch_bytes(split_rows, dim) + 64);
}

status dynakv_loop::add_cluster(head& of, const number* k, const number* v, std::uint32_t entries,
                                std::uint32_t pool, std::uint32_t side) {
    cluster c;
    c.entries = entries, c.pool = pool, c.side = side;
    c.m2 = simd::mean_and_m2(kvtl::rows_view<number>{k, entries, dim, dim}, query_.data());
    round_mean(of, static_cast<std::uint32_t>(of.clusters.size()), query_.data());
    alignas(64) std::byte page[page_file::page_bytes];
    for (std::uint32_t first = 0, i = 0; first < entries; first += page_rows, ++i) {
        const std::size_t bytes = std::min(page_rows, entries - first) * dim * sizeof(number);
        std::memset(page, 0, sizeof page);
        std::memcpy(page, k + std::size_t{first} * dim, bytes);
        std::memcpy(page + value_offset * sizeof(number), v + std::size_t{first} * dim, bytes);
        if (status s = file_.write(page_of(c, i), page); !s) return s;
    }
    const auto partner =
        std::find_if(half_.begin(), half_.end(), [&](const auto& p) { return p[0] == pool; });
    if (partner != half_.end()) {
        half_.erase(partner);
    } else {
        half_.push_back({pool, 1 - side});
        ++pools_;
    }
    next_pool_ = std::max(next_pool_, pool + 1);
    of.clusters.push_back(c);
    return {};
}

status dynakv_loop::step(std::uint32_t layer, const float* q, const float* k, const float* v,
                         float* out) noexcept {
    const std::size_t group = std::size_t{s_.group} * dim, most = chosen_.size() / s_.kv_heads;
    for (std::uint32_t i = 0; i < s_.kv_heads; ++i) {
        head& h = at(layer, i);
        if (h.tokens - h.window_begin > s_.window)
            return status::failure(errc::bound_too_small, "no frame is left for an entry that waits");
        simd::encode(k + i * std::size_t{dim}, &h.ring_k[std::size_t{ring(h.tokens)} * dim], dim);
        simd::encode(v + i * std::size_t{dim}, &h.ring_v[std::size_t{ring(h.tokens)} * dim], dim);
        chosen* const of_head = &chosen_[i * most];
        count_[i] = choose(h, q + i * group, of_head);
        if (h.tokens + 1 - h.window_begin > s_.window) // its means are in cache
            h.leaves = nearest_to(h, &h.ring_k[std::size_t{ring(h.window_begin)} * dim]);
        if (h.waiting < s_.waiting) continue; // else one more is brought in, so that some can join it
        const std::uint32_t c = most_awaited(h);
        const bool there =
            std::any_of(of_head, of_head + count_[i], [c](chosen x) { return x.cluster == c; });
        if (!there && h.clusters[c].frames == none) of_head[count_[i]++] = {c, false};
    }

    // What is there and chosen leaves last; then all that is missing comes in one submission.
    reads_.clear();
    for (std::uint32_t i = 0; i < s_.kv_heads; ++i)
        for (std::uint32_t j = 0; j < count_[i]; ++j)
            if (const std::uint32_t f = at(layer, i).clusters[chosen_[i * most + j].cluster].frames;
                f != none)
                order_.touch(f), frames_[f].wanted = true;
    for (std::uint32_t i = 0; i < s_.kv_heads; ++i)
        for (std::uint32_t j = 0; j < count_[i]; ++j) {
            cluster& c = at(layer, i).clusters[chosen_[i * most + j].cluster];
            if (c.frames == none && !bring(at(layer, i), chosen_[i * most + j].cluster))
                return status::failure(errc::bound_too_small, "memory does not hold what a layer chooses");
            ++frames_[c.frames].pins;
            frames_[c.frames].wanted = false;
        }
    if (status s = file_.read(reads_); !s) return s;

    const kvtl::partial item = kvtl::partial_at(item_.data(), s_.group, dim),
                        total = kvtl::partial_at(total_.data(), s_.group, dim);
    for (std::uint32_t i = 0; i < s_.kv_heads; ++i) {
        head& h = at(layer, i);
        attend_memory(h, q + i * group);
        for (std::uint32_t j = 0; j < count_[i]; ++j) {
            const chosen& x = chosen_[i * most + j];
            const cluster& c = h.clusters[x.cluster];
            const cluster* const next =
                j + 1 < count_[i] ? &h.clusters[chosen_[i * most + j + 1].cluster] : nullptr;
            if (x.attended) {
                attend_cluster(c, q + i * group, next);
                kvtl::merge(total, item);
            }
            --frames_[c.frames].pins;
        }
        kvtl::finish(total, out + i * group, dim);
    }

    if (layer == 0) order_.tick();
    for (std::uint32_t i = 0; i < s_.kv_heads; ++i)
        if (status s = maintain(at(layer, i)); !s) return s;
    return failed_;
}

/// The clusters with the highest inner products of mean key and mean query, as far as the budget of entries goes; one that
/// would overshoot it is passed over. In their order. Returns how many.
std::uint32_t dynakv_loop::choose(head& h, const float* q, chosen* out) noexcept {
    const auto clusters = static_cast<std::uint32_t>(h.clusters.size());
    const std::uint32_t in_memory = s_.sinks + (h.tokens - h.window_begin) + h.waiting + 1;
    if (s_.attend_tokens <= in_memory) return 0;
    std::uint32_t left = s_.attend_tokens - in_memory, n = 0;

    std::copy_n(q, dim, query_.data());
    for (std::uint32_t g = 1; g < s_.group; ++g) simd::add(q + std::size_t{g} * dim, query_.data(), dim);
    simd::scale(1.0F / static_cast<float>(s_.group), query_.data(), dim);
    simd::dot_rows(query_.data(), kvtl::rows_view<std::int8_t>{h.code.data(), clusters, dim, dim},
                   score_.data());
    simd::multiply(h.scale.data(), score_.data(), clusters);

    const auto take = [&](std::uint32_t c) {
        if (h.clusters[c].entries > left) return;
        out[n++] = {c, true};
        left -= h.clusters[c].entries;
    };
    const std::uint32_t first = std::min(clusters, std::max(16U, left / 8));
    static_cast<void>(simd::top_k(score_.data(), clusters, first, order_by_score_.data(), keys_));
    for (std::uint32_t i = 0; i < first && left > 0; ++i) take(order_by_score_[i]);
    const std::uint32_t last = order_by_score_[first - 1];
    std::uint64_t seen = simd::top_k_key<simd::default_arch>(score_[last], last);
    for (std::uint32_t most = 16; left > 0; most *= 4) { // then only those that still fit
        std::uint32_t fit = 0;
        for (std::uint32_t c = 0; c < clusters; ++c) {
            if (h.clusters[c].entries > left) continue;
            keys_[fit] = simd::top_k_key<simd::default_arch>(score_[c], c);
            fit += keys_[fit] < seen ? 1 : 0;
        }
        if (fit == 0) break;
        const std::uint32_t ranked = std::min(fit, most);
        simd::select_best<simd::default_arch>(keys_.data(), fit, ranked);
        std::sort(keys_.begin(), keys_.begin() + ranked, simd::better_key<simd::default_arch>{});
        for (std::uint32_t i = 0; i < ranked && left > 0; ++i) take(simd::top_k_index(keys_[i]));
        seen = keys_[ranked - 1];
    }
    std::sort(out, out + n, [](chosen a, chosen b) { return a.cluster < b.cluster; });
    return n;
}

/// Frames for a cluster's pages; what storage has of them joins the reads. False when everything is in use.
bool dynakv_loop::bring(head& h, std::uint32_t i) noexcept {
    cluster& c = h.clusters[i];
    const std::uint32_t pages = (c.entries + page_rows - 1) / page_rows - (c.tail != none ? 1 : 0);
    std::uint32_t first = none, last = none;
    for (std::uint32_t p = 0; p < pages; ++p) {
        const std::uint32_t f = take_frame();
        if (f == none) return false; // the step fails: nothing is undone
        frames_[f].page = page_of(c, p), frames_[f].of = &h, frames_[f].cluster = i;
        frames_[f].linked = true;
        reads_.push_back({frames_[f].page, reinterpret_cast<std::byte*>(keys(f))});
        (first == none ? first : frames_[last].next) = f;
        last = f;
    }
    c.frames = first;
    if (c.tail != none) link(c, c.tail);
    order_.add(c.frames, pages + (c.tail != none ? 1 : 0), false);
    return true;
}

void dynakv_loop::attend_memory(const head& h, const float* q) noexcept {
    const kvtl::partial total = kvtl::partial_at(total_.data(), s_.group, dim);
    kvtl::reset(total);
    const auto rows = [&](const number* k, const number* v, std::uint32_t n) {
        simd::attend_rows<simd::default_arch, number>(q, dim, s_.scale, {k, n, dim, dim}, {v, n, dim, dim},
                                                      nullptr, total, attend_);
    };
    rows(h.sink_k.data(), h.sink_v.data(), s_.sinks);
    for (std::uint32_t from = h.window_begin, to = h.tokens + 1; from < to;) {
        const std::uint32_t n = std::min(to - from, s_.window + 1 - ring(from));
        rows(&h.ring_k[std::size_t{ring(from)} * dim], &h.ring_v[std::size_t{ring(from)} * dim], n);
        from += n;
    }
    if (h.waiting > 0) rows(h.wait_k.data(), h.wait_v.data(), h.waiting);
}

/// The page behind each, or the first one of `next`, is asked for meanwhile: keys, then values.
void dynakv_loop::attend_cluster(const cluster& c, const float* q, const cluster* next) noexcept {
    const kvtl::partial item = kvtl::partial_at(item_.data(), s_.group, dim);
    kvtl::reset(item);
    const auto bytes_of = [](std::uint32_t entries) {
        return std::min(entries, page_rows) * dim * sizeof(number);
    };
    for (std::uint32_t f = c.frames, left = c.entries; left > 0; f = frames_[f].next) {
        const std::uint32_t n = std::min(left, page_rows);
        const std::uint32_t coming = left > n ? frames_[f].next : next != nullptr ? next->frames : none;
        const std::size_t bytes = left > n          ? bytes_of(left - n)
                                  : next != nullptr ? bytes_of(next->entries)
                                                    : 0;
        const kvtl::rows_view<number> k{keys(f), n, dim, dim}, v{keys(f) + value_offset, n, dim, dim};
        if (coming != none) ask_for(keys(coming), bytes);
        simd::attend_blocks<simd::default_arch>(
            n, s_.scale, nullptr, item, attend_, simd::all_queries,
            [&](std::size_t first, std::size_t some, std::size_t, std::size_t count, float* score) {
                simd::score_rows<simd::default_arch>(q, count, dim, k.slice(first, some), score,
                                                     simd::attend_block);
            },
            [&](std::size_t first, std::size_t some, std::size_t count, const float* weight, float* acc) {
                if (coming != none) ask_for(keys(coming) + value_offset, bytes);
                simd::accumulate_rows<simd::default_arch>(weight, count, v.slice(first, some), acc, dim);
            });
        left -= n;
    }
}

/// The token counts, entries that wait join clusters that are resident, and the oldest of the window finds its cluster.
status dynakv_loop::maintain(head& h) noexcept {
    ++h.tokens;
    merge_waiting(h);
    if (h.waiting >= s_.waiting && !force(h))
        return status::failure(errc::bound_too_small, "memory has no frame for a cluster that must grow");
    while (h.tokens - h.window_begin > s_.window) {
        const std::size_t row = std::size_t{ring(h.window_begin)} * dim;
        if (!place(h, &h.ring_k[row], &h.ring_v[row])) break; // it stays in the window
        ++h.window_begin;
    }
    return {};
}

/// A frame that holds nothing; a cluster leaves for it where there is none. none when all are in use.
std::uint32_t dynakv_loop::take_frame() noexcept {
    while (free_.empty()) {
        const auto may_leave = [this](std::uint32_t f) { // a cluster that is only a tail would free nothing
            return frames_[f].pins == 0 && (!frames_[f].is_tail() || frames_[f].next != none);
        };
        std::uint32_t f = order_.victim([&](std::uint32_t x) { return may_leave(x) && !frames_[x].wanted; });
        if (f == none) f = order_.victim(may_leave);
        if (f == none) return none;
        evict(frames_[f].of->clusters[frames_[f].cluster]);
    }
    const std::uint32_t f = free_.back();
    free_.pop_back();
    frames_[f] = {};
    return f;
}

void dynakv_loop::evict(cluster& c) noexcept {
    order_.remove(c.frames);
    for (std::uint32_t f = std::exchange(c.frames, none); f != none;) {
        const std::uint32_t next = frames_[f].next;
        frames_[f].linked = frames_[f].wanted = false;
        settle(f);
        f = next;
    }
}

/// A frame becomes the last of a cluster.
void dynakv_loop::link(cluster& c, std::uint32_t f) noexcept {
    frames_[f].next = none;
    frames_[f].linked = true;
    if (c.frames == none) {
        c.frames = f;
        return;
    }
    std::uint32_t last = c.frames;
    while (frames_[last].next != none) last = frames_[last].next;
    frames_[last].next = f;
}

void dynakv_loop::note_updated(const cluster& c) noexcept {
    std::uint32_t pages = 0;
    for (std::uint32_t f = c.frames; f != none; f = frames_[f].next) ++pages;
    order_.update(c.frames, pages);
}

/// The frame holds entries that storage has not; where there are too many of these the one that rested longest is written.
/// Returns its cluster's exact mean.
float* dynakv_loop::make_tail(std::uint32_t f) noexcept {
    if (!frames_[f].is_tail()) {
        if (tails_.size() >= s_.tails) {
            const std::uint32_t oldest =
                *std::min_element(tails_.begin(), tails_.end(), [this](std::uint32_t a, std::uint32_t b) {
                    return frames_[a].stamp < frames_[b].stamp;
                });
            cluster& c = frames_[oldest].of->clusters[frames_[oldest].cluster];
            c.tail = none;
            write(oldest, c.entries % page_rows);
            end_tail(oldest);
        }
        frames_[f].used = free_running_.back();
        free_running_.pop_back();
        tails_.push_back(f);
    }
    frames_[f].stamp = ++clock_;
    return &running_[std::size_t{frames_[f].used} * dim];
}

void dynakv_loop::end_tail(std::uint32_t f) noexcept {
    free_running_.push_back(std::exchange(frames_[f].used, none));
    *std::find(tails_.begin(), tails_.end(), f) = tails_.back();
    tails_.pop_back();
    settle(f);
}

void dynakv_loop::write(std::uint32_t f, std::uint32_t rows) noexcept {
    number* const k = keys(f);
    std::fill_n(k + rows * dim, (page_rows - rows) * dim, number{});
    std::fill_n(k + value_offset + rows * dim, (page_rows - rows) * dim, number{});
    if (status s = file_.write(frames_[f].page, reinterpret_cast<std::byte*>(k)); !s && failed_.ok())
        failed_ = s;
}

} // namespace bench
