// No device allocates between open() and its end: every way to get memory is counted.
// SPDX-License-Identifier: MIT
#include <kvtl/io/any_io.hpp>
#include <kvtl/io/faulty.hpp>

#include <contracts/io.hpp>

#include <atomic>
#include <cstddef>
#include <new>

namespace {
std::atomic<std::uint64_t> allocations{0};
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KVTL_TEST_OWN_MALLOC 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define KVTL_TEST_OWN_MALLOC 0
#endif
#endif
#ifndef KVTL_TEST_OWN_MALLOC
#ifdef __GLIBC__
#define KVTL_TEST_OWN_MALLOC 1
#else
#define KVTL_TEST_OWN_MALLOC 0
#endif
#endif

#if KVTL_TEST_OWN_MALLOC
// operator new ends here as well. A sanitizer has its own malloc; there the operators alone are counted.
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
void* malloc(std::size_t n) {
    ++allocations;
    return __libc_malloc(n);
}
void* calloc(std::size_t n, std::size_t size) {
    ++allocations;
    return __libc_calloc(n, size);
}
void* realloc(void* p, std::size_t n) {
    ++allocations;
    return __libc_realloc(p, n);
}
void* aligned_alloc(std::size_t alignment, std::size_t n) {
    ++allocations;
    return __libc_memalign(alignment, n);
}
}
#else
void* operator new(std::size_t n) {
    ++allocations;
    return std::malloc(n);
}
void operator delete(void* p) noexcept {
    std::free(p);
}
void operator delete(void* p, std::size_t) noexcept {
    std::free(p);
}
#endif

using namespace kvtl_test;

namespace {

/// Batches larger than depth, polls and waits, failures too. The requests are made before counting starts.
template <io_policy P> void busy(const typename P::config& config) {
    constexpr std::size_t requests = 200;
    const aligned_memory memory(requests * 4096 + 65536);
    auto plan = plan_of(4 << 20, 8, requests);
    plan.arena = memory.all();
    auto device = open_device<P>(config, plan);
    const std::size_t page = device.facts().page;
    std::vector<::iovec> slices;
    std::vector<io_request> batch;
    for (std::size_t i = 0; i < requests; ++i)
        slices.push_back({memory.data() + i * page % (requests * 4096), page / 2});
    for (std::size_t i = 0; i < requests; i += 2)
        batch.push_back({io_verb::write, 2, &slices[i], (1 + i) * page + (i % 10 == 0 ? 3 : 0), i});
    io_completion done[16];
    std::uint64_t completed = 0;
    std::uint64_t failed = 0;
    bool fine = true;

    const std::uint64_t before = allocations;
    fine = fine && device.reserve(0, 4 << 20).ok();
    for (int round = 0; round < 6; ++round) {
        for (auto& r : batch) r.verb = round % 2 == 0 ? io_verb::write : io_verb::read;
        fine = fine && device.queue(0).submit(batch).ok();
        fine = fine && device.queue(0).submit(batch).ok();
        fine = fine && !device.queue(0).submit(batch).ok(); // full, and the refusal allocates nothing either
        while (device.queue(0).in_flight() > 0) {
            const std::size_t n = device.queue(0).reap(done, round % 3 != 0);
            completed += n;
            for (std::size_t i = 0; i < n; ++i) failed += done[i].error != 0;
        }
    }
    const std::uint64_t during = allocations - before;

    CHECK(during == 0);
    CHECK(fine);
    CHECK(completed == 6 * 2 * batch.size());
    CHECK(failed == completed / 5);
}

} // namespace

TEST_CASE("the counter counts") {
    const std::uint64_t before = allocations;
    auto* volatile p = new int(1);
    delete p;
    CHECK(allocations > before);
}

TEST_CASE("no device allocates after it was opened") {
    const scratch_folder folder;
    const std::string path = folder.file("a.kv");
    busy<in_memory>({});
    busy<posix_file>({.path = path});
    busy<any_io>({.use = any_io::backend::posix, .path = path});
    const auto faults = std::make_shared<io_faults>();
    faults->hold_percent = 30;
    busy<faulty<in_memory>>({.inner = {}, .faults = faults});
#if defined(KVTL_HAS_URING) && KVTL_HAS_URING
    busy<uring_file>({.path = path});
    busy<uring_file>({.path = path, .register_arena = false});
    busy<any_io>({.use = any_io::backend::uring, .path = path});
#endif
}
