// What a user of kvtl::calibrate writes first.
// SPDX-License-Identifier: MIT
#include <kvtl/calibration/fit/calibration_fit.hpp>

#include <cstdio>
#include <vector>

int main() {
    constexpr kvtl::shape model{.layers = 1, .query_heads = 2, .kv_heads = 1, .head_dim = 4};
    auto fit = kvtl::calibration_fit::make(model);
    const std::vector<float> keys = {3, 0, 4, 0, -6, 0, -8, 0, 0, 1, 0, 0}; // two of three in one direction
    if (!fit || !fit->add(0, {.k = keys})) return 1;
    const auto bases = fit->finish();
    if (!bases || !bases->write("consumer.cal", 1)) return 1;
    std::printf("first direction %.1f 0 %.1f 0\n", static_cast<double>(bases->pca[0]),
                static_cast<double>(bases->pca[2]));
    return 0;
}
