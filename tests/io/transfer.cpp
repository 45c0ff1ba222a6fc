// Short transfers, refused requests and the ring, without a device.
// SPDX-License-Identifier: MIT
#include <kvtl/io/transfer.hpp>

#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace io_transfer_test {

using namespace kvtl;

namespace {

constexpr std::uint32_t unit = 512;

/// A read of the whole of `file` into slices of random lengths, moved in random short steps. Returns the
/// errno.
int short_read(const std::vector<char>& file, std::vector<char>& memory, std::mt19937& random) {
    std::vector<::iovec> slices;
    for (std::size_t at = 0; at < memory.size();) {
        const std::size_t n = std::min(memory.size() - at, unit * (1 + std::size_t{random()} % 4));
        slices.push_back({memory.data() + at, n});
        at += n;
    }
    const std::vector<::iovec> untouched = slices;
    const io_request request{io_verb::read, static_cast<std::uint32_t>(slices.size()), slices.data(), 1024,
                             7};
    transfer t(request, memory.size());
    std::int64_t outcome = 0;
    do {
        if (random() % 4 == 0) {
            outcome = random() % 2 == 0 ? -EINTR : -EAGAIN;
            continue;
        }
        std::size_t left = unit * (1 + std::size_t{random()} % 12);
        std::size_t from = t.offset() - 1024;
        outcome = 0;
        for (std::uint32_t i = 0; i < t.slice_count() && left > 0; ++i) {
            const std::size_t n = std::min(left, t.slices()[i].iov_len);
            std::memcpy(t.slices()[i].iov_base, file.data() + from, n);
            from += n;
            left -= n;
            outcome += static_cast<std::int64_t>(n);
        }
    } while (!t.advance(outcome, unit));
    for (std::size_t i = 0; i < slices.size(); ++i) {
        CHECK(slices[i].iov_base == untouched[i].iov_base);
        CHECK(slices[i].iov_len == untouched[i].iov_len);
    }
    CHECK(t.completion().tag == 7);
    return t.completion().error;
}

} // namespace

TEST_CASE("a transfer survives any sequence of short steps") {
    std::mt19937 random(3);
    for (int round = 0; round < 200; ++round) {
        std::vector<char> file(unit * (1 + std::size_t{random()} % 60));
        for (auto& c : file) c = static_cast<char>(random());
        std::vector<char> memory(file.size());
        CHECK(short_read(file, memory, random) == 0);
        CHECK(memory == file);
    }
}

TEST_CASE("a transfer ends with the right error") {
    std::vector<char> memory(4 * unit);
    const ::iovec slice{memory.data(), memory.size()};
    const io_request request{io_verb::read, 1, &slice, 0, 1};
    SUBCASE("of the device") {
        transfer t(request, memory.size());
        CHECK_FALSE(t.advance(unit, unit));
        CHECK(t.offset() == unit);
        CHECK(t.advance(-EIO, unit));
        CHECK(t.completion().error == EIO);
    }
    SUBCASE("of the end of the file") {
        transfer t(request, memory.size());
        CHECK_FALSE(t.advance(2 * unit, unit));
        CHECK(t.advance(0, unit));
        CHECK(t.completion().error == EIO);
    }
    SUBCASE("of a file cut inside a block") {
        transfer t(request, memory.size());
        CHECK(t.advance(unit + 1, unit));
        CHECK(t.completion().error == EIO);
    }
    SUBCASE("that goes on for ever") {
        transfer t(request, memory.size());
        int steps = 1;
        while (!t.advance(-EAGAIN, unit)) REQUIRE(++steps < 100000);
        CHECK(t.completion().error == EAGAIN);
        CHECK(steps > 100);
    }
    SUBCASE("none") {
        transfer t(request, memory.size());
        CHECK_FALSE(t.advance(-EINTR, unit));
        CHECK(t.advance(4 * unit, unit));
        CHECK(t.completion().error == 0);
    }
}

TEST_CASE("requests are checked against alignment and size") {
    alignas(unit) static std::byte memory[4 * unit];
    ::iovec slice{memory, unit};
    io_request r{io_verb::read, 1, &slice, 0, 1};
    CHECK(check_request(r, unit, unit).error == 0);
    CHECK(check_request(r, unit, unit).bytes == unit);
    CHECK(check_request(r, unit, unit - 1).error == EIO);
    r.verb = io_verb::write;
    CHECK(check_request(r, unit, 0).error == ENOSPC);
    r.offset = 256;
    CHECK(check_request(r, unit, 4096).error == EINVAL);
    CHECK(check_request(r, 256, 4096).error == 0);
    r.offset = 0;
    slice.iov_len = 0;
    CHECK(check_request(r, unit, 4096).error == EINVAL);
    const ::iovec huge[] = {{memory, SIZE_MAX - unit + 1}, {memory, unit}}; // the sum wraps round
    r = {io_verb::read, 2, huge, 0, 1};
    CHECK(check_request(r, unit, UINT64_MAX).error == EINVAL);
}

TEST_CASE("room in a queue") {
    CHECK(check_room(0, 8, 8).ok());
    CHECK(check_room(8, 0, 8).ok());
    const status s = check_room(5, 4, 8);
    CHECK(s.code() == errc::out_of_range);
    CHECK(std::string(s.what()).find("4 requests with 5 in flight") != std::string::npos);
}

TEST_CASE("a fixed ring is first in, first out, across its end") {
    fixed_ring<int> ring(3);
    CHECK(ring.empty());
    int in = 0;
    int out = 0;
    for (int round = 0; round < 10; ++round) {
        while (ring.size() < 3) ring.push(in++);
        CHECK(ring.pop() == out++);
        CHECK(ring.pop() == out++);
        CHECK(ring.size() == 1);
    }
}

} // namespace io_transfer_test
