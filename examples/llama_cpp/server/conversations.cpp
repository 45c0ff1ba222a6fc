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

kvtl::prefix_space space_of(const std::string& space) {
    return {.tenant = space};
}

} // namespace

void conversations::keep_in(kvtl::prefix_store_config config, bool beginnings, remote_store* remote) {
    beginnings_ = beginnings;
    remote_ = remote;
    config.remote = remote;
    config.remote_gain = 1; // errands have asked for more
    store_.emplace(engine::insist(store::open(session_.cache(), std::move(config))));
}

/// The prompt in the tokens that were generated, where it has an answer of before.
std::vector<token_id> conversations::as_said(const generation& g) const {
    if (g.given_as_tokens) return g.prompt;
    std::vector<token_id> prompt =
        recent_.as_said(g.space, g.prompt, [&](token_id id) { return session_.model().piece(id, true); });
    return prompt.size() + g.max_tokens > session_.max_tokens() ? g.prompt : prompt;
}

std::shared_ptr<errand> conversations::look_ahead(const generation& g) {
    if (remote_ == nullptr || !store_ || store_->tier_is_foreign()) return nullptr;
    std::vector<token_id> prompt = as_said(g);
    std::size_t here = store_->held(prompt, space_of(g.space));
    for (const sequence& s : places_)
        if (s.space == g.space) here = std::max(here, common_beginning(s.tokens, prompt));
    return remote_->ask(std::move(prompt), g.space, here);
}

std::optional<granted> conversations::take(const generation& g, const std::shared_ptr<errand>& brought) {
    // The first of the queue asks at every step: nothing costly before there is a place.
    if (std::all_of(places_.begin(), places_.end(), [](const sequence& s) { return s.busy; }))
        return std::nullopt;
    std::vector<token_id> prompt = as_said(g);
    std::optional<granted> got = go_on(g.space, prompt, brought ? brought->tokens() : 0);
    if (!got) {
        if (remote_ != nullptr) remote_->use(brought);
        got = begin(g.space, prompt);
        if (remote_ != nullptr) remote_->use(nullptr);
    }
    if (!got) return std::nullopt;
    places_[got->place].busy = true;
    places_[got->place].space = g.space;
    if (beginnings_) {
        const std::size_t shared = std::min(recent_.shared(g.space, prompt), prompt.size() - 1);
        if (shared >= got->held + least_shared) got->shared = shared;
    }
    recent_.remember(g.space, prompt);
    got->prompt = std::move(prompt);
    return got;
}

/// From a sequence that is there, if it has as many tokens as there are elsewhere.
std::optional<granted> conversations::go_on(const std::string& space, std::span<const token_id> prompt,
                                            std::size_t elsewhere) {
    std::vector<granted> found;
    for (unsigned i = 0; i < places_.size(); ++i) {
        const sequence& s = places_[i];
        if (s.busy || s.tokens.empty() || s.space != space) continue;
        // The last token of a prompt is decoded in any case, for its logits. Another conversation is not cut for a short
        // beginning.
        const std::size_t n = std::min(common_beginning(s.tokens, prompt), prompt.size() - 1);
        if (n > 0 && n >= s.tokens.size() / 2 && n >= std::min(elsewhere, prompt.size() - 1))
            found.push_back({.place = i, .held = n, .prompt = {}});
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
    granted g{.place = static_cast<unsigned>(least - places_.data()), .held = 0, .prompt = {}};
    put(g.place);
    drop(g.place);
    if (!store_) return g;
    const bool asked = !store_->tier_is_foreign();
    const auto started = store_->start(prompt, space_of(space));
    if (asked && store_->tier_is_foreign())
        std::fprintf(
            stderr,
            "kvtl-server: --remote: it brought a conversation that this cache refuses (%s); nothing is "
            "fetched until the server starts again\n",
            store_->statistics().last_refusal.c_str());
    if (!started) throw engine::run_failure(started.error().message);
    session_.adopt(g.place, started->seq, started->tokens);
    g.held = started->tokens;
    least->tokens.assign(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(g.held));
    least->stored = g.held;
    const auto own = own_.find(started->prefix);
    least->prefix = own != own_.end() && own->second == started->tokens ? own->first : 0;
    return g;
}

void conversations::add(unsigned place, std::span<const token_id> tokens) {
    auto& all = places_[place].tokens;
    all.insert(all.end(), tokens.begin(), tokens.end());
}

void conversations::give_back(unsigned place, std::optional<token_id> unread) {
    std::vector<token_id> said = places_[place].tokens;
    if (unread) said.push_back(*unread);
    recent_.remember(places_[place].space, std::move(said));
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
    s.prefix = keep(s, s.prefix);
    if (s.prefix == 0) return;
    own_[s.prefix] = s.tokens.size();
    if (own_.size() > store_->statistics().prefixes) // some were replaced or evicted
        std::erase_if(own_, [&](const auto& one) { return !store_->hint(one.first, {}).ok(); });
}

void conversations::store_beginning(unsigned place) {
    sequence& s = places_[place];
    const kvtl::prefix_id id = keep(s, 0);
    s.prefix = 0;
    own_.erase(id); // the text may have been a conversation's
    for (sequence& other : places_)
        if (other.prefix == id) other.prefix = 0;
}

/// Stores a sequence; 0 where that fails.
kvtl::prefix_id conversations::keep(sequence& s, kvtl::prefix_id replaces) {
    const auto place = static_cast<unsigned>(&s - places_.data());
    const auto kept =
        store_->keep(session_.name_of(place), s.tokens, {.space = space_of(s.space), .replaces = replaces});
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
