#!/usr/bin/env bash
# Writes pages that readability.sh must refuse, and some that it must accept, in a small tree of its own.
#   readability_test.sh ROOT WORK
# SPDX-License-Identifier: MIT
set -euo pipefail
root=$(cd "$1" && pwd)
work=$2 checker=$root/tests/docs/readability.sh
# shellcheck source=tests/support/broken_tree.sh
. "$root/tests/support/broken_tree.sh"

# words N: a sentence of N words.
words() {
    local i sentence=Word
    for ((i = 1; i < $1; i++)); do sentence+=" word"; done
    echo "$sentence."
}
# A tree with ten short sentences.
fresh() {
    rm -rf "$work"
    mkdir -p "$work/docs"
    cd "$work"
    touch CONTRIBUTING.md README.md
    for ((i = 0; i < 10; i++)); do words 10; done >docs/one.md
}

fresh
bash "$checker" "$work" >/dev/null
fresh; words 60 >>docs/one.md;                                              # one long sentence in eleven
bash "$checker" "$work" >/dev/null
fresh; { echo '```text'; for ((i = 0; i < 9; i++)); do words 60; done; echo '```'; } >>docs/one.md # code
bash "$checker" "$work" >/dev/null
fresh; for ((i = 0; i < 9; i++)); do echo "| $(words 60) |"; done >>docs/one.md                    # a table
bash "$checker" "$work" >/dev/null
fresh; for ((i = 0; i < 9; i++)); do words 60; done >docs/presets.md                              # generated
bash "$checker" "$work" >/dev/null

fresh; words 60 >>docs/one.md; words 60 >>README.md;         expect '90th percentile: 60 words; at most 28'
fresh; for ((i = 0; i < 11; i++)); do words 19; done >README.md; expect 'median sentence: 19 words; at most 18'
fresh; rm README.md CONTRIBUTING.md docs/one.md;             expect 'no page in'

((failures == 0)) && echo "long sentences are noticed"
