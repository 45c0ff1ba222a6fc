// The knobs of a config that change how much memory a cache needs at least, and the sentence that names the one
// that would help most.
//
// What:   cache_planner::too_small() turns each knob step by step and plans again, until memory_bytes holds the cache: the
//         sentence is computed, not guessed. A step halves a number (shards become one); the preset's own size knobs
//         (Preset::shrink, or tokens_per_cluster) take one turn. A knob that is not enough after a
//         few steps is named with one.
// Cost:   of an open() that fails. Nothing here is a template of the preset: it is compiled once.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/config.hpp>
#include <kvtl/slots/policy.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace kvtl { inline namespace v0 {

/// Those that every config has, the clusterer's buffer where it has one, and the preset's size knobs last.
enum class knob : std::uint8_t {
    max_tokens,
    max_sequences,
    prefill_tokens,
    keep_tokens,
    attend_tokens,
    window_tokens,
    sink_tokens,
    open_pages,
    shards,
    pending_entries,
    size
};

/// A knob is turned so often at most: a sixteenth of the tokens is not the cache that was asked for.
inline constexpr int most_turns = 4;

/// What is asked of the cache, not how it is kept: turned down, it serves less.
[[nodiscard]] constexpr bool serves_less(knob k) noexcept {
    return k == knob::max_tokens || k == knob::max_sequences || k == knob::prefill_tokens;
}

/// The numbers of a config by reference, and those of its plan that stand for 0 or `automatic` in them.
struct knob_numbers {
    std::size_t &max_tokens, &max_sequences, &prefill_tokens, &keep_tokens, &attend_tokens;
    std::uint32_t &window_tokens, &sink_tokens, &open_pages;
    unsigned& shards;
    std::uint32_t* pending_entries = nullptr; ///< null: the clusterer has none
    std::size_t planned_keep = 0;             ///< 0: nothing is dropped
    std::uint32_t planned_tails = 0;          ///< 0: there are none
    bool chooses = false;                     ///< attend_tokens count
    std::uint32_t unit_tokens = 1;            ///< entries of the smallest unit that can be chosen
};

/// Turns one knob, all but `size`. Returns what has changed, "window_tokens 16 instead of 32"; empty where there is
/// nothing to turn.
[[nodiscard, gnu::cold]] inline std::string turn(knob k, const knob_numbers& n) {
    const auto changed = [](const char* name, std::size_t from, std::size_t to) {
        if (to >= from) return std::string();
        return std::string(name) + " " + std::to_string(to) + " instead of " + std::to_string(from);
    };
    const auto set = [&](const char* name, auto& field, std::size_t from, std::size_t to) {
        using number = std::remove_cvref_t<decltype(field)>;
        if (to < from) field = static_cast<number>(to);
        return changed(name, from, to);
    };
    const auto half = [](std::size_t of) { return std::max<std::size_t>(1, of / 2); };
    const bool numbered = n.window_tokens != whole_sequence && n.window_tokens != automatic;
    switch (k) {
    case knob::max_tokens:
        return set("max_tokens", n.max_tokens, n.max_tokens, half(n.max_tokens));
    case knob::max_sequences:
        return set("max_sequences", n.max_sequences, n.max_sequences, half(n.max_sequences));
    case knob::prefill_tokens: {
        if (n.planned_keep == 0) return {};
        const std::size_t now =
            n.prefill_tokens == 0 ? n.max_tokens : std::min(n.prefill_tokens, n.max_tokens);
        return set("prefill_tokens", n.prefill_tokens, now, half(now));
    }
    case knob::keep_tokens:
        return set("keep_tokens", n.keep_tokens, n.planned_keep, half(n.planned_keep));
    case knob::attend_tokens: {
        if (!n.chooses) return {};
        const std::size_t pinned = numbered ? std::size_t{n.window_tokens} + n.sink_tokens : 0;
        return set("attend_tokens", n.attend_tokens, n.attend_tokens,
                   std::max(half(n.attend_tokens), pinned + 1 + n.unit_tokens));
    }
    case knob::window_tokens: {
        if (!numbered) return {};
        const std::size_t now = std::min<std::size_t>(n.window_tokens, n.max_tokens);
        return set("window_tokens", n.window_tokens, now, half(now));
    }
    case knob::sink_tokens: {
        const std::size_t now = std::min<std::size_t>(n.sink_tokens, n.max_tokens);
        return set("sink_tokens", n.sink_tokens, now, now / 2);
    }
    case knob::open_pages:
        return set("open_pages", n.open_pages, n.planned_tails, half(n.planned_tails));
    case knob::shards:
        return set("shards", n.shards, n.shards, 1);
    case knob::pending_entries:
        if (n.pending_entries == nullptr) return {};
        return set("clusterer.pending_entries", *n.pending_entries, *n.pending_entries,
                   half(*n.pending_entries));
    case knob::size:
        break;
    }
    return {};
}

