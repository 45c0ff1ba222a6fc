// The file under posix_file and uring_file: which paths are accepted, and how the file is opened, grown and
// removed.
//
// A path is accepted if it does not exist, is empty, or starts with a kvtl superblock, and if no one else has
// it open (OFD lock). All other paths are refused with their name and not changed. O_DIRECT is set, read back
// and tested with a transfer; it never falls back silently. The file grows only in reserve(), so a full disk
// is detected there. Only its owner can read it: its mode is 0600, whatever the umask, unless config.mode says
// otherwise. The file is removed on close unless keep_file is set. A file that existed and was empty is empty again. The file starts with a superblock, so a file that a crash leaves behind is accepted again.
//
// Units: bytes. Cost: open is about twenty system calls; reserve is one fallocate under a lock; size() is one
// load.
//
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/io/file_system.hpp>
#include <kvtl/io/superblock.hpp>
#include <kvtl/io/transfer.hpp>
#include <kvtl/slots/io.hpp>
#include <kvtl/status.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace kvtl { inline namespace v0 {

class cache_file {
  public:
    struct config {
        std::string path{};
        bool keep_file = false;     ///< otherwise the file is removed when it is closed
        bool direct = true;         ///< false: through the page cache; device_info().direct says so
        ::mode_t mode = owner_only; ///< that the file gets, also where it existed: 0600 to 0777
    };

    [[nodiscard, gnu::cold]] static result<cache_file> open(const config& config, const io_plan& plan) {
        if (auto s = check_plan(plan); !s) return s;
        if (config.path.empty()) return error(errc::invalid_argument, "io.path is empty; valid: a file name");
        if ((config.mode & owner_only) != owner_only || config.mode > 0777)
            return status::failure(errc::invalid_argument,
                                   "io.mode is 0%o; valid: 0600 to 0777, with read and write for the owner",
                                   static_cast<unsigned>(config.mode));
        auto file = std::make_unique<body>();
        file->path = config.path;
        file->limit = plan.max_bytes;
        if (auto e = file->acquire()) return *std::move(e);
        if (const int why = set_mode(file->fd, config.mode); why != 0)
            return file->failure("set the mode", why);
        if (auto e = file->prepare(config.direct, plan.superblock)) return *std::move(e);
        if (config.keep_file)
            file->on_close = body::closing::keep;
        else if (file->on_close != body::closing::empty) // somebody else's, which had nothing in it
            file->on_close = body::closing::remove;
        return cache_file(std::move(file));
    }

    [[nodiscard]] int fd() const noexcept { return body_->fd; }
    [[nodiscard]] bool direct() const noexcept { return body_->direct; }
    [[nodiscard]] bool memory_backed() const noexcept { return lies_in_memory(body_->fd); }
    [[nodiscard]] std::uint32_t alignment() const noexcept { return body_->alignment; }
    [[nodiscard]] std::uint32_t page() const noexcept { return body_->page; }
    [[nodiscard]] const std::string& path() const noexcept { return body_->path; }
    /// Not in a child that fork() made of the process that opened it, which may destroy what it has, and nothing else.
    [[nodiscard]] bool ours() const noexcept { return ::getpid() == body_->owner; }

    /// Does at once what closing does to the path, for a file that a transfer without end keeps open.
    void leave_path() noexcept { body_->leave_path(); }

    /// Bytes that may be read and written: what the file had when it was opened, or was reserved since.
    [[nodiscard]] std::uint64_t size() const noexcept { return body_->size.load(std::memory_order_acquire); }

    /// Makes [offset, offset + bytes) writable without further allocation. Thread-safe; repeating it changes
    /// nothing.
    [[nodiscard]] status reserve(std::uint64_t offset, std::uint64_t bytes) noexcept {
        return body_->reserve(offset, bytes);
    }

  private:
    struct body { // stable under moves of the owner
        /// What becomes of the path when the body goes. Until open has succeeded this undoes what open did.
        enum class closing : std::uint8_t { keep, empty, remove };

