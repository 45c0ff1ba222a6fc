#!/usr/bin/env bash
# A conversation (-i) that is saved goes on from its file: the answers of two runs are those of one, whatever ended the first.
#
#   resume_conversation.sh PROGRAM [OPTION...]     kvtl-run or kvtl-llama, with a model of 2,048 tokens
# SPDX-License-Identifier: MIT
here=$(dirname "$(realpath "$0")")
program=$(realpath "$1")
shift
options=(--io posix --threads 1 --attend-tokens 2000 --memory-mib 8 -i "$@")
# shellcheck source=tests/support/expect.sh
. "$here/../support/expect.sh"

# talk ARGUMENT...: says standard input, line by line
talk() { "$program" "${options[@]}" "$@" >out 2>err || complain "exit status $?: $*"; }
# field EXPRESSION FILE: a value of the JSON object j in FILE
field() { python3 -c 'import json, sys; j = json.load(open(sys.argv[2])); print(eval(sys.argv[1]))' "$1" "$2"; }
answers() { field '[a["tokens"] for a in j["answers"]]' "$1"; }
has() { grep -qF -- "$1" err || complain "no '$1'"; }

one="The kernel is started by" two="and then" three="at last"
for policy in full quest snapkv_group dynakv; do
    run=(--policy "$policy" -n 12 --temp 0.8 --seed 3 --ignore-eos)
    printf '%s\n' "$one" "$two" "$three" | talk "${run[@]}" --json whole.json
    printf '%s\n' "$one" "$two" /exit "$three" | talk "${run[@]}" --save-state talk.kvs --json first.json
    has "[saved to talk.kvs: "
    [ "$(stat -c %a talk.kvs)" = 600 ] || complain "$policy: others may read the conversation"
    [ "$(field 'j["saved_bytes"] > 4096 and j["save_s"] > 0' first.json)" = True ] || complain "$policy: no facts of the save"
    printf '%s\n' "$three" | talk "${run[@]}" --load-state talk.kvs --save-state talk.kvs --json second.json
    has "[goes on from talk.kvs: $(field 'j["loaded_tokens"]' second.json) of 2048 tokens"
    has "> $two"
    has "$(field 'j["answers"][1]["text"]' first.json)"
    [ "$(field 'j["exact"]' second.json)" = "True" ] || [ "$policy" = dynakv ] || complain "$policy: not exact"
    # Everything is attended, so tokens agree where bits may not.
    whole=$(answers whole.json)
    parts="[$(answers first.json | sed 's/^\[\(.*\)\]$/\1/'), $(answers second.json | sed 's/^\[\(.*\)\]$/\1/')]"
    [ "$whole" = "$parts" ] || complain "$policy: $whole, and in two runs $parts"
    # Turns of this run can be taken back, and no other.
    printf '%s\n' more /rewind /rewind "$two" | talk "${run[@]}" --load-state talk.kvs --json taken.json
    has "[took the last turn back"
    has "[there is nothing to take back]"
    printf '%s\n' "$two" | talk "${run[@]}" --load-state talk.kvs --json never.json
    [ "$(field 'j["answers"][-1]["prompt_tokens"]' taken.json)" = "$(field 'j["answers"][-1]["prompt_tokens"]' never.json)" ] ||
        complain "$policy: a turn that was taken back left something behind"
done

# started ARGUMENT...: the program in the background, reading what is written to descriptor 3
run=(--policy quest --temp 0.8 --seed 3 --ignore-eos)
started() {
    rm -f said heard
    mkfifo said
    "$program" "${options[@]}" "${run[@]}" "$@" <said >heard 2>err &
    child=$!
    exec 3>said
}
until_there() { # FILE TEXT
    for _ in $(seq 1000); do
        grep -qF -- "$2" "$1" && return
        sleep 0.02
    done
    complain "'$2' does not come"
}
# ended: waits for it
ended() {
    wait "$child"
    local status=$?
    exec 3>&-
    [ "$status" -eq 0 ] || complain "exit status $status: $*"
    has "[saved to talk.kvs: "
}
# Children of this shell would ignore SIGINT, but for those of a shell with jobs.
set -m
for signal in INT TERM HUP; do
    # where something could be typed
    started -n 12 --save-state talk.kvs
    echo "$one" >&3
    until_there err " generated at "
    sleep 0.1
    kill -s "$signal" "$child"
    ended "SIG$signal at the prompt"
    printf '%s\n' "$two" | talk "${run[@]}" -n 12 --load-state talk.kvs --json second.json
    printf '%s\n' "$one" "$two" | talk "${run[@]}" -n 12 --json whole.json
    [ "$(field 'j["answers"][1]' whole.json)" = "$(field 'j["answers"][0]' second.json)" ] || complain "SIG$signal: another answer"
    # while an answer comes
    started -n 2000 --save-state talk.kvs --json first.json
    echo "$one" >&3
    for _ in $(seq 1000); do
        [ -s heard ] && break
        sleep 0.02
    done
    kill -s "$signal" "$child"
    [ "$signal" != INT ] || exec 3>&- # which only stops the answer; then the input ends
    ended "SIG$signal in an answer"
    given=$(field 'len(j["answers"][0]["tokens"])' first.json)
    printf '%s\n' "$one" | talk "${run[@]}" -n "$given" --save-state right.kvs
    for file in talk right; do printf '%s\n' "$two" | talk "${run[@]}" -n 5 --load-state $file.kvs --json $file.json; done
    [ "$(answers talk.json)" = "$(answers right.json)" ] || complain "SIG$signal in an answer: another answer later"
done
set +m
rm -f said heard
# who reads the answer leaves: what was said is saved
rm -f talk.kvs
printf '%s\n' "$one" "$two" | "$program" "${options[@]}" "${run[@]}" -n 1500 --save-state talk.kvs 2>err | head -c 1 >/dev/null
status=${PIPESTATUS[1]}
[ "$status" -eq 1 ] || complain "a pipe that was closed: exit status $status" # not all could be written
has "[saved to talk.kvs: "

# a text goes on as a conversation, and a conversation as a text
plain=("${options[@]}")
for i in "${!plain[@]}"; do [ "${plain[i]}" != -i ] || unset "plain[i]"; done
"$program" "${plain[@]}" "${run[@]}" -p "$one" -n 9 --save-state text.kvs --json first.json >out 2>err || complain "a text"
printf '%s\n' "$two" | talk "${run[@]}" -n 4 --load-state text.kvs --save-state text.kvs
has "[goes on from text.kvs: "
has "$(field 'j["text"]' first.json)"
"$program" "${plain[@]}" "${run[@]}" --load-state text.kvs -n 4 --json last.json >out 2>err || complain "a conversation as a text"
[ "$(field 'len(j["tokens"])' last.json)" = 4 ] || complain "a conversation as a text: other tokens"

# what was never said is no conversation; what cannot be gone on from, or written, says so before anything is typed
rm -f talk.kvs
: | talk "${run[@]}" --save-state talk.kvs
has "[nothing was said, and talk.kvs is not written]"
[ ! -e talk.kvs ] || complain "a conversation without a word was saved"
head -c 9000 text.kvs >cut.kvs
expect 2 "cut.kvs" "${options[@]}" "${run[@]}" --load-state cut.kvs
expect 2 "--load-state: " "${options[@]}" "${run[@]}" --load-state missing.kvs
one_line "--save-state: " "${options[@]}" "${run[@]}" --save-state no/such/folder/x.kvs
for f in *; do
    case $f in *.json | *.kvs | out | err) ;; *) complain "left behind: $f" ;; esac
done
finish