/// Of a number that was turned more than once, what turn() said first and last: "max_tokens 250 instead of 1000".
[[nodiscard, gnu::cold]] inline std::string all_turns_of(const std::string& first, const std::string& last) {
    constexpr const char* between = " instead of ";
    return last.substr(0, last.find(between)) + first.substr(first.find(between));
}

/// The numbers of some slots' configs by name.
class knob_listing {
  public:
    template <class Settings> void add(const char* slot, Settings& settings) {
        slot_ = slot;
        show_fields(settings, *this);
    }
    /// What the configs' fields() call.
    template <class Number> void operator()(const char* name, const Number& value) {
        all_.emplace_back(std::string(slot_) + "." + name, static_cast<double>(value));
    }
    /// "clusterer.tokens_per_cluster 32 instead of 16", for every number that differs.
    [[nodiscard, gnu::cold]] std::string instead_of(const knob_listing& before) const {
        std::string text;
        for (std::size_t i = 0; i < std::min(all_.size(), before.all_.size()); ++i) {
            if (all_[i].second == before.all_[i].second) continue;
            char numbers[80];
            std::snprintf(numbers, sizeof numbers, " %.9g instead of %.9g", all_[i].second,
                          before.all_[i].second);
            text += (text.empty() ? "" : " with ") + all_[i].first + numbers;
        }
        return text;
    }

  private:
    const char* slot_ = "";
    std::vector<std::pair<std::string, double>> all_;
};

/// The best of the knobs that were tried: those with which memory_bytes is enough come before the others.
class best_knobs {
  public:
    /// `present`: what the cache needs as it is.
    best_knobs(std::size_t present, std::size_t memory_bytes) noexcept
        : best_{{}, present}, serving_{{}, present}, memory_bytes_(memory_bytes) {}

    /// `change` as turn() said it, with which the cache needs `least` bytes.
    [[gnu::cold]] void tried(knob k, const std::string& change, std::size_t least) {
        if (least < best_.least) best_ = {change, least};
        if (!serves_less(k) && least < serving_.least) serving_ = {change, least};
    }
    /// The knob that helps most; where that one serves less, then the best of the others.
    [[nodiscard, gnu::cold]] std::string text() const {
        if (best_.change.empty()) return "no knob alone makes it smaller";
        std::string all = "what would help most: " + said(best_);
        if (best_.change != serving_.change && !serving_.change.empty())
            all += "; to serve as much: " + said(serving_);
        return all;
    }

  private:
    struct answer {
        std::string change;
        std::size_t least = 0;
    };
    [[nodiscard, gnu::cold]] std::string said(const answer& a) const {
        char needs[96];
        std::snprintf(needs, sizeof needs, " (needs %zu bytes, %.2f MiB%s)", a.least,
                      static_cast<double>(a.least) / (1 << 20),
                      a.least <= memory_bytes_ ? "" : ": not enough");
        return a.change + needs;
    }
    answer best_, serving_;
    std::size_t memory_bytes_;
};

}} // namespace kvtl::v0
