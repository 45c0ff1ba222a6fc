// What the kernel says of files, and which backend a preset means by "a file".
// SPDX-License-Identifier: MIT
#include <kvtl/io/default_file.hpp>
#include <kvtl/io/file_system.hpp>

#include "support/scratch_folder.hpp"

#include <doctest/doctest.h>

#include <bit>
#include <string>

namespace io_file_system_test {

TEST_CASE("what is no regular file is called by its kind") {
    CHECK(std::string(kvtl::file_kind(S_IFDIR | 0755)) == "a folder");
    CHECK(std::string(kvtl::file_kind(S_IFIFO)) == "a FIFO");
    CHECK(std::string(kvtl::file_kind(S_IFSOCK)) == "a socket");
    CHECK(std::string(kvtl::file_kind(S_IFCHR)) == "a character device");
    CHECK(std::string(kvtl::file_kind(S_IFBLK)) == "a block device");
}

TEST_CASE("a file system without a name is told by its number, a closed file by neither") {
    const int proc = ::open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    REQUIRE(proc >= 0);
    CHECK(kvtl::file_system_name(proc) == "of type 0x9fa0");
    ::close(proc);
    CHECK(kvtl::file_system_name(-1) == "of unknown type");
    CHECK(kvtl::physical_block(-1) == 0);
    const kvtl::dio_alignment unknown = kvtl::query_dio_alignment(-1);
    CHECK(unknown.memory == 0);
    CHECK_FALSE(unknown.refused);
}

TEST_CASE("sizes of a real file are powers of two, or unknown") {
    const kvtl_test::scratch_folder folder;
    const int file = ::open(folder.file("a").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    REQUIRE(file >= 0);
    const auto sound = [](std::uint32_t n) { return n == 0 || std::has_single_bit(n); };
    const kvtl::dio_alignment direct = kvtl::query_dio_alignment(file);
    CHECK(sound(direct.memory));
    CHECK(sound(direct.offset));
    CHECK(sound(kvtl::physical_block(file)));
    ::close(file);
}

TEST_CASE("the default is io_uring where the build has it") {
#if defined(KVTL_HAS_URING) && KVTL_HAS_URING
    CHECK(std::string(kvtl::default_file::name) == "uring_file");
#else
    CHECK(std::string(kvtl::default_file::name) == "posix_file");
#endif
}

} // namespace io_file_system_test
