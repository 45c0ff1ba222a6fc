#!/usr/bin/env bash
# kvtl-tune: what it writes, how it fails (status, one clear line), and that nothing is left behind.
#
#   tune_errors.sh KVTL-TUNE EXAMPLES/DATA
# SPDX-License-Identifier: MIT
here=$(dirname "$(realpath "$0")")
program=$(realpath "$1") data=$(realpath "$2")
# shellcheck source=tests/support/expect.sh
. "$here/../support/expect.sh"

printf 'x' >foreign.gguf
base=(--shape tiny-2k --memory-mib 8 --max-context 4096 --attend-tokens 64 --io memory --file-mib 32)

one_line "no single shape: give one of -m FILE, --shape NAME" --memory-mib 8
one_line "no single shape" "${base[@]}" --layers 2
one_line "unknown shape 'huge'; valid: " "${base[@]}" --shape huge
one_line "unknown shape 'tiny2k'; did you mean 'tiny-2k'? valid: " "${base[@]}" --shape tiny2k
one_line "--sgima-max; did you mean '--sigma-max'?" "${base[@]}" --sgima-max 4
one_line "unknown device 'emcc'; did you mean 'emmc'? valid: native, emmc, nvme, ufs31, ufs40" "${base[@]}" --device emcc
one_line "shape.head_dim is 0; valid: 1 to 65536" --memory-mib 8 --layers 2 --query-heads 4 --kv-heads 2
one_line "foreign.gguf" --memory-mib 8 -m foreign.gguf
one_line "--memory-mib: valid: more than 0" "${base[@]}" --memory-mib 0
one_line "memory of 104857 bytes: batch 1 of 1 at context 4096 needs " "${base[@]}" --memory-mib 0.1
one_line "--batch: '0'; valid: whole numbers from 1 to 1024" "${base[@]}" --batch 1,0
one_line "--batch: 'x'" "${base[@]}" --batch x
one_line "--batch: no number given" "${base[@]}" --batch ""
one_line "--max-context: '-5'; valid: whole numbers from 1 to 16777216" "${base[@]}" --max-context=-5
one_line "--attend-tokens is 0; valid: 1 to 65536" "${base[@]}" --attend-tokens 0
one_line "--sigma-max is 0; valid: 1 to 1024" "${base[@]}" --sigma-max 0
one_line "--group-max is 0; valid: 1 to 256" "${base[@]}" --group-max 0
one_line "--alpha is 2; valid: 0 to 1" "${base[@]}" --alpha 2
one_line "--alpha is nan; valid: 0 to 1" "${base[@]}" --alpha nan
one_line "--delta is 0; valid: 1 to 65536" "${base[@]}" --delta 0
one_line "--layer-us is -1; valid: 0 to 1e+09" "${base[@]}" --layer-us=-1
one_line "--file-mib is 1; valid: 16 to" "${base[@]}" --file-mib 1
one_line "unknown device 'tape'; valid: uring, posix, memory" "${base[@]}" --io tape
one_line "--device: unknown device 'floppy'; valid: native, emmc, nvme, ufs31, ufs40" "${base[@]}" --device floppy
one_line "--path: the path is empty" "${base[@]}" --io posix --path ""
one_line "nowhere/a.kv" "${base[@]}" --io posix --path nowhere/a.kv
one_line "trace nothing.trace: No such file" "${base[@]}" --trace nothing.trace
one_line "trace foreign.gguf: not a trace" "${base[@]}" --trace foreign.gguf
one_line "--json: cannot write nowhere/a.json" "${base[@]}" --json nowhere/a.json
expect 0 "" --help
expect 0 "" --version
expect 0 "kvtl-tune: tiny-2k (6 layers, 4 query heads, 2 KV heads of 64), kvswap, 8 MiB, native device by memory" "${base[@]}" --batch 1,2
[ "$(grep -Ec '^ +[12] +4096( +[0-9]+){5} +[0-9.]+ +[0-9]+ +(hidden|wait)$' out)" -eq 2 ] || complain "not a line for each batch"
read -r _ _ _ rank group groups _ < <(grep -E '^ +2 +4096' out)
grep -qx -- "--attend-tokens $(((groups + 1) * group)) --memory-mib 8 --set kvswap.clusterer.group_tokens=$group \
--set kvswap.cache.window_tokens=$group --set kvswap.index.rank=$rank" out || complain "no options for batch 2"
grep -q -- "^--attend-tokens [0-9]* --memory-mib 4 --set " out || complain "no options for batch 1"
expect 0 "--set kvswap.index.rank=" "${base[@]}" --batch 1,2 --json -
for key in '"device":"native"' '"alpha":0.1' '"delta":1' '"entries":[{"batch":1,"context":4096,' '"sigma"' '"rank"' \
    '"group_tokens"' '"groups"' '"reuse_slots"' '"memory_bytes":{"adapter"' '"predicted_us"'; do
    grep -qF "$key" out || complain "no $key in the JSON"
done
expect 0 "kvtl-tune: tiny-2k.gguf (6 layers" "${base[@]}" -m "$data/tiny-2k.gguf" --shape "" --max-context 2048

finish
