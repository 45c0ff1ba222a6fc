// The parts of a sequence on their way: to a file, from a file, or into a hash.
//
// What:   one walk over a sequence (core/save/) names its parts in one order. The stream decides what happens to them: a
//         writer takes their bytes, a reader fills them. So nothing can be saved that is not loaded.
// Errors: the first one sticks. From then on a stream moves nothing; a reader leaves zeros, so that counts read afterwards
//         ask for nothing.
// Cost:   a virtual call for each array.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/status.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

namespace kvtl { inline namespace v0 {

class part_stream {
  public:
    enum class direction : std::uint8_t { save, load };

    part_stream(const part_stream&) = delete;
    part_stream& operator=(const part_stream&) = delete;

    [[nodiscard]] bool loads() const noexcept { return way_ == direction::load; }
    [[nodiscard]] const char* call() const noexcept { return call_; }
    [[nodiscard]] bool ok() const noexcept { return error_.ok(); }
    [[nodiscard]] const status& error() const noexcept { return error_; }
    /// The walk has found something wrong. Only the first failure counts.
    void fail(status s) noexcept {
        if (error_.ok()) error_ = std::move(s);
    }

    /// A device has not answered and may still write to the memory of the pages: who lent it must not give it to others.
    void leave_memory() noexcept { memory_left_ = true; }
    [[nodiscard]] bool memory_is_left() const noexcept { return memory_left_; }

    /// Bytes of a part, which are read or filled.
    void bytes(std::byte* at, std::size_t n) noexcept {
        if (n == 0) return;
        if (error_.ok())
            if (status s = move(at, n); !s) fail(std::move(s));
        if (loads() && !error_.ok()) std::memset(at, 0, n);
    }
    /// n values without padding, so that equal values are equal bytes.
    template <class T> void array(T* first, std::size_t n) noexcept {
        static_assert(std::is_trivially_copyable_v<T>);
        bytes(reinterpret_cast<std::byte*>(first), n * sizeof(T));
    }
    template <class T> void value(T& x) noexcept { array(&x, 1); }
    /// What follows belongs to a KV head of a layer: to the `index`-th head of the model.
    virtual void next_head(std::uint32_t index) noexcept { static_cast<void>(index); }
    /// What follows is who is resident in the pool of a part of the sequence. False: the stream has nothing of the kind.
    virtual bool next_pool(std::uint32_t part) noexcept { return static_cast<void>(part), false; }
    /// The next page of entries, in order. True: a save before has it, so that its bytes are not needed. Otherwise they come
    /// with pages(), in the same order. unchanged: since the save before, if that has it. ends: the last page of a unit,
    /// or a page that never changes.
    [[nodiscard]] virtual bool has_page(bool unchanged, bool ends) noexcept {
        static_cast<void>(unchanged), static_cast<void>(ends);
        return false;
    }
    /// Whole pages of entries: kept apart from other bytes, so that those which have not changed are saved once.
    void pages(std::byte* at, std::size_t n, std::size_t page_bytes) noexcept {
        if (n == 0 || !error_.ok()) return;
        if (status s = move_pages(at, n, page_bytes); !s) fail(std::move(s));
    }
    /// A count that the loading side checks: beyond `most` the stream fails, and the count is 0.
    void count(std::uint32_t& n, std::uint32_t most, const char* name) noexcept {
        value(n);
        if (!loads() || n <= most) return;
        fail(status::failure(errc::out_of_range,
                             "load: the saved sequence has %u %s; valid: up to %u in this cache", n, name,
                             most));
        n = 0;
    }

  protected:
    /// call: that of the manager, for messages.
    part_stream(direction way, const char* call) noexcept : way_(way), call_(call) {}
    ~part_stream() = default;

  private:
    /// Takes or fills n > 0 bytes.
    virtual status move(std::byte* at, std::size_t n) noexcept = 0;
    /// The same for n / page_bytes pages.
    virtual status move_pages(std::byte* at, std::size_t n, std::size_t page_bytes) noexcept {
        static_cast<void>(page_bytes);
        return move(at, n);
    }

    direction way_;
    bool memory_left_ = false;
    const char* call_;
    status error_;
};

/// Tells sequences apart that a save would tell apart: FNV-1a over all parts, 64 bits. For tests.
class hash_stream final : public part_stream {
  public:
    hash_stream() noexcept : part_stream(direction::save, "save") {}
    [[nodiscard]] std::uint64_t value() const noexcept { return value_; }

  private:
    status move(std::byte* at, std::size_t n) noexcept override {
        for (std::size_t i = 0; i < n; ++i)
            value_ = (value_ ^ std::to_integer<std::uint64_t>(at[i])) * 0x100000001B3U;
        return {};
    }

    std::uint64_t value_ = 0xCBF29CE484222325U;
};

}} // namespace kvtl::v0
