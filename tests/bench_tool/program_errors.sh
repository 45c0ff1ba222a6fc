#!/usr/bin/env bash
# How the smaller programs of the bench fail: exit status, and one clear line on standard error before anything runs.
#
#   program_errors.sh KVTL-HANDWRITTEN KVTL-KERNELS KVTL-AGENTS KVTL-FORK KVTL-CHECKPOINT KVTL-KV-DIRECT MODEL.gguf
#                     KVTL-PROMPT [KVTL-LLAMA-BENCH]
# SPDX-License-Identifier: MIT
here=$(dirname "$(realpath "$0")")
program=$(realpath "$1") kernels=$(realpath "$2") agents=$(realpath "$3")
fork=$(realpath "$4") checkpoint=$(realpath "$5") kv_direct=$(realpath "$6") model=$(realpath "$7")
prompt=$(realpath "$8") llama_bench=${9:+$(realpath "$9")}
# shellcheck source=tests/support/expect.sh
. "$here/../support/expect.sh"

# composed caches beside loops written by hand
for value in "--attend-tokens 0" "--attend-tokens 1048577" "--attend-tokens -1" "--context 1023" "--steps 5" "--memory-mib 0" \
    "--shape llama3-8b" "--layers x"; do
    # shellcheck disable=SC2086
    one_line "${value%% *}" $value
done
one_line "layers" --layers 4294967295

# kernels
program=$kernels
one_line "--json needs a file name" --json
one_line "--json: cannot write no/such/folder/out.json" --json no/such/folder/out.json
one_line "--json: valid: without --limits" --limits=dot --json out.json
expect 2 "magic" --benchmark_filter=magic
expect 2 "magic" --limits=magic
one_line "--threads is 'x'; valid: 1 to 1024" --limits --threads x
one_line "--threads is ''; valid: 1 to 1024" --limits --threads
one_line "--threads: valid: with --limits or --rivals" --threads 2
expect 2 "magic" --rivals=magic
expect 2 "only of attend" --rivals='^dot/f32' --threads 2
touch rows
expect 0 "" --rivals='^(attend/(f16|int8)/64/g=1/1K|dot/f16/64/L2|l2sq/f16/64/L2|assign/f32/64)$' --json rows
for kernel in attend/f16/64/g=1/1K attend/int8/64/g=1/1K dot/f16/64/L2 l2sq/f16/64/L2 assign/f32/64; do
    grep -q "\"$kernel\", \"of\": \"kvtl\", \"us\": [0-9.]*, \"us_median\": [0-9.]*, \"error\": [0-9.e+-]*}" rows ||
        complain "no speed and error of $kernel"
done
expect 0 "" --rivals='^attend/f16/64/g=1/1K/t=2$' --threads 2 --json rows
grep -q '"attend/f16/64/g=1/1K/t=2", "of": "kvtl"' rows || complain "no row of two threads"
rm rows
expect 0 "" --benchmark_filter='^max_of/4096$' --benchmark_min_time=0.01

# agents
program=$agents
for value in "--traces 0" "--traces x" "--prefill-rate 0" "--load-rate -1" "--decode-rate nan" "--ttl-quantile 1.5" "--memory-tokens x"; do
    # shellcheck disable=SC2086
    one_line "${value%% *}" $value
done
one_line "--trace: cannot open no/such/file" --trace no/such/file
calls=$(mktemp)
one_line "has no calls" --trace "$calls"
printf 'a 0 100 10 0 1\na 0 100 10 0\n' >"$calls"
one_line "--trace: line 2" --trace "$calls"
for call in "0 -5 10 0 1" "0 100 -1 0 1" "0 100 10 -1 1" "0 4294967296 10 0 1" "-1 100 10 0 1" "0 100 10 0 -1"; do
    echo "a $call" >"$calls"
    one_line "--trace: line 1" --trace "$calls"
done
printf '# agent ready_s new_tokens output_tokens tool tool_s\na 0 100 10 0 1\na 0 20 10 0 0\n' >"$calls"
expect 0 "" --trace "$calls"
grep -q "^belady" out || complain "no row of belady"
rm "$calls"

