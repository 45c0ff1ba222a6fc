#!/usr/bin/env bash
# kvtl-tune: what it writes, how it fails (status, one clear line), and that nothing is left behind.
#
#   tune_errors.sh KVTL-TUNE EXAMPLES/DATA
# SPDX-License-Identifier: MIT
set -u
run=$(realpath "$1") data=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0
complain() {
    echo "FAILED: $*"
    sed 's/^/    stderr: /' err
    failures=$((failures + 1))
}

# expect STATUS TEXT ARGUMENT...: the status, the text within standard error, and no file that was not there before.
expect() {
    local status=$1 text=$2 before after got
    shift 2
    before=$(ls)
    "$run" "$@" >out 2>err </dev/null
    got=$?
    after=$(ls)
    [ "$got" -eq "$status" ] || complain "exit status $got instead of $status: $*"
    [ -z "$text" ] || grep -qF -- "$text" err || complain "no '$text': $*"
    [ "$status" -eq 0 ] || [ "$(wc -l <err)" -eq 1 ] || complain "more than one line: $*"
    [ "$before" = "$after" ] || complain "left behind [$after]: $*"
}
touch out err
printf 'x' >foreign.gguf
base=(--shape tiny-2k --memory-mib 8 --max-context 4096 --attend-tokens 64 --io memory --file-mib 32)

expect 2 "no single shape: give one of -m FILE, --shape NAME" --memory-mib 8
expect 2 "no single shape" "${base[@]}" --layers 2
expect 2 "unknown shape 'huge'; valid: " "${base[@]}" --shape huge
expect 2 "shape.head_dim is 0; valid: 1 to 65536" --memory-mib 8 --layers 2 --query-heads 4 --kv-heads 2
expect 2 "foreign.gguf" --memory-mib 8 -m foreign.gguf
expect 2 "--memory-mib: valid: more than 0" "${base[@]}" --memory-mib 0
expect 2 "memory of 104857 bytes: batch 1 of 1 at context 4096 needs " "${base[@]}" --memory-mib 0.1
expect 2 "--batch: '0'; valid: whole numbers from 1 to 1024" "${base[@]}" --batch 1,0
expect 2 "--batch: 'x'" "${base[@]}" --batch x
expect 2 "--batch: no number given" "${base[@]}" --batch ""
expect 2 "--max-context: '-5'; valid: whole numbers from 1 to 16777216" "${base[@]}" --max-context=-5
expect 2 "--attend-tokens is 0; valid: 1 to 65536" "${base[@]}" --attend-tokens 0
expect 2 "--sigma-max is 0; valid: 1 to 1024" "${base[@]}" --sigma-max 0
expect 2 "--group-max is 0; valid: 1 to 256" "${base[@]}" --group-max 0
expect 2 "--alpha is 2; valid: 0 to 1" "${base[@]}" --alpha 2
expect 2 "--alpha is nan; valid: 0 to 1" "${base[@]}" --alpha nan
expect 2 "--delta is 0; valid: 1 to 65536" "${base[@]}" --delta 0
expect 2 "--layer-us is -1; valid: 0 to 1e+09" "${base[@]}" --layer-us=-1
expect 2 "--file-mib is 1; valid: 16 to" "${base[@]}" --file-mib 1
expect 2 "unknown device 'tape'; valid: uring, posix, memory" "${base[@]}" --io tape
expect 2 "--device: unknown device 'floppy'; valid: native, emmc, nvme, ufs31, ufs40" "${base[@]}" --device floppy
expect 2 "--path: the path is empty" "${base[@]}" --io posix --path ""
expect 2 "nowhere/a.kv" "${base[@]}" --io posix --path nowhere/a.kv
expect 2 "trace nothing.trace: No such file" "${base[@]}" --trace nothing.trace
expect 2 "trace foreign.gguf: not a trace" "${base[@]}" --trace foreign.gguf
expect 2 "--json: cannot write nowhere/a.json" "${base[@]}" --json nowhere/a.json
expect 0 "" --help
expect 0 "" --version
expect 0 "batch 2, context 4096: sigma " "${base[@]}" --batch 1,2
for key in '"device":"native"' '"alpha":0.1' '"delta":1' '"entries":[{"batch":1,"context":4096,' '"sigma"' '"rank"' \
    '"group_tokens"' '"groups"' '"reuse_slots"' '"memory_bytes":{"adapter"' '"predicted_us"'; do
    grep -qF "$key" out || complain "no $key in the JSON"
done
expect 0 "batch 1, context 2048: sigma " "${base[@]}" -m "$data/tiny-2k.gguf" --shape "" --max-context 2048

[ "$failures" -eq 0 ]
