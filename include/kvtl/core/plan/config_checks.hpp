// What open() checks of a config whatever the preset's policies are, and what it says when memory_bytes is
// too small. Not templates of the preset: they are compiled once.
//
// Errors: each names the field, its value and what is valid.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/config.hpp>
#include <kvtl/slots/unit_means.hpp>
#include <kvtl/statistics.hpp>
#include <kvtl/status.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace kvtl { inline namespace v0 {

/// Pages of one request: a gap cannot be longer.
inline constexpr std::uint32_t most_read_through_pages = 128;

/// What a preset's slots say about which fields of the config count.
struct config_limits {
    const char* name = "";
    std::uint32_t kv_heads = 1;
    bool one_shard = false;          ///< all heads of a sequence belong to one shard
    bool drops = false;              ///< retention gives entries up
    bool retrieves = false;          ///< entries become units
    bool chooses = false;            ///< a selector chooses among these
    bool by_entry = false;           ///< they lie in token order
    std::uint32_t window_tokens = 0; ///< the preset's own
};

/// The fields that need no template to be read.
struct config_numbers {
    std::size_t max_tokens = 0, max_sequences = 0, memory_bytes = 0, attend_tokens = 0, keep_tokens = 0;
    std::uint32_t window_tokens = 0, sink_tokens = 0, tail_frames = 0, read_through_pages = 0, mean_bits = 8;
    unsigned shards = 0;
    bool divide_sequences = false, share = false, adapt_prompt = false;
};

[[nodiscard, gnu::cold]] inline status check_numbers(const config_numbers& c,
                                                     const config_limits& p) noexcept {
    constexpr std::uint32_t most_tokens = 1U << 26;
    const auto wrong = errc::invalid_argument;
    if (c.max_tokens == 0 || c.max_tokens > most_tokens)
        return status::failure(wrong, "max_tokens is %zu; valid: 1 to %u", c.max_tokens, most_tokens);
    if (c.max_sequences == 0 || c.max_sequences > 4096)
        return status::failure(wrong, "max_sequences is %zu; valid: 1 to 4096", c.max_sequences);
    if (c.divide_sequences && !p.one_shard && (c.shards == 0 || c.shards > c.max_sequences))
        return status::failure(wrong,
                               "shards is %u; valid where sequences are divided: 1 to max_sequences (%zu)",
                               c.shards, c.max_sequences);
    if (c.shards == 0 || c.shards > 256 || (!p.one_shard && !c.divide_sequences && c.shards > p.kv_heads))
        return status::failure(wrong, "shards is %u; valid: 1 to the number of KV heads (%u)", c.shards,
                               p.kv_heads);
    if (c.memory_bytes == 0) return status::failure(wrong, "memory_bytes is 0; valid: what the parts need");
    if (c.keep_tokens != 0 && !p.drops)
        return status::failure(wrong, "keep_tokens is %zu; valid: 0, as preset %s keeps every entry",
                               c.keep_tokens, p.name);
    if (c.attend_tokens == 0 && (p.retrieves || c.keep_tokens == 0))
        return p.drops && !p.retrieves
                   ? status::failure(wrong,
                                     "keep_tokens and attend_tokens are 0; valid: 1 and more for one of them")
                   : status::failure(wrong, "attend_tokens is 0; valid: 1 and more");
    if (c.window_tokens == 0) return status::failure(wrong, "window_tokens is 0; valid: 1 and more");
    if (c.window_tokens != p.window_tokens && c.window_tokens != whole_sequence &&
        c.window_tokens != automatic && c.window_tokens > c.max_tokens)
        return status::failure(wrong, "window_tokens is %u; valid: 1 to max_tokens (%zu), or whole_sequence",
                               c.window_tokens, c.max_tokens);
    const std::size_t pinned = std::size_t{c.sink_tokens} + c.window_tokens;
    if (p.chooses && c.window_tokens != automatic && c.max_tokens > pinned && c.attend_tokens <= pinned)
        return status::failure(
            wrong,
            "attend_tokens is %zu; valid: more than sink_tokens + window_tokens = %u + %u, "
            "which are always attended",
            c.attend_tokens, c.sink_tokens, c.window_tokens);
    if (!unit_means::valid_bits(c.mean_bits))
        return status::failure(wrong, "mean_bits is %u; valid: 8, 16 and 32", c.mean_bits);
    if (c.tail_frames == 0) return status::failure(wrong, "tail_frames is 0; valid: 1 and more");
    if (c.read_through_pages > most_read_through_pages)
        return status::failure(wrong, "read_through_pages is %u; valid: 0 to %u", c.read_through_pages,
                               most_read_through_pages);
    if (c.adapt_prompt && p.drops)
        return status::failure(wrong,
                               "adapt_prompt is true; valid: false, as preset %s decides what a prompt "
                               "keeps when its last chunk has come",
                               p.name);
    if (c.share && c.max_sequences > 1 && p.by_entry && c.window_tokens < c.max_tokens)
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

template <class Config> [[nodiscard]] status check_config(const Config& c, const config_limits& p) noexcept {
    if (status s = check_attention(c.attention); !s) return s;
    return check_numbers({c.max_tokens, c.max_sequences, c.memory_bytes, c.attend_tokens, c.keep_tokens,
                          c.window_tokens, c.sink_tokens, c.tail_frames, c.read_through_pages, c.mean_bits, c.shards,
                          c.divide == division::sequences, c.share, c.adapt_prompt},
                         p);
}

[[nodiscard]] constexpr std::size_t whole_pages(std::size_t bytes) noexcept {
    return (bytes + 4095) / 4096 * 4096;
}

/// What the lines of the error say beside their numbers.
struct memory_notes {
    const char* with = "";
    const char* frames = "";
    std::string last;
};

[[nodiscard, gnu::cold]] inline error bound_too_small(std::string_view preset, std::size_t memory_bytes,
                                                      std::size_t least, const memory_parts& m,
                                                      const memory_notes& notes) {
    std::string text = "memory_bytes is " + std::to_string(memory_bytes) + "; preset " + std::string(preset) +
                       " needs at least " + std::to_string(least) + " with " + notes.with + ":";
    const auto line = [&text](const char* name, std::size_t bytes, const char* note) {
        char row[200];
        std::snprintf(row, sizeof row, "\n  %-11s %12zu bytes%s", name, bytes, note);
        text += row;
    };
    line("index", m.index, "");
    line("metadata", m.metadata, "");
    line("window", m.window, " (sinks included)");
    line("buffers", m.buffers, "");
    line("tails", m.tails, "");
    line("scratch", m.scratch, "");
    line("frames", m.frames, notes.frames);
    line("calibration", m.calibration, "");
    return {errc::bound_too_small, text + notes.last};
}

}} // namespace kvtl::v0
