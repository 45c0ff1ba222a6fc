// A saved sequence in a file of its own: a save_target and a save_source.
//
// The file has two superblocks, and blocks that are never overwritten while the published generation uses them. A new
// generation goes to free blocks and to the end of the file. publish() syncs it, writes its superblock over the older one and
// syncs that. A crash or a failure at any moment leaves the published generation or the new one.
//
// create() writes to NAME.part and renames it in the first publish(). open() reads, and saves again. A reader holds a shared
// lock (OFD), a writer an exclusive one. Links are followed and kept. Folders, devices, foreign files and files in use are
// refused. The mode is 0600.
//
// Memory: buffers of a piece (16 KiB, or a page) and of 512 KiB. The table has 24 bytes per section and per piece, twice while
//         a generation is written. A save needs 2 bits per block (64 KiB per GiB). note() returns all of the note.
// Cost:   put() copies its bytes once, put_pages() and get_pages() do not. Checksums read what is put once, and once more for
//         each length of piece that the section had before. get() reads whole pieces, up to 512 KiB of neighbours at once, and
//         remembers them: it is for reading from front to back. The first save to a file that was opened reads its `pages` sections and syncs once. publish() is two
//         fdatasync; the first one is one fdatasync, a rename and an fsync of the folder.
// Limits: one thread at a time per object. A file holds at most two generations, and up to one root that fits no hole.
//         Checksums find damage, not malice. Pages and pieces that a generation keeps are not read, so damage of them stays,
//         and is found when they are read. A piece is found again if fewer than 32 pieces were put in or taken out since
//         the last one that was. A lost write of a superblock shows as the generation before.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/io/file_system.hpp>
#include <kvtl/save/file_ops.hpp>
#include <kvtl/save/saved_format.hpp>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cinttypes>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvtl { inline namespace v0 {

namespace detail {

/// A file that is open. A draft is removed with it.
template <file_ops Ops> struct open_file {
    Ops ops;
    int fd = -1;
    std::string draft{};        ///< the name to remove, or empty
    ::pid_t owner = ::getpid(); ///< a child of fork() leaves lock and name to its parent

    explicit open_file(Ops o) : ops(std::move(o)) {}
    open_file(open_file&& other) noexcept
        : ops(std::move(other.ops)), fd(std::exchange(other.fd, -1)), draft(std::exchange(other.draft, {})),
          owner(other.owner) {}
    open_file& operator=(open_file&& other) noexcept {
        close();
        ops = std::move(other.ops);
        fd = std::exchange(other.fd, -1);
        draft = std::exchange(other.draft, {});
        owner = other.owner;
        return *this;
    }
    ~open_file() { close(); }

    void close() noexcept {
        if (fd < 0 || ::getpid() != owner) return;
        if (!draft.empty()) (void)ops.remove(draft); // still under the lock
        ops.close(std::exchange(fd, -1));
    }
};

} // namespace detail

