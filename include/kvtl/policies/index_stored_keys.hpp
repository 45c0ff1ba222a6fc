// Index: the stored keys themselves. Every entry is scored from the record of its key, where it is stored.
//
//   score(q, entry) = q . key as stored
//
// What:   keys that the compressor keeps in memory (key_home) are scored there, and storage has only values.
//         Keys on storage are read at every step. They then have their own pages, which are read in long
//         runs. DRAM holds only the keys of the window, of resident units and of the open page. Values of
//         units that are not chosen are never read.
// Bytes:  none. Read per step and KV head, if keys are on storage: all their records.
// Cost:   the codec's score() of T records per scoring query, and the time of the device to read them.
// Limits: units of consecutive entries in token order, because only these are found without reading them.
//         With a reduction that is not linear, keys on storage are read once for each KV head of the lane.
// Source: the baseline without clusters of DynaKV (Table 1), for keys that do not fit in memory.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/engine_inputs.hpp>
#include <kvtl/slots/index.hpp>

#include <string_view>

namespace kvtl { inline namespace v0 {

struct stored_keys {
    static constexpr std::string_view name = "stored_keys";
    static constexpr engine_input needs = engine_input::q | engine_input::k;
    static constexpr bool needs_means = false;
    static constexpr bool scores = true;
    static constexpr bool per_entry = true;
    static constexpr bool scores_stored_keys = true;
    struct config {
        template <class Visit> void fields(Visit&&) {}
    };

    class state {
      public:
        state() = default;
        state(const config&, const geometry&) noexcept {}
    };
};

}} // namespace kvtl::v0
