// Threads that an engine lends to a call: kvtl starts no threads for computation.
//
// What:   shards divide heads or sequences among threads (config.shards). If there are more threads than
//         shards, the clustering of a prompt, which takes most of a prefill, is divided within a head:
//         k-means assigns rows on the lent threads. The number of threads does not change the bits of the
//         result.
// Cost:   one call of `run` when a cache is opened; then one per iteration of k-means and, if the sample is
//         large enough, one per seed. No cost outside of prompts.
//
//   c.threads = {.run = [](void* pool, std::size_t n, auto task, void* with) noexcept { ... }, .pool = &mine, .count = 4};
//
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/status.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <type_traits>

namespace kvtl { inline namespace v0 {

struct lent_threads {
    using task = void (*)(void* with, std::size_t i) noexcept;

    /// Calls f(with, i) once for each i < n, on any threads, and returns when all calls have returned.
    /// Threads of several shards may call it at the same time. It may also make all calls on the calling
    /// thread. Null: no threads are lent.
    void (*run)(void* pool, std::size_t n, task f, void* with) noexcept = nullptr;
    void* pool = nullptr; ///< first argument of `run`; must outlive the cache
    unsigned count = 0;   ///< threads that a call may find free, its own included; at least 1 if `run` is set

    /// Tests `run` on a few pieces. A `run` that skips pieces would leave entries without a cluster. Cold.
    [[nodiscard, gnu::cold]] status check() const noexcept {
        if (run == nullptr) return {};
        if (count == 0)
            return status::failure(errc::invalid_argument, "threads.count is 0; valid: 1 or more");
        constexpr std::size_t pieces = 8;
        std::array<std::atomic<unsigned>, pieces> done{};
        run(
            pool, pieces,
            [](void* with, std::size_t i) noexcept {
                if (i < pieces) ++(*static_cast<std::array<std::atomic<unsigned>, pieces>*>(with))[i];
            },
            &done);
        for (std::size_t i = 0; i < pieces; ++i)
            if (const unsigned times = done[i]; times != 1)
                return status::failure(
                    errc::invalid_argument,
                    "threads.run did piece %zu of %zu %u times; valid: once each, all of them "
                    "before it returns",
                    i, pieces, times);
        return {};
    }

    /// Number of parts into which `n` equal pieces of work should be divided, with at least `least` pieces
    /// each.
    [[nodiscard]] std::size_t parts(std::size_t n, std::size_t least) const noexcept {
        if (run == nullptr || count <= 1 || n < 2 * least) return 1;
        return n / least < count ? n / least : count;
    }
    /// Calls f(first, end) in parallel for `parts` nearly equal parts of [0, n).
    template <class F> void divide(std::size_t n, std::size_t parts, const F& f) const noexcept {
        static_assert(std::is_nothrow_invocable_v<const F&, std::size_t, std::size_t>);
        if (parts <= 1) return f(std::size_t{0}, n);
        struct work {
            const F* f;
            std::size_t n, parts;
        } all{&f, n, parts};
        run(
            pool, parts,
            [](void* with, std::size_t i) noexcept {
                const work& w = *static_cast<const work*>(with);
                (*w.f)(w.n * i / w.parts, w.n * (i + 1) / w.parts);
            },
            &all);
    }
};
static_assert(std::is_trivially_copyable_v<lent_threads>);

}} // namespace kvtl::v0
