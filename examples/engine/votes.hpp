// Files of votes: which query heads of a model retrieve, and how much an eviction hurts each of its layers. CompressKV reads
// both (retention.votes, budget.importance), EpiCache the layers; kvtl-calibrate --votes finds them. Text, a line per layer:
//
//   kvtl-votes 1 model 0123456789abcdef layers 6 query_heads 4
//   0 0 1 0 0.214
//
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/geometry.hpp>
#include <kvtl/status.hpp>

#include "input_file.hpp"

#include <cinttypes>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

namespace engine {

struct head_votes {
    std::vector<std::uint8_t> votes; ///< (L, HQ), 1 where a head votes
    std::vector<float> importance;   ///< (L)
};

[[nodiscard]] inline kvtl::status write_votes(const std::string& path, const kvtl::shape& shape,
                                              std::uint64_t fingerprint, const head_votes& v) {
    std::FILE* const out = std::fopen(path.c_str(), "w");
    if (out == nullptr)
        return kvtl::status::failure(kvtl::errc::io_error, "--votes: cannot write %s", path.c_str());
    std::fprintf(out, "kvtl-votes 1 model %016" PRIx64 " layers %u query_heads %u\n", fingerprint,
                 shape.layers, shape.query_heads);
    for (std::size_t l = 0; l < shape.layers; ++l) {
        for (std::size_t h = 0; h < shape.query_heads; ++h)
            std::fprintf(out, "%d ", v.votes[l * shape.query_heads + h]);
        std::fprintf(out, "%.6g\n", static_cast<double>(v.importance[l]));
    }
    const bool written = std::ferror(out) == 0;
    if (std::fclose(out) != 0 || !written)
        return kvtl::status::failure(kvtl::errc::io_error, "--votes: cannot write %s", path.c_str());
    return {};
}

/// `fingerprint`: of the model that the votes are for (0: any of this shape).
[[nodiscard]] inline kvtl::result<head_votes> read_votes(const std::string& path, const kvtl::shape& shape,
                                                         std::uint64_t fingerprint) {
    const auto refused = [&path](const std::string& why) {
        return kvtl::error(kvtl::errc::invalid_argument, "--votes: " + path + " " + why);
    };
    const auto text = read_input(path, most_settings_bytes);
    if (!text) return kvtl::error(text.error().code, "--votes: " + text.error().message);
    std::istringstream in(*text);
    std::string format, model, layers_word, heads_word, of;
    std::uint32_t version = 0, layers = 0, heads = 0;
    in >> format >> version >> model >> of >> layers_word >> layers >> heads_word >> heads;
    if (!in || format != "kvtl-votes" || model != "model" || layers_word != "layers" ||
        heads_word != "query_heads")
        return refused("is no file of votes (kvtl-calibrate --votes writes one)");
    if (version != 1) return refused("has version " + std::to_string(version) + "; valid: 1");
    if (layers != shape.layers || heads != shape.query_heads)
        return refused("is of a model of " + std::to_string(layers) + " layers with " +
                       std::to_string(heads) + " query heads; this one has " + std::to_string(shape.layers) +
                       " with " + std::to_string(shape.query_heads));
    char own[17];
    std::snprintf(own, sizeof own, "%016" PRIx64, fingerprint);
    if (fingerprint != 0 && of != own)
        return refused("was made for another model of this shape (" + of + "; this one is " + own + ")");
    head_votes v;
    for (std::uint32_t l = 0; l < layers; ++l) {
        for (std::uint32_t h = 0; h < heads; ++h) {
            unsigned vote = 2;
            if (!(in >> vote) || vote > 1)
                return refused("layer " + std::to_string(l) + ", head " + std::to_string(h) +
                               ": valid: 0 or 1");
            v.votes.push_back(static_cast<std::uint8_t>(vote));
        }
        float importance = -1;
        if (!(in >> importance) || !(importance >= 0) || !std::isfinite(importance))
            return refused("layer " + std::to_string(l) + ": its importance is missing; valid: 0 or more");
        v.importance.push_back(importance);
    }
    return v;
}

} // namespace engine
