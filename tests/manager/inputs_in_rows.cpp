// q, k and v in one buffer: rows with a stride give the bits that tensors of their own give.
// SPDX-License-Identifier: MIT
#include <kvtl/io/backends.hpp>
#include <kvtl/presets/composed.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/full.hpp>
#include <kvtl/presets/heavy_hitters.hpp>
#include <kvtl/presets/pqcache.hpp>
#include <kvtl/presets/quest.hpp>
#include <kvtl/presets/snapkv.hpp>
#include <kvtl/presets/think.hpp>
#include <kvtl/simd/convert.hpp>

#include "support/cache_fixture.hpp"
#include "support/on_device.hpp"

#include <array>
#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace manager_inputs_in_rows_test {

using namespace kvtl_test;

namespace {

template <class Preset> using cache_of = kvtl::kv_manager<on_device<Preset, kvtl::in_memory>>;

constexpr kvtl::shape model{2, 4, 2, 64};
constexpr std::size_t prompt = 150, turn = 70, all = 260;

template <class Cache> Cache opened() {
    typename Cache::config c;
    c.shape = model;
    c.attention.windows = {0, 40}; // the second layer slides
    c.max_tokens = all;
    c.max_sequences = 2;
    c.memory_bytes = std::size_t{4} << 20;
    c.attend_tokens = 96;
    if constexpr (kvtl::drops_entries<typename Cache::preset>) c.keep_tokens = 96, c.prefill_tokens = prompt;
    auto cache = Cache::open(c);
    REQUIRE_MESSAGE(cache.ok(), (cache.ok() ? std::string() : cache.error().message));
    return *std::move(cache);
}

/// Tokens of one layer as an engine has them: q, k and v of a token behind one another, and something behind them.
template <kvtl::element E> class fused {
  public:
    fused(const drift& data, std::size_t layer, std::size_t first, std::size_t count)
        : count_(count), q_(data.query_floats()), k_(data.key_floats()) {
        std::vector<float> floats;
        for (std::size_t t = first; t < first + count; ++t) {
            for (const auto part : {data.q(layer, t), data.k(layer, t), data.v(layer, t)})
                floats.insert(floats.end(), part.begin(), part.end());
            floats.insert(floats.end(), 3, std::numeric_limits<float>::quiet_NaN());
        }
        numbers_.resize(floats.size());
        kvtl::simd::encode(floats.data(), numbers_.data(), floats.size());
    }
    [[nodiscard]] kvtl::layer_input in_rows() const {
        kvtl::layer_input in;
        in.q = kvtl::tensor_view::in_rows(numbers_.data(), count_, q_, stride());
        in.k = kvtl::tensor_view::in_rows(numbers_.data() + q_, count_, k_, stride());
        in.v = kvtl::tensor_view::in_rows(numbers_.data() + q_ + k_, count_, k_, stride());
        return in;
    }
    /// Tensors of their own.
    [[nodiscard]] kvtl::layer_input apart() {
        own_.clear();
        const std::array<std::array<std::size_t, 2>, 3> parts{{{0, q_}, {q_, k_}, {q_ + k_, k_}}};
        for (const auto& [at, row] : parts)
            for (std::size_t t = 0; t < count_; ++t)
                own_.insert(own_.end(), numbers_.begin() + static_cast<std::ptrdiff_t>(t * stride() + at),
                            numbers_.begin() + static_cast<std::ptrdiff_t>(t * stride() + at + row));
        kvtl::layer_input in;
        in.q = kvtl::tensor_view(own_.data(), count_ * q_);
        in.k = kvtl::tensor_view(own_.data() + count_ * q_, count_ * k_);
        in.v = kvtl::tensor_view(own_.data() + count_ * (q_ + k_), count_ * k_);
        return in;
    }
    [[nodiscard]] std::size_t stride() const { return q_ + 2 * k_ + 3; }

  private:
    std::size_t count_, q_, k_;
    std::vector<E> numbers_, own_;
};

/// A prompt in two chunks, a batch of two sequences (steps of one, a further turn of the other), and steps.
template <class Cache, kvtl::element E> std::vector<float> play(bool rows) {
    const drift data(model, all, 5);
    auto cache = opened<Cache>();
    const std::array seqs{*cache.begin(), *cache.begin()};
    std::vector<float> out;
    const auto call = [&](std::size_t layer, std::size_t first, std::size_t n, auto&& f) {
        fused<E> tokens(data, layer, first, n);
        out.resize(out.size() + n * data.query_floats());
        require_ok(f(rows ? tokens.in_rows() : tokens.apart(), std::span(out).last(n * data.query_floats())));
    };
    for (const auto seq : seqs)
        for (const auto& [first, n] : std::array<std::array<std::size_t, 2>, 2>{{{0, 90}, {90, prompt - 90}}})
            for (std::size_t l = 0; l < model.layers; ++l)
                call(l, first, n, [&, last = first != 0](kvtl::layer_input in, std::span<float> to) {
                    in.last_chunk = last;
                    return cache.prefill(seq, l, in, to);
                });
    for (std::size_t l = 0; l < model.layers; ++l)
        call(l, prompt, 3 + turn, [&](const kvtl::layer_input& in, std::span<float> to) {
            return cache.forward(
                std::array<kvtl::batch_part, 2>{{{seqs[0], 3, kvtl::part_kind::decode},
                                                 {seqs[1], turn, kvtl::part_kind::last_of_prompt}}},
                l, in, to);
        });
    for (std::size_t t = prompt + turn; t < prompt + turn + 4; ++t)
        for (std::size_t l = 0; l < model.layers; ++l)
            call(l, t, 1, [&](const kvtl::layer_input& in, std::span<float> to) {
                return cache.attend(seqs[1], l, in, to);
            });
    return out;
}

} // namespace

