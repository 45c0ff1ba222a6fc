// Schedule: while a layer computes, the engine hands the query of the next one as predicted from this layer's
// input, and the manager scores, chooses and starts the reads (KVSwap §3.4, InfiniGen §4).
//
// Goes with selectors whose source is query::predicted: the next attend() uses the choice that prefetch()
// made. The first `true_layers` layers choose with their true query, and so does a layer that got no prediction
// (read on demand, counted in statistics::unpredicted_choices). A prediction for one of them but layer 0, which nobody
// predicts, is passed over: what it would read ahead is not what its own query wants.
//
// 2 is what KVSwap's authors run, and InfiniGen's speculation begins in layer 1, too: the input of layer 0 is the
// embedding of the token, which says little of layer 1's query. Selectors that take everything, or choose for the current
// query, do not read the setting.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/schedule.hpp>
#include <kvtl/status.hpp>

#include <cstdint>
#include <string_view>

namespace kvtl { inline namespace v0 {

struct next_layer {
    static constexpr std::string_view name = "next_layer";
    static constexpr bool wants_prediction = true;
    struct config {
        std::uint32_t true_layers =
            2; ///< choose with their true query; at least 1: nobody predicts layer 0's
        template <class Visit> void fields(Visit&& visit) { visit("true_layers", true_layers); }
    };
    [[nodiscard]] static status check(const config& c) noexcept {
        if (c.true_layers != 0) return {};
        return status::failure(errc::invalid_argument,
                               "schedule.true_layers is 0; valid: 1 (no layer predicts the query of "
                               "layer 0) or more");
    }
};

}} // namespace kvtl::v0
