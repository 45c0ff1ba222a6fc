// kvtl::compiled: the code of kvtl that depends on no preset, compiled once. The same sources as header-only.
//
// Compile it with the flags of the program (one instruction set for all of it), link it, and define KVTL_COMPILED wherever a
// header of kvtl is read. The CMake target kvtl::compiled does all three.
// SPDX-License-Identifier: MIT
#define KVTL_COMPILE
#include <kvtl/core/cache_calls.hpp>
#include <kvtl/core/shard.hpp>
#include <kvtl/policies/support/kmeans.hpp>
#include <kvtl/simd.hpp>
