// Files that are there as a whole or not at all: written beside their name, brought to the disk and renamed, so that a run
// that is interrupted leaves the old file or none.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/status.hpp>

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace kvtl { inline namespace v0 {

namespace detail {

/// What a name leads to, through at most as many symbolic links as the system follows; behind the last there may be nothing.
[[gnu::cold]] inline std::string behind_links(std::string path) {
    char to[PATH_MAX];
    for (int links = 0; links < 40; ++links) {
        const ::ssize_t n = ::readlink(path.c_str(), to, sizeof to);
        if (n <= 0) break;
        const std::string_view target(to, static_cast<std::size_t>(n));
        if (target.front() != '/')
            path.resize(path.rfind('/') + 1); // npos + 1 is 0: the link lies in the current folder
        else
            path.clear();
        path += target;
    }
    return path;
}

} // namespace detail

/// A file of these bytes, one part after the other, in place of the one there is. A symbolic link stays, and what it leads to
/// is replaced; devices, pipes and whatever else is no file are refused.
[[nodiscard, gnu::cold]] inline status
write_whole_file(const std::string& name, std::initializer_list<std::span<const std::byte>> parts) {
    const auto failed = [](const std::string& which, const char* why) {
        return status::failure(errc::io_error, "cannot write %s: %s", which.c_str(), why);
    };
    const std::string path = detail::behind_links(name), draft = path + ".part";
    struct ::stat there = {};
    if (::stat(path.c_str(), &there) == 0) {
        if (S_ISDIR(there.st_mode)) return failed(path, std::strerror(EISDIR));
        if (!S_ISREG(there.st_mode)) return failed(path, "it is there and no regular file");
    } else if (errno != ENOENT) {
        return failed(path, std::strerror(errno));
    }
    std::FILE* out = std::fopen(draft.c_str(), "wbe");
    if (out == nullptr) return failed(draft, std::strerror(errno));
    bool good = true;
    for (const auto part : parts) good = good && std::fwrite(part.data(), 1, part.size(), out) == part.size();
    good = good && std::fflush(out) == 0 && ::fsync(::fileno(out)) == 0;
    int why = good ? 0 : errno;
    if (std::fclose(out) != 0 && why == 0) why = errno;
    if (why == 0 && std::rename(draft.c_str(), path.c_str()) != 0) why = errno;
    if (why == 0) return {};
    std::remove(draft.c_str());
    return failed(path, std::strerror(why));
}

}} // namespace kvtl::v0
