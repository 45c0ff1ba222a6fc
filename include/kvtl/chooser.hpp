// Which units a query attends: index scores, reduced over the queries that share a lane, then the selector's
// choice. SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/lane.hpp>
#include <kvtl/policies/select_topk.hpp>
#include <kvtl/simd/axpy.hpp>

#include <algorithm>

namespace kvtl::inline v0 {

/// Extents that the shard's classes share.
struct model_extents {
    std::uint32_t layers = 0;
    std::uint32_t kv_heads = 0;
    std::uint32_t group = 0;      ///< G, query heads per KV head
    std::uint32_t dim = 0;        ///< D
    std::uint32_t lane_heads = 1; ///< KV heads per lane: 1, or all of them

    [[nodiscard]] std::uint32_t lanes() const noexcept { return kv_heads / lane_heads; }
    [[nodiscard]] std::uint32_t lane_queries() const noexcept { return lane_heads * group; }
    [[nodiscard]] std::uint32_t width() const noexcept { return lane_heads * dim; }
    [[nodiscard]] std::uint32_t query_heads() const noexcept { return kv_heads * group; }
    /// First float of a lane's queries in one token's q (HQ, D), and of its keys in one token's k (H, D).
    [[nodiscard]] std::size_t query_offset(std::uint32_t lane) const noexcept {
        return std::size_t{lane} * lane_queries() * dim;
    }
    [[nodiscard]] std::size_t key_offset(std::uint32_t lane) const noexcept {
        return std::size_t{lane} * width();
    }
};

template <class Types> class chooser {
  public:
    using lane = typename Types::lane;
    using selector = typename Types::selector;

    struct scratch {
        std::span<float> query; ///< (width)
        std::span<float>
            score; ///< (rows, U): one row, or one per query of a KV head and one for the sum over heads
        std::span<std::uint32_t> order;
        std::span<std::uint64_t> keys;

        static scratch take(carver& c, const model_extents& m, std::uint32_t max_units) noexcept {
            scratch x;
            if constexpr (selector::uses_scores) {
                x.query = c.take<float>(m.width());
                x.score = c.take<float>((linear ? 1 : std::size_t{m.group} + 1) * max_units);
                x.order = c.take<std::uint32_t>(max_units);
                x.keys = c.take<std::uint64_t>(max_units);
            }
            return x;
        }
    };

    chooser() = default;
    chooser(const model_extents& m, const typename Types::index_state& index,
            const typename Types::selector_state& select, const scratch& x) noexcept
        : model_(m), index_(&index), selector_(&select), x_(x) {}

    /// Chooses among the units of a lane for the queries `q` (lane queries, D) of one token; at most `budget`
    /// entries. Writes them to `out` (room for all units), best first, and returns their number.
    [[nodiscard]] std::uint32_t choose(const float* q, const units_view& u, std::uint32_t budget,
                                       std::span<chosen_unit> out) noexcept {
        if constexpr (selector::takes_everything) {
            static_cast<void>(q), static_cast<void>(budget);
            for (std::uint32_t i = 0; i < u.count; ++i) out[i] = {i, ~std::uint64_t{0}};
            return u.count;
        } else {
            if (u.count == 0 || budget == 0) return 0;
            if constexpr (linear) {
                mean_queries(q);
                index_->score(x_.query.data(), 1, u, x_.score);
            } else {
                score_by_head(q, u);
            }
            return selector_->choose({x_.score.first(u.count), {u.unit, u.count}, budget, x_.order, x_.keys},
                                     out);
        }
    }

  private:
    static constexpr bool linear = [] {
        if constexpr (selector::uses_scores)
            return selector::reduction::linear;
        else
            return true;
    }();

    /// The mean over each KV head's queries, heads side by side: one dot product with a unit's mean gives the
    /// sum over heads of the mean scores.
    void mean_queries(const float* q) noexcept {
        for (std::uint32_t h = 0; h < model_.lane_heads; ++h) {
            float* out = &x_.query[std::size_t{h} * model_.dim];
            const float* first = q + std::size_t{h} * model_.group * model_.dim;
            std::copy_n(first, model_.dim, out);
            for (std::uint32_t g = 1; g < model_.group; ++g)
                simd::add(first + std::size_t{g} * model_.dim, out, model_.dim);
            simd::scale(1.0F / static_cast<float>(model_.group), out, model_.dim);
        }
    }

    /// Every query by itself, reduced within a KV head, then summed over the lane's heads.
    void score_by_head(const float* q, const units_view& u) noexcept {
        if constexpr (!linear) {
            const std::span<float> total = x_.score.first(u.count), rows = x_.score.subspan(u.count);
            for (std::uint32_t h = 0; h < model_.lane_heads; ++h) {
                units_view head = u;
                head.mean += std::size_t{h} * model_.dim;
                head.dim = model_.dim;
                index_->score(q + std::size_t{h} * model_.group * model_.dim, model_.group, head, rows);
                selector::reduction::apply(rows, model_.group, u.count);
                if (h == 0)
                    std::copy_n(rows.data(), u.count, total.data());
                else
                    simd::add(rows.data(), total.data(), u.count);
            }
        }
    }

    model_extents model_{};
    const typename Types::index_state* index_ = nullptr;
    const typename Types::selector_state* selector_ = nullptr;
    scratch x_{};
};

} // namespace kvtl::inline v0
