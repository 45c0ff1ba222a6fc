#!/usr/bin/env bash
# The table of policies in docs/policies.md and the headers agree: every header of policies/ and layout/ has one line, every
# line names a header that is there, and that header declares the names in the line. One line per disagreement.
#   policy_table.sh ROOT
# SPDX-License-Identifier: MIT
set -euo pipefail
export LC_ALL=C
cd "$1"
wrong=0

say() {
    printf 'docs/policies.md: %s\n' "$1" >&2
    wrong=$((wrong + 1))
}

# Lines "header names..." of the table: third and second column, backticks and template arguments taken off.
# shellcheck disable=SC2016 # backticks are those of the document
table=$(sed -nE 's/^\|[^|]*\| (`[^|]*`) \| `((policies|layout)\/[a-z0-9_]+\.hpp)` \|.*/\2 \1/p' docs/policies.md |
    sed -E 's/<[^`]*>//g; s/[`,]//g')

while read -r header; do
    lines=$(grep -c "^$header " <<<"$table" || true)
    ((lines == 1)) || say "$header has $lines lines in the table of policies; valid: one"
done < <(cd include/kvtl && find policies layout -maxdepth 1 -name '*.hpp' | sort)

while read -r header names; do
    if [[ ! -f include/kvtl/$header ]]; then
        say "the table of policies names $header, which is not there"
        continue
    fi
    for name in $names; do
        [[ $name == ..* ]] && continue # the end of a name that stands before it in full
        grep -qE "\<(struct|class|using) $name\>" "include/kvtl/$header" || say "$header does not declare $name"
    done
done <<<"$table"

((wrong == 0)) || exit 1
echo "$(wc -l <<<"$table") headers of policies, one line each"
