// SPDX-License-Identifier: MIT
#include "conversation.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace llama_run {

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

} // namespace

conversation::conversation(session& s, const engine::generate_options& o, std::function<bool()> stop)
    : session_(s), options_(o), stop_(std::move(stop)), choice_(o.temperature, o.seed),
      template_(s.model().chat_template()), batch_(s.batch()) {
    // llama.cpp knows the templates of many models, not all.
    messages_ = {{"user", "x"}};
    std::string out;
    if (!template_.empty() && !render(true, out)) template_.clear();
    messages_.clear();
}

bool conversation::render(bool for_answer, std::string& out) const {
    std::vector<llama_chat_message> chat;
    std::size_t length = 256;
    for (const message& m : messages_) {
        chat.push_back({m.role.c_str(), m.text.c_str()});
        length += 2 * m.text.size() + 64;
    }
    for (int attempt = 0; attempt < 2; ++attempt) {
        out.assign(length, '\0');
        const std::int32_t n =
            llama_chat_apply_template(template_.c_str(), chat.data(), chat.size(), for_answer, out.data(),
                                      static_cast<std::int32_t>(out.size()));
        if (n < 0) return false;
        if (static_cast<std::size_t>(n) <= length) {
            out.resize(static_cast<std::size_t>(n));
            return true;
        }
        length = static_cast<std::size_t>(n);
    }
    return false;
}

/// What the user's message adds to the text. The end of the answer before it belongs to that: the model ended it with a
/// token that was not decoded any more.
std::string conversation::addition(const std::string& text) {
    if (!templated()) {
        std::string added = (shown_.empty() ? "" : "\n") + text;
        shown_ += added;
        return added;
    }
    std::string before;
    if (!messages_.empty() && !render(false, before)) before.clear();
    messages_.push_back({"user", text});
    std::string now;
    if (!render(true, now)) now = text;
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
        batch_.clear();
        const std::size_t n = std::min(tokens.size() - done, session_.batch());
        for (std::size_t t = 0; t < n; ++t)
            batch_.add(tokens[done + t], fed_.size() + t, 0, done + t + 1 == tokens.size());
        session_.decode(batch_);
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
    const auto added = session_.model().encode(addition(text), fed_.empty(), templated());
    tokens.insert(tokens.end(), added.begin(), added.end());
    cost = {};
    if (tokens.empty() || fed_.size() + tokens.size() >= session_.max_tokens()) {
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
    engine::answer a{.prompt_tokens = tokens.size(), .tokens = {}, .text = {}};
    const std::uint64_t bytes = session_.stats().read_bytes;
    std::size_t asked = (tokens.size() - 1) % session_.batch();
    while (a.tokens.size() < options_.predict) {
        const token_id id = choice_.choose(session_.logits(asked));
        if (!options_.ignore_end && session_.model().is_end(id)) {
            end = turn_end::finished;
            break;
        }
        const std::string piece = session_.model().piece(id);
        a.tokens.push_back(id);
        a.text += piece;
        heard(piece);
        unread_.assign(1, id);
        if (stop_()) end = turn_end::stopped;
        if (fed_.size() + 1 >= session_.max_tokens()) end = turn_end::full;
        if (end != turn_end::length || a.tokens.size() == options_.predict) break;
        start = std::chrono::steady_clock::now();
        static_cast<void>(read(std::exchange(unread_, {})));
        cost.generate_s += seconds_since(start);
        ++cost.steps;
        asked = 0;
    }
    const engine::cache_stats stats = session_.stats();
    cost.read_bytes = stats.read_bytes - bytes;
    cost.resident_bytes = stats.resident_bytes_peak;
    if (templated()) messages_.push_back({"assistant", a.text});
    shown_ += a.text;
    answers_.push_back(std::move(a));
    return end;
}

std::size_t conversation::go_back_to(const mark& m) {
    messages_.resize(m.messages);
    shown_ = m.shown;
    unread_ = m.unread;
    if (m.fed == fed_.size()) return 0;
    if (m.fed > 0 && session_.rewind(0, m.fed)) {
        fed_.resize(m.fed);
        return 0;
    }
    session_.end(0);
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

} // namespace llama_run
