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
//   attending_gate  Attention-Gate: the gate reads the layer's input and attends those of all earlier tokens. Its
//                   number is the logit of the probability to keep the entry. Entries of `threshold` or less
//                   leave even if there is room. For every token, dropped ones included, and each KV head it
//                   remembers W + 1 numbers in 16 bits; W is the width of the attention. Deviations: a number that
//                   depends on the token alone is added to the attention (a residual path). The attention of the
//                   prompt covers all of the prompt, because entries leave only when it is complete.
//   importance_gate KVzap: the gate reads the layer's input and predicts the logarithm of the score that a replay of
//                   the prompt would give the entry (KVzip, retain_replay_attention.hpp). Entries of `threshold` or
//                   less leave even if there is room: those of a prompt when it is complete, decoded ones when they
//                   leave the window. Deviation: the activation is SiLU here and GELU in the paper.
// In decode each head evicts down to its own limit.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/gate_weights.hpp>
#include <kvtl/simd/convert.hpp>
#include <kvtl/slots/retention.hpp>

#include <cmath>

namespace kvtl { inline namespace v0 {

enum class gate_kind : std::uint8_t { decaying, global, retention };

/// The layer's inputs, (tokens, width), are there and finite.
[[nodiscard]] inline status check_layer_inputs(const layer_input& in, std::size_t tokens,
                                               std::uint32_t width) noexcept {
    if (in.x.size() != tokens * width)
        return status::failure(errc::invalid_argument, "x has %zu numbers; valid: tokens * %u = %zu",
                               in.x.size(), width, tokens * width);
    if (!simd::all_finite(in.x.data(), in.x.size()))
        return status::failure(errc::invalid_argument, "x holds a number that is not finite");
    return {};
}

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
        template <class Visit> void tables(Visit&& visit) const { visit("weights", weights); }
    };
    class state : public score_hooks {
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
            const gate_header h = gate_header::of(c.weights);
            const std::size_t width = std::size_t{l.kv_heads} * (l.group + 2) * l.dim;
            if (!reads_input && h.inputs != width)
                return status::failure(errc::invalid_argument,
                                       "retention.weights read %u numbers; valid: q, k and v of a token, %zu",
                                       h.inputs, width);
            return {};
        }
        [[nodiscard]] status check_arrival(const layer_input& in, std::size_t tokens) const noexcept {
            if (reads_input) return check_layer_inputs(in, tokens, gate_.inputs());
            if (in.q.empty())
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

struct attending_gate : score_defaults {
    static constexpr std::string_view name = "attending_gate";
    static constexpr engine_input needs = engine_input::x;
    static constexpr score_source source = score_source::arrival;
    static constexpr bool evicts_in_decode = true;
    static constexpr bool drops_unwanted = true;
    struct config {
        float threshold = 0.5F;               ///< an entry of a larger probability stays
        std::uint64_t model = 0;              ///< number of the model; 0: not checked
        std::span<const std::byte> weights{}; ///< a gate blob. Read by open() only
        template <class Visit> void fields(Visit&& visit) { visit("threshold", threshold); }
        template <class Visit> void tables(Visit&& visit) const { visit("weights", weights); }
    };
    class state : public score_hooks {
      public:
        state() = default;
        state(const config& c, const score_limits&, std::span<std::byte> memory) noexcept
            : bar_(std::log(c.threshold / (1.0F - c.threshold))), row_bytes_(token_bytes(c)),
              gate_(c.weights, memory) {}
        [[nodiscard]] static std::size_t bytes(const config& c, const score_limits& l) noexcept {
            return attending_gate_network::bytes(c.weights, l.tokens);
        }
        [[nodiscard]] static std::size_t token_bytes(const config& c) noexcept {
            return attending_gate_network::row_numbers(gate_header::of(c.weights)) * sizeof(f16);
        }
        [[nodiscard]] static status check(const config& c, const score_limits& l) noexcept {
            if (!(c.threshold > 0.0F && c.threshold < 1.0F))
                return status::failure(errc::invalid_argument,
                                       "retention.threshold is %g; valid: above 0, below 1",
                                       static_cast<double>(c.threshold));
            return gate_network::check(c.weights, l.layers, l.kv_heads, c.model, true);
        }
        [[nodiscard]] status check_arrival(const layer_input& in, std::size_t tokens) const noexcept {
            return check_layer_inputs(in, tokens, gate_.inputs());
        }
        void arrive(const arriving& a, std::span<float> out) const noexcept {
            const std::size_t lane = a.past.size() / out.size();
            for (std::size_t i = 0; i < out.size(); ++i) {
                auto* rows = reinterpret_cast<f16*>(a.past.data() + i * lane);
                const std::size_t numbers = (std::size_t{a.token} + 1) * row_bytes_ / sizeof(f16);
                out[i] = gate_.forward(a.layer, a.first_head + i * a.head_step, a.x, {rows, numbers});
            }
        }
        [[nodiscard]] bool wanted(float score) const noexcept { return score > bar_; }

      private:
        float bar_ = 0; ///< logit of the threshold
        std::size_t row_bytes_ = 0;
        attending_gate_network gate_;
    };
};

struct importance_gate : score_defaults {
    static constexpr std::string_view name = "importance_gate";
    static constexpr engine_input needs = engine_input::x;
    static constexpr score_source source = score_source::arrival;
    static constexpr bool evicts_in_decode = true;
    static constexpr bool drops_unwanted = true;
    struct config {
        float threshold = -4.0F;              ///< an entry of a larger number stays
        std::uint64_t model = 0;              ///< number of the model; 0: not checked
        std::span<const std::byte> weights{}; ///< a gate blob. Read by open() only
        template <class Visit> void fields(Visit&& visit) { visit("threshold", threshold); }
        template <class Visit> void tables(Visit&& visit) const { visit("weights", weights); }
    };
    class state : public score_hooks {
      public:
        state() = default;
        state(const config& c, const score_limits&, std::span<std::byte> memory) noexcept
            : threshold_(c.threshold), gate_(c.weights, memory) {}
        [[nodiscard]] static std::size_t bytes(const config& c, const score_limits&) noexcept {
            return gate_network::bytes(c.weights);
        }
        [[nodiscard]] static status check(const config& c, const score_limits& l) noexcept {
            if (!std::isfinite(c.threshold))
                return status::failure(errc::invalid_argument,
                                       "retention.threshold is %g; valid: a finite number",
                                       static_cast<double>(c.threshold));
            return gate_network::check(c.weights, l.layers, l.kv_heads, c.model);
        }
        [[nodiscard]] status check_arrival(const layer_input& in, std::size_t tokens) const noexcept {
            return check_layer_inputs(in, tokens, gate_.inputs());
        }
        void arrive(const arriving& a, std::span<float> out) const noexcept {
            const std::span<const float> in[] = {a.x};
            gate_.forward(a.layer, in, out, a.first_head, a.head_step);
        }
        [[nodiscard]] bool wanted(float score) const noexcept { return score > threshold_; }

      private:
        float threshold_ = 0;
        gate_network gate_;
    };
};

}} // namespace kvtl::v0
