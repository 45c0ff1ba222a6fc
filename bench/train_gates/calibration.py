"""Writes trained bases as a calibration file (include/kvtl/calibration/format.hpp says what is in one)."""
# SPDX-License-Identifier: MIT
import os, struct
import numpy as np
import gguf

GATED_KEYS, GATED_VALUES, PREFIX_KEYS, PREFIX_VALUES = 9, 10, 11, 12
PIECE = 1 << 16


def page_checksum(data):
    """include/kvtl/simd/checksum.hpp: 64 lanes of 32 bits, folded in halves."""
    rotate = lambda h: (h << np.uint32(13)) | (h >> np.uint32(19))
    step = lambda h, word: (rotate(h) ^ word) * np.uint32(0x9E3779B1)
    words = np.frombuffer(data, dtype="<u4")
    h = np.uint32(0x85EBCA77) * np.arange(1, 65, dtype=np.uint32) + np.uint32(len(data) & 0xFFFFFFFF)
    whole = len(words) // 64 * 64
    for row in words[:whole].reshape(-1, 64):
        h = step(h, row)
    rest = words[whole:]
    h[:len(rest)] = step(h[:len(rest)], rest)
    while len(h) > 1:
        half = len(h) // 2
        h = step(h[:half], h[half:])
    return int(h[0] ^ (h[0] >> np.uint32(15)))


def section_checksum(data):
    total = 0
    for at in range(0, len(data), PIECE):
        total = ((total << 13) | (total >> 19)) & 0xFFFFFFFF ^ page_checksum(data[at:at + PIECE])
    return total


def fingerprint(path):
    """examples/engine/fingerprint.hpp: FNV-1a over the beginning of every layer's projections to queries and keys."""
    kv, tensors = gguf.read(path)
    h = 0xCBF29CE484222325
    for layer in range(kv["llama.block_count"]):
        for name in ("attn_q", "attn_k"):
            for byte in tensors["blk.%d.%s.weight" % (layer, name)].tobytes()[:1 << 16]:
                h = (h ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return h or 1


def write(path, model_path, sections):
    """sections: (kind, values, rank, keys before RoPE, rate) each."""
    kv, _ = gguf.read(model_path)
    heads = kv["llama.attention.head_count_kv"]
    shape = (kv["llama.block_count"], kv["llama.attention.head_count"], heads, kv["llama.attention.key_length"])
    lines, payload, at = b"", b"", 64 + 64 * len(sections)
    for kind, values, rank, pre_rope, rate in sections:
        data = np.ascontiguousarray(values, dtype="<f4").tobytes()
        data += bytes(-len(data) % 64)
        lines += struct.pack("<IIIIQQIf6I", kind, rank, int(pre_rope), section_checksum(data), at, len(data), 1, rate, *[0] * 6)
        payload += data
        at += len(data)
    head = lambda checksum: struct.pack("<8sII4IQQIIII", b"kvtl-cal", 1, len(sections), *shape, fingerprint(model_path), at, 0, 0, 0, checksum)
    whole = head(page_checksum(head(0) + lines)) + lines + payload
    with open(path + ".part", "wb") as f:
        f.write(whole)
    os.replace(path + ".part", path)


def write_gates(path, model_path, keys, values, rate):
    """keys, values: (layers, 3 n + 1, n): rows that project, rows that rebuild, rows of the gate, its bias."""
    n = keys.shape[2]
    write(path, model_path, [(GATED_KEYS, keys, n, True, rate), (GATED_VALUES, values, n, True, rate)])


def write_prefixes(path, model_path, keys, values):
    """keys, values: (layers, KV heads, D, D): row j is direction j."""
    d = keys.shape[3]
    write(path, model_path, [(PREFIX_KEYS, keys, d, False, 0.0), (PREFIX_VALUES, values, d, False, 0.0)])
