// SPDX-License-Identifier: MIT
#include "workload_report.hpp"

#include "drift.hpp"
#include "program.hpp"
#include "shapes.hpp"
#include "statistics.hpp"
#include "trace_workload.hpp"

#include <cmath>
#include <cstdio>
#include <memory>

namespace bench {

nlohmann::ordered_json report_workload(const report_options& o) {
    const model_shape& tiny = *find_shape("tiny-2k");
    std::unique_ptr<trace_workload> trace;
    if (!o.trace.empty()) trace = std::make_unique<trace_workload>(o.trace);
    const std::size_t there = trace ? trace->tokens() : 2048;
    const std::size_t tokens = o.tokens != 0 ? o.tokens : there;
    const std::size_t prompt = trace ? trace->prompt_tokens() : tokens / 3;
    engine::require(tokens <= there || !trace, "--tokens: the trace has " + std::to_string(there));
    engine::require(tokens >= 256 && tokens <= 1U << 20, "--tokens: valid: 256 to 1048576");
    engine::require(prompt + 64 <= tokens, "the trace has " +
                                               std::to_string(tokens - std::min(tokens, prompt)) +
                                               " decoded tokens; valid: 64 or more");
    drift_config config;
    const kvtl::shape shape = trace ? trace->shape() : tiny.shape;
    for (const model_shape& m : model_shapes)
        if (m.shape == shape) config.rope_base = m.rope_base;
    drift generator(shape, prompt, tokens, 1, o.seed, config);
    const auto mine = measure_workload(generator, tokens).list();
    const auto real = trace ? measure_workload(*trace, tokens).list() : decltype(mine){};

    using json = nlohmann::ordered_json;
    json list = json::array();
    double sum = 0;
    for (std::size_t i = 0; i < mine.size(); ++i) {
        json line = {
            {"name", mine[i].first}, {"trace", nullptr}, {"drift", mine[i].second}, {"distance", nullptr}};
        if (trace) {
            const double a = real[i].second, b = mine[i].second;
            const double apart = a == b ? 0 : std::abs(a - b) / (std::abs(a) + std::abs(b));
            line["trace"] = a;
            line["distance"] = apart;
            sum += apart;
        }
        list.push_back(line);
    }
    return {{"shape",
             {{"layers", shape.layers},
              {"query_heads", shape.query_heads},
              {"kv_heads", shape.kv_heads},
              {"head_dim", shape.head_dim}}},
            {"prompt_tokens", prompt},
            {"tokens", tokens},
            {"statistics", list},
            {"mean_distance", trace ? json(sum / static_cast<double>(mine.size())) : json(nullptr)}};
}

void print_report(const nlohmann::ordered_json& report) {
    std::printf("%-20s %10s %10s %10s\n", "statistic", "trace", "drift", "distance");
    const auto cell = [](const nlohmann::ordered_json& v) {
        v.is_null() ? std::printf(" %10s", "-") : std::printf(" %10.4f", v.get<double>());
    };
    for (const auto& line : report["statistics"]) {
        std::printf("%-20s", line["name"].get<std::string>().c_str());
        for (const char* key : {"trace", "drift", "distance"}) cell(line[key]);
        std::printf("\n");
    }
    if (!report["mean_distance"].is_null())
        std::printf("mean distance %.3f (0: equal, 1: nothing in common)\n",
                    report["mean_distance"].get<double>());
}

} // namespace bench
