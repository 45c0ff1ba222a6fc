// SPDX-License-Identifier: MIT
#include "gguf.hpp"

#include <kvtl/io/file_system.hpp>

#include "error.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>

namespace engine {

static_assert(std::endian::native == std::endian::little,
              "GGUF tensors are used in place: little-endian only");

namespace {

/// Value types of the metadata, in the order of the format.
enum value_type : std::uint32_t {
    u8,
    i8,
    u16,
    i16,
    u32,
    i32,
    f32,
    boolean,
    text,
    array,
    u64,
    i64,
    f64,
    type_count
};
constexpr std::array<std::uint64_t, type_count> value_size = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

template <class T> T load(const std::byte* at) {
    T x;
    std::memcpy(&x, at, sizeof x);
    return x;
}

std::string quoted(std::string_view name) {
    std::string s(1, '\'');
    return s.append(name).append(1, '\'');
}

} // namespace

std::string type_name(tensor_type type) {
    static constexpr std::array<const char*, 16> names = {"F32",  "F16",  "Q4_0", "Q4_1", "Q4_2", "Q4_3",
                                                          "Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q2_K", "Q3_K",
                                                          "Q4_K", "Q5_K", "Q6_K", "Q8_K"};
    const auto number = static_cast<std::uint32_t>(type);
    if (type == tensor_type::bf16) return "BF16";
    return number < names.size() ? names[number] : "number " + std::to_string(number);
}

std::optional<std::uint64_t> bytes_of(tensor_type type, std::uint64_t count) {
    switch (type) {
    case tensor_type::f32:
        return count * 4;
    case tensor_type::f16:
    case tensor_type::bf16:
        return count * 2;
    case tensor_type::q4_0:
        return count / 32 * 18;
    case tensor_type::q8_0:
        return count / 32 * 34;
    }
    return std::nullopt;
}

// -------------------------------------------------------------------------------------------------
// mapped_file

mapped_file::mapped_file(const std::string& path) {
    const auto fail = [&](int error) {
        throw bad_input("cannot read model " + path + ": " + std::strerror(error));
    };
    // A FIFO without a writer would keep the open waiting.
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0) fail(errno);
    struct stat info = {};
    const int error = ::fstat(fd, &info) != 0 ? errno : S_ISDIR(info.st_mode) ? EISDIR : 0;
    const bool regular = error != 0 || S_ISREG(info.st_mode);
    void* address = MAP_FAILED;
    if (error == 0 && regular && info.st_size > 0)
        address = ::mmap(nullptr, static_cast<std::size_t>(info.st_size), PROT_READ, MAP_SHARED, fd, 0);
    const int map_error = errno;
    ::close(fd);
    if (error != 0) fail(error);
    if (!regular)
        throw bad_input("cannot read model " + path + ": it is " + kvtl::file_kind(info.st_mode) +
                        "; valid: a regular file");
    if (info.st_size == 0) throw bad_input("cannot read model " + path + ": the file is empty");
    if (address == MAP_FAILED) fail(map_error);
    data_ = static_cast<const std::byte*>(address);
    size_ = static_cast<std::size_t>(info.st_size);
}

mapped_file::~mapped_file() {
    ::munmap(const_cast<std::byte*>(data_), size_);
}

// ----------------------------------------------------------------------------------------------------
// reading

/// Walks over the mapping and refuses to step over its end.
class gguf_file::cursor {
  public:
    explicit cursor(const gguf_file& file) : file_(file), bytes_(file.file_.bytes()) {}

    const std::byte* take(std::uint64_t n) {
        if (n > bytes_.size() - position_) file_.reject("the file is truncated");
        const std::byte* at = bytes_.data() + position_;
        position_ += n;
        return at;
    }
    template <class T> T number() { return load<T>(take(sizeof(T))); }
    std::string_view string() {
        const auto n = number<std::uint64_t>();
        return {reinterpret_cast<const char*>(take(n)), n};
    }
    [[nodiscard]] std::uint64_t position() const { return position_; }

