// What a saved file asks of a file system, and the real one. Tests put a simulated disk in its place.
//
// Verbs return 0 or more (open: a handle, pread and pwrite: bytes), or a negated errno.
//
// Source: open(2), fcntl(2) for the locks of open file descriptions, fsync(2), readdir(3), statvfs(3).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/whole_file.hpp>
#include <kvtl/io/file_system.hpp>

#include <dirent.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

namespace kvtl { inline namespace v0 {

enum class open_for : std::uint8_t {
    reading,
    writing, ///< and reading
    creating, ///< and writing and reading: made where there is none, for its owner only; a link is not followed
};

struct file_facts {
    ::mode_t mode = 0;
    std::uint64_t device = 0, inode = 0; ///< what tells two files apart
    std::uint64_t bytes = 0;
};

template <class T>
concept file_ops = std::copyable<T> &&
    requires(T& ops, const std::string& path, open_for how, int fd, file_facts& facts,
             std::span<std::byte> into, std::span<const std::byte> bytes, std::uint64_t offset) {
    { ops.resolve(path) } -> std::same_as<std::string>; // what the name leads to, behind links
    { ops.open(path, how) } -> std::same_as<int>;       // refuses no kind of file and waits for none
    { ops.inspect(path, facts) } -> std::same_as<int>;
    { ops.inspect(fd, facts) } -> std::same_as<int>;
    {
        ops.lock(fd, true)
        } -> std::same_as<int>; // exclusive or shared, -EAGAIN: somebody else has it; takes a lock anew
    { ops.pread(fd, into, offset) } -> std::same_as<std::int64_t>;
    { ops.pwrite(fd, bytes, offset) } -> std::same_as<std::int64_t>;
    { ops.truncate(fd, offset) } -> std::same_as<int>;
    { ops.sync(fd) } -> std::same_as<int>; // data, and what is needed to find it
    { ops.rename(path, path) } -> std::same_as<int>;
    { ops.sync_folder(path) } -> std::same_as<int>; // the folder in which the file lies
    { ops.remove(path) } -> std::same_as<int>;
    {ops.close(fd)}; // gives the lock up, too
    { ops.fill_random(into) } -> std::same_as<int>;
};

/// What a folder of saved files asks for beside that.
template <class T>
concept folder_ops = file_ops<T> &&
    requires(T& ops, const std::string& path, std::vector<std::string>& names, std::uint64_t& bytes) {
    { ops.list(path, names) } -> std::same_as<int>;       // what lies in a folder, in any order
    { ops.free_bytes(path, bytes) } -> std::same_as<int>; // that its file system has left for this user
};

/// Linux. State: how far the limit of file sizes is known to reach.
struct posix_file_ops {
    [[nodiscard]] static std::string resolve(const std::string& path) { return detail::behind_links(path); }

