#!/usr/bin/env python3
"""Continue the training of tiny-2k on windows of 2,048 to 16,384 tokens, on one GPU.

  train.py --gguf tiny-2k.gguf --data DIR --out OUT --minutes 9 [--base 500000]

DIR holds tok.model, train.bin and val.bin, which bench/train_gates/tokens.py writes. Every step has --step-tokens tokens in
windows of one length, and the share of long windows grows. The learning rate follows the clock: constant, then a cosine down to
2 % at the end. Writes OUT/tiny-16k.gguf about once a minute and at the end. Prints accuracy on names that training never sees,
and nats per token of held-out text. Needs PyTorch 2.5 or newer and 8 GiB of GPU memory.
"""
# SPDX-License-Identifier: MIT
import argparse, math, os, sys, time
import multiprocessing as mp
import numpy as np
import torch
import torch.nn.functional as F
here = os.path.dirname(os.path.abspath(__file__))
sys.path += [os.path.join(here, "..", "train_gates")]
import gguf
from tasks_long import LongGen

# until this share of the time: windows of 2,048, 4,096, 8,192, 16,384 tokens (shares of the steps)
LENGTHS = (2048, 4096, 8192, 16384)
STAGES = [(.08, (.8, .2, 0, 0)), (.16, (.3, .5, .2, 0)), (.30, (.2, .2, .5, .1)), (2, (.22, .13, .25, .40))]
MATRICES = ("wq", "wk", "wv", "wo", "wg", "wu", "wd")
NAMES = dict(n1="attn_norm", n2="ffn_norm", wq="attn_q", wk="attn_k", wv="attn_v", wo="attn_output", wg="ffn_gate", wu="ffn_up", wd="ffn_down")
TASKS = ("needle", "multikey8", "multikey32", "vt")


# ---- model: fp32 weights and residual stream, bf16 products -------------------------------------
HD, EPS, BF = 64, 1e-5, torch.bfloat16


def norm(x, w):
    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * w).to(BF)


def turn(x, cs, sn):
    """x [N,H,64] by neighbouring pairs; cs, sn [N,32]"""
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    c, s = cs[:, None], sn[:, None]
    return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2).to(BF)


def before(x, n1, wq, wk, wv, cs, sn):
    h = norm(x, n1)
    q, k, v = ((h @ w.t()).unflatten(-1, (-1, HD)) for w in (wq, wk, wv))
    return turn(q, cs, sn), turn(k, cs, sn), v


def behind(x, a, wo, n2, wg, wu, wd):
    x = x + (a @ wo.t()).float()
    h = norm(x, n2)
    return x + ((F.silu(h @ wg.t()) * (h @ wu.t())) @ wd.t()).float()


def losses(x, nf, emb, y):
    return F.cross_entropy((norm(x, nf) @ emb.t()).float(), y, reduction="none")


def attention(q, k, v):
    """[B,T,H,64], [B,T,KV,64] twice"""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    if q.is_cuda:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)
    r = q.shape[1] // k.shape[1]
    T = q.shape[2]
    s = (q.float() @ k.repeat_interleave(r, 1).float().transpose(-1, -2)) / math.sqrt(HD)
    s = s.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), float("-inf"))
    return (torch.softmax(s, -1) @ v.repeat_interleave(r, 1).float()).to(BF).transpose(1, 2)


