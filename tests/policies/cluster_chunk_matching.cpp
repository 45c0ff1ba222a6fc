// chunk_matching: every key joins the most similar target of its chunk that has room.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/cluster_chunk_matching.hpp>

#include "contracts/clusterer.hpp"

#include <doctest/doctest.h>

#include <string>

namespace cluster_chunk_matching_test {

using namespace kvtl;
using namespace kvtl_test;

TEST_CASE("chunk_matching") {
    clusterer_contract<chunk_matching>({.tokens_per_cluster = 4, .chunk = 32});
}

TEST_CASE("chunk_matching with an odd number of tokens per cluster") {
    clusterer_contract<chunk_matching>({.tokens_per_cluster = 5, .chunk = 64});
}

TEST_CASE("units are those of the definition, in double precision") {
    constexpr std::uint32_t n = 230, dim = 6;
    std::size_t moved = 0, full = 0; // keys that are not with the target before them; that found no room
    for (const auto kind : {clusterer_suite::keys::normal, clusterer_suite::keys::topics})
        for (const std::uint32_t step : {2U, 7U}) {
            const chunk_matching::config c{.tokens_per_cluster = step, .chunk = 50};
            const auto rows = clusterer_suite::make_keys(kind, n, dim, step);
            const lane_model<chunk_matching> lane(c, dim);
            std::uint32_t units = 0;
            const auto label = clusterer_suite::group<chunk_matching, float>(lane, rows, units);
            const auto cosine = [&](std::uint32_t a, std::uint32_t b) {
                const float *x = rows[a].data(), *y = rows[b].data();
                return oracle::dot(x, y, dim) / std::sqrt(oracle::dot(x, x, dim) * oracle::dot(y, y, dim));
            };
            std::uint32_t before = 0; // units of earlier chunks
            for (std::uint32_t first = 0; first < n; first += 50) {
                const std::uint32_t end = std::min(n, first + 50), here = (end - first + step - 1) / step;
                std::vector<std::uint32_t> size(here, 1);
                for (std::uint32_t t = first; t < end; ++t) {
                    std::uint32_t best = (t - first) / step, wish = 0;
                    if ((t - first) % step != 0) {
                        double most = -2, any = -2;
                        for (std::uint32_t u = 0; u < here; ++u) {
                            const double x = cosine(t, first + u * step);
                            if (x > any) any = x, wish = u;
                            if (size[u] < 2 * step && x > most) most = x, best = u;
                        }
                        ++size[best];
                        moved += best != (t - first) / step ? 1 : 0;
                        full += best != wish ? 1 : 0;
                    }
                    CHECK(label[t] == before + best);
                }
                before += here;
            }
            CHECK(units == before);
        }
    CHECK(moved > 100);
    CHECK(full > 10);
}

TEST_CASE("values that cannot work are refused by name, and clusters grow up to a bound") {
    using state = chunk_matching::state;
    const auto says = [](const chunk_matching::config& c, const char* text) {
        const status s = state::check(c);
        return s.code() == errc::invalid_argument && std::string(s.what()).find(text) == 0;
    };
    CHECK(says({.tokens_per_cluster = 1}, "clusterer.tokens_per_cluster is 1; valid: 2 to 4096"));
    CHECK(says({.tokens_per_cluster = 8, .chunk = 15}, "clusterer.chunk is 15; valid: 16 to 16384"));
    chunk_matching::config c;
    while (c.coarsen(100)) CHECK(state::check(c).ok());
    CHECK(c.tokens_per_cluster == 64);
    CHECK(c.chunk == 128);
}

} // namespace cluster_chunk_matching_test
