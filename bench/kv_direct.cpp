// A conversation through caches that keep every entry, inputs of layers, or what eviction leaves: tokens, bytes and time.
//
//   kvtl-kv-direct MODEL.gguf [TURNS]
//
// Turns:  a turn is 60 tokens of prose and 24 greedy tokens. snapkv_group evicts at the end of a prompt, so it reads the
//         whole conversation again in each turn; all others go on in one sequence.
// Rows:   evictors keep as many entries per KV head as have the bytes of one input of M floats, or of M f16 numbers, per token
//         for all layers: what the paper's scheme keeps of each token.
// Prints: bytes of entries after some turns; tokens equal to those of `full`: of its own continuation, and where
//         each token is chosen behind the tokens of `full`; processor time of a step in the last turn (median). Then
//         what the paper's scheme costs without keys and values: a prefill of all tokens for each step.
// SPDX-License-Identifier: MIT
#include <kvtl/presets/kv_direct.hpp>
#include <kvtl/version.hpp>

#include "command_line.hpp"
#include "error.hpp"
#include "made_rows.hpp"
#include "manager_cache.hpp"
#include "model.hpp"
#include "program.hpp"
#include "recomputer.hpp"
#include "tokenizer.hpp"
#include "transformer.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace {

using kvtl_bench::median;
constexpr std::size_t asked = 60, answered = 24;

/// `full` with the rows and records of kv_direct in the same places, so that its results can be compared to the bit.
struct same_places : kvtl::presets::full {
    static constexpr std::string_view name = "same_places";
    static constexpr std::uint32_t window_tokens = kvtl::presets::kv_direct::window_tokens;
};

/// Of the processor: the engine has one thread, and others may use the machine.
double ms_since(std::clock_t start) {
    return 1e3 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}
