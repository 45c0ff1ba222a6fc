// A wrapper that makes any device fail on request: for kvtl's tests, and for programs that test their error
// paths.
//
// The switches are atomics in a block that the test owns, so they may be changed while the device is open. A
// request that is made to fail never reaches the inner device (a failed write changes nothing, unless
// `fail_late` is set) and completes with the chosen errno. Transfers are numbered from 0 over all queues as
// they are submitted, reads and writes separately. Refused transfers count too.
//
// Devices also fail without an errno: `wrong_read` and `wrong_write` make transfers that complete with success and did
// something else, or that never complete. As on any device, io_plan.timeout_ms ends the latter with io_no_answer, and
// then the queue refuses all further requests.
//
// With hold_percent, completions are held back for some calls of reap() and returned in another order, from a
// seeded generator. Equal submissions and reaps give an equal order on a device that completes at once.
//
// Units: bytes, percent. Cost: a copy of each request; nothing allocates after open.
//
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/io/transfer.hpp>
#include <kvtl/slots/io.hpp>
#include <kvtl/status.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace kvtl { inline namespace v0 {

/// What goes wrong, and when. Everything off by default.
struct io_faults {
    static constexpr std::uint64_t never = UINT64_MAX;

    /// Transfers [first, first + count) of one verb fail with `error`.
    struct window {
        std::atomic<std::uint64_t> first{never};
        std::atomic<std::uint64_t> count{1};
        std::atomic<int> error{EIO};

        [[nodiscard]] bool holds(std::uint64_t n) const noexcept { return n >= first && n - first < count; }
    };
    window fail_read;
    window fail_write;

    enum class wrong : std::uint8_t {
        lost,        ///< nothing was transferred
        torn,        ///< only the first half was: of the slices, or of the bytes of a single one
        misdirected, ///< to or from one page before
        hung         ///< never completes
    };
    /// Transfers [first, first + count) of one verb go wrong.
    struct wrong_window {
        std::atomic<std::uint64_t> first{never};
        std::atomic<std::uint64_t> count{1};
        std::atomic<wrong> how{wrong::lost};

        [[nodiscard]] bool holds(std::uint64_t n) const noexcept { return n >= first && n - first < count; }
    };
    wrong_window wrong_read;
    wrong_window wrong_write;

    std::atomic<bool> fail_late{false}; ///< writes that fail have reached the device all the same

    /// Every transfer that touches bytes [bad_begin, bad_end) of the file fails with `bad_error`.
    std::atomic<std::uint64_t> bad_begin{0};
    std::atomic<std::uint64_t> bad_end{0};
    std::atomic<int> bad_error{EIO};

    std::atomic<std::uint64_t> corrupt_read{never}; ///< one bit of this read comes back flipped
    std::atomic<std::uint64_t> full_beyond{never};  ///< reserve() past this offset says disk_full
    std::atomic<unsigned> hold_percent{0}; ///< chance that a completion stays for another reap(); up to 99

    std::atomic<std::uint64_t> reads{0}; ///< seen so far; a test may set them back to 0
    std::atomic<std::uint64_t> writes{0};
};

template <io_policy Inner> struct faulty {
    static constexpr std::string_view name = "faulty";

    struct config {
        typename Inner::config inner;
        std::shared_ptr<io_faults> faults{}; ///< empty: no faults
        std::uint64_t seed = 1;
    };

    class queue;
    class device;

    [[nodiscard]] static result<device> open(const config& config, const io_plan& plan);
};

