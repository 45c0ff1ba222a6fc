// One answer that is asked for: the client's thread waits for its text, the scheduler writes it.
//
// Threads: one on each side. What was asked for does not change.
// Memory:  the prompt, and the text that the client has not taken: at most what max_tokens tokens are.
// SPDX-License-Identifier: MIT
#pragma once

#include "session.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace kvtl_server {

using llama_run::token_id;

struct generation {
    std::string space; ///< whose it is: other spaces share nothing with it
    std::vector<token_id> prompt;
    bool given_as_tokens = false; ///< the prompt is read in these tokens, and in no others of the same text
    std::size_t max_tokens = 0;   ///< 1 or more
    double temperature = 1, top_p = 1;
    std::uint64_t seed = 0;
    std::vector<std::string> stop;
};

enum class finish_reason { stop, length };

struct token_usage {
    std::size_t prompt = 0;
    std::size_t cached = 0; ///< of the prompt: not computed again
    std::size_t generated = 0;
};

class job {
  public:
    explicit job(generation g) : asked(std::move(g)) {}
    job(const job&) = delete;
    job& operator=(const job&) = delete;

    const generation asked;

    // ------------------------------------------------------------------------------------------ the client's side
    struct news {
        std::string text;
        bool ended = false;
    };
    /// Returns what has come since the last call, when something has, the job has ended or the time is over.
    [[nodiscard]] news wait(std::chrono::milliseconds most);
    /// Nobody waits any more.
    void give_up() noexcept { given_up_ = true; }
    // Once it has ended:
    [[nodiscard]] const std::string& failure() const noexcept { return failure_; } ///< "": none
    [[nodiscard]] finish_reason reason() const noexcept { return reason_; }
    [[nodiscard]] const token_usage& usage() const noexcept { return usage_; }

    // --------------------------------------------------------------------------------------- the scheduler's side
    [[nodiscard]] bool given_up() const noexcept { return given_up_; }
    void say(std::string_view text);
    void end(finish_reason reason, const token_usage& usage);
    void fail(const std::string& sentence);

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::string text_;
    bool ended_ = false;
    std::string failure_;
    finish_reason reason_ = finish_reason::stop;
    token_usage usage_;
    std::atomic<bool> given_up_ = false;
};

} // namespace kvtl_server
