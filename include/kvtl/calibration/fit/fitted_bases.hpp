// What calibration_fit makes of recorded keys, queries and values: bases, and what they keep. write() makes the file that
// config.calibration names.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/writer.hpp>
#include <kvtl/geometry.hpp>
#include <kvtl/status.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace kvtl { inline namespace v0 {

struct fit_options {
    std::uint32_t rank = 0;     ///< of the joint adapter; 0: all H*D directions
    std::uint32_t channels = 0; ///< frequency pairs per KV head; 0: a quarter of the head's
    std::uint32_t pair_distance =
        0;                 ///< as pair_elements() has it: 1 where RoPE turns neighbours, D/2 where it turns
                           ///< halves; 0: not known, and no channels are fitted
    bool pre_rope = false; ///< adapter and PCA basis of keys before RoPE
    bool query_map = false;
};

/// What a layer's bases keep of the samples. Shares are 0 to 1, and 0 of what was not fitted.
struct layer_energy {
    double adapter = 0;           ///< share of the keys' energy in the r directions of the adapter
    std::vector<double> spectrum; ///< (H*D) shares of the energy of the joint directions, decreasing
    double joint_keys_quarter = 0, joint_values_quarter = 0; ///< in the first H*D/4 joint directions
    double pca_quarter = 0;  ///< mean over heads: share in the first D/4 directions of the PCA basis
    double skew_quarter = 0; ///< likewise of the queries' energy in the skew basis
    double channels = 0;     ///< mean over heads: top keys that the chosen pairs find, each pair by itself
    double query_map = 0;    ///< share of the energy of this layer's queries that the map explains
};

/// Sections of a calibration file; those of which there were no samples are empty.
struct fitted_bases {
    kvtl::shape shape;
    fit_options options; ///< with the defaults filled in
    std::uint64_t tokens = 0;
    std::vector<float> adapter;                  ///< (L, r, H*D)
    std::vector<float> pca;                      ///< (L, H, D, D)
    std::vector<float> skew;                     ///< (L, H, D, D)
    std::vector<float> joint_keys, joint_values; ///< (L, H*D, H*D)
    std::vector<float> head_keys, head_values;   ///< (L, H, D, D)
    std::vector<std::uint32_t> channels;         ///< (L, H, n)
    std::vector<float> query_map;                ///< (L-1, HQ*D, HQ*D)
    std::vector<float> value_norms;              ///< (L, H, D, D)
    std::vector<float> nuq_keys, nuq_values;     ///< (L, 2 H*D + 28), (L, 28)
    std::vector<layer_energy> energy;            ///< (L)

    /// `fingerprint`: any number that stands for the model's weights, as config.calibration_model has it; 0 for every
    /// model of this shape. The file appears under its name when it is complete.
    [[nodiscard]] status write(const std::string& path, std::uint64_t fingerprint) const {
        using kind = calibration_kind;
        calibration_writer file(shape, fingerprint);
        const std::uint32_t width = shape.kv_heads * shape.head_dim, dim = shape.head_dim;
        struct part {
            calibration_kind kind;
            std::uint32_t rank;
            const std::vector<float>& values;
            bool pre_rope;
        };
        for (const part& s :
             {part{kind::joint_adapter, options.rank, adapter, options.pre_rope},
              part{kind::pca_basis, dim, pca, options.pre_rope}, part{kind::skew_basis, dim, skew, false},
              part{kind::query_map, shape.query_heads * dim, query_map, false},
              part{kind::joint_keys, width, joint_keys, true},
              part{kind::joint_values, width, joint_values, false},
              part{kind::head_keys, dim, head_keys, true}, part{kind::head_values, dim, head_values, false},
              part{kind::value_norms, dim, value_norms, false},
              part{kind::nuq_keys, level_table::levels, nuq_keys, true},
              part{kind::nuq_values, level_table::levels, nuq_values, false}})
            if (!s.values.empty())
                if (status done = file.add(s.kind, s.rank, s.values, s.pre_rope); !done) return done;
        if (!channels.empty())
            if (status done = file.add_channels(options.channels, channels, options.pair_distance); !done)
                return done;
        return file.write(path);
    }
};

}} // namespace kvtl::v0
