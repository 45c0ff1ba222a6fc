// The error of decoding at a small budget, against dense attention. SPDX-License-Identifier: MIT
#pragma once

#include "cache_fixture.hpp"
#include "random_layer.hpp"
#include "scratch_folder.hpp"

#include <cmath>

namespace kvtl_test {

/// Root of the summed squares over every twentieth step: 96 entries are attended of 500 to 900, over a file.
template <class Cache> [[nodiscard]] double decode_error() {
    const scratch_folder folder;
    const drift data({2, 4, 2, 64}, 900, 12);
    typename Cache::config c;
    c.shape = data.shape();
    c.max_tokens = 900;
    c.attend_tokens = 96;
    c.memory_bytes = std::size_t{16} << 20;
    c.clusterer.min_entries_to_cluster = 128;
    c.io.path = folder.file("b.kv");
    auto cache = open_cache<Cache>(c);
    reader<Cache> one(cache, data, 0);
    one.prefill(500);
    one.decode(400);
    double sum = 0;
    const std::size_t prompt = 500 * data.query_floats() * 2;
    for (std::size_t t = 520; t < 900; t += 20)
        for (std::size_t l = 0; l < 2; ++l) {
            const auto dense = dense_attention<kvtl::f16>(data, l, t);
            const float* out = &one.outputs()[prompt + ((t - 500) * 2 + l) * data.query_floats()];
            for (std::size_t i = 0; i < dense.size(); ++i)
                sum += std::pow(static_cast<double>(out[i]) - dense[i], 2);
        }
    return std::sqrt(sum);
}

} // namespace kvtl_test