  private:
    const gguf_file& file_;
    std::span<const std::byte> bytes_;
    std::uint64_t position_ = 0;
};

gguf_file::gguf_file(const std::string& path) : path_(path), file_(path) {
    const auto bytes = file_.bytes();
    if (bytes.size() < 4 || std::memcmp(bytes.data(), "GGUF", 4) != 0) reject("it is not a GGUF file");
    cursor at(*this);
    at.take(4);
    const auto version = at.number<std::uint32_t>();
    if ((version & 0xFFFFU) == 0) reject("it is a big-endian GGUF file");
    if (version != 2 && version != 3) reject("GGUF version " + std::to_string(version) + "; valid: 2, 3");
    const auto tensors = at.number<std::uint64_t>();
    const auto pairs = at.number<std::uint64_t>();
    read_metadata(at, pairs);
    if (has("split.count") && integer("split.count") > 1)
        reject("it is one part of a split model; merge the parts first");
    read_tensors(at, tensors);
}

void gguf_file::reject(const std::string& why) const {
    throw bad_input("model " + path_ + ": " + why);
}

void gguf_file::read_metadata(cursor& at, std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) {
        const auto key = at.string();
        value v;
        v.type = at.number<std::uint32_t>();
        if (v.type == array) {
            v.array = true;
            v.type = at.number<std::uint32_t>();
            v.count = at.number<std::uint64_t>();
        }
        if (v.type >= type_count || v.type == array)
            reject("metadata " + quoted(key) + " has an unknown type");
        v.data = at.take(0);
        if (v.type == text) {
            for (std::uint64_t j = 0; j < v.count; ++j) (void)at.string();
        } else {
            if (v.count > file_.bytes().size())
                reject("the file is truncated"); // also keeps the product in range
            at.take(v.count * value_size[v.type]);
        }
        values_.insert_or_assign(key, v);
    }
}

void gguf_file::read_tensors(cursor& at, std::uint64_t count) {
    struct record {
        std::string_view name;
        tensor shape;
        std::uint64_t offset;
    };
    std::vector<record> records;
    for (std::uint64_t i = 0; i < count; ++i) {
        record r{at.string(), {}, 0};
        const auto extents = at.number<std::uint32_t>();
        if (extents < 1 || extents > 4)
            reject("tensor " + quoted(r.name) + " has " + std::to_string(extents) + " extents");
        r.shape.columns = at.number<std::uint64_t>();
        r.shape.rows = 1;
        for (std::uint32_t d = 1; d < extents; ++d) {
            const auto extent = at.number<std::uint64_t>();
            if (extent != 0 && r.shape.rows > std::numeric_limits<std::uint32_t>::max() / extent)
                reject("tensor " + quoted(r.name) + " has an impossible shape");
            r.shape.rows *= extent;
        }
        r.shape.type = tensor_type{at.number<std::uint32_t>()};
        r.offset = at.number<std::uint64_t>();
        if (r.shape.columns > std::numeric_limits<std::uint32_t>::max())
            reject("tensor " + quoted(r.name) + " has an impossible shape");
        records.push_back(r);
    }

    const auto alignment = has("general.alignment") ? integer("general.alignment") : 32;
    if (!std::has_single_bit(alignment) || alignment < 4 || alignment > (1U << 20))
        reject("general.alignment is " + std::to_string(alignment) + "; valid: a power of two from 4");
    const auto base = (at.position() + alignment - 1) / alignment * alignment;
    const auto size = file_.bytes().size();
    for (auto& r : records) {
        if (r.offset % 4 != 0) reject("tensor " + quoted(r.name) + " is not aligned");
        // Types that are not supported have no known size; they are refused when they are asked for.
        const auto bytes = bytes_of(r.shape.type, r.shape.columns * r.shape.rows).value_or(0);
        if (base > size || r.offset > size - base || bytes > size - base - r.offset)
            reject("the file is truncated: tensor " + quoted(r.name) + " reaches beyond its end");
        r.shape.data = file_.bytes().data() + base + r.offset;
        tensors_.insert_or_assign(r.name, r.shape);
    }
}

