// SPDX-License-Identifier: MIT
#include "trace.hpp"

#include <kvtl/simd/convert.hpp>

#include "error.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

namespace engine {

namespace {

static_assert(std::endian::native == std::endian::little, "traces are written as they are in memory");

constexpr std::array<char, 8> magic = {'k', 'v', 't', 'l', '-', 't', 'r', 'c'};

struct raw_header {
    std::array<char, 8> magic;
    std::uint32_t version, fields, layers, query_heads, kv_heads, head_dim;
    std::uint64_t prompt_tokens, tokens;
    std::uint32_t element; ///< 0: f16
    std::uint32_t reserved;
};
static_assert(sizeof(raw_header) == 56);

std::string text_of(const kvtl::shape& s) {
    return std::to_string(s.layers) + " layers, " + std::to_string(s.query_heads) + " query heads, " +
           std::to_string(s.kv_heads) + " KV heads of " + std::to_string(s.head_dim);
}

/// The whole range or an errno.
int read_all(int file, void* data, std::size_t bytes, std::uint64_t offset) {
    auto* at = static_cast<char*>(data);
    while (bytes > 0) {
        const ssize_t n = ::pread(file, at, bytes, static_cast<off_t>(offset));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? errno : EIO;
        at += n;
        bytes -= static_cast<std::size_t>(n);
        offset += static_cast<std::uint64_t>(n);
    }
    return 0;
}

} // namespace

std::size_t trace_header::record_floats() const {
    return query_floats() + 2 * key_floats() + ((fields & has_k_pre) != 0 ? key_floats() : 0) +
           ((fields & has_prediction) != 0 ? query_floats() : 0);
}

std::uint64_t trace_header::record_offset(std::uint64_t token, std::uint32_t layer) const {
    return bytes + (token * shape.layers + layer) * record_floats() * sizeof(kvtl::f16);
}

// -----------------------------------------------------------------------------------------------------
// writing
trace_writer::trace_writer(std::string path, const kvtl::shape& shape, std::uint32_t fields)
    : path_(std::move(path)) {
    header_.shape = shape;
    header_.fields = fields;
    record_.resize(header_.record_floats());
    file_ = ::open(path_.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
    if (file_ < 0) throw bad_input("cannot write trace " + path_ + ": " + std::strerror(errno));
}

trace_writer::~trace_writer() {
    if (file_ >= 0) ::close(file_);
}

void trace_writer::put(const void* data, std::size_t bytes, std::uint64_t offset) noexcept {
    const auto* at = static_cast<const char*>(data);
    while (bytes > 0 && error_ == 0) {
        const ssize_t n = ::pwrite(file_, at, bytes, static_cast<off_t>(offset));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            error_ = n < 0 ? errno : ENOSPC;
            return;
        }
        at += n;
        bytes -= static_cast<std::size_t>(n);
        offset += static_cast<std::uint64_t>(n);
    }
}

void trace_writer::write(std::uint64_t token, std::uint32_t layer, const trace_entry& e) noexcept {
    kvtl::f16* out = record_.data();
    const auto add = [&](std::span<const float> part, std::size_t floats) {
        const std::size_t n = std::min(part.size(), floats);
        kvtl::simd::encode(part.data(), out, n);
        std::fill(out + n, out + floats, kvtl::f16{});
        out += floats;
    };
    add(e.q, header_.query_floats());
    add(e.k, header_.key_floats());
    add(e.v, header_.key_floats());
    if ((header_.fields & trace_header::has_k_pre) != 0) add(e.k_pre, header_.key_floats());
    if ((header_.fields & trace_header::has_prediction) != 0) add(e.prediction, header_.query_floats());
    put(record_.data(), record_.size() * sizeof(kvtl::f16), header_.record_offset(token, layer));
}

void trace_writer::close(std::uint64_t prompt_tokens, std::uint64_t tokens) {
    const kvtl::shape& s = header_.shape;
    const raw_header raw = {magic,
                            trace_header::current_version,
                            header_.fields,
                            s.layers,
                            s.query_heads,
                            s.kv_heads,
                            s.head_dim,
                            prompt_tokens,
                            tokens,
                            0,
                            0};
    std::array<char, trace_header::bytes> block{};
    std::memcpy(block.data(), &raw, sizeof raw);
    put(block.data(), block.size(), 0);
    const int closed = ::close(std::exchange(file_, -1));
    if (error_ == 0 && closed != 0) error_ = errno;
    if (error_ != 0) throw run_failure("cannot write trace " + path_ + ": " + std::strerror(error_));
}

// -----------------------------------------------------------------------------------------------------
// reading
trace_reader::trace_reader(std::string path) : path_(std::move(path)) {
    const auto refuse = [&](const std::string& why) {
        if (file_ >= 0) ::close(std::exchange(file_, -1));
        throw bad_input("trace " + path_ + ": " + why);
    };
    file_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat info = {};
    if (file_ < 0 || ::fstat(file_, &info) != 0) refuse(std::strerror(errno));
    if (!S_ISREG(info.st_mode)) refuse("not a regular file");
    raw_header raw = {};
    const auto size = static_cast<std::uint64_t>(info.st_size);
    if (size < sizeof raw || read_all(file_, &raw, sizeof raw, 0) != 0) refuse("not a trace");
    if (raw.magic != magic) {
        // The header comes last, so an interrupted recording begins with zeros.
        if (raw.magic == std::array<char, 8>{}) refuse("cut short: its recording was never finished");
        refuse("not a trace");
    }
    if (raw.version != trace_header::current_version)
        refuse("version " + std::to_string(raw.version) +
               "; valid: " + std::to_string(trace_header::current_version));
    if (raw.element != 0)
        refuse("numbers of element type " + std::to_string(raw.element) + "; valid: 0, f16");
    header_ = {
        {raw.layers, raw.query_heads, raw.kv_heads, raw.head_dim}, raw.fields, raw.prompt_tokens, raw.tokens};
    if (auto good = kvtl::geometry<kvtl::shape{}>::from(header_.shape); !good) refuse(good.error().message);
    if ((raw.fields & ~(trace_header::has_k_pre | trace_header::has_prediction)) != 0)
        refuse("fields that this version does not know");
    if (raw.tokens == 0 || raw.prompt_tokens > raw.tokens || raw.tokens > std::uint64_t{1} << 32)
        refuse(std::to_string(raw.tokens) + " tokens, " + std::to_string(raw.prompt_tokens) +
               " of them of the prompt: not possible");
    const std::uint64_t need = header_.record_offset(raw.tokens, 0);
    if (size < need)
        refuse("cut short: " + std::to_string(size) + " of " + std::to_string(need) + " bytes (" +
               std::to_string(raw.tokens) + " tokens, " + text_of(header_.shape) + ")");
    record_.resize(header_.record_floats());
    values_.resize(header_.record_floats());
}

trace_reader::~trace_reader() {
    if (file_ >= 0) ::close(file_);
}

void trace_reader::require_shape(const kvtl::shape& shape) const {
    if (header_.shape == shape) return;
    throw bad_input("trace " + path_ + " has " + text_of(header_.shape) + "; expected " + text_of(shape));
}

trace_entry trace_reader::read(std::uint64_t token, std::uint32_t layer) {
    const std::size_t bytes = record_.size() * sizeof(kvtl::f16);
    const int error = token >= header_.tokens || layer >= header_.shape.layers
                          ? ERANGE
                          : read_all(file_, record_.data(), bytes, header_.record_offset(token, layer));
    if (error != 0) throw run_failure("trace " + path_ + ": " + std::strerror(error));
    kvtl::simd::decode(record_.data(), values_.data(), record_.size());
    if (!kvtl::simd::all_finite(values_.data(), values_.size()))
        throw bad_input("trace " + path_ + ": token " + std::to_string(token) + ", layer " +
                        std::to_string(layer) + ": a number is not finite");
    std::span<const float> rest = values_;
    const auto take = [&](std::size_t floats, bool there = true) {
        if (!there) return std::span<const float>{};
        const auto part = rest.first(floats);
        rest = rest.subspan(floats);
        return part;
    };
    trace_entry e;
    e.q = take(header_.query_floats());
    e.k = take(header_.key_floats());
    e.v = take(header_.key_floats());
    e.k_pre = take(header_.key_floats(), (header_.fields & trace_header::has_k_pre) != 0);
    e.prediction = take(header_.query_floats(), (header_.fields & trace_header::has_prediction) != 0);
    if (token < header_.prompt_tokens || layer == 0) e.prediction = {};
    return e;
}

} // namespace engine
