// Words of a store of prefixes: its settings, what an engine says and gets, and what is counted.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/save/saved.hpp>
#include <kvtl/status.hpp>
#include <kvtl/store/prefix_hash.hpp>
#include <kvtl/store/prefix_tier.hpp>
#include <kvtl/store/victim_order.hpp>
#include <kvtl/views.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>

namespace kvtl { inline namespace v0 {

/// What a store asks of a cache: kv_manager, or an engine's own interface to one.
template <class T>
concept saving_cache = requires(T& cache, sequence_id seq, const std::string& path, const save_options& to,
                                const load_options& from, std::size_t tokens) {
    { cache.begin() } -> std::same_as<result<sequence_id>>;
    { cache.save(seq, path, to) } -> std::same_as<result<save_facts>>;
    { cache.load(path, from) } -> std::same_as<result<loaded_sequence>>;
    { cache.fork(seq) } -> std::same_as<result<sequence_id>>;
    { cache.rewind_to(seq, tokens) } -> std::same_as<status>;
    { cache.end(seq) } -> std::same_as<status>;
};

struct prefix_store_config {
    std::string folder{}; ///< of files; it must be there, and belongs to one store at a time; empty: no files
    std::uint64_t model = 0; ///< fingerprint of the weights; prefixes of another model do not match
    std::size_t trunks = 0;  ///< open sequences of the cache that the store may have
    std::uint64_t file_bytes = std::uint64_t{4} << 30; ///< of all files of prefixes
    std::uint64_t free_bytes = std::uint64_t{1} << 30; ///< of the file system, which files must leave free
    /// Flash wears: a save begins only while what was written today and what it is expected to write is within this. What a save
    /// wrote before it failed is not known, and does not count.
    std::uint64_t write_bytes_per_day = std::numeric_limits<std::uint64_t>::max();
    std::size_t memory_bytes = std::size_t{64} << 20; ///< of tables, and of the tokens of trunks
    std::uint32_t rewind_tokens = 4;        ///< that start() may take back from the end of a prefix; 0: none
    std::function<std::uint64_t()> clock{}; ///< seconds since 1970; empty: the system's
    prefix_tier* remote =
        nullptr; ///< behind the folder, such as remote_tier; it must outlive the store; null: none
    std::size_t remote_gain = 64; ///< tokens more than the folder has, for which the tier is asked
};

/// Names a stored prefix while the store is open. 0 names none.
using prefix_id = std::uint64_t;

enum class prefix_source : std::uint8_t { nothing, trunk, file };

struct started_sequence {
    sequence_id seq;        ///< the engine's own, which ends it
    std::size_t tokens = 0; ///< of the prompt, that it has; fewer than the prompt
    prefix_source from = prefix_source::nothing;
    prefix_id prefix = 0; ///< where they come from
    bool exact = false;   ///< of a file: loaded_sequence::exact
};

struct keep_options {
    prefix_space space{};
    prefix_hints hints{};
    bool to_file = false; ///< now; otherwise when the trunk has to leave, or at flush()
    prefix_id replaces =
        0; ///< one that is no longer needed, as the last turn; its file gets what has changed
};

/// Tokens are counted as PTE does: by whether they were computed, computed again, or brought.
struct prefix_statistics {
    std::uint64_t starts = 0;
    std::uint64_t forked = 0, loaded = 0, missed = 0; ///< what became of them
    std::uint64_t tokens_forked = 0, tokens_reloaded = 0;
    std::uint64_t tokens_prefilled = 0;       ///< that start() left to the engine
    std::uint64_t tokens_prefilled_again = 0; ///< of these, that a prefix had which was evicted
    /// By saves that succeeded, and by loads.
    std::uint64_t bytes_written = 0, bytes_read = 0;
    std::uint64_t demoted = 0;    ///< trunks that had to leave memory
    std::uint64_t evicted = 0;    ///< prefixes that had to leave altogether
    std::uint64_t collisions = 0; ///< hashes that agreed where texts did not
    std::uint64_t refused = 0; ///< forks, loads, rewinds and writes that failed, the last with this sentence
    std::string last_refusal{};
    std::uint64_t foreign_files = 0, damaged_files = 0; ///< that were found in the folder, and left alone
    std::uint64_t fetched = 0;                          ///< files that the tier behind the folder brought

    std::size_t prefixes = 0, trunks = 0, files = 0; ///< now
    std::uint64_t file_bytes = 0;
    std::uint64_t written_today = 0;
    std::size_t memory_bytes = 0;
};

}} // namespace kvtl::v0
