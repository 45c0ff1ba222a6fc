// A device in DRAM: the null object of the io slot, and the reference for the contract suite.
//
// It stands for storage, so its bytes count as storage_bytes and not against memory_bytes. A transfer is a
// memcpy inside submit(). It is strict about alignment and end of file, so code that works with it also works
// on flash.
//
// Units: bytes. Cost: address space of max_bytes at open; a page of memory when it is first written.
// Alignment 64, page 4 KiB.
//
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/io/transfer.hpp>
#include <kvtl/slots/io.hpp>
#include <kvtl/status.hpp>

#include <sys/mman.h>
#include <sys/types.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvtl { inline namespace v0 {

struct in_memory {
    static constexpr std::string_view name = "in_memory";
    /// The fields that devices of files have in common, so that one config compiles for every preset. None of them is
    /// read: there is no file.
    struct config {
        std::string path{};
        bool keep_file = false;
        bool direct = true;
        ::mode_t mode = 0600;
    };

    static constexpr std::uint32_t alignment = 64;
    static constexpr std::uint32_t page = 4096;

    class device;
    class queue;

    [[nodiscard]] static result<device> open(const config& config, const io_plan& plan);

  private:
    struct store { // the "file", shared by the queues and stable under moves of the device
        std::byte* bytes = nullptr;
        std::uint64_t capacity = 0;
        std::atomic<std::uint64_t> size{0}; ///< reserved so far
        std::vector<std::unique_ptr<queue>> queues;

        store() = default;
        store(const store&) = delete;
        store& operator=(const store&) = delete;
        ~store() {
            if (bytes != nullptr) ::munmap(bytes, capacity);
        }
    };
};

class in_memory::queue {
  public:
    queue(store& file, std::size_t max_in_flight)
        : file_(file), max_in_flight_(max_in_flight), done_(max_in_flight) {}

    [[nodiscard]] status submit(std::span<const io_request> requests) noexcept {
        if (auto s = check_room(done_.size(), requests.size(), max_in_flight_); !s) return s;
        for (const io_request& r : requests) {
            const auto [error, bytes] =
                check_request(r, alignment, file_.size.load(std::memory_order_acquire));
            if (error == 0) move(r, bytes);
            done_.push({r.tag, error});
        }
        return {};
    }

    [[nodiscard]] std::size_t reap(std::span<io_completion> done,
                                   bool /*wait: nothing is ever pending*/) noexcept {
        const std::size_t n = std::min(done.size(), done_.size());
        for (std::size_t i = 0; i < n; ++i) done[i] = done_.pop();
        return n;
    }

    [[nodiscard]] std::size_t in_flight() const noexcept { return done_.size(); }
    [[nodiscard]] io_counters counters() const noexcept { return counters_; }

  private:
    void move(const io_request& r, std::uint64_t bytes) noexcept {
        count(counters_, r.verb, bytes);
        std::byte* at = file_.bytes + r.offset;
        for (std::uint32_t i = 0; i < r.slice_count; ++i) {
            const ::iovec& slice = r.slices[i];
            if (r.verb == io_verb::read)
                std::memcpy(slice.iov_base, at, slice.iov_len);
            else
                std::memcpy(at, slice.iov_base, slice.iov_len);
            at += slice.iov_len;
        }
    }

    store& file_;
    std::size_t max_in_flight_;
    fixed_ring<io_completion> done_;
    io_counters counters_;
};

class in_memory::device {
  public:
    [[nodiscard]] io_device_info device_info() const noexcept {
        return {.name = name.data(),
                .direct = false,
                .memory_backed = true,
                .alignment = alignment,
                .page = page};
    }
    [[nodiscard]] in_memory::queue& queue(unsigned i) noexcept { return *store_->queues[i]; }

    [[nodiscard]] status reserve(std::uint64_t offset, std::uint64_t bytes) noexcept {
        if (bytes > store_->capacity || offset > store_->capacity - bytes)
            return status::failure(errc::out_of_range,
                                   "reserve of %" PRIu64 " bytes at offset %" PRIu64
                                   " exceeds max_bytes = %" PRIu64 " of in_memory",
                                   bytes, offset, store_->capacity);
        std::uint64_t size = store_->size.load(std::memory_order_relaxed);
        while (size < offset + bytes && !store_->size.compare_exchange_weak(size, offset + bytes)) {
        }
        return {};
    }

  private:
    friend struct in_memory;
    explicit device(std::unique_ptr<store> s) : store_(std::move(s)) {}
    std::unique_ptr<store> store_;
};

inline result<in_memory::device> in_memory::open(const config&, const io_plan& plan) {
    if (auto s = check_plan(plan); !s) return s;
    auto s = std::make_unique<store>();
    void* bytes =
        ::mmap(nullptr, plan.max_bytes, PROT_READ | PROT_WRITE, // NORESERVE: pages come with the first write
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (bytes == MAP_FAILED)
        return status::failure(errc::disk_full, "in_memory: no address space for max_bytes = %" PRIu64 ": %s",
                               plan.max_bytes, std::strerror(errno));
    s->bytes = static_cast<std::byte*>(bytes);
    s->capacity = plan.max_bytes;
    s->size = page;
    if (!plan.superblock.empty()) std::memcpy(s->bytes, plan.superblock.data(), plan.superblock.size());
    for (unsigned i = 0; i < plan.queues; ++i)
        s->queues.push_back(std::make_unique<queue>(*s, plan.max_in_flight));
    return device(std::move(s));
}

static_assert(io_policy<in_memory>);

}} // namespace kvtl::v0
