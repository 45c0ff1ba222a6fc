// An older C++ is refused at once, not by everything that it does not know.
// expect-error: \[kvtl\] kvtl needs C\+\+20; compile with -std=c\+\+20 or newer
// expect-errors: 2
// expect-lines: 20
// with-flags: -std=c++17
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>
