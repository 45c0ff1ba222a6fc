#!/usr/bin/env bash
# Installs what kvtl is built with, where it is missing (Debian 12+, Ubuntu 24.04+). Silent and fast when all is there.
#   scripts/deps.sh [--lint] [--cross] [--site] [--llama] [--clients]
# SPDX-License-Identifier: MIT
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: scripts/deps.sh [--lint] [--cross] [--site] [--llama] [--clients]
Installs with apt what is missing for building and testing kvtl.
  --lint    also clang, clang-format, clang-tidy and shellcheck
  --cross   also the compiler for 64-bit Arm and qemu, which runs its programs
  --site    also cmark-gfm, for the pages of the target `site` and their test
  --llama   also llama.cpp, prebuilt, into build/llama.cpp: for kvtl-llama and its tests
  --clients also OpenAI's client for Node.js, into build/openai, curl, a browser without windows, and redis-server, whose
            daemon is not started: for tests of kvtl-server and of the remote tier
TEXT
}

complain() {
    echo "deps.sh: $*" >&2
    exit 1
}

# ------------------------------------------------------------------------------------------------------- llama.cpp
# A release of llama.cpp as two npm packages carry it: one the libraries for a processor, the other the source as a git
# bundle, of which the headers are taken. Another release: its number, that of the packages and the three sums.
llama_version=v0.5.0
llama_packages=3.22.1
declare -A llama_sums=(
    [node-llama-cpp]=a0d9dd80eacd2ab1cfe71aee57ac8a806487fd70b3d2a38fbec637752d9e5c5f
    [linux-x64]=0d953e1503d5ab4608d8ed5b739132308c81ac05ffeb760d2a7f30e08a9f90e0
    [linux-arm64]=39c76b998e35ed2f236c01472fc79eda0fc558b1c8b535023c2d7ded8c327cc4
)
root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
llama=$root/build/llama.cpp

llama_is_there() {
    [[ -r $llama/VERSION && $(<"$llama/VERSION") == "$llama_version" ]]
}

# Fetches one package into the current folder and checks it: PACKAGE@VERSION FILE SUM.
fetch_package() {
    npm pack --loglevel=error --ignore-scripts "$1" >/dev/null 2>npm.log || {
        sed -n '1,4s/^/    /p' npm.log >&2
        complain "npm pack $1 failed; it needs a network and a registry (npm config get registry)"
    }
    [[ -f $2 ]] || complain "npm pack $1 wrote no $2"
    sha256sum --check --status - <<<"$3  $2" ||
        complain "$2 has another sha256 than the one in scripts/deps.sh: $(sha256sum <"$2" | cut -d ' ' -f 1)"
}

