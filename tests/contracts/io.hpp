// What every device promises (kvtl/slots/io.hpp), as one suite that each backend runs.
//
//   io_contract<posix_file>([&] { return posix_file::config{.path = folder.file("x.kv")}; });
//
// The config is made anew for each device the suite opens.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/io/superblock.hpp>
#include <kvtl/slots/io.hpp>

#include "support/scratch_folder.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace kvtl_test {

using namespace kvtl;

/// Zeroed memory aligned to 64 KiB, enough for any device.
class aligned_memory {
  public:
    explicit aligned_memory(std::size_t bytes) : bytes_(bytes) {
        data_ = static_cast<std::byte*>(std::aligned_alloc(65536, (bytes + 65535) / 65536 * 65536));
        std::memset(data_, 0, bytes);
    }
    aligned_memory(const aligned_memory&) = delete;
    aligned_memory& operator=(const aligned_memory&) = delete;
    ~aligned_memory() { std::free(data_); }

    [[nodiscard]] std::byte* data() const { return data_; }
    [[nodiscard]] std::span<std::byte> all() const { return {data_, bytes_}; }

  private:
    std::size_t bytes_;
    std::byte* data_;
};

inline void fill_random(std::span<std::byte> bytes, std::mt19937_64& random) {
    for (auto& b : bytes) b = static_cast<std::byte>(random());
}

[[nodiscard]] inline io_plan plan_of(std::uint64_t max_bytes, unsigned depth = 16,
                                     unsigned max_in_flight = 1024, unsigned queues = 1) {
    io_plan plan;
    plan.queues = queues;
    plan.depth = depth;
    plan.max_in_flight = max_in_flight;
    plan.max_bytes = max_bytes;
    return plan;
}

/// A request with its own slices.
struct owned_request {
    std::vector<::iovec> slices;
    io_request request;

    owned_request(io_verb verb, std::uint64_t offset, std::uint64_t tag, std::vector<::iovec> pieces)
        : slices(std::move(pieces)) {
        request = {verb, static_cast<std::uint32_t>(slices.size()), slices.data(), offset, tag};
    }
};

/// Waits for everything in flight; tag -> errno, in the order of completion.
template <class Queue> std::vector<io_completion> drain(Queue& queue, std::size_t at_once = 64) {
    std::vector<io_completion> all;
    std::vector<io_completion> some(at_once);
    while (queue.in_flight() > 0) {
        const std::size_t n = queue.reap(some, true);
        REQUIRE(n > 0);
        all.insert(all.end(), some.begin(), some.begin() + static_cast<std::ptrdiff_t>(n));
    }
    return all;
}

/// One request, to its end.
template <class Queue>
int transfer_one(Queue& queue, io_verb verb, std::uint64_t offset, void* memory, std::size_t bytes) {
    const ::iovec slice{memory, bytes};
    const io_request request{verb, 1, &slice, offset, 42};
    const status s = queue.submit({&request, 1});
    REQUIRE_MESSAGE(s.ok(), s.what());
    const auto done = drain(queue);
    REQUIRE(done.size() == 1);
    REQUIRE(done[0].tag == 42);
    return done[0].error;
}

template <io_policy P> typename P::device open_device(const typename P::config& config, const io_plan& plan) {
    auto opened = P::open(config, plan);
    REQUIRE_MESSAGE(opened.ok(), (opened.ok() ? "" : opened.error().message));
    return *std::move(opened);
}

