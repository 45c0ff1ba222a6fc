#!/usr/bin/env python3
"""Train what decides which entries a cache keeps, for the model of a GGUF file.

  train_eviction.py --method trim|global|attention|locret|replay|reward|lookahead|share --gguf MODEL --data DIR --out FILE [--minutes 5]

trim       TRIM-KV: per layer an MLP on the layer's input, log beta = logsigmoid(out) for every KV head. While training,
           attention to an entry is multiplied by beta^age. Loss: KL from the frozen model and cross entropy, weighted as
           the model's own training was, and --pressure times max(0, sum_j beta_j^age - M) / M, the mean over time, heads
           and layers; M is --capacity.
global     "Make Each Token Count": as trim, but a head's hidden units are its own, one projection that all heads and
           layers share makes the number of them, and M counts the mean entry of a head over all heads and layers.
attention  Attention-Gate: per layer and KV head a causal attention of width --hidden over the layer's input, and a number of
           the token itself; keep probability m = sigmoid(both). An entry with m <= 1/2 is masked out of attention to tokens
           --window and more later; the gradient passes as if the mask were m. Loss: as trim, but --pressure times
           max(0, mean m / --share - 1); the share falls from 1 to --share in the first half of the run.
locret     Locret: an MLP on q, k (after RoPE) and v. Target: the largest score before softmax that the last --observers
           queries of the group give an entry. Smooth L1, and .0025 times the mean square between neighbours.
replay     KVzap: an MLP on the layer's input. Target: the logarithm of KVzip+'s score, the largest over the tokens of a
           repetition behind the prompt, and over the heads of the group, of attention to the entry times |W_o v| by the
           length of what the repeating token enters the layer's attention with. Loss: mean square. Prompts end before their
           first question. A replay costs far more than a step of the gates: a step takes the latest prompt and --again earlier ones.
reward     after "Neural Garbage Collection": the gates of --start (replay's) go on by rewards. Entry j of a prompt stays with
           probability sigmoid((out_j - b) / --heat), b such that --capacity stay per head on average; of --draws samples each
           answers the questions behind the prompt. Reward: the share of the answers' tokens that are the most likely ones.
           Loss: REINFORCE, rewards less their mean over the draws and by their deviation. The model stays frozen.
lookahead  LookaheadKV: learned vectors behind the prompt, and a low-rank addition to their query projections. Target: the
           mean attention of the last --observers tokens to the entries before them; loss: KL, mean over heads and layers.
share      "Stochastic KV Routing": the model itself goes on training; in every step each layer reads its own keys and
           values or, with probability 1/2, those that the layer below reads. Writes a GGUF file.

All but share leave the model as it is. The rate of Adam rises over 50 steps, then falls as a cosine of the time; FILE is
written once a minute and at the end. Runs on a GPU if there is one.
"""
# SPDX-License-Identifier: MIT
import argparse, math, multiprocessing as mp, os, struct, time
import numpy as np
import sentencepiece as spm
import torch
import torch.nn as nn
import torch.nn.functional as F
import calibration
import gate_blob
import gguf
import model as M
from tasks import Gen

MIX = [("plain", .28), ("repeat", .06), ("needle", .16), ("multi", .32), ("vt", .18)]


# ---- the model, fp32 with a place for what attention does ------------------------------------------
def split_heads(x, heads):
    """[B,T,heads*d] -> [B,heads,T,d]"""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def turned(x, cs, sn):
    """x [B,H,T,d] rotated by neighbouring pairs; cs, sn [T,d/2]"""
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cs - b * sn, a * sn + b * cs), -1).flatten(-2)


def norm(x, w, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


def projected(m, l, h, first=0):
    """q [B,H,T,d], k, v [B,KV,T,d] of layer l for its input h [B,T,D], whose first token is number `first`."""
    c, T = m.c, h.shape[1]
    cs, sn = m.cs[first:first + T], m.sn[first:first + T]
    q, k, v = split_heads(h @ m.wq[l].t(), c.heads), split_heads(h @ m.wk[l].t(), c.kv), split_heads(h @ m.wv[l].t(), c.kv)
    return turned(q, cs, sn), turned(k, cs, sn), v


def behind(m, l, x, a):
    """The residual stream after attention's output a [B,H,T,d]."""
    x = x + a.transpose(1, 2).flatten(2) @ m.wo[l].t()
    h = norm(x, m.n2[l], m.c.eps)
    return x + (F.silu(h @ m.wg[l].t()) * (h @ m.wu[l].t())) @ m.wd[l].t()


def causal(q, k, v):
    r = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(r, 1), v.repeat_interleave(r, 1)
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    T = q.shape[2]
    s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return torch.softmax(s.masked_fill(torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1), -math.inf), -1) @ v


