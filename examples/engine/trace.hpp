// A recording of what a model handed to its KV cache, token by token and layer by layer.
//
// File:   a header of 4096 bytes (little-endian, the rest zero), then one record of fixed size for every
//         (token, layer), tokens first. A record is f16: q (HQ, D), k (H, D), v (H, D), then, if the header
//         says so, k_pre (H, D) and the query predicted for this layer while the layer before it was at work
//         (HQ, D). Only decoded tokens and layers from 1 on have a prediction.
// Header: "kvtl-trc", u32 version, u32 fields, u32 L, HQ, H, D, u64 prompt tokens, u64 tokens, u32 element
// type
//         (0: f16, the only one). The number of tokens is 0 until the recording is closed: a run that was
//         interrupted leaves no valid trace. A number that is not finite, as one beyond f16 becomes, makes
//         its record unreadable.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/element.hpp>
#include <kvtl/geometry.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace engine {

struct trace_header {
    static constexpr std::uint32_t current_version = 1;
    static constexpr std::uint32_t has_k_pre = 1;
    static constexpr std::uint32_t has_prediction = 2;
    static constexpr std::size_t bytes = 4096;

    kvtl::shape shape;
    std::uint32_t fields = 0; ///< has_k_pre | has_prediction
    std::uint64_t prompt_tokens = 0;
    std::uint64_t tokens = 0; ///< the prompt's included

    [[nodiscard]] std::size_t query_floats() const { return std::size_t{shape.query_heads} * shape.head_dim; }
    [[nodiscard]] std::size_t key_floats() const { return std::size_t{shape.kv_heads} * shape.head_dim; }
    [[nodiscard]] std::size_t record_floats() const;
    [[nodiscard]] std::uint64_t record_offset(std::uint64_t token, std::uint32_t layer) const;
};

/// One token in one layer. Spans are empty where there is nothing.
struct trace_entry {
    std::span<const float> q, k, v, k_pre, prediction;
};

/// Writes a trace. Errors of the file are kept and reported by close(), so that recording never disturbs a
/// run.
class trace_writer {
  public:
    /// Throws bad_input when the file cannot be made.
    trace_writer(std::string path, const kvtl::shape& shape, std::uint32_t fields);
    ~trace_writer();
    trace_writer(const trace_writer&) = delete;
    trace_writer& operator=(const trace_writer&) = delete;

    void write(std::uint64_t token, std::uint32_t layer, const trace_entry& entry) noexcept;
    /// Makes the file valid. Throws run_failure when any write had failed.
    void close(std::uint64_t prompt_tokens, std::uint64_t tokens);

  private:
    void put(const void* data, std::size_t bytes, std::uint64_t offset) noexcept;

    std::string path_;
    trace_header header_;
    std::vector<kvtl::f16> record_;
    int file_ = -1;
    int error_ = 0;
};

/// Reads a trace at random. Throws bad_input for a file that is none, was cut short or is of another version.
class trace_reader {
  public:
    explicit trace_reader(std::string path);
    ~trace_reader();
    trace_reader(const trace_reader&) = delete;
    trace_reader& operator=(const trace_reader&) = delete;

    [[nodiscard]] const trace_header& header() const noexcept { return header_; }
    /// Throws bad_input that names both shapes unless the trace has this one.
    void require_shape(const kvtl::shape& shape) const;
    /// Valid until the next read. Throws run_failure when the file has become unreadable.
    [[nodiscard]] trace_entry read(std::uint64_t token, std::uint32_t layer);

  private:
    std::string path_;
    trace_header header_;
    std::vector<kvtl::f16> record_;
    std::vector<float> values_;
    int file_ = -1;
};

} // namespace engine
