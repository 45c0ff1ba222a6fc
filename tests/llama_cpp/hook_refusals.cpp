// What cannot work is refused in a sentence that says what to do, and leaves everything as it was.
// SPDX-License-Identifier: MIT
#include "hook_fixture.hpp"
#include "support/scratch_folder.hpp"
#include "tiny_models.hpp"

#include <array>

using namespace hook;

namespace {

bool says(const kvtl::status& s, const std::string& part) {
    const bool found = !s.ok() && std::string(s.what()).find(part) != std::string::npos;
    if (!found) MESSAGE("not \"" << part << "\" but: " << std::string(s.what()));
    return found;
}

kvtl::status attach(const llama_context_params& params, const llama_model* model,
                    const kvtl_llama::settings& s) {
    auto p = params;
    auto made = kvtl_llama::attachment::by_name(p, model, s, everything("full"));
    return made ? kvtl::status{}
                : kvtl::status::failure(made.error().code, "%s", made.error().message.c_str());
}

/// attach() and start().
kvtl::status start(llama_model* model, const kvtl_llama::settings& s, const engine::cache_options& o) {
    auto params = llama_context_default_params();
    auto made = kvtl_llama::attachment::by_name(params, model, s, o);
    if (!made) return kvtl::status::failure(made.error().code, "%s", made.error().message.c_str());
    const context_ptr context(llama_init_from_model(model, params));
    if (!context) return kvtl::status::failure(kvtl::errc::unsupported, "llama.cpp makes no context");
    return made->start(context.get());
}

struct batch {
    explicit batch(int n) : b(llama_batch_init(n, 0, 2)) { b.n_tokens = n; }
    batch(const batch&) = delete;
    batch& operator=(const batch&) = delete;
    ~batch() { llama_batch_free(b); }
    void set(int i, llama_seq_id seq, llama_pos pos, bool logits = false) const {
        b.token[i] = 300, b.pos[i] = pos, b.n_seq_id[i] = 1, b.seq_id[i][0] = seq, b.logits[i] = logits;
    }
    llama_batch b;
};

} // namespace

TEST_CASE("params that cannot work") {
    const auto good = llama_context_default_params();
    const auto s = settings_for();
    CHECK(attach(good, embedded(), s).ok());
    CHECK(says(attach(good, nullptr, s), "the model is null"));

    auto p = good;
    p.type_k = GGML_TYPE_Q8_0;
    CHECK(says(attach(p, embedded(), s), "valid: f16, bf16, f32"));
    p = good;
    p.type_v = GGML_TYPE_Q4_0;
    CHECK(says(attach(p, embedded(), s), "type_v q4_0"));
    p = good;
    p.cb_eval = [](ggml_tensor*, bool, void*) { return false; };
    CHECK(says(attach(p, embedded(), s), "cb_eval is taken"));
    p = good;
    p.embeddings = true;
    CHECK(says(attach(p, embedded(), s), "valid: logits only"));
    p = good;
    p.pooling_type = LLAMA_POOLING_TYPE_MEAN;
    CHECK(says(attach(p, embedded(), s), "valid: logits only"));
    p = good;
    p.attention_type = LLAMA_ATTENTION_TYPE_NON_CAUSAL;
    CHECK(says(attach(p, embedded(), s), "valid: causal"));
    p = good;
    p.ctx_type = LLAMA_CONTEXT_TYPE_MTP;
    CHECK(says(attach(p, embedded(), s), "valid: one of its own"));

    p = good;
    p.n_batch = 0;
    CHECK(says(attach(p, embedded(), {.cells = 0}), "cells is 0"));
    CHECK(says(attach(p, embedded(), {.cells = 1}), "params.n_batch is 0"));
    CHECK(says(attach(good, embedded(), {.max_sequences = 0, .cells = 1}), "max_sequences is 0"));
    CHECK(says(attach(good, embedded(), {.max_sequences = 100000, .cells = 1}), "max_sequences is 100000"));
    CHECK(says(attach(good, embedded(), {.cells = 1, .threads = 0}), "threads is 0"));
    CHECK(says(attach(good, embedded(), {.cells = 1, .poll = 101}), "poll is 101"));
    CHECK(says(attach(good, embedded(), {.max_tokens = std::size_t{1} << 40, .cells = 1}), "max_tokens is"));

    p = good;
    auto none = kvtl_llama::attachment::attach(p, embedded(), s, {});
    CHECK_FALSE(none.ok());
    CHECK((p.cb_eval == nullptr)); // refused params stay as they were
}

