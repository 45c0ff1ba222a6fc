// SPDX-License-Identifier: MIT
#include "mapped_file.hpp"

#include <kvtl/simd/attend.hpp>
#include <kvtl/simd/convert.hpp>

#include "line_allocator.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21 // Linux 5.4
#endif

namespace bench {

namespace {

using kvtl::errc;
using kvtl::f16;
using kvtl::status;

constexpr std::size_t piece_bytes = 128 << 10; ///< keys and values of one piece
constexpr std::size_t page_bytes = 4096;

/// Sizes that follow from the options.
struct extents {
    explicit extents(const engine::cache_options& o)
        : dim(o.shape.head_dim), heads(o.shape.kv_heads), group(o.shape.query_heads / o.shape.kv_heads),
          layers(o.shape.layers), tokens(piece_bytes / (2 * dim * sizeof(f16))),
          pieces((o.max_tokens + tokens - 1) / tokens),
          lanes(std::size_t{o.shape.layers} * o.shape.kv_heads * o.max_sequences) {}

    std::uint32_t dim, heads, group, layers;
    std::size_t tokens; ///< of a piece
    std::size_t pieces; ///< of a lane: a KV head of a layer of a sequence
    std::size_t lanes;

    [[nodiscard]] std::size_t file_bytes() const { return lanes * pieces * piece_bytes; }
    /// Pieces that still grow stay, and each thread attends one more.
    [[nodiscard]] std::size_t least_bytes(unsigned shards) const {
        return (lanes + std::max(1U, shards)) * piece_bytes;
    }
};

/// What the kernel read from devices for this thread, in bytes.
class thread_reads {
  public:
    thread_reads() : fd_(::open("/proc/thread-self/io", O_RDONLY | O_CLOEXEC)) {}
    thread_reads(const thread_reads&) = delete;
    thread_reads& operator=(const thread_reads&) = delete;
    ~thread_reads() {
        if (fd_ >= 0) ::close(fd_);
    }
    [[nodiscard]] std::uint64_t bytes() const noexcept {
        char text[512] = {};
        if (fd_ < 0 || ::pread(fd_, text, sizeof text - 1, 0) <= 0) return 0;
        const char* at = std::strstr(text, "\nread_bytes: ");
        return at == nullptr ? 0 : std::strtoull(at + 13, nullptr, 10);
    }
    [[nodiscard]] static std::uint64_t major_faults() noexcept {
        rusage u{};
        ::getrusage(RUSAGE_THREAD, &u);
        return static_cast<std::uint64_t>(u.ru_majflt);
    }

  private:
    int fd_;
};

class mapped_file final : public engine::kv_cache {
  public:
    mapped_file(const engine::cache_options& o, int fd, std::byte* memory)
        : x_(o), path_(o.path), fd_(fd), memory_(memory),
          scale_(1.0F / std::sqrt(static_cast<float>(x_.dim))), max_tokens_(o.max_tokens),
          bound_(o.memory_bytes), tokens_(std::size_t{o.max_sequences} * x_.layers),
          kept_(x_.lanes * x_.pieces), shards_(std::max(1U, o.shards)) {
        for (part& s : shards_) {
            s.quota = (bound_ - x_.least_bytes(shards())) / shards_.size();
            s.scratch.resize(kvtl::simd::attend_scratch_floats(x_.group));
            s.state.resize(kvtl::partial_floats(x_.group, x_.dim));
        }
        for (auto& of_shard : tokens_) of_shard.assign(shards_.size(), 0);
        open_.assign(o.max_sequences, false);
    }
    mapped_file(const mapped_file&) = delete;
    mapped_file& operator=(const mapped_file&) = delete;
    ~mapped_file() override {
        ::munmap(memory_, x_.file_bytes());
        ::close(fd_);
        ::unlink(path_.c_str());
    }

    [[nodiscard]] kvtl::result<kvtl::sequence_id> begin() override {
        const auto free = std::find(open_.begin(), open_.end(), false);
        if (free == open_.end()) return status::failure(errc::out_of_range, "begin: all sequences are open");
        *free = true;
        return kvtl::sequence_id{static_cast<std::uint32_t>(free - open_.begin()), 1};
    }

    status prefill(kvtl::sequence_id seq, std::uint32_t layer, const kvtl::layer_input& in,
                   std::span<float> out, unsigned shard) noexcept override {
        if (!out.empty())
            return status::failure(errc::unsupported, "prefill: mapped_file takes prompts without attention");
        if (status s = append(seq, layer, in, shard); !s) return s;
        return in.last_chunk ? complete(seq, layer, shard) : status{};
    }

