// Keeps what is known of a shard's units in step with their entries: mean keys, and the summaries of index and
// estimator.
//
// What:   what is kept of a unit may be rounded, to 8 bits a number; what the next entry is added to is not: it is
//         *running*, in bytes that a unit has while it is being built, and beside its unfinished page while it grows
//         in that page. A unit that takes up a new page, or a page that had been put away, begins them anew from
//         all its entries where these are resident, else from what was kept. That happens once for a page at most,
//         since a unit that is not resident cannot go on in a page that was put away. So a mean is never off by more
//         than half a step of its rounding per page of its unit, however many entries join one by one.
// Cost:   an entry: one pass over the running bytes and what is kept.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/store/lane.hpp>
#include <kvtl/reservation.hpp>
#include <kvtl/simd/convert.hpp>
#include <kvtl/simd/moments.hpp>
#include <kvtl/slots/estimator.hpp>
#include <kvtl/slots/index.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvtl { inline namespace v0 {

/// Bytes of what a policy keeps: per unit, per lane, behind the last unit, and of a unit that grows.
struct summary_sizes {
    std::size_t unit = 0, lane = 0, tail = 0, running = 0;
};
/// What one policy, the index or the estimator, keeps of units; nothing where it keeps nothing.
template <class Policy> struct policy_summaries {
    using state = typename Policy::state;
    static constexpr bool any = false;
    [[nodiscard]] static summary_sizes size(const state&, const summary_shape&) noexcept { return {}; }
    static void absorb(const state&, const summary_view&, std::uint32_t, std::uint32_t, const float*,
                       const float*) noexcept {}
    static void resume(const state&, const summary_view&, std::uint32_t, std::uint32_t) noexcept {}
};
template <summarises Policy> struct policy_summaries<Policy> {
    using state = typename Policy::state;
    static constexpr bool any = true;
    static constexpr bool runs = requires(const state& s, const summary_shape& shape) {
        s.running_bytes(shape);
    };
    [[nodiscard]] static summary_sizes size(const state& s, const summary_shape& shape) noexcept {
        summary_sizes n{s.unit_bytes(shape), s.lane_bytes(shape)};
        if constexpr (requires { s.tail_bytes(shape); }) n.tail = s.tail_bytes(shape);
        if constexpr (runs) n.running = (s.running_bytes(shape) + 63) / 64 * 64;
        return n;
    }
    static void absorb(const state& s, const summary_view& view, std::uint32_t u, std::uint32_t i,
                       const float* key, const float* value) noexcept {
        if (i == 0) s.clear(view, u);
        s.absorb(view, u, i, key, value);
    }
    static void resume(const state& s, const summary_view& view, std::uint32_t u,
                       std::uint32_t entries) noexcept {
        if constexpr (runs) s.resume(view, u, entries);
    }
};

