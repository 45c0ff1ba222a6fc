// What goes wrong in the programs. The library never throws; the programs may, and main() turns the two kinds
// into the two exit statuses.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/status.hpp>

#include <stdexcept>
#include <string>
#include <utility>

namespace engine {

/// The user asked for something that can never work: unreadable file, foreign model, impossible value. Exit
/// status 2.
struct bad_input : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// A run that had begun could not go on (disk full, device error). Exit status 1.
struct run_failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// The library's errors as exceptions: run_failure where a device failed, bad_input for all else.
[[noreturn]] inline void throw_error(const kvtl::error& e) {
    if (e.code == kvtl::errc::io_error) throw run_failure(e.message);
    throw bad_input(e.message);
}
inline void insist(const kvtl::status& s) {
    if (!s) throw_error(s);
}
template <class T> [[nodiscard]] T insist(kvtl::result<T> r) {
    if (!r) throw_error(r.error());
    return *std::move(r);
}

} // namespace engine
