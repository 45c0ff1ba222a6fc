// SPDX-License-Identifier: MIT
#include <kvtl/io/any_io.hpp>
#include <kvtl/io/faulty.hpp>
#include <kvtl/io/in_memory.hpp>
#include <kvtl/io/posix_file.hpp>

#include <contracts/io.hpp>

namespace io_any_io_test {

using namespace kvtl_test;

TEST_CASE("any_io over memory keeps the contract of a device") {
    io_contract<any_io>([] { return any_io::of<in_memory>({}); });
}

TEST_CASE("any_io over posix_file keeps the contract of a device") {
    const scratch_folder folder;
    io_contract<any_io>([&] { return any_io::of<posix_file>({.path = folder.file("a.kv"), .threads = 3}); });
}

TEST_CASE("any_io passes on what a composed device does") {
    const auto faults = std::make_shared<io_faults>();
    auto device = open_device<any_io>(
        any_io::of<faulty<in_memory>>({.inner = {}, .faults = faults, .seed = 3}), plan_of(1 << 20));
    REQUIRE(device.reserve(0, 1 << 20).ok());
    faults->fail_read.first = 0;
    const aligned_memory memory(4096);
    const ::iovec slice{const_cast<std::byte*>(memory.data()), 4096};
    const io_request read{io_verb::read, 1, &slice, 4096, 7};
    for (const bool fails : {true, false}) {
        REQUIRE(device.queue(0).submit({&read, 1}).ok());
        io_completion done;
        REQUIRE(device.queue(0).reap({&done, 1}, true) == 1);
        CHECK(done.tag == 7);
        CHECK((done.error != 0) == fails);
    }
    CHECK(device.queue(0).in_flight() == 0);
    CHECK(device.queue(0).counters().reads == 1); // the one that failed never reached the device
}

TEST_CASE("a device that moves keeps its queues") {
    auto first = open_device<any_io>(any_io::of<in_memory>({}), plan_of(1 << 20));
    auto* queue = &first.queue(0);
    const auto second = std::move(first);
    CHECK(queue == &const_cast<any_io::device&>(second).queue(0));
    CHECK(std::string(second.device_info().name) == "in_memory");
}

TEST_CASE("a config without a device, and a device that refuses, are errors of open") {
    const auto none = any_io::open({}, plan_of(1 << 20));
    REQUIRE_FALSE(none.ok());
    CHECK(none.error().code == errc::invalid_argument);
    CHECK(none.error().message.find("io.from is empty") != std::string::npos);
    const scratch_folder folder;
    const auto refused = any_io::open(any_io::of<posix_file>({.path = folder.path()}), plan_of(1 << 20));
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code == errc::file_refused);
}

} // namespace io_any_io_test
