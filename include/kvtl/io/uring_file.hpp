// A cache file read and written through io_uring: one ring per queue, one system call for several requests.
// The only header that includes liburing (2.3 or newer).
//
// submit() hands the kernel as many requests as io_plan.depth allows and holds the rest back; reap() feeds
// them as completions make room. The file is registered. The arena is registered if RLIMIT_MEMLOCK allows it;
// requests with one slice inside it then need no page pinning per transfer. A failed registration is not an
// error; device_info() reports it.
//
// Different threads may use a queue over time, so neither IORING_SETUP_SINGLE_ISSUER nor DEFER_TASKRUN is
// set. COOP_TASKRUN is set if the kernel supports it: completions wait until the thread that submitted enters
// the kernel anyway, and do not interrupt the attention that it computes meanwhile. (If another thread takes
// over the queue, it may wait for that moment, at most a tick of the clock. So a queue should stay with its
// thread.)
//
// A ring belongs to the process that created it: a child of fork() is refused. A device that has no
// completion for io_plan.timeout_ms is given up; kernels before 5.11 wait for ever.
//
// Units: bytes. Cost: one system call for the first two requests of a batch, for four more, and for every
// eight of the rest; one per reap() that has to wait; 88 bytes per slot of the depth. Registering the arena
// brings all of it into memory.
//
// Source: J. Axboe, "Efficient IO with io_uring", 2019.
//
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/io/cache_file.hpp>
#include <kvtl/io/transfer.hpp>
#include <kvtl/slots/io.hpp>
#include <kvtl/status.hpp>

#include <liburing.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvtl { inline namespace v0 {

struct uring_file {
    static constexpr std::string_view name = "uring_file";

    struct config {
        std::string path{};
        bool keep_file = false;     ///< otherwise the file is removed when it is closed
        bool direct = true;         ///< false: through the page cache; device_info().direct says so
        bool register_arena = true; ///< try to; false saves the locked memory
        ::mode_t mode = owner_only; ///< of the file, whatever the umask: 0600 to 0777
    };

    static constexpr unsigned max_depth = 4096;
    /// Requests of the first system call of a batch, and of its later ones.
    static constexpr std::size_t first_call = 2, full_call = 8;
    /// Most that one registered buffer may have.
    static constexpr std::size_t piece_bytes = std::size_t{1} << 30;

    /// Which registered piece of the arena holds the whole slice, or -1.
    [[nodiscard]] static int piece_of(std::span<const std::byte> arena, const ::iovec& slice) noexcept {
        // Integers: the address need not point into the arena. One below it wraps round to a huge offset.
        const auto first =
            reinterpret_cast<std::uintptr_t>(slice.iov_base) - reinterpret_cast<std::uintptr_t>(arena.data());
        const std::size_t last = first + slice.iov_len - 1;
        if (first >= arena.size() || last >= arena.size() || first / piece_bytes != last / piece_bytes)
            return -1;
        return static_cast<int>(first / piece_bytes);
    }

    class queue;
    class device;

    [[nodiscard]] static result<device> open(const config& config, const io_plan& plan);
};

class uring_file::queue {
  public:
    queue(const cache_file& file, const io_plan& plan)
        : file_(file), max_in_flight_(plan.max_in_flight), depth_(std::min(plan.depth, max_depth)),
          timeout_ms_(plan.timeout_ms), held_back_(plan.max_in_flight), refused_(plan.max_in_flight),
          free_(depth_), staged_(depth_), slots_(std::make_unique<transfer[]>(depth_)),
          in_kernel_(std::make_unique<bool[]>(depth_)) {
        for (unsigned i = 0; i < depth_; ++i) free_.push(i);
    }
    queue(const queue&) = delete;
    queue& operator=(const queue&) = delete;

    /// The kernel writes into the caller's memory until a transfer ends, so all of them are waited for.
    ~queue() {
        if (!has_ring_) return;
        std::array<io_completion, 64> sink;
        while (in_flight_ > 0 && reap(sink, true) > 0) {
        }
        ::io_uring_queue_exit(&ring_);
    }

    /// In a child of fork(), instead of the destructor: a ring that stays open holds the file and its lock.
    void leave() noexcept {
        if (has_ring_) ::close(ring_.ring_fd);
    }

