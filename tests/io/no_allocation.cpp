// No device allocates between open() and its end: every way to get memory is counted.
// SPDX-License-Identifier: MIT
#include <kvtl/io/backends.hpp>
#include <kvtl/io/faulty.hpp>

#include "contracts/io.hpp"
#include "support/count_allocations.hpp"

#include <cstddef>

using namespace kvtl_test;

namespace {

/// Batches larger than depth, polls and waits, failures too. The requests are made before counting starts.
template <io_policy P> void busy(const typename P::config& config) {
    constexpr std::size_t requests = 200;
    const aligned_memory memory(requests * 4096 + 65536);
    auto plan = plan_of(4 << 20, 8, requests);
    plan.arena = memory.all();
    auto device = open_device<P>(config, plan);
    const std::size_t page = device.device_info().page;
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

    const std::uint64_t before = kvtl_test::allocations;
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
    const std::uint64_t during = kvtl_test::allocations - before;

    CHECK(during == 0);
    CHECK(fine);
    CHECK(completed == 6 * 2 * batch.size());
    CHECK(failed == completed / 5);
}

} // namespace

TEST_CASE("the counter counts") {
    const std::uint64_t before = kvtl_test::allocations;
    auto* volatile p = new int(1);
    delete p;
    CHECK(kvtl_test::allocations > before);
}

TEST_CASE("no device allocates after it was opened") {
    const scratch_folder folder;
    const std::string path = folder.file("a.kv");
    busy<in_memory>({});
    busy<posix_file>({.path = path});
    busy<any_io>(any_backend({.use = backend::posix, .path = path}));
    const auto faults = std::make_shared<io_faults>();
    faults->hold_percent = 30;
    busy<faulty<in_memory>>({.inner = {}, .faults = faults});
#if defined(KVTL_HAS_URING) && KVTL_HAS_URING
    busy<uring_file>({.path = path});
    busy<uring_file>({.path = path, .register_arena = false});
    busy<any_io>(any_backend({.use = backend::uring, .path = path}));
#endif
}
