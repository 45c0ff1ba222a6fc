// Presets that store entries as bytes, signed or E4M3, with one scale per row (compress_byte_row.hpp). Entries take
// half of the bytes of 16-bit entries: on storage, in memory and in the reads of every step. Window, sinks
// and pending entries stay 16-bit. In snapkv_int8, which keeps rows in memory, all entries become bytes at once,
// also while the prompt arrives in chunks.
//
//   full_int8    everything is attended: the last 32 entries as 16-bit rows, all older ones as bytes.
//   snapkv_int8  snapkv_group, with all entries as bytes.
//   dynakv_int8  dynakv with clusters of bytes: a page has twice the entries.
//   kvswap_int8  kvswap with groups of bytes.
//   full_fp8     full_int8 with bytes of E4M3: smaller errors of small numbers, larger errors of large ones.
//   dynakv_fp8   dynakv_int8 with bytes of E4M3.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/compress_byte_row.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/flexgen.hpp>
#include <kvtl/presets/kvswap.hpp>
#include <kvtl/presets/snapkv.hpp>

namespace kvtl { inline namespace v0 {

namespace presets {

/// Entries leave the window 16 at a time. memory_bytes must hold all entries.
struct full_int8 : full {
    static constexpr std::string_view name = "full_int8";
    static constexpr std::uint32_t window_tokens = 32;
    using compressor = int8_row<>;
};

struct snapkv_int8 : snapkv_group {
    static constexpr std::string_view name = "snapkv_int8";
    using compressor = int8_row<>;
};

struct dynakv_int8 : dynakv {
    static constexpr std::string_view name = "dynakv_int8";
    using compressor = int8_row<>;
};

struct kvswap_int8 : kvswap {
    static constexpr std::string_view name = "kvswap_int8";
    using compressor = int8_row<>;
};

struct full_fp8 : full_int8 {
    static constexpr std::string_view name = "full_fp8";
    using compressor = fp8_row<>;
};

struct dynakv_fp8 : dynakv_int8 {
    static constexpr std::string_view name = "dynakv_fp8";
    using compressor = fp8_row<>;
};

} // namespace presets

using full_int8 = kv_manager<presets::full_int8>;
using snapkv_int8 = kv_manager<presets::snapkv_int8>;
using dynakv_int8 = kv_manager<presets::dynakv_int8>;
using kvswap_int8 = kv_manager<presets::kvswap_int8, engine_inputs_for<presets::kvswap_int8>>;
using full_fp8 = kv_manager<presets::full_fp8>;
using dynakv_fp8 = kv_manager<presets::dynakv_fp8>;

}} // namespace kvtl::v0
