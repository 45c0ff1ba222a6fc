// A cache file that a small pool of threads per queue reads and writes. It works on every Linux, also where
// io_uring is not allowed.
//
// Each queue has its own threads and its own lock, so queues never wait for each other. A worker takes one
// request at a time, so the reads of one submit() spread over all workers of the queue. The device sees at
// most `threads` requests at once (io_plan.depth is not used).
//
// A transfer that never ends cannot be cancelled. When io_plan.timeout_ms have passed, its worker and the
// file that it reads remain when the device is destroyed.
//
// Units: bytes. Cost: per request two short locked sections, one preadv or pwritev, and at worst two
// wake-ups.
//
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/io/cache_file.hpp>
#include <kvtl/io/transfer.hpp>
#include <kvtl/slots/io.hpp>
#include <kvtl/status.hpp>

#include <pthread.h>
#include <signal.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvtl { inline namespace v0 {

struct posix_file {
    static constexpr std::string_view name = "posix_file";

    struct config {
        std::string path{};
        bool keep_file = false;     ///< otherwise the file is removed when it is closed
        bool direct = true;         ///< false: through the page cache; device_info().direct says so
        unsigned threads = 2;       ///< workers per queue
        ::mode_t mode = owner_only; ///< of the file, whatever the umask: 0600 to 0777
    };

    class queue;
    class device;

    [[nodiscard]] static result<device> open(const config& config, const io_plan& plan);
};

class posix_file::queue {
  public:
    queue(const cache_file& file, const io_plan& plan)
        : file_(file), max_in_flight_(plan.max_in_flight), timeout_(plan.timeout_ms),
          waiting_(plan.max_in_flight), done_(plan.max_in_flight) {}
    queue(const queue&) = delete;
    queue& operator=(const queue&) = delete;

    /// Finishes what was submitted, then ends the workers.
    ~queue() {
        {
            const std::lock_guard lock(mutex_);
            stopping_ = true;
        }
        work_.notify_all();
        for (const ::pthread_t worker : workers_) ::pthread_join(worker, nullptr);
    }

    /// pthread_create rather than std::thread: the latter reports failure by throwing.
    [[nodiscard]] status start(unsigned threads) {
        workers_.reserve(threads);
        running_.resize(threads);
        ::sigset_t all; // signals are for the program's own threads
        ::sigset_t before;
        ::sigfillset(&all);
        ::pthread_sigmask(SIG_SETMASK, &all, &before);
        int why = 0;
        while (why == 0 && workers_.size() < threads) {
            ::pthread_t worker{};
            const auto entry = [](void* self) -> void* {
                static_cast<queue*>(self)->work();
                return nullptr;
            };
            why = ::pthread_create(&worker, nullptr, entry, this);
            if (why == 0) workers_.push_back(worker);
        }
        ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
        if (why == 0) return {};
        return status::failure(errc::unsupported, "posix_file: thread %zu of %u of a queue cannot start: %s",
                               workers_.size() + 1, threads, std::strerror(why));
    }

    [[nodiscard]] status submit(std::span<const io_request> requests) noexcept {
        if (auto s = check_room(in_flight_, requests.size(), max_in_flight_); !s) return s;
        if (requests.empty()) return {};
        if (!file_.ours())
            return status::failure(
                errc::unsupported,
                "posix_file: this process was forked from the one that opened '%s'; valid: "
                "a cache that it opens itself",
                file_.path().c_str());
        const std::uint64_t size = file_.size();
        {
            const std::lock_guard lock(mutex_);
            if (gave_up_)
                return status::failure(
                    errc::io_error, "posix_file: '%s' did not answer within io_timeout_ms = %lld; close it",
                    file_.path().c_str(), static_cast<long long>(timeout_.count()));
            for (const io_request& r : requests) {
                const auto [error, bytes] = check_request(r, file_.alignment(), size);
                if (error != 0) {
                    done_.push({r.tag, error});
                } else {
                    waiting_.push(transfer(r, bytes));
                    count(counters_, r.verb, bytes);
                }
            }
        }
        in_flight_ += requests.size();
        if (requests.size() == 1)
            work_.notify_one();
        else
            work_.notify_all();
        return {};
    }

    [[nodiscard]] std::size_t reap(std::span<io_completion> done, bool wait) noexcept {
        if (in_flight_ == 0 || done.empty()) return 0;
        if (!file_.ours()) return abandon(done);
        std::unique_lock lock(mutex_);
        if (wait && done_.empty()) {
            reaper_waits_ = true;
            const auto some = [this] { return !done_.empty(); };
            if (timeout_.count() == 0)
                landed_.wait(lock, some);
            else if (!landed_.wait_for(lock, timeout_, some))
                give_up();
            reaper_waits_ = false;
        }
        const std::size_t n = std::min(done.size(), done_.size());
        for (std::size_t i = 0; i < n; ++i) done[i] = done_.pop();
        in_flight_ -= n;
        return n;
    }

