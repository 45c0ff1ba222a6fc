// A cache that fails in any layer, in a prompt, a step or a draft: the conversation is where it was, or closed and says
// so, and what comes next is right.
// SPDX-License-Identifier: MIT
#include <kvtl/io/faulty.hpp>
#include <kvtl/io/in_memory.hpp>
#include <kvtl/presets/dynakv.hpp>

#include "hook_fixture.hpp"
#include "kvtl_llama_static.hpp"
#include "support/scratch_folder.hpp"
#include "tiny_models.hpp"

#include <optional>
#include <set>

using namespace hook;

namespace {

/// A cache that passes on what it is given, and fails when told: before or after the one below has taken the tokens.
class failing_cache final : public engine::kv_cache {
  public:
    struct switches {
        int layer = -1;     ///< that fails; -1: none
        bool after = false; ///< the cache below has taken the tokens by then
        unsigned shard = 0;
        std::vector<kvtl::part_kind> kinds{}; ///< of the last batch
    };
    failing_cache(std::unique_ptr<engine::kv_cache> inner, std::shared_ptr<switches> s)
        : inner_(std::move(inner)), switches_(std::move(s)) {}

    kvtl::result<kvtl::sequence_id> begin() override { return inner_->begin(); }
    kvtl::status prefill(kvtl::sequence_id seq, std::uint32_t layer, const kvtl::layer_input& in,
                         std::span<float> out, unsigned shard) noexcept override {
        return inner_->prefill(seq, layer, in, out, shard);
    }
    kvtl::status attend(kvtl::sequence_id seq, std::uint32_t layer, const kvtl::layer_input& in,
                        std::span<float> out, unsigned shard) noexcept override {
        return inner_->attend(seq, layer, in, out, shard);
    }
    kvtl::status forward(std::span<const kvtl::batch_part> parts, std::uint32_t layer,
                         const kvtl::layer_input& in, std::span<float> out,
                         unsigned shard) noexcept override {
        if (layer == 0 && shard == 0) {
            switches_->kinds.clear();
            for (const kvtl::batch_part& p : parts) switches_->kinds.push_back(p.kind);
        }
        const bool fail = static_cast<int>(layer) == switches_->layer && shard == switches_->shard;
        const auto failure = kvtl::status::failure(kvtl::errc::io_error, "the disk is gone");
        if (fail && !switches_->after) return failure;
        const auto done = inner_->forward(parts, layer, in, out, shard);
        return fail ? failure : done;
    }
    kvtl::status prefetch(kvtl::sequence_id, std::uint32_t, std::span<const float>,
                          unsigned) noexcept override {
        return {};
    }
    kvtl::status rewind(kvtl::sequence_id seq, std::size_t n) noexcept override {
        return inner_->rewind(seq, n);
    }
    kvtl::status rewind_to(kvtl::sequence_id seq, std::size_t n) noexcept override {
        return inner_->rewind_to(seq, n);
    }
    kvtl::status end(kvtl::sequence_id seq) noexcept override { return inner_->end(seq); }
    [[nodiscard]] engine::cache_stats stats() const override { return inner_->stats(); }
    [[nodiscard]] unsigned shards() const noexcept override { return inner_->shards(); }

  private:
    std::unique_ptr<engine::kv_cache> inner_;
    std::shared_ptr<switches> switches_;
};

/// The pieces fail; then each sequence has what it had or nothing, and says which; then they go well.
void fail_then_feed(side_by_side& s, const std::vector<piece>& pieces, const std::function<void()>& mend,
                    int& ended) {
    std::vector<llama_pos> had;
    for (const piece& p : pieces) had.push_back(s.attached->held(p.seq));
    const auto failed = s.decode(pieces);
    mend();
    REQUIRE_FALSE(failed.ok());
    const std::string text = failed.what();
    CAPTURE(text);
    CHECK(text.find("layer ") != std::string::npos);
    bool some_ended = false;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        const llama_seq_id seq = pieces[i].seq;
        if (s.attached->held(seq) == had[i]) continue;
        CHECK(s.attached->held(seq) == 0);
        some_ended = true;
        const tokens text_so_far = s.texts[static_cast<std::size_t>(seq)];
        s.rewind_plain(seq, 0);
        s.prompt(seq, text_so_far); // once more from the beginning
        ++ended;
    }
    CHECK((text.find("; ended: sequence") != std::string::npos) == some_ended);
    CHECK((text.find("; all sequences hold the tokens they held") != std::string::npos) == !some_ended);
    s.feed(pieces);
}

