// Fits what a calibration file holds to keys, queries and values that an engine recorded of its model.
//
//   auto fit = calibration_fit::make(model, {.rank = 64, .pair_distance = model.head_dim / 2});
//   if (!fit) ...                                                              // fit.error()
//   for each text, for each layer in order:
//       if (auto s = fit->add(layer, {.q = q, .k = k, .v = v, .k_pre = k_pre}); !s) ...
//   for each layer: if (auto s = fit->add_output_projection(layer, w_o); !s) ...  // once, where weights are known
//   auto bases = fit->finish();
//   if (auto s = bases->write("model.cal", fingerprint); !s) ...
//
// Texts are not kept: sums of outer products in double precision are, whose eigenvectors are the right singular vectors
// of all rows together, and of keys before RoPE and values a sample for the levels.
//
//   joint adapter  eigenvectors of sum k k^T over tokens, k (H*D): no other r directions keep more of the keys' energy
//                  (Eckart and Young), and so for every prefix
//   PCA basis      the same for each head by itself; the mean is not subtracted
//   joint keys, joint values, head keys, head values
//                  likewise of the keys before RoPE and of the values, where both are given
//   skew basis     eigenvectors of sum q q^T over tokens and the queries of a KV head's group, where queries are given
//   channels       per KV head the frequency pairs that find most of the keys that the head ranks first (pair_agreement);
//                  32 queries of each text's second half are asked
//   query map      least squares: the W with the smallest sum |q - W q_previous|^2 (+ a little ridge)
//   value norms    where the output projection is given: of the mean of W_o^T W_o over a KV head's query heads the
//                  eigenvectors, each times the root of its eigenvalue
//   nuq keys, nuq values
//                  ranges and levels of non-uniform codes (level_fit.hpp), where keys before RoPE and values are given
//
// Memory: (H*D)^2 doubles per layer, three times that with keys before RoPE and values, and 2 H*D floats of each of up to
//         4,096 tokens; with the query map also 2 (HQ*D)^2.
// Cost:   per token and layer half as many multiply-adds; finish() some 9 n^3 for each basis of n directions.
// Source: KVSwap §3.2; Loki §4; InfiniGen §4.2; FASA.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/fit/dense_algebra.hpp>
#include <kvtl/calibration/fit/fitted_bases.hpp>
#include <kvtl/calibration/fit/level_fit.hpp>
#include <kvtl/calibration/fit/pair_agreement.hpp>
#include <kvtl/simd/convert.hpp>
#include <kvtl/views.hpp>

#include <algorithm>
#include <cmath>

namespace kvtl { inline namespace v0 {

class calibration_fit {
  public:
    [[nodiscard]] static result<calibration_fit> make(const shape& model, fit_options options = {}) {
        if (auto good = geometry::from(model); !good) return good.error();
        const std::uint32_t dim = model.head_dim, directions = model.kv_heads * dim;
        if (dim % 2 != 0)
            return status::failure(errc::invalid_argument, "shape.head_dim is %u; valid: even numbers", dim);
        const auto within = [](const char* name, std::uint32_t value, std::uint32_t most) {
            if (value <= most) return status();
            return status::failure(errc::invalid_argument, "%s is %u; valid: 1 to %u, or 0 for the default",
                                   name, value, most);
        };
        if (auto s = within("rank", options.rank, directions); !s) return s;
        if (auto s = within("channels", options.channels, dim / 2); !s) return s;
        if (auto s = within("pair_distance", options.pair_distance, dim / 2); !s) return s;
        if (options.rank == 0) options.rank = directions;
        if (options.channels == 0) options.channels = std::max(1U, dim / 8);
        if (model.layers < 2) options.query_map = false; // there is no layer before
        return calibration_fit(model, options);
    }

    [[nodiscard]] const shape& model() const noexcept { return shape_; }

