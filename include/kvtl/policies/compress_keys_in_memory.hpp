// Compressor: another one, whose keys stay in memory; storage has values alone.
//
// Bytes:  per entry of a lane the records of keys that the other one makes.
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
