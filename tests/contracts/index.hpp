// What every index promises: one that scores fills (queries, units) numbers, the same whatever else is in the
// table; one that does not says so. One with summaries scores what it absorbed, whatever lay there before and
// wherever the lane's memory moved to meanwhile, for each KV head of the lane.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/geometry.hpp>
#include <kvtl/slots/index.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

namespace kvtl_test {

using namespace kvtl;

namespace index_suite {

/// Units with random means in rows that are padded with NaN.
struct means {
    oracle::table<float> rows;
    std::vector<unit_record> unit;

    means(std::uint32_t units, std::uint32_t dim, std::uint32_t stride, std::uint64_t seed)
        : rows(units, dim, stride, seed), unit(units) {
        for (std::uint32_t u = 0; u < units; ++u) unit[u].entries = 1 + u % 7;
    }
    [[nodiscard]] units_view view() const {
        units_view u;
        u.unit = unit.data();
        u.count = static_cast<std::uint32_t>(rows.count);
        u.mean = unit_means(rows.view());
        u.dim = static_cast<std::uint32_t>(rows.dim);
        u.max_entries = 8;
        return u;
    }
};

/// The exact score of query `q` for unit `u` of a table, as the policy's own test defines it.
template <class P, class Exact> void scores(const typename P::config& config, const Exact& expected) {
    using state = typename P::state;
    const auto model = kvtl::geometry::from({1, 8, 2, 64});
    REQUIRE(model.ok());
    const state s(config, *model);
    std::uint64_t seed = 1;
    for (const std::uint32_t dim : {1U, 3U, 16U, 64U, 80U, 128U})
        for (const std::uint32_t units : {1U, 2U, 7U, 64U, 65U})
            for (const std::uint32_t queries : {1U, 2U, 3U, 4U, 5U, 8U, 12U}) {
                const means table(units, dim, dim + 5, ++seed);
                const auto q = oracle::normal_values<float>(std::size_t{queries} * dim, ++seed);
                const float untouched = -12345.0F;
                std::vector<float> out(std::size_t{queries} * units + 32, untouched);
                s.score(q.data(), queries, table.view(), std::span(out).first(std::size_t{queries} * units));
                oracle::largest_error worst;
                for (std::uint32_t i = 0; i < queries; ++i)
                    for (std::uint32_t u = 0; u < units; ++u) {
                        const float* query = q.data() + std::size_t{i} * dim;
                        const float* mean = table.rows.view().row(u);
                        worst.relative(static_cast<double>(out[std::size_t{i} * units + u]),
                                       expected(query, mean, dim),
                                       oracle::dot_of_magnitudes(query, mean, dim) + 1e-30);
                    }
                CHECK(worst.value() < 1e-6);
                CHECK(std::all_of(out.end() - 32, out.end(), [&](float x) { return x == untouched; }));
                std::vector<float> again(std::size_t{queries} * units);
                s.score(q.data(), queries, table.view(), again);
                CHECK(std::equal(again.begin(), again.end(), out.begin()));
            }
}

/// The extents of a lane's summaries, the number of its units, and how many entries they have.
struct extents {
    summary_shape shape;
    std::uint32_t units = 1;
    bool complete = true; ///< every unit has max_entries entries: no records
};

/// A lane with summaries of random keys (and values), kept as the manager keeps them.
template <class P> class lane {
  public:
    using state = typename P::state;

    lane(const state& s, const extents& e, std::uint64_t seed, double key_mean = 0.0)
        : state_(&s), extents_(e), keys_(std::size_t{e.units} * e.shape.max_entries * e.shape.width()),
          units_(e.units), lane_(s.lane_bytes(e.shape) / 64 + 1), tail_(tail_of(s, e.shape)),
          unit_((e.units * s.unit_bytes(e.shape) + tail_ + guard) / 64 + 1),
          running_lines_(running_of(s, e.shape) / 64 + 1), running_(e.units * running_lines_) {
        oracle::generator random(seed);
        std::vector<float> offset(e.shape.width());
        for (float& x : offset) x = static_cast<float>(key_mean * random.normal());
        for (std::size_t i = 0; i < keys_.size(); ++i)
            keys_[i] = offset[i % offset.size()] + static_cast<float>(random.normal());
        for (unit_record& u : units_)
            u.entries = e.complete ? e.shape.max_entries
                                   : static_cast<std::uint32_t>(1 + random.below(e.shape.max_entries));
        std::memset(unit_.data(), 0xA5, unit_.size() * 64);
        std::memset(running_.data(), 0xA5, running_.size() * 64);
    }

    [[nodiscard]] const summary_shape& shape() const { return extents_.shape; }
    [[nodiscard]] std::uint32_t units() const { return extents_.units; }
    [[nodiscard]] std::uint32_t entries(std::uint32_t u) const { return units_[u].entries; }
    /// With the running bytes of unit u.
    [[nodiscard]] summary_view view(std::uint32_t u = 0) {
        return {reinterpret_cast<std::byte*>(lane_.data()),
                reinterpret_cast<std::byte*>(unit_.data()),
                state_->unit_bytes(extents_.shape),
                extents_.shape,
                layer,
                first_head,
                reinterpret_cast<std::byte*>(&running_[u * running_lines_])};
    }
    /// (D): the key of KV head h of the lane.
    [[nodiscard]] const float* key(std::uint32_t u, std::uint32_t i, std::uint32_t h = 0) const {
        return &keys_[(std::size_t{u} * shape().max_entries + i) * shape().width() +
                      std::size_t{h} * shape().dim];
    }
    [[nodiscard]] rows_view<float> all_keys() const {
        return {keys_.data(), std::size_t{units()} * shape().max_entries, shape().width(), shape().width()};
    }
    /// `moving`: the lane's memory moves while the unit grows.
    void absorb(std::uint32_t u, bool moving = false) {
        state_->clear(view(u), u);
        for (std::uint32_t i = 0; i < entries(u); ++i) {
            if (i == entries(u) / 2 && i > 0) resume(u, i);
            if (moving && (u + i) % 3 == 0) move();
            state_->absorb(view(u), u, i, key(u, i), key(u, i));
        }
    }
    /// What some other unit might have had.
    void absorb_others(std::uint32_t u) {
        state_->clear(view(), u);
        for (std::uint32_t i = 0; i < shape().max_entries; ++i)
            state_->absorb(view(u), u, i, key(0, 0), key(0, 0));
    }
    /// The running bytes are lost half-way.
    void resume(std::uint32_t u, std::uint32_t n) {
        if constexpr (requires { state_->running_bytes(extents_.shape); }) {
            std::memset(&running_[u * running_lines_], 0x5A, running_lines_ * 64);
            state_->resume(view(u), u, n);
        }
    }
    void absorb_all(bool moving = false) {
        for (std::uint32_t u = 0; u < units(); ++u) absorb(u, moving);
    }
    /// All that is kept of the lane goes to other addresses; where it was there is nonsense.
    void move() {
        for (std::vector<line>* part : {&lane_, &unit_, &running_}) {
            std::vector<line> elsewhere = *part;
            std::memset(part->data(), 0x5A, part->size() * sizeof(line));
            *part = std::move(elsewhere);
        }
    }
    [[nodiscard]] bool guard_is_untouched() {
        const std::byte* end = view().unit + units() * view().stride + tail_;
        return std::all_of(end, end + guard, [](std::byte b) { return b == std::byte{0xA5}; });
    }
    [[nodiscard]] units_view table(std::uint32_t head) {
        units_view u;
        u.unit = extents_.complete ? nullptr : units_.data();
        u.count = units();
        u.dim = shape().dim;
        u.max_entries = shape().max_entries;
        u.summary = view();
        u.head = head;
        return u;
    }
    /// (queries, U) or (queries, U, max_entries); fails when anything behind them is written.
    [[nodiscard]] std::vector<float> score(const std::vector<float>& q, std::uint32_t queries,
                                           std::uint32_t head) {
        const float untouched = -12345.0F;
        const std::size_t n =
            std::size_t{queries} * units() * (kvtl::scores_entries<P> ? shape().max_entries : 1);
        std::vector<float> out(n + 32, untouched);
        if constexpr (requires { state_->scratch_floats(shape(), 1U); }) {
            const std::size_t size = state_->scratch_floats(shape(), units());
            std::vector<float> scratch(size + 32, untouched);
            state_->score(q.data(), queries, table(head), out, std::span(scratch).first(size));
            CHECK(std::all_of(scratch.end() - 32, scratch.end(), [&](float x) { return x == untouched; }));
        } else {
            state_->score(q.data(), queries, table(head), out);
        }
        CHECK(std::all_of(out.end() - 32, out.end(), [&](float x) { return x == untouched; }));
        out.resize(n);
        return out;
    }

    static constexpr std::uint32_t layer = 1;
    std::uint32_t first_head = 0; ///< of the model

  private:
    static constexpr std::size_t guard = 256;
    static std::size_t tail_of(const state& s, const summary_shape& shape) {
        if constexpr (requires { s.tail_bytes(shape); })
            return s.tail_bytes(shape);
        else
            return 0;
    }
    static std::size_t running_of(const state& s, const summary_shape& shape) {
        if constexpr (requires { s.running_bytes(shape); })
            return s.running_bytes(shape);
        else
            return 0;
    }
    struct alignas(64) line {
        std::byte bytes[64];
    };
    const state* state_;
    extents extents_;
    std::vector<float> keys_;
    std::vector<unit_record> units_;
    std::vector<line> lane_;
    std::size_t tail_;
    std::vector<line> unit_;
    std::size_t running_lines_; ///< of a unit
    std::vector<line> running_;
};

/// Extents that the suite goes through: one KV head and several, complete units and growing ones.
inline std::vector<extents> lanes_of(std::uint32_t dim) {
    return {{{1, 1, dim, 1}, 1, true},  {{1, 2, dim, 1}, 7, true},  {{1, 4, dim, 4}, 40, true},
            {{2, 3, dim, 4}, 65, true}, {{3, 2, dim, 9}, 20, true}, {{1, 4, dim, 6}, 33, false}};
}

} // namespace index_suite

/// `make(shape)` gives the state that works on lanes of this shape. `expected(lane, q, head, u, i)` is the
/// score in double precision from the lane's keys and summaries (i is 0 where units have one score); scores
/// may be off by `tolerance` times sum |q_c| |k_c| of the largest key. `bytes(shape)`: of a unit.
template <class P, class Make, class Expected, class Bytes>
void summarising_index_contract(const Make& make, double tolerance, const Bytes& bytes,
                                const Expected& expected) {
    static_assert(index_for<P> && kvtl::summarises<P>);
    CHECK(!std::string_view(P::name).empty());
    CHECK_FALSE(P::needs_means);
    constexpr bool per_entry = kvtl::scores_entries<P>;
    std::uint64_t seed = 100;
    for (const std::uint32_t dim : {8U, 12U, 64U, 80U})
        for (const index_suite::extents& e : index_suite::lanes_of(dim)) {
            const auto s = make(e.shape);
            index_suite::lane<P> x(s, e, ++seed, 0.5), moving(s, e, seed, 0.5);
            CHECK(s.unit_bytes(e.shape) == bytes(e.shape));
            if constexpr (kvtl::fits_first_keys<P>)
                for (index_suite::lane<P>* lane : {&x, &moving}) {
                    const std::size_t tokens = lane->all_keys().count;
                    std::vector<std::byte> memory(s.fit_scratch_bytes(e.shape, tokens) + 64);
                    void* p = memory.data();
                    std::size_t room = memory.size();
                    REQUIRE(std::align(64, memory.size() - 64, p, room) != nullptr);
                    s.fit(lane->view(), lane->all_keys(), {static_cast<std::byte*>(p), memory.size() - 64});
                }
            x.absorb_all();
            CHECK(x.guard_is_untouched());
            moving.absorb_all(true);
            moving.move();
            CHECK(moving.guard_is_untouched());
            for (std::uint32_t h = 0; h < e.shape.lane_heads; ++h) {
                const auto q = oracle::normal_values<float>(std::size_t{e.shape.group} * dim, ++seed);
                const auto got = x.score(q, e.shape.group, h);
                CHECK(x.score(q, e.shape.group, h) == got);
                CHECK(moving.score(q, e.shape.group, h) == got);
                oracle::largest_error worst;
                const float* value = got.data();
                bool absent_is_lowest = true;
                for (std::uint32_t g = 0; g < e.shape.group; ++g)
                    for (std::uint32_t u = 0; u < e.units; ++u) {
                        double scale = 1e-30;
                        for (std::uint32_t i = 0; i < x.entries(u); ++i)
                            scale =
                                std::max(scale, oracle::dot_of_magnitudes(&q[g * dim], x.key(u, i, h), dim));
                        for (std::uint32_t i = 0; i < (per_entry ? e.shape.max_entries : 1); ++i, ++value)
                            if (i < x.entries(u))
                                worst.relative(static_cast<double>(*value), expected(x, &q[g * dim], h, u, i),
                                               scale);
                            else
                                absent_is_lowest = absent_is_lowest && std::isinf(*value) && *value < 0;
                    }
                CHECK(worst.value() < tolerance);
                CHECK(absent_is_lowest);
            }
            // A unit that is cleared and built again scores the same, and so do its neighbours.
            const auto q = oracle::normal_values<float>(std::size_t{e.shape.group} * dim, ++seed);
            const std::uint32_t last = e.shape.lane_heads - 1, u = e.units / 2;
            const auto before = x.score(q, e.shape.group, last);
            x.absorb_others(u);
            x.absorb(u);
            CHECK(x.score(q, e.shape.group, last) == before);
        }
}

/// `expected(query, mean, dim)` is the score in double precision; unused where the index keeps no scores.
template <class P, class Exact> void index_contract(const typename P::config& config, const Exact& expected) {
    using state = typename P::state;
    static_assert(index_for<P>);
    CHECK(!std::string_view(P::name).empty());
    if constexpr (P::scores) {
        SUBCASE("scores") {
            index_suite::scores<P>(config, expected);
        }
    } else {
        static_assert(!index_scores<P>);
        CHECK_FALSE(P::needs_means); // nobody would read them
        CHECK(state::bytes_per_unit() == 0);
    }
}

} // namespace kvtl_test
