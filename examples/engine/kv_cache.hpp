// The programs' view of a kvtl cache whose policy is chosen by name at run time.
//
// kvtl itself has no virtual functions: a preset is a type. The programs compile each preset once, behind
// this interface, so that the engine, the tests' double-precision oracle and a recording cache look the same.
// An engine that knows its policy calls kvtl::kv_manager directly; the calls have the same names and meaning.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/config.hpp>
#include <kvtl/engine_inputs.hpp>
#include <kvtl/geometry.hpp>
#include <kvtl/io/any_io.hpp>
#include <kvtl/io/throttled.hpp>
#include <kvtl/save/file_ops.hpp>
#include <kvtl/save/saved.hpp>
#include <kvtl/statistics.hpp>
#include <kvtl/status.hpp>
#include <kvtl/views.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace engine {

/// What an engine with a model file can hand over.
inline constexpr kvtl::engine_input model_file_inputs =
    kvtl::engine_input::q | kvtl::engine_input::k | kvtl::engine_input::v | kvtl::engine_input::k_pre |
    kvtl::engine_input::x | kvtl::engine_input::probe | kvtl::engine_input::calibration;

/// One `--set POLICY.SLOT.FIELD=VALUE`.
struct setting {
    std::string policy;
    std::string slot;
    std::string field;
    std::string value;
};

struct cache_options {
    std::string policy;
    kvtl::shape shape;
    kvtl::attention_rule attention;   ///< scale, cap and sliding windows of the model
    std::vector<std::uint32_t> owner; ///< layer whose keys and values each layer attends; empty: its own
    std::size_t max_tokens = 0;       ///< of one sequence, prompt and generated together
    std::size_t max_sequences = 1;
    std::size_t memory_bytes = 0;
    std::size_t attend_tokens = 0;
    std::size_t keep_tokens = 0;    ///< 0: what the policy does by default
    std::size_t prefill_tokens = 0; ///< longest prompt; 0: max_tokens. Who evicts keeps room to decode
    /// Longest chunk of a prompt. A policy that evicts after each chunk has room for one chunk and for what it kept of earlier
    /// ones. 0: it has room for prefill_tokens.
    std::size_t chunk_tokens = 0;
    unsigned shards = 0;    ///< KV head h belongs to shard h % shards; 0: what opens it decides, else one
    std::string io;         ///< "uring", "posix" or "memory"
    std::string path;       ///< unused by "memory"
    bool keep_file = false; ///< otherwise it is removed when the cache is closed
    std::shared_ptr<kvtl::throttle> limit; ///< a slower device to imitate; empty: the one that is there
    kvtl::any_io::config device{}; ///< a device of the caller's own instead of `io`, `path` and `limit`
    std::vector<double>
        rope_frequencies;         ///< angle per position of each rotated pair; empty: base 10,000, all
    bool rope_unknown = false;    ///< presets that turn keys are refused
    bool rope_neighbours = false; ///< pairs are (0, 1), (2, 3), ... instead of (0, n), (1, n + 1), ...
    std::string calibration;      ///< file of bases for presets that need one ("" for none)
    std::string gates; ///< likewise of gate weights (gates.hpp), or of bases trained with gates; "" for
                       ///< those that ship with this model
    std::string
        votes; ///< file of the heads that retrieve (votes.hpp), where a preset can use one; "" for none
    std::uint64_t fingerprint = 0; ///< of the model (fingerprint.hpp): finds what ships with it; 0: nothing
    kvtl::engine_input engine_inputs = model_file_inputs; ///< what whoever calls the cache can hand over
    bool fit = false;   ///< turn size knobs down until the index takes half of the memory
    unsigned turns = 0; ///< with fit: turns of the preset's size knob beyond the largest index that fits
    bool time_phases = false;     ///< fill cache_stats::detail.phase_ns
    kvtl::lent_threads threads{}; ///< that share the clustering of a prompt where shards leave some idle
    std::vector<setting> settings;
};

/// What a cache has reserved, by what it is for.
struct memory_use {
    std::vector<std::pair<std::string, std::uint64_t>> parts;
    std::uint64_t raw_cache = 0; ///< bytes of all keys and values as f16, of max_tokens in max_sequences
    std::uint64_t storage = 0;   ///< bytes that the file may grow to (manager.hpp, storage_bytes)

    [[nodiscard]] std::uint64_t total() const noexcept {
        std::uint64_t sum = 0;
        for (const auto& part : parts) sum += part.second;
        return sum;
    }
    /// Of the raw cache: 1 is all of it.
    [[nodiscard]] double share(std::uint64_t bytes) const noexcept {
        return raw_cache == 0 ? 0.0 : static_cast<double>(bytes) / static_cast<double>(raw_cache);
    }
};

