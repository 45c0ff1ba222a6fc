// SPDX-License-Identifier: MIT
#include <kvtl/io/in_memory.hpp>
#include <kvtl/io/posix_file.hpp>
#include <kvtl/io/throttled.hpp>

#include <contracts/io.hpp>

#include <chrono>
#include <set>
#include <string>

namespace io_throttled_test {

using namespace kvtl_test;

using throttled_memory = throttled<in_memory>;
static_assert(io_policy<throttled_memory>);
static_assert(io_policy<throttled<posix_file>>);

namespace {

constexpr device_profile slow{.name = "slow", .mb_per_s = 100, .iops = 10'000};

} // namespace

TEST_CASE("throttled without a limit keeps the contract of a device") {
    io_contract<throttled_memory>([] { return throttled_memory::config{}; });
}

TEST_CASE("throttled devices of the table keep the contract of a device") {
    const scratch_folder folder;
    for (const char* name : {"emmc", "ufs40"}) {
        const auto limit = std::make_shared<throttle>(*find_device(name));
        io_contract<throttled_memory>([&] { return throttled_memory::config{{}, limit}; });
        io_contract<throttled<posix_file>>([&] {
            return throttled<posix_file>::config{.inner = {.path = folder.file("a.kv")}, .limit = limit};
        });
    }
}

TEST_CASE("devices are found by name and have their knee where their source has it") {
    REQUIRE(find_device("ufs40") != nullptr);
    CHECK(find_device("floppy") == nullptr);
    CHECK_FALSE(find_device("native")->limited());
    CHECK(find_device("ufs40")->knee_bytes() == doctest::Approx(24.0 * 1024).epsilon(0.01));
    std::set<std::string_view> names;
    for (const auto& d : device_profiles) names.insert(d.name);
    CHECK(names == std::set<std::string_view>{"native", "nvme", "ufs40", "ufs31", "emmc"});
    // The KVSwap paper: below 6 % of the bandwidth with transfers of 512 bytes, on both of its devices.
    for (const char* name : {"emmc", "nvme"}) {
        const device_profile& d = *find_device(name);
        CHECK(512 * d.iops < 0.06 * d.mb_per_s * 1e6);
    }
}

TEST_CASE("small transfers are bound by IOPS, large ones by bandwidth") {
    CHECK(slow.occupancy_ns(512) == 100'000);    // 1 / 10,000 s
    CHECK(slow.occupancy_ns(10'000) == 100'000); // the knee
    CHECK(slow.occupancy_ns(20'000) == 200'000); // 20 KB at 100 MB/s
    CHECK(slow.occupancy_ns(0) == 100'000);
    for (const std::uint64_t bytes : {4096U, 65536U}) {
        throttle_schedule schedule(slow);
        std::uint64_t over = 0;
        for (int i = 0; i < 1000; ++i) over = schedule.admit(5000, bytes);
        const double seconds = static_cast<double>(over - 5000) * 1e-9;
        const double expected = bytes == 4096 ? 1000 / slow.iops : 1000.0 * 65536 / (slow.mb_per_s * 1e6);
        CHECK(seconds == doctest::Approx(expected).epsilon(1e-4));
    }
}

TEST_CASE("an idle device saves nothing up") {
    throttle_schedule schedule(slow);
    CHECK(schedule.admit(1'000'000'000, 4096) == 1'000'100'000);
    CHECK(schedule.admit(2'000'000'000, 4096) == 2'000'100'000);
    CHECK(schedule.admit(2'000'000'000, 4096) == 2'000'200'000); // behind the one before
    CHECK(schedule.admit(2'000'150'000, 20'000) == 2'000'400'000);
}

TEST_CASE("no more than `depth` accesses overlap their latency") {
    constexpr device_profile far{.name = "far", .mb_per_s = 0, .iops = 1e6, .latency_us = 100, .depth = 4};
    throttle_schedule schedule(far);
    std::vector<std::uint64_t> over;
    for (int i = 0; i < 12; ++i) over.push_back(schedule.admit(0, 4096));
    for (std::size_t i = 0; i < 4; ++i) CHECK(over[i] == (i + 1) * 1000 + 100'000);
    for (std::size_t i = 4; i < over.size(); ++i) CHECK(over[i] == over[i - 4] + 101'000);
    throttle_schedule unlimited;
    CHECK(unlimited.admit(77, 1 << 30) == 77);
}

TEST_CASE("completions come in the order of their times and never before them") {
    const auto limit = std::make_shared<throttle>(slow);
    auto device = open_device<throttled_memory>({{}, limit}, plan_of(1 << 20));
    REQUIRE(device.reserve(0, 1 << 20).ok());
    const aligned_memory memory(1 << 20);
    std::vector<::iovec> slices(20, ::iovec{memory.data(), 4096});
    std::vector<io_request> batch;
    for (std::size_t i = 0; i < slices.size(); ++i)
        batch.push_back({io_verb::read, 1, &slices[i], i * 4096, 100 + i});
    const auto begin = std::chrono::steady_clock::now();
    REQUIRE(device.queue(0).submit(batch).ok());
    CHECK(device.queue(0).in_flight() == 20);
    std::vector<io_completion> some(64);
    for (std::size_t i = 0; i < slices.size();) {
        const std::size_t n = device.queue(0).reap(some, true);
        const auto waited = std::chrono::steady_clock::now() - begin;
        REQUIRE(n > 0);
        for (std::size_t j = 0; j < n; ++j) CHECK(some[j].tag == 100 + i + j);
        i += n;
        CHECK(waited >= i * std::chrono::microseconds(100)); // the i-th is over then, at the earliest
    }
    CHECK(device.queue(0).in_flight() == 0);
}

TEST_CASE("a limit may be changed while the device is open, and is shared by its queues") {
    throttle limit(slow);
    CHECK(limit.admit(0, 100) == 100'000);
    CHECK(limit.admit(0, 100) == 200'000); // another queue would be behind it as well
    limit.set({});
    CHECK(limit.admit(0, 100) == 0);
    CHECK_FALSE(limit.profile().limited());
    limit.set(*find_device("emmc"));
    CHECK(limit.profile().name == "emmc");
    CHECK(limit.admit(0, 25'000) == 100'000);
}

} // namespace io_throttled_test
