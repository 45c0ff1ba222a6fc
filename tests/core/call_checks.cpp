// What a call is refused for before it does anything: each sentence names the argument, its value and what is valid; and a
// sequence that was ended is never open again, whoever ends it and however often its slot is taken.
// SPDX-License-Identifier: MIT
#include <kvtl/core/call_checks.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace core_call_checks_test {

using namespace kvtl;

namespace {

/// 3 layers, 2 shards, 4 query heads and 2 KV heads of 8.
template <element E> struct checks : call_checks<E> {
    checks() {
        this->layers = 3, this->shards = 2, this->max_tokens = 10;
        this->query_floats = 32, this->key_floats = 16, this->query_heads = 4;
        this->slots = sequence_slots(2);
    }
};

void refused(const status& s, errc code, const char* text) {
    CHECK(s.code() == code);
    CHECK_MESSAGE(std::string(s.what()).find(text) != std::string::npos, std::string(s.what()));
}

struct tensors {
    std::vector<float> q, k, v, out;
    explicit tensors(std::size_t tokens)
        : q(tokens * 32, 1.0F), k(tokens * 16, 1.0F), v(tokens * 16, 1.0F), out(tokens * 32) {}
    [[nodiscard]] layer_input input() const { return {.q = q, .k = k, .v = v}; }
};

} // namespace

TEST_CASE("sequences: as many as there are slots, and an id is good for one of them") {
    sequence_slots slots(2);
    const auto a = slots.begin(), b = slots.begin();
    REQUIRE((a.ok() && b.ok()));
    CHECK(!(*a == *b));
    const auto none = slots.begin();
    REQUIRE(!none.ok());
    CHECK(none.error().code == errc::out_of_range);
    CHECK(none.error().message == "begin: all 2 sequences are open (max_sequences)");
    CHECK(slots.end(*a));
    CHECK(!slots.is_open(*a));
    CHECK(!slots.begin().ok()); // the slot is not free yet
    CHECK(!slots.end(*a));
    slots.free(*a);
    const auto c = slots.begin();
    REQUIRE(c.ok());
    CHECK(c->slot == a->slot);
    CHECK(c->generation != a->generation);
    CHECK(!slots.is_open(*a));
    CHECK(!slots.end(*a));
    CHECK(slots.is_open(*c));
    CHECK(!slots.is_open({2, c->generation}));
    CHECK(!slots.is_open({c->slot, 0}));
}

TEST_CASE("begin and end from several threads: no slot is taken twice, no sequence ended twice") {
    sequence_slots slots(3);
    std::atomic<int> open{0}, ended{0};
    std::atomic<bool> crowded{false};
    const auto work = [&] {
        for (int i = 0; i < 3000; ++i) {
            const auto seq = slots.begin();
            if (!seq.ok()) continue;
            if (++open > 3) crowded = true;
            --open;
            if (slots.end(*seq)) {
                ++ended;
                if (slots.end(*seq)) crowded = true;
                slots.free(*seq);
            }
        }
    };
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) threads.emplace_back(work);
    for (auto& t : threads) t.join();
    CHECK(!crowded);
    CHECK(ended > 3000);
    for (int i = 0; i < 3; ++i) CHECK(slots.begin().ok()); // all are free again
    CHECK(!slots.begin().ok());
}

TEST_CASE("which sequence, layer and shard") {
    checks<f16> c;
    const sequence_id seq = *c.slots.begin();
    CHECK(c.call("attend", seq, 2, 1).ok());
    refused(c.call("attend", {7, 5}, 0, 0), errc::not_open, "attend: sequence 7 (generation 5) is not open");
    refused(c.call("attend", seq, 3, 0), errc::out_of_range, "attend: layer is 3; valid: 0 to 2");
    refused(c.call("attend", seq, 0, 2), errc::out_of_range, "attend: shard is 2; valid: 0 to 1");
    CHECK(c.room("attend", 9, 1).ok());
    refused(c.room("attend", 9, 2), errc::out_of_range,
            "9 tokens are held and 2 more come; valid: up to max_tokens = 10");
}

