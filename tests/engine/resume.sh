#!/usr/bin/env bash
# kvtl-run goes on from a saved text: the tokens of two runs are those of one, and what cannot be gone on from says why.
#
#   resume.sh KVTL-RUN
# SPDX-License-Identifier: MIT
here=$(dirname "$(realpath "$0")")
program=$(realpath "$1")
# shellcheck source=tests/support/expect.sh
. "$here/../support/expect.sh"

# field NAME FILE: a value of the JSON object in FILE
field() {
    python3 -c 'import json, sys; print(json.dumps(json.load(open(sys.argv[2]))[sys.argv[1]]))' "$1" "$2"
}
prompt="The kernel is started by the boot loader, which"
for policy in full quest snapkv_group dynakv; do
    run=(--policy "$policy" --attend-tokens 2000 --memory-mib 8 --io posix --temp 0.8 --seed 3 --ignore-eos)
    [ "$policy" != dynakv ] || run+=(-c 200)
    "$program" "${run[@]}" -p "$prompt" -n 24 --json whole.json >/dev/null || complain "$policy: the whole run"
    "$program" "${run[@]}" -p "$prompt" -n 14 --save-state text.kvs --json first.json >/dev/null || complain "$policy: the first run"
    [ "$(stat -c %a text.kvs)" = 600 ] || complain "$policy: others may read the saved text"
    "$program" "${run[@]}" --load-state text.kvs -n 10 --save-state text.kvs --shards 1 --json second.json >/dev/null || complain "$policy: the second run"
    python3 - "$policy" <<'PY' || complain "$policy: tokens"
import json, sys
whole, first, second = (json.load(open(f))
                        for f in ("whole.json", "first.json", "second.json"))
assert second["loaded_tokens"] == first["prompt_tokens"] + 13, second["loaded_tokens"]
assert second["load_s"] > 0 and first["save_s"] > 0 and first["saved_bytes"] > 4096
assert second["exact"] == (sys.argv[1] != "dynakv")
# Everything is attended, so tokens agree where bits may not.
assert first["tokens"] + second["tokens"] == whole["tokens"], (whole["tokens"], first["tokens"], second["tokens"])
PY
    "$program" "${run[@]}" --load-state text.kvs -p " Later," -n 4 --json turn.json >/dev/null || complain "$policy: a turn"
    [ "$(field loaded_tokens turn.json)" -eq "$(($(field loaded_tokens second.json) + 10))" ] || complain "$policy: a turn's tokens"
done

base=(--policy quest --attend-tokens 2000 --memory-mib 8 --io posix -n 2)
"$program" "${base[@]}" -p "$prompt" --save-state quest.kvs >/dev/null || complain "saving"
one_line "--load-state: " "${base[@]}" --load-state missing.kvs
echo "no saved text" >foreign.kvs
one_line "foreign.kvs" "${base[@]}" --load-state foreign.kvs
head -c 9000 quest.kvs >cut.kvs
one_line "cut.kvs" "${base[@]}" --load-state cut.kvs
expect 2 "--load-state: load: clusterer is variance_split in this cache and was fixed_groups" \
    "${base[@]}" --policy dynakv --load-state quest.kvs
one_line "--save-state: " "${base[@]}" -p "$prompt" --save-state no/such/folder/x.kvs
one_line "--save-state: the path is empty" "${base[@]}" -p "$prompt" --save-state ""
one_line "--load-state: the path is empty" "${base[@]}" -p "$prompt" --load-state ""
one_line "--save-state: --kv-path names the same file" "${base[@]}" -p "$prompt" --kv-path own.kv --save-state ./own.kv
one_line "--record-trace: valid: without --load-state" "${base[@]}" --load-state quest.kvs --record-trace x.trace
for f in *; do
    case $f in *.json | *.kvs | out | err) ;; *) complain "left behind: $f" ;; esac
done
finish
