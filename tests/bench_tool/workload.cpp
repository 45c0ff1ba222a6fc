// The statistics that traces and generators are compared by, on workloads whose answers are known.
// SPDX-License-Identifier: MIT
#include "workload.hpp"

#include <kvtl/calibration/calibration.hpp>
#include <kvtl/policies/support/position_table.hpp>

#include "contracts/io.hpp"
#include "drift.hpp"
#include "error.hpp"
#include "fit_calibration.hpp"
#include "stand_ins.hpp"
#include "statistics.hpp"
#include "support/oracle.hpp"
#include "workload_report.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>

namespace {

constexpr kvtl::shape small = {.layers = 2, .query_heads = 2, .kv_heads = 1, .head_dim = 16};

/// Every key, query and prediction is made by a function of the token.
class made final : public bench::workload {
  public:
    using row = void(std::size_t token, float* out);
    made(row* query, row* key) : query_(query), key_(key) {}
    const kvtl::shape& shape() const noexcept override { return small; }
    std::size_t tokens() const noexcept override { return 600; }
    bool neighbours() const noexcept override { return false; }
    std::size_t prompt_tokens() const noexcept override { return 200; }
    void rows(std::size_t, std::uint32_t, std::size_t first, std::size_t count,
              const bench::token_rows& out) override {
        for (std::size_t t = 0; t < count; ++t) {
            for (std::size_t h = 0; h < 2; ++h) {
                if (!out.q.empty()) query_(first + t, out.q.data() + (t * 2 + h) * 16);
                if (!out.prediction.empty()) query_(first + t, out.prediction.data() + (t * 2 + h) * 16);
            }
            if (!out.k.empty()) key_(first + t, out.k.data() + t * 16);
        }
    }

  private:
    row* query_;
    row* key_;
};

void ones(std::size_t, float* out) {
    std::fill_n(out, 16, 1.0F);
}
void zeros(std::size_t, float* out) {
    std::fill_n(out, 16, 0.0F);
}

} // namespace

TEST_CASE("uniform attention over equal keys has the statistics of a uniform distribution") {
    made w(zeros, ones);
    const auto s = bench::measure_workload(w, 600, 8);
    CHECK(s.entropy == doctest::Approx(1).epsilon(1e-9));
    CHECK(s.sink_mass == doctest::Approx(4.0 / 400).epsilon(0.5)); // 216 to 600 tokens
    CHECK(s.recent_mass == doctest::Approx(32.0 / 400).epsilon(0.5));
    CHECK(s.top_mass == doctest::Approx(0.05).epsilon(0.1));
    CHECK(s.key_norm_spread == doctest::Approx(0));
    CHECK(s.energy_quarter == doctest::Approx(1)); // one direction
    CHECK(s.step_overlap == doctest::Approx(1));   // ties fall the same way every time
}

TEST_CASE("a sink takes the mass, and energy spreads over the directions there are") {
    made w(ones, [](std::size_t t, float* out) {
        std::fill_n(out, 16, t == 0 ? 4.0F : 0.0F);
        if (t != 0) out[t % 16] = 1.0F;
    });
    const auto s = bench::measure_workload(w, 600, 8);
    CHECK(s.sink_mass > 0.99); // logits 16 and 0.25
    CHECK(s.top_mass > 0.99);
    CHECK(s.entropy < 0.01);
    CHECK(s.energy_half == doctest::Approx(0.5).epsilon(0.02));
    CHECK(s.energy_quarter == doctest::Approx(0.25).epsilon(0.04));
    CHECK(s.prediction_cosine == doctest::Approx(1));
}

TEST_CASE("keys that leave their clusters show as growth of the variance") {
    made still(ones, [](std::size_t t, float* out) {
        std::fill_n(out, 16, 0.0F);
        out[t % 4] = 1.0F + 0.1F * static_cast<float>(t % 7);
    });
    made leaving(ones, [](std::size_t t, float* out) {
        std::fill_n(out, 16, 0.0F);
        out[t % 4] = 1.0F + 0.1F * static_cast<float>(t % 7);
        out[8] = 0.01F * static_cast<float>(t);
    });
    CHECK(bench::measure_workload(still, 600, 2).variance_growth == doctest::Approx(1).epsilon(0.1));
    CHECK(bench::measure_workload(leaving, 600, 2).variance_growth > 4);
}

