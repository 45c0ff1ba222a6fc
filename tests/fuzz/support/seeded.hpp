// Files for fuzz targets: bytes in memory under a name, and inputs that are edits of a valid file. Formats with long headers
// and checksums would refuse nearly all random bytes at their first field.
//
// A target defines LLVMFuzzerTestOneInput and kvtl_fuzz::seeds(). libFuzzer or replay.cpp calls them.
// SPDX-License-Identifier: MIT
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

namespace kvtl_fuzz {

using bytes = std::vector<std::uint8_t>;

/// Inputs that a corpus begins with.
[[nodiscard]] std::vector<bytes> seeds();

/// A regular file that is only in memory; its content is replaced at will.
class memory_file {
  public:
    memory_file() : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
        if (fd_ < 0) std::abort();
    }
    memory_file(const memory_file&) = delete;
    ~memory_file() { ::close(fd_); }

    [[nodiscard]] std::string path() const {
        return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(fd_);
    }
    void set(std::span<const std::uint8_t> content) const {
        if (::ftruncate(fd_, static_cast<::off_t>(content.size())) != 0 ||
            ::pwrite(fd_, content.data(), content.size(), 0) != static_cast<::ssize_t>(content.size()))
            std::abort();
    }
    [[nodiscard]] bytes content() const {
        bytes all(static_cast<std::size_t>(::lseek(fd_, 0, SEEK_END)));
        if (::pread(fd_, all.data(), all.size(), 0) != static_cast<::ssize_t>(all.size())) std::abort();
        return all;
    }

  private:
    int fd_;
};

/// What `write(path)` leaves in a file of its own.
template <class Write> bytes file_of(Write&& write) {
    char name[] = "/tmp/kvtl-fuzz-XXXXXX";
    const int fd = ::mkstemp(name);
    if (fd < 0) std::abort();
    ::close(fd);
    write(std::string(name));
    std::ifstream in(name, std::ios::binary);
    bytes all{std::istreambuf_iterator<char>(in), {}};
    std::remove(name);
    if (all.empty()) std::abort();
    return all;
}

/// An input of odd size is a file. One of even size is edits of `seed`: a place (3 bytes) and a new byte each. An edit at the
/// last of all places cuts the file off where the one behind it stands.
inline bytes edited(const bytes& seed, std::span<const std::uint8_t> input) {
    if (input.size() % 2 != 0) return {input.begin(), input.end()};
    bytes file = seed;
    for (; input.size() >= 4 && !file.empty(); input = input.subspan(4)) {
        const std::size_t at =
            std::size_t{input[0]} | std::size_t{input[1]} << 8U | std::size_t{input[2]} << 16U;
        if (at == 0xFFFFFF)
            file.resize(file.size() * input[3] / 256);
        else
            file[at % file.size()] = input[3];
    }
    return file;
}

/// Seeds of a target whose inputs are edited(): the valid file, and edits here and there; `end` bytes that mean none behind.
inline std::vector<bytes> edits() {
    std::vector<bytes> all;
    std::uint32_t random = 1;
    for (const std::size_t n : {0U, 1U, 2U, 4U, 16U, 64U})
        for (const std::size_t end : {0U, 2U}) {
            bytes& input = all.emplace_back(4 * n + end);
            for (std::size_t i = 0; i < 4 * n; ++i) {
                random = random * 1664525U + 1013904223U;
                input[i] = static_cast<std::uint8_t>(random >> 24U);
            }
        }
    return all;
}

} // namespace kvtl_fuzz
