// Presets with a learned score. The weights are an input (retention.weights, calibration/gate_weights.hpp).
// These presets run the weights and train nothing.
//
//   trim_kv       TRIM-KV: log beta per token and KV head, from the layer's input, decaying with age. Evicts
//                 when 128 entries are over the limit (the paper's buffer has 128 to 512). Needs
//                 engine_inputs<..., engine_input::x>.
//   locret        Locret: a score from q, k and v. A prompt in chunks takes at most keep_tokens and one
//                 chunk, and may be longer than prefill_tokens. Deviations:
//                 - The gate gets q and k from the engine, after RoPE. The published heads were trained on q
//                   and k before RoPE and cannot be used: gates must be fitted again (docs/calibrate.md).
//                 - The last 100 entries always stay. The paper protects more while the prompt arrives (2,500
//                   of 6,000, "stabilizers").
//                 - Decode evicts as the prompt does. The paper keeps decoded entries.
//   global_gates  "Make Each Token Count": log beta of the heads of all layers on one scale, decaying with
//                 age as in trim_kv. Needs engine_input::x. Deviation: the number of entries of a head is
//                 fixed when the prompt ends; in decode each head evicts at its own limit.
//   attention_gate  Attention-Gate: a small causal attention over the layer's inputs decides for every KV head which
//                 entries stay (retention.threshold). If more are flagged than keep_tokens allows, the heads of all
//                 layers compete, as in global_gates. Needs engine_input::x. Memory beside the kept entries: W + 1
//                 numbers of 16 bits for each token and KV head (W = 16: 34 bytes, an entry of 64 numbers has 256).
//                 Deviation: as in global_gates, each head evicts at its own limit in decode.
//   kvzap         KVzap: a gate predicts, from the layer's input, how much a replay of the prompt would attend the
//                 entry (see kvzip). Entries below retention.threshold leave. So the threshold decides how many
//                 stay, and keep_tokens is only an upper limit for each head. Needs engine_input::x. The paper's
//                 window has 128 entries.
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

struct attention_gate : full {
    static constexpr std::string_view name = "attention_gate";
    static constexpr std::uint32_t window_tokens = 32;
    using retention = drop<attending_gate>;
    using budget = progressive_heads;
};

struct kvzap : full {
    static constexpr std::string_view name = "kvzap";
    static constexpr std::uint32_t window_tokens = 32;
    using retention = drop<importance_gate>;
};

} // namespace presets

using trim_kv = kv_manager<presets::trim_kv, engine_inputs_for<presets::trim_kv>>;
using locret = kv_manager<presets::locret>;
using global_gates = kv_manager<presets::global_gates, engine_inputs_for<presets::global_gates>>;
using attention_gate = kv_manager<presets::attention_gate, engine_inputs_for<presets::attention_gate>>;
using kvzap = kv_manager<presets::kvzap, engine_inputs_for<presets::kvzap>>;

}} // namespace kvtl::v0
