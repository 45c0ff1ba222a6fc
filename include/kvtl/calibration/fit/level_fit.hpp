// Fits the levels and ranges of non-uniform codes to a layer's keys before RoPE and to its values.
//
// What:   a key's channel has the range that leaves out the most extreme 1 % of the sample, half of them at either end; a value
//         has the range of the numbers of a head without the 1 % furthest from their mean. Of the numbers within, in half
//         ranges from the middle, levels are the means of the 4, 8 or 16 intervals with the least squared error. The error
//         counts as that of the keys and values themselves: weights are squares of half ranges. Such levels spread less than
//         the numbers, which brings the logits of keys of 2 bits closer to each other. Levels of 2 bits are therefore stretched
//         from their mean by sum x^2 / sum x level(x), about 1.11.
// Memory: the keys and values of at most 4,096 tokens of a layer, as floats: of more tokens every second, fourth, ...
// Cost:   finish(): T W log T for the ranges; 16 * 512^2 / 2 multiply-adds for the levels of each of keys and values.
// Source: KVQuant (Hooper et al. 2024, sections 3.1 to 3.4, and Q-Norm). Deviations: weights are squares of half ranges, where
//         the paper has Fisher information, which needs gradients; the intervals are the best ones of 512 bins, by dynamic
//         programming, where the paper has k-means; Q-Norm, for 2 bits too, stretches by the root of the factor here.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/level_table.hpp>
#include <kvtl/geometry.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvtl { inline namespace v0 {

/// Numbers in [-1, 1] and their weights, in bins.
class level_histogram {
  public:
    static constexpr std::size_t bins = 512;

    void add(double y, double weight) noexcept {
        const auto bin = std::min(bins - 1, static_cast<std::size_t>((y + 1) / 2 * bins));
        weight_[bin] += weight;
        moment_[bin] += weight * y;
        square_ += weight * y * y;
    }
    /// level_table::levels numbers. Without any weight they are evenly spaced.
    void append_levels(std::vector<float>& out) const {
        constexpr std::size_t most = level_table::count(level_table::most_bits);
        std::array<double, bins + 1> weight{}, moment{}; // of the bins before
        for (std::size_t i = 0; i < bins; ++i) {
            weight[i + 1] = weight[i] + weight_[i];
            moment[i + 1] = moment[i] + moment_[i];
        }
        // gain[k][i]: the most that k intervals of the first i bins take off the sum of squares; begin: where the last begins.
        std::vector<std::array<double, bins + 1>> gain(most + 1);
        std::vector<std::array<std::uint16_t, bins + 1>> begin(most + 1);
        for (std::size_t k = 1; k <= most; ++k)
            for (std::size_t i = k; i <= bins; ++i) {
                gain[k][i] = -1;
                for (std::size_t j = k - 1; j < (k == 1 ? 1 : i); ++j) {
                    const double w = weight[i] - weight[j], m = moment[i] - moment[j],
                                 sum = gain[k - 1][j] + (w > 0 ? m * m / w : 0.0);
                    if (sum > gain[k][i]) gain[k][i] = sum, begin[k][i] = static_cast<std::uint16_t>(j);
                }
            }
        const double all = weight[bins], mean = all > 0 ? moment[bins] / all : 0;
        for (std::uint32_t bits = level_table::least_bits; bits <= level_table::most_bits; ++bits) {
            const std::size_t n = level_table::count(bits), first = out.size();
            const double kept = gain[n][bins] - all * mean * mean, // of what numbers are off their mean
                stretch = bits == 2 && kept > 0 ? (square_ - all * mean * mean) / kept : 1;
            out.resize(first + n);
            for (std::size_t k = n, end = bins; k > 0; --k) {
                const std::size_t j = begin[k][end];
                const double w = weight[end] - weight[j];
                const double middle = static_cast<double>(j + end) / bins - 1;
                double level = mean + stretch * ((w > 0 ? (moment[end] - moment[j]) / w : middle) - mean);
                if (all <= 0) level = 2 * static_cast<double>(k - 1) / static_cast<double>(n - 1) - 1;
                out[first + k - 1] = static_cast<float>(std::clamp(level, -1.0, 1.0));
                end = j;
            }
            std::sort(out.begin() + static_cast<std::ptrdiff_t>(first),
                      out.end()); // equal ones may have rounded apart
        }
    }

