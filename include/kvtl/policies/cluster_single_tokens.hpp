// Clusterer: every entry is a unit (the null object of the slot).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/engine_inputs.hpp>
#include <kvtl/slots/clusterer.hpp>
#include <kvtl/status.hpp>
#include <kvtl/unit.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace kvtl { inline namespace v0 {

/// `fixed_groups` is the same thing with more than one token per unit.
template <granularity Granularity, std::uint32_t DefaultTokens> struct sequential_groups {
    static constexpr granularity unit_of = Granularity;
    static constexpr bool needs_means = false;
    static constexpr bool clusters_prompt = false; ///< units are always sequential
    static constexpr bool updates_means = true;
    static constexpr bool adapts = false;    ///< units never split
    static constexpr bool sequential = true; ///< on by-entry layouts units need no records at all

    struct config {
        std::uint32_t group_tokens = DefaultTokens; ///< G: consecutive tokens per unit
        template <class Visit> void fields(Visit&& visit) { visit("group_tokens", group_tokens); }
    };

    struct lane {}; ///< nothing to remember per lane

    class state {
      public:
        state() = default;
        state(const config& c, const geometry&) noexcept : config_(c) {}

        [[nodiscard]] static status check(const config& c) noexcept {
            if (c.group_tokens == 0 || c.group_tokens > 4096)
                return status::failure(errc::invalid_argument,
                                       "clusterer.group_tokens is %u; valid: 1 to 4096", c.group_tokens);
            return {};
        }

        /// Entries of the largest unit, and the most units a lane of `tokens` tokens can have.
        [[nodiscard]] std::uint32_t max_entries() const noexcept { return config_.group_tokens; }
        [[nodiscard]] std::uint32_t max_units(std::uint32_t tokens) const noexcept {
            return tokens / config_.group_tokens + 2;
        }
        /// There is nothing to found, so no scratch for it.
        [[nodiscard]] static std::size_t scratch_bytes(std::uint32_t, std::uint32_t) noexcept { return 0; }
        [[nodiscard]] std::uint32_t sequential_entries() const noexcept { return config_.group_tokens; }
        [[nodiscard]] static std::uint32_t pending_entries() noexcept { return 4; }

        [[nodiscard]] assignment assign(lane&, const float*, const units_view& u,
                                        std::span<float>) const noexcept {
            if (u.count == 0) return {none, growth::open};
            const unit_record& last = u.unit[u.count - 1];
            if (last.entries + last.buffered < config_.group_tokens) return {u.count - 1, growth::append};
            return {none, growth::open};
        }

      private:
        config config_{};
    };
};

struct single_tokens : sequential_groups<granularity::head, 1> {
    static constexpr std::string_view name = "single_tokens";
};

}} // namespace kvtl::v0
