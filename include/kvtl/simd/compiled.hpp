// Kernels that a program compiles once instead of in every translation unit that attends.
//
// With KVTL_COMPILED_KERNELS defined everywhere, headers of kernels only declare the instantiations that they list
// at their end, and one translation unit defines KVTL_COMPILE_KERNELS and includes <kvtl/simd.hpp> and
// <kvtl/policies/support/kmeans.hpp>, which have all of them. That takes more than half off the compile time of a preset that clusters (dynakv, gcc 12 -O1: 8.3 s of CPU instead of 19.5). They are calls
// then, not inlined: our tests are built so, nothing that is measured.
// SPDX-License-Identifier: MIT
#pragma once

#ifdef KVTL_COMPILED_KERNELS
#define KVTL_INLINE_KERNEL
#ifdef KVTL_COMPILE_KERNELS
#define KVTL_KERNEL template // NOLINT(bugprone-macro-parentheses)
#else
#define KVTL_KERNEL extern template
#endif
#else
#define KVTL_INLINE_KERNEL inline
#endif
