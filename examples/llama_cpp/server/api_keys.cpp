// SPDX-License-Identifier: MIT
#include "api_keys.hpp"

#include "error.hpp"
#include "input_file.hpp"

#include <openssl/evp.h>

#include <array>
#include <sstream>

namespace kvtl_server {

namespace {

bool equal(std::string_view a, std::string_view b) noexcept {
    unsigned different = a.size() != b.size() ? 1 : 0;
    for (std::size_t i = 0; i < a.size(); ++i)
        different |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(i < b.size() ? b[i] : 0);
    return different == 0;
}

std::string_view key_of(std::string_view authorization) noexcept {
    constexpr std::string_view scheme = "Bearer ";
    return authorization.starts_with(scheme) ? authorization.substr(scheme.size()) : std::string_view();
}

} // namespace

api_keys::api_keys(const std::string& file) {
    const auto text = engine::read_input(file, 1 << 20, "file of keys", engine::input_kind::any);
    if (!text) throw engine::bad_input("--api-key-file: " + text.error().message);
    std::istringstream lines(*text);
    for (std::string line; std::getline(lines, line);) {
        while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
        if (!line.empty() && line.front() != '#') keys_.push_back(line);
    }
    if (keys_.empty())
        throw engine::bad_input("--api-key-file: " + file + " has no key; valid: one per line");
}

std::string api_keys::space_of(std::string_view authorization) {
    const std::string_view key = key_of(authorization);
    if (key.empty()) return {};
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
    unsigned bytes = 0;
    if (EVP_Digest(key.data(), key.size(), digest.data(), &bytes, EVP_sha256(), nullptr) != 1)
        throw engine::run_failure("SHA-256 is not available");
    std::string text;
    for (unsigned i = 0; i < bytes; ++i) {
        text += "0123456789abcdef"[digest[i] >> 4U];
        text += "0123456789abcdef"[digest[i] & 15U];
    }
    return text;
}

bool api_keys::allows(std::string_view authorization) const noexcept {
    bool found = keys_.empty();
    for (const std::string& key : keys_) found |= equal(key, key_of(authorization));
    return found;
}

} // namespace kvtl_server
