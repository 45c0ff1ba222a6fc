// The inside of an attachment: llama.cpp's callbacks on one side, kvtl's calls on the other.
// SPDX-License-Identifier: MIT
#pragma once

#include "batch_plan.hpp"
#include "ggml_threads.hpp"
#include "graph_facts.hpp"
#include "graph_nodes.hpp"
#include "kvtl_llama.hpp"

#include <optional>
#include <string>
#include <vector>

namespace kvtl_llama {

using detail::batch_share;
using detail::conversation;
using kvtl::errc;
using kvtl::status;

struct attachment::state {
    /// What llama.cpp's callbacks are for at the moment.
    enum class mode { idle, observing, replacing };

    settings s;
    std::uint32_t batch = 0; ///< most tokens of one, up to s.cells
    opener open;
    const llama_model* model = nullptr;
    ggml_abort_callback users_abort = nullptr;
    void* users_abort_data = nullptr;

    llama_context* context = nullptr; ///< set once start() has succeeded
    llama_memory_t memory = nullptr;
    model_facts facts;
    std::vector<int> layer_of;             ///< kvtl's number by llama.cpp's; -1: none
    std::vector<std::vector<float>> sinks; ///< logits per query head, by layer; empty: none
    std::unique_ptr<engine::kv_cache> cache;
    detail::ggml_threads workers;
    std::vector<conversation> conversations;
    std::optional<detail::batch_plan> plan;
    std::string why_not;

    mode doing = mode::idle;
    bool intruded = false; ///< llama.cpp computed a graph that this attachment did not ask for
    detail::graph_watch watch;

    // Of the batch that is being decoded.
    std::vector<kvtl::batch_part> parts;
    std::size_t tokens = 0;
    std::uint32_t next_layer = 0;
    bool computing = false; ///< a node of it has been asked about
    status failure;
    std::vector<status> per_shard;
    detail::written_rows written_keys, written_values;
    // Of a layer, where llama.cpp's own lie otherwise or elsewhere; else empty:
    detail::staging keys, values;
    std::vector<float> queries, attended;
    detail::staging room, query_room;

    [[nodiscard]] status dry_run();
    [[nodiscard]] status probe_windows(std::uint32_t window);
    [[nodiscard]] status decode_quietly(llama_pos position, int tokens_now);
    [[nodiscard]] status open_cache();
    [[nodiscard]] status check_memory();
    [[nodiscard]] status begin_new();
    [[nodiscard]] status undo(const status& why);
    [[nodiscard]] status check_saving(const char* call, llama_seq_id seq) const noexcept;
    [[nodiscard]] status check_taking(const char* call, llama_seq_id seq) const noexcept;
    void take(llama_seq_id seq, kvtl::sequence_id id, std::uint64_t held) noexcept;
    [[nodiscard]] llama_pos held_by(llama_seq_id seq) const noexcept {
        return static_cast<llama_pos>(conversations[static_cast<std::size_t>(seq)].tokens);
    }
    void empty_cells() noexcept;
    void forget(llama_seq_id seq) noexcept;
    void keep() noexcept;
    [[nodiscard]] bool wants(const ggml_tensor* node);
    void attend(ggml_tensor* node);
    [[nodiscard]] status attend_layer(ggml_tensor* node, std::uint32_t layer);
    void announce(std::uint32_t layer, unsigned shard) noexcept;

    static bool on_node(ggml_tensor* node, bool ask, void* data);
    static bool on_abort(void* data);
};

} // namespace kvtl_llama
