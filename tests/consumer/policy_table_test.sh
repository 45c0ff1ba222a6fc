#!/usr/bin/env bash
# Breaks the table of policies in every way that policy_table.sh must notice, in a small tree of its own.
#   policy_table_test.sh ROOT WORK
# SPDX-License-Identifier: MIT
set -euo pipefail
root=$(cd "$1" && pwd)
work=$2 checker=$root/tests/consumer/policy_table.sh
# shellcheck source=tests/support/broken_tree.sh
. "$root/tests/support/broken_tree.sh"

# A tree in which table and headers agree.
fresh() {
    rm -rf "$work"
    mkdir -p "$work"/{docs,include/kvtl/{policies/support,layout}}
    cd "$work"
    printf 'template <int N> struct some {};\nusing other = some<1>;\n' >include/kvtl/policies/index_some.hpp
    printf 'struct place {};\n' >include/kvtl/layout/place.hpp
    printf 'struct shared {};\n' >include/kvtl/policies/support/shared.hpp # has no line
    # shellcheck disable=SC2016 # backticks are those of the document
    printf '| %s |\n' 'index | `some<N, M>`, `other` | `policies/index_some.hpp` | does | paper' \
        'layout | `place` | `layout/place.hpp` | does |' >docs/policies.md
}

fresh
bash "$checker" "$work" >/dev/null

fresh; sed -i /index_some/d docs/policies.md;                   expect 'policies/index_some.hpp has 0 lines'
fresh; sed -i 2p docs/policies.md;                               expect 'layout/place.hpp has 2 lines'
fresh; echo 'struct late {};' >include/kvtl/layout/a.hpp; expect 'layout/a.hpp has 0 lines'
fresh; rm include/kvtl/layout/place.hpp;                 expect 'names layout/place.hpp, which is not there'
fresh; sed -i s/other/another/ docs/policies.md;                expect 'policies/index_some.hpp does not declare another'
fresh; sed -i s/place/places/ include/kvtl/layout/place.hpp; expect 'layout/place.hpp does not declare place'

((failures == 0)) && echo "every disagreement is noticed"
