// Saved sequences in a blob_store, for other machines and for after this one: a tier behind the folder of a prefix_store.
//
//   auto blobs = kvtl::resp_store<>::open({.servers = {{"127.0.0.1", 6379}}});
//   auto tier = kvtl::remote_tier<kvtl::resp_store<>>::open(*std::move(blobs));
//   auto store = kvtl::prefix_store<cache_t>::open(cache, {.folder = "prefixes", .remote = &*tier});
//
// What:    a saved file, cut into chunks, and a manifest (store/remote_manifest.hpp). put() sends the chunks that the store does not
//          have, waits until all are there, and then puts the manifest: it is the commit. fetch() compares model, space and all tokens
//          of a manifest, and the sum of every chunk; load() checks the file again.
// Loss:    a blob that is missing or wrong makes the whole prefix a miss, and its manifest is removed. What a writer left half
//          done has no manifest and runs out. A file that is saved again while it is put is given up.
// Life:    `ttl` seconds from the last hit. Chunks live a tenth longer than manifests.
// Time:    fetch() ends within `fetch_within`, put() within `put_within`, as far as the blob_store keeps deadlines. A prefix whose
//          bytes would come later, as fast as the chunks that were read last, is not begun. A call of fetch() that begins none for
//          that reason halves this time, so that a store that has become faster is tried again.
// Memory:  one chunk for put(), four for fetch(), and the manifest: 4 bytes per token and 8 per chunk, at most 512 KiB more. fetch()
//          has 16 bytes per token of hashes while it looks for a manifest.
// Threads: one call at a time.
// Limits:  checksums find damage, not malice: whoever can write to the store decides what is read. Tokens of prompts are in manifests,
//          not encrypted. Caches of other settings need other `names`.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/save/file_ops.hpp>
#include <kvtl/save/saved_file.hpp>
#include <kvtl/simd/checksum.hpp>
#include <kvtl/store/blob_store.hpp>
#include <kvtl/store/prefix_hash.hpp>
#include <kvtl/store/prefix_tier.hpp>
#include <kvtl/store/remote_manifest.hpp>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvtl { inline namespace v0 {

struct remote_config {
    std::string names = "kvtl:1"; ///< that all blobs begin with: 1 to 100 letters, digits, ':' and '-'
    std::chrono::seconds ttl{86400};
    std::chrono::milliseconds fetch_within{2000}, put_within{30000};
    std::uint32_t chunk_bytes = 1U << 20; ///< 65536 to 4194304, a multiple of 64
};

struct remote_statistics {
    std::uint64_t fetched = 0, missed = 0; ///< calls of fetch(); `missed` counts `failed` ones, too
    std::uint64_t too_late = 0; ///< prefixes that were given up because not all of them would come in time
    std::uint64_t put = 0, not_put = 0;
    std::uint64_t failed = 0; ///< calls that met an error, the last with this sentence
    std::string last_failure{};
    std::uint64_t bytes_read = 0, bytes_written = 0;
    std::uint64_t bytes_kept = 0; ///< of chunks that were there already
};

/// Clock: tells the time of deadlines; tests have one of their own.
template <blob_store Blobs, file_ops Ops = posix_file_ops, class Clock = blob_clock>
class remote_tier final : public prefix_tier {
  public:
    [[nodiscard, gnu::cold]] static result<remote_tier> open(Blobs blobs, remote_config c = {},
                                                             Ops ops = {}) {
        if (!is_blob_name(c.names) || c.names.size() > most_names ||
            c.names.find_first_of("{}") != c.names.npos)
            return status::failure(
                errc::invalid_argument,
                "remote tier: names is '%.100s'; valid: 1 to %zu letters, digits, ':' and '-'",
                c.names.c_str(), most_names);
        if (c.chunk_bytes < least_chunk || c.chunk_bytes > most_chunk || c.chunk_bytes % 64 != 0)
            return status::failure(errc::invalid_argument,
                                   "remote tier: chunk_bytes is %" PRIu32 "; valid: %" PRIu32 " to %" PRIu32
                                   ", a multiple of 64",
                                   c.chunk_bytes, least_chunk, most_chunk);
        return remote_tier(std::move(blobs), std::move(c), std::move(ops));
    }

