// SPDX-License-Identifier: MIT
#include "text_stream.hpp"

#include <algorithm>
#include <utility>

namespace kvtl_server {

namespace {

/// Bytes at the end of a text that begin a character and do not complete it.
std::size_t open_character(std::string_view text) {
    const std::size_t most = std::min<std::size_t>(text.size(), 3);
    for (std::size_t n = 1; n <= most; ++n) {
        const auto byte = static_cast<unsigned char>(text[text.size() - n]);
        if ((byte & 0xC0U) == 0x80U) continue; // goes on a character
        const std::size_t length = byte >= 0xF0U ? 4 : byte >= 0xE0U ? 3 : byte >= 0xC0U ? 2 : 1;
        return length > n ? n : 0;
    }
    return 0;
}

/// Bytes at the end of a text with which `stop` begins, fewer than all of it.
std::size_t begun(std::string_view text, std::string_view stop) {
    for (std::size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n)
        if (text.ends_with(stop.substr(0, n))) return n;
    return 0;
}

} // namespace

std::string text_stream::add(std::string_view piece) {
    if (stopped_) return {};
    held_ += piece;
    std::size_t end = std::string::npos, back = open_character(held_);
    for (const std::string& stop : stops_) {
        if (stop.empty()) continue;
        end = std::min(end, held_.find(stop));
        back = std::max(back, begun(held_, stop));
    }
    stopped_ = end != std::string::npos;
    const std::size_t shown = stopped_ ? end : held_.size() - back;
    std::string text = held_.substr(0, shown);
    held_.erase(0, stopped_ ? held_.size() : shown);
    return text;
}

std::string text_stream::finish() {
    return std::exchange(held_, {});
}

} // namespace kvtl_server
