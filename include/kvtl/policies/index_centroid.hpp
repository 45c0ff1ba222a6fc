// Index: a unit is represented by the mean of its post-RoPE keys. Its score for a query is their inner
// product (DynaKV §4.1 Eq. 4; ClusterKV, RetroInfer, PQCache's coarse level).
//
// The clusterer maintains the means (one copy per lane, config.centroid_bits per number).
// Cost: score() reads every mean once for the whole query group.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/engine_inputs.hpp>
#include <kvtl/slots/index.hpp>
#include <kvtl/unit.hpp>
#include <kvtl/views.hpp>

#include <span>
#include <string_view>

namespace kvtl { inline namespace v0 {

struct centroid {
    static constexpr std::string_view name = "centroid";
    static constexpr engine_input needs = engine_input::q | engine_input::k;
    static constexpr bool needs_means = true;
    static constexpr bool scores = true;
    struct config {
        template <class Visit> void fields(Visit&&) {}
    };
    class state {
      public:
        state() = default;
        state(const config&, const geometry&) noexcept {}
        [[nodiscard]] static std::size_t bytes_per_unit() noexcept { return 0; } // beyond the shared means

        /// out[i * u.count + j] = query i . mean of unit j, shape (queries, U). `q`: (queries, u.dim).
        void score(const float* q, std::uint32_t queries, const units_view& u,
                   std::span<float> out) const noexcept {
            u.mean.score(q, queries, u.count, out.data());
        }
    };
};

}} // namespace kvtl::v0
