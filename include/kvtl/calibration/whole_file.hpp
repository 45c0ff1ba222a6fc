// Files that are there as a whole or not at all: written beside their name, brought to the disk and renamed, so that a run
// that is interrupted leaves the old file or none.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/status.hpp>

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string>

namespace kvtl { inline namespace v0 {

/// A file of these bytes, one part after the other.
[[nodiscard, gnu::cold]] inline status
write_whole_file(const std::string& path, std::initializer_list<std::span<const std::byte>> parts) {
    const auto failed = [](const std::string& name, int why) {
        return status::failure(errc::io_error, "cannot write %s: %s", name.c_str(), std::strerror(why));
    };
    const std::string draft = path + ".part";
    std::FILE* out = std::fopen(draft.c_str(), "wbe");
    if (out == nullptr) return failed(draft, errno);
    bool good = true;
    for (const auto part : parts) good = good && std::fwrite(part.data(), 1, part.size(), out) == part.size();
    good = good && std::fflush(out) == 0 && ::fsync(::fileno(out)) == 0;
    int why = good ? 0 : errno;
    if (std::fclose(out) != 0 && why == 0) why = errno;
    if (why == 0 && std::rename(draft.c_str(), path.c_str()) != 0) why = errno;
    if (why == 0) return {};
    std::remove(draft.c_str());
    return failed(path, why);
}

}} // namespace kvtl::v0
