#!/usr/bin/env bash
# Makes the site and checks its links; then breaks it in every way that site.py --check must notice.
#   site_test.sh ROOT WORK
# SPDX-License-Identifier: MIT
set -euo pipefail
root=$(cd "$1" && pwd)
work=$2 failures=0
site=$root/scripts/site/site.py
if ! command -v cmark-gfm >/dev/null; then
    echo "skipped: there is no cmark-gfm (scripts/deps.sh --site)" >&2
    exit 77 # the test counts as skipped
fi

rm -rf "$work"
mkdir -p "$work"
python3 "$site" "$work/good"
python3 "$site" --check "$work/good"

# has PAGE TEXT: the page of the site says so.
has() {
    grep -qF -- "$2" "$work/good/$1" || { echo "$1: no $2" >&2; failures=$((failures + 1)); }
}
has index.html 'id="quick-start"'
has index.html 'href="docs/five_minutes.html"'
has docs/integrate.html 'id="a-prompt-in-chunks"'
has docs/integrate.html '<span class="k">const</span>'
has bench/results/index.html 'src="plots/'
has reference/index.html 'href="kvtl/manager.hpp.html"'
has reference/kvtl/manager.hpp.html '<strong>Threads:</strong> Shards divide KV heads'
has reference/kvtl/presets/dynakv.hpp.html 'Least-recently-used replacement'
has search_index.js '"docs/errors.html#'
if grep -rlE '<(script|link|img)[^>]*(src|href)="[a-z]+:' "$work/good" --include='*.html' | head -n 1 | grep -q .; then
    echo "a page loads something from elsewhere" >&2
    failures=$((failures + 1))
fi

# expect STATUS TEXT COMMAND...: it fails with this status, and its first line is TEXT.
expect() {
    local status=0 said
    said=$("${@:3}" 2>&1) || status=$?
    if [[ $status != "$1" || ${said%%$'\n'*} != *"$2"* ]]; then
        printf 'expected: %s, exit status %s\nread: %s, exit status %s\n' "$2" "$1" "$said" "$status" >&2
        failures=$((failures + 1))
    fi
}
# broken PAGE EXPRESSION TEXT: the page changed by sed is noticed.
broken() {
    cp "$work/good/$1" "$work/kept"
    sed -i "$2" "$work/good/$1"
    expect 1 "$3" python3 "$site" --check "$work/good"
    mv "$work/kept" "$work/good/$1"
}
broken index.html 's|href="docs/faq.html"|href="docs/fag.html"|' 'index.html: links to docs/fag.html, which is not there'
broken docs/faq.html 's|<main>|<main><a href="errors.html#no-such">x</a>|' 'docs/faq.html: links to errors.html#no-such, but the page has no such anchor'
broken bench/results/index.html 's|src="plots/|src="plot/|' 'links to plot/'
broken search_index.js 's|"docs/errors.html#|"docs/errors.html#no-|' 'search_index.js: links to docs/errors.html#no-'
mkdir "$work/foreign"
touch "$work/foreign/theirs"
expect 2 'is no folder of pages; valid: an empty folder' python3 "$site" "$work/foreign"
expect 2 'no page; run scripts/site/site.py' python3 "$site" --check "$work/foreign"
expect 2 'is no folder; valid:' python3 "$site" "$work/foreign/theirs"
expect 2 'is no folder; valid:' python3 "$site" --check "$work/foreign/theirs"
mv "$work/good/search_index.js" "$work/kept"
expect 2 'no search_index.js' python3 "$site" --check "$work/good"
mv "$work/kept" "$work/good/search_index.js"
# A run that stops halfway, here by a cmark-gfm that fails, leaves a folder that the next run takes.
mkdir "$work/bin"
printf '#!/bin/sh\necho "cmark-gfm: broken" >&2\nexit 3\n' >"$work/bin/cmark-gfm"
chmod +x "$work/bin/cmark-gfm"
expect 2 'cmark-gfm failed with exit status 3: cmark-gfm: broken' env PATH="$work/bin:$PATH" python3 "$site" "$work/halfway"
touch "$work/halfway/page.html"
expect 2 'cmark-gfm failed' env PATH="$work/bin:$PATH" python3 "$site" "$work/halfway"
LC_ALL=C PYTHONCOERCECLOCALE=0 python3 -X utf8=0 "$site" "$work/halfway" >/dev/null
python=$(python3 -c 'import sys; print(sys.executable)')
expect 2 'cmark-gfm is missing' env PATH="$work" "$python" "$site" "$work/other"

((failures == 0)) && echo "the site is whole, and what breaks it is noticed"
