// worst_case: the most that any query would lose; what attention needs first comes first.
// SPDX-License-Identifier: MIT
#include <kvtl/calibration/writer.hpp>
#include <kvtl/policies/retain_worst_case.hpp>

#include "contracts/retention.hpp"
#include "support/scratch_folder.hpp"

#include <numeric>

namespace retain_worst_case_test {

using namespace kvtl;
using namespace kvtl_test;
using namespace kvtl_test::retention_suite;

namespace {
double total(const numbers& x) {
    return std::accumulate(x.begin(), x.end(), 0.0);
}
struct ranked {
    numbers score;
    std::vector<bool> first; ///< by token
};
/// The score by definition. `most`: entries that may come first. `norms`: the factor of the lane's head (D, D), or nothing.
template <over Group = over::max, over Window = over::max>
ranked definition(const auto& lane, std::uint32_t width, double sure, std::size_t most,
                  const float* norms = nullptr) {
    const std::uint32_t begin = lane.begin(), n = lane.end() - begin;
    ranked r{numbers(lane.size().tokens, 0.0), std::vector<bool>(lane.size().tokens, false)};
    if (n == 0) return r;
    numbers worst(n, 0.0), mean(n, 0.0);
    for (std::uint32_t w = 0; w < lane.observed(); ++w) {
        numbers of_query(n, 0.0);
        for (std::uint32_t g = 0; g < lane.size().group; ++g) {
            const numbers all = lane.attention(w, g), p(all.begin() + begin, all.begin() + begin + n),
                          smooth = pooled(p, width);
            for (std::uint32_t i = 0; i < n; ++i) {
                const double loss = total(smooth) > 0 ? smooth[i] * total(p) / total(smooth) : 0.0;
                of_query[i] =
                    Group == over::max ? std::max(of_query[i], loss) : of_query[i] + loss / lane.size().group;
                mean[i] += p[i];
            }
        }
        for (std::uint32_t i = 0; i < n; ++i)
            worst[i] = Window == over::max ? std::max(worst[i], of_query[i])
                                           : worst[i] + of_query[i] / lane.observed();
    }
    const double least = total(worst) / n;
    for (std::uint32_t i = 0; i < n; ++i) {
        const std::uint32_t dim = lane.size().dim;
        double size = 0;
        for (std::uint32_t d = 0; d < dim && norms == nullptr; ++d)
            size += std::fabs(lane.value(begin + i, d));
        for (std::uint32_t j = 0; j < dim && norms != nullptr; ++j) {
            double x = 0;
            for (std::uint32_t d = 0; d < dim; ++d)
                x += static_cast<double>(norms[j * dim + d]) * lane.value(begin + i, d);
            size += x * x;
        }
        if (norms != nullptr) size = std::sqrt(size);
        r.score[begin + i] = std::max(worst[i], least) * size / lane.value_size(begin + i);
    }
    std::vector<std::uint32_t> order(n);
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return mean[a] > mean[b]; });
    // Every query pays 1; what the prefix does not get is the pinned entries'.
    const double paid = lane.observed() * lane.size().group, needed = sure * paid - (paid - total(mean));
    double sum = 0;
    for (std::size_t i = 0; i < std::min<std::size_t>(most, n) && sum < needed; ++i) {
        sum += mean[order[i]];
        r.first[begin + order[i]] = true;
    }
    return r;
}
constexpr double first = 1099511627776.0;
} // namespace

TEST_CASE("worst_case: when nobody is sure, the largest loss alone") {
    for (const std::uint32_t width : {1U, 5U})
        ranks_prompts_contract<worst_case>(
            {.pool_width = width, .sure = 0.0F}, 2e-5,
            [width](const auto& lane) { return definition(lane, width, 0.0, 0).score; });
}

