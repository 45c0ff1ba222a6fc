// Clusterer: units are runs of consecutive tokens (Quest's pages, KVSwap's groups, plain offloading).
//
// `fixed_groups` units belong to one KV head; `fixed_layer_groups` units hold the entries of all KV heads of
// the layer, so that one unit is one long read (KVSwap §3.2). SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/cluster_single_tokens.hpp>

namespace kvtl::inline v0 {

struct fixed_groups : sequential_groups<granularity::head, 16> {
    static constexpr std::string_view name = "fixed_groups";
};

struct fixed_layer_groups : sequential_groups<granularity::layer, 4> {
    static constexpr std::string_view name = "fixed_layer_groups";
};

} // namespace kvtl::inline v0
