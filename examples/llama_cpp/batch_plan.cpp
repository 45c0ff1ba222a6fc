// SPDX-License-Identifier: MIT
#include "batch_plan.hpp"

#include <algorithm>
#include <utility>

namespace kvtl_llama::detail {

namespace {

using kvtl::errc;
using kvtl::status;

llama_seq_id sequence_of(const llama_batch& batch, std::int32_t token) noexcept {
    return batch.seq_id == nullptr ? 0 : batch.seq_id[token][0];
}

/// Without an array of wishes llama.cpp gives the logits of the last token.
bool wants_logits(const llama_batch& batch, std::int32_t token) noexcept {
    return batch.logits == nullptr ? token + 1 == batch.n_tokens : batch.logits[token] != 0;
}

} // namespace

status batch_plan::make(const llama_batch& batch, std::span<const conversation> all,
                        const batch_rules& rules) {
    shares_.clear();
    std::fill(taken_.begin(), taken_.end(), char{0});
    if (batch.n_tokens < 1 || static_cast<std::size_t>(batch.n_tokens) > rules.batch)
        return status::failure(errc::invalid_argument,
                               "decode: the batch has %d tokens; valid: 1 to %zu, the smaller one of "
                               "params.n_batch and cells",
                               batch.n_tokens, rules.batch);
    if (batch.token == nullptr || batch.embd != nullptr)
        return status::failure(errc::unsupported,
                               "decode: the batch holds embeddings; valid: token ids (batch.token)");
    if (batch.pos == nullptr)
        return status::failure(
            errc::invalid_argument,
            "decode: batch.pos is null, and llama.cpp would count from 0; valid: the position of "
            "each token, from held(sequence) on");
    for (std::int32_t i = 0; i < batch.n_tokens; ++i) {
        const llama_seq_id seq = sequence_of(batch, i);
        if (seq < 0 || static_cast<std::size_t>(seq) >= all.size())
            return status::failure(errc::out_of_range,
                                   "decode: token %d belongs to sequence %d; valid: 0 to %zu (max_sequences)",
                                   i, seq, all.size() - 1);
        if (batch.n_seq_id != nullptr && batch.n_seq_id[i] != 1)
            return status::failure(errc::unsupported,
                                   "decode: token %d belongs to %d sequences; valid: one each (prompts that "
                                   "sequences share are decoded for each)",
                                   i, batch.n_seq_id[i]);
    }
    for (std::int32_t first = 0, n = 0; first < batch.n_tokens; first += n) {
        n = 1;
        while (first + n < batch.n_tokens && sequence_of(batch, first + n) == sequence_of(batch, first)) ++n;
        if (status e = add(batch, first, n, all, rules); !e) return e;
    }
    if (rules.one_sequence && shares_.size() > 1)
        return status::failure(
            errc::unsupported,
            "decode: the batch has %zu sequences, which llama.cpp splits for models with a "
            "recurrent state; valid: one sequence per batch",
            shares_.size());
    return {};
}

status batch_plan::add(const llama_batch& batch, std::int32_t first, std::int32_t tokens,
                       std::span<const conversation> all, const batch_rules& rules) {
    const llama_seq_id seq = sequence_of(batch, first);
    const conversation& c = all[static_cast<std::size_t>(seq)];
    if (std::exchange(taken_[static_cast<std::size_t>(seq)], char{1}) != 0)
        return status::failure(
            errc::invalid_argument,
            "decode: sequence %d comes twice, again at token %d; valid: the tokens of a sequence "
            "side by side",
            seq, first);
    if (c.tokens + static_cast<std::size_t>(tokens) > rules.max_tokens)
        return status::failure(
            errc::out_of_range,
            "decode: sequence %d holds %u tokens and %d more come; valid: up to max_tokens = %zu "
            "in all",
            seq, c.tokens, tokens, rules.max_tokens);
    std::int32_t wishes = 0;
    for (std::int32_t i = 0; i < tokens; ++i) {
        const auto want = static_cast<llama_pos>(c.tokens) + i;
        if (batch.pos[first + i] != want)
            return status::failure(
                errc::invalid_argument,
                "decode: token %d of sequence %d has position %d; valid: %d, as %u tokens are held "
                "(rewind() gives up some, end() all)",
                first + i, seq, batch.pos[first + i], want, c.tokens);
        wishes += wants_logits(batch, first + i) ? 1 : 0;
    }
    const bool last = wants_logits(batch, first + tokens - 1);
    // After a prompt, one token is a step, several with several wishes a draft; any others begin a further turn.
    const bool prompt = c.prompt_open || (tokens > 1 && wishes - (last ? 1 : 0) == 0);
    batch_share share{.seq = seq, .tokens = static_cast<std::uint32_t>(tokens)};
    if (prompt) {
        share.kind = last ? kvtl::part_kind::last_of_prompt : kvtl::part_kind::prompt;
        share.leaves_prompt_open = !last;
    }
    shares_.push_back(share);
    return {};
}

} // namespace kvtl_llama::detail
