"""Natural text windows and synthetic long-range tasks embedded in them, as the embedded model was trained on."""
# SPDX-License-Identifier: MIT
import hashlib, os
import numpy as np
import sentencepiece as spm

ON = "b br c cl d dr f fl g gr h j k kr l m n p pr r s sh st t th tr v w y z".split()
VO = "a a a e e e i i o o u ai ea ia ou".split()
CO = ["", "", "", "n", "r", "l", "s", "m", "t", "nd", "rk", "x", "ck", "w", "st", "ld"]
KINDS = ["secret code"] * 4 + ["access number", "ticket number", "account number", "magic number"]
SPLITS = {"eval": (0,), "holdout": (1,), "train": tuple(range(2, 10))}


class Gen:
    def __init__(self, data, split="train", seed=0):
        """split picks the text (train.bin, else one half of val.bin) and a disjoint set of names."""
        self.sp = spm.SentencePieceProcessor(model_file=os.path.join(data, "tok.model"))
        self.split, self.rng = split, np.random.default_rng(seed)
        self.tok = np.fromfile(os.path.join(data, "train.bin" if split == "train" else "val.bin"), dtype=np.uint16)
        if split != "train":                                # the two evaluation splits share no document
            docs = np.flatnonzero(self.tok == 1)
            mid = docs[len(docs) // 2]
            self.tok = self.tok[:mid] if split == "eval" else self.tok[mid:]
        V = self.sp.vocab_size()
        pc = [self.sp.id_to_piece(i) for i in range(V)]
        self.nl = self.sp.piece_to_id("<0x0A>")
        self.V = V
        ends = np.array([p[-1] in ".!?" for p in pc])
        starts = np.array([p.startswith("\u2581") and len(p) > 1 for p in pc])
        nxt = starts.copy()
        nxt[self.nl] = True
        t = self.tok
        self.bound = np.flatnonzero(ends[t[:-1]] & nxt[t[1:]]) + 1           # a sentence may be inserted before these
        self.begin = np.flatnonzero((ends[t[:-1]] | (t[:-1] == 1)) & starts[t[1:]]) + 1  # a window may begin here
        self.sub = np.array(SPLITS[split])
        self.dig = [self.sp.piece_to_id(str(i)) for i in range(10)]
        self.sps = self.sp.piece_to_id("\u2581")
        self.dot = self.sp.piece_to_id(".")
        assert self.sp.encode("The code is 48213.")[-7:] == [self.sps] + [self.dig[i] for i in (4, 8, 2, 1, 3)] + [self.dot]

    # ---- pieces -------------------------------------------------------------------------
    def mine(self, s):
        return int(hashlib.md5(s.encode()).hexdigest()[:8], 16) % 10 in self.sub

    def pick(self, a):
        return a[int(self.rng.integers(len(a)))]

    def name(self):
        while True:
            s = "".join(self.pick(ON) + self.pick(VO) + (self.pick(CO) if k else self.pick(("", "r", "l", "n", "m"))) for k in range(2 + int(self.rng.random() < 0.3)))
            if 4 <= len(s) <= 9 and self.mine(s):
                return s.capitalize()

    def var(self):
        while True:
            a = self.rng.integers(0, 26, 2)
            s = chr(65 + a[0]) + chr(65 + a[1]) + str(self.rng.integers(0, 10))
            if self.mine(s):
                return s

    def uniq(self, fn, n):
        out = []
        while len(out) < n:
            s = fn()
            if s not in out:
                out.append(s)
        return out

    def code(self):
        return "%05d" % self.rng.integers(10000, 100000)

    def text(self, n):
        """n tokens of running text that begin at a sentence start; also the insertable positions in it"""
        while True:
            b = int(self.begin[self.rng.integers(len(self.begin))])
            if b + n + 1 < len(self.tok):
                break
        w = self.tok[b:b + n].astype(np.int64)
        w[w == 1] = self.nl
        lo, hi = np.searchsorted(self.bound, (b + 1, b + n))
        return w, self.bound[lo:hi] - b

    def enc(self, s):
        return self.sp.encode(s)

    # every part is (ids, weights)
    def fact(self, kind, nm, code):
        h = self.enc("The %s of %s is" % (kind, nm))
        d = [self.sps] + [self.dig[int(c)] for c in code] + [self.dot]
        return h + d, [0.1] * len(h) + [0.1] + [0.0] * 5 + [0.3]

    def ask(self, kind, nm, code, aw):
        q = self.enc("Question: What is the %s of %s?" % (kind, nm))
        a = self.enc("Answer: The %s of %s is" % (kind, nm))
        d = [self.sps] + [self.dig[int(c)] for c in code] + [self.dot]
        return q + a + d, [0.1] * len(q) + [0.5] * len(a) + [0.5] + [aw] * 5 + [0.5], len(q) + len(a)

    def place(self, T, parts, tail, order=False):
        """Insert the parts at random sentence boundaries of a text, append tail; T+1 tokens in all with BOS."""
        used = sum(len(p[0]) for p in parts) + len(tail[0]) + 1
        n = T + 1 - used
        if n < 16:
            return None
        w, bd = self.text(n)
        if len(bd) == 0:
            bd = np.array([n])
        want = np.sort(self.rng.random(len(parts)) * n)
        at = [int(bd[np.argmin(np.abs(bd - x))]) for x in want]
        if not order:
            parts = [parts[i] for i in self.rng.permutation(len(parts))]
        ids, wt, p = [np.array([1])], [np.array([0.0])], 0
        for x, (i, v) in zip(at, parts):
            ids += [w[p:x], np.array(i)]
            wt += [np.ones(x - p), np.array(v)]
            p = x
        ids += [w[p:], np.array(tail[0])]
        wt += [np.ones(n - p), np.array(tail[1])]
        return np.concatenate(ids), np.concatenate(wt)

    # ---- tasks: each returns ids [T+1], weights [T+1] ---------------------------------------
    def plain(self, T):
        w, _ = self.text(T)
        return np.concatenate(([1], w)), np.concatenate(([0.0], np.ones(T)))

    def needles(self, T, nk, nq, aw=4.0, kind=None):
        kind = kind or self.pick(KINDS)
        names = self.uniq(self.name, nk)
        codes = [self.code() for _ in names]
        parts = [self.fact(kind, a, c) for a, c in zip(names, codes)]
        ti, tw, ans = [], [], None
        for k in self.rng.permutation(nk)[:nq]:
            i, v, at = self.ask(kind, names[k], codes[k], aw)
            ti, tw, ans = ti + i, tw + v, (len(i) - at, codes[k])
        r = self.place(T, parts, (ti, tw))
        return r and (r[0], r[1], ans)

    def vt(self, T, hops, chains=1, aw=4.0):
        vs = self.uniq(self.var, (hops + 1) * chains)
        parts, c0 = [], None
        sets = []
        for c in range(chains):
            v = vs[c * (hops + 1):(c + 1) * (hops + 1)]
            code = self.code()
            st = ["VAR %s = %s." % (v[0], code)] + ["VAR %s = %s." % (v[i], v[i - 1]) for i in range(1, hops + 1)]
            sets.append(st)
            if c == 0:
                c0 = (v, code)
        for st in zip(*sets):
            for j in self.rng.permutation(len(st)):
                i = self.enc(st[j])
                parts.append((i, [0.05] * len(i)))
        v, code = c0
        q = self.enc("Question: What is the value of VAR %s? Answer: VAR %s =" % (v[-1], v[-1]))
        a = " ".join("%s. VAR %s =" % (v[i], v[i]) for i in range(hops - 1, -1, -1)) + " " + code + "."
        ai = self.enc(a)
        r = self.place(T, parts, (q + ai, [0.1] * len(q) + [aw / 2] * len(ai)), order=True)
        return r and (r[0], r[1], (len(ai), a[:-1]))

    def repeat(self, T, rand):
        n = int(self.rng.integers(20, min(61, T // 5)))
        if rand:
            s = self.rng.integers(260, self.V, n).tolist()
            f, g = [0.0] * n, [1.0] * n
        else:
            s = self.text(n)[0].tolist()
            f, g = [1.0] * n, [2.0] * n
        g[0] = 0.0
        return self.place(T, [(s, f), (s, g)], ([], []), order=True)

    def sample(self, T, mix):
        u = self.rng.random()
        for name, p in mix:
            if u < p:
                break
            u -= p
        cap = max(1, (T - 60) // 55)                         # facts + questions that fit
        r = None
        if name == "needle":
            r = self.needles(T, 1, 1)
        elif name == "multi":
            nk = int(self.rng.integers(2, min(16, cap + 1) + 1))
            r = self.needles(T, nk, int(self.rng.integers(1, min(nk, 4, max(1, (T - 20 * nk - 30) // 45)) + 1)))
        elif name == "vt":
            r = self.vt(T, int(self.rng.integers(1, 4)), int(self.rng.integers(1, 3)))
        elif name == "repeat":
            r = self.repeat(T, False)
        elif name == "rrepeat":
            r = self.repeat(T, True)
        if r is None or len(r[0]) != T + 1:
            r = self.plain(T)
        return r[0], r[1]

    def batch(self, B, T, mix):
        x = [self.sample(T, mix) for _ in range(B)]
        ids = np.stack([a[0] for a in x]).astype(np.int64)
        wt = np.stack([a[1] for a in x]).astype(np.float32)
        return ids[:, :-1], ids[:, 1:], wt[:, 1:]
