// SPDX-License-Identifier: MIT
#include <kvtl/io/faulty.hpp>
#include <kvtl/io/in_memory.hpp>
#include <kvtl/io/posix_file.hpp>

#include <contracts/io.hpp>

namespace io_faulty_test {

using namespace kvtl_test;

using faulty_memory = faulty<in_memory>;
static_assert(io_policy<faulty_memory>);
static_assert(io_policy<faulty<posix_file>>);

namespace {

struct fixture {
    std::shared_ptr<io_faults> faults = std::make_shared<io_faults>();
    faulty_memory::device device =
        open_device<faulty_memory>({.inner = {}, .faults = faults, .seed = 7}, plan_of(1 << 20));
    aligned_memory memory{1 << 20};

    fixture() { REQUIRE(device.reserve(0, 1 << 20).ok()); }
    int read(std::uint64_t page) { return one(io_verb::read, page); }
    int write(std::uint64_t page) { return one(io_verb::write, page); }
    int one(io_verb verb, std::uint64_t page) {
        return transfer_one(device.queue(0), verb, page * 4096, memory.data(), 4096);
    }

    /// The order in which 50 reads come back, taken by waiting for at most `at_once`.
    std::vector<std::uint64_t> order(std::size_t at_once = 64) {
        std::vector<::iovec> slices(50, ::iovec{memory.data(), 4096});
        std::vector<io_request> batch;
        for (std::size_t i = 0; i < 50; ++i) batch.push_back({io_verb::read, 1, &slices[i], i * 4096, i});
        REQUIRE(device.queue(0).submit(batch).ok());
        std::vector<std::uint64_t> tags;
        for (const auto& c : drain(device.queue(0), at_once)) {
            CHECK(c.error == 0);
            tags.push_back(c.tag);
        }
        return tags;
    }
};

} // namespace

TEST_CASE("faulty without faults keeps the contract of a device") {
    io_contract<faulty_memory>([] { return faulty_memory::config{}; });
}

TEST_CASE("faulty that only delays and reorders keeps the contract of a device") {
    const scratch_folder folder;
    const auto faults = std::make_shared<io_faults>();
    faults->hold_percent = 60;
    io_contract<faulty_memory>([&] { return faulty_memory::config{.inner = {}, .faults = faults}; });
    io_contract<faulty<posix_file>>(
        [&] { return faulty<posix_file>::config{.inner = {.path = folder.file("a.kv")}, .faults = faults}; });
}

TEST_CASE("the n-th read or write fails, and only that one") {
    fixture f;
    CHECK(f.write(1) == 0);
    f.faults->fail_read.first = f.faults->reads + 1;
    f.faults->fail_read.error = ETIMEDOUT;
    CHECK(f.read(1) == 0);
    CHECK(f.read(1) == ETIMEDOUT);
    CHECK(f.read(1) == 0);
    CHECK(f.write(1) == 0);
    f.faults->fail_write.count = 2;
    f.faults->fail_write.first = f.faults->writes.load();
    std::memset(f.memory.data(), 1, 4096);
    CHECK(f.write(1) == EIO);
    CHECK(f.write(1) == EIO);
    CHECK(f.read(1) == 0);
    CHECK(f.memory.data()[0] == std::byte{0}); // a failed write changed nothing
    CHECK(f.write(1) == 0);
    CHECK(f.device.queue(0).counters().writes == 3); // and never reached the device
}

TEST_CASE("a bad range fails whatever touches it") {
    fixture f;
    f.faults->bad_begin = 8192;
    f.faults->bad_end = 8193;
    f.faults->bad_error = EREMOTEIO;
    CHECK(f.read(1) == 0);
    CHECK(f.read(2) == EREMOTEIO);
    CHECK(f.write(2) == EREMOTEIO);
    CHECK(f.read(3) == 0);
    CHECK(transfer_one(f.device.queue(0), io_verb::read, 4096, f.memory.data(), 8192) == EREMOTEIO);
    f.faults->bad_end = 8192; // healed
    CHECK(f.read(2) == 0);
}

TEST_CASE("one bit of the chosen read is flipped") {
    fixture f;
    f.faults->corrupt_read = 1;
    for (int i = 0; i < 3; ++i) {
        CHECK(f.read(4) == 0);
        int flipped = 0;
        for (std::size_t at = 0; at < 4096; ++at)
            flipped += __builtin_popcount(static_cast<unsigned>(f.memory.data()[at]));
        CHECK(flipped == (i == 1 ? 1 : 0));
    }
}

TEST_CASE("transfers that are lost, torn or misdirected say that all is well") {
    using wrong = io_faults::wrong;
    fixture f;
    // Page p has bytes p, read back page by page.
    const auto fill = [&](std::size_t at, int value) { std::memset(f.memory.data() + at, value, 4096); };
    const auto stored = [&] {
        std::string all;
        for (std::uint64_t p = 1; p < 6; ++p) {
            CHECK(f.read(p) == 0);
            const std::byte first = f.memory.data()[0], last = f.memory.data()[4095];
            all += std::to_string(std::to_integer<int>(first)) + (first == last ? "" : "/") +
                   (first == last ? "" : std::to_string(std::to_integer<int>(last))) + " ";
        }
        return all;
    };
    const auto reset = [&] {
        for (int p = 1; p < 6; ++p) {
            fill(0, p);
            CHECK(f.write(static_cast<std::uint64_t>(p)) == 0);
        }
        CHECK(stored() == "1 2 3 4 5 ");
    };
    const auto arm = [](io_faults::wrong_window& w, wrong how, std::uint64_t first) {
        w.how = how;
        w.first = first;
    };
    const auto write_two = [&](wrong how) { // pages 3 and 4, from two slices
        reset();
        arm(f.faults->wrong_write, how, f.faults->writes.load());
        fill(0, 8), fill(8192, 9);
        const ::iovec slices[] = {{f.memory.data(), 4096}, {f.memory.data() + 8192, 4096}};
        const io_request request{io_verb::write, 2, slices, 3 * 4096, 7};
        REQUIRE(f.device.queue(0).submit({&request, 1}).ok());
        io_completion done{0, 1};
        REQUIRE(f.device.queue(0).reap({&done, 1}, true) == 1);
        CHECK(done.tag == 7);
        CHECK(done.error == 0);
        return stored();
    };
    CHECK(write_two(wrong::lost) == "1 2 3 4 5 ");
    CHECK(write_two(wrong::torn) == "1 2 8 4 5 ");
    CHECK(write_two(wrong::misdirected) == "1 8 9 4 5 ");
    reset();
    arm(f.faults->wrong_write, wrong::torn, f.faults->writes + 1); // the second from here, and only that one
    for (const int value : {6, 7, 8}) {
        fill(0, value);
        CHECK(f.write(static_cast<std::uint64_t>(value - 5)) == 0);
    }
    CHECK(stored() == "6 7/2 8 4 5 ");
    reset();
    f.faults->wrong_write.how = wrong::lost;
    f.faults->wrong_write.count = io_faults::never; // for ever
    f.faults->wrong_write.first = f.faults->writes.load();
    fill(0, 9);
    for (std::uint64_t p = 1; p < 6; ++p) CHECK(f.write(p) == 0);
    CHECK(stored() == "1 2 3 4 5 ");
    f.faults->wrong_write.first = io_faults::never;

    const auto read = [&](wrong how) {
        fill(0, 99);
        arm(f.faults->wrong_read, how, f.faults->reads.load());
        CHECK(f.read(3) == 0);
        return std::pair(std::to_integer<int>(f.memory.data()[0]),
                         std::to_integer<int>(f.memory.data()[4095]));
    };
    CHECK(read(wrong::lost) == std::pair(99, 99));
    CHECK(read(wrong::torn) == std::pair(3, 99));
    CHECK(read(wrong::misdirected) == std::pair(2, 2));
}

TEST_CASE("a transfer that hangs ends with the deadline, and those beside it end before") {
    auto plan = plan_of(1 << 20);
    plan.timeout_ms = 20;
    const auto faults = std::make_shared<io_faults>();
    auto device = open_device<faulty_memory>({.inner = {}, .faults = faults}, plan);
    REQUIRE(device.reserve(0, 1 << 20).ok());
    aligned_memory memory{1 << 20};
    const ::iovec slice{memory.data(), 4096};
    std::vector<io_request> batch;
    for (std::uint64_t i = 0; i < 3; ++i) batch.push_back({io_verb::read, 1, &slice, 4096, i});
    faults->wrong_read.how = io_faults::wrong::hung;
    faults->wrong_read.first = 1;
    auto& queue = device.queue(0);
    REQUIRE(queue.submit(batch).ok());
    std::array<io_completion, 3> done;
    CHECK(queue.reap(done, true) == 2);
    CHECK(queue.in_flight() == 1);
    CHECK(queue.reap(done, false) == 0);
    const auto before = std::chrono::steady_clock::now();
    REQUIRE(queue.reap(done, true) == 1);
    CHECK(std::chrono::steady_clock::now() - before >= std::chrono::milliseconds(20));
    CHECK(done[0].tag == 1);
    CHECK(done[0].error == io_no_answer);
    CHECK(queue.in_flight() == 0);
    CHECK(std::string(queue.submit(batch).what()).find("io_timeout_ms = 20") != std::string::npos);
}

TEST_CASE("completions are delayed and reordered the same way for the same seed") {
    fixture a;
    fixture b;
    std::vector<std::uint64_t> in_order(50);
    std::iota(in_order.begin(), in_order.end(), 0);
    CHECK(a.order() == in_order);
    a.faults->hold_percent = 80;
    b.faults->hold_percent = 80;
    auto first = a.order();
    CHECK(first != in_order);
    CHECK(b.order() == first);
    CHECK(a.order(3) != first);
    std::sort(first.begin(), first.end());
    CHECK(first == in_order);

    a.faults->hold_percent = 99; // a poll may come back empty, a wait may not
    const ::iovec slice{a.memory.data(), 4096};
    const io_request request{io_verb::read, 1, &slice, 0, 1};
    REQUIRE(a.device.queue(0).submit({&request, 1}).ok());
    io_completion done;
    int empty = 0;
    while (a.device.queue(0).reap({&done, 1}, false) == 0) REQUIRE(++empty < 100000);
    CHECK(empty > 0);
    REQUIRE(a.device.queue(0).submit({&request, 1}).ok());
    CHECK(a.device.queue(0).reap({&done, 1}, true) == 1);
}

TEST_CASE("reserve can be made to find a full disk") {
    fixture f;
    f.faults->full_beyond = 8192;
    CHECK(f.device.reserve(0, 8192).ok());
    const status s = f.device.reserve(4096, 8192);
    CHECK(s.code() == errc::disk_full);
    CHECK(std::string(s.what()).find("offset 4096") != std::string::npos);
    f.faults->full_beyond = io_faults::never;
    CHECK(f.device.reserve(4096, 8192).ok());
}

} // namespace io_faulty_test
