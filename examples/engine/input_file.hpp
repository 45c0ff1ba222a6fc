// Files that a program reads as a whole: regular ones, up to a size that no such file exceeds, so that neither a FIFO
// without a writer nor a device without an end keeps it waiting or takes its memory.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/io/file_system.hpp>
#include <kvtl/status.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace engine {

// The most bytes that a file of a kind may have.
inline constexpr std::uint64_t most_prompt_bytes = std::uint64_t{64} << 20;
inline constexpr std::uint64_t most_text_bytes = std::uint64_t{1}
                                                 << 30; ///< questions, prose, what is calibrated on
inline constexpr std::uint64_t most_settings_bytes = std::uint64_t{16} << 20; ///< votes, what kvtl-tune wrote
inline constexpr std::uint64_t most_rows_bytes = std::uint64_t{1} << 30;      ///< what --json wrote
inline constexpr std::uint64_t most_gates_bytes = std::uint64_t{1} << 30;

/// Which files are taken: regular ones, or whatever has an end (a pipe whose writer is there, as shells make of <(..)).
enum class input_kind : std::uint8_t { regular, any };

/// All that can be read from a descriptor. `name`: what errors call it.
[[nodiscard]] inline kvtl::result<std::string> read_to_end(int fd, const std::string& name,
                                                           std::uint64_t most) {
    std::string text;
    for (std::size_t have = 0;;) {
        if (have > most)
            return kvtl::error(kvtl::errc::invalid_argument,
                               name + " has more than " + std::to_string(most >> 20) +
                                   " MiB, which is the most for a file of this kind");
        text.resize(std::max<std::size_t>(65536, 2 * have));
        const ::ssize_t n = ::read(fd, text.data() + have, text.size() - have);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return kvtl::error(kvtl::errc::io_error, "cannot read " + name + ": " + std::strerror(errno));
        have += static_cast<std::size_t>(n);
        if (n > 0) continue;
        text.resize(have);
        return text;
    }
}

/// All bytes of a file. `what`: of errors, "cannot read WHAT PATH: why".
[[nodiscard]] inline kvtl::result<std::string> read_input(const std::string& path, std::uint64_t most,
                                                          const std::string& what = "",
                                                          input_kind kind = input_kind::regular) {
    const auto refused = [&](const std::string& why) {
        return kvtl::error(kvtl::errc::invalid_argument,
                           "cannot read " + what + (what.empty() ? "" : " ") + path + ": " + why);
    };
    // A FIFO without a writer would keep the open waiting.
    const int wait = kind == input_kind::any ? 0 : O_NONBLOCK;
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | wait);
    if (fd < 0) return refused(std::strerror(errno));
    struct ::stat found {};
    const int error = ::fstat(fd, &found) != 0 ? errno : S_ISDIR(found.st_mode) ? EISDIR : 0;
    kvtl::result<std::string> text = std::string();
    if (error != 0)
        text = refused(std::strerror(error));
    else if (!S_ISREG(found.st_mode) && kind == input_kind::regular)
        text = refused(std::string("it is ") + kvtl::file_kind(found.st_mode) + "; valid: a regular file");
    else
        text = read_to_end(fd, path, most);
    ::close(fd);
    return text;
}

} // namespace engine
