// The io slot: the interface of a storage device.
//
// A device is opened once and has one queue per shard. One thread uses a queue at a time; different queues
// may be used concurrently. The requests of one submit() go to the kernel together. The memory of a request
// (its slices and what they point to) belongs to the device from submit() until the completion is reaped.
// Completions arrive in any order. Offsets, slice addresses and slice sizes are multiples of
// device_info().alignment. The device resumes short transfers. Nothing here allocates after open().
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/policy.hpp>
#include <kvtl/status.hpp>

#include <sys/uio.h>

#include <cerrno>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

namespace kvtl { inline namespace v0 {

/// The manager's requirements when it opens a device.
struct io_plan {
    unsigned queues = 1;           ///< one per shard
    unsigned depth = 64;           ///< requests of a queue in the kernel at once; the queue holds back more
    unsigned max_in_flight = 4096; ///< requests that a queue must accept before a completion is reaped
    std::span<std::byte> arena;    ///< memory that transfers will use; may be registered with the kernel
    std::span<const std::byte> superblock; ///< first bytes of the file (io/superblock.hpp), at most one page
    std::uint64_t max_bytes = 0;           ///< the file never grows beyond this
    /// Milliseconds without any completion after which transfers in flight end with io_no_answer. The queue
    /// then refuses all further requests. 0: wait for ever.
    std::uint32_t timeout_ms = 0;
};

/// Properties of a device, determined when it was opened. Strings are static.
struct io_device_info {
    const char* name = "";         ///< the policy that runs in fact: "in_memory", "posix_file", "uring_file"
    bool direct = false;           ///< transfers bypass the page cache (O_DIRECT, verified)
    bool memory_backed = false;    ///< storage takes memory: no file, or one on tmpfs, ramfs or hugetlbfs
    bool registered_file = false;  ///< io_uring: fixed file
    bool registered_arena = false; ///< io_uring: fixed buffers (needs RLIMIT_MEMLOCK)
    std::uint32_t alignment = 512; ///< alignment of offsets, addresses and sizes, in bytes
    std::uint32_t page = 4096;     ///< unit of transfer: max(4 KiB, alignment, physical block)
};

enum class io_verb : std::uint8_t { read, write };

/// One transfer between `slice_count` pieces of memory and a contiguous range of the file from `offset` on.
struct io_request {
    io_verb verb = io_verb::read;
    std::uint32_t slice_count = 0;
    const ::iovec* slices = nullptr; ///< 1 to 1024 pieces
    std::uint64_t offset = 0;        ///< bytes from the start of the file
    std::uint64_t tag = 0;           ///< returned with the completion
};

/// The error of transfers that a device gave up after io_plan::timeout_ms. The device may still write to
/// their memory, so the caller must not use it any more.
inline constexpr int io_no_answer = -1; // no errno

struct io_completion {
    std::uint64_t tag = 0;
    int error = 0; ///< 0, or the errno of the failed transfer (end of file within a read: EIO)
};

/// Transfers issued by a queue since open(), counted where they are handed to the device. A resumed short
/// transfer counts its bytes once.
struct io_counters {
    std::uint64_t reads = 0;
    std::uint64_t read_bytes = 0;
    std::uint64_t writes = 0;
    std::uint64_t write_bytes = 0;
};

template <class Q>
concept io_queue = requires(Q& q, const Q& cq, std::span<const io_request> requests,
                            std::span<io_completion> done, bool wait) {
    // Accepts all requests or none. Fails only if the queue would exceed max_in_flight or the ring is broken.
    { q.submit(requests) }
    noexcept->std::same_as<status>;
    // Fills `done` with up to done.size() completions. With `wait` it blocks until there is one, if any
    // request is in flight.
    { q.reap(done, wait) }
    noexcept->std::same_as<std::size_t>;
    { cq.in_flight() }
    noexcept->std::same_as<std::size_t>;
    { cq.counters() }
    noexcept->std::same_as<io_counters>;
};

template <class D>
concept io_device = std::movable<D> && requires(D& d, const D& cd, unsigned i, std::uint64_t bytes) {
    { cd.device_info() }
    noexcept->std::same_as<io_device_info>;
    { d.queue(i) }
    noexcept;
    requires io_queue<std::remove_reference_t<decltype(d.queue(i))>>;
    // Optional: `void use_arena(arena) noexcept` replaces the arena. It is called only while no transfer is
    // in flight. Memory of the previous arena must be unpinned (device_info().registered_arena). If a device
    // pins memory and has no use_arena(), its cache cannot be resized.
    //
    // reserve(offset, bytes) makes [offset, offset + bytes) of the file writable without further allocation
    // (fallocate). Thread-safe.
    { d.reserve(bytes, bytes) }
    noexcept->std::same_as<status>;
};

/// Calls use_arena(arena) if the device has it: a device that may pin memory, or a wrapper of one.
template <io_device D> void use_arena_of(D& device, std::span<std::byte> arena) noexcept {
    if constexpr (requires { device.use_arena(arena); }) device.use_arena(arena);
    static_cast<void>(device), static_cast<void>(arena);
}

/// A policy of the io slot: a name, an aggregate config, and a device that opens from both.
template <class P>
concept io_policy = requires(const typename P::config& config, const io_plan& plan) {
    { P::name } -> std::convertible_to<std::string_view>;
    { P::open(config, plan) } -> std::same_as<result<typename P::device>>;
    requires io_device<typename P::device>;
};

template <class P> consteval void explain_io() {
    static_assert(holds(io_policy<P>), "[kvtl] io: the policy needs name, config, device and open(config, "
                                       "io_plan); its device and queues need "
                                       "what slots/io.hpp lists");
}

}} // namespace kvtl::v0
