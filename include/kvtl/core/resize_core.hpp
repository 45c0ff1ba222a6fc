// A cache that is open takes less memory, or again what it took before: its frames are what can be fewer. And sequences divide
// them by weight.
//
// What:   of each pool the last frames go. Units that lie in them leave, unfinished pages move to others, and the system gets
//         the memory. What says how things are (tables, records of all frames, transfer plans) stays as it is.
// Errors: a write that has failed, a device that keeps memory pinned and a system that does not take it back are found
//         before anything is given up for good: frames are as many as they were.
// Cost:   waits for all transfers that are under way; a pass over the records of frames; a system call or two per pool.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/cache_core.hpp>
#include <kvtl/statistics.hpp>
#include <kvtl/status.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace kvtl { inline namespace v0 {

/// The bytes that resize_core() takes: all the same where nothing can be given up.
[[nodiscard, gnu::cold]] inline memory_range memory_range_of(const frame_range& r, std::size_t now) noexcept {
    const std::size_t all = now + (r.most - r.now) * r.bytes;
    return {all - (r.most - r.fewest) * r.bytes, now, std::max(all, r.memory_bytes)};
}

/// Each pool of a shard has the frames that are its part. False when the system does not take the memory of those that go.
template <element E>
[[nodiscard, gnu::cold]] bool limit_frames(cache_core<E>& core, unsigned shard, const rare_shard_calls& rare,
                                           bool large) noexcept {
    return rare.limit_frames(*core.shards[shard], core.frames.now, core.shares.divide(core.frames, shard),
                             large);
}

/// A sequence has this weight from now on, and all that are in its shards their part of the frames; the caller holds these shards,
/// or all of them, in which sequences get their parts then. 0: it ends, and the frames are divided as soon as that is
/// possible. After another error weights are as they were.
template <element E>
[[nodiscard, gnu::cold]] status weigh_sequence(cache_core<E>& core, const char* call, std::uint32_t slot,
                                               float weight, bool everywhere = false) noexcept {
    const rare_shard_calls* const rare = core.shares.calls();
    if (rare == nullptr) return {};
    const float before = core.shares.weight(slot);
    core.shares.set_weight(slot, weight);
    status done;
    const auto of_each = [&](auto&& f) {
        for (unsigned s = 0; s < core.calls.shards; ++s)
            if (everywhere || core.owns(slot, s)) f(s);
    };
    of_each([&](unsigned s) {
        if (done.ok()) done = rare->come_to_rest(*core.shards[s]);
    });
    const auto divide = [&] {
        bool taken = true;
        of_each([&](unsigned s) { taken = limit_frames(core, s, *rare, core.memory.is_large()) && taken; });
        return taken;
    };
    if (done.ok() && !divide())
        done =
            status::failure(errc::unsupported,
                            "%s: the system does not take memory of frames back, as when it is locked", call);
    if (done.ok() || weight == 0) return done;
    core.shares.set_weight(slot, before);
    if (done.code() == errc::unsupported) static_cast<void>(divide());
    return done;
}

/// memory_bytes from now on; the caller holds all shards.
template <element E>
[[nodiscard, gnu::cold]] status resize_core(cache_core<E>& core, std::size_t memory_bytes,
                                            const rare_shard_calls& rare) noexcept {
    frame_range& r = core.frames;
    if (r.most == 0)
        return status::failure(errc::unsupported,
                               "resize: nothing of this cache lies on storage, all of its memory is in use");
    if (r.in_turn)
        return status::failure(
            errc::unsupported,
            "resize: the layers of this cache have its memory in turn, all of it is in use");
    const memory_range may = memory_range_of(r, core.parts.total());
    if (memory_bytes < may.least || memory_bytes > may.most)
        return status::failure(
            memory_bytes < may.least ? errc::bound_too_small : errc::out_of_range,
            "resize: memory_bytes is %zu; valid: %zu, with the fewest frames, to %zu, with "
            "which the cache was opened",
            memory_bytes, may.least, may.most);
    const std::size_t all = may.now + (r.most - r.now) * r.bytes,
                      less = memory_bytes >= all ? 0 : (all - memory_bytes + r.bytes - 1) / r.bytes;
    const auto frames = static_cast<std::uint32_t>(r.most - less);
    if (frames == r.now) return {};
    for (shard_base* shard : core.shards)
        if (status s = rare.come_to_rest(*shard); !s) return s;
    const bool large = core.memory.is_large();
    if (frames < r.now) {
        core.use_arena({});
        if (core.device_info().registered_arena)
            return status::failure(errc::unsupported,
                                   "resize: the device %s keeps the memory pinned (io.register_arena = false "
                                   "would not)",
                                   core.device_info().name);
    }
    bool taken = true;
    const std::uint32_t before = std::exchange(r.now, frames);
    for (unsigned s = 0; s < core.calls.shards; ++s) taken = limit_frames(core, s, rare, large) && taken;
    if (!taken) { // all of it is there still
        r.now = before;
        for (unsigned s = 0; s < core.calls.shards; ++s)
            static_cast<void>(limit_frames(core, s, rare, large));
    }
    if (r.now == r.most) core.use_arena(core.arena);
    if (!taken)
        return status::failure(errc::unsupported,
                               "resize: the system does not take memory back, as when it is locked");
    core.parts.frames = core.parts.frames + frames * r.bytes - before * r.bytes;
    return {};
}

}} // namespace kvtl::v0