engine::token_id best(std::span<const float> logits) {
    return static_cast<engine::token_id>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

struct conversation {
    std::vector<engine::token_id> answers; ///< (turns, answered)
    std::vector<float> logits;             ///< of all answers, one behind the other
    std::vector<std::uint64_t> bytes;      ///< (turns) of entries, after each
    std::vector<double> step_ms;           ///< of the last turn
};

class bench {
  public:
    bench(const std::string& path, std::size_t turns)
        : file_(path), model_(file_), words_(file_), turns_(turns), again_(model_, max_tokens()) {
        std::ifstream prose(KVTL_PROSE_FILE);
        prose_ = words_.encode(std::string(std::istreambuf_iterator<char>(prose), {}));
        const std::size_t turn = asked + answered,
                          most = std::min(model_.hyper().context / turn, prose_.size() / asked);
        std::size_t least = 1;
        while (fewest_kept(least * turn) < 40) ++least; // sinks and a window of 32, and some more
        if (turns_ < least || turns_ > most)
            throw engine::bad_input("TURNS is " + std::to_string(turns_) +
                                    "; valid: " + std::to_string(least) + " to " + std::to_string(most));
    }

    void run() {
        const auto& h = model_.hyper();
        const std::size_t entry = 4 * h.shape.layers * h.shape.kv_heads * h.shape.head_dim,
                          all = max_tokens();
        std::printf("%zu turns, %zu tokens, %u layers of %u KV heads of %u, M = %u. Bytes of a token: keys "
                    "and values "
                    "in f16 %zu, inputs of all layers in floats %u and in f16 %u, one input %u and %u.\n\n",
                    turns_, all, h.shape.layers, h.shape.kv_heads, h.shape.head_dim, h.width, entry,
                    h.shape.layers * (4 + 4 * h.width), h.shape.layers * (4 + 2 * h.width), 4 * h.width,
                    2 * h.width);
        std::printf("| cache | entries kept | KiB after turn 1 | 5 | 10 | %zu | equal tokens, own | behind "
                    "full's | step, ms "
                    "|\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
                    turns_);
        full_ = play(*registered("full", 0), false, nullptr);
        print("full", all, full_, full_);
        const auto direct = play(*opened<kvtl::kv_direct>(), false, nullptr);
        print("kv_direct", all, direct, play(*opened<kvtl::kv_direct>(), false, &full_.answers));
        print("kv_direct_f16", all, play(*opened<kvtl::kv_direct_f16>(), false, nullptr),
              play(*opened<kvtl::kv_direct_f16>(), false, &full_.answers));
        for (const std::size_t keep : {all * 4 * h.width / entry, fewest_kept(all)})
            for (const char* policy : {"h2o", "streaming_llm", "snapkv_group", "tova", "window_only"}) {
                const bool anew = std::string_view(policy) == "snapkv_group";
                const auto own = play(*registered(policy, keep), anew, nullptr);
                print(policy, keep, own, play(*registered(policy, keep), anew, &full_.answers));
            }
        const auto places = play(*opened<kvtl::kv_manager<same_places>>(), false, nullptr);
        std::printf("\nLogits of kv_direct and of f16 rows in the same places: %s.\n\n",
                    direct.logits == places.logits ? "equal bits" : "different");
        from_nothing();
    }

  private:
    /// Entries that have the bytes of one input of f16 numbers per token.
    [[nodiscard]] std::size_t fewest_kept(std::size_t tokens) const {
        const auto& h = model_.hyper();
        return tokens * h.width / (std::size_t{2} * h.shape.layers * h.shape.kv_heads * h.shape.head_dim);
    }
    [[nodiscard]] std::size_t max_tokens() const { return turns_ * (asked + answered); }

    [[nodiscard]] std::unique_ptr<engine::kv_cache> registered(const std::string& policy,
                                                               std::size_t keep) const {
        engine::cache_options o;
        o.policy = policy;
        o.shape = model_.hyper().shape;
        o.max_tokens = max_tokens();
        o.memory_bytes = std::size_t{256} << 20;
        o.attend_tokens = max_tokens();
        o.keep_tokens = keep;
        o.io = "memory";
        o.rope_frequencies.assign(model_.rope_frequencies().begin(), model_.rope_frequencies().end());
        o.rope_neighbours = model_.hyper().pairing == engine::rope_pairing::neighbours;
        return engine::insist(engine::open_cache(o));
    }
    template <class Cache> [[nodiscard]] std::unique_ptr<engine::kv_cache> opened() {
        typename Cache::config c;
        c.shape = model_.hyper().shape;
        c.max_tokens = max_tokens();
        c.memory_bytes = std::size_t{256} << 20;
        if constexpr (requires { c.compressor.recompute; })
            c.compressor = {
                .recompute = &engine::recomputer::recompute, .engine = &again_, .width = again_.width()};
        return engine::insist(engine::open_manager<Cache>(c));
    }

    /// anew: each turn begins with the whole conversation as its prompt. told: the answers that are appended, whatever is
    /// chosen; null: those that are chosen.
    [[nodiscard]] conversation play(engine::kv_cache& cache, bool anew,
                                    const std::vector<engine::token_id>* told) {
        engine::transformer run(model_, cache, pool_, max_tokens());
        conversation out;
        std::vector<engine::token_id> history;
        run.begin();
        for (std::size_t turn = 0; turn < turns_; ++turn) {
            const auto question = std::span(prose_).subspan(turn * asked, asked);
            history.insert(history.end(), question.begin(), question.end());
            if (anew && turn > 0) run.begin();
            auto logits = run.prefill(anew ? std::span<const engine::token_id>(history) : question);
            for (std::size_t i = 0; i < answered; ++i) {
                out.logits.insert(out.logits.end(), logits.begin(), logits.end());
                out.answers.push_back(best(logits));
                history.push_back(told == nullptr ? out.answers.back() : (*told)[out.answers.size() - 1]);
                const auto start = std::clock();
                logits = run.step(history.back());
                if (turn + 1 == turns_) out.step_ms.push_back(ms_since(start));
            }
            out.bytes.push_back(cache.stats().detail.kept_bytes);
        }
        return out;
    }
    [[nodiscard]] double equal(const conversation& c) const {
        std::size_t n = 0;
        for (std::size_t i = 0; i < c.answers.size(); ++i) n += c.answers[i] == full_.answers[i] ? 1 : 0;
        return static_cast<double>(n) / static_cast<double>(c.answers.size());
    }
    void print(const char* name, std::size_t keep, const conversation& own,
               const conversation& behind) const {
        std::printf("| `%s` | %zu", name, keep);
        for (const std::size_t turn : {std::size_t{1}, std::size_t{5}, std::size_t{10}, turns_})
            std::printf(" | %.0f", static_cast<double>(own.bytes[std::min(turn, turns_) - 1]) / 1024);
        std::printf(" | %.3f | %.3f | %.2f |\n", equal(own), equal(behind), median(own.step_ms));
    }

    /// No keys or values at all: each token is chosen behind a prefill of all tokens.
    void from_nothing() {
        std::size_t same = 0;
        std::vector<double> ms;
        std::vector<engine::token_id> history;
        for (std::size_t turn = 0; turn < turns_; ++turn) {
            const auto question = std::span(prose_).subspan(turn * asked, asked);
            history.insert(history.end(), question.begin(), question.end());
            auto cache = registered("full", 0);
            engine::transformer run(model_, *cache, pool_, max_tokens());
            run.begin();
            const auto start = std::clock();
            same += best(run.prefill(history)) == full_.answers[turn * answered] ? 1 : 0;
            ms.push_back(ms_since(start));
            const auto answer = std::span(full_.answers).subspan(turn * answered, answered);
            history.insert(history.end(), answer.begin(), answer.end());
        }
        std::printf("From nothing: the first token of %zu of %zu answers is that of full; a step takes %.1f "
                    "ms behind %zu "
                    "tokens and %.1f ms behind %zu.\n",
                    same, turns_, ms[turns_ / 2], turns_ / 2 * (asked + answered) + asked, ms.back(),
                    (turns_ - 1) * (asked + answered) + asked);
    }

    engine::gguf_file file_;
    engine::model model_;
    engine::tokenizer words_;
    std::size_t turns_;
    engine::recomputer again_;
    engine::thread_pool pool_{1};
    std::vector<engine::token_id> prose_;
    conversation full_;
};

} // namespace

int main(int argc, char** argv) {
    return engine::run_program("kvtl-kv-direct", [&] {
        std::string model;
        std::size_t turns = 20;
        CLI::App app("Measures a conversation through kv_direct and five evictors: equal tokens, bytes, time "
                     "of a step.",
                     "kvtl-kv-direct");
        app.set_version_flag("--version", "kvtl-kv-direct " KVTL_VERSION_STRING);
        app.add_option("MODEL", model, "GGUF file")->required();
        app.add_option("TURNS", turns, "of the conversation, 3 or more")
            ->capture_default_str()
            ->check(engine::whole_number);
        if (const auto status = engine::parse_command_line(app, argc, argv)) return *status;
        bench(model, turns).run();
        return 0;
    });
}