    [[nodiscard, gnu::cold]] result<std::size_t> fetch(const tier_request& wanted,
                                                       const std::string& path) override {
        const blob_deadline until = Clock::now() + config_.fetch_within;
        const std::uint64_t late = counts_.too_late, read = counts_.bytes_read;
        failure_ = {};
        expected_ = time_per_byte_;
        const std::size_t got = find_and_write(wanted, path, until);
        if (counts_.too_late != late && counts_.bytes_read == read) time_per_byte_ /= 2;
        ++(got != 0 ? counts_.fetched : counts_.missed);
        if (got != 0 || failure_.ok()) return got;
        count_failure();
        return failure_;
    }

    [[gnu::cold]] status put(const std::string& path, const prefix_label& label,
                             std::span<const std::uint32_t> tokens) override {
        failure_ = {};
        const bool done = send(path, label, tokens, Clock::now() + config_.put_within);
        static_cast<void>(blobs_.settle(Clock::now())); // nothing of this call answers a later one
        ++(done ? counts_.put : counts_.not_put);
        if (!failure_.ok()) count_failure();
        return failure_;
    }

    [[nodiscard]] const remote_statistics& statistics() const noexcept { return counts_; }
    [[nodiscard]] Blobs& blobs() noexcept { return blobs_; }

  private:
    static constexpr std::size_t chunks_at_once = 4, most_signposts = 4096, most_candidates = 512,
                                 most_tried = 4, most_names = 100;

    explicit remote_tier(Blobs blobs, remote_config c, Ops ops)
        : blobs_(std::move(blobs)), config_(std::move(c)), ops_(std::move(ops)) {}

    /// Keeps the first error of a call. False where there is one.
    bool note(const status& s) {
        if (!s && failure_.ok()) failure_ = s;
        return s.ok();
    }
    void count_failure() {
        ++counts_.failed;
        counts_.last_failure = failure_.what();
    }
    [[nodiscard]] std::chrono::seconds chunk_ttl() const noexcept { return config_.ttl + config_.ttl / 10; }
    [[nodiscard]] static std::span<std::byte> bytes_of_one(auto& object) noexcept {
        return std::as_writable_bytes(std::span(&object, 1));
    }

    // ------------------------------------------------------------------------------------------------ fetching

    struct candidate {
        std::size_t tokens = 0;
        hash128 hash{};
        std::string name{}, signpost{};
    };

    [[nodiscard]] std::size_t find_and_write(const tier_request& wanted, const std::string& path,
                                             blob_deadline until) {
        std::size_t tried = 0;
        for (const candidate& c : candidates(wanted, until)) {
            if (Clock::now() >= until || tried++ == most_tried) break;
            if (bring(c, wanted, path, until)) return c.tokens;
        }
        return 0;
    }
    /// Prefixes that have manifests, the longest first.
    [[nodiscard]] std::vector<candidate> candidates(const tier_request& wanted, blob_deadline until) {
        const std::size_t n = wanted.tokens.size();
        if (n <= wanted.beyond) return {};
        std::vector<hash128> hashes{prefix_hash::begin(wanted.model, wanted.space)};
        hashes.reserve(n + 1);
        for (const std::uint32_t token : wanted.tokens)
            hashes.push_back(prefix_hash::next(hashes.back(), token));

        std::vector<std::string> names;
        const std::size_t last = n / signpost_tokens, first = (wanted.beyond + 1) / signpost_tokens;
        const auto beginning = [&](std::size_t tokens) { return hashed_prefix{hashes[tokens], tokens}; };
        for (std::size_t i = last + 1; i-- > first && names.size() < most_signposts;)
            names.push_back(signpost_name(config_.names, beginning(i * signpost_tokens)));
        std::vector<remote_signpost> posts(names.size());
        std::vector<std::span<std::byte>> into;
        for (remote_signpost& p : posts) into.push_back(bytes_of_one(p));
        std::vector<std::uint64_t> bytes(names.size());
        note(blobs_.get(names, into, bytes, until));

        std::vector<candidate> found;
        std::vector<std::string> manifests;
        for (std::size_t k = 0; k < names.size(); ++k) {
            if (bytes[k] == no_blob || !is_signpost(posts[k], bytes[k])) continue;
            const std::size_t post_at = (last - k) * signpost_tokens;
            for (std::size_t bit = signpost_tokens; bit-- > 0 && found.size() < most_candidates;) {
                const std::size_t tokens = post_at + bit;
                if ((posts[k].lengths >> bit & 1) == 0 || tokens > n || tokens <= wanted.beyond) continue;
                manifests.push_back(manifest_name(config_.names, beginning(post_at), beginning(tokens)));
                found.push_back({tokens, hashes[tokens], manifests.back(), names[k]});
            }
        }
        std::vector<std::uint8_t> there(manifests.size());
        note(blobs_.touch(manifests, std::chrono::seconds(0), there, until));
        std::size_t i = 0;
        std::erase_if(found, [&](const candidate&) { return there[i++] == 0; });
        return found;
    }
    [[nodiscard]] bool is_signpost(const remote_signpost& p, std::uint64_t bytes) {
        if (bytes == sizeof p && p.magic == signpost_magic) return true;
        return note(status::failure(errc::file_refused,
                                    "remote tier: a value under '%.40s' has another format",
                                    config_.names.c_str()));
    }

