// Compressor: a wrapper of another compressor that keeps keys in memory; storage has only values.
//
// Bytes:  per entry of a lane, the wrapped compressor's records of keys.
// Cost:   a unit that is read gets its keys from memory, decoded to plain rows.
// Limits: units of consecutive entries, records of one size (slots/compressor.hpp, Home).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/compressor.hpp>

namespace kvtl { inline namespace v0 {

template <class Compressor> struct keys_in_memory : Compressor {
    static constexpr home key_home = home::memory;
};

}} // namespace kvtl::v0