class Model:
    def __init__(self, path, dev, base):
        self.kv, t = gguf.read(path)
        layers = self.kv["llama.block_count"]
        f = lambda k: torch.from_numpy(t[k].astype(np.float32))
        self.p = {"emb": f("token_embd.weight"), "nf": f("output_norm.weight")}
        for a, b in NAMES.items():
            self.p[a] = torch.stack([f("blk.%d.%s.weight" % (l, b)) for l in range(layers)])
        for k in self.p:
            self.p[k] = self.p[k].to(dev).requires_grad_(True)
        self.dev, self.parts = dev, (before, behind, losses)
        self.set_base(base)

    def set_base(self, base):
        a = torch.arange(LENGTHS[-1], dtype=torch.float64)[:, None] * base ** (-torch.arange(0, HD, 2, dtype=torch.float64) / HD)
        self.cs, self.sn, self.tab = a.cos().float().to(self.dev), a.sin().float().to(self.dev), {}

    def hidden(self, ids, compiled=True):
        """[B*T,D] of ids [B,T]"""
        pre, post = self.parts[:2] if compiled else (before, behind)
        B, T = ids.shape
        if (B, T) not in self.tab:
            if not compiled:
                self.tab.clear()
            self.tab[B, T] = self.cs[:T].repeat(B, 1), self.sn[:T].repeat(B, 1)
        cs, sn = self.tab[B, T]
        w = {k: self.p[k].to(BF).unbind(0) for k in MATRICES}
        n1, n2 = self.p["n1"].unbind(0), self.p["n2"].unbind(0)
        x = F.embedding(ids.reshape(-1), self.p["emb"])
        for l in range(len(n1)):
            q, k, v = pre(x, n1[l], w["wq"][l], w["wk"][l], w["wv"][l], cs, sn)
            a = attention(*(t.unflatten(0, (B, T)) for t in (q, k, v)))
            x = post(x, a.reshape(B * T, -1), w["wo"][l], n2[l], w["wg"][l], w["wu"][l], w["wd"][l])
        return x

    def nll(self, ids, y, compiled=True):
        return (self.parts[2] if compiled else losses)(self.hidden(ids, compiled), self.p["nf"], self.p["emb"].to(BF), y.reshape(-1))

    def write(self, path, source, base):
        own = {k: v.detach().cpu().numpy() for k, v in self.p.items()}
        t = {"token_embd.weight": own["emb"], "output_norm.weight": own["nf"]}
        for a, b in NAMES.items():
            t.update(("blk.%d.%s.weight" % (l, b), m) for l, m in enumerate(own[a]))
        gguf.with_tensors(path + ".part", source, t, {"general.name": "tiny-16k", "llama.context_length": LENGTHS[-1], "llama.rope.freq_base": base})
        os.replace(path + ".part", path)