        std::string path;
        std::string
            target; ///< absolute, without symlinks: what is unlinked, wherever the process has moved to
        int fd = -1;
        ::pid_t owner = ::getpid(); ///< whose lock and path they are: a child of fork() only closes its copy
        closing on_close = closing::keep;
        bool fresh = false; ///< had no bytes when it was opened
        bool direct = false;
        std::uint32_t alignment = 512;
        std::uint32_t page = 4096;
        std::uint64_t limit = 0;
        std::atomic<std::uint64_t> size{0};
        std::mutex growing;

        body() = default;
        body(const body&) = delete;
        body& operator=(const body&) = delete;
        ~body() { close(); }

        void close() noexcept {
            if (fd < 0) return;
            if (::getpid() != owner) {
                ::close(std::exchange(fd, -1));
                return;
            }
            leave_path(); // still under the lock, so nobody can have taken the file over in between
            // Spelled out: a child process or a ring that is being taken down may hold the description a
            // little longer.
            struct ::flock whole {};
            whole.l_type = F_UNLCK;
            whole.l_whence = SEEK_SET;
            (void)::fcntl(fd, F_OFD_SETLK, &whole);
            ::close(fd);
            fd = -1;
        }

        void leave_path() noexcept {
            const closing how = std::exchange(on_close, closing::keep);
            if (how == closing::empty) (void)!::ftruncate(fd, 0);
            if (how == closing::remove && names_our_file(target.c_str())) ::unlink(target.c_str());
        }

        [[nodiscard, gnu::cold]] error failure(errc code, const std::string& why) const {
            return {code, "cache file '" + path + "': " + why};
        }
        [[nodiscard, gnu::cold]] error failure(const char* doing, int why) const {
            errc code = errc::io_error;
            if (why == ENOENT || why == ENOTDIR || why == ENAMETOOLONG || why == ELOOP)
                code = errc::invalid_argument;
            if (why == EACCES || why == EPERM || why == EROFS || why == ETXTBSY) code = errc::file_refused;
            if (why == ENOSPC || why == EDQUOT || why == EFBIG) code = errc::disk_full;
            if (why == EOPNOTSUPP || why == ENOSYS || why == ENOLCK) code = errc::unsupported;
            return failure(code, std::string(doing) + ": " + std::strerror(why));
        }

        [[nodiscard]] bool names_our_file(const char* name) const noexcept {
            struct ::stat there {};
            struct ::stat here {};
            return ::stat(name, &there) == 0 && ::fstat(fd, &here) == 0 && there.st_dev == here.st_dev &&
                   there.st_ino == here.st_ino;
        }

        /// Ends with fd open on a regular file that is ours and locked.
        [[nodiscard, gnu::cold]] std::optional<error> acquire() {
            // Another user may remove or create the file between two of our calls; then the look at it is
            // taken again.
            for (int attempt = 0; attempt < 16; ++attempt) {
                bool created = false;
                if (auto e = open_or_create(created)) return e;
                if (fd < 0) continue;
                on_close = created ? closing::remove : closing::keep;
                target = path;
                if (char* absolute = ::realpath(path.c_str(), nullptr); absolute != nullptr) {
                    target = absolute;
                    std::free(absolute);
                }
                struct ::flock whole {};
                whole.l_type = F_WRLCK;
                whole.l_whence = SEEK_SET;
                if (::fcntl(fd, F_OFD_SETLK, &whole) != 0) {
                    const int why = errno;
                    if (why != EAGAIN && why != EACCES) return failure("lock", why);
                    on_close = closing::keep; // even if we created it: the other one has it now
                    return failure(errc::file_refused, "locked: it is open in another cache");
                }
                if (names_our_file(path.c_str())) return judge_content();
                close();
            }
            return failure(errc::file_refused, "it keeps being replaced while it is opened");
        }

        /// Leaves fd at -1 without an error when the path changed between two calls.
        [[nodiscard, gnu::cold]] std::optional<error> open_or_create(bool& created) {
            // O_DIRECT comes later: a file system that lacks it would create the file and then refuse.
            fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOCTTY, owner_only);
            created = fd >= 0;
            if (created) return std::nullopt;
            if (errno != EEXIST) return failure("create", errno);