TEST_CASE_TEMPLATE("inputs in rows: every way that entries go", Preset, kvtl::presets::full,
                   kvtl::presets::dynakv, kvtl::presets::quest, kvtl::presets::pqcache, kvtl::presets::h2o,
                   kvtl::presets::snapkv_group, kvtl::presets::think, kvtl::presets::snapkv_then_dynakv) {
    using cache = cache_of<Preset>;
    CHECK(play<cache, float>(true) == play<cache, float>(false));
    CHECK(play<cache, kvtl::f16>(true) == play<cache, kvtl::f16>(false));
}

TEST_CASE(
    "inputs in rows: rows of other sizes, strides that are too small, and numbers that are not finite") {
    auto cache = opened<cache_of<kvtl::presets::dynakv>>();
    const auto seq = *cache.begin();
    std::vector<float> numbers(4096, 0.5F), out(4 * 256);
    kvtl::layer_input good;
    good.last_chunk = true;
    good.q = kvtl::tensor_view::in_rows(numbers.data(), 4, 256, 512);
    good.k = kvtl::tensor_view::in_rows(numbers.data() + 256, 4, 128, 512);
    good.v = kvtl::tensor_view::in_rows(numbers.data() + 384, 4, 128, 512);
    const auto refused = [&](kvtl::layer_input in, const char* words) {
        const kvtl::status s = cache.prefill(seq, 0, in, out);
        CHECK(s.code() == kvtl::errc::invalid_argument);
        CHECK_MESSAGE(std::string(s.what()).find(words) != std::string::npos, s.what());
    };
    kvtl::layer_input in = good;
    in.k = kvtl::tensor_view::in_rows(numbers.data() + 256, 8, 64, 512);
    refused(in,
            "k has rows of 64 numbers with a stride of 512; valid: rows of 128 with a stride of 128 or more");
    in = good;
    in.v = kvtl::tensor_view::in_rows(numbers.data(), 4, 128, 64);
    refused(in, "v has rows of 128 numbers with a stride of 64");
    in = good;
    in.q = kvtl::tensor_view::in_rows(numbers.data(), 5, 256, 512);
    refused(in, "q has 1280 numbers; valid: 1024");
    numbers[3 * 512 + 256 + 127] = std::numeric_limits<float>::infinity(); // the last number of k
    refused(good, "k holds a NaN, an infinity");
    numbers[3 * 512 + 256 + 127] = 0.5F;
    numbers[4 * 512] = std::numeric_limits<float>::infinity(); // behind the last row
    require_ok(cache.prefill(seq, 0, good, out));
}

TEST_CASE("inputs in rows: parts of a view") {
    std::vector<float> numbers(40);
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i);
    const auto rows = kvtl::tensor_view::in_rows(numbers.data(), 4, 6, 10);
    CHECK(rows.size() == 24);
    CHECK(rows.floats().empty());
    CHECK(kvtl::tensor_view::in_rows(numbers.data(), 4, 10, 10).floats().size() == 40);
    for (std::size_t first = 0; first < 24; ++first) {
        const kvtl::tensor_view part = rows.subspan(first, 24 - first);
        for (std::size_t i = 0; i < part.size(); ++i) {
            const std::size_t at = (first + i) / 6 * 10 + (first + i) % 6;
            CHECK(part.as<float>()[part.place(i)] == static_cast<float>(at));
            CHECK(part.run(i) == 6 - (first + i) % 6);
        }
    }
    CHECK(rows.subspan(7, 3).run(0) == 3);
}

} // namespace manager_inputs_in_rows_test
