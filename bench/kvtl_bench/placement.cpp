// SPDX-License-Identifier: MIT
#include "placement.hpp"

#include <kvtl/core/store/transfers.hpp>

#include <algorithm>
#include <numeric>

namespace bench {

void placed_lane::join(std::span<const entry_event> events, packed_moves& moves) {
    const std::vector<build> builds = builds_of(events);
    if (clustered_anew(builds)) return regroup(builds);
    for (std::size_t i = 0; i < builds.size(); ++i) {
        const build& b = builds[i];
        if (b.unit >= unit_.size()) unit_.resize(b.unit + 1);
        const std::size_t had = unit_[b.unit].size();
        if (had == 0) {
            order_.push_back(b.unit);
            moves.joined += b.entries.size();
            set(b.unit, b.entries);
        } else if (b.row > 0) {
            append(b.unit, b.entries, moves);
        } else if (i + 1 < builds.size() && begins_unit(builds[i + 1])) {
            split(b, builds[i + 1], moves);
            ++i;
        } else { // its sums begin anew, for what comes behind
            append(b.unit, std::span(b.entries).subspan(std::min(had, b.entries.size())), moves);
        }
    }
}

std::vector<placed_lane::build> placed_lane::builds_of(std::span<const entry_event> events) {
    std::vector<build> all;
    for (const entry_event& e : events) {
        if (all.empty() || all.back().unit != e.unit || e.row == 0) all.push_back({e.unit, e.row, {}});
        all.back().entries.push_back(e.token);
        newest_ = std::max(newest_, e.token);
    }
    return all;
}

/// Units that were there exchange entries then, which a split does not.
bool placed_lane::clustered_anew(std::span<const build> builds) const {
    for (const build& b : builds)
        for (const std::uint32_t t : begins_unit(b) ? token_list{} : b.entries)
            if (const auto at = unit_of_.find(t); at != unit_of_.end() && at->second != b.unit) return true;
    return false;
}

void placed_lane::regroup(std::span<const build> builds) {
    std::uint32_t units = 0;
    for (const build& b : builds) units = std::max(units, b.unit + 1);
    unit_.assign(units, {});
    order_.resize(units);
    std::iota(order_.begin(), order_.end(), 0U);
    for (const build& b : builds) {
        token_list all = unit_[b.unit];
        all.resize(b.row);
        all.insert(all.end(), b.entries.begin(), b.entries.end());
        set(b.unit, all);
    }
}

void placed_lane::append(std::uint32_t unit, std::span<const std::uint32_t> entries, packed_moves& moves) {
    moves.joined += entries.size();
    moves.behind += entries.size() * entries_behind(unit);
    token_list all = unit_[unit];
    all.insert(all.end(), entries.begin(), entries.end());
    set(unit, all);
}

/// Room is made once for all entries that come with the split.
void placed_lane::split(const build& stays, const build& leaves, packed_moves& moves) {
    if (leaves.unit >= unit_.size()) unit_.resize(leaves.unit + 1);
    std::unordered_map<std::uint32_t, std::size_t> row; // of those that were there
    for (const std::uint32_t t : unit_[stays.unit]) row.emplace(t, row.size());
    std::size_t at = 0;
    const auto count = [&](const token_list& entries, std::uint64_t& moved) {
        for (const std::uint32_t t : entries) {
            if (const auto had = row.find(t); had != row.end()) moved += had->second != at ? 1 : 0;
            ++at;
        }
    };
    count(stays.entries, moves.staying);
    count(leaves.entries, moves.leaving);
    moves.joined += at - row.size();
    if (at > row.size()) moves.behind += entries_behind(stays.unit);
    order_.insert(std::find(order_.begin(), order_.end(), stays.unit) + 1, leaves.unit);
    set(stays.unit, stays.entries);
    set(leaves.unit, leaves.entries);
}

void placed_lane::set(std::uint32_t unit, const token_list& entries) {
    unit_[unit] = entries;
    for (const std::uint32_t t : entries) unit_of_[t] = unit;
}

std::uint64_t placed_lane::entries_behind(std::uint32_t unit) const {
    std::uint64_t n = 0;
    for (auto u = std::find(order_.begin(), order_.end(), unit) + 1; u != order_.end(); ++u)
        n += unit_[*u].size();
    return n;
}

void placed_lane::read(std::span<const std::uint32_t> units, std::uint32_t page_rows, std::uint32_t gap_pages,
                       token_order_reads& out) const {
    std::vector<std::uint32_t> pages;
    const std::uint32_t unfinished = (newest_ + 1) / page_rows;
    for (const std::uint32_t u : units) {
        if (u >= unit_.size()) continue;
        ++out.units, out.entries += unit_[u].size();
        for (const std::uint32_t t : unit_[u])
            if (t / page_rows != unfinished) pages.push_back(t / page_rows);
    }
    std::sort(pages.begin(), pages.end());
    pages.erase(std::unique(pages.begin(), pages.end()), pages.end());
    out.pages += pages.size();
    for (std::size_t i = 0, first = 0; i < pages.size(); ++i) {
        const bool ends = i + 1 == pages.size() || pages[i + 1] - pages[i] > gap_pages + 1 ||
                          pages[i + 1] - pages[first] >= kvtl::io_batch::max_request_pages;
        if (!ends) continue;
        ++out.reads, out.read_pages += pages[i] - pages[first] + 1;
        first = i + 1;
    }
}

token_list placed_lane::packed() const {
    token_list all;
    for (const std::uint32_t u : order_) all.insert(all.end(), unit_[u].begin(), unit_[u].end());
    return all;
}

namespace {

/// do(lane, events) for every lane of which there are some.
template <class Do> void by_lane(std::span<const entry_event> events, Do&& visit) {
    std::map<std::uint32_t, std::vector<entry_event>> of;
    for (const entry_event& e : events) of[e.lane].push_back(e);
    for (const auto& [lane, some] : of) visit(lane, some);
}

} // namespace

placement_replay replay_placement(std::span<const decision_event> decisions, const entry_log& entries,
                                  std::uint32_t page_rows, std::uint32_t gap_pages) {
    placement_replay out;
    std::map<std::uint32_t, placed_lane> lanes;
    packed_moves of_prompt;
    by_lane(entries.prompt(),
            [&](std::uint32_t lane, const auto& some) { lanes[lane].join(some, of_prompt); });

    std::map<std::uint32_t, token_list> missing; // units, by lane
    std::size_t call = 0;
    const auto end_call = [&] {
        for (const auto& [lane, units] : missing)
            lanes[lane].read(units, page_rows, gap_pages, out.in_token_order);
        missing.clear();
        by_lane(entries.call(call++),
                [&](std::uint32_t lane, const auto& some) { lanes[lane].join(some, out.packed); });
    };
    bool in_call = false;
    for (const decision_event& e : decisions) {
        if (e.what == decision::call) {
            if (in_call) end_call();
            in_call = true;
        }
        if (in_call && e.what == decision::miss) missing[e.lane].push_back(e.unit);
    }
    if (in_call) end_call();
    return out;
}

} // namespace bench