    /// One text, or the next piece of one, in one layer. k (T, H, D), or with pre_rope k_pre; q (T, HQ, D) for skew basis,
    /// channels and query map; v and k_pre (T, H, D) for the bases and levels of entries. What is not wanted may stay empty, in all
    /// calls alike. Layers of a text come in order where a query map is fitted. A call that fails changes nothing.
    [[nodiscard]] status add(std::uint32_t layer, const layer_input& in) {
        if (layer >= shape_.layers)
            return status::failure(errc::invalid_argument, "calibration: layer %u; valid: 0 to %u", layer,
                                   shape_.layers - 1);
        std::vector<float> key_room, query_room, value_room;
        const std::span<const float> k = options_.pre_rope ? in.k_pre : dense::as_floats(in.k, key_room),
                                     q = dense::as_floats(in.q, query_room),
                                     v = dense::as_floats(in.v, value_room);
        const std::size_t key_row = std::size_t{shape_.kv_heads} * shape_.head_dim,
                          query_row = std::size_t{shape_.query_heads} * shape_.head_dim,
                          tokens = k.size() / key_row;
        const char* keys = options_.pre_rope ? "k_pre" : "k";
        if (tokens == 0 || k.size() % key_row != 0)
            return status::failure(errc::invalid_argument,
                                   "calibration: layer %u: %s has %zu numbers; valid: multiples of %zu",
                                   layer, keys, k.size(), key_row);
        const bool entries = !in.k_pre.empty() && !v.empty();
        struct rows {
            const char* name;
            std::span<const float> values;
            std::size_t row;
        };
        for (const rows& r : {rows{keys, k, key_row}, rows{"q", q, query_row},
                              rows{"k_pre", in.k_pre, key_row}, rows{"v", v, key_row}}) {
            if (!r.values.empty() && r.values.size() != tokens * r.row)
                return status::failure(errc::invalid_argument,
                                       "calibration: layer %u: %s has %zu numbers; valid for %zu tokens: %zu",
                                       layer, r.name, r.values.size(), tokens, tokens * r.row);
            if (!simd::all_finite(r.values.data(), r.values.size()))
                return status::failure(errc::invalid_argument,
                                       "calibration: layer %u: a number of %s is not finite", layer, r.name);
        }
        if (options_.query_map) {
            if (q.empty())
                return status::failure(errc::invalid_argument, "calibration: layer %u: the query map needs q",
                                       layer);
            if (layer > 0 && (before_layer_ != layer - 1 || before_.size() != q.size()))
                return status::failure(
                    errc::invalid_argument,
                    "calibration: layer %u: the query map needs these tokens of layer %u just before", layer,
                    layer - 1);
        }

        sums& to = layers_[layer];
        to.tokens += tokens;
        grow(to.keys, k, key_row);
        if (entries) {
            to.tokens_of_entries += tokens;
            grow(to.keys_before, in.k_pre, key_row);
            grow(to.values, v, key_row);
            to.levels.add(in.k_pre, v);
        }
        if (!q.empty()) add_queries(to, k, q, tokens);
        if (options_.query_map) {
            if (layer > 0) {
                grow(to.previous, before_, query_row);
                to.cross.resize(query_row * query_row);
                dense::add_cross_products(view(q, query_row), view(before_, query_row), to.cross);
                for (const float x : q) to.query_energy += static_cast<double>(x) * static_cast<double>(x);
            }
            before_.assign(q.begin(), q.end());
            before_layer_ = layer;
        }
        return {};
    }

    /// What a layer's attention output is multiplied by, w (M, HQ*D), or some of its rows at a time: for the value norms. Of
    /// all layers or of none.
    [[nodiscard]] status add_output_projection(std::uint32_t layer, rows_view<float> w) {
        const std::size_t dim = shape_.head_dim, heads = shape_.query_heads, group = heads / shape_.kv_heads;
        if (layer >= shape_.layers || w.count == 0 || w.dim != heads * dim)
            return status::failure(errc::invalid_argument,
                                   "calibration: layer %u: an output projection of %zu rows of %zu; valid: "
                                   "layers 0 to %u, 1 or more rows of %zu",
                                   layer, w.count, w.dim, shape_.layers - 1, heads * dim);
        for (std::size_t i = 0; i < w.count; ++i)
            if (!simd::all_finite(w.row(i), w.dim))
                return status::failure(
                    errc::invalid_argument,
                    "calibration: layer %u: a number of the output projection is not finite", layer);
        sums& to = layers_[layer];
        to.outputs.resize(shape_.kv_heads * dim * dim);
        for (std::size_t h = 0; h < heads; ++h)
            dense::add_outer_products({w.data + h * dim, w.count, dim, w.stride},
                                      std::span(to.outputs).subspan(h / group * dim * dim, dim * dim));
        return {};
    }

    /// Fails when a layer has no sample, or queries or entries of some texts only. More may be added afterwards.
    [[nodiscard]] result<fitted_bases> finish() const {
        fitted_bases out;
        out.shape = shape_;
        out.options = options_;
        out.tokens = layers_.front().tokens;
        for (std::size_t l = 0; l < layers_.size(); ++l)
            if (auto s = whole(l); !s) return s;
        for (std::size_t l = 0; l < layers_.size(); ++l) {
            const sums& from = layers_[l];
            layer_energy energy;
            fit_keys(from, out, energy);
            fit_entries(from, out, energy);
            fit_queries(from, out, energy);
            if (options_.query_map && l > 0) fit_query_map(from, out, energy);
            fit_value_norms(from, out);
            out.energy.push_back(std::move(energy));
        }
        return out;
    }

