// Presets of token_adaptive_rank: with every coefficient kept they are dense attention, whatever moved in between; with a
// share of the energy they store what the shares say, and are close. KVQuant: with every number an outlier it is dense attention,
// and codes of more bits are closer.
// SPDX-License-Identifier: MIT
#include <kvtl/presets/kvquant.hpp>
#include <kvtl/presets/low_rank.hpp>

#include "support/cache_fixture.hpp"
#include "support/calibrated.hpp"

namespace low_rank_test {

namespace {
using namespace kvtl_test;

template <class Preset> struct in_ram : Preset { using io = kvtl::in_memory; };
template <class Preset> using cache_of = kvtl::kv_manager<Preset, kvtl::engine_inputs_for<Preset>>;

const kvtl::shape shape{2, 4, 2, 64};
/// Sixteen-bit coefficients, and keys that are turned back and forth.
constexpr double coded = 5e-2;

class bases {
  public:
    bases()
        : path_((std::filesystem::temp_directory_path() / ("kvtl-low-rank-" + std::to_string(::getpid())))
                    .string()) {
        write_calibration(path_, shape, 128, 21);
    }
    bases(const bases&) = delete;
    ~bases() { std::filesystem::remove(path_); }
    [[nodiscard]] const std::string& path() const { return path_; }

