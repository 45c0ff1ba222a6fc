// A batch of sequences: what their steps choose is read before any of them is waited for, and no bit changes.
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/quest.hpp>
#include <kvtl/presets/token_topk.hpp>
#include <kvtl/simd/convert.hpp>

#include "support/cache_fixture.hpp"
#include "support/wrapped_memory.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

namespace manager_batch_test {

using namespace kvtl_test;

namespace {

constexpr kvtl::shape small{3, 4, 2, 64};

/// Memory whose reads land when somebody waits, and not before. `calls`: r for reads handed over, w for a wait that had
/// something to wait for.
struct late {
    static constexpr std::string_view name = "late";
    struct config {
        std::shared_ptr<std::string> calls = std::make_shared<std::string>();
    };
    class queue {
      public:
        queue(kvtl::in_memory::queue& inner, std::shared_ptr<std::string> calls)
            : inner_(&inner), calls_(std::move(calls)) {}
        [[nodiscard]] kvtl::status submit(std::span<const kvtl::io_request> requests) noexcept {
            if (!requests.empty() && requests[0].verb == kvtl::io_verb::read) *calls_ += 'r';
            return inner_->submit(requests);
        }
        [[nodiscard]] std::size_t reap(std::span<kvtl::io_completion> done, bool wait) noexcept {
            if (!wait || inner_->in_flight() == 0) return 0;
            *calls_ += 'w';
            return inner_->reap(done, wait);
        }
        [[nodiscard]] std::size_t in_flight() const noexcept { return inner_->in_flight(); }
        [[nodiscard]] kvtl::io_counters counters() const noexcept { return inner_->counters(); }

