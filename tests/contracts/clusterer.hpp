// What every clusterer promises: how many units there can be, that a prompt's groups cover it, and that a new
// entry is sent somewhere it can go. A small model carries the answers out, as the manager does.
//
//   clusterer_contract<variance_split>({.tokens_per_cluster = 8, .min_entries_to_cluster = 64});
//
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/geometry.hpp>
#include <kvtl/policies/support/halve.hpp>
#include <kvtl/slots/clusterer.hpp>

#include "contracts/replacement.hpp" // guarded_bytes
#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <utility>
#include <vector>

namespace kvtl_test {

using namespace kvtl;

/// One lane of a clusterer under test: every unit with its keys, kept in plain vectors.
template <class P> class lane_model {
  public:
    using state = typename P::state;
    using row = std::vector<float>;

    lane_model(const typename P::config& config, std::uint32_t dim)
        : dim_(dim), config_(config), state_(config, model_shape()), lane_(make_lane()) {}

    [[nodiscard]] const state& clusterer() const { return state_; }
    [[nodiscard]] typename P::lane& lane() {
        return *std::launder(reinterpret_cast<typename P::lane*>(lane_.memory().data()));
    }
    /// The lane goes on at another address, with a clusterer that has seen nothing of it yet.
    void move() {
        lane_ = moved(std::move(lane_));
        state_ = state(config_, model_shape());
    }
    [[nodiscard]] std::uint32_t count() const { return static_cast<std::uint32_t>(record_.size()); }
    [[nodiscard]] unit_record& record(std::uint32_t u) { return record_[u]; }
    [[nodiscard]] const row& mean(std::uint32_t u) const { return mean_[u]; }
    [[nodiscard]] const std::vector<row>& keys(std::uint32_t u) const { return keys_[u]; }
    [[nodiscard]] std::uint32_t tokens() const { return tokens_; }

    /// Means in one table, rows padded with NaN. Valid until the next call.
    [[nodiscard]] units_view view(bool may_add = true) {
        const std::uint32_t stride = dim_ + 3;
        table_.assign(std::size_t{count()} * stride + 1, std::numeric_limits<float>::quiet_NaN());
        for (std::uint32_t u = 0; u < count(); ++u)
            std::copy(mean_[u].begin(), mean_[u].end(), table_.data() + std::size_t{u} * stride);
        const unit_means means(rows_view<float>{table_.data(), count(), dim_, stride});
        return {record_.data(), count(), P::needs_means ? means : unit_means{}, dim_, state_.max_entries(),
                tokens_,        may_add};
    }

    void open(const row& key, std::uint32_t like) {
        record_.emplace_back();
        keys_.emplace_back();
        mean_.push_back(key);
        const row start = like != none ? mean_[like] : key;
        append(count() - 1, key);
        if (like != none) mean_.back() = start;
    }
    /// Mean and m2 are recomputed from scratch where the policy lets them follow.
    void append(std::uint32_t u, const row& key) {
        keys_[u].push_back(key);
        record_[u].entries = static_cast<std::uint32_t>(keys_[u].size());
        if (P::updates_means) refresh(u);
    }
    /// Splits a unit with a new key; the larger side stays.
    void split(std::uint32_t u, const row& key) {
        keys_[u].push_back(key);
        std::vector<float> flat;
        for (const row& k : keys_[u]) flat.insert(flat.end(), k.begin(), k.end());
        const std::size_t n = keys_[u].size();
        std::vector<std::uint8_t> side(n);
        guarded_bytes scratch(halve_scratch_bytes(n, dim_));
        halve(rows_view<float>{flat.data(), n, dim_, dim_}, state_.max_entries(), scratch.memory(),
              side.data());
        std::vector<row> part[2];
        for (std::size_t i = 0; i < n; ++i) part[side[i]].push_back(keys_[u][i]);
        if (part[1].size() > part[0].size()) std::swap(part[0], part[1]);
        keys_[u] = part[0];
        keys_.push_back(part[1]);
        record_.emplace_back();
        mean_.emplace_back(dim_);
        for (const std::uint32_t v : {u, count() - 1}) {
            record_[v].entries = static_cast<std::uint32_t>(keys_[v].size());
            refresh(v);
        }
    }
    void found(const std::vector<row>& rows, const std::vector<std::uint32_t>& label, std::uint32_t units) {
        record_.assign(units, {});
        keys_.assign(units, {});
        mean_.assign(units, row(dim_));
        for (std::size_t i = 0; i < rows.size(); ++i) keys_[label[i]].push_back(rows[i]);
        for (std::uint32_t u = 0; u < units; ++u) {
            record_[u].entries = static_cast<std::uint32_t>(keys_[u].size());
            refresh(u);
        }
        tokens_ = static_cast<std::uint32_t>(rows.size());
    }
    void count_token() { ++tokens_; }

    /// assign(), with everything it may not touch watched.
    [[nodiscard]] assignment assign(const row& key, bool may_add = true) {
        const units_view u = view(may_add);
        const auto table_before = table_;
        const auto records_before = record_;
        const row key_before = key;
        std::vector<float> distance(count() + 16, -1.0F);
        const assignment a = state_.assign(lane(), key.data(), u, std::span(distance).first(count()));
        CHECK(std::memcmp(table_.data(), table_before.data(), table_.size() * sizeof(float)) == 0);
        if (count() > 0)
            CHECK(std::memcmp(record_.data(), records_before.data(), record_.size() * sizeof(unit_record)) ==
                  0);
        CHECK(key == key_before);
        CHECK(std::all_of(distance.begin() + count(), distance.end(), [](float d) { return d == -1.0F; }));
        return a;
    }

  private:
    static guarded_bytes make_lane() {
        guarded_bytes memory(sizeof(typename P::lane));
        ::new (static_cast<void*>(memory.memory().data())) typename P::lane{};
        return memory;
    }
    static kvtl::geometry model_shape() {
        auto g = kvtl::geometry::from({1, 4, 2, 8});
        REQUIRE(g.ok());
        return *g;
    }
    void refresh(std::uint32_t u) {
        std::vector<float> flat;
        for (const row& k : keys_[u]) flat.insert(flat.end(), k.begin(), k.end());
        const auto exact = oracle::moments_of(rows_view<float>{flat.data(), keys_[u].size(), dim_, dim_});
        for (std::uint32_t d = 0; d < dim_; ++d) mean_[u][d] = static_cast<float>(exact.mean[d]);
        record_[u].m2 = static_cast<float>(exact.m2);
    }

    std::uint32_t dim_;
    typename P::config config_;
    state state_;
    guarded_bytes lane_;
    std::vector<unit_record> record_;
    std::vector<row> mean_;
    std::vector<std::vector<row>> keys_;
    std::vector<float> table_;
    std::uint32_t tokens_ = 0;
};

namespace clusterer_suite {

using row = std::vector<float>;

enum class keys { normal, topics, equal };

/// A drifting mixture: after `drift` keys per topic the next one begins.
inline std::vector<row> make_keys(keys kind, std::size_t n, std::uint32_t dim, std::uint64_t seed) {
    oracle::generator random(seed);
    std::vector<row> topics(7, row(dim)), all(n, row(dim));
    for (row& t : topics)
        for (float& x : t) x = static_cast<float>(4 * random.normal());
    for (std::size_t i = 0; i < n; ++i) {
        const row& topic = topics[(i / 50 + random.below(3)) % topics.size()];
        for (std::uint32_t d = 0; d < dim; ++d)
            all[i][d] = kind == keys::equal    ? 1.5F
                        : kind == keys::normal ? static_cast<float>(random.normal())
                                               : topic[d] + static_cast<float>(random.normal());
    }
    return all;
}

template <class P> void sizes(const typename P::config& config) {
    const lane_model<P> lane(config, 8);
    const auto& s = lane.clusterer();
    CHECK(std::remove_cvref_t<decltype(s)>::check(config).ok());
    REQUIRE(s.max_entries() >= 1);
    CHECK(s.sequential_entries() >= 1);
    CHECK(s.sequential_entries() <= s.max_entries());
    CHECK(s.pending_entries() >= 1);
    std::uint32_t last = 0;
    for (std::uint32_t tokens = 0; tokens < 5000; tokens += 37) {
        const std::uint32_t units = s.max_units(tokens);
        CHECK(units >= last);
        last = units;
        CHECK(std::uint64_t{units} * s.max_entries() >= tokens);
        // Until a lane is clustered its units are sequential, and they are in the same table.
        if constexpr (P::clusters_prompt)
            if (s.ready(tokens)) continue;
        CHECK(units >= (tokens + s.sequential_entries() - 1) / s.sequential_entries());
    }
}

/// Labels of one prompt, checked. Rows are padded with NaN, the scratch has a guard.
template <class P, element E>
std::vector<std::uint32_t> group(const lane_model<P>& lane, const std::vector<row>& rows,
                                 std::uint32_t& units) {
    const auto n = static_cast<std::uint32_t>(rows.size()), dim = static_cast<std::uint32_t>(rows[0].size());
    oracle::table<E> table(n, dim, dim + 4, 1);
    for (std::uint32_t i = 0; i < n; ++i)
        for (std::uint32_t d = 0; d < dim; ++d) table.row(i)[d] = from_float<E>(rows[i][d]);
    const auto& s = lane.clusterer();
    guarded_bytes scratch(s.scratch_bytes(n, dim));
    std::vector<std::uint32_t> label(n + 8, none);
    units = s.group(table.view(), scratch.memory(), label.data());
    CHECK(scratch.intact());
    CHECK(std::all_of(label.begin() + n, label.end(), [](std::uint32_t l) { return l == none; }));
    label.resize(n);
    return label;
}

template <class P, element E> void groups_cover_the_prompt(const typename P::config& config) {
    if constexpr (P::clusters_prompt)
        for (const keys kind : {keys::normal, keys::topics, keys::equal})
            for (const std::uint32_t n : {1U, 7U, 64U, 65U, 200U, 777U})
                for (const std::uint32_t dim : {1U, 16U, 33U}) {
                    CAPTURE(static_cast<int>(kind));
                    CAPTURE(n);
                    CAPTURE(dim);
                    const lane_model<P> lane(config, dim);
                    const auto rows = make_keys(kind, n, dim, n + dim);
                    std::uint32_t units = 0, again = 0;
                    const auto label = group<P, E>(lane, rows, units);
                    REQUIRE(units >= 1);
                    CHECK(units <= lane.clusterer().max_units(n));
                    std::vector<std::uint32_t> entries(units, 0);
                    for (const std::uint32_t l : label) {
                        REQUIRE(l < units);
                        ++entries[l];
                    }
                    CHECK(*std::min_element(entries.begin(), entries.end()) >= 1);
                    CHECK(*std::max_element(entries.begin(), entries.end()) <=
                          lane.clusterer().max_entries());
                    CHECK(group<P, E>(lane, rows, again) == label);
                    CHECK(again == units);
                }
}

/// A lane that has been clustered on a prompt (or is empty, for clusterers that do not found).
template <class P>
lane_model<P> founded_lane(const typename P::config& config, const std::vector<row>& rows) {
    lane_model<P> lane(config, static_cast<std::uint32_t>(rows[0].size()));
    if constexpr (P::clusters_prompt) {
        std::uint32_t units = 0;
        const auto label = group<P, float>(lane, rows, units);
        lane.found(rows, label, units);
        lane.clusterer().clustered(lane.lane(), lane.view());
    }
    return lane;
}

/// Decodes `n` keys after a prompt, obeying every answer; returns false where an answer cannot be obeyed. A lane that moves
/// now and then gets the answers of one that does not.
template <class P> void decode(const typename P::config& config, keys kind, std::uint64_t seed) {
    constexpr std::uint32_t prompt = 200, n = 700;
    const auto rows = make_keys(kind, prompt + n, 12, seed);
    auto lane = founded_lane<P>(config, {rows.begin(), rows.begin() + prompt}), moving = lane;
    oracle::generator random(seed);
    const std::uint32_t most = lane.clusterer().max_units(prompt + n), full = lane.clusterer().max_entries();
    std::uint32_t placed = 0, start = 0;
    for (std::uint32_t u = 0; u < lane.count(); ++u) start += lane.record(u).entries;
    for (std::uint32_t i = prompt; i < prompt + n; ++i) {
        lane.count_token();
        const bool may_add = lane.count() < most;
        const assignment a = lane.assign(rows[i], may_add);
        if (random.below(8) == 0) moving.move();
        moving.count_token();
        const assignment same = moving.assign(rows[i], may_add);
        REQUIRE(same.how == a.how);
        REQUIRE(same.unit == a.unit);
        if (a.how == growth::open) {
            CHECK((a.unit == none || a.unit < lane.count()));
            REQUIRE(may_add);
            lane.open(rows[i], a.unit), moving.open(rows[i], a.unit);
        } else {
            REQUIRE(a.unit < lane.count());
            if (a.how == growth::split) {
                REQUIRE(P::adapts);
                REQUIRE(may_add);
                lane.split(a.unit, rows[i]), moving.split(a.unit, rows[i]);
            } else {
                REQUIRE(lane.record(a.unit).entries < full);
                lane.append(a.unit, rows[i]), moving.append(a.unit, rows[i]);
            }
        }
        ++placed;
        REQUIRE(lane.count() <= most);
    }
    std::uint32_t entries = 0;
    for (std::uint32_t u = 0; u < lane.count(); ++u) {
        entries += lane.record(u).entries;
        CHECK(lane.record(u).entries >= 1);
        CHECK(lane.record(u).entries <= full);
    }
    CHECK(entries == start + placed);
}

/// With the table or the storage full, the answer is a unit that has room; with none, the entry is left
/// waiting.
template <class P> void nothing_may_be_added(const typename P::config& config, std::uint64_t seed) {
    const auto rows = make_keys(keys::topics, 200, 12, seed);
    auto lane = founded_lane<P>(config, rows);
    const std::uint32_t full = lane.clusterer().max_entries();
    if (!P::clusters_prompt)
        for (std::uint32_t i = 0; i < 20; ++i) {
            const assignment a = lane.assign(rows[i]);
            a.how == growth::open ? lane.open(rows[i], a.unit) : lane.append(a.unit, rows[i]);
        }
    for (const row& key : make_keys(keys::normal, 2000, 12, seed + 1)) {
        const assignment a = lane.assign(key, false);
        CHECK(a.how != growth::split);
        if (a.how == growth::open) {
            CHECK((a.unit == none || a.unit < lane.count()));
            continue;
        }
        REQUIRE(a.unit < lane.count());
        REQUIRE(lane.record(a.unit).entries < full);
        lane.append(a.unit, key);
    }
    std::uint32_t left = 0;
    for (std::uint32_t u = 0; u < lane.count(); ++u) left += full - lane.record(u).entries;
    CHECK(left == 0); // every place was used before an entry had to wait
    CHECK(lane.assign(rows[0], false).how == growth::open);
}

} // namespace clusterer_suite

template <class P> void clusterer_contract(const typename P::config& config) {
    static_assert(clusterer_for<P>);
    using clusterer_suite::keys;
    SUBCASE("sizes") {
        clusterer_suite::sizes<P>(config);
    }
    SUBCASE("groups cover the prompt") {
        clusterer_suite::groups_cover_the_prompt<P, float>(config);
        clusterer_suite::groups_cover_the_prompt<P, f16>(config);
    }
    SUBCASE("every entry finds a unit") {
        for (const keys kind : {keys::normal, keys::topics, keys::equal})
            for (std::uint64_t seed = 1; seed <= 3; ++seed) {
                CAPTURE(static_cast<int>(kind));
                clusterer_suite::decode<P>(config, kind, seed);
            }
    }
    SUBCASE("nothing may be added") {
        for (std::uint64_t seed = 1; seed <= 3; ++seed)
            clusterer_suite::nothing_may_be_added<P>(config, seed);
    }
    SUBCASE("an empty lane opens its first unit") {
        lane_model<P> lane(config, 12);
        CHECK(lane.assign(std::vector<float>(12, 1.0F)).how == growth::open);
    }
}

} // namespace kvtl_test
