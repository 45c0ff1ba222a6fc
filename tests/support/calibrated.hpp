// Calibrations for tests: random orthonormal bases, through a file like those of the tools.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/writer.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace kvtl_test {

/// (n, n), rows orthonormal: Gram and Schmidt in double precision.
[[nodiscard]] std::vector<float> random_rotation(std::size_t n, std::uint64_t seed);

/// (3 n + 1, n) as a gated kind has it. The basis is oblique: every second direction leans on the one before.
inline std::vector<float> random_gated_basis(std::size_t n, std::uint64_t seed) {
    const std::vector<float> r = random_rotation(n, seed);
    constexpr float lean = 0.5F;
    std::vector<float> all(r);
    for (std::size_t j = 1; j < n; j += 2)
        for (std::size_t c = 0; c < n; ++c) all[j * n + c] += lean * r[(j - 1) * n + c];
    all.insert(all.end(), r.begin(), r.end());
    for (std::size_t j = 0; j + 1 < n; j += 2)
        for (std::size_t c = 0; c < n; ++c) all[(n + j) * n + c] -= lean * r[(j + 1) * n + c];
    oracle::generator random(seed + 1000);
    for (std::size_t i = 0; i < n * n; ++i) all.push_back(static_cast<float>(0.3 * random.normal()));
    for (std::size_t i = 0; i < n; ++i) all.push_back(static_cast<float>(0.3 * random.normal()));
    return all;
}

/// Levels of non-uniform codes, of 2, 3 and 4 bits: ascending from -1 to 1, and with a larger bend closer in the middle.
inline std::vector<float> curved_levels(float bend = 0.4F) {
    std::vector<float> all;
    for (std::uint32_t bits = kvtl::level_table::least_bits; bits <= kvtl::level_table::most_bits; ++bits)
        for (std::uint32_t i = 0, n = kvtl::level_table::count(bits); i < n; ++i) {
            const float even = 2.0F * static_cast<float>(i) / static_cast<float>(n - 1) - 1;
            all.push_back(even * (1 - bend + bend * std::fabs(even)));
        }
    return all;
}

/// Ranges of channels for keys of normal numbers, different for every channel, and levels, of every layer.
inline void add_levels(kvtl::calibration_writer& out, const kvtl::shape& model, std::uint64_t seed) {
    std::vector<float> keys, values;
    oracle::generator random(seed);
    const auto append = [](std::vector<float>& to, const std::vector<float>& what) {
        to.insert(to.end(), what.begin(), what.end());
    };
    for (std::uint32_t l = 0; l < model.layers; ++l) {
        for (std::uint32_t c = 0; c < model.kv_heads * model.head_dim; ++c)
            keys.push_back(static_cast<float>(random.below(9)) / 8 - 0.5F);
        for (std::uint32_t c = 0; c < model.kv_heads * model.head_dim; ++c)
            keys.push_back(static_cast<float>(random.below(9)) / 8 + 2);
        append(keys, curved_levels(0.25F + 0.125F * static_cast<float>(l)));
        append(values, curved_levels(0.375F + 0.125F * static_cast<float>(l)));
    }
    REQUIRE(out.add(kvtl::calibration_kind::nuq_keys, kvtl::level_table::levels, keys, true));
    REQUIRE(out.add(kvtl::calibration_kind::nuq_values, kvtl::level_table::levels, values));
}

/// `basis` (n, n), orthonormal, as a gated kind of one layer, with a gate that keeps `rank` coefficients of every row.
inline std::vector<float> level_gates(const std::vector<float>& basis, std::size_t n, std::size_t rank) {
    std::vector<float> all(basis);
    all.insert(all.end(), basis.begin(), basis.end());
    all.resize((3 * n + 1) * n);
    *(all.end() - static_cast<std::ptrdiff_t>(rank)) = 30.0F;
    return all;
}

