// The block of memory that a layout or a replacement policy keeps its state in.
//
// State is relocatable: everything that a call changes lies in the block, as numbers and never as addresses. The state
// object itself holds what follows from its config and sizes, and views of the block. So the block is the state: its
// bytes, copied between two calls to any address of the same alignment and handed to a new state of the same config
// and sizes as state_block::filled, give the same answers from there on.
//
// A state begins its block with its counters, a trivially copyable struct, and its arrays follow:
//
//   state(const config&, std::uint32_t handles, std::span<std::byte> memory, state_block holds = state_block::fresh) noexcept {
//       block_parts parts(memory, holds);
//       count_ = parts.take<counters>(1);
//       entry_ = parts.take<entry>(handles);
//   }
//
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/policy.hpp>

#include <cassert>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>

namespace kvtl { inline namespace v0 {

/// The content of a block that a state is handed.
enum class state_block : std::uint8_t {
    fresh, ///< any bytes: the state writes its first values there
    filled, ///< the bytes of a state with the same config and sizes: this one goes on from them and writes nothing
};

/// Divides a block into arrays, in the order of the calls. The caller orders them so that each is aligned.
class block_parts {
  public:
    block_parts(std::span<std::byte> memory, state_block holds) noexcept : rest_(memory), holds_(holds) {}

    /// `count` objects: each is `first` in a fresh block, as it was left in a filled one.
    template <class T> [[nodiscard]] T* take(std::size_t count, const T& first = T{}) noexcept {
        static_assert(std::is_trivially_copyable_v<T>);
        const std::span<std::byte> part = take_bytes(count * sizeof(T));
        assert(reinterpret_cast<std::uintptr_t>(part.data()) % alignof(T) == 0);
        T* const at = reinterpret_cast<T*>(part.data());
        if (holds_ == state_block::fresh) std::uninitialized_fill_n(at, count, first);
        return at;
    }
    /// For a part that initialises itself, given holds().
    [[nodiscard]] std::span<std::byte> take_bytes(std::size_t bytes) noexcept {
        assert(bytes <= rest_.size());
        const std::span<std::byte> part = rest_.first(bytes);
        rest_ = rest_.subspan(bytes);
        return part;
    }
    [[nodiscard]] state_block holds() const noexcept { return holds_; }

  private:
    std::span<std::byte> rest_;
    state_block holds_;
};

/// A state goes on from a filled block: `Args` is what the slot's states are made from, the block last.
template <class P, class... Args>
concept state_attaches = state_constructs<P, Args..., state_block>;

}} // namespace kvtl::v0
