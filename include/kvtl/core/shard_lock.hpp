// One thread at a time in a shard: who holds its flag has it for one call, and who finds it taken does not wait.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/unit.hpp>
#include <kvtl/version.hpp>

#include <atomic>
#include <cstdint>

namespace kvtl { inline namespace v0 {

/// Holds a shard for one call.
class shard_lock {
  public:
    shard_lock() = default;
    shard_lock(const shard_lock&) = delete;
    shard_lock& operator=(const shard_lock&) = delete;
    ~shard_lock() {
        if (flag_ != nullptr) flag_->clear(std::memory_order_release);
    }
    /// `busy`: the shard's flag. False when another thread has it.
    [[nodiscard]] bool take(std::atomic_flag& busy) noexcept {
        if (busy.test_and_set(std::memory_order_acquire)) return false;
        flag_ = &busy;
        return true;
    }

  private:
    std::atomic_flag* flag_ = nullptr;
};

/// Holds every shard that has a part of a sequence for one call, or none of them. Without a sequence: every shard.
template <class Core> class sequence_lock {
  public:
    explicit sequence_lock(Core& core, std::uint32_t slot = none) noexcept : core_(&core), slot_(slot) {
        for (; end_ < core.calls.shards; ++end_)
            if (takes(end_) && core.shards[end_]->busy.test_and_set(std::memory_order_acquire)) return;
    }
    sequence_lock(const sequence_lock&) = delete;
    sequence_lock& operator=(const sequence_lock&) = delete;
    ~sequence_lock() {
        while (end_-- > 0)
            if (takes(end_)) core_->shards[end_]->busy.clear(std::memory_order_release);
    }
    [[nodiscard]] bool taken() const noexcept { return end_ == core_->calls.shards; }
    /// The shard that another thread is in.
    [[nodiscard]] unsigned blocked() const noexcept { return end_; }

  private:
    [[nodiscard]] bool takes(unsigned shard) const noexcept {
        return slot_ == none || core_->owns(slot_, shard);
    }

    Core* core_;
    std::uint32_t slot_;
    unsigned end_ = 0;
};

}} // namespace kvtl::v0