struct cache_stats {
    std::uint64_t resident_bytes_peak = 0;
    std::uint64_t read_bytes = 0;
    std::uint64_t useful_bytes = 0;
    std::uint64_t reads = 0;
    std::uint64_t written_bytes = 0;
    double hit_rate = 0;
    double mean_read_entries = 0;
    std::uint64_t storage_bytes = 0;
    std::vector<std::pair<std::string, std::uint64_t>> bytes_by_part;
    std::uint64_t raw_cache_bytes = 0; ///< what they are measured against
    std::string io;                    ///< what really ran: "uring", "posix" or "memory"
    bool direct = false;               ///< transfers bypassed the page cache
    bool memory_backed = false;        ///< what is stored takes memory: no file, or one on a tmpfs
    bool registered_file = false;      ///< io_uring: the kernel looked the file up once
    bool registered_arena = false; ///< io_uring: pages of the memory are pinned once (needs RLIMIT_MEMLOCK)
    std::string products;          ///< of attention (kvtl::kv_manager::products())
    kvtl::statistics detail;       ///< everything that the manager counts
    std::vector<std::pair<std::string, std::string>> config; ///< ("slot.field", value) as it runs

    [[nodiscard]] memory_use memory() const { return {bytes_by_part, raw_cache_bytes}; }
};

/// What the engine must supply beyond q, k and v, and which budgets count. What is not wanted costs the
/// engine nothing.
struct cache_wants {
    kvtl::engine_input inputs{};
    bool prefetch = false; ///< a guess of the next layer's query while this layer computes
    bool evicts = false;   ///< by keep_tokens; promises memory for a prompt that comes with its queries in
                           ///< one chunk
    bool retrieves = true; ///< attend_tokens of what it has
    bool gates = false;    ///< needs cache_options::gates
    bool attending_gates = false; ///< these attend earlier tokens (kvtl::activation::attention)
    bool gates_flag = false;      ///< entries leave by what these say, though there is room
    bool trained =
        false; ///< needs bases trained with gates: cache_options::gates, or what ships with the model
    bool entry_bases = false; ///< needs the bases of keys before RoPE and of values in its calibration
    bool announced = false;   ///< before_query() ahead of each layer's query
    bool by_chunk = false;    ///< evicts after each chunk of a prompt, by a probe that passes behind it
    bool replays = false;     ///< has the prompt pass once more behind itself, and evicts then
};

/// Tokens of a probe that passes behind a chunk, at most: caches that evict after each are opened with room for it.
inline constexpr std::size_t most_probe_tokens = 256;

/// Tokens of a prompt that are replayed together (KVzip: 2,048), and of these and the instruction, at most: caches that replay
/// prompts are opened with room for the latter.
inline constexpr std::size_t replay_tokens = 480, most_replayed_tokens = 512;

/// What a codec makes of tokens, wherever they would be kept.
class record_sizes {
  public:
    virtual ~record_sizes() = default;

    /// k, v (n, H, D): the tokens of a layer from 0 on. Adds the bytes of their records, all heads together, to keys (n) and
    /// values (n).
    virtual void add(std::uint32_t layer, std::span<const float> k, std::span<const float> v,
                     std::span<std::uint32_t> keys, std::span<std::uint32_t> values) const = 0;
};

/// All tensors are row-major fp32 with the full number of heads; each call works on the heads of one shard
/// only and fills only their part of `out`. Different shards may be called concurrently, the same shard may
/// not.
class kv_cache {
  public:
    virtual ~kv_cache() = default;

    [[nodiscard]] virtual kvtl::result<kvtl::sequence_id> begin() = 0;

    /// Appends T tokens and attends causally. q (T,HQ,D), k (T,H,D), v (T,H,D) -> out (T,HQ,D).
    virtual kvtl::status prefill(kvtl::sequence_id seq, std::uint32_t layer, const kvtl::layer_input& in,
                                 std::span<float> out, unsigned shard) noexcept = 0;

    /// Decodes T tokens (one, or a draft), each attending before the next. q (T,HQ,D), k (T,H,D), v (T,H,D) -> out
    /// (T,HQ,D).
    virtual kvtl::status attend(kvtl::sequence_id seq, std::uint32_t layer, const kvtl::layer_input& in,
                                std::span<float> out, unsigned shard) noexcept = 0;

    /// One layer of a batch of several sequences, part after part. When one fails, those before it have been taken.
    virtual kvtl::status forward(std::span<const kvtl::batch_part> parts, std::uint32_t layer,
                                 const kvtl::layer_input& in, std::span<float> out, unsigned shard) noexcept {
        std::size_t tokens = 0, first = 0;
        for (const kvtl::batch_part& p : parts) tokens += p.tokens;
        for (const kvtl::batch_part& p : parts) {
            kvtl::layer_input rows = in.rows(first, p.tokens, tokens);
            rows.last_chunk = p.kind != kvtl::part_kind::prompt;
            const std::size_t row = out.size() / tokens;
            const auto to = out.subspan(first * row, p.tokens * row);
            const kvtl::status s = p.kind == kvtl::part_kind::decode ? attend(p.seq, layer, rows, to, shard)
                                                                     : prefill(p.seq, layer, rows, to, shard);
            if (!s) return s;
            first += p.tokens;
        }
        return {};
    }