template <class Types> class summaries {
  public:
    using element_type = typename Types::element_type;
    using lane_table = typename Types::lane_table;
    using of_index = policy_summaries<typename Types::index>;
    using of_estimator = policy_summaries<typename Types::estimator>;
    static constexpr bool any = of_index::any || of_estimator::any;
    static constexpr bool gathers = gathers_entries<typename Types::estimator>;

    struct scratch {
        std::span<float> key, value;  ///< one entry, decoded: (width) each
        std::span<std::byte> running; ///< of a unit that is built from all its entries at once
        static scratch take(carver& c, const lane_sizes& s) noexcept {
            scratch x;
            x.key = c.take<float>(any ? s.width : 0);
            x.value = c.take<float>(any ? s.width : 0);
            x.running = c.take<std::byte>(std::max(s.running, mean_bytes(s)));
            return x;
        }
    };

    summaries() = default;
    summaries(const typename Types::index_state& index, const typename Types::estimator_state& estimator,
              const lane_table& lanes, const summary_shape& shape, const scratch& x) noexcept
        : index_(&index), estimator_(&estimator), lanes_(&lanes), shape_(shape), x_(x) {}

    /// Bytes per unit and per lane of both policies go into the lane's sizes, and those of a unit that grows.
    static void size(const typename Types::index_state& index,
                     const typename Types::estimator_state& estimator, const summary_shape& shape,
                     lane_sizes& s) noexcept {
        s.running = s.centroid_bits != 0 && s.centroid_bits < 32 ? mean_bytes(s) : 0;
        const summary_sizes i = of_index::size(index, shape), e = of_estimator::size(estimator, shape);
        s.index_unit = i.unit, s.index_lane = i.lane, s.index_tail = i.tail;
        s.estimator_unit = e.unit, s.estimator_lane = e.lane;
        s.running_index = s.running;
        s.running_estimator = s.running_index + i.running;
        s.running = s.running_estimator + e.running;
    }

    [[nodiscard]] summary_view index_of(std::uint32_t lane) const noexcept {
        return lanes_->at(lane).index_summary(shape_, lanes_->layer_of(lane), lanes_->in_layer(lane));
    }
    [[nodiscard]] summary_view estimator_of(std::uint32_t lane) const noexcept {
        return lanes_->at(lane).estimator_summary(shape_, lanes_->layer_of(lane), lanes_->in_layer(lane));
    }
    [[nodiscard]] const typename Types::index_state& index() const noexcept { return *index_; }
    [[nodiscard]] const summary_shape& shape() const noexcept { return shape_; }
    /// Running bytes for a unit that is built from all its entries, one after the other.
    [[nodiscard]] std::byte* building() const noexcept { return x_.running.data(); }

    /// Entry i of unit u, which has i entries: rows of the lane's width. The first one clears what was kept.
    /// `running`: of this unit.
    void absorb(std::uint32_t lane, std::uint32_t u, std::uint32_t i, const element_type* k,
                const element_type* v, std::byte* running) const noexcept {
        if (!any) return;
        simd::decode(k, x_.key.data(), shape_.width());
        simd::decode(v, x_.value.data(), shape_.width());
        of_index::absorb(*index_, running_view(index_of(lane), running, sizes().running_index), u, i,
                         x_.key.data(), x_.value.data());
        of_estimator::absorb(*estimator_,
                             running_view(estimator_of(lane), running, sizes().running_estimator), u, i,
                             x_.key.data(), x_.value.data());
    }
    /// The same for the unit's mean key and its m2. What runs has it; keep_mean() follows behind the last of some.
    void absorb_mean(std::uint32_t lane, std::uint32_t u, std::uint32_t i, const element_type* k, float& m2,
                     std::byte* running) const noexcept {
        const unit_means means = lanes_->at(lane).means();
        float* exact = means.bits() == 32 ? means.floats(u) : reinterpret_cast<float*>(running);
        if (i == 0) std::fill_n(exact, means.dim(), 0.0F);
        simd::absorb(k, means.dim(), i, exact, m2);
    }
    /// (k, v) is about to become entry i of unit u: what it adds to the lane's spread, and to what the estimator gathers.
    /// Before absorb() and absorb_mean().
    void gather_spread(std::uint32_t lane, std::uint32_t u, std::uint32_t i, const element_type* k,
                       const element_type* v, std::byte* running) const noexcept {
        if (i == 0) return; // the first entry of a unit is its mean
        const auto of_lane = lanes_->at(lane);
        const unit_means means = of_lane.means();
        const float* exact = means.bits() == 32 ? means.floats(u) : reinterpret_cast<const float*>(running);
        const auto n = static_cast<float>(i);
        simd::add_squares(k, means.dim(), exact, n / (n + 1.0F), of_lane.spread().data());
        tell_estimator(lane, k, v, exact, i, running);
    }
    /// (k, v) is an entry of a unit whose mean set_mean() has just made: what the estimator gathers.
    void gather_built(std::uint32_t lane, const element_type* k, const element_type* v) const noexcept {
        tell_estimator(lane, k, v, reinterpret_cast<const float*>(building()), 0, building());
    }
    /// What is kept of a unit's mean becomes what runs of it, rounded.
    void keep_mean(std::uint32_t lane, std::uint32_t u, const std::byte* running) const noexcept {
        const unit_means means = lanes_->at(lane).means();
        if (means.bits() != 32) means.set(u, reinterpret_cast<const float*>(running));
    }
    /// The mean of unit u becomes that of the rows row(0) to row(count - 1), and the lane's spread gathers them. Returns their m2;
    /// 0 where units have no means.
    template <class Row>
    float set_mean(std::uint32_t lane, std::uint32_t u, std::size_t count, const Row& row) const noexcept {
        if (!Types::means) return 0;
        const auto of_lane = lanes_->at(lane);
        const unit_means means = of_lane.means();
        auto* exact = reinterpret_cast<float*>(building());
        const float m2 = simd::mean_and_m2_of<simd::default_arch>(count, means.dim(), row, exact);
        means.set(u, exact);
        if (Types::spread)
            for (std::size_t i = 0; i < count; ++i)
                simd::add_squares(row(i), means.dim(), exact, 1.0F, of_lane.spread().data());
        return m2;
    }
    /// A unit of `entries` entries goes on with new running bytes, from what is kept of it.
    void resume(std::uint32_t lane, std::uint32_t u, std::uint32_t entries,
                std::byte* running) const noexcept {
        if (Types::means)
            if (const unit_means means = lanes_->at(lane).means(); means.bits() != 32)
                means.get(u, reinterpret_cast<float*>(running));
        of_index::resume(*index_, running_view(index_of(lane), running, sizes().running_index), u, entries);
        of_estimator::resume(
            *estimator_, running_view(estimator_of(lane), running, sizes().running_estimator), u, entries);
    }
    /// Running bytes are more exact than what is kept.
    [[nodiscard]] bool rounds() const noexcept { return sizes().running > 0; }

  private:
    void tell_estimator(std::uint32_t lane, const element_type* k, const element_type* v, const float* mean,
                        std::uint32_t before, std::byte* running) const noexcept {
        if constexpr (gathers) {
            simd::decode(k, x_.key.data(), shape_.width());
            simd::decode(v, x_.value.data(), shape_.width());
            estimator_->gather(running_view(estimator_of(lane), running, sizes().running_estimator),
                               {x_.key.data(), x_.value.data(), mean, before});
        }
    }
    [[nodiscard]] static std::size_t mean_bytes(const lane_sizes& s) noexcept {
        return Types::means ? (s.width * sizeof(float) + 63) / 64 * 64 : 0;
    }
    [[nodiscard]] const lane_sizes& sizes() const noexcept { return lanes_->sizes; }
    [[nodiscard]] static summary_view running_view(summary_view view, std::byte* running,
                                                   std::size_t offset) noexcept {
        view.running = running + offset;
        return view;
    }

    const typename Types::index_state* index_ = nullptr;
    const typename Types::estimator_state* estimator_ = nullptr;
    const lane_table* lanes_ = nullptr;
    summary_shape shape_{};
    scratch x_;
};

}} // namespace kvtl::v0
