// A device whose pages are larger than the system's: the cache is planned for them, and what is transferred begins and ends
// with one, in the file and in memory.
// SPDX-License-Identifier: MIT
#include <kvtl/io/transfer.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/flexgen.hpp>

#include "support/cache_fixture.hpp"
#include "support/wrapped_memory.hpp"

#include <atomic>

namespace manager_large_pages_test {

using namespace kvtl_test;

namespace {
constexpr std::uint32_t page = 16384;

/// Memory that says so.
struct coarse {
    static constexpr std::string_view name = "coarse";
    struct config {
        std::shared_ptr<std::atomic<std::size_t>> refused = std::make_shared<std::atomic<std::size_t>>(0);
    };
    class queue : public forwarding_queue {
      public:
        queue(kvtl::in_memory::queue& inner, std::shared_ptr<std::atomic<std::size_t>> refused)
            : forwarding_queue(inner), refused_(std::move(refused)) {}
        [[nodiscard]] kvtl::status submit(std::span<const kvtl::io_request> requests) noexcept {
            for (const auto& r : requests) *refused_ += kvtl::check_request(r, page, UINT64_MAX).error != 0;
            return forwarding_queue::submit(requests);
        }

      private:
        std::shared_ptr<std::atomic<std::size_t>> refused_;
    };
    using memory = wrapped_memory<queue>;
    struct device : memory {
        explicit device(memory all) : memory(std::move(all)) {}
        [[nodiscard]] kvtl::io_device_info device_info() const noexcept {
            kvtl::io_device_info f = memory::device_info();
            f.page = f.alignment = page;
            return f;
        }
    };
    [[nodiscard]] static kvtl::result<device> open(const config& c, const kvtl::io_plan& plan) {
        auto made = memory::open(plan, c.refused);
        if (!made) return made.error();
        return device(*std::move(made));
    }
};
static_assert(kvtl::io_policy<coarse>);

constexpr kvtl::shape small{2, 4, 2, 64};
template <class Preset> struct on_coarse : Preset {
    using compressor = kvtl::raw<float>;
    using io = coarse;
};
} // namespace

TEST_CASE_TEMPLATE("pages of 16 KiB", Preset, kvtl::presets::dynakv, kvtl::presets::flexgen) {
    using cache_type = kvtl::kv_manager<on_coarse<Preset>>;
    typename cache_type::config c;
    c.shape = small;
    c.max_tokens = 700;
    c.attend_tokens = 700;
    c.memory_bytes = std::size_t{6} << 20;
    for (const unsigned shards : {1U, 2U}) {
        CAPTURE(shards);
        c.shards = shards;
        const drift data(small, 700, 3);
        auto cache = open_cache<cache_type>(c);
        CHECK(cache.device_info().page == page);
        reader<cache_type> one(cache, data);
        one.prefill(450, 133);
        one.decode(100);
        CHECK(one.error() < exact);
        CHECK(*c.io.refused == 0);
    }
}

} // namespace manager_large_pages_test
