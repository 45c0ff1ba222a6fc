// A replacement policy that wraps another one, decides exactly as that does, and writes down what it was
// told.
//
//   decision_log log;
//   struct observed : kvtl::presets::dynakv { using replacement = bench::traced<kvtl::cluster_aligned>; };
//   config.replacement.log = &log;   // of kv_manager<observed, ...>
//
// The log belongs to whoever opened the cache and outlives it. It also holds the names behind the handles, so
// that the wrapped policy gets the memory, and the cache the frames, that they have without it (but for 8 bytes). What is
// written is what a policy can know: units that were asked for (and whether they were there), units that were
// written to, units that left. Whoever drives the cache adds where one attend() ends and the next begins,
// since tick() falls into the middle of a token's first layer.
//
// Units:  lanes and units as the manager numbers them, sizes in frames. One shard.
// Cost:   16 bytes per event, from the heap: this is for measuring, not for use.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/replacement.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace bench {

/// The unit of a lane, as one number.
[[nodiscard]] constexpr std::uint64_t unit_key(std::uint32_t lane, std::uint32_t unit) noexcept {
    return std::uint64_t{lane} << 32 | unit;
}

enum class decision : std::uint8_t {
    call,  ///< attend() of the layer `lane` at step `unit` begins (written by the driver)
    tick,  ///< a token is complete, as far as the policy is told
    hit,   ///< asked for, and resident
    miss,  ///< asked for, and read
    wrote, ///< received entries or was split; resident from here on
    left,  ///< evicted, or taken apart by a split (then `wrote` follows)
};

struct decision_event {
    decision what = decision::tick;
    std::uint32_t lane = 0;
    std::uint32_t unit = 0;
    std::uint32_t frames = 0;
    friend bool operator==(const decision_event&, const decision_event&) = default;
};

class decision_log {
  public:
    [[nodiscard]] std::span<const decision_event> events() const noexcept { return events_; }
    /// Frames of the cache that was logged.
    [[nodiscard]] std::uint32_t frames() const noexcept { return static_cast<std::uint32_t>(name_.size()); }

    void begin_call(std::uint32_t step, std::uint32_t layer) {
        events_.push_back({decision::call, layer, step, 0});
    }

    // What traced<> calls. Handles are numbered through over all pools of the cache.
    [[nodiscard]] std::uint32_t open_pool(std::uint32_t handles) {
        const std::uint32_t first = frames();
        name_.resize(name_.size() + handles);
        return first;
    }
    void tick() { events_.push_back({}); }
    void enter(std::uint32_t handle, const kvtl::resident_facts& facts) {
        name_[handle] = facts;
        add(facts.updated ? decision::wrote : decision::miss, handle);
    }
    void add(decision what, std::uint32_t handle) {
        const kvtl::resident_facts& f = name_[handle];
        events_.push_back({what, f.lane, f.unit, f.pages});
    }

  private:
    std::vector<decision_event> events_;
    std::vector<kvtl::resident_facts> name_; ///< (handles) who was admitted under it last
};

template <class Replacement> struct traced {
    static constexpr std::string_view name = Replacement::name;
    struct config : Replacement::config {
        decision_log* log = nullptr; ///< null: nothing is written
    };

    class state {
        using wrapped = typename Replacement::state;
        struct alignas(std::uint64_t) counters { // the wrapped state's block follows
            std::uint32_t first = 0;             ///< of the log's handles, this pool's first
        };

      public:
        state() = default;
        state(const config& c, std::uint32_t handles, std::uint32_t unit_pages, std::span<std::byte> memory,
              kvtl::state_block holds = kvtl::state_block::fresh) noexcept
            : log_(c.log) {
            kvtl::block_parts parts(memory, holds);
            count_ = parts.take<counters>(1);
            wrapped_ =
                wrapped(c, handles, unit_pages, parts.take_bytes(wrapped::bytes(handles, unit_pages)), holds);
            if (log_ != nullptr && holds == kvtl::state_block::fresh)
                count_->first = log_->open_pool(handles);
        }
        [[nodiscard]] static std::size_t bytes(std::uint32_t handles, std::uint32_t unit_pages) noexcept {
            return sizeof(counters) + wrapped::bytes(handles, unit_pages);
        }

        void tick() noexcept {
            if (log_ != nullptr) log_->tick();
            wrapped_.tick();
        }
        void admit(std::uint32_t h, kvtl::resident_facts facts) noexcept {
            if (log_ != nullptr) log_->enter(count_->first + h, facts);
            wrapped_.admit(h, facts);
        }
        void touch(std::uint32_t h) noexcept {
            if (log_ != nullptr) log_->add(decision::hit, count_->first + h);
            wrapped_.touch(h);
        }
        void refresh(std::uint32_t h, kvtl::resident_facts facts) noexcept {
            if (log_ != nullptr) log_->enter(count_->first + h, facts);
            wrapped_.refresh(h, facts);
        }
        void remove(std::uint32_t h) noexcept {
            if (log_ != nullptr) log_->add(decision::left, count_->first + h);
            wrapped_.remove(h);
        }
        template <class Pinned> [[nodiscard]] std::uint32_t victim(Pinned&& pinned) const noexcept {
            return wrapped_.victim(std::forward<Pinned>(pinned));
        }

      private:
        wrapped wrapped_;
        decision_log* log_ = nullptr;
        counters* count_ = nullptr;
    };
};

} // namespace bench
