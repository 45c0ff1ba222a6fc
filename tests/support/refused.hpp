// What tests of saved and forked sequences share: how a call was refused, and what a sequence is.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/shard_access.hpp>
#include <kvtl/status.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <string>

namespace kvtl_test {

template <class T> std::string error_of(const kvtl::result<T>& r) {
    return r.ok() ? std::string("no error") : r.error().message;
}

template <class Cache> std::uint64_t hash_of(Cache& cache, kvtl::sequence_id seq) {
    const auto hash = kvtl::shard_access::identity_hash(cache, seq);
    REQUIRE_MESSAGE(hash.ok(), error_of(hash));
    return *hash;
}

} // namespace kvtl_test

/// The call fails with errc::wanted, and its message holds the text.
#define CHECK_REFUSED(call, wanted, text)                                                                    \
    do {                                                                                                     \
        const auto refused = call;                                                                           \
        REQUIRE_FALSE(refused.ok());                                                                         \
        CHECK(refused.error().code == kvtl::errc::wanted);                                                   \
        CHECK_MESSAGE(refused.error().message.find(text) != std::string::npos, refused.error().message);     \
    } while (false)
