// NaN marks what has to be made anew, infinity what is not there: arithmetic that knows neither gives wrong results.
// with-flags: -ffast-math
// expect-error: \[kvtl\] compile without -Ofast, -ffast-math and -ffinite-math-only
// SPDX-License-Identifier: MIT
#include <kvtl/version.hpp>
