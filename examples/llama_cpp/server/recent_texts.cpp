// SPDX-License-Identifier: MIT
#include "recent_texts.hpp"

#include <algorithm>
#include <optional>
#include <utility>

namespace kvtl_server {

namespace {

/// A text in bytes, with the end of each token.
struct spelt {
    std::string bytes;
    std::vector<std::size_t> ends;
};

spelt spell(std::span<const token_id> tokens, const recent_texts::spelling& piece) {
    spelt s;
    s.ends.reserve(tokens.size());
    for (const token_id id : tokens) {
        s.bytes += piece(id);
        s.ends.push_back(s.bytes.size());
    }
    return s;
}

/// A place between two tokens of two texts.
struct boundary {
    std::size_t said = 0, prompt = 0; ///< tokens before it
};

/// The last one that both have; nothing where the prompt does not begin with all bytes of what was said.
std::optional<boundary> last_common(const spelt& prompt, std::span<const token_id> said,
                                    const recent_texts::spelling& piece) {
    boundary last;
    std::size_t at = 0, j = 0;
    for (std::size_t i = 0; i < said.size(); ++i) {
        const std::string bytes = piece(said[i]);
        if (prompt.bytes.compare(at, bytes.size(), bytes) != 0) return std::nullopt;
        at += bytes.size();
        while (j < prompt.ends.size() && prompt.ends[j] < at) ++j;
        if (j < prompt.ends.size() && prompt.ends[j] == at) last = {i + 1, j + 1};
    }
    return last.said > 0 ? std::optional(last) : std::nullopt;
}

} // namespace

std::size_t common_beginning(std::span<const token_id> a, std::span<const token_id> b) {
    const auto ends = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
    return static_cast<std::size_t>(ends.first - a.begin());
}

void recent_texts::remember(const std::string& space, std::vector<token_id> tokens) {
    std::erase_if(texts_, [&](const text& t) {
        const bool within = t.space == space && common_beginning(t.tokens, tokens) == t.tokens.size();
        if (within) tokens_ -= t.tokens.size() + cost_of_a_text;
        return within;
    });
    tokens_ += tokens.size() + cost_of_a_text;
    texts_.push_front({space, std::move(tokens)});
    while (tokens_ > most_ && texts_.size() > 1) {
        tokens_ -= texts_.back().tokens.size() + cost_of_a_text;
        texts_.pop_back();
    }
}

std::size_t recent_texts::shared(const std::string& space, std::span<const token_id> prompt) const {
    std::size_t most = 0;
    for (const text& t : texts_)
        if (t.space == space) most = std::max(most, common_beginning(t.tokens, prompt));
    return most;
}

std::vector<token_id> recent_texts::as_said(const std::string& space, std::span<const token_id> prompt,
                                            const spelling& piece) const {
    const spelt spelt_prompt = spell(prompt, piece);
    boundary best;
    const text* from = nullptr;
    for (const text& t : texts_) {
        if (t.space != space || t.tokens.size() <= best.said) continue;
        const auto found = last_common(spelt_prompt, t.tokens, piece);
        if (found && found->said > best.said) best = *found, from = &t;
    }
    std::vector<token_id> tokens;
    if (from != nullptr)
        tokens.assign(from->tokens.begin(), from->tokens.begin() + static_cast<std::ptrdiff_t>(best.said));
    tokens.insert(tokens.end(), prompt.begin() + static_cast<std::ptrdiff_t>(best.prompt), prompt.end());
    return tokens;
}

} // namespace kvtl_server
