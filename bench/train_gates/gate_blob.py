"""Writes weights of gates that decide what a cache keeps (include/kvtl/calibration/gate_weights.hpp says what is in a file)."""
# SPDX-License-Identifier: MIT
import os, struct
import numpy as np
import calibration
import gguf

ACTIVATIONS = {"identity": 0, "relu": 1, "silu": 2, "attention": 3}


def write(path, model_path, w1, b1, w2, b2, activation="silu"):
    """w1 (L, hidden, N), b1 (L, hidden), w2 (L, H, hidden), b2 (L, H). The file carries the model's fingerprint."""
    layers, hidden, inputs = w1.shape
    heads = w2.shape[1]
    assert b1.shape == (layers, hidden) and w2.shape == (layers, heads, hidden) and b2.shape == (layers, heads)
    put(path, model_path, heads, inputs, hidden, activation, (w1, b1, w2, b2))


def write_attention(path, model_path, wq, wk, wv, own, b):
    """wq, wk (L, H, width, N), wv, own (L, H, N), b (L, H)."""
    layers, heads, width, inputs = wq.shape
    assert wk.shape == wq.shape and wv.shape == own.shape == (layers, heads, inputs) and b.shape == (layers, heads)
    put(path, model_path, heads, inputs, width, "attention", (wq, wk, wv, own, b))


def put(path, model_path, heads, inputs, hidden, activation, parts):
    kv, _ = gguf.read(model_path)
    layers = len(parts[0])
    assert layers == kv["llama.block_count"] and heads == kv["llama.attention.head_count_kv"]
    head = struct.pack("<QQIIIIII", 0x314554414C54564B, calibration.fingerprint(model_path), 1, layers, heads, inputs, hidden,
                       ACTIVATIONS[activation])
    flat = np.concatenate([np.concatenate([p[l].ravel() for p in parts]) for l in range(layers)]).astype("<f4")
    assert np.isfinite(flat).all()
    with open(path + ".part", "wb") as f:
        f.write(head + flat.tobytes())
    os.replace(path + ".part", path)
