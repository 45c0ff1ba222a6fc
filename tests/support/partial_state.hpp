// The state of attention of some queries, with its memory. SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/attend.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvtl_test {

/// Empty at first. `view` points into it, so it is not to be copied.
struct partial_state {
    std::vector<float> memory, scratch;
    kvtl::partial view;

    partial_state(std::uint32_t group, std::uint32_t dim)
        : memory(kvtl::partial_floats(group, dim)), scratch(kvtl::simd::attend_scratch_floats(group)) {
        view = kvtl::partial_at(memory.data(), group, dim);
        kvtl::reset(view);
    }
    /// (group, dim)
    [[nodiscard]] std::vector<float> out() const {
        std::vector<float> o(std::size_t{view.group} * view.dim);
        kvtl::finish(view, o.data(), view.dim);
        return o;
    }
};

} // namespace kvtl_test
