#!/usr/bin/env bash
# How kvtl-run fails: exit status, one clear line on standard error, and nothing left behind.
#
#   run_errors.sh KVTL-RUN MAKE-MODEL MODEL.gguf POLICY
# SPDX-License-Identifier: MIT
here=$(dirname "$(realpath "$0")")
program=$(realpath "$1") make_model=$(realpath "$2") model=$(realpath "$3") policy=$4
# shellcheck source=tests/support/expect.sh
. "$here/../support/expect.sh"

"$make_model" qwen3 q8_0 good.gguf
head -c 50000 good.gguf >cut.gguf
echo "this is no model" >foreign.gguf
sed 's/qwen3/bloom/g' good.gguf >architecture.gguf
sed 's/blk\.1\.attn_q\.weight/blk.1.attn_z.weight/' good.gguf >tensor.gguf
: >empty.txt
base=(-m good.gguf -p "the thing" -n 4 --policy "$policy" --io posix)

# bad usage
one_line "two models: cut.gguf and -m good.gguf" "${base[@]}" cut.gguf
one_line "not expected: cut.gguf" good.gguf cut.gguf -p x
one_line "no prompt" -m good.gguf --policy "$policy"
one_line "no prompt" --policy "$policy" # the model is the embedded one
one_line "--file: - is standard input" -m good.gguf -i -f -
one_line "--record-trace: valid: without -i" "${base[@]}" -i --record-trace x.trace
one_line "--context: valid: 1 or more" "${base[@]}" -c 0
one_line "--context: valid: 1 to 512" "${base[@]}" -c 513
one_line "prompt of 5 tokens is longer than the context of 4" "${base[@]}" -c 4
one_line "--nonsense" "${base[@]}" --nonsense
one_line "--memory-mb; did you mean '--memory-mib'?" "${base[@]}" --memory-mb 4
one_line "--polcy=full; did you mean '--policy'?" "${base[@]}" --polcy=full
one_line "--file" "${base[@]}" -f empty.txt
one_line "unknown policy 'magic'; valid: " "${base[@]}" --policy magic
one_line "; kvtl-run --list-policies prints all" "${base[@]}" --policy magic
one_line "unknown policy '${policy}x'; did you mean '$policy'? valid: " "${base[@]}" --policy "${policy}x"
one_line "unknown device 'urnig'; did you mean 'uring'? valid: uring, posix, memory" "${base[@]}" --io urnig
one_line "valid: " "${base[@]}" --policy ""
one_line "unknown device 'tape'; valid: uring, posix, memory" "${base[@]}" --io tape
for value in "--predict -1" "--predict x" "--temp -1" "--temp nan" "--memory-mib 0" "--memory-mib -3" "--memory-mib inf" \
    "--threads 0" "--threads 100000" "--attend-tokens 0" "--attend-tokens -7" "--prefill-chunk 0" "--seed x" "--shards 3" \
    "--logits -1" "--predict 99999999999999999999"; do
    # shellcheck disable=SC2086
    one_line "${value%% *}" "${base[@]}" $value
done
for setting in nonsense a.b=1 .b.c=1 a.b.c a.b.c=; do
    one_line "POLICY.SLOT.FIELD=VALUE" "${base[@]}" --set "$setting"
done
one_line "--share-layers: 3; valid: 1 to 2 layers, or a list" "${base[@]}" --share-layers 3
one_line "--share-layers: 0; valid: 1 to 2 layers, or a list" "${base[@]}" --share-layers 0
one_line "--share-layers: 'x'; valid: a number of layers, or a layer for each" "${base[@]}" --share-layers 0,x
one_line "--share-layers: owner[1] is 2; valid: the layer itself or one before it" "${base[@]}" --share-layers 0,2
one_line "--keep-tokens: valid: 0, as policy $policy keeps every entry" "${base[@]}" --keep-tokens 64
one_line "--tuned: valid: with policy kvswap" "${base[@]}" --tuned missing.json
one_line "--probe: the text is empty" "${base[@]}" --probe ""
one_line "unknown policy 'magic'" "${base[@]}" --set magic.index.x=1
other=$("$program" --list-policies | grep -vx "$policy" | head -n 1)
[ -z "$other" ] || one_line "--set $other.cache.x=1: this policy does not run; valid: $policy" "${base[@]}" --set "$other.cache.x=1"
# products that the preset does not have: refused, or a note and a key that say which the cache has
if [ "$policy" = dynakv ]; then
    precision=dynakv.cache.precision
    one_line "--set $precision=fast: not a value of this field; valid: exact, relaxed, relaxed_if_available" "${base[@]}" --set "$precision=fast"
    one_line "; valid: 0, 1, false, true" "${base[@]}" --set dynakv.cache.adapt_prompt=often
    one_line "; valid: whole numbers up to 4294967295" "${base[@]}" --set dynakv.cache.window_tokens=-1
    one_line "valid: exact, or relaxed_if_available" "${base[@]}" --set "$precision=relaxed"
    expect 0 "note: dynakv has no relaxed products; exact: " "${base[@]}" --set "$precision=relaxed_if_available" --json -
    [ "$(grep -c "relaxed products" err)" -eq 1 ] || complain "the note is not there once"
    grep -q '"products":"exact: ' out || complain "no products in the JSON"
    expect 0 "" "${base[@]}" --set "$precision=exact" --json -
    if grep -q "relaxed products" err || ! grep -q '"products":"exact",' out; then complain "a note of what was asked for"; fi
