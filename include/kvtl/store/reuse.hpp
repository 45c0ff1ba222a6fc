// What a preset loses when a prompt is read in two parts: a stored prefix P first, and what follows it, S, later.
//
// Continuing a stored P with S always equals "P, then S as a further turn" as far as load() and fork() are exact. This is
// about the difference from reading P and S as one prompt.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/preset.hpp>

#include <cstdint>

namespace kvtl { inline namespace v0 {

/// How a stored prefix stands to one prompt. Whatever it is, a step that attends everything is exact attention over what was kept.
enum class prefix_reuse : std::uint8_t {
    exact, ///< the same entries in the same units
    other_clusters, ///< every entry; clusters, bases or thresholds are those of P, and S joins them as decoded tokens do
    question_blind, ///< P was thinned out before S was seen: a preset that goes by the question loses what it is good at
};

[[nodiscard]] constexpr const char* name_of(prefix_reuse reuse) noexcept {
    constexpr const char* names[] = {"exact", "other_clusters", "question_blind"};
    return reuse <= prefix_reuse::question_blind ? names[static_cast<std::uint8_t>(reuse)] : "unknown";
}

template <class Preset> [[nodiscard]] consteval prefix_reuse reuse_of() noexcept {
    if (drops_entries<Preset>) return prefix_reuse::question_blind;
    const bool clusters = retrieves<Preset> && Preset::clusterer::clusters_prompt;
    const bool fits = codec_fits_lanes<typename Preset::compressor> ||
                      (retrieves<Preset> && (fits_first_keys<typename Preset::index> ||
                                             calibrates_on_prompts<typename Preset::selector>));
    return clusters || fits ? prefix_reuse::other_clusters : prefix_reuse::exact;
}

}} // namespace kvtl::v0
