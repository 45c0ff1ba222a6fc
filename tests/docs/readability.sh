#!/usr/bin/env bash
# How long the sentences of the pages are: README.md, CONTRIBUTING.md and docs/, but for docs/presets.md, which is generated.
# Prints words per sentence (median, 90th percentile, longest) of each page and of all. Exit status 1 if all together have a
# median above 18 or a 90th percentile above 28. Code blocks, tables, headings and comments do not count; a list item ends
# a sentence, and so does a colon before a list or a block.
#   readability.sh ROOT [-v]        -v: also every sentence above 28 words, and figures when the limits are exceeded
# SPDX-License-Identifier: MIT
set -euo pipefail
export LC_ALL=C
cd "$1"
verbose=${2:-}
most_median=18 most_p90=28

# sentences PAGE: one a line.
# shellcheck disable=SC2016 # backticks are those of the document
sentences() {
    awk '
        function flush() { if (text != "") print text; text = "" }
        /^```/ { fenced = !fenced; flush(); next }
        fenced { next }
        /^<!--/ { hidden = 1 }
        hidden { if (/-->/) hidden = 0; next }
        /^#/ || /^ *\|/ || /^[ \t]*$/ { flush(); next }
        /^ *([-*]|[0-9]+\.) / { flush(); sub(/^ *([-*]|[0-9]+\.) /, "") }
        { text = text (text == "" ? "" : " ") $0 }
        END { flush() }' "$1" |
        sed -E 's/\]\([^)]*\)/]/g; s/`[^`]*`/name/g; s/[*_]+//g; s/(e\.g|i\.e|vs)\./\1/g; s/([.!?]["”)]*) +([A-Z`*(\[]|name)/\1\n\2/g' |
        awk 'NF'
}
# lengths: words of each line; what has no letter and no digit (a dash, an operator) is no word.
lengths() {
    awk '{ n = 0; for (i = 1; i <= NF; ++i) n += $i ~ /[A-Za-z0-9]/; if (n) print n }' | sort -n
}
# summary NAME: of the sorted numbers on standard input.
summary() {
    awk -v name="$1" '{ x[NR] = $1 }
        END { if (NR) printf "%-28s %5d sentences  median %2d  p90 %2d  longest %3d\n", name, NR, x[int((NR + 1) / 2)], x[int(.9 * NR + .999)], x[NR] }'
}

pages=()
for page in README.md CONTRIBUTING.md docs/*.md; do
    [[ $page == docs/presets.md || ! -f $page ]] || pages+=("$page")
done
((${#pages[@]} > 0)) || { echo "readability.sh: no page in $1" >&2; exit 1; }
all=$(for page in "${pages[@]}"; do sentences "$page"; done | lengths)
read -r median p90 < <(awk '{ x[NR] = $1 } END { print x[int((NR + 1) / 2)], x[int(.9 * NR + .999)] }' <<<"$all")
wrong=()
((median <= most_median)) || wrong+=("median sentence: $median words; at most $most_median; -v lists the pages")
((p90 <= most_p90)) || wrong+=("90th percentile: $p90 words; at most $most_p90; -v lists the pages")
if [[ -n $verbose || ${#wrong[@]} == 0 ]]; then
    for page in "${pages[@]}"; do
        sentences "$page" | lengths | summary "$page"
        [[ $verbose != -v ]] || sentences "$page" | awk -v page="$page" 'NF > 28 { print page ": " NF ": " $0 }'
    done
    summary all <<<"$all"
fi
((${#wrong[@]} == 0)) || { printf '%s\n' "${wrong[@]}" >&2; exit 1; }