    [[nodiscard]] std::size_t in_flight() const noexcept { return in_flight_; }
    [[nodiscard]] io_counters counters() const noexcept { return counters_; }
    /// Waits until nothing is under way, or until it is given up.
    void land_all() noexcept {
        std::array<io_completion, 16> some;
        while (in_flight_ > 0) static_cast<void>(reap(some, true));
    }
    /// A worker is in a transfer that was given up.
    [[nodiscard]] bool stuck() noexcept {
        const std::lock_guard lock(mutex_);
        return gave_up_ &&
               std::any_of(running_.begin(), running_.end(), [](const seat& s) { return s.taken; });
    }

  private:
    /// The state of a worker.
    struct seat {
        bool taken = false;
        std::uint64_t tag = 0;
    };

    /// In a child of fork(), which has no workers and whose only thread this is: nothing comes any more.
    std::size_t abandon(std::span<io_completion> done) noexcept {
        if (!gave_up_) give_up();
        const std::size_t n = std::min(done.size(), done_.size());
        for (std::size_t i = 0; i < n; ++i) done[i] = done_.pop();
        in_flight_ -= n;
        return n;
    }
    void give_up() noexcept {
        gave_up_ = true;
        while (!waiting_.empty()) done_.push({waiting_.pop().tag(), io_no_answer});
        for (const seat& s : running_)
            if (s.taken) done_.push({s.tag, io_no_answer});
    }
    void work() noexcept {
        std::unique_lock lock(mutex_);
        seat& mine = running_[seats_++];
        for (;;) {
            work_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
            if (waiting_.empty()) return;
            transfer t = waiting_.pop();
            mine = {true, t.tag()};
            lock.unlock();
            run(t);
            lock.lock();
            mine.taken = false;
            if (gave_up_) continue; // told long ago
            done_.push(t.completion());
            if (reaper_waits_) landed_.notify_one();
        }
    }

    void run(transfer& t) const noexcept {
        std::int64_t outcome = 0;
        do {
            const auto slices = static_cast<int>(t.slice_count());
            const auto offset = static_cast<::off_t>(t.offset());
            outcome = t.verb() == io_verb::read ? ::preadv(file_.fd(), t.slices(), slices, offset)
                                                : ::pwritev(file_.fd(), t.slices(), slices, offset);
            if (outcome < 0) outcome = -errno;
        } while (!t.advance(outcome, file_.alignment()));
    }

    const cache_file& file_;
    std::size_t max_in_flight_;
    std::chrono::milliseconds timeout_;
    std::size_t in_flight_ = 0; ///< this and the counters belong to the thread that uses the queue
    io_counters counters_;

    std::mutex mutex_; ///< guards what follows
    std::condition_variable work_;
    std::condition_variable landed_;
    fixed_ring<transfer> waiting_;
    fixed_ring<io_completion> done_;
    bool reaper_waits_ = false;
    bool stopping_ = false;
    bool gave_up_ = false;
    std::vector<seat> running_; ///< by worker
    std::size_t seats_ = 0;     ///< of workers that have begun
    std::vector<::pthread_t> workers_;
};

class posix_file::device {
  public:
    [[nodiscard]] io_device_info device_info() const noexcept {
        const cache_file& file = body_->file;
        return {.name = name.data(),
                .direct = file.direct(),
                .memory_backed = file.memory_backed(),
                .alignment = file.alignment(),
                .page = file.page()};
    }
    [[nodiscard]] posix_file::queue& queue(unsigned i) noexcept { return *body_->queues[i]; }
    [[nodiscard]] status reserve(std::uint64_t offset, std::uint64_t bytes) noexcept {
        return body_->file.reserve(offset, bytes);
    }

  private:
    friend struct posix_file;
    struct body { // queues refer to the file: they go first, and neither moves
        cache_file file;
        std::vector<std::unique_ptr<posix_file::queue>> queues;
        explicit body(cache_file f) : file(std::move(f)) {}
        /// In a child of fork() there are no workers to end, and whoever held the locks is not there: left as they are.
        ~body() {
            if (!file.ours())
                for (auto& q : queues) static_cast<void>(q.release());
        }
    };
    /// Leaves everything that a worker still uses.
    struct closer {
        void operator()(body* b) const noexcept {
            if (b->file.ours())
                for (auto& q : b->queues) q->land_all();
            const bool stuck = b->file.ours() && std::any_of(b->queues.begin(), b->queues.end(),
                                                             [](auto& q) { return q->stuck(); });
            if (stuck)
                b->file.leave_path();
            else
                delete b;
        }
    };
    using owner = std::unique_ptr<body, closer>;
    explicit device(owner b) : body_(std::move(b)) {}
    owner body_;
};

[[gnu::cold]] inline result<posix_file::device> posix_file::open(const config& config, const io_plan& plan) {
    if (config.threads == 0 || config.threads > 256)
        return status::failure(errc::invalid_argument, "io.threads is %u; valid: 1 to 256", config.threads);
    auto file = cache_file::open({config.path, config.keep_file, config.direct, config.mode}, plan);
    if (!file) return file.error();
    device::owner body(new device::body(*std::move(file)));
    for (unsigned i = 0; i < plan.queues; ++i) {
        body->queues.push_back(std::make_unique<queue>(body->file, plan));
        if (auto s = body->queues.back()->start(config.threads); !s) return s;
    }
    return device(std::move(body));
}

static_assert(io_policy<posix_file>);

}} // namespace kvtl::v0
