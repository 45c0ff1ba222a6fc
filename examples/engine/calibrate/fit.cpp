// SPDX-License-Identifier: MIT
#include "fit.hpp"

#include <kvtl/calibration/writer.hpp>

#include "error.hpp"

#include <Eigen/Dense>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace engine {

namespace {

using matrix = Eigen::MatrixXd;
using rows_of_floats =
    Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;

constexpr std::size_t asked_queries = 32; ///< per text and query head, for the channels
constexpr double top_share = 0.1;         ///< of the keys that a query sees, likewise
constexpr double ridge = 1e-6;            ///< of the mean energy of a query element

Eigen::Index index(std::size_t n) {
    return static_cast<Eigen::Index>(n);
}

rows_of_floats view(std::span<const float> values, std::size_t columns) {
    return {values.data(), index(values.size() / columns), index(columns)};
}

/// Orthonormal directions as rows, by decreasing energy; what each keeps.
struct basis {
    matrix rows;
    Eigen::VectorXd energy;

    explicit basis(const matrix& gram) {
        const Eigen::SelfAdjointEigenSolver<matrix> solver(gram); // reads the lower half
        rows = solver.eigenvectors().rowwise().reverse().transpose();
        energy = solver.eigenvalues().reverse().cwiseMax(0.0);
        for (Eigen::Index j = 0; j < rows.rows(); ++j) { // v and -v are the same direction: take one
            Eigen::Index largest = 0;
            rows.row(j).cwiseAbs().maxCoeff(&largest);
            if (rows(j, largest) < 0) rows.row(j) *= -1;
        }
    }
    [[nodiscard]] double share(std::size_t first) const {
        const double all = energy.sum();
        return all > 0 ? energy.head(index(first)).sum() / all : 1;
    }
    void append_to(std::vector<float>& out, std::size_t count) const {
        for (Eigen::Index j = 0; j < index(count); ++j)
            for (Eigen::Index i = 0; i < rows.cols(); ++i) out.push_back(static_cast<float>(rows(j, i)));
    }
};

/// The `count` largest, ties to the lower number, as flags.
std::vector<bool> top(const std::vector<double>& scores, std::size_t count) {
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

} // namespace

struct calibration_fit::sums {
    std::uint64_t tokens = 0;
    matrix keys;                 ///< (H*D, H*D), lower half
    matrix keys_before, values;  ///< likewise of keys before RoPE and of values; empty without any
    std::vector<matrix> queries; ///< per KV head (D, D), lower half
    matrix agreement;            ///< (H, D/2) sum over the queries asked of the share of top keys found
    double asked = 0;            ///< queries asked per KV head
    matrix previous, cross;      ///< (HQ*D, HQ*D) query map: q_prev q_prev^T (lower half), q q_prev^T
    double query_energy = 0;

    sums(const kvtl::shape& s, bool with_map) {
        const auto key = index(std::size_t{s.kv_heads} * s.head_dim);
        keys = matrix::Zero(key, key);
        queries.assign(s.kv_heads, matrix::Zero(s.head_dim, s.head_dim));
        agreement = matrix::Zero(s.kv_heads, s.head_dim / 2);
        if (!with_map) return;
        const auto query = index(std::size_t{s.query_heads} * s.head_dim);
        previous = matrix::Zero(query, query);
        cross = matrix::Zero(query, query);
    }

