// What a manager checks before it does anything: is the sequence open, do layer and shard exist, have the
// spans the right sizes, are all numbers finite. Each failure names the argument, its value and what is
// valid.
//
// Cost: one pass over the floats of the call for each shard that takes it; nothing allocates, but for the message of a
//       begin() that is refused.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/compiled.hpp>
#include <kvtl/element.hpp>
#include <kvtl/simd/convert.hpp>
#include <kvtl/status.hpp>
#include <kvtl/views.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace kvtl { inline namespace v0 {

/// Sequences that may be open at once. begin() and end() of different sequences may run concurrently. A slot's
/// stamp counts by four: 0 free, 1 open, 2 ending.
class sequence_slots {
  public:
    sequence_slots() = default;
    explicit sequence_slots(std::uint32_t n) : stamps_(new std::atomic<std::uint32_t>[n]), size_(n) {
        for (std::uint32_t i = 0; i < n; ++i) stamps_[i] = 0;
    }
    [[nodiscard]] std::uint32_t size() const noexcept { return size_; }

    [[nodiscard]] result<sequence_id> begin() noexcept { return begin("begin", 0, 1); }
    /// In one of the slots first, first + step, ...
    [[nodiscard]] result<sequence_id> begin(const char* call, std::uint32_t first,
                                            std::uint32_t step) noexcept {
        for (std::uint32_t slot = first; slot < size_; slot += step) {
            std::uint32_t stamp = stamps_[slot].load();
            if (stamp % 4 == 0 && stamps_[slot].compare_exchange_strong(stamp, stamp + 1))
                return sequence_id{slot, stamp + 1};
        }
        return status::failure(errc::out_of_range, "%s: all %u sequences%s are open (max_sequences)", call,
                               (size_ - first + step - 1) / step, step > 1 ? " of the shard" : "");
    }
    /// From here on the sequence is not open, and its slot not free yet. False when it was not open.
    [[nodiscard]] bool end(sequence_id seq) noexcept {
        std::uint32_t stamp = seq.generation;
        return is_open(seq) && stamps_[seq.slot].compare_exchange_strong(stamp, stamp + 1);
    }
    /// After end(): the slot may be taken again.
    void free(sequence_id seq) noexcept { stamps_[seq.slot].store(seq.generation + 3); }
    [[nodiscard]] bool is_open(std::uint32_t slot) const noexcept { return stamps_[slot].load() % 4 == 1; }
    [[nodiscard]] bool is_open(sequence_id seq) const noexcept {
        return seq.slot < size_ && seq.generation % 4 == 1 && stamps_[seq.slot].load() == seq.generation;
    }

  private:
    std::unique_ptr<std::atomic<std::uint32_t>[]> stamps_;
    std::uint32_t size_ = 0;
};

