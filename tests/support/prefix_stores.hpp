// A store of prefixes over a cache that only pretends, on a simulated disk, and what tests do with it.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/prefix_store.hpp>

#include "support/pretend_cache.hpp"

#include <doctest/doctest.h>

#include <numeric>
#include <string>
#include <utility>

namespace kvtl_test {

using token_list = pretend_cache::token_list;
using pretend_store = kvtl::prefix_store<pretend_cache, simulated_file_ops>;

template <class Store = pretend_store>
[[nodiscard]] Store open_store(pretend_cache& cache, kvtl::prefix_store_config c) {
    auto opened = Store::open(cache, std::move(c), cache.ops());
    REQUIRE_MESSAGE(opened.ok(), (opened.ok() ? std::string() : opened.error().message));
    return *std::move(opened);
}

/// n tokens that count up.
[[nodiscard]] inline token_list counting(std::uint32_t first, std::size_t n) {
    token_list t(n);
    std::iota(t.begin(), t.end(), first);
    return t;
}

/// Feeds a text to a sequence of its own, keeps it, and ends the sequence.
template <class Store>
[[nodiscard]] kvtl::result<kvtl::prefix_id> keep(Store& store, pretend_cache& cache, const token_list& t,
                                                 const kvtl::keep_options& o = {}) {
    const auto seq = cache.begin();
    REQUIRE(seq.ok());
    cache.feed(*seq, t);
    const auto id = store.keep(*seq, t, o);
    REQUIRE(cache.of(*seq) == t);
    REQUIRE(cache.end(*seq).ok());
    return id;
}
template <class Store>
[[nodiscard]] kvtl::prefix_id kept(Store& store, pretend_cache& cache, const token_list& t,
                                   const kvtl::keep_options& o = {}) {
    const auto id = keep(store, cache, t, o);
    REQUIRE_MESSAGE(id.ok(), (id.ok() ? std::string() : id.error().message));
    return *id;
}
/// What start() finds of a prompt. The sequence has that, and is ended.
template <class Store>
[[nodiscard]] kvtl::started_sequence started(Store& store, pretend_cache& cache, const token_list& prompt,
                                             const kvtl::prefix_space& space = {}) {
    const auto got = store.start(prompt, space);
    REQUIRE_MESSAGE(got.ok(), (got.ok() ? std::string() : got.error().message));
    REQUIRE(got->tokens <= prompt.size());
    REQUIRE(cache.of(got->seq) ==
            token_list(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(got->tokens)));
    REQUIRE(cache.end(got->seq).ok());
    return *got;
}

/// What a store counts is what there is.
template <class Store> void check_counts(Store& store, const pretend_cache& cache) {
    std::uint64_t bytes = 0;
    std::size_t files = 0;
    for (const auto& [name, f] : cache.disk->seen)
        if (name.ends_with(".kvs")) bytes += f->seen.size(), ++files;
    const auto s = store.statistics();
    REQUIRE(s.file_bytes == bytes);
    REQUIRE(s.files == files);
    REQUIRE(s.trunks == cache.open.size());
}

} // namespace kvtl_test
