#!/usr/bin/env bash
# How kvtl-eval fails and what it writes: exit status, one clear line on standard error, the JSON keys, the report, and no
# file left behind.
#
#   eval_errors.sh KVTL-EVAL DATA-FOLDER
# SPDX-License-Identifier: MIT
here=$(dirname "$(realpath "$0")")
program=$(realpath "$1") data=$(realpath "$2")
# shellcheck source=tests/support/expect.sh
. "$here/../support/expect.sh"

small="needle:gen,tokens=400,count=2"
base=(-m "$data/tiny-2k.gguf" --policies dynakv --io posix --memory-mib 16 --task "$small")

# bad usage
one_line "two models: missing.gguf and -m " "${base[@]}" missing.gguf
one_line "No such file" missing.gguf --task "$small"
one_line "--atend-tokens; did you mean '--attend-tokens'?" "${base[@]}" --atend-tokens 64
one_line "unknown policy 'dynakw'; did you mean 'dynakv'? valid: full, " "${base[@]}" --policies full,dynakw
one_line "--nonsense" "${base[@]}" --nonsense
one_line "unknown policy 'magic'; valid: full, " "${base[@]}" --policies full,magic
one_line "unknown policy ''" "${base[@]}" --policies ""
one_line "unknown device 'tape'" "${base[@]}" --io tape
one_line "POLICY.SLOT.FIELD=VALUE" "${base[@]}" --set nonsense
one_line "window_tokens=8,: a value is empty" "${base[@]}" --set dynakv.cache.window_tokens=8,
one_line "--set streaming_llm.cache.sink_tokens=4: this policy does not run; valid: dynakv" "${base[@]}" --least-memory \
    --set streaming_llm.cache.sink_tokens=4
one_line "--task nll:builtin: --nll-tokens is 0; valid: 3 or more" "${base[@]}" --task nll:builtin --nll-tokens 0
one_line "--probe: the text is empty" "${base[@]}" --probe ""
one_line "unknown task 'haystack'" "${base[@]}" --task haystack
one_line "unknown task 'nedle:gen'; did you mean 'needle:gen'? valid: " "${base[@]}" --task nedle:gen
one_line "unknown task 'nll'; did you mean 'nll:builtin'? valid: " "${base[@]}" --task nll
one_line "'depth=1' is unknown" "${base[@]}" --task needle:gen,depth=1
one_line "'token=1' is unknown; did you mean 'tokens'? valid: tokens, " "${base[@]}" --task needle:gen,token=1
one_line "no such slot; did you mean 'cache'? valid: " "${base[@]}" --set dynakv.cahce.window_tokens=8
one_line "no such field; did you mean 'window_tokens'? valid: " "${base[@]}" --set dynakv.cache.window_token=8
for value in "--attend-tokens 0" "--attend-tokens 64,x" "--attend-tokens 64,,128" "--keep-tokens -1" "--memory-mib 0" \
    "--memory-mib nan" "--threads 0" "--limit -1" "--nll-prefill x"; do
    # shellcheck disable=SC2086
    one_line "${value%% *}" "${base[@]}" $value
done

# files
one_line "No such file" "${base[@]}" -m missing.gguf
one_line "cannot read missing.jsonl" "${base[@]}" --task needle:missing.jsonl
one_line "cannot read missing.txt" "${base[@]}" --task nll:missing.txt
one_line "cannot write missing/a.json" "${base[@]}" --json missing/a.json
one_line "cannot write missing/a.json" "${base[@]}" --leaderboard missing/a.json
one_line "--leaderboard: rows are appended to a file" "${base[@]}" --leaderboard -
echo '{"policy": "none"}' >board.json
one_line "board.json: not a JSON array of rows" "${base[@]}" --leaderboard board.json
grep -qx '{"policy": "none"}' board.json || complain "a file that is no board was changed"
one_line "cannot write missing/a.html" "${base[@]}" --html missing/a.html
printf '{"prompt": "a fact", "answer": "b"}\n{"prompt": "no answer"}\n' >bad.jsonl
one_line 'bad.jsonl:2: no text in the field "answer"' "${base[@]}" --task needle:bad.jsonl
echo "not ours" >foreign.kv
expect 2 "foreign.kv" "${base[@]}" --kv-path foreign.kv
grep -qx "not ours" foreign.kv || complain "a foreign file was changed"

# the least memory, of each policy and budget; nothing runs
expect 0 "" "${base[@]}" --policies dynakv,full --attend-tokens 64,128 --least-memory
[ "$(grep -c ': least memory [0-9]* bytes, total ' out)" -eq 4 ] || complain "not four lines of least memory"
grep -q '^dynakv, 64 attended: least memory ' out || complain "no line of dynakv"

