// What goes wrong in the programs. The library never throws; the programs may, and main() turns the two kinds
// into the two exit statuses.
// SPDX-License-Identifier: MIT
#pragma once

#include <stdexcept>
#include <string>

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

} // namespace engine
