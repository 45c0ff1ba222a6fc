// Code that depends on no preset can be compiled once (src/kvtl.cpp, the CMake target kvtl::compiled) instead of in every
// translation unit that has a cache.
//
// With KVTL_COMPILED defined, a header only declares the instantiations that it lists at its end, and src/kvtl.cpp, which
// defines KVTL_COMPILE as well, has them. Without, all of it is inlined where it is used. The results have the same bits.
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
