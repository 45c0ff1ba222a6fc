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
message(STATUS "found: \${KvtlLlama_FOUND}")
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

# one that is too old
mkdir -p old
cp -r "$root/include" old/include
ln -s "$root/lib" old/lib
echo v0.1 >old/VERSION
sed 's/llama_attach_threadpool/llama_something_else/' "$root/include/llama.h" >old/include/llama.h
expect 1 "llama.cpp v0.1 of $work/old lacks llama_attach_threadpool" -DKVTL_LLAMA_ROOT="$work/old"

[ "$failures" -eq 0 ] && echo "all as expected"
exit "$failures"
