// What can be asked about a cache before there is one: the config that fits, the least memory, the most storage.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/open_core.hpp>
#include <kvtl/core/plan/planner.hpp>
#include <kvtl/statistics.hpp>
#include <kvtl/status.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace kvtl { inline namespace v0 {

/// A part of kv_manager's interface; all of it cold.
template <class Preset> class cache_sizes {
  public:
    using config = cache_config<Preset>;

    /// The config with the largest index that takes at most half of memory_bytes, calibration included: the preset's size
    /// knobs are turned down in its published order (`Preset::shrink`) until it does. Without knobs, or when even the
    /// smallest is too large or its units would leave nothing to choose, the last that may be comes back and open() decides.
    [[nodiscard, gnu::cold]] static result<config> fitted(config c) {
        bool valid = false; // something that can be planned has been found
        if constexpr (requires { Preset::shrink(c); })
            for (config next = c;; valid = true) {
                const auto least = least_plan(next);
                if (!least) return valid ? result<config>(c) : least.error();
                c = next;
                if (least->index_fits(c.memory_bytes) || !Preset::shrink(next)) break;
            }
        return c;
    }

    /// The smallest memory_bytes that open() accepts on a device with pages of 4 KiB.
    [[nodiscard, gnu::cold]] static result<std::size_t> least_memory(const config& c) {
        const auto parts = least_parts(c);
        if (!parts) return parts.error();
        return parts->total();
    }
    /// What each part takes of it. memory_bytes does not matter.
    [[nodiscard, gnu::cold]] static result<memory_parts> least_parts(const config& c) {
        auto planned = least_plan(c);
        if (!planned) return planned.error();
        return planned->parts;
    }
    /// Bytes of the file beyond which decode adds no units; 0 where all is in memory. Uneven clusters of a prompt take more.
    [[nodiscard, gnu::cold]] static result<std::uint64_t> storage_bytes(const config& c) {
        auto planned = least_plan(c);
        if (!planned) return planned.error();
        return std::uint64_t{planned->plan.division.shards} * planned->plan.grow_pages * planned->page_bytes;
    }

  private:
    using planner_type = planner<Preset>;

    [[nodiscard, gnu::cold]] static result<typename planner_type::answer> least_plan(config c) {
        auto g = geometry::from(c.shape, c.attention.scale);
        if (!g) return g.error();
        auto bases = open_calibration<Preset>(c, *g);
        if (!bases) return bases.error();
        c.memory_bytes = 1;
        return planner_type::least(c, *g, 4096, bases->bytes());
    }
};

}} // namespace kvtl::v0