    /// The engine is about to compute this layer's query. A hint.
    virtual kvtl::status before_query(kvtl::sequence_id, std::uint32_t, unsigned) noexcept { return {}; }

    /// Starts the reads of a layer early; q (HQ,D) may be a guess.
    virtual kvtl::status prefetch(kvtl::sequence_id seq, std::uint32_t layer, std::span<const float> q,
                                  unsigned shard) noexcept = 0;
    /// The same for a batch; q (B,HQ,D).
    virtual kvtl::status prefetch_batch(std::span<const kvtl::sequence_id> batch, std::uint32_t layer,
                                        std::span<const float> q, unsigned shard) noexcept {
        const std::size_t row = batch.empty() ? 0 : q.size() / batch.size();
        kvtl::status first;
        for (std::size_t b = 0; b < batch.size(); ++b)
            if (auto s = prefetch(batch[b], layer, q.subspan(b * row, row), shard); !s && first.ok())
                first = s;
        return first;
    }

    /// Gives up the last n tokens in all layers.
    virtual kvtl::status rewind(kvtl::sequence_id seq, std::size_t n) noexcept = 0;

    /// Gives up what layers have beyond `tokens`, also where a step failed half-way through them.
    virtual kvtl::status rewind_to(kvtl::sequence_id, std::size_t) noexcept {
        return kvtl::status::failure(kvtl::errc::unsupported, "rewind_to: this cache cannot");
    }

    /// Takes at most so many bytes from now on: fewer than it was opened with, or as many again.
    virtual kvtl::status resize(std::size_t /*memory_bytes*/) noexcept {
        return kvtl::status::failure(kvtl::errc::unsupported, "resize: this cache cannot");
    }

    /// Tries writes that failed once more; until they succeed a sequence takes no tokens.
    virtual kvtl::status retry_writes(kvtl::sequence_id) noexcept { return {}; }

    virtual kvtl::status end(kvtl::sequence_id seq) noexcept = 0;

    /// Writes a sequence to a file of its own, from which a cache that is opened alike goes on.
    [[nodiscard]] virtual kvtl::result<kvtl::save_facts> save(kvtl::sequence_id, const std::string& /*path*/,
                                                              const kvtl::save_options& = {}) {
        return kvtl::error(kvtl::errc::unsupported, "save: this cache cannot");
    }
    /// The same to a file that is open: what is written counts once the caller has published it.
    [[nodiscard]] virtual kvtl::result<kvtl::save_facts> save(kvtl::sequence_id, kvtl::saved_file&) {
        return kvtl::error(kvtl::errc::unsupported, "save: this cache cannot");
    }
    [[nodiscard]] virtual kvtl::result<kvtl::loaded_sequence> load(const std::string& /*path*/,
                                                                   const kvtl::load_options& = {}) {
        return kvtl::error(kvtl::errc::unsupported, "load: this cache cannot");
    }
    /// A new sequence that has all tokens of another one, and its pages as long as they do not change.
    [[nodiscard]] virtual kvtl::result<kvtl::sequence_id> fork(kvtl::sequence_id) {
        return kvtl::error(kvtl::errc::unsupported, "fork: this cache cannot");
    }

    /// By this cache's codec, with tables and bases of its own, beside the cache's memory: for evaluations. Null where every
    /// record has the same size or depends on a prompt. Fails where what open() read cannot be read again.
    [[nodiscard]] virtual kvtl::result<std::unique_ptr<record_sizes>> sizes() const {
        return std::unique_ptr<record_sizes>{};
    }

    /// Entries of all KV heads that a layer holds.
    [[nodiscard]] virtual std::size_t kept_entries(kvtl::sequence_id, std::uint32_t) noexcept { return 0; }

    [[nodiscard]] virtual cache_stats stats() const = 0;
    [[nodiscard]] virtual unsigned shards() const noexcept = 0;
    [[nodiscard]] virtual cache_wants wants() const noexcept { return {}; }
};

/// The registry of the presets that were compiled in.
[[nodiscard]] kvtl::result<std::unique_ptr<kv_cache>> open_cache(const cache_options& options);
/// The smallest memory_bytes that open_cache() accepts with these options; memory_bytes and fit do not matter.
[[nodiscard]] kvtl::result<memory_use> least_memory(const cache_options& options);
[[nodiscard]] std::vector<std::string_view> policy_names();
[[nodiscard]] cache_wants policy_wants(std::string_view name); ///< nothing for an unknown one

} // namespace engine
