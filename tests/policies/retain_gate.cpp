// decaying_gate, retention_gate, global_gate, importance_gate: a network asked once per token, written out in double
// precision. SPDX-License-Identifier: MIT
#include <kvtl/policies/retain_gate.hpp>

#include "contracts/retention.hpp"
#include "support/attending_gate.hpp"

#include <initializer_list>
#include <numeric>

namespace retain_gate_test {

using namespace kvtl;
using namespace kvtl_test;
using namespace kvtl_test::retention_suite;

namespace {

std::vector<std::byte> blob(const gate_header& h, const std::vector<float>& weights) {
    std::vector<std::byte> bytes(sizeof h + weights.size() * sizeof(float));
    std::memcpy(bytes.data(), &h, sizeof h);
    std::memcpy(bytes.data() + sizeof h, weights.data(), weights.size() * sizeof(float));
    return bytes;
}

/// out = W2 act(W1 in + b1) + b2 of one head.
double network(const gate_header& h, const std::vector<float>& weights, std::uint32_t layer,
               std::uint32_t head, const numbers& in) {
    const float* w = weights.data() + layer * h.layer_floats();
    const auto row = [](const float* of, const numbers& x, float bias) {
        double sum = static_cast<double>(bias);
        for (std::size_t i = 0; i < x.size(); ++i) sum += static_cast<double>(of[i]) * x[i];
        return sum;
    };
    numbers x = in;
    if (h.hidden > 0) {
        numbers y;
        for (std::size_t j = 0; j < h.hidden; ++j) {
            const double sum = row(w + j * h.inputs, x, w[h.hidden * h.inputs + j]);
            y.push_back(h.act == activation::silu   ? sum / (1 + std::exp(-sum))
                        : h.act == activation::relu ? std::max(sum, 0.0)
                                                    : sum);
        }
        w += h.hidden * (h.inputs + 1);
        x = y;
    }
    return row(w + head * x.size(), x, w[h.kv_heads * x.size() + head]);
}
numbers joined(std::initializer_list<std::span<const float>> parts) {
    numbers all;
    for (const auto part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
}

/// Runs the contract with a network of `inputs` and some hidden units.
template <class Score, class Inputs, class Number>
void gate_contract(std::uint32_t inputs, const Inputs& inputs_of, const Number& number) {
    for (const std::uint32_t hidden : {0U, 7U})
        for (const activation act : {activation::identity, activation::relu, activation::silu}) {
            gate_header h;
            h.layers = arrivals::layers, h.kv_heads = arrivals::kv_heads;
            h.inputs = inputs, h.hidden = hidden, h.act = act;
            const auto weights = oracle::normal_values(h.layers * h.layer_floats(), 57, 0.2);
            auto bytes = blob(h, weights);
            ranks_arrivals_contract<Score>(
                {.weights = bytes}, 1e-5,
                [&](const arriving& a, std::uint32_t head) {
                    return number(network(h, weights, a.layer, head, inputs_of(a)));
                },
                [&] { std::fill(bytes.begin(), bytes.end(), std::byte{0}); }); // weights are copied
        }
}

constexpr std::uint32_t qkv_inputs = arrivals::dim * arrivals::kv_heads * (arrivals::group + 2);

/// A gate for the contract's shape that says 0 to everything.
std::vector<std::byte> silent_gate(std::uint32_t inputs) {
    gate_header h;
    h.layers = retention_suite::extents::layers, h.kv_heads = retention_suite::extents::kv_heads,
    h.inputs = inputs;
    return blob(h, std::vector<float>(h.layers * h.layer_floats(), 0.0F));
}

} // namespace

TEST_CASE_TEMPLATE("decaying_gate, global_gate: log sigmoid of what the layer's input says, times age", Score,
                   decaying_gate, global_gate) {
    gate_contract<Score>(
        arrivals::inputs, [](const arriving& a) { return joined({a.x}); },
        [](double x) { return -std::log1p(std::exp(-x)); });
    struct decays {
        std::uint32_t token;
        double score;
        [[nodiscard]] double worth(std::uint32_t now) const { return score * (now - token); }
    };
    const auto gate = silent_gate(5);
    ranks_held_contract<Score>({.weights = gate}, 1e-6, [](std::uint32_t token, double score) {
        return decays{token, score};
    });
    CHECK(Score::ages);
}

TEST_CASE("decaying_gate: numbers far out neither overflow nor lose their order") {
    gate_header h;
    h.layers = 1, h.kv_heads = 1, h.inputs = 1;
    const auto bytes = blob(h, {1.0F, 0.0F}); // out = x
    const decaying_gate::config c{.weights = bytes};
    const score_limits limits{1, 1, 1, 8, 0, 1, 4, 10};
    std::vector<std::byte> memory(state_of<decaying_gate>::bytes(c, limits));
    const state_of<decaying_gate> s(c, limits, memory);
    const auto log_beta = [&](float x) {
        arriving a;
        a.x = {&x, 1};
        float out = NAN;
        s.arrive(a, {&out, 1});
        return out;
    };
    CHECK(log_beta(1000.0F) == 0.0F);
    CHECK(log_beta(-1000.0F) == -1000.0F);
    CHECK(log_beta(20.0F) < 0.0F); // beta is not 1 yet
    CHECK(log_beta(20.0F) > log_beta(19.0F));
    CHECK(log_beta(-80.0F) > log_beta(-81.0F));
}

TEST_CASE("retention_gate: what q, k and v of all heads say, for ever") {
    gate_contract<retention_gate>(
        qkv_inputs,
        [](const arriving& a) {
            return joined({a.q, a.k, a.v});
        },
        [](double x) { return x; });
    struct stays {
        double score;
        [[nodiscard]] double worth(std::uint32_t) const { return score; }
    };
    const auto gate = silent_gate(16 * 2 * (2 + 2));
    ranks_held_contract<retention_gate>({.weights = gate}, 0.0,
                                        [](std::uint32_t, double score) { return stays{score}; });
}

TEST_CASE("importance_gate: what the layer's input says, for ever; below the threshold nothing is wanted") {
    gate_contract<importance_gate>(
        arrivals::inputs, [](const arriving& a) { return joined({a.x}); }, [](double x) { return x; });
    struct stays {
        double score;
        [[nodiscard]] double worth(std::uint32_t) const { return score; }
    };
    const auto gate = silent_gate(5);
    ranks_held_contract<importance_gate>({.weights = gate}, 0.0,
                                         [](std::uint32_t, double score) { return stays{score}; });
    const score_limits limits = retention_suite::extents{10, 16, 2}.limits();
    using state = state_of<importance_gate>;
    for (const float threshold : {-30.0F, -4.0F, 0.0F, 3.0F}) {
        const importance_gate::config c{.threshold = threshold, .weights = gate};
        REQUIRE(state::check(c, limits).ok());
        std::vector<std::byte> memory(state::bytes(c, limits));
        const state s(c, limits, memory);
        CHECK(s.wanted(threshold + 1e-3F));
        CHECK_FALSE(s.wanted(threshold));
        CHECK(s.slack() == 0);
    }
    CHECK(importance_gate::drops_unwanted);
    for (const float bad : {NAN, INFINITY, -INFINITY})
        check_refusal(state::check({.threshold = bad, .weights = gate}, limits), "retention.threshold is ");
    auto broken = gate;
    broken.pop_back();
    check_refusal(state::check({.weights = broken}, limits), "retention.weights has ");
}

namespace {

/// A gate that attends, of the contract's shape.
gate_header attending_header(std::uint32_t width) {
    gate_header h;
    h.layers = arrivals::layers, h.kv_heads = arrivals::kv_heads;
    h.inputs = arrivals::inputs, h.hidden = width, h.act = activation::attention;
    return h;
}

} // namespace

TEST_CASE("attending_gate: causal attention over all tokens so far, dropped ones included") {
    const arrivals in;
    for (const std::uint32_t width : {1U, 6U, 16U}) {
        CAPTURE(width);
        const gate_header h = attending_header(width);
        const auto weights = oracle::normal_values(h.layers * h.layer_floats(), 71, 0.3);
        auto bytes = blob(h, weights);
        const attending_gate::config c{.weights = bytes};
        score_limits limits = arrivals::limits();
        limits.tokens = arrivals::tokens;
        REQUIRE(state_of<attending_gate>::check(c, limits).ok());
        const std::size_t lane = arrivals::tokens * state_of<attending_gate>::token_bytes(c);
        CHECK(lane == arrivals::tokens * (width + 1) * 2);
        guarded_bytes memory(state_of<attending_gate>::bytes(c, limits)), past(4 * lane, 0x5A);
        const state_of<attending_gate> s(c, limits, memory.memory());
        std::fill(bytes.begin(), bytes.end(), std::byte{0}); // weights are copied
        oracle::largest_error worst;
        for (std::uint32_t l = 0; l < arrivals::layers; ++l) {
            std::vector<std::vector<double>> exact; // by head and token
            for (std::uint32_t head = 0; head < arrivals::kv_heads; ++head)
                exact.push_back(attending(h, weights, l, head,
                                          std::span(in.x).subspan(l * arrivals::tokens * arrivals::inputs,
                                                                  arrivals::tokens * arrivals::inputs)));
            for (const std::uint32_t step : {1U, 2U}) // all heads at once; the heads of two shards
                for (std::uint32_t first = 0; first < step; ++first)
                    for (std::uint32_t turn = 0; turn < arrivals::tokens + 10; ++turn) {
                        // The last ten tokens are given up and come again.
                        const std::uint32_t t = turn < arrivals::tokens ? turn : turn - 10;
                        arriving a = in.at(l, t);
                        a.first_head = first, a.head_step = step;
                        a.past = past.memory().first(4 / step * lane);
                        std::vector<float> out(4 / step);
                        s.arrive(a, out);
                        for (std::uint32_t i = 0; i < out.size(); ++i)
                            worst.see(static_cast<double>(out[i]) - exact[first + i * step][t]);
                    }
        }
        CHECK(worst.value() <= 1e-3); // a product that lies between two numbers of 16 bits may go either way
        CHECK(memory.intact());
        CHECK(past.intact());
    }
}

TEST_CASE("attending_gate: the threshold is a probability; its settings and files are checked") {
    const gate_header h = attending_header(3);
    std::vector<float> weights(h.layers * h.layer_floats(), 0.01F);
    const auto bytes = blob(h, weights);
    const score_limits limits = arrivals::limits();
    using state = state_of<attending_gate>;
    for (const double threshold : {0.1, 0.5, 0.9}) {
        const attending_gate::config c{.threshold = static_cast<float>(threshold), .weights = bytes};
        std::vector<std::byte> memory(state::bytes(c, limits));
        const state s(c, limits, memory);
        const double bar = std::log(threshold / (1 - threshold));
        CHECK(s.wanted(static_cast<float>(bar + 1e-4)));
        CHECK_FALSE(s.wanted(static_cast<float>(bar - 1e-4)));
        CHECK(s.worth({2.5F, 1, 9}, attending_gate::record{}) == 2.5F);
    }
    CHECK(attending_gate::drops_unwanted);
    for (const float bad : {0.0F, 1.0F, -1.0F, NAN})
        check_refusal(state::check({.threshold = bad, .weights = bytes}, limits), "retention.threshold is ");
    // Gates of the other kind are refused on both sides, and so is attention without a width.
    gate_header plain = h;
    plain.act = activation::silu;
    const auto of_plain = blob(plain, std::vector<float>(plain.layers * plain.layer_floats()));
    check_refusal(state::check({.weights = of_plain}, limits),
                  "activation is 2 with 3 hidden units; valid: 3 with");
    check_refusal(state_of<decaying_gate>::check({.weights = bytes}, limits),
                  "activation is 3 with 3 hidden units; valid: 0 to 2");
    gate_header flat = h;
    flat.hidden = 0;
    check_refusal(
        state::check({.weights = blob(flat, std::vector<float>(flat.layers * flat.layer_floats()))}, limits),
        "activation is 3 with 0 hidden units");
    auto cut = bytes;
    cut.pop_back();
    check_refusal(state::check({.weights = cut}, limits), "retention.weights has ");
}

TEST_CASE("a buffer is entries over the limit before decode evicts") {
    const auto gate = silent_gate(5);
    const score_limits limits = retention_suite::extents{10, 16, 2}.limits();
    for (const std::uint32_t buffer : {1U, 128U}) {
        const decaying_gate::config c{.buffer = buffer, .weights = gate};
        std::vector<std::byte> memory(state_of<decaying_gate>::bytes(c, limits));
        CHECK(state_of<decaying_gate>(c, limits, memory).slack() == buffer - 1);
    }
}

TEST_CASE("settings and weights that can never work are named") {
    const score_limits limits = retention_suite::extents{10, 16, 2}.limits();
    const auto gate = silent_gate(5), for_qkv = silent_gate(16 * 2 * 4);
    using decaying = state_of<decaying_gate>;
    using of_qkv = state_of<retention_gate>;
    CHECK(decaying::check({.weights = gate}, limits).ok());
    CHECK(of_qkv::check({.weights = for_qkv}, limits).ok());
    check_refusal(decaying::check({.buffer = 0, .weights = gate}, limits), "retention.buffer is 0");
    check_refusal(decaying::check({}, limits), "retention.weights has 0 bytes");
    check_refusal(of_qkv::check({.weights = gate}, limits), "retention.weights read 5 numbers");
    auto broken = gate;
    broken.pop_back();
    check_refusal(decaying::check({.weights = broken}, limits), "retention.weights has ");
}

TEST_CASE("input that the gate cannot read is refused before anything changes") {
    const score_limits limits = retention_suite::extents{10, 16, 2}.limits();
    const auto gate = silent_gate(5), for_qkv = silent_gate(16 * 2 * 4);
    const decaying_gate::config c{.weights = gate};
    const retention_gate::config d{.weights = for_qkv};
    std::vector<std::byte> memory(state_of<decaying_gate>::bytes(c, limits)),
        more(state_of<retention_gate>::bytes(d, limits));
    const state_of<decaying_gate> s(c, limits, memory);
    const state_of<retention_gate> of_qkv(d, limits, more);
    layer_input in;
    std::vector<float> x(3 * 5, 1.0F);
    in.x = x;
    CHECK(s.check_arrival(in, 3).ok());
    check_refusal(s.check_arrival(in, 4), "x has 15 numbers");
    x[7] = NAN;
    CHECK(std::string(s.check_arrival(in, 3).what()).find("x holds a number that is not finite") !=
          std::string::npos);
    check_refusal(of_qkv.check_arrival(in, 3), "q is empty");
    in.q = x;
    CHECK(of_qkv.check_arrival(in, 3).ok());
}

} // namespace retain_gate_test
