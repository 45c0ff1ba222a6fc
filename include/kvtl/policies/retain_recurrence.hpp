// Score: entries whose attention recurs stay until they have been silent for longer than ever before
// (LazyEviction).
//
// What:   an entry is active in a step in which it receives at least `activity` of the attention. Its record
//         has the last active step and the longest silence that ended (its recurrence interval). Worth falls
//         with the present silence, measured in recurrence intervals. Eviction waits for `period` steps, so
//         that a single step without attention drops nothing. A full lane evicts that many entries at once,
//         but at most a quarter of those that compete, and never holds more than its limit. A prompt is
//         observed and evicted from in the same way, so entries that recur in it are known.
// Source: LazyEviction names the two quantities and the lag, and reports period 175 and activity 1e-4. It
//         does not report the exact score, so this one is kvtl's. Its caches have thousands of entries and may
//         exceed their limit by a period. A cache as small as a period would more than double.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/retention.hpp>

#include <algorithm>

namespace kvtl { inline namespace v0 {

struct recurrence : score_defaults {
    static constexpr std::string_view name = "recurrence";
    static constexpr engine_input needs = engine_input::q | engine_input::k;
    static constexpr feedback reads_mass = feedback::full;
    static constexpr score_source source = score_source::prompt;
    static constexpr bool evicts_in_decode = true;
    static constexpr bool evicts_in_prompt = true;
    struct record {
        std::uint32_t last_active = 0;
        std::uint32_t interval = 0; ///< longest silence that ended
        [[nodiscard]] static record arrived(std::uint32_t token) noexcept { return {token, 0}; }
    };
    struct config {
        float activity = 1e-4F;
        std::uint32_t period = 175;
        template <class Visit> void fields(Visit&& visit) {
            visit("activity", activity);
            visit("period", period);
        }
    };
    class state : public score_state<config> {
      public:
        using score_state<config>::score_state;
        [[nodiscard]] static status check(const config& c, const score_limits&) noexcept {
            if (!(c.activity > 0.0F && c.activity < 1.0F))
                return status::failure(errc::invalid_argument, "retention.activity is %g; valid: 0 to 1",
                                       static_cast<double>(c.activity));
            if (c.period == 0 || c.period > (1U << 20))
                return status::failure(errc::invalid_argument, "retention.period is %u; valid: 1 to %u",
                                       c.period, 1U << 20);
            return {};
        }
        void feed(const held_entry& e, float mass, float&, record& r) const noexcept {
            if (mass < this->config_.activity) return;
            r.interval = std::max(r.interval, silence(e, r));
            r.last_active = e.now;
        }
        [[nodiscard]] float worth(const held_entry& e, const record& r) const noexcept {
            return -static_cast<float>(silence(e, r)) / static_cast<float>(std::max(r.interval, 1U));
        }
        /// Entries below its limit that an eviction leaves a lane with: steps until the next one.
        [[nodiscard]] std::uint32_t headroom() const noexcept {
            const score_limits& l = this->limits_;
            return std::min(this->config_.period - 1, (l.keep - std::min(l.keep, l.sinks + l.window)) / 4);
        }

      private:
        /// After a rewind the last active step may lie ahead.
        [[nodiscard]] static std::uint32_t silence(const held_entry& e, const record& r) noexcept {
            return e.now - std::min(e.now, r.last_active);
        }
    };
};

}} // namespace kvtl::v0
