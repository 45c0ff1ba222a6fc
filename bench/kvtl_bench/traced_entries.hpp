// An index policy that wraps another one, scores exactly as that does, and notes which entry joins which unit.
//
//   entry_log log;
//   struct observed : kvtl::presets::dynakv { using index = bench::traced_entries<kvtl::centroid>; };
//   config.index.log = &log;       // of kv_manager<observed, ...>
//   mark_tokens(v, first, row);    // on the values of every token before the cache takes them
//
// The first two numbers of a value row are the token's number, so the log does not depend on how the cache names entries.
// Choices depend on keys alone and stay what they are. The driver notes where one attend() ends and the next begins.
//
// Units:  lanes and units as the manager numbers them, of head-wise units of one sequence.
// Cost:   16 bytes per entry and build of its unit, from the heap: this is for measuring, not for use.
// Limits: numbers are f16, so tokens stay below token_limit; values are not those of the workload.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/index.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace bench {

/// An entry joins a unit in row `row`, which is the number of entries that the unit had. Row 0 begins the unit anew.
struct entry_event {
    std::uint32_t lane = 0, unit = 0, row = 0, token = 0;
    friend bool operator==(const entry_event&, const entry_event&) = default;
};

class entry_log {
  public:
    void begin_call() { begin_.push_back(event_.size()); }
    void add(const entry_event& e) { event_.push_back(e); }

    /// What joined before the first call.
    [[nodiscard]] std::span<const entry_event> prompt() const noexcept {
        return std::span(event_).first(begin_.empty() ? event_.size() : begin_.front());
    }
    [[nodiscard]] std::size_t calls() const noexcept { return begin_.size(); }
    [[nodiscard]] std::span<const entry_event> call(std::size_t i) const noexcept {
        const std::size_t end = i + 1 < begin_.size() ? begin_[i + 1] : event_.size();
        return std::span(event_).subspan(begin_[i], end - begin_[i]);
    }

  private:
    std::vector<entry_event> event_;
    std::vector<std::size_t> begin_; ///< (calls) the first event of each
};

/// Numbers up to this are whole in f16.
inline constexpr std::uint32_t token_digit = 2048;
inline constexpr std::uint32_t token_limit = token_digit * token_digit;

/// v: (tokens, heads, D), of which token `first` is the first.
inline void mark_tokens(std::span<float> v, std::size_t first, std::size_t heads, std::size_t dim) {
    for (std::size_t row = 0; row * dim < v.size(); ++row) {
        const std::size_t token = first + row / heads;
        v[row * dim] = static_cast<float>(token / token_digit);
        v[row * dim + 1] = static_cast<float>(token % token_digit);
    }
}
[[nodiscard]] inline std::uint32_t marked_token(const float* value) noexcept {
    return static_cast<std::uint32_t>(value[0]) * token_digit + static_cast<std::uint32_t>(value[1]);
}

template <class Index> struct traced_entries : Index {
    static_assert(!kvtl::summarises<Index>, "the log takes the place of the index's summaries");
    static constexpr bool summarises = true;   // so it is told of entries
    static constexpr bool scores_lanes = true; // as means do
    struct config : Index::config {
        entry_log* log = nullptr; ///< null: nothing is noted
    };

    class state : public Index::state {
        using wrapped = typename Index::state;

      public:
        state() = default;
        state(const config& c, const kvtl::geometry& g) noexcept
            : wrapped(c, g), log_(c.log), heads_(g.kv_heads()) {}
        [[nodiscard]] static std::size_t unit_bytes(const kvtl::summary_shape&) noexcept { return 0; }
        [[nodiscard]] static std::size_t lane_bytes(const kvtl::summary_shape&) noexcept { return 0; }
        static void clear(const kvtl::summary_view&, std::uint32_t) noexcept {}
        void absorb(const kvtl::summary_view& view, std::uint32_t unit, std::uint32_t row, const float*,
                    const float* value) const noexcept {
            if (log_ != nullptr)
                log_->add({view.layer * heads_ + view.first_head, unit, row, marked_token(value)});
        }

      private:
        entry_log* log_ = nullptr;
        std::uint32_t heads_ = 1;
    };
};

} // namespace bench