// ----------------------------------------------------------------------------------------------------
// look-ups

const gguf_file::value& gguf_file::scalar(std::string_view key) const {
    const auto found = values_.find(key);
    if (found == values_.end()) reject("metadata " + quoted(key) + " is missing");
    if (found->second.array) reject("metadata " + quoted(key) + " is a list; one value was expected");
    return found->second;
}

const gguf_file::value& gguf_file::list(std::string_view key) const {
    const auto found = values_.find(key);
    if (found == values_.end()) reject("metadata " + quoted(key) + " is missing");
    if (!found->second.array) reject("metadata " + quoted(key) + " is one value; a list was expected");
    return found->second;
}

double gguf_file::as_number(std::string_view key, std::uint32_t type, const std::byte* at) const {
    switch (type) {
    case u8:
        return load<std::uint8_t>(at);
    case i8:
        return load<std::int8_t>(at);
    case u16:
        return load<std::uint16_t>(at);
    case i16:
        return load<std::int16_t>(at);
    case u32:
        return load<std::uint32_t>(at);
    case i32:
        return load<std::int32_t>(at);
    case f32:
        return static_cast<double>(load<float>(at));
    case u64:
        return static_cast<double>(load<std::uint64_t>(at));
    case i64:
        return static_cast<double>(load<std::int64_t>(at));
    case f64:
        return load<double>(at);
    default:
        reject("metadata " + quoted(key) + " is not a number");
    }
}

std::string_view gguf_file::string(std::string_view key) const {
    const auto& v = scalar(key);
    if (v.type != text) reject("metadata " + quoted(key) + " is not a string");
    return {reinterpret_cast<const char*>(v.data + 8), load<std::uint64_t>(v.data)};
}

double gguf_file::number(std::string_view key) const {
    const auto& v = scalar(key);
    const double x = as_number(key, v.type, v.data);
    if (!std::isfinite(x)) reject("metadata " + quoted(key) + " is not a finite number");
    return x;
}

std::uint64_t gguf_file::integer(std::string_view key) const {
    const double x = number(key);
    // Every count of a model is far below 2^53, so a double carries it exactly.
    if (x < 0 || x > 9e15 || x != std::floor(x)) reject("metadata " + quoted(key) + " is not a whole number");
    return static_cast<std::uint64_t>(x);
}

bool gguf_file::flag(std::string_view key) const {
    const auto& v = scalar(key);
    if (v.type != boolean) reject("metadata " + quoted(key) + " is not true or false");
    return load<std::uint8_t>(v.data) != 0;
}

std::vector<std::string_view> gguf_file::strings(std::string_view key) const {
    const auto& v = list(key);
    if (v.type != text) reject("metadata " + quoted(key) + " is not a list of strings");
    std::vector<std::string_view> all;
    all.reserve(v.count);
    const std::byte* at = v.data;
    for (std::uint64_t i = 0; i < v.count; ++i) {
        const auto n = load<std::uint64_t>(at);
        all.emplace_back(reinterpret_cast<const char*>(at + 8), n);
        at += 8 + n;
    }
    return all;
}

std::vector<double> gguf_file::numbers(std::string_view key) const {
    const auto& v = list(key);
    std::vector<double> all;
    all.reserve(v.count);
    for (std::uint64_t i = 0; i < v.count; ++i)
        all.push_back(as_number(key, v.type, v.data + i * (v.type < type_count ? value_size[v.type] : 0)));
    return all;
}

const tensor* gguf_file::find(std::string_view name) const {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) return nullptr;
    if (!bytes_of(found->second.type, 0))
        reject("tensor " + quoted(name) + " has type " + type_name(found->second.type) +
               "; supported: F32, F16, BF16, Q8_0, Q4_0");
    return &found->second;
}

const tensor& gguf_file::tensor_at(std::string_view name) const {
    const tensor* t = find(name);
    if (t == nullptr) reject("tensor " + quoted(name) + " is missing");
    return *t;
}

} // namespace engine