    /// The file of a candidate, if it is the prefix that is wanted and all of it is there.
    [[nodiscard]] bool bring(const candidate& c, const tier_request& wanted, const std::string& path,
                             blob_deadline until) {
        std::vector<std::byte> bytes(most_manifest_bytes(c.tokens));
        std::uint64_t length = 0;
        const std::span<std::byte> into = bytes;
        if (!note(blobs_.get(std::span(&c.name, 1), std::span(&into, 1), std::span(&length, 1), until)))
            return false;
        if (length == no_blob) return false; // it has run out just now
        const auto m = parse_manifest(std::span<const std::byte>(bytes).first(length));
        bytes = {};
        if (!m)
            return note(status::failure(errc::file_refused,
                                        "remote tier: a value under '%.40s' has another format",
                                        config_.names.c_str()));
        if (m->header.model != wanted.model || m->space != wanted.space || m->tokens.size() != c.tokens ||
            !std::equal(m->tokens.begin(), m->tokens.end(), wanted.tokens.begin()))
            return false; // the hash agrees, the text does not
        if (m->header.file_bytes > wanted.most_bytes)
            return note(status::failure(errc::disk_full,
                                        "remote tier: a saved file has %" PRIu64
                                        " bytes; valid: up to %" PRIu64 ", for which the folder has room",
                                        m->header.file_bytes, wanted.most_bytes));
        if (comes_too_late(m->header.file_bytes, until)) return false;
        std::vector<std::string> chunks;
        for (std::size_t i = 0; i < m->sums.size(); ++i)
            chunks.push_back(chunk_name(config_.names, m->header.file_id, i, m->sums[i]));
        std::vector<std::uint8_t> there(chunks.size());
        if (!note(blobs_.touch(chunks, chunk_ttl(), there, until))) return false;
        if (std::find(there.begin(), there.end(), 0) != there.end())
            return give_up(c, "a chunk has run out", until);
        const std::string names[] = {c.name, c.signpost};
        std::uint8_t both[2];
        if (!note(blobs_.touch(names, config_.ttl, both, until))) return false;

        const std::string draft = path + ".part";
        const int fd = ops_.open(draft, open_for::creating);
        if (fd < 0) return note(file_failure("writing it", fd));
        const bool whole = write_chunks(fd, *m, chunks, c, until);
        ops_.close(fd);
        int why = 0;
        if (whole && (why = ops_.rename(draft, path)) >= 0) return true;
        static_cast<void>(ops_.remove(draft));
        return whole ? note(file_failure("naming it", why)) : false;
    }
    [[nodiscard]] bool write_chunks(int fd, const remote_manifest& m, std::span<const std::string> chunks,
                                    const candidate& c, blob_deadline until) {
        const std::size_t chunk = m.header.chunk_bytes;
        std::vector<std::byte> buffer(std::min<std::uint64_t>(chunk * chunks_at_once, m.header.file_bytes));
        for (std::size_t i = 0; i < chunks.size(); i += chunks_at_once) {
            const std::size_t n = std::min(chunks_at_once, chunks.size() - i);
            std::span<std::byte> into[chunks_at_once];
            std::uint64_t bytes[chunks_at_once] = {};
            const std::uint64_t left = m.header.file_bytes - i * chunk;
            if (i != 0 && comes_too_late(left, until)) return false;
            for (std::size_t k = 0; k < n; ++k)
                into[k] =
                    std::span(buffer).subspan(k * chunk, std::min<std::uint64_t>(chunk, left - k * chunk));
            const auto asked = Clock::now();
            const status got =
                blobs_.get(chunks.subspan(i, n), std::span(into).first(n), std::span(bytes).first(n), until);
            if (left >= chunk * chunks_at_once) // what is shorter says little of the speed
                expected_ = time_per_byte_ = std::chrono::duration<double>(Clock::now() - asked) /
                                             static_cast<double>(chunk * chunks_at_once);
            if (!note(got)) return false;
            for (std::size_t k = 0; k < n; ++k) {
                if (bytes[k] == no_blob) return give_up(c, "a chunk has run out", until);
                if (bytes[k] != into[k].size() ||
                    simd::page_checksum64(into[k].data(), into[k].size()) != m.sums[i + k])
                    return give_up(c, "a chunk is damaged", until);
                if (!note(write_all(fd, into[k], (i + k) * chunk))) return false;
                counts_.bytes_read += bytes[k];
            }
        }
        return true;
    }
    /// Counts it, too.
    [[nodiscard]] bool comes_too_late(std::uint64_t bytes, blob_deadline until) noexcept {
        const bool late = expected_ * static_cast<double>(bytes) > until - Clock::now();
        counts_.too_late += late;
        return late;
    }
    /// A manifest without its chunks is no use to anybody.
    [[nodiscard]] bool give_up(const candidate& c, const char* why, blob_deadline until) {
        note(status::failure(errc::absent, "remote tier: %s of a prefix of %zu tokens", why, c.tokens));
        static_cast<void>(blobs_.remove(std::span(&c.name, 1), until));
        return false;
    }