def run(m, ids, attend):
    """Logits [B,T,V]. attend(layer, h, q, k, v) -> [B,H,T,d], h the layer's input after its norm."""
    x = F.embedding(ids, m.emb)
    for l in range(m.c.layers):
        h = norm(x, m.n1[l], m.c.eps)
        x = behind(m, l, x, attend(l, h, *projected(m, l, h)))
    return norm(x, m.nf, m.c.eps) @ m.emb.t()


# ---- gates ---------------------------------------------------------------------------------------
class Gates(nn.Module):
    """act(x W1 + b1) W2 + b2 of every layer. `shared`: the hidden units are divided among the heads, and one row of
    weights makes the number of every head's units."""
    def __init__(self, layers, heads, inputs, hidden, bias, shared=False):
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(layers, hidden, inputs) / math.sqrt(inputs))
        self.b1 = nn.Parameter(torch.zeros(layers, hidden))
        self.shared, self.heads = shared, heads
        rows, width = ((), hidden // heads) if shared else ((layers, heads), hidden)
        self.w2 = nn.Parameter(torch.randn(*rows, width) * .1 / math.sqrt(width))
        self.b2 = nn.Parameter(torch.full(rows, float(bias)))

    def forward(self, l, x):
        """[B,T,N] -> [B,heads,T]"""
        y = F.silu(x @ self.w1[l].t() + self.b1[l])
        if self.shared:
            return (y.unflatten(-1, (self.heads, -1)) @ self.w2 + self.b2).transpose(1, 2)
        return (y @ self.w2[l].t() + self.b2[l]).transpose(1, 2)

    def read(self, path):
        """Of a file that write() made, of these sizes."""
        with open(path, "rb") as f:
            flat = np.frombuffer(f.read()[40:], "<f4").reshape(len(self.w1), -1)
        at = 0
        for p in (self.w1, self.b1, self.w2, self.b2):
            n = p[0].numel()
            p.data.copy_(torch.from_numpy(flat[:, at:at + n].copy()).view_as(p))
            at += n
        assert at == flat.shape[1]

    def write(self, path, model):
        w1, b1, w2, b2 = (p.detach().cpu().numpy() for p in (self.w1, self.b1, self.w2, self.b2))
        if self.shared:                    # a head's row is the shared one at its own units, 0 at the others'
            row, w2 = w2, np.zeros((len(w1), self.heads, w1.shape[1]), np.float32)
            for h in range(self.heads):
                w2[:, h, h * len(row):(h + 1) * len(row)] = row
            b2 = np.full((len(w1), self.heads), b2, np.float32)
        gate_blob.write(path, model, w1, b1, w2, b2)


class Decay:
    """Attention whose entries fade by beta^age; `held` gets sum_j beta_j^age of every layer, [B,KV,T]."""
    def __init__(self, gates, T, dev):
        self.gates, self.held, self.betas = gates, [], []
        at = torch.arange(T, device=dev)
        self.age = (at[:, None] - at[None]).float()
        self.later = self.age < 0

    def __call__(self, l, h, q, k, v):
        log_beta = F.logsigmoid(self.gates(l, h))                                          # [B,KV,T]
        fade = (log_beta[:, :, None] * self.age).masked_fill(self.later, -math.inf)         # [B,KV,T,T]
        self.held.append(fade.exp().sum(-1))
        self.betas.append(log_beta.detach())
        B, H, T, d = q.shape
        kv = k.shape[1]
        q = q.reshape(B, kv, -1, d)                        # the group's heads one behind the other: [B,KV,r*T,d]
        s = (q @ k.transpose(-1, -2) / math.sqrt(d)).view(B, kv, -1, T, T) + fade[:, :, None]
        return (torch.softmax(s, -1).view(B, kv, -1, T) @ v).view(B, H, T, d)


class Retention:
    """trim, global"""
    def __init__(self, a, m, dev):
        self.a, self.m = a, m
        self.parts = Gates(m.c.layers, m.c.kv, m.c.d, a.hidden, 8.0, a.method == "global").to(dev)
        self.decay = Decay(self.parts, a.length, dev)

    def loss(self, x, y, w):
        m, a = self.m, self.a
        with torch.no_grad():
            teacher = torch.log_softmax(run(m, x, lambda l, h, q, k, v: causal(q, k, v)), -1)
        self.decay.held, self.decay.betas = [], []
        own = torch.log_softmax(run(m, x, self.decay), -1)
        kl = ((teacher.exp() * (teacher - own)).sum(-1) * w).sum() / w.sum()
        ce = -(own.gather(-1, y[..., None])[..., 0] * w).sum() / w.sum()
        held = torch.stack(self.decay.held)                                               # [L,B,KV,T]
        if a.method == "global":
            held = held.mean((0, 2))
        over = F.relu(held / a.capacity - 1).mean()
        self.note = lambda: "kl %.4f ce %.4f over %.3f held %.0f" % tuple(float(t.detach()) for t in (kl, ce, over, held[..., -1].mean()))
        return kl + ce + a.pressure * over

    def write(self):
        self.parts.write(self.a.out, self.a.gguf)


class AttentionGates(nn.Module):
    """out_t = own x_t + sum_{j <= t} softmax_j(Wq x_t . Wk x_j / sqrt(width)) wv x_j + b, for each KV head of each layer."""
    def __init__(self, layers, heads, inputs, width):
        super().__init__()
        self.wq = nn.Parameter(torch.randn(layers, heads, width, inputs) * 1.5 / math.sqrt(inputs))
        self.wk = nn.Parameter(torch.randn(layers, heads, width, inputs) * 1.5 / math.sqrt(inputs))
        self.wv = nn.Parameter(torch.randn(layers, heads, inputs) * .5 / math.sqrt(inputs))
        self.own = nn.Parameter(torch.randn(layers, heads, inputs) * .5 / math.sqrt(inputs))
        self.b = nn.Parameter(torch.full((layers, heads), 2.0))

    def forward(self, l, x, later):
        """x [B,T,N], later [T,T] -> [B,heads,T]"""
        q, k = (torch.einsum("btn,hwn->bhtw", x, w[l]) for w in (self.wq, self.wk))
        s = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(later, -math.inf)
        v = (x @ self.wv[l].t()).transpose(1, 2)
        return (torch.softmax(s, -1) @ v[..., None])[..., 0] + (x @ self.own[l].t()).transpose(1, 2) + self.b[l][None, :, None]

    def write(self, path, model):
        gate_blob.write_attention(path, model, *(p.detach().cpu().numpy() for p in (self.wq, self.wk, self.wv, self.own, self.b)))


class AttentionGate:
    def __init__(self, a, m, dev):
        self.a, self.model = a, m
        self.parts = AttentionGates(m.c.layers, m.c.kv, m.c.d, a.hidden).to(dev)
        at = torch.arange(a.length, device=dev)
        age = at[:, None] - at[None]
        self.later, self.recent = age < 0, age < a.window

    def attend(self, l, h, q, k, v):
        m = torch.sigmoid(self.parts(l, h, self.later))                                    # [B,KV,T]
        self.m.append(m)
        flag = (m > .5).float() + m - m.detach()
        B, H, T, d = q.shape
        kv = k.shape[1]
        q = q.reshape(B, kv, -1, d)
        s = (q @ k.transpose(-1, -2) / math.sqrt(d)).view(B, kv, -1, T, T).masked_fill(self.later, -math.inf)
        w = torch.softmax(s, -1) * torch.where(self.recent, torch.ones(()), flag[:, :, None, :])[:, :, None]
        w = w / w.sum(-1, keepdim=True)
        return (w.view(B, kv, -1, T) @ v).view(B, H, T, d)

    def loss(self, x, y, w):
        model, a = self.model, self.a
        with torch.no_grad():
            teacher = torch.log_softmax(run(model, x, lambda l, h, q, k, v: causal(q, k, v)), -1)
        self.m = []
        own = torch.log_softmax(run(model, x, self.attend), -1)
        kl = ((teacher.exp() * (teacher - own)).sum(-1) * w).sum() / w.sum()
        ce = -(own.gather(-1, y[..., None])[..., 0] * w).sum() / w.sum()
        m = torch.stack(self.m)
        share = a.share + (1 - a.share) * max(0.0, 1 - 2 * self.done)
        over = F.relu(m.mean() / share - 1)
        self.note = lambda: "kl %.4f ce %.4f share %.3f kept %.3f by head %s" % (
            float(kl.detach()), float(ce.detach()), share, float((m.detach() > .5).float().mean()),
            " ".join("%.2f" % z for z in (m.detach() > .5).float().mean((1, 3)).flatten().tolist()))
        return kl + ce + a.pressure * over

    def write(self):
        self.parts.write(self.a.out, self.a.gguf)


class Locret:
    def __init__(self, a, m, dev):
        self.a, self.m = a, m
        self.parts = Gates(m.c.layers, m.c.kv, (m.c.heads + 2 * m.c.kv) * m.c.hd, a.hidden, 0.0).to(dev)

    def loss(self, x, y, w):
        n, total = self.a.observers, []
        at = self.a.length - n
        seen = []

        def attend(l, h, q, k, v):
            seen.append((q, k, v))
            return causal(q, k, v)
        with torch.no_grad():
            run(self.m, x, attend)
        right = 0.0
        for l, (q, k, v) in enumerate(seen):
            kv = k.shape[1]
            with torch.no_grad():
                asks = q[:, :, at:].reshape(len(x), kv, -1, q.shape[-1])
                target = (asks @ k[:, :, :at].transpose(-1, -2) / math.sqrt(q.shape[-1])).amax(2)
                row = torch.cat([t[:, :, :at].transpose(1, 2).flatten(2) for t in (q, k, v)], -1)
            out = self.parts(l, row)
            total.append(F.smooth_l1_loss(out, target) + .0025 * (out[..., 1:] - out[..., :-1]).pow(2).mean())
            best = lambda s: torch.zeros_like(s).scatter_(-1, s.topk(at // 10, -1).indices, 1.0)
            right = right + (best(out.detach()) * best(target)).sum() / (at // 10 * target.shape[0] * kv)
        self.note = lambda: "of the best tenth found %.3f" % (float(right) / len(seen))
        return torch.stack(total).mean()

    def write(self):
        self.parts.write(self.a.out, self.a.gguf)


class Replay:
    KEPT = 400                                             # prompts, as layer inputs and targets in 16 bits

    def __init__(self, a, m, dev):
        self.a, self.m, c = a, m, m.c
        self.parts = Gates(c.layers, c.kv, c.d, a.hidden, -6.0).to(dev)
        sp = spm.SentencePieceProcessor(model_file=os.path.join(a.data, "tok.model"))
        part = lambda text: torch.tensor(sp.encode(text), device=dev)
        self.told, self.question = part("\n\nRepeat the text above word for word.\n"), part("Question:")
        # |W_o v| of a query head: W_o's columns for it
        self.wo = [w.view(c.d, c.heads, c.hd).permute(1, 2, 0) for w in m.wo]             # (H, d, D)
        self.prompts, self.draw = [], np.random.default_rng(a.seed + 17)

    @torch.no_grad()
    def replayed(self, x):
        """Layer inputs [L,B,n,D] and log scores [L,B,KV,n] of the prompts in x, cut before the first question of any."""
        q, T = self.question, x.shape[1]
        hits = torch.stack([x[:, i:T - len(q) + 1 + i] == q[i] for i in range(len(q))]).all(0).any(0).nonzero()
        n = int(hits[0]) if len(hits) and hits[0] > T // 2 else T
        x = x[:, :n]
        ids = torch.cat((x, self.told.expand(len(x), -1), x), 1)
        first = n + len(self.told)
        inputs, scores = [], []

        def attend(l, h, q, k, v):
            r = q.shape[1] // k.shape[1]
            keys, values = k.repeat_interleave(r, 1), v.repeat_interleave(r, 1)
            s = q[:, :, first:] @ (keys / math.sqrt(q.shape[-1])).transpose(-1, -2)
            later = torch.ones(n, s.shape[-1], dtype=torch.bool, device=x.device).triu(first + 1)
            p = torch.softmax(s.masked_fill_(later, -math.inf), -1)
            best = (p[..., :n] / h[:, None, first:].norm(dim=-1, keepdim=True)).amax(2)
            best = best * (values[:, :, :n] @ self.wo[l]).norm(dim=-1)                     # [B,H,n]
            inputs.append(h[:, :n])
            scores.append(best.view(len(x), -1, r, n).amax(2).clamp(min=1e-8).log())
            return torch.cat((causal(q[:, :, :first], k[:, :, :first], v[:, :, :first]), p @ values), 2)
        run(self.m, ids, attend)
        return torch.stack(inputs), torch.stack(scores)

    def loss(self, x, y, w):
        new = self.replayed(x)
        old = [self.prompts[i] for i in self.draw.integers(len(self.prompts), size=self.a.again)] if self.prompts else []
        total, off, spread = [], 0.0, 0.0
        for i, (h, target) in enumerate([new] + old):
            h, target = h.float(), target.float()
            out = torch.stack([self.parts(l, h[l]) for l in range(len(h))])
            total.append((out - target).pow(2).mean())
            if i == 0:
                off = (out.detach() - target).pow(2).mean((1, 2, 3))
                spread = (target - target.mean((1, 3), keepdim=True)).pow(2).mean((1, 2, 3))
        self.note = lambda: "of a new prompt's variance explained by layer " + " ".join("%.2f" % z for z in (1 - off / spread).tolist())
        if len(self.prompts) < self.KEPT:
            self.prompts.append(None)
        self.prompts[self.draw.integers(len(self.prompts)) if self.prompts[-1] else -1] = tuple(t.half() for t in new)
        return torch.stack(total).mean()

    def write(self):
        self.parts.write(self.a.out, self.a.gguf)


class Reward:
    WINDOW = 8                                             # latest entries, which stay, as does the first

    def __init__(self, a, m, dev):
        self.a, self.m, c = a, m, m.c
        self.parts = Gates(c.layers, c.kv, c.d, a.hidden, 0.0).to(dev)
        self.parts.read(a.start)
        sp = spm.SentencePieceProcessor(model_file=os.path.join(a.data, "tok.model"))
        self.question = torch.tensor(sp.encode("Question:"), device=dev)
        self.mean, self.seen, self.told = 0.0, 0, 0

    @torch.no_grad()
    def prompt(self, x):
        """x [1,T] up to its first question: its length, or None without one; the layer inputs, and keys and values by layer."""
        q, T = self.question, x.shape[1]
        hits = torch.stack([x[0, i:T - len(q) + 1 + i] == q[i] for i in range(len(q))]).all(0).nonzero()
        if not len(hits) or hits[0] < T // 2:
            return None, None, None
        n, inputs, rows = int(hits[0]), [], []

        def attend(l, h, q, k, v):
            inputs.append(h)
            rows.append((k, v))
            return causal(q, k, v)
        run(self.m, x[:, :n], attend)
        return n, inputs, rows

    def bar(self, out):
        """b of [L,KV,n] numbers: the mean head keeps --capacity entries beside the pinned."""
        want, low, high = self.a.capacity * out.shape[0] * out.shape[1], float(out.min()) - 20, float(out.max()) + 20
        for _ in range(40):
            mid = (low + high) / 2
            low, high = (mid, high) if torch.sigmoid((out - mid) / self.a.heat).sum() > want else (low, mid)
        return low

    @torch.no_grad()
    def rewards(self, x, y, w, n, rows, keep):
        """keep [S,L,KV,n] -> share of the answers' tokens that are right [S], and their mean logarithm."""
        m, S = self.m, len(keep)
        z, later = F.embedding(x[:, n:].expand(S, -1), m.emb), None
        for l in range(m.c.layers):
            q, k, v = projected(m, l, norm(z, m.n1[l], m.c.eps), n)
            r, t = q.shape[1] // k.shape[1], q.shape[2]
            if later is None:
                later = torch.zeros(t, t).masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -math.inf).to(x.device)
            hidden = torch.zeros(S, m.c.kv, 1, n, device=x.device).masked_fill(~keep[:, l, :, None], -math.inf)
            bias = torch.cat((hidden.expand(-1, -1, t, -1), later.expand(S, m.c.kv, t, t)), -1).repeat_interleave(r, 1)
            k = torch.cat((rows[l][0].expand(S, -1, -1, -1), k), 2).repeat_interleave(r, 1)
            v = torch.cat((rows[l][1].expand(S, -1, -1, -1), v), 2).repeat_interleave(r, 1)
            z = behind(m, l, z, torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias, -1) @ v)
        at = (w[0, n:] >= 2).nonzero()[:, 0]
        logits = torch.log_softmax(norm(z[:, at], m.nf, m.c.eps) @ m.emb.t(), -1)
        truth = y[0, n:][at]
        return (logits.argmax(-1) == truth).float().mean(-1), logits[:, torch.arange(len(at)), truth].mean(-1)

    def loss(self, x, y, w):
        n, inputs, rows = self.prompt(x)
        self.note = lambda: "reward %.3f over %d prompts, of which %d told draws apart" % (self.mean, self.seen, self.told)
        if n is None:
            return sum(p.sum() for p in self.parts.parameters()) * 0
        out = torch.stack([self.parts(l, h)[0] for l, h in enumerate(inputs)])[..., 1:n - self.WINDOW]
        logits = (out - self.bar(out.detach())) / self.a.heat
        drawn = torch.bernoulli(torch.sigmoid(logits.detach()).expand(self.a.draws, -1, -1, -1))
        keep = F.pad(drawn.bool(), (1, self.WINDOW), value=True)
        reward, _ = self.rewards(x, y, w, n, rows, keep)
        self.seen += 1
        self.told += float(reward.std()) > 0
        self.mean += (float(reward.mean()) - self.mean) / min(self.seen, 50)
        gain = (reward - reward.mean()) / (reward.std() + 1e-3)
        chosen = drawn * F.logsigmoid(logits) + (1 - drawn) * F.logsigmoid(-logits)
        return -(gain[:, None, None, None] * chosen).sum() / self.a.draws / logits[0, 0].numel()

    def judge(self, batches):
        """Without chance: the best entries of all heads."""
        right, sure = [], []
        with torch.no_grad():
            for x, y, w in batches:
                n, inputs, rows = self.prompt(x)
                if n is None:
                    continue
                out = torch.stack([self.parts(l, h)[0] for l, h in enumerate(inputs)])[..., 1:n - self.WINDOW]
                best = out.flatten().topk(int(self.a.capacity * out.shape[0] * out.shape[1])).values[-1]
                r, s = self.rewards(x, y, w, n, rows, F.pad(out >= best, (1, self.WINDOW), value=True)[None])
                right.append(float(r))
                sure.append(float(s))
        print("held out, %d prompts: answers' tokens right %.4f, all of them %.4f, %.4f nats" % (
            len(right), np.mean(right), np.mean(np.array(right) == 1), -np.mean(sure)), flush=True)

    def write(self):
        self.parts.write(self.a.out, self.a.gguf)


class Lookahead:
    def __init__(self, a, m, dev):
        self.a, self.m, c = a, m, m.c
        self.parts = nn.Module()
        self.parts.tokens = nn.Parameter(m.emb[torch.randint(260, c.vocab, (a.vectors,))].detach().cpu().clone())
        self.parts.down = nn.Parameter(torch.randn(c.layers, a.rank, c.d) / math.sqrt(c.d))
        self.parts.up = nn.Parameter(torch.zeros(c.layers, c.heads * c.hd, a.rank))
        self.parts.to(dev)

    def loss(self, x, y, w):
        m, p, at, seen = self.m, self.parts, self.a.length - self.a.observers, []

        def attend(l, h, q, k, v):
            seen.append((q, k, v))
            return causal(q, k, v)
        with torch.no_grad():
            run(m, x, attend)
        n, losses = len(p.tokens), []
        s = p.tokens[None].expand(len(x), -1, -1)
        for l, (q, k, v) in enumerate(seen):
            scale = 1 / math.sqrt(q.shape[-1])
            r = q.shape[1] // k.shape[1]
            with torch.no_grad():                              # [B,H,at], of each head
                keys = k.repeat_interleave(r, 1)
                T = x.shape[1]
                logits = q[:, :, at:] @ keys.transpose(-1, -2) * scale
                logits = logits.masked_fill(torch.ones(T - at, T, dtype=torch.bool, device=x.device).triu(at + 1), -math.inf)
                truth = torch.softmax(logits, -1)[..., :at].mean(2)
                truth = truth / truth.sum(-1, keepdim=True)
            h = norm(s, m.n1[l], m.c.eps)
            own_q, own_k, own_v = projected(m, l, h, at)
            asks = own_q + turned(split_heads(h @ p.down[l].t() @ p.up[l].t(), m.c.heads), m.cs[at:at + n], m.sn[at:at + n])
            guess = torch.softmax(asks @ keys[:, :, :at].transpose(-1, -2) * scale, -1).mean(2)
            losses.append((truth * ((truth + 1e-9).log() - (guess + 1e-9).log())).sum(-1).mean())
            k_all = torch.cat((keys[:, :, :at], own_k.repeat_interleave(r, 1)), 2)
            v_all = torch.cat((v[:, :, :at], own_v), 2).repeat_interleave(r, 1)
            t = own_q @ k_all.transpose(-1, -2) * scale
            t = t.masked_fill(torch.ones(n, at + n, dtype=torch.bool, device=x.device).triu(at + 1), -math.inf)
            s = behind(m, l, s, torch.softmax(t, -1) @ v_all)
        each = torch.stack(losses)
        self.note = lambda: "by layer " + " ".join("%.3f" % z for z in each.tolist())
        return each.mean()

    def write(self):
        """"KVTLLOOK", fingerprint, then u32 version, layers, width, query numbers, vectors, rank; then f32: the vectors
        (n, D), and by layer down (rank, D) and up (HQ d, rank)."""
        p = [t.detach().cpu().numpy().astype("<f4") for t in (self.parts.tokens, self.parts.down, self.parts.up)]
        head = struct.pack("<8sQ6I", b"KVTLLOOK", calibration.fingerprint(self.a.gguf), 1, len(p[1]), p[0].shape[1], p[2].shape[1],
                           len(p[0]), p[1].shape[1])
        with open(self.a.out + ".part", "wb") as f:
            f.write(head + p[0].tobytes() + b"".join(d.tobytes() + u.tobytes() for d, u in zip(p[1], p[2])))
        os.replace(self.a.out + ".part", self.a.out)


class Share:
    def __init__(self, a, m, dev):
        self.a, self.m, self.parts = a, m, m
        self.draw = np.random.default_rng(a.seed + 17)

    def loss(self, x, y, w):
        own = self.draw.random(self.m.c.layers) < .5
        own[0] = True
        last = [None]

        def attend(l, h, q, k, v):
            if own[l]:
                last[0] = k, v
            return causal(q, *last[0])
        nll = F.cross_entropy(run(self.m, x, attend).flatten(0, 1), y.flatten(), reduction="none").view_as(w)
        text, answer = w == 1, w >= 2
        mean = lambda part: float((nll.detach() * part).sum() / part.sum().clamp(min=1))
        self.note = lambda: "own %s text %.3f answers %.3f" % ("".join("01"[int(o)] for o in own), mean(text), mean(answer))
        return (nll * w).sum() / w.sum()

    @torch.no_grad()
    def judge(self, batches):
        """Nats of text and of answers with 6, 3 and 2 caches."""
        for every in (1, 2, 3):
            sums = np.zeros(4)
            for x, y, w in batches:
                last = [None]

                def attend(l, h, q, k, v):
                    if l % every == 0:
                        last[0] = k, v
                    return causal(q, *last[0])
                nll = F.cross_entropy(run(self.m, x, attend).flatten(0, 1), y.flatten(), reduction="none").view_as(w)
                for i, part in enumerate((w == 1, w >= 2)):
                    sums[2 * i:2 * i + 2] += float((nll * part).sum()), float(part.sum())
            print("held out, %d caches: text %.4f answers %.4f nats" % (
                -(-self.m.c.layers // every), sums[0] / sums[1], sums[2] / max(1, sums[3])), flush=True)

    def write(self):
        gguf.with_tensors(self.a.out + ".part", self.a.gguf, M.tensors(self.copy()))
        os.replace(self.a.out + ".part", self.a.out)

    def copy(self):
        m = M.Llama(self.m.c)
        m.load_state_dict({k: v.cpu() for k, v in self.m.state_dict().items()})
        return m


# ---- data, in processes of their own ----------------------------------------------------------------
def feed(data, split, seed, B, T, out):
    gen = Gen(data, split, seed)
    while True:
        out.put(tuple(np.ascontiguousarray(p) for p in gen.batch(B, T, MIX)))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--method", required=True, choices=("trim", "global", "attention", "locret", "replay", "reward", "lookahead", "share"))
    ap.add_argument("--gguf", required=True)
    ap.add_argument("--data", required=True, help="folder with train.bin, val.bin and tok.model (tokens.py)")
    ap.add_argument("--out", required=True)
    ap.add_argument("--minutes", type=float, default=5)
    ap.add_argument("--steps", type=int, default=10 ** 9, help="end earlier")
    ap.add_argument("--length", type=int, help="tokens of a window; default: 2048; replay 960")
    ap.add_argument("--batch", type=int, default=4, help="windows per step")
    ap.add_argument("--lr", type=float, help="default: 2e-3; share 4e-4, attention 3e-3")
    ap.add_argument("--hidden", type=int, help="units of a gate, or its width; default: 128; locret 64, attention 16")
    ap.add_argument("--capacity", type=float, default=128, help="M of trim and global, entries per head")
    ap.add_argument("--pressure", type=float, default=1.0)
    ap.add_argument("--share", type=float, default=.12, help="of the entries, that attention may keep")
    ap.add_argument("--window", type=int, default=8, help="latest entries that attention keeps in any case")
    ap.add_argument("--observers", type=int, default=64)
    ap.add_argument("--vectors", type=int, default=16)
    ap.add_argument("--rank", type=int, default=8)
    ap.add_argument("--again", type=int, default=7, help="earlier prompts in a step of replay")
    ap.add_argument("--start", help="gates that reward starts from")
    ap.add_argument("--draws", type=int, default=16, help="samples of reward for each prompt")
    ap.add_argument("--heat", type=float, default=.3, help="of reward's sampling")
    ap.add_argument("--workers", type=int, default=2)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a = ap.parse_args()
    began = time.time()
    a.lr = a.lr or {"share": 4e-4, "attention": 3e-3}.get(a.method, 2e-3)
    a.length = a.length or {"replay": 960}.get(a.method, 2048)
    a.hidden = a.hidden or {"locret": 64, "attention": 16}.get(a.method, 128)
    queue = mp.Queue(8)
    jobs = [mp.Process(target=feed, args=(a.data, "train", 1000 * a.seed + i, a.batch, a.length, queue), daemon=True)
            for i in range(a.workers)]
    for j in jobs:
        j.start()
    torch.manual_seed(a.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    m = M.load(a.gguf).to(a.device)
    for p in m.parameters():
        p.requires_grad_(a.method == "share")
    method = {"trim": Retention, "global": Retention, "attention": AttentionGate, "locret": Locret, "replay": Replay, "reward": Reward,
              "lookahead": Lookahead, "share": Share}[a.method](a, m, a.device)
    own = [p for p in method.parts.parameters() if p.requires_grad]
    opt = torch.optim.Adam(own, lr=a.lr, betas=(.9, .95))
    tensors = lambda b: (torch.from_numpy(b[0]).to(a.device), torch.from_numpy(b[1]).to(a.device), torch.from_numpy(b[2]).to(a.device))
    judged = a.method in ("share", "reward")
    if judged:
        gen = Gen(a.data, "holdout", 5)
        held = [tensors([np.ascontiguousarray(p) for p in gen.batch(a.batch, a.length, MIX)]) for _ in range(60 if a.method == "reward" else 8)]
        method.judge(held)
    print(a.method, "on", a.device, "| parameters", sum(p.numel() for p in own), flush=True)
    step, shown, saved, waited = 0, 0.0, time.time(), 0.0
    while step < a.steps:
        share = max((time.time() - began) / (60 * a.minutes), step / a.steps)
        if share >= 1:
            break
        for g in opt.param_groups:
            g["lr"] = a.lr * min(1, (step + 1) / 50) * (.02 + .98 * .5 * (1 + math.cos(math.pi * share)))
        at = time.time()
        b = queue.get(timeout=120)
        waited += time.time() - at
        method.done = share                    # of the run
        loss = method.loss(*tensors(b))
        loss.backward()
        nn.utils.clip_grad_norm_(own, 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        step += 1
        now = time.time()
        if now - shown > 15 or step in (1, a.steps):
            shown = now
            print("%5.0f s step %d loss %.4f %s | %.1f M tokens, %.0f %% waited for data" % (
                now - began, step, float(loss.detach()), method.note(), step * a.batch * a.length / 1e6, 100 * waited / (now - began)), flush=True)
        if now - saved > 60:
            saved = now
            method.write()
    method.write()
    if judged:
        method.judge(held)
    print("end: %d steps, %.2f M tokens, %.0f s, memory %.1f GiB" % (
        step, step * a.batch * a.length / 1e6, time.time() - began,
        torch.cuda.max_memory_allocated() / 2 ** 30 if a.device == "cuda" else 0), flush=True)
    for j in jobs:
        j.terminate()


if __name__ == "__main__":
    main()
