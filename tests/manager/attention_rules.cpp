// Models that do not attend by softmax(q . k / sqrt(D)) over all that came before: another scale, capped logits, a logit
// per head that joins the softmax, layers that slide. Against attention by definition, in double precision.
// SPDX-License-Identifier: MIT
#include <kvtl/presets/composed.hpp>
#include <kvtl/presets/demoting.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/estimate.hpp>
#include <kvtl/presets/flexgen.hpp>
#include <kvtl/presets/full.hpp>
#include <kvtl/presets/heavy_hitters.hpp>
#include <kvtl/presets/int8.hpp>
#include <kvtl/presets/quest.hpp>
#include <kvtl/presets/snapkv.hpp>
#include <kvtl/presets/streaming.hpp>

#include "support/cache_fixture.hpp"
#include "support/on_device.hpp"
#include "support/scratch_folder.hpp"

namespace manager_attention_rules_test {

using namespace kvtl_test;

namespace {

template <class Preset> using cache_of = kvtl::kv_manager<without_file<Preset>>;

constexpr kvtl::shape model{5, 6, 2, 32};
constexpr std::size_t tokens = 560;

const drift& stream() {
    static const drift data(model, tokens, 7);
    return data;
}
std::vector<float> sink_logits() {
    return {0.5F, -3.0F, 2.0F, 1.0F, 4.0F, -20.0F};
}
/// Everything at once.
kvtl::attention_rule all_rules() {
    return {.scale = 0.31F, .softcap = 2.5F, .windows = {0, 40, 0, 130, 40}};
}

template <class Cache> typename Cache::config config_of(const kvtl::attention_rule& rule) {
    typename Cache::config c;
    c.shape = model;
    c.attention = rule;
    c.max_tokens = tokens;
    c.attend_tokens = tokens;
    c.memory_bytes = 64 << 20;
    return c;
}

/// Layers that attend the keys and values of others, also of others than the last owner.
const std::vector<std::uint32_t> owners{0, 0, 2, 0, 2};

const drift& shared_stream() {
    static const drift data = [] {
        drift made = stream();
        made.share_layers(owners);
        return made;
    }();
    return data;
}
template <class Cache> typename Cache::config shared_config(std::size_t attend_tokens = tokens) {
    auto c = config_of<Cache>({});
    c.owner = owners;
    c.attend_tokens = attend_tokens;
    return c;
}

/// A prompt in chunks, decode, a draft, a rewind, a turn: every output against the definition.
template <class Cache>
void equals_the_definition(const kvtl::attention_rule& rule, const std::vector<float>& sinks,
                           double tolerance = exact, const std::vector<std::uint32_t>& owner = {}) {
    using E = typename Cache::element_type;
    const drift& data = owner.empty() ? stream() : shared_stream();
    const auto reference = std::make_shared<dense_reference<E>>(data, rule, sinks);
    for (const unsigned shards : {1U, 2U})
        for (const std::size_t chunk : {std::size_t{500}, std::size_t{90}}) {
            auto c = config_of<Cache>(rule);
            c.owner = owner;
            c.shards = kvtl::layer_wide<typename Cache::preset> ? 1 : shards;
            auto cache = open_cache<Cache>(c);
            reader<Cache> one(cache, data, 1, reference);
            one.prefill(370, chunk);
            one.decode(20);
            one.draft(9);
            one.rewind(5);
            one.decode(8);
            one.prefill(30);
            one.decode(10);
            one.check_tokens();
            CHECK(one.error() < tolerance);
        }
}

} // namespace

TEST_CASE_TEMPLATE("every rule by itself, and all at once", Preset, kvtl::presets::full,
                   kvtl::presets::dynakv, kvtl::presets::quest, kvtl::presets::flexgen,
                   kvtl::presets::snapkv_group, kvtl::presets::snapkv_qhead, kvtl::presets::h2o) {
    using cache = cache_of<Preset>;
    const kvtl::attention_rule rule = all_rules();
    SUBCASE("scale") {
        equals_the_definition<cache>({.scale = rule.scale}, {});
    }
    SUBCASE("cap") {
        equals_the_definition<cache>({.softcap = rule.softcap}, {});
    }
    SUBCASE("sliding layers") {
        equals_the_definition<cache>({.windows = rule.windows}, {});
    }
    SUBCASE("sink logits") {
        equals_the_definition<cache>({}, sink_logits());
    }
    SUBCASE("all") {
        equals_the_definition<cache>(rule, sink_logits());
    }
    SUBCASE("layers that share, with a cap and sink logits") {
        equals_the_definition<cache>({.softcap = rule.softcap}, sink_logits(), exact, owners);
    }
}

TEST_CASE("codecs and estimates are built on the same logits") {
    // A codec rounds, and an estimate stands in for nothing here: everything is read.
    equals_the_definition<cache_of<kvtl::presets::dynakv_int8>>(all_rules(), sink_logits(), 2e-2);
    equals_the_definition<cache_of<kvtl::presets::full_int8>>(all_rules(), sink_logits(), 2e-2);
    equals_the_definition<cache_of<kvtl::presets::dynakv_estimate>>(all_rules(), sink_logits());
    equals_the_definition<cache_of<kvtl::presets::snapkv_then_dynakv>>(all_rules(), sink_logits());
}

TEST_CASE("layers that share attend what their owner's prompt was, whatever the preset makes of it") {
    const kvtl::attention_rule rule{.scale = all_rules().scale, .softcap = all_rules().softcap};
    equals_the_definition<cache_of<kvtl::presets::full_int8>>(rule, sink_logits(), 2e-2, owners);
    equals_the_definition<cache_of<kvtl::presets::dynakv_estimate>>(rule, sink_logits(), exact, owners);
    equals_the_definition<cache_of<kvtl::presets::snapkv_then_dynakv>>(rule, sink_logits(), exact, owners);
    equals_the_definition<cache_of<kvtl::presets::mpcache_shared>>(rule, sink_logits(), exact, owners);
}

TEST_CASE_TEMPLATE("each layer that shares chooses on its own: the bits of a cache that shares nothing",
                   Preset, kvtl::presets::quest, kvtl::presets::flexgen, kvtl::presets::full) {
    using cache = cache_of<Preset>;
    auto alone = shared_config<cache>(96), shared = alone;
    alone.owner.clear();
    auto a = open_cache<cache>(alone), b = open_cache<cache>(shared);
    reader<cache> one(a, shared_stream(), 0), other(b, shared_stream(), 0);
    for (auto* r : {&one, &other}) {
        r->prefill(300, 110);
        r->decode(30);
        r->rewind(4);
        r->decode(2);
        r->prefill(40);
        r->decode(20);
    }
    CHECK(same_bits(one.outputs(), other.outputs()));
    CHECK(a.stats().steps == b.stats().steps);
    CHECK(a.stats().kept_bytes * 2 == b.stats().kept_bytes * 5); // entries come once, from their owners
    CHECK(a.stats().bytes_by_part.raw_cache * 2 == b.stats().bytes_by_part.raw_cache * 5);
}

TEST_CASE_TEMPLATE("of layers that share all see what the last one sees, and what leaves leaves for all",
                   Preset, kvtl::presets::snapkv_group, kvtl::presets::streaming_llm, kvtl::presets::mikv) {
    using cache = cache_of<Preset>;
    auto c = shared_config<cache>();
    c.prefill_tokens = 300;
    c.keep_tokens = 64;
    auto opened = open_cache<cache>(c);
    const auto seq = opened.begin();
    REQUIRE(seq.ok());
    const std::size_t row = stream().query_floats();
    for (std::size_t first = 0, n = 0; first < 340; first += n) {
        const bool prompt = first < 300;
        n = prompt ? 100 : 1;
        std::vector<std::vector<float>> out(model.layers, std::vector<float>(n * row));
        for (std::size_t l = 0; l < model.layers; ++l) {
            kvtl::layer_input in = shared_stream().input(owners[l], first, n); // its owner's queries, too
            in.last_chunk = first + n >= 300;
            require_ok(prompt ? opened.prefill(*seq, l, in, out[l]) : opened.attend(*seq, l, in, out[l]));
        }
        CHECK((same_bits(out[0], out[3]) && same_bits(out[1], out[3]) && same_bits(out[2], out[4])));
    }
    const std::size_t held = opened.kept_entries(*seq, 0);
    CHECK(held == opened.kept_entries(*seq, 1));
    CHECK(held < 340 * model.kv_heads);
}

TEST_CASE("layers that share take the memory and the storage of their owners") {
    using cache = cache_of<kvtl::presets::dynakv>;
    auto all = shared_config<cache>(96), shared = all;
    all.owner.clear();
    all.max_tokens = shared.max_tokens = 8192;
    const auto whole = cache::least_parts(all), part = cache::least_parts(shared);
    REQUIRE((whole.ok() && part.ok()));
    CHECK(part->index * 5 == whole->index * 2);
    CHECK(part->window * 5 == whole->window * 2);
    CHECK(part->total() < whole->total());
    CHECK(*cache::storage_bytes(shared) * 2 < *cache::storage_bytes(all));
    all.owner = {0, 1, 2, 3, 4}; // says the same as none
    CHECK(*cache::least_memory(all) == whole->total());
}

TEST_CASE(
    "owners that make no sense are named, and so is what a layer without a cache of its own cannot do") {
    using cache = cache_of<kvtl::presets::dynakv>;
    const auto refused = [](const std::vector<std::uint32_t>& owner, const char* why,
                            const kvtl::attention_rule& rule = {}) {
        auto c = config_of<cache>(rule);
        c.owner = owner;
        const auto opened = cache::open(c);
        REQUIRE_FALSE(opened.ok());
        CHECK_MESSAGE(opened.error().message.find(why) != std::string::npos, opened.error().message);
    };
    refused({0, 0}, "owner has 2 numbers; valid: one per layer, 5, or none");
    refused({0, 2, 2, 2, 2}, "owner[1] is 2; valid: the layer itself or one before it, 0 to 1");
    refused({0, 0, 1, 3, 4}, "owner[2] is 1, whose owner is layer 0; valid: a layer that is its own owner");
    refused({0, 0, 2, 3, 4}, "owner: layer 0 shares its cache and slides over 9 tokens",
            {.windows = {9, 9, 0, 0, 0}});
    refused({0, 0, 2, 3, 4}, "attention.windows has 2 numbers; valid: one per layer, 5", {.windows = {9, 9}});

    // A choice that layers share is made by the first of them.
    using sharing = cache_of<kvtl::presets::mpcache_shared>;
    auto crossed = config_of<sharing>({});
    crossed.owner = {0, 1, 0, 3, 4};
    const auto too_late = sharing::open(crossed);
    REQUIRE_FALSE(too_late.ok());
    CHECK_MESSAGE(too_late.error().message.find("layer 0 would follow the choice of layer 1") !=
                      std::string::npos,
                  too_late.error().message);

    auto c = shared_config<cache>(96);
    c.max_sequences = 2;
    auto opened = open_cache<cache>(c);
    reader<cache> one(opened, shared_stream(), 0);
    one.prefill(100);
    const std::vector<float> q(stream().query_floats(), 0.5F);
    std::vector<float> out(q.size());
    const auto s = opened.append(one.id(), 3, shared_stream().input(3, 100));
    CHECK(s.code() == kvtl::errc::invalid_argument);
    CHECK(std::string(s.what()).find("append: layer is 3, which attends the cache of layer 0; valid: a layer "
                                     "that is its own owner") != std::string::npos);
    one.check_tokens();
    // Who attends with a kernel of its own appends in the owner, and every layer sees that.
    for (std::size_t l = 0; l < model.layers; ++l) {
        if (owners[l] == l) require_ok(opened.append(one.id(), l, shared_stream().input(l, 100)));
        std::size_t rows = 0;
        require_ok(opened.select(one.id(), l, q, [&](std::size_t head, const auto& keys, const auto&) {
            if (head == 0) rows += keys.count;
        }));
        CHECK(rows > 32);
        CHECK(opened.tokens(one.id(), l) == 101);
    }
    // A layer that an engine leaves out is found at the next token of another one.
    require_ok(opened.append(one.id(), 0, shared_stream().input(0, 101)));
    const auto again = opened.append(one.id(), 0, shared_stream().input(0, 102));
    CHECK_MESSAGE(
        std::string(again.what()).find("layer 0 has 102 tokens and layer 2 only 101: it was left out") !=
            std::string::npos,
        std::string(again.what()));
    require_ok(opened.append(one.id(), 2, shared_stream().input(2, 101)));
    require_ok(opened.rewind(one.id(), 1));
    // A layer left out is found where its store is completed.
    require_ok(opened.attend(one.id(), 0, shared_stream().input(0, 101), out));
    CHECK(opened.tokens(one.id(), 0) == 101);
    require_ok(opened.attend(one.id(), 3, shared_stream().input(3, 101), out));
    CHECK(opened.tokens(one.id(), 0) == 102);
    const auto left = opened.attend(one.id(), 1, shared_stream().input(1, 102), out);
    CHECK_MESSAGE(
        std::string(left.what()).find("layer 1 has 102 tokens and layer 2 only 101: it was left out") !=
            std::string::npos,
        left.what());
}

TEST_CASE_TEMPLATE("sequences of layers that share are saved, loaded and forked", Preset,
                   kvtl::presets::dynakv, kvtl::presets::snapkv_group, kvtl::presets::full) {
    using cache = cache_of<Preset>;
    const scratch_folder folder;
    auto c = shared_config<cache>();
    c.max_sequences = 3;
    auto opened = open_cache<cache>(c), fresh = open_cache<cache>(c);
    const auto reference = std::make_shared<dense_reference<typename cache::element_type>>(shared_stream());
    reader<cache> one(opened, shared_stream(), 1, reference), copy = one;
    one.prefill(200, 80);
    one.decode(3);
    const auto branch = opened.fork(one.id());
    REQUIRE(branch.ok());
    REQUIRE(opened.save(one.id(), folder.file("a")).ok());
    const auto loaded = fresh.load(folder.file("a"));
    REQUIRE(loaded.ok());
    CHECK(loaded->tokens == 203);
    copy.advance(203);
    copy.go_on_in(*branch);
    reader<cache> later(fresh, shared_stream(), 1, reference);
    later.advance(203);
    later.go_on_in(loaded->seq);
    for (auto* r : {&one, &copy, &later}) {
        r->decode(10);
        r->check_tokens();
        CHECK(r->error() < exact);
    }
    c.owner = {0, 0, 2, 2, 2};
    const auto refused = open_cache<cache>(c).load(folder.file("a"));
    REQUIRE_FALSE(refused.ok());
    CHECK_MESSAGE(refused.error().message.find("owner is ") != std::string::npos, refused.error().message);
}

TEST_CASE("layers that slide: no cutting of a prompt changes a bit, and sequences do not meet") {
    using cache = cache_of<kvtl::presets::full>;
    auto c = config_of<cache>({.windows = {33, 0, 200, 1, 64}});
    c.max_sequences = 3;
    c.shards = 2;
    const auto reference = std::make_shared<dense_reference<kvtl::f16>>(stream(), c.attention);
    std::vector<std::vector<float>> outputs;
    for (const kvtl::division divide : {kvtl::division::heads, kvtl::division::sequences}) {
        c.shard_by = divide;
        auto opened = open_cache<cache>(c);
        for (const std::size_t chunk :
             {SIZE_MAX, std::size_t{77}, std::size_t{1}}) { // three sequences at once
            reader<cache> one(opened, stream(), 5, reference);
            one.prefill(450, chunk);
            one.decode(100);
            CHECK(one.error() < exact);
            CHECK(opened.stats().kept_entries == 0); // of presets that drop entries only
            const std::size_t decoded = 100 * model.layers * stream().query_floats();
            outputs.emplace_back(one.outputs().end() - static_cast<std::ptrdiff_t>(decoded),
                                 one.outputs().end());
            CHECK(same_bits(outputs.front(), outputs.back()));
        }
    }
}

TEST_CASE(
    "layers that slide take rewinds as far as the window, and memory that does not grow with max_tokens") {
    using cache = cache_of<kvtl::presets::dynakv>;
    auto c = config_of<cache>({.windows = {0, 20, 20, 20, 20}});
    c.window_tokens = 48;
    {
        const auto reference = std::make_shared<dense_reference<kvtl::f16>>(stream(), c.attention);
        auto opened = open_cache<cache>(c);
        reader<cache> one(opened, stream(), 1, reference);
        one.prefill(300, 64);
        for (int i = 0; i < 6; ++i) {
            one.decode(49);
            one.rewind(48);
            one.decode(7);
        }
        CHECK(one.error() < exact);
        CHECK_FALSE(opened.rewind(one.id(), 49).ok());
        one.end();
        reader<cache> two(opened, stream(), 1, reference); // the same rows, used again
        two.prefill(100);
        two.decode(10);
        CHECK(two.error() < exact);
    }
    c.memory_bytes = 1 << 30;
    c.attend_tokens = 256;
    const auto window_of = [&](std::size_t max_tokens) {
        c.max_tokens = max_tokens;
        return open_cache<cache>(c).stats().bytes_by_part.window;
    };
    CHECK(window_of(4000) == window_of(40000));
}

TEST_CASE_TEMPLATE("a draft is its steps, to the bit", Preset, kvtl::presets::dynakv,
                   kvtl::presets::dynakv_estimate, kvtl::presets::quest, kvtl::presets::flexgen,
                   kvtl::presets::h2o, kvtl::presets::full) {
    using cache = cache_of<Preset>;
    auto c = config_of<cache>({.windows = {0, 0, 60, 0, 60}});
    c.attend_tokens = 120;
    auto a = open_cache<cache>(c), b = open_cache<cache>(c);
    reader<cache> drafted(a, stream(), 0), stepped(b, stream(), 0);
    for (auto* one : {&drafted, &stepped}) one->prefill(300, 100);
    std::vector<float> together, apart;
    for (const std::size_t n : {7U, 1U, 20U}) {
        for (std::size_t l = 0; l < model.layers; ++l) {
            std::vector<float> out(n * stream().query_floats());
            require_ok(a.attend(drafted.id(), l, drafted.input(l, drafted.tokens(), n), out));
            together.insert(together.end(), out.begin(), out.end());
        }
        drafted.advance(n);
        std::vector<std::vector<float>> rows(model.layers);
        for (std::size_t t = 0; t < n; ++t) {
            const std::size_t before = stepped.outputs().size();
            stepped.decode(1);
            for (std::size_t l = 0; l < model.layers; ++l) {
                const auto* row = &stepped.outputs()[before + l * stream().query_floats()];
                rows[l].insert(rows[l].end(), row, row + stream().query_floats());
            }
        }
        for (const auto& row : rows) apart.insert(apart.end(), row.begin(), row.end());
    }
    CHECK(same_bits(together, apart));
    CHECK(a.stats().steps == b.stats().steps);
}

TEST_CASE_TEMPLATE("a batch is its parts", Preset, kvtl::presets::dynakv, kvtl::presets::flexgen,
                   kvtl::presets::h2o) {
    using cache = cache_of<Preset>;
    for (const kvtl::division divide : {kvtl::division::heads, kvtl::division::sequences}) {
        auto c = config_of<cache>({.windows = {0, 0, 60, 0, 60}});
        c.attend_tokens = 120;
        c.max_sequences = 3;
        c.shard_by = divide;
        c.shards = kvtl::layer_wide<Preset> && divide == kvtl::division::heads ? 1 : 2;
        auto together = open_cache<cache>(c), alone = open_cache<cache>(c);
        std::vector<reader<cache>> one, other;
        for (int i = 0; i < 3; ++i)
            one.emplace_back(together, stream(), 0), other.emplace_back(alone, stream(), 0);
        // Prompts of unequal length, in chunks that a batch shares with steps and a draft.
        const auto pass = [&](std::vector<std::pair<std::size_t, kvtl::part_kind>> plan) {
            for (std::size_t l = 0; l < model.layers; ++l) {
                std::vector<kvtl::batch_part> parts;
                std::vector<float> q, k, v, expected;
                for (std::size_t i = 0; i < plan.size(); ++i) {
                    const auto [n, kind] = plan[i];
                    if (n == 0) continue;
                    parts.push_back({one[i].id(), static_cast<std::uint32_t>(n), kind});
                    auto in = one[i].input(l, one[i].tokens(), n);
                    q.insert(q.end(), in.q.floats().begin(), in.q.floats().end());
                    k.insert(k.end(), in.k.floats().begin(), in.k.floats().end());
                    v.insert(v.end(), in.v.floats().begin(), in.v.floats().end());
                    in.last_chunk = kind != kvtl::part_kind::prompt;
                    std::vector<float> out(in.q.size());
                    require_ok(kind == kvtl::part_kind::decode ? alone.attend(other[i].id(), l, in, out)
                                                               : alone.prefill(other[i].id(), l, in, out));
                    expected.insert(expected.end(), out.begin(), out.end());
                }
                std::vector<float> out(q.size());
                for (unsigned s = 0; s < together.shards(); ++s)
                    require_ok(together.forward(parts, l, {.q = q, .k = k, .v = v}, out, s));
                CHECK(same_bits(out, expected));
            }
            for (std::size_t i = 0; i < plan.size(); ++i) one[i].advance(plan[i].first);
        };
        using enum kvtl::part_kind;
        pass({{100, prompt}, {40, last_of_prompt}, {200, prompt}});
        pass({{150, last_of_prompt}, {1, decode}, {30, prompt}});
        pass({{1, decode}, {5, decode}, {20, last_of_prompt}});
        for (int i = 0; i < 20; ++i) pass({{1, decode}, {1, decode}, {1, decode}});
        pass({{20, last_of_prompt}, {0, decode}, {3, decode}});
    }
}

TEST_CASE("rules that make no sense are named") {
    using cache = cache_of<kvtl::presets::dynakv>;
    const auto refused = [](const kvtl::attention_rule& rule, const char* why) {
        const auto opened = cache::open(config_of<cache>(rule));
        REQUIRE_FALSE(opened.ok());
        CHECK_MESSAGE(opened.error().message.find(why) != std::string::npos, opened.error().message);
    };
    refused({.scale = -1}, "attention.scale is -1; valid");
    refused({.scale = NAN}, "attention.scale");
    refused({.softcap = -0.5F}, "attention.softcap is -0.5; valid");
    refused({.windows = {0, 4}}, "attention.windows has 2 numbers; valid: one per layer, 5");
    refused({.windows = {9, 9, 9, 9, 9}}, "all 5 layers slide");

    auto c = config_of<cache>({.windows = {0, 9, 0, 0, 0}});
    auto opened = open_cache<cache>(c);
    reader<cache> one(opened, stream(), 0);
    one.prefill(80);
    std::vector<float> out(stream().query_floats() * 40);
    auto in = stream().input(0, 80, 1);
    const std::vector<float> sinks(5, 0.0F);
    in.sink_logits = sinks;
    const auto call = [&](const kvtl::layer_input& input, std::size_t n) {
        return std::string(
            opened.attend(one.id(), 0, input, std::span(out).first(n * stream().query_floats())).what());
    };
    CHECK(call(in, 1).find("sink_logits has 5 numbers; valid: 6") != std::string::npos);
    CHECK(call(stream().input(0, 80, 33), 33).find("k has 33 tokens; valid: 1 to window_tokens = 32") !=
          std::string::npos);
    const kvtl::batch_part part{one.id(), 2, kvtl::part_kind::decode};
    const auto batch = opened.forward({&part, 1}, 0, stream().input(0, 80, 1),
                                      std::span(out).first(stream().query_floats()));
    CHECK(std::string(batch.what()).find("1 parts with 2 tokens") != std::string::npos);
    one.check_tokens();
}

TEST_CASE("full keeps of a layer that slides what its queries see, and a few to rewind") {
    using cache = cache_of<kvtl::presets::full>;
    auto c = config_of<cache>({.windows = {0, 40, 40, 40, 40}});
    c.max_tokens = 32768;
    const std::size_t sliding = open_cache<cache>(c).stats().bytes_by_part.window;
    c.attention.windows.clear();
    CHECK(sliding * 4 < open_cache<cache>(c).stats().bytes_by_part.window);
}

TEST_CASE("layers that slide wait for the last chunk too, and are called by the model's numbers") {
    using cache = cache_of<kvtl::presets::dynakv>;
    auto opened = open_cache<cache>(config_of<cache>({.windows = {40, 40, 0, 0, 40}}));
    reader<cache> one(opened, stream(), 0);
    std::vector<float> out(100 * stream().query_floats());
    for (std::size_t l = 0; l < model.layers; ++l) {
        auto in = stream().input(l, 0, 100);
        in.last_chunk = false;
        require_ok(opened.prefill(one.id(), l, in, out));
    }
    const std::span<float> row = std::span(out).first(stream().query_floats());
    for (std::size_t l = 0; l < model.layers; ++l) {
        const auto s = opened.attend(one.id(), l, stream().input(l, 100, 1), row);
        CHECK_MESSAGE(std::string(s.what()).find("100 tokens wait for a prefill with last_chunk = true") !=
                          std::string::npos,
                      s.what());
        CHECK(opened.tokens(one.id(), l) == 100);
    }
    one.advance(100);
    one.prefill(20);
    one.decode(1);
    const auto s = opened.rewind(one.id(), 33);
    CHECK_MESSAGE(std::string(s.what()).find("layer 2 has 121 tokens and can give up 32") !=
                      std::string::npos,
                  s.what());
}

} // namespace manager_attention_rules_test
