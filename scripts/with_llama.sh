# shellcheck shell=bash
# What scripts/llama.sh and scripts/server.sh share. To be sourced.
#   build_with_llama CALLER TARGET NEEDS      builds a program into $root/build/demo, with the presets of the demo
# NEEDS says what else is missing when there is no such target. KVTL_LLAMA_ROOT=FOLDER in the environment: that
# llama.cpp, nothing is fetched.
# SPDX-License-Identifier: MIT
root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)

build_with_llama() {
    local caller=$1 target=$2 needs=$3 build=$root/build/demo llama_root generator=() own
    own="build one and name its folder: KVTL_LLAMA_ROOT=FOLDER scripts/$caller (examples/llama_cpp/README.md, Set-up)"
    if [[ -n ${KVTL_LLAMA_ROOT:-} ]]; then
        "$root/scripts/deps.sh"
        llama_root=$(realpath "$KVTL_LLAMA_ROOT")
    else
        if ! "$root/scripts/deps.sh" --llama; then
            echo "$caller: llama.cpp could not be fetched; try again, or $own" >&2
            exit 1
        fi
        llama_root=$root/build/llama.cpp
    fi

    # A folder that exists keeps the generator it was configured with.
    [[ -f $build/CMakeCache.txt ]] || generator=(-G Ninja)
    cmake -S "$root" -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DKVTL_PRESETS=demo \
        -DKVTL_LLAMA_ROOT="$llama_root" -DKVTL_BUILD_EXAMPLES=ON -DKVTL_BUILD_TESTS=OFF -DKVTL_BUILD_BENCH=OFF >&2
    if ! cmake --build "$build" --target help | grep -w "$target" >/dev/null; then
        echo "$caller: there is no llama.cpp to build with; $own$needs" >&2
        exit 1
    fi
    cmake --build "$build" --target "$target" --parallel "$(nproc)" >&2
}
