#!/usr/bin/env bash
# Where the kernel refuses io_uring, programs that open caches or files say so once, work with posix, and say that they did.
#
#   without_io_uring.sh WITHOUT_IO_URING KVTL-BENCH KVTL-TUNE KVTL-RUN KVTL-EVAL MODEL.gguf [KVTL-LLAMA]
# SPDX-License-Identifier: MIT
here=$(dirname "$(realpath "$0")")
refused=$(realpath "$1") bench=$(realpath "$2") tune=$(realpath "$3") run=$(realpath "$4") eval=$(realpath "$5")
model=$(realpath "$6") llama=${7:+$(realpath "$7")}
"$refused" /bin/true
[ $? -ne 125 ] || exit 125 # here nothing can be refused
program=$refused
# shellcheck source=tests/support/expect.sh
. "$here/../support/expect.sh"

# falls_back PROGRAM ARGUMENTS...: the one warning, why, and out.json says posix
falls_back() {
    : >out.json
    expect 0 "$(basename "$1"): warning: io_uring cannot be used (" "$@"
    [ "$(grep -c "using posix" err)" -eq 1 ] || complain "$1 does not say once that it uses posix"
    grep -q "Operation not permitted" err || complain "$1 does not say why"
    grep -q '"io": *"posix"' out.json || complain "$1: the result does not say what read"
}
falls_back "$bench" decode --shape tiny-2k --policies dynakv --context 300 --steps 3 --memory-mib 8 --json out.json
grep -q '"registered_arena": *false' out.json || complain "decode: nothing can be registered with posix"
falls_back "$bench" io --size 4 --reads 100 --json out.json
falls_back "$tune" --shape tiny-2k --memory-mib 2 --file-mib 16 --max-context 512 --json out.json
falls_back "$run" -m "$model" -p "The king" -n 2 --policy dynakv --json out.json
grep -q '"registered_arena": *false' out.json || complain "run: nothing can be registered with posix"
echo "The king said that the river was wide, and that nobody had crossed it since the spring." >text.txt
expect 0 "kvtl-eval: warning: io_uring cannot be used (" "$eval" -m "$model" --policies dynakv --task nll:text.txt \
    --attend-tokens 64 --nll-prefill 8
[ -z "$llama" ] || expect 0 "kvtl-llama: warning: io_uring cannot be used (" "$llama" -m "$model" -p "The king" -n 2

# What else is wrong is not blamed on io_uring.
expect 2 "no/such/folder" "$bench" decode --policies dynakv --context 300 --memory-mib 8 --kv-path no/such/folder/a
! grep -q "io_uring" err || complain "a missing folder is blamed on io_uring"

finish