    status attend(kvtl::sequence_id seq, std::uint32_t layer, const kvtl::layer_input& in,
                  std::span<float> out, unsigned shard) noexcept override {
        const auto begin = std::chrono::steady_clock::now();
        static thread_local const thread_reads io; // opened once: the clock runs
        part& s = shards_[shard];
        const std::uint64_t bytes = io.bytes(), faults = thread_reads::major_faults();
        if (status done = append(seq, layer, in, shard); !done) return done;
        for (std::uint32_t h = shard; h < x_.heads; h += shards()) attend_head(seq, layer, h, in, out, s);
        s.read_bytes += io.bytes() - bytes, s.faults += thread_reads::major_faults() - faults;
        s.attend_ns += static_cast<std::uint64_t>(
            std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin)
                .count());
        return {};
    }

    status prefetch(kvtl::sequence_id, std::uint32_t, std::span<const float>, unsigned) noexcept override {
        return {};
    }
    status rewind(kvtl::sequence_id, std::size_t) noexcept override {
        return status::failure(errc::unsupported, "rewind: mapped_file cannot");
    }
    status end(kvtl::sequence_id seq) noexcept override {
        open_[seq.slot] = false;
        for (std::uint32_t layer = 0; layer < x_.layers; ++layer)
            for (std::uint32_t h = 0; h < x_.heads; ++h) {
                tokens(seq, layer, h % shards()) = 0;
                for (std::size_t i = 0; i < x_.pieces; ++i)
                    if (std::exchange(kept_[lane(seq, layer, h) * x_.pieces + i], std::uint8_t{0}) != 0)
                        shards_[h % shards()].kept -= piece_bytes;
            }
        return {};
    }

    [[nodiscard]] engine::cache_stats stats() const override {
        engine::cache_stats all;
        kvtl::statistics& d = all.detail;
        for (const part& s : shards_) {
            d.reads += s.faults, d.read_bytes += s.read_bytes, d.written_bytes += s.written_bytes;
            d.chosen_bytes += s.asked_bytes, d.resident_chosen_bytes += s.found_bytes;
            d.useful_bytes += s.asked_bytes - s.found_bytes;
            d.phase_ns.attend += s.attend_ns;
        }
        peak_ = std::max(peak_, resident_bytes());
        all.resident_bytes_peak = d.resident_bytes_peak = peak_;
        all.read_bytes = d.read_bytes, all.useful_bytes = d.useful_bytes, all.reads = d.reads;
        all.written_bytes = d.written_bytes, all.hit_rate = d.hit_rate();
        all.storage_bytes = d.storage_bytes = x_.file_bytes();
        all.bytes_by_part = {{"frames", bound_}};
        all.raw_cache_bytes = x_.lanes * max_tokens_ * 2 * x_.dim * sizeof(f16);
        all.io = "mmap";
        all.config = {{"mapped_file.bounded_by", "MADV_PAGEOUT of what was attended beyond the bound"},
                      {"mapped_file.piece_bytes", std::to_string(piece_bytes)}};
        return all;
    }
    [[nodiscard]] unsigned shards() const noexcept override { return static_cast<unsigned>(shards_.size()); }
    [[nodiscard]] engine::cache_wants wants() const noexcept override { return wants_of(mapped_file_name); }

  private:
    /// What one thread works on.
    struct part {
        std::size_t quota = 0; ///< bytes of complete pieces that may stay
        std::size_t kept = 0;
        line_floats scratch, state;
        std::uint64_t read_bytes = 0, faults = 0, written_bytes = 0, attend_ns = 0;
        std::uint64_t asked_bytes = 0, found_bytes = 0; ///< of pieces that were attended
    };

    [[nodiscard]] std::size_t lane(kvtl::sequence_id seq, std::uint32_t layer,
                                   std::uint32_t h) const noexcept {
        return (std::size_t{seq.slot} * x_.layers + layer) * x_.heads + h;
    }
    [[nodiscard]] std::byte* piece(std::size_t lane, std::size_t i) const noexcept {
        return memory_ + (lane * x_.pieces + i) * piece_bytes;
    }
    /// Keys of a piece, (tokens, D); values lie behind them.
    [[nodiscard]] f16* keys(std::size_t lane, std::size_t i) const noexcept {
        return reinterpret_cast<f16*>(piece(lane, i));
    }
    [[nodiscard]] std::size_t& tokens(kvtl::sequence_id seq, std::uint32_t layer, unsigned shard) noexcept {
        return tokens_[std::size_t{seq.slot} * x_.layers + layer][shard];
    }

