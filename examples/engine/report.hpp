// The result of kvtl-run as JSON, with the keys that other programs rely on.
// SPDX-License-Identifier: MIT
#pragma once

#include "generate.hpp"
#include "kv_cache.hpp"

#include <cstddef>
#include <string>

namespace engine {

struct run_report {
    std::string policy;
    std::size_t prompt_tokens = 0;
    std::string text;
    generation run;
    cache_stats stats;
};

/// One object on one line, without a line end. `logits` is there when the run kept any.
[[nodiscard]] std::string to_json(const run_report& report);

} // namespace engine
