// A file of pages in memory with a checksum for each: what the hand-written loops read from and write to.
//
// It lies on kvtl::in_memory, the device of the caches that they are compared with, so both pay the same for moving a page
// and for checking it. What is read goes out sorted, neighbours joined, in one submission.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/io/in_memory.hpp>
#include <kvtl/simd/checksum.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace bench {

/// Asks for memory that is attended next, as the caches do: half a page into the L1 cache, units that are copied into the L2
/// cache. Always inlined: gcc drops calls of a function that does nothing else.
[[gnu::always_inline]] inline void ask_for(const void* memory, std::size_t bytes) noexcept {
    for (std::size_t at = 0; at < bytes; at += 64)
        __builtin_prefetch(static_cast<const std::byte*>(memory) + at);
}
[[gnu::always_inline]] inline void ask_for_later(const void* memory, std::size_t bytes) noexcept {
    for (std::size_t at = 0; at < bytes; at += 64)
        __builtin_prefetch(static_cast<const std::byte*>(memory) + at, 0, 2);
}

class page_file {
  public:
    static constexpr std::uint32_t page_bytes = 4096;

    struct transfer {
        std::uint32_t page;
        std::byte* memory; ///< page_bytes, aligned to 64
    };

    /// `most`: transfers of one read().
    [[nodiscard]] static kvtl::result<page_file> open(std::uint32_t pages, std::uint32_t most) {
        const std::uint64_t bytes = std::uint64_t{pages} * page_bytes;
        kvtl::io_plan plan;
        plan.max_in_flight = most, plan.max_bytes = bytes;
        auto device = kvtl::in_memory::open({}, plan);
        if (!device) return device.error();
        if (kvtl::status s = device->reserve(0, bytes); !s) return s;
        return page_file(*std::move(device), pages, most);
    }

    /// Sorts `list`. Errors: corrupt, where a page has another checksum than when it was written.
    [[nodiscard]] kvtl::status read(std::span<transfer> list) noexcept {
        if (list.empty()) return {};
        std::sort(list.begin(), list.end(),
                  [](const transfer& a, const transfer& b) { return a.page < b.page; });
        std::size_t requests = 0;
        for (std::size_t begin = 0, end = 0; begin < list.size(); begin = end) {
            for (end = begin; end < list.size() && list[end].page - list[begin].page == end - begin; ++end)
                slice_[end] = {list[end].memory, page_bytes};
            request_[requests++] = request(kvtl::io_verb::read, list[begin].page, begin, end - begin);
        }
        if (kvtl::status s = run(requests); !s) return s;
        for (const transfer& t : list)
            if (kvtl::simd::page_checksum(t.memory, page_bytes) != checksum_[t.page])
                return kvtl::status::failure(kvtl::errc::corrupt, "page %u came back with another checksum",
                                             t.page);
        return {};
    }

    [[nodiscard]] kvtl::status write(std::uint32_t page, std::byte* memory) noexcept {
        checksum_[page] = kvtl::simd::page_checksum(memory, page_bytes);
        slice_[0] = {memory, page_bytes};
        request_[0] = request(kvtl::io_verb::write, page, 0, 1);
        return run(1);
    }

    [[nodiscard]] std::uint64_t read_bytes() noexcept { return device_.queue(0).counters().read_bytes; }

  private:
    page_file(kvtl::in_memory::device device, std::uint32_t pages, std::uint32_t most)
        : device_(std::move(device)), checksum_(pages), request_(most), slice_(most) {}

    [[nodiscard]] kvtl::io_request request(kvtl::io_verb verb, std::uint32_t page, std::size_t slice,
                                           std::size_t slices) const noexcept {
        return {verb, static_cast<std::uint32_t>(slices), &slice_[slice], std::uint64_t{page} * page_bytes,
                0};
    }
    [[nodiscard]] kvtl::status run(std::size_t requests) noexcept {
        if (kvtl::status s = device_.queue(0).submit(std::span(request_).first(requests)); !s) return s;
        kvtl::io_completion done[32];
        while (std::size_t n = device_.queue(0).reap(done, true))
            for (std::size_t i = 0; i < n; ++i)
                if (done[i].error != 0)
                    return kvtl::status::failure(kvtl::errc::io_error, "a transfer failed: errno %d",
                                                 done[i].error);
        return {};
    }

    kvtl::in_memory::device device_;
    std::vector<std::uint32_t> checksum_;
    std::vector<kvtl::io_request> request_;
    std::vector<::iovec> slice_;
};

} // namespace bench
