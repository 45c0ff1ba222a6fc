#!/usr/bin/env bash
# kvtl-calibrate: what it writes, how it fails (status, one clear line), and that nothing is left behind.
#
#   calibrate_errors.sh KVTL-CALIBRATE EXAMPLES/DATA KVTL-RUN
# SPDX-License-Identifier: MIT
here=$(dirname "$(realpath "$0")")
program=$(realpath "$1") data=$(realpath "$2") run=$(realpath "$3")
# shellcheck source=tests/support/expect.sh
. "$here/../support/expect.sh"

head -c 3000 "$data/prose.txt" >text.txt
: >empty.txt
printf 'x' >foreign.gguf
base=(-m "$data/tiny-2k.gguf" -f text.txt -o a.cal)

one_line "two models: foreign.gguf and -m " "${base[@]}" foreign.gguf
one_line "not a GGUF file" foreign.gguf -f text.txt -o a.cal
one_line "no text: give one with -f FILE, or a trace of your own keys with --trace FILE" -m x.gguf -o a.cal
one_line "no text" -o a.cal # the model is the embedded one
one_line "--piece-token; did you mean '--piece-tokens'?" "${base[@]}" --piece-token 5
one_line "no output: give a file with -o FILE" -m x.gguf -f text.txt
one_line "no output" -m x.gguf -f text.txt -o -
one_line "--nonsense" "${base[@]}" --nonsense
one_line "--rank is 129; valid for this model: 1 to 128" "${base[@]}" --rank 129
one_line "--channels is 33; valid for this model: 1 to 32" "${base[@]}" --channels 33
one_line "--rank" "${base[@]}" --rank -1
one_line "--max-tokens is 0; valid: 1 or more" "${base[@]}" --max-tokens 0
one_line "--piece-tokens is 0; valid: 1 or more" "${base[@]}" --piece-tokens 0
one_line "--threads is 0; valid: 1 to 256" "${base[@]}" --threads 0
one_line "the text empty.txt is empty" "${base[@]}" -f empty.txt
one_line "cannot read text nothing.txt: No such file" "${base[@]}" -f nothing.txt
one_line "cannot read text .: Is a directory" "${base[@]}" -f .
one_line "foreign.gguf" "${base[@]}" -m foreign.gguf
one_line "--output: cannot write nowhere/a.cal" "${base[@]}" -o nowhere/a.cal
one_line "--json: cannot write nowhere/a.json" "${base[@]}" --json nowhere/a.json
one_line "--gates: cannot write nowhere/a.gates" "${base[@]}" --gates nowhere/a.gates
one_line "--gates: weights need a file" "${base[@]}" --gates -
one_line "--votes: cannot write nowhere/a.votes" "${base[@]}" --votes nowhere/a.votes
one_line "--votes: votes need a file" "${base[@]}" --votes -
one_line "--drift-tokens: valid: with --votes" "${base[@]}" --drift-tokens 100
one_line "--drift-power: valid: above 0, up to 16" "${base[@]}" --votes a.votes --drift-tokens 100 --drift-power 0
one_line "--drift-power: valid: with --drift-tokens" "${base[@]}" --votes a.votes --drift-power 2
one_line "--drift-tokens is 600; valid: less than the 600 tokens of a piece of the text" "${base[@]}" --max-tokens 600 --votes a.votes --drift-tokens 600
mkfifo pipe
one_line "--output: pipe is there and no regular file" "${base[@]}" -o pipe
one_line "--gates: pipe is there and no regular file" "${base[@]}" --gates pipe
one_line "--output: /dev/null is there and no regular file" "${base[@]}" -o /dev/null
[ -p pipe ] || complain "a pipe was replaced"
rm pipe
one_line "--votes: 200 tokens of the text are used; valid: 257 or more" "${base[@]}" --max-tokens 200 --votes a.votes
one_line "--piece-tokens: pieces have 256 tokens; valid with --votes: 289 or more" "${base[@]}" --piece-tokens 256 --votes a.votes
one_line "too short to fit gates of 512 inputs" "${base[@]}" --max-tokens 600 --gates a.gates
expect 0 "" --help
expect 0 "" --version