    // ------------------------------------------------------------------------------------------------ putting

    [[nodiscard]] bool send(const std::string& path, const prefix_label& label,
                            std::span<const std::uint32_t> tokens, blob_deadline until) {
        const int fd = ops_.open(path, open_for::reading);
        if (fd == -ENOENT) return false; // it had to leave meanwhile
        if (fd < 0) return note(file_failure("reading it", fd));
        const bool done = send_file(fd, label, tokens, until);
        ops_.close(fd);
        return done;
    }
    [[nodiscard]] bool send_file(int fd, const prefix_label& label, std::span<const std::uint32_t> tokens,
                                 blob_deadline until) {
        file_facts facts;
        if (const int why = ops_.inspect(fd, facts); why < 0) return note(file_failure("reading it", why));
        remote_manifest m{.header = {.chunk_bytes = config_.chunk_bytes,
                                     .file_bytes = facts.bytes,
                                     .model = label.model,
                                     .tokens = static_cast<std::uint32_t>(tokens.size())},
                          .space = label.space,
                          .tokens = {tokens.begin(), tokens.end()}};
        m.header.space_bytes = static_cast<std::uint32_t>(label.space.bytes().size());
        const std::vector<std::byte> head = head_of(fd);
        saved_superblock first;
        if (head.size() < sizeof first || facts.bytes % 64 != 0 ||
            facts.bytes / config_.chunk_bytes >= most_chunks)
            return note(status::failure(
                errc::invalid_argument,
                "remote tier: a file of %" PRIu64 " bytes is no saved one, or too large", facts.bytes));
        std::memcpy(&first, head.data(), sizeof first);
        m.header.file_id = first.file_id;

        const std::size_t chunks = (facts.bytes + config_.chunk_bytes - 1) / config_.chunk_bytes;
        std::vector<std::string> names;
        for (std::size_t i = 0; i < chunks; ++i) {
            const auto bytes = read_chunk(fd, i, facts.bytes);
            if (bytes.empty()) return false;
            m.sums.push_back(simd::page_checksum64(bytes.data(), bytes.size()));
            names.push_back(chunk_name(config_.names, m.header.file_id, i, m.sums.back()));
        }
        std::vector<std::uint8_t> there(chunks);
        if (!note(blobs_.touch(names, chunk_ttl(), there, until))) return false;
        for (std::size_t i = 0; i < chunks; ++i) {
            const auto bytes = read_chunk(fd, i, facts.bytes);
            if (bytes.empty()) return false;
            if (there[i] != 0) {
                counts_.bytes_kept += bytes.size();
                continue;
            }
            if (simd::page_checksum64(bytes.data(), bytes.size()) != m.sums[i])
                return false; // it is being saved again
            if (!note(blobs_.put(names[i], bytes, chunk_ttl(), until))) return false;
            counts_.bytes_written += bytes.size();
        }
        buffer_ = {};
        if (!note(blobs_.settle(until))) return false;
        if (head_of(fd) != head) return false; // blocks of the generation may have been written over
        return send_manifest(m, until);
    }
    [[nodiscard]] bool send_manifest(const remote_manifest& m, blob_deadline until) {
        const std::size_t n = m.tokens.size(), post_at = n / signpost_tokens * signpost_tokens;
        hash128 hash = prefix_hash::begin(m.header.model, m.space), post_hash = hash;
        for (std::size_t i = 0; i < n; ++i) {
            hash = prefix_hash::next(hash, m.tokens[i]);
            if (i + 1 == post_at) post_hash = hash;
        }
        const hashed_prefix at{post_hash, post_at};
        const std::string post_name = signpost_name(config_.names, at);
        remote_signpost post;
        std::uint64_t bytes = 0;
        const std::span<std::byte> into = bytes_of_one(post);
        if (!note(blobs_.get(std::span(&post_name, 1), std::span(&into, 1), std::span(&bytes, 1), until)))
            return false;
        if (bytes == no_blob) post = {};
        if (bytes != no_blob && !is_signpost(post, bytes)) return false;
        post.lengths |= std::uint64_t{1} << (n - post_at);
        if (!note(blobs_.put(post_name, std::as_bytes(std::span(&post, 1)), chunk_ttl(), until)))
            return false;
        const std::string name = manifest_name(config_.names, at, {hash, n});
        std::uint8_t there = 0; // a cluster says where it lies
        if (!note(blobs_.touch(std::span(&name, 1), config_.ttl, std::span(&there, 1), until))) return false;
        if (!note(blobs_.put(name, bytes_of(m), config_.ttl, until))) return false;
        return note(blobs_.settle(until));
    }

