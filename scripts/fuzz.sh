#!/usr/bin/env bash
# Builds the fuzz targets (clang, libFuzzer) and runs each of them; ends with 1 at the first finding, and prints it.
#
#   scripts/fuzz.sh [SECONDS [TARGET...]]     60 seconds for each target of tests/fuzz/
#
# Corpora grow in build/fuzz/corpus/TARGET, and findings are build/fuzz/crash-TARGET-*. `build/fuzz/bin/replay_TARGET FILE`
# runs one input again.
# SPDX-License-Identifier: MIT
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
[[ $seconds =~ ^[1-9][0-9]*$ ]] || { echo "fuzz.sh: SECONDS is '$seconds'; valid: a whole number from 1" >&2; exit 2; }
shift $(($# > 0))
cmake --preset fuzz >/dev/null
cmake --build --preset fuzz
(($# > 0)) || for program in build/fuzz/bin/fuzz_*; do set -- "$@" "${program##*/fuzz_}"; done
for target; do
    corpus=build/fuzz/corpus/$target
    mkdir -p "$corpus"
    build/fuzz/bin/replay_"$target" --corpus "$corpus"
    log=build/fuzz/$target.log
    if ! build/fuzz/bin/fuzz_"$target" "$corpus" -max_len=65536 -max_total_time="$seconds" -timeout=60 -rss_limit_mb=2048 \
        -artifact_prefix=build/fuzz/crash-"$target"- -print_final_stats=1 >"$log" 2>&1; then
        cat "$log"
        exit 1
    fi
    echo "$target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs"
done
