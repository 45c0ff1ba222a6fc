#!/usr/bin/env bash
# kvtl-llama: what it prints, how it fails, conversations through a pipe, several prompts at once, and nothing left
# behind.
#
#   program.sh KVTL-LLAMA MAKE-TINY-MODEL MODEL.gguf
# SPDX-License-Identifier: MIT
here=$(dirname "$(realpath "$0")")
program=$(realpath "$1") make_model=$(realpath "$2") model=$(realpath "$3")
# shellcheck source=tests/support/expect.sh
. "$here/../support/expect.sh"

# The value of a key of the JSON in a file that is a number, a text or a list of numbers.
value() { sed -n "s/.*\"$1\":\(\[[^]]*\]\|\"[^\"]*\"\|[^,}]*\).*/\1/p" "$2" | head -1; }

"$make_model" llama f16 llama.gguf || complain "no model"
"$make_model" llama f16 ends.gguf end=300 || complain "no model"
"$make_model" llama f16 chat.gguf chat=1 end=100 || complain "no model"
for architecture in mpt deepseek2 phi3 gemma3n bert; do
    "$make_model" "$architecture" f16 "$architecture.gguf" || complain "no $architecture"
done
"$make_model" lfm2 f16 hybrid.gguf || complain "no hybrid model"
head -c 50000 llama.gguf >cut.gguf
echo "this is no model" >foreign.gguf
: >empty.txt
# One thread: threads that wait for each other are slow where other tests run beside this one.
base=(-m llama.gguf -p "the bold banana" -n 8 --io posix --threads 1)

# bad usage
one_line "two models: cut.gguf and -m llama.gguf" "${base[@]}" cut.gguf
one_line "no prompt" # the model is the embedded one
one_line "no prompt" -m llama.gguf
one_line "--nonsense" "${base[@]}" --nonsense
one_line "--file" "${base[@]}" -f empty.txt
one_line "unknown policy 'magic'; valid: " "${base[@]}" --policy magic
one_line "unknown device 'tape'; valid: uring, posix, memory" "${base[@]}" --io tape
for value in "--predict -1" "--temp -1" "--memory-mib 0" "--threads 0" "--attend-tokens 0" "--prefill-chunk 0" "--seed x" \
    "--shards 3" "--context 0" "--context 4096" "--cells 0" "--cells -1" "--cells 99999999" "--parallel 0" "--parallel x"; do
    # shellcheck disable=SC2086
    one_line "${value%% *}" "${base[@]}" $value
done
one_line "--parallel: the prompts come from a file" "${base[@]}" --parallel 2
one_line "POLICY.SLOT.FIELD=VALUE" "${base[@]}" --set nonsense
one_line "--set full.cache.x=1: this policy does not run; valid: dynakv" "${base[@]}" --policy dynakv --set full.cache.x=1
expect 2 "preset dynakv needs at least" "${base[@]}" --policy dynakv --memory-mib 0.01

expect 0 "" "${base[@]}" --policy dynakv --least-memory
grep -Eq "^dynakv: least memory [0-9]+ bytes, total .* of the raw cache of " out || complain "no least memory"
one_line "--least-memory: valid: without --plain" "${base[@]}" --plain --least-memory

# files
one_line "No such file" "${base[@]}" -m missing.gguf
one_line "directory" "${base[@]}" -m .
one_line "cannot load cut.gguf" "${base[@]}" -m cut.gguf
one_line "cannot load foreign.gguf" "${base[@]}" -m foreign.gguf
one_line "cannot read prompt file missing.txt" -m llama.gguf -f missing.txt
one_line "no/such/folder" "${base[@]}" --kv-path no/such/folder/x.kv
one_line "cannot write no/such/folder/out.json" "${base[@]}" --json no/such/folder/out.json
one_line "the prompt is empty" -m llama.gguf -f empty.txt
one_line "the prompt is empty" -m llama.gguf -f empty.txt --parallel 2
one_line "prompt of 10 tokens is longer than the context of 2" "${base[@]}" -c 2
one_line "- is standard input" -m llama.gguf -i -f -
echo "precious" >precious.kv
one_line "precious.kv" "${base[@]}" --kv-path precious.kv
[ "$(cat precious.kv)" = precious ] || complain "a foreign file was changed"

