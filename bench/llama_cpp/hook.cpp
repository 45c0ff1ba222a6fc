// SPDX-License-Identifier: MIT
#include "compare.hpp"
#include "error.hpp"
#include "stopwatch.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace llama_bench {

namespace {

/// Keeps nothing and attends nothing: what is left is the hook.
class no_cache final : public engine::kv_cache {
  public:
    kvtl::result<kvtl::sequence_id> begin() override { return kvtl::sequence_id{0, 1}; }
    kvtl::status prefill(kvtl::sequence_id, std::uint32_t, const kvtl::layer_input&, std::span<float>,
                         unsigned) noexcept override {
        return {};
    }
    kvtl::status attend(kvtl::sequence_id, std::uint32_t, const kvtl::layer_input&, std::span<float>,
                        unsigned) noexcept override {
        return {};
    }
    kvtl::status prefetch(kvtl::sequence_id, std::uint32_t, std::span<const float>,
                          unsigned) noexcept override {
        return {};
    }
    kvtl::status rewind(kvtl::sequence_id, std::size_t) noexcept override { return {}; }
    kvtl::status rewind_to(kvtl::sequence_id, std::size_t) noexcept override { return {}; }
    kvtl::status end(kvtl::sequence_id) noexcept override { return {}; }
    [[nodiscard]] engine::cache_stats stats() const override { return {}; }
    [[nodiscard]] unsigned shards() const noexcept override { return 2; }
};

struct context_end {
    void operator()(llama_context* c) const { llama_free(c); }
};

} // namespace

nlohmann::ordered_json hook(const options& o, const speed_options& s) {
    const llama_run::loaded_model model(o.model);
    const std::size_t most = 16 + 2 * (s.steps + 1) * s.rounds;
    const auto alone = open(model, o, plain, most);
    llama_context_params params = llama_context_default_params();
    params.n_batch = params.n_ubatch = o.batch;
    auto attached = kvtl_llama::attachment::attach(
        params, model.get(), {.max_tokens = most, .max_sequences = 1, .cells = o.batch, .threads = o.threads},
        [](const kvtl_llama::model_facts&) -> kvtl::result<std::unique_ptr<engine::kv_cache>> {
            return std::unique_ptr<engine::kv_cache>(std::make_unique<no_cache>());
        });
    if (!attached) throw engine::bad_input(attached.error().message);
    const std::unique_ptr<llama_context, context_end> context(llama_init_from_model(model.get(), params));
    if (!context) throw engine::bad_input("llama.cpp cannot begin with this model");
    if (auto started = attached->start(context.get()); !started) throw engine::bad_input(started.what());

    llama_run::token_batch batch(o.batch);
    std::vector<double> without, with;
    const auto step = [&](bool hooked) {
        const std::size_t at = hooked ? static_cast<std::size_t>(attached->held(0)) : alone->held(0);
        batch.clear();
        batch.add(token_at(at, model.vocabulary()), at, 0, true);
        const stopwatch time;
        if (!hooked)
            alone->decode(batch);
        else if (auto done = attached->decode(batch.get()); !done)
            throw engine::run_failure(done.what());
        return time.seconds();
    };
    for (std::size_t round = 0; round < s.rounds; ++round)
        for (const bool hooked : {false, true}) {
            let_threads_sleep();
            if (!hooked) // always behind a few tokens: attention is none of the hook
                alone->end(0);
            else if (auto ended = attached->end(0); !ended)
                throw engine::run_failure(ended.what());
            static_cast<void>(step(hooked)); // warm
            for (std::size_t i = 0; i < s.steps; ++i) (hooked ? with : without).push_back(step(hooked));
        }
    const double a = median(without), b = median(with);
    return nlohmann::ordered_json::array({{{"threads", o.threads},
                                           {"step_us", a * 1e6},
                                           {"step_with_hook_us", b * 1e6},
                                           {"hook_percent", (b / a - 1) * 100}}});
}

} // namespace llama_bench
