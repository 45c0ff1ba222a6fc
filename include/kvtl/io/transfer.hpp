// Code that all devices share: check a plan, check a request, resume a short transfer, queue without
// allocating.
//
// Shapes: a request is (slice_count) pieces of memory against one contiguous range of the file.
//
// Units: bytes; errors are errno values, 0 is success.
//
// Cost: one pass over the slices per request; 88 bytes of state per transfer in flight; a ring never
// allocates after its construction.
//
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/io.hpp>
#include <kvtl/status.hpp>

#include <cerrno>
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace kvtl { inline namespace v0 {

/// The slices of one request, as the kernel takes them at most (IOV_MAX of Linux).
inline constexpr std::uint32_t max_slices = 1024;

[[nodiscard]] inline status check_plan(const io_plan& plan) noexcept {
    if (plan.queues == 0 || plan.depth == 0 || plan.max_in_flight == 0)
        return status::failure(
            errc::invalid_argument,
            "io_plan: queues = %u, depth = %u, max_in_flight = %u; valid: 1 or more of each", plan.queues,
            plan.depth, plan.max_in_flight);
    if (plan.max_bytes < 4096)
        return status::failure(errc::invalid_argument,
                               "io_plan.max_bytes is %" PRIu64 "; valid: one page or more", plan.max_bytes);
    if (plan.superblock.size() > 4096)
        return status::failure(errc::invalid_argument, "io_plan.superblock has %zu bytes; valid: up to 4096",
                               plan.superblock.size());
    return {};
}

/// Every queue refuses an overflow with the same words, and refuses it whole.
[[nodiscard]] inline status check_room(std::size_t in_flight, std::size_t more,
                                       std::size_t capacity) noexcept {
    if (more <= capacity - in_flight) return {};
    return status::failure(
        errc::out_of_range,
        "submit of %zu requests with %zu in flight; valid: up to max_in_flight = %zu together", more,
        in_flight, capacity);
}

struct request_check {
    int error = 0;           ///< 0, or why the request may not reach the device
    std::uint64_t bytes = 0; ///< sum of the slices
};

/// Checks a request against a device that has `size` reserved bytes. A write beyond them is ENOSPC, because
/// it would extend the file; a read beyond them is the EIO of an end of file. Anything off the alignment is
/// EINVAL: file systems differ in what they let through, so the rule is applied here.
[[nodiscard]] inline request_check check_request(const io_request& r, std::uint32_t alignment,
                                                 std::uint64_t size) noexcept {
    if (r.slice_count == 0 || r.slice_count > max_slices || r.slices == nullptr) return {EINVAL, 0};
    std::uint64_t bytes = 0;
    std::uint64_t bits = r.offset; // every bit below the alignment has to be clear in all of them
    for (std::uint32_t i = 0; i < r.slice_count; ++i) {
        const ::iovec& slice = r.slices[i];
        if (slice.iov_base == nullptr || slice.iov_len == 0 || slice.iov_len > UINT64_MAX - bytes)
            return {EINVAL, 0};
        bytes += slice.iov_len;
        bits |= slice.iov_len | reinterpret_cast<std::uintptr_t>(slice.iov_base);
    }
    if ((bits & (alignment - 1)) != 0) return {EINVAL, bytes};
    if (bytes > size || r.offset > size - bytes) return {r.verb == io_verb::read ? EIO : ENOSPC, bytes};
    return {0, bytes};
}

inline void count(io_counters& counters, io_verb verb, std::uint64_t bytes) noexcept {
    (verb == io_verb::read ? counters.reads : counters.writes) += 1;
    (verb == io_verb::read ? counters.read_bytes : counters.write_bytes) += bytes;
}

/// One request on its way: knows what is left after a short transfer. The caller's slices are never changed;
/// a slice that was cut in two continues through a copy of its second part.
class transfer {
  public:
    transfer() noexcept = default;
    transfer(const io_request& request, std::uint64_t bytes) noexcept
        : request_(request), left_(bytes), end_(bytes) {}

    [[nodiscard]] io_verb verb() const noexcept { return request_.verb; }
    [[nodiscard]] std::uint64_t tag() const noexcept { return request_.tag; }
    [[nodiscard]] std::uint64_t bytes() const noexcept { return end_; }
    [[nodiscard]] std::uint64_t offset() const noexcept { return request_.offset + (end_ - left_); }

    /// What to hand to the kernel next. The pointer lives as long as this object stays where it is.
    [[nodiscard]] const ::iovec* slices() const noexcept {
        return skip_ != 0 ? &part_ : request_.slices + slice_;
    }
    [[nodiscard]] std::uint32_t slice_count() const noexcept {
        return skip_ != 0 ? 1 : request_.slice_count - slice_;
    }

    /// Takes the outcome of what slices() named: bytes moved, or a negative errno. True when the request is
    /// over.
    [[nodiscard]] bool advance(std::int64_t outcome, std::uint32_t alignment) noexcept {
        if (outcome < 0) {
            const int why = static_cast<int>(-outcome);
            const bool transient = why == EINTR || why == EAGAIN || why == ECANCELED;
            if (transient && ++retries_ < max_retries) return false;
            error_ = why;
            return true;
        }
        auto moved = static_cast<std::uint64_t>(outcome);
        left_ -= moved;
        if (left_ == 0) return true;
        if (moved == 0 || moved % alignment != 0) { // the file was cut short behind our back
            error_ = EIO;
            return true;
        }
        retries_ = 0;
        while (moved >= request_.slices[slice_].iov_len - skip_) {
            moved -= request_.slices[slice_].iov_len - skip_;
            ++slice_;
            skip_ = 0;
        }
        skip_ += moved;
        const ::iovec& cut = request_.slices[slice_];
        part_ = {static_cast<std::byte*>(cut.iov_base) + skip_, cut.iov_len - skip_};
        return false;
    }

    [[nodiscard]] io_completion completion() const noexcept { return {request_.tag, error_}; }

  private:
    static constexpr unsigned max_retries = 1000; ///< without any progress, then the errno is believed

    io_request request_;
    std::uint64_t left_ = 0;
    std::uint64_t end_ = 0;
    std::size_t skip_ = 0; ///< bytes already moved of the first slice that is left
    ::iovec part_{};
    std::uint32_t slice_ = 0;
    unsigned retries_ = 0;
    int error_ = 0;
};

/// First in, first out, with room for `capacity` elements and not one more. The caller checks; nothing is
/// allocated.
template <class T> class fixed_ring {
  public:
    explicit fixed_ring(std::size_t capacity)
        : slots_(std::make_unique<T[]>(capacity)), capacity_(capacity) {}

    [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }

    void push(const T& value) noexcept {
        std::size_t back = first_ + size_;
        if (back >= capacity_) back -= capacity_;
        slots_[back] = value;
        ++size_;
    }

    T pop() noexcept {
        const T value = slots_[first_];
        if (++first_ == capacity_) first_ = 0;
        --size_;
        return value;
    }

    /// Takes the latest back, until there are `size`.
    void shorten(std::size_t size) noexcept { size_ = size; }

  private:
    std::unique_ptr<T[]> slots_;
    std::size_t capacity_;
    std::size_t first_ = 0;
    std::size_t size_ = 0;
};

}} // namespace kvtl::v0
