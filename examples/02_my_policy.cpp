// A policy of your own in thirty lines: a selector that takes the units that score above the mean of all
// scores, and two presets of a few lines that use it, one on clusters, one on pages of 16 tokens.
//
// Features: user-defined selector, preset by inheritance, append() and select() for engines with their own
// attention. Prints how many entries were attended; more than the budget would be an error.
// SPDX-License-Identifier: MIT
#include <kvtl/io/in_memory.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/quest.hpp>

#include <algorithm>
#include <cstdio>
#include <random>
#include <vector>

// The policy.
// policy
struct above_mean {
    static constexpr std::string_view name = "above_mean"; // required
    static constexpr bool takes_everything = false;        // required: it chooses
    static constexpr bool uses_scores = true;              // required: by the index's scores
    using reduction = kvtl::reduce::group_mean;            // how a query group's scores become one
    struct config {
        float margin = 0; // added to the mean score
        template <class Visit> void fields(Visit&& visit) { visit("margin", margin); }
    };
    class state {
      public:
        state() = default;
        state(const config& c, const kvtl::geometry&) noexcept : margin_(c.margin) {}
        // Takes units that score above the mean, in index order, as long as the budget lasts.
        std::uint32_t choose(const kvtl::choice_input& in, std::span<kvtl::chosen_unit> out) const noexcept {
            float mean = margin_;
            for (const float s : in.score) mean += s / static_cast<float>(in.score.size());
            std::uint32_t n = 0, left = in.budget;
            for (std::uint32_t u = 0; u < in.units(); ++u) {
                if (in.score[u] < mean || in.entries(u) > left) continue;
                left -= in.entries(u);
                out[n++].unit = u;
            }
            return n;
        }

      private:
        float margin_ = 0;
    };
};
static_assert(kvtl::selector_for<above_mean>); // says what is missing, next to the policy

struct on_clusters : kvtl::presets::dynakv {
    using selector = above_mean;
    using io = kvtl::in_memory;
};
struct on_pages : kvtl::presets::quest {
    using selector = above_mean;
    using io = kvtl::in_memory;
};

// Its use.
// use
template <class Preset> int run() {
    auto opened = kvtl::kv_manager<Preset>::open(
        {.shape = {.layers = 1, .query_heads = 4, .kv_heads = 2, .head_dim = 64},
         .max_tokens = 2048,
         .memory_bytes = 8 << 20,
         .attend_tokens = 300});
    if (!opened) return std::fprintf(stderr, "%s\n", opened.error().message.c_str()), 1;
    auto cache = std::move(*opened);
    const auto seq = cache.begin();

    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> q(1500 * 4 * 64), k(1500 * 2 * 64), v(k);
    for (auto* tensor : {&q, &k, &v})
        for (float& x : *tensor) x = normal(random);
    if (auto s = cache.prefill(*seq, 0, {.q = q, .k = k, .v = v}, {}); !s) return std::puts(s.what()), 1;

    // An engine with its own attention kernel appends first, then attends what select() shows.
    const std::span<const float> query(q.data(), 4 * 64);
    if (auto s = cache.append(*seq, 0, {.k = std::span(k).first(128), .v = std::span(v).first(128)}); !s)
        return std::puts(s.what()), 1;
    std::size_t entries[2] = {0, 0};
    auto s =
        cache.select(*seq, 0, query, [&](std::size_t head, auto keys, auto) { entries[head] += keys.count; });
    if (!s) return std::puts(s.what()), 1;
    std::printf("head 0 attends %zu entries, head 1 %zu, of 1501\n", entries[0], entries[1]);
    return std::max(entries[0], entries[1]) <= 300 ? 0 : 1;
}
int main() {
    return run<on_clusters>() + run<on_pages>();
}
