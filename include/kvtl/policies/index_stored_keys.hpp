// Index: the stored keys themselves, every entry scored by the record of its key, where it lives.
//
//   score(q, entry) = q . key as stored
//
// What:   where the compressor keeps keys in memory (key_home) they are scored there, and storage has values
//         alone. Where they are on storage they are read at every step: keys have pages of their own then, which
//         come in long runs, and DRAM holds no key but those of the window, the resident units and the unfinished
//         page. Values of units that are not chosen are never read.
// Bytes:  none of its own. Read per step and KV head, where keys are on storage: all of their records.
// Cost:   the codec's score() of T records per query that scores, and the time that the device takes to read them.
// Limits: units of consecutive entries in token order, as only these are found without reading them. With a
//         reduction that is not linear keys on storage are read once for each KV head of the lane.
// Source: the baseline without clusters of DynaKV (Table 1), whose keys may not fit.
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
