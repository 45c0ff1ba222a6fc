"""Training windows and examples of 2,048 to 16,384 tokens: the tasks of bench/train_gates/tasks.py with more facts and questions."""
# SPDX-License-Identifier: MIT
import numpy as np
from tasks import Gen

MIX = [("plain", .40), ("rrepeat", .02), ("repeat", .06), ("needle", .08), ("multi", .28), ("vt", .16)]


def digit_weight(T):
    """An answer weighs as much beside the text of its window at 8,192 tokens as at 2,048; beyond, more questions do it."""
    return min(16.0, 4.0 * T / 2048)


class LongGen(Gen):
    def sample(self, T, mix):
        u = self.rng.random()
        for name, p in mix:
            if u < p:
                break
            u -= p
        r, aw = None, digit_weight(T)
        if name == "needle":
            r = self.needles(T, 1, 1, aw)
        elif name == "multi":
            nk = int(self.rng.integers(2, 33))
            r = self.needles(T, nk, int(self.rng.integers(1, min(nk, 4 if T < 4096 else 8) + 1)), aw)
        elif name == "vt":
            r = self.vt(T, int(self.rng.integers(1, 4)), int(self.rng.integers(1, 5)), aw)
        elif name in ("repeat", "rrepeat"):
            r = self.repeat(T, name == "rrepeat")
        if r is None or len(r[0]) != T + 1:
            r = self.plain(T)
        return r[0], r[1]

    def batch(self, B, T, mix=MIX):
        """ids [B,T+1] int16, weights of the loss [B,T] float16"""
        x = [self.sample(T, mix) for _ in range(B)]
        return np.stack([a[0] for a in x]).astype(np.int16), np.stack([a[1] for a in x])[:, 1:].astype(np.float16)

    def question(self, task, T):
        """BOS + prompt + answer, T - 2 tokens, int64; and the number of answer tokens"""
        n = T - 2
        if task == "vt":
            r = self.vt(n, 2, 1)
        else:
            r = self.needles(n, 1 if task == "needle" else int(task[8:]), 1, kind="secret code")
        return r[0][:-1], r[2][0] - 1                          # without the final full stop