/// A preset behind a failing_cache.
side_by_side::maker failing(const engine::cache_options& options,
                            const std::shared_ptr<failing_cache::switches>& fault) {
    return [=](llama_context_params& p, llama_model* m, const kvtl_llama::settings& s) {
        return kvtl_llama::attachment::attach(
            p, m, s,
            [=](const kvtl_llama::model_facts& f) -> kvtl::result<std::unique_ptr<engine::kv_cache>> {
                auto o = options;
                o.shape = f.shape;
                o.max_tokens = s.max_tokens;
                o.max_sequences = s.max_sequences;
                o.shards = 2;
                o.attention = {.scale = f.scale, .softcap = f.softcap, .windows = f.windows};
                auto opened = engine::open_cache(o);
                if (!opened) return opened.error();
                return std::unique_ptr<engine::kv_cache>(
                    std::make_unique<failing_cache>(*std::move(opened), fault));
            });
    };
}

} // namespace

TEST_CASE("every layer fails once: prompts, further turns, steps, drafts, batches") {
    for (const std::string policy : {"full", "dynakv"})
        for (const bool after : {false, true}) {
            CAPTURE(policy);
            CAPTURE(after);
            const auto fault = std::make_shared<failing_cache::switches>();
            side_by_side s(embedded(), settings_for(2), failing(everything(policy), fault));
            int ended = 0;
            const auto mend = [&] { fault->layer = -1; };
            for (int layer = 0; layer < 6; ++layer) {
                // Each layer fails in one shard before the tokens are taken, and in the other one after it.
                const unsigned shard = (static_cast<unsigned>(layer) + after) % 2;
                CAPTURE(layer);
                CAPTURE(shard);
                const auto feed = [&](const std::vector<piece>& pieces) {
                    *fault = {layer, after, shard};
                    fail_then_feed(s, pieces, mend, ended);
                };
                const tokens text = prose(embedded(), 200, 1000 * static_cast<std::size_t>(layer));
                const auto part = [&](std::ptrdiff_t first, std::ptrdiff_t end) {
                    return tokens(text.begin() + first, text.begin() + end);
                };
                feed({{0, part(0, 80), wish::none}});
                feed({{0, part(80, 120), wish::none}});
                feed({{0, part(120, 130)}});
                feed({{0, {300}}});
                feed({{0, {301, 302, 303}, wish::all}});
                feed({{0, {304}}, {1, part(130, 150)}});
                feed({{0, part(150, 160)}, {1, {305}}});
                feed({{1, {306}}, {0, {307}}});
                s.end(1);
                feed({{1, part(0, 80), wish::none}});
                feed({{1, part(80, 160)}}); // more than a window: layers that have it all cannot give it up
                s.end(0);
                s.end(1);
            }
            CHECK(s.wrong == 0);
            MESSAGE(policy << std::string(after ? ", after the tokens were taken: " : ": ") << ended << " of "
                           << 6 * 12 << " had to be ended");
        }
}

TEST_CASE("a turn that was taken back has not begun: one token is a step again") {
    using kinds = std::vector<kvtl::part_kind>;
    const auto seen = std::make_shared<failing_cache::switches>();
    side_by_side s(embedded(), settings_for(), failing(everything("full"), seen));
    const tokens text = prose(embedded(), 200);
    const auto part = [&](std::ptrdiff_t first, std::ptrdiff_t end) {
        return tokens(text.begin() + first, text.begin() + end);
    };
    const auto back = [&](llama_pos to) {
        const auto done = s.rewind(0, to);
        CHECK_MESSAGE(done.ok(), done.what());
    };
    const auto feed = [&](const tokens& ids, wish wants, kvtl::part_kind kind) {
        s.feed({{0, ids, wants}});
        CHECK(seen->kinds == kinds{kind});
    };
    using enum kvtl::part_kind;
    feed(part(0, 50), wish::none, prompt);
    back(20); // within the prompt, which stays open
    feed(part(20, 21), wish::last, last_of_prompt);
    feed({300}, wish::last, decode);
    for (const llama_pos to : {22, 21}) { // what was held when the turn began, and less
        feed(part(22, 40), wish::none, prompt);
        feed(part(40, 60), wish::none, prompt);
        back(to);
        feed({301}, wish::last, decode);
        if (to == 22) back(22);
    }
    feed(part(22, 40), wish::none, prompt);
    feed(part(40, 60), wish::none, prompt);
    back(45); // within the turn
    feed({302}, wish::last, last_of_prompt);
    // A chunk that fails leaves the turn as it was, open or not begun.
    seen->layer = 3;
    CHECK_FALSE(s.decode({{0, part(60, 80), wish::none}}).ok());
    seen->layer = -1;
    feed({303}, wish::last, decode);
    feed(part(60, 80), wish::none, prompt);
    seen->layer = 3;
    CHECK_FALSE(s.decode({{0, part(80, 90), wish::none}}).ok());
    seen->layer = -1;
    feed({304}, wish::last, last_of_prompt);
    CHECK(s.wrong == 0);
}

