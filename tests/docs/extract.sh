#!/usr/bin/env bash
# The program of a page: its ```cpp blocks, and between them what a comment that begins with "<!-- cpp" hides from the
# reader, in the order of the page. Line numbers of the compiler's messages are those of the page.
#   extract.sh PAGE.md > PAGE.cpp
# SPDX-License-Identifier: MIT
set -euo pipefail
awk -v page="$1" '
    function open_block(end) { closes = end; began = NR; printf "#line %d \"%s\"\n", NR + 1, page }
    closes == "" && $0 == "```cpp"   { open_block("```"); next }
    closes == "" && $0 == "<!-- cpp" { open_block("-->"); next }
    closes == "" && /^```/           { closes = "other"; next }
    closes == "other"                { if ($0 == "```") closes = ""; next }
    closes != "" && $0 == closes     { closes = ""; next }
    closes != ""                     { print }
    END { if (closes != "") { print page ":" began ": a block without an end" > "/dev/stderr"; exit 1 } }' "$1"
