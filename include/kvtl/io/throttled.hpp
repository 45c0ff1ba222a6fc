// A wrapper that slows any device down to the bandwidth, IOPS and queue depth of another one. It measures the
// effect of slower flash on a policy with the available flash, or in memory.
//
//   const auto limit = std::make_shared<throttle>(*find_device("emmc"));
//   throttled<uring_file>::open({.inner = {.path = "kv.bin"}, .limit = limit}, plan);
//   limit->set({});                    // from here on as fast as the device really is
//
// Model:  a transfer of n bytes has the device to itself for max(n / bandwidth, 1 / IOPS), in the order of
//         submission over all queues; it ends `latency_us` later. At most `depth` transfers are between begin
//         and end. A completion is handed out at that time, or when the inner device has completed it, if
//         that is later. Small transfers are bound by IOPS, large ones by bandwidth; the knee between the two
//         is bandwidth / IOPS. Reads and writes are treated alike.
// Units:  MB are 10^6 bytes, times are nanoseconds of the monotonic clock.
// Cost:   one 24-byte record per transfer and no copy of data; waiting sleeps, and spins at the end.
//
//   name   MB/s  IOPS  depth knee     source
//   emmc    250   22K    -   11 KiB   bandwidth: eMMC 5.1 board of the KVSwap paper; IOPS: below 6 % of the
//                                     bandwidth at 512 bytes, as in its Figure 2
//   nvme   1800  170K    -   10 KiB   the NVMe drive of the same paper, likewise
//   ufs31  2100  100K   32   21 KiB   Samsung 512 GB eUFS 3.1 (March 2020), sequential and random read
//   ufs40  2900  118K   32   24 KiB   DynaKV paper: 2.9 GB/s per lane, IOPS-bound below 24 KiB, 32 commands
//
// The sources give no latency of a single access, so the table has none: a shallow queue costs nothing there.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/io/transfer.hpp>
#include <kvtl/slots/io.hpp>
#include <kvtl/status.hpp>

#include <time.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace kvtl { inline namespace v0 {

/// The limits of a device. 0 means "no limit" in every field, so {} is a device that is not slowed down.
struct device_profile {
    std::string_view name = "native";
    double mb_per_s = 0;
    double iops = 0;
    double latency_us = 0; ///< of one access; overlaps with that of others
    unsigned depth = 0;    ///< accesses at once, up to max_depth

    static constexpr unsigned max_depth = 256;

    [[nodiscard]] constexpr bool limited() const noexcept {
        return mb_per_s > 0 || iops > 0 || latency_us > 0;
    }
    /// How long a transfer keeps the others out.
    [[nodiscard]] std::uint64_t occupancy_ns(std::uint64_t bytes) const noexcept {
        const double by_bytes = mb_per_s > 0 ? static_cast<double>(bytes) * 1e3 / mb_per_s : 0;
        const double by_count = iops > 0 ? 1e9 / iops : 0;
        return static_cast<std::uint64_t>(std::ceil(std::max(by_bytes, by_count)));
    }
    /// Below this size of a transfer the device is bound by IOPS.
    [[nodiscard]] double knee_bytes() const noexcept { return iops > 0 ? mb_per_s * 1e6 / iops : 0; }
};

inline constexpr std::array device_profiles = {
    device_profile{.name = "native"},
    device_profile{.name = "emmc", .mb_per_s = 250, .iops = 22e3},
    device_profile{.name = "nvme", .mb_per_s = 1800, .iops = 170e3},
    device_profile{.name = "ufs31", .mb_per_s = 2100, .iops = 100e3, .depth = 32},
    device_profile{.name = "ufs40", .mb_per_s = 2900, .iops = 118e3, .depth = 32},
};

/// Null when there is no such device.
[[nodiscard]] constexpr const device_profile* find_device(std::string_view name) noexcept {
    for (const device_profile& d : device_profiles)
        if (d.name == name) return &d;
    return nullptr;
}

/// When transfers are over on a device of that profile. Knows no clock: the caller says what time it is.
class throttle_schedule {
  public:
    explicit throttle_schedule(const device_profile& profile = {}) noexcept : profile_(profile) {
        profile_.depth = std::min(profile_.depth, device_profile::max_depth);
    }