      private:
        kvtl::in_memory::queue* inner_;
        std::shared_ptr<std::string> calls_;
    };
    using device = wrapped_memory<queue>;
    [[nodiscard]] static kvtl::result<device> open(const config& c, const kvtl::io_plan& plan) {
        return device::open(plan, c.calls);
    }
};
static_assert(kvtl::io_policy<late>);

template <class Preset> struct on_late : Preset { using io = late; };
template <class Preset> using cache_of = kvtl::kv_manager<on_late<Preset>>;

/// A step attends what was chosen for the guess; without one, and in the first layer, for its own query.
struct quest_by_guess : kvtl::presets::quest {
    using selector = kvtl::topk<kvtl::reduce::group_mean, kvtl::query::predicted>;
    using schedule = kvtl::next_layer;
};

constexpr std::size_t sequences = 4;

template <class Cache> typename Cache::config config_for() {
    typename Cache::config c;
    c.shape = small;
    c.max_tokens = 500;
    c.max_sequences = sequences;
    c.attend_tokens = 80;
    c.memory_bytes = std::size_t{8} << 20;
    c.engine_inputs = kvtl::engine_input::q | kvtl::engine_input::k | kvtl::engine_input::v;
    if constexpr (requires { c.clusterer.tokens_per_cluster; }) c.clusterer.tokens_per_cluster = 8;
    if constexpr (requires { c.schedule.true_layers; }) c.schedule.true_layers = 1;
    return c;
}

/// One layer of a batch: tokens[b] of sequence b, a step where that is one, else a prompt. Returns out (T, HQ, D),
/// which means nothing when it fails, as it does with a broken number in the first key.
template <class Cache>
std::vector<float> pass(Cache& cache, std::vector<reader<Cache>>& all, std::size_t layer,
                        const std::vector<std::uint32_t>& tokens, bool broken = false) {
    std::vector<kvtl::batch_part> parts;
    std::vector<float> q, k, v;
    for (std::size_t b = 0; b < all.size(); ++b) {
        auto& one = all[b];
        parts.push_back({.seq = one.id(),
                         .tokens = tokens[b],
                         .kind = tokens[b] == 1 ? kvtl::part_kind::decode : kvtl::part_kind::last_of_prompt});
        const auto in = one.input(layer, one.tokens(), tokens[b]);
        q.insert(q.end(), in.q.floats().begin(), in.q.floats().end());
        k.insert(k.end(), in.k.floats().begin(), in.k.floats().end());
        v.insert(v.end(), in.v.floats().begin(), in.v.floats().end());
    }
    std::vector<float> out(q.size());
    if (broken) k[0] = NAN;
    const kvtl::status done = cache.forward(parts, layer, {.q = q, .k = k, .v = v}, out);
    CHECK(done.ok() != broken);
    return out;
}
/// A step of all sequences. Returns out (B, HQ, D).
template <class Cache>
std::vector<float> step(Cache& cache, std::vector<reader<Cache>>& all, std::size_t layer,
                        bool broken = false) {
    return pass(cache, all, layer, std::vector<std::uint32_t>(all.size(), 1), broken);
}

template <class Cache> std::vector<reader<Cache>> prompts(Cache& cache, const drift& data) {
    std::vector<reader<Cache>> all;
    for (std::size_t i = 0; i < sequences; ++i) {
        all.emplace_back(cache, data, 0);
        all.back().prefill(150 + 30 * i);
    }
    return all;
}

} // namespace

TEST_CASE_TEMPLATE("a batch has the bits of its sequences one by one", Preset, kvtl::presets::dynakv,
                   kvtl::presets::no_cluster) {
    using cache = cache_of<Preset>;
    const drift data(small, 500, 33);
    const auto c = config_for<cache>();
    auto together = open_cache<cache>(c), alone = open_cache<cache>(c);
    auto batch = prompts(together, data), others = prompts(alone, data);
    for (int i = 0; i < 60; ++i) {
        for (std::size_t l = 0; l < small.layers; ++l) {
            const auto out = step(together, batch, l);
            for (std::size_t b = 0; b < sequences; ++b) {
                std::vector<float> expected(data.query_floats());
                require_ok(
                    alone.attend(others[b].id(), l, others[b].input(l, others[b].tokens(), 1), expected));
                CHECK(std::equal(expected.begin(), expected.end(),
                                 out.begin() + static_cast<std::ptrdiff_t>(b * expected.size())));
            }
        }
        for (auto& one : batch) one.advance(1);
        for (auto& one : others) one.advance(1);
    }
    CHECK(together.stats().decode_reads > 0);
    CHECK(together.stats().wasted_bytes == 0);
}

TEST_CASE("the reads of a batch are handed over before the first of them is waited for") {
    using cache = cache_of<kvtl::presets::dynakv>;
    const drift data(small, 500, 34);
    auto c = config_for<cache>();
    c.memory_bytes =
        least_memory<cache>(c) + (std::size_t{128} << 10); // most of what is chosen has to be read
    auto opened = open_cache<cache>(c);
    auto batch = prompts(opened, data);
    std::size_t several = 0;
    for (int i = 0; i < 20; ++i) {
        for (std::size_t l = 0; l < small.layers; ++l) {
            c.io.calls->clear();
            static_cast<void>(step(opened, batch, l));
            CHECK_MESSAGE(c.io.calls->find("wr") == std::string::npos, *c.io.calls);
            several += c.io.calls->find("rr") != std::string::npos;
        }
        for (auto& one : batch) one.advance(1);
    }
    CHECK(several > 30); // of 60; elsewhere one of them at most misses something
}

TEST_CASE("with as good as no memory a batch attends what it should") {
    using cache = cache_of<kvtl::presets::dynakv>;
    const drift data(small, 500, 35);
    auto c = config_for<cache>();
    c.attend_tokens = 500; // everything: dense attention is the oracle
    c.memory_bytes = least_memory<cache>(c);
    auto opened = open_cache<cache>(c);
    auto batch = prompts(opened, data);
    dense_reference<cache::element_type> dense(data);
    for (int i = 0; i < 12; ++i) {
        for (std::size_t l = 0; l < small.layers; ++l) {
            const auto out = step(opened, batch, l);
            for (std::size_t b = 0; b < sequences; ++b) {
                const auto& expected = dense.attention(l, batch[b].tokens());
                for (std::size_t j = 0; j < expected.size(); ++j)
                    REQUIRE(std::abs(static_cast<double>(out[b * expected.size() + j]) - expected[j]) <
                            exact);
            }
        }
        for (auto& one : batch) one.advance(1);
    }
}

TEST_CASE_TEMPLATE("a prompt in a batch costs no step its reads, and few frames none of them twice", Preset,
                   kvtl::presets::dynakv, kvtl::presets::quest) {
    using cache = cache_of<Preset>;
    const drift data(small, 500, 36);
    for (std::size_t prompt_at = 0; prompt_at <= sequences; ++prompt_at) // the last: no prompt
        for (const bool few : {false, true}) {
            CAPTURE(prompt_at);
            CAPTURE(few);
            auto c = config_for<cache>();
            if (few) c.memory_bytes = least_memory<cache>(c) + (std::size_t{32} << 10);
            auto together = open_cache<cache>(c), alone = open_cache<cache>(c);
            auto batch = prompts(together, data), others = prompts(alone, data);
            for (int i = 0; i < (prompt_at < sequences ? 6 : 40); ++i) {
                std::vector<std::uint32_t> tokens(sequences, 1);
                if (prompt_at < sequences) tokens[prompt_at] = 20; // a further turn
                for (std::size_t l = 0; l < small.layers; ++l) {
                    static_cast<void>(pass(together, batch, l, tokens));
                    for (std::size_t b = 0; b < sequences; ++b) {
                        std::vector<float> out(tokens[b] * data.query_floats());
                        const auto in = others[b].input(l, others[b].tokens(), tokens[b]);
                        require_ok(tokens[b] == 1 ? alone.attend(others[b].id(), l, in, out)
                                                  : alone.prefill(others[b].id(), l, in, out));
                    }
                }
                for (std::size_t b = 0; b < sequences; ++b)
                    batch[b].advance(tokens[b]), others[b].advance(tokens[b]);
            }
            const auto reads = together.stats().decode_reads, expected = alone.stats().decode_reads;
            CHECK(reads * 100 <= expected * 101);
            CHECK(together.stats().wasted_bytes == 0);
        }
}

TEST_CASE_TEMPLATE("a batch is prefetched as its sequences one by one", Preset, kvtl::presets::dynakv,
                   kvtl::presets::quest, quest_by_guess) {
    using cache = cache_of<Preset>;
    const drift data(small, 500, 39);
    for (const unsigned shards : {1U, 2U}) {
        auto c = config_for<cache>();
        c.shards = shards;
        auto together = open_cache<cache>(c), alone = open_cache<cache>(c);
        auto batch = prompts(together, data), others = prompts(alone, data);
        std::vector<kvtl::sequence_id> ids;
        for (const auto& one : batch) ids.push_back(one.id());
        std::uint64_t prefetched = 0; // bytes
        for (std::size_t i = 0; i < 20; ++i) {
            for (std::size_t l = 0; l < small.layers; ++l) {
                std::vector<float> q;
                for (const auto& one : batch) {
                    const auto guess = data.q(l, one.tokens() - i % 2); // the true query, and the one before
                    q.insert(q.end(), guess.begin(), guess.end());
                }
                std::vector<kvtl::f16> half(q.size());
                kvtl::simd::encode(q.data(), half.data(), q.size());
                const std::uint64_t before = together.stats().read_bytes;
                for (unsigned s = 0; s < shards; ++s)
                    if (i % 3 == 0)
                        require_ok(together.shard(s).prefetch(ids, l, half));
                    else if (s == 0)
                        require_ok(together.prefetch(ids, l, q));
                prefetched += together.stats().read_bytes - before;
                const std::size_t row = q.size() / sequences;
                for (std::size_t b = 0; b < sequences; ++b)
                    require_ok(i % 3 == 0
                                   ? alone.prefetch(others[b].id(), l, std::span(half).subspan(b * row, row))
                                   : alone.prefetch(others[b].id(), l, std::span(q).subspan(b * row, row)));
                CHECK(together.stats().reads == alone.stats().reads);
                const auto out = step(together, batch, l), expected = step(alone, others, l);
                CHECK(out == expected);
            }
            for (auto& one : batch) one.advance(1);
            for (auto& one : others) one.advance(1);
        }
        CHECK(prefetched > 0);
        CHECK(together.stats().read_bytes == alone.stats().read_bytes);
        CHECK(together.stats().wasted_bytes == alone.stats().wasted_bytes);
        // The first layer's, of which nobody takes a guess, and no other.
        const bool by_guess = std::is_same_v<Preset, quest_by_guess>;
        CHECK(together.stats().unpredicted_choices == (by_guess ? 20 * sequences * shards : 0));
    }
}

TEST_CASE("what is wrong with one query of a batch is said, and the others are prefetched") {
    using cache = cache_of<kvtl::presets::dynakv>;
    const drift data(small, 500, 40);
    auto c = config_for<cache>();
    c.memory_bytes = least_memory<cache>(c) + (std::size_t{128} << 10);
    auto opened = open_cache<cache>(c);
    auto batch = prompts(opened, data);
    const std::vector<kvtl::sequence_id> ids{batch[0].id(), batch[1].id(), batch[2].id()};
    const std::size_t row = data.query_floats();
    std::vector<float> q(3 * row, .5F);
    const auto reads_after = [&](std::span<const float> rows, std::size_t layer, const std::string& word) {
        const std::uint64_t before = opened.stats().reads;
        const kvtl::status s = opened.prefetch(ids, layer, rows);
        CHECK_MESSAGE(std::string(s.what()).find(word) != std::string::npos, s.what());
        return opened.stats().reads - before;
    };
    require_ok(opened.prefetch(std::span<const kvtl::sequence_id>{}, 0, std::span<const float>{}));
    CHECK(reads_after(std::span(q).first(row), 0, "prefetch: q has 256 numbers; valid: 768") == 0);
    CHECK(reads_after(q, small.layers, "prefetch: layer is 3") == 0);
    q[row] = NAN;
    CHECK(reads_after(q, 0, "q holds a NaN") > 0); // of the first and the third
    q[row] = .5F;
    require_ok(opened.end(ids[1]));
    CHECK(reads_after(q, 1, "prefetch: sequence") > 0);
}

TEST_CASE("what a batch that fails had asked for is given up, and it may be repeated") {
    using cache = cache_of<kvtl::presets::dynakv>;
    const drift data(small, 500, 37);
    const auto c = config_for<cache>();
    auto opened = open_cache<cache>(c), other = open_cache<cache>(c);
    auto batch = prompts(opened, data), others = prompts(other, data);
    for (int i = 0; i < 10; ++i) {
        for (std::size_t l = 0; l < small.layers; ++l) {
            const auto before = opened.stats();
            static_cast<void>(step(opened, batch, l, true));
            CHECK(opened.stats().steps == before.steps);
            // Of five prefetches one is for this layer and one for the next: a selection finds a third, as none is held
            // for steps that did not come.
            const std::size_t next = (l + 1) % small.layers;
            require_ok(opened.prefetch(batch[0].id(), next, data.q(next, 9)));
            require_ok(opened.select(batch[3].id(), next, data.q(next, 9), [](std::size_t, auto, auto) {}));
            CHECK(step(opened, batch, l).size() == step(other, others, l).size());
        }
        for (auto& one : batch) one.advance(1);
        for (auto& one : others) one.advance(1);
    }
    for (auto& one : batch) require_ok(opened.end(one.id()));
}

TEST_CASE("a batch with a mistake anywhere is refused before its first part is taken") {
    using cache = cache_of<kvtl::presets::dynakv>;
    const drift data(small, 500, 38);
    auto opened = open_cache<cache>(config_for<cache>());
    auto batch = prompts(opened, data);
    std::vector<kvtl::batch_part> parts;
    for (const auto& one : batch) parts.push_back({.seq = one.id()});
    const std::size_t q_row = small.query_heads * small.head_dim, k_row = small.kv_heads * small.head_dim;
    const std::vector<float> q(sequences * q_row + 1, .5F), k(sequences * k_row + 1, .5F);
    std::vector<float> out(q.size()), lse(sequences * small.query_heads + 1);
    const auto rows = [](auto& x, std::size_t more = 0) { return std::span(x).first(x.size() - 1 + more); };
    const kvtl::layer_input good{.q = rows(q), .k = rows(k), .v = rows(k), .lse = rows(lse)};
    const auto refused = [&](const kvtl::layer_input& in, std::span<float> to, const std::string& word) {
        const auto before = opened.stats();
        const kvtl::status s = opened.forward(parts, 0, in, to);
        CHECK_MESSAGE(std::string(s.what()).find(word) != std::string::npos, s.what());
        for (const auto& one : batch)
            if (opened.tokens(one.id(), 1) != 0) CHECK(opened.tokens(one.id(), 0) == one.tokens());
        CHECK(opened.stats().steps == before.steps);
    };
    auto in = good;
    in.q = rows(q, 1);
    refused(in, rows(out), "forward: q has 1025 numbers and the parts 4 tokens; valid: 1024");
    in = good, in.v = rows(k, 1);
    refused(in, rows(out), "forward: v has 513 numbers and the parts 4 tokens; valid: 512");
    in = good, in.lse = rows(lse, 1);
    refused(in, rows(out), "forward: lse has 17 numbers");
    refused(good, rows(out, 1), "forward: out has 1025 numbers");
    require_ok(opened.end(batch[2].id()));
    refused(good, rows(out), "forward: sequence 2 (generation 1) is not open");
    parts.erase(parts.begin() + 2);
    const std::size_t n = sequences - 1;
    require_ok(opened.forward(parts, 0,
                              {.q = std::span(q).first(n * q_row),
                               .k = std::span(k).first(n * k_row),
                               .v = std::span(k).first(n * k_row)},
                              std::span(out).first(n * q_row)));
    CHECK(opened.tokens(batch[3].id(), 0) == batch[3].tokens() + 1);
}

} // namespace manager_batch_test