# the prices of branches and of checkpoints, and keys and values that are computed again
program=$fork
one_line "POLICY: unknown policy 'x'; valid: " x
one_line "TOKENS: 'x' is not a whole number" quest x
one_line "TOKENS is 0; valid: a positive number" quest 0
one_line "not expected: more" quest 512 f more
expect 0 "" --help
grep -q "Usage: kvtl-fork" out || complain "no usage of kvtl-fork"
expect 0 "" --version
one_line "policy kvswap needs a file of bases" kvswap 256 f
expect 0 "" quest 512 f
grep -q "^quest, 512 tokens, medians of 7: fork " out || complain "no line of a fork"
program=$checkpoint
one_line "POLICY: unknown policy 'x'; valid: " x
one_line "TOKENS is 256, EVERY 0; valid: two positive numbers" full 256 0
one_line "COMPUTE_US_PER_LAYER" full 256 8 -1
expect 0 "" --help
grep -q "Usage: kvtl-checkpoint" out || complain "no usage of kvtl-checkpoint"
expect 2 "make the folder first" full 128 8 0 no/such/folder/f 64 1
expect 0 "" kivi_4 256 8 0 f 64 1
grep -q "^kivi_4, loaded in " out || complain "no line of a load"
program=$prompt
one_line "POLICY is required"
one_line "POLICY: unknown policy 'x'; valid: " x
one_line "--chunk is 0; valid: a positive number" quest --chunk 0
one_line "--tokens: 'x' is not a whole number" quest --tokens x
one_line "policy kvswap needs a file of bases" kvswap --tokens 256
expect 0 "" --help
grep -q "Usage: kvtl-prompt" out || complain "no usage of kvtl-prompt"
one_line "--json: cannot write no/such/folder/f" quest --json no/such/folder/f
touch rows
expect 0 "" quest --tokens 256 --chunk 128 --rounds 1 --path f --json rows
grep -q "^quest .* x (wall clock .*), 256 tokens in chunks of 128$" out || complain "no line of a prompt"
grep -q '"policy": "quest"' rows || complain "no row of a prompt"
echo kept >rows
one_line "policy kvswap needs a file of bases" kvswap --tokens 256 --json rows
grep -q kept rows || complain "rows that a failed run has overwritten"
expect 0 "" quest --tokens 64 --chunk 9007199254740992 --rounds 1 --path f
grep -q "64 tokens in chunks of 64$" out || complain "a chunk has more tokens than the prompt"
program=$kv_direct
one_line "MODEL is required"
expect 0 "" --help
grep -q "Usage: kvtl-kv-direct" out || complain "no usage of kvtl-kv-direct"
one_line "no/such/file" no/such/file
one_line "TURNS is 2; valid: 3 to 24" "$model" 2
expect 0 "" "$model" 3
grep -q "in the same places: equal bits" out || complain "other bits than those of rows"

# llama.cpp beside kvtl in llama.cpp
if [ -n "$llama_bench" ]; then
    program=$llama_bench
    for value in "--steps 0" "--steps x" "--rounds 0" "--rounds -1" "--contexts 0" "--contexts x" "--contexts 1024,-1"; do
        # shellcheck disable=SC2086
        one_line "${value%% *}" speed -m "$model" $value
    done
    one_line "--steps: valid" hook -m "$model" --steps 0
    one_line "--types: unknown type 'q8_1'; did you mean 'q8_0'? valid: f16, " cells -m "$model" --types q8_1
    one_line "valid: one question for a document" cells -m "$model" --task turns:gen,tokens=1900,count=1
    expect 0 "" cells -m "$model" --types q4_0 --task needle:gen,tokens=600,count=2 --json -
    python3 -c 'import json; full, few = json.load(open("out")); assert full["kl"] == 0 < few["kl"] < 1, few
assert (full["bytes_per_entry"], few["bytes_per_entry"], few["config"]["cells"]) == (256, 72, "q4_0"), few' || complain "no rows of cells"
    one_line "this policy does not run; valid: dynakv" hook -m "$model" --policies dynakv --set full.cache.x=1
fi

finish
