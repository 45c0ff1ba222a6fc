// How clusters grow: the part of the hand-written step of dynakv that is Algorithm 1 of its paper.
// SPDX-License-Identifier: MIT
#include "dynakv_loop.hpp"

#include <algorithm>
#include <utility>

namespace bench {

namespace simd = kvtl::simd;
using kvtl::status;

bool dynakv_loop::place(head& h, const number* k, const number* v) noexcept {
    if (h.waiting >= h.wait_for.size()) return false;
    std::uint32_t c = none;
    const growth how = assign(h, k, c);
    if (how == growth::open) {
        if (!open(h, c, k, v)) wait(h, c, k, v);
        return true;
    }
    if (how == growth::append) {
        if (h.clusters[c].waiting == 0 && append(h, c, k, v)) return true;
    } else {
        if (const std::uint32_t f = h.clusters[c].frames; f != none) {
            ++frames_[f].pins;
            const bool done = split(h, c, k, v);
            unpin(f);
            if (done) return true;
        }
        h.clusters[c].to_split = true;
    }
    wait(h, c, k, v);
    return true;
}

/// Whether a cluster takes an entry that is so far (squared) from its mean.
dynakv_loop::growth dynakv_loop::judge(head& h, const cluster& c, float distance) const noexcept {
    const bool full = c.entries + 1 > max_entries();
    const auto n = static_cast<float>(c.entries);
    const float variance = (c.m2 + n / (n + 1.0F) * distance) / (n + 1.0F);
    if (!full && (variance <= h.threshold || c.entries + 1 < smallest_split)) return growth::append;
    const std::uint32_t limit = 2 * std::max(1U, h.tokens / s_.tokens_per_cluster);
    const auto clusters = static_cast<std::uint32_t>(h.clusters.size());
    if (clusters < s_.max_clusters && may_place() && clusters < limit) return growth::split;
    h.threshold *= 1.1F;
    return full ? growth::open : growth::append;
}

simd::neighbour dynakv_loop::nearest_to(const head& h, const number* k) noexcept {
    simd::decode(k, query_.data(), dim);
    return simd::nearest_code(query_.data(), {h.code.data(), h.clusters.size(), dim, dim}, h.scale.data(),
                              distance_.data());
}

dynakv_loop::growth dynakv_loop::assign(head& h, const number* k, std::uint32_t& nearest) noexcept {
    const std::size_t clusters = h.clusters.size();
    const simd::neighbour known = std::exchange(h.leaves, {none}),
                          closest = known.index != none ? known : nearest_to(h, k);
    nearest = static_cast<std::uint32_t>(closest.index);
    const growth how = judge(h, h.clusters[nearest], closest.distance);
    if (how != growth::open) return how;
    simd::decode(k, query_.data(), dim);
    simd::l2sq_codes(query_.data(), kvtl::rows_view<std::int8_t>{h.code.data(), clusters, dim, dim},
                     h.scale.data(), distance_.data());
    std::uint32_t room = none;
    for (std::uint32_t c = 0; c < clusters; ++c)
        if (h.clusters[c].entries + h.clusters[c].waiting < max_entries() &&
            (room == none || distance_[c] < distance_[room]))
            room = c;
    if (room == none) return growth::open;
    nearest = room;
    return growth::append;
}

void dynakv_loop::merge_waiting(head& h) noexcept {
    for (std::uint32_t i = 0; i < h.waiting;) {
        const std::uint32_t c = h.wait_for[i], before = h.waiting, f = h.clusters[c].frames;
        if (f != none) {
            h.leaves = {none};
            ++frames_[f].pins;
            merge_cluster(h, c);
            unpin(f);
        }
        i = h.waiting < before ? 0 : i + 1; // rows have moved up: from the start
    }
}

void dynakv_loop::merge_cluster(head& h, std::uint32_t c) noexcept {
    if (h.clusters[c].to_split && split(h, c, nullptr, nullptr)) return;
    h.clusters[c].to_split = false;
    float mean[dim];
    for (std::uint32_t i = 0; i < h.waiting && h.clusters[c].waiting > 0;) {
        if (h.wait_for[i] != c) {
            ++i;
            continue;
        }
        const number *k = &h.wait_k[std::size_t{i} * dim], *v = &h.wait_v[std::size_t{i} * dim];
        simd::decode(k, query_.data(), dim);
        simd::dequantise(&h.code[std::size_t{c} * dim], h.scale[c], mean, dim);
        const growth how = judge(h, h.clusters[c], simd::l2sq(query_.data(), mean, dim));
        if (how == growth::split) {
            static_cast<void>(split(h, c, nullptr, nullptr));
            return;
        }
        if (how == growth::append && append(h, c, k, v))
            stop_waiting(h, i);
        else if (!move_elsewhere(h, i))
            ++i;
    }
}

/// An entry whose cluster is full and may not split goes to, or waits for, the nearest that has room.
bool dynakv_loop::move_elsewhere(head& h, std::uint32_t i) noexcept {
    const std::uint32_t from = h.wait_for[i];
    const number *k = &h.wait_k[std::size_t{i} * dim], *v = &h.wait_v[std::size_t{i} * dim];
    std::uint32_t to = none;
    const growth how = assign(h, k, to);
    if (how == growth::open) {
        if (!open(h, to, k, v)) return false;
    } else if (how != growth::append || to == from || !append(h, to, k, v)) {
        if (to == from) return false;
        --h.clusters[from].waiting, ++h.clusters[to].waiting;
        h.wait_for[i] = to;
        h.clusters[to].to_split |= how == growth::split;
        return false;
    }
    stop_waiting(h, i);
    return true;
}

/// A cluster of one entry.
bool dynakv_loop::open(head& h, std::uint32_t like, const number* k, const number* v) noexcept {
    if (h.clusters.size() >= s_.max_clusters) return false;
    cluster fresh;
    const bool half = !half_.empty();
    fresh.pool = half ? half_.back()[0] : next_pool_;
    fresh.side = half ? half_.back()[1] : 0;
    const auto c = static_cast<std::uint32_t>(h.clusters.size());
    h.clusters.push_back(fresh);
    if (!append(h, c, k, v)) {
        h.clusters.pop_back();
        return false;
    }
    if (half)
        half_.pop_back();
    else
        half_.push_back({next_pool_++, 1}), ++pools_;
    std::copy_n(&h.code[std::size_t{like} * dim], dim, &h.code[std::size_t{c} * dim]);
    h.scale[c] = h.scale[like];
    return true;
}

bool dynakv_loop::append(head& h, std::uint32_t c, const number* k, const number* v) noexcept {
    const std::uint32_t pinned = h.clusters[c].frames;
    if (pinned != none) ++frames_[pinned].pins;
    const bool done = append_row(h, c, k, v);
    if (pinned != none) unpin(pinned);
    if (done && h.clusters[c].frames != none) note_updated(h.clusters[c]);
    return done;
}

/// False where the page that the entry belongs to is on storage alone, or no frame is left.
bool dynakv_loop::append_row(head& h, std::uint32_t i, const number* k, const number* v) noexcept {
    cluster& c = h.clusters[i];
    const std::uint32_t row = c.entries % page_rows, page = c.entries / page_rows;
    std::uint32_t f = c.tail;
    if (row == 0) {
        if (page == cluster_pages) return false;
        f = take_frame();
        if (f == none) return false;
        frames_[f].page = page_of(c, page), frames_[f].of = &h, frames_[f].cluster = i;
        if (c.entries == 0 || c.frames != none) link(c, f);
    } else if (f == none) {
        if (c.frames == none) return false;
        for (f = c.frames; frames_[f].next != none;) f = frames_[f].next;
    }
    const bool goes_on = c.tail == f;
    c.tail = f;
    float* mean = make_tail(f);
    if (!goes_on && c.entries > 0) { // the exact mean, of all entries where they are there
        if (c.frames == none) {
            simd::dequantise(&h.code[std::size_t{i} * dim], h.scale[i], mean, dim);
        } else {
            float unused = 0;
            std::fill_n(mean, dim, 0.0F);
            std::uint32_t n = 0;
            for (std::uint32_t at = c.frames; n < c.entries; at = frames_[at].next)
                for (std::uint32_t r = 0; r < page_rows && n < c.entries; ++r, ++n)
                    simd::absorb(keys(at) + r * dim, dim, n, mean, unused);
        }
    } else if (c.entries == 0) {
        std::fill_n(mean, dim, 0.0F);
    }
    put(f, row, k, v);
    simd::absorb(k, dim, c.entries, mean, c.m2);
    round_mean(h, i, mean);
    if (++c.entries % page_rows == 0) {
        c.tail = none;
        write(f, page_rows);
        end_tail(f);
    }
    return true;
}

/// Divides a resident cluster, with all that waits for it and the new entry if there is one. The larger part stays.
bool dynakv_loop::split(head& h, std::uint32_t i, const number* k, const number* v) noexcept {
    if (h.clusters.size() >= s_.max_clusters) return false;
    const std::uint32_t extra = k != nullptr ? 1 : 0, before = h.clusters[i].entries, n = gather(h, i, k, v);
    kvtl::halve(kvtl::rows_view<number>{split_k_.data(), n, dim, dim}, max_entries(), halves_, side_.data());
    const auto ones = static_cast<std::uint32_t>(std::count(side_.begin(), side_.begin() + n, 1));
    const std::uint8_t stays = ones * 2 > n ? 1 : 0;
    const std::uint32_t larger = stays == 1 ? ones : n - ones, kept = (larger + page_rows - 1) / page_rows,
                        moved = (n - larger + page_rows - 1) / page_rows;
    std::uint32_t frames[2 * cluster_pages];
    for (std::uint32_t taken = 0; taken < kept + moved; ++taken) {
        frames[taken] = take_frame();
        if (frames[taken] != none) continue;
        while (taken > 0) settle(frames[--taken]);
        return false;
    }

    std::uint32_t merged = n - before - extra;
    for (std::uint32_t w = 0; merged > 0;) {
        if (h.wait_for[w] == i)
            stop_waiting(h, w), --merged;
        else
            ++w;
    }
    cluster& parent = h.clusters[i];
    if (parent.tail != none) end_tail(std::exchange(parent.tail, none));
    evict(parent);
    parent.to_split = parent.waiting > 0;
    cluster child;
    if (!half_.empty()) {
        child.pool = half_.back()[0], child.side = half_.back()[1];
        half_.pop_back();
    } else {
        child.pool = next_pool_++;
        half_.push_back({child.pool, 1});
        ++pools_;
    }
    const auto c = static_cast<std::uint32_t>(h.clusters.size());
    h.clusters.push_back(child);
    fill(h, i, stays, n, frames, kept);
    fill(h, c, static_cast<std::uint8_t>(1 - stays), n, frames + kept, moved);
    return true;
}

/// The rows of a split: the cluster's, those that wait for it, the new one. Returns how many.
std::uint32_t dynakv_loop::gather(const head& h, std::uint32_t i, const number* k, const number* v) noexcept {
    const cluster& c = h.clusters[i];
    std::uint32_t n = 0;
    const auto copy = [&](const number* from_k, const number* from_v, std::uint32_t rows) {
        std::memcpy(&split_k_[std::size_t{n} * dim], from_k, rows * dim * sizeof(number));
        std::memcpy(&split_v_[std::size_t{n} * dim], from_v, rows * dim * sizeof(number));
        n += rows;
    };
    for (std::uint32_t f = c.frames; n < c.entries; f = frames_[f].next)
        copy(keys(f), keys(f) + value_offset, std::min(page_rows, c.entries - n));
    const std::uint32_t most = 2 * max_entries() - (k != nullptr ? 1 : 0);
    for (std::uint32_t w = 0; w < h.waiting && n < most; ++w)
        if (h.wait_for[w] == i) copy(&h.wait_k[std::size_t{w} * dim], &h.wait_v[std::size_t{w} * dim], 1);
    if (k != nullptr) copy(k, v, 1);
    return n;
}

void dynakv_loop::fill(head& h, std::uint32_t i, std::uint8_t side, std::uint32_t rows,
                       const std::uint32_t* frames, std::uint32_t pages) noexcept {
    cluster& c = h.clusters[i];
    float mean[dim] = {};
    c.entries = 0;
    c.m2 = 0;
    for (std::uint32_t r = 0; r < rows; ++r) {
        if (side_[r] != side) continue;
        put(frames[c.entries / page_rows], c.entries % page_rows, &split_k_[std::size_t{r} * dim],
            &split_v_[std::size_t{r} * dim]);
        simd::absorb(&split_k_[std::size_t{r} * dim], dim, c.entries++, mean, c.m2);
    }
    round_mean(h, i, mean);
    for (std::uint32_t p = 0; p < pages; ++p) {
        frame& f = frames_[frames[p]];
        f.of = &h, f.cluster = i, f.page = page_of(c, p);
        link(c, frames[p]);
        if ((p + 1) * page_rows <= c.entries) write(frames[p], page_rows);
    }
    if (c.entries % page_rows != 0) {
        c.tail = frames[pages - 1];
        std::copy_n(mean, dim, make_tail(c.tail));
    }
    note_updated(c);
}

/// Brings in the cluster that most entries wait for, so that they can join it.
bool dynakv_loop::force(head& h) noexcept {
    const std::uint32_t c = most_awaited(h);
    if (h.clusters[c].frames == none) {
        reads_.clear();
        if (!bring(h, c)) return false;
        if (status s = file_.read(reads_); !s) return failed_ = s, false;
    }
    merge_waiting(h);
    return true;
}

std::uint32_t dynakv_loop::most_awaited(const head& h) const noexcept {
    std::uint32_t best = h.wait_for[0];
    for (std::uint32_t i = 1; i < h.waiting; ++i) {
        const std::uint32_t c = h.wait_for[i], n = h.clusters[c].waiting, most = h.clusters[best].waiting;
        if (n > most || (n == most && c < best)) best = c;
    }
    return best;
}

void dynakv_loop::wait(head& h, std::uint32_t c, const number* k, const number* v) noexcept {
    const std::uint32_t i = h.waiting++;
    std::memcpy(&h.wait_k[std::size_t{i} * dim], k, dim * sizeof(number));
    std::memcpy(&h.wait_v[std::size_t{i} * dim], v, dim * sizeof(number));
    h.wait_for[i] = c;
    ++h.clusters[c].waiting;
}

void dynakv_loop::stop_waiting(head& h, std::uint32_t i) noexcept {
    --h.clusters[h.wait_for[i]].waiting;
    const std::size_t behind = --h.waiting - i, row = std::size_t{i} * dim;
    std::memmove(&h.wait_k[row], h.wait_k.data() + row + dim, behind * dim * sizeof(number));
    std::memmove(&h.wait_v[row], h.wait_v.data() + row + dim, behind * dim * sizeof(number));
    std::memmove(&h.wait_for[i], h.wait_for.data() + i + 1, behind * sizeof(std::uint32_t));
}

} // namespace bench
