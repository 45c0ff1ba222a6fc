// Rows of kvtl-bench decode as a page: a bar per row of what a step spends its time on, beside its step time.
// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json.hpp>

#include <string>

namespace bench {

/// `rows`: what run_decode() returned. One HTML file without scripts; rows of one policy, device and budget stand together,
/// so that a sweep is read from top to bottom.
[[nodiscard]] std::string decode_page(const nlohmann::ordered_json& rows);

} // namespace bench
