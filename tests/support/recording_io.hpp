// A device that remembers what was asked of it: in_memory, with a log of every range that was written or
// read, and a way to read a page back behind the cache's back.
//
// A read may pass over pages that nobody wants (gaps that cost less than another operation); their bytes go
// to one page of scratch outside the frames. `wanted` tells them apart: its memory lies in the arena.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/io/in_memory.hpp>
#include <kvtl/slots/io.hpp>

#include "support/wrapped_memory.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace kvtl_test {

struct io_event {
    kvtl::io_verb verb = kvtl::io_verb::read;
    std::uint64_t offset = 0;
    bool wanted = true; ///< the bytes went to (or came from) a frame
};

/// One event per page, in order of submission. Kept by the test; not for several threads.
struct io_log {
    static constexpr std::uint64_t page = 4096;

    std::vector<io_event> events;
    std::map<std::uint64_t, std::uint32_t> writes; ///< by page offset: how often
    std::uint64_t reads_before_write = 0;          ///< wanted reads of pages that nothing was written to

    void clear_events() { events.clear(); }
    /// The bytes that storage has now; nothing may be in flight.
    [[nodiscard]] std::vector<std::byte> read_back(std::uint64_t offset, std::size_t bytes) {
        std::vector<std::byte> memory(bytes + 64);
        const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
        std::byte* at = memory.data() + (64 - address % 64) % 64;
        const ::iovec slice{at, bytes};
        const kvtl::io_request request{kvtl::io_verb::read, 1, &slice, offset, 0};
        kvtl::io_completion done;
        if (!queue->submit({&request, 1}).ok() || queue->reap({&done, 1}, true) != 1 || done.error != 0)
            return {};
        return {at, at + bytes};
    }

    kvtl::in_memory::queue* queue = nullptr;
};

struct recording {
    static constexpr std::string_view name = "recording";
    struct config {
        std::shared_ptr<io_log> log = std::make_shared<io_log>();
    };

    class queue {
      public:
        queue(kvtl::in_memory::queue& inner, std::shared_ptr<io_log> log, std::span<const std::byte> arena)
            : inner_(&inner), log_(std::move(log)), arena_(arena) {}

        [[nodiscard]] kvtl::status submit(std::span<const kvtl::io_request> requests) noexcept {
            for (const kvtl::io_request& r : requests) note(r);
            return inner_->submit(requests);
        }
        [[nodiscard]] std::size_t reap(std::span<kvtl::io_completion> done, bool wait) noexcept {
            return inner_->reap(done, wait);
        }
        [[nodiscard]] std::size_t in_flight() const noexcept { return inner_->in_flight(); }
        [[nodiscard]] kvtl::io_counters counters() const noexcept { return inner_->counters(); }

      private:
        void note(const kvtl::io_request& r) {
            std::uint64_t at = r.offset;
            for (std::uint32_t i = 0; i < r.slice_count; ++i) {
                const auto* memory = static_cast<const std::byte*>(r.slices[i].iov_base);
                const bool wanted = memory >= arena_.data() && memory < arena_.data() + arena_.size();
                for (std::size_t done = 0; done < r.slices[i].iov_len;
                     done += io_log::page, at += io_log::page) {
                    log_->events.push_back({r.verb, at, wanted});
                    if (r.verb == kvtl::io_verb::write)
                        ++log_->writes[at];
                    else if (wanted && !log_->writes.contains(at))
                        ++log_->reads_before_write;
                }
            }
        }

        kvtl::in_memory::queue* inner_;
        std::shared_ptr<io_log> log_;
        std::span<const std::byte> arena_;
    };

    using device = wrapped_memory<queue>;

    [[nodiscard]] static kvtl::result<device> open(const config& c, const kvtl::io_plan& plan) {
        auto opened = device::open(plan, c.log, plan.arena);
        if (opened) c.log->queue = &opened->inner().queue(0);
        return opened;
    }
};

static_assert(kvtl::io_policy<recording>);

} // namespace kvtl_test