namespace {

/// Prompt and steps of an attachment of its own, by greedy choice: what evicts has tokens of its own.
struct evicting {
    explicit evicting(const std::shared_ptr<failing_cache::switches>& fault)
        : batch(llama_batch_init(cells, 0, 1)) {
        auto o = everything("snapkv_group");
        o.attend_tokens = o.keep_tokens = 64;
        auto params = llama_context_default_params();
        auto made = failing(o, fault)(params, embedded(), settings_for());
        if (!made) FAIL(made.error().message);
        attached.emplace(*std::move(made));
        context.reset(llama_init_from_model(embedded(), params));
        const auto started = attached->start(context.get());
        if (!started) FAIL(attached->why_not());
    }
    evicting(const evicting&) = delete;
    evicting& operator=(const evicting&) = delete;
    ~evicting() { llama_batch_free(batch); }

    kvtl::status feed(const tokens& ids, bool last) {
        batch.n_tokens = static_cast<std::int32_t>(ids.size());
        for (std::size_t i = 0; i < ids.size(); ++i) {
            batch.token[i] = ids[i];
            batch.pos[i] = attached->held(0) + static_cast<llama_pos>(i);
            batch.n_seq_id[i] = 1, batch.seq_id[i][0] = 0;
            batch.logits[i] = last && i + 1 == ids.size() ? 1 : 0;
        }
        return attached->decode(batch);
    }
    llama_token choice() {
        const float* logits = llama_get_logits_ith(context.get(), -1);
        REQUIRE(logits != nullptr);
        const int n = llama_vocab_n_tokens(llama_model_get_vocab(embedded()));
        return static_cast<llama_token>(std::max_element(logits, logits + n) - logits);
    }
    /// n greedy tokens after a prompt's end.
    tokens steps(int n) {
        tokens said{choice()};
        while (static_cast<int>(said.size()) < n) {
            const auto done = feed({said.back()}, true);
            if (!done) FAIL(done.what());
            said.push_back(choice());
        }
        return said;
    }

    std::optional<kvtl_llama::attachment> attached;
    context_ptr context;
    llama_batch batch;
};

} // namespace

TEST_CASE("a preset that evicts: the prompt's last chunk fails, and nothing is half evicted") {
    const tokens text = prose(embedded(), 240);
    const tokens first(text.begin(), text.begin() + 150), second(text.begin() + 150, text.end());
    const auto fault = std::make_shared<failing_cache::switches>();
    evicting undisturbed(fault);
    REQUIRE(undisturbed.feed(first, false).ok());
    REQUIRE(undisturbed.feed(second, true).ok());
    const tokens want = undisturbed.steps(12);
    int ended = 0;
    for (const bool after : {false, true})
        for (const int layer : {0, 3, 5})
            for (const unsigned shard : {0U, 1U}) {
                CAPTURE(after);
                CAPTURE(layer);
                CAPTURE(shard);
                evicting e(fault);
                REQUIRE(e.feed(first, false).ok());
                *fault = {layer, after, shard};
                const auto failed = e.feed(second, true);
                *fault = {};
                REQUIRE_FALSE(failed.ok());
                const std::string told = failed.what();
                CAPTURE(told);
                if (e.attached->held(0) == 0) {
                    CHECK(told.find("; ended: sequence 0") != std::string::npos);
                    REQUIRE(e.feed(first, false).ok());
                    ++ended;
                } else {
                    CHECK(e.attached->held(0) == static_cast<llama_pos>(first.size()));
                }
                REQUIRE(e.feed(second, true).ok());
                CHECK(e.steps(12) == want);
            }
    MESSAGE(ended << " of 12 were ended");
}

TEST_CASE("sliding layers go back with the others; a hybrid model's sequence is ended") {
    const kvtl_test::scratch_folder folder;
    for (const std::string architecture : {"gemma3", "gpt-oss", "lfm2"}) {
        CAPTURE(architecture);
        const std::string path = folder.file("model.gguf");
        REQUIRE(tiny_models::write(path, {.architecture = architecture}));
        const model_ptr model = load(path);
        const auto fault = std::make_shared<failing_cache::switches>();
        side_by_side s(model.get(), settings_for(), failing(everything("dynakv"), fault));
        const auto mend = [&] { fault->layer = -1; };
        const int layers = static_cast<int>(s.attached->facts().layers.size());
        int ended = 0, failed = 0;
        tokens ids(90);
        for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<llama_token>(261 + i * i * 7 % 251);
        for (int layer = 0; layer < layers; ++layer)
            for (const bool after : {false, true}) {
                const auto feed = [&](const std::vector<piece>& pieces) {
                    *fault = {layer, after, 1};
                    fail_then_feed(s, pieces, mend, ended);
                    ++failed;
                };
                s.prompt(0, ids);
                feed({{0, {300}}});
                feed({{0, {301, 302, 303}, wish::all}});
                feed({{0, {304}}});
                s.end(0);
            }
        CHECK(ended == (architecture == "lfm2" ? failed : 0));
        CHECK(s.wrong == 0);
    }
}

