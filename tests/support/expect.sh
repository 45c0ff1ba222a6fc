# shellcheck shell=bash
# What the tests of the programs' errors share. To be sourced: it changes to an empty folder that goes at exit. Paths
# must be absolute by then.
#
#   program=$(realpath "$1")            what expect runs
#   . .../support/expect.sh
#   expect STATUS TEXT ARGUMENT...      the exit status, TEXT within standard error, and no file that was not there before
#   one_line TEXT ARGUMENT...           expect 2, with one line on standard error and nothing on standard output
#   complain WORD...                    a failure, with what standard error held
#   finish                              ends with 1 if there was any
#
# Standard output and error of the last expect are in the files out and err.
# SPDX-License-Identifier: MIT
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0
touch out err

complain() {
    echo "FAILED: $*"
    sed 's/^/    stderr: /' err
    failures=$((failures + 1))
}
expect() {
    local status=$1 text=$2 before after got
    shift 2
    before=$(ls)
    # shellcheck disable=SC2154 # the script that sources this sets it
    "$program" "$@" >out 2>err </dev/null
    got=$?
    after=$(ls)
    [ "$got" -eq "$status" ] || complain "exit status $got instead of $status: $*"
    [ -z "$text" ] || grep -qF -- "$text" err || complain "no '$text': $*"
    [ "$before" = "$after" ] || complain "left behind [$after]: $*"
}
one_line() {
    expect 2 "$@"
    [ "$(wc -l <err)" -eq 1 ] || complain "more than one line: $*"
    [ ! -s out ] || complain "something on standard output: $*"
}
finish() {
    [ "$failures" -eq 0 ] && echo "all as expected"
    exit $((failures != 0))
}
