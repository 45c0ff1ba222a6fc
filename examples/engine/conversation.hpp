// A conversation in one sequence of an engine: what was said, as text in the model's template and as tokens that the cache
// holds.
//
// Only what is new is read in each turn. Going back uses the cache's rewind, which a preset may bound; what is further
// back is read again from the beginning. What was said goes into a saved state, and a conversation goes on from one; turns
// before it are not taken back.
// SPDX-License-Identifier: MIT
#pragma once

#include "chat_engine.hpp"
#include "generate.hpp"
#include "report.hpp"
#include "sampler.hpp"
#include "saved_state.hpp"

#include <functional>
#include <string>
#include <vector>

namespace engine {

/// What a turn cost.
struct turn_cost {
    std::size_t read = 0; ///< tokens
    double read_s = 0;
    std::size_t steps = 0; ///< of decoding
    double generate_s = 0;
    std::uint64_t read_bytes = 0;     ///< from the cache's file, while generating
    std::uint64_t resident_bytes = 0; ///< of the cache
};

enum class turn_end { finished, length, stopped, full, withdrawn };

class conversation {
  public:
    /// `stop` is asked between batches.
    conversation(chat_engine& e, const generate_options& o, std::function<bool()> stop);

    /// Goes on from what was saved, a conversation or a text; the engine has loaded its sequence, and nothing was said yet.
    /// Throws bad_input.
    void go_on_from(const saved_state& from);
    /// All that goes on.
    [[nodiscard]] saved_text so_far() const;

    /// Whether the model's template is used; else the text goes on as it was typed.
    [[nodiscard]] bool templated() const noexcept { return templated_; }

    /// Reads what the user says and generates an answer. withdrawn: stopped before the answer began, or no room for it
    /// (then `cost.read` is 0); the conversation is as it was before. Throws run_failure.
    [[nodiscard]] turn_end say(const std::string& text, turn_cost& cost,
                               const std::function<void(const std::string& piece)>& heard);

    /// Forgets the last turn; false where there is none. `read_again` counts tokens.
    [[nodiscard]] bool take_back(std::size_t& read_again);

    [[nodiscard]] std::size_t tokens() const noexcept { return fed_.size(); }

    /// All that was said, as the model reads it.
    [[nodiscard]] const std::string& text() const noexcept { return shown_; }
    [[nodiscard]] const std::vector<message>& messages() const noexcept { return messages_; }
    [[nodiscard]] const std::vector<answer>& answers() const noexcept { return answers_; }

  private:
    /// Where a turn began.
    struct mark {
        std::size_t messages, fed;
        std::string shown;
        std::vector<token_id> unread;
    };

    [[nodiscard]] std::string addition(const std::string& text);
    [[nodiscard]] bool read(const std::vector<token_id>& tokens); ///< false: stopped
    std::size_t go_back_to(const mark& m);

    chat_engine& engine_;
    generate_options options_;
    std::function<bool()> stop_;
    sampler choice_;
    bool templated_;
    std::vector<message> messages_;
    std::string shown_;            ///< all that was said, as the template renders it
    std::vector<token_id> fed_;    ///< tokens that the cache holds
    std::vector<token_id> unread_; ///< generated, but not decoded any more
    std::vector<mark> marks_;
    std::vector<answer> answers_;
};

} // namespace engine
