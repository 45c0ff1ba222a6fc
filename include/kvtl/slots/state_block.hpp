// The memory block that holds the state of a layout or a replacement policy.
//
// State is relocatable: everything that a call changes lies in the block, as numbers and never as addresses.
// The state object holds only values that follow from its config and sizes, and views of the block. So the
// bytes of the block are the state. They may be copied between two calls, to any address of equal alignment.
// A new state with an equal config and equal sizes, handed this copy as state_block::filled, gives the same
// answers from then on.
//
// A state begins its block with its counters, a trivially copyable struct. Its arrays follow:
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
    fresh,  ///< any bytes: the constructor writes the initial values
    filled, ///< bytes of a state with equal config and sizes: it goes on from them and writes nothing
};

/// Divides a block into arrays, in the order of the calls. The caller orders the calls so that each array is
/// aligned.
class block_parts {
  public:
    block_parts(std::span<std::byte> memory, state_block holds) noexcept : rest_(memory), holds_(holds) {}

    /// `count` objects. In a fresh block each is set to `first`; in a filled block they keep their values.
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

/// A state can go on from a filled block. `Args`: constructor arguments of the slot's states, the block last.
template <class P, class... Args>
concept state_attaches = state_constructs<P, Args..., state_block>;

}} // namespace kvtl::v0
