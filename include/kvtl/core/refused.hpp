// What a cache of a wrong preset is to its users: every call of kv_manager by its signature, and nothing
// else. The preset's sentences are then all that the compiler prints; without these names each call would add
// an error.
//
// Nothing here is ever linked: kv_manager's primary template, the only class that derives from it, does not
// compile.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/config.hpp>
#include <kvtl/slots/io.hpp>
#include <kvtl/slots/preset.hpp>
#include <kvtl/statistics.hpp>
#include <kvtl/status.hpp>
#include <kvtl/views.hpp>

#include <cstddef>
#include <span>
#include <type_traits>

namespace kvtl { inline namespace v0 {

namespace detail {
/// The config of a preset that lacks a slot: it converts from any braces without names.
struct no_cache_config {};
template <class Preset> struct refused_config { using type = no_cache_config; };
template <class Preset>
requires has_all_slots<Preset> && says_window<Preset>
struct refused_config<Preset> {
    using type = cache_config<Preset>;
};
} // namespace detail

template <class Preset, class Manager> class refused_cache {
  public:
    using preset = Preset;
    using config = typename detail::refused_config<Preset>::type;

    static result<Manager> open(const config&);
    static result<config> fitted(config);
    static result<std::size_t> least_memory(const config&);
    static result<memory_parts> least_parts(const config&);
    static result<std::uint64_t> storage_bytes(const config&);

    result<sequence_id> begin();
    status end(sequence_id) noexcept;
    status prefill(sequence_id, std::size_t, const layer_input&, std::span<float>, unsigned = 0) noexcept;
    status attend(sequence_id, std::size_t, const layer_input&, std::span<float>, unsigned = 0) noexcept;
    status forward(std::span<const batch_part>, std::size_t, const layer_input&, std::span<float>,
                   unsigned = 0) noexcept;
    status append(sequence_id, std::size_t, const layer_input&, unsigned = 0) noexcept;
    status prefetch(sequence_id, std::size_t, std::span<const float>, unsigned = 0) noexcept;
    template <class Visit>
    status select(sequence_id, std::size_t, std::span<const float>, Visit&&, unsigned = 0) noexcept {
        return {}; // a body, as a visitor may be of a local type
    }
    status rewind(sequence_id, std::size_t) noexcept;
    status rewind_to(sequence_id, std::size_t) noexcept;
    status retry_writes(sequence_id) noexcept;
    [[nodiscard]] statistics stats() const noexcept;
    [[nodiscard]] unsigned shards() const noexcept;
    [[nodiscard]] refused_cache& shard(unsigned) noexcept;
    [[nodiscard]] unsigned shard_of(sequence_id) const noexcept;
    [[nodiscard]] io_facts facts() const noexcept;
    std::size_t tokens(sequence_id, std::size_t) noexcept;
};

}} // namespace kvtl::v0
