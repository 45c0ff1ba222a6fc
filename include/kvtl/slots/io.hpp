// The io slot: what a storage device looks like to the manager.
//
// A device is opened once and has one queue per shard. A queue is used by one thread at a time; different
// queues may be used concurrently. Requests of one submit() go to the kernel together. Memory named by a
// request (the slices and what they point to) belongs to the device from submit() until its completion is
// reaped. Completions come in any order. Offsets, slice addresses and slice sizes are multiples of
// device_info().alignment; short transfers are resumed by the device. Nothing here allocates after open().
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

/// What the manager asks of a device when it opens it.
struct io_plan {
    unsigned queues = 1;           ///< one per shard
    unsigned depth = 64;           ///< requests a queue may have with the kernel at once; more are held back
    unsigned max_in_flight = 4096; ///< requests a queue must accept before any completion is reaped
    std::span<std::byte> arena;    ///< memory that transfers will use; may be registered with the kernel
    std::span<const std::byte> superblock; ///< first bytes of the file (io/superblock.hpp), at most one page
    std::uint64_t max_bytes = 0;           ///< the file never grows beyond this
    std::uint32_t timeout_ms =
        0; ///< without any completion for so long, what is in flight ends with io_no_answer and the
           ///< queue refuses all that comes (0: it waits for ever)
};

/// What a device found out about itself when it was opened. Strings are static.
struct io_device_info {
    const char* name = "";      ///< the policy that really runs: "in_memory", "posix_file", "uring_file"
    bool direct = false;        ///< transfers bypass the page cache (O_DIRECT, verified)
    bool memory_backed = false; ///< what is stored takes memory: no file, or one on tmpfs, ramfs or hugetlbfs
    bool registered_file = false;  ///< io_uring: fixed file
    bool registered_arena = false; ///< io_uring: fixed buffers (needs RLIMIT_MEMLOCK)
    std::uint32_t alignment = 512; ///< of offsets, addresses and sizes, in bytes
    std::uint32_t page = 4096;     ///< unit of transfer: max(4 KiB, alignment, physical block)
};

enum class io_verb : std::uint8_t { read, write };

/// One transfer: `slice_count` pieces of memory against one contiguous range of the file that starts at
/// `offset`.
struct io_request {
    io_verb verb = io_verb::read;
    std::uint32_t slice_count = 0;
    const ::iovec* slices = nullptr; ///< 1 to 1024 pieces
    std::uint64_t offset = 0;        ///< bytes from the start of the file
    std::uint64_t tag = 0;           ///< comes back with the completion
};

/// The error of transfers that a device gave up after io_plan::timeout_ms. The memory that they name may still be written
/// to: whoever is told so uses it no more.
inline constexpr int io_no_answer = -1; // no errno

struct io_completion {
    std::uint64_t tag = 0;
    int error = 0; ///< 0, or the errno of the failed transfer (end of file inside a read counts as EIO)
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
    // Hands over all requests or none. Fails only when the queue would exceed max_in_flight or the ring is
    // broken.
    { q.submit(requests) }
    noexcept->std::same_as<status>;
    // Fills `done` with up to done.size() completions; with `wait` blocks until there is one (if any is in
    // flight).
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
    // A device may have use_arena(arena), too, which returns nothing and is noexcept: from now on transfers use this memory
    // instead of io_plan::arena or what was said last, none is under way, and none of what was pinned is pinned any longer
    // (device_info().registered_arena). A device that pins memory and has no such call has a cache that cannot be resized.
    //
    // Makes [offset, offset + bytes) of the file writable without further allocation (fallocate).
    // Thread-safe.
    { d.reserve(bytes, bytes) }
    noexcept->std::same_as<status>;
};

/// Tells a device that may have pinned it, or one that wraps such a device, which memory transfers use from now on.
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
