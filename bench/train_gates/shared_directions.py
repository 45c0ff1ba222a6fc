#!/usr/bin/env python3
"""What MiniCache's merging of neighbouring layers costs the model of a GGUF file.

  shared_directions.py --gguf MODEL --data DIR [--count 100] [--length 1000] [--seed 1]

Prompts with one needle, and with eight facts of which one is asked for, in held-out text. When the prompt ends, the keys
(after RoPE) and values of two layers, of each token and KV head, get one direction and keep their lengths:
    e = sin((1-t) w) / sin w * a/|a| + sin(t w) / sin w * b/|b|,  w the angle between a and b, t = .6;
the tokens with the largest angles, --kept of them, stay as they are in both layers. Question and answer attend what is left.
Prints the mean cosine of neighbouring layers, then by pairs of layers the answers found (every token of the answer is the
most likely one) and the mean KL to the full cache over the tokens behind the prompt.
"""
# SPDX-License-Identifier: MIT
import argparse, math
import numpy as np
import torch
import model as M
import train_eviction as E
from tasks import Gen

PAIRS = [(), ((2, 3),), ((3, 4),), ((4, 5),), ((2, 3), (4, 5))]


def joined(a, b, t, kept):
    """a, b (H,T,d) -> the same with one direction for both but in the share `kept` of the tokens of each head."""
    na, nb = a.norm(dim=-1, keepdim=True), b.norm(dim=-1, keepdim=True)
    ea, eb = a / na, b / nb
    cos = (ea * eb).sum(-1, keepdim=True).clamp(-1 + 1e-6, 1 - 1e-6)
    w = cos.acos()
    e = (torch.sin((1 - t) * w) * ea + torch.sin(t * w) * eb) / torch.sin(w)
    apart = torch.zeros_like(w, dtype=torch.bool)
    n = int(round(kept * a.shape[1]))
    if n:
        apart.scatter_(1, w.topk(n, 1).indices, True)
    return torch.where(apart, a, e * na), torch.where(apart, b, e * nb), cos


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--gguf", required=True)
    ap.add_argument("--data", required=True)
    ap.add_argument("--count", type=int, default=100, help="questions of each kind")
    ap.add_argument("--length", type=int, default=1000)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--kept", type=float, nargs="+", default=[0, .05])
    a = ap.parse_args()
    m, gen = M.load(a.gguf), Gen(a.data, "holdout", a.seed)
    settings = [((), 0)] + [(p, kept) for p in PAIRS[1:] for kept in a.kept]
    cosines = np.zeros((2, m.c.layers - 1))
    for name, keys in (("needle", 1), ("one of 8 facts", 8)):
        right, kl = np.zeros(len(settings)), np.zeros(len(settings))
        done = 0
        while done < a.count:
            made = gen.needles(a.length, keys, 1, kind="secret code")
            if made is None:
                continue
            ids, _, (answer, code) = made                                # the answer's first token from the end
            ids = torch.from_numpy(np.ascontiguousarray(ids))[None]
            q = gen.enc("Question:")
            at = max(i for i in range(ids.shape[1] - 80, ids.shape[1]) if ids[0, i:i + len(q)].tolist() == q)
            first = ids.shape[1] - answer
            rows = []

            def attend(l, h, q, k, v):
                rows.append((k[0], v[0]))
                return E.causal(q, k, v)
            E.run(m, ids[:, :at], attend)
            if done < 20:
                for which in range(2):
                    for l in range(m.c.layers - 1):
                        cosines[which, l] += float(torch.cosine_similarity(rows[l][which], rows[l + 1][which], -1).mean()) / 20 / 2
            for s, (pairs, kept) in enumerate(settings):
                used = list(rows)
                for i, j in pairs:
                    (ki, kj, _), (vi, vj, _) = (joined(rows[i][n], rows[j][n], .6, kept) for n in range(2))
                    used[i], used[j] = (ki, vi), (kj, vj)
                logits = behind(m, ids[:, at:-1], at, used)
                if s == 0:
                    full = logits
                kl[s] += float((full.exp() * (full - logits)).sum(-1).mean())
                # digits of the code
                right[s] += bool((logits.argmax(-1)[first - at:first - at + 5] == ids[0, first + 1:first + 6]).all())
            done += 1
            if done == 1 or done % 25 == 0:
                print(name, done, right.astype(int).tolist(), flush=True)
        for s, (pairs, kept) in enumerate(settings):
            print("%-15s layers %-18s kept apart %.2f  answers %3d of %d  KL %.4f" % (
                name, " ".join("%d+%d" % p for p in pairs) or "none", kept, right[s], done, kl[s] / done), flush=True)
    for which, of in enumerate(("keys", "values")):
        print("mean cosine of", of, "of layers l and l+1:", " ".join("%.3f" % c for c in cosines[which]))


def behind(m, ids, at, rows):
    """Log probabilities (n,V) behind the tokens ids (1,n), the first of which is number `at`, after the rows."""
    x = torch.nn.functional.embedding(ids, m.emb)
    n = ids.shape[1]
    for l in range(m.c.layers):
        h = E.norm(x, m.n1[l], m.c.eps)
        q, k, v = E.projected(m, l, h, at)
        r = q.shape[1] // k.shape[1]
        k = torch.cat((rows[l][0][None], k), 2).repeat_interleave(r, 1)
        v = torch.cat((rows[l][1][None], v), 2).repeat_interleave(r, 1)
        s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        later = torch.ones(n, at + n, dtype=torch.bool).triu(at + 1)
        x = E.behind(m, l, x, torch.softmax(s.masked_fill(later, -math.inf), -1) @ v)
    return torch.log_softmax((E.norm(x, m.nf, m.c.eps) @ m.emb.t())[0], -1)


if __name__ == "__main__":
    with torch.no_grad():
        main()