# a policy that cannot be opened: alone it is an error, among others its rows say why
ln -s "$data/tiny-2k.gguf" plain.gguf
expect 2 "preset dynakv needs at least" "${base[@]}" --memory-mib .75
[ ! -s out ] || complain "a policy ran although no other could"
: >rows.json
: >report.html
expect 0 "" "${base[@]}" -m plain.gguf --policies dynakv,quest --memory-mib .75 --limit 1 --closed-only --json rows.json \
    --html report.html
grep -Eq '^dynakv +256 +- memory_bytes is 786432; preset dynakv needs at least' out || complain "no reason of dynakv"
grep -q '"error": "memory_bytes is 786432; preset dynakv' rows.json || complain "no reason in the JSON"
[ "$(grep -c '"error": null' rows.json)" -eq $(($(grep -c '"policy":' rows.json) - 1)) ] || complain "others have errors"
grep -qF '>memory_bytes is 786432' report.html || complain "no reason in the report"
for reference in full streaming_llm random_units oracle; do
    "$program" --list-policies | grep -qx "$reference" || continue
    grep -A4 "\"policy\": \"$reference\"" rows.json | grep -q '"attend_tokens": 256' || complain "no line of $reference"
done
# products that the preset does not have: one note, whatever the number of documents
expect 0 "note: dynakv has no relaxed products; exact: " "${base[@]}" --closed-only --set dynakv.cache.precision=relaxed_if_available \
    --json rows.json
[ "$(grep -c "no relaxed products" err)" -eq 1 ] || complain "the note is not there once"
grep -q '"products": "exact: ' rows.json || complain "no products in the JSON"
if "$program" --list-policies | grep -qx kvswap; then
    expect 2 "kvswap needs a file of bases" "${base[@]}" -m plain.gguf --policies kvswap
    expect 0 "" "${base[@]}" -m plain.gguf --policies kvswap,quest --limit 1 --closed-only
    grep -Eq '^kvswap +256 +- --calibration: ' out || complain "no reason of kvswap"
fi

if "$program" --list-policies | grep -qx locret; then
    foreign=("${base[@]}" -m "$data/tiny-16k.gguf") # of the same shape; no gates ship for it
    one_line "--gates: policy locret needs a file" "${foreign[@]}" --policies locret
    one_line "retention.weights are of another model" "${foreign[@]}" --policies locret --gates "$data/tiny-2k.locret.gates"
    one_line "cannot read missing.gates" "${base[@]}" --policies locret --gates missing.gates
    head -c 100 /dev/zero >zeros.gates
    one_line "valid: a gate blob" "${base[@]}" --policies locret --gates zeros.gates
    expect 0 "" "${foreign[@]}" --policies locret,dynakv --limit 1 --closed-only
    grep -Eq '^locret +256 +- --gates: ' out || complain "no reason of locret"
    expect 0 "" "${base[@]}" --policies locret --limit 1 --closed-only
fi
if "$program" --list-policies | grep -qx lookahead_probe; then
    head -c 1000 "$data/tiny-2k.lookahead" >cut.lookahead
    one_line "--lookahead: cut.lookahead has 1000 bytes; valid: " "${base[@]}" --policies lookahead_probe --lookahead cut.lookahead
    one_line "--lookahead: cannot read missing.lookahead" "${base[@]}" --policies lookahead_probe --lookahead missing.lookahead
    one_line "was trained for another model" "${base[@]}" -m "$data/tiny-16k.gguf" --policies lookahead_probe \
        --lookahead "$data/tiny-2k.lookahead"
fi
if "$program" --list-policies | grep -qx compress_kv; then
    one_line "--votes: cannot read missing.votes: No such file or directory" "${base[@]}" --policies compress_kv --votes missing.votes
    {
        echo 'kvtl-votes 1 model 0000000000000001 layers 6 query_heads 4'
        for _ in 1 2 3 4 5 6; do echo '0 1 0 0 0.5'; done
    } >foreign.votes
    one_line "--votes: foreign.votes was made for another model of this shape (0000000000000001; this one is " \
        "${base[@]}" --policies compress_kv --votes foreign.votes
fi
if "$program" --list-policies | grep -qx external_mask; then
    expect 0 "" "${base[@]}" --policies external_mask --keep-tokens 64 --limit 1 --closed-only --json rows.json
    grep -qF "the full model's later attention" rows.json || complain "no word of what external_mask was told"
fi

# a board: rows are appended, and say where they are from
: >board.json
expect 0 "" "${base[@]}" --limit 1 --closed-only --leaderboard board.json
once=$(grep -c '"policy":' board.json)
expect 0 "" "${base[@]}" --limit 1 --closed-only --leaderboard board.json
[ "$(grep -c '"policy":' board.json)" -eq $((2 * once)) ] || complain "a second run did not append its $once rows"
for key in model commit date machine command; do
    [ "$(grep -Ec "^  \"$key\": \"[^\"]" board.json)" -eq $((2 * once)) ] || complain "not every row of the board has its $key"