TEST_CASE("presets that need what llama.cpp does not give") {
    auto o = everything("full");
    o.policy = "nonsense";
    CHECK(says(start(embedded(), settings_for(), o), "--policy is nonsense"));
    o = everything(
        "kvswap"); // wants a calibration, which can be given, and a predicted query, which need not
    CHECK(says(start(embedded(), settings_for(), o), "--calibration"));
    auto s = settings_for();
    s.engine_inputs = kvtl::engine_input::q | kvtl::engine_input::v;
    CHECK(says(start(embedded(), s, everything("dynakv")), "needs "));
    o = everything("dynakv");
    o.memory_bytes = 1000;
    CHECK(says(start(embedded(), settings_for(), o), "memory_bytes"));
}

TEST_CASE("models that kvtl_llama cannot run, and one that cannot go back") {
    const kvtl_test::scratch_folder folder;
    const auto started = [&](const std::string& architecture, std::size_t length = 1000) {
        const std::string path = folder.file(architecture + ".gguf");
        REQUIRE(tiny_models::write(path, {.architecture = architecture}));
        const model_ptr model = load(path);
        auto s = settings_for();
        s.max_tokens = length;
        return start(model.get(), s, everything("full"));
    };
    CHECK(says(started("mpt"), "ALiBi"));
    CHECK(says(started("deepseek2"), "MLA"));
    CHECK(says(started("phi3", 2000), "valid: max_tokens up to"));
    CHECK(says(started("gemma3n"), "valid: models whose layers"));
    CHECK(says(started("bert"), "(an encoder); valid: decoders"));
}

TEST_CASE("a hybrid model: one sequence per batch, no way back, and llama.cpp's tokens") {
    const kvtl_test::scratch_folder folder;
    const std::string path = folder.file("model.gguf");
    REQUIRE(tiny_models::write(path, {.architecture = "lfm2"}));
    const model_ptr model = load(path);
    side_by_side s(model.get(), settings_for(2), side_by_side::by_name(everything("dynakv")));
    CHECK(s.attached->facts().hybrid);
    tokens ids(600);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<llama_token>(261 + i * i * 7 % 251);
    const llama_token a = s.prompt(0, ids), b = s.prompt(1, tokens(ids.begin() + 100, ids.begin() + 150));
    s.steps(1, s.steps(0, a, 10) * 0 + b, 10);
    CHECK(says(s.decode({{0, {300}}, {1, {300}}}), "valid: one sequence per batch"));
    CHECK(says(s.attached->rewind(0, 100), "recurrent state cannot go back"));
    s.steps(0, 301, 5);
    s.end(0);
    s.prompt(0, tokens(ids.begin(), ids.begin() + 90));
    s.steps(1, 302, 3);
    llama_memory_seq_rm(llama_get_memory(s.context.get()), 1, -1, -1);
    CHECK(says(s.decode({{0, {300}}}), "memory of sequence 1 was changed"));
    CHECK(s.attached->held(1) == 0);
    s.rewind_plain(1, 0);
    s.steps(0, 303, 3);
    s.steps(1, s.prompt(1, ids, 100), 3);
    CHECK(s.wrong == 0);
    s.report("lfm2");
}

