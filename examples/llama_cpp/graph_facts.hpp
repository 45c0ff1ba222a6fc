// What a model's attention is, found in the graphs of a few decoded tokens: no table of architectures.
//
// A layer with attention is a FLASH_ATTN_EXT node whose keys lie in cells; its sources and parameters say all that kvtl
// must know, and the SET_ROWS node before it leads to the ROPE node of its keys. Three tokens are decoded; where the
// model has a sliding window of W tokens, they are then moved to the positions W, W + 1 and 2W - 1, and one more at 2W
// shows by its mask which of them a layer may look at.
// SPDX-License-Identifier: MIT
#pragma once

#include "graph_nodes.hpp"
#include "kvtl_llama.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace kvtl_llama::detail {

/// How keys are rotated; equal for two layers that need the same angles.
struct rope_facts {
    bool found = false;
    std::int32_t dims = 0, mode = 0, original_context = 0, offset = 0;
    float base = 0, scale = 0, extension = 0;
    std::vector<float> factors; ///< the frequencies are divided by these
    std::string factors_name;
    friend bool operator==(const rope_facts&, const rope_facts&) = default;
};

/// One FLASH_ATTN_EXT node.
struct seen_layer {
    int number = -1; ///< llama.cpp's; -1: its keys are in no cells
    std::int64_t query_heads = 0, kv_heads = 0, key_dim = 0, value_dim = 0, tokens = 0, rows = 0, width = 0;
    float scale = 0, alibi = 0, softcap = 0;
    std::int32_t chosen = 0;         ///< it attends so many cells of all (a sparse model); 0: all
    bool own_rows = false;           ///< its keys and values were written in this graph, by this layer
    bool values_in_keys = false;     ///< (MLA)
    bool standard = false;           ///< one stream, f32 result
    std::int64_t seen_by_first = -1; ///< cells that the first token of the batch may look at
    std::int64_t seen_by_last = -1;  ///< likewise the last one
    std::vector<float> sinks;        ///< a logit per query head, or empty
    rope_facts rope;
};

/// Watches the nodes of one graph.
class graph_watch {
  public:
    /// For every node, before it is computed. True: stop there.
    [[nodiscard]] bool ask(const ggml_tensor* node);
    /// At a stop, after it was computed.
    void stop(const ggml_tensor* node);

    [[nodiscard]] std::vector<seen_layer> take();
    [[nodiscard]] bool saw_nodes() const noexcept { return saw_nodes_; }

  private:
    written_rows keys_, values_;
    rope_facts rope_;
    std::vector<seen_layer> layers_;
    staging room_;
    bool saw_nodes_ = false;
};

/// The batch that a graph was for: one sequence's.
struct seen_batch {
    std::int64_t first = 0; ///< position
    std::int64_t tokens = 0;
};

/// Facts from the first tokens: all but windows and rotation. Refuses what kvtl cannot do.
[[nodiscard]] kvtl::result<model_facts> facts_of(const std::vector<seen_layer>& layers, const settings& s,
                                                 const seen_batch& batch);

/// facts.windows from the mask of one token at 2 * `window`, as described above.
[[nodiscard]] kvtl::status find_windows(const std::vector<seen_layer>& layers, std::uint32_t window,
                                        model_facts& facts);

/// facts.rope_frequencies and what belongs to them, once the windows are known: keys of layers that slide reach no
/// codec, so that these may be rotated otherwise (Gemma 3).
void find_rotation(const std::vector<seen_layer>& layers, model_facts& facts);

} // namespace kvtl_llama::detail
