// SPDX-License-Identifier: MIT
#include "conversations.hpp"

#include <algorithm>

namespace kvtl_server {

namespace {

/// Tokens with which both begin.
std::size_t common(std::span<const token_id> a, std::span<const token_id> b) {
    const auto ends = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
    return static_cast<std::size_t>(ends.first - a.begin());
}

} // namespace

std::optional<granted> conversations::take(const std::string& space, std::span<const token_id> prompt) {
    std::optional<granted> g = go_on(space, prompt);
    if (!g) {
        sequence* const p = least_used();
        if (p == nullptr) return std::nullopt;
        g = granted{.place = static_cast<unsigned>(p - places_.data()), .held = 0};
        drop(g->place);
    }
    places_[g->place].busy = true;
    places_[g->place].space = space;
    return g;
}

std::optional<granted> conversations::go_on(const std::string& space, std::span<const token_id> prompt) {
    std::vector<granted> found;
    bool unused = false;
    for (unsigned i = 0; i < places_.size(); ++i) {
        const sequence& p = places_[i];
        if (p.busy) continue;
        unused = unused || p.tokens.empty();
        if (p.tokens.empty() || p.space != space) continue;
        // The last token of a prompt is decoded in any case, for its logits.
        const std::size_t n = std::min(common(p.tokens, prompt), prompt.size() - 1);
        if (n > 0) found.push_back({i, n});
    }
    std::stable_sort(found.begin(), found.end(),
                     [](const granted& a, const granted& b) { return a.held > b.held; });
    for (const granted& g : found) {
        sequence& p = places_[g.place];
        // Another conversation is not cut for a short beginning while a sequence is unused.
        if (unused && g.held < p.tokens.size() / 2) continue;
        if (g.held < p.tokens.size() && !session_.rewind(g.place, g.held)) continue;
        p.tokens.resize(g.held);
        return g;
    }
    return std::nullopt;
}

conversations::sequence* conversations::least_used() {
    sequence* least = nullptr;
    for (sequence& p : places_)
        if (!p.busy && (least == nullptr || p.used < least->used)) least = &p;
    return least;
}

void conversations::add(unsigned place, std::span<const token_id> tokens) {
    auto& all = places_[place].tokens;
    all.insert(all.end(), tokens.begin(), tokens.end());
}

void conversations::give_back(unsigned place) {
    places_[place].busy = false;
    places_[place].used = ++now_;
}

void conversations::drop(unsigned place) {
    if (session_.held(place) > 0) session_.end(place);
    places_[place] = {};
}

} // namespace kvtl_server
