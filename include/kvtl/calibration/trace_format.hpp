// What is in a trace: a recording of what a model hands to its KV cache, token by token and layer by layer, to which
// calibrations are fitted and which benchmarks replay. calibration/trace_writer.hpp records, trace_reader.hpp reads.
//
// File:   a header of 4096 bytes (little-endian, the rest zero), then one record of fixed size for every (token, layer),
//         tokens first. A record is f16: q (HQ, D), k (H, D), v (H, D), then k_pre (H, D) and the query that was
//         predicted for this layer while the layer before it was at work (HQ, D). The header says which of them but k
//         are there. Only decoded tokens and layers from 1 on have a prediction.
// Header: "kvtl-trc", u32 version, u32 fields, u32 L, HQ, H, D, u64 prompt tokens, u64 tokens, u32 element type (0: f16,
//         the only one), u32 pair distance, u64 fingerprint. The number of tokens is 0 until the recording is closed: a
//         run that was interrupted leaves no valid trace. A number that is not finite, as one beyond f16 becomes, makes
//         its record unreadable.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/format.hpp>
#include <kvtl/geometry.hpp>

#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace kvtl { inline namespace v0 {

static_assert(std::endian::native == std::endian::little, "traces are little-endian");

struct trace_header {
    static constexpr std::uint32_t current_version = 1;
    static constexpr std::size_t bytes = 4096; ///< in the file
    // Bits of `fields`.
    static constexpr std::uint32_t has_k_pre = 1;
    static constexpr std::uint32_t has_prediction = 2;
    static constexpr std::uint32_t without_q = 4;
    static constexpr std::uint32_t without_v = 8;
    static constexpr std::uint32_t known_fields = has_k_pre | has_prediction | without_q | without_v;

    kvtl::shape shape;
    std::uint32_t fields = 0;
    std::uint32_t pair_distance =
        0; ///< of the two elements that RoPE turns together, as pair_elements() has it; 0: not told
    std::uint64_t fingerprint = 0; ///< of the model's weights, any number that stands for them; 0: not told
    std::uint64_t prompt_tokens = 0;
    std::uint64_t tokens = 0; ///< the prompt's included

    [[nodiscard]] constexpr bool has(std::uint32_t field) const noexcept { return (fields & field) != 0; }
    [[nodiscard]] constexpr std::size_t query_floats() const noexcept {
        return std::size_t{shape.query_heads} * shape.head_dim;
    }
    [[nodiscard]] constexpr std::size_t key_floats() const noexcept {
        return std::size_t{shape.kv_heads} * shape.head_dim;
    }
    [[nodiscard]] constexpr std::size_t record_floats() const noexcept {
        return (has(without_q) ? 0 : query_floats()) + key_floats() + (has(without_v) ? 0 : key_floats()) +
               (has(has_k_pre) ? key_floats() : 0) + (has(has_prediction) ? query_floats() : 0);
    }
    /// Bytes before that record; with `tokens`, those of the whole file.
    [[nodiscard]] constexpr std::uint64_t record_offset(std::uint64_t token,
                                                        std::uint32_t layer) const noexcept {
        return bytes + (token * shape.layers + layer) * record_floats() * 2;
    }
    /// Whether shape, fields and pair distance go together.
    [[nodiscard]] status check() const {
        if (auto good = geometry::from(shape); !good)
            return status::failure(good.error().code, "%s", good.error().message.c_str());
        if ((fields & ~known_fields) != 0)
            return status::failure(errc::file_refused, "fields %u; valid: sums of 1, 2, 4 and 8", fields);
        if (pair_distance > shape.head_dim / 2)
            return status::failure(errc::file_refused, "pair distance %u; valid: 1 to %u, or 0 for not told",
                                   pair_distance, shape.head_dim / 2);
        return {};
    }
};

/// The first bytes of the file.
struct trace_header_bytes {
    static constexpr std::array<char, 8> right_magic = {'k', 'v', 't', 'l', '-', 't', 'r', 'c'};

    std::array<char, 8> magic = right_magic;
    std::uint32_t version = trace_header::current_version;
    std::uint32_t fields = 0, layers = 0, query_heads = 0, kv_heads = 0, head_dim = 0;
    std::uint64_t prompt_tokens = 0, tokens = 0;
    std::uint32_t element = 0; ///< 0: f16
    std::uint32_t pair_distance = 0;
    std::uint64_t fingerprint = 0;
};
static_assert(sizeof(trace_header_bytes) == 64);

/// One token in one layer. Spans are empty where there is nothing.
struct trace_entry {
    std::span<const float> q, k, v, k_pre, prediction;
};

/// A file descriptor that is closed with its owner. Move-only.
class trace_file {
  public:
    explicit trace_file(int descriptor = -1) noexcept : descriptor_(descriptor) {}
    trace_file(trace_file&& o) noexcept : descriptor_(std::exchange(o.descriptor_, -1)) {}
    trace_file& operator=(trace_file&& o) noexcept {
        std::swap(descriptor_, o.descriptor_);
        return *this;
    }
    trace_file(const trace_file&) = delete;
    trace_file& operator=(const trace_file&) = delete;
    ~trace_file() { static_cast<void>(close()); }

    [[nodiscard]] int descriptor() const noexcept { return descriptor_; }
    /// 0 or an errno, as the others.
    [[nodiscard]] int close() noexcept {
        const int old = std::exchange(descriptor_, -1);
        return old >= 0 && ::close(old) != 0 ? errno : 0;
    }
    [[nodiscard]] int read(void* data, std::size_t n, std::uint64_t at) const noexcept {
        return whole(::pread, static_cast<char*>(data), n, at);
    }
    [[nodiscard]] int write(const void* data, std::size_t n, std::uint64_t at) const noexcept {
        return whole(::pwrite, static_cast<const char*>(data), n, at);
    }

  private:
    template <class Call, class Byte>
    [[nodiscard]] int whole(Call call, Byte* data, std::size_t n, std::uint64_t at) const noexcept {
        while (n > 0) {
            const ::ssize_t moved = call(descriptor_, data, n, static_cast<::off_t>(at));
            if (moved < 0 && errno == EINTR) continue;
            if (moved <= 0) return moved < 0 ? errno : EIO;
            data += moved, n -= static_cast<std::size_t>(moved), at += static_cast<std::uint64_t>(moved);
        }
        return 0;
    }
    int descriptor_ = -1;
};

}} // namespace kvtl::v0
