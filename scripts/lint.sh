#!/usr/bin/env bash
# Checks format, names and common mistakes. Changes nothing unless asked to.
#   scripts/lint.sh [--fix] [format] [tidy] [shell] [tree]        default: all four
# Exit status 1 if a check finds something. A linter that is not installed is named, not forgotten.
# SPDX-License-Identifier: MIT
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: scripts/lint.sh [--fix] [format] [tidy] [shell] [tree]
  format   clang-format over every own source (--fix rewrites them)
  tidy     clang-tidy over the headers, one unit per folder, and over programs when build/test is configured
  shell    shellcheck over the scripts
  tree     rules of the tree: who may include what, header shape, version copies
scripts/deps.sh --lint installs the linters.
TEXT
}

fix=no
checks=()
for argument in "$@"; do
    case $argument in
    --fix) fix=yes ;;
    format | tidy | shell | tree) checks+=("$argument") ;;
    -h | --help) usage && exit 0 ;;
    *)
        echo "lint.sh: unknown argument $argument" >&2
        usage >&2
        exit 2
        ;;
    esac
done
((${#checks[@]} > 0)) || checks=(format tidy shell tree)

cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
jobs=$(nproc)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# tool NAME: the release that the style was written for where it is installed, else any. Releases differ in detail.
tool() { command -v "$1-14" || command -v "$1" || true; }

# files PATTERN...: own files, generated ones and build folders left out.
files() {
    local names=() pattern
    for pattern in "$@"; do names+=(-o -name "$pattern"); done
    find . \( -name .git -o -name 'build*' \) -prune -o -type f \( "${names[@]:1}" \) -print | sed 's|^\./||' | sort
}

skip() {
    echo "  skipped: $1"
    skipped+=("$check")
}

check_format() {
    local format sources
    format=$(tool clang-format)
    [[ -n $format ]] || { skip "clang-format is not installed" && return; }
    "$format" --version | sed 's/^/  /'
    mapfile -t sources < <(files '*.hpp' '*.cpp')
    if [[ $fix == yes ]]; then
        "$format" -i "${sources[@]}"
    else
        printf '%s\0' "${sources[@]}" | xargs -0 -P "$jobs" -n 16 "$format" --dry-run -Werror
    fi
}

# The headers of one folder make one translation unit: shared headers are parsed once per folder, folders in parallel.
check_tidy() {
    local tidy folder unit header flags eigen=() status=0
    tidy=$(tool clang-tidy)
    [[ -n $tidy ]] || { skip "clang-tidy is not installed" && return; }
    "$tidy" --version | grep -i version | sed 's/^ */  /'
    if flags=$(pkg-config --cflags eigen3 2>/dev/null); then read -ra eigen <<<"${flags//-I/-isystem }"; fi
    while read -r folder; do
        unit=$work/${folder//\//_}.cpp
        for header in "$folder"/*.hpp; do
            case $header in
            */uring_file.hpp) pkg-config --exists 'liburing >= 2.3' 2>/dev/null || { echo "  no liburing: $header left out" && continue; } ;;
            */tls_stream.hpp) pkg-config --exists 'openssl >= 3' 2>/dev/null || { echo "  no OpenSSL: $header left out" && continue; } ;;
            */calibration/fit/*) pkg-config --exists eigen3 2>/dev/null || { echo "  no Eigen: $header left out" && continue; } ;;
            esac
            echo "#include <${header#include/}>"
        done >"$unit"
    done < <(find include -name '*.hpp' -printf '%h\n' | sort -u)
    # -march=native: on x86-64 the kernels for wider vectors would not be looked at otherwise.
    find "$work" -name '*.cpp' -print0 |
        xargs -0 -P "$jobs" -I UNIT "$tidy" --quiet --config-file=.clang-tidy UNIT -- -std=c++20 -Iinclude \
            -march=native -fno-exceptions -fno-rtti "${eigen[@]}" 2>"$work/stderr" || status=1
    # On standard error clang-tidy only counts what it kept to itself; what went wrong apart from that is said here.
    grep -vE '^[0-9]+ (warning|error)|^Error while processing|^Suppressed|^Use -' "$work/stderr" >&2 || true
    if [[ -f build/test/compile_commands.json ]]; then
        # bench/train_gates is built by hand, for one kind of processor.
        { find examples bench -path bench/train_gates -prune -o -name '*.cpp' -print0 2>/dev/null || true; } |
            xargs -0 -r -P "$jobs" -n 1 "$tidy" --quiet -p build/test 2>/dev/null || status=1
    else
        echo "  programs left out: they need a configured build/test (cmake --preset test)"
    fi
    return "$status"
}

check_shell() {
    local scripts
    command -v shellcheck >/dev/null || { skip "shellcheck is not installed" && return; }
    mapfile -t scripts < <(files '*.sh')
    shellcheck .ci/run "${scripts[@]}"
}

check_tree() {
    bash tests/consumer/tree_rules.sh . | sed 's/^/  /'
    return "${PIPESTATUS[0]}"
}

failed=()
skipped=()
for check in "${checks[@]}"; do
    echo "$check"
    start=$(date +%s%N)
    # Not `if "check_$check"`: that would switch off `set -e` inside; each check returns its own status instead.
    set +e
    "check_$check"
    status=$?
    set -e
    ((status == 0)) || failed+=("$check")
    outcome=passed
    ((status == 0)) || outcome=FAILED
    printf '  %s after %d ms\n' "$outcome" $((($(date +%s%N) - start) / 1000000))
done

((${#skipped[@]} == 0)) || echo "skipped: ${skipped[*]} (scripts/deps.sh --lint installs what is missing)"
if ((${#failed[@]} > 0)); then
    echo "failed: ${failed[*]}"
    exit 1
fi
