// SPDX-License-Identifier: MIT
#include "random_reads.hpp"

#include "error.hpp"
#include "program.hpp"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

namespace bench {

namespace {

double used_cpu_seconds() {
    struct rusage u = {};
    ::getrusage(RUSAGE_SELF, &u);
    const auto seconds = [](const timeval& t) {
        return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
    };
    return seconds(u.ru_utime) + seconds(u.ru_stime);
}

[[noreturn]] void failed(const char* verb, int error) {
    throw engine::run_failure(std::string(verb) + " failed: " + std::strerror(error));
}

/// The device itself would make a file that is not there.
void require_written(const std::string& path, std::uint64_t size) {
    struct ::stat there = {};
    if (::stat(path.c_str(), &there) != 0) throw engine::bad_input(path + ": " + std::strerror(errno));
    if (static_cast<std::uint64_t>(there.st_size) < size)
        throw engine::bad_input(path + " has " + std::to_string(there.st_size) + " bytes, fewer than the " +
                                std::to_string(size) + " to be read");
}

} // namespace

random_reader::random_reader(const config& c, const std::function<void(std::uint64_t)>& progress)
    : size_(c.size), max_depth_(c.max_depth), queues_(c.queues),
      max_block_(std::max<std::uint32_t>(c.max_block, 1U << 17)), io_(c.io) {
    for (unsigned i = 0; i < queues_; ++i) random_.push_back(0x9E3779B97F4A7C15U * (2 * (c.seed + i) + 1));
    constexpr std::uint64_t page = 4096;
    if (c.written) require_written(c.path, size_);
    if (io_ != "memory") file_.emplace(c.path);
    kvtl::io_plan plan;
    plan.queues = queues_;
    plan.depth = c.max_depth;
    plan.max_in_flight = c.max_depth;
    plan.max_bytes = size_;
    kvtl::backend_config backend;
    backend.path = c.path;
    backend.keep_file = c.keep_file;
    backend.limit = c.limit;
    const std::size_t bytes = std::size_t{max_block_} * max_depth_ * queues_;
    // Large pages, as caches of 64 MiB and more have them: a device is told of a few ranges, not of every 4 KiB.
    constexpr std::size_t large_page = std::size_t{2} << 20;
    const std::size_t whole = (bytes + large_page - 1) / large_page * large_page;
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(large_page, whole)));
    if (!memory_) throw engine::run_failure("no memory for " + std::to_string(bytes) + " bytes of buffers");
    static_cast<void>(::madvise(memory_.get(), whole, MADV_HUGEPAGE));
    std::memset(memory_.get(), 0x5a, bytes); // real pages, and not the zeros that devices may compress away
    plan.arena = {memory_.get(), bytes};
    auto opened = engine::or_posix(io_, "kvtl-bench", [&] {
        backend.use = *kvtl::parse_backend(io_);
        return kvtl::any_io::open(kvtl::any_backend(backend), plan);
    });
    if (!opened) throw engine::bad_input(opened.error().message);
    device_.emplace(std::move(*opened));

    if (c.written) return;
    constexpr std::uint64_t step = 1U << 17;
    for (std::uint64_t at = page; at < size_; at += step) { // the first page is the superblock's
        const std::uint64_t n = std::min(step, size_ - at);
        if (auto s = device_->reserve(at, n); !s) throw engine::run_failure(s.what());
        const ::iovec slice{memory_.get(), n};
        const kvtl::io_request request{kvtl::io_verb::write, 1, &slice, at, 0};
        if (auto s = device_->queue(0).submit({&request, 1}); !s) throw engine::run_failure(s.what());
        std::array<kvtl::io_completion, 1> done{};
        if (device_->queue(0).reap(done, true) != 1) failed("write", EIO);
        if (done[0].error != 0) failed("write", done[0].error);
        if (progress) progress(at + n);
    }
}

read_speed random_reader::run(std::uint32_t block, unsigned depth, std::uint64_t reads,
                              const std::function<void(std::uint64_t)>& progress, unsigned of) {
    auto& queue = device_->queue(of);
    std::byte* const memory = memory_.get() + std::size_t{of} * max_depth_ * max_block_;
    std::uint64_t& random = random_[of];
    const std::uint64_t blocks = size_ / block;
    std::vector<::iovec> slices(depth);
    std::vector<kvtl::io_request> batch;
    std::vector<kvtl::io_completion> done(depth);
    batch.reserve(depth);
    for (unsigned i = 0; i < depth; ++i) slices[i] = {memory + std::size_t{i} * block, block};
    std::vector<std::uint64_t> idle(depth);
    for (unsigned i = 0; i < depth; ++i) idle[i] = i;

    const double cpu = used_cpu_seconds();
    const auto begin = std::chrono::steady_clock::now();
    std::uint64_t issued = 0, over = 0;
    while (over < reads) {
        batch.clear();
        for (; !idle.empty() && issued < reads; ++issued, idle.pop_back()) {
            random ^= random >> 12, random ^= random << 25, random ^= random >> 27; // xorshift64*
            const std::uint64_t place = ((random * 0x2545F4914F6CDD1DU) >> 16) % blocks;
            batch.push_back({kvtl::io_verb::read, 1, &slices[idle.back()], place * block, idle.back()});
        }
        if (!batch.empty())
            if (auto s = queue.submit(batch); !s) throw engine::run_failure(s.what());
        const std::size_t n = queue.reap(done, true);
        for (std::size_t i = 0; i < n; ++i) {
            if (done[i].error != 0) failed("read", done[i].error);
            idle.push_back(done[i].tag);
        }
        over += n;
        if (progress) progress(over);
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const double used = used_cpu_seconds() - cpu;
    const auto count = static_cast<double>(reads);
    return {count * block / seconds * 1e-6, count / seconds, used / count * 1e6};
}

read_speed random_reader::run_together(std::uint32_t block, unsigned depth, std::uint64_t reads) {
    std::vector<std::exception_ptr> failures(queues_);
    const double cpu = used_cpu_seconds();
    const auto begin = std::chrono::steady_clock::now();
    {
        std::vector<std::jthread> threads;
        for (unsigned i = 0; i < queues_; ++i)
            threads.emplace_back([&, i] {
                try {
                    static_cast<void>(run(block, depth, reads, nullptr, i));
                } catch (...) {
                    failures[i] = std::current_exception();
                }
            });
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const double used = used_cpu_seconds() - cpu;
    for (const std::exception_ptr& failure : failures)
        if (failure) std::rethrow_exception(failure);
    const auto count = static_cast<double>(reads * queues_);
    return {count * block / seconds * 1e-6, count / seconds, used / count * 1e6};
}

namespace {

template <class Run> device_probe probe_with(const Run& run) {
    device_probe p;
    p.iops_4k = run(4096U, 32U, 2000U).iops;
    p.mb_per_s_128k = run(1U << 17, 32U, 400U).mb_per_s;
    return p;
}

} // namespace

device_probe probe(random_reader& reader) {
    return probe_with([&](auto... how) { return reader.run(how...); });
}

device_probe probe_together(random_reader& reader) {
    return probe_with([&](auto... how) { return reader.run_together(how...); });
}

} // namespace bench
