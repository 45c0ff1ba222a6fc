// Presets that store 4 bits per number, or 8 bits for keys and 4 for values (compress_int_group.hpp,
// compress_keys_and_values.hpp, compress_rotated.hpp). Window, sinks and pending entries stay 16-bit, as in int8.hpp.
// An error of a key changes the weights of attention. An error of a value changes only the sum. So k8v4 is safer than
// 4 bits for keys and values.
//
//   full_k8v4     everything is attended: the last 32 entries as 16-bit rows, all older ones in codes.
//   full_int4     the same with 4 bits for keys too.
//   full_int2     the same with 2 bits, the fewest without calibration.
//   snapkv_int4   snapkv_group, with all entries in 4 bits.
//   dynakv_k8v4   dynakv with clusters of codes: a page has 2.5 times the entries.
//   kvswap_int4   kvswap with groups of 4 bits.
//   flexgen_int4  flexgen with groups of 4 bits. For the paper's groups (section 5) set compressor.group_numbers = 64
//                 and compressor.zero_point = true.
//   full_k8v4_rotated, full_int4_rotated, full_int2_rotated, dynakv_int4_rotated
//                 the same, but a Hadamard matrix per head rotates keys and values before they become codes. They
//                 are for models whose keys have channels of large numbers. head_dim must be a multiple of 8.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/compress_keys_and_values.hpp>
#include <kvtl/policies/compress_rotated.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/flexgen.hpp>
#include <kvtl/presets/kvswap.hpp>
#include <kvtl/presets/snapkv.hpp>

namespace kvtl { inline namespace v0 {

namespace presets {

/// Entries leave the window 16 at a time. memory_bytes must hold all entries.
struct full_k8v4 : full {
    static constexpr std::string_view name = "full_k8v4";
    static constexpr std::uint32_t window_tokens = 32;
    using compressor = k8v4<>;
};

struct full_int4 : full_k8v4 {
    static constexpr std::string_view name = "full_int4";
    using compressor = int4_group<>;
};

struct full_int2 : full_k8v4 {
    static constexpr std::string_view name = "full_int2";
    using compressor = int2_group<>;
};

struct snapkv_int4 : snapkv_group {
    static constexpr std::string_view name = "snapkv_int4";
    using compressor = int4_group<>;
};

struct dynakv_k8v4 : dynakv {
    static constexpr std::string_view name = "dynakv_k8v4";
    using compressor = k8v4<>;
};

struct kvswap_int4 : kvswap {
    static constexpr std::string_view name = "kvswap_int4";
    using compressor = int4_group<>;
};

struct flexgen_int4 : flexgen {
    static constexpr std::string_view name = "flexgen_int4";
    using compressor = int4_group<>;
};

struct full_k8v4_rotated : full_k8v4 {
    static constexpr std::string_view name = "full_k8v4_rotated";
    using compressor = rotated<k8v4<float>>;
};

struct full_int4_rotated : full_int4 {
    static constexpr std::string_view name = "full_int4_rotated";
    using compressor = rotated<int4_group<float>>;
};

struct full_int2_rotated : full_int2 {
    static constexpr std::string_view name = "full_int2_rotated";
    using compressor = rotated<int2_group<float>>;
};

struct dynakv_int4_rotated : dynakv {
    static constexpr std::string_view name = "dynakv_int4_rotated";
    using compressor = rotated<int4_group<float>>;
};

} // namespace presets

using full_k8v4 = kv_manager<presets::full_k8v4>;
using full_int4 = kv_manager<presets::full_int4>;
using full_int2 = kv_manager<presets::full_int2>;
using snapkv_int4 = kv_manager<presets::snapkv_int4>;
using dynakv_k8v4 = kv_manager<presets::dynakv_k8v4>;
using kvswap_int4 = kv_manager<presets::kvswap_int4, engine_inputs_for<presets::kvswap_int4>>;
using flexgen_int4 = kv_manager<presets::flexgen_int4>;
using full_k8v4_rotated = kv_manager<presets::full_k8v4_rotated>;
using full_int4_rotated = kv_manager<presets::full_int4_rotated>;
using full_int2_rotated = kv_manager<presets::full_int2_rotated>;
using dynakv_int4_rotated = kv_manager<presets::dynakv_int4_rotated>;

}} // namespace kvtl::v0