# models that have to be refused
for architecture in mpt deepseek2 gemma3n bert; do
    one_line "" "${base[@]}" -m "$architecture.gguf"
done
one_line "" "${base[@]}" -m phi3.gguf -c 2048 # in short contexts its factors stay as they are

# what works
expect 0 "kvtl" "${base[@]}"
[ -s out ] || complain "no text"
expect 0 "" "${base[@]}" --json - --logits 2
for key in policy io direct prompt_tokens tokens text prefill_s decode_s tokens_per_s stats resident_bytes_peak logits \
    engine cells process_resident_bytes_peak; do
    grep -q "\"$key\":" out || complain "no $key in the JSON"
done
grep -q '"engine":"llama.cpp ' out || complain "the engine is not named"
[ "$(value cells out)" -eq 256 ] || complain "$(value cells out) cells for a short prompt"
[ "$(value process_resident_bytes_peak out)" -gt 1000000 ] || complain "no memory of the process"
cp out kvtl.json
expect 0 "" "${base[@]}" --json - --plain
[ "$(value tokens kvtl.json)" = "$(value tokens out)" ] || complain "other tokens than llama.cpp's"
if "$program" --list-policies | grep -qx kvswap; then
    "$program" "${base[@]}" --policy kvswap >out 2>err
    grep -q "note: policy kvswap" err || complain "no note about predicted queries"
    expect 2 "--tuned: cannot read missing.json" "${base[@]}" --policy kvswap --tuned missing.json
fi
one_line "--tuned: valid: with policy kvswap" "${base[@]}" --tuned missing.json
"$program" "${base[@]}" >out 2>err
grep -q "^kvtl-llama: llama.gguf (.* layers, .* query heads, .* of .*), .* thread" err || complain "no line says what it runs on"
expect 0 "" --help
grep -q -- "--attend-tokens" out || complain "--help says nothing"
grep -q -- "--parallel" out || complain "--help says nothing of --parallel"
expect 0 "" --version
grep -q "kvtl-llama [0-9]" out || complain "--version says nothing"

# a long prompt in few cells
head -c 2500 "$here/../../examples/data/prose.txt" >prose.txt
for policy in full dynakv; do
    expect 0 "" -m "$model" -f prose.txt -n 16 --policy "$policy" --attend-tokens 4096 --cells 256 --io posix --threads 1 --json -
    [ "$(value cells out)" -eq 256 ] || complain "$policy: $(value cells out) cells"
    [ "$(value prompt_tokens out)" -gt 256 ] || complain "the prompt is no longer than the cells"
    value tokens out >"$policy.tokens"
done
expect 0 "" -m "$model" -f prose.txt -n 16 --plain --threads 1 --json -
for policy in full dynakv; do
    [ "$(cat "$policy.tokens")" = "$(value tokens out)" ] || complain "$policy: other tokens than llama.cpp's"
done

# A preset that evicts at the prompt's end sees up to 4096 tokens at once.
"$make_model" llama f16 long.gguf context=8192 layers=2 || complain "no long model"
head -c 6500 "$here/../../examples/data/prose.txt" >long.txt
expect 0 "" -m long.gguf -f long.txt -n 2 --policy snapkv_group --io memory --threads 2 --json -
[ "$(value prompt_tokens out)" -gt 4096 ] || complain "the prompt has $(value prompt_tokens out) tokens only"
[ "$(value cells out)" -eq 4096 ] || complain "$(value cells out) cells for a long prompt"

# Shards are those that were asked for.
expect 0 "" "${base[@]}" --shards 2
expect 0 "" "${base[@]}" --shards 1

# A trace: a header of 4096 bytes, then 8 + 2 + 2 heads of 32 as f16, for each token and layer.
for policy in full snapkv_group; do
    "$program" "${base[@]}" --policy "$policy" --record-trace recorded.trace --json out >text 2>err || complain "exit status $?"
    [ "$(stat -c %s recorded.trace)" -eq $((4096 + ($(value prompt_tokens out) + 7) * 4 * 12 * 32 * 2)) ] ||
        complain "$policy: the trace has $(stat -c %s recorded.trace) bytes"
    value tokens out >recorded.tokens
    expect 0 "" "${base[@]}" --policy "$policy" --json -
    [ "$(value tokens out)" = "$(cat recorded.tokens)" ] || complain "$policy: recorded it has other tokens"