done
rm board.json

# what it prints without a run
expect 0 "" --help
for text in --attend-tokens --keep-tokens --gates --probe --question-aware --needle-prefill --nll-prefill --no-fit "open loop"; do
    grep -qF -- "$text" out || complain "--help does not mention $text"
done
expect 0 "" --version
grep -q "kvtl-eval [0-9]" out || complain "--version says nothing"
expect 0 "" --list-policies
grep -qx "full" out || complain "--list-policies does not list full"

# a run
: >rows.json
: >report.html
expect 0 "" "${base[@]}" --task nll:builtin --nll-tokens 300 --nll-prefill 200 --limit 1 --attend-tokens 64,128 \
    --json rows.json --html report.html
for key in policy task attend_tokens keep_tokens config error accuracy accuracy_ci95 nll nll_full kl kl_max top1_agreement output_error \
    mass_recall kept_entries_by_layer kept_bytes resident_bytes_peak read_bytes_per_token useful_bytes_per_token reads_per_token read_entries \
    mean_read_entries hit_rate selectable_entries empty_choices tokens_per_s; do
    rows=$(grep -c '"policy":' rows.json)
    [ "$(grep -c "\"$key\":" rows.json)" -ge "$rows" ] || complain "no $key in some of the $rows rows"
done
[ "$(grep -c '"question": "hidden"' rows.json)" -gt 0 ] || complain "no row says that the question was hidden"
[ "$(grep -c '"policy": "full"' rows.json)" -eq 4 ] || complain "full is not there once per task and budget"
[ "$(grep -c '"policy": "dynakv"' rows.json)" -eq 4 ] || complain "dynakv is not there once per task and budget"
grep -q '"accuracy": 1.0' rows.json || complain "full does not find the needle"
for policy in full dynakv; do
    grep -qF "<td>$policy</td>" report.html || complain "the report does not show $policy"
done
if "$program" --list-policies | grep -qx snapkv_group; then # budgets are those that a policy has
    : >rows.json
    expect 0 "" "${base[@]}" --policies dynakv,snapkv_group --attend-tokens 64,128 --keep-tokens 48,96,192 --limit 1 \
        --question-aware --closed-only --json rows.json
    [ "$(grep -c '"policy": "dynakv"' rows.json)" -eq 2 ] || complain "dynakv does not have a row per --attend-tokens"
    [ "$(grep -c '"policy": "snapkv_group"' rows.json)" -eq 3 ] || complain "snapkv_group: not a row per --keep-tokens"
    [ "$(grep -c '"question": "known"' rows.json)" -eq "$(grep -c '"policy":' rows.json)" ] || complain "question hidden"
fi
expect 0 "" "${base[@]}" --limit 1 --closed-only --set dynakv.cache.window_tokens=4,12 \
    --set dynakv.cache.window_tokens=8,16 --json rows.json # a line for each of the last
[ "$(grep -c '"policy": "dynakv"' rows.json)" -eq 2 ] || complain "not a row for each value of a setting"
for n in 8 16; do
    grep -q "^dynakv, window_tokens=$n  *256" out || complain "no line of the setting $n"
    [ "$(grep -c "\"cache.window_tokens\": \"$n\"" rows.json)" -eq 1 ] || complain "no row of the setting $n"
done
one_line "--csv: - is standard output, which --json has already" "${base[@]}" --csv - --json -
one_line "--csv: cannot write missing/a.csv" "${base[@]}" --csv missing/a.csv
one_line "--csv: valid: without --least-memory" "${base[@]}" --csv - --least-memory
expect 0 "tiny-2k.gguf (6 layers, 4 query heads, 2 KV heads of 64), dynakv, 16 MiB, posix, 2 threads" "${base[@]}" --limit 1 \
    --closed-only --csv - --json rows.json
[ "$(wc -l <out)" -eq $(($(grep -c '"policy":' rows.json) + 1)) ] || complain "--csv: not a line per row"
head -n 1 out | grep -q '^policy,task,question,attend_tokens,keep_tokens,.*,accuracy_ci95.0,accuracy_ci95.1,' ||
    complain "--csv: no column names"
grep -q '^dynakv,' out || complain "--csv: no line of dynakv"
grep -q "accuracy" err || complain "--csv - drops the table"
expect 0 "" "${base[@]}" --limit 1 --closed-only --json -
[ "$(head -c 1 out)" = "[" ] || complain "--json - mixes the table into standard output"
grep -q "accuracy" err || complain "--json - drops the table"

finish
