// Properties of a file beyond open(2): its mode, the name of its file system, the requirements of O_DIRECT, and
// the sector size.
//
// Units: bytes. Cost: a few system calls, only when a cache file is opened.
//
// Source: statx(2) and statfs(2) of Linux; /sys/dev/block.
//
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/version.hpp>

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace kvtl { inline namespace v0 {

/// The mode of files that hold keys and values: prompts can be recovered from them.
inline constexpr ::mode_t owner_only = 0600;

/// Gives a file exactly this mode, whatever the umask was when it was created. A file that has it is not changed, so
/// file systems without modes are accepted if they report the right one. 0, or an errno.
[[nodiscard]] inline int set_mode(int fd, ::mode_t mode) noexcept {
    struct ::stat found {};
    if (::fstat(fd, &found) != 0) return errno;
    return (found.st_mode & 07777) == mode || ::fchmod(fd, mode) == 0 ? 0 : errno;
}

/// "a folder", "a FIFO", ... for the message that refuses it.
[[nodiscard]] inline const char* file_kind(::mode_t mode) noexcept {
    if (S_ISDIR(mode)) return "a folder";
    if (S_ISCHR(mode)) return "a character device";
    if (S_ISBLK(mode)) return "a block device";
    if (S_ISFIFO(mode)) return "a FIFO";
    if (S_ISSOCK(mode)) return "a socket";
    return "not a regular file";
}

/// "ext4", "tmpfs", ... or the type in hexadecimal.
[[nodiscard]] inline std::string file_system_name(int fd) {
    struct known {
        std::uint32_t type;
        const char* name;
    };
    static constexpr known names[] = {
        {0x0000EF53, "ext4"},      {0x58465342, "xfs"},       {0x9123683E, "btrfs"},    {0xF2F52010, "f2fs"},
        {0xCA451A4E, "bcachefs"},  {0x2FC12FC1, "zfs"},       {0x01021994, "tmpfs"},    {0x858458F6, "ramfs"},
        {0x958458F6, "hugetlbfs"}, {0x794C7630, "overlayfs"}, {0x65735546, "fuse"},     {0x00006969, "nfs"},
        {0x00C36400, "ceph"},      {0xFF534D42, "cifs"},      {0xFE534D42, "smb2"},     {0x01021997, "9p"},
        {0x00004D44, "vfat"},      {0x2011BAB0, "exfat"},     {0x0000F15F, "ecryptfs"},
    };
    struct ::statfs found {};
    if (::fstatfs(fd, &found) != 0) return "of unknown type";
    const auto type = static_cast<std::uint32_t>(found.f_type);
    for (const known& k : names)
        if (k.type == type) return k.name;
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "of type 0x%x", type);
    return text.data();
}

/// Its file system keeps what is written in memory: as fast as that, and as scarce.
[[nodiscard]] inline bool lies_in_memory(int fd) noexcept {
    struct ::statfs found {};
    if (::fstatfs(fd, &found) != 0) return false;
    const auto type = static_cast<std::uint32_t>(found.f_type);
    return type == 0x01021994 || type == 0x858458F6 || type == 0x958458F6; // tmpfs, ramfs, hugetlbfs
}

/// A file system that copies on write and has checksums of its own verifies what a direct read has brought where it was
/// brought: reads that drop what they do not want into one page would fail. It also takes room anew for what is written
/// again. btrfs excepts an empty file from both; where it does not, all is as before.
inline void write_in_place(int fd) noexcept {
    // As linux/fs.h has them, which defines hundreds of short names besides.
    constexpr unsigned long get_flags = _IOR('f', 1, long), set_flags = _IOW('f', 2, long);
    constexpr int no_copy_on_write = 0x00800000;
    struct ::statfs found {};
    int flags = 0;
    if (::fstatfs(fd, &found) != 0 || static_cast<std::uint32_t>(found.f_type) != 0x9123683E ||
        ::ioctl(fd, get_flags, &flags) != 0)
        return;
    flags |= no_copy_on_write;
    static_cast<void>(::ioctl(fd, set_flags, &flags));
}

struct dio_alignment {
    std::uint32_t memory = 0; ///< 0: the kernel does not say
    std::uint32_t offset = 0;
    bool refused = false; ///< the kernel says: no direct I/O on this file
};

/// statx(STATX_DIOALIGN), Linux 6.1. The C library's struct may be older than the kernel, so the raw call is
/// made and the words are taken from where the ABI has them. A refusal matters: ext4 with data=journal, for
/// one, accepts O_DIRECT and then goes through the page cache.
[[nodiscard]] inline dio_alignment query_dio_alignment(int fd) noexcept {
    constexpr std::uint32_t want_mount_id = 0x1000;
    constexpr std::uint32_t want_dio_alignment = 0x2000;
    constexpr std::size_t mask_word = 0;
    constexpr std::size_t mount_id_word = 144 / 4;
    constexpr std::size_t memory_word = 152 / 4;
    constexpr std::size_t offset_word = 156 / 4;
    alignas(8) std::array<std::uint32_t, 64> answer{}; // struct statx is 256 bytes
    if (::syscall(SYS_statx, fd, "", AT_EMPTY_PATH, want_mount_id | want_dio_alignment, answer.data()) != 0)
        return {};
    if ((answer[mask_word] & want_dio_alignment) == 0) return {};
    // A user-mode emulator may hand on the mask and drop the words it does not know; the mount id shows that.
    if (answer[mount_id_word] == 0 && answer[offset_word] == 0) return {};
    return {answer[memory_word], answer[offset_word], answer[offset_word] == 0};
}

/// Physical block of the device under the file, 0 if the system does not say. Writing less than one makes the
/// device read, change and write it. Only powers of two up to 64 KiB are believed.
[[nodiscard]] inline std::uint32_t physical_block(int fd) noexcept {
    struct ::stat found {};
    if (::fstat(fd, &found) != 0) return 0;
    for (const char* of : {"", "../"}) { // a partition asks the disk it is on
        std::array<char, 96> path{};
        std::snprintf(path.data(), path.size(), "/sys/dev/block/%u:%u/%squeue/physical_block_size",
                      major(found.st_dev), minor(found.st_dev), of);
        const int block = ::open(path.data(), O_RDONLY | O_CLOEXEC);
        if (block < 0) continue;
        std::array<char, 16> text{};
        const ::ssize_t n = ::read(block, text.data(), text.size() - 1);
        ::close(block);
        const unsigned long bytes = n > 0 ? std::strtoul(text.data(), nullptr, 10) : 0;
        return std::has_single_bit(bytes) && bytes <= 65536 ? static_cast<std::uint32_t>(bytes) : 0;
    }
    return 0;
}

}} // namespace kvtl::v0
