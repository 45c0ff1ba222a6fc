// The one block of memory that a cache owns, and the carver that divides it. Every byte that kvtl holds for
// the cache comes from this block. Nothing is allocated after open().
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/status.hpp>

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

namespace kvtl { inline namespace v0 {

/// Page size of the system in bytes.
[[nodiscard]] inline std::size_t system_page() noexcept {
    static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    return bytes;
}

/// An anonymous mapping, filled with zeros, aligned at least to pages of the system. Move-only.
class reservation {
  public:
    /// Bytes of a large page, on systems whose ordinary pages have 4 KiB.
    static constexpr std::size_t large_page = std::size_t{2} << 20;

    reservation() = default;
    reservation(const reservation&) = delete;
    reservation& operator=(const reservation&) = delete;
    reservation(reservation&& other) noexcept : memory_(std::exchange(other.memory_, {})) {}
    reservation& operator=(reservation&& other) noexcept {
        std::swap(memory_, other.memory_);
        return *this;
    }
    ~reservation() {
        if (!memory_.empty()) ::munmap(memory_.data(), memory_.size());
    }
    /// Leaves the memory mapped until the process ends. For memory that a device may still write to.
    void leave() noexcept { memory_ = {}; }

    /// Maps `bytes` bytes. `alignment`: a power of two. errc::bound_too_small if the system refuses.
    [[nodiscard]] static result<reservation> make(std::size_t bytes, std::size_t alignment = 1) {
        const std::size_t more = alignment > system_page() ? alignment : 0;
        void* const all =
            ::mmap(nullptr, bytes + more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (all == MAP_FAILED)
            return status::failure(errc::bound_too_small, "memory_bytes: the system does not give %zu bytes",
                                   bytes);
        std::byte* p = static_cast<std::byte*>(all);
        if (more != 0) { // unmaps the excess at both ends
            const std::size_t skew = -reinterpret_cast<std::uintptr_t>(all) & (alignment - 1),
                              page = system_page(), end = (skew + bytes + page - 1) / page * page;
            if (skew != 0) ::munmap(p, skew);
            if (end < bytes + more) ::munmap(p + end, bytes + more - end);
            p += skew;
        }
#ifdef MADV_HUGEPAGE
        // With small pages, passes over large memory and scattered reads spend most of their time on page
        // look-ups. The price: a first touch clears 2 MiB at once, and the system may have to make room for
        // them.
        if (bytes >= large) static_cast<void>(::madvise(p, bytes, MADV_HUGEPAGE));
#endif
        reservation r;
        r.memory_ = {p, bytes};
        return r;
    }
    [[nodiscard]] std::span<std::byte> memory() const noexcept {
        return memory_;
    }
    /// Gives the memory from byte `first` on back to the system; its content is lost. False if memory is
    /// locked.
    [[nodiscard]] bool gives_back(std::size_t first) const noexcept {
        return first == memory_.size() ||
               ::madvise(memory_.data() + first, memory_.size() - first, MADV_DONTNEED) == 0;
    }
    /// True if the reservation is large enough that it asks for large pages.
    [[nodiscard]] bool is_large() const noexcept {
        return memory_.size() >= large;
    }
    /// Gives the whole pages within `part` back to the system; their content is lost. False if memory is
    /// locked.
    [[nodiscard]] static bool give_back(std::span<std::byte> part) noexcept {
        const std::span<std::byte> pages = whole_pages_of(part);
        if (pages.empty()) return true;
        in_small_pages(pages); // otherwise the system may make a partly returned large page whole again
        return ::madvise(pages.data(), pages.size(), MADV_DONTNEED) == 0;
    }
    /// Undoes in_small_pages().
    static void in_large_pages(std::span<std::byte> part) noexcept {
        const std::span<std::byte> pages = whole_pages_of(part);
#ifdef MADV_HUGEPAGE
        if (!pages.empty()) static_cast<void>(::madvise(pages.data(), pages.size(), MADV_HUGEPAGE));
#endif
        static_cast<void>(pages);
    }
    /// Turns large pages off for `part`. Each first touch then adds one small page; untouched pages take no
    /// memory.
    static void in_small_pages(std::span<std::byte> part) noexcept {
#ifdef MADV_NOHUGEPAGE
        const std::size_t page = system_page();
        const auto at = reinterpret_cast<std::uintptr_t>(part.data());
        const std::size_t first = at / page * page, end = (at + part.size() + page - 1) / page * page;
        static_cast<void>(::madvise(part.data() - (at - first), end - first, MADV_NOHUGEPAGE));
#endif
    }

  private:
    [[nodiscard]] static std::span<std::byte> whole_pages_of(std::span<std::byte> part) noexcept {
        const std::size_t page = system_page(),
                          skew = -reinterpret_cast<std::uintptr_t>(part.data()) & (page - 1);
        if (part.size() < skew + page) return {};
        return part.subspan(skew, (part.size() - skew) / page * page);
    }
    /// What a bound of 64 MiB leaves when its last page does not fit is large, too.
    [[maybe_unused]] static constexpr std::size_t large = std::size_t{62} << 20;
    std::span<std::byte> memory_;
};

/// Hands out consecutive pieces of a block. Without a block it only counts. So one function computes the size
/// of a structure and also lays it out.
class carver {
  public:
    carver() = default;
    explicit carver(std::span<std::byte> block) noexcept : base_(block.data()) {}

    /// `count` objects of T, aligned to `align` bytes. With a block they are value-initialised, except bytes.
    template <class T> [[nodiscard]] std::span<T> take(std::size_t count, std::size_t align = 64) noexcept {
        static_assert(std::is_trivially_copyable_v<T>);
        used_ = (used_ + align - 1) / align * align;
        T* at = base_ != nullptr ? reinterpret_cast<T*>(base_ + used_) : nullptr;
        used_ += count * sizeof(T);
        if (at == nullptr) return {};
        if constexpr (!std::is_same_v<T, std::byte>)
            for (std::size_t i = 0; i < count; ++i) ::new (static_cast<void*>(at + i)) T{};
        return {at, count};
    }
    [[nodiscard]] std::size_t used() const noexcept { return used_; }

  private:
    std::byte* base_ = nullptr;
    std::size_t used_ = 0;
};

}} // namespace kvtl::v0
