#!/usr/bin/env bash
# Installs what is missing, builds everything with gcc and -O1 (tests: -Og) into build/test, and runs every test. May be
# called from any folder and repeatedly; a second run builds only what changed.
#   scripts/test.sh [ARGUMENTS OF CTEST...]        e.g. scripts/test.sh -R io/   or   scripts/test.sh -L package
# SPDX-License-Identifier: MIT
set -euo pipefail

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    echo "usage: scripts/test.sh [ARGUMENTS OF CTEST...]"
    echo "Builds the preset \`test\` in build/test and runs every test, or those that the arguments select."
    exit 0
fi

cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
scripts/deps.sh
scripts/deps.sh --site || echo "test.sh: going on without cmark-gfm: the test of the site is skipped" >&2
# Where llama.cpp cannot be fetched the rest is built and tested, unless that would hide something.
if ! scripts/deps.sh --llama; then
    [[ -z ${CI:-} && ! -e build/llama.cpp ]] || exit 1
    echo "test.sh: going on without llama.cpp: kvtl-llama and its tests are left out" >&2
fi
scripts/deps.sh --clients ||
    echo "test.sh: going on without a client or a browser: the tests that need them say so" >&2
jobs=$(nproc)
cmake --preset test
cmake --build --preset test --parallel "$jobs"
# One more than cores: some tests wait for a disk, a deadline or a server.
ctest --preset test --parallel "$((jobs + 1))" "$@"