  private:
    static constexpr std::size_t asked_queries = 32; ///< per text and query head, for the channels
    static constexpr double ridge = 1e-6;            ///< of the mean energy of a query element

    struct sums {
        std::uint64_t tokens = 0, tokens_of_queries = 0, tokens_of_entries = 0;
        std::vector<double> keys, keys_before, values; ///< (H*D, H*D), upper half
        std::vector<std::vector<double>> queries;      ///< per KV head (D, D), upper half
        pair_agreement pairs;
        double asked = 0;                    ///< queries asked per KV head
        std::vector<double> previous, cross; ///< (HQ*D, HQ*D): q_prev q_prev^T (upper half), q q_prev^T
        double query_energy = 0;
        level_fit levels;
        std::vector<double> outputs; ///< (H, D, D), upper half: sum of W_o^T W_o over a KV head's group
    };

    calibration_fit(const shape& model, const fit_options& options)
        : shape_(model), options_(options), layers_(model.layers) {
        for (sums& s : layers_) {
            s.queries.resize(model.kv_heads);
            s.levels = level_fit(model);
            if (options.pair_distance != 0) s.pairs = pair_agreement(model, options.pair_distance);
        }
    }

    [[nodiscard]] static rows_view<float> view(std::span<const float> rows, std::size_t row) noexcept {
        return {rows.data(), rows.size() / row, row, row};
    }
    static void grow(std::vector<double>& sum, std::span<const float> rows, std::size_t row) {
        sum.resize(row * row);
        dense::add_outer_products(view(rows, row), sum);
    }

    void add_queries(sums& to, std::span<const float> k, std::span<const float> q, std::size_t tokens) {
        const std::size_t dim = shape_.head_dim, group = shape_.query_heads / shape_.kv_heads,
                          query_row = shape_.query_heads * dim, key_row = shape_.kv_heads * dim;
        to.tokens_of_queries += tokens;
        for (std::size_t h = 0; h < shape_.query_heads; ++h) {
            std::vector<double>& sum = to.queries[h / group];
            sum.resize(dim * dim);
            dense::add_outer_products({&q[h * dim], tokens, dim, query_row}, sum);
        }
        if (options_.pair_distance == 0) return;
        const std::size_t first = tokens / 2,
                          step = std::max<std::size_t>(1, (tokens - first) / asked_queries);
        for (std::size_t t = first; t < tokens; t += step) {
            for (std::size_t h = 0; h < shape_.query_heads; ++h)
                to.pairs.ask(&q[t * query_row + h * dim], h / group, k.first((t + 1) * key_row));
            to.asked += static_cast<double>(group);
        }
    }

    /// Whether a layer has all that the others have.
    [[nodiscard]] status whole(std::size_t layer) const {
        const sums &s = layers_[layer], &first = layers_.front();
        if (s.tokens == 0)
            return status::failure(errc::invalid_argument, "calibration: layer %zu has no samples", layer);
        struct part {
            const char* name;
            std::uint64_t tokens;
            bool wanted;
        };
        for (const part& p :
             {part{"queries", s.tokens_of_queries, first.tokens_of_queries != 0},
              part{"keys before RoPE and values", s.tokens_of_entries, first.tokens_of_entries != 0}})
            if (p.tokens != (p.wanted ? s.tokens : 0))
                return status::failure(
                    errc::invalid_argument,
                    "calibration: layer %zu has %s of %llu of its %llu tokens; valid: of all tokens in all "
                    "layers, or of none",
                    layer, p.name, static_cast<unsigned long long>(p.tokens),
                    static_cast<unsigned long long>(s.tokens));
        if (s.outputs.empty() != first.outputs.empty())
            return status::failure(
                errc::invalid_argument,
                "calibration: layer %zu has %s output projection; valid: all layers or none", layer,
                s.outputs.empty() ? "no" : "an");
        return {};
    }

    /// Head h of a joint sum.
    [[nodiscard]] rows_view<double> block(const std::vector<double>& sum, std::size_t h) const noexcept {
        const std::size_t dim = shape_.head_dim, width = shape_.kv_heads * dim;
        return {sum.data() + h * dim * (width + 1), dim, dim, width};
    }