/// E: what entries are stored as; a number that it cannot hold is refused.
template <element E> struct call_checks {
    std::uint32_t layers = 0, shards = 0, max_tokens = 0;
    std::size_t query_floats = 0, key_floats = 0; ///< of one token: HQ * D, H * D
    std::uint32_t query_heads = 0;
    bool reads_probe = false;   ///< the preset looks at layer_input::probe,
    bool probes_chunks = false; ///< of every chunk of a prompt,
    bool takes_passing = false; ///< and at layer_input::passing,
    bool all_may_pass = false;  ///< of a whole chunk, too
    sequence_slots slots;

    [[nodiscard]] status sequence(const char* call, sequence_id seq) const noexcept {
        if (!slots.is_open(seq))
            return status::failure(errc::not_open, "%s: sequence %u (generation %u) is not open", call,
                                   seq.slot, seq.generation);
        return {};
    }
    [[nodiscard]] status call(const char* name, sequence_id seq, std::size_t layer,
                              unsigned shard) const noexcept {
        if (status s = sequence(name, seq); !s) return s;
        if (layer >= layers)
            return status::failure(errc::out_of_range, "%s: layer is %zu; valid: 0 to %u", name, layer,
                                   layers - 1);
        if (shard >= shards)
            return status::failure(errc::out_of_range, "%s: shard is %u; valid: 0 to %u", name, shard,
                                   shards - 1);
        return {};
    }

    [[nodiscard]] static status sized(const char* call, const char* name, const tensor_view& x,
                                      std::size_t want) noexcept {
        if (x.size() == want) return {};
        return status::failure(errc::invalid_argument, "%s: %s has %zu numbers; valid: %zu", call, name,
                               x.size(), want);
    }
    /// row: of one token. Range: what the numbers must fit into besides being finite.
    template <class Range = float>
    [[nodiscard]] static status floats(const char* call, const char* name, const tensor_view& x,
                                       std::size_t row, std::size_t tokens = 1) noexcept {
        if (status s = sized(call, name, x, tokens * row); !s) return s;
        if (!x.has_rows_of(row))
            return status::failure(
                errc::invalid_argument,
                "%s: %s has rows of %zu numbers with a stride of %zu; valid: rows of %zu with "
                "a stride of %zu or more",
                call, name, x.row(), x.stride(), row, row);
        bool finite = true;
        for (std::size_t i = 0; i < x.size() && finite; i += x.run(i))
            finite =
                x.visit([&](const auto* p) { return simd::all_finite<Range>(p + x.place(i), x.run(i)); });
        if (!finite)
            return status::failure(
                errc::invalid_argument,
                "%s: %s holds a NaN, an infinity or a number beyond %s; valid: finite numbers", call, name,
                element_name<Range>().data());
        return {};
    }

    /// q, k, v and out of a call. `many` allows any number of tokens; `tokens` says how many came.
    [[nodiscard]] status input(const char* call, const layer_input& in, const tensor_span& out, bool many,
                               std::size_t& tokens) const noexcept {
        tokens = many ? in.k.size() / key_floats : 1;
        if (many && (tokens == 0 || in.k.size() % key_floats != 0))
            return status::failure(
                errc::invalid_argument,
                "%s: k has %zu numbers; valid: a positive multiple of kv_heads * head_dim = %zu", call,
                in.k.size(), key_floats);
        if (status s = floats<E>(call, "k", in.k, key_floats, tokens); !s) return s;
        if (status s = floats<E>(call, "v", in.v, key_floats, tokens); !s) return s;
        if (!out.empty() || !in.q.empty())
            if (status s = floats(call, "q", in.q, query_floats, tokens); !s) return s;
        if (!in.sink_logits.empty())
            if (status s = floats(call, "sink_logits", in.sink_logits, query_heads); !s) return s;
        if (!out.empty() && out.size() != tokens * query_floats)
            return status::failure(errc::invalid_argument, "%s: out has %zu numbers; valid: %zu", call,
                                   out.size(), tokens * query_floats);
        return {};
    }
    /// Of prefill(): the preset lets tokens pass, and leaves others that stay unless it replays prompts.
    [[nodiscard]] status passing(const char* call, const layer_input& in, std::size_t tokens) const noexcept {
        if (in.passing == 0) return {};
        if (!takes_passing)
            return status::failure(errc::invalid_argument,
                                   "%s: passing is %u; valid: 0, except in a preset that evicts after each "
                                   "chunk or replays prompts, of a model whose layers do not slide",
                                   call, in.passing);
        if (all_may_pass && in.passing > tokens)
            return status::failure(errc::invalid_argument, "%s: passing is %u of %zu tokens; valid: 0 to %zu",
                                   call, in.passing, tokens, tokens);
        if (!all_may_pass && in.passing >= tokens)
            return status::failure(errc::invalid_argument,
                                   "%s: passing is %u of %zu tokens; valid: 0 to %zu, as one has to stay",
                                   call, in.passing, tokens, tokens - 1);
        return {};
    }
    /// Of other calls: all tokens stay.
    [[nodiscard]] status all_stay(const char* call, const layer_input& in) const noexcept {
        if (in.passing == 0) return {};
        return status::failure(errc::invalid_argument,
                               "%s: passing is %u; valid: 0, except in a chunk of a prompt", call,
                               in.passing);
    }
    /// Of attend(): `out` and, where it is asked for, `lse` have their sizes.
    [[nodiscard]] status outputs(const char* call, const layer_input& in, const tensor_span& out,
                                 std::size_t tokens) const noexcept {
        if (out.empty())
            return status::failure(errc::invalid_argument, "%s: out is empty; valid: %zu numbers", call,
                                   tokens * query_floats);
        if (!in.lse.empty() && in.lse.size() != tokens * query_heads)
            return status::failure(errc::invalid_argument, "%s: lse has %zu numbers; valid: %zu", call,
                                   in.lse.size(), tokens * query_heads);
        return {};
    }
    /// The rows of a batch's parts are those of its tensors, and its sequences are open: before the first part is taken.
    [[nodiscard]] status batch(const char* call, std::span<const batch_part> parts, const layer_input& in,
                               const tensor_span& out) const noexcept {
        std::size_t tokens = 0, prompts = 0;
        for (const batch_part& p : parts) {
            prompts += probes_chunks ? p.kind != part_kind::decode : p.kind == part_kind::last_of_prompt;
            if (status s = sequence(call, p.seq); !s) return s;
            if (p.kind == part_kind::decode && out.empty())
                return status::failure(errc::invalid_argument,
                                       "%s: out is empty and a part is decoded; valid: rows of every part",
                                       call);
            if (p.tokens == 0)
                return status::failure(errc::invalid_argument, "%s: a part has 0 tokens; valid: 1 and more",
                                       call);
            tokens += p.tokens;
        }
        if (reads_probe && !in.probe.empty() && prompts > 1)
            return status::failure(errc::invalid_argument,
                                   "%s: %zu parts would be evicted by one probe; valid: one such part", call,
                                   prompts);
        if (status s = all_stay(call, in); !s) return s;
        if (parts.empty() || in.k.size() != tokens * key_floats)
            return status::failure(errc::invalid_argument,
                                   "%s: k has %zu numbers and %zu parts with %zu tokens; valid: one part and "
                                   "more, and kv_heads * head_dim = %zu floats for each token",
                                   call, in.k.size(), parts.size(), tokens, key_floats);
        const auto rows = [&](const char* name, std::size_t size, std::size_t row,
                              bool may_be_empty) -> status {
            if (size == tokens * row || (may_be_empty && size == 0)) return {};
            return status::failure(errc::invalid_argument,
                                   "%s: %s has %zu numbers and the parts %zu tokens; valid: %zu%s", call,
                                   name, size, tokens, tokens * row, may_be_empty ? ", or none" : "");
        };
        if (status s = rows("v", in.v.size(), key_floats, false); !s) return s;
        if (status s = rows("q", in.q.size(), query_floats, true); !s) return s;
        if (status s = rows("out", out.size(), query_floats, true); !s) return s;
        if (status s = rows("chosen", in.chosen.size(), in.chosen.size() / tokens, true); !s) return s;
        return rows("lse", in.lse.size(), query_heads, true);
    }
    [[nodiscard]] status room(const char* call, std::size_t have, std::size_t more) const noexcept {
        if (have + more > max_tokens)
            return status::failure(
                errc::out_of_range,
                "%s: %zu tokens are held and %zu more come; valid: up to max_tokens = %u in all", call, have,
                more, max_tokens);
        return {};
    }
};

#ifdef KVTL_INSTANCE
KVTL_INSTANCE struct call_checks<float>;
KVTL_INSTANCE struct call_checks<f16>;
KVTL_INSTANCE struct call_checks<bf16>;
#endif

}} // namespace kvtl::v0