done
head -c 6 recorded.trace | grep -q "[a-z]" || complain "the trace was not finished"
rm -f recorded.* text
one_line "--record-trace: valid: with one prompt" "${base[@]}" --record-trace x.trace --plain
one_line "--record-trace: cannot write" "${base[@]}" --record-trace no/such/folder/x.trace

# several at once: as each alone, whichever end early
printf '%s\n' "the bold banana" "a" "to be read in one go, so that the lengths differ by more than a few" "no" "me, too" >prompts.txt
each_as_alone() { # MODEL POLICY AT-ONCE
    local how=(-m "$1" -n 24 --policy "$2" --io posix --threads 1 --json -) line
    expect 0 "" "${how[@]}" --parallel "$3" -f prompts.txt
    grep -o '"answers":.*' out | grep -o '"tokens":\[[^]]*\]' >together
    : >alone
    while read -r line; do
        "$program" "${how[@]}" -p "$line" 2>err | grep -o '"tokens":\[[^]]*\]' >>alone || complain "alone: $line"
    done <prompts.txt
    cmp -s alone together || complain "$*: $(diff alone together)"
}
for architecture in gemma2 lfm2; do # layers that slide; a recurrent state
    "$make_model" "$architecture" f16 "$architecture.gguf" end=300 || complain "no $architecture"
    each_as_alone "$architecture.gguf" full 3
done
each_as_alone ends.gguf snapkv_group 3 # sees a prompt at once
each_as_alone ends.gguf dynakv 3
each_as_alone ends.gguf full 5
[ "$(sort -u together | wc -l)" -ge 4 ] || complain "all prompts have the same answer"
awk -F, '{ if (NF < 24) early = 1; else late = 1 } END { exit !(early && late) }' together ||
    complain "no answer ends early, or all do: $(cat together)"
expect 0 "" -m llama.gguf --parallel 2 -f prompts.txt -n 4 --io posix --threads 1
[ "$(grep -c '^\[[1-5]\]' out)" -eq 5 ] || complain "not five answers: $(cat out)"

