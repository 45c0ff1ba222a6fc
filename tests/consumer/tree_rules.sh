#!/usr/bin/env bash
# Rules of the source tree that no compiler checks. Prints one line per breach; exit status 1 if there is any.
#   tree_rules.sh ROOT [COVERED]
# COVERED lists the headers (kvtl/...) that the build compiles on their own; without it that rule is left out.
# SPDX-License-Identifier: MIT
set -euo pipefail
export LC_ALL=C
root=$(cd "$1" && pwd)
covered=${2:-}
cd "$root"
breaches=0

breach() {
    printf '%s\n' "$1" >&2
    breaches=$((breaches + 1))
}

# All files with #include <LIBRARY...>, own programs included; tests may include what they test against.
including() {
    local tree=(include)
    [[ -d examples ]] && tree+=(examples)
    [[ -d bench ]] && tree+=(bench)
    grep -rlE "^[[:space:]]*#[[:space:]]*include[[:space:]]*[<\"]$1" "${tree[@]}" --include='*.?pp' || true
}

mapfile -t headers < <(find include -type f | sort)
((${#headers[@]} > 0)) || { echo "include/: no header found" >&2; exit 1; }

# --- dependencies stay where they can be replaced
while read -r file; do
    case $file in include/kvtl/simd/* | include/kvtl/simd.hpp | '') ;;
    *) breach "$file: includes xsimd; only include/kvtl/simd/ may" ;;
    esac
done < <(including 'xsimd[/.]')
while read -r file; do
    case $file in include/kvtl/io/uring_file.hpp | '') ;;
    *) breach "$file: includes liburing; only include/kvtl/io/uring_file.hpp may" ;;
    esac
done < <(including 'liburing[/.]')
while read -r file; do
    case $file in include/kvtl/store/tls_stream.hpp | '') ;;
    *) breach "$file: includes OpenSSL; only include/kvtl/store/tls_stream.hpp may" ;;
    esac
done < <(including 'openssl/ssl')

while read -r file; do
    case $file in include/kvtl/calibration/fit/dense_algebra.hpp | '') ;;
    *) breach "$file: includes Eigen; only include/kvtl/calibration/fit/dense_algebra.hpp may" ;;
    esac
done < <(including 'Eigen/')

# --- shape of a header (one process for all of them: these rules run on every change)
while read -r file; do breach "$file: only .hpp files belong below include/"; done < <(find include -type f ! -name '*.hpp')
while read -r file; do breach "$file: no '#pragma once'"; done < <(grep -L '^#pragma once$' "${headers[@]}")
while read -r file; do
    breach "$file: no '// SPDX-License-Identifier: MIT' on a line"
done < <(grep -Lx '// SPDX-License-Identifier: MIT' "${headers[@]}")
while read -r lines file; do
    [[ $file == total ]] || ((lines <= 900)) || breach "$file: $lines lines; the limit is 900"
done < <(wc -l "${headers[@]}")

# --- includes run downwards: a header includes lower levels and its own folder (of the policies, its own slot); a
# --- policy never core, nor core a policy
while read -r line; do
    breach "$line"
done < <(grep -rE '^[[:space:]]*#[[:space:]]*include[[:space:]]*<kvtl/' include --include='*.hpp' | awk -F '[<>]' '
    function folder(header) {
        if (header == "kvtl/manager.hpp") return "manager"
        if (header == "kvtl/simd.hpp") return "simd"
        if (header == "kvtl/prefix_store.hpp") return "store"
        if (header ~ /^kvtl\/calibration\/fit\//) return "fit"
        if (header ~ /^kvtl\/policies\/support\//) return "support"
        if (header ~ /^kvtl\/policies\//) return "policies"
        if (split(header, part, "/") > 2) return part[2]
        return "vocabulary"
    }
    function slot(header) { sub(/_.*/, "", header); return header } # the prefix of a policy
    BEGIN {
        split("vocabulary simd slots calibration support io layout policies save core store manager presets fit", name, " ")
        split("1          2    3     3           4       4  4      5        5    6    6     7       8       9", number, " ")
        for (i in name) level[name[i]] = number[i]
    }
    {
        file = $1; sub(/:.*/, "", file)
        from = folder(substr(file, 9)); to = folder($2)
        if (level[to] > level[from] || (level[to] == level[from] && from != to) ||
            (from == "policies" && to == "policies" && slot(substr(file, 9)) != slot($2)))
            print file ": includes " $2 ", which stands above or beside it"
        else if (from == "core" && to == "policies")
            print file ": includes " $2 "; core may not know a policy"
        else if (from == "policies" && (to == "io" || to == "layout"))
            print file ": includes " $2 "; a policy may not know devices or layouts"
        else if (from == "policies" && to == "slots" && $2 !~ /policy.hpp$/ && # retain_*: slots/retention.hpp
                 substr(file, 23, 3) != substr($2, 12, 3))
            print file ": includes " $2 ", which is the header of another slot"
    }' || true)
roots=$(find include/kvtl -maxdepth 1 -name '*.hpp' | wc -l)
((roots <= 15)) || breach "include/kvtl/: $roots headers; the limit is 15, the rest belongs into a folder"

# --- every header is compiled somewhere: by a test that names it, or by the self-containment check
if [[ -n $covered ]]; then
    declare -A compiled
    while read -r name; do [[ -z $name ]] || compiled[$name]=1; done \
        < <(awk 1 "$covered"; grep -rhoE '<kvtl/[^>]+>' tests --include='*.cpp' | tr -d '<>' || true)
    for file in "${headers[@]}"; do
        [[ -n ${compiled[${file#include/}]:-} ]] ||
            breach "$file: no test includes it and the self-containment check does not cover it"
    done
fi

# --- the version has one home; every copy agrees with it
home=include/kvtl/version.hpp
number() { sed -nE "s/^#define KVTL_VERSION_$1 ([0-9]+)$/\1/p" "$home"; }
major=$(number MAJOR) minor=$(number MINOR) patch=$(number PATCH)
version="$major.$minor.$patch"
grep -qxF "#define KVTL_VERSION_STRING \"$version\"" "$home" ||
    breach "$home: KVTL_VERSION_STRING is not \"$version\", which MAJOR, MINOR and PATCH give"
while IFS=: read -r file line text; do
    [[ $text =~ inline[[:space:]]+namespace[[:space:]]+v([0-9]+)[[:space:]]*\{ && ${BASH_REMATCH[1]} != "$major" ]] &&
        breach "$file:$line: inline namespace v${BASH_REMATCH[1]}; the major version is $major"
done < <(grep -rnE 'inline[[:space:]]+namespace[[:space:]]+v[0-9]+[[:space:]]*\{' include || true)
while IFS=: read -r file asked; do
    [[ $asked == "find_package(kvtl $major.$minor" || $asked == "find_package(kvtl $version" ]] ||
        breach "$file: tells users to $asked); this is $version"
done < <(find . -maxdepth 2 -name '*.md' -not -path './build*' -exec grep -oHE 'find_package\(kvtl [0-9.]+' {} + || true)
if [[ -f CHANGELOG.md ]]; then
    newest=$(grep -oE '^## +\[?v?[0-9]+\.[0-9]+\.[0-9]+' CHANGELOG.md | head -n 1 | grep -oE '[0-9.]+$' || true)
    [[ -z $newest || $newest == "$version" ]] || breach "CHANGELOG.md: newest entry is $newest; this is $version"
fi

# --- the program that opens the README is the example, to the letter
example=examples/01_hello_cache.cpp
if [[ -f README.md && -f $example ]]; then
    snippet=$(sed -n '/^\/\/ \[readme\]$/,/^\/\/ \[readme\]$/p' "$example" | sed '/^\/\/ \[readme\]$/d')
    [[ -n $snippet && $(<README.md) == *"$snippet"* ]] || breach "README.md: its first program is not the one of $example"
fi

# --- the prose that evaluations read: plain ASCII, titled passages, nothing that looks like a hidden fact
prose=examples/data/prose.txt
if [[ -f $prose ]]; then
    if grep -nP '[^\x20-\x7E]' "$prose" >/dev/null; then breach "$prose: not plain ASCII"; fi
    if grep -nE 'Question:|Answer:|secret code|VAR [A-Z]|[0-9]{5}' "$prose" >/dev/null; then
        breach "$prose: contains text that a retrieval task could mistake for its own"
    fi
    awk -v file="$prose" '
        function close_passage() {
            if (title != "" && bytes < 2000) { print file ": passage \"" title "\" has only " bytes " bytes"; bad = 1 }
        }
        /^# /            { close_passage(); title = substr($0, 3); bytes = 0; if (NR > 1 && last != "") {
                               print file ":" NR ": no empty line before a title"; bad = 1 } }
        NR == 1 && !/^# / { print file ":1: begins without a title"; bad = 1 }
        last == "" && NR > 1 && !/^# / { print file ":" NR ": empty line inside a passage"; bad = 1 }
        { bytes += length($0) + 1; last = $0 }
        END { close_passage(); exit bad }' "$prose" >&2 || breaches=$((breaches + 1))
fi

if ((breaches > 0)); then exit 1; fi
echo "${#headers[@]} headers, version $version: every rule of the tree holds"
