# What a check of the tree says of one that is broken: sourced by scripts that break a small tree of their own, $work, in
# every way that $checker must notice. Counts $failures. SPDX-License-Identifier: MIT
# shellcheck shell=bash disable=SC2034,SC2154
failures=0

# expect TEXT: the tree is refused, and TEXT and nothing else is said.
expect() {
    local said
    if said=$(bash "$checker" "$work" 2>&1); then
        echo "not noticed: $1" >&2
        failures=$((failures + 1))
    elif [[ $said != *"$1"* || $said == *$'\n'* ]]; then
        printf 'expected the one line: %s\nread: %s\n' "$1" "$said" >&2
        failures=$((failures + 1))
    fi
}
