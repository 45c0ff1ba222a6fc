#!/usr/bin/env bash
# How kvtl-bench fails and what it leaves behind, and that a trace of kvtl-run can be replayed.
#
#   bench_errors.sh KVTL-BENCH KVTL-RUN MODEL.gguf
# SPDX-License-Identifier: MIT
here=$(dirname "$(realpath "$0")")
program=$(realpath "$1") run=$(realpath "$2") model=$(realpath "$3")
# shellcheck source=tests/support/expect.sh
. "$here/../support/expect.sh"

# bad usage
expect 2 "no command; valid: decode, reuse, io, workload, compare"
expect 2 "magic" magic
expect 2 "--nonsense" decode --nonsense
expect 2 "unknown shape 'gpt'; valid: llama3-8b" decode --shape gpt
expect 2 "decod; did you mean 'decode'?" decod
expect 2 "--contxt; did you mean '--context'?" decode --contxt 100
expect 2 "unknown shape 'llama3-8'; did you mean 'llama3-8b'? valid: " decode --shape llama3-8
expect 2 "unknown device 'ufs41'; did you mean 'ufs31'? valid: " decode --device ufs41
expect 2 "unknown policy 'magic'; valid: " decode --policies dynakv,magic
expect 2 "unknown device 'tape'; valid: native, emmc" decode --device emmc,tape
expect 2 "unknown device 'tape'; valid: uring" decode --io tape
expect 2 "valid: drift:SEED, trace:FILE" decode --workload noise:1
expect 2 "no knob 'magic'; valid: burst" decode --workload drift:1,magic=2
expect 2 "No such file" decode --workload trace:missing.trc
expect 2 "POLICY.SLOT.FIELD=VALUE" decode --set nonsense
expect 2 "cannot write no/such/folder/out.json" decode --json no/such/folder/out.json
expect 2 "query_heads" decode --query-heads 3
expect 2 "--head-dim" decode --head-dim 63
expect 2 "--shards: valid: 0 (one for each thread), or 1 to the model's KV heads" decode --shards 1000
expect 2 "--shards" decode --shards x
expect 2 "--keep-file: valid: with --no-fit" decode --keep-file --memory-mib 8,4
for value in "--context 0" "--context -1" "--batch 0" "--batch x" "--threads 0" "--threads 1000" "--threads x" "--steps 2" "--steps -1" "--max-seconds 0" "--memory-mib 0" \
    "--memory-mib -3" "--attend-tokens 0" "--keep-tokens x" "--keep-tokens 64,0" "--compute-us-per-layer -1" "--compute-us-per-layer 0,x" "--html -" "--layers x"; do
    # shellcheck disable=SC2086
    expect 2 "${value%% *}" decode $value
done
for value in "--block 1000" "--block 0" "--depth 0" "--depth 5000" "--reads 0" "--size 0" "--reads -1" "--io tape" "--device tape"; do
    # shellcheck disable=SC2086
    expect 2 "${value%% *}" io $value
done
expect 2 "80 % of what is free" decode --shape llama3-8b --context 1000000 --batch 4000
expect 2 "needs at least" decode --memory-mib 0.05 --context 300 --io memory
for value in "--context 0" "--steps 2" "--memory-mib 0" "--attend-tokens 0" "--layers x"; do
    # shellcheck disable=SC2086
    expect 2 "${value%% *}" reuse $value
done
expect 2 "valid: drift:SEED, trace:FILE" reuse --workload noise:1
expect 2 "needs at least" reuse --memory-mib 0.05 --context 300
expect 2 "no such field" reuse --set dynakv.replacement.magic=1
one_line "--set full.cache.magic=1: this policy does not run; valid: dynakv" decode --set full.cache.magic=1
one_line "--set full.cache.magic=1: this policy does not run" reuse --set full.cache.magic=1
one_line "--path: no/such/folder: No such file" io --path no/such/folder/x.io
one_line "--kv-path: no/such/folder: No such file" decode --kv-path no/such/folder/x.kv
expect 2 "No such file" workload --trace missing.trc
expect 2 "--tokens" workload --tokens 3

# files that are not ours are not touched
echo "precious" >precious.kv
expect 2 "precious.kv" decode --kv-path precious.kv --context 100 --steps 3 --io posix
expect 2 "precious.kv" io --path precious.kv --size 4
[ "$(cat precious.kv)" = precious ] || complain "a foreign file was changed"

