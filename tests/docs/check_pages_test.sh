#!/usr/bin/env bash
# Breaks a page in every way that check_pages.sh must notice, in a small tree of its own.
#   check_pages_test.sh ROOT WORK
# SPDX-License-Identifier: MIT
set -euo pipefail
root=$(cd "$1" && pwd)
work=$2 checker=$root/tests/docs/check_pages.sh
# shellcheck source=tests/support/broken_tree.sh
. "$root/tests/support/broken_tree.sh"

# A tree in which all is well.
fresh() {
    rm -rf "$work"
    mkdir -p "$work"/{docs,include/kvtl,examples}
    cd "$work"
    echo 'struct some_policy {}; // KVTL_SOME kvtl-tool --some-option' >include/kvtl/a.hpp
    touch CONTRIBUTING.md
    echo 'See [pages](docs/README.md#the-pages-1-2).' >README.md
    printf '# The pages: 1, 2\n[one](one.md)\n' >docs/README.md
    # shellcheck disable=SC2016 # backticks are those of the document
    printf '```cpp\nint of_the_page;\n```\n# One\n`of_the_page` [up](../README.md) `some_policy` `x = some_policy{}` `--some-option` `KVTL_SOME` `a.hpp` `kvtl/a.hpp`\n%s\n' \
        '`kvtl-tool --some-option 2`' >docs/one.md
}

fresh
bash "$checker" "$work" >/dev/null

# shellcheck disable=SC2016 # backticks are those of the document
{
    fresh; echo '[gone](gone.md)' >>docs/one.md;        expect 'docs/one.md: links to gone.md, which is not there'
    fresh; mkdir -p bench/results/log; echo '[gone](../gone.svg)' >bench/results/log/a.md; expect 'bench/results/log/a.md: links to ../gone.svg, which is not there'
    fresh; echo '[gone](docs/gone.md)' >>README.md;     expect 'README.md: links to docs/gone.md, which is not there'
    fresh; sed -i 's/1, 2/1/' docs/README.md;           expect 'links to docs/README.md#the-pages-1-2, but there is no such heading'
    fresh; printf '```c++\n```\n' >>docs/one.md;        expect "docs/one.md:7: a block of 'c++'"
    fresh; echo '# Two' >docs/two.md;                   expect 'docs/README.md: no link to docs/two.md'
    fresh; echo 'A `missing_policy`.' >>docs/one.md;    expect 'docs/one.md: names missing_policy, which no source has'
    fresh; echo 'A `missing`.' >>docs/one.md;           expect 'docs/one.md: names missing, which no source has'
    fresh; echo '`kvtl-tool --none`' >>docs/one.md;     expect 'docs/one.md: names --none, which no source has'
    fresh; echo '`kvtl-none`' >>docs/one.md;            expect 'docs/one.md: names kvtl-none, which no source has'
    fresh; echo '`KVTL_NONE`' >>docs/one.md;            expect 'docs/one.md: names KVTL_NONE, which no source has'
    fresh; echo '`kvtl/none.hpp`' >>docs/one.md;        expect 'docs/one.md: names kvtl/none.hpp, which is not there'
}

((failures == 0)) && echo "everything that is not there is noticed"