  private:
    std::array<double, bins> weight_{}, moment_{};
    double square_ = 0;
};

class level_fit {
  public:
    static constexpr std::size_t most_tokens = 4096;
    static constexpr float outliers = 0.01F; ///< share of a channel or value that is out of range

    level_fit() = default;
    explicit level_fit(const shape& s) : heads_(s.kv_heads), dim_(s.head_dim) {}

    /// k_pre, v: (T, H, D).
    void add(std::span<const float> k_pre, std::span<const float> v) {
        const std::size_t width = heads_ * dim_;
        for (std::size_t at = 0; at < k_pre.size(); at += width, ++tokens_) {
            if (tokens_ % step_ != 0) continue;
            if (keys_.size() == most_tokens * width) {
                for (auto* rows : {&keys_, &values_}) thin_out(*rows, width);
                step_ *= 2;
                if (tokens_ % step_ != 0) continue;
            }
            keys_.insert(keys_.end(), &k_pre[at], &k_pre[at] + width);
            values_.insert(values_.end(), &v[at], &v[at] + width);
        }
    }
    /// Middles (H*D), half ranges (H*D) and levels.
    void append_keys(std::vector<float>& out) const {
        const std::size_t width = heads_ * dim_, n = keys_.size() / width, first = out.size();
        out.resize(first + 2 * width);
        level_histogram all;
        std::vector<float> column(n);
        const auto cut =
            static_cast<std::size_t>(0.5 * static_cast<double>(outliers * static_cast<float>(n)));
        for (std::size_t c = 0; c < width; ++c) {
            for (std::size_t t = 0; t < n; ++t) column[t] = keys_[t * width + c];
            std::sort(column.begin(), column.end());
            const float least = column[cut], most = column[n - 1 - cut];
            const float middle = 0.5F * least + 0.5F * most, half = 0.5F * most - 0.5F * least;
            out[first + c] = middle;
            out[first + width + c] = half;
            for (std::size_t t = cut; t < n - cut; ++t) add_number(all, column[t], middle, half);
        }
        all.append_levels(out);
    }
    /// Levels.
    void append_values(std::vector<float>& out) const {
        const std::uint32_t count = level_table::outliers(outliers, static_cast<std::uint32_t>(dim_));
        level_histogram all;
        std::vector<float> scratch(dim_);
        std::vector<std::uint32_t> place(dim_);
        for (std::size_t at = 0; at < values_.size(); at += dim_) {
            const float* x = &values_[at];
            const value_range r = range_without_outliers(x, dim_, count, scratch.data(), place.data());
            for (std::size_t d = 0, next = 0; d < dim_; ++d)
                if (next < count && place[next] == d)
                    ++next;
                else
                    add_number(all, x[d], r.middle, r.half);
        }
        all.append_levels(out);
    }

  private:
    /// Keeps every second row.
    static void thin_out(std::vector<float>& rows, std::size_t width) {
        const std::size_t n = rows.size() / width;
        for (std::size_t t = 1; t < (n + 1) / 2; ++t)
            std::copy_n(&rows[2 * t * width], width, &rows[t * width]);
        rows.resize((n + 1) / 2 * width);
    }
    static void add_number(level_histogram& to, float x, float middle, float half) noexcept {
        if (!(half > 0)) return;
        const double y = (static_cast<double>(x) - static_cast<double>(middle)) / static_cast<double>(half);
        to.add(std::clamp(y, -1.0, 1.0), static_cast<double>(half) * static_cast<double>(half));
    }

    std::size_t heads_ = 0, dim_ = 0;
    std::uint64_t tokens_ = 0, step_ = 1; ///< heard; between those that are kept
    std::vector<float> keys_, values_;    ///< (kept, H, D)
};

}} // namespace kvtl::v0
