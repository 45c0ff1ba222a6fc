"""Writes weights of gates that decide what a cache keeps (include/kvtl/calibration/gate_weights.hpp says what is in a file)."""
# SPDX-License-Identifier: MIT
import os, struct
import numpy as np
import calibration
import gguf

ACTIVATIONS = {"identity": 0, "relu": 1, "silu": 2}


def write(path, model_path, w1, b1, w2, b2, activation="silu"):
    """w1 (L, hidden, N), b1 (L, hidden), w2 (L, H, hidden), b2 (L, H). The file carries the model's fingerprint."""
    kv, _ = gguf.read(model_path)
    layers, hidden, inputs = w1.shape
    heads = kv["llama.attention.head_count_kv"]
    assert layers == kv["llama.block_count"] and b1.shape == (layers, hidden)
    assert w2.shape == (layers, heads, hidden) and b2.shape == (layers, heads)
    head = struct.pack("<QQIIIIII", 0x314554414C54564B, calibration.fingerprint(model_path), 1, layers, heads, inputs, hidden,
                       ACTIVATIONS[activation])
    flat = np.concatenate([np.concatenate([p[l].ravel() for p in (w1, b1, w2, b2)]) for l in range(layers)]).astype("<f4")
    assert np.isfinite(flat).all()
    with open(path + ".part", "wb") as f:
        f.write(head + flat.tobytes())
    os.replace(path + ".part", path)
