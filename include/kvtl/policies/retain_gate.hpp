// Score: a learned gate, evaluated once per token when it arrives (calibration/gate_weights.hpp holds the
// network).
//
// Variants, by the input of the gate and the meaning of its number:
//   decaying_gate   TRIM-KV: the gate reads the layer's input; log beta = logsigmoid(gate). An entry is worth
//                   log beta * age, so an entry with beta = 1 never leaves. Decode evicts when `buffer`
//                   entries are over the limit.
//   global_gate     "Make Each Token Count": as decaying_gate, on one scale for all heads and layers, so that
//                   they compete (with budget progressive_heads).
//   retention_gate  Locret: the gate reads q, k and v of all heads as they are given, after RoPE. Its number
//                   is the worth and never changes. A prompt is evicted from while it arrives. The survivors
//                   do not depend on how the prompt is divided into chunks. The entries that a chunk's
//                   queries see do.
// In decode each head evicts down to its own limit.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/gate_weights.hpp>
#include <kvtl/simd/convert.hpp>
#include <kvtl/slots/retention.hpp>

#include <cmath>

namespace kvtl { inline namespace v0 {

enum class gate_kind : std::uint8_t { decaying, global, retention };

template <gate_kind Kind> struct gate_score : score_defaults {
    static constexpr std::string_view name = Kind == gate_kind::decaying ? "decaying_gate"
                                             : Kind == gate_kind::global ? "global_gate"
                                                                         : "retention_gate";
    static constexpr bool reads_input = Kind != gate_kind::retention;
    static constexpr engine_input needs =
        reads_input ? engine_input::x : engine_input::q | engine_input::k | engine_input::v;
    static constexpr score_source source = score_source::arrival;
    static constexpr bool evicts_in_decode = true;
    static constexpr bool evicts_in_prompt = !reads_input;
    static constexpr bool ages = reads_input; ///< worth depends on age: a prompt is ranked by it, too
    struct config {
        /// Entries over the limit before decode evicts.
        std::uint32_t buffer = Kind == gate_kind::decaying ? 128 : 1;
        std::uint64_t model = 0;              ///< number of the model; 0: not checked
        std::span<const std::byte> weights{}; ///< a gate blob. Read by open() only
        template <class Visit> void fields(Visit&& visit) { visit("buffer", buffer); }
    };
    class state {
      public:
        state() = default;
        state(const config& c, const score_limits&, std::span<std::byte> memory) noexcept
            : buffer_(c.buffer), gate_(c.weights, memory) {}
        [[nodiscard]] static std::size_t bytes(const config& c, const score_limits&) noexcept {
            return gate_network::bytes(c.weights);
        }
        [[nodiscard]] static status check(const config& c, const score_limits& l) noexcept {
            if (c.buffer == 0 || c.buffer > (1U << 20))
                return status::failure(errc::invalid_argument, "retention.buffer is %u; valid: 1 to %u",
                                       c.buffer, 1U << 20);
            if (status s = gate_network::check(c.weights, l.layers, l.kv_heads, c.model); !s) return s;
            gate_header h;
            std::memcpy(&h, c.weights.data(), sizeof h);
            const std::size_t width = std::size_t{l.kv_heads} * (l.group + 2) * l.dim;
            if (!reads_input && h.inputs != width)
                return status::failure(errc::invalid_argument,
                                       "retention.weights read %u numbers; valid: q, k and v of a token, %zu",
                                       h.inputs, width);
            return {};
        }
        [[nodiscard]] status check_arrival(const layer_input& in, std::size_t tokens) const noexcept {
            if (reads_input && in.x.size() != tokens * gate_.inputs())
                return status::failure(errc::invalid_argument, "x has %zu numbers; valid: tokens * %u = %zu",
                                       in.x.size(), gate_.inputs(), tokens * gate_.inputs());
            if (reads_input && !simd::all_finite(in.x.data(), in.x.size()))
                return status::failure(errc::invalid_argument, "x holds a number that is not finite");
            if (!reads_input && in.q.empty())
                return status::failure(errc::invalid_argument,
                                       "q is empty; valid: the queries, the gate reads them");
            return {};
        }
        void arrive(const arriving& a, std::span<float> out) const noexcept {
            if constexpr (reads_input) {
                const std::span<const float> in[] = {a.x};
                gate_.forward(a.layer, in, out, a.first_head, a.head_step);
            } else {
                const std::span<const float> in[] = {a.q, a.k, a.v};
                gate_.forward(a.layer, in, out, a.first_head, a.head_step);
            }
            if constexpr (ages)
                for (float& x : out) x = log_sigmoid(x);
        }
        [[nodiscard]] float worth(const held_entry& e, const record&) const noexcept {
            return ages ? e.score * e.age() : e.score;
        }
        [[nodiscard]] std::uint32_t slack() const noexcept { return buffer_ - 1; }

      private:
        /// ln(1 / (1 + e^-x)), without overflow on either side.
        [[nodiscard]] static float log_sigmoid(float x) noexcept {
            return x < 0.0F ? x - std::log1p(std::exp(x)) : -std::log1p(std::exp(-x));
        }
        std::uint32_t buffer_ = 1;
        gate_network gate_;
    };
};

using decaying_gate = gate_score<gate_kind::decaying>;
using global_gate = gate_score<gate_kind::global>;
using retention_gate = gate_score<gate_kind::retention>;

}} // namespace kvtl::v0
