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
