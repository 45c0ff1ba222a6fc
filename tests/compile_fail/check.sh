#!/usr/bin/env bash
# Compiles one case and compares the outcome with what the case says it expects (see CMakeLists.txt).
#   check.sh COMPILER CASE.cpp PRECOMPILED.hpp FLAGS...      (cases with flags of their own go without)
# SPDX-License-Identifier: MIT
set -uo pipefail
export LC_ALL=C # plain quotes in messages
compiler=$1
source=$2
common=(-include "$3")
shift 3

mapfile -t expected < <(sed -nE 's|^// expect-error: +(.*[^[:space:]])[[:space:]]*$|\1|p' "$source")
expect_ok=$(grep -cE '^// expect-ok[[:space:]]*$' "$source")
expect_errors=$(sed -nE 's|^// expect-errors: +([0-9]+)[[:space:]]*$|\1|p' "$source")
expect_lines=$(sed -nE 's|^// expect-lines: +([0-9]+)[[:space:]]*$|\1|p' "$source")
read -ra own_flags < <(sed -nE 's|^// with-flags: +(.*[^[:space:]])[[:space:]]*$|\1|p' "$source")

((${#own_flags[@]} == 0)) || common=()

# Without excerpts of the source: a regex must match what the compiler says, not what the case itself contains.
no_excerpts=-fno-diagnostics-show-caret
if "$compiler" --version | grep -q clang; then no_excerpts=-fno-caret-diagnostics; fi
output=$("$compiler" "$@" "${own_flags[@]}" "${common[@]}" -fsyntax-only "$no_excerpts" "$source" 2>&1)
status=$?

# Ends the test with a reason, after what the compiler printed.
fail() {
    printf '%s\n' "$output"
    printf 'check.sh: %s\n' "$1"
    exit 1
}

if ((expect_ok > 0 && ${#expected[@]} > 0)); then fail "expects success and errors at once"; fi
if ((expect_ok > 0)); then
    ((status == 0)) || fail "did not compile, although it is the control"
    exit 0
fi
((${#expected[@]} > 0)) || fail "neither // expect-error: nor // expect-ok in $source"
((status != 0)) || fail "compiled, although it must not"
for regex in "${expected[@]}"; do
    grep -Eq -- "$regex" <<<"$output" || fail "no match for: $regex"
done
if [[ -n $expect_errors ]]; then
    errors=$(grep -cE '(^|[^a-z]) ?error: ' <<<"$output")
    ((errors == expect_errors)) || fail "$errors errors instead of $expect_errors"
fi
if [[ -n $expect_lines ]]; then
    lines=$(wc -l <<<"$output")
    ((lines <= expect_lines)) || fail "$lines lines instead of at most $expect_lines"
fi
