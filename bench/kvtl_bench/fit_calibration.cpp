// SPDX-License-Identifier: MIT
#include "fit_calibration.hpp"

#include "fit.hpp"

#include <algorithm>
#include <exception>
#include <vector>

namespace bench {

kvtl::status fit_calibration(const kvtl::shape& shape, workload& sample, const std::string& path) {
    constexpr std::uint64_t any_model = 0; // generated data have no weights to belong to
    try {
        const auto keys_wide = static_cast<std::uint32_t>(sample.key_floats());
        // No policy keeps more than an eighth of the directions; small models keep up to a head's worth.
        engine::calibration_fit fit(shape, {.rank = std::min(keys_wide, std::max(64U, keys_wide / 8))});
        const std::size_t tokens = sample.prompt_tokens();
        std::vector<float> keys(tokens * sample.key_floats()), queries(tokens * sample.query_floats());
        for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
            sample.rows(0, layer, 0, tokens, {.q = queries, .k = keys});
            fit.add(layer, keys, queries);
        }
        fit.finish().write(path, any_model);
    } catch (const std::exception& e) {
        return kvtl::status::failure(kvtl::errc::io_error, "%s", e.what());
    }
    return {};
}

} // namespace bench