    // ------------------------------------------------------------------------------------------------ files

    [[nodiscard]] static status file_failure(const char* doing, std::int64_t why) noexcept {
        return status::failure(why == -ENOSPC || why == -EDQUOT ? errc::disk_full : errc::io_error,
                               "remote tier: a saved file: %s: %s", doing,
                               std::strerror(static_cast<int>(-why)));
    }
    [[nodiscard]] status write_all(int fd, std::span<const std::byte> bytes, std::uint64_t at) {
        while (!bytes.empty()) {
            const auto n = ops_.pwrite(fd, bytes, at);
            if (n == -EINTR) continue;
            if (n <= 0) return file_failure("writing it", n < 0 ? n : -EIO);
            bytes = bytes.subspan(static_cast<std::size_t>(n));
            at += static_cast<std::uint64_t>(n);
        }
        return {};
    }
    /// As much of `into` as the file has.
    [[nodiscard]] std::size_t read_some(int fd, std::span<std::byte> into, std::uint64_t at) {
        std::size_t done = 0;
        while (done < into.size()) {
            const auto n = ops_.pread(fd, into.subspan(done), at + done);
            if (n == -EINTR) continue;
            if (n <= 0) break;
            done += static_cast<std::size_t>(n);
        }
        return done;
    }
    /// Both superblocks; fewer of a file that has none.
    [[nodiscard]] std::vector<std::byte> head_of(int fd) {
        constexpr std::size_t one = sizeof(saved_superblock);
        std::vector<std::byte> head(2 * one);
        saved_superblock first;
        head.resize(read_some(fd, std::span(head).first(one), 0));
        if (head.size() < one) return head;
        std::memcpy(&first, head.data(), one);
        head.resize(2 * one);
        head.resize(one + read_some(fd, std::span(head).subspan(one), first.page_bytes));
        return head;
    }
    /// Empty where the file has become shorter.
    [[nodiscard]] std::span<const std::byte> read_chunk(int fd, std::size_t number,
                                                        std::uint64_t file_bytes) {
        const std::uint64_t at = std::uint64_t{number} * config_.chunk_bytes;
        const std::size_t n = std::min<std::uint64_t>(config_.chunk_bytes, file_bytes - at);
        buffer_.resize(std::max(buffer_.size(), n));
        const auto into = std::span(buffer_).first(n);
        return read_some(fd, into, at) == n ? into : std::span<std::byte>{};
    }

    Blobs blobs_;
    remote_config config_;
    Ops ops_;
    status failure_; ///< the first one of a call
    remote_statistics counts_;
    std::chrono::duration<double> time_per_byte_{0}; ///< of the chunks that were read last
    std::chrono::duration<double> expected_{0};      ///< the same, in a call of fetch()
    std::vector<std::byte> buffer_;                  ///< a chunk, while put() reads
};

}} // namespace kvtl::v0
