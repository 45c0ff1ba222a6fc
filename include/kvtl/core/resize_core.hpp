// A cache that is open takes less memory, or again what it took before: its frames are what can be fewer.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/open_core.hpp>
#include <kvtl/status.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace kvtl { inline namespace v0 {

/// memory_bytes from now on; the caller holds all shards. When a write fails there are as many frames as before, some of
/// them empty.
template <class Core>
[[nodiscard, gnu::cold]] status resize_core(Core& core, std::size_t memory_bytes) noexcept {
    if constexpr (!Core::types::retrieves) {
        static_cast<void>(core), static_cast<void>(memory_bytes);
        return status::failure(errc::unsupported,
                               "resize: nothing of this cache lies on storage, all of its memory is in use");
    } else {
        frame_range& r = core.frames;
        if (r.in_turn)
            return status::failure(
                errc::unsupported,
                "resize: the layers of this cache have its memory in turn, all of it is in use");
        const std::size_t all = core.parts.total() + (r.most - r.now) * r.bytes,
                          least = all - (r.most - r.fewest) * r.bytes;
        if (memory_bytes < least || memory_bytes > std::max(all, r.memory_bytes))
            return status::failure(
                memory_bytes < least ? errc::bound_too_small : errc::out_of_range,
                "resize: memory_bytes is %zu; valid: %zu, with the fewest frames, to %zu, with "
                "which the cache was opened",
                memory_bytes, least, std::max(all, r.memory_bytes));
        const std::size_t less = memory_bytes >= all ? 0 : (all - memory_bytes + r.bytes - 1) / r.bytes;
        const auto frames = static_cast<std::uint32_t>(r.most - less);
        if (frames == r.now) return {};
        for (auto& shard : core.shards)
            if (status s = shard.retrieved().empty_frames(); !s) return s;
        // What a device has pinned of the memory would stay, and other pages come in its place.
        use_arena_of(core.storage.device, {});
        for (auto& shard : core.shards) shard.retrieved().limit_frames(frames);
        if (frames == r.most) use_arena_of(core.storage.device, core.arena);
        core.parts.frames = core.parts.frames + frames * r.bytes - r.now * r.bytes;
        r.now = frames;
        return {};
    }
}

}} // namespace kvtl::v0
