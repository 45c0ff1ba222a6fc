// Presets to which the engine says what will matter: what they keep is what it said, and in nothing else do
// they differ from the presets that they are compared with. SPDX-License-Identifier: MIT
#include <kvtl/presets/engine_decides.hpp>
#include <kvtl/presets/snapkv.hpp>

#include "support/eviction.hpp"

namespace engine_decides_test {

using namespace kvtl_test;

namespace {
constexpr kvtl::shape small{2, 4, 2, 32};
constexpr std::size_t prompt = 140;
template <class Preset, kvtl::engine_input More>
using cache_with =
    kvtl::kv_manager<in_f32<Preset>, kvtl::engine_inputs<kvtl::engine_input::q, kvtl::engine_input::k,
                                                         kvtl::engine_input::v, More>>;

template <class Cache> typename Cache::config sized(std::size_t keep, kvtl::engine_input more) {
    typename Cache::config c;
    c.shape = small;
    c.max_tokens = 300;
    c.memory_bytes = std::size_t{16} << 20;
    c.keep_tokens = keep;
    c.engine_inputs = kvtl::engine_input::q | kvtl::engine_input::k | kvtl::engine_input::v | more;
    return c;
}
} // namespace

TEST_CASE("lookahead_probe: the last queries as a probe keep what snapkv_group keeps of entries that all of "
          "them see") {
    const drift data(small, 300, 71);
    using probed = cache_with<kvtl::presets::lookahead_probe, kvtl::engine_input::probe>;
    using looking_back = precise<kvtl::presets::snapkv_group>;
    // A window of one: its only query sees the whole prompt, as a probe does.
    auto a = sized<probed>(40, kvtl::engine_input::probe);
    auto b = sized<looking_back>(40, kvtl::engine_input::nothing);
    CHECK(a.window_tokens == b.window_tokens);
    a.window_tokens = b.window_tokens = 1;
    auto first = open_cache<probed>(a);
    auto second = open_cache<looking_back>(b);
    const auto one = *first.begin(), other = *second.begin();
    feed_prompt(first, one, data, prompt, 60,
                [&](kvtl::layer_input& in, std::size_t l, std::size_t, std::size_t) {
                    in.probe = data.q(l, prompt - 1);
                });
    feed_prompt(second, other, data, prompt, 60);
    for (std::size_t l = 0; l < 2; ++l)
        for (std::size_t h = 0; h < 2; ++h) {
            CHECK(kept(first, one, l, h).size() == 40);
            CHECK(kept(first, one, l, h) == kept(second, other, l, h));
        }
}

TEST_CASE("external_mask: what the engine does not want leaves, in prompt and decode; the window stays") {
    const drift data(small, 300, 72);
    using cache_type = cache_with<kvtl::presets::external_mask, kvtl::engine_input::external>;
    auto c = sized<cache_type>(250, kvtl::engine_input::external); // room for everything
    auto cache = open_cache<cache_type>(c);
    const auto seq = *cache.begin();
    const auto wanted = [](std::size_t l, std::size_t t, std::size_t h) {
        return (t * 7 + l * 3 + h) % 3 != 0;
    };
    std::vector<float> given;
    const decorate say = [&](kvtl::layer_input& in, std::size_t l, std::size_t first, std::size_t n) {
        given.clear();
        for (std::size_t t = first; t < first + n; ++t)
            for (std::size_t h = 0; h < 2; ++h) given.push_back(wanted(l, t, h) ? 1.0F : -1.0F);
        in.external = given;
    };
    feed_prompt(cache, seq, data, prompt, 50, say);
    const auto check = [&](std::size_t tokens) {
        for (std::size_t l = 0; l < 2; ++l)
            for (std::size_t h = 0; h < 2; ++h) {
                tokens_t expected;
                for (std::uint32_t t = 0; t < tokens; ++t)
                    if (t + c.window_tokens >= tokens || wanted(l, t, h)) expected.push_back(t);
                CHECK(kept(cache, seq, l, h) == expected);
            }
    };
    CHECK(c.window_tokens == 8);
    check(prompt);
    for (std::size_t t = prompt; t < 180; ++t) CHECK(decode_and_compare(cache, seq, data, t, say) < exact);
    check(180);
}

} // namespace engine_decides_test
