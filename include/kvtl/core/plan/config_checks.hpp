// What open() checks of a config whatever the preset's policies are, and what it says when memory_bytes is
// too small. Not templates of the preset: they are compiled once.
//
// Errors: each names the field, its value and what is valid.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/config.hpp>
#include <kvtl/core/plan/settings.hpp>
#include <kvtl/slots/unit_means.hpp>
#include <kvtl/statistics.hpp>
#include <kvtl/status.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

namespace kvtl { inline namespace v0 {

/// Pages of one request: a gap cannot be longer.
inline constexpr std::uint32_t most_read_through_pages = 128;
/// Of a manager, whatever is divided among them.
inline constexpr unsigned most_shards = 256;

/// What must be attended at least where not everything is, so that something can be chosen: behind what is always
/// attended comes the arriving token, then a unit.
[[nodiscard]] constexpr std::size_t least_attended(std::size_t sinks, std::size_t window,
                                                   std::uint32_t unit) noexcept {
    return sinks + window + 1 + unit;
}
/// A lane of max_tokens has something to choose from, more than it may attend, and yet can choose nothing of it.
[[nodiscard]] constexpr bool nothing_to_choose(std::size_t attend, std::size_t max_tokens, std::size_t sinks,
                                               std::size_t window, std::uint32_t unit) noexcept {
    return max_tokens >= sinks + window + unit && attend < max_tokens &&
           attend < least_attended(sinks, window, unit);
}

/// Numbers that all presets share. unit_tokens: entries of the smallest unit that can be chosen.
[[nodiscard, gnu::cold]] inline status check_numbers(const common_settings& c, const policy_facts& p,
                                                     std::uint32_t kv_heads,
                                                     std::uint32_t unit_tokens) noexcept {
    constexpr std::uint32_t most_tokens = 1U << 26;
    const auto wrong = errc::invalid_argument;
    if (c.max_tokens == 0 || c.max_tokens > most_tokens)
        return status::failure(wrong, "max_tokens is %zu; valid: 1 to %u", c.max_tokens, most_tokens);
    if (c.max_sequences == 0 || c.max_sequences > 4096)
        return status::failure(wrong, "max_sequences is %zu; valid: 1 to 4096", c.max_sequences);
    // A shard without a part of what is divided would never be called.
    const bool by_sequence = c.shard_by == division::sequences && !p.one_shard;
    const std::size_t parts = p.one_shard ? most_shards : by_sequence ? c.max_sequences : kv_heads;
    if (c.shards == 0 || c.shards > std::min<std::size_t>(parts, most_shards))
        return p.one_shard || parts > most_shards
                   ? status::failure(wrong, "shards is %u; valid: 1 to %u", c.shards, most_shards)
               : by_sequence
                   ? status::failure(
                         wrong, "shards is %u; valid where sequences are divided: 1 to max_sequences (%zu)",
                         c.shards, parts)
                   : status::failure(wrong, "shards is %u; valid: 1 to the number of KV heads (%zu)",
                                     c.shards, parts);
    if (c.memory_bytes == 0)
        return status::failure(wrong, "memory_bytes is 0; valid: least_memory(config) and more");
    if (c.keep_tokens != 0 && !p.drops)
        return status::failure(wrong, "keep_tokens is %zu; valid: 0, as preset %s keeps every entry",
                               c.keep_tokens, c.preset.data());
    if (c.attend_tokens == 0 && (p.retrieves || c.keep_tokens == 0))
        return p.drops && !p.retrieves
                   ? status::failure(wrong,
                                     "keep_tokens and attend_tokens are 0; valid: 1 and more for one of them")
                   : status::failure(wrong, "attend_tokens is 0; valid: 1 and more");
    if (c.window_tokens == 0) return status::failure(wrong, "window_tokens is 0; valid: 1 and more");
    if (c.window_tokens != c.preset_window && c.window_tokens != whole_sequence &&
        c.window_tokens != automatic && c.window_tokens > c.max_tokens)
        return status::failure(wrong, "window_tokens is %u; valid: 1 to max_tokens (%zu), or whole_sequence",
                               c.window_tokens, c.max_tokens);
    if (c.sink_tokens != c.preset_sinks && c.sink_tokens > c.max_tokens)
        return status::failure(wrong, "sink_tokens is %u; valid: 0 to max_tokens (%zu)", c.sink_tokens,
                               c.max_tokens);
    if (p.chooses && c.window_tokens != automatic &&
        nothing_to_choose(c.attend_tokens, c.max_tokens, c.sink_tokens, c.window_tokens, unit_tokens))
        return status::failure(wrong,
                               "attend_tokens is %zu, which leaves preset %s nothing to choose; valid: %zu "
                               "and more (sink_tokens + "
                               "window_tokens = %u + %u and the arriving token are always attended, a unit "
                               "has %u), or max_tokens",
                               c.attend_tokens, c.preset.data(),
                               least_attended(c.sink_tokens, c.window_tokens, unit_tokens), c.sink_tokens,
                               c.window_tokens, unit_tokens);
    if (!unit_means::valid_bits(c.centroid_bits))
        return status::failure(wrong, "centroid_bits is %u; valid: 8, 16 and 32", c.centroid_bits);
    if (c.open_pages == 0) return status::failure(wrong, "open_pages is 0; valid: 1 and more");
    if (c.read_through_pages > most_read_through_pages)
        return status::failure(wrong, "read_through_pages is %u; valid: 0 to %u", c.read_through_pages,
                               most_read_through_pages);
    if (c.adapt_prompt && p.drops)
        return status::failure(wrong,
                               "adapt_prompt is true; valid: false, as preset %s decides what a prompt "
                               "keeps when its last chunk has come",
                               c.preset.data());
    if (c.share && c.max_sequences > 1 && p.sequential && c.window_tokens < c.max_tokens)
        return status::failure(wrong,
                               "share is true; valid with this layout (entries in token order): false, "
                               "as prompts of other sequences would cut a sequence's stream short");
    return {};
}

[[nodiscard, gnu::cold]] inline status check_attention(const attention_rule& rule) noexcept {
    const auto wrong = errc::invalid_argument;
    if (!(rule.scale >= 0) || !std::isfinite(rule.scale))
        return status::failure(wrong, "attention.scale is %g; valid: 0 (1 / sqrt(head_dim)) or more",
                               static_cast<double>(rule.scale));
    if (!(rule.softcap >= 0) || !std::isfinite(rule.softcap))
        return status::failure(wrong, "attention.softcap is %g; valid: 0 (none) or more",
                               static_cast<double>(rule.softcap));
    return {};
}

/// Lanes and bytes that every index and every product of sizes can hold, whatever the policies make of them.
[[nodiscard, gnu::cold]] inline status check_extents(std::size_t max_tokens, std::size_t max_sequences,
                                                     const shape& s) noexcept {
    constexpr double most_lanes = 1U << 28, most_bytes = 1e18;
    const double lanes = static_cast<double>(max_sequences) * s.layers * s.kv_heads;
    if (lanes > most_lanes)
        return status::failure(
            errc::invalid_argument,
            "max_sequences is %zu with %u layers of %u KV heads, together %.0f; valid: what "
            "makes up to %.0f",
            max_sequences, s.layers, s.kv_heads, lanes, most_lanes);
    if (lanes * s.head_dim * 4 * static_cast<double>(max_tokens) > most_bytes)
        return status::failure(
            errc::invalid_argument,
            "max_tokens is %zu with max_sequences %zu and this shape, which is %.3g bytes of "
            "keys and values; valid: up to 10^18",
            max_tokens, max_sequences, lanes * s.head_dim * 4 * static_cast<double>(max_tokens));
    return {};
}

[[nodiscard, gnu::cold]] inline status check_config(const common_settings& c, const policy_facts& p,
                                                    std::uint32_t kv_heads,
                                                    std::uint32_t unit_tokens) noexcept {
    if (status s = check_attention(c.attention); !s) return s;
    return check_numbers(c, p, kv_heads, unit_tokens);
}

[[nodiscard]] constexpr std::size_t whole_pages(std::size_t bytes, std::size_t page = 4096) noexcept {
    return (bytes + page - 1) / page * page;
}

/// What the lines of the error say beside their numbers.
struct memory_notes {
    const char* with = "";
    const char* frames = "";
    std::string last;
};

[[nodiscard, gnu::cold]] inline std::pair<std::string_view, std::size_t>
largest_part(const memory_parts& m) noexcept {
    std::pair<std::string_view, std::size_t> largest;
    m.each([&](std::string_view name, std::size_t bytes) {
        if (bytes > largest.second) largest = {name, bytes};
    });
    return largest;
}

/// A line per part; the last one names the largest part and what best_knobs::text() says.
[[nodiscard, gnu::cold]] inline error bound_too_small(std::string_view preset, std::size_t memory_bytes,
                                                      std::size_t least, const memory_parts& m,
                                                      const memory_notes& notes, const std::string& knobs) {
    std::string text = "memory_bytes is " + std::to_string(memory_bytes) + "; preset " + std::string(preset) +
                       " needs at least " + std::to_string(least) + " with " + notes.with + ":";
    m.each([&](std::string_view name, std::size_t bytes) {
        char row[80];
        std::snprintf(row, sizeof row, "\n  %-11s %12zu bytes", name.data(), bytes);
        text += row;
        if (name == "window") text += " (sinks included)";
        if (name == "frames") text += notes.frames;
    });
    const auto [part, bytes] = largest_part(m);
    char share[80];
    std::snprintf(share, sizeof share, "\n  largest: %s, %.0f %% of it; ", part.data(),
                  100.0 * static_cast<double>(bytes) / static_cast<double>(std::max<std::size_t>(1, least)));
    return {errc::bound_too_small, text + notes.last + share + knobs};
}

}} // namespace kvtl::v0