TEST_CASE("workloads are chosen by text") {
    const auto refusal = [](const std::string& text) {
        try {
            static_cast<void>(bench::make_workload({.text = text, .shape = small, .tokens = 10}));
        } catch (const engine::bad_input& e) {
            return std::string(e.what());
        }
        return std::string();
    };
    CHECK(refusal("drift:3").empty());
    for (const char* text : {"drift:", "drift", "drift:x", "drift:1x", "trace:", "magic:1", ""})
        CHECK_MESSAGE(refusal(text).find("valid: drift:SEED, trace:FILE") != std::string::npos, text);
    CHECK(refusal("drift:3,prediction=1,dwell=200").empty());
    for (const char* text : {"drift:3,", "drift:3,magic=1", "drift:3,=1", "drift:3,dwell=9,,burst=3"})
        CHECK_MESSAGE(refusal(text).find("valid: burst, ") != std::string::npos, text);
    for (const char* text :
         {"drift:3,prediction", "drift:3,prediction=", "drift:3,prediction=x",
          "drift:3,dwell=9,prediction=1.1", "drift:3,prediction=-0.1", "drift:3,prediction=nan"})
        CHECK_MESSAGE(refusal(text).find("prediction= and a number from 0 to 1") != std::string::npos, text);
    CHECK(refusal("drift:3,dwel=9").find("did you mean 'dwell'?") != std::string::npos);
    CHECK(refusal("drift:3,dwell=9,burst=3,dwell=9").find("'dwell' is named twice") != std::string::npos);
    CHECK(refusal("drift:3,burst=0").find("from 1 to 1000000") != std::string::npos);
    CHECK(refusal("trace:missing.trc").find("No such file") != std::string::npos);
    // The calibration sample is another text of the same model.
    const bench::workload_request request = {
        .text = "drift:3", .shape = small, .prompt_tokens = 5, .tokens = 10};
    const auto sample = bench::make_calibration_sample(request);
    const auto text = bench::make_workload(request);
    std::vector<float> a(16), b(16);
    sample->rows(0, 0, 7, 1, {.k = a});
    text->rows(0, 0, 7, 1, {.k = b});
    CHECK(a != b);
    CHECK(sample->shape() == text->shape());
}

TEST_CASE("every knob of the generator has a place of its own, and turns its text") {
    bench::drift_config config;
    std::vector<std::pair<std::string, const double*>> knobs;
    config.knobs([&](const char* name, double& value, double least, double most) {
        CAPTURE(name);
        CHECK(value >= least);
        CHECK(value <= most);
        for (const auto& [other, at] : knobs) {
            CHECK(other != name);
            CHECK(at != &value);
        }
        knobs.emplace_back(name, &value);
    });
    CHECK(knobs.size() == 13);
    const auto numbers = [](const std::string& text) {
        constexpr std::size_t tokens = 400;
        const auto w = bench::make_workload(
            {.text = text, .shape = small, .prompt_tokens = 5, .tokens = tokens, .rope_base = 50});
        std::vector<float> q(tokens * w->query_floats()), k(tokens * w->key_floats()), guess(q.size());
        w->rows(0, 0, 0, tokens, {.q = q, .k = k, .prediction = guess});
        q.insert(q.end(), k.begin(), k.end());
        q.insert(q.end(), guess.begin(), guess.end());
        return q;
    };
    const auto plain = numbers("drift:3");
    for (const auto& knob : knobs) {
        const std::string& name = knob.first;
        CAPTURE(name);
        char usual[64];
        std::snprintf(usual, sizeof usual, "drift:3,%s=%.17g", name.c_str(), *knob.second);
        CHECK(numbers(usual) == plain);
        const double other = name == "burst" || name == "dwell" ? 9 : name == "wander_tokens" ? 50 : .77;
        CHECK(numbers("drift:3," + name + "=" + std::to_string(other)) != plain);
    }
    // Bases are fitted to a sample of the same text.
    const auto sample = [](const std::string& text) {
        std::vector<float> row(16);
        bench::make_calibration_sample({.text = text, .shape = small, .prompt_tokens = 5, .tokens = 10})
            ->rows(0, 0, 700, 1, {.k = row});
        return row;
    };
    CHECK(sample("drift:3") != sample("drift:3,wander_tokens=50"));
    // What is made up for a policy is of the same model.
    CHECK(bench::seed_of("drift:3") == bench::seed_of("drift:3,dwell=9"));
    CHECK(bench::seed_of("drift:3") != bench::seed_of("drift:4"));
    CHECK(bench::seed_of("trace:a,b") != bench::seed_of("trace:a,c"));
}

TEST_CASE("a text may turn the generator's knobs, each by itself") {
    const auto cosine = [](const std::string& text) { // of a query and its prediction
        const auto w = bench::make_workload(
            {.text = text, .shape = small, .prompt_tokens = 5, .tokens = 10, .rope_base = 50});
        std::vector<float> q(w->query_floats()), guess(w->query_floats());
        w->rows(0, 1, 7, 1, {.q = q, .prediction = guess});
        const auto dot = [](const std::vector<float>& a, const std::vector<float>& b) {
            return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
        };
        return dot(q, guess) / std::sqrt(dot(q, q) * dot(guess, guess));
    };
    CHECK(cosine("drift:3,prediction=1") == doctest::Approx(1).epsilon(1e-4));
    CHECK(cosine("drift:3") < .95);
    CHECK(cosine("drift:3,dwell=9") < .95);
}