# A run: the file, the JSON, and the same bytes again.
"$program" "${base[@]}" --rank 16 --max-tokens 600 --query-map --json a.json 2>err || complain "no calibration"
# header and table, adapter 16 x 128, four bases and sizes of values 2 x 64 x 64, two 128 x 128, 2 x 8 pairs, five maps 256 x
# 256, ranges and levels 2 x 128 + 28 and 28 in whole 64 bytes; 6 layers
bytes=$((13 * 64 + 6 * 16 * 128 * 4 + 5 * 6 * 2 * 64 * 64 * 4 + 2 * 6 * 128 * 128 * 4 + 6 * 2 * 8 * 4 + 5 * 256 * 256 * 4 + 6848 + 704))
[ "$(wc -c <a.cal)" -eq "$bytes" ] || complain "a.cal has $(wc -c <a.cal) bytes instead of $bytes"
grep -qx "kvtl-calibrate: tiny-2k.gguf (6 layers, 4 query heads, 2 KV heads of 64), 2 threads" err || complain "no header"
for key in '"tokens":600' '"rank":16' '"adapter_energy"' '"pca_energy_quarter"' '"pre_rope":false'; do
    grep -qF "$key" a.json || complain "no $key in the JSON"
done
"$program" "${base[@]}" -o b.cal --rank 16 --max-tokens 600 --query-map --threads 1 2>err || complain "no second one"
cmp -s a.cal b.cal || complain "a second run gave other bytes"
"$program" "${base[@]}" -o c.cal --rank 16 --max-tokens 600 --query-map --pre-rope 2>err || complain "no pre-RoPE one"
! cmp -s a.cal c.cal || complain "--pre-rope changed nothing"
# Without the bases of whole entries: four kinds less.
"$program" "${base[@]}" -o d.cal --rank 16 --max-tokens 600 --query-map --no-entries 2>err || complain "no --no-entries"
bytes=$((7 * 64 + 6 * 16 * 128 * 4 + 3 * 6 * 2 * 64 * 64 * 4 + 6 * 2 * 8 * 4 + 5 * 256 * 256 * 4))
[ "$(wc -c <d.cal)" -eq "$bytes" ] || complain "d.cal has $(wc -c <d.cal) bytes instead of $bytes"
# votes: one of four heads in each of six layers, and what an eviction costs the layer
"$program" "${base[@]}" --max-tokens 600 --votes a.votes 2>err || complain "no votes"
grep -Eqx 'kvtl-votes 1 model [0-9a-f]{16} layers 6 query_heads 4' a.votes || complain "no header of votes"
[ "$(tail -n +2 a.votes | grep -Ecx '(0 )*1 (0 )*0\.[0-9]+')" -eq 6 ] || complain "not one vote in each of six layers"
# Layers by the drift of their keys: none in the first one, whose keys see no other token.
"$program" "${base[@]}" --max-tokens 600 --votes b.votes --drift-tokens 100 2>err || complain "no drift"
[ "$(tail -n +3 b.votes | grep -Ec ' 0\.[0-9]+$')" -eq 5 ] || complain "five layers do not drift"
awk 'NR == 2 && $NF > 1e-6 { exit 1 }' b.votes || complain "the first layer drifts"
# gates: header, then for each of 6 layers 2 heads of 512 inputs and a constant
"$program" "${base[@]}" -f "$data/prose.txt" --max-tokens 2048 --gates a.gates 2>err || complain "no gates"
bytes=$((40 + 6 * 2 * (512 + 1) * 4))
[ "$(wc -c <a.gates)" -eq "$bytes" ] || complain "a.gates has $(wc -c <a.gates) bytes instead of $bytes"

