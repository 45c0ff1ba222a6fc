// Fits to traces (calibration/trace_format.hpp): a recorded text, piece by piece, layer by layer.
//
//   auto trace = trace_reader::open("own.trace");
//   auto fit = calibration_fit::make(trace->header().shape, {.rank = 64, .pair_distance = trace->header().pair_distance});
//   if (auto s = add_trace(*fit, *trace); !s) ...
//   auto bases = fit->finish();
//   if (auto s = bases->write("model.cal", trace->header().fingerprint); !s) ...
//
// Memory: one piece of one layer as floats. Cost: that of the reads and of the fit.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/fit/calibration_fit.hpp>
#include <kvtl/calibration/trace_reader.hpp>

#include <algorithm>
#include <limits>

namespace kvtl { inline namespace v0 {

struct trace_pieces {
    std::uint64_t max_tokens =
        std::numeric_limits<std::uint64_t>::max(); ///< of the trace that are used at most
    std::uint64_t piece_tokens = 2048;             ///< at once; keys and queries meet within a piece only
};

/// visit(layer, layer_input) -> status, with q, k, v and k_pre of a piece as far as the trace has them: every layer of the
/// first piece, then of the next. Ends with the first status that is not ok, or when the trace cannot be read.
template <class Visit>
[[nodiscard]] status for_each_piece(trace_reader& trace, const trace_pieces& pieces, Visit&& visit) {
    const trace_header& head = trace.header();
    const std::uint64_t all = std::min(head.tokens, pieces.max_tokens);
    if (pieces.piece_tokens == 0)
        return status::failure(errc::invalid_argument, "piece_tokens is 0; valid: 1 or more");
    std::vector<float> q, k, v, k_pre;
    for (std::uint64_t first = 0; first < all; first += pieces.piece_tokens)
        for (std::uint32_t layer = 0; layer < head.shape.layers; ++layer) {
            for (auto* part : {&q, &k, &v, &k_pre}) part->clear();
            for (std::uint64_t t = first; t < std::min(all, first + pieces.piece_tokens); ++t) {
                const auto e = trace.read(t, layer);
                if (!e) return status::failure(e.error().code, "%s", e.error().message.c_str());
                const auto append = [](std::vector<float>& to, std::span<const float> x) {
                    to.insert(to.end(), x.begin(), x.end());
                };
                append(q, e->q), append(k, e->k), append(v, e->v), append(k_pre, e->k_pre);
            }
            if (status s = visit(layer, layer_input{.q = q, .k = k, .v = v, .k_pre = k_pre}); !s) return s;
        }
    return {};
}

/// A trace as one text of the fit, whose shape it must have.
[[nodiscard]] inline status add_trace(calibration_fit& fit, trace_reader& trace,
                                      const trace_pieces& pieces = {}) {
    if (auto s = trace.require_shape(fit.model()); !s) return s;
    return for_each_piece(trace, pieces,
                          [&](std::uint32_t layer, const layer_input& in) { return fit.add(layer, in); });
}

}} // namespace kvtl::v0
