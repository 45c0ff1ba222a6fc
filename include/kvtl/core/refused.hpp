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
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

namespace kvtl { inline namespace v0 {

namespace detail {

/// A device that takes what files take, in place of one that is none.
struct no_device {
    struct config {
        std::string path{};
        bool keep_file = false, direct = true, register_arena = true;
        unsigned threads = 0;
    };
};
/// A preset that lacks a slot, as far as configs go: nobody has settings.
struct no_policies {
    static constexpr std::uint32_t window_tokens = 1, sink_tokens = 0;
    using clusterer = void;
    using index = void;
    using selector = void;
    using estimator = void;
    using budget = void;
    using retention = void;
    using compressor = void;
    using position = void;
    using layout = void;
    using replacement = void;
    using schedule = void;
    using io = no_device;
};
template <class Preset> struct without_device : Preset { using io = no_device; };

template <class Preset> struct refused_config { using type = cache_config<no_policies>; };
template <class Preset>
requires has_all_slots<Preset> && says_window<Preset>
struct refused_config<Preset> {
    using type =
        cache_config<std::conditional_t<io_policy<typename Preset::io>, Preset, without_device<Preset>>>;
};

} // namespace detail

/// All of it const: handles of shards are, and nobody is misled by what never runs.
template <class Preset, class Manager> class refused_cache {
  public:
    using preset = Preset;
    using config = typename detail::refused_config<Preset>::type;
    using element_type = float;
    using shard_handle = refused_cache;
    static constexpr bool views_last = false;

    static result<Manager> open(const config&);
    static result<config> fitted(config);
    static result<std::size_t> least_memory(const config&);
    static result<memory_parts> least_parts(const config&);
    static result<std::uint64_t> storage_bytes(const config&);

    [[nodiscard]] result<sequence_id> begin() const;
    status end(sequence_id) const noexcept;
    status prefill(sequence_id, std::size_t, const layer_input&, tensor_span, unsigned = 0) const noexcept;
    status attend(sequence_id, std::size_t, const layer_input&, tensor_span, unsigned = 0) const noexcept;
    status forward(std::span<const batch_part>, std::size_t, const layer_input&, tensor_span,
                   unsigned = 0) const noexcept;
    status append(sequence_id, std::size_t, const layer_input&, unsigned = 0) const noexcept;
    status before_query(sequence_id, std::size_t, unsigned = 0) const noexcept;
    status prefetch(sequence_id, std::size_t, tensor_view, unsigned = 0) const noexcept;
    status prefetch(std::span<const sequence_id>, std::size_t, tensor_view, unsigned = 0) const noexcept;
    template <class Visit>
    status select(sequence_id, std::size_t, tensor_view, Visit&&, unsigned = 0) const noexcept {
        return {}; // a body, as a visitor may be of a local type
    }
    status rewind(sequence_id, std::size_t) const noexcept;
    status rewind_to(sequence_id, std::size_t) const noexcept;
    status resize(std::size_t) const noexcept;
    status set_share(sequence_id, float) const noexcept;
    status prefetch(sequence_id, unsigned = 0) const noexcept;
    [[nodiscard]] memory_range memory() const noexcept;
    status retry_writes(sequence_id) const noexcept;
    [[nodiscard]] statistics stats() const noexcept;
    [[nodiscard]] unsigned shards() const noexcept;
    [[nodiscard]] shard_handle shard(unsigned) const noexcept;
    [[nodiscard]] unsigned shard_of(sequence_id) const noexcept;
    [[nodiscard]] unsigned index() const noexcept; ///< of a shard_handle
    [[nodiscard]] io_device_info device_info() const noexcept;
    [[nodiscard]] std::size_t tokens(sequence_id, std::size_t) const noexcept;
    [[nodiscard]] std::size_t kept_entries(sequence_id, std::size_t) const noexcept;
};

}} // namespace kvtl::v0
