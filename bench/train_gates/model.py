"""A Llama model read from a GGUF file, with a place for what a cache does to keys and values.

Plain PyTorch, or the CPU kernels of fast_ops.cpp where the CPU has AMX and heads have 64 numbers. Rotary embedding
turns neighbouring pairs (2i, 2i+1), as files of arch "llama" have them; embeddings are tied.
"""
# SPDX-License-Identifier: MIT
import ctypes, math, os
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

import gguf

LIB = None


def load_fast(path):
    """Returns True when the kernels were loaded and the CPU grants AMX."""
    global LIB
    try:
        lib = ctypes.CDLL(path)
        flags = open("/proc/cpuinfo").read()
        if "amx_bf16" in flags and "avx512_bf16" in flags and lib.fast_init() == 0:
            LIB = lib
    except OSError:
        pass
    return LIB is not None


def ptr(t):
    return ctypes.c_void_p(0 if t is None else t.data_ptr())


def product(a, b, to=torch.bfloat16):
    """a [M,K] b [N,K]^T, both bf16."""
    if LIB is None or any(n % 32 for n in (*a.shape, b.shape[0])):
        return F.linear(a, b).to(to)
    a, b = a.contiguous(), b.contiguous()
    c = torch.empty(a.shape[0], b.shape[0], dtype=to)
    LIB.product(ptr(a), ptr(b), ptr(c if to == torch.float32 else None), ptr(c if to == torch.bfloat16 else None), a.shape[0], b.shape[0], a.shape[1])
    return c


class Linear(torch.autograd.Function):
    """x w^T of any float types, multiplied in bf16; the result has the type `to`."""
    @staticmethod
    def forward(ctx, x, w, to):
        bf, ctx.of = torch.bfloat16, x.dtype
        x, wb = x.to(bf), w.to(bf)
        ctx.save_for_backward(x, wb)
        return product(x, wb, to)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        g = g.to(torch.bfloat16)
        gx = product(g, w.t(), ctx.of) if ctx.needs_input_grad[0] else None
        gw = product(g.t(), x.t(), torch.float32) if ctx.needs_input_grad[1] else None
        return gx, gw, None


def linear(x, w, to=torch.bfloat16):
    return Linear.apply(x, w, to)


class Gate(torch.autograd.Function):
    """c [N,n] bf16, w [n,n], b [n] -> c * m bf16, the mean of m, the share of m > tau; m = flip(cumsum(softmax(c w + b))).
    With `hard` c * (m > tau), whose gradient is passed on as if it were m."""
    @staticmethod
    def forward(ctx, c, w, b, tau, hard):
        N, n = c.shape
        p, y, wt = product(c, w.t().to(torch.bfloat16), torch.float32), torch.empty_like(c), w.to(torch.bfloat16)
        totals = (ctypes.c_double * 2)()
        LIB.gate_fwd(ptr(p), ptr(b.contiguous()), ptr(c), ptr(y), ctypes.c_float(tau), int(hard), totals, N, n)
        ctx.how = ctypes.c_float(tau), int(hard)
        ctx.save_for_backward(p, c, wt)
        kept = torch.tensor(totals[1] / (N * n))
        ctx.mark_non_differentiable(kept)
        return y, torch.tensor(totals[0] / (N * n)), kept

    @staticmethod
    def backward(ctx, gy, gm, _):
        p, c, w = ctx.saved_tensors
        N, n = c.shape
        dl, dc, db = torch.empty_like(c), torch.empty(N, n), torch.zeros(n)
        LIB.gate_bwd(ptr(p), ptr(c), ptr(gy.contiguous()), ctypes.c_float(float(gm) / (N * n)), *ctx.how, ptr(dl), ptr(dc), ptr(db), N, n)
        dc += product(dl, w, torch.float32)
        return dc.to(torch.bfloat16), product(c.t(), dl.t(), torch.float32), db, None, None


class AddNorm(torch.autograd.Function):
    """(x, o) -> x + o (f32), bf16(rmsnorm(x + o) * w); o may be None."""
    @staticmethod
    def forward(ctx, x, o, w, eps):
        N, D = x.shape
        xn = torch.empty_like(x) if o is not None else x
        y = torch.empty(N, D, dtype=torch.bfloat16)
        r = torch.empty(N)
        LIB.addnorm_fwd(ptr(xn), ptr(x), ptr(o), ptr(w), ptr(y), ptr(r), N, D, ctypes.c_float(eps))
        ctx.save_for_backward(xn, w, r)
        ctx.has_o = o is not None
        return (xn if o is not None else x.view_as(x)), y

    @staticmethod
    def backward(ctx, gxn, gy):
        xn, w, r = ctx.saved_tensors
        N, D = xn.shape
        gx = torch.empty_like(xn)
        go = torch.empty(N, D, dtype=torch.bfloat16) if ctx.has_o else None
        gw = torch.zeros_like(w)
        if gxn is not None:
            gxn = gxn.contiguous()
        LIB.addnorm_bwd(ptr(xn), ptr(w), ptr(r), ptr(gy.contiguous()), ptr(gxn), ptr(gx), ptr(go), ptr(gw), N, D)
        return gx, go, gw, None


class SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gu):
        N, F2 = gu.shape
        y = torch.empty(N, F2 // 2, dtype=torch.bfloat16)
        LIB.swiglu_fwd(ptr(gu), ptr(y), N, F2 // 2)
        ctx.save_for_backward(gu)
        return y

    @staticmethod
    def backward(ctx, gy):
        gu, = ctx.saved_tensors
        d = torch.empty_like(gu)
        LIB.swiglu_bwd(ptr(gu), ptr(gy.contiguous()), ptr(d), gu.shape[0], gu.shape[1] // 2)
        return d


class Attn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, qkv, cs, sn, B, T, H, KV):
        out = torch.empty(B * T, H * 64, dtype=torch.bfloat16)
        lse = torch.empty(B, H, T)
        LIB.attn_fwd(ptr(qkv), ptr(out), ptr(lse), ptr(cs), ptr(sn), B, T, H, KV)
        ctx.save_for_backward(qkv, out, lse, cs, sn)
        ctx.dims = (B, T, H, KV)
        return out

    @staticmethod
    def backward(ctx, g):
        qkv, out, lse, cs, sn = ctx.saved_tensors
        B, T, H, KV = ctx.dims
        d = torch.empty_like(qkv)
        LIB.attn_bwd(ptr(qkv), ptr(out), ptr(g.contiguous()), ptr(lse), ptr(d), ptr(cs), ptr(sn), B, T, H, KV)
        return d, None, None, None, None, None, None


class CE(torch.autograd.Function):
    """sum_i wt_i * nll_i and the nll vector; the logits buffer is overwritten."""
    @staticmethod
    def forward(ctx, lg, tgt, wt):
        nll = torch.empty(lg.shape[0])
        LIB.ce(ptr(lg), ptr(tgt), ptr(wt), ptr(nll), lg.shape[0], lg.shape[1])
        ctx.save_for_backward(lg)
        ctx.mark_non_differentiable(nll)
        return (nll * wt).sum(), nll

    @staticmethod
    def backward(ctx, g, _):
        lg, = ctx.saved_tensors
        return (lg if float(g) == 1.0 else lg * g), None, None


class Divergence(torch.autograd.Function):
    """sum_i wt_i * KL(softmax(teacher_i) || softmax(logits_i)); [N,V] each, the teacher has no gradient."""
    @staticmethod
    def forward(ctx, logits, teacher, wt):
        p, q = torch.log_softmax(teacher.float(), -1), torch.log_softmax(logits.float(), -1)
        kl = (p.exp() * (p - q)).sum(-1)
        ctx.save_for_backward(((q.exp() - p.exp()) * wt[:, None]).to(logits.dtype))
        return (kl * wt).sum()

    @staticmethod
    def backward(ctx, g):
        return ctx.saved_tensors[0] * g, None, None


class Config:
    def __init__(self, vocab=2048, d=256, layers=6, heads=4, kv=2, hd=64, ff=704, theta=10000.0, eps=1e-5, ctx=2048):
        self.vocab, self.d, self.layers, self.heads, self.kv, self.hd = vocab, d, layers, heads, kv, hd
        self.ff, self.theta, self.eps, self.ctx = ff, theta, eps, ctx


def rope_tables(T, hd, theta):
    f = theta ** (-torch.arange(0, hd, 2, dtype=torch.float64) / hd)
    a = torch.arange(T, dtype=torch.float64)[:, None] * f[None]
    return a.cos().float(), a.sin().float()


def rope(x, cs, sn):
    """x [B,T,H,hd], interleaved pairs"""
    a, b = x[..., 0::2], x[..., 1::2]
    c, s = cs[None, :x.shape[1], None], sn[None, :x.shape[1], None]
    return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2)


class Llama(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.cache = None   # cache(layer, k, v) -> k, v: [N, KV * head_dim] each, keys before RoPE
        P = lambda o, i, s: nn.Parameter(torch.randn(o, i) * s)
        s, so = 0.02, 0.02 / math.sqrt(2 * c.layers)
        self.emb = P(c.vocab, c.d, s)
        self.n1 = nn.ParameterList([nn.Parameter(torch.ones(c.d)) for _ in range(c.layers)])
        self.n2 = nn.ParameterList([nn.Parameter(torch.ones(c.d)) for _ in range(c.layers)])
        self.wq = nn.ParameterList([P(c.heads * c.hd, c.d, 0.04) for _ in range(c.layers)])
        self.wk = nn.ParameterList([P(c.kv * c.hd, c.d, 0.04) for _ in range(c.layers)])
        self.wv = nn.ParameterList([P(c.kv * c.hd, c.d, 0.04) for _ in range(c.layers)])
        self.wo = nn.ParameterList([P(c.d, c.heads * c.hd, so) for _ in range(c.layers)])
        self.wg = nn.ParameterList([P(c.ff, c.d, 0.04) for _ in range(c.layers)])
        self.wu = nn.ParameterList([P(c.ff, c.d, 0.04) for _ in range(c.layers)])
        self.wd = nn.ParameterList([P(c.d, c.ff, so) for _ in range(c.layers)])
        self.nf = nn.Parameter(torch.ones(c.d))
        cs, sn = rope_tables(c.ctx, c.hd, c.theta)
        self.register_buffer("cs", cs, persistent=False)
        self.register_buffer("sn", sn, persistent=False)

    def hidden(self, ids, fast):
        c = self.c
        B, T = ids.shape
        x = F.embedding(ids.reshape(-1), self.emb)
        bf = torch.bfloat16
        o = None
        for l in range(c.layers):
            wqkv, wgu = torch.cat((self.wq[l], self.wk[l], self.wv[l])), torch.cat((self.wg[l], self.wu[l]))
            wo, wd = self.wo[l], self.wd[l]
            if fast:
                x, h = AddNorm.apply(x, o, self.n1[l], c.eps)
                a = Attn.apply(self.stored(l, linear(h, wqkv)), self.cs, self.sn, B, T, c.heads, c.kv)
                x, h = AddNorm.apply(x, linear(a, wo), self.n2[l], c.eps)
                o = linear(SwiGLU.apply(linear(h, wgu)), wd)
            else:
                x, h = self.addnorm(x, o, self.n1[l])
                q, k, v = self.stored(l, linear(h, wqkv)).view(B, T, -1, c.hd).split((c.heads, c.kv, c.kv), 2)
                q, k = rope(q.float(), self.cs, self.sn).to(bf), rope(k.float(), self.cs, self.sn).to(bf)
                r = c.heads // c.kv
                q, k, v = q.transpose(1, 2), k.repeat_interleave(r, 2).transpose(1, 2), v.repeat_interleave(r, 2).transpose(1, 2)
                if hasattr(F, "scaled_dot_product_attention"):
                    a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                else:
                    s = (q @ k.transpose(-1, -2)).float() / math.sqrt(c.hd)
                    s = s.masked_fill(torch.ones(T, T, dtype=torch.bool, device=s.device).triu(1), float("-inf"))
                    a = torch.softmax(s, -1).to(bf) @ v
                a = a.transpose(1, 2).reshape(B * T, -1)
                x, h = self.addnorm(x, linear(a, wo), self.n2[l])
                g, u = linear(h, wgu).chunk(2, -1)
                o = linear(F.silu(g) * u, wd)
        return AddNorm.apply(x, o, self.nf, c.eps)[1] if fast else self.addnorm(x, o, self.nf)[1]

    def stored(self, l, qkv):
        if self.cache is None:
            return qkv
        n = self.c.kv * self.c.hd
        q, k, v = qkv.split((self.c.heads * self.c.hd, n, n), 1)
        k, v = self.cache(l, k, v)
        return torch.cat((q, k.to(q.dtype), v.to(q.dtype)), 1)

    def addnorm(self, x, o, w):
        if o is not None:
            x = x + o.float()
        return x, (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.c.eps) * w).to(torch.bfloat16)

    def is_fast(self):
        return LIB is not None and self.emb.device.type == "cpu" and self.c.hd == 64

    def logits(self, ids):
        """[B*T,V] of ids [B,T]"""
        return linear(self.hidden(ids, self.is_fast()), self.emb)

    def loss(self, ids, tgt, wt):
        """ids, tgt [B,T] int64, wt [B,T] f32 -> (sum wt*nll, nll [B*T])"""
        fast, lg = self.is_fast(), self.logits(ids)
        if fast:
            return CE.apply(lg, tgt.reshape(-1).contiguous(), wt.reshape(-1).contiguous())
        nll = F.cross_entropy(lg.float(), tgt.reshape(-1), reduction="none")
        return (nll * wt.reshape(-1)).sum(), nll.detach()


def tensors(m):
    """{name in a GGUF file: array}"""
    own = lambda p: p.detach().numpy()
    t = {"token_embd.weight": own(m.emb), "output_norm.weight": own(m.nf)}
    for a, b in NAMES:
        t.update(("blk.%d.%s.weight" % (l, b), own(p)) for l, p in enumerate(getattr(m, a)))
    return t


def load(path):
    """The model of a GGUF file."""
    kv, t = gguf.read(path)
    g = lambda k: kv["llama." + k]
    c = Config(g("vocab_size"), g("embedding_length"), g("block_count"), g("attention.head_count"), g("attention.head_count_kv"),
               g("rope.dimension_count"), g("feed_forward_length"), g("rope.freq_base"), g("attention.layer_norm_rms_epsilon"), g("context_length"))
    m = Llama(c)
    f = lambda k: torch.from_numpy(t[k].astype(np.float32))
    sd = {"emb": f("token_embd.weight"), "nf": f("output_norm.weight")}
    for l in range(c.layers):
        for a, b in NAMES:
            sd["%s.%d" % (a, l)] = f("blk.%d.%s.weight" % (l, b))
    m.load_state_dict(sd)
    return m


NAMES = (("n1", "attn_norm"), ("n2", "ffn_norm"), ("wq", "attn_q"), ("wk", "attn_k"), ("wv", "attn_v"), ("wo", "attn_output"),
         ("wg", "ffn_gate"), ("wu", "ffn_up"), ("wd", "ffn_down"))
