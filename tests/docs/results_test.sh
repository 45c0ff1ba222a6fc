#!/usr/bin/env bash
# Makes pages and rows disagree in every way that scripts/results.py --check must notice, in a copy of the results.
#   results_test.sh ROOT WORK
# SPDX-License-Identifier: MIT
set -euo pipefail
root=$(cd "$1" && pwd)
work=$2 failures=0
results=$work/bench/results

fresh() {
    rm -rf "$work"
    mkdir -p "$work/bench"
    cp -r "$root/bench/results" "$work/bench/"
    cp -r "$root/docs" "$root/README.md" "$work/"
}
# expect TEXT: the copy is refused, and its first line is TEXT.
expect() {
    local said
    if said=$(python3 "$root/scripts/results.py" --check --root "$work" 2>&1); then
        echo "not noticed: $1" >&2
        failures=$((failures + 1))
    elif [[ ${said%%$'\n'*} != *"$1"* ]]; then
        printf 'expected: %s\nread: %s\n' "$1" "$said" >&2
        failures=$((failures + 1))
    fi
}

fresh
python3 "$root/scripts/results.py" --check --root "$work"
fresh; sed -i 's/\(<!-- data: board mean dynakv 128 -->\)[0-9.]*/\10.99/' "$work/README.md"; expect 'README.md: differs from bench/results/data'
fresh; sed -i 's/\(<!-- data: needle_2048 quest 64 -->\)[0-9.]*/\10.99/' "$work/docs/choose_a_preset.md"; expect 'docs/choose_a_preset.md: differs'
fresh; sed -i 's/16,384, with 64 MiB/16,384, with 64 MiB, 9.87 ms/' "$work/docs/choose_a_preset.md"; expect "choose_a_preset.md: 9.87 in 'A long chat on a phone' is in no page of results"
fresh; sed -i 's/38 to 227 times/38 to 228 times/' "$work/README.md"; expect "README.md: 228 in 'What you can rely on' is in no page of results"
fresh; sed -i 's/^\(| .open_pages.* | \)28.0 /\127.77 /' "$work/docs/size_it.md"; expect 'size_it.md: 27.77 in '
fresh; sed -i '/no measurement of kvtl/d' "$work/docs/faq.md"; expect "faq.md: 0.1 in 'Is it for me?'"
fresh; sed -i 's/^\(| .quest. |\) 0/\1 1/' "$results/quality.md"; expect 'bench/results/quality.md: differs'
fresh; echo >>"$results/plots/budgets.svg"; expect 'bench/results/plots/budgets.svg: differs'
fresh; rm "$results/plots/budgets.svg"; expect 'bench/results/plots/budgets.svg: differs'
fresh; touch "$results/plots/stray.svg"; expect 'bench/results/plots/stray.svg: differs'
fresh; sed -i 's/"least_mib": 29.1/"least_mib": 30.1/' "$results/data/whole_caches.json"; expect 'plots/memory.svg: differs'
fresh; sed -i 's/"ms_median": 962/"ms_median": 963/' "$results/data/server.json"; expect 'log/server.md: differs'
fresh; sed -i '0,/"accuracy": 0.25,/s//"accuracy": 0.35,/' "$results/data/epicache.json"; expect 'log/epicache.md: differs'
fresh; sed -i '0,/"kl": 0.6317/s//"kl": 0.9317/' "$results/data/gates.json"; expect 'log/gates.md: differs'
fresh; sed -i '0,/"commit": "[^"]*"/s//"commit": ""/' "$results/data/whole_caches.json"; expect "a row without 'commit'"
fresh; echo '[' >"$results/data/claims.json"; expect 'claims.json: Expecting value'
fresh; echo '<!-- data: needles nobody 128 -->1<!-- end -->' >>"$work/README.md"; expect "README.md: no figure 'needles nobody 128'"
fresh; echo '<!-- block: nothing -->' >>"$work/README.md"; expect 'README.md: a block or a figure without its <!-- end -->'
fresh; printf '<!-- block: nothing -->\n<!-- end -->\n' >>"$work/README.md"; expect "README.md: unknown block 'nothing'"

for arguments in "--nope" "--root $work/nowhere"; do
    status=0
    # shellcheck disable=SC2086
    said=$(python3 "$root/scripts/results.py" $arguments 2>&1) || status=$?
    [[ $status == 2 && $said == "results.py: "* && $said != *$'\n'* ]] || { echo "not one line, or status $status: $arguments" >&2; failures=$((failures + 1)); }
done

# A preset of a new model needs no more than its rows.
fresh
python3 - "$results/data/leaderboard.json" <<'ROWS'
import json, os, sys
rows = json.load(open(sys.argv[1])) if os.path.exists(sys.argv[1]) else []
for task in ("needle:gen,seed=2", "facts:gen,seed=2"):
    rows.append({"policy": "another_preset", "model": "another-model.gguf", "task": task, "attend_tokens": 128, "error": None,
                 "accuracy": 0.5, "decoded_tokens": 10, "resident_bytes_peak": 1 << 20, "bytes_per_entry": 256,
                 "read_bytes_per_token": 1024, "tokens_per_s": 100, "commit": "c", "machine": "m", "command": "kvtl-eval"})
json.dump(rows, open(sys.argv[1], "w"))
ROWS
python3 "$root/scripts/results.py" --root "$work" >/dev/null
# shellcheck disable=SC2016
grep -q '^| `another_preset` | 0.50 | 0.50 | - | - | - | 1.00 | 256 | 1 | 10.00 |$' "$results/README.md" || { echo "no row of a new preset" >&2; failures=$((failures + 1)); }
[[ -e $results/plots/accuracy-another-model-128.svg ]] || { echo "no plot of a new model" >&2; failures=$((failures + 1)); }
python3 "$root/scripts/results.py" --check --root "$work"

((failures == 0)) && echo "everything that differs is noticed"