    /// The time at which a transfer that arrives `now` is over; later arrivals queue behind it.
    [[nodiscard]] std::uint64_t admit(std::uint64_t now, std::uint64_t bytes) noexcept {
        if (!profile_.limited()) return now;
        std::uint64_t begin = std::max(now, line_free_);
        if (profile_.depth != 0) begin = std::max(begin, over_[turn_]); // that of `depth` transfers ago
        line_free_ = begin + profile_.occupancy_ns(bytes);
        const std::uint64_t over = line_free_ + static_cast<std::uint64_t>(profile_.latency_us * 1e3);
        if (profile_.depth != 0) {
            over_[turn_] = over;
            turn_ = (turn_ + 1) % profile_.depth;
        }
        return over;
    }

    [[nodiscard]] const device_profile& profile() const noexcept { return profile_; }

  private:
    device_profile profile_;
    std::uint64_t line_free_ = 0;
    std::array<std::uint64_t, device_profile::max_depth> over_{};
    std::size_t turn_ = 0;
};

/// The limit of one device, shared by its queues and by whoever wants to change it while the device is open.
class throttle {
  public:
    explicit throttle(const device_profile& profile = {}) noexcept : schedule_(profile) {}

    /// Transfers already submitted keep their times.
    void set(const device_profile& profile) noexcept {
        const std::scoped_lock lock(mutex_);
        schedule_ = throttle_schedule(profile);
    }
    [[nodiscard]] device_profile profile() noexcept {
        const std::scoped_lock lock(mutex_);
        return schedule_.profile();
    }
    [[nodiscard]] std::uint64_t admit(std::uint64_t now, std::uint64_t bytes) noexcept {
        const std::scoped_lock lock(mutex_);
        return schedule_.admit(now, bytes);
    }

  private:
    std::mutex mutex_;
    throttle_schedule schedule_;
};

template <io_policy Inner> struct throttled {
    static constexpr std::string_view name = "throttled";

    struct config {
        typename Inner::config inner{};
        std::shared_ptr<throttle> limit{}; ///< empty: no limit
    };

    class queue;
    class device;

    [[nodiscard]] static result<device> open(const config& config, const io_plan& plan);
};

