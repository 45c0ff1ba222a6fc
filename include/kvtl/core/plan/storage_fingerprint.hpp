// What makes two cache files alike: everything that shapes the bytes of stored entries, and nothing else.
//
// What:   how an entry is encoded (compressor and its config), which fields share a page, how entries are
//         grouped into units and how large these may be (clusterer, as far as it sizes units), where units lie
//         (layout and its config). What only chooses, scores, evicts or caches may differ: the same bytes
//         serve. Shape, element and page size stand in the superblock by themselves.
// Cost:   of open() only.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/config.hpp>
#include <kvtl/core/plan/cache_plan.hpp>
#include <kvtl/core/plan/cache_types.hpp>

#include <bit>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace kvtl { inline namespace v0 {

/// FNV-1a, 64 bits.
class fingerprint_hash {
  public:
    void add(std::string_view text) noexcept {
        for (const char c : text) byte(static_cast<unsigned char>(c));
        byte(0); // so that "ab", "c" differs from "a", "bc"
    }
    /// Of any field of a config that is a number.
    template <class T> void add_number(const T& x) noexcept {
        static_assert(std::is_arithmetic_v<T>);
        std::uint64_t bits = 0;
        if constexpr (std::is_floating_point_v<T>)
            bits = std::bit_cast<std::uint64_t>(static_cast<double>(x));
        else
            bits = static_cast<std::uint64_t>(x);
        for (int i = 0; i < 8; ++i) byte(static_cast<unsigned char>(bits >> (8 * i)));
    }
    [[nodiscard]] std::uint64_t value() const noexcept { return value_; }

  private:
    void byte(unsigned char b) noexcept { value_ = (value_ ^ b) * 0x100000001B3U; }
    std::uint64_t value_ = 0xCBF29CE484222325U;
};

/// `plan`: as settled by the planner.
template <class Preset>
[[nodiscard, gnu::cold]] std::uint64_t storage_fingerprint(cache_config<Preset> c,
                                                           const cache_plan& plan) noexcept {
    using types = cache_types<Preset>;
    fingerprint_hash hash;
    const auto field = [&hash](const char* name, const auto& value) {
        hash.add(name);
        hash.add_number(value);
    };
    hash.add(Preset::compressor::name);
    if constexpr (requires { c.compressor.fields(field); }) c.compressor.fields(field);
    hash.add(Preset::layout::name);
    if constexpr (requires { c.layout.fields(field); }) c.layout.fields(field);
    hash.add(Preset::clusterer::name);
    field("max_entries", plan.max_entries);
    field("lane_heads", plan.model.lane_heads);
    field("fields", types::fields);
    field("values_only", types::values_only);
    field("granule", Preset::compressor::granule);
    field("key_bytes", plan.sizes.record.key);
    field("value_bytes", plan.sizes.record.value);
    field("weighted", types::weighted);
    field("shards", plan.division.shards);
    field("by_sequence", plan.division.by_sequence);
    for (const std::uint32_t window : c.attention.windows)
        field("window", window); // such layers store nothing
    return hash.value();
}

}} // namespace kvtl::v0
