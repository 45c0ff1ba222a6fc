// Blobs under names, outside this machine's memory and files: what a remote tier of saved sequences stands on.
//
// Names:  letters, digits and ":{}-", at most 200. The part in braces decides where a blob lies, as in clusters of Redis: names
//         with equal parts lie together. A value never changes under its name, except small ones that are put again.
// Loss:   a store may lose any blob at any time. Nobody may rely on one that was there a moment ago.
// Time:   each call ends by its deadline. A store that cannot keep one says so in its header.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/status.hpp>

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>

namespace kvtl { inline namespace v0 {

using blob_clock = std::chrono::steady_clock;
using blob_deadline = blob_clock::time_point;

[[nodiscard]] constexpr bool is_blob_name(std::string_view name) noexcept {
    if (name.empty() || name.size() > 200) return false;
    for (const char c : name)
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == ':' ||
              c == '{' || c == '}' || c == '-'))
            return false;
    return true;
}

/// get(): there is none of that name.
inline constexpr std::uint64_t no_blob = std::numeric_limits<std::uint64_t>::max();

///   put(name, bytes, ttl, until)      may return while it is under way, when `bytes` is free again. Errors come with a later
///                                     put() or with settle()
///   settle(until)                     all that was put is there, or the first error. Ends a series of put()
///   get(names, into, bytes, until)    blob i goes to into[i], bytes[i] is its length or no_blob. A blob that is longer than
///                                     its place is an error. After an error the others are right
///   touch(names, ttl, there, until)   there[i]: 1 if blob i is there, and it lives for `ttl` from now. 0 seconds: as long as before
///   remove(names, until)              ok where there is none
template <class S>
concept blob_store = requires(S& s, const std::string& name, std::span<const std::byte> bytes,
                              std::chrono::seconds ttl, std::span<const std::string> names,
                              std::span<const std::span<std::byte>> into, std::span<std::uint64_t> lengths,
                              std::span<std::uint8_t> there, blob_deadline until) {
    { s.put(name, bytes, ttl, until) } -> std::same_as<status>;
    { s.settle(until) } -> std::same_as<status>;
    { s.get(names, into, lengths, until) } -> std::same_as<status>;
    { s.touch(names, ttl, there, until) } -> std::same_as<status>;
    { s.remove(names, until) } -> std::same_as<status>;
};

/// The part of a name that decides where it lies: between the first brace and the next closing one, if that is not empty;
/// otherwise all of it. Source: Redis cluster specification, "Hash tags".
[[nodiscard]] constexpr std::string_view placing_part(std::string_view name) noexcept {
    const auto open = name.find('{');
    if (open == name.npos) return name;
    const auto close = name.find('}', open);
    if (close == name.npos || close == open + 1) return name;
    return name.substr(open + 1, close - open - 1);
}

}} // namespace kvtl::v0