# a conversation
talk() { "$program" --io posix --threads 1 "$@" >out 2>err || complain "exit status $?: $*"; }
printf 'hello there\nand then\n/exit\nnever read\n' | talk -m chat.gguf -i -n 6 --ignore-eos
[ "$(wc -l <out)" -ge 2 ] || complain "not two answers: $(cat out)"
[ "$(grep -c '^\[[0-9]* tokens read in .*KiB read per step.*MiB resident' err)" -eq 2 ] || complain "not two costs"
! grep -q "no chat template" err || complain "a note, although there is a template"
printf 'hello\n' | talk -m llama.gguf -i -n 3
grep -q "no chat template" err || complain "no note that there is no template"
: | talk -m llama.gguf -i
[ ! -s out ] || complain "an answer to nothing"
# What is taken back has not been said. (Above temperature 0 the sampler would go on where it was.)
printf 'one two\n/help\n/rewind\n/rewind\n' | talk -m llama.gguf -i -n 5 --json taken.json
grep -q "nothing to take back" err || complain "a turn too many was taken back"
grep -q "/rewind  forgets" err || complain "no help"
printf 'one two\nthree\n/rewind\nthree\n' | talk -m llama.gguf -i -n 5 --json again.json
printf 'one two\nthree\n' | talk -m llama.gguf -i -n 5 --json once.json
[ "$(grep -o '"answers":.*' again.json)" = "$(grep -o '"answers":.*' once.json)" ] || complain "/rewind leaves a trace"
printf 'one two\nthree\nfour\n' | talk -m llama.gguf -i -n 5 --plain --json plain.json
printf 'one two\nthree\nfour\n' | talk -m llama.gguf -i -n 5 --attend-tokens 4096 --json kvtl.json
[ "$(grep -o '"answers":.*' plain.json)" = "$(grep -o '"answers":.*' kvtl.json)" ] || complain "a conversation differs"
printf 'a message that is longer than the context of this conversation\n' | talk -m llama.gguf -i -c 12
grep -q "no room" err || complain "no word about a full context"
rm -f ./*.json

# killed while it generates: nothing is left, whatever the signal, and the file was gone before
for signal in TERM KILL INT; do
    before=$(ls)
    # From a subshell: a job in the background would ignore SIGINT.
    "$program" -m llama.gguf -p "the bold banana" -n 2000 --ignore-eos --io posix --threads 1 --kv-path killed.kv >running 2>err &
    child=$!
    for _ in $(seq 500); do [ -s running ] && break; sleep 0.02; done
    [ -s running ] || complain "no text before the signal"
    [ ! -e killed.kv ] || complain "the file is there while the program runs"
    kill -s "$signal" "$child"
    if [ "$signal" = INT ]; then kill -s TERM "$child" 2>/dev/null; fi
    wait "$child" 2>/dev/null
    rm -f running
    [ "$before" = "$(ls)" ] || complain "SIG$signal left something behind: $(ls)"
done

# a text goes on from a file: two runs give the tokens of one
for policy in full quest; do
    run=(-m "$model" --policy "$policy" --attend-tokens 2000 --io posix --threads 1 --temp 0.8 --seed 3 --ignore-eos)
    "$program" "${run[@]}" -p "The kernel is started by" -n 16 --json whole.json >out 2>err || complain "$policy: the whole run"
    "$program" "${run[@]}" -p "The kernel is started by" -n 9 --save-state text.kvs --json first.json >out 2>err ||
        complain "$policy: the first run"
    "$program" "${run[@]}" --load-state text.kvs -n 7 --save-state text.kvs --json second.json >out 2>err ||
        complain "$policy: the second run"
    tokens() { value tokens "$1" | tr -d '[]'; }
    [ "$(tokens first.json),$(tokens second.json)" = "$(tokens whole.json)" ] || complain "$policy: other tokens"
    [ "$(value exact second.json)" = true ] || complain "$policy: not exact"
    "$program" "${run[@]}" --load-state text.kvs -p " Later," -n 3 --json turn.json >out 2>err || complain "$policy: a turn"
    [ "$(value loaded_tokens turn.json)" -eq $(($(value loaded_tokens second.json) + 7)) ] || complain "$policy: a turn's tokens"
done
one_line "--save-state, --load-state: valid: without --parallel and --plain" "${base[@]}" --plain --load-state text.kvs
one_line "foreign.gguf" "${base[@]}" --load-state foreign.gguf
expect 2 "the model has layers with a recurrent state" -m hybrid.gguf -p "the bold banana" -n 2 --io posix --threads 1 --save-state x.kvs
expect 2 "the model has layers with a recurrent state" -m hybrid.gguf -i --io posix --threads 1 --save-state x.kvs
# and a conversation in a template
chat=(-m chat.gguf -i -n 6 --ignore-eos --policy full)
printf 'hello there\nand then\n' | talk "${chat[@]}" --json whole.json
printf 'hello there\n' | talk "${chat[@]}" --save-state text.kvs --json first.json
printf 'and then\n' | talk "${chat[@]}" --load-state text.kvs --json second.json
answers() { grep -o '"answers":.*' "$1" | sed 's/"answers":\[\(.*\)\]}$/\1/'; }
[ "$(answers first.json),$(answers second.json)" = "$(answers whole.json)" ] || complain "a saved conversation differs"
rm -f ./*.json text.kvs

# asked to keep it
expect_kept() { "$program" "$@" >out 2>err || complain "exit status $?: $*"; }
expect_kept -m "$model" -f prose.txt -n 4 --policy dynakv --io posix --threads 1 --kv-path kept.kv --keep-kv
[ -s kept.kv ] || complain "--keep-kv kept nothing"
rm -f kept.kv

# a disk that fills up ends the generation with one line behind the header
(
    ulimit -f 64 # KiB or half of that, according to the shell
    "$program" -m "$model" -f prose.txt -n 64 --policy dynakv --attend-tokens 64 --memory-mib 3 --io posix --threads 1 >out 2>err
    echo $? >status
)
[ "$(cat status)" -eq 1 ] || complain "a full disk: exit status $(cat status)"
[ "$(grep -vc "^kvtl-llama: [^ ]*gguf (" err)" -eq 1 ] || complain "a full disk: not one line"
grep -q "ulimit" err || complain "a full disk: no reason"
rm -f status

finish
