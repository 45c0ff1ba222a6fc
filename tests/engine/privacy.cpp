// The pages that a sequence writes do not depend on who had its memory before: they have no byte of a sequence that ended,
// neither in unused rows nor in padding. Every preset writes the same pages in fresh memory, which is zero, and behind
// another sequence.
// SPDX-License-Identifier: MIT
#include "preset_caches.hpp"
#include "support/wrapped_memory.hpp"

#include <algorithm>
#include <functional>
#include <string_view>

namespace {

using namespace kvtl_test;

constexpr std::size_t page_bytes = kvtl::in_memory::page;

/// in_memory, which hashes the pages that are written.
struct page_log {
    static constexpr std::string_view name = "page_log";
    struct config {
        std::shared_ptr<std::vector<std::uint64_t>> pages;
    };
    struct queue : forwarding_queue {
        queue(kvtl::in_memory::queue& inner, std::shared_ptr<std::vector<std::uint64_t>> pages) noexcept
            : forwarding_queue(inner), pages_(std::move(pages)) {}
        [[nodiscard]] kvtl::status submit(std::span<const kvtl::io_request> requests) noexcept {
            for (const kvtl::io_request& r : requests) {
                if (r.verb != kvtl::io_verb::write) continue;
                for (std::uint32_t i = 0; i < r.slice_count; ++i)
                    for (std::size_t at = 0; at < r.slices[i].iov_len; at += page_bytes) {
                        const char* page = static_cast<const char*>(r.slices[i].iov_base) + at;
                        pages_->push_back(std::hash<std::string_view>{}({page, page_bytes}));
                    }
            }
            return forwarding_queue::submit(requests);
        }

      private:
        std::shared_ptr<std::vector<std::uint64_t>> pages_;
    };
    using device = wrapped_memory<queue>;
    [[nodiscard]] static kvtl::result<device> open(const config& c, const kvtl::io_plan& plan) {
        return device::open(plan, c.pages);
    }
};
static_assert(kvtl::io_policy<page_log>);

/// Plays a stream in a new sequence, which ends. The pages that it wrote, in no order.
std::vector<std::uint64_t> written(engine::kv_cache& cache, const stream& data,
                                   std::vector<std::uint64_t>& log, record& out) {
    static constexpr run ample{.least = false, .name = "ample"};
    kvtl::io_faults none;
    log.clear();
    out = player(cache, data, ample, none, 60).play(chunk);
    std::sort(log.begin(), log.end());
    return log;
}

} // namespace

TEST_CASE("no page that a sequence writes has bytes of one that has ended") {
    const stream first(12), second;
    std::size_t writers = 0;
    for (const auto policy : engine::policy_names()) {
        CAPTURE(policy);
        const auto log = std::make_shared<std::vector<std::uint64_t>>();
        for (const std::size_t mib : {256U, 4U}) {
            CAPTURE(mib);
            preset_caches caches(policy, kvtl::any_io::of<page_log>({log}));
            record alone, behind, ignored;
            const auto should = written(caches.open(1, 1, mib), second, *log, alone);
            engine::kv_cache& again = caches.open(1, 1, mib);
            static_cast<void>(written(again, first, *log, ignored));
            const auto pages = written(again, second, *log, behind);
            CHECK_MESSAGE(difference(alone, behind).empty(), "another sequence changed ",
                          difference(alone, behind));
            std::vector<std::uint64_t> others;
            std::set_difference(pages.begin(), pages.end(), should.begin(), should.end(),
                                std::back_inserter(others));
            CHECK_MESSAGE(others.empty(), others.size(), " of ", pages.size(), " pages differ");
            writers += pages.empty() ? 0 : 1;
        }
    }
    CHECK(writers > engine::policy_names().size() / 2);
}
