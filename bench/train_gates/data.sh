#!/usr/bin/env bash
# The embedded model's training text in its own tokens, from nothing: WORK/data. Needs python3-sentencepiece and bible-kjv, and
# apt to download the packages whose documentation is the text.
#   bench/train_gates/data.sh WORK
# SPDX-License-Identifier: MIT
set -euo pipefail
if [[ $# -ne 1 || $1 == -h || $1 == --help ]]; then
    sed -n '2,4s/^# \?//p' "$0"
    exit 0
fi
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
python=${PYTHON:-python3}
mkdir -p "$1/packages" "$1/root" "$1/data"
cd "$1"
[[ ! -e data/train.bin ]] || exit 0
(cd packages && apt-get download bible-kjv-text anarchism debian-handbook debian-reference-en manpages manpages-dev \
    python3.11-doc perl-doc postgresql-doc-15 dict-gcide fortunes debian-policy debian-faq git-doc gnupg miscfiles \
    wordnet-base linux-doc-6.1 rust-doc dict-jargon dict-foldoc dict-devil gnome-user-docs apache2-doc \
    installation-guide-amd64 doc-debian vim-doc developers-reference aptitude-doc-en libreoffice-help-en-us)
for package in packages/*.deb; do dpkg -x "$package" root/; done
bible -f gen1:1-rev22:21 </dev/null >bible.txt
"$python" "$here/text.py" --root root --out data --bible bible.txt
"$python" "$here/tokens.py" --gguf "$here/../../examples/data/tiny-2k.gguf" --data data --without "$here/../../examples/data/prose.txt"
