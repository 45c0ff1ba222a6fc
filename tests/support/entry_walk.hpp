// Where every entry of a lane is, found by looking: sinks, window, buffer, and the pages of every unit, in
// frames or read back from storage. Tokens are told apart by the first number of their value row
// (drift_config::numbered), so the walk believes nothing that the manager says about itself.
//
//   const lane_content c = look_at(cache, log, shard, slot, layer, lane);
//   CHECK(c.complete());            // every token in exactly one place
//
// For caches on recording_io whose plain rows are floats. Where records are no rows, a record's token is the
// one whose row gives that record when it is encoded: an entry that was encoded twice on its way fits none.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/shard_access.hpp>
#include <kvtl/core/store/record_rows.hpp>
#include <kvtl/unit.hpp>

#include "support/recording_io.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace kvtl_test {

using token_list = std::vector<std::uint32_t>;

struct lane_content {
    token_list sinks, window, buffer;
    std::vector<token_list> units; ///< in the order of their rows
    std::uint32_t tokens = 0;      ///< what the lane says it holds
    bool keys_fit = true;          ///< every key row is the one that belongs to its token
    bool frames_agree = true;      ///< complete pages in frames equal those on storage
    bool counts_agree = true;      ///< the lane's counters equal what was found

    [[nodiscard]] bool complete() const {
        token_list all = sinks;
        all.insert(all.end(), window.begin(), window.end());
        all.insert(all.end(), buffer.begin(), buffer.end());
        for (const token_list& u : units) all.insert(all.end(), u.begin(), u.end());
        std::sort(all.begin(), all.end());
        bool ok = all.size() == tokens;
        for (std::uint32_t t = 0; ok && t < tokens; ++t) ok = all[t] == t;
        return ok;
    }
    /// The units as a set of sets.
    [[nodiscard]] std::set<std::set<std::uint32_t>> partition() const {
        std::set<std::set<std::uint32_t>> sets;
        for (const token_list& u : units) sets.emplace(u.begin(), u.end());
        return sets;
    }
};

/// Number of a lane among all lanes of a cache.
[[nodiscard]] inline std::uint32_t lane_id(const kvtl::shape& s, std::uint32_t slot, std::uint32_t layer,
                                           std::uint32_t lane, bool layer_wide = false) {
    const std::uint32_t lanes = layer_wide ? 1 : s.kv_heads;
    return (slot * s.layers + layer) * lanes + lane;
}

/// The bytes of an entry's records.
[[nodiscard]] inline std::string text_of(const kvtl::entry_record& e) {
    std::string text(reinterpret_cast<const char*>(e.key), e.bytes.key);
    return text.append(reinterpret_cast<const char*>(e.value), e.bytes.value);
}

template <class Cache>
lane_content look_at(Cache& cache, io_log& log, const drift& data, std::uint32_t layer, std::uint32_t lane,
                     unsigned shard = 0, std::uint32_t slot = 0) {
    auto& store = kvtl::shard_access::of(cache, shard).store();
    const std::uint32_t id =
        lane_id(data.shape(), slot, layer, lane, Cache::types::unit_of == kvtl::granularity::layer);
    const auto l = store.at(id);
    auto& frames = store.pool_of(id);
    const auto& state = l.state();
    const auto& format = store.format();
    const auto& map = store.io().map();
    lane_content c;
    c.tokens = state.tokens;
    const auto token_of = [&](const float* k, const float* v) {
        const auto t = static_cast<std::uint32_t>(std::lround(v[0]));
        c.keys_fit = c.keys_fit && t < data.tokens() &&
                     std::memcmp(k, data.key(layer, t, lane), l.sizes().width * sizeof(float)) == 0;
        return t;
    };
    using types = typename Cache::types;
    std::map<std::string, std::uint32_t> by_record;
    if constexpr (!types::plain_records) {
        std::vector<std::byte> scratch(l.sizes().record.entry());
        for (std::uint32_t t = 0; t < data.tokens(); ++t)
            by_record[text_of(kvtl::record_of<types>(store.codec(id), l.sizes().record,
                                                     data.key(layer, t, lane), data.value(layer, t, lane),
                                                     {t, 0.0F}, scratch))] = t;
    }
    const auto token_in = [&](const std::byte* page, std::uint32_t row) {
        if constexpr (types::plain_records) {
            return token_of(reinterpret_cast<const float*>(format.key(page, row)),
                            reinterpret_cast<const float*>(format.value(page, row)));
        } else {
            const auto found = by_record.find(text_of(format.entry(page, row)));
            c.keys_fit = c.keys_fit && found != by_record.end();
            return found == by_record.end() ? kvtl::none : found->second;
        }
    };
    for (std::uint32_t i = 0; i < state.sinks; ++i) c.sinks.push_back(token_of(l.sink_k(i), l.sink_v(i)));
    for (std::uint32_t t = state.window_begin; t < state.tokens; ++t)
        c.window.push_back(token_of(l.window_k(t), l.window_v(t)));
    for (std::uint32_t i = 0; i < state.buffered; ++i)
        c.buffer.push_back(token_of(l.buffer_k(i), l.buffer_v(i)));

    const auto frame_of_page = [&](std::uint32_t page) {
        for (const std::uint32_t f : frames.unsettled())
            if (frames[f].page == page) return f;
        return kvtl::none;
    };
    std::vector<std::byte> copy;
    /// The page as it counts: the tail if there is one, else the frame that is being written, else storage.
    const auto page_bytes = [&](std::uint32_t page, std::uint32_t tail) -> std::byte* {
        if (tail != kvtl::none) return frames.bytes(tail);
        if (const std::uint32_t f = frame_of_page(page); f != kvtl::none) return frames.bytes(f);
        copy = log.read_back(map.offset(page), format.page_bytes);
        return copy.data();
    };
    std::vector<std::uint32_t> waiting(state.units, 0);
    for (std::uint32_t i = 0; i < state.buffered; ++i) ++waiting[l.buffer_unit(i)];
    for (std::uint32_t u = 0; u < state.units; ++u) {
        const auto& unit = l.unit(u);
        const auto& now = l.residency(u);
        token_list members;
        std::uint32_t f = now.frames(), left = unit.entries;
        for (std::uint32_t i = 0; i < store.pages_of(l, u); ++i) {
            const bool last = i + 1 == store.pages_of(l, u);
            const std::uint32_t page_number = store.layout().page(unit.where, i);
            std::byte* page = page_bytes(page_number, last ? store.tail_of(now, frames) : kvtl::none);
            const std::uint32_t rows = format.entries_in(page, left);
            left -= rows;
            for (std::uint32_t r = 0; r < rows; ++r) members.push_back(token_in(page, r));
            if (f != kvtl::none) {
                const std::byte* resident = frames.bytes(f);
                c.frames_agree = c.frames_agree && format.entries_in(resident, rows) == rows;
                for (std::uint32_t r = 0; c.frames_agree && r < rows; ++r)
                    c.frames_agree = text_of(format.entry(resident, r)) == text_of(format.entry(page, r));
                f = frames[f].next;
            } else {
                c.frames_agree = c.frames_agree && now.frames() == kvtl::none;
            }
        }
        c.frames_agree = c.frames_agree && f == kvtl::none;
        c.counts_agree = c.counts_agree && members.size() == unit.entries && waiting[u] == unit.buffered;
        c.units.push_back(std::move(members));
    }
    return c;
}

} // namespace kvtl_test