    [[nodiscard]] status start() noexcept {
        int why = -EINVAL;
        // TASKRUN_FLAG lets a poll without waiting see that there are completions to collect.
        for (const unsigned flags : {IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG, 0U}) {
            if (why != -EINVAL) break; // the flags came with Linux 5.19
            ::io_uring_params params{};
            params.flags = flags;
            why = ::io_uring_queue_init_params(depth_, &ring_, &params);
        }
        if (why < 0)
            return status::failure(errc::unsupported,
                                   "uring_file: io_uring is refused here: %s%s; use posix_file",
                                   std::strerror(-why), why == -ENOMEM ? " (see ulimit -l)" : "");
        has_ring_ = true;
        const int fd = file_.fd();
        registered_file_ = ::io_uring_register_files(&ring_, &fd, 1) == 0;
        return {};
    }

    [[nodiscard]] bool registered_file() const noexcept { return registered_file_; }

    /// Registers the arena in pieces of the 1 GiB that one registered buffer may have.
    [[nodiscard]] bool register_arena(std::span<std::byte> arena) {
        pieces_.clear();
        for (std::size_t at = 0; at < arena.size(); at += piece_bytes)
            pieces_.push_back({arena.data() + at, std::min(piece_bytes, arena.size() - at)});
        if (::io_uring_register_buffers(&ring_, pieces_.data(), static_cast<unsigned>(pieces_.size())) != 0)
            return false;
        arena_ = arena;
        return true;
    }
    /// False when the kernel keeps it.
    bool forget_arena() noexcept {
        if (arena_.empty()) return true;
        int done = 0;
        do done = ::io_uring_unregister_buffers(&ring_);
        while (done == -EINTR);
        if (done != 0) return false;
        arena_ = {};
        return true;
    }

    [[nodiscard]] status submit(std::span<const io_request> requests) noexcept {
        if (auto s = check_room(in_flight_, requests.size(), max_in_flight_); !s) return s;
        if (!file_.ours())
            return status::failure(
                errc::unsupported,
                "uring_file: this process was forked from the one that opened '%s'; valid: "
                "a cache that it opens itself",
                file_.path().c_str());
        if (broken_ == io_no_answer)
            return status::failure(errc::io_error,
                                   "uring_file: '%s' did not answer within io_timeout_ms = %u; close it",
                                   file_.path().c_str(), timeout_ms_);
        if (broken_ != 0)
            return status::failure(errc::io_error, "uring_file: the ring of '%s' is broken: %s",
                                   file_.path().c_str(), std::strerror(broken_));
        const std::uint64_t size = file_.size();
        for (const io_request& r : requests) {
            const auto [error, bytes] = check_request(r, file_.alignment(), size);
            if (error != 0)
                refused_.push({r.tag, error});
            else
                held_back_.push(transfer(r, bytes));
        }
        in_flight_ += requests.size();
        feed();
        return {};
    }

    [[nodiscard]] std::size_t reap(std::span<io_completion> done, bool wait) noexcept {
        if (in_flight_ == 0 || done.empty()) return 0;
        if (!file_.ours()) give_up(ECHILD); // what completes is the parent's
        std::size_t n = 0;
        for (;;) {
            while (n < done.size() && !refused_.empty()) done[n++] = refused_.pop();
            n += collect(done.subspan(n));
            feed();
            if (n > 0 || !wait) break;
            if (!refused_.empty()) continue; // feed() found the ring broken
            // With nothing in the kernel it refused for lack of memory: let others run and try again.
            if (in_kernel() == 0)
                ::sched_yield();
            else if (const int why = wait_for_one(); why == -ETIME)
                give_up(io_no_answer);
            else if (why < 0 && why != -EINTR && why != -EAGAIN)
                break;
        }
        in_flight_ -= n;
        return n;
    }

    [[nodiscard]] std::size_t in_flight() const noexcept { return in_flight_; }
    [[nodiscard]] io_counters counters() const noexcept { return counters_; }

  private:
    [[nodiscard]] std::size_t in_kernel() const noexcept { return depth_ - free_.size() - staged_.size(); }

