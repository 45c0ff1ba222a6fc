// A store of saved sequences, found by the longest prefix that a new prompt has in common with one of them.
//
//   auto opened = kvtl::prefix_store<kvtl::dynakv>::open(cache, {.folder = "prefixes", .model = fingerprint, .trunks = 4});
//   auto start = opened->start(prompt);       // a sequence, and how many tokens of the prompt it has
//   ...                                       // prefill the rest, decode
//   auto kept = opened->keep(start->seq, all_tokens_of_the_sequence);
//
// What:    a stored prefix is a whole sequence under the tokens that it holds, at a point that the engine chose: the end of a
//          system prompt, a document, a turn. It is a trunk (an open sequence of the cache, which is only forked), a file, or
//          both. Parts of a longer prefix are not reused, except its last `rewind_tokens` tokens, which rewind_to() gives up.
// Match:   a hash of 128 bits finds candidates of every length that is stored, longest first. Then model, space and tokens are
//          compared, one by one: in memory for trunks, from the note of the file otherwise.
// Bounds:  trunks, file_bytes, free_bytes, memory_bytes hold after every call; write_bytes_per_day when a save begins. What has
//          to leave is chosen by store/victim_order.hpp, and is never what the call itself works on. A trunk that leaves
//          is written to a file, if the bounds of files allow it.
// Errors:  start() fails only if no sequence can begin. A file of another cache or preset, a damaged file and a full cache are
//          misses, with a sentence in statistics(). A failed keep() leaves what is stored, except for what had to make room.
//          Foreign and damaged files stay in the folder and are counted.
// Tier:    with `remote`, every file that is saved is handed to it, and start() asks it for a longer prefix than the folder has. A
//          file that it brings counts as one that was saved. Its failures are misses, with a sentence in statistics(). After a
//          file of a cache with other settings it is not asked any more.
// Memory:  memory_bytes bounds tables and the tokens of trunks. Beside it are 128 KiB, and 4 bytes per token during a call.
// Cost:    start(): one pass over the tokens, a look-up for each length that is stored, then a fork or a load. Cold.
// Threads: one call at a time. Calls save, load, fork and end sequences, so no other thread may be in a call of their shards.
//          A store owns its folder. The cache must outlive it.
// Source:  steps to execution from KVFlow, pins with a deadline from Continuum, counters as in PTE (abstracts).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/save/file_ops.hpp>
#include <kvtl/save/saved.hpp>
#include <kvtl/status.hpp>
#include <kvtl/store/prefix_folder.hpp>
#include <kvtl/store/prefix_hash.hpp>
#include <kvtl/store/prefix_index.hpp>
#include <kvtl/store/prefix_note.hpp>
#include <kvtl/store/prefix_types.hpp>
#include <kvtl/store/reuse.hpp>
#include <kvtl/store/victim_order.hpp>
#include <kvtl/views.hpp>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kvtl { inline namespace v0 {

