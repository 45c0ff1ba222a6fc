// libFuzzer target: any bytes are judged as the start of a cache file that is opened again. Nothing behind the superblock is
// read back from such a file: its pages are scratch, and open() writes a superblock of its own.
// SPDX-License-Identifier: MIT
#include <kvtl/io/cache_file.hpp>

#include "support/seeded.hpp"

std::vector<kvtl_fuzz::bytes> kvtl_fuzz::seeds() {
    return edits();
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const kvtl_fuzz::bytes seed = [] {
        const kvtl::superblock s = kvtl::make_superblock({4, 8, 2, 64}, 2, 77, 4096);
        kvtl_fuzz::bytes all(8192);
        std::memcpy(all.data(), &s, sizeof s);
        return all;
    }();
    static const kvtl_fuzz::memory_file file;
    kvtl_fuzz::bytes content = kvtl_fuzz::edited(seed, {data, size});
    if (size % 4 == 2 && content.size() >= sizeof(kvtl::superblock)) { // what stands behind the checksum
        kvtl::superblock s;
        std::memcpy(&s, content.data(), sizeof s);
        s.checksum = kvtl::superblock_checksum(s);
        std::memcpy(content.data(), &s, sizeof s);
    }
    const auto found = kvtl::parse_superblock(std::as_bytes(std::span(content)));
    if (found)
        static_cast<void>(kvtl::validate_superblock(*found, kvtl::make_superblock({4, 8, 2, 64}, 2, 77)));
    file.set(content);
    kvtl::io_plan plan;
    plan.max_bytes = 1 << 20;
    const auto opened =
        kvtl::cache_file::open({.path = file.path(), .keep_file = true, .direct = false}, plan);
    if (!content.empty() && opened.ok() != (found.ok() && content.size() >= 4096)) std::abort();
    if (!opened && file.content() != content) std::abort(); // a refused file stays as it is
    return 0;
}
