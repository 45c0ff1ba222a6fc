// A saved file gives back what was put, generation after generation, and says in one line why it cannot.
// SPDX-License-Identifier: MIT
#include <kvtl/save/saved_file.hpp>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <support/saved_model.hpp>
#include <support/scratch_folder.hpp>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>

namespace save_saved_file_test {

using namespace kvtl;
using namespace kvtl_test;

namespace {

saved_file created(const std::string& path, std::uint32_t page_bytes = 4096) {
    auto file = saved_file::create(path, page_bytes);
    REQUIRE_MESSAGE(file.ok(), (file.ok() ? "" : file.error().message));
    return *std::move(file);
}
saved_file opened(const std::string& path) {
    auto file = saved_file::open(path);
    REQUIRE_MESSAGE(file.ok(), (file.ok() ? "" : file.error().message));
    return *std::move(file);
}
void check_ok(const status& s) {
    REQUIRE_MESSAGE(s.ok(), s.what());
}

void check_reads(saved_file& file, const saved_model& m) {
    bool differs = false;
    check_ok(read_model(file, m, differs));
    REQUIRE_FALSE(differs);
}

/// A file with one small generation.
saved_model make(const std::string& path, std::uint64_t seed = 1) {
    std::mt19937_64 random(seed);
    const auto m = saved_model::next({}, random, 9000, 2, 9);
    auto file = created(path);
    check_ok(write_model(file, m, {}, random));
    check_ok(file.publish());
    return m;
}

/// The error of opening `path` says its name, `text` and nothing about more than one line.
template <class Result>
void check_refused(const Result& tried, errc code, const std::string& path, const char* text) {
    REQUIRE_FALSE(tried.ok());
    const error& e = tried.error();
    CAPTURE(e.message);
    CHECK(e.code == code);
    CHECK(e.message.find(path) != std::string::npos);
    CHECK(e.message.find(text) != std::string::npos);
    CHECK(e.message.find('\n') == std::string::npos);
}

std::string content(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}
void overwrite(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

} // namespace

TEST_CASE("random sections and pages come back, in all sizes of pages") {
    const scratch_folder folder;
    std::mt19937_64 random(5);
    for (const std::uint32_t page : {4096U, 20480U, 65536U, kvtl::most_page_bytes}) {
        const std::string path = folder.file("seq" + std::to_string(page));
        const auto m = saved_model::next({}, random, 1500000, 3, 40); // sections of up to three pieces
        auto file = created(path, page);
        CHECK(file.facts().generation == 0);
        CHECK(file.facts().page_bytes == page);
        check_ok(write_model(file, m, {}, random));
        CHECK_FALSE(std::filesystem::exists(path));
        check_ok(file.publish());
        CHECK_FALSE(std::filesystem::exists(path + ".part"));
        check_reads(file, m); // by who wrote it, and by another
        const auto facts = file.facts();
        file = created(folder.file("other"));
        auto again = opened(path);
        check_reads(again, m);
        CHECK(again.facts().generation == 1);
        CHECK(again.facts().file_id == facts.file_id);
        CHECK(again.facts().bytes == std::filesystem::file_size(path));
        CHECK_FALSE(again.facts().damaged);
    }
}

TEST_CASE("any part of a section is read, and none that it has not") {
    const scratch_folder folder;
    const std::string path = folder.file("seq");
    const auto bytes = saved_model::bytes_of(3, 1300000);
    auto file = created(path);
    check_ok(file.put(section_kind::lane, 4, std::span(bytes).first(600001)));
    std::vector<block_ref> refs(1);
    check_ok(file.put_pages(std::span(bytes).first(4096), refs)); // pages may come in between
    check_ok(file.put(section_kind::lane, 4, std::span(bytes).subspan(600001)));
    REQUIRE(file.commit({}).ok());
    check_ok(file.publish());
    const saved_section* lane = find_section(file.sections(), section_kind::lane, 4);
    REQUIRE(lane != nullptr);
    CHECK(find_section(file.sections(), section_kind::lane, 3) == nullptr);
    std::mt19937_64 random(8);
    for (int i = 0; i < 300; ++i) {
        const std::size_t at = random() % bytes.size(), n = random() % (bytes.size() - at + 1);
        std::vector<std::byte> into(n);
        check_ok(file.get(*lane, at, into));
        REQUIRE(std::ranges::equal(into, std::span(bytes).subspan(at, n)));
    }
    std::vector<std::byte> into(100, std::byte{1});
    CHECK(file.get(*lane, bytes.size() - 99, into).code() == errc::out_of_range);
    CHECK(into == std::vector<std::byte>(100));
    CHECK(file.get(*lane, bytes.size() + 1, {}).code() == errc::out_of_range);
    saved_section forged = *lane;
    forged.bytes += 1000;
    CHECK(file.get(forged, bytes.size(), into).code() == errc::out_of_range);
    forged.index = 5;                     // of another save, say
    file = created(folder.file("other")); // closes it, and forgets the piece that it read last
    CHECK(opened(path).get(forged, 0, into).code() == errc::corrupt);
}

TEST_CASE("of a section that was saved before only pieces that differ are written") {
    const scratch_folder folder;
    const std::string path = folder.file("seq");
    auto head = saved_model::bytes_of(1, 100), first = saved_model::bytes_of(2, 300'000),
         second = saved_model::bytes_of(3, 200'000);
    const auto same = saved_model::bytes_of(4, 1'000'000);
    auto file = created(path);
    const auto save = [&] {
        check_ok(file.put(section_kind::lane, 0, same));
        for (const auto& part : {head, first, second}) check_ok(file.put(section_kind::lane, 1, part));
        const auto facts = file.commit({.tokens = 1});
        REQUIRE(facts.ok());
        check_ok(file.publish());
        const saved_section* lane = find_section(file.sections(), section_kind::lane, 1);
        std::vector<std::byte> all(head), into(head.size() + first.size() + second.size());
        all.insert(all.end(), first.begin(), first.end());
        all.insert(all.end(), second.begin(), second.end());
        check_ok(file.get(*lane, 0, into));
        CHECK(into == all);
        into.resize(same.size());
        check_ok(file.get(*find_section(file.sections(), section_kind::lane, 0), 0, into));
        CHECK(into == same);
        return facts->written_bytes;
    };
    constexpr std::uint64_t root = 4096, piece = saved_piece_bytes, block = 4096;
    CHECK(save() > 1'500'000);
    CHECK(save() == root);
    file = created(folder.file("other")); // closes it
    file = opened(path);
    CHECK(save() == root);
    const auto longer = saved_model::bytes_of(5, 5000);
    head.insert(head.end(), longer.begin(), longer.begin() + 3); // what is behind it moves in the section
    CHECK(save() == root + block);
    first.insert(first.end(), longer.begin(), longer.end());
    CHECK(save() <= root + 2 * piece);
    second[100'000] ^= std::byte{1};
    CHECK(save() == root + piece);
    first.resize(150'000);
    CHECK(save() <= root + piece);
    std::swap(first, second); // other pieces than before in their order
    CHECK(save() > 150'000);
    CHECK(save() == root);
    check_ok(file.put(section_kind::lane, 0, same)); // a generation that is given up
    check_ok(file.put(section_kind::lane, 1, first));
    file.abandon();
    CHECK(save() == root);
}

TEST_CASE("pieces that were divided by what was free are found again, too") {
    const scratch_folder folder;
    auto file = created(folder.file("seq"));
    const auto same = saved_model::bytes_of(4, 100'000);
    std::vector<block_ref> refs(60);
    const auto images = saved_model::bytes_of(6, 60 * 4096);
    const auto commit = [&] {
        const auto facts = file.commit({.tokens = 1});
        REQUIRE(facts.ok());
        check_ok(file.publish());
        return facts->written_bytes;
    };
    check_ok(file.put_pages(images, refs));
    check_ok(file.put(section_kind::pages, 0, std::as_bytes(std::span(refs))));
    commit();
    for (std::size_t i = 0; i < refs.size(); i += 2) refs[i] = {}; // every other block is free
    check_ok(file.put(section_kind::pages, 0, std::as_bytes(std::span(refs))));
    commit();
    for (int i = 0; i < 3; ++i) {
        check_ok(file.put(section_kind::pages, 0, std::as_bytes(std::span(refs))));
        check_ok(file.put(section_kind::lane, 0, same));
        const std::uint64_t written = commit();
        CHECK((i == 0 ? written > 100'000 : written == 4096));
        std::vector<std::byte> into(same.size());
        check_ok(file.get(*find_section(file.sections(), section_kind::lane, 0), 0, into));
        CHECK(into == same);
    }
}

TEST_CASE("what lies behind a long part that has changed is found again") {
    const scratch_folder folder;
    auto file = created(folder.file("seq"));
    auto bytes = saved_model::bytes_of(4, 300 * std::size_t{saved_piece_bytes});
    const auto save = [&] {
        check_ok(file.put(section_kind::lane, 0, bytes));
        const auto facts = file.commit({.tokens = 1});
        REQUIRE(facts.ok());
        check_ok(file.publish());
        return facts->written_bytes;
    };
    save();
    const std::size_t changed = 200 * std::size_t{saved_piece_bytes}; // more pieces than are looked at
    for (std::size_t i = 0; i < changed; i += 512) bytes[i] ^= std::byte{1};
    const std::uint64_t written = save();
    CHECK(written >= changed);
    CHECK(written < changed + 8 * 4096); // and the root
    std::vector<std::byte> into(bytes.size());
    for (std::size_t at = 0; at < into.size(); at += 100'000) // from front to back
        check_ok(file.get(*find_section(file.sections(), section_kind::lane, 0), at,
                          std::span(into).subspan(at, std::min<std::size_t>(100'000, into.size() - at))));
    CHECK(into == bytes);
}

TEST_CASE("damage of a piece that is kept stays, and is found when it is read") {
    const scratch_folder folder;
    const std::string path = folder.file("seq");
    auto file = created(path);
    const auto bytes = saved_model::bytes_of(4, 10 * std::size_t{saved_piece_bytes});
    const auto save = [&] {
        check_ok(file.put(section_kind::lane, 0, bytes));
        const auto facts = file.commit({.tokens = 1});
        REQUIRE(facts.ok());
        check_ok(file.publish());
        return facts->written_bytes;
    };
    save();
    const std::string whole = content(path);
    const std::size_t at = whole.find(std::string(reinterpret_cast<const char*>(&bytes[70'000]), 64));
    REQUIRE(at != std::string::npos);
    std::fstream disk(path, std::ios::binary | std::ios::in | std::ios::out);
    disk.seekp(static_cast<std::streamoff>(at)).put(static_cast<char>(~whole[at]));
    disk.close();
    CHECK(save() < saved_piece_bytes); // the root
    auto again = [&] {
        file = created(folder.file("other")); // closes it
        return opened(path);
    }();
    std::vector<std::byte> into(bytes.size());
    const auto s = again.get(*find_section(again.sections(), section_kind::lane, 0), 0, into);
    CHECK(s.code() == errc::corrupt);
    CHECK(into == std::vector<std::byte>(bytes.size()));
}

TEST_CASE("calls that make no sense are refused, and abandon() takes them back") {
    const scratch_folder folder;
    auto file = created(folder.file("seq"));
    const std::vector<std::byte> bytes(4096);
    std::vector<block_ref> refs(1);
    CHECK(file.publish().code() == errc::invalid_argument);
    CHECK(file.put(section_kind::note, 0, bytes).code() == errc::invalid_argument);
    CHECK(file.put(section_kind::page_image, 0, bytes).code() == errc::invalid_argument);
    CHECK(file.put_pages(std::span(bytes).first(4095), refs).code() == errc::invalid_argument);
    check_ok(file.put(section_kind::lane, 0, bytes));
    check_ok(file.put(section_kind::lane, 1, bytes));
    CHECK(file.put(section_kind::lane, 0, bytes).code() == errc::invalid_argument); // it was complete
    CHECK_FALSE(file.put(section_kind::lane, 0, bytes).ok());
    CHECK_FALSE(file.commit({}).ok());
    CHECK_FALSE(file.publish().ok());
    file.abandon();
    refs[0] = {3, 0, 0};
    CHECK(file.put(section_kind::pages, 0, std::as_bytes(std::span(refs))).code() == errc::invalid_argument);
    file.abandon();
    refs[0] = {3, 1, 0};
    CHECK(file.put(section_kind::pages, 0, std::as_bytes(std::span(refs))).code() == errc::invalid_argument);
    file.abandon();
    CHECK(file.put(section_kind::pages, 0, std::span(bytes).first(15)).code() == errc::invalid_argument);
    file.abandon();
    const identity_field bad[] = {{std::string("a\0b", 3), "c"}};
    CHECK_FALSE(file.commit({.identity = bad}).ok());
    file.abandon();
    check_ok(file.put(section_kind::lane, 0, bytes));
    REQUIRE(file.commit({.tokens = 3}).ok());
    check_ok(file.publish());
    CHECK(file.sections().size() == 3);
    CHECK(file.facts().tokens == 3);
    refs[0] = {};
    CHECK(file.get_pages(refs, std::as_writable_bytes(std::span(refs))).code() ==
          errc::invalid_argument); // no page long
    CHECK(saved_file::create(folder.file("odd"), 5000).error().code == errc::invalid_argument);
    CHECK(saved_file::create("").error().code == errc::invalid_argument);
}

TEST_CASE("most pieces stay whole where pages leave short holes") {
    constexpr std::size_t pages = 400, piece = 16U << 10, pieces = 12, rounds = 40;
    const scratch_folder folder;
    auto file = created(folder.file("seq"));
    std::vector<block_ref> refs(pages);
    std::mt19937_64 random(12);
    std::size_t divided = 0; // runs beside one for each piece; first fit: 232
    for (std::uint64_t round = 0; round < rounds; ++round) {
        const auto images = saved_model::bytes_of(2 * round, pages * 4096);
        for (std::size_t i = 0; i < pages; ++i)
            if (refs[i].block == 0 || random() % 8 == 0)
                check_ok(
                    file.put_pages(std::span(images).subspan(i * 4096, 4096), std::span(refs).subspan(i, 1)));
        check_ok(file.put(section_kind::pages, 0, std::as_bytes(std::span(refs))));
        check_ok(file.put(section_kind::lane, 0, saved_model::bytes_of(2 * round + 1, pieces * piece)));
        REQUIRE(file.commit({.tokens = 1}).ok());
        check_ok(file.publish());
        divided += find_section(file.sections(), section_kind::lane, 0)->pieces - pieces;
        CHECK(file.facts().bytes < (pages + 4 * pieces) * 4096 * 3 / 2);
    }
    CHECK(divided < rounds * 4);
}

TEST_CASE("a thousand generations, each there after it was published, in a file of two") {
    const scratch_folder folder;
    const std::string path = folder.file("seq");
    std::mt19937_64 random(11);
    saved_model now;
    std::uint64_t most_in_use = 0, generation = 0;
    auto file = created(path);
    for (int i = 0; i < 1000; ++i) {
        const auto next = saved_model::next(now, random, 30000, 3, 24);
        if (i % 50 == 20) { // a save that comes to nothing
            check_ok(write_model(file, saved_model::next(now, random, 30000, 3, 24), now, random));
            file.abandon();
        }
        check_ok(write_model(file, next, now, random));
        now = next;
        if (i % 9 == 5) { // a generation that waits is published by the next one
            const auto more = saved_model::next(now, random, 30000, 3, 24);
            check_ok(file.put(section_kind::lane, 9, {}));
            CHECK(file.facts().generation == ++generation);
            file.abandon();
            check_ok(write_model(file, more, now, random));
            now = more;
        }
        check_ok(file.publish());
        CHECK(file.facts().generation == ++generation);
        check_reads(file, now);
        if (i % 7 == 3) {
            file = created(folder.file("elsewhere")); // closes it
            file = opened(path);
            REQUIRE(file.facts().generation == generation);
            check_reads(file, now);
        }
        std::uint64_t in_use = 6; // superblocks, identity, note, root: less than
        for (const auto& [name, what] : now.sections) in_use += what.second / 4096 + 1;
        for (const auto& lane : now.lanes) in_use += lane.size() + 1;
        most_in_use = std::max(most_in_use, in_use);
        REQUIRE(std::filesystem::file_size(path) <= (2 * most_in_use + 4) * 4096);
    }
    CHECK(file.facts().written_bytes < file.facts().bytes);
}

TEST_CASE("a save again writes what has changed") {
    const scratch_folder folder;
    auto file = created(folder.file("seq"));
    const auto bytes = saved_model::bytes_of(1, 4096 * 500);
    std::vector<block_ref> refs(500);
    check_ok(file.put_pages(bytes, refs));
    check_ok(file.put(section_kind::pages, 0, std::as_bytes(std::span(refs))));
    REQUIRE(file.commit({}).ok());
    check_ok(file.publish());
    const auto kept = refs;
    check_ok(file.put_pages(std::span(bytes).first(4096), std::span(refs).subspan(77, 1)));
    check_ok(file.put(section_kind::pages, 0, std::as_bytes(std::span(refs))));
    const auto facts = file.commit({});
    REQUIRE(facts.ok());
    CHECK(facts->generation == 2);
    CHECK(facts->written_bytes == 4096 * (1 + 2 + 1)); // the page, the list, the root
    CHECK(file.facts().generation == 1);
    check_ok(file.publish());
    std::vector<std::byte> found(4096 * 500);
    check_ok(file.get_pages(refs, found));
    CHECK(std::ranges::equal(std::span(found).first(4096 * 77), std::span(bytes).first(4096 * 77)));
    CHECK(std::ranges::equal(std::span(found).subspan(4096 * 77, 4096), std::span(bytes).first(4096)));
    CHECK(refs[77].block != kept[77].block);
}

TEST_CASE("the file is its owner's, whatever the umask") {
    const scratch_folder folder;
    for (const ::mode_t mask : {::mode_t{0}, ::mode_t{0777}}) {
        const std::string path = folder.file("seq" + std::to_string(mask));
        const ::mode_t before = ::umask(mask);
        auto file = saved_file::create(path);
        ::umask(before);
        REQUIRE(file.ok());
        REQUIRE(file->commit({}).ok());
        check_ok(file->publish());
        struct ::stat found {};
        REQUIRE(::stat(path.c_str(), &found) == 0);
        CHECK((found.st_mode & 07777) == 0600);
    }
}

TEST_CASE("a file that is locked and no save, such as that of an open cache, is not waited for") {
    const scratch_folder folder;
    const std::string path = folder.file("cache");
    std::ofstream(path) << "the file of a cache";
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    REQUIRE(fd >= 0);
    struct ::flock all {};
    all.l_type = F_WRLCK;
    REQUIRE(::fcntl(fd, F_OFD_SETLK, &all) == 0);
    check_refused(saved_file::create(path), errc::file_refused, path, "not saved by kvtl; name another");
    check_refused(saved_file::open(path), errc::file_refused, path, "not saved by kvtl; name another");
    ::close(fd);
}

TEST_CASE("who reads shares, who saves does not") {
    const scratch_folder folder;
    const std::string path = folder.file("seq");
    const auto m = make(path);
    {
        auto one = opened(path), two = opened(path);
        check_reads(two, m);
        const status s = one.put(section_kind::lane, 0, {});
        CHECK(s.code() == errc::file_refused);
        CHECK(std::string(s.what()).find("others read it") != std::string::npos);
        check_refused(saved_file::create(path), errc::file_refused, path, "open elsewhere");
        check_reads(one, m);
    }
    {
        auto one = opened(path);
        check_ok(one.put(section_kind::lane, 0, {}));
        check_refused(saved_file::open(path), errc::file_refused, path, "open for saving elsewhere");
        check_refused(saved_file::create(path), errc::file_refused, path, "open elsewhere");
    }
    {
        auto one = created(path);
        check_refused(saved_file::create(path), errc::file_refused, path, "open elsewhere");
        auto other = created(folder.file("new"));
        check_refused(saved_file::create(folder.file("new")), errc::file_refused, folder.file("new"),
                      "elsewhere");
    }
    CHECK_FALSE(std::filesystem::exists(path + ".part")); // drafts go with their object
    CHECK_FALSE(std::filesystem::exists(folder.file("new")));
    auto one = opened(path);
    check_reads(one, m);
    std::filesystem::remove(path);
    CHECK(one.put(section_kind::lane, 0, {}).code() == errc::file_refused);
}

TEST_CASE("a new file replaces a saved one when it is published, and nothing else") {
    const scratch_folder folder;
    const std::string path = folder.file("seq");
    const auto old = make(path, 1);
    std::mt19937_64 random(3);
    const auto m = saved_model::next({}, random, 5000, 1, 3);
    {
        auto file = created(path);
        check_ok(write_model(file, m, {}, random));
    } // not published
    auto file = opened(path);
    check_reads(file, old);
    file = created(folder.file("elsewhere"));
    file = created(path);
    check_ok(write_model(file, m, {}, random));
    check_ok(file.publish());
    check_reads(file, m);
    file = created(folder.file("third"));
    REQUIRE(file.commit({}).ok());
    overwrite(folder.file("third"), "mine");
    CHECK(file.publish().code() == errc::file_refused);
    CHECK(content(folder.file("third")) == "mine");

    overwrite(folder.file("crashed.part"),
              std::string(10000, '\0')); // left by a crash: the draft is taken over
    file = created(folder.file("crashed"));
    REQUIRE(file.commit({}).ok());
    check_ok(file.publish());
    overwrite(folder.file("foreign.part"), "a letter");
    check_refused(saved_file::create(folder.file("foreign")), errc::file_refused, folder.file("foreign"),
                  "draft");
    CHECK(content(folder.file("foreign.part")) == "a letter");
}

TEST_CASE("what is no saved file is refused in a line and left alone") {
    const scratch_folder folder;
    const std::string path = folder.file("seq");
    check_refused(saved_file::open(path), errc::absent, path, "no such file");
    check_refused(saved_file::open(path + "/deeper"), errc::absent, path, "no such file");
    check_refused(saved_file::create(path + "/deeper"), errc::absent, path, "make the folder first");
    std::filesystem::create_symlink(path, folder.file("link"));
    check_refused(saved_file::open(folder.file("link")), errc::absent, folder.file("link"),
                  "link to nothing");
    check_refused(saved_file::create(folder.file("link")), errc::absent, folder.file("link"),
                  "link to nothing");
    REQUIRE(::mkfifo(folder.file("fifo").c_str(), 0600) == 0);
    for (const auto& [name, what] : {std::pair{folder.path(), "a folder"},
                                     {std::string("/dev/null"), "a character device"},
                                     {folder.file("fifo"), "a FIFO"}}) {
        check_refused(saved_file::open(name), errc::file_refused, name, what);
        check_refused(saved_file::create(name), errc::file_refused, name, what);
    }
    overwrite(path, "");
    check_refused(saved_file::open(path), errc::file_refused, path, "it is empty");
    overwrite(path, "a letter to somebody");
    check_refused(saved_file::open(path), errc::file_refused, path, "no sequence of kvtl");
    check_refused(saved_file::create(path), errc::file_refused, path, "not saved by kvtl");
    CHECK(content(path) == "a letter to somebody");

    const auto m = make(folder.file("good"));
    const std::string good = content(folder.file("good"));
    const auto check_changed = [&](std::size_t at, const std::string& bytes, errc code, const char* text) {
        std::string bad = good;
        for (const std::size_t slot : {0U, 4096U}) bad.replace(slot + at, bytes.size(), bytes);
        overwrite(path, bad);
        check_refused(saved_file::open(path), code, path, text);
    };
    check_changed(0, "somebody", errc::file_refused, "no sequence of kvtl");
    check_changed(8, {"\4\3\2\1", 4}, errc::file_refused, "byte order");
    check_changed(12, {"\1\0\0\0", 4}, errc::file_refused, "format 1, and this kvtl reads format 2");
    check_changed(40, "x", errc::corrupt, "superblocks are damaged");
    {
        std::string bad = good; // superblocks that are whole, of pages that nobody has
        for (const std::size_t slot : {0U, 1U}) {
            saved_superblock s;
            std::memcpy(&s, bad.data() + slot * 4096, sizeof s);
            s.page_bytes = 12000;
            s.checksum = superblock_checksum(s);
            std::memcpy(bad.data() + slot * 4096, &s, sizeof s);
        }
        overwrite(path, bad);
        check_refused(saved_file::open(path), errc::file_refused, path, "pages of 12000 bytes");
    }
    for (const std::size_t length :
         {std::size_t{100}, std::size_t{4096}, std::size_t{5000}, good.size() - 4096, good.size() - 1}) {
        overwrite(path, good.substr(0, length));
        CAPTURE(length);
        CHECK(saved_file::open(path).error().code == errc::corrupt);
    }
    check_refused(saved_file::open(path), errc::corrupt, path, "cut off");
    overwrite(path, good + std::string(100000, 'x')); // a save that was not published ends like this
    std::filesystem::create_symlink(path, folder.file("to"));
    auto grown = opened(folder.file("to"));
    check_reads(grown, m);
    std::mt19937_64 random(1);
    const auto next = saved_model::next(m, random, 9000, 2, 9);
    check_ok(write_model(grown, next, m, random));
    check_ok(grown.publish());
    check_reads(grown, next);
    CHECK(std::filesystem::file_size(path) <= 3 * good.size());
    CHECK(std::filesystem::is_symlink(folder.file("to")));
}

TEST_CASE("a file that may only be read is read, and a full disk leaves what there was") {
    const scratch_folder folder;
    const std::string path = folder.file("seq");
    const auto m = make(path);
    const std::string closed = folder.file("closed");
    make(closed);
    REQUIRE(::chmod(closed.c_str(), 0) == 0);
    const ::pid_t child = ::fork(); // limits and rights that cannot be taken back
    REQUIRE(child >= 0);
    if (child == 0) {
        const ::rlimit limit{64 << 10, 64 << 10};
        if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(1);
        auto file = saved_file::open(path);
        if (!file) ::_exit(2);
        const std::vector<std::byte> bytes(1 << 20);
        if (file->put(section_kind::lane, 0, bytes).code() != errc::disk_full) ::_exit(3);
        file->abandon();
        bool differs = false;
        if (!read_model(*file, m, differs) || differs) ::_exit(4);
        { const saved_file closing = *std::move(file); } // it is locked
        if (::geteuid() == 0 && (::chmod(folder.path().c_str(), 0755) != 0 ||
                                 ::chmod(path.c_str(), 0444) != 0 || ::setuid(65534) != 0))
            ::_exit(0); // there is nobody who may only read
        if (::geteuid() != 65534) (void)::chmod(path.c_str(), 0444);
        file = saved_file::open(path);
        if (!file) ::_exit(file.error().code == errc::file_refused ? 0 : 5); // the path to it may be closed
        if (file->put(section_kind::lane, 0, {}).code() != errc::file_refused) ::_exit(6);
        if (!read_model(*file, m, differs) || differs) ::_exit(7);
        file = saved_file::open(closed);
        if (file || file.error().code != errc::file_refused) ::_exit(8);
        ::_exit(file.error().message.find("change who may use it") != std::string::npos ? 0 : 9);
    }
    int ended = 0;
    REQUIRE(::waitpid(child, &ended, 0) == child);
    CHECK(WIFEXITED(ended));
    CHECK(WEXITSTATUS(ended) == 0);
    auto file = opened(path);
    check_reads(file, m);
}

} // namespace save_saved_file_test