TEST_CASE("bases fitted to a sample are those of its shape") {
    const kvtl_test::scratch_folder folder;
    const std::string path = folder.file("drift.cal");
    const kvtl::shape shape = {.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 16};
    const bench::workload_request request = {
        .text = "drift:3", .shape = shape, .prompt_tokens = 5, .tokens = 10};
    const auto sample = bench::make_calibration_sample(request);
    const kvtl::status fitted = bench::fit_calibration(shape, *sample, path);
    REQUIRE_MESSAGE(fitted.ok(), fitted.what());
    kvtl::calibration_request wanted;
    wanted.kinds = kvtl::kind_bit(kvtl::calibration_kind::joint_adapter) |
                   kvtl::kind_bit(kvtl::calibration_kind::pca_basis) |
                   kvtl::kind_bit(kvtl::calibration_kind::skew_basis);
    const auto file = kvtl::calibration_file::open(path, shape, wanted);
    REQUIRE_MESSAGE(file.ok(), (file.ok() ? "" : file.error().message));
    auto other = shape;
    other.layers = 3;
    CHECK_FALSE(kvtl::calibration_file::open(path, other, wanted).ok());
    CHECK_FALSE(bench::fit_calibration(shape, *sample, "no/such/folder/x.cal").ok());
}

TEST_CASE("pairs of channels are those that the sample's keys were turned in") {
    const kvtl_test::scratch_folder folder;
    const auto pair_distance = [&](bench::workload& sample) {
        const std::string path = folder.file("pairs.cal");
        const kvtl::status fitted = bench::fit_calibration(small, sample, path);
        REQUIRE_MESSAGE(fitted.ok(), fitted.what());
        return kvtl::calibration::load(path, small)->view().pair_distance();
    };
    CHECK(pair_distance(*bench::make_calibration_sample({.text = "drift:3", .shape = small})) == 1);
    const auto waves = [](std::size_t t, float* out) {
        for (std::size_t i = 0; i < 16; ++i) out[i] = std::sin(static_cast<float>(t * (i + 3)));
    };
    made halves(waves, waves);
    CHECK(pair_distance(halves) == 8);
}

TEST_CASE("bases of entries are those of keys before the rotation that the sample has") {
    const kvtl_test::scratch_folder folder;
    const kvtl::shape shape = {.layers = 1, .query_heads = 4, .kv_heads = 2, .head_dim = 16};
    constexpr std::size_t tokens = 400;
    constexpr std::uint32_t width = 32, few = 8;
    const bench::workload_request request = {
        .text = "drift:3", .shape = shape, .prompt_tokens = tokens, .tokens = tokens, .rope_base = 50};
    const auto sample = bench::make_calibration_sample(request);
    const bench::rotation own = bench::rope(shape.head_dim, 50, sample->neighbours());
    std::vector<float> keys(tokens * width), back(keys.size()),
        tables(kvtl::position_table::bytes(8, tokens) / sizeof(float));
    sample->rows(0, 0, 0, tokens, {.k = back, .k_pre = keys});
    const kvtl::position_table turns(std::as_writable_bytes(std::span(tables)), own.frequencies, tokens,
                                     own.neighbours);
    double apart = 0;
    for (std::size_t i = 0; i < keys.size(); i += shape.head_dim) {
        turns.turn_back(&back[i], static_cast<std::uint32_t>(i / width));
        apart = std::max(apart, oracle::l2sq(&back[i], &keys[i], shape.head_dim));
    }
    CHECK(apart < 1e-8);
    const auto kept = [&](const bench::rotation& turned) { // energy of the keys in the first directions
        const std::string path = folder.file("entries.cal");
        const kvtl::status fitted = bench::fit_calibration(shape, *sample, path, &turned);
        REQUIRE_MESSAGE(fitted.ok(), fitted.what());
        const auto file = kvtl::calibration::load(path, shape);
        REQUIRE(file.ok());
        CHECK(file->view().pre_rope(kvtl::calibration_kind::joint_keys));
        const auto basis = file->view().basis(kvtl::calibration_kind::joint_keys, 0, 0);
        double sum = 0;
        for (std::size_t t = 0; t < tokens; ++t)
            for (std::uint32_t j = 0; j < few; ++j)
                sum += std::pow(oracle::dot(&keys[t * width], basis.row(j), width), 2);
        return sum;
    };
    const double right = kept(own);
    CHECK(right > 1.02 * kept(bench::rope(shape.head_dim, 1e6, false)));
    CHECK(right > 1.02 * kept(bench::rope(shape.head_dim, 50, false)));
}

TEST_CASE("the generator is near the trace that it was calibrated on") {
    // What a trace of tiny-2k showed (673 tokens of the project's prose, 1,300 generated at temperature 0.8).
    const std::map<std::string, double> recorded = {
        {"recent_mass", 0.6455},    {"top_mass", 0.7911},        {"entropy", 0.4490},
        {"step_overlap", 0.4541},   {"key_norm_spread", 0.1007}, {"energy_half", 0.8875},
        {"energy_quarter", 0.7388}, {"variance_ratio", 2.981},   {"prediction_cosine", 0.7211}};
    const auto report = bench::report_workload({.trace = "", .seed = 1, .tokens = 1973});
    std::size_t seen = 0;
    for (const auto& line : report["statistics"]) {
        const auto found = recorded.find(line["name"].get<std::string>());
        if (found == recorded.end()) continue;
        ++seen;
        CHECK_MESSAGE(line["drift"].get<double>() == doctest::Approx(found->second).epsilon(0.25),
                      found->first);
    }
    CHECK(seen == recorded.size());
}
