// kvtl_llama: an unmodified llama.cpp whose KV cache is kept by kvtl.
//
//   auto params = llama_context_default_params();
//   auto attached = kvtl_llama::attachment::by_name(params, model, {.policy = "dynakv", .memory_bytes = 64 << 20, ...});
//   llama_context* context = llama_init_from_model(model, params);
//   if (auto s = attached->start(context); !s) ...        // decodes a few tokens to see what the model does
//   if (auto s = attached->decode(batch); !s) ...         // in place of llama_decode(context, batch)
//   llama_get_logits_ith(context, -1) ...                 // logits, samplers, templates: llama.cpp's own
//
// What:    llama.cpp computes its graph; at each layer's FLASH_ATTN_EXT it stops once, the rows that its SET_ROWS nodes
//          have put into cells and the queries go to kvtl, and kvtl's output replaces the node's. The cells are emptied
//          after every batch: they hold one batch, the context lies in kvtl.
// Batches: one sequence's tokens side by side, positions explicit and following on what the sequence has. While a
//          sequence's prompt is open, tokens belong to it; the batch that asks for logits of its last token ends it.
//          After that one token is a step of decoding; several of which only the last (or none) wants logits are a further
//          turn; several that want logits are a draft to be verified: steps of decoding, one after the other, in one call.
// Errors:  a failure in any layer leaves the sequences of the batch with the tokens that they held, or, where the cache
//          cannot go back (a prompt's end has evicted, a layer has left a window behind), ends them: held(seq) says which,
//          and so does the status. Entries that had left the window for the step that failed stay where they went: the
//          window is smaller until it has filled again. Nothing throws.
// Threads: one thread calls. llama.cpp's graphs and kvtl's shards run in turn on one pool of ggml's threads, which the
//          attachment owns.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/status.hpp>

#include "kv_cache.hpp"

#include <llama.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvtl_llama {

/// What a few decoded tokens showed of a model. Layers are those with attention, in order.
struct model_facts {
    kvtl::shape shape;       ///< layers with attention only
    std::vector<int> layers; ///< llama.cpp's number of each
    float scale = 0;         ///< of q . k
    float softcap = 0;       ///< logits are softcap * tanh(logit / softcap); 0: as they are
    std::vector<std::uint32_t>
        windows;              ///< per layer: tokens it looks back, itself included; 0: all. Empty: all 0
    bool sink_logits = false; ///< a logit per query head that joins the softmax
    bool hybrid = false;      ///< layers with a recurrent state too: no rewind
    std::vector<double> rope_frequencies; ///< angle per position of each rotated pair; empty: not known
    bool rope_neighbours = false;      ///< pairs are (0, 1), (2, 3), ... instead of (0, n), (1, n + 1), ...
    std::uint32_t trained_context = 0; ///< tokens
};

/// What the attachment itself needs to know.
struct settings {
    std::size_t max_tokens = 0;      ///< of one sequence; 0: what the model was trained for
    std::uint32_t max_sequences = 1; ///< sequence ids 0 .. max_sequences - 1
    std::uint32_t cells = 0; ///< llama.cpp's own; a batch has up to params.n_batch of them. 0: as many
    unsigned threads = 2;    ///< of the pool; shards, where nothing is said of them: as many, up to KV heads
    /// How long these threads spin for work before they sleep, 0 to 100. At 0 a step of two threads takes half as long
    /// again, but other programs get the cores.
    unsigned poll = 50;
    kvtl::engine_input engine_inputs = kvtl::engine_input::q | kvtl::engine_input::k | kvtl::engine_input::v |
                                       kvtl::engine_input::calibration;
};

/// A preset by name for a model (needs kvtl_llama_by_name). Of `o` are filled in: shape, attention, rope_*, max_tokens,
/// max_sequences and engine_inputs; shards where that is 0.
[[nodiscard]] kvtl::result<std::unique_ptr<engine::kv_cache>>
open_by_name(engine::cache_options o, const model_facts& f, const settings& s);

/// The smallest memory_bytes with which open_by_name() would succeed.
[[nodiscard]] kvtl::result<engine::memory_use> least_by_name(engine::cache_options o, const model_facts& f,
                                                             const settings& s);

/// The hook between one llama_context and one kvtl cache. Must outlive the context's last decode.
class attachment {
  public:
    /// Opens the cache once the model's shape is known.
    using opener = std::function<kvtl::result<std::unique_ptr<engine::kv_cache>>(const model_facts&)>;

    /// Puts the hook into params: cells, one graph per batch, flash attention, callbacks. Refuses params that cannot
    /// work (quantised cells, callbacks of others, embeddings) and models that cannot (encoders, ...).
    [[nodiscard]] static kvtl::result<attachment>
    attach(llama_context_params& params, const llama_model* model, const settings& s, opener open);

    /// With a preset by name: attach() with open_by_name().
    [[nodiscard]] static kvtl::result<attachment> by_name(llama_context_params& params,
                                                          const llama_model* model, const settings& s,
                                                          engine::cache_options o);

    attachment(attachment&&) noexcept;
    attachment& operator=(attachment&&) noexcept;
    ~attachment();

    /// Once, with the context that was made from the params: finds the layers and opens the cache.
    [[nodiscard]] kvtl::status start(llama_context* context);

    /// In place of llama_decode.
    [[nodiscard]] kvtl::status decode(const llama_batch& batch);

    /// Gives up the tokens of a sequence from `position` on.
    [[nodiscard]] kvtl::status rewind(llama_seq_id seq, llama_pos position);

    /// Forgets a sequence; its id may begin anew.
    [[nodiscard]] kvtl::status end(llama_seq_id seq);

    /// Writes a sequence to a file, between two batches (kv_manager::save). A hybrid model's recurrent state is no part of it:
    /// such a model is refused.
    [[nodiscard]] kvtl::result<kvtl::save_facts> save(llama_seq_id seq, const std::string& path,
                                                      const kvtl::save_options& o = {});
    /// A sequence that has not begun, or was ended, goes on from such a file: the next token's position is held(seq).
    [[nodiscard]] kvtl::result<kvtl::loaded_sequence> load(llama_seq_id seq, const std::string& path,
                                                           const kvtl::load_options& o = {});

    /// A sequence of the cache that nothing else uses, such as a branch or one that somebody loaded, becomes `seq`, which has
    /// not begun or was ended. `tokens`: that it holds. The attachment ends it from now on.
    [[nodiscard]] kvtl::status adopt(llama_seq_id seq, kvtl::sequence_id id, std::size_t tokens);
    /// The cache's own name of a sequence; nothing for one that has not begun or was ended.
    [[nodiscard]] std::optional<kvtl::sequence_id> name_of(llama_seq_id seq) const noexcept;

    /// Tokens of a sequence, 0 for one that has not begun or was ended.
    [[nodiscard]] llama_pos held(llama_seq_id seq) const noexcept;

    [[nodiscard]] const model_facts& facts() const noexcept; ///< after start()
    [[nodiscard]] engine::kv_cache& cache() noexcept;        ///< after start()
    [[nodiscard]] engine::cache_stats stats() const;

    /// All that start() failed with: a status holds 239 characters, and a memory bound that is too small has a line per
    /// part.
    [[nodiscard]] const std::string& why_not() const noexcept;

  private:
    struct state;
    explicit attachment(std::unique_ptr<state> s) noexcept;
    std::unique_ptr<state> state_; ///< llama.cpp's callbacks hold its address
};

} // namespace kvtl_llama