# ---- optimizer ------------------------------------------------------------------------------------
def orthogonal(g, steps=5):
    """Newton-Schulz towards the nearest orthogonal matrix, [n,r,c] with r <= c ("Muon")"""
    x = g.to(BF)
    x = x / (x.float().flatten(1).norm(dim=1)[:, None, None].to(BF) + 1e-7)
    for _ in range(steps):
        s = x @ x.transpose(1, 2)
        x = torch.baddbmm(x, torch.baddbmm(s, s, s, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return x.float()


class Optimizer:
    """Orthogonalised momentum for the matrices inside the blocks, Adam for embedding and norms."""
    def __init__(self, p, lr_mat, lr_adam, decay=.02):
        self.p, self.lr_mat, self.lr_adam, self.decay, self.t = p, lr_mat, lr_adam, decay, 0
        self.a = {k: torch.zeros_like(v) for k, v in p.items()}
        self.b = {k: torch.zeros_like(v) for k, v in p.items() if k not in MATRICES}

    @torch.no_grad()
    def step(self, scale):
        self.t += 1
        size = torch.stack([v.grad.pow(2).sum() for v in self.p.values()]).sum().sqrt()
        clip = (1 / (size + 1e-6)).clamp(max=1.0)
        for k, v in self.p.items():
            g, a = v.grad * clip, self.a[k]
            if k in MATRICES:
                a.mul_(.95).add_(g)
                u = g + .95 * a
                tall = u.shape[1] > u.shape[2]
                o = orthogonal(u.transpose(1, 2) if tall else u)
                lr = self.lr_mat * scale
                v.mul_(1 - lr * self.decay).add_(o.transpose(1, 2) if tall else o, alpha=-lr * max(1.0, u.shape[1] / u.shape[2]) ** .5)
            else:
                b = self.b[k]
                a.mul_(.9).add_(g, alpha=.1)
                b.mul_(.95).addcmul_(g, g, value=.05)
                v.addcdiv_(a, (b / (1 - .95 ** self.t)).sqrt_().add_(1e-8), value=-self.lr_adam * scale / (1 - .9 ** self.t))
            v.grad = None
        return size


# ---- data, in processes of their own ----------------------------------------------------------------
def feed(data, seed, tokens, start, end, lengths, out):
    gen = LongGen(data, "train", seed)
    while True:
        at = (time.time() - start) / (end - start)
        share = next(s for until, s in STAGES if at < until) if len(lengths) == 4 else [1 / len(lengths)] * len(lengths)
        T = int(gen.rng.choice(lengths, p=share))
        out.put(gen.batch(max(1, tokens // T), T))


def questions(data, cells, n, seed, out):
    for task, T in cells:
        gen = LongGen(data, "eval", seed + T)
        out.put((task, T, [gen.question(task, T) for _ in range(n)]))


@torch.no_grad()
def accuracy(m, examples, T, tokens):
    """Share of examples whose answer tokens are all the most probable ones, which is what greedy decoding gives."""
    right, B = 0, max(1, tokens // T)
    for s in range(0, len(examples), B):
        part = examples[s:s + B]
        ids = np.zeros((len(part), T), np.int64)
        for i, (e, _) in enumerate(part):
            ids[i, :len(e)] = e
        h = norm(m.hidden(torch.from_numpy(ids).to(m.dev), False), m.p["nf"]).view(len(part), T, -1)
        for i, (e, na) in enumerate(part):
            got = (h[i, len(e) - na - 1:len(e) - 1] @ m.p["emb"].to(BF).t()).argmax(-1).cpu().numpy()
            right += bool((got == e[-na:]).all())
    return right / len(examples)


@torch.no_grad()
def held_out(m, data, name, T, tokens):
    """Nats per token of NAME.bin: every document in windows of at most T tokens, each behind a BOS of its own."""
    t = np.fromfile(os.path.join(data, name + ".bin"), np.uint16).astype(np.int64)
    at = np.append(np.flatnonzero(t == 1), len(t))
    windows = [t[s:min(s + T, e)] for b, e in zip(at, at[1:]) for s in range(b + 1, e, T)]
    B, total = max(1, tokens // T), 0.0
    windows.sort(key=len)
    for s in range(0, len(windows), B):
        part = windows[s:s + B]
        n = len(part[-1])
        x, y, w = np.zeros((len(part), n), np.int64), np.zeros((len(part), n), np.int64), np.zeros((len(part), n), np.float32)
        for i, d in enumerate(part):
            x[i, 0], x[i, 1:len(d)], y[i, :len(d)], w[i, :len(d)] = 1, d[:-1], d, 1
        x, y, w = (torch.from_numpy(v).to(m.dev) for v in (x, y, w))
        total += float((m.nll(x, y, False) * w.reshape(-1)).sum())
    return total / sum(map(len, windows))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--gguf", required=True)
    ap.add_argument("--data", required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--held-out", nargs="+", default=["val"], help="NAME.bin in --data: texts whose nats per token are printed")
    ap.add_argument("--minutes", type=float, default=9, help="from the start of the program, without the last evaluation")
    ap.add_argument("--base", type=float, default=500000, help="of the rotary embedding")
    ap.add_argument("--step-tokens", type=int, default=131072)
    ap.add_argument("--lr-mat", type=float, default=.015)
    ap.add_argument("--lr-adam", type=float, default=2e-3)
    ap.add_argument("--constant", type=float, default=.45, help="share of the time before the rate falls")
    ap.add_argument("--warmup", type=int, default=60)
    ap.add_argument("--lengths", default=",".join(map(str, LENGTHS)))
    ap.add_argument("--examples", type=int, default=200, help="per cell of the last evaluation")
    ap.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    ap.add_argument("--steps", type=int, default=10 ** 9)
    ap.add_argument("--eval-tokens", type=int, default=131072)
    ap.add_argument("--eager", action="store_true")
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--seed", type=int, default=1)
    a = ap.parse_args()
    start = time.time()
    end = start + a.minutes * 60
    lengths = list(map(int, a.lengths.split(",")))
    say = lambda *x: print("%6.1f" % (time.time() - start), *x, flush=True)
    batches, answers = mp.Queue(24), mp.Queue()
    jobs = [mp.Process(target=feed, args=(a.data, a.seed * 1000 + i, a.step_tokens, start, end, lengths, batches), daemon=True) for i in range(a.workers)]
    cells = [(t, T) for T in lengths for t in TASKS]
    jobs += [mp.Process(target=questions, args=(a.data, cells[i::4], a.examples, 777, answers), daemon=True) for i in range(4)]
    for j in jobs:
        j.start()
    torch.manual_seed(a.seed)
    torch.set_float32_matmul_precision("high")
    m = Model(a.gguf, a.device, 10000.0)
    os.makedirs(a.out, exist_ok=True)
    path = os.path.join(a.out, "tiny-16k.gguf")
    nats = lambda names, T: {k: round(held_out(m, a.data, k, T, a.eval_tokens), 4) for k in names}
    say("before training, nats at 2047:", nats(a.held_out, 2047))
    m.set_base(a.base)
    say("with base %g:" % a.base, nats(a.held_out[:1], 2047))
    if a.device == "cuda" and not a.eager:
        m.parts = tuple(torch.compile(f, dynamic=False) for f in m.parts)
    opt = Optimizer(m.p, a.lr_mat, a.lr_adam)
    sets, step, tokens = {}, 0, 0
    seen = {T: [0, 0.0, 0.0, 0.0] for T in lengths}             # steps, text, answers, seconds; summed on the device
    shown = saved = mark = time.time()
    waited = 0.0
    while step < a.steps:
        now = time.time()
        at = (now - start) / (end - start)
        if at >= 1:
            break
        ids, w = batches.get()
        waited += time.time() - now
        B, T = w.shape
        ids, w = torch.from_numpy(ids).to(a.device, non_blocking=True).long(), torch.from_numpy(w).to(a.device, non_blocking=True).float().reshape(-1)
        if step == 0:
            say("first batch", tuple(ids.shape))
        nll = m.nll(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
        ((nll * w).sum() / w.sum()).backward()
        fall = max(0.0, (at - a.constant) / (1 - a.constant))
        size = opt.step(min(1.0, (step + 1) / a.warmup) * (.02 + .98 * .5 * (1 + math.cos(math.pi * fall))))
        step, tokens = step + 1, tokens + B * T
        with torch.no_grad():
            n = nll.detach()
            text, ans = w == 1, w >= 4
            s = seen[T]
            s[0], s[1], s[2] = s[0] + 1, s[1] + (n * text).sum() / text.sum(), s[2] + (n * ans).sum() / ans.sum().clamp(min=1)
        if step in (1, 2, 5, 20):
            if a.device == "cuda":
                torch.cuda.synchronize()
            say("step", step, "T", T, "tokens", tokens)
            mark_tokens, mark, waited = tokens, time.time(), 0.0
        if time.time() - shown > 15 or step >= a.steps:
            stat = "; ".join("%d: %d steps, text %.3f, answers %.3f" % (T, s[0], float(s[1]) / s[0], float(s[2]) / s[0]) for T, s in seen.items() if s[0])
            dt = time.time() - mark
            say("step %d tokens %.1fM at %.2f norm %.2f | %s | %.0f ktok/s, data %.0f %%" % (step, tokens / 1e6, at, float(size), stat, (tokens - mark_tokens) / dt / 1e3, 100 * waited / dt))
            seen = {T: [0, 0.0, 0.0, 0.0] for T in lengths}
            shown = mark = time.time()
            mark_tokens, waited = tokens, 0.0
        while not answers.empty():
            t, T, e = answers.get()
            sets[t, T] = e
        if time.time() - saved > 55:
            m.write(path, a.gguf, a.base)
            t0 = time.time()
            say("EVAL", {"%s@%d" % c: accuracy(m, e[:48], c[1], a.eval_tokens) for c, e in sorted(sets.items())}, nats(a.held_out[:1], 2047), "%.1f s" % (time.time() - t0))
            saved = time.time()
            mark += saved - t0
    m.write(path, a.gguf, a.base)
    say("end of training, steps", step, "tokens", tokens, "memory GiB", torch.cuda.max_memory_allocated() / 2 ** 30 if a.device == "cuda" else 0)
    for j in jobs[:a.workers]:
        j.terminate()
    for T in (2047, 4096, 8192, 16384):
        say("nats at", T, nats(a.held_out, T))
    while len(sets) < len(cells):
        t, T, e = answers.get()
        sets[t, T] = e
    for c, e in sorted(sets.items(), key=lambda x: x[0][1]):
        say("%-11s %6d tokens: %.3f of %d" % (c[0], c[1], accuracy(m, e, c[1], a.eval_tokens), len(e)))


if __name__ == "__main__":
    main()