TEST_CASE("batches that cannot work leave every sequence where it was") {
    side_by_side s(embedded(), settings_for(2), side_by_side::by_name(everything("full")));
    s.prompt(0, prose(embedded(), 20));
    auto& a = *s.attached;
    const auto refused = [&](const llama_batch& b, const char* part) {
        CHECK(says(a.decode(b), part));
        CHECK(a.held(0) == 20);
        CHECK(a.held(1) == 0);
    };
    batch many(static_cast<int>(cells) + 1);
    for (int i = 0; i <= static_cast<int>(cells); ++i) many.set(i, 0, 20 + i);
    refused(many.b, "valid: 1 to 256, the smaller one of params.n_batch and cells");
    many.b.n_tokens = 0;
    refused(many.b, "the batch has 0 tokens");
    batch one(1);
    one.set(0, 0, 21);
    refused(one.b, "has position 21; valid: 20");
    one.set(0, 0, 19);
    refused(one.b, "has position 19; valid: 20");
    one.set(0, 1, 1);
    refused(one.b, "has position 1; valid: 0");
    one.set(0, 2, 0);
    refused(one.b, "belongs to sequence 2; valid: 0 to 1");
    one.set(0, -1, 0);
    refused(one.b, "belongs to sequence -1");
    one.set(0, 0, 20);
    one.b.n_seq_id[0] = 2;
    one.b.seq_id[0][1] = 1;
    refused(one.b, "belongs to 2 sequences");
    one.set(0, 0, 20);
    one.b.token[0] = 1 << 30;
    refused(one.b, "tokens must be in the vocabulary");
    llama_token id = 300;
    refused(llama_batch_get_one(&id, 1), "batch.pos is null");
    float embedding[1024] = {};
    llama_batch floats = one.b;
    floats.token = nullptr, floats.embd = embedding;
    refused(floats, "valid: token ids");
    batch mixed(3);
    mixed.set(0, 0, 20), mixed.set(1, 1, 0), mixed.set(2, 0, 21);
    refused(mixed.b, "sequence 0 comes twice");

    CHECK(says(a.rewind(0, 21), "valid: 0 to held(0) = 20"));
    CHECK(says(a.rewind(0, -1), "position is -1"));
    CHECK(says(a.rewind(7, 1), "valid: 0 to held(7) = 0"));
    CHECK(says(a.end(2), "valid: 0 to 1"));
    CHECK(a.rewind(0, 20).ok());
    CHECK(a.held(-1) == 0);
    s.steps(0, 300, 3); // all of that has changed nothing
    CHECK(s.wrong == 0);
}

TEST_CASE("a batch is no longer than params.n_batch, cells may be more") {
    for (const auto& of_it : {std::array{64U, 512U, 64U}, {512U, 256U, 256U}, {100U, 0U, 100U}}) {
        const unsigned batches = of_it[0];
        const unsigned cells_of_it = of_it[1];
        const unsigned most = of_it[2];
        CAPTURE(batches);
        auto settings = settings_for();
        settings.cells = cells_of_it;
        side_by_side s(
            embedded(), settings,
            [n = batches](llama_context_params& p, llama_model* m, const kvtl_llama::settings& with) {
                p.n_batch = n;
                return kvtl_llama::attachment::by_name(p, m, with, everything("full"));
            });
        CHECK(llama_n_batch(s.context.get()) == most);
        CHECK(llama_n_ubatch(s.context.get()) == most);
        CHECK(llama_n_ctx(s.context.get()) == std::max(256U, cells_of_it));
        const tokens text = prose(embedded(), most + 1);
        CHECK(says(s.decode({{0, text}}), "valid: 1 to " + std::to_string(most) + ", the smaller one"));
        s.steps(0, s.prompt(0, text, most), 3);
        CHECK(s.wrong == 0);
    }
}

TEST_CASE("shards are as many as threads where nothing is said, up to KV heads") {
    const auto shards = [](unsigned threads, unsigned said) {
        auto o = everything("dynakv");
        o.shards = said;
        const side_by_side s(embedded(), settings_for(1, threads), side_by_side::by_name(o));
        return s.attached->cache().shards();
    };
    CHECK(shards(1, 0) == 1);
    CHECK(shards(2, 0) == 2);
    CHECK(shards(3, 0) == 2);
    CHECK(shards(2, 1) == 1);
    CHECK(shards(1, 2) == 2);
    auto o = everything("dynakv");
    o.shards = 3;
    CHECK(says(start(embedded(), settings_for(), o), "shards is 3"));
}

