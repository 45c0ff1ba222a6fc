// SPDX-License-Identifier: MIT
#include "episode_probe.hpp"

#include "error.hpp"
#include "kv_cache.hpp"
#include "transformer.hpp"

#include <algorithm>
#include <span>

namespace eval {

episode_probe probe_of(const engine::model& m, const example& e, const kvtl::episodes_config& config) {
    const std::size_t width = m.hyper().width, n = e.windows.size();
    const std::span<const engine::token_id> tokens = e.tokens;
    const auto window = [&](std::size_t i) {
        const std::size_t begin = e.windows[i], end = i + 1 < n ? e.windows[i + 1] : e.prefill;
        return tokens.subspan(begin, end - begin);
    };
    std::vector<float> row(width);
    const auto embed = [&](std::span<const engine::token_id> text, std::span<float> to) {
        for (const engine::token_id token : text) {
            engine::embedding_of(m, token, row);
            for (std::size_t d = 0; d < width; ++d) to[d] += row[d] / static_cast<float>(text.size());
        }
    };
    std::vector<float> windows(n * width), mean(width), question(width);
    for (std::size_t i = 0; i < n; ++i) {
        embed(window(i), std::span(windows).subspan(i * width, width));
        for (std::size_t d = 0; d < width; ++d) mean[d] += windows[i * width + d] / static_cast<float>(n);
    }
    embed(tokens.subspan(e.prefill), question);
    for (std::size_t d = 0; d < width; ++d) question[d] -= mean[d];
    for (std::size_t i = 0; i < windows.size(); ++i) windows[i] -= mean[i % width];

    kvtl::episodes_config c = config;
    c.episodes = static_cast<std::uint32_t>(std::min<std::size_t>(c.episodes, n));
    const auto require = [](const auto& r) -> const auto& {
        if (!r) throw engine::run_failure(r.error().message);
        return *r;
    };
    const auto found = kvtl::episodes::cluster(windows, width, c);
    const kvtl::episodes& all = require(found);
    const auto nearest = all.nearest(question);
    episode_probe out;
    out.episode = require(nearest);
    out.labels.assign(all.labels().begin(), all.labels().end());
    const auto medoids = all.medoids(out.episode);
    for (const std::uint32_t i : require(medoids)) {
        const auto text = window(i);
        if (out.probe.size() + text.size() > engine::most_probe_tokens && !out.probe.empty()) break;
        out.probe.insert(out.probe.end(), text.begin(),
                         text.begin() +
                             static_cast<std::ptrdiff_t>(std::min(text.size(), engine::most_probe_tokens)));
    }
    return out;
}

} // namespace eval
