// Score: later entries are better. With pinned sinks this is StreamingLLM's cache, and without them a sliding
// window.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/retention.hpp>

namespace kvtl { inline namespace v0 {

struct sink_recent : score_defaults {
    static constexpr std::string_view name = "sink_recent";
    static constexpr score_source source = score_source::keys;
    static constexpr bool evicts_in_decode = true;
    class state : public score_state<config> {
      public:
        using score_state<config>::score_state;
        template <element E> void score(const prompt_lane<E>& lane, std::span<float> out) const noexcept {
            for (std::uint32_t t = 0; t < lane.tokens(); ++t)
                out[t] = -static_cast<float>(lane.tokens() - 1 - t); // exact up to 16 million tokens
        }
        [[nodiscard]] float worth(const held_entry& e, const record&) const noexcept { return -e.age(); }
    };
};

}} // namespace kvtl::v0