# what works
expect 0 "" --help
expect 0 "" decode --help
grep -q -- "--compute-us-per-layer" out || complain "--help says nothing"
expect 0 "" --version
grep -q "kvtl-bench [0-9]" out || complain "--version says nothing"
expect 0 "" --list-policies
grep -qx "dynakv" out || complain "--list-policies does not list dynakv"
expect 0 "" decode --policies dynakv --context 200 --steps 4 --memory-mib 4 --io posix --json -
python3 -c 'import json,sys; assert json.load(open("out"))[0]["policy"] == "dynakv"' || complain "no JSON rows on standard output"
expect 2 "cannot write no/such/folder/out.html" decode --html no/such/folder/out.html
expect 2 "--csv: - is standard output" decode --csv - --json -
: >a.json
: >b.json
expect 0 "kvtl-bench: tiny-2k (6 layers, 4 query heads, 2 KV heads of 64), dynakv, full, 4 MiB, native device by memory, 1 thread" \
    decode --policies dynakv,full --context 200 --steps 8 --memory-mib 4 --io memory --json a.json --csv -
head -n 1 out | grep -q '^policy,shape,context,batch,.*,step_ms_median,step_ms_low,step_ms_high,.*,phase_us.append,' ||
    complain "--csv: no column names"
[ "$(wc -l <out)" -eq 3 ] || complain "--csv: not a line per row"
expect 0 "" decode --policies full --context 200 --steps 4 --memory-mib 4 --io memory
grep -q 'reads/step  hit    -  ' out || complain "a hit rate where nothing is chosen"
expect 0 "" decode --policies dynakv --context 200 --steps 8 --memory-mib 4 --io memory --json b.json
expect 0 "" compare a.json b.json
grep -q '^dynakv, tiny-2k, context 200, batch 1, native, 256 attended, 4.0 MiB$' out || complain "compare: no row"
grep -Eq '^  step_ms_median .* x [0-9.]+ \([0-9.]+ to [0-9.]+\)$' out || complain "compare: no interval"
grep -Eq '^  read_bytes_per_step .* (x [0-9.]+|no ratio)$' out || complain "compare: no bytes"
grep -q '^only in the first: full, ' out || complain "compare: a row without its like is lost"
expect 0 "" compare a.json b.json --json -
python3 -c 'import json; assert json.load(open("out"))["rows"][0]["key"]["context"] == 200' || complain "compare: no JSON"
echo "no JSON" >foreign.json
if "$program" --list-policies | grep -qx kvswap; then
    echo '{"shape":{"layers":6,"query_heads":4,"kv_heads":2,"head_dim":64},
        "entries":[{"batch":1,"context":4096,"group_tokens":8,"rank":16}]}' >tuned.json
    tuned=(decode --policies kvswap --context 200 --steps 8 --memory-mib 4 --io memory)
    expect 0 "" "${tuned[@]}" --tuned tuned.json --set kvswap.index.rank=32 --csv -
    python3 -c 'import csv; row = next(csv.DictReader(open("out"))); config = [row["config." + n] for n in
        ("clusterer.group_tokens", "cache.window_tokens", "index.rank")]; assert config == ["8", "8", "32"], config' ||
        complain "--tuned does not set what kvtl-tune found"
    one_line "foreign.json: not what kvtl-tune --json writes" "${tuned[@]}" --tuned foreign.json
    one_line "tuned.json is for another shape" "${tuned[@]}" --tuned tuned.json --layers 5
    rm tuned.json
fi
one_line "two files are needed" compare a.json
one_line "cannot read missing.json" compare a.json missing.json
one_line "foreign.json is no file of rows" compare foreign.json b.json
one_line "--json: cannot write missing/c.json" compare a.json b.json --json missing/c.json
rm a.json b.json foreign.json
expect 0 "" io --size 4 --block 8192 --depth 4 --reads 64 --io posix --json -
for key in io registered_file registered_arena block depth mb_per_s iops cpu_us_per_io; do
    grep -q "\"$key\":" out || complain "no $key in the JSON of io"
done
expect 0 "note: dynakv has no relaxed products; exact: " decode --policies dynakv --context 200 --steps 3 --memory-mib 4 --io memory \
    --set dynakv.cache.precision=relaxed_if_available
