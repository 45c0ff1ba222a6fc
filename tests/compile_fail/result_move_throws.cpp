// What a result carries moves without throwing: a result that is assigned to has given up what it had by then.
// expect-error: \[kvtl\] result<T>: moving a T must not throw
// SPDX-License-Identifier: MIT
#include <kvtl/status.hpp>

struct thrower {
    thrower() = default;
    thrower(thrower&&) noexcept(false) {}
};

kvtl::result<thrower> made() {
    return thrower();
}
bool ok() {
    return made().ok();
}
