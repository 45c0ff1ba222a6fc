// Fits what a calibration file holds to keys and queries recorded from a model.
//
//   calibration_fit fit(shape, {.rank = 64});
//   fit.add(layer, keys, queries, previous_queries);     // for every text and layer
//   fitted f = fit.finish();
//   f.write("model.cal", fingerprint);
//
// Texts are not kept: sums of outer products in double precision are, whose eigenvectors are the right
// singular vectors of all rows together.
//
//   joint adapter  eigenvectors of sum k k^T over tokens, k (H*D): no other r directions keep more of the
//                  keys' energy (Eckart and Young), and so for every prefix
//   PCA basis      the same for each head by itself; the mean is not subtracted
//   joint keys, joint values, head keys, head values
//                  likewise of the keys before RoPE and of the values, where they are given
//   skew basis     eigenvectors of sum q q^T over tokens and the queries of a KV head's group
//   channels       per KV head the frequency pairs whose own inner product q_p . k_p finds most of the keys
//                  that the whole one ranks in the top tenth; 32 queries of each text's second half are asked
//   query map      least squares: the W with the smallest sum |q - W q_previous|^2 (+ a little ridge)
//
// Memory: (H*D)^2 doubles per layer, three times that with entries; with the query map also 2 (HQ*D)^2.
// Source: KVSwap §3.2; Loki §4; InfiniGen §4.2; FASA.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/geometry.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace engine {

struct fit_options {
    std::uint32_t rank = 0;          ///< of the joint adapter; 0: all H*D directions
    std::uint32_t channels = 0;      ///< pairs per head; 0: a quarter of the head's
    std::uint32_t pair_distance = 1; ///< kvtl::pair_elements()
    bool pre_rope = false;           ///< the keys given are those before RoPE
    bool query_map = false;
};

/// What a layer's bases keep of the recorded samples. Shares are 0 to 1.
struct layer_energy {
    double adapter = 0;           ///< share of the keys' energy in the r directions of the adapter
    std::vector<double> spectrum; ///< (H*D) shares of the energy of the joint directions, decreasing
    double joint_keys_quarter = 0, joint_values_quarter = 0; ///< in the first H*D/4 joint directions
    double pca_quarter = 0;  ///< mean over heads: share in the first D/4 directions of the PCA basis
    double skew_quarter = 0; ///< likewise of the queries' energy in the skew basis
    double channels = 0;     ///< mean over heads: top keys that the chosen pairs find, each pair by itself
    double query_map = 0;    ///< share of the energy of this layer's queries that the map explains
};

struct fitted {
    kvtl::shape shape;
    fit_options options; ///< with the defaults filled in
    std::uint64_t tokens = 0;
    std::vector<float> adapter;                  ///< (L, r, H*D)
    std::vector<float> pca, skew;                ///< (L, H, D, D)
    std::vector<float> joint_keys, joint_values; ///< (L, H*D, H*D), or empty
    std::vector<float> head_keys, head_values;   ///< (L, H, D, D), or empty
    std::vector<std::uint32_t> channels;         ///< (L, H, n)
    std::vector<float> query_map;                ///< (L-1, HQ*D, HQ*D), or empty
    std::vector<layer_energy> energy;            ///< (L)

    /// Throws run_failure.
    void write(const std::string& path, std::uint64_t fingerprint) const;
};

class calibration_fit {
  public:
    /// Throws bad_input for options out of range.
    calibration_fit(const kvtl::shape& shape, const fit_options& options);
    ~calibration_fit();
    calibration_fit(calibration_fit&&) noexcept;

    /// keys (T, H, D) and queries (T, HQ, D) of one text in one layer; previous_queries, those of layer - 1,
    /// are used by the query map only and may otherwise be empty.
    void add(std::uint32_t layer, std::span<const float> keys, std::span<const float> queries,
             std::span<const float> previous_queries = {});

    /// keys before RoPE and values (T, H, D) of one text in one layer. Of all layers or of none.
    void add_entries(std::uint32_t layer, std::span<const float> k_pre, std::span<const float> v);

    /// Throws bad_input when a layer has no sample.
    [[nodiscard]] fitted finish() const;

  private:
    struct sums;
    kvtl::shape shape_;
    fit_options options_;
    std::vector<std::unique_ptr<sums>> layers_;
};

} // namespace engine
