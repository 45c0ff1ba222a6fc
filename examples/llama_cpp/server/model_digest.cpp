// SPDX-License-Identifier: MIT
#include "model_digest.hpp"

#include "error.hpp"

#include <algorithm>
#include <fstream>
#include <vector>

namespace kvtl_server {

std::uint64_t model_digest(const std::string& file) {
    constexpr std::uint64_t pieces = 64, most = 1U << 16;
    std::ifstream in(file, std::ios::binary | std::ios::ate);
    const std::streamoff end = in.tellg();
    if (!in || end < 0) throw engine::bad_input("cannot read model " + file);
    const auto size = static_cast<std::uint64_t>(end);
    std::uint64_t hash = 0xCBF29CE484222325U;
    const auto eat = [&hash](std::uint64_t byte) { hash = (hash ^ (byte & 0xFFU)) * 0x100000001B3U; };
    for (unsigned shift = 0; shift < 64; shift += 8) eat(size >> shift);
    std::vector<char> bytes(std::min(size, most));
    for (std::uint64_t i = 0; i < pieces; ++i) {
        in.seekg(static_cast<std::streamoff>((size - bytes.size()) * i / (pieces - 1)));
        in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
        if (!in) throw engine::bad_input("cannot read model " + file);
        for (const char c : bytes) eat(static_cast<unsigned char>(c));
    }
    return hash != 0 ? hash : 1;
}

} // namespace kvtl_server
