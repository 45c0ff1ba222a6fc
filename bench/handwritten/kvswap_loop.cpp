// SPDX-License-Identifier: MIT
#include "kvswap_loop.hpp"

#include <kvtl/simd/dot_columns.hpp>
#include <kvtl/simd/topk.hpp>

#include <algorithm>
#include <cstring>
#include <new>

namespace bench {

namespace simd = kvtl::simd;
using kvtl::status;

namespace {
constexpr std::uint32_t block = simd::attend_block, column_block = simd::column_block;
}

kvtl::result<kvswap_loop> kvswap_loop::open(const kvswap_sizes& s, const kvtl::calibration_view& adapter) {
    const std::uint32_t width = s.kv_heads * dim, row_bytes = 2 * width * sizeof(number);
    if (row_bytes > page_file::page_bytes)
        return kvtl::status::failure(kvtl::errc::unsupported,
                                     "a token takes %u bytes; valid: up to a page of %u", row_bytes,
                                     page_file::page_bytes);
    const std::uint32_t pages = s.max_tokens / (page_file::page_bytes / row_bytes) + 1;
    auto file = page_file::open(s.layers * pages, 2 * s.attend_tokens);
    if (!file) return file.error();
    kvswap_loop loop(s, *std::move(file), adapter);
    loop.layer_pages_ = pages;
    return loop;
}

kvswap_loop::kvswap_loop(const kvswap_sizes& s, page_file file, const kvtl::calibration_view& adapter)
    : s_(s), file_(std::move(file)), adapter_(adapter), width_(s.kv_heads * dim),
      page_rows_(page_file::page_bytes / (2 * width_ * static_cast<std::uint32_t>(sizeof(number)))),
      value_offset_(page_rows_ * width_), layers_(s.layers),
      memory_(std::size_t{s.layers} * s.slots * 2 * group_tokens * width_),
      pages_(new (std::align_val_t{4096})
                 std::byte[(std::size_t{2} * s.attend_tokens + s.layers) * page_file::page_bytes]) {
    std::byte* tail = pages_.get() + std::size_t{2} * s.attend_tokens * page_file::page_bytes;
    const std::uint32_t groups = s.max_tokens / group_tokens + 1;
    for (layer_state& l : layers_) {
        l.ring_k.resize((std::size_t{s.window} + group_tokens) * width_), l.ring_v.resize(l.ring_k.size());
        l.columns.resize((std::size_t{groups} * group_tokens + column_block) * s.rank);
        l.tail = reinterpret_cast<number*>(std::exchange(tail, tail + page_file::page_bytes));
        std::fill_n(l.tail, page_file::page_bytes / sizeof(number), number{});
        l.slots.resize(std::size_t{s.slots} + 1);
        for (std::uint32_t i = 0; i <= s.slots; ++i) // all empty, in a ring
            l.slots[i].next = (i + 1) % (s.slots + 1), l.slots[i].prev = (i + s.slots) % (s.slots + 1);
        l.slot_of.assign(groups, none);
        l.chosen.reserve(s.attend_tokens);
    }
    reads_.reserve(2 * std::size_t{s.attend_tokens}), missing_.reserve(s.attend_tokens);
    order_.resize(groups), keys_.resize(groups);
    query_.resize(width_), small_.resize(s.rank), score_.resize(std::size_t{groups} * group_tokens);
    total_.resize(s.kv_heads * kvtl::partial_floats(s.group, dim));
    attend_.resize(simd::attend_scratch_floats(s.group)), key_.resize(width_);
    tile_k_.resize(std::size_t{block} * width_), tile_v_.resize(tile_k_.size());
}

status kvswap_loop::take(std::uint32_t layer, const float* k, const float* v) noexcept {
    layer_state& l = layers_[layer];
    put(l, k, v);
    ++l.tokens;
    return drain(l, layer);
}

status kvswap_loop::prefetch(std::uint32_t layer, const float* guess) noexcept {
    return layer < s_.true_layers ? status() : fetch(layer, guess);
}
status kvswap_loop::fetch(std::uint32_t layer, const float* q) noexcept {
    choose(layers_[layer], layer, q);
    return bring(layers_[layer], layer);
}

status kvswap_loop::step(std::uint32_t layer, const float* q, const float* k, const float* v,
                         float* out) noexcept {
    layer_state& l = layers_[layer];
    put(l, k, v);
    if (layer < s_.true_layers)
        if (status s = fetch(layer, q); !s) return s;

    const std::size_t floats = kvtl::partial_floats(s_.group, dim);
    for (std::uint32_t h = 0; h < s_.kv_heads; ++h)
        kvtl::reset(kvtl::partial_at(&total_[h * floats], s_.group, dim));
    for (std::uint32_t from = l.window_begin; from <= l.tokens;) {
        const std::uint32_t n = std::min(l.tokens + 1 - from, s_.window + group_tokens - ring(from));
        const std::size_t row = std::size_t{ring(from)} * width_;
        attend(&l.ring_k[row], &l.ring_v[row], n, q);
        from += n;
    }
    std::uint32_t rows = 0; // groups side by side, a block of them at a time
    for (std::size_t i = 0; i < l.chosen.size(); ++i) {
        const std::uint32_t g = l.chosen[i];
        const number* const from = slot_rows(layer, l.slot_of[g]);
        if (i + 1 < l.chosen.size())
            ask_for_later(slot_rows(layer, l.slot_of[l.chosen[i + 1]]),
                          2 * group_tokens * width_ * sizeof(number));
        std::memcpy(&tile_k_[std::size_t{rows} * width_], from, group_tokens * width_ * sizeof(number));
        std::memcpy(&tile_v_[std::size_t{rows} * width_], from + group_tokens * width_,
                    group_tokens * width_ * sizeof(number));
        l.slots[l.slot_of[g]].chosen = false;
        rows += group_tokens;
        if (rows < block) continue;
        attend(tile_k_.data(), tile_v_.data(), rows, q);
        rows = 0;
    }
    if (rows > 0) attend(tile_k_.data(), tile_v_.data(), rows, q);
    for (std::uint32_t h = 0; h < s_.kv_heads; ++h)
        kvtl::finish(kvtl::partial_at(&total_[h * floats], s_.group, dim),
                     out + std::size_t{h} * s_.group * dim, dim);
    l.chosen.clear();
    ++l.tokens;
    return drain(l, layer);
}

/// The groups whose best token has the highest inner product with the mean query, as many as the budget holds.
void kvswap_loop::choose(layer_state& l, std::uint32_t layer, const float* q) noexcept {
    l.chosen.clear();
    const std::uint32_t in_memory = l.tokens - l.window_begin + 1;
    if (l.groups == 0 || s_.attend_tokens <= in_memory) return;
    for (std::uint32_t h = 0; h < s_.kv_heads; ++h) {
        const float* const first = q + std::size_t{h} * s_.group * dim;
        float* const mean = &query_[std::size_t{h} * dim];
        std::copy_n(first, dim, mean);
        for (std::uint32_t g = 1; g < s_.group; ++g) simd::add(first + std::size_t{g} * dim, mean, dim);
        simd::scale(1.0F / static_cast<float>(s_.group), mean, dim);
    }
    const std::size_t entries = std::size_t{l.groups} * group_tokens;
    simd::dot_rows(query_.data(), adapter_.adapter(layer).slice(0, s_.rank), small_.data());
    simd::dot_columns(small_.data(), 1, s_.rank,
                      simd::columns_view<number>{l.columns.data(), entries, s_.rank, 0, s_.rank},
                      score_.data(), entries);
    for (std::uint32_t g = 0; g < l.groups; ++g) {
        const float* const of = &score_[std::size_t{g} * group_tokens];
        score_[g] = std::max(std::max(of[0], of[1]), std::max(of[2], of[3]));
    }
    const std::size_t n = simd::top_k_by_index(
        score_.data(), l.groups, (s_.attend_tokens - in_memory) / group_tokens, order_.data(), keys_);
    l.chosen.assign(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(n));
}

/// The slot that was filled first among those that nothing chosen is in, now the last one. none when there is none.
std::uint32_t kvswap_loop::take_slot(layer_state& l) noexcept {
    const std::uint32_t end = s_.slots;
    std::uint32_t i = l.slots[end].next;
    while (i != end && l.slots[i].chosen) i = l.slots[i].next;
    if (i == end) return none;
    slot& s = l.slots[i];
    if (s.group != none) l.slot_of[s.group] = none;
    l.slots[s.prev].next = s.next, l.slots[s.next].prev = s.prev;
    s.prev = l.slots[end].prev, s.next = end;
    l.slots[s.prev].next = l.slots[end].prev = i;
    return i;
}

/// Reads the pages of what is chosen and missing, and copies its rows into slots.
status kvswap_loop::bring(layer_state& l, std::uint32_t layer) noexcept {
    missing_.clear(), reads_.clear();
    for (const std::uint32_t g : l.chosen)
        if (l.slot_of[g] != none) l.slots[l.slot_of[g]].chosen = true;
    const std::uint32_t full = l.groups * group_tokens / page_rows_; // pages that storage has
    for (const std::uint32_t g : l.chosen) {
        if (l.slot_of[g] != none) continue;
        const std::uint32_t i = take_slot(l);
        if (i == none)
            return status::failure(kvtl::errc::bound_too_small, "memory does not hold what a layer chooses");
        l.slots[i].group = g, l.slots[i].chosen = true;
        l.slot_of[g] = i;
        missing_.push_back(g);
        const std::uint32_t last = (g * group_tokens + group_tokens - 1) / page_rows_;
        for (std::uint32_t p = g * group_tokens / page_rows_; p <= last && p < full; ++p)
            if (reads_.empty() || reads_.back().page != page_of(layer, p))
                reads_.push_back({page_of(layer, p), pages_.get() + reads_.size() * page_file::page_bytes});
    }
    if (status s = file_.read(reads_); !s) return s;

    std::size_t at = 0; // reads are in the order of their pages
    for (const std::uint32_t g : missing_) {
        number* const to = slot_rows(layer, l.slot_of[g]);
        for (std::uint32_t row = 0; row < group_tokens;) {
            const std::uint32_t e = g * group_tokens + row, page = e / page_rows_,
                                n = std::min(group_tokens - row, page_rows_ - e % page_rows_);
            const number* from = l.tail;
            if (page < full) {
                while (reads_[at].page != page_of(layer, page)) ++at;
                from = reinterpret_cast<const number*>(reads_[at].memory);
            }
            from += std::size_t{e % page_rows_} * width_;
            std::memcpy(to + std::size_t{row} * width_, from, n * width_ * sizeof(number));
            std::memcpy(to + std::size_t{group_tokens + row} * width_, from + value_offset_,
                        n * width_ * sizeof(number));
            row += n;
        }
    }
    return {};
}

void kvswap_loop::attend(const number* k, const number* v, std::uint32_t rows, const float* q) noexcept {
    const std::size_t floats = kvtl::partial_floats(s_.group, dim);
    for (std::uint32_t h = 0; h < s_.kv_heads; ++h)
        simd::attend_rows<simd::default_arch, number>(
            q + std::size_t{h} * s_.group * dim, dim, s_.scale, {k + std::size_t{h} * dim, rows, dim, width_},
            {v + std::size_t{h} * dim, rows, dim, width_}, nullptr,
            kvtl::partial_at(&total_[h * floats], s_.group, dim), attend_);
}

void kvswap_loop::put(layer_state& l, const float* k, const float* v) noexcept {
    simd::encode(k, &l.ring_k[std::size_t{ring(l.tokens)} * width_], width_);
    simd::encode(v, &l.ring_v[std::size_t{ring(l.tokens)} * width_], width_);
}

/// The oldest four tokens of the window become a group once as many more than the window are there.
status kvswap_loop::drain(layer_state& l, std::uint32_t layer) noexcept {
    if (l.tokens - l.window_begin < s_.window + group_tokens) return {};
    const kvtl::rows_view<kvtl::f16> adapter = adapter_.adapter(layer).slice(0, s_.rank);
    for (std::uint32_t i = 0; i < group_tokens; ++i) {
        const std::uint32_t e = l.groups * group_tokens + i, row = e % page_rows_;
        const std::size_t from = std::size_t{ring(l.window_begin + i)} * width_;
        simd::decode(&l.ring_k[from], key_.data(), width_);
        simd::dot_rows(key_.data(), adapter, small_.data());
        for (std::uint32_t c = 0; c < s_.rank; ++c)
            l.columns[std::size_t{e / column_block} * column_block * s_.rank + c * column_block +
                      e % column_block] = kvtl::from_float<number>(small_[c]);
        std::memcpy(&l.tail[std::size_t{row} * width_], &l.ring_k[from], width_ * sizeof(number));
        std::memcpy(&l.tail[value_offset_ + std::size_t{row} * width_], &l.ring_v[from],
                    width_ * sizeof(number));
        if (row + 1 < page_rows_) continue;
        if (status s = file_.write(page_of(layer, e / page_rows_), reinterpret_cast<std::byte*>(l.tail)); !s)
            return s;
    }
    ++l.groups;
    l.window_begin += group_tokens;
    return {};
}

} // namespace bench
