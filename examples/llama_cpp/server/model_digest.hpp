// Which model a saved conversation belongs to.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>

namespace kvtl_server {

/// FNV-1a over the size of a file and 64 pieces of 64 KiB, the first and the last bytes among them: models that were trained
/// further have other bytes nearly everywhere. Never 0. Throws bad_input.
[[nodiscard]] std::uint64_t model_digest(const std::string& file);

} // namespace kvtl_server
