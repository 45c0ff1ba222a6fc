// Presets that encode an entry again with fewer bits when it loses its place, instead of dropping it.
//
//   mikv  MiKV: entries that received the most attention, in prompt and decode, stay in f16. The others have 2
//         bits, and the prompt's queries balance their key channels. The paper also uses 4 bits:
//         `using retention = demote<heavy_hitters_after_prompt, int4_group<>, channels::balanced>`.
//   arkv  ARKV: entries are original, E4M3 or dropped. Layers share the memory by entropy, variance and
//         kurtosis of their attention. Deviations:
//         - The paper gives every layer the same number of entries, and divides the number of originals among
//           layers. Here layers divide the memory, and each keeps as many originals as fit.
//         - The authors' code has a scale per token. Here each row of a head has one.
//         - The authors' code evicts in batches during decode, down to 75 % of the limit. Here entries leave
//           one at a time.
//
// keep_tokens is the memory of a head, in entries of f16. A sequence that fits stays unchanged. If it does not
// fit, as few entries as possible are demoted (policies/retain_demote.hpp). Entries are dropped only if this is
// not enough.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/budget_cascade.hpp>
#include <kvtl/policies/compress_byte_row.hpp>
#include <kvtl/policies/compress_int_group.hpp>
#include <kvtl/policies/retain_demote.hpp>
#include <kvtl/policies/retain_heavy_hitters.hpp>
#include <kvtl/policies/retain_running_moments.hpp>
#include <kvtl/presets/full.hpp>

namespace kvtl { inline namespace v0 {

namespace presets {

struct mikv : full {
    static constexpr std::string_view name = "mikv";
    static constexpr std::uint32_t window_tokens = 32;
    using retention = demote<heavy_hitters_after_prompt, int2_group<>, channels::balanced>;
};

struct arkv : full {
    static constexpr std::string_view name = "arkv";
    static constexpr std::uint32_t window_tokens = 32;
    using retention = demote<running_moments, fp8_row<>>;
    using budget = cascade;
    static constexpr retention::config retention_config = [] {
        retention::config c;
        c.tau_entropy = 7.8F, c.tau_variance = 5.4F, c.tau_kurtosis = 5.5F;
        return c;
    }();
};

} // namespace presets

using mikv = kv_manager<presets::mikv>;
using arkv = kv_manager<presets::arkv>;

}} // namespace kvtl::v0
