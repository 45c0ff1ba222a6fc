// The life of a cache file: what is refused, what is left behind, what is kept.
// SPDX-License-Identifier: MIT
#include <kvtl/io/cache_file.hpp>

#include <contracts/io.hpp>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <fstream>
#include <iterator>
#include <optional>

namespace io_cache_file_test {

using namespace kvtl_test;

namespace {

constexpr std::uint64_t mib = 1 << 20;

/// The error of an open that has to fail.
error refusal(const std::string& path, std::uint64_t max_bytes = mib) {
    auto opened = cache_file::open({.path = path}, plan_of(max_bytes));
    REQUIRE_FALSE(opened.ok());
    CHECK(opened.error().message.find(path) != std::string::npos);
    return opened.error();
}

cache_file open_file(const std::string& path, bool keep = false, const io_plan& plan = plan_of(mib)) {
    auto opened = cache_file::open({.path = path, .keep_file = keep}, plan);
    REQUIRE_MESSAGE(opened.ok(), (opened.ok() ? "" : opened.error().message));
    return *std::move(opened);
}

bool exists(const std::string& path) {
    struct ::stat found {};
    return ::lstat(path.c_str(), &found) == 0;
}

std::string content(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

void write_file(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
}

bool says(const error& e, const char* text) {
    return e.message.find(text) != std::string::npos;
}

/// Runs `work` in a child process, for limits that cannot be taken back. Its exit status.
template <class Work> int in_child(const Work& work) {
    const ::pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) ::_exit(work());
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK_MESSAGE(WIFEXITED(status), "ended by signal ", WTERMSIG(status));
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/// When set, reads fail with it.
int fail_pread_with = 0;

/// When set, fallocate does half of what it is asked to and fails.
int fail_fallocate_with = 0;

} // namespace

// The cache file calls these.
extern "C" ::ssize_t pread(int fd, void* memory, std::size_t bytes, ::off_t offset) {
    errno = fail_pread_with;
    return fail_pread_with != 0 ? -1 : ::syscall(SYS_pread64, fd, memory, bytes, offset);
}
extern "C" int fallocate(int fd, int mode, ::off_t offset, ::off_t bytes) {
    static bool interrupted = false;
    interrupted = !interrupted;
    if (interrupted && mode == 0) { // every other call has to be repeated
        errno = EINTR;
        return -1;
    }
    const ::off_t share = fail_fallocate_with != 0 ? bytes / 2 : bytes;
    if (::syscall(SYS_fallocate, fd, mode, offset, share) != 0) return -1;
    errno = fail_fallocate_with;
    return fail_fallocate_with == 0 ? 0 : -1;
}

TEST_CASE("a new file is direct, starts with a superblock, and is removed on close") {
    const scratch_folder folder;
    const std::string path = folder.file("a.kv");
    {
        cache_file file = open_file(path);
        CHECK(file.direct());
        CHECK((::fcntl(file.fd(), F_GETFL) & O_DIRECT) != 0);
        CHECK((::fcntl(file.fd(), F_GETFD) & FD_CLOEXEC) != 0);
        CHECK(file.size() == file.page());
        const std::string bytes = content(path);
        REQUIRE(bytes.size() == file.page());
        const auto head = parse_superblock(std::as_bytes(std::span(bytes)));
        REQUIRE(head.ok());
        CHECK(head->page == file.page()); // filled in by the device
        cache_file moved = std::move(file);
        CHECK(exists(path));
    }
    CHECK_FALSE(exists(path));
}

TEST_CASE("a file on a file system in memory says so") {
    const scratch_folder folder;
    const std::string path = folder.file("a.kv");
    const cache_file file = open_file(path);
    struct ::statfs found {};
    REQUIRE(::statfs(path.c_str(), &found) == 0);
    constexpr decltype(found.f_type) tmpfs = 0x01021994;
    CHECK(file.memory_backed() == (found.f_type == tmpfs));
    auto shared = cache_file::open({.path = "/dev/shm/kvtl-" + std::to_string(::getpid()), .direct = false},
                                   plan_of(mib));
    if (!shared || ::statfs("/dev/shm", &found) != 0 || found.f_type != tmpfs) return; // none is there
    CHECK(shared->memory_backed());
}

TEST_CASE("a kept file stays, and is taken again") {
    const scratch_folder folder;
    const std::string path = folder.file("a.kv");
    const superblock head = make_superblock({4, 8, 2, 64}, 2, 77);
    auto plan = plan_of(mib);
    plan.superblock = superblock_bytes(head);
    {
        cache_file file = open_file(path, true, plan);
        REQUIRE(file.reserve(0, mib).ok());
    }
    const std::string kept = content(path);
    REQUIRE(kept.size() == mib);
    CHECK(parse_superblock(std::as_bytes(std::span(kept)))->fingerprint == 77);
    {
        cache_file file = open_file(path, true); // no superblock given: the old one stays
        CHECK(file.size() == mib);
        CHECK((::fcntl(file.fd(), F_GETFD) & FD_CLOEXEC) != 0);
        CHECK((::fcntl(file.fd(), F_GETFL) & O_NONBLOCK) == 0);
    }
    CHECK(content(path) == kept);
    const superblock other = make_superblock({4, 8, 2, 64}, 2, 78);
    plan.superblock = superblock_bytes(other);
    { const cache_file file = open_file(path, true, plan); }
    const std::string again = content(path);
    CHECK(parse_superblock(std::as_bytes(std::span(again)))->fingerprint == 78);
    { const cache_file file = open_file(path, false); }
    CHECK_FALSE(exists(path));
}

TEST_CASE("the lock ends with the cache, also when a child still has the descriptor") {
    const scratch_folder folder;
    const std::string path = folder.file("a.kv");
    int go[2];
    REQUIRE(::pipe(go) == 0);
    ::pid_t child = 0;
    {
        const cache_file file = open_file(path, true);
        child = ::fork();
        REQUIRE(child >= 0);
        if (child == 0) { // holds on until the pipe closes
            ::close(go[1]);
            char c = 0;
            ::_exit(static_cast<int>(::read(go[0], &c, 1)));
        }
    }
    CHECK(cache_file::open({.path = path, .keep_file = true}, plan_of(mib)).ok());
    ::close(go[0]);
    ::close(go[1]);
    int status = 0;
    CHECK(::waitpid(child, &status, 0) == child);
}

TEST_CASE("only the owner can read the file, whatever the umask and the mode that it had") {
    const scratch_folder folder;
    const auto mode_of = [](const std::string& path) {
        struct ::stat found {};
        REQUIRE(::stat(path.c_str(), &found) == 0);
        return found.st_mode & 07777;
    };
    for (const ::mode_t mask : {0U, 022U, 077U, 0777U}) {
        const ::mode_t before = ::umask(mask);
        const std::string path = folder.file("a.kv");
        {
            const cache_file file = open_file(path);
            CHECK(mode_of(path) == 0600);
        }
        auto shared = cache_file::open({.path = path, .mode = 0640}, plan_of(mib));
        ::umask(before);
        REQUIRE(shared.ok());
        CHECK(mode_of(path) == 0640);
    }
    for (const char* content : {"empty", "kept"}) {
        const std::string path = folder.file(content);
        if (content == std::string("kept"))
            static_cast<void>(open_file(path, true));
        else
            write_file(path, "");
        REQUIRE(::chmod(path.c_str(), 0666) == 0);
        const cache_file file = open_file(path);
        CHECK(mode_of(path) == 0600);
    }
    const std::string foreign = folder.file("foreign");
    write_file(foreign, "text");
    REQUIRE(::chmod(foreign.c_str(), 0644) == 0);
    static_cast<void>(refusal(foreign));
    CHECK(mode_of(foreign) == 0644);
    for (const ::mode_t mode : {0U, 0400U, 0200U, 0077U, 01600U, 04600U}) {
        const auto refused = cache_file::open({.path = folder.file("b.kv"), .mode = mode}, plan_of(mib));
        REQUIRE_FALSE(refused.ok());
        CHECK(refused.error().code == errc::invalid_argument);
        CHECK(says(refused.error(), "io.mode is"));
        CHECK_FALSE(exists(folder.file("b.kv")));
    }
}

TEST_CASE("a file of another user is refused") {
    if (::geteuid() != 0) return; // only root can make one
    const scratch_folder folder;
    REQUIRE(::chmod(folder.path().c_str(), 0777) == 0);
    const std::string path = folder.file("a.kv");
    static_cast<void>(open_file(path, true));
    for (const ::mode_t mode : {0600U, 0666U}) { // 0666: it could be opened, but not be made private
        REQUIRE(::chmod(path.c_str(), mode) == 0);
        CHECK(in_child([&] {
                  if (::setuid(65534) != 0) return 2;
                  auto opened = cache_file::open({.path = path}, plan_of(mib));
                  return !opened.ok() && opened.error().code == errc::file_refused ? 0 : 1;
              }) == 0);
        CHECK(exists(path));
    }
}

TEST_CASE("an empty file is taken") {
    const scratch_folder folder;
    const std::string path = folder.file("empty");
    write_file(path, "");
    { const cache_file file = open_file(path); }
    CHECK(exists(path)); // it was somebody else's
    CHECK(content(path).empty());
    { const cache_file file = open_file(path, true); }
    CHECK(content(path).size() >= 4096);
    { const cache_file file = open_file(path); }
    CHECK_FALSE(exists(path)); // what a crash may have left behind
}

TEST_CASE("what is not ours is refused by name and stays as it was") {
    const scratch_folder folder;
    SUBCASE("folder") {
        const error e = refusal(folder.path());
        CHECK(e.code == errc::file_refused);
        CHECK(says(e, "a folder"));
        CHECK(exists(folder.path()));
    }
    SUBCASE("character device") {
        const error e = refusal("/dev/null");
        CHECK(e.code == errc::file_refused);
        CHECK(says(e, "a character device"));
        CHECK(exists("/dev/null"));
    }
    SUBCASE("FIFO, without waiting for its other end") {
        const std::string path = folder.file("fifo");
        REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
        const error e = refusal(path);
        CHECK(e.code == errc::file_refused);
        CHECK(says(e, "a FIFO"));
        CHECK(exists(path));
    }
    SUBCASE("socket") {
        const std::string old = std::filesystem::current_path().string(); // sun_path is short
        std::filesystem::current_path(folder.path());
        const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        ::sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::strcpy(address.sun_path, "socket");
        REQUIRE(::bind(fd, reinterpret_cast<const ::sockaddr*>(&address), sizeof address) == 0);
        const error e = refusal("socket");
        std::filesystem::current_path(old);
        ::close(fd);
        CHECK(e.code == errc::file_refused);
        CHECK(says(e, "a socket"));
    }
    SUBCASE("foreign files, byte for byte") {
        superblock damaged = make_superblock({1, 1, 1, 8}, 2, 5);
        damaged.fingerprint = 6;
        superblock newer = make_superblock({1, 1, 1, 8}, 2, 5);
        newer.format = 9;
        const auto text = [](const superblock& s) {
            std::string bytes(4096, '\0');
            std::memcpy(bytes.data(), &s, sizeof s);
            return bytes;
        };
        const std::string foreign[] = {"x",
                                       std::string(8192, '\0'),
                                       std::string(100000, 'y'),
                                       text(damaged),
                                       text(newer),
                                       text(make_superblock({1, 1, 1, 8}, 2, 5)).substr(0, 1000)};
        const char* reasons[] = {"not a kvtl", "not a kvtl", "not a kvtl", "damaged", "format 9", "cut off"};
        for (std::size_t i = 0; i < std::size(foreign); ++i) {
            const std::string path = folder.file("foreign");
            write_file(path, foreign[i]);
            struct ::stat before {};
            REQUIRE(::stat(path.c_str(), &before) == 0);
            const error e = refusal(path);
            struct ::stat after {};
            REQUIRE(::stat(path.c_str(), &after) == 0);
            CHECK(e.code == errc::file_refused);
            CHECK_MESSAGE(says(e, reasons[i]), e.message);
            CHECK(content(path) == foreign[i]);
            CHECK(before.st_ino == after.st_ino);
            CHECK(before.st_mtim.tv_nsec == after.st_mtim.tv_nsec);
            CHECK(before.st_blocks == after.st_blocks);
        }
    }
    SUBCASE("locked by another open, which goes on") {
        const std::string path = folder.file("locked");
        cache_file first = open_file(path);
        const error e = refusal(path);
        CHECK(e.code == errc::file_refused);
        CHECK(says(e, "locked"));
        CHECK(exists(path));
        CHECK(first.reserve(0, mib).ok());
    }
    SUBCASE("locked by another process") {
        const std::string path = folder.file("locked");
        const cache_file first = open_file(path);
        CHECK(in_child([&] {
                  auto opened = cache_file::open({.path = path}, plan_of(mib));
                  return !opened.ok() && opened.error().code == errc::file_refused ? 0 : 1;
              }) == 0);
        CHECK(exists(path));
    }
}

TEST_CASE("symbolic links are judged by what they point to") {
    const scratch_folder folder;
    const std::string link = folder.file("link");
    const auto to = [&](const std::string& target) { REQUIRE(::symlink(target.c_str(), link.c_str()) == 0); };
    SUBCASE("nothing") {
        to(folder.file("missing"));
        const error e = refusal(link);
        CHECK(e.code == errc::file_refused);
        CHECK(says(e, "symbolic link to nothing"));
        CHECK_FALSE(exists(folder.file("missing")));
    }
    SUBCASE("a device") {
        to("/dev/null");
        CHECK(says(refusal(link), "a character device"));
    }
    SUBCASE("a foreign file") {
        write_file(folder.file("foreign"), "text");
        to(folder.file("foreign"));
        CHECK(says(refusal(link), "not a kvtl"));
        CHECK(content(folder.file("foreign")) == "text");
    }
    SUBCASE("a cache file: the target goes, the link stays") {
        { const cache_file file = open_file(folder.file("real"), true); }
        to(folder.file("real"));
        { const cache_file file = open_file(link); }
        CHECK_FALSE(exists(folder.file("real")));
        CHECK(exists(link));
    }
}

TEST_CASE("paths that cannot be opened say why") {
    const scratch_folder folder;
    const error missing = refusal(folder.file("no/such/file"));
    CHECK(missing.code == errc::invalid_argument);
    CHECK(says(missing, std::strerror(ENOENT)));

    write_file(folder.file("plain"), "x");
    CHECK(says(refusal(folder.file("plain/below")), std::strerror(ENOTDIR)));

    CHECK(says(refusal(folder.file(std::string(300, 'n'))), std::strerror(ENAMETOOLONG)));

    const error kernel =
        refusal("/sys/kernel/kvtl-test.kv"); // a folder where nobody may create files, root included
    CHECK(kernel.code == errc::file_refused);

    const auto empty = cache_file::open({}, plan_of(mib));
    REQUIRE_FALSE(empty.ok());
    CHECK(empty.error().code == errc::invalid_argument);
}

TEST_CASE("a failed open leaves nothing behind") {
    const scratch_folder folder;
    SUBCASE("of a new file") {
        auto plan = plan_of(mib);
        const std::vector<std::byte> rubbish(100);
        plan.superblock = rubbish;
        const auto opened = cache_file::open({.path = folder.file("a.kv")}, plan);
        REQUIRE_FALSE(opened.ok());
        CHECK(opened.error().code == errc::invalid_argument);
        CHECK_FALSE(exists(folder.file("a.kv")));
    }
    SUBCASE("of an empty file that was there, and was already written to") {
        write_file(folder.file("empty"), "");
        for (const char* name : {"empty", "new"}) {
            fail_pread_with = EIO; // the probe comes after the superblock
            const error e = refusal(folder.file(name));
            fail_pread_with = 0;
            CHECK(e.code == errc::io_error);
            CHECK(says(e, "probe"));
        }
        struct ::stat found {};
        REQUIRE(::stat(folder.file("empty").c_str(), &found) == 0);
        CHECK(found.st_size == 0);
        CHECK(found.st_blocks == 0);
        CHECK_FALSE(exists(folder.file("new")));
    }
    SUBCASE("of an empty file that was there, under a limit of the file size") {
        write_file(folder.file("empty"), "");
        CHECK(in_child([&] {
                  const ::rlimit tight{1024, 1024};
                  ::setrlimit(RLIMIT_FSIZE, &tight);
                  for (const char* name : {"empty", "new"}) {
                      const auto opened = cache_file::open({.path = folder.file(name)}, plan_of(mib));
                      if (opened.ok() || opened.error().code != errc::disk_full) return 1;
                  }
                  return 0;
              }) == 0);
        CHECK(exists(folder.file("empty")));
        CHECK(content(folder.file("empty")).empty());
        CHECK_FALSE(exists(folder.file("new")));
    }
}

TEST_CASE("only the file we opened is removed") {
    const scratch_folder folder;
    const std::string path = folder.file("a.kv");
    SUBCASE("not the one that took its place") {
        {
            const cache_file file = open_file(path);
            REQUIRE(::rename(path.c_str(), folder.file("moved").c_str()) == 0);
            write_file(path, "somebody else's");
        }
        CHECK(content(path) == "somebody else's");
    }
    SUBCASE("also when the process has changed its folder") {
        const std::string old = std::filesystem::current_path().string();
        std::filesystem::current_path(folder.path());
        {
            const cache_file file = open_file("a.kv");
            std::filesystem::current_path("/");
        }
        std::filesystem::current_path(old);
        CHECK_FALSE(exists(path));
    }
}

TEST_CASE("reserve grows the file, and says when it cannot") {
    const scratch_folder folder;
    const std::string path = folder.file("a.kv");
    SUBCASE("in the caller's steps") {
        cache_file file = open_file(path, false, plan_of(16 * mib));
        REQUIRE(file.reserve(0, 4 * mib).ok());
        CHECK(file.size() == 4 * mib);
        struct ::stat found {};
        REQUIRE(::stat(path.c_str(), &found) == 0);
        CHECK(found.st_size == 4 * static_cast<::off_t>(mib));
        CHECK(found.st_blocks * 512 >= 4 * static_cast<::off_t>(mib)); // really there, not a hole
        const status s = file.reserve(15 * mib, 2 * mib);
        CHECK(s.code() == errc::out_of_range);
        CHECK(file.size() == 4 * mib);
    }
    SUBCASE("RLIMIT_FSIZE, without the signal") {
        CHECK(in_child([&] {
                  auto opened = cache_file::open({.path = path}, plan_of(16 * mib));
                  if (!opened.ok()) return 1;
                  const ::rlimit tight{2 * mib, 2 * mib};
                  ::setrlimit(RLIMIT_FSIZE, &tight);
                  if (!opened->reserve(0, 2 * mib).ok()) return 2;
                  const status s = opened->reserve(2 * mib, mib);
                  if (s.code() != errc::disk_full) return 3;
                  const std::string what = s.what();
                  if (what.find(path.substr(0, 20)) == std::string::npos) return 4;
                  if (what.find("1048576 bytes at offset 2097152") == std::string::npos) return 5;
                  return opened->size() == 2 * mib ? 0 : 6;
              }) == 0);
    }
    SUBCASE("a disk that fills up half way keeps nothing of the failed step") {
        cache_file file = open_file(path, false, plan_of(16 * mib));
        REQUIRE(file.reserve(0, mib).ok());
        fail_fallocate_with = ENOSPC;
        const status s = file.reserve(mib, 4 * mib);
        fail_fallocate_with = 0;
        CHECK(s.code() == errc::disk_full);
        CHECK(std::string(s.what()).find(std::strerror(ENOSPC)) != std::string::npos);
        struct ::stat found {};
        REQUIRE(::stat(path.c_str(), &found) == 0);
        CHECK(found.st_size == static_cast<::off_t>(mib));
        CHECK(file.size() == mib);
        CHECK(file.reserve(mib, 4 * mib).ok());
        CHECK(file.size() == 5 * mib);
    }
    SUBCASE("a file system without fallocate") {
        cache_file file = open_file(path);
        fail_fallocate_with = EOPNOTSUPP;
        const status s = file.reserve(0, mib);
        fail_fallocate_with = 0;
        CHECK(s.code() == errc::unsupported);
        CHECK(std::string(s.what()).find("fallocate") != std::string::npos);
    }
    SUBCASE("more than any file may have") {
        cache_file file = open_file(path, false, plan_of(UINT64_MAX));
        CHECK(file.reserve(0, std::uint64_t{1} << 63).code() == errc::disk_full);
        CHECK(file.size() == file.page());
    }
    SUBCASE("a disk that is too small") { // tmpfs knows its size and refuses at once
        const std::string shm = "/dev/shm/kvtl-test-" + std::to_string(::getpid()) + ".kv";
        struct ::statfs disk {};
        if (::statfs("/dev/shm", &disk) != 0 || disk.f_blocks == 0) {
            MESSAGE("no /dev/shm of a limited size here: nothing to try");
            return;
        }
        const std::uint64_t too_much = 2 * static_cast<std::uint64_t>(disk.f_blocks) * 4096;
        auto file = cache_file::open({.path = shm, .direct = false}, plan_of(too_much));
        REQUIRE(file.ok());
        const status s = file->reserve(0, too_much);
        CHECK(s.code() == errc::disk_full);
        CHECK(file->size() == file->page());
    }
}

TEST_CASE("a file system without O_DIRECT is named; buffered works there") {
    const std::string path = "/dev/shm/kvtl-test-" + std::to_string(::getpid()) + ".kv";
    if (::access("/dev/shm", W_OK) != 0) {
        MESSAGE("no /dev/shm here: nothing to try");
        return;
    }
    auto opened = cache_file::open({.path = path}, plan_of(mib));
    if (opened.ok()) { // tmpfs knows O_DIRECT since Linux 6.6
        CHECK(opened->direct());
        CHECK(opened->reserve(0, mib).ok());
    } else {
        CHECK(opened.error().code == errc::unsupported);
        CHECK(says(opened.error(), "tmpfs"));
        CHECK_FALSE(exists(path));
    }
    { const auto closed = std::move(opened); }
    auto buffered = cache_file::open({.path = path, .direct = false}, plan_of(mib));
    REQUIRE(buffered.ok());
    CHECK_FALSE(buffered->direct());
    CHECK((::fcntl(buffered->fd(), F_GETFL) & O_DIRECT) == 0);
}

TEST_CASE("a file system that never knows O_DIRECT is named") {
    // memfd has no path of its own, but /proc gives it one; hugetlbfs refuses O_DIRECT on every kernel.
    const int fd = ::memfd_create("kvtl-test", MFD_CLOEXEC | MFD_HUGETLB);
    if (fd < 0) {
        MESSAGE("no hugetlbfs here: ", std::strerror(errno));
        return;
    }
    const error e = refusal("/proc/self/fd/" + std::to_string(fd));
    CHECK(e.code == errc::unsupported);
    CHECK_MESSAGE(says(e, "hugetlbfs"), e.message);
    CHECK(says(e, "O_DIRECT"));
    ::close(fd);
}

TEST_CASE("file systems and kinds of files have names") {
    const scratch_folder folder;
    const int fd = ::open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    CHECK(file_system_name(fd) == "of type 0x9fa0"); // procfs is not one anybody would choose
    ::close(fd);
    CHECK(std::string(file_kind(S_IFDIR)) == "a folder");
    CHECK(std::string(file_kind(S_IFBLK)) == "a block device");
    CHECK(file_system_name(-1) == "of unknown type");
}

} // namespace io_cache_file_test
