#!/usr/bin/env bash
# kvtl-calibrate: what it writes, how it fails (status, one clear line), and that nothing is left behind.
#
#   calibrate_errors.sh KVTL-CALIBRATE EXAMPLES/DATA
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
head -c 3000 "$data/prose.txt" >text.txt
: >empty.txt
printf 'x' >foreign.gguf
base=(-m "$data/tiny-2k.gguf" -f text.txt -o a.cal)

expect 2 "no model: give one with -m FILE" -f text.txt -o a.cal
expect 2 "no text: give one with -f FILE" -m x.gguf -o a.cal
expect 2 "no output: give a file with -o FILE" -m x.gguf -f text.txt
expect 2 "no output" -m x.gguf -f text.txt -o -
expect 2 "--nonsense" "${base[@]}" --nonsense
expect 2 "--rank is 129; valid for this model: 1 to 128" "${base[@]}" --rank 129
expect 2 "--channels is 33; valid for this model: 1 to 32" "${base[@]}" --channels 33
expect 2 "--rank" "${base[@]}" --rank -1
expect 2 "--max-tokens is 0; valid: 1 or more" "${base[@]}" --max-tokens 0
expect 2 "--piece-tokens is 0; valid: 1 or more" "${base[@]}" --piece-tokens 0
expect 2 "--threads is 0; valid: 1 to 256" "${base[@]}" --threads 0
expect 2 "the text empty.txt is empty" "${base[@]}" -f empty.txt
expect 2 "cannot read text nothing.txt: No such file" "${base[@]}" -f nothing.txt
expect 2 "cannot read text .: Is a directory" "${base[@]}" -f .
expect 2 "foreign.gguf" "${base[@]}" -m foreign.gguf
expect 2 "--output: cannot write nowhere/a.cal" "${base[@]}" -o nowhere/a.cal
expect 2 "--json: cannot write nowhere/a.json" "${base[@]}" --json nowhere/a.json
expect 2 "--gates: cannot write nowhere/a.gates" "${base[@]}" --gates nowhere/a.gates
expect 2 "--gates: weights need a file" "${base[@]}" --gates -
expect 2 "too short to fit gates of 512 inputs" "${base[@]}" --max-tokens 600 --gates a.gates
expect 0 "" --help
expect 0 "" --version

# A run: the file, the JSON, and the same bytes again.
"$run" "${base[@]}" --rank 16 --max-tokens 600 --query-map --json a.json 2>err || complain "no calibration"
# header and table, adapter 16 x 128, two bases 2 x 64 x 64, 2 x 8 pairs, five maps 256 x 256; 6 layers
bytes=$((6 * 64 + 6 * 16 * 128 * 4 + 2 * 6 * 2 * 64 * 64 * 4 + 6 * 2 * 8 * 4 + 5 * 256 * 256 * 4))
[ "$(wc -c <a.cal)" -eq "$bytes" ] || complain "a.cal has $(wc -c <a.cal) bytes instead of $bytes"
for key in '"tokens":600' '"rank":16' '"adapter_energy"' '"pca_energy_quarter"' '"pre_rope":false'; do
    grep -qF "$key" a.json || complain "no $key in the JSON"
done
"$run" "${base[@]}" -o b.cal --rank 16 --max-tokens 600 --query-map --threads 1 2>err || complain "no second one"
cmp -s a.cal b.cal || complain "a second run gave other bytes"
"$run" "${base[@]}" -o c.cal --rank 16 --max-tokens 600 --query-map --pre-rope 2>err || complain "no pre-RoPE one"
! cmp -s a.cal c.cal || complain "--pre-rope changed nothing"
# gates: header, then for each of 6 layers 2 heads of 512 inputs and a constant
"$run" "${base[@]}" -f "$data/prose.txt" --max-tokens 2048 --gates a.gates 2>err || complain "no gates"
bytes=$((40 + 6 * 2 * (512 + 1) * 4))
[ "$(wc -c <a.gates)" -eq "$bytes" ] || complain "a.gates has $(wc -c <a.gates) bytes instead of $bytes"

[ "$failures" -eq 0 ]
