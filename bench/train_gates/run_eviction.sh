#!/usr/bin/env bash
# Gates and lookahead modules for the embedded model, from nothing: all methods of train_eviction.py at once, on one GPU if there
# is one. Needs PyTorch, python3-sentencepiece and bible-kjv, and apt for the text (data.sh).
#   bench/train_gates/run_eviction.sh WORK [MINUTES [ARGUMENT OF train_eviction.py...]]
# SPDX-License-Identifier: MIT
set -euo pipefail
if [[ $# -lt 1 || $1 == -h || $1 == --help ]]; then
    sed -n '2,4s/^# \?//p' "$0"
    exit 0
fi
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
python=${PYTHON:-python3} # one that has torch and sentencepiece
work=$1 minutes=${2:-6.2}
"$here/data.sh" "$work"
cd "$work"
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
children=()
for job in trim:trim_kv.gates global:global_gates.gates attention:attention_gate.gates locret:locret.gates replay:kvzap.gates lookahead:lookahead share:shared.gguf; do
    "$python" "$here/train_eviction.py" --method "${job%%:*}" --gguf "$here/../../examples/data/tiny-2k.gguf" --data data \
        --out "tiny-2k.${job#*:}" --minutes "$minutes" "${@:3}" >"${job%%:*}.log" 2>&1 &
    children+=($!)
done
failed=0
for child in "${children[@]}"; do wait "$child" || failed=1; done
tail -n 4 ./{trim,global,attention,locret,replay,lookahead,share}.log
exit $failed
