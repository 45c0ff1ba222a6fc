#!/usr/bin/env bash
# Installs what is missing, builds kvtl-demo into build/demo, and lets every policy answer questions about documents that
# are longer than the memory it may use, with the KV cache in a file. May be called from any folder and repeatedly; a
# second run builds only what changed.
#   scripts/demo.sh [ARGUMENTS OF kvtl-demo...]        e.g. scripts/demo.sh --questions 50 --attend-tokens 128
# The table goes to standard output, all else to standard error.
# SPDX-License-Identifier: MIT
set -euo pipefail

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    cat <<'TEXT'
usage: scripts/demo.sh [ARGUMENTS OF kvtl-demo...]
Builds kvtl-demo in build/demo and prints a table: what each policy answers, and what its KV cache costs.
  --questions N       how many (20), each about its own document of --tokens N (1500) tokens
  --policies A,B      some of the policies only; --list-policies prints their names
  --facts N           in each document (1), one of which is asked for
  --attend-tokens N   entries each head may attend per step (256)
  --memory-mib X      memory for the cache (3)
  --io NAME           uring, posix or memory
  --kv-path FILE      where the cache file is; it is removed at the end
  --json FILE         the rows as JSON
All options, once it is built: build/demo/bin/kvtl-demo --help
TEXT
    exit 0
fi

root=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/..
root=$(cd "$root" && pwd)
build=$root/build/demo
"$root/scripts/deps.sh"

# A folder that exists keeps the generator it was configured with.
generator=()
[[ -f $build/CMakeCache.txt ]] || generator=(-G Ninja)
cmake -S "$root" -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DKVTL_PRESETS=demo \
    -DKVTL_BUILD_EXAMPLES=ON -DKVTL_BUILD_TESTS=OFF -DKVTL_BUILD_BENCH=OFF >&2
cmake --build "$build" --target kvtl_demo --parallel "$(nproc)" >&2

# The cache belongs on a disk; a temporary folder may be memory.
exec "$build/bin/kvtl-demo" --model "$root/examples/data/tiny-2k.gguf" --data "$root/examples/data/prose.txt" \
    --kv-path "$build/kvtl-demo-$$.kv" "$@"