expect 0 "" reuse --context 200 --steps 20 --memory-mib 4
if ! grep -q "updated_only" out || ! grep -q "bound" out; then complain "reuse prints no table"; fi
expect 0 "" reuse --context 200 --steps 20 --memory-mib 4 --json -
python3 -c 'import json; assert json.load(open("out"))[0]["reuse"][0]["kind"] == "updated"' || complain "no JSON rows of reuse"
"$program" io --path kept.io --keep --size 4 --reads 16 --io posix >out 2>err || complain "io --keep"
[ "$(stat -c %s kept.io 2>/dev/null)" = $((4 << 20)) ] || complain "the kept file has another size"
before=$(stat -c %y kept.io)
expect 0 "" io --path kept.io --keep --reuse --size 4 --reads 16 --seed 7 --io posix
[ "$(stat -c %y kept.io)" = "$before" ] || complain "--reuse writes the file"
expect 2 "fewer than" io --path kept.io --keep --reuse --size 8 --io posix
expect 2 "none.io: No such file" io --path none.io --reuse --size 8 --io posix
expect 2 "--reuse: valid" io --reuse --size 8 --io memory
rm -f kept.io
expect 0 "" workload --tokens 512
grep -q "recent_mass" out || complain "workload prints no statistics"

# a recorded trace: described, replayed, and refused when cut short
"$run" -m "$model" -p "The king went to the river and looked at the boats." -n 400 --temp 0.8 --ignore-eos --policy dynakv \
    --memory-mib 4 --io memory --record-trace run.trc --json run.json >out 2>err || complain "recording fails"
"$run" -m "$model" -p "The king went to the river and looked at the boats." -n 400 --temp 0.8 --ignore-eos --policy dynakv \
    --memory-mib 4 --io memory --json plain.json >out 2>err || complain "the same run without recording fails"
texts=$(sed 's/.*"text":\(.*\),"prefill_s".*/\1/' run.json plain.json | sort -u | wc -l)
[ "$texts" -eq 1 ] || complain "recording changes the text"
expect 0 "" workload --trace run.trc
grep -q "mean distance" out || complain "workload does not compare"
expect 0 "" decode --workload trace:run.trc --context 300 --steps 8 --memory-mib 4 --io memory
expect 2 "the context and all steps need" decode --workload trace:run.trc --context 300 --steps 800 --memory-mib 4 --io memory
expect 2 "expected 16 layers" decode --workload trace:run.trc --shape llama3.2-1b --context 100 --steps 8 --memory-mib 64 --io memory
head -c 100000 run.trc >cut.trc
expect 2 "cut short: 100000 bytes for" decode --workload trace:cut.trc --context 10 --steps 3 --memory-mib 4 --io memory
expect 2 "cut short" workload --trace cut.trc
"$run" -m "$model" -p x -n 4 --record-trace no/such/folder/x.trc --io memory >out 2>err
[ $? -eq 2 ] || complain "a trace that cannot be written is not refused"

# a policy that fails midway: what is finished is written, the row says why, and the exit status is 1
# (a file may have as many bytes as the device's probe writes, which are fewer than dynakv needs)
: >midway.json
(
    ulimit -f 66000
    expect 1 "dynakv failed midway: " decode --shape llama3.2-1b --layers 4 --context 10000 --steps 4 --memory-mib 16 --io posix \
        --size-candidates 1 --policies dynakv,full --json midway.json --csv -
    exit "$failures"
) || failures=$((failures + 1))
python3 -c 'import json; rows = json.load(open("midway.json")); assert [(r["policy"], r["error"] is None) for r in rows
    ] == [("dynakv", False), ("full", True)], rows' || complain "not a row for each policy"
[ "$(wc -l <out)" -eq 3 ] || complain "--csv: not a line per row"
rm midway.json

# sizes are tried until the knob has no more turns, which says nothing about the device
expect 0 "" decode --policies kvswap --context 300 --steps 3 --memory-mib 4 --io uring --size-candidates 9 --kv-path sizes.kv
! grep -q "io_uring cannot be used (the size knob" err || complain "a size that cannot be tried is blamed on io_uring"

# interrupted: files go, the signal's own exit status stays
"$program" decode --policies dynakv --context 500 --steps 20000 --max-seconds 100 --memory-mib 64 --io posix \
    --kv-path interrupted.kv >out 2>err &
child=$!
for _ in $(seq 200); do [ -e interrupted.kv ] && [ -e interrupted.kv.probe ] && break; sleep 0.02; done
[ -e interrupted.kv ] || complain "no cache file while running"
kill -s TERM "$child"
wait "$child"
got=$?
[ "$got" -eq 143 ] || complain "interrupted run: exit status $got"
[ -z "$(ls interrupted.kv* 2>/dev/null)" ] || complain "interrupted run left files behind"

finish