namespace {

struct on_faulty : kvtl::presets::dynakv {
    using io = kvtl::faulty<kvtl::in_memory>;
};
using faulty_cache = kvtl::kv_manager<on_faulty>;

/// All attended; too little memory for all of it, so that steps read.
side_by_side::maker on_device(const std::shared_ptr<kvtl::io_faults>& faults) {
    return [=](llama_context_params& p, llama_model* m, const kvtl_llama::settings& s) {
        faulty_cache::config c;
        c.attend_tokens = max_tokens;
        c.io.faults = faults;
        auto sized = c;
        sized.shape = {6, 4, 2, 64};
        sized.max_tokens = s.max_tokens;
        sized.max_sequences = s.max_sequences;
        const auto least = faulty_cache::least_memory(sized);
        REQUIRE(least.ok());
        c.memory_bytes = *least + 4096 * 16;
        return kvtl_llama::attach<faulty_cache>(p, m, s, c);
    };
}

} // namespace

TEST_CASE("a static cache on a device that fails each of its reads and writes") {
    const auto faults = std::make_shared<kvtl::io_faults>();
    side_by_side s(embedded(), settings_for(), on_device(faults));
    const tokens text = prose(embedded(), 400);
    const auto prompt = [&] {
        s.prompt(0, text);
        return s.steps(0, 300, 2);
    };
    llama_token next = prompt();
    int failures = 0, ended = 0;
    std::set<std::string> layers;
    // Steps whose n-th read fails, until n is beyond what a step reads.
    for (std::uint64_t n = 0;; ++n) {
        const auto before = faults->reads.load();
        faults->fail_read.first = before + n;
        const auto had = s.attached->held(0);
        const auto step = s.decode({{0, {next}}});
        faults->fail_read.first = kvtl::io_faults::never;
        if (step.ok()) {
            next = s.follow({{0, {next}}}).front();
            if (faults->reads - before <= n) break;
            continue; // the cache could do without
        }
        ++failures;
        layers.insert(std::string(step.what()).substr(0, 7));
        if (s.attached->held(0) != had) {
            CHECK(s.attached->held(0) == 0);
            ++ended;
            const tokens so_far = s.texts[0];
            s.rewind_plain(0, 0);
            s.prompt(0, so_far);
        }
        next = s.feed({{0, {next}}}).front();
    }
    CHECK(layers.size() == 6);
    CHECK(failures > 6);
    MESSAGE(failures << " reads failed, " << ended << " times the sequence was ended");

    // The prompt's end writes: each of these fails once, for good as long as the call lasts.
    s.end(0);
    const auto start = faults->writes.load();
    s.prompt(0, text);
    const auto writes = faults->writes.load() - start;
    CHECK(writes > 6);
    failures = 0;
    for (std::uint64_t n = 0; n < writes; n += 1 + writes / 12) {
        CAPTURE(n);
        s.end(0);
        faults->fail_write.first = faults->writes + n;
        faults->fail_write.count = 1000000;
        std::size_t fed = 0;
        kvtl::status went;
        for (; fed < text.size() && went.ok();) {
            const auto from = text.begin() + static_cast<std::ptrdiff_t>(fed);
            const tokens some(
                from, from + static_cast<std::ptrdiff_t>(std::min<std::size_t>(250, text.size() - fed)));
            const std::vector<piece> pieces{
                {0, some, fed + some.size() == text.size() ? wish::last : wish::none}};
            const auto had = s.attached->held(0);
            went = s.decode(pieces);
            if (went.ok()) {
                s.follow(pieces);
                fed += some.size();
                continue;
            }
            ++failures;
            faults->fail_write.first = kvtl::io_faults::never;
            if (s.attached->held(0) != had) {
                CHECK(s.attached->held(0) == 0);
                s.rewind_plain(0, 0);
                fed = 0;
            }
            went = {};
        }
        faults->fail_write.first = kvtl::io_faults::never;
        s.steps(0, 300, 2);
    }
    CHECK(s.wrong == 0);
    MESSAGE(failures << " prompts failed to write");
    s.report("faulty device");
}