# From a recorded trace: what the model gives on the same tokens, of as many kinds but one, with the same fingerprint.
"$run" -m "$data/tiny-2k.gguf" -f text.txt -n 2 --policy full --io memory --record-trace own.trace >out 2>err || complain "no trace"
"$program" --trace own.trace -o t.cal --rank 16 --max-tokens 600 --query-map --json t.json 2>err || complain "no fit to a trace"
grep -qx "kvtl-calibrate: own.trace (6 layers, 4 query heads, 2 KV heads of 64)" err || complain "no header of the trace"
sizes=$((64 + 6 * 2 * 64 * 64 * 4)) # of values, which need the weights of the model
[ $(($(wc -c <t.cal) + sizes)) -eq "$(wc -c <b.cal)" ] || complain "t.cal has $(wc -c <t.cal) bytes, b.cal $(wc -c <b.cal)"
number() { sed -E "s/.*\"$1\":([^,}]*).*/\1/" "$2"; } # of the last layer, or the only one
for key in fingerprint pair_distance tokens rank; do
    [ "$(number $key a.json)" = "$(number $key t.json)" ] || complain "$key is $(number $key t.json) of the trace, $(number $key a.json) of the model"
done
for key in adapter_energy pca_energy_quarter skew_energy_quarter joint_keys_energy_quarter query_map_energy; do
    awk -v a="$(number $key a.json)" -v b="$(number $key t.json)" 'BEGIN { d = a - b; exit !(a > 0.1 && d < 0.01 && d > -0.01) }' ||
        complain "$key: $(number $key t.json) of the trace, $(number $key a.json) of the model"
done
"$program" --trace own.trace --trace own.trace -o t2.cal --rank 16 --max-tokens 600 --query-map 2>err || complain "no fit to two"
cmp -s t.cal t2.cal || complain "600 tokens of two traces are not those of the first"

trace=(-o x.cal --trace)
poke() { cp own.trace "$1" && printf '%b' "$3" | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null; } # FILE OFFSET BYTES
head -c 100000 own.trace >cut.trace
: >empty.trace
poke version.trace 8 '\x09'
poke nan.trace 4096 '\xff\xff'
poke layers.trace 16 '\x03'
poke bare.trace 12 '\x0c' # neither q nor v, nor keys before RoPE
poke none.trace 24 '\x00'
poke other.trace 56 '\x01'
one_line "trace nothing.trace: No such file" "${trace[@]}" nothing.trace
one_line "trace .: not a regular file" "${trace[@]}" .
one_line "trace cut.trace: cut short: 100000 bytes for" "${trace[@]}" cut.trace
one_line "trace empty.trace: empty; expected a trace of version 1" "${trace[@]}" empty.trace
one_line "trace text.txt: not a trace" "${trace[@]}" text.txt
one_line "trace version.trace: version 9; valid: 1" "${trace[@]}" version.trace
one_line "trace nan.trace: token 0, layer 0: a number is not finite" "${trace[@]}" nan.trace
one_line "trace none.trace: shape.kv_heads is 0; valid: 1 to 65536" "${trace[@]}" none.trace
one_line "layers.trace has 3 layers, 4 query heads, 2 KV heads of 64; expected 6 layers" "${trace[@]}" own.trace --trace layers.trace
one_line "trace other.trace is of another model than own.trace" "${trace[@]}" own.trace --trace other.trace
one_line "trace bare.trace has no keys before RoPE, which are needed here" "${trace[@]}" bare.trace --pre-rope
one_line "trace bare.trace has no queries, which are needed here" "${trace[@]}" bare.trace --query-map
one_line "too short to fit gates of 512 inputs" "${trace[@]}" own.trace --max-tokens 600 --gates x.gates
one_line "--rank is 129; valid for this model: 1 to 128" "${trace[@]}" own.trace --rank 129
one_line "--trace: valid: without --model, since no model is run" "${trace[@]}" own.trace -m "$data/tiny-2k.gguf"
one_line "--trace: valid: without MODEL, since no model is run" "${trace[@]}" own.trace "$data/tiny-2k.gguf"
one_line "--trace: valid: without --file, since no model is run" "${trace[@]}" own.trace -f text.txt
one_line "no output: give a file with -o FILE" --trace own.trace

finish
