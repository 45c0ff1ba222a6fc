#!/usr/bin/env python3
"""Train the bases of the preset matryoshka for the model of a GGUF file, whose own weights stay as they are.

  train_prefixes.py --gguf MODEL --data DIR --out prefixes.cal

"MatryoshkaKV": an orthonormal basis per KV head for keys after RoPE and one for values, trained on prefixes of random
length, a length for the keys and one for the values of every layer and step; loss = cross entropy, as for the gates (its
authors distil the full cache). A basis is a rotation of the principal directions, B = cayley(S) B0 with S skew-symmetric and 0 at first: I + S is never singular. To write B0
itself as a Cayley transform instead, (B0 - I)(B0 + I)^-1 is needed, which does not exist where B0 has the eigenvalue -1, as
every orthonormal basis of determinant -1 has: that is where NaNs come from.
"""
# SPDX-License-Identifier: MIT
import argparse, math, time, os
import torch
import torch.nn as nn
from train import batch, held_out          # sets up the environment of the kernels first
import calibration
import model as M
from tasks import Gen


class Prefixes(nn.Module):
    def __init__(self, model, length):
        super().__init__()
        c = model.c
        self.model, self.length = [model], length
        self.c, self.ranks, self.random = c, None, torch.Generator().manual_seed(5)
        self.register_buffer("start", torch.eye(c.hd).repeat(2, c.layers, c.kv, 1, 1))   # rows are directions
        self.free = nn.Parameter(torch.zeros(2, c.layers, c.kv, c.hd, c.hd))
        self.sums = torch.zeros(2, c.layers, c.kv, c.hd, c.hd, dtype=torch.float64)
        self.measuring = True

    def bases(self):
        s = self.free - self.free.transpose(-1, -2)
        one = torch.eye(self.c.hd)
        return torch.linalg.solve(one + s, one - s) @ self.start

    def begin(self, rate=None):
        self.now = self.bases()
        steps = self.c.hd // 4
        draw = torch.randint(1, steps + 1, (2, self.c.layers), generator=self.random) * 4
        self.ranks = draw if rate is None else torch.full((2, self.c.layers), max(1, round(rate * self.c.hd)))

    def forward(self, layer, k, v):
        m, c = self.model[0], self.c
        heads = lambda x: x.float().reshape(-1, self.length, c.kv, c.hd)
        turned = M.rope(heads(k), m.cs, m.sn)
        k = M.rope(self.cut(0, layer, turned), m.cs, -m.sn)
        v = self.cut(1, layer, heads(v))
        return k.reshape(-1, c.kv * c.hd), v.reshape(-1, c.kv * c.hd)

    def cut(self, which, layer, x):
        if self.measuring:
            self.sums[which, layer] += torch.einsum("bthi,bthj->hij", x, x).double()
            return x
        b, kept = self.now[which, layer], torch.arange(self.c.hd) < self.ranks[which, layer]
        out = [M.linear(M.linear(x[:, :, h].reshape(-1, self.c.hd), b[h], torch.float32) * kept, b[h].t(), torch.float32)
               for h in range(self.c.kv)]
        return torch.stack(out, 1).reshape(x.shape)

    def measured(self):
        self.start = torch.linalg.eigh(self.sums)[1].flip(-1).transpose(-1, -2).float().contiguous()
        self.measuring = False


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--gguf", required=True)
    ap.add_argument("--data", required=True)
    ap.add_argument("--tokens", type=float, default=3, help="millions")
    ap.add_argument("--out", required=True)
    ap.add_argument("--fast", default="fast_ops.so")
    ap.add_argument("--length", type=int, default=2048)
    ap.add_argument("--batch", type=int, default=1, help="windows per step")
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--threads", type=int, default=2)
    a = ap.parse_args()
    torch.manual_seed(a.seed)
    torch.set_num_threads(a.threads)
    M.load_fast(os.path.abspath(a.fast))
    m = M.load(a.gguf)
    for p in m.parameters():
        p.requires_grad_(False)
    gen = Gen(a.data, "train", a.seed)
    full = held_out(m, a.data, a.length, 32)
    cache = Prefixes(m, a.length)
    m.cache = cache
    with torch.no_grad():
        for _ in range(8):
            m.loss(*batch(gen, a.batch, a.length))
    cache.measured()

    def judged():
        nats = []
        with torch.no_grad():
            for rate in (.5, .25, .125):
                cache.begin(rate)
                nats.append("%.4f" % held_out(m, a.data, a.length, 16))
        return " ".join(nats)

    print("full cache %.4f nats; principal directions at .5, .25, .125: %s" % (full, judged()), flush=True)
    opt = torch.optim.Adam([cache.free], lr=a.lr, betas=(.9, .95))
    steps = math.ceil(a.tokens * 1e6 / (a.batch * a.length))
    began, shown = time.time(), 0.0
    for step in range(steps):
        for g in opt.param_groups:
            g["lr"] = a.lr * min(1, (step + 1) / 20) * (.02 + .98 * .5 * (1 + math.cos(math.pi * step / steps)))
        cache.begin()
        loss, _ = m.loss(*batch(gen, a.batch, a.length))
        loss.backward()
        nn.utils.clip_grad_norm_([cache.free], 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        if time.time() - shown > 20 or step == steps - 1:
            shown = time.time()
            print("step %d loss %.4f | %.0f tok/s" % (step + 1, float(loss), (step + 1) * a.batch * a.length / (shown - began)), flush=True)
    with torch.no_grad():
        bases = cache.bases().numpy()
    calibration.write_prefixes(a.out, a.gguf, bases[0], bases[1])
    print("held out at .5, .25, .125: %s | %.2f M tokens, %.0f s" % (judged(), steps * a.batch * a.length / 1e6, time.time() - began))


if __name__ == "__main__":
    main()
