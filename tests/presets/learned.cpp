// Presets whose scores come from learned gates, against the network written out in double precision.
// SPDX-License-Identifier: MIT
#include <kvtl/core/shard_access.hpp>
#include <kvtl/presets/learned.hpp>

#include "support/attending_gate.hpp"
#include "support/eviction.hpp"

#include <unistd.h>

#include <cstring>
#include <filesystem>

namespace learned_test {

using namespace kvtl_test;
using kvtl::engine_input;

namespace {
constexpr kvtl::shape small{2, 4, 2, 32};
using with_x = kvtl::engine_inputs<engine_input::q, engine_input::k, engine_input::v, engine_input::x>;

template <class Cache> typename Cache::config sized(std::size_t keep) {
    typename Cache::config c;
    c.shape = small;
    c.max_tokens = 600;
    c.memory_bytes = std::size_t{16} << 20;
    c.keep_tokens = keep;
    return c;
}

std::vector<std::byte> blob(const kvtl::gate_header& h, const std::vector<float>& weights) {
    std::vector<std::byte> bytes(sizeof h + weights.size() * sizeof(float));
    std::memcpy(bytes.data(), &h, sizeof h);
    std::memcpy(bytes.data() + sizeof h, weights.data(), weights.size() * sizeof(float));
    return bytes;
}

/// The gate's number by definition.
double gate(const kvtl::gate_header& h, const std::vector<float>& weights, std::size_t layer,
            std::size_t head, const std::vector<float>& in) {
    const float* w = weights.data() + layer * h.layer_floats();
    std::vector<double> x(in.begin(), in.end());
    if (h.hidden > 0) {
        std::vector<double> y;
        for (std::size_t j = 0; j < h.hidden; ++j) {
            double sum = static_cast<double>(w[h.hidden * h.inputs + j]);
            for (std::size_t i = 0; i < h.inputs; ++i) sum += static_cast<double>(w[j * h.inputs + i]) * x[i];
            y.push_back(h.act == kvtl::activation::silu ? sum / (1 + std::exp(-sum)) : std::max(sum, 0.0));
        }
        w += h.hidden * (h.inputs + 1);
        x = y;
    }
    double sum = static_cast<double>(w[h.kv_heads * x.size() + head]);
    for (std::size_t i = 0; i < x.size(); ++i) sum += static_cast<double>(w[head * x.size() + i]) * x[i];
    return sum;
}

} // namespace

TEST_CASE("trim_kv: log beta times age, evicted when the buffer is full; beta = 1 never leaves") {
    const drift data(small, 600, 56);
    using cache_t = kvtl::kv_manager<in_f32<kvtl::presets::trim_kv>, with_x>;
    for (const std::uint32_t hidden : {0U, 7U}) {
        kvtl::gate_header h;
        h.layers = 2, h.kv_heads = 2, h.inputs = 20, h.hidden = hidden, h.act = kvtl::activation::silu;
        const auto weights = oracle::normal_values(2 * h.layer_floats(), 57);
        const auto bytes = blob(h, weights);
        const auto x = oracle::normal_values(600 * 20, 58);
        auto config = sized<cache_t>(40);
        config.engine_inputs = with_x::value;
        config.retention.buffer = 16;
        config.retention.weights = bytes;
        auto cache = open_cache<cache_t>(config);
        const auto seq = *cache.begin();
        const auto log_beta = [&](std::size_t l, std::size_t head, std::size_t t) {
            const std::vector<float> in(x.begin() + static_cast<std::ptrdiff_t>(t * 20),
                                        x.begin() + static_cast<std::ptrdiff_t>(t * 20 + 20));
            return -std::log1p(std::exp(-gate(h, weights, l, head, in)));
        };
        const decorate give_x = [&](kvtl::layer_input& in, std::size_t, std::size_t first, std::size_t n) {
            in.x = std::span(x).subspan(first * 20, n * 20);
        };
        feed_prompt(cache, seq, data, 90, 37, give_x);
        scores_t s;
        for (std::size_t t = 0; t < 90; ++t) s.push_back(log_beta(1, 0, t) * static_cast<double>(89 - t));
        tokens_t held = naive(data, 0, 1).best(s, 39);
        CHECK(kept(cache, seq, 1, 0) == held);
        for (std::uint32_t t = 90; t < 170; ++t) {
            CHECK(decode_and_compare(cache, seq, data, t, give_x) < exact);
            held.push_back(t);
            if (held.size() == 56) {
                std::stable_sort(held.begin(), held.end(), [&](std::uint32_t a, std::uint32_t b) {
                    return log_beta(1, 0, a) * (t - a) > log_beta(1, 0, b) * (t - b);
                });
                held.resize(40);
                std::sort(held.begin(), held.end());
            }
            CHECK(kept(cache, seq, 1, 0) == held);
        }
    }
    // A gate that says 1 for token 3 and less for all others: token 3 is there for ever.
    kvtl::gate_header h;
    h.layers = 2, h.kv_heads = 2, h.inputs = 1;
    const std::vector<float> weights = {1, 1, 0, 0, 1, 1, 0, 0}; // out = x
    const auto bytes = blob(h, weights);
    auto config = sized<cache_t>(10);
    config.engine_inputs = with_x::value;
    config.retention.buffer = 1;
    config.retention.weights = bytes;
    auto cache = open_cache<cache_t>(config);
    const auto seq = *cache.begin();
    std::vector<float> out(data.query_floats());
    for (std::size_t t = 0; t < 500; ++t)
        for (std::size_t l = 0; l < 2; ++l) {
            auto in = data.input(l, t);
            const float x = t == 3 ? 200.0F : 1.0F;
            in.x = {&x, 1};
            require_ok(cache.attend(seq, l, in, out));
        }
    CHECK(kept(cache, seq, 0, 0).front() == 3);
    CHECK(kept(cache, seq, 0, 0).size() == 10);
}

TEST_CASE("locret: a gate over q, k and v of all heads; a prompt in chunks takes its budget and a chunk") {
    const drift data(small, 600, 59);
    using cache_t = precise<kvtl::presets::locret>;
    kvtl::gate_header h;
    h.layers = 2, h.kv_heads = 2, h.inputs = (4 + 2 + 2) * 32, h.hidden = 12, h.act = kvtl::activation::relu;
    const auto weights = oracle::normal_values(2 * h.layer_floats(), 60, 0.2);
    const auto bytes = blob(h, weights);
    const auto best = [&](std::size_t l, std::size_t head, std::size_t n) {
        scores_t s;
        for (std::size_t t = 0; t < n; ++t) {
            std::vector<float> in;
            for (const auto part : {data.q(l, t), data.k(l, t), data.v(l, t)})
                in.insert(in.end(), part.begin(), part.end());
            s.push_back(gate(h, weights, l, head, in));
        }
        return naive(data, 0, 10).best(s, 30);
    };
    for (const std::size_t chunk : {120U, 50U, 30U}) {
        auto config = sized<cache_t>(40);
        config.prefill_tokens = std::max<std::size_t>(chunk, 90);
        config.window_tokens = 10;
        config.retention.weights = bytes;
        config.shards = 2;
        config.memory_bytes = least_memory<cache_t>(config);
        auto cache = open_cache<cache_t>(config);
        const auto seq = *cache.begin();
        oracle::largest_error error;
        const naive truth(data, 0, 10);
        for (std::size_t first = 0; first < 120; first += chunk) {
            const std::size_t n = std::min(chunk, 120 - first);
            for (std::size_t l = 0; l < 2; ++l) {
                auto in = data.input(l, first, n);
                in.last_chunk = first + n == 120;
                std::vector<float> out(n * data.query_floats());
                for (unsigned s = 0; s < 2; ++s) require_ok(cache.prefill(seq, l, in, out, s));
                for (std::size_t hq = 0; hq < 4; ++hq) {
                    tokens_t seen = first == 0 ? tokens_t{} : best(l, hq / 2, first);
                    for (std::size_t t = first; t < first + n; ++t) {
                        seen.push_back(static_cast<std::uint32_t>(t));
                        const scores_t expected = truth.output(l, hq, t, seen);
                        for (std::size_t d = 0; d < 32; ++d)
                            error.see(static_cast<double>(out[((t - first) * 4 + hq) * 32 + d]) -
                                      expected[d]);
                    }
                }
                for (std::size_t head = 0; head < 2; ++head) // however it was cut: the best of all so far
                    CHECK(kept(cache, seq, l, head) == best(l, head, first + n));
            }
        }
        CHECK(error.value() < exact);
        for (unsigned s = 0; s < 2; ++s) // beside the chunk in the work area, no more than the budget
            CHECK(kvtl::shard_access::of(cache, s).kept().pool().used_peak() <= 2 * kvtl::blocks_for(41));
        for (std::size_t t = 120; t < 125; ++t) CHECK(decode_and_compare(cache, seq, data, t) < exact);
    }
    auto config = sized<cache_t>(40);
    config.prefill_tokens = 60;
    config.window_tokens = 10;
    config.retention.weights = bytes;
    auto cache = open_cache<cache_t>(config);
    const auto seq = *cache.begin();
    auto in = data.input(0, 0, 50);
    in.last_chunk = false;
    require_ok(cache.prefill(seq, 0, in, {}));
    std::vector<float> out(data.query_floats());
    const auto early = cache.attend(seq, 0, data.input(0, 50), out);
    CHECK(std::string(early.what()).find("50 tokens wait") != std::string::npos);
    const auto refused = cache.prefill(seq, 0, data.input(0, 50, 21), {});
    CHECK(std::string(refused.what()).find("21 tokens beside 40 that were kept") != std::string::npos);
    require_ok(cache.prefill(seq, 0, data.input(0, 50, 20), {}));
    CHECK(kept(cache, seq, 0, 0) == best(0, 0, 70));
}

TEST_CASE("global_gates: one scale for all heads and layers decides how many, worth that decays which") {
    const drift data(small, 600, 61);
    using cache_t = kvtl::kv_manager<in_f32<kvtl::presets::global_gates>, with_x>;
    kvtl::gate_header h;
    h.layers = 2, h.kv_heads = 2, h.inputs = 6;
    const auto weights = oracle::normal_values(2 * h.layer_floats(), 62);
    const auto bytes = blob(h, weights);
    const auto x = oracle::normal_values(600 * 6, 63);
    auto config = sized<cache_t>(30);
    config.engine_inputs = with_x::value;
    config.retention.weights = bytes;
    auto cache = open_cache<cache_t>(config);
    const auto seq = *cache.begin();
    const decorate give_x = [&](kvtl::layer_input& in, std::size_t, std::size_t t, std::size_t n) {
        in.x = std::span(x).subspan(t * 6, n * 6);
    };
    feed_prompt(cache, seq, data, 100, 100, give_x);
    const auto log_beta = [&](std::size_t lane, std::uint32_t t) {
        const std::vector<float> in(x.begin() + t * 6, x.begin() + t * 6 + 6);
        return -std::log1p(std::exp(-gate(h, weights, lane / 2, lane % 2, in)));
    };
    std::vector<std::pair<double, std::size_t>> all; // worth, lane
    for (std::size_t lane = 0; lane < 4; ++lane)
        for (std::uint32_t t = 0; t < 92; ++t) all.emplace_back(log_beta(lane, t) * (99 - t), lane);
    std::sort(all.begin(), all.end(), std::greater<>());
    std::size_t share[4] = {};
    for (std::size_t i = 0; i < 4 * 22; ++i) ++share[all[i].second]; // 30 - 8 each
    CHECK(share[0] != share[1]);
    std::vector<tokens_t> held(4);
    for (std::size_t lane = 0; lane < 4; ++lane) {
        scores_t worth;
        for (std::uint32_t t = 0; t < 100; ++t) worth.push_back(log_beta(lane, t) * (99 - t));
        held[lane] = naive(data, 0, 8).best(worth, share[lane]);
        CHECK(kept(cache, seq, lane / 2, lane % 2) == held[lane]);
    }
    for (std::uint32_t now = 100; now < 140; ++now) { // every head at its own limit
        CHECK(decode_and_compare(cache, seq, data, now, give_x) < exact);
        for (std::size_t lane = 0; lane < 4; ++lane) {
            held[lane].push_back(now);
            const auto competing = held[lane].end() - 8;
            held[lane].erase(std::min_element(held[lane].begin(), competing, [&](auto a, auto b) {
                return log_beta(lane, a) * (now - a) < log_beta(lane, b) * (now - b);
            }));
            CHECK(kept(cache, seq, lane / 2, lane % 2) == held[lane]);
        }
    }
}

TEST_CASE("attention_gate: flags in prompt and decode; rewound, forked and loaded sequences go on") {
    constexpr std::size_t n = 6, all = 160, prompt = 100;
    const drift data(small, 300, 64);
    using cache_t = kvtl::kv_manager<in_f32<kvtl::presets::attention_gate>, with_x>;
    kvtl::gate_header h;
    h.layers = 2, h.kv_heads = 2, h.inputs = n, h.hidden = 3, h.act = kvtl::activation::attention;
    const auto weights = oracle::normal_values(2 * h.layer_floats(), 65);
    const auto bytes = blob(h, weights);
    for (const std::size_t limit : {40U, 90U}) { // fewer than have a flag, and more
        CAPTURE(limit);
        auto x = oracle::normal_values(all * n, 66);
        auto config = sized<cache_t>(limit);
        config.engine_inputs = with_x::value;
        config.max_sequences = 3;
        config.window_tokens = 8;
        config.shards = 2;
        config.retention.weights = bytes;
        config.retention.threshold = 0.4F;
        auto cache = open_cache<cache_t>(config);
        const double bar = std::log(0.4 / 0.6);
        const decorate give_x = [&](kvtl::layer_input& in, std::size_t, std::size_t t, std::size_t count) {
            in.x = std::span(x).subspan(t * n, count * n);
        };
        std::vector<scores_t> worth(4);
        const auto by_definition = [&] {
            for (std::size_t lane = 0; lane < 4; ++lane) {
                worth[lane] = attending(h, weights, lane / 2, lane % 2, x);
                for (const double s : worth[lane])
                    REQUIRE(std::abs(s - bar) > 2e-4); // no flag hangs on rounding
            }
        };
        std::vector<std::size_t> limits(4, all);
        /// Of `held`, in the order of tokens, `now` the latest: 8 stay, and of the others those with a flag, the best.
        const auto thin_out = [&](tokens_t& held, std::size_t lane, std::uint32_t now) {
            const auto worse = [&](std::uint32_t a, std::uint32_t b) {
                return worth[lane][a] < worth[lane][b];
            };
            std::erase_if(held, [&](std::uint32_t t) { return t + 8 <= now && worth[lane][t] <= bar; });
            while (held.size() > limits[lane])
                held.erase(std::min_element(held.begin(), held.end() - 8, worse));
        };
        by_definition();
        const auto seq = *cache.begin();
        feed_prompt(cache, seq, data, prompt, 37, give_x);
        std::vector<tokens_t> held(4);
        std::vector<std::pair<double, std::size_t>> flagged; // worth, lane
        for (std::size_t lane = 0; lane < 4; ++lane)
            for (std::uint32_t t = 0; t < prompt; ++t) {
                held[lane].push_back(t);
                if (t + 8 < prompt && worth[lane][t] > bar) flagged.emplace_back(worth[lane][t], lane);
            }
        CHECK((flagged.size() > 4 * (limit - 8)) == (limit == 40));
        std::sort(flagged.begin(), flagged.end(), std::greater<>());
        flagged.resize(std::min(flagged.size(), 4 * (limit - 8))); // heads of all layers compete
        for (std::size_t lane = 0; lane < 4; ++lane) {
            limits[lane] =
                8 + static_cast<std::size_t>(std::count_if(flagged.begin(), flagged.end(),
                                                           [&](const auto& f) { return f.second == lane; }));
            thin_out(held[lane], lane, prompt - 1);
            CHECK(kept(cache, seq, lane / 2, lane % 2) == held[lane]);
        }
        const auto go_on = [&](kvtl::sequence_id at, std::vector<tokens_t> now, std::uint32_t from,
                               std::uint32_t to) {
            CAPTURE(at.slot);
            for (std::uint32_t t = from; t < to; ++t) {
                CHECK(decode_and_compare(cache, at, data, t, give_x) < exact);
                for (std::size_t lane = 0; lane < 4; ++lane) {
                    now[lane].push_back(t);
                    thin_out(now[lane], lane, t);
                    CHECK(kept(cache, at, lane / 2, lane % 2) == now[lane]);
                }
            }
            return now;
        };
        held = go_on(seq, held, prompt, 120);
        // Five tokens are given up, and others come in their place. What they drove out stays away.
        require_ok(cache.rewind(seq, 5));
        for (auto& lane : held) lane.resize(lane.size() - 5);
        const auto others = oracle::normal_values((all - 115) * n, 67);
        std::copy(others.begin(), others.end(), x.begin() + 115 * n);
        by_definition();
        held = go_on(seq, held, 115, 130);
        const auto branch = cache.fork(seq);
        REQUIRE(branch.ok());
        const auto path =
            (std::filesystem::temp_directory_path() / ("kvtl-attending-" + std::to_string(::getpid())))
                .string();
        REQUIRE(cache.save(seq, path).ok());
        go_on(seq, held, 130, 140);
        go_on(*branch, held, 130, 140);
        const auto loaded = cache.load(path);
        std::filesystem::remove(path);
        REQUIRE(loaded.ok());
        go_on(loaded->seq, held, 130, all);
    }
}

TEST_CASE("kvzap: behind the window what is below the threshold leaves, and a head holds what it wants up to "
          "a ceiling") {
    constexpr std::size_t n = 6, all = 160, prompt = 100, window = 8;
    const drift data(small, 300, 68);
    using cache_t = kvtl::kv_manager<in_f32<kvtl::presets::kvzap>, with_x>;
    kvtl::gate_header h;
    h.layers = 2, h.kv_heads = 2, h.inputs = n, h.hidden = 5, h.act = kvtl::activation::silu;
    const auto weights = oracle::normal_values(2 * h.layer_floats(), 69);
    const auto bytes = blob(h, weights);
    const auto x = oracle::normal_values(all * n, 70);
    const double bar = 0.3;
    std::vector<scores_t> worth(4);
    for (std::size_t lane = 0; lane < 4; ++lane)
        for (std::size_t t = 0; t < all; ++t) {
            const std::vector<float> in(&x[t * n], &x[t * n] + n);
            worth[lane].push_back(gate(h, weights, lane / 2, lane % 2, in));
            REQUIRE(std::abs(worth[lane].back() - bar) > 1e-5); // nothing hangs on rounding
        }
    for (const std::size_t ceiling : {24U, 160U}) { // fewer than are wanted, and more
        CAPTURE(ceiling);
        auto config = sized<cache_t>(ceiling);
        config.engine_inputs = with_x::value;
        config.window_tokens = window;
        config.retention.weights = bytes;
        config.retention.threshold = static_cast<float>(bar);
        auto cache = open_cache<cache_t>(config);
        const decorate give_x = [&](kvtl::layer_input& in, std::size_t, std::size_t t, std::size_t count) {
            in.x = std::span(x).subspan(t * n, count * n);
        };
        const auto seq = *cache.begin();
        feed_prompt(cache, seq, data, prompt, 37, give_x);
        std::vector<tokens_t> held(4);
        std::size_t crowded = 0;
        /// In the order of tokens, `now` the latest: the window stays, and of the others those above the bar, the best.
        const auto thin_out = [&](std::size_t lane, std::uint32_t now) {
            std::erase_if(held[lane], [&](auto t) { return t + window <= now && worth[lane][t] <= bar; });
            for (; held[lane].size() > ceiling; ++crowded)
                held[lane].erase(
                    std::min_element(held[lane].begin(), held[lane].end() - window,
                                     [&](auto a, auto b) { return worth[lane][a] < worth[lane][b]; }));
        };
        for (std::size_t lane = 0; lane < 4; ++lane) {
            for (std::uint32_t t = 0; t < prompt; ++t) held[lane].push_back(t);
            thin_out(lane, prompt - 1);
            CHECK(kept(cache, seq, lane / 2, lane % 2) == held[lane]);
        }
        CHECK((held[0].size() != held[1].size()) == (ceiling == 160)); // no common number but the ceiling
        for (std::uint32_t t = prompt; t < all; ++t) {
            CHECK(decode_and_compare(cache, seq, data, t, give_x) < exact);
            for (std::size_t lane = 0; lane < 4; ++lane) {
                held[lane].push_back(t);
                thin_out(lane, t);
                CHECK(kept(cache, seq, lane / 2, lane % 2) == held[lane]);
            }
        }
        CHECK((crowded > 0) == (ceiling == 24));
    }
}

TEST_CASE("weights of another model, version or size are refused") {
    using cache_t = precise<kvtl::presets::locret>;
    kvtl::gate_header good;
    good.layers = 2, good.kv_heads = 2, good.inputs = 256, good.model = 77;
    const auto open = [&](const kvtl::gate_header& h, std::uint64_t model, std::size_t floats) {
        const auto bytes = blob(h, std::vector<float>(floats));
        auto config = sized<cache_t>(120);
        config.retention.weights = bytes;
        config.retention.model = model;
        const auto opened = cache_t::open(config);
        return opened.ok() ? std::string() : opened.error().message;
    };
    const std::size_t right = 2 * good.layer_floats();
    CHECK(open(good, 77, right).empty());
    CHECK(open(good, 0, right).empty());
    CHECK(open(good, 78, right).find("another model") != std::string::npos);
    CHECK(open(good, 77, right - 1).find("valid: ") != std::string::npos);
    auto h = good;
    h.layers = 3;
    CHECK(open(h, 0, 3 * h.layer_floats()).find("another model (3 layers") != std::string::npos);
    h = good, h.version = 9;
    CHECK(open(h, 0, right).find("version 9") != std::string::npos);
    h = good, h.inputs = 255;
    CHECK(open(h, 0, 2 * h.layer_floats()).find("valid: q, k and v of a token, 256") != std::string::npos);
}

} // namespace learned_test
