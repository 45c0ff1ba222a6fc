// The spread of a lane: squared distances from keys to the means of their units, by dimension, gathered while entries
// join units. SPDX-License-Identifier: MIT
#include <kvtl/core/shard_access.hpp>
#include <kvtl/presets/estimate.hpp>

#include "support/cache_fixture.hpp"
#include "support/entry_walk.hpp"
#include "support/recording_io.hpp"

namespace manager_spread_test {

using namespace kvtl;
using namespace kvtl_test;

namespace {

struct recorded : presets::dynakv_estimate {
    using compressor = raw<float>;
    using io = recording;
};
using cache_type = kv_manager<recorded>;

/// What the lane should have gathered, in double precision, from which tokens its units hold from step to step.
class expected_spread {
  public:
    explicit expected_spread(const drift& data) : data_(&data), sums_(data.shape().head_dim) {}

    void begin(const std::vector<token_list>& units) {
        std::fill(sums_.begin(), sums_.end(), 0.0);
        for (const token_list& unit : units) add(1, unit);
        before_ = units;
    }
    /// A unit that has grown adds what it has grown by; one that has split counts again, as its children.
    void go_on(const std::vector<token_list>& units) {
        for (std::size_t u = 0; u < units.size(); ++u) {
            const bool grown = u < before_.size() && units[u].size() >= before_[u].size() &&
                               std::equal(before_[u].begin(), before_[u].end(), units[u].begin());
            add(1, units[u]);
            if (grown) add(-1, before_[u]);
            splits_ += u < before_.size() && !grown ? 1 : 0;
        }
        before_ = units;
    }
    [[nodiscard]] const std::vector<double>& sums() const { return sums_; }
    [[nodiscard]] int splits() const { return splits_; }

  private:
    void add(double factor, const token_list& unit) {
        for (std::size_t d = 0; d < sums_.size(); ++d) {
            double mean = 0;
            for (const std::uint32_t t : unit)
                mean += static_cast<double>(data_->key(0, t, 0)[d]) / static_cast<double>(unit.size());
            for (const std::uint32_t t : unit)
                sums_[d] += factor * std::pow(static_cast<double>(data_->key(0, t, 0)[d]) - mean, 2);
        }
    }

    const drift* data_;
    std::vector<double> sums_;
    std::vector<token_list> before_;
    int splits_ = 0;
};

struct watched {
    const drift data{{1, 2, 1, 16}, 420, 9, {.numbered = true}};
    std::shared_ptr<io_log> log = std::make_shared<io_log>();
    cache_type cache;

    watched() : cache(open_cache<cache_type>(config())) {}
    [[nodiscard]] cache_type::config config() const {
        cache_type::config c;
        c.shape = data.shape();
        c.max_tokens = 420;
        c.attend_tokens = 120;
        c.memory_bytes = std::size_t{4} << 20;
        c.io.log = log;
        return c;
    }
    [[nodiscard]] lane_content look() {
        const lane_content lane = look_at(cache, *log, data, 0, 0);
        REQUIRE(lane.complete());
        return lane;
    }
    void compare(const expected_spread& expected) {
        const std::span<const float> got = kvtl::shard_access::of(cache, 0).store().at(0).spread();
        REQUIRE(got.size() == expected.sums().size());
        for (std::size_t d = 0; d < got.size(); ++d)
            REQUIRE(static_cast<double>(got[d]) ==
                    doctest::Approx(expected.sums()[d]).epsilon(1e-4).scale(0.1));
    }
};

} // namespace

TEST_CASE("a prompt's entries, then entry by entry, through splits") {
    watched w;
    for (int turn = 0; turn < 2; ++turn) { // the second sequence begins with nothing gathered
        reader<cache_type> one(w.cache, w.data, 0);
        expected_spread expected(w.data);
        one.prefill(200, 90);
        expected.begin(w.look().units);
        w.compare(expected);
        for (int step = 0; step < 200; ++step) {
            one.decode(1);
            expected.go_on(w.look().units);
            w.compare(expected);
        }
        CHECK(expected.splits() > 5);
        one.end();
    }
}

TEST_CASE("a lane that is clustered during decode gathers anew") {
    watched w;
    reader<cache_type> one(w.cache, w.data, 0);
    expected_spread expected(w.data);
    bool clustered = false;
    for (int step = 0; step < 260 && !clustered; ++step) {
        one.decode(1);
        clustered = kvtl::shard_access::of(w.cache, 0).store().at(0).state().clustered;
        if (clustered)
            expected.begin(w.look().units);
        else
            expected.go_on(w.look().units);
        CAPTURE(step);
        CAPTURE(clustered);
        w.compare(expected);
    }
    CHECK(clustered);
}

TEST_CASE("it takes no more than D numbers per lane, and none where no policy reads it") {
    struct without : presets::dynakv_estimate {
        using index = centroid;
        using estimator = centroid_estimate;
    };
    static_assert(cache_type::types::spread && !kv_manager<without>::types::spread);
    const auto least = []<class Preset>(Preset) {
        typename kv_manager<Preset>::config c;
        c.shape = {3, 4, 2, 64};
        c.max_tokens = 2000;
        return *kv_manager<Preset>::least_memory(c);
    };
    constexpr std::size_t page = 4096; // what is left of a frame is no frame
    CHECK(least(presets::dynakv_estimate{}) <=
          least(without{}) + std::size_t{3} * 2 * 64 * sizeof(float) + page);
}

} // namespace manager_spread_test
