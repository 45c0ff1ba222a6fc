#!/usr/bin/env bash
# Breaks every rule of tree_rules.sh once, in a small tree of its own, and expects exactly that complaint.
#   tree_rules_test.sh ROOT WORK
# SPDX-License-Identifier: MIT
set -euo pipefail
root=$(cd "$1" && pwd)
work=${2%/}
rules=$root/tests/consumer/tree_rules.sh
failures=0

# A tree in which every rule holds, made once and copied for every case.
whole=$work.whole
trap 'rm -rf "$whole"' EXIT
make_whole() {
    rm -rf "$whole"
    mkdir -p "$whole"/{include/kvtl/simd,include/kvtl/io,tests,examples/data}
    cd "$whole"
    cp "$root/include/kvtl/version.hpp" include/kvtl/
    printf '// SPDX-License-Identifier: MIT\n#pragma once\n' >include/kvtl/a.hpp
    printf '// SPDX-License-Identifier: MIT\n#pragma once\n#include <xsimd/xsimd.hpp>\n' >include/kvtl/simd/b.hpp
    printf '// SPDX-License-Identifier: MIT\n#pragma once\n#include <liburing.h>\n' >include/kvtl/io/uring_file.hpp
    find include -name '*.hpp' | sed 's|^include/||' | grep -v '/a\.hpp$' >covered.txt
    printf '#include <kvtl/a.hpp>\n' >tests/a.cpp
    { echo '# Title'; for ((i = 0; i < 100; i++)); do echo "A plain sentence about nothing."; done; } >examples/data/prose.txt
    printf '## 0.1.0\n' >CHANGELOG.md
    version=$(sed -nE 's/.*STRING "(.*)"/\1/p' include/kvtl/version.hpp)
    printf '## [%s]\n' "$version" >CHANGELOG.md
    printf 'find_package(kvtl %s CONFIG REQUIRED)\n' "${version%.*}" >README.md
}
make_whole
fresh() {
    rm -rf "$work"
    cp -r "$whole" "$work"
    cd "$work"
}

# expect TEXT: the rules fail, and say TEXT and nothing else.
expect() {
    local said
    if said=$(bash "$rules" "$work" covered.txt 2>&1); then
        echo "not noticed: $1" >&2
        failures=$((failures + 1))
    elif [[ $said != *"$1"* || $said == *$'\n'* ]]; then
        printf 'expected the one line: %s\nread: %s\n' "$1" "$said" >&2
        failures=$((failures + 1))
    fi
}

fresh
bash "$rules" "$work" covered.txt >/dev/null

