#!/usr/bin/env python3
"""How much of the rank that the untrained rule gives a row can a gate see, whose logits are linear in the row?

  explain_rank.py --gguf MODEL --data DIR [--share .85]

Prints per kind and layer the mean and the spread of the rule's rank (the smallest that keeps a share of the row's energy, in
the row's principal directions), and how much of its variance least squares explain on other rows: from the coefficients, which
is what a gate has, and from the coefficients and their squares.
"""
# SPDX-License-Identifier: MIT
import argparse, os
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
import torch
import model as M
from tasks import Gen
from train import batch


class Rows:
    """Keeps keys and values as they come."""
    def __init__(self, layers):
        self.all = [[[] for _ in range(layers)] for _ in range(2)]

    def __call__(self, layer, k, v):
        self.all[0][layer].append(k.float())
        self.all[1][layer].append(v.float())
        return k, v


def explained(features, rank):
    """Share of the variance of the last third that a fit to the first two explains."""
    n = len(rank) * 2 // 3
    x = (features - features[:n].mean(0)) / (features[:n].std(0) + 1e-9)
    x = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
    fit = torch.linalg.solve(x[:n].T @ x[:n] + 1e-5 * n * torch.eye(x.shape[1], dtype=x.dtype), x[:n].T @ rank[:n])
    return float(1 - ((x[n:] @ fit - rank[n:]) ** 2).mean() / rank[n:].var())


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--gguf", required=True)
    ap.add_argument("--data", required=True)
    ap.add_argument("--share", type=float, default=.85)
    ap.add_argument("--fast", default="fast_ops.so")
    a = ap.parse_args()
    M.load_fast(os.path.abspath(a.fast))
    m = M.load(a.gguf)
    gen = Gen(a.data, "train", 7)
    rows = m.cache = Rows(m.c.layers)
    with torch.no_grad():
        for _ in range(3):
            m.loss(*batch(gen, 4, 2048))
    for which, name in enumerate(("keys", "values")):
        for layer in range(m.c.layers):
            x = torch.cat(rows.all[which][layer]).double()
            c = x @ torch.linalg.eigh(x.T @ x)[1].flip(-1)
            held = torch.cumsum(c ** 2, 1) / (c ** 2).sum(1, keepdim=True)
            rank = 1.0 + (held < a.share).sum(1)
            print("%-6s layer %d: rank %5.1f +- %4.1f, explained by coefficients %.2f, with their squares %.2f" % (
                name, layer, rank.mean(), rank.std(), explained(c, rank.double()),
                explained(torch.cat([c, c ** 2], 1), rank.double())))


if __name__ == "__main__":
    main()
