#!/usr/bin/env bash
# Installs what is missing, llama.cpp included, builds kvtl-server into build/demo and runs it. May be called from any
# folder and repeatedly; a second run builds only what changed.
#   scripts/server.sh [ARGUMENTS OF kvtl-server...]        e.g. scripts/server.sh -m model.gguf --memory-mib 512
# Without arguments: the embedded model, which knows little, on http://127.0.0.1:8080. The build has the presets of the
# demo; others: cmake --preset release. KVTL_LLAMA_ROOT=FOLDER in the environment: that llama.cpp, nothing is fetched.
# SPDX-License-Identifier: MIT
set -euo pipefail

# shellcheck source=scripts/with_llama.sh
. "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/with_llama.sh"
build_with_llama server.sh kvtl_server "; or there is no cpp-httplib (Debian: libcpp-httplib-dev)"

exec "$root/build/demo/bin/kvtl-server" "$@"
