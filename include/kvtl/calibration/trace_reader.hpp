// Reads traces (calibration/trace_format.hpp), records in any order.
//
//   auto trace = trace_reader::open("own.trace");
//   if (!trace) ...                                    // trace.error(): what was expected of the file
//   auto e = trace->read(token, layer);                // result<trace_entry>, valid until the next read
//
// Cost:   one read of 2 record_floats() bytes per record.
// Errors: file_refused for a file that is no trace, was cut short or is of another version or shape; corrupt for a
//         number that is not finite; io_error.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/trace_format.hpp>
#include <kvtl/simd/convert.hpp>

#include <fcntl.h>
#include <sys/stat.h>

#include <array>
#include <cstring>
#include <vector>

namespace kvtl { inline namespace v0 {

/// An open trace whose header is in order and which has all of its records. Move-only.
class trace_reader {
  public:
    [[nodiscard]] static result<trace_reader> open(const std::string& path) {
        trace_reader in(path);
        if (auto why = in.take_header(); !why.empty()) return in.refuse(errc::file_refused, why);
        in.record_.resize(in.header_.record_floats());
        in.values_.resize(in.header_.record_floats());
        return in;
    }

    [[nodiscard]] const trace_header& header() const noexcept { return header_; }
    [[nodiscard]] const std::string& path() const noexcept { return path_; }

    /// Refuses, naming both shapes, unless the trace has this one.
    [[nodiscard]] status require_shape(const shape& s) const {
        if (header_.shape == s) return {};
        return status::failure(errc::file_refused, "trace %s has %s; expected %s", path_.c_str(),
                               text_of_shape(header_.shape).c_str(), text_of_shape(s).c_str());
    }
    /// Refuses unless the trace has queries, values, or what `fields` (bits of the header) adds.
    [[nodiscard]] status require(bool queries, bool values, std::uint32_t fields = 0) const {
        const char* missing = queries && header_.has(trace_header::without_q)             ? "queries"
                              : values && header_.has(trace_header::without_v)            ? "values"
                              : (fields & ~header_.fields & trace_header::has_k_pre) != 0 ? "keys before RoPE"
                              : (fields & ~header_.fields & trace_header::has_prediction) != 0
                                  ? "predicted queries"
                                  : nullptr;
        if (missing == nullptr) return {};
        return status::failure(errc::file_refused, "trace %s has no %s, which are needed here", path_.c_str(),
                               missing);
    }

    [[nodiscard]] result<trace_entry> read(std::uint64_t token, std::uint32_t layer) {
        if (token >= header_.tokens || layer >= header_.shape.layers)
            return refuse(errc::out_of_range, "token " + std::to_string(token) + ", layer " +
                                                  std::to_string(layer) + "; it has " +
                                                  std::to_string(header_.tokens) + " tokens of " +
                                                  std::to_string(header_.shape.layers) + " layers");
        const std::size_t bytes = record_.size() * sizeof(f16);
        if (const int e = file_.read(record_.data(), bytes, header_.record_offset(token, layer)); e != 0)
            return refuse(errc::io_error, std::strerror(e));
        simd::decode(record_.data(), values_.data(), record_.size());
        if (!simd::all_finite(values_.data(), values_.size()))
            return refuse(errc::corrupt, "token " + std::to_string(token) + ", layer " +
                                             std::to_string(layer) + ": a number is not finite");
        std::span<const float> rest = values_;
        const auto take = [&](std::size_t floats, bool there) {
            if (!there) return std::span<const float>{};
            const auto part = rest.first(floats);
            rest = rest.subspan(floats);
            return part;
        };
        trace_entry e;
        e.q = take(header_.query_floats(), !header_.has(trace_header::without_q));
        e.k = take(header_.key_floats(), true);
        e.v = take(header_.key_floats(), !header_.has(trace_header::without_v));
        e.k_pre = take(header_.key_floats(), header_.has(trace_header::has_k_pre));
        e.prediction = take(header_.query_floats(), header_.has(trace_header::has_prediction));
        if (token < header_.prompt_tokens || layer == 0) e.prediction = {};
        return e;
    }

  private:
    explicit trace_reader(std::string path) : path_(std::move(path)) {}

    [[nodiscard]] error refuse(errc code, const std::string& why) const {
        return {code, "trace " + path_ + ": " + why};
    }

    /// Empty, or what is wrong.
    [[nodiscard]] std::string take_header() {
        file_ = trace_file(
            ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)); // a FIFO must not make us wait
        struct stat info = {};
        if (file_.descriptor() < 0 || ::fstat(file_.descriptor(), &info) != 0) return std::strerror(errno);
        if (!S_ISREG(info.st_mode)) return "not a regular file";
        const auto size = static_cast<std::uint64_t>(info.st_size);
        if (size == 0)
            return "empty; expected a trace of version " + std::to_string(trace_header::current_version);
        trace_header_bytes raw;
        if (size < sizeof raw || file_.read(&raw, sizeof raw, 0) != 0) return "not a trace";
        if (raw.magic != trace_header_bytes::
                             right_magic) // the header comes last: an interrupted recording begins with zeros
            return raw.magic == std::array<char, 8>{} ? "cut short: its recording was never finished"
                                                      : "not a trace";
        if (raw.version != trace_header::current_version)
            return "version " + std::to_string(raw.version) +
                   "; valid: " + std::to_string(trace_header::current_version);
        if (raw.element != 0)
            return "numbers of element type " + std::to_string(raw.element) + "; valid: 0, f16";
        header_ = {.shape = {raw.layers, raw.query_heads, raw.kv_heads, raw.head_dim},
                   .fields = raw.fields,
                   .pair_distance = raw.pair_distance,
                   .fingerprint = raw.fingerprint,
                   .prompt_tokens = raw.prompt_tokens,
                   .tokens = raw.tokens};
        if (auto good = header_.check(); !good) return good.what();
        if (raw.tokens == 0 || raw.prompt_tokens > raw.tokens || raw.tokens > std::uint64_t{1} << 32)
            return std::to_string(raw.tokens) + " tokens, " + std::to_string(raw.prompt_tokens) +
                   " of them of the prompt: not possible";
        // Divided, not multiplied: made-up numbers must not wrap around.
        const std::uint64_t record = std::uint64_t{header_.record_floats()} * sizeof(f16);
        if (size < trace_header::bytes || (size - trace_header::bytes) / record / raw.layers < raw.tokens)
            return "cut short: " + std::to_string(size) + " bytes for " + std::to_string(raw.tokens) +
                   " tokens of " + text_of_shape(header_.shape) + ", " + std::to_string(record) +
                   " bytes each in a layer";
        return {};
    }

    std::string path_;
    trace_header header_;
    std::vector<f16> record_;
    std::vector<float> values_;
    trace_file file_;
};

}} // namespace kvtl::v0