fi

# files
one_line "No such file" "${base[@]}" -m missing.gguf
one_line "directory" "${base[@]}" -m .
one_line "truncated" "${base[@]}" -m cut.gguf
one_line "not a GGUF file" "${base[@]}" -m foreign.gguf
one_line "architecture 'bloom' is not supported; valid: " "${base[@]}" -m architecture.gguf
one_line "tensor 'blk.1.attn_q.weight' is missing" "${base[@]}" -m tensor.gguf
one_line "cannot read prompt file missing.txt" -m good.gguf -f missing.txt --policy "$policy"
one_line "cannot read prompt file ." -m good.gguf -f . --policy "$policy"
one_line "/dev/zero has more than 64 MiB" -m good.gguf -f /dev/zero --policy "$policy"
mkfifo pipe
one_line "cannot read model pipe: it is a FIFO; valid: a regular file" "${base[@]}" -m pipe
one_line "cannot read model /dev/zero: it is a character device" "${base[@]}" -m /dev/zero
if "$program" --list-policies | grep -qx kvswap; then
    one_line "--tuned: cannot read pipe: it is a FIFO" -m good.gguf -p x -n 1 --io posix --policy kvswap --tuned pipe
    one_line "--tuned: cannot read /dev/zero: it is a character device" -m good.gguf -p x -n 1 --io posix --policy kvswap \
        --tuned /dev/zero
fi
rm pipe

# a standard output that is full is a failure
if [ -w /dev/full ]; then
    "$program" "${base[@]}" >/dev/full 2>err </dev/null
    [ $? -eq 1 ] || complain "a full standard output is no failure"
    grep -q "cannot write to standard output" err || complain "nothing says that standard output is full"
fi
# a model that is cut short while it is read ends the program with one line, and no file stays
cp "$model" short.gguf
"$program" -m short.gguf -p "the thing" -n 1900 --ignore-eos --policy "$policy" --io posix --kv-path short.kv >/dev/null 2>err </dev/null &
running=$!
while kill -0 $running 2>/dev/null; do
    if grep -q "threads$" err; then : >short.gguf; fi # the header comes when all is open
    sleep 0.05
done
wait $running
status=$?
[ $status -eq 1 ] || complain "exit status $status of a model that was cut short"
grep -q "a file that is read in place, as the model is, was cut short" err || complain "nothing says that the model was cut short"
[ ! -e short.kv ] || complain "short.kv stays"
rm -f short.gguf short.kv
one_line "no/such/folder" "${base[@]}" --kv-path no/such/folder/x.kv
one_line "cannot write no/such/folder/out.json" "${base[@]}" --json no/such/folder/out.json

# prompts
one_line "the prompt is empty" "${base[@]}" -p ""
one_line "the prompt is empty" -m good.gguf -f empty.txt --policy "$policy"
one_line "the prompt is empty" -m good.gguf -f - --policy "$policy"
head -c 3000 /dev/zero | tr '\0' 'x' >long.txt
one_line "longer than the context of 512" -m good.gguf -f long.txt --policy "$policy"

# a cache file that is not ours is not touched
echo "precious" >precious.kv
one_line "precious.kv" "${base[@]}" --kv-path precious.kv
[ "$(cat precious.kv)" = precious ] || complain "a foreign file was changed"

# what works
expect 0 "" "${base[@]}"
[ -s out ] || complain "no text"
grep -Eq "^kvtl-run: good.gguf \([0-9]+ layers, .* of [0-9]+\), $policy, 64 MiB, posix( \(direct\))?, 2 threads$" err || complain "no header"
expect 0 "" "${base[@]}" --json - --logits 2
for key in policy io direct prompt_tokens tokens text prefill_s decode_s tokens_per_s stats resident_bytes_peak logits; do
    grep -q "\"$key\":" out || complain "no $key in the JSON"