/// Joint adapter of `rank`, rotations for all kinds of bases and levels, different for every layer and head.
inline void add_random_bases(kvtl::calibration_writer& out, const kvtl::shape& model, std::uint32_t rank,
                             std::uint64_t seed) {
    const std::size_t width = std::size_t{model.kv_heads} * model.head_dim;
    std::vector<float> adapter, pca, skew, joint_keys, joint_values, gated_keys, gated_values;
    const auto append = [](std::vector<float>& to, const std::vector<float>& what, std::size_t n) {
        to.insert(to.end(), what.begin(), what.begin() + static_cast<std::ptrdiff_t>(n));
    };
    for (std::uint32_t l = 0; l < model.layers; ++l) {
        append(adapter, random_rotation(width, ++seed), rank * width);
        append(joint_keys, random_rotation(width, ++seed), width * width);
        append(joint_values, random_rotation(width, ++seed), width * width);
        append(gated_keys, random_gated_basis(width, ++seed), (3 * width + 1) * width);
        append(gated_values, random_gated_basis(width, ++seed), (3 * width + 1) * width);
        for (std::uint32_t h = 0; h < model.kv_heads; ++h) {
            const std::size_t square = std::size_t{model.head_dim} * model.head_dim;
            append(pca, random_rotation(model.head_dim, ++seed), square);
            append(skew, random_rotation(model.head_dim, ++seed), square);
        }
    }
    REQUIRE(out.add(kvtl::calibration_kind::joint_adapter, rank, adapter));
    REQUIRE(out.add(kvtl::calibration_kind::pca_basis, model.head_dim, pca));
    REQUIRE(out.add(kvtl::calibration_kind::skew_basis, model.head_dim, skew));
    REQUIRE(out.add(kvtl::calibration_kind::joint_keys, static_cast<std::uint32_t>(width), joint_keys, true));
    REQUIRE(out.add(kvtl::calibration_kind::joint_values, static_cast<std::uint32_t>(width), joint_values));
    REQUIRE(out.add_gated(kvtl::calibration_kind::gated_keys, gated_keys, 0.2F));
    REQUIRE(out.add_gated(kvtl::calibration_kind::gated_values, gated_values, 0.2F));
    REQUIRE(out.add(kvtl::calibration_kind::head_keys, model.head_dim, pca, true));
    REQUIRE(out.add(kvtl::calibration_kind::head_values, model.head_dim, skew));
    REQUIRE(out.add(kvtl::calibration_kind::prefix_keys, model.head_dim, skew));
    REQUIRE(out.add(kvtl::calibration_kind::prefix_values, model.head_dim, pca));
    add_levels(out, model, ++seed);
}
/// The same as a file.
inline void write_calibration(const std::string& path, const kvtl::shape& model, std::uint32_t rank,
                              std::uint64_t seed) {
    kvtl::calibration_writer out(model, 1);
    add_random_bases(out, model, rank, seed);
    REQUIRE(out.write(path));
}

class calibrated {
  public:
    calibrated(const kvtl::shape& model, std::uint32_t rank, std::uint64_t seed) {
        kvtl::calibration_writer out(model, 1);
        add_random_bases(out, model, rank, seed);
        load(out, model);
    }
    /// Frequency pairs only: `pairs` is (layers, KV heads, count).
    calibrated(const kvtl::shape& model, std::uint32_t count, const std::vector<std::uint32_t>& pairs,
               std::uint32_t pair_distance) {
        kvtl::calibration_writer out(model, 1);
        REQUIRE(out.add_channels(count, pairs, pair_distance));
        load(out, model);
    }
    /// What a test wrote itself.
    calibrated(kvtl::calibration_writer& out, const kvtl::shape& model) { load(out, model); }
    [[nodiscard]] const kvtl::calibration_view& view() const { return content_.view(); }

  private:
    void load(kvtl::calibration_writer& out, const kvtl::shape& model) {
        const auto path =
            (std::filesystem::temp_directory_path() / ("kvtl-calibrated-" + std::to_string(::getpid())))
                .string();
        REQUIRE(out.write(path));
        auto loaded = kvtl::calibration::load(path, model);
        std::filesystem::remove(path);
        REQUIRE(loaded.ok());
        content_ = *std::move(loaded);
    }
    kvtl::calibration content_;
};

} // namespace kvtl_test
