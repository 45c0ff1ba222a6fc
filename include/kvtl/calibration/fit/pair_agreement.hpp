// Which frequency pairs of a head find the keys that the whole head ranks first: for each query that is asked, the share
// of its top tenth of keys that is in a pair's own top tenth.
//
// Shapes: scores (H, D/2), sums over the queries asked. Cost: T D per query.
// Source: FASA, whose contextual agreement this is.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/format.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace kvtl { inline namespace v0 {

class pair_agreement {
  public:
    pair_agreement() = default;
    pair_agreement(const shape& s, std::uint32_t distance)
        : shape_(s), distance_(distance), found_(std::size_t{s.kv_heads} * (s.head_dim / 2)) {}

    /// One query (D) of the group of KV head `head`, of the last of these keys (T, H, D).
    void ask(const float* q, std::size_t head, std::span<const float> keys) {
        const std::size_t row = std::size_t{shape_.kv_heads} * shape_.head_dim, tokens = keys.size() / row,
                          pairs = shape_.head_dim / 2;
        std::vector<std::vector<double>> score(pairs + 1, std::vector<double>(tokens, 0.0));
        for (std::size_t i = 0; i < tokens; ++i) {
            const float* k = &keys[i * row + head * shape_.head_dim];
            for (std::size_t p = 0; p < pairs; ++p) {
                const auto [a, b] = pair_elements(static_cast<std::uint32_t>(p), distance_);
                score[p][i] = static_cast<double>(q[a]) * static_cast<double>(k[a]) +
                              static_cast<double>(q[b]) * static_cast<double>(k[b]);
                score[pairs][i] += score[p][i];
            }
        }
        const auto count = static_cast<std::size_t>(std::ceil(top_share * static_cast<double>(tokens)));
        const std::vector<bool> wanted = top(score[pairs], count);
        for (std::size_t p = 0; p < pairs; ++p) {
            const std::vector<bool> found = top(score[p], count);
            double both = 0;
            for (std::size_t i = 0; i < tokens; ++i) both += wanted[i] && found[i] ? 1 : 0;
            found_[head * pairs + p] += both / static_cast<double>(count);
        }
    }

    /// Sums of shares (D/2) of a head.
    [[nodiscard]] std::span<const double> of(std::size_t head) const noexcept {
        return std::span(found_).subspan(head * (shape_.head_dim / 2), shape_.head_dim / 2);
    }
    /// Pairs of a head, the most telling first, ties to the lower number.
    [[nodiscard]] std::vector<std::uint32_t> ranked(std::size_t head) const {
        std::vector<std::uint32_t> order(shape_.head_dim / 2);
        std::iota(order.begin(), order.end(), 0U);
        const auto sums = of(head);
        std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return sums[a] > sums[b]; });
        return order;
    }

  private:
    static constexpr double top_share = 0.1; ///< of the keys that a query sees

    /// The `count` largest, ties to the lower number, as flags.
    [[nodiscard]] static std::vector<bool> top(const std::vector<double>& scores, std::size_t count) {
        std::vector<std::size_t> order(scores.size());
        std::iota(order.begin(), order.end(), std::size_t{0});
        const auto better = [&](std::size_t a, std::size_t b) {
            return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
        };
        std::nth_element(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count - 1), order.end(),
                         better);
        std::vector<bool> in(scores.size(), false);
        for (std::size_t i = 0; i < count; ++i) in[order[i]] = true;
        return in;
    }

    kvtl::shape shape_{};
    std::uint32_t distance_ = 1;
    std::vector<double> found_;
};

}} // namespace kvtl::v0
