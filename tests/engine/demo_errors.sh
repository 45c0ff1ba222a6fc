#!/usr/bin/env bash
# How kvtl-demo fails and what it prints: exit status, one clear line on standard error, the table, the JSON, and no
# file left behind.
#
#   demo_errors.sh KVTL-DEMO KVTL-CALIBRATE DATA-FOLDER
# SPDX-License-Identifier: MIT
here=$(dirname "$(realpath "$0")")
program=$(realpath "$1") calibrate=$(realpath "$2") data=$(realpath "$3")
# shellcheck source=tests/support/expect.sh
. "$here/../support/expect.sh"

base=(-m "$data/tiny-2k.gguf" --data "$data/prose.txt" --questions 1 --tokens 800 --nll-tokens 300 --io posix)

# bad usage
one_line "two models: missing.gguf and -m " "${base[@]}" missing.gguf
one_line "no prose"
one_line "--nonsense" "${base[@]}" --nonsense
one_line "unknown policy 'magic'; valid: full, " "${base[@]}" --policies full,magic
one_line "unknown policy ''" "${base[@]}" --policies ""
one_line "unknown device 'tape'" "${base[@]}" --io tape
one_line "POLICY.SLOT.FIELD=VALUE" "${base[@]}" --set nonsense
one_line "--set dynakv.cache.x=1: this policy does not run; valid: full" "${base[@]}" --policies full --set dynakv.cache.x=1
for value in "--questions 0" "--questions -1" "--attend-tokens 0" "--memory-mib 0" "--memory-mib nan" "--threads 0" \
    "--tokens x" "--seed x" "--facts -3" "--nll-tokens x" "--nll-prefill 0" "--nll-prefill 299" "--html -"; do
    # shellcheck disable=SC2086
    one_line "${value%% *}" "${base[@]}" $value
done
one_line "facts, not 0" "${base[@]}" --facts 0
one_line "facts, not 500" "${base[@]}" --facts 500
one_line "too short for documents of 50000" "${base[@]}" --tokens 50000
one_line "longer than the model's context of 2048" "${base[@]}" --tokens 2100

# files
one_line "No such file" "${base[@]}" -m missing.gguf
one_line "cannot read missing.txt" "${base[@]}" --data missing.txt
one_line "cannot read ." "${base[@]}" --data .
: >empty.txt
one_line "no sentences" "${base[@]}" --data empty.txt
one_line "cannot write no/such/out.json" "${base[@]}" --json no/such/out.json
one_line "cannot write no/such/out.html" "${base[@]}" --html no/such/out.html
one_line "no/such/folder" "${base[@]}" --policies dynakv --kv-path no/such/folder/x.kv
echo "precious" >precious.kv
one_line "precious.kv" "${base[@]}" --policies dynakv --kv-path precious.kv
[ "$(cat precious.kv)" = precious ] || complain "a foreign file was changed"

# a bound too small is found out before the first policy runs, and every part is named
expect 2 "preset dynakv needs at least" "${base[@]}" --policies full,dynakv --memory-mib 0.1
[ ! -s out ] || complain "a policy ran although no other could"

# while others can run, its line says why
: >rows.json
: >report.html
expect 0 "" "${base[@]}" --policies full,dynakv,quest --memory-mib 1 --json rows.json --html report.html
grep -Eq '^dynakv +memory_bytes is 1048576; preset dynakv needs at least [0-9]+ ' out || complain "no reason of dynakv"
grep -Eq '^quest +[01]\.[0-9]+ +[0-9.]+ +' out || complain "no row of quest: $(cat out)"
grep -q '"error": "memory_bytes is ' rows.json || complain "no reason in the JSON"
[ "$(grep -c '"error": null' rows.json)" -eq 2 ] || complain "full and quest have errors in the JSON"
[ "$(grep -c '"perplexity_ratio": 1.0' rows.json)" -eq 1 ] || complain "the perplexity ratio of full alone is 1"
for text in '<td>quest</td>' 'class="why" colspan=' 'running text</h2>' '<h2>questions about documents' 'class="says"' \
    'date: <b>20' 'machine: <b>' '--policies full,dynakv,quest --memory-mib 1' 'The first question' ', right</td>'; do
    grep -qF -- "$text" report.html || complain "no $text in the report"
done

grep -q '^What this shows:$' out || complain "nothing about what it shows"
grep -q 'answers are right; that cache takes' out || complain "nothing about the full cache"

