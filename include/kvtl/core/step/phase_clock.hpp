// Where decode time goes: a stopwatch that is always in one phase. It costs a clock reading per change of
// phase, and nothing when it is off.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/statistics.hpp>

#include <chrono>
#include <cstdint>

namespace kvtl { inline namespace v0 {

class phase_clock {
  public:
    using phase = std::uint64_t phase_times::*;

    phase_clock() = default;
    /// Adds to `times` from now on.
    explicit phase_clock(phase_times& times) noexcept : times_(&times) {}

    /// Time from here on belongs to `next` (nullptr: to nobody). Returns the phase that ends.
    phase enter(phase next) noexcept {
        if (times_ == nullptr) return nullptr;
        const auto now = std::chrono::steady_clock::now();
        if (current_ != nullptr)
            times_->*current_ += static_cast<std::uint64_t>(
                std::chrono::duration_cast<std::chrono::nanoseconds>(now - since_).count());
        since_ = now;
        const phase before = current_;
        current_ = next;
        return before;
    }

    /// A phase for the rest of a block; the phase before it goes on afterwards.
    class span {
      public:
        span(phase_clock* clock, phase p) noexcept : clock_(clock) {
            if (clock_ != nullptr) before_ = clock_->enter(p);
        }
        span(const span&) = delete;
        span& operator=(const span&) = delete;
        ~span() {
            if (clock_ != nullptr) clock_->enter(before_);
        }
        void enter(phase p) const noexcept {
            if (clock_ != nullptr) clock_->enter(p);
        }

      private:
        phase_clock* clock_;
        phase before_ = nullptr;
    };

  private:
    phase_times* times_ = nullptr;
    phase current_ = nullptr;
    std::chrono::steady_clock::time_point since_{};
};

}} // namespace kvtl::v0