            struct ::stat found {};
            if (::stat(path.c_str(), &found) != 0) {
                if (errno != ENOENT) return failure("stat", errno);
                struct ::stat link {};
                if (::lstat(path.c_str(), &link) == 0 && S_ISLNK(link.st_mode))
                    return failure(errc::file_refused, "a symbolic link to nothing");
                return std::nullopt;
            }
            if (!S_ISREG(found.st_mode))
                return failure(errc::file_refused, std::string("it is ") + file_kind(found.st_mode));
            // Should it have become a FIFO or a terminal since, O_NONBLOCK and O_NOCTTY keep the open
            // harmless.
            fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
            if (fd < 0) return errno == ENOENT ? std::nullopt : std::optional(failure("open", errno));
            if (::fstat(fd, &found) != 0) return failure("stat", errno);
            if (!S_ISREG(found.st_mode))
                return failure(errc::file_refused, std::string("it is ") + file_kind(found.st_mode));
            // io_uring takes O_NONBLOCK on a file as "fail rather than wait".
            if (::fcntl(fd, F_SETFL, 0) != 0) return failure("set flags", errno);
            return std::nullopt;
        }

        [[nodiscard, gnu::cold]] std::optional<error> judge_content() {
            struct ::stat found {};
            if (::fstat(fd, &found) != 0) return failure("stat", errno);
            size = static_cast<std::uint64_t>(found.st_size);
            fresh = size == 0;
            if (fresh) return std::nullopt;
            std::byte head[sizeof(superblock)];
            const ::ssize_t n = ::pread(fd, head, sizeof head, 0);
            if (n < 0) return failure("read of the superblock", errno);
            if (auto s = parse_superblock({head, static_cast<std::size_t>(n)}); !s)
                return failure(errc::file_refused, s.error().message);
            if (size < 4096)
                return failure(errc::file_refused, "a kvtl cache file that was cut off in its first page");
            return std::nullopt;
        }

        /// Ends with the facts known, O_DIRECT proved and the first page written.
        [[nodiscard, gnu::cold]] std::optional<error> prepare(bool want_direct,
                                                              std::span<const std::byte> head) {
            superblock first = make_superblock({}, 0, 0);
            if (!head.empty()) {
                auto given = parse_superblock(head);
                if (!given)
                    return failure(errc::invalid_argument, "io_plan.superblock: " + given.error().message);
                first = *given;
            }
            if (fresh) write_in_place(fd);
            if (want_direct) {
                if (::fcntl(fd, F_SETFL, O_DIRECT) != 0 || (::fcntl(fd, F_GETFL) & O_DIRECT) == 0)
                    return no_direct("refuses O_DIRECT");
                const dio_alignment known = query_dio_alignment(fd);
                if (known.refused) return no_direct("says that this file cannot be read with O_DIRECT");
                alignment = std::max({alignment, known.memory, known.offset});
                direct = true;
            }
            page = std::max({page, alignment, physical_block(fd)});
            if (page > limit)
                return failure(errc::invalid_argument, "io_plan.max_bytes is " + std::to_string(limit) +
                                                           "; valid: at least one page of " +
                                                           std::to_string(page));
            if (first.page == 0) {
                first.page = page;
                first.checksum = superblock_checksum(first);
            }
            return write_and_probe(first, head);
        }

        [[nodiscard, gnu::cold]] error no_direct(const char* what) const {
            return failure(errc::unsupported, "file system " + file_system_name(fd) + " " + what +
                                                  "; use a path on another one, or direct = false");
        }

        [[nodiscard, gnu::cold]] std::optional<error> write_and_probe(const superblock& first,
                                                                      std::span<const std::byte> head) {
            const std::size_t bytes =
                4 * std::size_t{page}; // anonymous memory comes aligned to the CPU's page only
            void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (memory == MAP_FAILED) return failure("memory for the probe", errno);
            const auto skew =
                static_cast<std::size_t>(-reinterpret_cast<std::uintptr_t>(memory) & (page - 1));
            std::byte* buffer = static_cast<std::byte*>(memory) + skew;

            // Existing content is overwritten only after transfers have been tested.
            std::optional<error> e;
            if (fresh) e = write_first_page(buffer, first, head);
            if (!e && direct) e = probe(buffer);
            if (!e && !fresh && !head.empty()) e = write_first_page(buffer, first, head);
            ::munmap(memory, bytes);
            return e;
        }