    [[nodiscard]] status append(kvtl::sequence_id seq, std::uint32_t layer, const kvtl::layer_input& in,
                                unsigned shard) noexcept {
        const std::size_t row = std::size_t{x_.heads} * x_.dim, n = in.k.size() / row;
        std::size_t& have = tokens(seq, layer, shard);
        if (have + n > max_tokens_)
            return status::failure(errc::out_of_range,
                                   "%zu tokens are held and %zu more come; valid: up to %zu", have, n,
                                   max_tokens_);
        for (std::size_t t = 0; t < n; ++t, ++have)
            for (std::uint32_t h = shard; h < x_.heads; h += shards()) {
                const std::size_t at = t * row + std::size_t{h} * x_.dim, in_piece = have % x_.tokens;
                f16* const k = keys(lane(seq, layer, h), have / x_.tokens) + in_piece * x_.dim;
                kvtl::simd::encode(in.k, at, k, x_.dim);
                kvtl::simd::encode(in.v, at, k + x_.tokens * x_.dim, x_.dim);
                shards_[shard].written_bytes += 2 * x_.dim * sizeof(f16);
                if (in_piece + 1 == x_.tokens)
                    if (status s = settle(lane(seq, layer, h), have / x_.tokens); !s) return s;
            }
        return {};
    }
    /// A piece is complete: storage gets it, and it leaves.
    [[nodiscard]] status settle(std::size_t lane, std::size_t i) const noexcept {
        if (::msync(piece(lane, i), piece_bytes, MS_SYNC) == 0) return page_out(lane, i);
        return status::failure(errc::io_error, "mapped_file: msync: %s", std::strerror(errno));
    }
    /// Pages that are mapped leave by MADV_PAGEOUT, those that were read ahead and never touched by the other call.
    [[nodiscard]] status page_out(std::size_t lane, std::size_t i, std::size_t pieces = 1) const noexcept {
        const std::size_t bytes = pieces * piece_bytes;
        if (::madvise(piece(lane, i), bytes, MADV_PAGEOUT) != 0)
            return status::failure(errc::io_error, "mapped_file: MADV_PAGEOUT: %s", std::strerror(errno));
        const int failed = ::posix_fadvise(fd_, static_cast<off_t>((lane * x_.pieces + i) * piece_bytes),
                                           static_cast<off_t>(bytes), POSIX_FADV_DONTNEED);
        if (failed == 0) return {};
        return status::failure(errc::io_error, "mapped_file: fadvise: %s", std::strerror(failed));
    }
    /// Behind a prompt: what grows is on storage too, so that the first step finds no page that waits to be written.
    [[nodiscard]] status complete(kvtl::sequence_id seq, std::uint32_t layer, unsigned shard) noexcept {
        const std::size_t have = tokens(seq, layer, shard);
        for (std::uint32_t h = shard; have % x_.tokens != 0 && h < x_.heads; h += shards())
            if (::msync(piece(lane(seq, layer, h), have / x_.tokens), piece_bytes, MS_SYNC) != 0)
                return status::failure(errc::io_error, "mapped_file: msync: %s", std::strerror(errno));
        return {};
    }

    void attend_head(kvtl::sequence_id seq, std::uint32_t layer, std::uint32_t h, const kvtl::layer_input& in,
                     std::span<float> out, part& s) noexcept {
        const std::size_t first = std::size_t{h} * x_.group * x_.dim, of = lane(seq, layer, h);
        const kvtl::partial p = kvtl::partial_at(s.state.data(), x_.group, x_.dim);
        kvtl::reset(p);
        std::size_t left = tokens(seq, layer, h % shards()), leaving = 0; // complete pieces that do not stay
        for (std::size_t i = 0; left > 0; ++i) {
            const std::size_t n = std::min(left, x_.tokens);
            const f16* const k = keys(of, i);
            kvtl::simd::attend_rows<kvtl::simd::default_arch, f16>(
                in.q.floats().data() + first, x_.dim, scale_, {k, n, x_.dim, x_.dim},
                {k + x_.tokens * x_.dim, n, x_.dim, x_.dim}, nullptr, p, s.scratch);
            const std::size_t bytes = 2 * n * x_.dim * sizeof(f16);
            std::uint8_t& kept = kept_[of * x_.pieces + i];
            s.asked_bytes += bytes;
            if (kept != 0 || n < x_.tokens) s.found_bytes += bytes;
            if (kept == 0 && n == x_.tokens) {
                kept = s.kept + piece_bytes <= s.quota ? 1 : 0;
                if (kept != 0)
                    s.kept += piece_bytes;
                else
                    ++leaving, static_cast<void>(page_out(of, i)); // it worked when the piece was complete
            }
            left -= n;
        }
        // Those that stay come first. What of the others has been read ahead, or lies across two, leaves now.
        const std::size_t complete = tokens(seq, layer, h % shards()) / x_.tokens;
        if (leaving > 0) static_cast<void>(page_out(of, complete - leaving, leaving));
        if (!in.lse.empty())
            for (std::uint32_t g = 0; g < x_.group; ++g)
                in.lse[h * x_.group + g] = p.max[g] + std::log(p.sum[g]);
        kvtl::finish(p, out.data() + first, x_.dim);
    }

