// What the sequences of a session hold between two requests, so that a prompt that goes on from one of them is not
// computed again.
//
// Rules:   a prompt goes on from the sequence that has the longest beginning of it, token by token, within its space. Of
//          sequences that nobody needs the one that was used least recently is given up.
// Threads: that of the session.
// SPDX-License-Identifier: MIT
#pragma once

#include "job.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvtl_server {

/// A sequence and how many tokens of the prompt it has.
struct granted {
    unsigned place = 0;
    std::size_t held = 0; ///< fewer than the prompt has
};

class conversations {
  public:
    /// `places`: sequences of the session.
    conversations(llama_run::session& s, unsigned places) : session_(s), places_(places) {}

    /// A sequence for a prompt; nothing where all are busy.
    [[nodiscard]] std::optional<granted> take(const std::string& space, std::span<const token_id> prompt);
    /// The sequence has taken these tokens.
    void add(unsigned place, std::span<const token_id> tokens);
    /// Nobody works on it any more; it stays as it is.
    void give_back(unsigned place);
    /// Likewise, and it can be of no use: it is emptied.
    void drop(unsigned place);

    [[nodiscard]] std::size_t held(unsigned place) const noexcept { return places_[place].tokens.size(); }
    [[nodiscard]] unsigned size() const noexcept { return static_cast<unsigned>(places_.size()); }

  private:
    struct sequence {
        bool busy = false;
        std::string space;
        std::vector<token_id> tokens;
        std::uint64_t used = 0;
    };
    [[nodiscard]] std::optional<granted> go_on(const std::string& space, std::span<const token_id> prompt);
    [[nodiscard]] sequence* least_used();

    llama_run::session& session_;
    std::vector<sequence> places_;
    std::uint64_t now_ = 0;
};

} // namespace kvtl_server