    /// 0, or a negative errno: -ETIME when the timeout has passed.
    [[nodiscard]] int wait_for_one() noexcept {
        ::io_uring_cqe* cqe = nullptr;
        if (timeout_ms_ == 0 || (ring_.features & IORING_FEAT_EXT_ARG) == 0)
            return ::io_uring_wait_cqe(&ring_, &cqe);
        ::__kernel_timespec most{timeout_ms_ / 1000, timeout_ms_ % 1000 * 1'000'000LL};
        return ::io_uring_wait_cqe_timeout(&ring_, &cqe, &most);
    }
    /// Ends all transfers in flight with this error. The ring is not used again.
    void give_up(int why) noexcept {
        if (gave_up_) return;
        gave_up_ = true;
        broken_ = why;
        for (unsigned slot = 0; slot < depth_; ++slot)
            if (in_kernel_[slot]) refused_.push({slots_[slot].tag(), why});
        feed(); // those that the kernel does not have
    }

    std::size_t collect(std::span<io_completion> done) noexcept {
        if (gave_up_) return 0;
        std::array<::io_uring_cqe*, 64> cqes;
        std::size_t n = 0;
        while (n < done.size()) {
            const auto room = static_cast<unsigned>(std::min(done.size() - n, cqes.size()));
            const unsigned ready = ::io_uring_peek_batch_cqe(&ring_, cqes.data(), room);
            if (ready == 0) break;
            for (unsigned i = 0; i < ready; ++i) {
                const auto slot = static_cast<unsigned>(cqes[i]->user_data);
                in_kernel_[slot] = false;
                if (slots_[slot].advance(cqes[i]->res, file_.alignment())) {
                    done[n++] = slots_[slot].completion();
                    free_.push(slot);
                } else {
                    stage(slot);
                }
            }
            ::io_uring_cq_advance(&ring_, ready);
        }
        return n;
    }

    /// Moves what was held back into free slots and hands everything staged to the kernel. The first calls
    /// carry few requests, so that the device begins with them while the others are being handed over.
    void feed() noexcept {
        for (std::size_t call = first_call; broken_ == 0; call = std::min(2 * call, full_call)) {
            while (staged_.size() < call && !free_.empty() && !held_back_.empty()) {
                const unsigned slot = free_.pop();
                slots_[slot] = held_back_.pop();
                count(counters_, slots_[slot].verb(), slots_[slot].bytes());
                stage(slot);
            }
            if (staged_.empty()) return;
            const int taken = ::io_uring_submit(&ring_);
            for (int i = 0; i < taken; ++i) in_kernel_[staged_.pop()] = true;
            if (taken == 0 || taken == -EAGAIN || taken == -EBUSY)
                return; // short of memory; the next reap tries again
            if (taken < 0 && taken != -EINTR) broken_ = -taken;
        }
        while (!staged_.empty()) { // a ring that was refused once is not entered again: these never reach the
                                   // kernel
            const unsigned slot = staged_.pop();
            refused_.push({slots_[slot].tag(), broken_});
            free_.push(slot);
        }
        while (!held_back_.empty()) refused_.push({held_back_.pop().tag(), broken_});
    }

    void stage(unsigned slot) noexcept {
        const transfer& t = slots_[slot];
        const ::iovec* slices = t.slices();
        const unsigned count = t.slice_count();
        const bool read = t.verb() == io_verb::read;
        const int fd = registered_file_ ? 0 : file_.fd();
        ::io_uring_sqe* sqe = ::io_uring_get_sqe(&ring_); // there is one: at most depth_ slots are staged
        if (const int piece = count == 1 ? piece_of(arena_, *slices) : -1; piece >= 0) {
            const auto bytes = static_cast<unsigned>(slices->iov_len);
            if (read)
                ::io_uring_prep_read_fixed(sqe, fd, slices->iov_base, bytes, t.offset(), piece);
            else
                ::io_uring_prep_write_fixed(sqe, fd, slices->iov_base, bytes, t.offset(), piece);
        } else {
            if (read)
                ::io_uring_prep_readv(sqe, fd, slices, count, t.offset());
            else
                ::io_uring_prep_writev(sqe, fd, slices, count, t.offset());
        }
        if (registered_file_) ::io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
        ::io_uring_sqe_set_data64(sqe, slot);
        staged_.push(slot);
    }