    void fit_keys(const sums& from, fitted_bases& out, layer_energy& energy) const {
        const std::size_t dim = shape_.head_dim, width = shape_.kv_heads * dim;
        const auto joint = dense::leading_directions({from.keys.data(), width, width, width});
        joint.append_to(out.adapter, options_.rank);
        energy.adapter = joint.share(options_.rank);
        double all = 1e-300;
        for (const double e : joint.energy) all += e;
        for (const double e : joint.energy) energy.spectrum.push_back(e / all);
        for (std::size_t h = 0; h < shape_.kv_heads; ++h) {
            const auto basis = dense::leading_directions(block(from.keys, h));
            basis.append_to(out.pca, dim);
            energy.pca_quarter += basis.share(quarter(dim)) / shape_.kv_heads;
        }
    }

    void fit_entries(const sums& from, fitted_bases& out, layer_energy& energy) const {
        if (from.tokens_of_entries == 0) return;
        const std::size_t dim = shape_.head_dim, width = shape_.kv_heads * dim;
        const auto fit = [&](const std::vector<double>& sum, std::vector<float>& joint,
                             std::vector<float>& by_head) {
            const auto together = dense::leading_directions({sum.data(), width, width, width});
            together.append_to(joint, width);
            for (std::size_t h = 0; h < shape_.kv_heads; ++h)
                dense::leading_directions(block(sum, h)).append_to(by_head, dim);
            return together.share(quarter(width));
        };
        energy.joint_keys_quarter = fit(from.keys_before, out.joint_keys, out.head_keys);
        energy.joint_values_quarter = fit(from.values, out.joint_values, out.head_values);
        from.levels.append_keys(out.nuq_keys);
        from.levels.append_values(out.nuq_values);
    }

    void fit_queries(const sums& from, fitted_bases& out, layer_energy& energy) const {
        if (from.tokens_of_queries == 0) return;
        const std::size_t dim = shape_.head_dim;
        for (std::size_t h = 0; h < shape_.kv_heads; ++h) {
            const auto skew = dense::leading_directions({from.queries[h].data(), dim, dim, dim});
            skew.append_to(out.skew, dim);
            energy.skew_quarter += skew.share(quarter(dim)) / shape_.kv_heads;
            if (options_.pair_distance == 0) continue;
            const auto order = from.pairs.ranked(h);
            for (std::size_t i = 0; i < options_.channels; ++i) {
                out.channels.push_back(order[i]);
                energy.channels +=
                    from.pairs.of(h)[order[i]] / from.asked / options_.channels / shape_.kv_heads;
            }
        }
    }

    /// The factor of a matrix: rows a_i with sum (a_i . v)^2 = v^T M v.
    void fit_value_norms(const sums& from, fitted_bases& out) const {
        if (from.outputs.empty()) return;
        const std::size_t dim = shape_.head_dim, group = shape_.query_heads / shape_.kv_heads;
        for (std::size_t h = 0; h < shape_.kv_heads; ++h) {
            const auto main = dense::leading_directions({&from.outputs[h * dim * dim], dim, dim, dim});
            for (std::size_t i = 0; i < dim; ++i) {
                const double length = std::sqrt(main.energy[i] / static_cast<double>(group));
                for (std::size_t d = 0; d < dim; ++d)
                    out.value_norms.push_back(static_cast<float>(length * main.rows[i * dim + d]));
            }
        }
    }

    void fit_query_map(const sums& from, fitted_bases& out, layer_energy& energy) const {
        const std::size_t n = std::size_t{shape_.query_heads} * shape_.head_dim;
        std::vector<double> sum = from.previous;
        double trace = 0;
        for (std::size_t i = 0; i < n; ++i) trace += sum[i * n + i];
        const double small = std::max(ridge * trace / static_cast<double>(n), 1e-12);
        for (std::size_t i = 0; i < n; ++i) sum[i * n + i] += small;
        const std::vector<double> map = dense::solve_rows({sum.data(), n, n, n}, from.cross);
        // |q - W p|^2 summed = |q|^2 - 2 tr(W C^T) + tr(W P W^T), and W (P + small) = C.
        double with_targets = 0, size = 0;
        for (std::size_t i = 0; i < map.size(); ++i)
            with_targets += map[i] * from.cross[i], size += map[i] * map[i];
        const double rest = from.query_energy - with_targets - small * size;
        energy.query_map = from.query_energy > 0 ? 1 - rest / from.query_energy : 1;
        for (const double x : map) out.query_map.push_back(static_cast<float>(x));
    }

    [[nodiscard]] static std::size_t quarter(std::size_t n) noexcept {
        return std::max<std::size_t>(1, n / 4);
    }

    kvtl::shape shape_;
    fit_options options_;
    std::vector<sums> layers_;
    std::vector<float> before_;        ///< queries of the last call, for the query map
    std::uint32_t before_layer_ = ~0U; ///< theirs; at first none
};

}} // namespace kvtl::v0
