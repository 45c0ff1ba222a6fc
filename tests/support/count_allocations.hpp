// Counts every way to get memory from the heap. Replaces the program's allocator: include it in one
// translation unit, that of a test about allocations.
//
// A sanitizer has its own malloc; under one, and where the C library is not glibc, operator new alone is
// counted.
// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace kvtl_test {
inline std::atomic<std::uint64_t> allocations{0}; ///< calls so far
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KVTL_TEST_OWN_MALLOC 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define KVTL_TEST_OWN_MALLOC 0
#endif
#endif
#ifndef KVTL_TEST_OWN_MALLOC
#ifdef __GLIBC__
#define KVTL_TEST_OWN_MALLOC 1
#else
#define KVTL_TEST_OWN_MALLOC 0
#endif
#endif

#if KVTL_TEST_OWN_MALLOC
// operator new ends here as well.
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
void* malloc(std::size_t n) {
    ++kvtl_test::allocations;
    return __libc_malloc(n);
}
void* calloc(std::size_t n, std::size_t size) {
    ++kvtl_test::allocations;
    return __libc_calloc(n, size);
}
void* realloc(void* p, std::size_t n) {
    ++kvtl_test::allocations;
    return __libc_realloc(p, n);
}
void* aligned_alloc(std::size_t alignment, std::size_t n) {
    ++kvtl_test::allocations;
    return __libc_memalign(alignment, n);
}
}
#else
void* operator new(std::size_t n) {
    ++kvtl_test::allocations;
    return std::malloc(n);
}
void operator delete(void* p) noexcept {
    std::free(p);
}
void operator delete(void* p, std::size_t) noexcept {
    std::free(p);
}
#endif
