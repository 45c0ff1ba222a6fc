// Declarations of policies at compile time: the inputs that they need from the engine, the granularity of
// their decisions, and whether they read attention mass. A preset needs the union of the inputs of its
// policies. An undeclared input costs nothing.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/version.hpp>

#include <cstdint>

namespace kvtl { inline namespace v0 {

/// Data that only the engine can supply. A set of inputs is a bit mask.
enum class engine_input : std::uint32_t {
    nothing = 0,
    q = 1U << 0,           ///< post-RoPE queries
    k = 1U << 1,           ///< post-RoPE keys
    v = 1U << 2,           ///< values
    k_pre = 1U << 3,       ///< keys before RoPE
    x = 1U << 4,           ///< input of the layer's attention, behind its norm
    probe = 1U << 5,       ///< queries that stand for the future
    external = 1U << 6,    ///< scores that the engine computed
    calibration = 1U << 7, ///< a file that was fitted offline
    chosen = 1U << 8,      ///< units that the engine chose
};

[[nodiscard]] constexpr engine_input operator|(engine_input a, engine_input b) noexcept {
    return static_cast<engine_input>(static_cast<std::uint32_t>(a) | static_cast<std::uint32_t>(b));
}
[[nodiscard]] constexpr engine_input operator&(engine_input a, engine_input b) noexcept {
    return static_cast<engine_input>(static_cast<std::uint32_t>(a) & static_cast<std::uint32_t>(b));
}
[[nodiscard]] constexpr engine_input without(engine_input set, engine_input part) noexcept {
    return static_cast<engine_input>(static_cast<std::uint32_t>(set) & ~static_cast<std::uint32_t>(part));
}
[[nodiscard]] constexpr bool contains(engine_input set, engine_input part) noexcept {
    return (set & part) == part;
}

/// The inputs that an engine supplies; the second template argument of kv_manager.
template <engine_input... Inputs> struct engine_inputs {
    static constexpr engine_input value = (Inputs | ... | engine_input::nothing);
};
using default_engine_inputs = engine_inputs<engine_input::q, engine_input::k, engine_input::v>;
using all_engine_inputs =
    engine_inputs<engine_input::q, engine_input::k, engine_input::v, engine_input::k_pre, engine_input::x,
                  engine_input::probe, engine_input::external, engine_input::calibration,
                  engine_input::chosen>;

/// The owner of a unit: one KV head, or all KV heads of a layer.
enum class granularity : std::uint8_t { head, layer };

/// The attention mass that a policy reads: none, or the mass of every entry. `full` needs a selector that
/// attends everything.
enum class feedback : std::uint8_t { unused, full };

template <class Policy> [[nodiscard]] consteval engine_input needs_of() {
    if constexpr (requires { Policy::needs; })
        return Policy::needs;
    else
        return engine_input::nothing;
}

template <class Policy> [[nodiscard]] consteval feedback feedback_of() {
    if constexpr (requires { Policy::reads_mass; })
        return Policy::reads_mass;
    else
        return feedback::unused;
}

/// True when the policy works only on units that span all KV heads of a layer.
template <class Policy>
concept layer_wide_only = requires {
    requires Policy::layer_wide_only;
};

}} // namespace kvtl::v0
