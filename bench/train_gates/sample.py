#!/usr/bin/env python3
"""Write 45 KB of the model's training text, for kvtl-calibrate. docs.jsonl has the held-out documents as well (one in a
hundred), and those that tokens.py leaves out: take no text of it to judge policies by.

  sample.py data/docs.jsonl sample.txt
"""
# SPDX-License-Identifier: MIT
import json, random, sys


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__.strip())
    random.seed(3)
    lines = open(sys.argv[1]).readlines()
    random.shuffle(lines)
    pieces, size = [], 0
    for line in lines:
        piece = json.loads(line)["text"][:3000]
        pieces.append(piece)
        size += len(piece)
        if size > 45000:
            break
    with open(sys.argv[2], "w") as out:
        out.write("\n\n".join(pieces))


if __name__ == "__main__":
    main()
