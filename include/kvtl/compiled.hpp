// Compiles code that depends on no preset once (src/kvtl.cpp, the CMake target kvtl::compiled), instead of in
// every translation unit that has a cache.
//
// With KVTL_COMPILED, a header only declares the instantiations listed at its end. src/kvtl.cpp defines
// KVTL_COMPILE as well and so contains them. Without KVTL_COMPILED, the code is inlined where it is used. The
// results have the same bits with and without it.
// SPDX-License-Identifier: MIT
#pragma once

#ifdef KVTL_COMPILED
#define KVTL_INLINE_KERNEL
#ifdef KVTL_COMPILE
#define KVTL_INSTANCE template // NOLINT(bugprone-macro-parentheses)
#else
#define KVTL_INSTANCE extern template
#endif
#else
#define KVTL_INLINE_KERNEL inline
#endif
