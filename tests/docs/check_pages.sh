#!/usr/bin/env bash
# What the pages name is there. One line per thing that is not; exit status 1 if there is any. Checked are
#   links      of all pages and of README.md, CONTRIBUTING.md, bench/results: the file, and the heading behind a #
#   fences     of docs/: cpp, cmake, sh or text, so that no C++ escapes being compiled
#   `names`    of docs/: words, --options, KVTL_OPTIONS and paths between backticks occur in the sources, or in the page's C++
#   the index  docs/README.md links every page
#   check_pages.sh ROOT
# SPDX-License-Identifier: MIT
set -euo pipefail
export LC_ALL=C
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$1"
wrong=0

say() {
    printf '%s\n' "$1" >&2
    wrong=$((wrong + 1))
}

# prose PAGE: the page without its fenced blocks and its comments.
prose() {
    awk '/^```/ { fenced = !fenced; next } /^<!-- cpp$/ { hidden = 1 } !fenced && !hidden { print } /-->$/ { hidden = 0 }' "$1"
}
# spans PAGE: what stands between backticks, one a line.
# shellcheck disable=SC2016 # backticks are those of the document
spans() {
    prose "$1" | grep -oE '`[^`]+`' | tr -d '`' || true
}
# headings PAGE: as links name them.
headings() {
    prose "$1" | sed -nE 's/^#+ +//p' | tr '[:upper:]' '[:lower:]' | sed -E 's/[^a-z0-9 _-]//g; s/ /-/g'
}

shopt -s nullglob
pages=(docs/*.md)
((${#pages[@]} > 0)) || say "docs/: no page"

for page in README.md CONTRIBUTING.md "${pages[@]}" bench/results/*.md bench/results/*/*.md; do
    while read -r target; do
        [[ $target =~ ^[a-z]+: ]] && continue
        file=${target%%#*}
        if [[ -z $file ]]; then file=$page; else file=$(dirname "$page")/$file; fi
        if [[ ! -e $file ]]; then
            say "$page: links to $target, which is not there"
        elif [[ $target == *#* ]] && ! headings "$file" | grep -qxF "${target#*#}"; then
            say "$page: links to $target, but there is no such heading"
        fi
    done < <(prose "$page" | grep -oE '\]\([^)]+\)' | sed -E 's/^\]\(|\)$//g' || true)
done

for page in "${pages[@]}"; do
    while IFS=: read -r line fence; do
        say "$page:$line: a block of '${fence#\`\`\`}'; valid: cpp, cmake, sh, text"
    done < <(awk '/^```/ { if (!inside && $0 !~ /^```(cpp|cmake|sh|text)$/) print NR ":" $0; inside = !inside }' "$page")
    [[ $page == docs/README.md ]] || grep -qF "]($(basename "$page"))" docs/README.md || say "docs/README.md: no link to $page"
done

sources=()
for place in include examples bench tests cmake scripts CMakeLists.txt CMakePresets.json; do
    [[ ! -e $place ]] || sources+=("$place")
done
# Words of the sources, and of the blocks of the page itself.
word='--[a-z][a-z0-9-]+|kvtl-[a-z-]+|[A-Za-z_][A-Za-z0-9_]*'
words=$(grep -rhoE --include='*.[hc]pp' --include='*.txt' --include='*.cmake' --include='*.json' --include='*.sh' --exclude=check_pages_test.sh \
    -e "$word" "${sources[@]}" | sort -u)
for page in "${pages[@]}"; do
    [[ $page != docs/presets.md ]] || continue # made of the headers
    while read -r name; do
        say "$page: names $name, which no source has"
    done < <(spans "$page" |
        grep -oE -e '(^|[^a-z0-9_./-])(--[a-z][a-z0-9-]+|kvtl-[a-z-]+|KVTL_[A-Z_]+|[a-z][a-z0-9]*(_[a-z0-9]+)+)|^[a-z][a-z0-9_]*$' |
        sed -E 's/^[^a-zK-]//' | sort -u | comm -23 - <(bash "$here/extract.sh" "$page" | grep -oE -e "$word" | cat - <(cat <<<"$words") | sort -u))
    while read -r path; do
        [[ -e $path || -e docs/$path || -e include/kvtl/$path || -e include/$path ]] || say "$page: names $path, which is not there"
    done < <(spans "$page" |
        grep -oE '(^|[ <])[a-z0-9_./]+/[A-Za-z0-9_.]*\.(hpp|cpp|md|sh|txt|cmake)' | sed 's/^[ <]//' | sort -u)
done

((wrong == 0)) || exit 1
echo "${#pages[@]} pages: what they name is there"