done
grep -q '"share_by_part":' out || complain "no shares in the JSON"
expect 0 "" "${base[@]}" --least-memory
grep -Eq "^$policy: least memory [0-9]+ bytes, total .* of the raw cache of " out || complain "no least memory"
expect 0 "" "${base[@]}" --least-memory --json -
grep -q '"least_memory_bytes":' out || complain "no least memory in the JSON"
expect 0 "" "${base[@]}" --share-layers 2
[ -s out ] || complain "no text of layers that share"
expect 0 "" --help
grep -q -- "--attend-tokens" out || complain "--help says nothing"
expect 0 "" --version
grep -q "kvtl-run [0-9]" out || complain "--version says nothing"
expect 0 "" --list-policies
grep -qx "$policy" out || complain "--list-policies does not list $policy"
expect 0 "note: --predict 600 becomes " "${base[@]}" -n 600 --ignore-eos --json -
[ "$(grep -o '"tokens":\[[^]]*' out | tr ',' '\n' | wc -l)" -eq $((512 - $(grep -o '"prompt_tokens":[0-9]*' out | cut -d: -f2))) ] ||
    complain "--predict is not what the context has room for"
"$program" "${base[@]}" >by_option 2>err
for arguments in "good.gguf -f -" "good.gguf -m good.gguf -f -" "-m ./good.gguf good.gguf -f -"; do
    # shellcheck disable=SC2086
    printf 'the thing' | "$program" -n 4 --policy "$policy" --io posix $arguments >by_argument 2>err ||
        complain "exit status $?: $arguments"
    cmp -s by_option by_argument || complain "another text: $arguments"
done
"$program" -p "The king" -n 8 --policy "$policy" --io memory >embedded 2>err || complain "no model by default"
"$program" -m "$model" -p "The king" -n 8 --policy "$policy" --io memory 2>err | cmp -s - embedded ||
    complain "the model by default is another one"
rm by_option by_argument embedded
# a conversation: a turn costs its own tokens, the embedded model has no template, and what was said is in the JSON
printf 'The king went\nand the\n/rewind\n/exit\nnever read\n' | "$program" -m "$model" -i -n 6 --ignore-eos --policy "$policy" \
    --io memory --json turns.json >out 2>err || complain "exit status $? of a conversation"
[ "$(grep -c '^\[[0-9]* tokens read in .*KiB read per step.*MiB resident' err)" -eq 2 ] || complain "not two costs"
read -r first second < <(sed -n 's/^\[\([0-9]*\) tokens read.*/\1/p' err | paste -sd ' ')
((second <= 5 && first <= 8)) || complain "turns of $first and $second tokens"
grep -q "no chat template" err || complain "no note that there is no template"
grep -q "took the last turn back" err || complain "nothing was taken back"
[ "$(grep -o '"prompt_tokens"' turns.json | wc -l)" -eq 2 ] || complain "not the total and one turn in the JSON"
printf 'and the\n' | "$program" -m "$model" -i -p "The king went" -n 6 --ignore-eos --policy "$policy" --io memory >out 2>err ||
    complain "exit status $? of a conversation that -p begins"
[ "$(grep -c '^\[[0-9]* tokens read in ' err)" -eq 2 ] || complain "-p does not say the first thing"
printf '%s\n' "a message that is longer than the context of this conversation" | "$program" -m "$model" -i -c 8 --policy "$policy" \
    --io memory >out 2>err || complain "exit status $? of a full conversation"
grep -q "no room" err || complain "no word about a full context"
rm turns.json
first=$("$program" -m "$model" -p "The king" -n 24 --policy "$policy" --io memory --threads 1 --temp 0.8 --seed 5 2>err)
second=$("$program" -m "$model" -p "The king" -n 24 --policy "$policy" --io memory --threads 3 --temp 0.8 --seed 5 2>err)
[ "$first" = "$second" ] || complain "the text depends on the number of threads"

# a run that fails midway
if [ "$policy" = dense ]; then
    expect 0 "io_uring cannot be used" "${base[@]}" --io uring
    "$program" "${base[@]}" -n 40 --kv-path mid.kv --set dense.test.fail_at=20 >out 2>err
    [ $? -eq 1 ] || complain "a run that fails midway does not end with 1"
    grep -q "no space for 20 tokens" err || complain "a run that fails midway does not say why"
    [ ! -e mid.kv ] || complain "the file of a failed run was left behind"
fi

# interrupted: the file goes, the signal's own exit status stays
"$program" -m "$model" -p "The king" -n 2000 --ignore-eos --policy "$policy" --io posix --kv-path interrupted.kv \
    --threads 1 >out 2>err &
child=$!
for _ in $(seq 1000); do [ -s out ] && break; sleep 0.02; done
[ -e interrupted.kv ] || complain "no cache file while running"
kill -s TERM "$child"
wait "$child"
got=$?
[ "$got" -eq 143 ] || complain "interrupted run: exit status $got"
[ ! -e interrupted.kv ] || complain "interrupted run left its file behind"

finish
