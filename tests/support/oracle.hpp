// What the kernels are measured against: the same sums in double precision, written as plainly as
// possible, and seeded data to feed them. Slow on purpose.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/element.hpp>
#include <kvtl/views.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace oracle {

/// A small counter-based generator (splitmix64): equal seeds give equal numbers everywhere.
class generator {
  public:
    explicit generator(std::uint64_t seed) : state_(seed) {}

    std::uint64_t bits() {
        state_ += 0x9E3779B97F4A7C15U;
        std::uint64_t z = state_;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
        return z ^ (z >> 31);
    }
    /// In [0, n).
    std::size_t below(std::size_t n) { return static_cast<std::size_t>(bits() % n); }
    /// In [0, 1).
    double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
    double uniform(double low, double high) { return low + (high - low) * uniform(); }
    /// Mean 0, variance 1 (Box and Muller), to the precision of a float: streams of millions are drawn.
    double normal() {
        const float radius = std::sqrt(-2.0F * std::log(static_cast<float>(1.0 - uniform())));
        return radius * std::cos(static_cast<float>(6.283185307179586 * uniform()));
    }

  private:
    std::uint64_t state_;
};

/// n normal numbers of standard deviation `scale`, rounded to E.
template <kvtl::element E = float>
std::vector<E> normal_values(std::size_t n, std::uint64_t seed, double scale = 1.0) {
    generator random(seed);
    std::vector<E> values(n);
    for (E& v : values) v = kvtl::from_float<E>(static_cast<float>(scale * random.normal()));
    return values;
}

/// Rows that own their memory. The padding between them is NaN, so that a kernel that reads it is seen.
template <kvtl::element E> struct table {
    std::vector<E> memory;
    std::size_t count, dim, stride;

    table(std::size_t rows, std::size_t columns, std::size_t row_stride, std::uint64_t seed,
          double scale = 1.0)
        : memory(rows * row_stride, kvtl::from_float<E>(std::numeric_limits<float>::quiet_NaN())),
          count(rows), dim(columns), stride(row_stride) {
        generator random(seed);
        for (std::size_t i = 0; i < rows; ++i)
            for (std::size_t d = 0; d < columns; ++d)
                memory[i * stride + d] = kvtl::from_float<E>(static_cast<float>(scale * random.normal()));
    }
    [[nodiscard]] kvtl::rows_view<E> view() const { return {memory.data(), count, dim, stride}; }
    [[nodiscard]] E* row(std::size_t i) { return memory.data() + i * stride; }
};

/// Keeps the largest error seen; a NaN counts as infinite, where std::max would pass it over.
class largest_error {
  public:
    void see(double error) {
        const double size = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::fabs(error);
        value_ = std::max(value_, size);
    }
    void relative(double got, double exact, double scale) { see((got - exact) / scale); }
    void relative(double got, double exact) { see(got == exact ? 0.0 : (got - exact) / exact); }
    [[nodiscard]] double value() const { return value_; }

  private:
    double value_ = 0;
};

/// A stored number as a double.
template <class E> double value(E x) {
    return static_cast<double>(kvtl::to_float(x));
}

template <class A, class B> double dot(const A* a, const B* b, std::size_t n) {
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += value(a[i]) * value(b[i]);
    return sum;
}

/// sum |a_i b_i|: what the rounding errors of a dot product are proportional to.
template <class A, class B> double dot_of_magnitudes(const A* a, const B* b, std::size_t n) {
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += std::fabs(value(a[i]) * value(b[i]));
    return sum;
}

template <class A, class B> double l2sq(const A* a, const B* b, std::size_t n) {
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) {
        const double difference = value(a[i]) - value(b[i]);
        sum += difference * difference;
    }
    return sum;
}

/// Softmax attention of one query over all rows: out[d] = sum_i softmax(scale q.k_i + log_weight_i) v_i[d].
/// `log_weight` may be null; -inf leaves a row out; with no row left the result is zero. cap > 0: logits are
/// cap tanh(logit / cap) before log_weight. `sink`: a logit without a value.
template <class EK, class EV>
std::vector<double> attend(const float* q, double scale, kvtl::rows_view<EK> k, kvtl::rows_view<EV> v,
                           const float* log_weight = nullptr, double cap = 0,
                           double sink = -std::numeric_limits<double>::infinity()) {
    std::vector<double> logit(k.count);
    double largest = sink;
    for (std::size_t i = 0; i < k.count; ++i) {
        logit[i] = scale * dot(q, k.row(i), k.dim);
        if (cap > 0) logit[i] = cap * std::tanh(logit[i] / cap);
        if (log_weight != nullptr) logit[i] += value(log_weight[i]);
        largest = std::max(largest, logit[i]);
    }
    std::vector<double> out(v.dim, 0.0);
    if (!(largest > -std::numeric_limits<double>::infinity())) return out;
    double sum = std::exp(sink - largest);
    for (std::size_t i = 0; i < k.count; ++i) {
        const double weight = std::exp(logit[i] - largest);
        sum += weight;
        for (std::size_t d = 0; d < v.dim; ++d) out[d] += weight * value(v.row(i)[d]);
    }
    for (double& x : out) x /= sum;
    return out;
}

/// The smallest index whose row is nearest to q, and its squared distance.
struct neighbour {
    std::size_t index = 0;
    double distance = std::numeric_limits<double>::infinity();
};
template <class A, class B> neighbour nearest(const A* q, kvtl::rows_view<B> rows) {
    neighbour best;
    for (std::size_t i = 0; i < rows.count; ++i) {
        const double distance = l2sq(q, rows.row(i), rows.dim);
        if (distance < best.distance) best = {i, distance};
    }
    return best;
}

/// Mean of rows and the sum of squared distances to it.
struct moments {
    std::vector<double> mean;
    double m2 = 0;
};
template <class E> moments moments_of(kvtl::rows_view<E> rows) {
    moments result{std::vector<double>(rows.dim, 0.0), 0.0};
    if (rows.count == 0) return result;
    for (std::size_t i = 0; i < rows.count; ++i)
        for (std::size_t d = 0; d < rows.dim; ++d) result.mean[d] += value(rows.row(i)[d]);
    for (double& x : result.mean) x /= static_cast<double>(rows.count);
    for (std::size_t i = 0; i < rows.count; ++i)
        for (std::size_t d = 0; d < rows.dim; ++d) {
            const double difference = value(rows.row(i)[d]) - result.mean[d];
            result.m2 += difference * difference;
        }
    return result;
}

/// Indices of the k largest scores, best first; ties to the lower index, NaN last.
inline std::vector<std::uint32_t> top_k(const float* score, std::size_t n, std::size_t k) {
    std::vector<std::uint32_t> order(n);
    for (std::size_t i = 0; i < n; ++i) order[i] = static_cast<std::uint32_t>(i);
    std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
        if (std::isnan(score[a]) || std::isnan(score[b]))
            return !std::isnan(score[a]) && std::isnan(score[b]);
        return score[a] > score[b];
    });
    order.resize(std::min(n, k));
    return order;
}

} // namespace oracle
