// A file system in memory with what a power cut leaves apart from what is seen: for tests of files that must survive one.
//
// Each file has the bytes that programs see and the bytes on the disk; sync() copies the blocks that were written since.
// Names are seen at once and are on the disk after sync_folder(). power_cut() keeps, of what was not synced, any blocks, some
// of them torn at a sector, any number of the changes of names in their order, and the old length or the new one.
// A sync that fails drops what it should have written and reports it once, as Linux does.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/save/file_ops.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

namespace kvtl_test {

struct simulated_disk {
    static constexpr std::size_t block = 4096, sector = 512;

    struct file {
        std::vector<std::byte> seen, durable;
        std::set<std::size_t> dirty; ///< blocks
        bool exclusive = false;
        int holders = 0;
    };
    using names = std::map<std::string, std::shared_ptr<file>>;
    struct handle {
        std::shared_ptr<file> of;
        bool writes = false;
        int lock = 0; ///< 1 shared, 2 exclusive
    };

    names seen, durable;
    std::vector<names> unsynced; ///< all names, after each of the changes that are not on the disk
    std::map<int, handle> handles;
    int next_handle = 3;
    std::mt19937_64 random{1};

    // What goes wrong. Operations are counted from 1: those that may fail in reality.
    std::size_t operations = 0;
    std::size_t fails_at = 0, fails_until = 0; ///< [fails_at, fails_until)
    std::size_t cut_at = 0;                    ///< from here on nothing happens: the power is off
    int error = EIO;
    std::size_t lost_write = 0, misdirected_write = 0, misdirected_read = 0,
                lost_sync = 0; ///< done by number, said to be fine
    bool read_only = false;
    std::uint64_t capacity = std::uint64_t{1} << 40; ///< bytes of all files; a write beyond fails with ENOSPC

    [[nodiscard]] int step() {
        ++operations;
        if (cut_at != 0 && operations >= cut_at) return -EIO;
        return operations >= fails_at && operations < fails_until ? -error : 0;
    }

    void power_cut() {
        unsynced.push_back(seen);
        for (const auto& of_all : unsynced)
            for (const auto& [name, f] : of_all) settle(*f);
        unsynced.pop_back();
        for (const auto& [name, f] : durable) settle(*f);
        if (!unsynced.empty()) {
            const std::size_t kept = random() % (unsynced.size() + 1);
            if (kept > 0) durable = unsynced[kept - 1];
        }
        unsynced.clear();
        handles.clear();
        seen = durable;
        fails_at = fails_until = 0;
    }

    [[nodiscard]] std::uint64_t used() const {
        std::uint64_t bytes = 0;
        for (const auto& [name, f] : seen) bytes += f->seen.size();
        return bytes;
    }
    void changed_names() { unsynced.push_back(seen); }

  private:
    /// What is on the disk after a power cut is all there is.
    void settle(file& f) {
        std::vector<std::byte> left = f.durable;
        if (random() % 2 == 0) left.resize(f.seen.size());
        for (const std::size_t b : f.dirty) {
            const std::size_t begin = b * block, end = std::min({begin + block, f.seen.size(), left.size()});
            const auto fate = random() % 3; // lost, kept, torn
            for (std::size_t at = begin; at < end; at += sector)
                if (fate == 1 || (fate == 2 && random() % 2 == 0))
                    std::copy_n(f.seen.begin() + static_cast<std::ptrdiff_t>(at), std::min(sector, end - at),
                                left.begin() + static_cast<std::ptrdiff_t>(at));
        }
        f = {left, left, {}, false, 0};
    }
};

/// file_ops on a simulated disk, which it does not own.
struct simulated_file_ops {
    simulated_disk* disk = nullptr;

