// SPDX-License-Identifier: MIT
#include "kvtl_llama.hpp"

#include "kvtl_llama_state.hpp"

#include <algorithm>
#include <exception>
#include <limits>
#include <string>
#include <utility>

namespace kvtl_llama {

namespace {

status check_settings(const settings& s, const attachment::opener& open) {
    if (!open) return status::failure(errc::invalid_argument, "attach: there is no opener of a cache");
    if (s.cells < 1 || s.cells > 1U << 24)
        return status::failure(errc::invalid_argument,
                               "attach: cells is %u; valid: 1 to 2^24, no fewer than a batch has tokens",
                               s.cells);
    if (s.max_sequences < 1 || s.max_sequences > llama_max_parallel_sequences())
        return status::failure(errc::invalid_argument, "attach: max_sequences is %u; valid: 1 to %zu",
                               s.max_sequences, llama_max_parallel_sequences());
    if (s.max_tokens < 1 || s.max_tokens > std::numeric_limits<std::int32_t>::max())
        return status::failure(errc::invalid_argument, "attach: max_tokens is %zu; valid: 1 to 2^31 - 1",
                               s.max_tokens);
    if (s.threads < 1 || s.threads > GGML_MAX_N_THREADS)
        return status::failure(errc::invalid_argument, "attach: threads is %u; valid: 1 to %d", s.threads,
                               GGML_MAX_N_THREADS);
    if (s.poll > 100)
        return status::failure(errc::invalid_argument, "attach: poll is %u; valid: 0 to 100", s.poll);
    return {};
}

/// Keys and values are made of one vector of fewer numbers (deepseek2 and its kin). The graph would say so too, but llama.cpp
/// makes none of such a model on processors with AMX: it stops the program.
bool has_latent_attention(const llama_model* model) {
    char architecture[64] = {}, rank[32] = {};
    if (llama_model_meta_val_str(model, "general.architecture", architecture, sizeof architecture) <= 0)
        return false;
    const std::string key = std::string(architecture) + ".attention.kv_lora_rank";
    return llama_model_meta_val_str(model, key.c_str(), rank, sizeof rank) > 0;
}

status check_model(const llama_model* model) {
    if (model == nullptr) return status::failure(errc::invalid_argument, "attach: the model is null");
    const char* why = llama_model_has_encoder(model)    ? "an encoder"
                      : !llama_model_has_decoder(model) ? "no decoder"
                      : llama_model_is_diffusion(model) ? "diffusion in place of causal attention"
                      : llama_model_is_recurrent(model) ? "a recurrent state and no attention"
                      : has_latent_attention(model)     ? "keys and values of different sizes (MLA)"
                                                        : nullptr;
    if (why == nullptr) return {};
    return status::failure(errc::unsupported,
                           "attach: the model has %s; valid: decoders with causal attention", why);
}

status check_params(const llama_context_params& p) {
    const auto plain = [](ggml_type t) {
        return t == GGML_TYPE_F16 || t == GGML_TYPE_BF16 || t == GGML_TYPE_F32;
    };
    if (p.cb_eval != nullptr)
        return status::failure(errc::invalid_argument,
                               "attach: params.cb_eval is taken, and the attachment needs it; valid: null");
    if (!plain(p.type_k) || !plain(p.type_v))
        return status::failure(
            errc::unsupported,
            "attach: params.type_k is %s and type_v %s, whose rows llama.cpp turns before it "
            "rounds them; valid: f16, bf16, f32 (kvtl has presets with signed bytes)",
            ggml_type_name(p.type_k), ggml_type_name(p.type_v));
    if (p.embeddings ||
        (p.pooling_type != LLAMA_POOLING_TYPE_UNSPECIFIED && p.pooling_type != LLAMA_POOLING_TYPE_NONE))
        return status::failure(errc::unsupported,
                               "attach: params ask for embeddings or pooling; valid: logits only");
    if (p.attention_type == LLAMA_ATTENTION_TYPE_NON_CAUSAL)
        return status::failure(errc::unsupported,
                               "attach: params.attention_type is non-causal; valid: causal");
    if (p.ctx_type != LLAMA_CONTEXT_TYPE_DEFAULT || p.ctx_other != nullptr)
        return status::failure(
            errc::unsupported,
            "attach: params describe a draft or a dependent context; valid: one of its own");
    return {};
}

status not_started(const char* call) {
    return status::failure(errc::invalid_argument, "%s: start() has not succeeded yet", call);
}

/// What llama_decode returned of itself.
status of_code(std::int32_t code) {
    switch (code) {
    case 1:
        return status::failure(errc::out_of_range, "llama.cpp found no cells for the batch");
    case 2:
        return status::failure(errc::unsupported, "the abort callback of the params ended llama.cpp's graph");
    case -1:
        return status::failure(
            errc::invalid_argument,
            "llama.cpp refuses the batch (its log says why): tokens must be in the vocabulary");
    default:
        return status::failure(errc::unsupported, "llama_decode returned %d (its log says why)", code);
    }
}

} // namespace

/// llama.cpp's memory must be what the last batch left: nothing, or of a hybrid model the last position.
status attachment::state::check_memory() {
    if (std::exchange(intruded, false)) {
        llama_memory_clear(memory, false);
        if (facts.hybrid)
            for (std::uint32_t i = 0; i < s.max_sequences; ++i) forget(static_cast<llama_seq_id>(i));
        return status::failure(
            errc::invalid_argument,
            "llama_decode was called on the context around the attachment; its tokens were "
            "forgotten%s; valid: decode() of the attachment only",
            facts.hybrid ? ", and all sequences were ended" : "");
    }
    for (std::uint32_t i = 0; i < s.max_sequences; ++i) {
        const auto seq = static_cast<llama_seq_id>(i);
        const llama_pos want = facts.hybrid ? held_by(seq) - 1 : -1,
                        is = llama_memory_seq_pos_max(memory, seq);
        if (is == want) continue;
        static_cast<void>(llama_memory_seq_rm(memory, seq, -1, -1));
        if (facts.hybrid) forget(seq);
        return status::failure(
            errc::invalid_argument,
            "llama.cpp's memory of sequence %d was changed around the attachment, %s; valid: "
            "rewind() and end() in place of llama_memory_* and llama_state_*",
            seq, facts.hybrid ? "so that it was ended" : "which was forgotten");
    }
    return {};
}

status attachment::state::begin_new() {
    parts.clear();
    tokens = 0;
    for (const batch_share& share : plan->shares()) {
        conversation& c = conversations[static_cast<std::size_t>(share.seq)];
        if (!c.begun) {
            auto begun = cache->begin();
            if (!begun) return status::failure(begun.error().code, "%s", begun.error().message.c_str());
            c = {.id = *begun, .begun = true};
        }
        if (c.retry_writes) {
            if (status e = cache->retry_writes(c.id); !e) return e;
            c.retry_writes = false;
        }
        parts.push_back({.seq = c.id, .tokens = share.tokens, .kind = share.kind});
        tokens += share.tokens;
    }
    return {};
}

void attachment::state::empty_cells() noexcept {
    if (!facts.hybrid) {
        static_cast<void>(llama_memory_seq_rm(memory, -1, -1, -1));
        return;
    }
    // The recurrent state keeps the last position, and llama.cpp wants the same of the cells.
    for (const batch_share& share : plan->shares())
        static_cast<void>(llama_memory_seq_rm(memory, share.seq, 0, held_by(share.seq) - 1));
}

void attachment::state::keep() noexcept {
    for (const batch_share& share : plan->shares()) {
        conversation& c = conversations[static_cast<std::size_t>(share.seq)];
        c.took(share.tokens, share.leaves_prompt_open);
    }
}

status attachment::state::check_saving(const char* call, llama_seq_id seq) const noexcept {
    if (!cache) return not_started(call);
    if (seq < 0 || static_cast<std::size_t>(seq) >= conversations.size())
        return status::failure(errc::out_of_range, "%s: sequence is %d; valid: 0 to %zu (max_sequences)",
                               call, seq, conversations.size() - 1);
    if (facts.hybrid)
        return status::failure(
            errc::unsupported,
            "%s: the model has layers with a recurrent state, which is not saved; valid: models "
            "with attention in every layer",
            call);
    return {};
}

status attachment::state::check_taking(const char* call, llama_seq_id seq) const noexcept {
    if (status e = check_saving(call, seq); !e) return e;
    const conversation& c = conversations[static_cast<std::size_t>(seq)];
    if (!c.begun) return {};
    return status::failure(errc::invalid_argument, "%s: sequence %d has %u tokens; valid: one that was ended",
                           call, seq, c.tokens);
}

void attachment::state::take(llama_seq_id seq, kvtl::sequence_id id, std::uint64_t held) noexcept {
    conversations[static_cast<std::size_t>(seq)] = {
        .id = id, .begun = true, .prompt_open = held == 0, .tokens = static_cast<std::uint32_t>(held)};
}

void attachment::state::forget(llama_seq_id seq) noexcept {
    conversation& c = conversations[static_cast<std::size_t>(seq)];
    if (c.begun) static_cast<void>(cache->end(c.id));
    if (facts.hybrid) static_cast<void>(llama_memory_seq_rm(memory, seq, -1, -1));
    c = {};
}

/// Every sequence of the batch back to what it had, or ended.
status attachment::state::undo(const status& why) {
    std::string ended;
    for (const batch_share& share : plan->shares()) {
        conversation& c = conversations[static_cast<std::size_t>(share.seq)];
        const bool lost_state = facts.hybrid && computing; // it has taken some of the tokens
        c.retry_writes = true;
        if (c.tokens == 0) {
            forget(share.seq);
        } else if (lost_state || !cache->rewind_to(c.id, c.tokens)) {
            forget(share.seq);
            ended += (ended.empty() ? "" : ", ") + std::to_string(share.seq);
        } else {
            c.went_back(c.tokens);
        }
    }
    if (ended.empty())
        return status::failure(why.code(), "%.180s; all sequences hold the tokens they held", why.what());
    return status::failure(why.code(), "%.180s; ended: sequence %.30s", why.what(), ended.c_str());
}

attachment::attachment(std::unique_ptr<state> s) noexcept : state_(std::move(s)) {}
attachment::attachment(attachment&&) noexcept = default;
attachment& attachment::operator=(attachment&&) noexcept = default;
attachment::~attachment() = default;

kvtl::result<attachment> attachment::attach(llama_context_params& params, const llama_model* model,
                                            const settings& s, opener open) {
    settings with = s;
    if (with.cells == 0) with.cells = params.n_batch;
    if (with.max_tokens == 0 && model != nullptr)
        with.max_tokens = static_cast<std::size_t>(std::max(0, llama_model_n_ctx_train(model)));
    if (status e = check_settings(with, open); !e) return e;
    if (status e = check_model(model); !e) return e;
    if (status e = check_params(params); !e) return e;
    const std::uint32_t batch = std::min(params.n_batch, with.cells);
    if (batch < 1)
        return status::failure(errc::invalid_argument, "attach: params.n_batch is 0; valid: 1 or more");
    try {
        auto made = std::make_unique<state>();
        made->s = with;
        made->batch = batch;
        made->open = std::move(open);
        made->model = model;
        made->users_abort = std::exchange(params.abort_callback, state::on_abort);
        made->users_abort_data = std::exchange(params.abort_callback_data, made.get());
        params.cb_eval = state::on_node;
        params.cb_eval_user_data = made.get();
        // A hybrid model's sequences each keep their last cell.
        const std::uint32_t kept = llama_model_is_hybrid(model) ? with.max_sequences : 0;
        params.n_ctx = (with.cells + kept + 255) / 256 * 256;
        params.n_batch = params.n_ubatch = batch; // one graph
        params.n_seq_max = with.max_sequences;
        params.kv_unified = true; // or else every sequence is a graph
        params.swa_full = false;
        params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
        params.offload_kqv = false; // kvtl reads and writes on the host
        params.n_threads = params.n_threads_batch = static_cast<std::int32_t>(with.threads);
        return attachment(std::move(made));
    } catch (const std::exception& e) {
        return status::failure(errc::unsupported, "attach: %s", e.what());
    }
}

status attachment::start(llama_context* context) {
    state& a = *state_;
    if (a.context != nullptr) return status::failure(errc::invalid_argument, "start: it has started already");
    if (context == nullptr || llama_get_model(context) != a.model || llama_n_ubatch(context) != a.batch)
        return status::failure(
            errc::invalid_argument,
            "start: the context is null or was not made from the model and the params of attach()");
    a.memory = llama_get_memory(context);
    if (a.memory == nullptr)
        return status::failure(
            errc::unsupported,
            "start: the model keeps no keys and values (an encoder); valid: decoders with causal "
            "attention");
    a.context = context;
    a.why_not.clear();
    status done;
    try {
        done = a.workers.attach(context, a.s.threads, a.s.poll);
        if (done) done = a.dry_run();
        llama_memory_clear(a.memory, true);
        llama_perf_context_reset(context);
        if (done) done = a.open_cache();
    } catch (const std::exception& e) {
        done = status::failure(errc::unsupported, "start: %s", e.what());
    }
    if (!done) {
        a.context = nullptr;
        if (a.why_not.empty()) a.why_not = done.what();
    }
    return done;
}

status attachment::decode(const llama_batch& batch) {
    state& a = *state_;
    if (!a.cache) return not_started("decode");
    if (status e =
            a.plan->make(batch, a.conversations,
                         {.batch = a.batch, .max_tokens = a.s.max_tokens, .one_sequence = a.facts.hybrid});
        !e)
        return e;
    if (status e = a.check_memory(); !e) return e;
    a.computing = false;
    a.failure = a.begin_new();
    std::int32_t code = 0;
    if (a.failure.ok()) {
        a.next_layer = 0;
        a.doing = state::mode::replacing;
        for (unsigned i = 0; i < a.per_shard.size(); ++i) a.announce(0, i);
        code = llama_decode(a.context, batch);
        a.doing = state::mode::idle;
    }
    status failed = std::exchange(a.failure, status{});
    if (failed.ok() && code != 0)
        failed = of_code(code);
    else if (failed.ok() && a.next_layer != a.facts.layers.size())
        failed = status::failure(errc::unsupported,
                                 "llama.cpp stopped at %u of %zu layers: its graph changed since start()",
                                 a.next_layer, a.facts.layers.size());
    if (failed.ok()) {
        a.keep();
        a.empty_cells();
        return {};
    }
    const status told = a.undo(failed);
    a.empty_cells();
    return told;
}

status attachment::rewind(llama_seq_id seq, llama_pos position) {
    state& a = *state_;
    if (!a.cache) return not_started("rewind");
    const llama_pos have = held(seq);
    if (position < 0 || position > have)
        return status::failure(errc::out_of_range, "rewind: position is %d; valid: 0 to held(%d) = %d",
                               position, seq, have);
    if (position == have) return {};
    if (position == 0) return end(seq);
    if (a.facts.hybrid)
        return status::failure(
            errc::unsupported,
            "rewind: the model's recurrent state cannot go back; valid: end(), and the tokens anew");
    conversation& c = a.conversations[static_cast<std::size_t>(seq)];
    status done = a.cache->rewind_to(c.id, static_cast<std::size_t>(position));
    if (done) c.went_back(static_cast<std::uint32_t>(position));
    return done;
}

status attachment::end(llama_seq_id seq) {
    state& a = *state_;
    if (!a.cache) return not_started("end");
    if (seq < 0 || static_cast<std::size_t>(seq) >= a.conversations.size())
        return status::failure(errc::out_of_range, "end: sequence is %d; valid: 0 to %zu (max_sequences)",
                               seq, a.conversations.size() - 1);
    a.forget(seq);
    return {};
}

kvtl::result<kvtl::save_facts> attachment::save(llama_seq_id seq, const std::string& path,
                                                const kvtl::save_options& o) {
    state& a = *state_;
    if (status e = a.check_saving("save", seq); !e) return e;
    const conversation& c = a.conversations[static_cast<std::size_t>(seq)];
    if (!c.begun || c.prompt_open)
        return status::failure(
            errc::invalid_argument,
            "save: sequence %d has %u tokens and its prompt has not ended; valid: behind a batch that "
            "asks for logits",
            seq, c.tokens);
    return a.cache->save(c.id, path, o);
}

kvtl::result<kvtl::loaded_sequence> attachment::load(llama_seq_id seq, const std::string& path,
                                                     const kvtl::load_options& o) {
    state& a = *state_;
    if (status e = a.check_taking("load", seq); !e) return e;
    auto loaded = a.cache->load(path, o);
    if (!loaded) return loaded;
    a.take(seq, loaded->seq, loaded->tokens);
    return loaded;
}

status attachment::adopt(llama_seq_id seq, kvtl::sequence_id id, std::size_t tokens) {
    state& a = *state_;
    if (status e = a.check_taking("adopt", seq); !e) return e;
    a.take(seq, id, tokens);
    return {};
}

std::optional<kvtl::sequence_id> attachment::name_of(llama_seq_id seq) const noexcept {
    const auto& all = state_->conversations;
    const bool there = seq >= 0 && static_cast<std::size_t>(seq) < all.size();
    if (!there || !all[static_cast<std::size_t>(seq)].begun) return std::nullopt;
    return all[static_cast<std::size_t>(seq)].id;
}

llama_pos attachment::held(llama_seq_id seq) const noexcept {
    const bool there = seq >= 0 && static_cast<std::size_t>(seq) < state_->conversations.size();
    return there ? state_->held_by(seq) : 0;
}

const model_facts& attachment::facts() const noexcept {
    return state_->facts;
}
engine::kv_cache& attachment::cache() noexcept {
    return *state_->cache;
}
engine::cache_stats attachment::stats() const {
    return state_->cache ? state_->cache->stats() : engine::cache_stats{};
}
const std::string& attachment::why_not() const noexcept {
    return state_->why_not;
}

} // namespace kvtl_llama