TEST_CASE("group_loss and mean_loss: other aggregations of the losses") {
    ranks_prompts_contract<group_loss>({.sure = 0.0F}, 2e-5, [](const auto& lane) {
        return definition<over::max, over::mean>(lane, 5, 0.0, 0).score;
    });
    ranks_prompts_contract<mean_loss>({.sure = 0.0F}, 2e-5, [](const auto& lane) {
        return definition<over::mean, over::mean>(lane, 5, 0.0, 0).score;
    });
    CHECK(std::string_view(worst_case::name) == "worst_case");
}

TEST_CASE("worst_case: entries that make up the sure part come first, in the order of their scores") {
    ranks_prompts_contract<worst_case>({}, 2e-5, [](const auto& lane) {
        ranked r = definition(lane, 5, static_cast<double>(0.9F), 10);
        for (std::size_t t = 0; t < r.score.size(); ++t)
            if (r.first[t]) r.score[t] *= first;
        return r.score;
    });
    // And the others keep theirs, which are too small beside the first to be seen above.
    std::size_t sure = 0, others = 0;
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
        const retention_suite::extents e{80, 64, 2, 4, 8};
        const state_of<worst_case> s({.sure = 0.5F}, e.limits(), {});
        const lane<worst_case, float> x(e, seed);
        const auto got = x.score(s, 0.0F);
        const ranked exact = definition(x, 5, 0.5, 10);
        oracle::largest_error worst;
        for (std::uint32_t t = x.begin(); t < x.end(); ++t) {
            worst.relative(static_cast<double>(got[t]), exact.score[t] * (exact.first[t] ? first : 1.0));
            ++(exact.first[t] ? sure : others);
        }
        CHECK(worst.value() < 2e-5);
    }
    CHECK(sure > 20);
    CHECK(others > 100);
}

TEST_CASE("worst_case: a value counts as what the output projection makes of it, where that is known") {
    const retention_suite::extents e{80, 48, 2, 4, 8};
    const shape model{.layers = e.layers, .query_heads = 4, .kv_heads = e.kv_heads, .head_dim = e.dim};
    const std::size_t block = std::size_t{e.dim} * e.dim;
    const auto norms = oracle::normal_values(e.layers * e.kv_heads * block, 31);
    const scratch_folder here;
    calibration_writer out(model, 1), other(model, 1);
    REQUIRE(out.add(calibration_kind::value_norms, e.dim, norms));
    REQUIRE(other.add(calibration_kind::pca_basis, e.dim, norms));
    REQUIRE(out.write(here.file("norms")));
    REQUIRE(other.write(here.file("other")));
    const auto file = calibration::load(here.file("norms"), model),
               without = calibration::load(here.file("other"), model);
    REQUIRE(file);
    REQUIRE(without);
    const float* own = &norms[(e.layer * e.kv_heads + e.head) * block];
    const auto check = [&](const auto& x) {
        state_of<worst_case> s({.sure = 0.0F}, e.limits(), {});
        const auto plain = x.score(s, 0.0F);
        s.bind(without->view());
        CHECK(same_bits(x.score(s, 0.0F), plain));
        s.bind(file->view());
        const auto got = x.score(s, 0.0F);
        const ranked exact = definition(x, 5, 0.0, 0, own);
        oracle::largest_error worst;
        for (std::uint32_t t = x.begin(); t < x.end(); ++t)
            worst.relative(static_cast<double>(got[t]), exact.score[t]);
        CHECK(worst.value() < 2e-5);
    };
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
        check(lane<worst_case, float>(e, seed));
        check(lane<worst_case, f16>(e, seed));
    }
}

TEST_CASE("worst_case: settings that can never work are named") {
    using state = state_of<worst_case>;
    CHECK(state::check({}, {}).ok());
    check_refusal(state::check({.pool_width = 4}, {}), "retention.pool_width is 4");
    check_refusal(state::check({.sure = 1.5F}, {}), "retention.sure is 1.5");
    check_refusal(state::check({.sure = NAN}, {}), "retention.sure is");
}

} // namespace retain_worst_case_test
