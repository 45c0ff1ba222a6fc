// The shape of the model, checked once when a cache is opened.
//
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/status.hpp>

#include <cmath>
#include <cstdint>

namespace kvtl { inline namespace v0 {

/// Extents of a decoder's attention. Shape letters: L, HQ = H * G, H, D.
struct shape {
    std::uint32_t layers = 0;      ///< L
    std::uint32_t query_heads = 0; ///< HQ, a multiple of kv_heads
    std::uint32_t kv_heads = 0;    ///< H
    std::uint32_t head_dim = 0;    ///< D, elements of one head's key or value

    friend constexpr bool operator==(const shape&, const shape&) noexcept = default;
};

/// A valid shape and the scale of the logits. Policies are constructed from it.
class geometry {
  public:
    /// Checks each extent; errc::invalid_argument names the wrong one.
    /// logit_scale: factor of q . k; 0: 1 / sqrt(D).
    [[nodiscard]] static result<geometry> from(const shape& model, float logit_scale = 0) {
        geometry g;
        g.shape_ = model;
        if (auto s = check("layers", model.layers); !s) return s;
        if (auto s = check("query_heads", model.query_heads); !s) return s;
        if (auto s = check("kv_heads", model.kv_heads); !s) return s;
        if (auto s = check("head_dim", model.head_dim); !s) return s;
        if (model.query_heads % model.kv_heads != 0)
            return status::failure(errc::invalid_argument,
                                   "shape.query_heads is %u, which is not a multiple of shape.kv_heads = %u",
                                   model.query_heads, model.kv_heads);
        if (g.group() > max_group)
            return status::failure(errc::invalid_argument,
                                   "shape.query_heads / shape.kv_heads is %u; valid: 1 to %u", g.group(),
                                   max_group);
        g.logit_scale_ = logit_scale > 0 ? logit_scale : 1.0F / std::sqrt(static_cast<float>(g.head_dim()));
        return g;
    }

    [[nodiscard]] constexpr std::uint32_t layers() const noexcept { return shape_.layers; }
    [[nodiscard]] constexpr std::uint32_t query_heads() const noexcept { return shape_.query_heads; }
    [[nodiscard]] constexpr std::uint32_t kv_heads() const noexcept { return shape_.kv_heads; }
    [[nodiscard]] constexpr std::uint32_t head_dim() const noexcept { return shape_.head_dim; }
    /// G: query heads that share one KV head.
    [[nodiscard]] constexpr std::uint32_t group() const noexcept { return query_heads() / kv_heads(); }
    /// The factor that turns an inner product into a logit.
    [[nodiscard]] constexpr float logit_scale() const noexcept { return logit_scale_; }
    [[nodiscard]] constexpr const kvtl::shape& extents() const noexcept { return shape_; }

    static constexpr std::uint32_t max_group = 64; ///< a selection's head mask is one 64-bit word

  private:
    /// Far above any model; products of extents fit into 64 bits.
    static constexpr std::uint32_t limit = 1U << 16;

    static status check(const char* name, std::uint32_t extent) noexcept {
        if (extent == 0 || extent > limit)
            return status::failure(errc::invalid_argument, "shape.%s is %u; valid: 1 to %u", name, extent,
                                   limit);
        return {};
    }

    kvtl::shape shape_{};
    float logit_scale_ = 1;
};

}} // namespace kvtl::v0
