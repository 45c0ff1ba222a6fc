// Text of an answer as a client may see it: whole characters of UTF-8, and nothing that a stop string may begin with.
//
// Cost: each piece is compared with every stop string, over the text that is held back.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvtl_server {

class text_stream {
  public:
    /// `stops`: the text ends before the first of them; empty ones are ignored.
    explicit text_stream(std::vector<std::string> stops) : stops_(std::move(stops)) {}

    /// Takes what one token adds; returns what can be shown now.
    [[nodiscard]] std::string add(std::string_view piece);
    /// Behind the last token: what was held back.
    [[nodiscard]] std::string finish();
    /// A stop string has come. The text has ended before it.
    [[nodiscard]] bool stopped() const noexcept { return stopped_; }

  private:
    std::vector<std::string> stops_;
    std::string held_;
    bool stopped_ = false;
};

} // namespace kvtl_server
