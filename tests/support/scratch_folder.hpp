// A folder for the files of one test.
// SPDX-License-Identifier: MIT
#pragma once

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace kvtl_test {

/// A folder of its own on the disk the tests run on (or below KVTL_TEST_DIR), removed at the end.
class scratch_folder {
  public:
    scratch_folder() {
        const char* where = std::getenv("KVTL_TEST_DIR");
        std::string name = std::string(where != nullptr ? where : ".") + "/kvtl-test-XXXXXX";
        REQUIRE(::mkdtemp(name.data()) != nullptr);
        path_ = std::filesystem::absolute(name).string();
    }
    scratch_folder(const scratch_folder&) = delete;
    scratch_folder& operator=(const scratch_folder&) = delete;
    ~scratch_folder() { std::filesystem::remove_all(path_); }

    [[nodiscard]] const std::string& path() const { return path_; }
    [[nodiscard]] std::string file(const std::string& name) const { return path_ + "/" + name; }

  private:
    std::string path_;
};

} // namespace kvtl_test