template <saving_cache Cache, folder_ops Ops = posix_file_ops, class Hash = prefix_hash> class prefix_store {
  public:
    /// Takes the folder and finds what is stored in it. Reads of each file its superblocks, its table and 512 KiB of its note. The
    /// bounds hold at once: what is too much is evicted.
    [[nodiscard, gnu::cold]] static result<prefix_store> open(Cache& cache, prefix_store_config c,
                                                              Ops ops = {}) {
        if (c.folder.empty() && c.trunks == 0)
            return status::failure(
                errc::invalid_argument,
                "prefix store: folder is empty and trunks is 0; valid: a folder, trunks, or both");
        if (!c.folder.empty() && c.file_bytes == 0)
            return status::failure(errc::invalid_argument,
                                   "prefix store: file_bytes is 0; valid: at least 1, or an empty folder");
        if (!c.clock)
            c.clock = [] {
                const auto now = std::chrono::system_clock::now().time_since_epoch();
                return static_cast<std::uint64_t>(
                    std::chrono::duration_cast<std::chrono::seconds>(now).count());
            };
        if (c.remote != nullptr && c.folder.empty())
            return status::failure(
                errc::invalid_argument,
                "prefix store: folder is empty and remote is set; valid: a folder for what it brings");
        prefix_store store(cache, std::move(c), std::move(ops));
        if (store.folder_.there())
            if (status s = store.find_files(); !s) return s;
        return result<prefix_store>(std::move(store));
    }

    prefix_store(prefix_store&&) noexcept = default;
    prefix_store& operator=(prefix_store&&) = delete;
    /// Ends the trunks; flush() saves them before.
    ~prefix_store() {
        for (auto& [id, e] : all_)
            if (e.trunk) static_cast<void>(cache_->end(*e.trunk));
    }

    /// A sequence that has as much of a prompt as is stored, but at least one token less than all of it: the engine needs the
    /// output of the last one. The sequence is the engine's, which feeds the rest and ends it.
    [[nodiscard, gnu::cold]] result<started_sequence> start(std::span<const std::uint32_t> prompt,
                                                            const prefix_space& space = {}) {
        const auto wanted = prompt.first(prompt.empty() ? 0 : prompt.size() - 1);
        auto found = find(wanted, space);
        if (fetch(prompt, space, found.matches)) found = find(wanted, space);
        started_sequence start;
        std::vector<prefix_id> failed; // with fewer tokens they would fail again
        for (const prefix_match& m : found.matches) {
            if (std::find(failed.begin(), failed.end(), m.id) != failed.end()) continue;
            const std::uint64_t refused = counts_.refused;
            if (take(m, prompt, space, start)) break;
            if (counts_.refused != refused) failed.push_back(m.id);
        }
        if (start.from == prefix_source::nothing) {
            const auto seq = cache_->begin();
            if (!seq) return seq.error();
            start.seq = *seq;
        }
        ++counts_.starts;
        ++(start.from == prefix_source::trunk  ? counts_.forked
           : start.from == prefix_source::file ? counts_.loaded
                                               : counts_.missed);
        (start.from == prefix_source::file ? counts_.tokens_reloaded : counts_.tokens_forked) += start.tokens;
        counts_.tokens_prefilled += prompt.size() - start.tokens;
        counts_.tokens_prefilled_again += std::max(found.evicted, start.tokens) - start.tokens;
        return start;
    }

    /// Tokens of a prompt that start() would find here, by their hashes: without the tier behind the folder.
    [[nodiscard, gnu::cold]] std::size_t held(std::span<const std::uint32_t> prompt,
                                              const prefix_space& space = {}) const {
        return longest(find(prompt.first(prompt.empty() ? 0 : prompt.size() - 1), space).matches);
    }

    /// Stores a sequence under the tokens that it has, and returns the name of what is stored. The sequence stays the engine's and
    /// goes on. With trunks it is forked, without it is saved. A text that is stored already gets the hints, and the trunk and
    /// the file that it lacks. A file of an earlier run is tried: where it cannot be loaded, the text is stored beside it.
    /// Between tokens, as save(). After an error the store is as before, except for what had to make room; and `replaces`, if
    /// its file was taken over.
    [[nodiscard, gnu::cold]] result<prefix_id> keep(sequence_id seq, std::span<const std::uint32_t> tokens,
                                                    const keep_options& o = {}) {
        if (tokens.empty() || tokens.size() > std::numeric_limits<std::uint32_t>::max())
            return status::failure(errc::invalid_argument,
                                   "keep: tokens has %zu of them; valid: 1 to 2^32 - 1", tokens.size());
        if (o.to_file && !folder_.there())
            return status::failure(errc::invalid_argument,
                                   "keep: to_file is true; valid: false, as this store has no folder");
        if (o.replaces >= next_id_)
            return status::failure(errc::invalid_argument,
                                   "keep: replaces is %" PRIu64 "; valid: a prefix that was stored, or 0",
                                   o.replaces);
        if constexpr (requires { cache_->tokens(seq, 0); })
            if (const std::size_t have = cache_->tokens(seq, 0); have != tokens.size())
                return other_tokens(tokens.size(), have);
        const auto found = find(tokens, o.space);
        prefix_id id = 0;
        for (const prefix_match& m : found.matches)
            if (id == 0 && m.tokens == tokens.size() && m.given_up == 0 && has_text(m.id, tokens, o.space) &&
                can_load(m.id))
                id = m.id;
        if (id == 0) {
            id = next_id_++;
            const prefix_label label{.model = config_.model,
                                     .made = config_.clock(),
                                     .tokens = static_cast<std::uint32_t>(tokens.size()),
                                     .space = o.space,
                                     .hashes = found.hashes};
            all_[id].label = label;
            index_.add(id, label);
        }
        const prefix_id old =
            o.replaces != id && look_up(o.replaces) != nullptr ? o.replaces : 0; // or evicted
        const in_use mine(*this, id), other(*this, old);
        stored& e = all_.at(id);
        const bool had_trunk = e.trunk.has_value(), had_file = !e.path.empty();
        status s = bring(e, seq, tokens, o.to_file, look_up(old));
        if (s) s = fit_memory();
        if (s) {
            e.rank = {o.hints, ++uses_};
            if (old != 0) s = forget(old);
        } else {
            if (!had_trunk) static_cast<void>(drop_trunk(e));
            if (!had_file) discard_file(e);
        }
        for (const prefix_id one : {id, old})
            if (const stored* left = look_up(one); left != nullptr && !left->trunk && left->path.empty())
                leave(one);
        if (!s) return s;
        return id;
    }

    /// What the engine says of a stored prefix from now on, instead of what it said before. absent: it was evicted.
    status hint(prefix_id id, const prefix_hints& hints) noexcept {
        stored* const e = look_up(id);
        if (e == nullptr) return unknown("hint", id);
        e->rank.hints = hints;
        return {};
    }

    /// A prompt will come: the longest prefix that is stored of it becomes a trunk, if the store has trunks. Does nothing where
    /// nothing is stored. Loads, and saves a trunk that has to leave.
    [[gnu::cold]] status prefetch(std::span<const std::uint32_t> prompt, const prefix_space& space = {}) {
        for (const prefix_match& m : find(prompt, space).matches) {
            if (!has_text(m.id, prompt.first(m.tokens), space)) continue;
            stored& e = all_.at(m.id);
            e.rank.used = ++uses_;
            if (e.trunk || config_.trunks == 0) return {};
            const in_use mine(*this, m.id);
            if (status s = free_trunk(); !s) return s;
            auto text = read_text(m.id); // all of it: the prompt may end before the prefix
            started_sequence loaded;
            if (!text || !load(m.id, loaded)) continue;
            e.trunk = loaded.seq;
            e.text = std::move(*text);
            const status s = fit_memory();
            if (!s) static_cast<void>(drop_trunk(e));
            return s;
        }
        return {};
    }

    /// Saves the trunks that have no file, the last to leave first, and returns the first error.
    [[gnu::cold]] status flush() {
        std::vector<prefix_id> order;
        for (const auto& [id, e] : all_)
            if (e.trunk && e.path.empty() && folder_.there()) order.push_back(id);
        std::sort(order.begin(), order.end(), [&, now = config_.clock()](prefix_id a, prefix_id b) {
            return leaves_before(all_.at(b).rank, all_.at(a).rank, now);
        });
        status first;
        for (const prefix_id id : order) {
            const in_use mine(*this, id);
            stored& e = all_.at(id);
            if (status s = write(e, *e.trunk, e.text, nullptr); !s && first.ok()) first = s;
        }
        return first;
    }

    /// Ends a prefix's trunk and removes its file.
    [[gnu::cold]] status forget(prefix_id id) {
        stored* const e = look_up(id);
        if (e == nullptr) return unknown("forget", id);
        if (status s = drop_trunk(*e); !s) return s;
        if (status s = drop_file(*e); !s) return s;
        leave(id);
        return {};
    }

    /// The tier brought a file of a cache with other settings, and is not asked any more.
    [[nodiscard]] bool tier_is_foreign() const noexcept { return tier_is_foreign_; }

    [[nodiscard, gnu::cold]] prefix_statistics statistics() const {
        prefix_statistics s = counts_;
        s.prefixes = all_.size();
        s.trunks = trunks();
        for (const auto& [id, e] : all_) s.files += e.path.empty() ? 0 : 1;
        s.file_bytes = file_bytes_;
        s.written_today = folder_.written(today());
        s.memory_bytes = memory();
        return s;
    }

  private:
    /// What this cache makes of a file: it was found in the folder, was saved or loaded, or was refused as another cache's.
    enum class file_is : std::uint8_t { untried, good, refused };
    struct stored {
        prefix_label label{};
        victim_rank rank{};
        std::optional<sequence_id> trunk{};
        std::vector<std::uint32_t> text{}; ///< tokens, of a trunk
        std::string path{};                ///< empty: no file
        std::uint64_t bytes = 0;           ///< of the file
        file_is is = file_is::untried;
        bool brought = false; ///< by the tier, in this run
    };
    /// What a call works on is no victim.
    struct in_use {
        std::vector<prefix_id>* all;
        in_use(prefix_store& store, prefix_id id) : all(&store.in_use_) { all->push_back(id); }
        in_use(const in_use&) = delete;
        in_use& operator=(const in_use&) = delete;
        ~in_use() { all->pop_back(); }
    };
    enum class part { trunk, file, any };

    prefix_store(Cache& cache, prefix_store_config c, Ops ops)
        : cache_(&cache), config_(std::move(c)), folder_(config_.folder, std::move(ops)),
          index_(config_.rewind_tokens) {}

    [[nodiscard]] stored* look_up(prefix_id id) noexcept {
        const auto at = all_.find(id);
        return at == all_.end() ? nullptr : &at->second;
    }
    [[nodiscard]] static status unknown(const char* call, prefix_id id) noexcept {
        return status::failure(errc::absent, "%s: prefix %" PRIu64 " is not stored, or not any more", call,
                               id);
    }
    [[nodiscard]] std::uint64_t today() const { return config_.clock() / 86400; }
    void refuse(const status& s) {
        ++counts_.refused;
        counts_.last_refusal = s.what();
    }

    // ------------------------------------------------------------------------------------------------ finding

    [[nodiscard]] status find_files() {
        if (status s = folder_.take(); !s) return s;
        auto found = folder_.scan();
        if (!found) return found.error();
        counts_.foreign_files = found->foreign;
        counts_.damaged_files = found->damaged;
        counts_.refused = found->foreign + found->damaged;
        counts_.last_refusal = found->last.what();
        for (auto& file : found->files) {
            file_bytes_ += file.bytes;
            index_.add(next_id_, file.label);
            all_[next_id_++] = {.label = std::move(file.label),
                                .rank = {.used = ++uses_},
                                .path = std::move(file.path),
                                .bytes = file.bytes};
        }
        if (status s = fit_files(); !s) return s;
        return fit_memory();
    }

    /// All that may be a prefix of `tokens`, the best first: of equal ones trunks. Without what this cache has refused.
    [[nodiscard]] auto find(std::span<const std::uint32_t> tokens, const prefix_space& space) const {
        auto found = index_.search(tokens, config_.model, space);
        std::erase_if(found.matches, [&](const prefix_match& m) {
            const stored& e = all_.at(m.id);
            return e.is == file_is::refused && !e.trunk;
        });
        std::stable_sort(found.matches.begin(), found.matches.end(),
                         [&](const prefix_match& a, const prefix_match& b) {
                             if (a.tokens != b.tokens) return a.tokens > b.tokens;
                             if (a.given_up != b.given_up) return a.given_up < b.given_up;
                             return all_.at(a.id).trunk.has_value() && !all_.at(b.id).trunk.has_value();
                         });
        return found;
    }
    [[nodiscard]] static std::size_t longest(std::span<const prefix_match> matches) noexcept {
        return matches.empty() ? 0 : matches.front().tokens;
    }
    /// Asks the tier behind the folder for a prefix that is longer by `remote_gain`. Whether there is one now.
    [[nodiscard]] bool fetch(std::span<const std::uint32_t> prompt, const prefix_space& space,
                             std::span<const prefix_match> matches) {
        const std::size_t gain = std::max<std::size_t>(config_.remote_gain, 1), here = longest(matches);
        if (config_.remote == nullptr || tier_is_foreign_ || prompt.size() < here + gain) return false;
        const auto path = folder_.new_path(Hash::begin(config_.model, space));
        if (!path) return refuse(path.error()), false;
        const auto got = config_.remote->fetch({.tokens = prompt,
                                                .space = space,
                                                .model = config_.model,
                                                .beyond = here + gain - 1,
                                                .most_bytes = room()},
                                               *path);
        if (!got) return refuse(got.error()), false;
        if (*got == 0) return false;
        if (status s = adopt(*path, space); !s) {
            static_cast<void>(folder_.remove(*path));
            return refuse(s), false;
        }
        ++counts_.fetched;
        return true;
    }
    /// Bytes that a file may have which is brought.
    [[nodiscard]] std::uint64_t room() {
        const auto free = folder_.free_bytes();
        const std::uint64_t there = free ? *free : 0, written = folder_.written(today());
        return std::min({config_.file_bytes, there - std::min(there, config_.free_bytes),
                         config_.write_bytes_per_day - std::min(config_.write_bytes_per_day, written)});
    }
    /// A file that came into the folder.
    [[nodiscard]] status adopt(const std::string& path, const prefix_space& space) {
        auto label = folder_.read(path, nullptr);
        if (!label) return label.error();
        if (label->model != config_.model || label->space != space)
            return status::failure(errc::file_refused, "prefix store: the file that came is another prefix");
        const prefix_id id = next_id_++;
        const in_use mine(*this, id);
        stored& e = all_[id];
        e = {.label = *std::move(label),
             .rank = {.used = ++uses_},
             .path = path,
             .bytes = folder_.bytes_of(path),
             .brought = true};
        index_.add(id, e.label);
        file_bytes_ += e.bytes;
        folder_.wrote(today(), e.bytes);
        status s = fit_files();
        if (s) s = fit_memory();
        if (s) return s;
        forget_file(e);
        leave(id);
        return s;
    }
    /// The tokens that a file has.
    [[nodiscard]] std::optional<std::vector<std::uint32_t>> read_text(prefix_id id) {
        const stored& e = all_.at(id);
        std::vector<std::uint32_t> text;
        const auto label = folder_.read(e.path, &text);
        if (!label) return lost(id, label.error()), std::nullopt;
        if (label->hashes == e.label.hashes && label->space == e.label.space) return text;
        return lost(id, status::failure(errc::absent, "prefix store: a file became another one")),
               std::nullopt;
    }
    /// Whether a prefix that was found by its hash does begin with these tokens, in this space.
    [[nodiscard]] bool has_text(prefix_id id, std::span<const std::uint32_t> tokens,
                                const prefix_space& space) {
        const stored* const e = look_up(id); // reading another one may have shown that it is lost
        if (e == nullptr) return false;
        std::optional<std::vector<std::uint32_t>> read;
        if (!e->trunk && !(read = read_text(id))) return false;
        const std::vector<std::uint32_t>& text = e->trunk ? e->text : *read;
        if (e->label.model == config_.model && e->label.space == space && text.size() >= tokens.size() &&
            std::equal(tokens.begin(), tokens.end(), text.begin()))
            return true;
        ++counts_.collisions;
        return false;
    }
    /// A file could not be read. One that is gone or damaged is no prefix any more; it stays where it is. One of another cache
    /// is not tried again.
    void lost(prefix_id id, const status& why) {
        refuse(why);
        if (stored& e = all_.at(id);
            e.brought && (why.code() == errc::file_refused || why.code() == errc::corrupt)) {
            tier_is_foreign_ = tier_is_foreign_ ||
                               why.code() == errc::file_refused; // it would bring such files again and again
            discard_file(e);
            if (!e.trunk) leave(id);
            return;
        }
        if (why.code() == errc::file_refused) all_.at(id).is = file_is::refused;
        if (why.code() != errc::absent && why.code() != errc::corrupt) return;
        if (why.code() == errc::corrupt) ++counts_.damaged_files;
        stored& e = all_.at(id);
        forget_file(e);
        if (!e.trunk) leave(id);
    }

    /// Forks or loads a match, if it has the text.
    [[nodiscard]] bool take(const prefix_match& m, std::span<const std::uint32_t> prompt,
                            const prefix_space& space, started_sequence& start) {
        if (!has_text(m.id, prompt.first(m.tokens), space)) return false;
        stored& e = all_.at(m.id);
        if (e.trunk) {
            const auto branch = cache_->fork(*e.trunk);
            if (branch)
                start = {.seq = *branch, .from = prefix_source::trunk};
            else
                refuse(branch.error());
        }
        if (start.from == prefix_source::nothing) {
            if (e.path.empty() || (e.trunk && read_text(m.id) != e.text) || !load(m.id, start)) return false;
        }
        if (m.given_up != 0)
            if (status s = cache_->rewind_to(start.seq, m.tokens); !s) {
                refuse(s);
                static_cast<void>(cache_->end(start.seq));
                start = {};
                return false;
            }
        start.tokens = m.tokens;
        start.prefix = m.id;
        e.rank.used = ++uses_;
        return true;
    }
    [[nodiscard]] bool load(prefix_id id, started_sequence& start) {
        stored& e = all_.at(id);
        const auto loaded = cache_->load(e.path, load_options{.model = config_.model});
        if (!loaded) return lost(id, loaded.error()), false;
        if (loaded->tokens != e.label.tokens) {
            static_cast<void>(cache_->end(loaded->seq));
            lost(id, status::failure(errc::corrupt, "prefix store: a file has other tokens than its note"));
            return false;
        }
        counts_.bytes_read += e.bytes;
        e.is = file_is::good;
        start = {.seq = loaded->seq, .from = prefix_source::file, .exact = loaded->exact};
        return true;
    }
    /// Whether this cache can load the prefix. The note of a file does not name the cache that saved it, so the file is loaded
    /// once.
    [[nodiscard]] bool can_load(prefix_id id) {
        if (const stored& e = all_.at(id); e.trunk || e.is == file_is::good) return true;
        started_sequence loaded;
        if (!load(id, loaded)) return false;
        static_cast<void>(cache_->end(loaded.seq));
        return true;
    }

    // ------------------------------------------------------------------------------------------------ keeping

    /// Gives a prefix the trunk and the file that it should have and lacks. The trunk of `before`, which it replaces, makes room
    /// for its own only if it has to.
    [[nodiscard]] status bring(stored& e, sequence_id seq, std::span<const std::uint32_t> tokens,
                               bool to_file, stored* before) {
        const auto fork = [&]() -> status {
            const auto trunk = cache_->fork(seq);
            if (!trunk) return trunk.error();
            e.trunk = *trunk;
            e.text.assign(tokens.begin(), tokens.end());
            return {};
        };
        const bool wants_trunk = !e.trunk && config_.trunks != 0;
        const bool in_its_place = before != nullptr && before->trunk && trunks() >= config_.trunks;
        if (wants_trunk && !in_its_place) {
            if (status s = free_trunk(); !s) return s;
            if (status s = fork(); !s) return s;
        }
        if (e.path.empty() && (to_file || config_.trunks == 0))
            if (status s = write(e, seq, tokens, before); !s) return s;
        if (!wants_trunk || !in_its_place) return {};
        if (status s = drop_trunk(*before); !s) return s;
        return fork();
    }

    /// Saves a prefix. before: one whose file it takes over, or null. After an error it has no file. What a save wrote before it
    /// failed is not known, and not counted.
    [[nodiscard]] status write(stored& e, sequence_id seq, std::span<const std::uint32_t> tokens,
                               stored* before) {
        const bool over = before != nullptr && !before->path.empty();
        std::uint64_t expected = expected_bytes(tokens.size());
        if (over) expected -= std::min(expected, before->bytes);
        if (const std::uint64_t written = folder_.written(today());
            written >= config_.write_bytes_per_day || expected > config_.write_bytes_per_day - written)
            return status::failure(errc::disk_full,
                                   "prefix store: %" PRIu64
                                   " bytes were written today, and a prefix takes about %" PRIu64
                                   "; valid: up to write_bytes_per_day, which is %" PRIu64,
                                   written, expected, config_.write_bytes_per_day);
        if (status s = keep_free(expected); !s) return s;
        auto path = over ? result<std::string>(before->path) : folder_.new_path(e.label.hashes[0]);
        if (!path) return path.error();
        e.label.made = config_.clock();
        const auto note = note_of(e.label, tokens);
        const auto facts = cache_->save(seq, *path, save_options{.model = config_.model, .note = note});
        if (!facts) {
            clear_up(*path, over ? before : nullptr);
            return facts.error();
        }
        counts_.bytes_written += facts->written_bytes;
        folder_.wrote(today(), facts->written_bytes);
        if (over) forget_file(*before);
        e.path = *path;
        e.is = file_is::good;
        e.bytes = std::max(folder_.bytes_of(e.path), facts->bytes);
        file_bytes_ += e.bytes;
        status s;
        if (facts->tokens != tokens.size())
            s = other_tokens(tokens.size(), facts->tokens);
        else if (e.bytes > config_.file_bytes) // removing other files would not help
            s = too_large(e.bytes);
        if (s) s = fit_files();
        if (s) s = keep_free(0);
        if (!s) return discard_file(e), s;
        if (config_.remote != nullptr)
            if (status put = config_.remote->put(e.path, e.label, tokens); !put) refuse(put);
        return s;
    }
    /// A save failed. If the file had its name by then, it goes; and `before` with it, if the file was its own and is not any more.
    void clear_up(const std::string& path, stored* before) {
        if (before != nullptr) {
            const auto label = folder_.read(path, nullptr);
            const bool its_own = !label || label->hashes == before->label.hashes;
            forget_file(*before);
            if (its_own) {
                before->path = path;
                file_bytes_ += before->bytes = folder_.bytes_of(path);
                return;
            }
        }
        static_cast<void>(folder_.remove(path));
    }
    /// As the longest prefix that has a file; 0 where none has.
    [[nodiscard]] std::uint64_t expected_bytes(std::size_t tokens) const noexcept {
        const stored* longest = nullptr;
        for (const auto& [id, e] : all_)
            if (!e.path.empty() && (longest == nullptr || e.label.tokens > longest->label.tokens))
                longest = &e;
        if (longest == nullptr) return 0;
        return static_cast<std::uint64_t>(static_cast<double>(longest->bytes) / longest->label.tokens *
                                          static_cast<double>(tokens));
    }
    [[nodiscard]] static status other_tokens(std::size_t named, std::uint64_t there) noexcept {
        return status::failure(
            errc::invalid_argument,
            "keep: tokens has %zu of them; valid: those of the sequence, which has %" PRIu64, named, there);
    }
    [[nodiscard]] status too_large(std::uint64_t bytes) const noexcept {
        return status::failure(errc::disk_full,
                               "prefix store: files take %" PRIu64
                               " bytes; valid: up to file_bytes, which is %" PRIu64,
                               bytes, config_.file_bytes);
    }

    // ------------------------------------------------------------------------------------------------ leaving

    [[nodiscard]] status drop_trunk(stored& e) {
        if (!e.trunk) return {};
        if (status s = cache_->end(*e.trunk); !s) return s;
        e.trunk.reset();
        e.text = {};
        return {};
    }
    [[nodiscard]] status drop_file(stored& e) {
        if (e.path.empty()) return {};
        if (status s = folder_.remove(e.path); !s) return s;
        forget_file(e);
        return {};
    }
    /// Of a prefix that did not come about. A file that cannot be removed is found by the next open().
    void discard_file(stored& e) {
        if (!e.path.empty()) static_cast<void>(folder_.remove(e.path));
        forget_file(e);
    }
    void forget_file(stored& e) noexcept {
        file_bytes_ -= e.bytes;
        e.path.clear();
        e.bytes = 0;
        e.is = file_is::untried;
    }
    /// It has neither trunk nor file any more.
    void leave(prefix_id id) {
        index_.remove(id, all_.at(id).label);
        all_.erase(id);
    }
    void evict(prefix_id id) {
        ++counts_.evicted;
        const prefix_label label = std::move(all_.at(id).label);
        index_.remove(id, label);
        index_.remember(label);
        all_.erase(id);
    }
    /// A file has to leave, and the prefix with it where it has no trunk.
    [[nodiscard]] status evict_file(prefix_id id) {
        stored& e = all_.at(id);
        if (status s = drop_file(e); !s) return s;
        if (!e.trunk) evict(id);
        return {};
    }
    /// A trunk has to leave: to its file, if there is room for one.
    [[nodiscard]] status demote(prefix_id id) {
        const in_use mine(*this, id);
        stored& e = all_.at(id);
        if (e.path.empty() && folder_.there()) {
            const status s = write(e, *e.trunk, e.text, nullptr);
            if (!s && s.code() != errc::disk_full && s.code() != errc::invalid_argument) return s;
            if (!s) refuse(s);
        }
        if (status s = drop_trunk(e); !s) return s;
        ++counts_.demoted;
        if (e.path.empty()) evict(id);
        return {};
    }

    // ------------------------------------------------------------------------------------------------ bounds

    [[nodiscard]] bool is_in_use(prefix_id id) const noexcept {
        return std::find(in_use_.begin(), in_use_.end(), id) != in_use_.end();
    }
    /// Who leaves first of those that have the part; 0 where there is none.
    [[nodiscard]] prefix_id victim(part which) const {
        const std::uint64_t now = config_.clock();
        prefix_id first = 0;
        for (const auto& [id, e] : all_) {
            if ((which == part::trunk && !e.trunk) || (which == part::file && e.path.empty()) ||
                is_in_use(id))
                continue;
            if (first == 0 || leaves_before(e.rank, all_.at(first).rank, now)) first = id;
        }
        return first;
    }
    [[nodiscard]] std::size_t trunks() const noexcept {
        return static_cast<std::size_t>(std::count_if(
            all_.begin(), all_.end(), [](const auto& e) { return e.second.trunk.has_value(); }));
    }
    /// Tokens of trunks.
    [[nodiscard]] std::size_t text_bytes() const noexcept {
        std::size_t bytes = 0;
        for (const auto& [id, e] : all_) bytes += e.text.size() * sizeof(std::uint32_t);
        return bytes;
    }
    [[nodiscard]] std::size_t memory() const noexcept {
        std::size_t bytes = index_.memory_bytes() + text_bytes();
        for (const auto& [id, e] : all_)
            bytes += sizeof(stored) + 4 * sizeof(void*) + e.label.hashes.size() * sizeof(hash128) +
                     e.path.size() + e.label.space.tenant.size() + e.label.space.adapter.size() +
                     e.label.space.input.size();
        return bytes;
    }

    [[nodiscard]] status free_trunk() {
        while (trunks() >= config_.trunks)
            if (status s = demote(victim(part::trunk)); !s) return s;
        return {};
    }
    /// The file system keeps free_bytes and has room for `more`. No file is removed if removing all would not suffice.
    [[nodiscard]] status keep_free(std::uint64_t more) {
        auto free = folder_.free_bytes();
        if (!free) return free.error();
        std::uint64_t own = 0;
        for (const auto& [id, e] : all_)
            if (!is_in_use(id)) own += e.bytes;
        const std::uint64_t asked = config_.free_bytes + more;
        if (*free < asked && own < asked - *free)
            return status::failure(errc::disk_full,
                                   "prefix store: %" PRIu64
                                   " bytes are free, and a prefix takes about %" PRIu64
                                   "; valid: free_bytes, which is %" PRIu64 ", stay free",
                                   *free, more, config_.free_bytes);
        while (*free < asked) {
            const prefix_id first = victim(part::file);
            *free += all_.at(first).bytes;
            if (status s = evict_file(first); !s) return s;
        }
        return {};
    }
    [[nodiscard]] status fit_files() {
        while (file_bytes_ > config_.file_bytes) {
            const prefix_id first = victim(part::file);
            if (first == 0) return too_large(file_bytes_);
            if (status s = evict_file(first); !s) return s;
        }
        return {};
    }
    /// Trunks leave while their tokens take most of it, then prefixes.
    [[nodiscard]] status fit_memory() {
        while (memory() > config_.memory_bytes) {
            prefix_id first = 2 * text_bytes() > memory() ? victim(part::trunk) : 0;
            if (first == 0) first = victim(part::any);
            if (first == 0)
                return status::failure(
                    errc::bound_too_small,
                    "prefix store: tables and tokens take %zu bytes; valid: up to memory_bytes, which "
                    "is %zu",
                    memory(), config_.memory_bytes);
            if (status s = all_.at(first).trunk ? demote(first) : evict_file(first); !s) return s;
        }
        return {};
    }

    Cache* cache_;
    prefix_store_config config_;
    prefix_folder<Ops> folder_;
    prefix_index<Hash> index_;
    std::unordered_map<prefix_id, stored> all_;
    std::vector<prefix_id> in_use_;
    prefix_id next_id_ = 1;
    std::uint64_t uses_ = 0, file_bytes_ = 0;
    bool tier_is_foreign_ = false; ///< it brought a file of a cache with other settings
    prefix_statistics counts_;
};

}} // namespace kvtl::v0
