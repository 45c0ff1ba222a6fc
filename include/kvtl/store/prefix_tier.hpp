// What a store of prefixes asks of a tier behind its folder.
//
// put() hands a saved file over, fetch() brings one back. Whatever fails is a miss: the text is computed. An engine may put a
// tier of its own in between, for example one that works on another thread.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/status.hpp>
#include <kvtl/store/prefix_note.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace kvtl { inline namespace v0 {

/// What is wanted: the longest prefix of `tokens` that has more than `beyond` of them.
struct tier_request {
    std::span<const std::uint32_t> tokens{};
    prefix_space space{};
    std::uint64_t model = 0;
    std::size_t beyond = 0;
    std::uint64_t most_bytes = 0; ///< that its file may have
};

class prefix_tier {
  public:
    virtual ~prefix_tier() = default;

    /// Writes a saved file to `path`, where there is none, and returns how many of the tokens it has; 0: there is none.
    [[nodiscard]] virtual result<std::size_t> fetch(const tier_request& wanted, const std::string& path) = 0;

    /// Takes a copy of a saved file, of these tokens.
    virtual status put(const std::string& path, const prefix_label& label,
                       std::span<const std::uint32_t> tokens) = 0;

  protected:
    prefix_tier() = default;
    prefix_tier(const prefix_tier&) = default;
    prefix_tier(prefix_tier&&) = default;
    prefix_tier& operator=(const prefix_tier&) = default;
    prefix_tier& operator=(prefix_tier&&) = default;
};

}} // namespace kvtl::v0
