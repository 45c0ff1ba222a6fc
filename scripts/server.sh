#!/usr/bin/env bash
# Installs what is missing, llama.cpp included, builds kvtl-server into build/demo and runs it. May be called from any
# folder and repeatedly; a second run builds only what changed.
#   scripts/server.sh [ARGUMENTS OF kvtl-server...]        e.g. scripts/server.sh -m model.gguf --parallel 4 --memory-mib 256
# Without arguments: the embedded model, which knows little, on http://127.0.0.1:8080. The build has the presets of the demo;
# others: cmake --preset release. KVTL_LLAMA_ROOT=FOLDER in the environment: that llama.cpp, nothing is fetched.
# SPDX-License-Identifier: MIT
set -euo pipefail

root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
build=$root/build/demo
complain() {
    echo "server.sh: $*" >&2
    exit 1
}
own="build one and name its folder: KVTL_LLAMA_ROOT=FOLDER scripts/server.sh (examples/llama_cpp/README.md, Set-up)"

if [[ -n ${KVTL_LLAMA_ROOT:-} ]]; then
    "$root/scripts/deps.sh"
    llama_root=$(realpath "$KVTL_LLAMA_ROOT")
else
    "$root/scripts/deps.sh" --llama || complain "llama.cpp could not be fetched; try again, or $own"
    llama_root=$root/build/llama.cpp
fi

# A folder that exists keeps the generator it was configured with.
generator=()
[[ -f $build/CMakeCache.txt ]] || generator=(-G Ninja)
cmake -S "$root" -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DKVTL_PRESETS=demo \
    -DKVTL_LLAMA_ROOT="$llama_root" -DKVTL_BUILD_EXAMPLES=ON -DKVTL_BUILD_TESTS=OFF -DKVTL_BUILD_BENCH=OFF >&2
cmake --build "$build" --target help | grep -w kvtl_server >/dev/null ||
    complain "there is no llama.cpp to build with ($own), or no cpp-httplib (Debian: libcpp-httplib-dev)"
cmake --build "$build" --target kvtl_server --parallel "$(nproc)" >&2

exec "$build/bin/kvtl-server" "$@"
