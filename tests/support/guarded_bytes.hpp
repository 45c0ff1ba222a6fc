// Memory that a policy asked for, with a margin behind it that must stay as it was.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace kvtl_test {

/// `fill`: what lies in the memory before the policy gets it, and in the margin for good.
class guarded_bytes {
  public:
    explicit guarded_bytes(std::size_t bytes, unsigned char fill = 0xA5)
        : bytes_(bytes), fill_(fill), words_((bytes + margin) / 8 + 1, 0x0101010101010101U * fill) {}
    [[nodiscard]] std::span<std::byte> memory() {
        return {reinterpret_cast<std::byte*>(words_.data()), bytes_};
    }
    [[nodiscard]] bool intact() const {
        const auto* all = reinterpret_cast<const unsigned char*>(words_.data());
        return std::all_of(all + bytes_, all + words_.size() * 8,
                           [this](unsigned char c) { return c == fill_; });
    }

  private:
    static constexpr std::size_t margin = 256;
    std::size_t bytes_;
    unsigned char fill_;
    std::vector<std::uint64_t> words_;
};

/// The same bytes at another address. Those that are left behind are overwritten before they are freed, so that whoever
/// still looks there reads nonsense.
[[nodiscard]] inline guarded_bytes moved(guarded_bytes&& from) {
    guarded_bytes to(from.memory().size());
    std::memcpy(to.memory().data(), from.memory().data(), from.memory().size());
    std::memset(from.memory().data(), 0x5A, from.memory().size());
    return to;
}

} // namespace kvtl_test
