// Requirements that policies of all slots share: a name, the inputs that they need (engine_inputs.hpp), an
// aggregate config, and a state that is constructed from the config and the arguments of the slot.
//
// A config may show what it holds: fields(visit) calls visit(name, number) for the settings that can be given by
// name, and tables(visit) calls visit(name, table or number) for others that decide what is stored or dropped. A
// saved sequence goes on only where all of them agree.
//
// A state lives in the block of a shard and is copied with it, so it must be trivially copyable. It holds the
// numbers of its config and views (pointers, spans) of the memory that it is handed. It never owns memory.
//
// Each header of this folder names the requirements of its slot one at a time, and joins them to one concept
// (`index_for`, ...). A function (`explain_index`, ...) has one sentence for each requirement.
// slots/preset.hpp combines the slots.
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
/// `Args`: constructor arguments of the slot's states after the policy's config.
template <class P, class... Args>
concept state_constructs = requires {
    typename P::config;
    requires std::constructible_from<typename P::state, const typename P::config&, Args...>;
};
template <class P, class... Args>
concept state_opens =
    has_config<P> && state_constructs<P, Args...> && std::default_initializable<typename P::state>;
/// For policies with structures in the memory that they are handed: state::bytes() returns its size in bytes.
template <class P, class... Args>
concept state_is_sized = has_state<P> && requires(Args... args) {
    { P::state::bytes(args...) } -> std::same_as<std::size_t>;
};
template <class P>
concept state_is_relocatable = !has_state<P> || std::is_trivially_copyable_v<typename P::state>;

/// The error of a state's check of its settings, and of what they are to fit; none where it does not check them.
template <class State, class... Args>
[[nodiscard, gnu::cold]] status check_settings([[maybe_unused]] const Args&... of) noexcept {
    if constexpr (requires { State::check(of...); })
        return State::check(of...);
    else
        return {};
}
/// Hands a state what was fitted offline, if it reads that. `checked`: it may refuse it.
template <class State, class View>
[[nodiscard, gnu::cold]] status bind_calibration([[maybe_unused]] State& state,
                                                 [[maybe_unused]] const View& view,
                                                 [[maybe_unused]] bool checked = true) {
    if constexpr (requires { state.check_calibration(view); })
        if (status s = checked ? state.check_calibration(view) : status{}; !s) return s;
    if constexpr (requires { state.bind(view); }) state.bind(view);
    return {};
}
/// fields(visit) and tables(visit) of a config that has them.
template <class Config, class Visit>
[[gnu::cold]] void show_fields([[maybe_unused]] Config& config, [[maybe_unused]] Visit& visit) {
    if constexpr (requires { config.fields(visit); }) config.fields(visit);
}
template <class Config, class Visit>
[[gnu::cold]] void show_tables([[maybe_unused]] Config& config, [[maybe_unused]] Visit& visit) {
    if constexpr (requires { config.tables(visit); }) config.tables(visit);
}

template <class P, class... Args>
concept policy_for = has_name<P> && state_opens<P, Args...> && state_is_relocatable<P>;

/// The calibration kinds that a policy reads: codecs declare a set of kind_bit()s, an index or a score one kind.
template <class P> [[nodiscard]] consteval std::uint32_t calibrated_kinds() {
    if constexpr (requires { kind_bit(P::calibrated); })
        return kind_bit(P::calibrated);
    else if constexpr (requires { P::calibrated; }) {
        static_assert(
            std::is_same_v<const std::uint32_t, decltype(P::calibrated)>,
            "[kvtl] calibration: `calibrated` of an index or a score is a calibration_kind, and of a "
            "codec a std::uint32_t of kind_bit()s");
        return P::calibrated;
    } else
        return 0;
}

/// Hides a concept from static_assert. Compilers would otherwise print the concept's definition after the
/// sentence.
[[nodiscard]] consteval bool holds(bool requirement) noexcept {
    return requirement;
}

}} // namespace kvtl::v0
