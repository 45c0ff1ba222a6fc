// SPDX-License-Identifier: MIT
#include "episode_probe.hpp"

#include "error.hpp"
#include "kv_cache.hpp"
#include "transformer.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <span>

namespace eval {

episode_probe probe_of(const engine::model& m, const example& e, const kvtl::episodes_config& config) {
    const std::size_t width = m.hyper().width, n = e.windows.size();
    const std::span<const engine::token_id> tokens = e.tokens;
    const auto window = [&](std::size_t i) {
        const std::size_t begin = e.windows[i], end = i + 1 < n ? e.windows[i + 1] : e.prefill;
        return tokens.subspan(begin, end - begin);
    };
    // A token weighs the more the fewer windows have it, and nothing where all have it, or none.
    std::map<engine::token_id, std::size_t> had_by;
    for (std::size_t i = 0; i < n; ++i) {
        const auto text = window(i);
        for (const engine::token_id token : std::set<engine::token_id>(text.begin(), text.end()))
            ++had_by[token];
    }
    std::vector<float> row(width);
    const auto embed = [&](std::span<const engine::token_id> text, std::span<float> to) {
        std::map<engine::token_id, std::size_t> times;
        for (const engine::token_id token : text) ++times[token];
        for (const auto& [token, count] : times) {
            const auto found = had_by.find(token);
            if (found == had_by.end()) continue;
            engine::embedding_of(m, token, row);
            double square = 1e-30;
            for (const float x : row) square += static_cast<double>(x) * static_cast<double>(x);
            const double rare = std::log(static_cast<double>(n) / static_cast<double>(found->second));
            const auto weight =
                static_cast<float>(rare * (1 + std::log(static_cast<double>(count))) / std::sqrt(square));
            for (std::size_t d = 0; d < width; ++d) to[d] += weight * row[d];
        }
    };
    std::vector<float> windows(n * width), question(width);
    for (std::size_t i = 0; i < n; ++i) embed(window(i), std::span(windows).subspan(i * width, width));
    embed(tokens.subspan(e.prefill), question);

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
