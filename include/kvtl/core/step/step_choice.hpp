// Which units the lanes of a layer attend in a step: chosen, counted, and kept from the loads of their own step.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/step/step_attention.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>

namespace kvtl { inline namespace v0 {

/// A prefetch or selection that is in the air or holds pins.
struct prefetch_slot {
    std::uint32_t slot = none, layer = none;
    std::uint32_t io_batch = none;
    bool complete = false;  ///< its choice covers every lane (its query may be compared)
    bool announced = false; ///< for a step of the batch that is under way
    bool same_query(const float* q, std::size_t n) const noexcept {
        return complete && std::memcmp(query.data(), q, n * sizeof(float)) == 0;
    }
    std::span<float> query;
    std::span<chosen_unit> chosen;
    std::span<std::uint32_t> count;
};

/// The choice of one step of one layer. It lies in scratch, so it holds until the shard's next step.
template <class Types> class step_choice {
  public:
    using store = store_of<Types>;
    using lane = typename Types::lane;
    using pool = typename Types::pool;
    static constexpr bool by_errors = chooser<Types>::by_errors;
    static constexpr bool by_name = engine_names_units<typename Types::selector>;

    struct scratch {
        std::span<chosen_unit> chosen;          ///< (lanes, chosen_per_lane)
        std::span<std::uint32_t> count, forced; ///< (lanes)
        std::span<float> marginal;              ///< (lanes) for a selector that goes by errors

        static scratch take(carver& c, const step_parts<Types>& p, std::uint32_t lanes) noexcept {
            scratch x;
            x.chosen = c.take<chosen_unit>(std::size_t{lanes} * p.chosen_per_lane);
            x.count = c.take<std::uint32_t>(lanes);
            x.forced = c.take<std::uint32_t>(lanes);
            x.marginal = c.take<float>(by_errors ? lanes : 0);
            return x;
        }
    };

    step_choice() = default;
    step_choice(store& s, const step_parts<Types>& p, const scratch& x) noexcept : store_(&s), p_(p), x_(x) {}

    /// Room for what lane i chooses, and what it has chosen.
    [[nodiscard]] std::span<chosen_unit> room_of(std::uint32_t i) const noexcept {
        return x_.chosen.subspan(std::size_t{i} * p_.chosen_per_lane, p_.chosen_per_lane);
    }
    [[nodiscard]] std::span<chosen_unit> of(std::uint32_t i) const noexcept {
        return room_of(i).first(x_.count[i]);
    }
    /// The unit that joins lane i's work because its waiting entries must be merged, or none.
    [[nodiscard]] std::uint32_t forced(std::uint32_t i) const noexcept { return x_.forced[i]; }
    [[nodiscard]] bool contains(std::uint32_t i, std::uint32_t u) const noexcept {
        return u == x_.forced[i] || contains_unit(of(i), u);
    }

    /// Chooses units for every lane. q: (HQ, D). `arriving`: tokens that are attended and not counted yet; `in_place`:
    /// their row is there. A selector that goes by errors wants the step's attention. Fails only where the index reads keys to
    /// score them.
    [[nodiscard]] status choose(std::span<const lane_ref> lanes, const float* q, std::uint32_t arriving,
                                bool in_place, step_attention<Types>& attention) noexcept {
        if constexpr (by_errors)
            return choose_by_errors(lanes, q, arriving, in_place, attention), status{};
        else
            return choose_by_scores(lanes, q, arriving);
    }
    /// The units that the engine names for the next choice, (lanes, N).
    void name_units(std::span<const std::uint32_t> units) noexcept { named_ = units; }

    /// What prefetch() chose becomes this step's choice, and the other way round.
    void take(std::span<const lane_ref> lanes, const prefetch_slot& a) noexcept {
        for (std::uint32_t i = 0; i < lanes.size(); ++i) {
            std::copy_n(a.chosen.begin() + i * p_.chosen_per_lane, a.count[i], room_of(i).begin());
            x_.count[i] = a.count[i], x_.forced[i] = none;
        }
    }
    void give(std::span<const lane_ref> lanes, prefetch_slot& a) const noexcept {
        for (std::uint32_t i = 0; i < lanes.size(); ++i) {
            std::ranges::copy(of(i), a.chosen.begin() + i * p_.chosen_per_lane);
            a.count[i] = x_.count[i];
        }
    }
    /// What the layer `back` layers earlier chose in its latest step, as far as this layer has such units and its budget
    /// beside the arriving token allows.
    void follow(std::span<const lane_ref> lanes, std::uint32_t back) noexcept {
        for (std::uint32_t i = 0; i < lanes.size(); ++i) {
            const lane mine = store_->at(lanes[i].id),
                       leading = store_->at(lanes[i].id - back * p_.model.lanes());
            const std::uint32_t units = mine.state().units;
            std::uint32_t left = mine.budget(1), n = 0;
            const auto bits = leading.chosen_before();
            const auto out = room_of(i);
            for (std::uint32_t word = 0; word < bits.size(); ++word)
                for (std::uint64_t rest = bits[word]; rest != 0; rest &= rest - 1) {
                    const std::uint32_t u = word * 64 + static_cast<std::uint32_t>(std::countr_zero(rest));
                    const std::uint32_t entries = u < units ? store_->entries_of(mine, u) : none;
                    if (entries > left || n == out.size()) continue;
                    out[n++] = {.unit = u};
                    left -= entries;
                }
            x_.count[i] = n, x_.forced[i] = none;
        }
    }

    /// Adds to a lane's work the unit whose waiting entries must be merged now because the buffer is full.
    void force_full_buffers(std::span<const lane_ref> lanes, std::uint32_t limit) noexcept {
        for (std::uint32_t i = 0; i < lanes.size(); ++i) {
            const lane l = store_->at(lanes[i].id);
            if (l.state().buffered < limit) continue;
            const std::uint32_t u = l.fullest_buffered();
            const auto chosen = of(i);
            if (!contains_unit(chosen, u) && l.residency(u).frames() == none) x_.forced[i] = u;
        }
    }

    /// by_errors: what the last step chose, for the bar. output: what it put out, as a squared length.
    [[nodiscard]] step_facts facts(std::span<const lane_ref> lanes, float output) const noexcept {
        step_facts f;
        f.output = output;
        for (std::uint32_t i = 0; i < lanes.size(); ++i) {
            const lane l = store_->at(lanes[i].id);
            f.budget += std::min(l.budget(1), l.entries_in_units());
            for (const chosen_unit& c : of(i)) f.entries += store_->entries_of(l, c.unit);
            if (!(x_.marginal[i] > 0)) continue;
            f.log_marginal += std::log(x_.marginal[i]);
            ++f.marginals;
        }
        return f;
    }

    /// Counts what a step has chosen; loads of this step shall not evict what of it is resident.
    void count_and_want(std::span<const lane_ref> lanes) noexcept {
        statistics& stats = store_->stats();
        for (std::uint32_t i = 0; i < lanes.size(); ++i) {
            const lane l = store_->at(lanes[i].id);
            pool& frames = store_->pool_of(lanes[i].id);
            const auto before = l.chosen_before();
            if (!Types::sequential) ask_for_frames(l, frames, i);
            if (!Types::selector::takes_everything && l.state().units > 0) {
                ++stats.choices;
                stats.selectable_entries += l.budget(1);
                stats.empty_choices += x_.count[i] == 0;
            }
            std::uint64_t reused = 0, all = 0, resident = 0, missing_entries = 0;
            for (const chosen_unit& c : of(i)) {
                const auto& now = l.residency(c.unit);
                const std::size_t bytes = store_->bytes_of(l, c.unit);
                reused += before[c.unit / 64] >> (c.unit % 64) & 1;
                all += bytes;
                if (now.frames() != none && store_->io_batch_of(now, frames) == none)
                    resident += bytes;
                else
                    missing_entries += store_->entries_of(l, c.unit);
                if (now.frames() != none) store_->want(now, frames);
            }
            stats.chosen_units += x_.count[i];
            stats.reused_units += reused;
            stats.chosen_bytes += all;
            stats.resident_chosen_bytes += resident;
            stats.useful_bytes += all - resident;
            stats.read_entries += missing_entries;
        }
    }

    /// Loads of this step shall not evict what it has chosen too and finds resident.
    void want_resident(std::span<const lane_ref> lanes) noexcept {
        for (std::uint32_t i = 0; i < lanes.size(); ++i)
            for (const chosen_unit& c : of(i))
                if (const auto& now = store_->at(lanes[i].id).residency(c.unit); now.frames() != none)
                    store_->want(now, store_->pool_of(lanes[i].id));
    }
    void forget_wanted(std::span<const lane_ref> lanes) noexcept {
        for (std::uint32_t i = 0; i < lanes.size(); ++i)
            for (const chosen_unit& c : of(i))
                if (const auto& now = store_->at(lanes[i].id).residency(c.unit); now.frames() != none)
                    store_->pool_of(lanes[i].id)[now.frames()].wanted = false;
    }

    /// Sets the bits of the chosen units: the next step counts reuse, and layers that share a choice follow it.
    void remember(std::span<const lane_ref> lanes) noexcept {
        for (std::uint32_t i = 0; i < lanes.size(); ++i) {
            const auto bits = store_->at(lanes[i].id).chosen_before();
            std::fill(bits.begin(), bits.end(), 0U);
            for (const chosen_unit& c : of(i)) bits[c.unit / 64] |= std::uint64_t{1} << (c.unit % 64);
        }
    }

  private:
    [[nodiscard]] status choose_by_scores(std::span<const lane_ref> lanes, const float* q,
                                          std::uint32_t arriving) noexcept {
        for (std::uint32_t i = 0; i < lanes.size(); ++i) {
            const lane l = store_->at(lanes[i].id);
            const auto chosen = room_of(i);
            status read;
            const auto stream = [&](auto&& visit) {
                if constexpr (scores_stored_keys<typename Types::index>) {
                    const phase_clock::span timed(p_.clock, &phase_times::fetch_wait);
                    decltype(auto) codec = store_->codec(lanes[i].id);
                    read = store_->scan_keys(lanes[i].id, [&](const records_view& keys) {
                        const phase_clock::span scoring(p_.clock, &phase_times::score);
                        visit(codec, keys);
                    });
                }
            };
            if constexpr (by_name) {
                const std::size_t row = named_.size() / p_.model.lanes();
                p_.choose->name(named_.subspan(lanes[i].in_layer * row, row));
            }
            const std::uint32_t n = p_.choose->choose(
                q + p_.model.query_offset(lanes[i].in_layer), p_.growth->view(lanes[i].id),
                l.budget(arriving), chosen, p_.clock, stream, p_.bars->of_lane(lanes[i].id));
            if (!read) return read;
            keep(l, i, n);
        }
        return {};
    }

    /// Units that are chosen for the errors that they would leave: what is in memory is attended first. In a step the rest
    /// is estimated at once.
    void choose_by_errors(std::span<const lane_ref> lanes, const float* q, std::uint32_t arriving,
                          bool in_place, step_attention<Types>& attention) noexcept {
        for (std::uint32_t i = 0; i < lanes.size(); ++i) {
            const lane l = store_->at(lanes[i].id);
            const phase_clock::span timed(p_.clock, &phase_times::attend);
            bool priced = false;
            attention.attend_memory(lanes[i], attention.near_of(i), q, in_place);
            const std::uint32_t n = p_.choose->choose_by_errors(
                p_.growth->view(lanes[i].id), l.budget(arriving), room_of(i), p_.bars->of_lane(lanes[i].id),
                p_.bars->output_of_lane(lanes[i].id), x_.marginal[i], p_.clock,
                [&](std::uint32_t u) { return store_->fetched_entries(lanes[i].id, u); },
                [&](std::span<float> score) {
                    attention.price_units(lanes, i, q, score);
                    priced = true;
                });
            keep(l, i, n);
            if (!in_place) continue;
            timed.enter(&phase_times::attend);
            attention.estimate_now(lanes, i, of(i), q, priced);
        }
    }

    /// Lane i has chosen the first n units of room_of(i).
    void keep(const lane& l, std::uint32_t i, std::uint32_t n) noexcept {
        const phase_clock::span timed(p_.clock, &phase_times::choose);
        const auto chosen = room_of(i).first(n);
        sort_by_unit(chosen);
        x_.count[i] = n;
        x_.forced[i] = none;
        if (!Types::sequential)
            for (const chosen_unit& c : chosen) __builtin_prefetch(&l.residency(c.unit)); // is asked for next
    }
    /// Asks for what is looked at of the frames of a lane's choice: they lie anywhere. Always inlined, as what
    /// asks for rows is (coming_records).
    [[gnu::always_inline]] void ask_for_frames(const lane& l, const pool& frames,
                                               std::uint32_t i) const noexcept {
        for (const chosen_unit& c : of(i))
            if (const std::uint32_t f = l.residency(c.unit).frames(); f != none)
                __builtin_prefetch(&frames[f]);
    }

    store* store_ = nullptr;
    step_parts<Types> p_{};
    scratch x_{};
    std::span<const std::uint32_t> named_; ///< during a step
};

}} // namespace kvtl::v0
