// A blob_store in a folder, which may be on a file system that machines share (NFS, CephFS).
//
// A blob is a file. put() writes NAME.part-RANDOM and renames it, so that a reader sees all of a blob or none; no locks are
// needed. The time of modification of a file is when it ends: touch() moves it, and get() removes what has ended. Nobody removes
// blobs that are not asked for again except sweep().
//
// Errors: a folder that is not there, a full disk, a file that cannot be read: one status each.
// Limits: a file system that hangs holds a call beyond its deadline, which is looked at between blobs. Clocks of machines that
//         share a folder should agree to a second. Nothing is synced: after a power cut a blob may be missing or damaged, and
//         whoever reads blobs has checksums of his own.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/save/file_ops.hpp>
#include <kvtl/store/blob_store.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvtl { inline namespace v0 {

class blob_folder {
  public:
    /// The folder must be there.
    [[nodiscard, gnu::cold]] static result<blob_folder> open(std::string path) {
        blob_folder f(std::move(path));
        struct ::stat found {};
        if (::stat(f.path_.c_str(), &found) != 0) return f.failure("opening it", errno);
        if (!S_ISDIR(found.st_mode)) return f.failure("opening it", ENOTDIR);
        if (::access(f.path_.c_str(), R_OK | W_OK | X_OK) != 0) return f.failure("opening it", errno);
        return f;
    }

    status put(const std::string& name, std::span<const std::byte> bytes, std::chrono::seconds ttl,
               blob_deadline until) {
        if (status s = in_time(until); !s) return s;
        if (!is_blob_name(name)) return no_name(name);
        std::uint64_t number = 0;
        if (posix_file_ops::fill_random(std::as_writable_bytes(std::span(&number, 1))) < 0)
            return failure("naming a draft", EIO);
        char suffix[32];
        std::snprintf(suffix, sizeof suffix, ".part-%016" PRIx64, number);
        const std::string draft = path_of(name) + suffix;
        const int fd = posix_file_ops::open(draft, open_for::creating);
        if (fd < 0) return failure("writing a blob", -fd);
        int why = write_all(fd, bytes);
        if (why == 0 && set_end(fd, ttl) != 0) why = errno;
        ::close(fd);
        if (why == 0) why = -posix_file_ops::rename(draft, path_of(name));
        if (why == 0) return {};
        static_cast<void>(posix_file_ops::remove(draft));
        return failure("writing a blob", why);
    }
    status settle(blob_deadline) noexcept { return {}; }

    status get(std::span<const std::string> names, std::span<const std::span<std::byte>> into,
               std::span<std::uint64_t> bytes, blob_deadline until) {
        std::fill(bytes.begin(), bytes.end(), no_blob);
        status first;
        for (std::size_t i = 0; i < names.size(); ++i) {
            status s = in_time(until);
            if (s && !is_blob_name(names[i])) s = no_name(names[i]);
            if (s) s = get_one(names[i], into[i], bytes[i]);
            if (!s && first.ok()) first = s;
        }
        return first;
    }

    status touch(std::span<const std::string> names, std::chrono::seconds ttl, std::span<std::uint8_t> there,
                 blob_deadline until) {
        std::fill(there.begin(), there.end(), std::uint8_t{0});
        for (std::size_t i = 0; i < names.size(); ++i) {
            if (status s = in_time(until); !s) return s;
            if (!is_blob_name(names[i])) return no_name(names[i]);
            const int fd = open_live(names[i]);
            if (fd == -ENOENT) continue;
            if (fd < 0) return failure("reading a blob", -fd);
            there[i] = ttl.count() == 0 || set_end(fd, ttl) == 0;
            ::close(fd);
        }
        return {};
    }

    status remove(std::span<const std::string> names, blob_deadline until) {
        for (const std::string& name : names) {
            if (status s = in_time(until); !s) return s;
            if (!is_blob_name(name)) return no_name(name);
            if (const int why = posix_file_ops::remove(path_of(name)); why < 0 && why != -ENOENT)
                return failure("removing a blob", -why);
        }
        return {};
    }

    /// Removes all blobs that have ended, and drafts that nobody has written to for an hour. Names that begin with `names` only. It
    /// begins anywhere, so that calls that end by their deadline reach all in the end.
    [[gnu::cold]] status sweep(std::string_view names, blob_deadline until) {
        std::vector<std::string> all;
        if (const int why = posix_file_ops::list(path_, all); why < 0) return failure("listing it", -why);
        std::uint64_t first = 0;
        if (posix_file_ops::fill_random(std::as_writable_bytes(std::span(&first, 1))) < 0)
            return failure("sweeping it", EIO);
        for (std::size_t i = 0; i < all.size(); ++i) {
            const std::string& name = all[(first + i) % all.size()];
            if (!name.starts_with(names)) continue;
            if (status s = in_time(until); !s) return s;
            if (name.find(".part-") != name.npos)
                remove_old_draft(name);
            else if (const int fd = open_live(name); fd >= 0)
                ::close(fd);
        }
        return {};
    }

