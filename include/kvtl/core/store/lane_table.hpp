// All lanes of a cache, and how much memory the tables of their units have.
//
// What:   the lanes of a sequence in a shard are a *region*: their blocks lie side by side, with tables for as many units
//         each. A region is reserved for all units that its lanes may come to have. Where frames may borrow, tables are
//         no longer than they need be: what lies behind the last block is lent, in whole pages of the system's, large ones
//         where there is much of it, since a pass over tables in small pages looks up addresses half of its time.
// Cost:   resize() copies what the lanes of a region hold: once for every eighth by which their tables grow.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/store/lane.hpp>
#include <kvtl/reservation.hpp>

#include <sys/mman.h>

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvtl { inline namespace v0 {

template <class Lane> struct lane_region;

/// Where a lane's block is.
template <class Lane> struct lane_place {
    std::byte* block = nullptr;
    lane_region<Lane>* region = nullptr;
};

/// Numbers of a region's lanes: of each layer so many, so far apart.
struct lane_numbers {
    std::uint32_t first = 0, layers = 0, of_layer = 0;
    std::uint32_t apart = 1;       ///< from lane to lane
    std::uint32_t layer_apart = 0; ///< from layer to layer

    [[nodiscard]] std::uint32_t count() const noexcept { return layers * of_layer; }
    [[nodiscard]] std::uint32_t operator[](std::uint32_t i) const noexcept {
        return first + i / of_layer * layer_apart + i % of_layer * apart;
    }
};

/// Aligned: the regions of different threads lie side by side.
template <class Lane> struct alignas(64) lane_region {
    using offsets = typename Lane::offsets;

    std::span<std::byte> memory; ///< for tables of all units that its lanes may come to have
    lane_numbers lanes;
    offsets at;                 ///< of each block, as long as its tables are now
    bool beside = false;        ///< representatives lie elsewhere
    bool roomy = false;         ///< tables have become longer since somebody looked how long they need be
    std::uint32_t placed = 0;   ///< pages in the places of its lanes' units
    std::uint32_t promised = 0; ///< rows that tables are to get, for lanes that a branch has still to copy
    std::size_t promised_bytes = 0; ///< of the blocks then: they are not lent
    std::size_t lent_page = 0;      ///< memory is given back in such pages; 0: none is
    std::size_t touched =
        0; ///< bytes that may have memory: those of the blocks, or more if the system took none back

    [[nodiscard]] static std::size_t stride(const offsets& at, bool beside) noexcept {
        return at.bytes + (beside ? 0 : at.representative_bytes);
    }
    /// Bytes of whole pages that were never touched, and of those that would not have been if tables had `rows` rows.
    [[nodiscard]] std::size_t spare() const noexcept {
        return behind(std::max(touched, promised_bytes)).size();
    }
    [[nodiscard]] std::size_t spare(const lane_sizes& sizes, std::uint32_t rows) const noexcept {
        return behind(std::max({touched, promised_bytes, used(offsets::make(sizes, rows))})).size();
    }
    void promise(const lane_sizes& sizes, std::uint32_t rows) noexcept {
        promised = rows;
        promised_bytes = rows == 0 ? 0 : used(offsets::make(sizes, rows));
    }
    /// Gives the tables of all its lanes room for `rows` units each; no lane has more. Nobody may use what becomes theirs;
    /// what they leave is as if it had never been touched, unless memory is locked.
    void resize(const lane_sizes& sizes, std::span<lane_place<Lane>> places, std::uint32_t rows) noexcept {
        const offsets was = at, now = offsets::make(sizes, rows);
        const std::size_t stride_now = stride(now, beside);
        const std::uint32_t n = lanes.count();
        for (std::uint32_t i = 0; i < n; ++i) { // nothing is written over before it has moved
            const std::uint32_t k = rows > was.rows ? n - 1 - i : i;
            std::byte* const from = places[lanes[k]].block;
            const std::uint32_t units = reinterpret_cast<const lane_state*>(from + was.state)->units;
            assert(units <= rows);
            was.move(sizes, units, from, now, places[lanes[k]].block = memory.data() + k * stride_now);
        }
        at = now;
        touched = std::max(touched, used(now));
        if (rows >= was.rows) return;
        const std::span<std::byte> left = behind(used(now));
        if (left.empty() || ::madvise(left.data(), left.size(), MADV_DONTNEED) == 0) touched = used(now);
    }

    /// In which pages a region of so many bytes lends: large ones, where the system has them and some would be spare.
    [[nodiscard]] static std::size_t page_for(std::size_t bytes) noexcept {
        constexpr std::size_t some = 8, usual_page = 4096; // of others large pages may be larger yet
        return system_page() == usual_page && bytes >= some * reservation::large_page
                   ? reservation::large_page
                   : system_page();
    }

  private:
    [[nodiscard]] std::size_t used(const offsets& blocks) const noexcept {
        return lanes.count() * stride(blocks, beside);
    }
    [[nodiscard]] std::span<std::byte> behind(std::size_t bytes) const noexcept {
        if (lent_page == 0) return {};
        const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
        const std::size_t first = (begin + bytes + lent_page - 1) / lent_page * lent_page,
                          end = (begin + memory.size()) / lent_page * lent_page;
        return first < end ? memory.subspan(first - begin, end - first) : std::span<std::byte>{};
    }
};

/// All lanes of a cache: numbered (slot * layers + layer) * lanes per layer + lane.
template <class Lane> struct lane_table {
    using offsets = typename Lane::offsets;

    std::span<lane_place<Lane>> places;   ///< (lanes)
    std::span<lane_region<Lane>> regions; ///< of each sequence, one in each shard that has lanes of it
    /// (lanes) where layers have memory for them in turn; else null, and they are in the blocks.
    std::byte** representatives = nullptr;
    lane_sizes sizes;
    offsets longest; ///< with tables for all units that a lane may come to have
    std::uint32_t lanes_per_slot = 0;
    std::uint32_t lanes_per_layer = 0;
    std::uint32_t lane_heads = 1; ///< KV heads of a lane

    [[nodiscard]] Lane at(std::uint32_t id) const noexcept {
        const lane_place<Lane>& place = places[id];
        const offsets& in_block = place.region->at;
        return {place.block, representatives == nullptr ? place.block + in_block.bytes : representatives[id],
                sizes, in_block};
    }
    [[nodiscard]] lane_region<Lane>& region_of(std::uint32_t id) const noexcept { return *places[id].region; }
    [[nodiscard]] std::size_t slots() const noexcept { return places.size() / lanes_per_slot; }
    [[nodiscard]] std::uint32_t slot_of(std::uint32_t id) const noexcept { return id / lanes_per_slot; }
    [[nodiscard]] std::uint32_t layer_of(std::uint32_t id) const noexcept {
        return id % lanes_per_slot / lanes_per_layer;
    }
    [[nodiscard]] std::uint32_t in_layer(std::uint32_t id) const noexcept { return id % lanes_per_layer; }

    /// Lays a region out: with tables for all units, or where they lend with none yet.
    void begin_region(lane_region<Lane>& r, std::span<std::byte> memory, const lane_numbers& lanes,
                      std::size_t lent_page) const noexcept {
        r.memory = memory;
        r.lanes = lanes;
        r.lent_page = lent_page;
        r.beside = representatives != nullptr;
        r.at = lent_page > 0 ? offsets::make(sizes, 0) : longest;
        r.touched = lanes.count() * lane_region<Lane>::stride(r.at, r.beside);
        for (std::uint32_t i = 0; i < lanes.count(); ++i) {
            places[lanes[i]] = {memory.data() + i * lane_region<Lane>::stride(r.at, r.beside), &r};
            at(lanes[i]).reset();
        }
    }
};

}} // namespace kvtl::v0
