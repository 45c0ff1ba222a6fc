// A prompt of more than a thousand tokens in 256 cells gives the tokens of llama.cpp with cells for all of it: steps,
// drafts, further turns, rewinds.
// SPDX-License-Identifier: MIT
#include "hook_fixture.hpp"
#include "support/scratch_folder.hpp"
#include "tiny_models.hpp"

using namespace hook;

TEST_CASE("the embedded model: full and dynakv with everything attended") {
    for (const std::string policy : {"full", "dynakv"})
        for (const unsigned threads : {1U, 2U}) {
            CAPTURE(policy);
            CAPTURE(threads);
            side_by_side s(embedded(), settings_for(1, threads), side_by_side::by_name(everything(policy)));
            CHECK(llama_n_ctx(s.context.get()) == cells);
            CHECK(s.attached->facts().layers.size() == 6);
            CHECK(s.attached->facts().shape == kvtl::shape{6, 4, 2, 64});
            CHECK(s.attached->facts().rope_frequencies.size() == 32);
            CHECK(s.attached->facts().rope_neighbours);
            CHECK_FALSE(s.attached->facts().hybrid);
            // Threads of llama.cpp spin while they wait, so that two of them are slow where other tests run.
            s.steps(0, s.prompt(0, prose(embedded(), threads == 1 ? 1100 : 300)), threads == 1 ? 40 : 4);
            CHECK(s.attached->held(0) == static_cast<llama_pos>(s.texts[0].size()));
            CHECK(s.wrong == 0);
            CHECK(s.worst < 0.2F);
            s.report(policy);
        }
}

TEST_CASE("layers that have memory in turn are told when llama.cpp comes to their query") {
    for (const unsigned threads : {1U, 2U}) {
        CAPTURE(threads);
        side_by_side s(embedded(), settings_for(1, threads),
                       side_by_side::by_name(everything("dynakv_virtualised")));
        const llama_token next = s.prompt(0, prose(embedded(), threads == 1 ? 1100 : 300));
        const auto before = s.attached->stats().detail;
        s.steps(0, next, threads == 1 ? 10 : 4);
        const auto after = s.attached->stats().detail;
        CHECK(after.unannounced_layers == before.unannounced_layers);
        CHECK(after.hot_set_reads > before.hot_set_reads);
        CHECK(s.wrong == 0);
        s.report("dynakv_virtualised");
    }
}

TEST_CASE("turns, drafts and rewinds go where llama.cpp goes") {
    for (const std::string policy : {"full", "dynakv"}) {
        CAPTURE(policy);
        side_by_side s(embedded(), settings_for(), side_by_side::by_name(everything(policy)));
        llama_token next = s.steps(0, s.prompt(0, prose(embedded(), 300)), 5);
        // A draft of four of which two are taken.
        const tokens guess = prose(embedded(), 5, 3000);
        s.feed({{0, {next, guess[1], guess[2], guess[3]}, wish::all}});
        const auto two = static_cast<llama_pos>(s.texts[0].size()) - 2;
        const auto back = s.rewind(0, two);
        CHECK_MESSAGE(back.ok(), back.what());
        CHECK(s.attached->held(0) == two);
        next = s.steps(0, 300, 6);
        // A further turn, in one batch and in three.
        next = s.steps(0, s.prompt(0, prose(embedded(), 100, 5000)), 3);
        next = s.steps(0, s.prompt(0, prose(embedded(), 100, 7000), 40), 3);
        // Steps back, and others in their place.
        const auto ten = s.rewind(0, s.attached->held(0) - 3);
        CHECK_MESSAGE(ten.ok(), ten.what());
        s.steps(0, 77, 12);
        // From the beginning.
        s.end(0);
        CHECK(s.attached->held(0) == 0);
        s.steps(0, s.prompt(0, prose(embedded(), 520, 9000), 130), 5);
        CHECK(s.wrong == 0);
        s.report(policy);
    }
}

TEST_CASE("keys of layers that slide may be rotated otherwise") {
    const kvtl_test::scratch_folder folder;
    const std::string path = folder.file("model.gguf");
    // Sliding layers have base 10,000 where the file says nothing of them.
    REQUIRE(tiny_models::write(path, {.architecture = "gemma3", .rope_base = 1e6F}));
    const model_ptr model = load(path);
    side_by_side s(model.get(), settings_for(), side_by_side::by_name(everything("dynakv")));
    const auto& f = s.attached->facts();
    CHECK(f.windows == std::vector<std::uint32_t>{24, 24, 0, 24});
    REQUIRE(f.rope_frequencies.size() == 16);
    CHECK(f.rope_frequencies[0] == doctest::Approx(1));
    CHECK(f.rope_frequencies[8] == doctest::Approx(1e-3));
    CHECK_FALSE(f.rope_neighbours);
}

TEST_CASE("architectures that attend otherwise: windows, caps, sinks, scales") {
    const kvtl_test::scratch_folder folder;
    for (const auto& architecture : tiny_models::runnable())
        for (const auto& [type, policy] :
             {std::pair(GGML_TYPE_F16, "full"), std::pair(GGML_TYPE_F16, "dynakv"),
              std::pair(GGML_TYPE_Q8_0, "full"), std::pair(GGML_TYPE_Q4_K, "dynakv")}) {
            const std::string run = architecture + " " + ggml_type_name(type) + " " + policy;
            CAPTURE(run);
            const std::string path = folder.file("model.gguf");
            REQUIRE(tiny_models::write(path, {.architecture = architecture, .type = type}));
            const model_ptr model = load(path);
            side_by_side s(model.get(), settings_for(), side_by_side::by_name(everything(policy)));
            s.measure_noise(model.get());
            const auto& f = s.attached->facts();
            const bool gemma = architecture.starts_with("gemma"),
                       sliding = gemma || architecture == "gpt-oss";
            CHECK(f.layers.size() == 4);
            CHECK(f.windows.size() == (sliding ? 4U : 0U));
            if (sliding) {
                CHECK(std::count(f.windows.begin(), f.windows.end(), 24U) >= 2);
                CHECK(std::count(f.windows.begin(), f.windows.end(), 24U) +
                          std::count(f.windows.begin(), f.windows.end(), 0U) ==
                      4);
            }
            CHECK((f.softcap != 0) == (architecture == "gemma2"));
            CHECK(f.sink_logits == (architecture == "gpt-oss"));
            tokens ids(300);
            for (std::size_t i = 0; i < ids.size(); ++i)
                ids[i] = static_cast<llama_token>(261 + i * i * 7 % 251);
            llama_token next = s.steps(0, s.prompt(0, ids, 150), 30);
            s.feed({{0, {next, 300, 301}, wish::all}});
            const auto back = s.rewind(0, s.attached->held(0) - 2);
            CHECK_MESSAGE(back.ok(), back.what());
            s.steps(0, 302, 10);
            // Products with quantised weights round activations to bytes, so that a last bit is amplified: there the
            // measure is how far llama.cpp's two ways of attending differ. (A router of experts may flip: no bound.)
            if (type == GGML_TYPE_F16) CHECK((s.wrong == 0 || s.widest_difference < s.noise));
            if (type == GGML_TYPE_F16 || architecture != "gpt-oss") CHECK(s.worst < 1.5F * s.noise);
            CHECK(s.widest_difference < std::max(4e-2F, s.noise));
            s.report(run);
        }
}
