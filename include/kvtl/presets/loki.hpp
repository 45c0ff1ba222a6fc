// Loki: single tokens, scored in the leading directions of a principal component basis of each head's keys.
//
// Paper: "Loki: Low-rank Keys for Efficient Sparse Attention" (§4): the basis is fitted to calibration keys.
// The first r of D directions give approximate scores, and the best tokens are attended exactly. Extension to
// storage: the reduced keys stay in memory, and whole entries are read.
//
//   loki_predicted  chooses by the query that the previous layer's input predicts, as KVSwap's authors run
//                   it. So reads begin one layer earlier.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/index_rotated_channels.hpp>
#include <kvtl/policies/schedule_next_layer.hpp>
#include <kvtl/policies/select_topk.hpp>
#include <kvtl/presets/flexgen.hpp>

namespace kvtl { inline namespace v0 {

namespace presets {

struct loki : offloaded {
    static constexpr std::string_view name = "loki";
    using index = pca_channels;
    using selector = topk<reduce::group_mean>;

    /// Fewer directions, never below 4.
    template <class Config> static bool shrink(Config& c) noexcept {
        if (c.index.channels <= 4) return false;
        c.index.channels = c.index.channels > c.shape.head_dim ? c.shape.head_dim : c.index.channels / 2;
        return true;
    }
};

struct loki_predicted : loki {
    static constexpr std::string_view name = "loki_predicted";
    using selector = topk<reduce::group_mean, query::predicted>;
    using schedule = next_layer;
};

} // namespace presets

using loki = kv_manager<presets::loki, engine_inputs_for<presets::loki>>;
using loki_predicted = kv_manager<presets::loki_predicted, engine_inputs_for<presets::loki_predicted>>;

}} // namespace kvtl::v0
