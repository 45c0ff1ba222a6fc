// What the tokens of a llama_batch mean to kvtl: whose they are, and whether they are a prompt or steps of decoding.
//
// Rules: those of kvtl_llama.hpp's "Batches". A plan changes nothing; the attachment keeps or drops it once llama.cpp
//        has come back.
// Cost:  one pass over the tokens; nothing allocates after construction.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/status.hpp>
#include <kvtl/views.hpp>

#include <llama.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvtl_llama::detail {

/// One sequence between two batches.
struct conversation {
    kvtl::sequence_id id{}; ///< kvtl's, where it has begun
    bool begun = false;
    bool retry_writes = false; ///< a batch failed since the last one that did not: writes may wait
    bool prompt_open = true;   ///< the next tokens belong to a prompt
    std::uint32_t opened = 0;  ///< tokens that were held when the prompt or the turn was opened
    std::uint32_t tokens = 0;  ///< held

    void took(std::uint32_t more, bool leaves_prompt_open) noexcept {
        if (!prompt_open) opened = tokens;
        prompt_open = leaves_prompt_open;
        tokens += more;
    }
    /// To `left` tokens. A turn of which nothing is left was not begun.
    void went_back(std::uint32_t left) noexcept {
        if (left <= opened && left > 0) prompt_open = false;
        tokens = left;
    }
};

/// What a batch must keep to.
struct batch_rules {
    std::size_t batch = 0;      ///< tokens
    std::size_t max_tokens = 0; ///< of a sequence
    bool one_sequence = false;  ///< per batch
};

/// The tokens of a sequence in a batch, by order.
struct batch_share {
    llama_seq_id seq = 0;
    std::uint32_t tokens = 0;
    kvtl::part_kind kind = kvtl::part_kind::decode;
    bool leaves_prompt_open = false;
};

class batch_plan {
  public:
    explicit batch_plan(std::size_t max_sequences) : taken_(max_sequences) { shares_.reserve(max_sequences); }

    /// Replaces the plan. A failure names the token, what is wrong with it and what is valid.
    [[nodiscard]] kvtl::status make(const llama_batch& batch, std::span<const conversation> all,
                                    const batch_rules& rules);

    [[nodiscard]] std::span<const batch_share> shares() const noexcept { return shares_; }

  private:
    [[nodiscard]] kvtl::status add(const llama_batch& batch, std::int32_t first, std::int32_t tokens,
                                   std::span<const conversation> all, const batch_rules& rules);

    std::vector<batch_share> shares_;
    std::vector<char> taken_; ///< sequences that the batch has already had
};

} // namespace kvtl_llama::detail
