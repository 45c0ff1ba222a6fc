// The library's devices by name, for programs: io/any_io.hpp around the device that a user asked for.
//
//   config.io = any_backend({.use = backend::uring, .path = "kv.bin"});
//
// uring_file is available if KVTL_HAS_URING is defined to 1 (the CMake target kvtl::uring was found).
// Otherwise a device of backend::uring fails to open with errc::unsupported. With `limit` the device is
// slowed down to the profile of another one (io/throttled.hpp). Include this header in one file: it contains
// the code of all devices.
//
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/io/any_io.hpp>
#include <kvtl/io/in_memory.hpp>
#include <kvtl/io/posix_file.hpp>
#include <kvtl/io/throttled.hpp>

#if defined(KVTL_HAS_URING) && KVTL_HAS_URING
#include <kvtl/io/uring_file.hpp>
#define KVTL_BACKENDS backends_with_uring
#else
#define KVTL_BACKENDS backends_without_uring
#endif

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace kvtl { inline namespace v0 {

enum class backend : std::uint8_t { memory, posix, uring };

struct backend_config {
    backend use = backend::posix;
    std::string path{};     ///< of the file backends
    bool keep_file = false; ///< otherwise the file is removed when it is closed
    bool direct = true;
    unsigned threads = 2;              ///< of posix, per queue
    ::mode_t mode = owner_only;        ///< of the file, whatever the umask: 0600 to 0777
    std::shared_ptr<throttle> limit{}; ///< empty: as fast as the device is
};

/// The names that programs take: "memory", "posix", "uring".
[[nodiscard]] constexpr std::optional<backend> parse_backend(std::string_view text) noexcept {
    if (text == "memory") return backend::memory;
    if (text == "posix") return backend::posix;
    if (text == "uring") return backend::uring;
    return std::nullopt;
}

// What the function does depends on the macro, and so does its mangled name: both kinds may meet in one program.
inline namespace KVTL_BACKENDS {

/// The device that `config` describes, as any_io takes it. An unknown or missing backend is refused by open().
[[nodiscard]] inline any_io::config any_backend(const backend_config& config) {
    any_io::config chosen;
    switch (config.use) {
    case backend::memory:
        chosen = any_io::of<in_memory>({});
        break;
    case backend::posix:
        chosen = any_io::of<posix_file>(
            {config.path, config.keep_file, config.direct, config.threads, config.mode});
        break;
    case backend::uring:
#if defined(KVTL_HAS_URING) && KVTL_HAS_URING
        chosen = any_io::of<uring_file>({.path = config.path,
                                         .keep_file = config.keep_file,
                                         .direct = config.direct,
                                         .mode = config.mode});
        break;
#else
        struct missing final : any_io::source {
            result<any_io::device> open(const io_plan&) const override {
                return status::failure(errc::unsupported,
                                       "io: uring was not compiled in (KVTL_HAS_URING); use posix or memory");
            }
        };
        return {std::make_shared<const missing>()};
#endif
    }
    if (config.limit && chosen.from) return any_io::of<throttled<any_io>>({chosen, config.limit});
    return chosen;
}

} // namespace KVTL_BACKENDS
}} // namespace kvtl::v0

#undef KVTL_BACKENDS
