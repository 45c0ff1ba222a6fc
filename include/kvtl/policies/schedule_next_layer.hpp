// Schedule: while a layer computes, the engine hands the query of the next one as predicted from this layer's
// input, and the manager scores, chooses and starts the reads (KVSwap §3.4, InfiniGen §4).
//
// Goes with selectors whose source is query::predicted: the next attend() uses the choice that prefetch()
// made. Layer 0 chooses with its true query, and so does a layer that got no prediction (read on demand,
// counted in statistics::unpredicted_choices).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/schedule.hpp>

#include <string_view>

namespace kvtl { inline namespace v0 {

struct next_layer {
    static constexpr std::string_view name = "next_layer";
    static constexpr bool wants_prediction = true;
};

}} // namespace kvtl::v0
