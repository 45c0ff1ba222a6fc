// Threads that an engine lends to a call: kvtl has none of its own.
//
// What:   shards divide heads or sequences among threads (config.shards). Where there are fewer of them than threads, the
//         clustering of a prompt, which takes most of the time of taking it in, is divided within a head: k-means hands the rows
//         that it assigns to whoever is lent. The same bits, however many there are.
// Cost:   a call of `run` when a cache is opened, then one per iteration of k-means and, where the sample is large enough, per
//         seed; nothing outside of prompts.
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

    /// Calls task(with, i) once for each i < n, on any threads, and returns when all have returned. It comes from whichever
    /// thread is in a shard, from those of several shards at once, and may do all of it there itself. Null: none are lent.
    void (*run)(void* pool, std::size_t n, task f, void* with) noexcept = nullptr;
    void* pool = nullptr; ///< what `run` gets; outlives the cache
    unsigned count =
        0; ///< of threads that a call may find free, its own included; 1 or more where run is set

    /// Tries `run` with a few pieces: one that leaves some undone would leave entries without a cluster. Cold.
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

    /// Parts worth making of `n` equal pieces of work, of which a part has `least` or more.
    [[nodiscard]] std::size_t parts(std::size_t n, std::size_t least) const noexcept {
        if (run == nullptr || count <= 1 || n < 2 * least) return 1;
        return n / least < count ? n / least : count;
    }
    /// f(first, end) for `parts` nearly equal parts of [0, n), side by side.
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
