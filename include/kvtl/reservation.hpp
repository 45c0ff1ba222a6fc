// The one block of memory a cache owns, and the carver that divides it. Every byte kvtl holds for the cache
// comes from here; nothing is allocated after open().
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

/// Bytes in which the system gives memory and takes it back.
[[nodiscard]] inline std::size_t system_page() noexcept {
    static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    return bytes;
}

/// An anonymous mapping, zeroed, aligned to pages of the system or more. Move-only.
class reservation {
  public:
    static constexpr std::size_t large_page = std::size_t{2}
                                              << 20; ///< of a system whose other pages are of 4 KiB

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
    /// Leaves the memory mapped for the rest of the process: something may still write to it.
    void leave() noexcept { memory_ = {}; }

    /// `alignment`: a power of two.
    [[nodiscard]] static result<reservation> make(std::size_t bytes, std::size_t alignment = 1) {
        const std::size_t more = alignment > system_page() ? alignment : 0;
        void* const all =
            ::mmap(nullptr, bytes + more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (all == MAP_FAILED)
            return status::failure(errc::bound_too_small, "memory_bytes: the system does not give %zu bytes",
                                   bytes);
        std::byte* p = static_cast<std::byte*>(all);
        if (more != 0) { // gives what is too much at both ends back
            const std::size_t skew = -reinterpret_cast<std::uintptr_t>(all) & (alignment - 1),
                              page = system_page(), end = (skew + bytes + page - 1) / page * page;
            if (skew != 0) ::munmap(p, skew);
            if (end < bytes + more) ::munmap(p + end, bytes + more - end);
            p += skew;
        }
#ifdef MADV_HUGEPAGE
        // A pass over much memory, or a scattered read of it, looks up pages most of the time. First touches then clear
        // 2 MiB at once, and the system may have to make room for them.
        if (bytes >= large) static_cast<void>(::madvise(p, bytes, MADV_HUGEPAGE));
#endif
        reservation r;
        r.memory_ = {p, bytes};
        return r;
    }
    [[nodiscard]] std::span<std::byte> memory() const noexcept {
        return memory_;
    }
    /// Whether the system takes memory behind byte `first` back when it is told to; not where memory is locked.
    [[nodiscard]] bool gives_back(std::size_t first) const noexcept {
        return first == memory_.size() ||
               ::madvise(memory_.data() + first, memory_.size() - first, MADV_DONTNEED) == 0;
    }
    /// Its parts are in large pages where they can be, if the system has some.
    [[nodiscard]] bool is_large() const noexcept {
        return memory_.size() >= large;
    }
    /// Gives the whole pages of the system that lie in `part` back to it; what they held is lost. False where memory is locked.
    [[nodiscard]] static bool give_back(std::span<std::byte> part) noexcept {
        const std::span<std::byte> pages = whole_pages_of(part);
        if (pages.empty()) return true;
        in_small_pages(pages); // else a large page that is there in part would become whole again
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
    /// What is never touched of this part takes no memory: first touches bring in one page of the system's each.
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
    [[maybe_unused]] static constexpr std::size_t large = std::size_t{64} << 20;
    std::span<std::byte> memory_;
};

/// Hands out consecutive pieces of a block. Without a block it only counts, so that one function both sizes a
/// structure and lays it out.
class carver {
  public:
    carver() = default;
    explicit carver(std::span<std::byte> block) noexcept : base_(block.data()) {}

    /// `count` objects of T, value-initialised when there is a block; aligned to `align` bytes.
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
