// SPDX-License-Identifier: MIT
#include <kvtl/io/posix_file.hpp>

#include <contracts/io.hpp>
#include <sys/syscall.h>

#include <atomic>
#include <fstream>

namespace io_posix_file_test {

using namespace kvtl_test;

namespace {

/// What the next calls of preadv and pwritev do instead of all they are asked to.
std::atomic<bool> hiccups{false};
/// They do not come back before it is false again.
std::atomic<bool> hangs{false};
std::atomic<unsigned> calls{0};

::ssize_t disturbed(long number, int fd, const ::iovec* slices, int count, ::off_t offset) {
    const unsigned call = calls.fetch_add(1);
    while (hangs) ::usleep(1000);
    ::iovec one{};
    if (hiccups) {
        if (call % 3 == 1) {
            errno = EINTR;
            return -1;
        }
        one = {slices[0].iov_base,
               slices[0].iov_len > 4096 ? slices[0].iov_len / 8192 * 4096 : slices[0].iov_len};
        if (one.iov_len == 0) one.iov_len = 4096;
        slices = &one;
        count = 1;
    }
    return ::syscall(number, fd, slices, count, offset, 0);
}

std::uint64_t proc_io(const std::string& field) {
    std::ifstream in("/proc/self/io");
    std::string name;
    std::uint64_t value = 0;
    while (in >> name >> value)
        if (name == field + ":") return value;
    return UINT64_MAX;
}

} // namespace

// The device calls these, and so every read and write passes here.
extern "C" ::ssize_t preadv(int fd, const ::iovec* slices, int count, ::off_t offset) {
    return disturbed(SYS_preadv, fd, slices, count, offset);
}
extern "C" ::ssize_t pwritev(int fd, const ::iovec* slices, int count, ::off_t offset) {
    return disturbed(SYS_pwritev, fd, slices, count, offset);
}

TEST_CASE("posix_file keeps the contract of a device") {
    const scratch_folder folder;
    io_contract<posix_file>([&] { return posix_file::config{.path = folder.file("a.kv")}; });
}

TEST_CASE("posix_file keeps the contract through the page cache and with one thread") {
    const scratch_folder folder;
    io_contract<posix_file>(
        [&] { return posix_file::config{.path = folder.file("a.kv"), .direct = false, .threads = 1}; });
}

TEST_CASE("posix_file keeps the contract when every transfer is short or interrupted") {
    const scratch_folder folder;
    hiccups = true;
    io_contract<posix_file>([&] { return posix_file::config{.path = folder.file("a.kv"), .direct = false}; });
    hiccups = false;
    CHECK(calls > 10);
}

TEST_CASE("posix_file reads what counters() says from the device, and not from the page cache") {
    const scratch_folder folder;
    constexpr std::uint64_t bytes = 8 << 20;
    auto device = open_device<posix_file>({.path = folder.file("a.kv")}, plan_of(bytes));
    CHECK(device.device_info().direct);
    REQUIRE(device.reserve(0, bytes).ok());
    const aligned_memory memory(bytes);
    std::mt19937_64 random(1);
    fill_random(memory.all(), random);
    auto& queue = device.queue(0);
    REQUIRE(transfer_one(queue, io_verb::write, 65536, memory.data(), bytes - 65536) == 0);
    const auto read_some = [&] {
        for (int i = 0; i < 50; ++i)
            REQUIRE(transfer_one(queue, io_verb::read, (1 + random() % 100) * 65536, memory.data(), 65536) ==
                    0);
    };
    read_some(); // brings in the code, which the kernel counts as well
    const std::uint64_t before = proc_io("read_bytes");
    const io_counters counted = queue.counters();
    read_some();
    const std::uint64_t read = queue.counters().read_bytes - counted.read_bytes;
    CHECK(read == 50 * 65536);
    if (before == UINT64_MAX) {
        MESSAGE("no /proc/self/io here: the comparison is impossible");
        return;
    }
    CHECK(proc_io("read_bytes") - before == read);
}

TEST_CASE("posix_file has as many threads as it is given") {
    const scratch_folder folder;
    auto device = open_device<posix_file>({.path = folder.file("a.kv"), .threads = 3}, plan_of(4 << 20));
    REQUIRE(device.reserve(0, 4 << 20).ok());
    std::size_t threads = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/task"))
        ++threads;
    CHECK(threads >= 4);
}

TEST_CASE("posix_file gives up a device that does not answer, and leaves no file") {
    const scratch_folder folder;
    const std::string path = folder.file("a.kv");
    const aligned_memory memory(3 * 4096);
    {
        auto plan = plan_of(1 << 20);
        plan.timeout_ms = 50;
        auto device = open_device<posix_file>({.path = path, .direct = false, .threads = 1}, plan);
        REQUIRE(device.reserve(0, 1 << 20).ok());
        auto& queue = device.queue(0);
        std::vector<::iovec> slices;
        std::vector<io_request> batch;
        for (std::size_t i = 0; i < 3; ++i) slices.push_back({memory.data() + i * 4096, 4096});
        for (std::size_t i = 0; i < 3; ++i) batch.push_back({io_verb::read, 1, &slices[i], 4096, i});
        hangs = true;
        REQUIRE(queue.submit(batch).ok());
        const auto done = drain(queue);
        REQUIRE(done.size() == 3); // the one under way and those behind it
        for (const io_completion& c : done) CHECK(c.error == io_no_answer);
        const status s = queue.submit(batch);
        CHECK(s.code() == errc::io_error);
        CHECK(std::string(s.what()).find("did not answer within io_timeout_ms = 50") != std::string::npos);
        CHECK(queue.in_flight() == 0);
    } // does not wait for the worker
    CHECK(::access(path.c_str(), F_OK) != 0);
    hangs = false;
    ::usleep(100000); // the worker that was left behind comes back
}

TEST_CASE("posix_file refuses impossible numbers of threads") {
    const scratch_folder folder;
    for (const unsigned threads : {0U, 257U}) {
        const auto opened =
            posix_file::open({.path = folder.file("a.kv"), .threads = threads}, plan_of(1 << 20));
        REQUIRE_FALSE(opened.ok());
        CHECK(opened.error().code == errc::invalid_argument);
        CHECK_FALSE(std::filesystem::exists(folder.file("a.kv")));
    }
}

TEST_CASE("posix_file reports a file that was cut short behind its back") {
    const scratch_folder folder;
    auto device = open_device<posix_file>({.path = folder.file("a.kv")}, plan_of(1 << 20));
    REQUIRE(device.reserve(0, 1 << 20).ok());
    const aligned_memory memory(65536);
    REQUIRE(::truncate(folder.file("a.kv").c_str(), 8192) == 0);
    CHECK(transfer_one(device.queue(0), io_verb::read, 0, memory.data(), 65536) == EIO);
    CHECK(transfer_one(device.queue(0), io_verb::read, 0, memory.data(), 8192) == 0);
}

} // namespace io_posix_file_test
