// Vectors that begin on a cache line, as what a cache carves out of its memory does.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace bench {

template <class T> struct line_allocator {
    using value_type = T;
    static constexpr std::align_val_t line{64};

    line_allocator() = default;
    template <class U> explicit line_allocator(const line_allocator<U>&) noexcept {}

    [[nodiscard]] T* allocate(std::size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), line)); }
    void deallocate(T* p, std::size_t) noexcept { ::operator delete(p, line); }
    friend bool operator==(const line_allocator&, const line_allocator&) noexcept { return true; }
};

using line_floats = std::vector<float, line_allocator<float>>;

} // namespace bench
