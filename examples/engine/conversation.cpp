// SPDX-License-Identifier: MIT
#include "conversation.hpp"

#include "error.hpp"

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

namespace engine {

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

} // namespace

conversation::conversation(chat_engine& e, const generate_options& o, std::function<bool()> stop)
    : engine_(e), options_(o), stop_(std::move(stop)), choice_(o.temperature, o.seed),
      templated_(e.render(std::vector<message>{{"user", "x"}}, true).has_value()) {}

void conversation::go_on_from(const saved_state& from) {
    const saved_text& before = from.text;
    if (!choice_.go_on_from(before.sampler))
        throw bad_input("--load-state: the sampler's state cannot be read");
    const auto unread = from.unread();
    unread_.assign(unread.begin(), unread.end());
    fed_.assign(before.tokens.begin(), before.tokens.end() - static_cast<std::ptrdiff_t>(unread.size()));
    messages_ = before.messages;
    if (messages_.empty()) { // a text, which stands for an answer
        messages_.push_back({"assistant", ""});
        for (const token_id id : before.tokens) messages_.front().text += engine_.piece(id);
    }
    shown_.clear();
    if (templated() && messages_.size() > 1)
        shown_ = engine_.render(std::span(messages_).first(messages_.size() - 1), true).value_or("");
    else
        for (std::size_t m = 0; m + 1 < messages_.size(); ++m)
            shown_ += (m > 0 && messages_[m].role == "user" ? "\n" : "") + messages_[m].text;
    shown_ += messages_.back().text;
}

saved_text conversation::so_far() const {
    saved_text text{.tokens = fed_, .sampler = choice_.state(), .messages = messages_};
    text.tokens.insert(text.tokens.end(), unread_.begin(), unread_.end());
    return text;
}

/// What the user's message adds to the text. The end of the answer before it belongs to that: the model ended it with a
/// token that was not decoded any more.
std::string conversation::addition(const std::string& text) {
    const std::string before =
        messages_.empty() || !templated() ? "" : engine_.render(messages_, false).value_or("");
    messages_.push_back({"user", text});
    if (!templated()) {
        std::string added = (shown_.empty() ? "" : "\n") + text;
        shown_ += added;
        return added;
    }
    const std::string now = engine_.render(messages_, true).value_or(text);
    // Templates that change an answer's text (trim it) leave no common beginning; then the answer stays as it was read.
    std::string added = now.starts_with(shown_)   ? now.substr(shown_.size())
                        : now.starts_with(before) ? now.substr(before.size())
                                                  : now;
    shown_ = now;
    return added;
}

bool conversation::read(const std::vector<token_id>& tokens) {
    for (std::size_t done = 0; done < tokens.size();) {
        if (done > 0 && stop_()) return false;
        const std::size_t n = std::min(tokens.size() - done, engine_.chunk());
        engine_.read(std::span(tokens).subspan(done, n), done + n == tokens.size());
        fed_.insert(fed_.end(), tokens.begin() + static_cast<std::ptrdiff_t>(done),
                    tokens.begin() + static_cast<std::ptrdiff_t>(done + n));
        done += n;
    }
    return true;
}

turn_end conversation::say(const std::string& text, turn_cost& cost,
                           const std::function<void(const std::string& piece)>& heard) {
    const mark before{messages_.size(), fed_.size(), shown_, unread_};
    std::vector<token_id> tokens = unread_;
    const auto added = engine_.encode(addition(text), fed_.empty(), templated());
    tokens.insert(tokens.end(), added.begin(), added.end());
    cost = {};
    if (tokens.empty() || fed_.size() + tokens.size() >= engine_.max_tokens()) {
        messages_.resize(before.messages);
        shown_ = before.shown;
        return turn_end::withdrawn;
    }
    auto start = std::chrono::steady_clock::now();
    cost.read = tokens.size();
    const bool all = read(tokens);
    cost.read_s = seconds_since(start);
    if (!all) {
        go_back_to(before);
        return turn_end::withdrawn;
    }
    unread_.clear();
    marks_.push_back(before);

    turn_end end = turn_end::length;
    answer a{.prompt_tokens = tokens.size(), .tokens = {}, .text = {}};
    const std::uint64_t bytes = engine_.stats().read_bytes;
    while (a.tokens.size() < options_.predict) {
        const token_id id = choice_.choose(engine_.logits());
        if (!options_.ignore_end && engine_.is_end(id)) {
            end = turn_end::finished;
            break;
        }
        const std::string piece = engine_.piece(id);
        a.tokens.push_back(id);
        a.text += piece;
        heard(piece);
        unread_.assign(1, id);
        if (stop_()) end = turn_end::stopped;
        if (fed_.size() + 1 >= engine_.max_tokens()) end = turn_end::full;
        if (end != turn_end::length || a.tokens.size() == options_.predict) break;
        start = std::chrono::steady_clock::now();
        static_cast<void>(read(std::exchange(unread_, {})));
        cost.generate_s += seconds_since(start);
        ++cost.steps;
    }
    const cache_stats stats = engine_.stats();
    cost.read_bytes = stats.read_bytes - bytes;
    cost.resident_bytes = stats.resident_bytes_peak;
    messages_.push_back({"assistant", a.text});
    shown_ += a.text;
    answers_.push_back(std::move(a));
    return end;
}

std::size_t conversation::go_back_to(const mark& m) {
    messages_.resize(m.messages);
    shown_ = m.shown;
    unread_ = m.unread;
    if (m.fed == fed_.size()) return 0;
    if (m.fed > 0 && engine_.rewind(m.fed)) {
        fed_.resize(m.fed);
        return 0;
    }
    engine_.end();
    std::vector<token_id> again(fed_.begin(), fed_.begin() + static_cast<std::ptrdiff_t>(m.fed));
    fed_.clear();
    const auto stop = std::exchange(stop_, [] { return false; });
    static_cast<void>(read(again));
    stop_ = stop;
    return again.size();
}

bool conversation::take_back(std::size_t& read_again) {
    if (marks_.empty()) return false;
    const mark m = std::move(marks_.back());
    marks_.pop_back();
    answers_.pop_back();
    read_again = go_back_to(m);
    return true;
}

} // namespace engine
