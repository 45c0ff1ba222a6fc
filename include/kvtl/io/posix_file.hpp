// A cache file read and written by a small pool of threads per queue: works on every Linux, also where
// io_uring is not allowed.
//
// Each queue has its own threads and its own lock, so queues never wait for each other. A worker takes one
// request at a time: the reads of one submit() spread over all workers of the queue, and `threads` is how
// many the device sees at once (io_plan.depth is not used).
//
// Units: bytes. Cost: per request two short locked sections, one preadv or pwritev, at worst two wake-ups.
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
        bool keep_file = false; ///< otherwise the file is removed when it is closed
        bool direct = true;     ///< false: through the page cache; facts().direct says so
        unsigned threads = 2;   ///< workers per queue
    };

    class queue;
    class device;

    [[nodiscard]] static result<device> open(const config& config, const io_plan& plan);
};

class posix_file::queue {
  public:
    queue(const cache_file& file, std::size_t max_in_flight)
        : file_(file), max_in_flight_(max_in_flight), waiting_(max_in_flight), done_(max_in_flight) {}
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
        const std::uint64_t size = file_.size();
        {
            const std::lock_guard lock(mutex_);
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
        std::unique_lock lock(mutex_);
        if (wait && done_.empty()) {
            reaper_waits_ = true;
            landed_.wait(lock, [this] { return !done_.empty(); });
            reaper_waits_ = false;
        }
        const std::size_t n = std::min(done.size(), done_.size());
        for (std::size_t i = 0; i < n; ++i) done[i] = done_.pop();
        in_flight_ -= n;
        return n;
    }

    [[nodiscard]] std::size_t in_flight() const noexcept { return in_flight_; }
    [[nodiscard]] io_counters counters() const noexcept { return counters_; }

  private:
    void work() noexcept {
        std::unique_lock lock(mutex_);
        for (;;) {
            work_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
            if (waiting_.empty()) return;
            transfer t = waiting_.pop();
            lock.unlock();
            run(t);
            lock.lock();
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
    std::size_t in_flight_ = 0; ///< this and the counters belong to the thread that uses the queue
    io_counters counters_;

    std::mutex mutex_; ///< guards what follows
    std::condition_variable work_;
    std::condition_variable landed_;
    fixed_ring<transfer> waiting_;
    fixed_ring<io_completion> done_;
    bool reaper_waits_ = false;
    bool stopping_ = false;
    std::vector<::pthread_t> workers_;
};

class posix_file::device {
  public:
    [[nodiscard]] io_facts facts() const noexcept {
        const cache_file& file = body_->file;
        return {
            .name = name.data(), .direct = file.direct(), .alignment = file.alignment(), .page = file.page()};
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
    explicit device(std::unique_ptr<body> b) : body_(std::move(b)) {}
    std::unique_ptr<body> body_;
};

[[gnu::cold]] inline result<posix_file::device> posix_file::open(const config& config, const io_plan& plan) {
    if (config.threads == 0 || config.threads > 256)
        return status::failure(errc::invalid_argument, "io.threads is %u; valid: 1 to 256", config.threads);
    auto file = cache_file::open({config.path, config.keep_file, config.direct}, plan);
    if (!file) return file.error();
    auto body = std::make_unique<device::body>(*std::move(file));
    for (unsigned i = 0; i < plan.queues; ++i) {
        body->queues.push_back(std::make_unique<queue>(body->file, plan.max_in_flight));
        if (auto s = body->queues.back()->start(config.threads); !s) return s;
    }
    return device(std::move(body));
}

static_assert(io_policy<posix_file>);

}} // namespace kvtl::v0
