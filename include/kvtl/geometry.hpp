// The model's shape, with what is known at compile time kept static.
//
//   using any_llama = kvtl::geometry<kvtl::shape{.head_dim = 128}>;   // layers and heads come from the file
//
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/status.hpp>

#include <cmath>
#include <cstdint>

namespace kvtl { inline namespace v0 {

/// Extents of a decoder's attention. 0 means "known at run time". Letters: L, HQ = H*G, H, D.
struct shape {
    std::uint32_t layers = 0;      ///< L
    std::uint32_t query_heads = 0; ///< HQ, a multiple of kv_heads
    std::uint32_t kv_heads = 0;    ///< H
    std::uint32_t head_dim = 0;    ///< D, elements of one head's key or value

    friend constexpr bool operator==(const shape&, const shape&) noexcept = default;
};

/// A shape whose non-zero fields are constants of the type: from() refuses a model that differs from them.
/// The kernels take D at run time in either case.
template <shape Static> class geometry {
  public:
    static constexpr shape static_shape = Static;

    /// Checks `run_time` against the static fields and for sanity; static fields may be left 0 in `run_time`.
    /// logit_scale: of q . k; 0: 1 / sqrt(D).
    [[nodiscard]] static result<geometry> from(shape run_time, float logit_scale = 0) {
        geometry g;
        if (auto s = take("layers", Static.layers, run_time.layers, g.shape_.layers); !s) return s;
        if (auto s = take("query_heads", Static.query_heads, run_time.query_heads, g.shape_.query_heads); !s)
            return s;
        if (auto s = take("kv_heads", Static.kv_heads, run_time.kv_heads, g.shape_.kv_heads); !s) return s;
        if (auto s = take("head_dim", Static.head_dim, run_time.head_dim, g.shape_.head_dim); !s) return s;
        if (g.shape_.query_heads % g.shape_.kv_heads != 0)
            return status::failure(errc::invalid_argument,
                                   "shape.query_heads is %u, which is not a multiple of shape.kv_heads = %u",
                                   g.shape_.query_heads, g.shape_.kv_heads);
        if (g.group() > max_group)
            return status::failure(errc::invalid_argument,
                                   "shape.query_heads / shape.kv_heads is %u; valid: 1 to %u", g.group(),
                                   max_group);
        g.logit_scale_ = logit_scale > 0 ? logit_scale : 1.0F / std::sqrt(static_cast<float>(g.head_dim()));
        return g;
    }

    [[nodiscard]] constexpr std::uint32_t layers() const noexcept {
        return Static.layers != 0 ? Static.layers : shape_.layers;
    }
    [[nodiscard]] constexpr std::uint32_t query_heads() const noexcept {
        return Static.query_heads != 0 ? Static.query_heads : shape_.query_heads;
    }
    [[nodiscard]] constexpr std::uint32_t kv_heads() const noexcept {
        return Static.kv_heads != 0 ? Static.kv_heads : shape_.kv_heads;
    }
    [[nodiscard]] constexpr std::uint32_t head_dim() const noexcept {
        return Static.head_dim != 0 ? Static.head_dim : shape_.head_dim;
    }
    /// G: query heads that share one KV head.
    [[nodiscard]] constexpr std::uint32_t group() const noexcept { return query_heads() / kv_heads(); }
    /// What makes a logit of an inner product.
    [[nodiscard]] constexpr float logit_scale() const noexcept { return logit_scale_; }
    [[nodiscard]] constexpr kvtl::shape extents() const noexcept {
        return {layers(), query_heads(), kv_heads(), head_dim()};
    }

    static constexpr std::uint32_t max_group = 64; ///< a selection's head mask is one 64-bit word

  private:
    static constexpr std::uint32_t limit = 1U << 16; ///< no model is near; keeps every product in 64 bits

    static status take(const char* name, std::uint32_t fixed, std::uint32_t given,
                       std::uint32_t& out) noexcept {
        if (fixed != 0 && given != 0 && given != fixed)
            return status::failure(errc::invalid_argument,
                                   "shape.%s is %u, but this geometry was compiled for %u", name, given,
                                   fixed);
        out = fixed != 0 ? fixed : given;
        if (out == 0 || out > limit)
            return status::failure(errc::invalid_argument, "shape.%s is %u; valid: 1 to %u", name, out,
                                   limit);
        return {};
    }

    kvtl::shape shape_{};
    float logit_scale_ = 1;
};

}} // namespace kvtl::v0