fresh; echo '#include <xsimd/xsimd.hpp>' >>include/kvtl/a.hpp;         expect 'a.hpp: includes xsimd'
fresh; echo '#  include "liburing.h"' >examples/x.cpp;                 expect 'x.cpp: includes liburing'
fresh; echo '#include <openssl/ssl.h>' >examples/x.cpp;                expect 'x.cpp: includes OpenSSL'
fresh; echo '#include <Eigen/Core>' >>include/kvtl/a.hpp;              expect 'a.hpp: includes Eigen'
fresh; rm -r include/*;                                                expect 'include/: no header found'
fresh; cp include/kvtl/a.hpp include/kvtl/a.h; echo kvtl/a.h >>covered.txt; expect 'only .hpp files belong below include/'
fresh; sed -i /pragma/d include/kvtl/a.hpp;                            expect "a.hpp: no '#pragma once'"
fresh; sed -i /SPDX/d include/kvtl/a.hpp;                              expect "a.hpp: no '// SPDX"
fresh; sed -i 's|^// SPDX|// Text. SPDX|' include/kvtl/a.hpp;          expect "a.hpp: no '// SPDX"
fresh; printf '//\n%.0s' {1..900} >>include/kvtl/a.hpp;                expect 'a.hpp: 902 lines'
# include INTO WHAT: a new header, known to the tests, that includes another.
include() {
    mkdir -p "include/$(dirname "$1")"
    printf '// SPDX-License-Identifier: MIT\n#pragma once\n#include <%s>\n' "$2" >"include/$1"
    echo "$1" >>covered.txt
}
fresh; include kvtl/unit.hpp kvtl/simd/b.hpp;                          expect 'unit.hpp: includes kvtl/simd/b.hpp, which stands above'
fresh; include kvtl/simd/c.hpp kvtl/slots/index.hpp;                   expect 'includes kvtl/slots/index.hpp, which stands above'
fresh; include kvtl/presets/c.hpp kvtl/calibration/fit/gate_fit.hpp;         expect 'includes kvtl/calibration/fit/gate_fit.hpp, which stands above'
fresh; include kvtl/slots/c.hpp kvtl/policies/support/lists.hpp;       expect 'includes kvtl/policies/support/lists.hpp, which'
fresh; include kvtl/slots/c.hpp kvtl/core/shard.hpp;                   expect 'includes kvtl/core/shard.hpp, which'
fresh; include kvtl/io/c.hpp kvtl/layout/page_map.hpp;                 expect 'includes kvtl/layout/page_map.hpp, which stands above or beside'
fresh; include kvtl/policies/index_c.hpp kvtl/core/shard.hpp;          expect 'includes kvtl/core/shard.hpp, which'
fresh; include kvtl/policies/index_c.hpp kvtl/policies/select_d.hpp;   expect 'includes kvtl/policies/select_d.hpp, which'
fresh; include kvtl/policies/index_c.hpp kvtl/io/uring_file.hpp;       expect 'a policy may not know devices or layouts'
fresh; include kvtl/policies/index_c.hpp kvtl/slots/selector.hpp;      expect 'selector.hpp, which is the header of another slot'
fresh; include kvtl/core/c.hpp kvtl/policies/index_d.hpp;              expect 'core may not know a policy'
fresh; include kvtl/core/c.hpp kvtl/manager.hpp;                       expect 'includes kvtl/manager.hpp, which'
fresh; include kvtl/save/c.hpp kvtl/prefix_store.hpp;                  expect 'includes kvtl/prefix_store.hpp, which'
fresh; include kvtl/store/c.hpp kvtl/core/shard.hpp;                   expect 'includes kvtl/core/shard.hpp, which'
fresh; include kvtl/manager.hpp kvtl/presets/full.hpp;                 expect 'includes kvtl/presets/full.hpp, which'
fresh; include kvtl/presets/c.hpp kvtl/manager.hpp; include kvtl/manager.hpp kvtl/core/c.hpp
include kvtl/core/c.hpp kvtl/policies/support/d.hpp; include kvtl/policies/support/d.hpp kvtl/slots/e.hpp
include kvtl/policies/index_c.hpp kvtl/policies/index_d.hpp; include kvtl/slots/e.hpp kvtl/simd/b.hpp
include kvtl/policies/retain_c.hpp kvtl/slots/retention.hpp
bash "$rules" "$work" covered.txt >/dev/null # downwards, and siblings: all is well
fresh; for ((i = 0; i < 14; i++)); do include "kvtl/r$i.hpp" kvtl/a.hpp; done; expect 'include/kvtl/: 16 headers'
fresh; rm tests/a.cpp;                                                 expect 'a.hpp: no test includes it'
fresh; sed -i 's/PATCH [0-9]*/PATCH 77/' include/kvtl/version.hpp; rm ./*.md; expect 'KVTL_VERSION_STRING is not'
fresh; echo 'namespace kvtl { inline namespace v99 {}}' >>include/kvtl/a.hpp;      expect 'inline namespace v99'
fresh; sed -i 's/kvtl [0-9.]*/kvtl 99.0/' README.md;                   expect 'find_package(kvtl 99.0)'
fresh; echo '## [99.0.0]' >CHANGELOG.md;                               expect 'newest entry is 99.0.0'
fresh; printf 'caf\xc3\xa9\n' >>examples/data/prose.txt;               expect 'not plain ASCII'
fresh; echo 'Question: what?' >>examples/data/prose.txt;               expect 'mistake for its own'
fresh; printf '\n# Short\nOnly this.\n' >>examples/data/prose.txt;     expect 'passage "Short" has only'
fresh; printf '\nAfter a gap.\n' >>examples/data/prose.txt;            expect 'empty line inside a passage'
fresh; sed -i 1d examples/data/prose.txt;                              expect 'begins without a title'

((failures == 0)) && echo "every rule can fail"
