// How many bytes each token takes where records have sizes of their own: by kind of token and by layer.
//
// Units: shares of a row of 16-bit numbers; headers of records are in them.
// SPDX-License-Identifier: MIT
#pragma once

#include "kv_cache.hpp"
#include "stage.hpp"
#include "tokenizer.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace eval {

enum class token_kind : std::uint8_t {
    first,       ///< of the sequence
    punctuation, ///< nothing but ASCII punctuation and spaces
    common,      ///< of the commonest tokens that together make half of the text
    rare,        ///< once in the text
    other,
};
inline constexpr std::array<std::string_view, 5> token_kinds = {"first", "punctuation", "common", "rare",
                                                                "other"};

[[nodiscard]] std::vector<token_kind> kinds_of(std::span<const engine::token_id> text,
                                               const engine::tokenizer& words);

/// Sums over tokens.
struct retained_sum {
    double keys = 0, values = 0; ///< shares
    std::size_t rows = 0;

    void add(double key, double value) { keys += key, values += value, ++rows; }
};

struct retained {
    std::vector<retained_sum> layers; ///< empty: records have one size
    std::array<retained_sum, token_kinds.size()> kinds{};

    /// All tokens of a recording, `text` their kinds.
    void add(const engine::record_sizes& sizes, const recording& of, const kvtl::shape& shape,
             std::span<const token_kind> text);
};

} // namespace eval