  private:
    std::string path_;
};

template <class Preset> typename cache_of<Preset>::config config_for(const bases& file, float share) {
    typename cache_of<Preset>::config c;
    c.shape = shape;
    c.max_tokens = c.attend_tokens = 900;
    c.memory_bytes = std::size_t{16} << 20;
    c.calibration = file.path();
    if constexpr (requires { c.compressor.share; })
        c.compressor.share = share;
    else
        c.compressor.outliers = share;
    return c;
}

struct outcome {
    double error;
    kvtl::statistics stats;
};
template <class Preset> outcome run(const typename cache_of<Preset>::config& c) {
    const drift data(c.shape, c.max_tokens, 3);
    auto cache = open_cache<cache_of<Preset>>(c);
    reader<cache_of<Preset>> one(cache, data, 5);
    one.prefill(500, 170);
    one.decode(120);
    one.prefill(60);
    one.decode(60);
    one.check_tokens();
    return {one.error(), cache.stats()};
}
/// The least memory that open() accepts. Records of sizes of their own that stay in memory take what it leaves: as much as
/// 16-bit entries beside it.
template <class Preset> std::size_t smallest_memory(const typename cache_of<Preset>::config& c) {
    const std::size_t raw = c.max_tokens * c.shape.layers * c.shape.kv_heads * c.shape.head_dim * 4;
    return least_memory<cache_of<Preset>>(c) + (kvtl::keeps_in_chains<Preset> ? raw : 0);
}
} // namespace

TEST_CASE_TEMPLATE("with every coefficient kept it is dense attention", P,
                   in_ram<kvtl::presets::dynakv_lr_energy>, in_ram<kvtl::presets::kvswap_lr>,
                   in_ram<kvtl::presets::dynakv_head_lr>, kvtl::presets::kvquant_4,
                   in_ram<kvtl::presets::dynakv_kvquant>) {
    const bases file;
    for (const bool smallest : {false, true}) {
        auto c = config_for<P>(file, 1.0F);
        if (smallest) c.memory_bytes = smallest_memory<P>(c);
        const outcome all = run<P>(c);
        CHECK(all.error < coded);
        CHECK(all.error > exact); // records were attended, not rows
    }
}

TEST_CASE_TEMPLATE("so it is with bases of a layer and of heads, and with what a retention has kept", P,
                   kvtl::presets::palu, kvtl::presets::matryoshka,
                   kvtl::presets::snapkv_layer_then_lr_energy) {
    const bases file;
    for (const bool smallest : {false, true}) {
        typename cache_of<P>::config c;
        c.shape = shape;
        c.max_tokens = c.attend_tokens = 900;
        c.memory_bytes = std::size_t{16} << 20;
        c.calibration = file.path();
        if constexpr (requires { c.compressor.rate; })
            c.compressor.rate = 1.0F;
        else
            c.compressor.share = 1.0F;
        // Who drops has memory for a prompt in one chunk at least.
        if (smallest && !kvtl::drops_entries<P>) c.memory_bytes = least_memory<cache_of<P>>(c);
        const outcome all = run<P>(c);
        CHECK(all.error < coded);
        CHECK(all.error > exact);
        CHECK(all.stats.resident_bytes_peak <= c.memory_bytes);
    }
}

TEST_CASE_TEMPLATE("bytes fall with the share, and are counted as records", P,
                   in_ram<kvtl::presets::dynakv_lr_energy>, in_ram<kvtl::presets::dynakv_head_lr>) {
    const bases file;
    const outcome all = run<P>(config_for<P>(file, 1.0F)), most = run<P>(config_for<P>(file, 0.9F)),
                  half = run<P>(config_for<P>(file, 0.5F));
    CHECK(half.stats.chosen_bytes < most.stats.chosen_bytes);
    CHECK(most.stats.chosen_bytes < all.stats.chosen_bytes);
    CHECK(half.stats.kept_bytes < most.stats.kept_bytes);
    CHECK(most.stats.kept_bytes < all.stats.kept_bytes);
    CHECK(all.error < most.error);
    CHECK(most.error < half.error);
}

namespace {
/// A call for whose records there is no room is refused and changes nothing; what is given back makes room again.
template <class Preset>
void refused_when_full(typename cache_of<Preset>::config c, std::size_t memory_bytes) {
    c.memory_bytes = memory_bytes;
    const drift data(c.shape, c.max_tokens, 3);
    auto cache = open_cache<cache_of<Preset>>(c);
    reader<cache_of<Preset>> one(cache, data, 5);
    one.prefill(120, 50);
    std::vector<float> out(data.query_floats() * 700);
    const auto refused = cache.prefill(one.id(), 0, data.input(0, 120, 700), out);
    CHECK(refused.code() == kvtl::errc::bound_too_small);
    CHECK_MESSAGE(std::string(refused.what()).find("memory_bytes has no room for more records") !=
                      std::string::npos,
                  refused.what());
    one.check_tokens();
    // The same for a draft, all of it or nothing, once steps have filled the memory.
    const auto take = [&](std::size_t layer, std::size_t token, std::size_t n) {
        const auto before = cache.stats();
        const auto done = cache.attend(one.id(), layer, data.input(layer, token, n),
                                       std::span(out).first(n * data.query_floats()));
        if (done.ok()) return true;
        CHECK(done.code() == kvtl::errc::bound_too_small);
        CHECK(cache.tokens(one.id(), layer) == token);
        CHECK(cache.stats().steps == before.steps);
        CHECK(cache.stats().chosen_bytes == before.chosen_bytes);
        return false;
    };
    std::size_t token = 120, layer = 0;
    for (; token < 820 && take(layer, token, 1); layer = 1 - layer) token += layer;
    CHECK(token < 820);
    CHECK_FALSE(take(layer, token, 40));
    require_ok(cache.rewind_to(one.id(), 120)); // far beyond the window
    one.decode(40);
    one.check_tokens();
    CHECK(one.error() < coded);
}
} // namespace

TEST_CASE_TEMPLATE("what is held in memory is records of their own size", P,
                   in_ram<kvtl::presets::dynakv_lr_energy>, in_ram<kvtl::presets::kvswap_lr>) {
    const bases file;
    const auto full = run<P>(config_for<P>(file, 1.0F)), half = run<P>(config_for<P>(file, 0.5F));
    MESSAGE(full.stats.kept_bytes << " " << half.stats.kept_bytes << " bytes kept, "
                                  << full.stats.resident_bytes_peak << " " << half.stats.resident_bytes_peak
                                  << " held");
    CHECK(half.stats.resident_bytes_peak < full.stats.resident_bytes_peak);
    auto c = config_for<P>(file, 0.5F);
    if constexpr (kvtl::keeps_in_chains<
                      P>) { // memory in which records of the half are held, and no full rows
        c.memory_bytes = least_memory<cache_of<P>>(c) + half.stats.kept_bytes;
        const auto tight = run<P>(c);
        CHECK(tight.error == half.error);
        CHECK(tight.stats.resident_bytes_peak <= c.memory_bytes);
        refused_when_full<P>(config_for<P>(file, 1.0F), c.memory_bytes);
        return;
    }
    // Memory in which full rows were read again and again: records of the half stay.
    c.memory_bytes = least_memory<cache_of<P>>(c) + full.stats.kept_bytes / 2;
    const auto tight = run<P>(c);
    c.compressor.share = 1.0F;
    const auto thrashing = run<P>(c);
    MESSAGE(tight.stats.hit_rate() << " against " << thrashing.stats.hit_rate());
    CHECK(tight.stats.hit_rate() > thrashing.stats.hit_rate());
    CHECK(tight.error == half.error);
}

TEST_CASE_TEMPLATE("a trained gate gives every row its rank", P, in_ram<kvtl::presets::dynakv_lr>,
                   in_ram<kvtl::presets::snapkv_layer_then_dynakv_lr>) {
    const bases file;
    const auto with = [&](float tau, bool smallest) {
        typename cache_of<P>::config c;
        c.shape = shape;
        c.max_tokens = c.attend_tokens = 900;
        c.memory_bytes = std::size_t{16} << 20;
        if constexpr (kvtl::drops_entries<P>) c.keep_tokens = 300;
        c.calibration = file.path();
        c.compressor.tau = tau;
        if (smallest) c.memory_bytes = smallest_memory<P>(c);
        return run<P>(c);
    };
    const outcome most = with(0.001F, false), usual = with(0.1F, false), few = with(0.9F, false);
    CHECK(few.stats.kept_bytes < usual.stats.kept_bytes);
    CHECK(usual.stats.kept_bytes < most.stats.kept_bytes);
    CHECK(most.error < usual.error);
    CHECK(usual.error < few.error);
    if constexpr (!kvtl::drops_entries<P>) { // who drops has memory for a prompt in one chunk at least
        const outcome least = with(0.1F, true);
        CHECK(least.error == usual.error);
        CHECK(least.stats.kept_bytes == usual.stats.kept_bytes);
    }

    typename cache_of<P>::config c;
    c.shape = shape;
    c.max_tokens = c.attend_tokens = 900;
    c.memory_bytes = std::size_t{16} << 20;
    c.calibration = file.path();
    c.compressor.rate = 0.47F;
    const auto other = cache_of<P>::open(c);
    REQUIRE_FALSE(other.ok());
    CHECK(other.error().message.find("compressor.rate is 0.47; the gates were trained for 0.2") !=
          std::string::npos);
}

TEST_CASE_TEMPLATE("codes of KVQuant are closer with more bits, and take the bytes of their records", P,
                   kvtl::presets::kvquant_4, in_ram<kvtl::presets::dynakv_kvquant>) {
    const bases file;
    const auto with = [&](std::uint32_t bits, float outliers) {
        auto c = config_for<P>(file, outliers);
        c.compressor.bits = bits;
        return run<P>(c);
    };
    const outcome four = with(4, 0.01F), three = with(3, 0.01F), two = with(2, 0.01F);
    CHECK(four.error > coded / 10);
    CHECK(four.error < three.error);
    CHECK(three.error < two.error);
    if constexpr (!kvtl::retrieves<P>) {
        // Of 740 tokens in each of four layer-heads, 688 have left the window, which does so 16 at a time.
        CHECK(four.stats.kept_bytes == 4 * (688 * 80 + 52 * 256));
        CHECK(two.stats.kept_bytes == 4 * (688 * 48 + 52 * 256));
    }
}

TEST_CASE("kvquant_2 has codes of 2 bits") {
    const bases file;
    const auto two = config_for<kvtl::presets::kvquant_2>(file, 0.01F);
    CHECK(two.compressor.bits == 2);
    CHECK(config_for<kvtl::presets::kvquant_4>(file, 0.01F).compressor.bits == 4);
}

TEST_CASE("a preset of calibrated records says what it lacks") {
    const bases file;
    using cache_type = cache_of<in_ram<kvtl::presets::kvswap_lr>>;
    auto c = config_for<in_ram<kvtl::presets::kvswap_lr>>(file, 0.9F);
    const auto says = [&](const char* text) {
        const auto opened = cache_type::open(c);
        REQUIRE_FALSE(opened.ok());
        CHECK_MESSAGE(opened.error().message.find(text) != std::string::npos, opened.error().message);
    };
    c.calibration.clear();
    says("needs a calibration file with section joint_adapter, joint_keys, joint_values");
    c.calibration = file.path();
    c.calibration_model = 2; // the file's is 1
    says("was fitted to another model of the same shape");
    c.calibration_model = 1;
    c.compressor.share = 0;
    says("compressor.share is 0; valid: more than 0, to 1");
    c.compressor.share = 0.9F;
    c.shape.head_dim = 32;
    says("this one has");
}

} // namespace low_rank_test