    static std::string resolve(const std::string& path) { return path; }
    int open(const std::string& path, kvtl::open_for how) {
        if (const int why = disk->step(); why < 0) return why;
        const auto found = disk->seen.find(path);
        if (how != kvtl::open_for::reading && disk->read_only) return -EROFS;
        if (found == disk->seen.end()) {
            if (how != kvtl::open_for::creating) return -ENOENT;
            disk->seen[path] = std::make_shared<simulated_disk::file>();
            disk->changed_names();
        }
        disk->handles[disk->next_handle] = {disk->seen[path], how != kvtl::open_for::reading, 0};
        return disk->next_handle++;
    }
    int inspect(const std::string& path, kvtl::file_facts& facts) {
        if (const int why = disk->step(); why < 0) return why;
        const auto found = disk->seen.find(path);
        return found == disk->seen.end() ? -ENOENT : told(*found->second, facts);
    }
    int inspect(int fd, kvtl::file_facts& facts) {
        if (const int why = disk->step(); why < 0) return why;
        return told(*of(fd).of, facts);
    }
    int lock(int fd, bool exclusive) {
        if (const int why = disk->step(); why < 0) return why;
        auto& h = of(fd);
        const int others = h.of->holders - (h.lock != 0 ? 1 : 0);
        if (exclusive ? others != 0 : others != 0 && h.of->exclusive) return -EAGAIN;
        h.of->holders = others + 1;
        h.of->exclusive = exclusive;
        h.lock = exclusive ? 2 : 1;
        return 0;
    }
    std::int64_t pread(int fd, std::span<std::byte> into, std::uint64_t offset) {
        if (const int why = disk->step(); why < 0) return why;
        if (disk->operations == disk->misdirected_read) offset += simulated_disk::block;
        const auto& bytes = of(fd).of->seen;
        if (offset >= bytes.size()) return 0;
        std::size_t n = std::min<std::size_t>(into.size(), bytes.size() - offset);
        if (n > 8192 && disk->random() % 4 == 0) n = 8192; // short reads are in order
        std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(offset), n, into.begin());
        return static_cast<std::int64_t>(n);
    }
    std::int64_t pwrite(int fd, std::span<const std::byte> bytes, std::uint64_t offset) {
        if (const int why = disk->step(); why < 0) return why;
        auto& h = of(fd);
        if (!h.writes) return -EBADF;
        if (bytes.size() > 8192 && disk->random() % 4 == 0) bytes = bytes.first(8192);
        if (disk->operations == disk->lost_write) return static_cast<std::int64_t>(bytes.size());
        if (disk->operations == disk->misdirected_write) offset += 3 * simulated_disk::block;
        auto& all = h.of->seen;
        if (const std::uint64_t end = offset + bytes.size();
            end > all.size() && disk->used() + end - all.size() > disk->capacity)
            return -ENOSPC;
        if (all.size() < offset + bytes.size()) all.resize(offset + bytes.size());
        std::copy(bytes.begin(), bytes.end(), all.begin() + static_cast<std::ptrdiff_t>(offset));
        for (auto b = offset / simulated_disk::block; b * simulated_disk::block < offset + bytes.size(); ++b)
            h.of->dirty.insert(b);
        return static_cast<std::int64_t>(bytes.size());
    }
    int truncate(int fd, std::uint64_t bytes) {
        if (const int why = disk->step(); why < 0) return why;
        auto& f = *of(fd).of;
        f.seen.resize(bytes);
        f.dirty.erase(f.dirty.lower_bound((bytes + simulated_disk::block - 1) / simulated_disk::block),
                      f.dirty.end());
        return 0;
    }
    int sync(int fd) {
        auto& f = *of(fd).of;
        const int why = disk->step();
        if (disk->operations == disk->lost_sync) return 0;
        if (why == 0) {
            f.durable.resize(f.seen.size());
            for (const std::size_t b : f.dirty) {
                const auto begin = static_cast<std::ptrdiff_t>(b * simulated_disk::block);
                const std::size_t n =
                    std::min(simulated_disk::block, f.seen.size() - b * simulated_disk::block);
                std::copy_n(f.seen.begin() + begin, n, f.durable.begin() + begin);
            }
        }
        f.dirty.clear();
        return why;
    }
    int rename(const std::string& from, const std::string& to) {
        if (const int why = disk->step(); why < 0) return why;
        if (!disk->seen.contains(from)) return -ENOENT;
        disk->seen[to] = disk->seen[from];
        disk->seen.erase(from);
        disk->changed_names();
        return 0;
    }
    int sync_folder(const std::string&) {
        if (const int why = disk->step(); why < 0) return why;
        if (disk->operations == disk->lost_sync) return 0;
        disk->durable = disk->seen;
        disk->unsynced.clear();
        return 0;
    }
    int remove(const std::string& path) {
        if (const int why = disk->step(); why < 0) return why;
        disk->seen.erase(path);
        disk->changed_names();
        return 0;
    }
    /// A folder is what stands in front of the last slash.
    int list(const std::string& folder, std::vector<std::string>& names) {
        if (const int why = disk->step(); why < 0) return why;
        for (const auto& [name, f] : disk->seen)
            if (const auto slash = name.rfind('/'); slash != name.npos && name.substr(0, slash) == folder)
                names.push_back(name.substr(slash + 1));
        return 0;
    }
    int free_bytes(const std::string&, std::uint64_t& bytes) {
        if (const int why = disk->step(); why < 0) return why;
        const std::uint64_t used = disk->used();
        bytes = used < disk->capacity ? disk->capacity - used : 0;
        return 0;
    }
    void close(int fd) {
        const auto found = disk->handles.find(fd);
        if (found == disk->handles.end()) return; // a power cut came in between
        if (found->second.lock != 0) --found->second.of->holders;
        disk->handles.erase(found);
    }
    int fill_random(std::span<std::byte> into) {
        for (std::byte& b : into) b = static_cast<std::byte>(disk->random());
        return 0;
    }

  private:
    simulated_disk::handle& of(int fd) {
        static simulated_disk::handle none{std::make_shared<simulated_disk::file>(), true,
                                           0}; // of a process that is no more
        const auto found = disk->handles.find(fd);
        return found == disk->handles.end() ? none : found->second;
    }
    static int told(const simulated_disk::file& f, kvtl::file_facts& facts) {
        facts = {S_IFREG | 0600, 1, reinterpret_cast<std::uintptr_t>(&f), f.seen.size()};
        return 0;
    }
};
static_assert(kvtl::folder_ops<simulated_file_ops>);

} // namespace kvtl_test
