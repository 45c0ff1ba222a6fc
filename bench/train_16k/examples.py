#!/usr/bin/env python3
"""Write questions over held-out text as lines {"prompt", "answer"}, which kvtl-eval reads (--task needle:FILE).

  examples.py --data DIR --task needle|multikeyN|vt --tokens 16384 --count 50 --out FILE.jsonl

DIR is the data of train.py. Names are those that training never sees; a prompt and its answer have at most --tokens tokens.
"""
# SPDX-License-Identifier: MIT
import argparse, json, os, sys
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "train_gates"))
from tasks_long import LongGen


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--data", required=True)
    ap.add_argument("--task", required=True)
    ap.add_argument("--tokens", type=int, default=16384)
    ap.add_argument("--count", type=int, default=50)
    ap.add_argument("--seed", type=int, default=20241)
    ap.add_argument("--out", required=True)
    a = ap.parse_args()
    gen, lines = LongGen(a.data, "eval", a.seed), []
    while len(lines) < a.count:
        ids, n = gen.question(a.task, a.tokens)
        ids = ids.tolist()
        prompt, both = gen.sp.decode(ids[1:-n]), gen.sp.decode(ids[1:])
        if [1] + gen.sp.encode(both) == ids and [1] + gen.sp.encode(prompt) == ids[:-n]:      # the text says what the tokens say
            lines.append(json.dumps({"prompt": prompt, "answer": both[len(prompt):].strip()}))
    with open(a.out, "w") as f:
        f.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