    [[nodiscard]] static int open(const std::string& path, open_for how) noexcept {
        const int flags = O_CLOEXEC | O_NOCTTY | O_NONBLOCK | (how == open_for::reading ? O_RDONLY : O_RDWR) |
                          (how == open_for::creating ? O_CREAT | O_NOFOLLOW : 0);
        const int fd = ::open(path.c_str(), flags, owner_only);
        if (fd < 0) return -errno;
        const int why = how == open_for::creating ? set_mode(fd, owner_only) : 0;
        if (why == 0) return fd;
        ::close(fd);
        return -why;
    }
    [[nodiscard]] static int inspect(const std::string& path, file_facts& facts) noexcept {
        struct ::stat found {};
        return told(::stat(path.c_str(), &found), found, facts);
    }
    [[nodiscard]] static int inspect(int fd, file_facts& facts) noexcept {
        struct ::stat found {};
        return told(::fstat(fd, &found), found, facts);
    }
    [[nodiscard]] static int lock(int fd, bool exclusive) noexcept {
        const int answer = set_lock(fd, exclusive ? F_WRLCK : F_RDLCK);
        return answer == -EACCES ? -EAGAIN : answer;
    }
    [[nodiscard]] static std::int64_t pread(int fd, std::span<std::byte> into,
                                            std::uint64_t offset) noexcept {
        const auto n = ::pread(fd, into.data(), into.size(), static_cast<::off_t>(offset));
        return n < 0 ? -errno : n;
    }
    /// The limit of file sizes is looked at first: the kernel would raise SIGXFSZ, and handlers are the program's. That is done
    /// once until truncate(), with which a save begins, for a save writes hundreds of runs. A limit that is lowered
    /// meanwhile raises the signal.
    [[nodiscard]] std::int64_t pwrite(int fd, std::span<const std::byte> bytes,
                                      std::uint64_t offset) noexcept {
        if (offset + bytes.size() > allowed_) {
            struct ::rlimit now {};
            allowed_ = ::getrlimit(RLIMIT_FSIZE, &now) == 0 ? now.rlim_cur : RLIM_INFINITY;
            if (offset + bytes.size() > allowed_) return -EFBIG;
        }
        const auto n = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<::off_t>(offset));
        return n < 0 ? -errno : n;
    }
    [[nodiscard]] int truncate(int fd, std::uint64_t bytes) noexcept {
        allowed_ = 0;
        return ::ftruncate(fd, static_cast<::off_t>(bytes)) == 0 ? 0 : -errno;
    }
    [[nodiscard]] static int sync(int fd) noexcept { return ::fdatasync(fd) == 0 ? 0 : -errno; }
    [[nodiscard]] static int rename(const std::string& from, const std::string& to) noexcept {
        return std::rename(from.c_str(), to.c_str()) == 0 ? 0 : -errno;
    }
    [[nodiscard]] static int sync_folder(const std::string& of) {
        const auto slash = of.rfind('/');
        const std::string folder =
            slash == std::string::npos ? "." : of.substr(0, std::max<std::size_t>(slash, 1));
        const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0) return -errno;
        const int why = ::fsync(fd) == 0 || errno == EINVAL ? 0 : errno; // EINVAL: folders need none there
        ::close(fd);
        return -why;
    }
    [[nodiscard]] static int remove(const std::string& path) noexcept {
        return ::unlink(path.c_str()) == 0 ? 0 : -errno;
    }
    [[nodiscard]] static int list(const std::string& folder, std::vector<std::string>& names) {
        ::DIR* const all = ::opendir(folder.c_str());
        if (all == nullptr) return -errno;
        errno = 0;
        while (const ::dirent* const one = ::readdir(all)) names.emplace_back(one->d_name);
        const int why = errno;
        ::closedir(all);
        return -why;
    }
    [[nodiscard]] static int free_bytes(const std::string& folder, std::uint64_t& bytes) noexcept {
        struct ::statvfs found {};
        if (::statvfs(folder.c_str(), &found) != 0) return -errno;
        bytes = std::uint64_t{found.f_bavail} * found.f_frsize;
        return 0;
    }
    static void close(int fd) noexcept {
        (void)set_lock(fd, F_UNLCK); // a child process may hold the description a little longer
        ::close(fd);
    }
    [[nodiscard]] static int fill_random(std::span<std::byte> into) noexcept {
        return ::getrandom(into.data(), into.size(), 0) == static_cast<::ssize_t>(into.size()) ? 0 : -EIO;
    }

  private:
    std::uint64_t allowed_ = 0; ///< where writes that the limit allows end

    static int told(int answer, const struct ::stat& found, file_facts& facts) noexcept {
        if (answer != 0) return -errno;
        facts = {found.st_mode, found.st_dev, found.st_ino, static_cast<std::uint64_t>(found.st_size)};
        return 0;
    }
    static int set_lock(int fd, short type) noexcept {
        struct ::flock whole {};
        whole.l_type = type;
        whole.l_whence = SEEK_SET;
        return ::fcntl(fd, F_OFD_SETLK, &whole) == 0 ? 0 : -errno;
    }
};
static_assert(folder_ops<posix_file_ops>);

/// A saved sequence in a file, as saved_file.hpp has it: a name for those that only pass one on, without the kernels.
template <file_ops Ops = posix_file_ops> class basic_saved_file;
/// In a file of the system.
using saved_file = basic_saved_file<>;

}} // namespace kvtl::v0
