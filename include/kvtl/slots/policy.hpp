// What the policies of all slots have in common: a name, the inputs that they need (engine_inputs.hpp), an
// aggregate config, and a state that is made from the config and what the slot hands over.
//
// A state lives in the block of a shard and is copied with it, so it must be trivially copyable: it keeps its
// config's numbers and views (pointers, spans) of the memory that it is handed, never memory of its own.
//
// Each header of this folder names its slot's requirements one at a time, joins them to one concept
// (`index_for`, ...) and has a function (`explain_index`, ...) with one sentence for each requirement.
// slots/preset.hpp puts them together.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/engine_inputs.hpp>
#include <kvtl/status.hpp>

#include <concepts>
#include <cstddef>
#include <string_view>
#include <type_traits>

namespace kvtl { inline namespace v0 {

template <class P>
concept has_name = requires {
    { P::name } -> std::convertible_to<std::string_view>;
};
template <class P>
concept has_config = requires {
    typename P::config;
}
&&std::is_aggregate_v<typename P::config>;
template <class P>
concept has_state = requires {
    typename P::state;
};
/// `Args` is what a slot's states are made from besides the policy's config.
template <class P, class... Args>
concept state_constructs = requires {
    typename P::config;
    requires std::constructible_from<typename P::state, const typename P::config&, Args...>;
};
template <class P, class... Args>
concept state_opens =
    has_config<P> && state_constructs<P, Args...> && std::default_initializable<typename P::state>;
/// Structures that a policy keeps in memory it is handed: it says how many bytes.
template <class P, class... Args>
concept state_is_sized = has_state<P> && requires(Args... args) {
    { P::state::bytes(args...) } -> std::same_as<std::size_t>;
};
template <class P>
concept state_is_relocatable = !has_state<P> || std::is_trivially_copyable_v<typename P::state>;

template <class P, class... Args>
concept policy_for = has_name<P> && state_opens<P, Args...> && state_is_relocatable<P>;

/// For static_assert: a compiler that sees a concept there prints all that is inside it after the sentence.
[[nodiscard]] consteval bool holds(bool requirement) noexcept {
    return requirement;
}

}} // namespace kvtl::v0
