// Keeps the summaries of a shard's lanes in step with their units.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/reservation.hpp>
#include <kvtl/simd/convert.hpp>
#include <kvtl/slots/index.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvtl { inline namespace v0 {

/// The index's and the remainder's summaries; does nothing for policies that keep none.
template <class Types> class summaries {
  public:
    using element_type = typename Types::element_type;
    using lane_table = typename Types::lane_table;
    static constexpr bool of_index = detail::summarises<typename Types::index>();
    static constexpr bool of_remainder = detail::summarises<typename Types::remainder>();
    static constexpr bool any = of_index || of_remainder;

    /// One entry, decoded: (width) each.
    struct scratch {
        std::span<float> key, value;
        static scratch take(carver& c, std::size_t width) noexcept {
            scratch x;
            x.key = c.take<float>(any ? width : 0);
            x.value = c.take<float>(any ? width : 0);
            return x;
        }
    };

    summaries() = default;
    summaries(const typename Types::index_state& index, const typename Types::remainder_state& remainder,
              const lane_table& lanes, const summary_shape& shape, const scratch& x) noexcept
        : index_(&index), remainder_(&remainder), lanes_(&lanes), shape_(shape), x_(x) {}

    /// Bytes per unit and per lane of both policies go into the lane's sizes.
    template <class Sizes>
    static void size(const typename Types::index_state& index,
                     const typename Types::remainder_state& remainder, const summary_shape& shape,
                     Sizes& s) noexcept {
        if constexpr (of_index) {
            s.index_unit = index.unit_bytes(shape);
            s.index_lane = index.lane_bytes(shape);
            if constexpr (requires { index.tail_bytes(shape); }) s.index_tail = index.tail_bytes(shape);
        }
        if constexpr (of_remainder) {
            s.remainder_unit = remainder.unit_bytes(shape);
            s.remainder_lane = remainder.lane_bytes(shape);
        }
        static_cast<void>(index), static_cast<void>(remainder), static_cast<void>(shape);
        static_cast<void>(s);
    }

    [[nodiscard]] summary_view index_of(std::uint32_t lane) const noexcept {
        return lanes_->at(lane).index_summary(shape_, lanes_->layer_of(lane), lanes_->in_layer(lane));
    }
    [[nodiscard]] summary_view remainder_of(std::uint32_t lane) const noexcept {
        return lanes_->at(lane).remainder_summary(shape_, lanes_->layer_of(lane), lanes_->in_layer(lane));
    }
    [[nodiscard]] const summary_shape& shape() const noexcept { return shape_; }

    void clear(std::uint32_t lane, std::uint32_t u) const noexcept {
        if constexpr (of_index) index_->clear(index_of(lane), u);
        if constexpr (of_remainder) remainder_->clear(remainder_of(lane), u);
        static_cast<void>(lane), static_cast<void>(u);
    }
    /// Entry i of unit u: rows of the lane's width.
    void absorb(std::uint32_t lane, std::uint32_t u, std::uint32_t i, const element_type* k,
                const element_type* v) const noexcept {
        if constexpr (any) {
            simd::decode(k, x_.key.data(), shape_.width());
            simd::decode(v, x_.value.data(), shape_.width());
            if constexpr (of_index) index_->absorb(index_of(lane), u, i, x_.key.data(), x_.value.data());
            if constexpr (of_remainder)
                remainder_->absorb(remainder_of(lane), u, i, x_.key.data(), x_.value.data());
        } else {
            static_cast<void>(lane), static_cast<void>(u), static_cast<void>(i);
            static_cast<void>(k), static_cast<void>(v);
        }
    }

  private:
    const typename Types::index_state* index_ = nullptr;
    const typename Types::remainder_state* remainder_ = nullptr;
    const lane_table* lanes_ = nullptr;
    summary_shape shape_{};
    scratch x_;
};

}} // namespace kvtl::v0
