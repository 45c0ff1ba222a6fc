#!/usr/bin/env bash
# tiny-16k from nothing, on Debian 12 and one GPU. Needs python3-sentencepiece and bible-kjv, PyTorch 2.5 or newer, and apt to
# download the packages whose documentation is the text.
#   bench/train_16k/run.sh WORK [MINUTES] [TEXT THAT IS LEFT OUT OF TRAINING...]
# SPDX-License-Identifier: MIT
set -euo pipefail
if [[ $# -lt 1 || $1 == -h || $1 == --help ]]; then
    sed -n '2,4s/^# \?//p' "$0"
    exit 0
fi
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
gates=$here/../train_gates data=$here/../../examples/data
python=${PYTHON:-python3} # one that has torch and sentencepiece
work=$1 minutes=${2:-8.5}
without=("$data/prose.txt")
for text in "${@:3}"; do without+=("$(realpath "$text")"); done
mkdir -p "$work/packages" "$work/root"
cd "$work"
if [[ ! -e data/train.bin ]]; then
    (cd packages && apt-get download bible-kjv-text anarchism debian-handbook debian-reference-en manpages manpages-dev \
        python3.11-doc perl-doc postgresql-doc-15 dict-gcide fortunes debian-policy debian-faq git-doc gnupg miscfiles \
        wordnet-base linux-doc-6.1 rust-doc dict-jargon dict-foldoc dict-devil gnome-user-docs apache2-doc \
        installation-guide-amd64 doc-debian vim-doc developers-reference aptitude-doc-en libreoffice-help-en-us)
    for package in packages/*.deb; do dpkg -x "$package" root/; done
    bible -f gen1:1-rev22:21 </dev/null >bible.txt
    mkdir -p data
    "$python" "$gates/text.py" --root root --out data --bible bible.txt
    "$python" "$gates/tokens.py" --gguf "$data/tiny-2k.gguf" --data data --without "${without[@]}"
fi
"$python" "$here/train.py" --gguf "$data/tiny-2k.gguf" --data data --out . --minutes "$minutes" | tee train.log
for task in needle multikey8 vt; do
    "$python" "$here/examples.py" --data data --task "$task" --tokens 16384 --out "${task}_16384.jsonl"
done
