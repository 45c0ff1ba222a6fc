// The files of a bench run: named, and gone afterwards, also when the run is interrupted.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace bench {

/// While it lives, a signal that ends the program removes the file first. Caches and devices remove their
/// files themselves when they are closed; what nobody else removes is `ours`, and goes with this object. There may be 512
/// at a time; throws engine::bad_input beyond that.
class scratch_file {
  public:
    enum class owner : bool { device, ours };

    explicit scratch_file(std::string path, owner who = owner::device);
    ~scratch_file();
    scratch_file(const scratch_file&) = delete;
    scratch_file& operator=(const scratch_file&) = delete;

    [[nodiscard]] const std::string& path() const noexcept { return path_; }

  private:
    std::string path_;
    owner who_;
    int slot_;
};

/// Bytes that may still be written to the file system of a path's folder, and bytes of memory that programs
/// can get without swapping. Throw engine::bad_input, naming the option that gave the path, when the system does not say.
[[nodiscard]] double free_disk_bytes(const std::string& path, const char* option = "--kv-path");
[[nodiscard]] double available_memory_bytes();

} // namespace bench
