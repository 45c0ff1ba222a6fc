// What a thread sanitizer cannot know.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/version.hpp>

#include <cstddef>
#include <span>

#if defined(__SANITIZE_THREAD__)
#define KVTL_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define KVTL_THREAD_SANITIZER 1
#endif
#endif

#if defined(KVTL_THREAD_SANITIZER)
extern "C" void AnnotateBenignRaceSized(const char* file, int line, const volatile void* at,
                                        std::size_t bytes,
                                        const char* why); // of the sanitizer's run time
#endif

namespace kvtl { inline namespace v0 {

/// These bytes are where reads leave what nobody looks at, several at once.
inline void written_but_never_read([[maybe_unused]] std::span<std::byte> bytes) noexcept {
#if defined(KVTL_THREAD_SANITIZER)
    AnnotateBenignRaceSized(__FILE__, __LINE__, bytes.data(), bytes.size(),
                            "gaps between pages that are read");
#endif
}

}} // namespace kvtl::v0

#undef KVTL_THREAD_SANITIZER