  private:
    explicit blob_folder(std::string path) : path_(std::move(path)) {}

    [[nodiscard]] std::string path_of(const std::string& name) const { return path_ + "/" + name; }
    [[nodiscard]] status failure(const char* doing, int why) const noexcept {
        const errc code = why == ENOSPC || why == EDQUOT                  ? errc::disk_full
                          : why == EACCES || why == EPERM || why == EROFS ? errc::file_refused
                          : why == ENOENT || why == ENOTDIR               ? errc::absent
                                                                          : errc::io_error;
        return status::failure(code, "blob folder '%.100s': %s: %s%s", path_.c_str(), doing,
                               std::strerror(why), code == errc::absent ? "; make the folder first" : "");
    }
    [[nodiscard]] status in_time(blob_deadline until) const noexcept {
        if (blob_clock::now() < until) return {};
        return status::failure(errc::io_error, "blob folder '%.100s': the deadline has passed",
                               path_.c_str());
    }
    /// It would be a file elsewhere.
    [[nodiscard]] status no_name(const std::string& name) const noexcept {
        return status::failure(
            errc::invalid_argument,
            "blob folder '%.80s': name is '%.80s'; valid: 1 to 200 letters, digits and \":{}-\"",
            path_.c_str(), name.c_str());
    }
    [[nodiscard]] static int write_all(int fd, std::span<const std::byte> bytes) noexcept {
        posix_file_ops file;
        for (std::uint64_t at = 0; at < bytes.size();) {
            const auto n = file.pwrite(fd, bytes.subspan(at), at);
            if (n == -EINTR) continue;
            if (n <= 0) return n < 0 ? static_cast<int>(-n) : EIO;
            at += static_cast<std::uint64_t>(n);
        }
        return 0;
    }
    [[nodiscard]] static int set_end(int fd, std::chrono::seconds ttl) noexcept {
        struct ::timespec now {};
        ::clock_gettime(CLOCK_REALTIME, &now);
        now.tv_sec += ttl.count();
        const struct ::timespec times[2] = {now, now};
        return ::futimens(fd, times);
    }
    /// One that is young is still written, maybe by another machine.
    void remove_old_draft(const std::string& name) const {
        struct ::stat found {};
        struct ::timespec now {};
        ::clock_gettime(CLOCK_REALTIME, &now);
        if (::stat(path_of(name).c_str(), &found) == 0 && found.st_mtim.tv_sec + 3600 < now.tv_sec)
            static_cast<void>(posix_file_ops::remove(path_of(name)));
    }
    /// A blob that has ended is removed, and is none. -ENOENT: there is none.
    [[nodiscard]] int open_live(const std::string& name) const {
        const int fd = posix_file_ops::open(path_of(name), open_for::writing);
        if (fd < 0) return fd;
        struct ::stat found {};
        struct ::timespec now {};
        ::clock_gettime(CLOCK_REALTIME, &now);
        if (::fstat(fd, &found) == 0 && S_ISREG(found.st_mode) && found.st_mtim.tv_sec > now.tv_sec)
            return fd;
        if (S_ISREG(found.st_mode)) static_cast<void>(posix_file_ops::remove(path_of(name)));
        ::close(fd);
        return -ENOENT;
    }
    [[nodiscard]] status get_one(const std::string& name, std::span<std::byte> into,
                                 std::uint64_t& bytes) const {
        const int fd = open_live(name);
        if (fd == -ENOENT) return {};
        if (fd < 0) return failure("reading a blob", -fd);
        struct ::stat found {};
        int why = ::fstat(fd, &found) == 0 ? 0 : errno;
        const auto size = static_cast<std::uint64_t>(found.st_size);
        if (why == 0 && size > into.size()) {
            ::close(fd);
            return status::failure(errc::out_of_range,
                                   "blob folder '%.100s': a blob has %" PRIu64 " bytes; valid: up to %zu",
                                   path_.c_str(), size, into.size());
        }
        std::uint64_t at = 0;
        while (why == 0 && at < size) {
            const auto n = posix_file_ops::pread(fd, into.subspan(at, size - at), at);
            if (n == -EINTR) continue;
            if (n <= 0) why = n < 0 ? static_cast<int>(-n) : EIO;
            if (n > 0) at += static_cast<std::uint64_t>(n);
        }
        ::close(fd);
        if (why != 0) return failure("reading a blob", why);
        bytes = size;
        return {};
    }

    std::string path_;
};
static_assert(blob_store<blob_folder>);

}} // namespace kvtl::v0
