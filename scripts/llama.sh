#!/usr/bin/env bash
# Installs what is missing, llama.cpp included, builds kvtl-llama into build/demo and runs it. May be called from any
# folder and repeatedly; a second run builds only what changed.
#   scripts/llama.sh [ARGUMENTS OF kvtl-llama...]        e.g. scripts/llama.sh -m model.gguf -i --memory-mib 256
# Without arguments: a conversation with the embedded model, which knows little. The build has the presets of the demo;
# others: cmake --preset release. KVTL_LLAMA_ROOT=FOLDER in the environment: that llama.cpp, nothing is fetched.
# SPDX-License-Identifier: MIT
set -euo pipefail

# shellcheck source=scripts/with_llama.sh
. "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/with_llama.sh"
build_with_llama llama.sh kvtl_llama_program ""

(($# > 0)) || set -- -m "$root/examples/data/tiny-2k.gguf" -i
exec "$root/build/demo/bin/kvtl-llama" "$@"
