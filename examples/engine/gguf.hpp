// A GGUF model file, mapped into memory and checked as it is read.
//
// The file: "GGUF", version, number of tensors, number of metadata pairs; the pairs (key, type, value); one
// record per tensor (name, extents, type, offset); then the tensors, aligned. Everything is little-endian.
// The reader keeps views into the mapping; nothing is copied. Every length is checked against the end of the
// file before it is used. Format: the GGUF specification in the ggml repository (docs/gguf.md), versions 2
// and 3.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace engine {

/// Numbers as the format defines them. Only the types that this engine multiplies with have a name here.
enum class tensor_type : std::uint32_t { f32 = 0, f16 = 1, q4_0 = 2, q8_0 = 8, bf16 = 30 };

[[nodiscard]] std::string type_name(tensor_type type);

/// Bytes of `count` consecutive weights, or nothing when the type is not supported. Quantised types count in
/// blocks of 32 weights: q8_0 has an f16 scale and 32 bytes, q4_0 an f16 scale and 16 bytes.
[[nodiscard]] std::optional<std::uint64_t> bytes_of(tensor_type type, std::uint64_t count);

/// A matrix (rows, columns) as stored; a vector has one row.
struct tensor {
    tensor_type type = tensor_type::f32;
    std::uint64_t rows = 0;
    std::uint64_t columns = 0; ///< contiguous
    const std::byte* data = nullptr;
};

/// Read-only mapping of a whole file.
class mapped_file {
  public:
    explicit mapped_file(const std::string& path);
    ~mapped_file();
    mapped_file(const mapped_file&) = delete;
    mapped_file& operator=(const mapped_file&) = delete;

    [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }

  private:
    const std::byte* data_ = nullptr;
    std::size_t size_ = 0;
};

/// Throws bad_input, naming the file and what is wrong, when the file or a requested value is not as
/// expected.
class gguf_file {
  public:
    explicit gguf_file(const std::string& path);

    [[nodiscard]] bool has(std::string_view key) const { return values_.contains(key); }
    [[nodiscard]] std::string_view string(std::string_view key) const;
    [[nodiscard]] std::uint64_t integer(std::string_view key) const;
    [[nodiscard]] double number(std::string_view key) const;
    [[nodiscard]] bool flag(std::string_view key) const;
    [[nodiscard]] std::vector<std::string_view> strings(std::string_view key) const;
    [[nodiscard]] std::vector<double> numbers(std::string_view key) const;

    /// The tensor, or nullptr. `tensor_at` insists.
    [[nodiscard]] const tensor* find(std::string_view name) const;
    [[nodiscard]] const tensor& tensor_at(std::string_view name) const;

    [[noreturn]] void reject(const std::string& why) const;

  private:
    struct value {
        std::uint32_t type = 0;  ///< of the value, or of an array's elements
        bool array = false;      ///< then `count` elements follow
        std::uint64_t count = 1; ///< elements
        const std::byte* data = nullptr;
    };
    class cursor;

    void read_metadata(cursor& at, std::uint64_t count);
    void read_tensors(cursor& at, std::uint64_t count);
    [[nodiscard]] const value& scalar(std::string_view key) const;
    [[nodiscard]] const value& list(std::string_view key) const;
    [[nodiscard]] double as_number(std::string_view key, std::uint32_t type, const std::byte* at) const;

    std::string path_;
    mapped_file file_;
    std::map<std::string_view, value> values_;
    std::map<std::string_view, tensor> tensors_;
};

} // namespace engine
