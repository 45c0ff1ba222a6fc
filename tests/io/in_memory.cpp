// SPDX-License-Identifier: MIT
#include <kvtl/io/in_memory.hpp>

#include <contracts/io.hpp>

namespace io_in_memory_test {

using namespace kvtl_test;

TEST_CASE("in_memory keeps the contract of a device") {
    io_contract<in_memory>([] { return in_memory::config{}; });
}

TEST_CASE("in_memory completes inside submit") {
    auto device = open_device<in_memory>({}, plan_of(1 << 20));
    CHECK(device.device_info().name == in_memory::name);
    CHECK_FALSE(device.device_info().direct);
    const aligned_memory memory(4096);
    const ::iovec slice{memory.data(), 4096};
    const io_request request{io_verb::read, 1, &slice, 0, 3};
    REQUIRE(device.queue(0).submit({&request, 1}).ok());
    io_completion done[2];
    CHECK(device.queue(0).reap(done, false) == 1);
    CHECK(done[0].tag == 3);
}

TEST_CASE("in_memory takes address space, not memory") {
    auto device =
        open_device<in_memory>({}, plan_of(std::uint64_t{64} << 30)); // more than most machines have
    const aligned_memory memory(4096);
    const std::uint64_t far = (std::uint64_t{64} << 30) - 4096;
    REQUIRE(device.reserve(far, 4096).ok());
    CHECK(transfer_one(device.queue(0), io_verb::write, far, memory.data(), 4096) == 0);
    const auto impossible = in_memory::open({}, plan_of(std::uint64_t{1} << 62));
    REQUIRE_FALSE(impossible.ok());
    CHECK(impossible.error().code == errc::disk_full);
}

} // namespace io_in_memory_test