# In a subshell: it changes the folder, and its trap takes the temporary one away.
fetch_llama() (
    processor=$1
    command -v npm >/dev/null || complain "npm is missing, which fetches llama.cpp; install it and try again"
    command -v git >/dev/null || complain "git is missing, which unpacks llama.cpp's headers; install it and try again"
    echo "deps.sh: fetching llama.cpp $llama_version into build/llama.cpp" >&2
    mkdir -p "$root/build"
    work=$(mktemp -d "$root/build/llama.cpp.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    trap 'exit 1' INT TERM HUP
    mkdir "$work/fetched" "$work/ready" "$work/ready/lib"
    cd "$work/fetched"
    fetch_package "node-llama-cpp@$llama_packages" "node-llama-cpp-$llama_packages.tgz" "${llama_sums[node-llama-cpp]}"
    fetch_package "@node-llama-cpp/$processor@$llama_packages" "node-llama-cpp-$processor-$llama_packages.tgz" \
        "${llama_sums[$processor]}"

    tar -xzf "node-llama-cpp-$processor-$llama_packages.tgz" --no-same-owner -m
    cp package/bins/"$processor"/*.so "$work/ready/lib/"
    tar -xzf "node-llama-cpp-$llama_packages.tgz" --no-same-owner -m package/llama/gitRelease.bundle
    # Neither the settings of the user nor a repository around this one matter here.
    unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
    export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
    git init --quiet --bare source
    git -C source fetch --quiet "$PWD/package/llama/gitRelease.bundle" HEAD
    git -C source archive FETCH_HEAD include ggml/include LICENSE | tar -x --no-same-owner
    mv include "$work/ready/include"
    cp ggml/include/*.h "$work/ready/include/"
    mv LICENSE "$work/ready/LICENSE"
    echo "$llama_version" >"$work/ready/VERSION"

    # Whoever looks sees the whole folder or none. One that came in between, from a call beside this one, will do.
    llama_is_there && exit 0
    [[ ! -e $llama ]] || mv -T "$llama" "$work/before"
    mv -T "$work/ready" "$llama" 2>/dev/null || llama_is_there || complain "cannot create $llama"
)

# ------------------------------------------------------------------------------------------------- OpenAI's client
# It has no dependencies, and runs with the Node.js of Debian 12.
openai_version=5.12.0
openai_sum=41b74c3e15fe5a45acdfe435cf9e22faeb552400475277d90d564ce5573680c3
openai=$root/build/openai

openai_is_there() {
    [[ -r $openai/package.json ]] && grep -q "\"version\": \"$openai_version\"" "$openai/package.json"
}
fetch_openai() (
    mkdir -p "$root/build"
    work=$(mktemp -d "$root/build/openai.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    cd "$work"
    fetch_package "openai@$openai_version" "openai-$openai_version.tgz" "$openai_sum"
    tar -xzf "openai-$openai_version.tgz" --no-same-owner -m
    [[ ! -e $openai ]] || mv -T "$openai" "$work/before"
    mv -T package "$openai" 2>/dev/null || openai_is_there || complain "cannot create $openai"
)

# ------------------------------------------------------------------------------------------------------------- apt
install_missing() {
    if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
        echo "deps.sh: no apt on this system; if the build misses something, look for: $*" >&2
        return
    fi
    local package missing=() as_root=() apt
    for package in "$@"; do
        # shellcheck disable=SC2016 # ${...} is dpkg's, not the shell's
        dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
    done
    ((${#missing[@]} > 0)) || return 0

    if ((EUID != 0)); then
        command -v sudo >/dev/null || complain "as root, run: apt-get install ${missing[*]}"
        as_root=(sudo)
    fi
    echo "deps.sh: installing ${missing[*]}" >&2
    apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300)
    # One unreachable mirror fails the update while the lists at hand may be good enough: let the install decide.
    "${apt[@]}" update >&2 || echo "deps.sh: apt-get update failed; trying with the lists at hand" >&2
    (
        # A package with a daemon starts it. The tests start servers of Redis themselves, so a rule for invoke-rc.d forbids
        # that (101) while packages are installed. A machine with a rule of its own keeps it.
        rule=/usr/sbin/policy-rc.d
        if [[ " ${missing[*]} " == *" redis-server "* && ! -e $rule && ! -L $rule ]]; then
            trap '"${as_root[@]}" rm -f "$rule"' EXIT
            trap 'exit 1' INT TERM HUP
            # shellcheck disable=SC2016 # $1 is of the inner shell
            "${as_root[@]}" sh -c 'printf "#!/bin/sh\nexit 101\n" >"$1" && chmod 755 "$1"' sh "$rule"
        fi
        "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >&2
    )
}

wanted=(g++ cmake ninja-build pkg-config python3
    libxsimd-dev liburing-dev doctest-dev libbenchmark-dev libcli11-dev nlohmann-json3-dev libeigen3-dev
    libcpp-httplib-dev libssl-dev)
processor=
clients=
for argument in "$@"; do
    case $argument in
    --lint) wanted+=(clang clang-format clang-tidy shellcheck) ;;
    --clients) clients=1 ;;
    --cross) wanted+=(g++-aarch64-linux-gnu qemu-user) ;;
    --site) wanted+=(cmark-gfm) ;;
    --llama)
        case $(uname -m) in
        x86_64) processor=linux-x64 ;;
        aarch64) processor=linux-arm64 ;;
        *) echo "deps.sh: no prebuilt llama.cpp for $(uname -m); build one and name its folder in KVTL_LLAMA_ROOT" >&2 ;;
        esac
        ;;
    -h | --help) usage && exit 0 ;;
    *)
        echo "deps.sh: unknown option $argument" >&2
        usage >&2
        exit 2
        ;;
    esac
done

if [[ -n $processor ]] && ! llama_is_there; then
    # Whoever has them from elsewhere keeps them.
    command -v npm >/dev/null || wanted+=(npm)
    command -v git >/dev/null || wanted+=(git)
    install_missing "${wanted[@]}"
    fetch_llama "$processor"
else
    install_missing "${wanted[@]}"
fi

if [[ -n $clients ]]; then
    more=(curl redis-server)
    command -v npm >/dev/null || more+=(npm)
    command -v node >/dev/null || more+=(nodejs)
    install_missing "${more[@]}"
    openai_is_there || fetch_openai
    # Not every system has one that starts without a desktop.
    if ! command -v chromium chromium-headless-shell >/dev/null && command -v apt-cache >/dev/null &&
        apt-cache show chromium-headless-shell >/dev/null 2>&1; then
        install_missing chromium-headless-shell
    fi
fi
