#!/usr/bin/env python3
"""Train bases and gates of the preset dynakv_lr for the model of a GGUF file, whose own weights stay as they are.

  train.py --gguf MODEL --data DIR --rate .20 --out gates-20.cal [--model-out MODEL that is trained along]

Eq. 1-9 of "DynaKV" (token-adaptive low-rank compression), for the keys before RoPE and for the values of every layer, all
heads jointly: x~ = x U, p = softmax(x~ W + b), m = flip(cumsum(p)), x^ = (x~ * m) U^-1; loss = cross entropy + alpha R^2, R
the mean of m. While training x~ is multiplied by (m > .1), which is what a cache keeps, and the gradient is passed on as if
that were m; --mask soft multiplies by m itself. U starts as the principal directions of the rows, W as 0 and b such that
nearly everything is kept. Alpha is steered so that the share of m > .1 falls to --rate over the first --close of the steps
(gates that close at once take the keys' coefficients for good) and stays there; the last alpha is printed.
"""
# SPDX-License-Identifier: MIT
import argparse, math, os, time
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")   # AMX is the kernels' own
import numpy as np
import torch
import torch.nn as nn
import calibration
import gguf
import model as M
from tasks import Gen

MIX = [("plain", .48), ("rrepeat", .01), ("repeat", .07), ("needle", .06), ("multi", .26), ("vt", .12)]
TAU = .1


class Gates(nn.Module):
    """What the cache does to keys (0) and values (1) of every layer."""
    def __init__(self, start, mask):
        super().__init__()
        _, layers, n, _ = start.shape
        self.mask = mask                  # "soft": multiplied by m; "hard": by m > tau, as a cache does
        self.basis = nn.Parameter(start.clone())                          # (2, layers, n, n): x~ = x U
        self.weights = nn.Parameter(torch.zeros(2, layers, n, n))
        self.bias = nn.Parameter((-8.0 / n * torch.arange(n)).repeat(2, layers, 1))

    def begin(self):
        """Before each pass over the model."""
        self.inverse = torch.linalg.inv(self.basis)
        self.soft, self.kept = [], ([], [])

    def forward(self, layer, k, v):
        return self.one(0, layer, k), self.one(1, layer, v)

    def one(self, which, layer, x):
        u, w, b, back = (t[which, layer] for t in (self.basis, self.weights, self.bias, self.inverse))
        c = M.linear(x, u.t())
        if M.LIB:
            y, soft, kept = M.Gate.apply(c, w, b, TAU, self.mask == "hard")
        else:
            m = torch.flip(torch.cumsum(torch.softmax(M.linear(c, w.t(), torch.float32) + b, -1), -1), (-1,))
            stays = (m.detach() > TAU).float()
            soft, kept = m.mean(), stays.mean()
            y = c * (m + stays - m.detach() if self.mask == "hard" else m)
        self.soft.append(soft)
        self.kept[which].append(kept)
        return M.linear(y, back.t())

    def file_of(self, which):
        """(layers, 3 n + 1, n) as calibration.write() has it."""
        with torch.no_grad():
            u, w = self.basis[which], self.weights[which]
            inverse = torch.linalg.inv(u.double()).float()
            return torch.cat((u.transpose(1, 2), inverse, w.transpose(1, 2), self.bias[which][:, None]), 1).numpy()


class Moments:
    """Sums up x^T x of keys and values."""
    def __init__(self, layers, n):
        self.sum = torch.zeros(2, layers, n, n, dtype=torch.float64)

    def __call__(self, layer, k, v):
        for which, x in enumerate((k.float(), v.float())):
            self.sum[which, layer] += (x.t() @ x).double()
        return k, v

    def directions(self):
        """(2, layers, n, n): column j is the j-th direction by decreasing energy."""
        return torch.linalg.eigh(self.sum)[1].flip(-1).float()


def batch(gen, B, T):
    x, y, w = gen.batch(B, T, MIX)
    w = torch.from_numpy(w)
    return torch.from_numpy(x), torch.from_numpy(y), w / w.sum()


