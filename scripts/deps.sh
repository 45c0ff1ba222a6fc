#!/usr/bin/env bash
# Installs what kvtl is built with, where it is missing (Debian 12+, Ubuntu 24.04+). Silent and fast when all is there.
#   scripts/deps.sh [--lint] [--cross]
# SPDX-License-Identifier: MIT
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: scripts/deps.sh [--lint] [--cross]
Installs with apt what is missing for building and testing kvtl.
  --lint    also clang, clang-format, clang-tidy and shellcheck
  --cross   also the compiler for 64-bit Arm and qemu, which runs its programs
TEXT
}

wanted=(g++ cmake ninja-build pkg-config
    libxsimd-dev liburing-dev doctest-dev libbenchmark-dev libcli11-dev nlohmann-json3-dev libeigen3-dev)
for argument in "$@"; do
    case $argument in
    --lint) wanted+=(clang clang-format clang-tidy shellcheck) ;;
    --cross) wanted+=(g++-aarch64-linux-gnu qemu-user) ;;
    -h | --help) usage && exit 0 ;;
    *)
        echo "deps.sh: unknown option $argument" >&2
        usage >&2
        exit 2
        ;;
    esac
done

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "deps.sh: no apt on this system; if the build misses something, look for: ${wanted[*]}" >&2
    exit 0
fi

missing=()
for package in "${wanted[@]}"; do
    # shellcheck disable=SC2016 # ${...} is dpkg's, not the shell's
    dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
((${#missing[@]} > 0)) || exit 0

as_root=()
if ((EUID != 0)); then
    if ! command -v sudo >/dev/null; then
        echo "deps.sh: as root, run: apt-get install ${missing[*]}" >&2
        exit 1
    fi
    as_root=(sudo)
fi
echo "deps.sh: installing ${missing[*]}" >&2
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300)
# One unreachable mirror fails the update while the lists at hand may be good enough: let the install decide.
"${apt[@]}" update >&2 || echo "deps.sh: apt-get update failed; trying with the lists at hand" >&2
"${apt[@]}" install -y --no-install-recommends "${missing[@]}" >&2