template <file_ops Ops> class basic_saved_file {
  public:
    /// A new file, which takes the name `path` when it is first published. A saved file of that name stays until then.
    /// \param page_bytes the block, and the length of a page: a multiple of 4096 up to 256 KiB
    [[nodiscard, gnu::cold]] static result<basic_saved_file>
    create(const std::string& path, std::uint32_t page_bytes = 4096, Ops ops = {}) {
        basic_saved_file file(path, std::move(ops));
        if (auto s = file.begin_draft(page_bytes); !s) return s;
        return result<basic_saved_file>(std::move(file));
    }

    /// A saved file, to read and to save to again. absent where there is none; corrupt where no generation verifies.
    [[nodiscard, gnu::cold]] static result<basic_saved_file> open(const std::string& path, Ops ops = {}) {
        basic_saved_file file(path, std::move(ops));
        if (auto s = file.take(); !s) return s;
        if (auto s = file.find_generation(); !s) return s;
        return result<basic_saved_file>(std::move(file));
    }

    /// The published generation. Of a new file only file_id and page_bytes are set.
    [[nodiscard]] save_facts facts() const noexcept { return facts_of(now_, written_, damaged_); }
    [[nodiscard]] const std::string& path() const noexcept { return path_; }

    // ---- save_target

    /// Begins a generation, if none is being written. One that was committed is published first.
    [[nodiscard, gnu::cold]] status begin() {
        if (broken_) return fail(errc::io_error, "publishing failed; open it again");
        if (!failed_ || writing_) return failed_;
        if (pending_.generation != 0)
            if (auto s = publish(); !s) return s;
        if (next_generation() >= most_generations)
            return fail(errc::out_of_range, "it has had all its generations; create it anew");
        if (file_.draft.empty() && !settled_)
            if (auto s = settle(); !s) return s;
        if (const int why = file_.ops.truncate(file_.fd, std::uint64_t{now_.blocks} * now_.page_bytes);
            why < 0)
            return failure("cutting what was not published", why);
        forget_next();
        mark(next_, 0, 2);
        cursor_ = piece_cursor_ = page_cursor_ = 2;
        writing_ = true;
        return {};
    }

    [[nodiscard, gnu::cold]] status put(section_kind kind, std::uint32_t index,
                                        std::span<const std::byte> bytes) {
        if (kind <= section_kind::note || !in_table(kind))
            return fail(errc::invalid_argument, "a section of the kind %s is not put", name_of(kind));
        if (auto s = begin(); !s) return s;
        if (kind == section_kind::pages)
            if (auto s = keep(bytes); !s) return failed_ = s;
        return failed_ = append(kind, index, bytes);
    }

    [[nodiscard, gnu::cold]] status put_pages(std::span<const std::byte> images, std::span<block_ref> refs) {
        if (images.size() != refs.size() * now_.page_bytes)
            return fail(errc::invalid_argument, "%zu bytes are not %zu pages", images.size(), refs.size());
        if (auto s = begin(); !s) return s;
        while (!refs.empty()) {
            const run to = allocate_pages(refs.size());
            const auto part = images.first(to.blocks * now_.page_bytes);
            if (auto s = write(to, part); !s) return failed_ = s;
            for (std::uint32_t i = 0; i < to.blocks; ++i)
                refs[i] = {.block = to.first + i,
                           .generation =
                               static_cast<std::uint32_t>(next_generation()) & (most_generations - 1),
                           .checksum = sum({section_kind::page_image, 0, to.first + i, next_generation()},
                                           part.subspan(std::size_t{i} * now_.page_bytes, now_.page_bytes))};
            images = images.subspan(part.size());
            refs = refs.subspan(to.blocks);
        }
        return {};
    }

    /// The facts of the new generation; facts() shows the published one until publish() has succeeded.
    [[nodiscard, gnu::cold]] result<save_facts> commit(const saved_root& root) {
        if (auto s = begin(); !s) return s;
        if (auto s = complete(root); !s) return failed_ = s;
        writing_ = false;
        return facts_of(pending_, written_next_, false);
    }

    [[gnu::cold]] void abandon() noexcept {
        writing_ = false;
        failed_ = {};
        pending_ = {};
        forget_next();
    }

    /// Brings the committed generation to the disk; on any thread, while no other call is under way. An error before the
    /// superblock is written leaves file and object as they were before the save. After a later error a crash may leave
    /// either generation, and every call that saves is refused: open the file again.
    [[nodiscard, gnu::cold]] status publish() {
        if (broken_) return fail(errc::io_error, "publishing failed; open it again");
        if (!failed_) return failed_;
        if (pending_.generation == 0) return fail(errc::invalid_argument, "nothing was committed");
        if (const int why = file_.draft.empty() ? file_.ops.sync(file_.fd) : 0; why < 0) {
            abandon(); // the system may have dropped what it could not write: all of it is written anew
            return failure("bringing it to the disk", why);
        }
        broken_ = true; // until all of this has succeeded
        if (auto s = write_superblock(pending_); !s) return s;
        if (const int why = file_.ops.sync(file_.fd); why < 0) return failure("bringing it to the disk", why);
        if (!file_.draft.empty())
            if (auto s = take_name(); !s) return s;
        broken_ = false;
        now_ = std::exchange(pending_, {});
        table_ = std::exchange(next_table_, {});
        live_.swap(next_);
        written_ = written_next_;
        damaged_ = false;
        settled_ = true;
        cached_ = cached_end_ = 0;
        last_ = {};
        forget_next();
        return {};
    }

    // ---- save_source

    [[nodiscard]] std::span<const saved_section> sections() const noexcept { return table_.sections; }

    /// \param which a line of sections()
    [[nodiscard, gnu::cold]] status get(const saved_section& which, std::uint64_t offset,
                                        std::span<std::byte> into) {
        const auto failed = [all = into](const status& s) {
            std::fill(all.begin(), all.end(), std::byte{0});
            return s;
        };
        if (std::uint64_t{which.first_piece} + which.pieces > table_.pieces.size() || offset > which.bytes ||
            into.size() > which.bytes - offset)
            return failed(
                fail(errc::out_of_range, "%s %u has no such bytes", name_of(which.kind), which.index));
        if (last_.piece < which.first_piece || last_.piece >= which.first_piece + which.pieces ||
            last_.begins > offset)
            last_ = {which.first_piece, 0};
        while (!into.empty()) {
            const std::uint32_t p = last_.piece;
            if (p >= which.first_piece + which.pieces)
                return failed(fail(errc::out_of_range, "%s %u ends early", name_of(which.kind), which.index));
            const std::uint32_t bytes = table_.pieces[p].bytes;
            if (offset - last_.begins >= bytes) {
                last_ = {p + 1, last_.begins + bytes};
                continue;
            }
            if (auto s = fetch(which, p); !s) return failed(s);
            const std::size_t at = offset - last_.begins, n = std::min<std::size_t>(bytes - at, into.size());
            std::memcpy(into.data(), cached(p).data() + at, n);
            into = into.subspan(n);
            offset += n;
        }
        return {};
    }

    [[nodiscard, gnu::cold]] status get_pages(std::span<const block_ref> refs, std::span<std::byte> into) {
        if (into.size() != refs.size() * now_.page_bytes)
            return fail(errc::invalid_argument, "%zu bytes are not %zu pages", into.size(), refs.size());
        const status s = read_pages(refs, into);
        if (!s) std::fill(into.begin(), into.end(), std::byte{0});
        return s;
    }

    [[nodiscard, gnu::cold]] result<std::vector<identity_field>> identity() {
        auto bytes = whole(section_kind::identity);
        if (!bytes) return bytes.error();
        std::string_view text(reinterpret_cast<const char*>(bytes->data()), bytes->size());
        std::vector<identity_field> fields;
        for (std::string word, name; !text.empty();) {
            const auto end = text.find('\0');
            word = text.substr(0, end);
            text.remove_prefix(end == text.npos ? text.size() : end + 1);
            if (name.empty())
                name = std::exchange(word, {});
            else
                fields.push_back({std::exchange(name, {}), std::move(word)});
        }
        return fields;
    }

    [[nodiscard, gnu::cold]] result<std::vector<std::byte>> note() { return whole(section_kind::note); }

  private:
    struct run {
        std::uint32_t first = 0, blocks = 0;
    };

    basic_saved_file(const std::string& path, Ops ops) : path_(path), file_(ops), replaced_(std::move(ops)) {}

    // ------------------------------------------------------------------------------------------------ errors

    /// The end of the path fits a status beside the reason.
    [[nodiscard, gnu::cold, gnu::format(printf, 3, 4)]] status fail(errc code, const char* format,
                                                                    ...) const noexcept {
        char why[120];
        std::va_list args;
        va_start(args, format);
        std::vsnprintf(why, sizeof why, format, args);
        va_end(args);
        const std::size_t shown = std::min<std::size_t>(path_.size(), 100);
        return status::failure(code, "saved file '%s%s': %s", shown < path_.size() ? "..." : "",
                               path_.c_str() + (path_.size() - shown), why);
    }
    [[nodiscard, gnu::cold]] status failure(const char* doing, std::int64_t answer) const noexcept {
        const int why = static_cast<int>(-answer);
        errc code = errc::io_error;
        const char* help = "";
        if (why == ENOTDIR || why == ENAMETOOLONG || why == ELOOP) code = errc::invalid_argument;
        if (why == EACCES || why == EPERM)
            code = errc::file_refused, help = "; change who may use it, or name another path";
        if (why == EROFS || why == ETXTBSY)
            code = errc::file_refused, help = "; name a path that may be written";
        if (why == ENOENT) code = errc::absent, help = "; make the folder first";
        if (why == ENOSPC || why == EDQUOT || why == EFBIG)
            code = errc::disk_full, help = "; make room and save again";
        if (why == EOPNOTSUPP || why == ENOSYS || why == ENOLCK) code = errc::unsupported;
        return fail(code, "%s: %s%s", doing, std::strerror(why), help);
    }
    [[nodiscard, gnu::cold]] status damaged(saved_owner at) const noexcept {
        return fail(errc::corrupt, "%s %u in block %u is damaged; restore a copy, or save anew",
                    name_of(at.kind), at.index, at.block);
    }

    // ------------------------------------------------------------------------------------------------ the name

    [[nodiscard]] status regular(const file_facts& facts) const noexcept {
        if (S_ISREG(facts.mode)) return {};
        return fail(errc::file_refused, "it is %s; name a regular file", file_kind(facts.mode));
    }
    /// Whether `name` is still the file that is open: another process may have renamed or removed it.
    [[nodiscard]] bool names(const std::string& name, int fd) {
        file_facts there, here;
        return file_.ops.inspect(name, there) >= 0 && file_.ops.inspect(fd, here) >= 0 &&
               there.device == here.device && there.inode == here.inode;
    }
    /// Follows links. `there` is empty where there is nothing.
    [[nodiscard]] status resolve(std::optional<file_facts>& there) {
        if (path_.empty()) return fail(errc::invalid_argument, "no name; valid: the name of a file");
        target_ = file_.ops.resolve(path_);
        file_facts found;
        const int why = file_.ops.inspect(target_, found);
        if (why == -ENOENT && target_ != path_)
            return fail(errc::absent, "a symbolic link to nothing; remove it, or name another file");
        if (why < 0 && why != -ENOENT) return failure("looking at it", why);
        if (why < 0) return {};
        there = found;
        return regular(found);
    }
    /// Empty, or a saved file: what may be replaced. A draft that a crash left behind may begin with zeros.
    [[nodiscard]] status ours(int fd, bool draft) {
        std::array<char, 8> magic{};
        const auto n = file_.ops.pread(fd, std::as_writable_bytes(std::span(magic)), 0);
        if (n < 0) return failure("reading it", n);
        if (n == 0 || magic == saved_magic || (draft && magic == std::array<char, 8>{})) return {};
        return fail(errc::file_refused, "%s was not saved by kvtl; %s", draft ? "its draft NAME.part" : "it",
                    draft ? "remove that, or name another file" : "name another file");
    }
    [[nodiscard]] status lock(int fd, bool exclusive, const char* refusal) {
        const int why = file_.ops.lock(fd, exclusive);
        if (why == -EAGAIN) return fail(errc::file_refused, "%s", refusal);
        return why < 0 ? failure("locking it", why) : status{};
    }
    /// Of the file of that name. The file of an open cache is locked, too, but there is no use in waiting for it.
    [[nodiscard]] status lock_named(int fd, bool exclusive, const char* refusal) {
        status s = lock(fd, exclusive, refusal);
        if (s.code() == errc::file_refused)
            if (auto other = ours(fd, false); !other) return other;
        return s;
    }

    [[nodiscard]] status begin_draft(std::uint32_t page_bytes) {
        if (!valid_page_bytes(page_bytes))
            return fail(errc::invalid_argument, "page_bytes is %u; valid: a multiple of %u up to %u",
                        page_bytes, page_step, most_page_bytes);
        std::optional<file_facts> there;
        if (auto s = resolve(there); !s) return s;
        if (there) { // and it stays locked until it is replaced
            replaced_.fd = file_.ops.open(target_, open_for::writing);
            if (replaced_.fd < 0) return failure("opening it", replaced_.fd);
            if (auto s = lock_named(replaced_.fd, true, "it is open elsewhere; close it there first"); !s)
                return s;
            if (auto s = ours(replaced_.fd, false); !s) return s;
        }
        const std::string draft = target_ + ".part";
        for (int attempt = 0; attempt < 16; ++attempt) {
            file_facts found;
            if (file_.ops.inspect(draft, found) >= 0)
                if (auto s = regular(found); !s) return s;
            file_.fd = file_.ops.open(draft, open_for::creating);
            if (file_.fd < 0) return failure("creating its draft NAME.part", file_.fd);
            if (auto s = lock(file_.fd, true, "it is being saved elsewhere; wait, or name another file"); !s)
                return s;
            if (!names(draft, file_.fd)) { // another one has just published it
                file_.close();
                continue;
            }
            if (auto s = ours(file_.fd, true); !s) return s;
            file_.draft = draft;
            if (const int why = file_.ops.truncate(file_.fd, 0); why < 0)
                return failure("emptying its draft", why);
            now_.page_bytes = page_bytes;
            if (const int why = file_.ops.fill_random(std::as_writable_bytes(std::span(now_.file_id)));
                why < 0)
                return failure("a random number", why);
            return {};
        }
        return fail(errc::file_refused, "its draft NAME.part keeps being replaced; name another file");
    }
    /// The draft is on the disk: it becomes the file.
    [[nodiscard]] status take_name() {
        std::optional<file_facts> there;
        if (auto s = resolve(there); !s && s.code() != errc::absent) return s;
        if (there && (replaced_.fd < 0 || !names(target_, replaced_.fd)))
            return fail(errc::file_refused, "somebody else made it meanwhile; save anew");
        if (const int why = file_.ops.rename(file_.draft, target_); why < 0)
            return failure("renaming its draft", why);
        file_.draft.clear();
        replaced_.close();
        const int why = file_.ops.sync_folder(target_);
        return why < 0 ? failure("bringing its folder to the disk", why) : status{};
    }

    /// Ends with the file open and locked for reading.
    [[nodiscard]] status take() {
        for (int attempt = 0; attempt < 16; ++attempt) {
            std::optional<file_facts> there;
            if (auto s = resolve(there); !s) return s;
            if (!there)
                return fail(errc::absent, "there is no such file; check the name, or save to it first");
            file_.fd = file_.ops.open(target_, open_for::writing);
            writable_ = file_.fd >= 0;
            if (file_.fd == -EACCES || file_.fd == -EPERM || file_.fd == -EROFS || file_.fd == -ETXTBSY)
                file_.fd = file_.ops.open(target_, open_for::reading);
            if (file_.fd == -ENOENT) continue;
            if (file_.fd < 0) return failure("opening it", file_.fd);
            if (auto s =
                    lock_named(file_.fd, false, "it is open for saving elsewhere; wait until it is closed");
                !s)
                return s;
            if (names(target_, file_.fd)) return {};
            file_.close();
        }
        return fail(errc::file_refused, "it keeps being replaced while it is opened; try again");
    }

    // ------------------------------------------------------------------------------------------------ blocks

    [[nodiscard]] std::uint64_t next_generation() const noexcept { return now_.generation + 1; }
    [[nodiscard]] std::uint64_t sum(saved_owner owner, std::span<const std::byte> bytes) const noexcept {
        return saved_checksum(now_.file_id, owner, bytes);
    }
    [[nodiscard]] bool used(std::uint64_t block) const noexcept {
        return (block < live_.size() && live_[block]) || (block < next_.size() && next_[block]);
    }
    static void mark(std::vector<bool>& blocks, std::uint64_t first, std::uint64_t count) {
        if (blocks.size() < first + count) blocks.resize(first + count);
        std::fill_n(blocks.begin() + static_cast<std::ptrdiff_t>(first), count, true);
    }
    /// Free blocks from `first` on, as far as `most`.
    [[nodiscard]] std::uint64_t hole(std::uint64_t first, std::uint64_t most) const noexcept {
        std::uint64_t n = 0;
        while (n < most && !used(first + n)) ++n;
        return n;
    }
    [[nodiscard]] run take(std::uint64_t& cursor, std::uint64_t n) {
        mark(next_, cursor, n);
        cursor += n;
        return {static_cast<std::uint32_t>(cursor - n), static_cast<std::uint32_t>(n)};
    }
    /// The next free run of `least` to `most` blocks. Nothing is free below the cursor, but for a root too long for a hole.
    [[nodiscard]] run next_free(std::uint64_t most, std::uint64_t least = 1) {
        for (;;) {
            while (used(cursor_)) ++cursor_;
            const std::uint64_t n = hole(cursor_, most);
            if (n >= least) return take(cursor_, n);
            cursor_ += n;
        }
    }
    /// Blocks for a piece: in one run, if a hole of the file is long enough. A write of one run costs far less than several.
    [[nodiscard]] run allocate_piece(std::uint64_t blocks) {
        for (std::uint64_t n = 1; piece_cursor_ < now_.blocks; piece_cursor_ += std::max<std::uint64_t>(n, 1))
            if (n = hole(piece_cursor_, blocks); n == blocks) return take(piece_cursor_, n);
        return next_free(blocks);
    }
    /// Blocks for up to `most` pages. Pages leave short holes, and take those first, so that the long ones stay for pieces.
    [[nodiscard]] run allocate_pages(std::uint64_t most) {
        const std::uint64_t long_hole = most_piece_bytes(now_.page_bytes) / now_.page_bytes;
        while (page_cursor_ < now_.blocks) {
            const std::uint64_t n = hole(page_cursor_, now_.blocks - page_cursor_);
            if (n > 0 && n < long_hole) return take(page_cursor_, std::min(n, most));
            page_cursor_ += n + 1; // and the block behind the hole, which is in use
        }
        return next_free(most);
    }

    [[nodiscard]] status write(run to, std::span<const std::byte> bytes) {
        if (cursor_ > std::numeric_limits<std::uint32_t>::max())
            return fail(errc::disk_full, "it would have more than 2^32 blocks");
        written_next_ += bytes.size();
        return write_at(std::uint64_t{to.first} * now_.page_bytes, bytes);
    }
    [[nodiscard]] status write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
        while (!bytes.empty()) {
            const auto n = file_.ops.pwrite(file_.fd, bytes, offset);
            if (n == -EINTR) continue;
            if (n <= 0) return failure("writing it", n < 0 ? n : -EIO);
            bytes = bytes.subspan(static_cast<std::size_t>(n));
            offset += static_cast<std::uint64_t>(n);
        }
        return {};
    }
    [[nodiscard]] status read_at(std::uint64_t offset, std::span<std::byte> into) {
        while (!into.empty()) {
            const auto n = file_.ops.pread(file_.fd, into, offset);
            if (n == -EINTR) continue;
            if (n < 0) return failure("reading it", n);
            if (n == 0) return fail(errc::corrupt, "it is cut off; restore a copy, or save anew");
            into = into.subspan(static_cast<std::size_t>(n));
            offset += static_cast<std::uint64_t>(n);
        }
        return {};
    }
    [[nodiscard]] status write_superblock(saved_superblock s) {
        std::vector<std::byte> block(s.page_bytes); // zeros behind it
        const auto put_at = [&](std::uint64_t slot) {
            s.checksum = superblock_checksum(s);
            std::memcpy(block.data(), &s, sizeof s);
            return write_at(slot * s.page_bytes, block);
        };
        if (auto written = put_at(s.generation % 2); !written || file_.draft.empty()) return written;
        s = {.file_id = s.file_id, .page_bytes = s.page_bytes}; // so that a new file begins with what it is
        return put_at(0);
    }

    // ------------------------------------------------------------------------------------------------ reading

    /// Takes the newer of the generations whose root verifies.
    [[nodiscard]] status find_generation() {
        file_facts facts;
        if (const int why = file_.ops.inspect(file_.fd, facts); why < 0) return failure("looking at it", why);
        if (facts.bytes == 0)
            return fail(errc::file_refused,
                        "it is empty: nothing was saved to it; remove it, or name another file");
        saved_superblock found[2];
        status first = superblock_at(0, 0, found[0]), second = first;
        if (first) second = superblock_at(1, found[0].page_bytes, found[1]);
        for (std::uint32_t page = page_step; !first && !second && page <= most_page_bytes;
             page += page_step) {
            second = superblock_at(1, page, found[1]); // where it stands depends on what the first one says
            if (second && found[1].page_bytes != page) second = first;
        }
        for (const status& s : {first, second})
            if (s.code() == errc::io_error) return s;
        if (!first && !second) return first;
        damaged_ = !first || !second;
        if (!first) found[0] = {};
        if (!second) found[1] = {};
        if (found[0].generation < found[1].generation) std::swap(found[0], found[1]);
        status newest;
        for (const saved_superblock& s : found) {
            if (s.generation == 0) break;
            now_ = s;
            const status loaded = load_root(facts.bytes);
            if (loaded || loaded.code() != errc::corrupt) return loaded;
            if (newest) newest = loaded;
            damaged_ = true;
        }
        if (newest)
            return fail(errc::corrupt, "its superblocks are damaged; restore a copy, or save it anew");
        return newest;
    }
    [[nodiscard]] status superblock_at(std::uint32_t slot, std::uint32_t page_bytes, saved_superblock& s) {
        s = {.magic = {}};
        auto bytes = std::as_writable_bytes(std::span(&s, 1));
        if (auto read = read_at(std::uint64_t{slot} * page_bytes, bytes);
            !read && read.code() != errc::corrupt)
            return read; // what is shorter is judged by what is there
        const status judged = check_superblock(s, slot);
        return judged ? judged : fail(judged.code(), "%s", judged.what());
    }
    [[nodiscard]] status load_root(std::uint64_t file_bytes) {
        const saved_owner owner{section_kind::root, 0, now_.root_block, now_.generation};
        const std::uint64_t blocks = blocks_of(now_.root_bytes, now_.page_bytes);
        if (std::uint64_t{now_.blocks} * now_.page_bytes > file_bytes)
            return fail(errc::corrupt,
                        "it is cut off: %" PRIu64 " of %" PRIu64 " bytes; restore a copy, or save anew",
                        file_bytes, std::uint64_t{now_.blocks} * now_.page_bytes);
        if (now_.root_block < 2 || now_.root_bytes > file_bytes || now_.root_block + blocks > now_.blocks)
            return damaged(owner);
        std::vector<std::byte> bytes(blocks * now_.page_bytes);
        if (auto s = read_at(std::uint64_t{now_.root_block} * now_.page_bytes, bytes); !s) return s;
        if (sum(owner, bytes) != now_.root_checksum) return damaged(owner);
        auto table = parse_root(std::span(bytes).first(now_.root_bytes), now_.page_bytes, now_.blocks);
        if (!table) return damaged(owner);
        table_ = *std::move(table);
        return {};
    }
    /// Brings a piece of the section into the buffer, verified, with those behind it that lie there in the file, too.
    [[nodiscard]] status fetch(const saved_section& which, std::uint32_t p) {
        constexpr std::uint64_t most = 512U << 10; // at once
        if (cached_ <= p && p < cached_end_) return {};
        cached_ = cached_end_ = 0;
        const std::uint64_t first = table_.pieces[p].block;
        std::uint64_t blocks = 0;
        std::uint32_t end = p;
        for (; end < which.first_piece + which.pieces && table_.pieces[end].block == first + blocks; ++end) {
            const std::uint64_t more = blocks_of(table_.pieces[end].bytes, now_.page_bytes);
            if (end > p && (blocks + more) * now_.page_bytes > most) break;
            blocks += more;
        }
        pieces_.resize(std::max<std::size_t>(pieces_.size(), blocks * now_.page_bytes));
        if (auto s = read_at(first * now_.page_bytes, std::span(pieces_).first(blocks * now_.page_bytes)); !s)
            return s;
        cached_ = p;
        for (std::uint32_t i = p; i < end; ++i) {
            const saved_piece& piece = table_.pieces[i];
            const saved_owner owner{which.kind, which.index, piece.block, piece.generation};
            if (sum(owner, cached(i)) == piece.checksum) continue;
            cached_ = 0;
            return damaged(owner);
        }
        cached_end_ = end;
        return {};
    }
    /// A piece in the buffer, with its padding.
    [[nodiscard]] std::span<const std::byte> cached(std::uint32_t p) const noexcept {
        const saved_piece& piece = table_.pieces[p];
        return std::span(pieces_).subspan(std::size_t{piece.block - table_.pieces[cached_].block} *
                                              now_.page_bytes,
                                          blocks_of(piece.bytes, now_.page_bytes) * now_.page_bytes);
    }
    [[nodiscard]] status read_pages(std::span<const block_ref> refs, std::span<std::byte> into) {
        const std::size_t page = now_.page_bytes;
        while (!refs.empty()) { // runs of neighbours
            std::size_t n = 1;
            while (n < refs.size() && refs[n].block == refs[0].block + n) ++n;
            if (refs[0].block < 2) return fail(errc::invalid_argument, "block %u is no page", refs[0].block);
            if (auto s = read_at(std::uint64_t{refs[0].block} * page, into.first(n * page)); !s) return s;
            for (std::size_t i = 0; i < n; ++i) {
                const saved_owner owner{section_kind::page_image, 0, refs[i].block, refs[i].generation};
                if (sum(owner, into.subspan(i * page, page)) != refs[i].checksum) return damaged(owner);
            }
            refs = refs.subspan(n);
            into = into.subspan(n * page);
        }
        return {};
    }
    [[nodiscard]] result<std::vector<std::byte>> whole(section_kind kind) {
        const saved_section* which = find_section(table_.sections, kind);
        if (which == nullptr) return fail(errc::absent, "it has no %s", name_of(kind));
        std::vector<std::byte> bytes(which->bytes);
        if (auto s = get(*which, 0, bytes); !s) return s;
        return bytes;
    }

    // ------------------------------------------------------------------------------------------------ writing

    /// Before the first save to a file that was opened: it is ours, the blocks in use are known, and the superblock that was
    /// read and the name are on the disk. A publish() that failed may have left them in memory only; then a crash would bring
    /// the older superblock back, whose blocks are written over next.
    [[nodiscard]] status settle() {
        if (!writable_) return fail(errc::file_refused, "it may only be read; save to another file");
        if (auto s =
                lock(file_.fd, true, "others read it; wait until they close it, or save to another file");
            !s)
            return s;
        if (!names(target_, file_.fd))
            return fail(errc::file_refused, "it was replaced or removed; open it again");
        live_.clear();
        mark(live_, 0, 2);
        mark(live_, now_.root_block, blocks_of(now_.root_bytes, now_.page_bytes));
        for (const saved_piece& p : table_.pieces) mark(live_, p.block, blocks_of(p.bytes, now_.page_bytes));
        for (const saved_section& s : table_.sections)
            if (s.kind == section_kind::pages)
                if (auto read = mark_pages(s); !read) return read;
        if (auto s = write_superblock(now_); !s) return s;
        if (const int why = file_.ops.sync(file_.fd); why < 0) return failure("bringing it to the disk", why);
        if (const int why = file_.ops.sync_folder(target_); why < 0)
            return failure("bringing its folder to the disk", why);
        settled_ = true;
        return {};
    }
    [[nodiscard]] status mark_pages(const saved_section& which) {
        block_ref refs[256];
        for (std::uint64_t at = 0; at < which.bytes; at += sizeof refs) {
            const std::size_t bytes = std::min<std::uint64_t>(sizeof refs, which.bytes - at);
            if (auto s = get(which, at, std::as_writable_bytes(std::span(refs)).first(bytes)); !s) return s;
            for (const block_ref& ref : std::span(refs).first(bytes / sizeof(block_ref)))
                if (ref.block >= now_.blocks)
                    return damaged({which.kind, which.index, ref.block, now_.generation});
                else
                    mark(live_, ref.block, 1);
        }
        return {};
    }
    /// Pages that are named stay, or were just written.
    [[nodiscard]] status keep(std::span<const std::byte> bytes) {
        if (bytes.size() % sizeof(block_ref) != 0)
            return fail(errc::invalid_argument, "%zu bytes are no whole references", bytes.size());
        for (; !bytes.empty(); bytes = bytes.subspan(sizeof(block_ref))) {
            block_ref ref;
            std::memcpy(&ref, bytes.data(), sizeof ref);
            if (ref.block == 0) continue;
            const bool is_new = ref.generation == next_generation();
            const auto& where = is_new ? next_ : live_;
            if (ref.generation > next_generation() || ref.block >= where.size() || !where[ref.block])
                return fail(errc::invalid_argument, "block %u of generation %u is no page of it", ref.block,
                            ref.generation);
            if (is_new) continue;
            if (next_.size() <= ref.block) next_.resize(ref.block + std::size_t{1});
            next_[ref.block] = true;
        }
        return {};
    }
    [[nodiscard]] status append(section_kind kind, std::uint32_t index, std::span<const std::byte> bytes) {
        auto& all = next_table_.sections;
        if (all.empty() || all.back().kind != kind || all.back().index != index) {
            if (auto s = flush(); !s) return s;
            if (find_section(all, kind, index) != nullptr)
                return fail(errc::invalid_argument, "%s %u is complete already", name_of(kind), index);
            all.push_back({kind, index, 0, static_cast<std::uint32_t>(next_table_.pieces.size()), 0});
            const saved_section* was = find_section(table_.sections, kind, index);
            before_ =
                was == nullptr
                    ? std::span<const saved_piece>()
                    : std::span<const saved_piece>(table_.pieces).subspan(was->first_piece, was->pieces);
            changed_ = 0;
        }
        const std::size_t most = most_piece_bytes(now_.page_bytes);
        if (bytes.size() >=
            most) // it begins a piece, so that it is cut as in other generations, whatever precedes it
            if (auto s = flush(); !s) return s;
        while (!bytes.empty()) {
            const std::size_t n = std::min(bytes.size(), most - filled_);
            buffer_.resize(
                std::max(buffer_.size(), blocks_of(filled_ + n, now_.page_bytes) * now_.page_bytes));
            std::memcpy(buffer_.data() + filled_, bytes.data(), n);
            filled_ += n;
            bytes = bytes.subspan(n);
            all.back().bytes += n;
            if (filled_ == most)
                if (auto s = flush(); !s) return s;
        }
        return {};
    }
    /// The first piece of the section in the published generation with which `padded` begins, behind those that were found
    /// before and not far from where it would be if nothing had moved; or null. A checksum of 64 bits says that they are equal. bytes: without the padding.
    [[nodiscard]] const saved_piece* find_before(const saved_section& of, std::span<const std::byte> padded,
                                                 std::size_t bytes) {
        constexpr std::size_t looked_at = 64; // around the one that would be there if all have their places
        const std::size_t first = std::min(before_.size(), changed_ - std::min(changed_, looked_at / 2));
        std::array<std::optional<std::uint64_t>, saved_piece_bytes / 4096>
            content{}; // of so many blocks and one
        for (const saved_piece& p : before_.subspan(first, std::min(looked_at, before_.size() - first))) {
            const std::size_t own = blocks_of(p.bytes, now_.page_bytes) * now_.page_bytes;
            if (p.bytes != bytes && (p.bytes > bytes || p.bytes != own)) continue;
            auto& sum = content[own / now_.page_bytes - 1];
            if (!sum) sum = simd::page_checksum64(padded.data(), own);
            if (p.checksum != saved_checksum(now_.file_id, {of.kind, of.index, p.block, p.generation}, *sum))
                continue;
            before_ = before_.subspan(static_cast<std::size_t>(&p - before_.data()) + 1);
            changed_ = 0;
            return &p;
        }
        return nullptr;
    }
    /// What the buffer has of the last section becomes pieces: those that are there already, and one for each run of free
    /// blocks.
    [[nodiscard]] status flush() {
        const std::size_t page = now_.page_bytes, blocks = blocks_of(filled_, now_.page_bytes);
        if (blocks != 0) std::memset(buffer_.data() + filled_, 0, blocks * page - filled_);
        for (std::size_t at = 0; at < blocks;) {
            saved_section& of = next_table_.sections.back();
            const std::size_t left = filled_ - at * page;
            auto part = std::span<const std::byte>(buffer_).subspan(at * page, (blocks - at) * page);
            if (const saved_piece* there = find_before(of, part, left)) {
                const std::uint64_t n = blocks_of(there->bytes, now_.page_bytes);
                mark(next_, there->block, n);
                next_table_.pieces.push_back(*there);
                at += n;
            } else {
                if (at == 0) ++changed_;
                const run to = allocate_piece(blocks - at);
                part = part.first(to.blocks * page);
                if (auto s = write(to, part); !s) return s;
                next_table_.pieces.push_back(
                    {to.first, static_cast<std::uint32_t>(std::min(part.size(), left)), next_generation(),
                     sum({of.kind, of.index, to.first, next_generation()}, part)});
                at += to.blocks;
            }
            ++of.pieces;
        }
        filled_ = 0;
        return {};
    }
    [[nodiscard]] status complete(const saved_root& root) {
        std::string text;
        for (const identity_field& f : root.identity) {
            if (f.name.empty() || f.name.find('\0') != f.name.npos || f.value.find('\0') != f.value.npos)
                return fail(errc::invalid_argument, "a field of the identity has no name, or a zero byte");
            text.append(f.name).push_back('\0');
            text.append(f.value).push_back('\0');
        }
        if (auto s = append(section_kind::identity, 0, std::as_bytes(std::span(text))); !s) return s;
        if (auto s = append(section_kind::note, 0, root.note); !s) return s;
        if (auto s = flush(); !s) return s;
        std::uint64_t bytes = 0;
        const auto table = root_bytes(next_table_, now_.page_bytes, bytes);
        const std::uint64_t blocks = table.size() / now_.page_bytes;
        const run to = next_free(blocks, blocks);
        if (auto s = write(to, table); !s) return s;
        pending_ = {.file_id = now_.file_id,
                    .generation = next_generation(),
                    .tokens = root.tokens,
                    .model = root.model,
                    .blocks =
                        static_cast<std::uint32_t>(next_.size()), // which ends with the last block in use
                    .root_block = to.first,
                    .root_bytes = bytes,
                    .root_checksum = sum({section_kind::root, 0, to.first, next_generation()}, table),
                    .page_bytes = now_.page_bytes};
        return {};
    }
    void forget_next() noexcept {
        next_table_ = {};
        next_.clear();
        before_ = {};
        filled_ = 0;
        written_next_ = 0;
    }
    [[nodiscard]] static save_facts facts_of(const saved_superblock& s, std::uint64_t written,
                                             bool damaged) noexcept {
        return {.file_id = s.file_id,
                .generation = s.generation,
                .digest = s.root_checksum,
                .tokens = s.tokens,
                .model = s.model,
                .bytes = std::uint64_t{s.blocks} * s.page_bytes,
                .written_bytes = written,
                .page_bytes = s.page_bytes,
                .damaged = damaged};
    }

    std::string path_, target_; ///< as it was named, and what that leads to
    detail::open_file<Ops> file_, replaced_;
    bool writable_ = true;
    saved_superblock now_{}; ///< published
    saved_table table_;
    std::uint64_t written_ = 0;
    bool damaged_ = false;
    std::vector<std::byte> pieces_; ///< [cached_, cached_end_), the last that were read
    std::uint32_t cached_ = 0, cached_end_ = 0;
    struct {
        std::uint32_t piece = 0;
        std::uint64_t begins = 0; ///< in its section
    } last_;                      ///< where get() was, since sections are read from front to back
    // The generation that is being written, or waits for publish().
    status failed_;
    bool writing_ = false, settled_ = false, broken_ = false;
    saved_superblock pending_{};
    saved_table next_table_;
    std::vector<bool> live_, next_; ///< blocks of the published generation (once settled), and of this one
    std::uint64_t cursor_ = 2, piece_cursor_ = 2, page_cursor_ = 2, written_next_ = 0;
    std::span<const saved_piece> before_; ///< of `table_`: what the section may still name again
    std::size_t changed_ = 0;             ///< pieces of the section since one was named again
    std::vector<std::byte> buffer_;
    std::size_t filled_ = 0;
};

static_assert(save_target<saved_file> && save_source<saved_file>);

}} // namespace kvtl::v0
