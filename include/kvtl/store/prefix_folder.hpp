// The folder of a store of prefixes: saved files, and a lock that also has the bytes that were written today.
//
// Names:  32 hexadecimal digits of the hash and .kvs; they only have to differ. The note of a file says what it is.
// Safety: a save is complete when its file has its name (save/saved_file.hpp). A draft that a crash left behind is removed when
//         the folder is opened. Files that no store has saved are left alone. The count of the day is not synced: a power cut
//         may lose a part of it.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/save/file_ops.hpp>
#include <kvtl/save/saved_file.hpp>
#include <kvtl/store/prefix_note.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvtl { inline namespace v0 {

template <folder_ops Ops> class prefix_folder {
  public:
    struct saved_prefix {
        prefix_label label{};
        std::string path{};
        std::uint64_t bytes = 0;
    };
    struct contents {
        std::vector<saved_prefix> files{}; ///< oldest first
        std::uint64_t foreign = 0, damaged = 0;
        status last{}; ///< why the last of these was refused
    };

    prefix_folder(std::string path, Ops ops) : path_(std::move(path)), lock_(std::move(ops)) {}

    /// None: nothing is written.
    [[nodiscard]] bool there() const noexcept { return !path_.empty(); }

    /// Locks it.
    [[nodiscard, gnu::cold]] status take() {
        lock_.fd = ops().open(path_ + "/prefix_store.lock", open_for::creating);
        if (lock_.fd < 0) return failure("opening its lock", lock_.fd);
        const int why = ops().lock(lock_.fd, true);
        if (why == -EAGAIN)
            return status::failure(
                errc::file_refused,
                "prefix store '%.100s': another store has this folder; valid: a folder of its own",
                path_.c_str());
        if (why < 0) return failure("locking it", why);
        day_record was;
        const auto n = ops().pread(lock_.fd, std::as_writable_bytes(std::span(&was, 1)), 0);
        if (n == sizeof was && was.magic == day_record{}.magic) today_ = was;
        return {};
    }

    /// Reads of each saved file its superblocks, its table and a piece of its note.
    [[nodiscard, gnu::cold]] result<contents> scan() {
        std::vector<std::string> names;
        if (const int why = ops().list(path_, names); why < 0) return failure("listing it", why);
        std::sort(names.begin(), names.end());
        contents c;
        for (const std::string& name : names) {
            const std::string path = path_ + "/" + name;
            if (name.ends_with(".kvs.part") && name.find_first_not_of("0123456789abcdef") == 32)
                static_cast<void>(ops().remove(path)); // of a save that was interrupted
            if (!name.ends_with(".kvs")) continue;
            auto label = read(path, nullptr);
            if (label) {
                c.files.push_back({.label = std::move(*label), .path = path, .bytes = bytes_of(path)});
                continue;
            }
            c.last = label.error();
            ++(label.error().code == errc::corrupt ? c.damaged : c.foreign);
        }
        std::stable_sort(c.files.begin(), c.files.end(), [](const saved_prefix& a, const saved_prefix& b) {
            return a.label.made < b.label.made;
        });
        return c;
    }

    /// The label of a file, and its tokens if `tokens` is not null.
    [[nodiscard, gnu::cold]] result<prefix_label> read(const std::string& path,
                                                       std::vector<std::uint32_t>* tokens) {
        auto file = basic_saved_file<Ops>::open(path, ops());
        if (!file) return file.error();
        return read_label(*file, tokens);
    }
    [[nodiscard]] std::uint64_t bytes_of(const std::string& path) {
        file_facts there;
        return ops().inspect(path, there) < 0 ? 0 : there.bytes;
    }
    /// Ok where it is gone already.
    [[nodiscard]] status remove(const std::string& path) {
        const int why = ops().remove(path);
        return why < 0 && why != -ENOENT ? failure("removing a file", why) : status{};
    }
    /// A name that no file has.
    [[nodiscard]] result<std::string> new_path(const hash128& hash) {
        char name[40];
        std::snprintf(name, sizeof name, "%016" PRIx64 "%016" PRIx64, hash[0], hash[1]);
        for (unsigned i = 0;; ++i) {
            std::string path = path_ + "/" + name + (i == 0 ? "" : "-" + std::to_string(i)) + ".kvs";
            file_facts there;
            const int why = ops().inspect(path, there);
            if (why == -ENOENT) return path;
            if (why < 0) return failure("looking for a name", why);
        }
    }
    /// That its file system has left.
    [[nodiscard]] result<std::uint64_t> free_bytes() {
        std::uint64_t free = 0;
        if (const int why = ops().free_bytes(path_, free); why < 0)
            return failure("asking for free bytes", why);
        return free;
    }

    /// \param day since 1970; a clock that goes back stays at the day it had
    [[nodiscard]] std::uint64_t written(std::uint64_t day) const noexcept {
        return day > today_.day ? 0 : today_.written;
    }
    void wrote(std::uint64_t day, std::uint64_t bytes) {
        today_.written = written(day) + bytes;
        today_.day = std::max(today_.day, day);
        static_cast<void>(ops().pwrite(lock_.fd, std::as_bytes(std::span(&today_, 1)), 0));
    }

  private:
    struct day_record {
        std::array<char, 8> magic = {'k', 'v', 't', 'l', '-', 'd', 'a', 'y'};
        std::uint64_t day = 0, written = 0;
    };

    [[nodiscard]] Ops& ops() noexcept { return lock_.ops; }
    [[nodiscard]] status failure(const char* doing, int answer) const noexcept {
        const errc code = answer == -EACCES || answer == -EPERM || answer == -EROFS ? errc::file_refused
                          : answer == -ENOENT                                       ? errc::absent
                                                                                    : errc::io_error;
        return status::failure(code, "prefix store '%.100s': %s: %s%s", path_.c_str(), doing,
                               std::strerror(-answer), answer == -ENOENT ? "; make the folder first" : "");
    }

    std::string path_;
    detail::open_file<Ops> lock_;
    day_record today_;
};

}} // namespace kvtl::v0
