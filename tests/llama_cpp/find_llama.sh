#!/usr/bin/env bash
# cmake/FindKvtlLlama.cmake: what it says of folders that will not do.
#
#   find_llama.sh SOURCE-FOLDER LLAMA-ROOT C++-COMPILER
# SPDX-License-Identifier: MIT
set -u
source=$1 root=$2 compiler=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0

cat >CMakeLists.txt <<TEXT
cmake_minimum_required(VERSION 3.25)
project(one_that_uses_it LANGUAGES CXX)
list(APPEND CMAKE_MODULE_PATH "$source/cmake")
find_package(KvtlLlama)
set(target FALSE)
if(TARGET kvtl_llama_cpp)
    set(target TRUE)
endif()
message(STATUS "found: \${KvtlLlama_FOUND}, target: \${target}")
TEXT

# expect STATUS TEXT ARGUMENT...   TEXT in one line, however CMake breaks it
expect() {
    local status=$1 text=$2 got
    shift 2
    rm -rf build
    cmake -S . -B build -DCMAKE_CXX_COMPILER="$compiler" "$@" >out 2>&1
    got=$?
    [ $((got != 0)) -eq "$status" ] || { echo "FAILED: exit status $got: $*" && cat out && failures=1; }
    tr -s ' \n' ' ' <out | grep -qF -- "$text" || { echo "FAILED: no '$text': $*" && cat out && failures=1; }
}

expect 0 "found: TRUE" -DKVTL_LLAMA_ROOT="$root"
expect 0 "kvtl-llama is left out: KVTL_LLAMA_ROOT is off" -DKVTL_LLAMA_ROOT=OFF
expect 1 "no llama.cpp in $work/none; scripts/deps.sh --llama fetches one" -DKVTL_LLAMA_ROOT="$work/none"
expect 0 "kvtl-llama is left out: no llama.cpp in" -DCMAKE_DISABLE_FIND_PACKAGE_llama=ON

# Ones that are too old: FILE of the headers with PATTERN replaced.
too_old() { # FILE SED-COMMAND NAME
    rm -rf old
    mkdir old
    cp -r "$root/include" old/include
    ln -s "$root/lib" old/lib
    echo v0.1 >old/VERSION
    sed "$2" "$root/include/$1" >"old/include/$1"
    ! cmp -s "$root/include/$1" "old/include/$1" || { echo "FAILED: $2 changes nothing" && failures=1; }
    expect 1 "llama.cpp v0.1 of $work/old lacks $3" -DKVTL_LLAMA_ROOT="$work/old"
}
too_old llama.h 's/llama_attach_threadpool/llama_something_else/' llama_attach_threadpool
too_old gguf.h 's/gguf_write_to_file/gguf_something_else/' gguf_write_to_file
too_old llama.h 's/LLAMA_CONTEXT_TYPE_DEFAULT/LLAMA_CONTEXT_TYPE_NONE/' LLAMA_CONTEXT_TYPE_DEFAULT
too_old ggml.h 's/GGML_OP_SET_ROWS/GGML_OP_SET_OTHERS/' GGML_OP_SET_ROWS
too_old llama.h 's/#include "ggml.h"/#include "no_such_file.h"/' "a header"
too_old llama.h 's/bool kv_unified;/bool kv_other;/' llama_context_params::kv_unified

# Found where CMake looks: left out where it is too old, and then nobody sees its target.
mkdir package
cat >package/llama-config.cmake <<TEXT
add_library(llama INTERFACE IMPORTED)
file(GLOB libraries "$root/lib/libllama*.so" "$root/lib/libggml.*so" "$root/lib/libggml-base.*so")
set_target_properties(llama PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "\${PACKAGE_HEADERS}"
                      INTERFACE_LINK_LIBRARIES "\${libraries}")
TEXT
expect 0 "found: TRUE, target: TRUE" -Dllama_DIR="$work/package" -DPACKAGE_HEADERS="$root/include"
expect 0 "kvtl-llama is left out: llama.cpp unknown of $work/package lacks llama_context_params::kv_unified" \
    -Dllama_DIR="$work/package" -DPACKAGE_HEADERS="$work/old/include"
grep -q "found: FALSE, target: FALSE" out || { echo "FAILED: a target of what was left out" && cat out && failures=1; }

[ "$failures" -eq 0 ] && echo "all as expected"
exit "$failures"
