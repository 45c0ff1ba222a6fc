// SPDX-License-Identifier: MIT
#include "conversations.hpp"

#include "error.hpp"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace kvtl_server {

namespace {

/// Shorter conversations are read again as fast.
constexpr std::size_t least_stored = 64;
/// A shared beginning spares so many tokens, or it is not worth a file of its own.
constexpr std::size_t least_shared = 256;
/// Of the prompts that are remembered, which are 4 MiB.
constexpr std::size_t most_recent_tokens = 1U << 20;

/// Tokens with which both begin.
std::size_t common(std::span<const token_id> a, std::span<const token_id> b) {
    const auto ends = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
    return static_cast<std::size_t>(ends.first - a.begin());
}

kvtl::prefix_space space_of(const std::string& space) {
    return {.tenant = space};
}

} // namespace

void conversations::keep_in(kvtl::prefix_store_config config, bool beginnings) {
    beginnings_ = beginnings;
    store_.emplace(engine::insist(store::open(session_.cache(), std::move(config))));
}

std::optional<granted> conversations::take(const std::string& space, std::span<const token_id> prompt) {
    std::optional<granted> g = go_on(space, prompt);
    if (!g) g = begin(space, prompt);
    if (!g) return std::nullopt;
    places_[g->place].busy = true;
    places_[g->place].space = space;
    if (!store_ || !beginnings_) return g;
    const std::size_t shared = shared_with_others(space, prompt);
    if (shared >= g->held + least_shared) g->shared = shared;
    remember(space, prompt);
    return g;
}

/// Tokens of the longest beginning that another prompt had, fewer than all of this one.
std::size_t conversations::shared_with_others(const std::string& space,
                                              std::span<const token_id> prompt) const {
    std::size_t most = 0;
    for (const asked& a : recent_)
        if (a.space == space) most = std::max(most, common(a.prompt, prompt));
    return std::min(most, prompt.size() - 1);
}

void conversations::remember(const std::string& space, std::span<const token_id> prompt) {
    recent_.push_front({space, {prompt.begin(), prompt.end()}});
    recent_tokens_ += prompt.size();
    while (recent_tokens_ > most_recent_tokens && recent_.size() > 1) {
        recent_tokens_ -= recent_.back().prompt.size();
        recent_.pop_back();
    }
}

/// From a sequence that is there.
std::optional<granted> conversations::go_on(const std::string& space, std::span<const token_id> prompt) {
    std::vector<granted> found;
    for (unsigned i = 0; i < places_.size(); ++i) {
        const sequence& s = places_[i];
        if (s.busy || s.tokens.empty() || s.space != space) continue;
        // The last token of a prompt is decoded in any case, for its logits. Another conversation is not cut for a short
        // beginning.
        const std::size_t n = std::min(common(s.tokens, prompt), prompt.size() - 1);
        if (n > 0 && n >= s.tokens.size() / 2) found.push_back({i, n});
    }
    std::stable_sort(found.begin(), found.end(),
                     [](const granted& a, const granted& b) { return a.held > b.held; });
    for (const granted& g : found) {
        sequence& s = places_[g.place];
        if (g.held < s.tokens.size() && !session_.rewind(g.place, g.held)) continue;
        s.tokens.resize(g.held);
        if (g.held < s.stored) s.stored = s.prefix = 0; // it is another conversation now
        return g;
    }
    return std::nullopt;
}

/// From what is stored, or anew, in place of the sequence that was used least recently.
std::optional<granted> conversations::begin(const std::string& space, std::span<const token_id> prompt) {
    sequence* least = nullptr;
    for (sequence& s : places_)
        if (!s.busy && (least == nullptr || s.used < least->used)) least = &s;
    if (least == nullptr) return std::nullopt;
    granted g{.place = static_cast<unsigned>(least - places_.data()), .held = 0};
    put(g.place);
    drop(g.place);
    if (!store_) return g;
    const auto started = store_->start(prompt, space_of(space));
    if (!started) throw engine::run_failure(started.error().message);
    session_.adopt(g.place, started->seq, started->tokens);
    g.held = started->tokens;
    least->tokens.assign(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(g.held));
    least->stored = g.held;
    least->prefix = started->prefix;
    return g;
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
    session_.end(place);
    places_[place] = {};
}

bool conversations::is_worth_storing(const sequence& s) const noexcept {
    return store_ && !s.busy && s.tokens.size() >= least_stored && s.tokens.size() != s.stored;
}

void conversations::put(unsigned place) {
    sequence& s = places_[place];
    if (!is_worth_storing(s)) return;
    s.prefix = keep(s, shared_.contains(s.prefix) ? 0 : s.prefix);
}

void conversations::store_beginning(unsigned place) {
    sequence& s = places_[place];
    const kvtl::prefix_id id = keep(s, 0);
    if (id != 0) shared_.insert(id);
    s.prefix = id;
}

/// Stores a sequence; 0 where that fails.
kvtl::prefix_id conversations::keep(sequence& s, kvtl::prefix_id replaces) {
    const auto place = static_cast<unsigned>(&s - places_.data());
    const auto try_to = [&](kvtl::prefix_id old) {
        return store_->keep(session_.name_of(place), s.tokens, {.space = space_of(s.space), .replaces = old});
    };
    auto kept = try_to(replaces);
    if (!kept && kept.error().code == kvtl::errc::absent)
        kept = try_to(0);       // the old one has left the store meanwhile
    s.stored = s.tokens.size(); // a failure is not repeated before it has grown
    if (kept) return *kept;
    std::fprintf(stderr, "kvtl-server: a conversation could not be stored: %s\n",
                 kept.error().message.c_str());
    return 0;
}

bool conversations::store_one() {
    for (unsigned i = 0; i < places_.size(); ++i)
        if (is_worth_storing(places_[i])) {
            put(i);
            return true;
        }
    return false;
}

kvtl::prefix_statistics conversations::statistics() const {
    return store_ ? store_->statistics() : kvtl::prefix_statistics{};
}

} // namespace kvtl_server