        [[nodiscard]] std::optional<error> write_first_page(std::byte* buffer, const superblock& first,
                                                            std::span<const std::byte> head) {
            if (on_close == closing::keep && fresh) on_close = closing::empty; // should the rest of open fail
            if (const int why = growth_error(page); why != 0) return failure("first page", why);
            // The length changes with the write, so a crash leaves an empty file or a valid one.
            if (::fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, page) != 0) return no_room(0, page, errno);
            std::memset(buffer, 0, page);
            if (!head.empty()) std::memcpy(buffer, head.data(), head.size());
            std::memcpy(buffer, &first, sizeof first);
            const ::ssize_t n = ::pwrite(fd, buffer, page, 0);
            if (n < 0 && errno == EINVAL && direct) return no_direct("failed a direct write of one page");
            if (n < 0) return failure("write of the first page", errno);
            if (n != static_cast<::ssize_t>(page)) return failure("write of the first page", EIO);
            size = std::max<std::uint64_t>(size, page);
            return std::nullopt;
        }

        /// Reads with exactly the alignment that will be promised, and promises more until the kernel takes
        /// it.
        [[nodiscard]] std::optional<error> probe(std::byte* buffer) {
            for (;; alignment *= 2) {
                const std::uint64_t offset = page - alignment; // an odd multiple, or 0
                const ::ssize_t n = ::pread(fd, buffer + alignment, alignment, static_cast<::off_t>(offset));
                if (n == static_cast<::ssize_t>(alignment)) return std::nullopt;
                if (n >= 0) return failure("probe read", EIO);
                if (errno != EINVAL) return failure("probe read", errno);
                if (alignment >= page) return no_direct("failed a direct read of one page");
            }
        }

        /// RLIMIT_FSIZE is looked at first: the kernel would raise SIGXFSZ, and handlers are the program's.
        [[nodiscard]] static int growth_error(std::uint64_t end) noexcept {
            struct ::rlimit allowed {};
            if (end > static_cast<std::uint64_t>(INT64_MAX)) return EFBIG;
            if (::getrlimit(RLIMIT_FSIZE, &allowed) == 0 && allowed.rlim_cur != RLIM_INFINITY &&
                end > allowed.rlim_cur)
                return EFBIG;
            return 0;
        }

        [[nodiscard]] status no_room(std::uint64_t offset, std::uint64_t bytes, int why) const noexcept {
            const bool no_room = why == ENOSPC || why == EDQUOT || why == EFBIG;
            const errc code = no_room             ? errc::disk_full
                              : why == EOPNOTSUPP ? errc::unsupported
                                                  : errc::io_error;
            return status::failure(code, "fallocate of %" PRIu64 " bytes at offset %" PRIu64 ": %s%s: '%s'",
                                   bytes, offset, std::strerror(why), why == EFBIG ? " (see ulimit -f)" : "",
                                   path.c_str());
        }

        [[nodiscard]] status reserve(std::uint64_t offset, std::uint64_t bytes) noexcept {
            if (bytes > limit || offset > limit - bytes)
                return status::failure(errc::out_of_range,
                                       "reserve of %" PRIu64 " bytes at offset %" PRIu64
                                       " exceeds max_bytes = %" PRIu64 " of '%s'",
                                       bytes, offset, limit, path.c_str());
            if (bytes == 0) return {};
            const std::uint64_t end = offset + bytes;
            const std::lock_guard lock(growing);
            int why = growth_error(end);
            if (why == 0) {
                do {
                    why = ::fallocate(fd, 0, static_cast<::off_t>(offset), static_cast<::off_t>(bytes)) == 0
                              ? 0
                              : errno;
                } while (why == EINTR);
                // A disk that filled up half way keeps what it gave; hand it back.
                if (why != 0 && end > size) (void)!::ftruncate(fd, static_cast<::off_t>(size.load()));
            }
            if (why != 0) return no_room(offset, bytes, why);
            if (end > size) size.store(end, std::memory_order_release);
            return {};
        }
    };

    explicit cache_file(std::unique_ptr<body> b) : body_(std::move(b)) {}
    std::unique_ptr<body> body_;
};

static_assert(sizeof(::off_t) == 8, "cache files need 64-bit file offsets");

}} // namespace kvtl::v0
