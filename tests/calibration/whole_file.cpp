// Files are there as a whole or not at all.
// SPDX-License-Identifier: MIT
#include <kvtl/calibration/whole_file.hpp>

#include "support/scratch_folder.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>

using kvtl::write_whole_file;
using kvtl_test::scratch_folder;

namespace {

std::span<const std::byte> bytes(std::string_view text) {
    return std::as_bytes(std::span(text.data(), text.size()));
}
std::string content(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}
std::size_t files_in(const scratch_folder& folder) {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder.path()),
                                                  std::filesystem::directory_iterator()));
}

/// No file may grow beyond so many bytes meanwhile: a disk that is full, as far as a writer can tell.
class file_size_limit {
  public:
    explicit file_size_limit(::rlim_t most) : signal_(std::signal(SIGXFSZ, SIG_IGN)) {
        REQUIRE(::getrlimit(RLIMIT_FSIZE, &before_) == 0);
        const ::rlimit now{most, before_.rlim_max};
        REQUIRE(::setrlimit(RLIMIT_FSIZE, &now) == 0);
    }
    file_size_limit(const file_size_limit&) = delete;
    file_size_limit& operator=(const file_size_limit&) = delete;
    ~file_size_limit() {
        ::setrlimit(RLIMIT_FSIZE, &before_);
        std::signal(SIGXFSZ, signal_);
    }

  private:
    void (*signal_)(int);
    ::rlimit before_{};
};

} // namespace

TEST_CASE("parts come one after the other, and replace what was there") {
    const scratch_folder folder;
    const std::string path = folder.file("a");
    REQUIRE(write_whole_file(path, {bytes("some "), {}, bytes("text")}).ok());
    CHECK(content(path) == "some text");
    REQUIRE(write_whole_file(path, {bytes("else")}).ok());
    CHECK(content(path) == "else");
    CHECK(files_in(folder) == 1);
}

TEST_CASE("when the disk is full the old file stays, and nothing lies beside it") {
    const scratch_folder folder;
    const std::string path = folder.file("a"), large(1 << 20, 'x');
    REQUIRE(write_whole_file(path, {bytes("old")}).ok());
    {
        const file_size_limit full(1 << 16);
        const kvtl::status failed = write_whole_file(path, {bytes("new"), bytes(large)});
        CHECK(failed.code() == kvtl::errc::io_error);
        CHECK(std::string(failed.what()).find("cannot write " + path + ": File too large") !=
              std::string::npos);
    }
    CHECK(content(path) == "old");
    CHECK(files_in(folder) == 1);
}

TEST_CASE("links stay and are written through, to where there is nothing yet as well") {
    const scratch_folder folder;
    std::filesystem::create_directory(folder.file("far"));
    const std::string there = folder.file("far/there"), link = folder.file("link"),
                      far = folder.file("far/link");
    REQUIRE(write_whole_file(there, {bytes("old")}).ok());
    std::filesystem::create_symlink("far/link", link);
    std::filesystem::create_symlink("there", far);
    REQUIRE(write_whole_file(link, {bytes("new")}).ok());
    CHECK(content(there) == "new");
    std::filesystem::remove(there);
    REQUIRE(write_whole_file(link, {bytes("first")}).ok());
    CHECK(content(there) == "first");
    for (const auto& name : {link, far}) CHECK(std::filesystem::is_symlink(name));

    std::filesystem::remove(far);
    std::filesystem::create_symlink(link, far); // and back again
    CHECK(std::string(write_whole_file(link, {bytes("x")}).what()).find("Too many levels") !=
          std::string::npos);
    CHECK(std::filesystem::is_symlink(link));
    CHECK(content(there) == "first");
}

TEST_CASE("what is there and no regular file stays") {
    const scratch_folder folder;
    const std::string pipe = folder.file("pipe");
    REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    CHECK(std::string(write_whole_file(pipe, {bytes("x")}).what()) ==
          "cannot write " + pipe + ": it is there and no regular file");
    CHECK(std::filesystem::is_fifo(pipe));
    CHECK(files_in(folder) == 1);
}

TEST_CASE("a name that cannot be written is in the message") {
    const scratch_folder folder;
    const std::string missing = folder.file("no/such"), taken = folder.file("folder");
    CHECK(std::string(write_whole_file(missing, {bytes("x")}).what()).find("cannot write " + missing) !=
          std::string::npos);
    std::filesystem::create_directory(taken);
    CHECK(std::string(write_whole_file(taken, {bytes("x")}).what()).find("cannot write " + taken) !=
          std::string::npos);
    CHECK(std::filesystem::is_directory(taken));
    CHECK(files_in(folder) == 1); // no draft
}