grep -q 'what would help most: ' out || complain "no knob for dynakv"
grep -q '"share_by_part": ' rows.json || complain "no shares in the JSON"

# a policy that needs bases
ln -s "$data/tiny-2k.gguf" plain.gguf
if "$program" --list-policies | grep -qx kvswap; then
    one_line "kvswap needs a file of bases" "${base[@]}" -m plain.gguf --policies kvswap
    one_line "missing.cal" "${base[@]}" --policies kvswap --calibration missing.cal
    expect 0 "" "${base[@]}" -m plain.gguf --policies kvswap,quest --nll-tokens 0
    grep -Eq '^kvswap +--calibration: ' out || complain "no reason of kvswap"
    grep -Eq '^quest +[01]\.00 +- ' out || complain "a perplexity without a text"
fi

# what works
expect 0 "" "${base[@]}" --policies full,dynakv
grep -Eq '^full +[01]\.00 +1\.000 +[0-9.]+ MiB +0\.0 +0\.0 +1\.00 +[0-9.]+$' out || complain "no row of full: $(cat out)"
grep -Eq '^dynakv +[01]\.00 +[0-9.]+ +[0-9.]+ MiB +[0-9.]+ +[0-9.]+ +[01]\.[0-9]+ +[0-9.]+$' out ||
    complain "no row of dynakv: $(cat out)"
[ "$(wc -L <out)" -le 100 ] || complain "wider than 100 columns"
grep -q '^dynakv, .* attended: total .* of the raw cache of ' out || complain "nothing about the memory of dynakv"
[ ! -s err ] || complain "something on standard error, which is no terminal"
grep -q '^attending ' out && complain "a heading although there is one budget"
expect 0 "" "${base[@]}" --policies full,quest --attend-tokens 128,96 --nll-tokens 0 --json rows.json
[ "$(grep -c '^attending ' out)" -eq 2 ] || complain "no heading for each budget: $(cat out)"
[ "$(grep -c '"policy": "quest"' rows.json)" -eq 2 ] || complain "no row for each budget"
expect 0 "" "${base[@]}" --policies full --json -
for key in policy accuracy perplexity_ratio resident_bytes_peak read_bytes_per_token reads_per_token hit_rate \
    tokens_per_s io direct error; do
    grep -q "\"$key\":" out || complain "no $key in the JSON"
done
grep -q "^policy " err || complain "the table is lost when the JSON takes standard output"

# As scripts/demo.sh runs it: at the default bound, which is smaller than the cache, every policy marked for it opens.
table=$data/../engine/presets/preset_table.cmake
names=$(sed -n "s/^ *\"\([a-z0-9_]*\) .* demo '.*/\1/p" "$table")
count=$(wc -w <<<"$names")
((count >= 1 && count <= 10)) || complain "$count policies are marked for the demo"
"$calibrate" -m "$data/tiny-2k.gguf" -f "$data/prose.txt" -o tiny.cal --max-tokens 2048 2>err || complain "no bases"
expect 0 "" -m "$data/tiny-2k.gguf" --data "$data/prose.txt" --calibration tiny.cal --questions 1 --nll-tokens 300 \
    --io posix --policies "$(paste -sd, <<<"$names")" --json rows.json
[ "$(grep -c '"error": null' rows.json)" -eq "$count" ] || complain "not all of the demo's policies ran: $(cat out)"
awk '/cache is/ { cache = $5; bound = $15 } END { exit !(bound > 0 && bound < cache) }' out ||
    complain "the bound is not below the cache: $(grep 'cache is' out)"

expect 0 "" --help
grep -q -- "--questions" out || complain "--help says nothing"
expect 0 "" --version
grep -q "kvtl-demo [0-9]" out || complain "--version says nothing"
expect 0 "" --list-policies
grep -qx dynakv out || complain "--list-policies does not list dynakv"

# interrupted: the file goes, the signal's own exit status stays
"$program" "${base[@]}" --policies dynakv --questions 1000 --tokens 600 --kv-path interrupted.kv >out 2>err &
child=$!
seen=no # the program has more than one cache in turn, so a file that was seen may be gone a moment later
for _ in $(seq 3000); do [ -e interrupted.kv ] && seen=yes && break; sleep 0.02; done
[ $seen = yes ] || complain "no cache file while running"
kill -s TERM "$child"
wait "$child"
got=$?
[ "$got" -eq 143 ] || complain "interrupted run: exit status $got"
[ ! -e interrupted.kv ] || complain "interrupted run left its file behind"

finish