template <io_policy Inner> class faulty<Inner>::queue {
    using inner_queue = std::remove_reference_t<decltype(std::declval<typename Inner::device&>().queue(0U))>;

  public:
    queue(inner_queue& inner, const io_device_info& info, std::shared_ptr<io_faults> faults,
          std::uint64_t seed, const io_plan& plan)
        : inner_(&inner), info_(info), faults_(std::move(faults)), random_(seed * 2 + 1),
          requests_(std::make_unique<pending[]>(plan.max_in_flight)),
          batch_(std::make_unique<io_request[]>(plan.max_in_flight)),
          held_(std::make_unique<io_completion[]>(plan.max_in_flight)), free_(plan.max_in_flight),
          hung_(plan.max_in_flight), max_in_flight_(plan.max_in_flight), timeout_(plan.timeout_ms) {
        for (std::size_t i = 0; i < max_in_flight_; ++i) free_.push(i);
    }

    [[nodiscard]] status submit(std::span<const io_request> requests) noexcept {
        if (auto s = check_room(in_flight(), requests.size(), max_in_flight_); !s) return s;
        if (gave_up_)
            return status::failure(errc::io_error,
                                   "faulty: the device did not answer within io_timeout_ms = %lld; close it",
                                   static_cast<long long>(timeout_.count()));
        std::size_t batch = 0;
        const std::size_t held_before = held_count_, hung_before = hung_.size();
        for (const io_request& r : requests) {
            const auto [error, corrupt, wrong] = draw(r);
            const bool late = error != 0 && r.verb == io_verb::write && faults_->fail_late;
            if (error != 0 && !late) {
                held_[held_count_++] = {r.tag, error};
                continue;
            }
            if (wrong == io_faults::wrong::hung) {
                hung_.push(r.tag);
                continue;
            }
            if (wrong == io_faults::wrong::lost) {
                held_[held_count_++] = {r.tag, 0};
                continue;
            }
            const std::size_t slot =
                free_.pop(); // the tag inside is the slot, so that completions find their request
            requests_[slot] = {r, {}, corrupt, error};
            batch_[batch] = r;
            batch_[batch].tag = slot;
            if (wrong == io_faults::wrong::torn) halve(batch_[batch], requests_[slot].half);
            if (wrong == io_faults::wrong::misdirected) batch_[batch].offset -= info_.page;
            ++batch;
        }
        auto s = inner_->submit({batch_.get(), batch});
        if (!s) {
            held_count_ = held_before;
            hung_.shorten(hung_before);
            for (std::size_t i = 0; i < batch; ++i) free_.push(static_cast<std::size_t>(batch_[i].tag));
        }
        return s;
    }

    [[nodiscard]] std::size_t reap(std::span<io_completion> done, bool wait) noexcept {
        if (done.empty()) return 0;
        gather(wait && held_count_ == 0 && inner_->in_flight() > 0);
        if (wait && held_count_ == 0 && inner_->in_flight() == 0 && !hung_.empty()) give_up();
        const unsigned hold = std::min(faults_->hold_percent.load(), 99U);
        std::size_t n = 0;
        std::size_t kept = 0;
        if (hold != 0) // a random order first, then a random share of it
            for (std::size_t i = held_count_; i > 1; --i) std::swap(held_[i - 1], held_[next() % i]);
        for (std::size_t i = 0; i < held_count_; ++i) {
            const bool last_chance = wait && n == 0 && i + 1 == held_count_;
            const bool keep = n == done.size() || (hold != 0 && !last_chance && next() % 100 < hold);
            if (keep)
                held_[kept++] = held_[i];
            else
                done[n++] = held_[i];
        }
        held_count_ = kept;
        return n;
    }

    [[nodiscard]] std::size_t in_flight() const noexcept {
        return inner_->in_flight() + held_count_ + hung_.size();
    }
    [[nodiscard]] io_counters counters() const noexcept { return inner_->counters(); }

  private:
    struct pending {
        io_request request;
        ::iovec half{}; ///< of its only slice
        bool corrupt = false;
        int error = 0; ///< that it completes with, whatever the inner device says
    };
    struct fate {
        int error = 0;
        bool corrupt = false;
        std::optional<io_faults::wrong> wrong{};
    };

    [[nodiscard]] fate draw(const io_request& r) noexcept {
        io_faults& f = *faults_;
        const bool read = r.verb == io_verb::read;
        const std::uint64_t n = (read ? f.reads : f.writes).fetch_add(1, std::memory_order_relaxed);
        const io_faults::window& window = read ? f.fail_read : f.fail_write;
        if (window.holds(n)) return {window.error, false};
        std::uint64_t bytes = 0;
        for (std::uint32_t i = 0; i < r.slice_count; ++i) bytes += r.slices[i].iov_len;
        if (r.offset < f.bad_end && r.offset + bytes > f.bad_begin) return {f.bad_error, false};
        const io_faults::wrong_window& wrong = read ? f.wrong_read : f.wrong_write;
        if (wrong.holds(n) && !(wrong.how == io_faults::wrong::misdirected && r.offset < info_.page))
            return {0, false, wrong.how.load()};
        return {0, read && n == f.corrupt_read};
    }

    /// The first half of a request. A single slice that the device's alignment does not let us divide stays whole.
    void halve(io_request& r, ::iovec& half) const noexcept {
        half = r.slices[0];
        half.iov_len = half.iov_len / 2 / info_.alignment * info_.alignment;
        if (r.slice_count > 1)
            r.slice_count /= 2;
        else if (half.iov_len != 0)
            r.slices = &half;
    }
    /// Nothing but hung transfers is in flight.
    void give_up() noexcept {
        std::this_thread::sleep_for(timeout_);
        gave_up_ = true;
        while (!hung_.empty()) held_[held_count_++] = {hung_.pop(), io_no_answer};
    }
    /// Moves what the inner device has finished to held_.
    void gather(bool wait) noexcept {
        std::array<io_completion, 64> some;
        std::size_t n = 0;
        do {
            n = inner_->reap(some, wait);
            for (std::size_t i = 0; i < n; ++i) {
                const auto slot = static_cast<std::size_t>(some[i].tag);
                const pending& p = requests_[slot];
                if (p.corrupt && some[i].error == 0) flip_a_bit(p.request);
                held_[held_count_++] = {p.request.tag, p.error != 0 ? p.error : some[i].error};
                free_.push(slot);
            }
            wait = false;
        } while (n == some.size());
    }

    void flip_a_bit(const io_request& r) noexcept {
        const ::iovec& slice = r.slices[next() % r.slice_count];
        auto* bytes = static_cast<unsigned char*>(slice.iov_base);
        bytes[next() % slice.iov_len] ^= static_cast<unsigned char>(1U << (next() % 8));
    }

    /// xorshift64*: small, seeded, good enough to shuffle.
    std::uint64_t next() noexcept {
        random_ ^= random_ >> 12;
        random_ ^= random_ << 25;
        random_ ^= random_ >> 27;
        return (random_ * 0x2545F4914F6CDD1DU) >> 16;
    }

    inner_queue* inner_;
    io_device_info info_;
    std::shared_ptr<io_faults> faults_;
    std::uint64_t random_;
    std::unique_ptr<pending[]> requests_;
    std::unique_ptr<io_request[]> batch_;
    std::unique_ptr<io_completion[]> held_; ///< finished, not handed out yet
    std::size_t held_count_ = 0;
    fixed_ring<std::size_t> free_;
    fixed_ring<std::uint64_t> hung_; ///< tags
    std::size_t max_in_flight_;
    std::chrono::milliseconds timeout_;
    bool gave_up_ = false;
};

