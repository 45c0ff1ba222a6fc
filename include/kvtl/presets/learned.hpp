// Presets whose score was learned. The weights are an input (retention.weights,
// calibration/gate_weights.hpp); this library runs them and trains nothing.
//
//   trim_kv       TRIM-KV: log beta per token and KV head from the layer's input, decaying with age; evicts
//                 when 128 entries over (the paper's buffer is 128 to 512). Needs engine_inputs<..., engine_input::x>.
//   locret        Locret: a score from q, k and v; a prompt in chunks never takes more than keep_tokens and a
//                 chunk, and may be longer than prefill_tokens. Deviations: the gate sees q and k as the engine gives
//                 them, after RoPE, so that the published heads, trained on what comes before it, cannot be used:
//                 gates are fitted anew (docs/calibrate.md). The last 100 entries stay, whenever that is; the paper
//                 protects more while the prompt comes in (2,500 of 6,000, "stabilizers"). Decode evicts as the prompt
//                 does; the paper keeps what is decoded.
//   global_gates  "Make Each Token Count": log beta of heads of all layers on one scale, decaying with age as in
//                 trim_kv. Needs engine_input::x. Deviations: how many entries a head may keep is decided when the prompt
//                 ends, and stays as it is: in decode each head evicts at its own limit.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/budget_progressive.hpp>
#include <kvtl/policies/retain_drop.hpp>
#include <kvtl/policies/retain_gate.hpp>
#include <kvtl/presets/full.hpp>

namespace kvtl { inline namespace v0 {

namespace presets {

struct trim_kv : full {
    static constexpr std::string_view name = "trim_kv";
    static constexpr std::uint32_t window_tokens = 1;
    using retention = drop<decaying_gate>;
};

struct locret : full {
    static constexpr std::string_view name = "locret";
    static constexpr std::uint32_t window_tokens = 100;
    using retention = drop<retention_gate>;
};

struct global_gates : full {
    static constexpr std::string_view name = "global_gates";
    static constexpr std::uint32_t window_tokens = 8;
    using retention = drop<global_gate>;
    using budget = progressive_heads;
};

} // namespace presets

using trim_kv = kv_manager<presets::trim_kv, engine_inputs_for<presets::trim_kv>>;
using locret = kv_manager<presets::locret>;
using global_gates = kv_manager<presets::global_gates, engine_inputs_for<presets::global_gates>>;

}} // namespace kvtl::v0