    /// Pages of the file that are in memory, as the kernel says.
    [[nodiscard]] std::size_t resident_bytes() const {
        std::vector<unsigned char> pages(x_.file_bytes() / page_bytes);
        if (::mincore(memory_, x_.file_bytes(), pages.data()) != 0) return 0;
        return page_bytes * static_cast<std::size_t>(std::count_if(pages.begin(), pages.end(),
                                                                   [](unsigned char p) { return p & 1; }));
    }

    extents x_;
    std::string path_;
    int fd_;
    std::byte* memory_;
    float scale_;
    std::size_t max_tokens_, bound_;
    std::vector<std::vector<std::size_t>> tokens_; ///< (sequences, layers), of each shard
    std::vector<bool> open_;
    std::vector<std::uint8_t> kept_; ///< (lanes, pieces): it stays when it has been attended
    std::vector<part> shards_;
    mutable std::size_t peak_ = 0;
};

status failed(const engine::cache_options& o, const char* call) {
    return status::failure(errc::io_error, "mapped_file: %s of %s: %s", call, o.path.c_str(),
                           std::strerror(errno));
}

kvtl::result<std::unique_ptr<engine::kv_cache>> open_mapped(const engine::cache_options& o) {
    const extents x(o);
    if (o.io == "memory")
        return status::failure(errc::unsupported,
                               "--io is memory, or the device is imitated in memory; valid for "
                               "mapped_file: a file on the device that is there");
    if (o.memory_bytes < x.least_bytes(o.shards))
        return status::failure(
            errc::bound_too_small,
            "memory_bytes is %zu; valid for mapped_file: %zu or more, %zu KiB for each KV head "
            "of each layer and sequence",
            o.memory_bytes, x.least_bytes(o.shards), piece_bytes >> 10);
    const int fd = ::open(o.path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return failed(o, "open");
    const int full = ::posix_fallocate(fd, 0, static_cast<off_t>(x.file_bytes()));
    void* memory =
        full == 0 ? ::mmap(nullptr, x.file_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (memory == MAP_FAILED || ::madvise(memory, page_bytes, MADV_PAGEOUT) != 0) {
        if (full != 0) errno = full;
        const status why = failed(o, full != 0              ? "fallocate"
                                     : memory == MAP_FAILED ? "mmap"
                                                            : "MADV_PAGEOUT");
        if (memory != MAP_FAILED) ::munmap(memory, x.file_bytes());
        ::close(fd);
        ::unlink(o.path.c_str());
        return why;
    }
    return std::unique_ptr<engine::kv_cache>(
        std::make_unique<mapped_file>(o, fd, static_cast<std::byte*>(memory)));
}

} // namespace

kvtl::result<std::unique_ptr<engine::kv_cache>> open_policy(const engine::cache_options& o) {
    return o.policy == mapped_file_name ? open_mapped(o) : engine::open_cache(o);
}

kvtl::result<engine::memory_use> least_memory_of(const engine::cache_options& o) {
    if (o.policy != mapped_file_name) return engine::least_memory(o);
    const extents x(o);
    engine::memory_use use;
    use.parts = {{"frames", x.least_bytes(o.shards)}};
    use.raw_cache = x.lanes * o.max_tokens * 2 * x.dim * sizeof(f16);
    use.storage = x.file_bytes();
    return use;
}

engine::cache_wants wants_of(std::string_view policy) {
    if (policy != mapped_file_name) return engine::policy_wants(policy);
    engine::cache_wants w;
    w.inputs = kvtl::engine_input::q | kvtl::engine_input::k | kvtl::engine_input::v;
    return w;
}

} // namespace bench
