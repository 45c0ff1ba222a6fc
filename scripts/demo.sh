#!/usr/bin/env bash
# Installs what is missing, builds kvtl-demo into build/demo, and lets every policy answer questions about documents whose
# KV cache is larger than the memory it may use and lies in a file. May be called from any folder and repeatedly; a
# second run builds only what changed.
#   scripts/demo.sh [ARGUMENTS OF kvtl-demo...]        e.g. scripts/demo.sh --questions 50 --attend-tokens 128
# The table goes to standard output, a report with plots to report.html in the current folder, all else to standard error.
# SPDX-License-Identifier: MIT
set -euo pipefail

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    cat <<'TEXT'
usage: scripts/demo.sh [ARGUMENTS OF kvtl-demo...]
Builds kvtl-demo in build/demo, prints a table (what each policy answers, and what its KV cache costs) and writes
report.html.
  --questions N       how many (20), each about its own document of --tokens N (1500) tokens
  --policies A,B      some of the policies only; --list-policies prints their names
  --facts N           in each document (1), one of which is asked for
  --attend-tokens N,M entries each head may attend per step: one or several (64,128)
  --memory-mib X      memory for the cache (3.25)
  --nll-tokens N      running text whose perplexity is measured (800); 0: none
  --io NAME           uring, posix or memory
  --kv-path FILE      where the cache file is; it is removed at the end
  --json FILE         the rows as JSON
  --html FILE         the report (report.html)
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
[[ -x $build/bin/kvtl-demo ]] || echo "demo.sh: building kvtl-demo with ten presets, up to 5 minutes on two cores" >&2
cmake --build "$build" --target kvtl_demo kvtl_calibrate --parallel "$(nproc)" >&2

# Bases of the keys for the policies that need some: fitted in a few seconds, and again when what they depend on changed.
data=$root/examples/data
calibration=$data/tiny-2k.cal
if [[ ! -f $calibration ]]; then
    calibration=$build/tiny-2k.cal
    for source in "$data/tiny-2k.gguf" "$data/prose.txt" "$build/bin/kvtl-calibrate"; do
        [[ $calibration -nt $source ]] && continue
        "$build/bin/kvtl-calibrate" -m "$data/tiny-2k.gguf" -f "$data/prose.txt" -o "$calibration.new" \
            --threads "$(nproc)" >&2
        mv "$calibration.new" "$calibration"
        break
    done
fi

report=report.html
[[ -w . ]] || report=$build/report.html
# The cache belongs on a disk; a temporary folder may be memory.
exec "$build/bin/kvtl-demo" --model "$data/tiny-2k.gguf" --data "$data/prose.txt" --calibration "$calibration" \
    --attend-tokens 64,128 --html "$report" --kv-path "$build/kvtl-demo-$$.kv" "$@"
