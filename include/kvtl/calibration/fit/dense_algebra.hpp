// The linear algebra that fits need, in double precision: sums of outer products, their leading directions, and least
// squares. The only header that includes Eigen.
//
// Shapes: symmetric sums are (n, n), row-major, and only their upper half counts.
// Cost:   add_outer_products count n^2 / 2 multiply-adds, add_cross_products count a b, leading_directions some 9 n^3,
//         solve_rows n^3 / 3 + m n^2. Rows are widened 256 at a time.
//
// With KVTL_COMPILED_ALGEBRA defined everywhere the functions are only declared, and one translation unit defines
// KVTL_COMPILE_ALGEBRA and has them: Eigen takes fifteen seconds of a compiler's time.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/convert.hpp>
#include <kvtl/views.hpp>

#include <cstddef>
#include <span>
#include <vector>

namespace kvtl { inline namespace v0 { namespace dense {

/// Numbers as floats: as they are, or widened into `room`.
[[nodiscard]] inline std::span<const float> as_floats(const tensor_view& x, std::vector<float>& room) {
    if (x.empty() || !x.floats().empty()) return x.floats();
    room.resize(x.size());
    for (std::size_t i = 0; i < x.size(); i += x.run(i)) simd::encode(x, i, room.data() + i, x.run(i));
    return room;
}

/// sum (n, n) += the sum over the rows of row row^T.
void add_outer_products(rows_view<float> rows, std::span<double> sum);

/// sum (a, b) += the sum over i of left_i right_i^T, of as many rows of `left` (count, a) as of `right` (count, b).
void add_cross_products(rows_view<float> left, rows_view<float> right, std::span<double> sum);

/// Eigenvectors of a sum of outer products: of all orthonormal directions those that keep most, and so for each prefix.
struct directions {
    std::vector<double> rows;   ///< (n, n), orthonormal; the largest element of each is positive
    std::vector<double> energy; ///< (n), decreasing, of each direction; 0 or more

    /// Part of the energy that is in the `first` directions, 0 to 1.
    [[nodiscard]] double share(std::size_t first) const noexcept {
        double all = 0, leading = 0;
        for (std::size_t i = 0; i < energy.size(); ++i)
            all += energy[i], leading += i < first ? energy[i] : 0;
        return all > 0 ? leading / all : 1;
    }
    /// Appends the `first` rows, rounded.
    void append_to(std::vector<float>& out, std::size_t first) const {
        for (std::size_t i = 0; i < first * energy.size(); ++i) out.push_back(static_cast<float>(rows[i]));
    }
};
[[nodiscard]] directions leading_directions(rows_view<double> sum);

/// The X (m, n) with X sum = right (m, n): least squares, where `sum` is of the inputs' outer products and `right` of
/// targets times inputs. `sum` must be positive definite: add a ridge to its diagonal.
[[nodiscard]] std::vector<double> solve_rows(rows_view<double> sum, std::span<const double> right);

}}} // namespace kvtl::v0::dense

#if !defined(KVTL_COMPILED_ALGEBRA) || defined(KVTL_COMPILE_ALGEBRA)
#ifdef KVTL_COMPILE_ALGEBRA
#define KVTL_ALGEBRA
#else
#define KVTL_ALGEBRA inline
#endif
// gcc 12 takes the don't-care operands of AVX-512 intrinsics for mistakes of Eigen's.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <Eigen/Cholesky>
#include <Eigen/Core>
#include <Eigen/Eigenvalues>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#include <algorithm>

namespace kvtl { inline namespace v0 { namespace dense {

namespace detail {

using matrix = Eigen::MatrixXd;

[[nodiscard]] inline Eigen::Index index(std::size_t n) noexcept {
    return static_cast<Eigen::Index>(n);
}

/// Rows of a block as the columns of a matrix of doubles.
[[nodiscard]] inline matrix columns_of(rows_view<float> rows, std::size_t first, std::size_t n) {
    using floats = Eigen::Map<const Eigen::MatrixXf, 0, Eigen::OuterStride<>>;
    return floats(rows.row(first), index(rows.dim), index(n), Eigen::OuterStride<>(index(rows.stride)))
        .cast<double>();
}

/// By columns, of which the lower half counts.
[[nodiscard]] inline matrix columns_of(rows_view<double> sum) {
    using doubles = Eigen::Map<const matrix, 0, Eigen::OuterStride<>>;
    const auto n = index(sum.dim);
    return doubles(sum.data, n, n, Eigen::OuterStride<>(index(sum.stride)));
}

template <class Block> void each_block(std::size_t count, Block&& block) {
    constexpr std::size_t rows_at_once = 256;
    for (std::size_t first = 0; first < count; first += rows_at_once)
        block(first, std::min(rows_at_once, count - first));
}

} // namespace detail

KVTL_ALGEBRA void add_outer_products(rows_view<float> rows, std::span<double> sum) {
    const auto n = detail::index(rows.dim);
    Eigen::Map<detail::matrix> transposed(sum.data(), n, n); // by columns: the lower half
    detail::each_block(rows.count, [&](std::size_t first, std::size_t count) {
        transposed.selfadjointView<Eigen::Lower>().rankUpdate(detail::columns_of(rows, first, count));
    });
}

KVTL_ALGEBRA void add_cross_products(rows_view<float> left, rows_view<float> right, std::span<double> sum) {
    Eigen::Map<detail::matrix> transposed(sum.data(), detail::index(right.dim), detail::index(left.dim));
    detail::each_block(left.count, [&](std::size_t first, std::size_t count) {
        transposed.noalias() +=
            detail::columns_of(right, first, count) * detail::columns_of(left, first, count).transpose();
    });
}

KVTL_ALGEBRA directions leading_directions(rows_view<double> sum) {
    const Eigen::SelfAdjointEigenSolver<detail::matrix> solver(
        detail::columns_of(sum)); // reads the lower half
    directions out;
    const auto n = detail::index(sum.dim);
    out.rows.reserve(sum.dim * sum.dim);
    for (Eigen::Index j = n; j-- > 0;) { // increasing there
        out.energy.push_back(std::max(0.0, solver.eigenvalues()(j)));
        const auto direction = solver.eigenvectors().col(j);
        Eigen::Index largest = 0; // v and -v are the same direction: take one
        direction.cwiseAbs().maxCoeff(&largest);
        const double sign = direction(largest) < 0 ? -1 : 1;
        for (Eigen::Index i = 0; i < n; ++i) out.rows.push_back(sign * direction(i));
    }
    return out;
}

KVTL_ALGEBRA std::vector<double> solve_rows(rows_view<double> sum, std::span<const double> right) {
    const auto n = detail::index(sum.dim), m = detail::index(right.size()) / n;
    std::vector<double> out(right.size());
    const Eigen::Map<const detail::matrix> targets(right.data(), n, m);
    Eigen::Map<detail::matrix>(out.data(), n, m) =
        detail::columns_of(sum).ldlt().solve(targets); // reads the lower half
    return out;
}

}}} // namespace kvtl::v0::dense
#undef KVTL_ALGEBRA
#endif