    /// How much of the ranking of key `head` each pair knows, for one query of its group at position t.
    void ask(const kvtl::shape& s, std::uint32_t distance, std::span<const float> all_keys, const float* q,
             std::size_t head, std::size_t t) {
        const std::size_t row = std::size_t{s.kv_heads} * s.head_dim;
        const std::size_t pairs = s.head_dim / 2;
        std::vector<std::vector<double>> score(pairs + 1, std::vector<double>(t + 1, 0.0));
        for (std::size_t i = 0; i <= t; ++i) {
            const float* k = all_keys.data() + i * row + head * s.head_dim;
            for (std::size_t p = 0; p < pairs; ++p) {
                const auto [a, b] = kvtl::pair_elements(static_cast<std::uint32_t>(p), distance);
                score[p][i] = static_cast<double>(q[a]) * static_cast<double>(k[a]) +
                              static_cast<double>(q[b]) * static_cast<double>(k[b]);
                score[pairs][i] += score[p][i];
            }
        }
        const auto count = static_cast<std::size_t>(std::ceil(top_share * static_cast<double>(t + 1)));
        const std::vector<bool> wanted = top(score[pairs], count);
        for (std::size_t p = 0; p < pairs; ++p) {
            const std::vector<bool> found = top(score[p], count);
            double both = 0;
            for (std::size_t i = 0; i <= t; ++i) both += wanted[i] && found[i] ? 1 : 0;
            agreement(index(head), index(p)) += both / static_cast<double>(count);
        }
    }
};

calibration_fit::calibration_fit(const kvtl::shape& shape, const fit_options& options)
    : shape_(shape), options_(options) {
    const auto directions = shape.kv_heads * shape.head_dim;
    const auto check = [](const char* name, std::uint32_t value, std::uint32_t most) {
        if (value > most)
            throw bad_input(std::string(name) + " is " + std::to_string(value) + "; valid: 1 to " +
                            std::to_string(most) + ", or 0 for the default");
    };
    if (shape.head_dim < 2 || shape.head_dim % 2 != 0)
        throw bad_input("calibration: head_dim is " + std::to_string(shape.head_dim) +
                        "; valid: even numbers");
    check("rank", options.rank, directions);
    check("channels", options.channels, shape.head_dim / 2);
    if (options_.rank == 0) options_.rank = directions;
    if (options_.channels == 0) options_.channels = std::max(1U, shape.head_dim / 8);
    if (shape.layers < 2) options_.query_map = false; // there is no layer before
    for (std::uint32_t l = 0; l < shape.layers; ++l)
        layers_.push_back(std::make_unique<sums>(shape, options_.query_map && l > 0));
}
calibration_fit::~calibration_fit() = default;
calibration_fit::calibration_fit(calibration_fit&&) noexcept = default;

void calibration_fit::add(std::uint32_t layer, std::span<const float> keys, std::span<const float> queries,
                          std::span<const float> previous_queries) {
    sums& to = *layers_.at(layer);
    const std::size_t dim = shape_.head_dim, group = shape_.query_heads / shape_.kv_heads;
    const std::size_t key_row = shape_.kv_heads * dim, query_row = shape_.query_heads * dim;
    const std::size_t tokens = keys.size() / key_row;
    if (keys.size() != tokens * key_row || queries.size() != tokens * query_row)
        throw bad_input("calibration: " + std::to_string(keys.size()) + " key and " +
                        std::to_string(queries.size()) + " query numbers are not of one number of tokens");
    to.tokens += tokens;
    const matrix k = view(keys, key_row).cast<double>();
    const matrix q = view(queries, query_row).cast<double>();
    to.keys.selfadjointView<Eigen::Lower>().rankUpdate(k.transpose());
    for (std::size_t h = 0; h < shape_.query_heads; ++h)
        to.queries[h / group].selfadjointView<Eigen::Lower>().rankUpdate(
            q.middleCols(index(h * dim), index(dim)).transpose());

    const std::size_t first = tokens / 2, step = std::max<std::size_t>(1, (tokens - first) / asked_queries);
    for (std::size_t t = first; t < tokens; t += step) {
        for (std::size_t h = 0; h < shape_.query_heads; ++h)
            to.ask(shape_, options_.pair_distance, keys, queries.data() + t * query_row + h * dim, h / group,
                   t);
        to.asked += static_cast<double>(group);
    }

    if (!options_.query_map || layer == 0) return;
    if (previous_queries.size() != queries.size())
        throw bad_input("calibration: the query map needs the queries of the layer before");
    const matrix before = view(previous_queries, query_row).cast<double>();
    to.previous.selfadjointView<Eigen::Lower>().rankUpdate(before.transpose());
    to.cross.noalias() += q.transpose() * before;
    to.query_energy += q.squaredNorm();
}

void calibration_fit::add_entries(std::uint32_t layer, std::span<const float> k_pre,
                                  std::span<const float> v) {
    sums& to = *layers_.at(layer);
    const std::size_t row = std::size_t{shape_.kv_heads} * shape_.head_dim;
    if (k_pre.size() != v.size() || v.size() % row != 0)
        throw bad_input("calibration: " + std::to_string(k_pre.size()) + " numbers of keys before RoPE and " +
                        std::to_string(v.size()) + " of values are not of one number of tokens");
    const auto add = [row](matrix& sum, std::span<const float> rows) {
        if (sum.size() == 0) sum = matrix::Zero(index(row), index(row));
        sum.selfadjointView<Eigen::Lower>().rankUpdate(view(rows, row).cast<double>().transpose());
    };
    add(to.keys_before, k_pre);
    add(to.values, v);
}

fitted calibration_fit::finish() const {
    fitted out;
    out.shape = shape_;
    out.options = options_;
    out.tokens = layers_.front()->tokens;
    const std::size_t dim = shape_.head_dim, quarter = std::max<std::size_t>(1, dim / 4);
    for (std::size_t l = 0; l < layers_.size(); ++l) {
        const sums& from = *layers_[l];
        if (from.tokens == 0) throw bad_input("calibration: layer " + std::to_string(l) + " has no samples");
        layer_energy energy;
        const basis joint(from.keys);
        joint.append_to(out.adapter, options_.rank);
        energy.adapter = joint.share(options_.rank);
        const double all = std::max(joint.energy.sum(), 1e-300);
        for (const double e : joint.energy) energy.spectrum.push_back(e / all);

        const auto add_spectrum = [&](const matrix& gram, std::vector<float>& all_heads,
                                      std::vector<float>& by_head) {
            if (gram.size() == 0) return 0.0;
            const std::size_t width = shape_.kv_heads * dim;
            const basis whole(gram);
            whole.append_to(all_heads, width);
            for (std::size_t h = 0; h < shape_.kv_heads; ++h)
                basis(gram.block(index(h * dim), index(h * dim), index(dim), index(dim)))
                    .append_to(by_head, dim);
            return whole.share(std::max<std::size_t>(1, width / 4));
        };
        energy.joint_keys_quarter = add_spectrum(from.keys_before, out.joint_keys, out.head_keys);
        energy.joint_values_quarter = add_spectrum(from.values, out.joint_values, out.head_values);

        for (std::size_t h = 0; h < shape_.kv_heads; ++h) {
            const auto heads = static_cast<double>(shape_.kv_heads);
            const basis pca(from.keys.block(index(h * dim), index(h * dim), index(dim), index(dim)));
            pca.append_to(out.pca, dim);
            energy.pca_quarter += pca.share(quarter) / heads;
            const basis skew(from.queries[h]);
            skew.append_to(out.skew, dim);
            energy.skew_quarter += skew.share(quarter) / heads;

            std::vector<std::uint32_t> order(dim / 2);
            std::iota(order.begin(), order.end(), 0U);
            std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
                return from.agreement(index(h), a) > from.agreement(index(h), b);
            });
            for (std::uint32_t i = 0; i < options_.channels; ++i) {
                out.channels.push_back(order[i]);
                energy.channels +=
                    from.agreement(index(h), order[i]) / from.asked / options_.channels / heads;
            }
        }
        if (options_.query_map && l > 0) {
            matrix gram = from.previous;
            const double small = ridge * gram.trace() / static_cast<double>(gram.rows());
            gram.diagonal().array() += std::max(small, 1e-12);
            const matrix map =
                gram.selfadjointView<Eigen::Lower>().llt().solve(from.cross.transpose()).transpose();
            for (Eigen::Index i = 0; i < map.rows(); ++i)
                for (Eigen::Index j = 0; j < map.cols(); ++j)
                    out.query_map.push_back(static_cast<float>(map(i, j)));
            // |q - W p|^2 summed = |q|^2 - 2 tr(W C^T) + tr(W P W^T)
            const matrix full = from.previous.selfadjointView<Eigen::Lower>();
            const double rest = from.query_energy - 2 * map.cwiseProduct(from.cross).sum() +
                                (map * full).cwiseProduct(map).sum();
            energy.query_map = from.query_energy > 0 ? 1 - rest / from.query_energy : 1;
        }
        out.energy.push_back(std::move(energy));
    }
    return out;
}

void fitted::write(const std::string& path, std::uint64_t fingerprint) const {
    using kind = kvtl::calibration_kind;
    kvtl::calibration_writer file(shape, fingerprint);
    const auto insist = [](const kvtl::status& s) {
        if (!s) throw run_failure(s.what());
    };
    insist(file.add(kind::joint_adapter, options.rank, adapter, options.pre_rope));
    insist(file.add(kind::pca_basis, shape.head_dim, pca, options.pre_rope));
    insist(file.add(kind::skew_basis, shape.head_dim, skew));
    insist(file.add_channels(options.channels, channels, options.pair_distance));
    if (!query_map.empty()) insist(file.add(kind::query_map, shape.query_heads * shape.head_dim, query_map));
    const std::uint32_t width = shape.kv_heads * shape.head_dim;
    if (!joint_keys.empty()) {
        insist(file.add(kind::joint_keys, width, joint_keys, true));
        insist(file.add(kind::joint_values, width, joint_values));
        insist(file.add(kind::head_keys, shape.head_dim, head_keys, true));
        insist(file.add(kind::head_values, shape.head_dim, head_values));
    }
    insist(file.write(path));
}

} // namespace engine