TEST_CASE("a start that fails can be repeated") {
    auto params = llama_context_default_params();
    int times = 0;
    auto a = kvtl_llama::attachment::attach(
        params, embedded(), settings_for(),
        [&times](const kvtl_llama::model_facts& f) -> kvtl::result<std::unique_ptr<engine::kv_cache>> {
            auto o = everything("full");
            o.shape = f.shape;
            o.max_tokens = max_tokens;
            o.policy = ++times == 1 ? "nonsense" : "full";
            return engine::open_cache(o);
        });
    REQUIRE(a.ok());
    const context_ptr context(llama_init_from_model(embedded(), params));
    CHECK(says(a->start(context.get()), "--policy is nonsense"));
    CHECK(a->why_not().find("--policy is nonsense") != std::string::npos);
    CHECK(a->start(context.get()).ok());
    CHECK(a->why_not().empty());
    batch one(1);
    one.set(0, 0, 0, true);
    CHECK(a->decode(one.b).ok());
}

TEST_CASE("the longest sequence") {
    auto settings = settings_for();
    settings.max_tokens = 30;
    side_by_side s(embedded(), settings, side_by_side::by_name(everything("full")));
    s.steps(0, s.prompt(0, prose(embedded(), 28)), 2);
    CHECK(says(s.decode({{0, {300}}}), "holds 30 tokens and 1 more come; valid: up to max_tokens = 30"));
    CHECK(s.attached->held(0) == 30);
}

TEST_CASE("llama.cpp used around the attachment") {
    side_by_side s(embedded(), settings_for(), side_by_side::by_name(everything("full")));
    llama_token next = s.prompt(0, prose(embedded(), 20));
    batch one(1);
    one.set(0, 0, 20);
    REQUIRE(llama_decode(s.context.get(), one.b) == 0);
    CHECK(says(s.decode({{0, {next}}}), "llama_decode was called on the context around the attachment"));
    next = s.steps(0, next, 3); // said once, forgotten, and on it goes

    // A state that is loaded fills cells.
    std::vector<std::uint8_t> state(llama_state_get_size(s.plain[0].get()));
    state.resize(llama_state_get_data(s.plain[0].get(), state.data(), state.size()));
    REQUIRE(llama_state_set_data(s.context.get(), state.data(), state.size()) > 0);
    CHECK(says(s.decode({{0, {next}}}), "memory of sequence 0 was changed around the attachment"));
    s.steps(0, next, 3);

    // Moving llama.cpp's memory back does not move kvtl's.
    llama_memory_seq_rm(llama_get_memory(s.context.get()), 0, 10, -1);
    one.set(0, 0, 10);
    CHECK(says(s.attached->decode(one.b), "rewind() gives up some"));
    CHECK(s.wrong == 0);
}

TEST_CASE("a context of other params, calls before start, a user who aborts") {
    auto params = llama_context_default_params();
    bool stop = false;
    params.abort_callback = [](void* data) { return *static_cast<bool*>(data); };
    params.abort_callback_data = &stop;
    const auto other = params;
    auto a = kvtl_llama::attachment::by_name(params, embedded(), settings_for(), everything("full"));
    REQUIRE(a.ok());
    batch one(1);
    one.set(0, 0, 0, true);
    CHECK(says(a->decode(one.b), "start() has not succeeded"));
    CHECK(says(a->rewind(0, 0), "start() has not succeeded"));
    CHECK(says(a->end(0), "start() has not succeeded"));
    CHECK(says(a->start(nullptr), "not made from the model and the params"));
    {
        auto p = other;
        p.n_ctx = p.n_batch = p.n_ubatch = cells;
        const context_ptr stranger(llama_init_from_model(embedded(), p));
        CHECK(says(a->start(stranger.get()), "the context does not call back"));
    }
    const context_ptr context(llama_init_from_model(embedded(), params));
    REQUIRE(a->start(context.get()).ok());
    CHECK(says(a->start(context.get()), "started already"));
    CHECK(a->decode(one.b).ok());
    stop = true;
    one.set(0, 0, 1, true);
    CHECK(says(a->decode(one.b), "abort callback of the params"));
    CHECK(a->held(0) == 1);
    stop = false;
    CHECK(a->decode(one.b).ok());
    CHECK(a->held(0) == 2);
}
