// Rows of JSON as comma-separated values, for spreadsheets and data frames: what programs write for --csv FILE.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

namespace engine {

/// An array of objects as a line of column names and a line per object, without the last line end. What lies deeper gets a
/// column each: "phase_us.attend", "accuracy_ci95.0". A column that a row does not have, or whose value is null, is empty
/// there. Text with commas, quotes or line ends stands in quotes (RFC 4180). `rows` must be valid JSON.
[[nodiscard]] std::string to_csv(std::string_view rows);

} // namespace engine
