// Schedule: while a layer computes, the engine hands over the query of the next layer, predicted from this
// layer's input. The manager then scores, chooses and starts the reads (KVSwap §3.4, InfiniGen §4).
//
// It belongs to selectors with the source query::predicted: the next attend() uses the choice that prefetch()
// made. The first `true_layers` layers choose with their true query. So does a layer without a prediction
// (read on demand, counted in statistics::unpredicted_choices). A prediction for one of the first layers
// except layer 0, which is never predicted, is ignored: it would prefetch other units than the layer's own
// query chooses.
//
// KVSwap's authors run 2, and InfiniGen's speculation also begins in layer 1. The input of layer 0 is the
// embedding of the token, which predicts the query of layer 1 badly. Selectors that take everything, or that
// choose for the current query, do not read the setting.
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
