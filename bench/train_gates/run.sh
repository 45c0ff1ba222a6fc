#!/usr/bin/env bash
# Bases and gates of dynakv_lr for the embedded model, from nothing, on Debian 12; without rates also the prefixes of
# matryoshka, and a model trained along at .20. Needs python3-torch, python3-sentencepiece, g++ and bible-kjv, and apt to
# download the packages whose documentation is the text.
#   bench/train_gates/run.sh WORK [MILLIONS OF TOKENS] [RATE...]
# SPDX-License-Identifier: MIT
set -euo pipefail
if [[ $# -lt 1 || $1 == -h || $1 == --help ]]; then
    sed -n '2,5s/^# \?//p' "$0"
    exit 0
fi
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
data=$here/../../examples/data
python=${PYTHON:-python3} # one that has torch and sentencepiece
work=$1 tokens=${2:-2}
rates=("${@:3}")
all=
[[ ${#rates[@]} -gt 0 ]] || all=1 rates=(.47 .29 .20 .12 .085)
"$here/data.sh" "$work"
cd "$work"
# AMX and AVX-512 kernels: without them plain PyTorch runs, a tenth as fast.
g++ -O3 -march=sapphirerapids -fopenmp -shared -fPIC "$here/fast_ops.cpp" -o fast_ops.so ||
    echo "run.sh: no AMX kernels here: plain PyTorch takes ten times as long" >&2
# A heap that is kept: otherwise page faults on every activation buffer dominate.
export MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=100000000000 MALLOC_TOP_PAD_=268435456
train() { # SCRIPT NAME ARGUMENTS...
    "$python" "$here/$1" --gguf "$data/tiny-2k.gguf" --data data --fast fast_ops.so --tokens "$tokens" --out "$2.cal" "${@:3}" |
        tee "$2.log"
}
for rate in "${rates[@]}"; do train train.py "tiny-2k.gates-${rate#.}" --rate "$rate"; done
if [[ $all ]]; then
    train train_prefixes.py tiny-2k.prefixes
    train train.py tiny-2k.along.gates-20 --rate .20 --model-out tiny-2k.along.gguf
fi