TEST_CASE_TEMPLATE("sizes, and numbers that the cache can hold", E, float, f16, bf16) {
    checks<E> c;
    tensors t(3);
    std::size_t tokens = 0;
    CHECK(c.input("prefill", t.input(), t.out, true, tokens).ok());
    CHECK(tokens == 3);
    refused(c.input("attend", t.input(), t.out, false, tokens), errc::invalid_argument,
            "attend: k has 48 numbers; valid: 16");
    auto in = t.input();
    in.k = in.k.subspan(0, 40);
    refused(c.input("prefill", in, t.out, true, tokens), errc::invalid_argument,
            "k has 40 numbers; valid: a positive multiple of kv_heads * head_dim = 16");
    in = t.input();
    in.v = in.v.subspan(0, 32);
    refused(c.input("prefill", in, t.out, true, tokens), errc::invalid_argument,
            "v has 32 numbers; valid: 48");
    in = t.input();
    in.q = {};
    CHECK(c.input("prefill", in, {}, true, tokens).ok()); // the engine attended itself
    refused(c.input("prefill", in, t.out, true, tokens), errc::invalid_argument,
            "q has 0 numbers; valid: 96");
    const std::vector<float> sinks(3, 0.0F);
    in = t.input();
    in.sink_logits = sinks;
    refused(c.input("prefill", in, t.out, true, tokens), errc::invalid_argument, "sink_logits has 3 numbers");
    refused(c.input("prefill", t.input(), tensor_span(t.out).first(64), true, tokens), errc::invalid_argument,
            "out has 64 numbers; valid: 96");
    refused(c.outputs("attend", t.input(), {}, 3), errc::invalid_argument, "out is empty; valid: 96 numbers");
    std::vector<float> lse(11);
    in = t.input();
    in.lse = lse;
    refused(c.outputs("attend", in, t.out, 3), errc::invalid_argument, "lse has 11 numbers; valid: 12");

    constexpr float inf = std::numeric_limits<float>::infinity();
    for (std::vector<float>* x : {&t.q, &t.k, &t.v})
        for (const float bad : {NAN, inf, -inf, 3.4e38F, 70000.0F}) {
            const float was = std::exchange(x->at(x->size() - 1), bad);
            const status s = c.input("prefill", t.input(), t.out, true, tokens);
            // Queries are floats whatever is stored; 70,000 is too much for f16, 3.4e38 for bf16, too.
            const bool holds =
                std::isfinite(bad) && (x == &t.q || std::isfinite(to_float(from_float<E>(bad))));
            CAPTURE(bad);
            CHECK(s.ok() == holds);
            if (!holds) refused(s, errc::invalid_argument, "holds a NaN, an infinity or a number beyond");
            x->back() = was;
        }
}

TEST_CASE("the parts of a batch") {
    checks<f16> c;
    const sequence_id a = *c.slots.begin(), b = *c.slots.begin();
    tensors t(5);
    std::vector<batch_part> parts{{a, 2, part_kind::last_of_prompt}, {b, 3, part_kind::last_of_prompt}};
    CHECK(c.batch("forward", parts, t.input(), t.out).ok());
    const std::vector<float> probe(64, 1.0F);
    auto in = t.input();
    in.probe = probe;
    CHECK(c.batch("forward", parts, in, t.out).ok()); // who does not look at it
    c.reads_probe = true;
    refused(c.batch("forward", parts, in, t.out), errc::invalid_argument,
            "2 parts would be evicted by one probe");
    parts[0].kind = part_kind::prompt;
    CHECK(c.batch("forward", parts, in, t.out).ok());
    parts[1].tokens = 2;
    refused(c.batch("forward", parts, t.input(), t.out), errc::invalid_argument,
            "k has 80 numbers and 2 parts with 4 tokens");
    parts[1].tokens = 0;
    refused(c.batch("forward", parts, t.input(), t.out), errc::invalid_argument, "a part has 0 tokens");
    parts[1] = {b, 3, part_kind::decode};
    refused(c.batch("forward", parts, t.input(), {}), errc::invalid_argument, "a part is decoded");
    parts[1].seq = {5, 1};
    refused(c.batch("forward", parts, t.input(), t.out), errc::not_open, "sequence 5");
    refused(c.batch("forward", {}, t.input(), t.out), errc::invalid_argument, "0 parts");
}

} // namespace core_call_checks_test
