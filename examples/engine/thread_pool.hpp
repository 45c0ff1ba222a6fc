// The engine's worker threads. kvtl has none of its own: the engine calls it from these, one per shard.
//
// parallel(n, f) calls f(0) ... f(n-1), each once, on the pool and on the calling thread, and returns when
// all are done. Which thread runs which index is not defined, so f must give the same result on any of them.
// lend() lets a cache share work that a thread of the pool is in the middle of: the pool does it if it is idle, else that
// thread does it alone.
// Who waits spins for about a tenth of a millisecond before it sleeps: a layer has many short jobs, parts of one job end
// tens of microseconds apart, and to be woken takes as long.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/lent_threads.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace engine {

class thread_pool {
  public:
    /// `threads` includes the caller: 1 starts none.
    explicit thread_pool(unsigned threads) {
        for (unsigned i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
    }
    ~thread_pool() {
        stop_ = true;
        announce();
        for (auto& w : workers_) w.join();
    }
    thread_pool(const thread_pool&) = delete;
    thread_pool& operator=(const thread_pool&) = delete;

    [[nodiscard]] unsigned size() const noexcept { return static_cast<unsigned>(workers_.size()) + 1; }

    template <class F> void parallel(std::size_t n, const F& f) {
        static_assert(std::is_nothrow_invocable_v<const F&, std::size_t>, "an exception would end a worker");
        if (workers_.empty() || n <= 1) {
            for (std::size_t i = 0; i < n; ++i) f(i);
            return;
        }
        busy_ = true;
        start(n, f);
        busy_ = false;
    }

    /// For a cache that this pool outlives.
    [[nodiscard]] kvtl::lent_threads lend() noexcept {
        return {.run =
                    [](void* pool, std::size_t n, kvtl::lent_threads::task f, void* with) noexcept {
                        static_cast<thread_pool*>(pool)->share(n,
                                                               [&](std::size_t i) noexcept { f(with, i); });
                    },
                .pool = this,
                .count = size()};
    }

  private:
    /// parallel(), from any thread at any time.
    template <class F> void share(std::size_t n, const F& f) noexcept {
        if (bool idle = false; n <= 1 || workers_.empty() || !busy_.compare_exchange_strong(idle, true)) {
            for (std::size_t i = 0; i < n; ++i) f(i);
            return;
        }
        start(n, f);
        busy_ = false;
    }
    /// `busy_` is ours.
    template <class F> void start(std::size_t n, const F& f) noexcept {
        call_ = [](const void* function, std::size_t i) noexcept { (*static_cast<const F*>(function))(i); };
        function_ = &f;
        unfinished_ = static_cast<std::int64_t>(n);
        unclaimed_ = static_cast<std::int64_t>(n); // publishes the job
        announce();
        drain();
        for (auto left = unfinished_.load(); left != 0;) left = pause_until(unfinished_, left);
    }
    void announce() {
        ++epoch_;
        epoch_.notify_all();
    }

    /// A positive claim belongs to the published job, and that job stays until all its claims are finished. A
    /// worker that comes late claims nothing, or a part of the next job; nobody waits for it.
    void drain() noexcept {
        for (auto left = unclaimed_--; left > 0; left = unclaimed_--) {
            call_(function_, static_cast<std::size_t>(left - 1));
            if (--unfinished_ == 0) unfinished_.notify_one();
        }
    }

    void work() noexcept {
        for (std::uint32_t seen = 0;;) {
            seen = pause_until(epoch_, seen);
            if (stop_) return; // it was set before the epoch that announced it
            drain();
        }
    }

    static constexpr int spins = 4000; ///< of 20 to 50 ns on x86-64
    /// Leaves a core to whoever shares it, for a moment.
    static void relax() noexcept {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        asm volatile("isb"); // `yield` returns at once on most cores
#endif
    }

    /// Waits until `value` is no longer `old` and returns what it became.
    template <class T> static T pause_until(const std::atomic<T>& value, T old) noexcept {
        for (int spin = 0; spin < spins; ++spin, relax())
            if (const T now = value; now != old) return now;
        value.wait(old);
        return value;
    }

    std::atomic<std::uint32_t> epoch_ = 0;
    std::atomic<std::int64_t> unclaimed_ = 0;  ///< indices of the job nobody has taken yet, or less than 0
    std::atomic<std::int64_t> unfinished_ = 0; ///< indices whose call has not returned
    std::atomic<bool> stop_ = false;
    std::atomic<bool> busy_ = false; ///< a job is under way
    void (*call_)(const void*, std::size_t) noexcept = nullptr;
    const void* function_ = nullptr;
    std::vector<std::thread> workers_; // last: the threads use everything above
};

} // namespace engine