template <io_policy Inner> class faulty<Inner>::device {
    using outer_queue = typename faulty<Inner>::queue;

  public:
    [[nodiscard]] io_device_info device_info() const noexcept { return inner_.device_info(); }
    [[nodiscard]] outer_queue& queue(unsigned i) noexcept { return *queues_[i]; }

    [[nodiscard]] status reserve(std::uint64_t offset, std::uint64_t bytes) noexcept {
        if (offset + bytes > faults_->full_beyond)
            return status::failure(errc::disk_full,
                                   "reserve of %" PRIu64 " bytes at offset %" PRIu64
                                   ": made to fail by io_faults",
                                   bytes, offset);
        return inner_.reserve(offset, bytes);
    }
    void use_arena(std::span<std::byte> arena) noexcept { use_arena_of(inner_, arena); }

  private:
    friend struct faulty<Inner>;
    device(typename Inner::device inner, const config& c, const io_plan& plan)
        : inner_(std::move(inner)), faults_(c.faults ? c.faults : std::make_shared<io_faults>()) {
        for (unsigned i = 0; i < plan.queues; ++i)
            queues_.push_back(std::make_unique<outer_queue>(inner_.queue(i), inner_.device_info(), faults_,
                                                            c.seed + i, plan));
    }

    typename Inner::device inner_; // its queues stay where they are when it moves
    std::shared_ptr<io_faults> faults_;
    std::vector<std::unique_ptr<outer_queue>> queues_;
};

template <io_policy Inner>
result<typename faulty<Inner>::device> faulty<Inner>::open(const config& config, const io_plan& plan) {
    auto inner = Inner::open(config.inner, plan);
    if (!inner) return inner.error();
    return device(*std::move(inner), config, plan);
}

}} // namespace kvtl::v0
