#!/usr/bin/env bash
# Completion in bash: every option that --help names is offered, with its command where there is one, and so are the names
# that some options take.
#
#   completion.sh PROGRAM...
# SPDX-License-Identifier: MIT
set -u
failures=0
complain() {
    echo "FAILED: $*"
    failures=$((failures + 1))
}

# complete_words WORD...: what is offered for the last one, in COMPREPLY.
complete_words() {
    COMP_WORDS=("$@")
    COMP_CWORD=$(($# - 1))
    COMPREPLY=()
    "$function" "$program"
}
offers() { [[ " ${COMPREPLY[*]} " == *" $1 "* ]]; }

# The options of --help: first words of its indented lines, "-m,--model".
options() { "$@" --help | sed -nE 's/^  +(-[^ {]*).*/\1/p' | tr ',' '\n'; }

(($# > 0)) || complain "no program was named"
for program in "$@"; do
    name=$(basename "$program")
    function=_${name//-/_}
    # shellcheck source=/dev/null
    source <("$program" --completion bash)
    complete -p "$name" >/dev/null || complain "$name: bash completes nothing"
    [ "$("$program" --completion fish 2>&1 >/dev/null)" = "$name: --completion: unknown shell 'fish'; valid: bash" ] ||
        complain "$name: another shell is not refused"
    commands=$("$program" --help | sed -n '/^Subcommands:/,$ s/^  \([a-z]*\) .*/\1/p')
    for command in '' $commands; do
        list=$(options "$program" ${command:+"$command"})
        (($(wc -w <<<"$list") >= 3)) || complain "$name $command: --help names less than 3 options"
        complete_words "$name" ${command:+"$command"} -
        for option in $list; do
            offers "$option" || complain "$name $command: $option is not offered"
        done
    done
    complete_words "$name" ''
    for command in $commands; do offers "$command" || complain "$name: $command is not offered"; done
    complete_words "$name" --io u
    [ "${COMPREPLY[*]}" = uring ] || complain "$name: --io u offers ${COMPREPLY[*]}"
    complete_words "$name" --io = p # as bash cuts --io=p
    [ "${COMPREPLY[*]}" = posix ] || complain "$name: --io=p offers ${COMPREPLY[*]}"
    complete_words "$name" --io =
    offers memory || complain "$name: --io= offers ${COMPREPLY[*]}"
    complete_words "$name" --io = p # as bash cuts --io=p
    [ "${COMPREPLY[*]}" = posix ] || complain "$name: --io=p offers ${COMPREPLY[*]}"
    complete_words "$name" --io =
    offers memory || complain "$name: --io= offers ${COMPREPLY[*]}"
    "$program" --help | grep -q -- --list-policies || continue
    first=$("$program" --list-policies | head -n 1)
    complete_words "$name" --policy "${first:0:2}"
    offers "$first" || complain "$name: --policy does not offer $first"
    complete_words "$name" --policies "$first,${first:0:2}"
    offers "$first,$first" || complain "$name: a list of --policies does not go on: ${COMPREPLY[*]}"
done
((failures == 0)) && echo "$# programs complete as they should"
exit $((failures != 0))
