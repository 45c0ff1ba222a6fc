// Intrusive doubly linked lists over resident handles, from which replacement policies are built.
//
// A handle is in at most one list. All operations are O(1). Memory: 8 bytes per handle and per list, numbers
// only: a copy of the bytes is a copy of the lists.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/state_block.hpp>
#include <kvtl/unit.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvtl { inline namespace v0 {

/// `percent` (0 to 100, more counts as 100) of the frames, at least one of them unless one of the two is 0.
[[nodiscard]] constexpr std::uint32_t share_of(std::uint32_t frames, std::uint32_t percent) noexcept {
    const auto share = static_cast<std::uint32_t>(std::uint64_t{frames} * std::min(percent, 100U) / 100);
    return percent == 0 || frames == 0 || share != 0 ? share : 1;
}

class resident_lists {
  public:
    resident_lists() = default;
    resident_lists(std::uint32_t handles, std::uint32_t lists, std::span<std::byte> memory,
                   state_block holds = state_block::fresh) noexcept
        : link_(block_parts(memory, holds).take<link>(std::size_t{handles} + lists, {none, none})),
          handles_(handles) {
        if (holds == state_block::filled) return;
        for (std::uint32_t l = 0; l < lists; ++l) link_[handles + l] = {handles + l, handles + l};
    }

    [[nodiscard]] static std::size_t bytes(std::uint32_t handles, std::uint32_t lists) noexcept {
        return (std::size_t{handles} + lists) * sizeof(link);
    }

    void push_front(std::uint32_t list, std::uint32_t h) noexcept {
        const std::uint32_t head = handles_ + list;
        link_[h] = {head, link_[head].next};
        link_[link_[head].next].prev = h;
        link_[head].next = h;
    }
    void remove(std::uint32_t h) noexcept {
        link_[link_[h].prev].next = link_[h].next;
        link_[link_[h].next].prev = link_[h].prev;
        link_[h] = {none, none};
    }
    void push_back(std::uint32_t list, std::uint32_t h) noexcept { push_before(handles_ + list, h); }
    /// h comes into the list of `at`, as its neighbour on the side of the front.
    void push_before(std::uint32_t at, std::uint32_t h) noexcept {
        link_[h] = {link_[at].prev, at};
        link_[link_[at].prev].next = h;
        link_[at].prev = h;
    }
    void move_front(std::uint32_t list, std::uint32_t h) noexcept {
        remove(h);
        push_front(list, h);
    }
    /// The least recent handle of a list, or `none`.
    [[nodiscard]] std::uint32_t back(std::uint32_t list) const noexcept {
        return member(link_[handles_ + list].prev);
    }
    /// The next more recent one, or `none`.
    [[nodiscard]] std::uint32_t towards_front(std::uint32_t, std::uint32_t h) const noexcept {
        return member(link_[h].prev);
    }

  private:
    struct link {
        std::uint32_t prev, next;
    };
    [[nodiscard]] std::uint32_t member(std::uint32_t i) const noexcept { return i < handles_ ? i : none; }

    link* link_ = nullptr;
    std::uint32_t handles_ = 0;
};

}} // namespace kvtl::v0