    const cache_file& file_;
    std::size_t max_in_flight_;
    unsigned depth_;
    std::uint32_t timeout_ms_;
    std::size_t in_flight_ = 0;
    int broken_ = 0; ///< errno of a ring that no longer takes requests
    bool gave_up_ = false;
    bool has_ring_ = false;
    bool registered_file_ = false;
    std::span<std::byte> arena_;  ///< empty: not registered
    std::vector<::iovec> pieces_; ///< of an arena; keeps its memory for the next time
    io_counters counters_;

    fixed_ring<transfer> held_back_;    ///< accepted, no slot yet
    fixed_ring<io_completion> refused_; ///< over before they reached the kernel
    fixed_ring<unsigned> free_;         ///< slots
    fixed_ring<unsigned> staged_;       ///< slots the kernel has not taken yet, in ring order
    std::unique_ptr<transfer[]> slots_; ///< (depth); an SQE's user_data is its index
    std::unique_ptr<bool[]> in_kernel_; ///< (depth)
    ::io_uring ring_{};
};

class uring_file::device {
  public:
    [[nodiscard]] io_device_info device_info() const noexcept {
        const cache_file& file = body_->file;
        return {.name = name.data(),
                .direct = file.direct(),
                .memory_backed = file.memory_backed(),
                .registered_file = body_->queues.front()->registered_file(),
                .registered_arena = body_->registered_arena,
                .alignment = file.alignment(),
                .page = file.page()};
    }
    [[nodiscard]] uring_file::queue& queue(unsigned i) noexcept { return *body_->queues[i]; }
    [[nodiscard]] status reserve(std::uint64_t offset, std::uint64_t bytes) noexcept {
        return body_->file.reserve(offset, bytes);
    }
    /// Pinned in place of the last one, if that is wanted and may be; an empty one pins nothing.
    void use_arena(std::span<std::byte> arena) noexcept {
        bool forgotten = true;
        for (auto& q : body_->queues) forgotten = q->forget_arena() && forgotten;
        body_->registered_arena = !forgotten;
        if (forgotten && body_->wants_arena) body_->register_arena(arena);
    }

  private:
    friend struct uring_file;
    struct body { // queues refer to the file: they go first, and neither moves
        cache_file file;
        std::vector<std::unique_ptr<uring_file::queue>> queues;
        bool wants_arena = false, registered_arena = false;

        explicit body(cache_file f) : file(std::move(f)) {}
        /// What completes is the parent's to collect, not that of a child of fork(), whose copies are left as they are.
        ~body() {
            if (!file.ours())
                for (auto& q : queues) q.release()->leave();
        }

        /// All queues or none, so that device_info() is one answer.
        void register_arena(std::span<std::byte> arena) {
            if (arena.empty() || !may_lock(arena.size() * queues.size())) return;
            registered_arena =
                std::all_of(queues.begin(), queues.end(), [&](auto& q) { return q->register_arena(arena); });
            if (registered_arena) return;
            for (auto& q : queues) q->forget_arena();
        }

        /// Asked first, because the kernel would bring all of the arena into memory before it refuses.
        [[nodiscard]] static bool may_lock(std::size_t bytes) noexcept {
            ::__user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
            std::array<::__user_cap_data_struct, 2> held{};
            if (::syscall(SYS_capget, &header, held.data()) == 0 &&
                (held[0].effective & (1U << CAP_IPC_LOCK)) != 0)
                return true;
            struct ::rlimit allowed {};
            return ::getrlimit(RLIMIT_MEMLOCK, &allowed) == 0 && bytes <= allowed.rlim_cur;
        }
    };
    explicit device(std::unique_ptr<body> b) : body_(std::move(b)) {}
    std::unique_ptr<body> body_;
};

[[gnu::cold]] inline result<uring_file::device> uring_file::open(const config& config, const io_plan& plan) {
    auto file = cache_file::open({config.path, config.keep_file, config.direct, config.mode}, plan);
    if (!file) return file.error();
    auto body = std::make_unique<device::body>(*std::move(file));
    for (unsigned i = 0; i < plan.queues; ++i) {
        body->queues.push_back(std::make_unique<queue>(body->file, plan));
        if (auto s = body->queues.back()->start(); !s) return s;
    }
    body->wants_arena = config.register_arena;
    if (config.register_arena) body->register_arena(plan.arena);
    return device(std::move(body));
}

static_assert(io_policy<uring_file>);

}} // namespace kvtl::v0
