// SPDX-License-Identifier: MIT
#include "retained.hpp"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <string>
#include <utility>

namespace eval {

std::vector<token_kind> kinds_of(std::span<const engine::token_id> text, const engine::tokenizer& words) {
    std::map<engine::token_id, std::size_t> times;
    for (const auto t : text) ++times[t];
    std::vector<std::pair<engine::token_id, std::size_t>> by_times(times.begin(), times.end());
    std::stable_sort(by_times.begin(), by_times.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
    std::set<engine::token_id> common;
    std::size_t so_far = 0;
    for (const auto& [token, n] : by_times) {
        if (2 * so_far >= text.size() || n == 1) break;
        common.insert(token);
        so_far += n;
    }
    const auto only_marks = [&](engine::token_id t) {
        const std::string piece = words.piece(t);
        bool mark = false;
        for (const char c : piece) {
            const auto u = static_cast<unsigned char>(c);
            if (std::ispunct(u) == 0 && std::isspace(u) == 0) return false;
            mark = mark || std::ispunct(u) != 0;
        }
        return mark;
    };
    std::vector<token_kind> kinds;
    for (const auto t : text)
        kinds.push_back(kinds.empty()        ? token_kind::first
                        : only_marks(t)      ? token_kind::punctuation
                        : common.contains(t) ? token_kind::common
                        : times[t] == 1      ? token_kind::rare
                                             : token_kind::other);
    return kinds;
}

void retained::add(const engine::record_sizes& sizes, const recording& of, const kvtl::shape& shape,
                   std::span<const token_kind> text) {
    const std::size_t n = text.size(), width = std::size_t{shape.kv_heads} * shape.head_dim;
    const double whole = 2.0 * static_cast<double>(width);
    layers.resize(shape.layers);
    std::vector<std::uint32_t> keys(n), values(n);
    for (std::uint32_t l = 0; l < shape.layers; ++l) {
        const layer_recording& r = of.layers[l];
        std::fill(keys.begin(), keys.end(), 0);
        std::fill(values.begin(), values.end(), 0);
        sizes.add(l, std::span(r.k).first(n * width), std::span(r.v).first(n * width), keys, values);
        for (std::size_t i = 0; i < n; ++i) {
            const double k = keys[i] / whole, v = values[i] / whole;
            layers[l].add(k, v);
            kinds[static_cast<std::size_t>(text[i])].add(k, v);
        }
    }
}

} // namespace eval