template <io_policy Inner> class throttled<Inner>::queue {
    using inner_queue = std::remove_reference_t<decltype(std::declval<typename Inner::device&>().queue(0U))>;

  public:
    queue(inner_queue& inner, std::shared_ptr<throttle> limit, std::size_t max_in_flight)
        : inner_(&inner), limit_(std::move(limit)), pending_(std::make_unique<pending[]>(max_in_flight)),
          batch_(std::make_unique<io_request[]>(max_in_flight)),
          held_(std::make_unique<held[]>(max_in_flight)), free_(max_in_flight),
          max_in_flight_(max_in_flight) {
        for (std::size_t i = 0; i < max_in_flight; ++i) free_.push(i);
    }

    [[nodiscard]] status submit(std::span<const io_request> requests) noexcept {
        if (auto s = check_room(in_flight(), requests.size(), max_in_flight_); !s) return s;
        const std::uint64_t now = clock_ns(); // a device in memory is busy copying inside submit()
        for (std::size_t i = 0; i < requests.size(); ++i) {
            batch_[i] = requests[i];
            batch_[i].tag = free_.pop(); // the slot, so that completions find their time
        }
        if (auto s = inner_->submit({batch_.get(), requests.size()}); !s) {
            for (std::size_t i = 0; i < requests.size(); ++i)
                free_.push(static_cast<std::size_t>(batch_[i].tag));
            return s;
        }
        for (std::size_t i = 0; i < requests.size(); ++i) {
            std::uint64_t bytes = 0;
            for (std::uint32_t s = 0; s < requests[i].slice_count; ++s)
                if (requests[i].slices != nullptr) bytes += requests[i].slices[s].iov_len;
            pending_[batch_[i].tag] = {requests[i].tag, limit_->admit(now, bytes)};
        }
        return {};
    }

    [[nodiscard]] std::size_t reap(std::span<io_completion> done, bool wait) noexcept {
        if (done.empty()) return 0;
        for (;;) {
            gather(wait && held_count_ == 0);
            std::size_t n = 0;
            const std::uint64_t now = clock_ns();
            while (n < done.size() && held_count_ > 0 && held_[0].due <= now) {
                std::pop_heap(held_.get(), held_.get() + held_count_, later{});
                done[n++] = held_[--held_count_].completion;
            }
            if (n > 0 || !wait || in_flight() == 0) return n;
            if (held_count_ > 0) wait_until(held_[0].due, now, inner_->in_flight() > 0);
        }
    }

    [[nodiscard]] std::size_t in_flight() const noexcept { return inner_->in_flight() + held_count_; }
    [[nodiscard]] io_counters counters() const noexcept { return inner_->counters(); }

  private:
    struct pending {
        std::uint64_t tag = 0;
        std::uint64_t due = 0;
    };
    struct held { // done by the inner device; in a heap, the earliest first
        std::uint64_t due = 0;
        io_completion completion;
    };
    struct later {
        bool operator()(const held& a, const held& b) const noexcept { return a.due > b.due; }
    };

    /// Moves what the inner device has finished to held_.
    void gather(bool wait) noexcept {
        std::array<io_completion, 64> some;
        std::size_t n = 0;
        do {
            n = inner_->reap(some, wait);
            for (std::size_t i = 0; i < n; ++i) {
                const auto slot = static_cast<std::size_t>(some[i].tag);
                held_[held_count_++] = {pending_[slot].due, {pending_[slot].tag, some[i].error}};
                std::push_heap(held_.get(), held_.get() + held_count_, later{});
                free_.push(slot);
            }
            wait = false;
        } while (n == some.size());
    }

    /// Timers are late by some ten microseconds, so the last stretch is left to the caller's loop. What the
    /// inner device still works on may be due earlier than `due`: then only naps.
    static void wait_until(std::uint64_t due, std::uint64_t now, bool others) noexcept {
        constexpr std::uint64_t stretch = 100'000;
        if (due <= now + stretch) return;
        const std::uint64_t until = others ? std::min(due - stretch, now + stretch) : due - stretch;
        const ::timespec at{static_cast<time_t>(until / 1'000'000'000),
                            static_cast<long>(until % 1'000'000'000)};
        ::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr);
    }

    [[nodiscard]] static std::uint64_t clock_ns() noexcept {
        ::timespec t{};
        ::clock_gettime(CLOCK_MONOTONIC, &t);
        return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(t.tv_nsec);
    }

    inner_queue* inner_;
    std::shared_ptr<throttle> limit_;
    std::unique_ptr<pending[]> pending_; ///< by slot
    std::unique_ptr<io_request[]> batch_;
    std::unique_ptr<held[]> held_;
    std::size_t held_count_ = 0;
    fixed_ring<std::size_t> free_;
    std::size_t max_in_flight_;
};

template <io_policy Inner> class throttled<Inner>::device {
    using outer_queue = typename throttled<Inner>::queue;

  public:
    [[nodiscard]] io_device_info device_info() const noexcept { return inner_.device_info(); }
    [[nodiscard]] outer_queue& queue(unsigned i) noexcept { return *queues_[i]; }
    [[nodiscard]] status reserve(std::uint64_t offset, std::uint64_t bytes) noexcept {
        return inner_.reserve(offset, bytes);
    }
    void use_arena(std::span<std::byte> arena) noexcept { use_arena_of(inner_, arena); }

  private:
    friend struct throttled<Inner>;
    device(typename Inner::device inner, const config& c, const io_plan& plan) : inner_(std::move(inner)) {
        const auto limit = c.limit ? c.limit : std::make_shared<throttle>();
        for (unsigned i = 0; i < plan.queues; ++i)
            queues_.push_back(std::make_unique<outer_queue>(inner_.queue(i), limit, plan.max_in_flight));
    }

    typename Inner::device inner_; // its queues stay where they are when it moves
    std::vector<std::unique_ptr<outer_queue>> queues_;
};

template <io_policy Inner>
result<typename throttled<Inner>::device> throttled<Inner>::open(const config& config, const io_plan& plan) {
    auto inner = Inner::open(config.inner, plan);
    if (!inner) return inner.error();
    return device(*std::move(inner), config, plan);
}

}} // namespace kvtl::v0
