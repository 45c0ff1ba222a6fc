// SPDX-License-Identifier: MIT
#if defined(KVTL_HAS_URING) && KVTL_HAS_URING
#include <kvtl/io/uring_file.hpp>

#include <contracts/io.hpp>
#include <dlfcn.h>
#include <support/forbid.hpp>
#include <sys/wait.h>

#include <fstream>

namespace io_uring_file_test {

using namespace kvtl_test;

namespace {

std::uint64_t proc_io(const std::string& field) {
    std::ifstream in("/proc/self/io");
    std::string name;
    std::uint64_t value = 0;
    while (in >> name >> value)
        if (name == field + ":") return value;
    return UINT64_MAX;
}

template <class Work> int in_child(const Work& work) {
    const ::pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        try {
            ::_exit(work());
        } catch (...) { // a failed REQUIRE: the tests behind it are the parent's
            ::_exit(99);
        }
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/// When set, the kernel seems to have taken what was submitted, and nothing of it ever completes.
bool submissions_hang = false;

} // namespace

// The device calls this.
extern "C" int io_uring_submit(::io_uring* ring) {
    static const auto real = reinterpret_cast<int (*)(::io_uring*)>(::dlsym(RTLD_NEXT, "io_uring_submit"));
    if (!submissions_hang) return real(ring);
    const unsigned taken = ring->sq.sqe_tail - ring->sq.sqe_head;
    ring->sq.sqe_head = ring->sq.sqe_tail;
    return static_cast<int>(taken);
}

TEST_CASE("uring_file keeps the contract of a device") {
    const scratch_folder folder;
    io_contract<uring_file>([&] { return uring_file::config{.path = folder.file("a.kv")}; });
}

TEST_CASE("uring_file keeps the contract through the page cache and without registered memory") {
    const scratch_folder folder;
    io_contract<uring_file>([&] {
        return uring_file::config{.path = folder.file("a.kv"), .direct = false, .register_arena = false};
    });
}

TEST_CASE("uring_file reads what counters() says from the device, registered or not") {
    constexpr std::uint64_t bytes = 8 << 20;
    const aligned_memory memory(bytes);
    for (const bool registered : {true, false}) {
        const scratch_folder folder;
        auto plan = plan_of(bytes);
        plan.arena = memory.all();
        auto device =
            open_device<uring_file>({.path = folder.file("a.kv"), .register_arena = registered}, plan);
        CHECK(device.device_info().direct);
        if (!registered) CHECK_FALSE(device.device_info().registered_arena);
        if (registered && !device.device_info().registered_arena)
            MESSAGE("RLIMIT_MEMLOCK does not allow a registered arena");
        REQUIRE(device.reserve(0, bytes).ok());
        std::mt19937_64 random(1);
        fill_random(memory.all(), random);
        auto& queue = device.queue(0);
        REQUIRE(transfer_one(queue, io_verb::write, 65536, memory.data(), bytes - 65536) == 0);
        const auto read_some = [&] {
            for (int i = 0; i < 50; ++i)
                REQUIRE(transfer_one(queue, io_verb::read, (1 + random() % 100) * 65536, memory.data(),
                                     65536) == 0);
        };
        read_some(); // brings in the code, which the kernel counts as well
        const std::uint64_t before = proc_io("read_bytes");
        const io_counters counted = queue.counters();
        read_some();
        const std::uint64_t read = queue.counters().read_bytes - counted.read_bytes;
        CHECK(read == 50 * 65536);
        if (before == UINT64_MAX)
            MESSAGE("no /proc/self/io here: the comparison is impossible");
        else
            CHECK(proc_io("read_bytes") - before == read);
    }
}

TEST_CASE("uring_file takes requests inside, across and outside a registered arena") {
    const scratch_folder folder;
    const aligned_memory memory(3 << 16);
    auto plan = plan_of(1 << 20);
    plan.arena = memory.all().subspan(1 << 16, 1 << 16); // the middle third
    auto device = open_device<uring_file>({.path = folder.file("a.kv")}, plan);
    REQUIRE(device.reserve(0, 1 << 20).ok());
    CHECK(device.device_info().registered_arena); // 64 KiB are within any limit
    std::mt19937_64 random(2);
    std::vector<std::byte> model(1 << 16);
    for (const std::size_t at : {0U, 1U << 16, (1U << 16) - 8192U, (2U << 16) - 8192U, 2U << 16}) {
        const std::size_t bytes = 16384;
        fill_random({memory.data() + at, bytes}, random);
        std::memcpy(model.data(), memory.data() + at, bytes);
        REQUIRE(transfer_one(device.queue(0), io_verb::write, 65536, memory.data() + at, bytes) == 0);
        std::memset(memory.data() + at, 0, bytes);
        REQUIRE(transfer_one(device.queue(0), io_verb::read, 65536, memory.data() + at, bytes) == 0);
        CHECK(std::memcmp(model.data(), memory.data() + at, bytes) == 0);
    }
}

TEST_CASE("a slice belongs to a registered piece when it lies in it whole") {
    constexpr std::size_t gib = uring_file::piece_bytes;
    const auto address = [](std::uintptr_t at) {
        return reinterpret_cast<std::byte*>(at);
    }; // never read or written
    const std::span<const std::byte> arena(address(gib), 2 * gib + 4096);
    const auto piece = [&](std::uintptr_t at, std::size_t bytes) {
        return uring_file::piece_of(arena, {address(at), bytes});
    };
    CHECK(piece(gib, 4096) == 0);
    CHECK(piece(2 * gib - 4096, 4096) == 0);
    CHECK(piece(2 * gib - 4096, 8192) == -1); // across two pieces
    CHECK(piece(2 * gib, gib) == 1);
    CHECK(piece(3 * gib, 4096) == 2);
    CHECK(piece(3 * gib, 8192) == -1); // beyond the end
    CHECK(piece(3 * gib + 4096, 4096) == -1);
    CHECK(piece(gib - 4096, 4096) == -1);
    CHECK(piece(gib - 4096, 8192) == -1);
    CHECK(uring_file::piece_of({}, {address(gib), 4096}) == -1);
}

TEST_CASE("uring_file hands over as many requests at once as the depth allows") {
    const scratch_folder folder;
    auto device = open_device<uring_file>({.path = folder.file("a.kv")}, plan_of(1 << 20, 4));
    REQUIRE(device.reserve(0, 1 << 20).ok());
    const aligned_memory memory(4096);
    const ::iovec slice{memory.data(), 4096};
    const std::vector<io_request> batch(10, {io_verb::read, 1, &slice, 4096, 0});
    REQUIRE(device.queue(0).submit(batch).ok());
    CHECK(device.queue(0).counters().reads == 4);
    CHECK(drain(device.queue(0)).size() == 10);
    CHECK(device.queue(0).counters().reads == 10);
}

TEST_CASE("uring_file works without the right to lock the arena, and says so") {
    const scratch_folder folder;
    CHECK(in_child([&] {
              const aligned_memory memory(4 << 20);
              const ::rlimit none{1 << 20, 1 << 20}; // enough for the ring
              ::setrlimit(RLIMIT_MEMLOCK, &none);
              ::__user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
              ::__user_cap_data_struct nothing[2]{};
              if (::syscall(SYS_capset, &header, nothing) != 0) return 1;
              auto plan = plan_of(1 << 20);
              plan.arena = memory.all();
              auto device = uring_file::open({.path = folder.file("a.kv")}, plan);
              if (!device.ok()) return 2;
              if (device->device_info().registered_arena) return 3;
              if (!device->reserve(0, 1 << 20).ok()) return 4;
              const ::iovec slice{memory.data(), 65536};
              const io_request request{io_verb::read, 1, &slice, 65536, 1};
              if (!device->queue(0).submit({&request, 1}).ok()) return 5;
              io_completion done;
              return device->queue(0).reap({&done, 1}, true) == 1 && done.error == 0 ? 0 : 6;
          }) == 0);
}

TEST_CASE("uring_file says when io_uring is refused, and leaves no file") {
    const scratch_folder folder;
    for (const int why : {EPERM, ENOSYS})
        CHECK(in_child([&] {
                  if (!forbid(SYS_io_uring_setup, static_cast<unsigned>(why))) return 1;
                  const auto opened = uring_file::open({.path = folder.file("a.kv")}, plan_of(1 << 20));
                  if (opened.ok()) return 2;
                  if (opened.error().code != errc::unsupported) return 3;
                  if (opened.error().message.find("posix_file") == std::string::npos) return 4;
                  if (opened.error().message.find(std::strerror(why)) == std::string::npos) return 5;
                  return std::filesystem::exists(folder.file("a.kv")) ? 6 : 0;
              }) == 0);
}

TEST_CASE("uring_file works where nothing may be registered, and says so") {
    const scratch_folder folder;
    const aligned_memory memory(1 << 20);
    std::memset(memory.data(), 5, 1 << 20);
    CHECK(in_child([&] {
              if (!forbid(SYS_io_uring_register, EPERM)) return 1;
              auto plan = plan_of(1 << 20);
              plan.arena = memory.all();
              auto device = uring_file::open({.path = folder.file("a.kv")}, plan);
              if (!device.ok()) return 2;
              if (device->device_info().registered_file || device->device_info().registered_arena) return 3;
              if (!device->reserve(0, 1 << 20).ok()) return 4;
              if (transfer_one(device->queue(0), io_verb::write, 65536, memory.data(), 65536) != 0) return 5;
              std::memset(memory.data(), 0, 65536);
              if (transfer_one(device->queue(0), io_verb::read, 65536, memory.data(), 65536) != 0) return 6;
              return std::all_of(memory.data(), memory.data() + 65536,
                                 [](std::byte b) { return b == std::byte{5}; })
                         ? 0
                         : 7;
          }) == 0);
}

TEST_CASE("uring_file fails every request of a ring that breaks, and reports it") {
    const scratch_folder folder;
    CHECK(in_child([&] {
              auto device = uring_file::open({.path = folder.file("a.kv")}, plan_of(1 << 20, 2, 16));
              if (!device.ok() || !device->reserve(0, 1 << 20).ok()) return 1;
              if (!forbid(SYS_io_uring_enter, EPERM)) return 2;
              const aligned_memory memory(65536);
              const ::iovec slice{memory.data(), 65536};
              std::vector<io_request> batch(5, {io_verb::read, 1, &slice, 65536, 0});
              auto& queue = device->queue(0);
              if (!queue.submit(batch).ok() || queue.in_flight() != 5) return 3;
              io_completion done[8];
              if (queue.reap(done, true) != 5) return 4;
              for (int i = 0; i < 5; ++i)
                  if (done[i].error != EPERM) return 5;
              if (queue.in_flight() != 0) return 6;
              return queue.submit(batch).code() == errc::io_error && queue.in_flight() == 0 ? 0 : 7;
          }) == 0);
}

TEST_CASE("uring_file gives up a device that does not answer, and leaves no file") {
    const scratch_folder folder;
    const std::string path = folder.file("a.kv");
    const aligned_memory memory(3 * 4096);
    {
        auto plan = plan_of(1 << 20);
        plan.timeout_ms = 50;
        plan.depth = 2; // the third request is held back
        auto device = open_device<uring_file>({.path = path}, plan);
        REQUIRE(device.reserve(0, 1 << 20).ok());
        auto& queue = device.queue(0);
        std::vector<::iovec> slices;
        std::vector<io_request> batch;
        for (std::size_t i = 0; i < 3; ++i) slices.push_back({memory.data() + i * 4096, 4096});
        for (std::size_t i = 0; i < 3; ++i) batch.push_back({io_verb::read, 1, &slices[i], 4096, i});
        submissions_hang = true;
        REQUIRE(queue.submit(batch).ok());
        const auto done = drain(queue);
        submissions_hang = false;
        REQUIRE(done.size() == 3);
        for (const io_completion& c : done) CHECK(c.error == io_no_answer);
        const status s = queue.submit(batch);
        CHECK(s.code() == errc::io_error);
        CHECK(std::string(s.what()).find("did not answer within io_timeout_ms = 50") != std::string::npos);
        CHECK(queue.in_flight() == 0);
    }
    CHECK(::access(path.c_str(), F_OK) != 0);
}

TEST_CASE("uring_file refuses a child of fork(), and the parent goes on") {
    const scratch_folder folder;
    auto device = open_device<uring_file>({.path = folder.file("a.kv")}, plan_of(1 << 20));
    REQUIRE(device.reserve(0, 1 << 20).ok());
    auto& queue = device.queue(0);
    const aligned_memory memory(8192);
    const ::iovec slice{memory.data(), 4096};
    const io_request request{io_verb::read, 1, &slice, 4096, 7};
    REQUIRE(queue.submit({&request, 1}).ok()); // under way while the child looks
    CHECK(in_child([&] {
              const status s = queue.submit({&request, 1});
              if (s.code() != errc::unsupported || std::string(s.what()).find("forked") == std::string::npos)
                  return 1;
              io_completion done[4];
              if (queue.reap(done, true) != 1 || done[0].tag != 7 || done[0].error == 0) return 2;
              return queue.in_flight() == 0 ? 0 : 3;
          }) == 0);
    const auto done = drain(queue);
    REQUIRE(done.size() == 1);
    CHECK(done[0].error == 0);
    CHECK(transfer_one(queue, io_verb::read, 4096, memory.data() + 4096, 4096) == 0);
}

TEST_CASE("uring_file reports a file that was cut short behind its back") {
    const scratch_folder folder;
    auto device = open_device<uring_file>({.path = folder.file("a.kv")}, plan_of(1 << 20));
    REQUIRE(device.reserve(0, 1 << 20).ok());
    const aligned_memory memory(65536);
    REQUIRE(::truncate(folder.file("a.kv").c_str(), 8192) == 0);
    CHECK(transfer_one(device.queue(0), io_verb::read, 0, memory.data(), 65536) == EIO);
    CHECK(transfer_one(device.queue(0), io_verb::read, 0, memory.data(), 8192) == 0);
}

TEST_CASE("uring_file finishes what is under way before it goes") {
    const scratch_folder folder;
    const aligned_memory memory(4 << 20);
    std::memset(memory.data(), 6, 4 << 20);
    std::vector<::iovec> slices;
    std::vector<io_request> batch;
    for (std::size_t i = 0; i < 63; ++i) slices.push_back({memory.data() + i * 65536, 65536});
    for (std::size_t i = 0; i < 63; ++i) batch.push_back({io_verb::write, 1, &slices[i], (1 + i) * 65536, i});
    {
        auto device =
            open_device<uring_file>({.path = folder.file("a.kv"), .keep_file = true}, plan_of(4 << 20, 4));
        REQUIRE(device.reserve(0, 4 << 20).ok());
        REQUIRE(device.queue(0).submit(batch).ok()); // most of it is held back
    }
    std::ifstream in(folder.file("a.kv"), std::ios::binary);
    in.seekg(65536);
    std::string bytes(63 * 65536, '\0');
    in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    CHECK(bytes == std::string(63 * 65536, '\6'));
}

} // namespace io_uring_file_test
#else
#include <doctest/doctest.h>

namespace io_uring_file_test {

TEST_CASE("uring_file was not compiled in") {
    MESSAGE("KVTL_HAS_URING is not set: nothing to test");
}

} // namespace io_uring_file_test
#endif