namespace io_suite {

template <class Device> void ready(Device& device, std::uint64_t bytes) {
    const status s = device.reserve(0, bytes);
    REQUIRE_MESSAGE(s.ok(), s.what());
}

/// Cuts [memory, memory + bytes) into slices of random multiples of `unit` and shuffles where they lie.
inline std::vector<::iovec> scatter(std::byte* memory, std::size_t bytes, std::size_t unit,
                                    std::mt19937_64& random) {
    std::vector<::iovec> slices;
    for (std::size_t at = 0; at < bytes;) {
        const std::size_t n = std::min(bytes - at, unit * (1 + random() % 5));
        slices.push_back({memory + at, n});
        at += n;
    }
    std::shuffle(slices.begin(), slices.end(), random);
    return slices;
}

template <class P, class MakeConfig> void round_trips(const MakeConfig& make_config) {
    constexpr std::uint64_t file_bytes = 4 << 20;
    const aligned_memory memory(2 * file_bytes);
    auto plan = plan_of(file_bytes);
    plan.arena = memory.all();
    auto device = open_device<P>(make_config(), plan);
    ready(device, file_bytes);
    auto& queue = device.queue(0);
    const std::size_t unit = device.device_info().alignment;
    const std::size_t page = device.device_info().page;
    std::mt19937_64 random(11);
    std::vector<std::byte> model(file_bytes);
    std::byte* outgoing = memory.data();
    std::byte* incoming = memory.data() + file_bytes;
    for (int round = 0; round < 4; ++round) {
        // Disjoint writes that cover about half of the file; page 0 belongs to the superblock.
        fill_random({outgoing, file_bytes}, random);
        std::vector<owned_request> writes;
        for (std::uint64_t at = page; at < file_bytes;) {
            const std::size_t bytes = std::min<std::size_t>(page * (1 + random() % 8), file_bytes - at);
            if (random() % 2 == 0) {
                writes.emplace_back(io_verb::write, at, at, scatter(outgoing + at, bytes, unit, random));
                std::size_t to = at;
                for (const auto& s : writes.back().slices) {
                    std::memcpy(model.data() + to, s.iov_base, s.iov_len);
                    to += s.iov_len;
                }
            }
            at += bytes;
        }
        std::vector<io_request> batch;
        for (const auto& w : writes) batch.push_back(w.request);
        REQUIRE(queue.submit(batch).ok());
        for (const auto& c : drain(queue)) REQUIRE(c.error == 0);

        // Reads of random, also overlapping ranges; each into memory of its own.
        std::vector<owned_request> reads;
        std::size_t used = 0;
        for (;;) {
            const std::size_t bytes = unit * (1 + random() % (8 * page / unit));
            if (used + bytes > file_bytes) break;
            const std::uint64_t at = page + random() % ((file_bytes - page - bytes) / unit + 1) * unit;
            reads.emplace_back(io_verb::read, at, reads.size(),
                               scatter(incoming + used, bytes, unit, random));
            used += bytes;
        }
        batch.clear();
        for (const auto& r : reads) batch.push_back(r.request);
        REQUIRE(queue.submit(batch).ok());
        for (const auto& c : drain(queue)) REQUIRE(c.error == 0);
        for (const auto& r : reads) {
            std::size_t from = r.request.offset;
            bool same = true;
            for (const auto& s : r.slices) {
                same = same && std::memcmp(model.data() + from, s.iov_base, s.iov_len) == 0;
                from += s.iov_len;
            }
            CHECK_MESSAGE(same, "read at offset ", r.request.offset);
        }
    }
}

template <class P, class MakeConfig> void many_slices(const MakeConfig& make_config) {
    const std::uint64_t file_bytes = 2 << 20;
    auto device = open_device<P>(make_config(), plan_of(file_bytes));
    ready(device, file_bytes);
    const std::size_t unit = device.device_info().alignment;
    const aligned_memory memory(2048 * unit);
    std::mt19937_64 random(5);
    fill_random({memory.data(), 1024 * unit}, random);
    std::vector<::iovec> backwards;
    std::vector<::iovec> forwards;
    for (std::size_t i = 0; i < 1024; ++i) {
        backwards.push_back({memory.data() + (1023 - i) * unit, unit});
        forwards.push_back({memory.data() + (1024 + i) * unit, unit});
    }
    const std::uint64_t at = device.device_info().page;
    const owned_request write(io_verb::write, at, 1, backwards);
    const owned_request read(io_verb::read, at, 2, forwards);
    auto& queue = device.queue(0);
    REQUIRE(queue.submit({&write.request, 1}).ok());
    CHECK(drain(queue).at(0).error == 0);
    REQUIRE(queue.submit({&read.request, 1}).ok());
    CHECK(drain(queue).at(0).error == 0);
    bool same = true;
    for (std::size_t i = 0; i < 1024; ++i)
        same = same && std::memcmp(backwards[i].iov_base, forwards[i].iov_base, unit) == 0;
    CHECK(same);
    backwards.push_back({memory.data(), unit});
    const owned_request too_many(io_verb::write, at, 3, backwards);
    REQUIRE(queue.submit({&too_many.request, 1}).ok());
    CHECK(drain(queue).at(0).error == EINVAL);
}

/// Transfers that overlap are ordered by waiting: what was reaped is seen by what is submitted later.
template <class P, class MakeConfig> void overlaps_follow_reaps(const MakeConfig& make_config) {
    auto device = open_device<P>(make_config(), plan_of(1 << 20));
    ready(device, 1 << 20);
    auto& queue = device.queue(0);
    const std::size_t page = device.device_info().page;
    const aligned_memory memory(8 * page);
    const auto set = [&](std::size_t at, std::size_t pages, int value) {
        std::memset(memory.data(), value, pages * page);
        REQUIRE(transfer_one(queue, io_verb::write, at * page, memory.data(), pages * page) == 0);
    };
    set(1, 4, 1);
    set(2, 2, 2);
    set(3, 4, 3);
    REQUIRE(transfer_one(queue, io_verb::read, page, memory.data(), 6 * page) == 0);
    const int expected[] = {1, 2, 3, 3, 3, 3};
    for (std::size_t i = 0; i < 6; ++i) {
        CHECK(static_cast<int>(memory.data()[i * page]) == expected[i]);
        CHECK(static_cast<int>(memory.data()[(i + 1) * page - 1]) == expected[i]);
    }
}

template <class P, class MakeConfig> void misalignment_is_refused(const MakeConfig& make_config) {
    auto device = open_device<P>(make_config(), plan_of(1 << 20));
    ready(device, 1 << 20);
    auto& queue = device.queue(0);
    const std::size_t page = device.device_info().page;
    const std::size_t unit = device.device_info().alignment;
    const aligned_memory memory(4 * page);
    std::memset(memory.data(), 7, page);
    for (const io_verb verb : {io_verb::read, io_verb::write}) {
        CHECK(transfer_one(queue, verb, page + unit / 2, memory.data(), page) == EINVAL);
        CHECK(transfer_one(queue, verb, page, memory.data() + unit / 2, page) == EINVAL);
        CHECK(transfer_one(queue, verb, page, memory.data(), page - unit / 2) == EINVAL);
        CHECK(transfer_one(queue, verb, page, memory.data(), 0) == EINVAL);
        CHECK(transfer_one(queue, verb, page, nullptr, page) == EINVAL);
        const io_request empty{verb, 0, nullptr, page, 9};
        REQUIRE(queue.submit({&empty, 1}).ok());
        const auto done = drain(queue);
        CHECK(done.at(0).tag == 9);
        CHECK(done.at(0).error == EINVAL);
    }
    const io_counters counted = queue.counters(); // refused requests are not transfers
    CHECK(counted.reads + counted.writes + counted.read_bytes + counted.write_bytes == 0);
    CHECK(transfer_one(queue, io_verb::read, page, memory.data(), page) == 0); // and changed nothing
    CHECK(std::all_of(memory.data(), memory.data() + page, [](std::byte b) { return b == std::byte{0}; }));
    CHECK(transfer_one(queue, io_verb::read, page + unit, memory.data() + unit, unit) ==
          0); // alignment is enough
}

template <class P, class MakeConfig> void nothing_beyond_what_is_reserved(const MakeConfig& make_config) {
    auto device = open_device<P>(make_config(), plan_of(1 << 20));
    auto& queue = device.queue(0);
    const std::size_t page = device.device_info().page;
    const aligned_memory memory(4 * page);
    CHECK(transfer_one(queue, io_verb::read, 4 * page, memory.data(), page) == EIO);
    CHECK(transfer_one(queue, io_verb::write, 4 * page, memory.data(), page) == ENOSPC);
    ready(device, 6 * page);
    CHECK(transfer_one(queue, io_verb::write, 4 * page, memory.data(), 2 * page) == 0);
    CHECK(transfer_one(queue, io_verb::read, 5 * page, memory.data(), 2 * page) == EIO);
    CHECK(transfer_one(queue, io_verb::write, 5 * page, memory.data(), 2 * page) == ENOSPC);
    const std::uint64_t far = UINT64_MAX - page + 1; // offset + size wraps round to 0
    CHECK(transfer_one(queue, io_verb::read, far, memory.data(), page) == EIO);
    CHECK(transfer_one(queue, io_verb::write, far, memory.data(), page) == ENOSPC);
}

template <class P, class MakeConfig> void more_requests_than_depth(const MakeConfig& make_config) {
    constexpr std::size_t requests = 300;
    auto device = open_device<P>(make_config(), plan_of(4 << 20, 4, requests));
    ready(device, 4 << 20);
    auto& queue = device.queue(0);
    const std::size_t page = device.device_info().page;
    const aligned_memory memory(requests * page);
    std::vector<::iovec> slices;
    std::vector<io_request> batch;
    for (std::size_t i = 0; i < requests; ++i) slices.push_back({memory.data() + i * page, page});
    for (std::size_t i = 0; i < requests; ++i) {
        std::memset(slices[i].iov_base, static_cast<int>(i % 251), page);
        batch.push_back({io_verb::write, 1, &slices[i], (1 + i) * page, i});
    }
    for (const io_verb verb : {io_verb::write, io_verb::read}) {
        for (auto& r : batch) r.verb = verb;
        // Two halves, and completions taken seven at a time, by polling and by waiting in turns.
        REQUIRE(queue.submit({batch.data(), requests / 2}).ok());
        REQUIRE(queue.submit({batch.data() + requests / 2, requests - requests / 2}).ok());
        CHECK(queue.in_flight() == requests);
        std::vector<int> seen(requests, 0);
        std::vector<io_completion> some(7);
        for (std::size_t call = 0, left = requests; left > 0; ++call) {
            const std::size_t n = queue.reap(some, call % 2 == 0);
            if (call % 2 == 0) REQUIRE(n > 0);
            REQUIRE(n <= some.size());
            for (std::size_t i = 0; i < n; ++i) {
                REQUIRE(some[i].tag < requests);
                ++seen[some[i].tag];
                CHECK(some[i].error == 0);
            }
            left -= n;
            CHECK(queue.in_flight() == left);
        }
        CHECK(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
        if (verb == io_verb::write) std::memset(memory.data(), 255, requests * page);
    }
    bool same = true;
    for (std::size_t i = 0; i < requests * page; ++i)
        same = same && static_cast<std::size_t>(memory.data()[i]) == i / page % 251;
    CHECK(same);
}

template <class P, class MakeConfig> void counters_are_exact(const MakeConfig& make_config) {
    auto device = open_device<P>(make_config(), plan_of(1 << 20, 2));
    ready(device, 1 << 20);
    auto& queue = device.queue(0);
    const std::size_t page = device.device_info().page;
    const aligned_memory memory(16 * page);
    std::vector<owned_request> all;
    for (std::size_t i = 0; i < 9; ++i) {
        std::byte* at = memory.data() + i * page;
        const bool read = i % 3 == 0;
        all.emplace_back(read ? io_verb::read : io_verb::write, (1 + i) * page, i,
                         read ? std::vector<::iovec>{{at, page / 2}, {at + page / 2, page / 2}}
                              : std::vector<::iovec>{{at, page}});
    }
    std::vector<io_request> batch;
    for (const auto& r : all) batch.push_back(r.request);
    REQUIRE(queue.submit(batch).ok());
    CHECK(drain(queue).size() == 9);
    const io_counters c = queue.counters();
    CHECK(c.reads == 3);
    CHECK(c.read_bytes == 3 * page);
    CHECK(c.writes == 6);
    CHECK(c.write_bytes == 6 * page);
}

template <class P, class MakeConfig> void overflow_is_refused_whole(const MakeConfig& make_config) {
    auto device = open_device<P>(make_config(), plan_of(1 << 20, 2, 8));
    ready(device, 1 << 20);
    auto& queue = device.queue(0);
    const std::size_t page = device.device_info().page;
    const aligned_memory memory(16 * page);
    std::vector<::iovec> slices;
    std::vector<io_request> batch;
    for (std::size_t i = 0; i < 9; ++i) slices.push_back({memory.data() + i * page, page});
    for (std::size_t i = 0; i < 9; ++i) batch.push_back({io_verb::write, 1, &slices[i], (1 + i) * page, i});
    CHECK(queue.submit(batch).code() == errc::out_of_range);
    CHECK(queue.in_flight() == 0);
    CHECK(queue.counters().writes == 0);
    REQUIRE(queue.submit({batch.data(), 5}).ok());
    const status refused = queue.submit({batch.data() + 5, 4});
    CHECK(refused.code() == errc::out_of_range);
    CHECK(std::string(refused.what()).find("max_in_flight = 8") != std::string::npos);
    CHECK(queue.in_flight() == 5);
    REQUIRE(queue.submit({batch.data() + 5, 3}).ok());
    CHECK(drain(queue).size() == 8);
    REQUIRE(queue.submit({batch.data(), 8}).ok()); // room again
    CHECK(drain(queue).size() == 8);
    CHECK(queue.counters().writes == 16);
}

template <class P, class MakeConfig> void idle_queue_does_not_block(const MakeConfig& make_config) {
    auto device = open_device<P>(make_config(), plan_of(1 << 20));
    ready(device, 1 << 20);
    auto& queue = device.queue(0);
    std::vector<io_completion> some(4);
    CHECK(queue.reap(some, true) == 0);
    CHECK(queue.reap(some, false) == 0);
    CHECK(queue.submit({}).ok());
    CHECK(queue.in_flight() == 0);
    const std::size_t page = device.device_info().page;
    const aligned_memory memory(page);
    const ::iovec slice{memory.data(), page};
    const io_request request{io_verb::read, 1, &slice, 0, 1};
    REQUIRE(queue.submit({&request, 1}).ok());
    CHECK(queue.reap({}, true) == 0);
    CHECK(queue.in_flight() == 1);
    CHECK(drain(queue).size() == 1);
}

template <class P, class MakeConfig> void reserve_repeats(const MakeConfig& make_config) {
    constexpr std::uint64_t file_bytes = 1 << 20;
    auto device = open_device<P>(make_config(), plan_of(file_bytes));
    ready(device, file_bytes / 2);
    auto& queue = device.queue(0);
    const std::size_t page = device.device_info().page;
    const aligned_memory memory(2 * page);
    std::memset(memory.data(), 9, page);
    REQUIRE(transfer_one(queue, io_verb::write, page, memory.data(), page) == 0);
    ready(device, file_bytes / 2);
    ready(device, page);
    CHECK(device.reserve(2 * page, 0).ok());
    ready(device, file_bytes);
    CHECK(device.reserve(file_bytes - page, page).ok());
    std::byte* back = memory.data() + page;
    REQUIRE(transfer_one(queue, io_verb::read, page, back, page) == 0);
    CHECK(std::memcmp(memory.data(), back, page) == 0);
    REQUIRE(transfer_one(queue, io_verb::read, file_bytes - page, back, page) == 0); // reserved reads as zero
    CHECK(std::all_of(back, back + page, [](std::byte b) { return b == std::byte{0}; }));
    CHECK(device.reserve(file_bytes - page, 2 * page).code() == errc::out_of_range);
    CHECK(device.reserve(page, UINT64_MAX).code() == errc::out_of_range);
    CHECK(device.reserve(UINT64_MAX, page).code() == errc::out_of_range);
}

template <class P, class MakeConfig> void queues_are_independent(const MakeConfig& make_config) {
    constexpr std::size_t part = 2 << 20;
    auto device = open_device<P>(make_config(), plan_of(8 << 20, 8, 256, 2));
    const std::size_t page = device.device_info().page;
    const aligned_memory memory(4 * part);
    std::vector<char> same(2, 0);
    const auto work = [&](unsigned q) {
        auto& queue = device.queue(q);
        const std::uint64_t begin = 65536 + q * part;
        bool fine = device.reserve(begin, part).ok();
        std::mt19937_64 random(100 + q);
        std::byte* outgoing = memory.data() + 2 * q * part;
        std::byte* incoming = outgoing + part;
        fill_random({outgoing, part}, random);
        for (const io_verb verb : {io_verb::write, io_verb::read}) {
            std::vector<::iovec> slices;
            std::vector<io_request> batch;
            const std::size_t n = std::min<std::size_t>(256, part / page);
            for (std::size_t i = 0; i < n; ++i)
                slices.push_back({(verb == io_verb::write ? outgoing : incoming) + i * page, page});
            for (std::size_t i = 0; i < n; ++i) batch.push_back({verb, 1, &slices[i], begin + i * page, i});
            fine = fine && queue.submit(batch).ok();
            std::vector<io_completion> some(32);
            while (queue.in_flight() > 0) {
                const std::size_t got = queue.reap(some, true);
                fine = fine && got > 0;
                for (std::size_t i = 0; i < got; ++i) fine = fine && some[i].error == 0;
                if (got == 0) break;
            }
            if (verb == io_verb::read) fine = fine && std::memcmp(outgoing, incoming, n * page) == 0;
        }
        same[q] = static_cast<char>(fine);
    };
    std::thread other(work, 1U); // doctest's checks stay on the main thread
    work(0U);
    other.join();
    CHECK(same[0] == 1);
    CHECK(same[1] == 1);
    CHECK(device.queue(0).counters().read_bytes == device.queue(1).counters().read_bytes);
}

/// One thread submits and ends, another reaps: a queue belongs to whoever uses it at the moment.
template <class P, class MakeConfig> void queue_changes_threads(const MakeConfig& make_config) {
    auto device = open_device<P>(make_config(), plan_of(1 << 20, 4));
    ready(device, 1 << 20);
    const std::size_t page = device.device_info().page;
    const aligned_memory memory(64 * page);
    std::memset(memory.data(), 5, 32 * page);
    std::vector<::iovec> slices;
    std::vector<io_request> batch;
    for (std::size_t i = 0; i < 32; ++i) slices.push_back({memory.data() + i * page, page});
    for (std::size_t i = 0; i < 32; ++i) batch.push_back({io_verb::write, 1, &slices[i], (1 + i) * page, i});
    bool submitted = false;
    std::thread([&] { submitted = device.queue(0).submit(batch).ok(); }).join();
    REQUIRE(submitted);
    const auto done = drain(device.queue(0));
    CHECK(done.size() == 32);
    for (const auto& c : done) CHECK(c.error == 0);
    std::byte* back = memory.data() + 32 * page;
    CHECK(transfer_one(device.queue(0), io_verb::read, page, back, 32 * page) == 0);
    CHECK(std::memcmp(memory.data(), back, 32 * page) == 0);
}

/// A device may move while transfers are under way, and may be destroyed with some unreaped.
template <class P, class MakeConfig> void moves_and_ends_in_flight(const MakeConfig& make_config) {
    const aligned_memory memory(2 << 20);
    auto plan = plan_of(1 << 20, 4);
    plan.arena = memory.all();
    auto device = open_device<P>(make_config(), plan);
    ready(device, 1 << 20);
    const std::size_t page = device.device_info().page;
    std::vector<::iovec> slices;
    std::vector<io_request> batch;
    for (std::size_t i = 0; i < 15; ++i) slices.push_back({memory.data() + i * page, page});
    for (std::size_t i = 0; i < 15; ++i) batch.push_back({io_verb::write, 1, &slices[i], (1 + i) * page, i});
    REQUIRE(device.queue(0).submit(batch).ok());
    auto moved = std::move(device);
    CHECK(drain(moved.queue(0)).size() == 15);
    for (auto& r : batch) r.verb = io_verb::read;
    REQUIRE(moved.queue(0).submit(batch).ok());
}

template <class P, class MakeConfig> void facts_and_superblock(const MakeConfig& make_config) {
    const superblock head = make_superblock({4, 8, 2, 64}, 2, 0xABCDEFU);
    auto plan = plan_of(1 << 20);
    plan.superblock = superblock_bytes(head);
    auto device = open_device<P>(make_config(), plan);
    const io_device_info facts = device.device_info();
    CHECK(std::string(facts.name).size() > 0);
    CHECK(facts.alignment >= 1);
    CHECK((facts.alignment & (facts.alignment - 1)) == 0);
    CHECK(facts.page >= 4096);
    CHECK(facts.page % facts.alignment == 0);
    const aligned_memory memory(facts.page); // the first page is there without reserve()
    REQUIRE(transfer_one(device.queue(0), io_verb::read, 0, memory.data(), facts.page) == 0);
    const auto found = parse_superblock(memory.all());
    REQUIRE(found.ok());
    CHECK(validate_superblock(*found, head).ok());
}

template <class P, class MakeConfig> void bad_plans(const MakeConfig& make_config) {
    const auto refuses = [&](const io_plan& plan) {
        const auto opened = P::open(make_config(), plan);
        return !opened.ok() && opened.error().code == errc::invalid_argument &&
               !opened.error().message.empty();
    };
    CHECK(refuses(plan_of(0)));
    CHECK(refuses(plan_of(100)));
    CHECK(refuses(plan_of(1 << 20, 0)));
    CHECK(refuses(plan_of(1 << 20, 1, 0)));
    CHECK(refuses(plan_of(1 << 20, 1, 1, 0)));
    auto plan = plan_of(1 << 20);
    const std::vector<std::byte> large(4097);
    plan.superblock = large;
    CHECK(refuses(plan));
}

} // namespace io_suite

/// The whole suite. `make_config` is called once per device.
template <io_policy P, class MakeConfig> void io_contract(const MakeConfig& make_config) {
    SUBCASE("random requests come back as written") {
        io_suite::round_trips<P>(make_config);
    }
    SUBCASE("1024 slices, and not one more") {
        io_suite::many_slices<P>(make_config);
    }
    SUBCASE("overlapping transfers follow the reaps") {
        io_suite::overlaps_follow_reaps<P>(make_config);
    }
    SUBCASE("misaligned requests are refused") {
        io_suite::misalignment_is_refused<P>(make_config);
    }
    SUBCASE("nothing beyond what is reserved") {
        io_suite::nothing_beyond_what_is_reserved<P>(make_config);
    }
    SUBCASE("more requests than depth") {
        io_suite::more_requests_than_depth<P>(make_config);
    }
    SUBCASE("counters are exact") {
        io_suite::counters_are_exact<P>(make_config);
    }
    SUBCASE("overflow is refused whole") {
        io_suite::overflow_is_refused_whole<P>(make_config);
    }
    SUBCASE("an idle queue does not block") {
        io_suite::idle_queue_does_not_block<P>(make_config);
    }
    SUBCASE("reserve may be repeated") {
        io_suite::reserve_repeats<P>(make_config);
    }
    SUBCASE("two queues on two threads") {
        io_suite::queues_are_independent<P>(make_config);
    }
    SUBCASE("a queue changes threads") {
        io_suite::queue_changes_threads<P>(make_config);
    }
    SUBCASE("moves and ends with transfers in flight") {
        io_suite::moves_and_ends_in_flight<P>(make_config);
    }
    SUBCASE("facts and superblock") {
        io_suite::facts_and_superblock<P>(make_config);
    }
    SUBCASE("plans that cannot work") {
        io_suite::bad_plans<P>(make_config);
    }
}

} // namespace kvtl_test
