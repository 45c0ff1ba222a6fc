// What the sequences of a session hold between two requests, and what is stored of others, so that a prompt that goes on from
// a conversation is not computed again.
//
// Rules:   a prompt goes on from the sequence that has a beginning of it, token by token and within its space, else from the
//          longest one that is stored. Of sequences that nobody works on the one that was used least recently is given up;
//          it is stored before. Hybrid models have a state that cannot be stored: theirs is lost.
// Shared:  a beginning that two prompts of a space have in common, such as a system prompt or a document, is stored by itself
//          while the second of them is read. A conversation that goes on replaces only what this server stored of it: what was
//          stored before may be a beginning that others share.
// Errors:  what cannot be stored or loaded is computed again; a line on standard error and a counter say so.
// Threads: that of the session.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/prefix_store.hpp>

#include "job.hpp"
#include "recent_texts.hpp"
#include "remote.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace kvtl_server {

/// A sequence for a prompt.
struct granted {
    unsigned place = 0;
    std::size_t held = 0;   ///< tokens of the prompt that it has, fewer than all
    std::size_t shared = 0; ///< where a beginning ends that store_beginning() shall store; 0: there is none
    std::vector<token_id> prompt; ///< as it is to be read (recent_texts.hpp)
};

class conversations {
  public:
    using store = kvtl::prefix_store<engine::kv_cache>;

    /// `places`: sequences of the session, which must outlive it.
    conversations(llama_run::session& s, unsigned places) : session_(s), places_(places) {}

    /// From now on what is given up goes to files. `beginnings`: shared ones, too. `remote` has more of them, and must outlive
    /// this; null: none. Throws bad_input.
    void keep_in(kvtl::prefix_store_config config, bool beginnings, remote_store* remote = nullptr);
    [[nodiscard]] remote_store* remote() const noexcept { return remote_; }

    /// Begins to fetch what the remote has more of a prompt than is here; null: nothing.
    [[nodiscard]] std::shared_ptr<errand> look_ahead(const generation& g);
    /// A sequence for a prompt, from what is here and what was `brought`; nothing where all are busy.
    [[nodiscard]] std::optional<granted> take(const generation& g,
                                              const std::shared_ptr<errand>& brought = nullptr);
    /// The sequence has taken these tokens.
    void add(unsigned place, std::span<const token_id> tokens);
    /// Nobody works on it any more; it stays as it is. `unread`: what was chosen last, and not decoded.
    void give_back(unsigned place, std::optional<token_id> unread);
    /// Likewise, and it can be of no use: it is emptied.
    void drop(unsigned place);

    /// Stores what the sequence holds, for others.
    void store_beginning(unsigned place);
    /// Stores a sequence that nobody works on, if it has grown since it was stored.
    void store_now(unsigned place) { put(place); }
    /// Stores one of them. False where there is none.
    bool store_one();

    [[nodiscard]] std::size_t held(unsigned place) const noexcept { return places_[place].tokens.size(); }
    [[nodiscard]] unsigned size() const noexcept { return static_cast<unsigned>(places_.size()); }
    [[nodiscard]] kvtl::prefix_statistics statistics() const;

  private:
    struct sequence {
        bool busy = false;
        std::string space;
        std::vector<token_id> tokens;
        std::uint64_t used = 0;
        std::size_t stored = 0;     ///< tokens, when it was stored
        kvtl::prefix_id prefix = 0; ///< as what, if it is to be replaced
    };
    [[nodiscard]] std::vector<token_id> as_said(const generation& g) const;
    [[nodiscard]] std::optional<granted> go_on(const std::string& space, std::span<const token_id> prompt,
                                               std::size_t elsewhere);
    [[nodiscard]] std::optional<granted> begin(const std::string& space, std::span<const token_id> prompt);
    [[nodiscard]] bool is_worth_storing(const sequence& s) const noexcept;
    void put(unsigned place);
    kvtl::prefix_id keep(sequence& s, kvtl::prefix_id replaces);

    llama_run::session& session_;
    std::vector<sequence> places_;
    std::optional<store> store_;
    remote_store* remote_ = nullptr;
    bool beginnings_ = false;
    recent_texts recent_{1U << 20}; ///< 4 MiB
    std::unordered_map<kvtl::prefix_id, std::size_t>
        own_; ///< conversations stored by this server: their tokens
    std::uint64_t now_ = 0;
};

} // namespace kvtl_server
