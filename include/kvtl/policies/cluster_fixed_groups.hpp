// Clusterer: units are runs of consecutive tokens (Quest's pages, KVSwap's groups, plain offloading).
//
// Units of `head_groups` belong to one KV head. Units of `layer_groups` hold the entries of all KV heads of
// the layer, so one unit is one long read (KVSwap §3.2). The template argument is the default of the config's
// group_tokens.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/cluster_single_tokens.hpp>

namespace kvtl { inline namespace v0 {

template <std::uint32_t DefaultTokens>
struct head_groups : sequential_groups<granularity::head, DefaultTokens> {
    static constexpr std::string_view name = "fixed_groups";
};

template <std::uint32_t DefaultTokens>
struct layer_groups : sequential_groups<granularity::layer, DefaultTokens> {
    static constexpr std::string_view name = "fixed_layer_groups";
};

using fixed_groups = head_groups<16>;
using fixed_layer_groups = layer_groups<4>;

}} // namespace kvtl::v0