@torch.no_grad()
def held_out(m, data, T, windows):
    """Nats per token over windows of val.bin, each behind a BOS."""
    t = np.fromfile(os.path.join(data, "val.bin"), dtype=np.uint16).astype(np.int64)
    total = 0.0
    starts = np.linspace(0, len(t) // T - 1, windows).astype(int)
    for s in starts:
        ids = torch.from_numpy(np.concatenate(([1], t[s * T:(s + 1) * T]))[None])
        total += float(m.loss(ids[:, :-1].contiguous(), ids[:, 1:].contiguous(), torch.ones(1, T))[1].sum())
    return total / (len(starts) * T)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--gguf", required=True)
    ap.add_argument("--data", required=True)
    ap.add_argument("--rate", type=float, required=True, help="share of coefficients to keep")
    ap.add_argument("--tokens", type=float, default=2, help="millions")
    ap.add_argument("--out", required=True)
    ap.add_argument("--fast", default="fast_ops.so")
    ap.add_argument("--length", type=int, default=2048)
    ap.add_argument("--batch", type=int, default=1, help="windows per step")
    ap.add_argument("--lr", type=float, default=1e-3, help="of bases")
    ap.add_argument("--gate-lr", type=float, default=3e-3)
    ap.add_argument("--alpha", type=float, default=0.1, help="to start with")
    ap.add_argument("--close", type=float, default=0.4, help="share of the steps over which the rate falls from 1 to --rate")
    ap.add_argument("--model-out", help="train the model along and write it here; --out then belongs to this one")
    ap.add_argument("--model-lr", type=float, default=1e-4)
    ap.add_argument("--mask", choices=("soft", "hard"), default="hard", help="what coefficients are multiplied by while training")
    ap.add_argument("--objective", choices=("ce", "kl"), default="ce",
                    help="cross entropy, or divergence from the model with its full cache")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--threads", type=int, default=2)
    a = ap.parse_args()
    torch.manual_seed(a.seed)
    torch.set_num_threads(a.threads)
    fast = M.load_fast(os.path.abspath(a.fast))
    m = M.load(a.gguf)
    own = list(m.parameters())
    for p in own:
        p.requires_grad_(a.model_out is not None)
    n = m.c.kv * m.c.hd
    gen = Gen(a.data, "train", a.seed)

    m.cache = Moments(m.c.layers, n)
    with torch.no_grad():
        for _ in range(8):
            m.loss(*batch(gen, a.batch, a.length))
    start = m.cache.directions()
    m.cache = None
    full = held_out(m, a.data, a.length, 32)
    gates = m.cache = Gates(start, a.mask)
    opt = torch.optim.Adam([{"params": [gates.basis], "lr": a.lr}, {"params": [gates.weights, gates.bias], "lr": a.gate_lr}]
                           + ([{"params": own, "lr": a.model_lr}] if a.model_out else []), betas=(.9, .95))
    top = [g["lr"] for g in opt.param_groups]

    steps = math.ceil(a.tokens * 1e6 / (a.batch * a.length))
    alpha, kept, began, shown = a.alpha, 1.0, time.time(), 0.0
    print("fast kernels:", fast, "| steps", steps, "| full cache %.4f nats" % full, flush=True)
    for step in range(steps):
        for g, lr in zip(opt.param_groups, top):
            g["lr"] = lr * min(1, (step + 1) / 20) * (.02 + .98 * .5 * (1 + math.cos(math.pi * step / steps)))
        x, y, w = batch(gen, a.batch, a.length)
        gates.begin()
        if a.objective == "ce":
            loss, _ = m.loss(x, y, w)
        else:
            m.cache = None
            with torch.no_grad():
                teacher = m.logits(x)
            m.cache = gates
            loss = M.Divergence.apply(m.logits(x), teacher, torch.full((x.numel(),), 1 / x.numel()))
        soft = torch.stack(gates.soft).mean()
        (loss + alpha * soft ** 2).backward()
        nn.utils.clip_grad_norm_(gates.parameters(), 1.0)
        if a.model_out:
            nn.utils.clip_grad_norm_(own, 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        now = float(torch.stack(gates.kept[0] + gates.kept[1]).mean())
        kept = now if step == 0 else .9 * kept + .1 * now
        aim = a.rate + (1 - a.rate) * max(0, 1 - (step + 1) / (a.close * steps + 1)) ** 2
        alpha *= math.exp(.05 * max(-1, min(1, 8 * (kept - aim))))
        if time.time() - shown > 20 or step == steps - 1:
            shown = time.time()
            print("step %d loss %.4f soft %.3f kept %.3f alpha %.3f | %.0f tok/s" % (
                step + 1, float(loss), float(soft), kept, alpha, (step + 1) * a.batch * a.length / (shown - began)), flush=True)

    gates.mask = "hard"
    with torch.no_grad():
        gates.begin()
        nats = held_out(m, a.data, a.length, 32)
        share = torch.stack([torch.stack(k).mean() for k in gates.kept])
    model = a.gguf
    if a.model_out:
        model = a.model_out
        gguf.with_tensors(model, a.gguf, M.tensors(m))
        m.cache = None
        print("the model itself: full cache %.4f nats" % held_out(m, a.data, a.length, 32))
    calibration.write_gates(a.out, model, gates.file_of(0), gates.file_of(1), a.rate)
    print("held out: full cache %.4f nats, gated %.4f, kept %.4f (keys %.4f, values %.4f) | alpha %.3f, %.2f M tokens, %.0f s" % (
        full, nats, float(share.mean()), share[0], share[1], alpha, steps * a.batch * a.length / 1e6, time.time() - began))


if __name__ == "__main__":
    main()
