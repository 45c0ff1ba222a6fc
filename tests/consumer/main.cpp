// What a user writes first: every way of finding kvtl must compile and run this.
// SPDX-License-Identifier: MIT
#include <kvtl/geometry.hpp>
#include <kvtl/status.hpp>
#include <kvtl/version.hpp>

#include <cstdio>

int main() {
    const auto good = kvtl::geometry::from({.layers = 16, .query_heads = 32, .kv_heads = 8, .head_dim = 64});
    const auto wrong = kvtl::geometry::from({.layers = 16, .query_heads = 32, .kv_heads = 8, .head_dim = 0});
    if (!good || good->group() != 4 || wrong || wrong.error().code != kvtl::errc::invalid_argument) return 1;
    std::puts("kvtl " KVTL_VERSION_STRING);
    return 0;
}
