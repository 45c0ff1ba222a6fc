// Who may ask, and what belongs to whom: each key is a space of its own, and nothing of one space is shared with another.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvtl_server {

class api_keys {
  public:
    /// Anybody; whoever sends a key has the space of that key.
    api_keys() = default;
    /// Those of a file, one per line; empty lines and lines that begin with # do not count. Throws bad_input.
    explicit api_keys(const std::string& file);

    /// `authorization`: "Bearer KEY", or "" for none. Time depends on the length of the keys only.
    [[nodiscard]] bool allows(std::string_view authorization) const noexcept;

    /// A name for what belongs to the sender: the SHA-256 of the key, which so stands in no file, or "" without one.
    [[nodiscard]] static std::string space_of(std::string_view authorization);

  private:
    std::vector<std::string> keys_; ///< none: anybody
};

} // namespace kvtl_server
