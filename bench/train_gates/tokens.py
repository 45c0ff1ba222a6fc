#!/usr/bin/env python3
"""Encode a corpus with the tokenizer that a GGUF file carries.

  tokens.py --gguf MODEL --data DIR [--without FILE...]

Reads DIR/docs.jsonl (text.py writes it); writes DIR/tok.model, and DIR/train.bin and DIR/val.bin (uint16 ids, every
document preceded by BOS). One per cent of the documents, picked by their content, is val.bin. A document that shares a
paragraph with a FILE is left out of both: name the texts that the model is judged by.
"""
# SPDX-License-Identifier: MIT
import argparse, hashlib, json, os
from multiprocessing import Pool
import numpy as np
import sentencepiece as spm
from sentencepiece import sentencepiece_model_pb2 as pb
import gguf

SP = None


def tokenizer(path):
    """The bytes of the SentencePiece model that the metadata describe."""
    kv, _ = gguf.read(path)
    m = pb.ModelProto()
    for piece, score, kind in zip(kv["tokenizer.ggml.tokens"], kv["tokenizer.ggml.scores"], kv["tokenizer.ggml.token_type"]):
        m.pieces.add(piece=piece, score=score, type=kind)
    t = m.trainer_spec
    t.model_type, t.vocab_size, t.byte_fallback = t.BPE, len(m.pieces), True
    t.unk_id, t.bos_id, t.eos_id, t.pad_id = 0, kv["tokenizer.ggml.bos_token_id"], kv["tokenizer.ggml.eos_token_id"], -1
    n = m.normalizer_spec
    n.name, n.add_dummy_prefix, n.remove_extra_whitespaces, n.escape_whitespaces = "identity", True, False, True
    return m.SerializeToString()


def init(path):
    global SP
    SP = spm.SentencePieceProcessor(model_file=path)


def enc(t):
    return np.array([1] + SP.encode(t), dtype=np.uint16)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--gguf", required=True)
    ap.add_argument("--data", required=True)
    ap.add_argument("--without", nargs="*", default=[])
    a = ap.parse_args()
    mp = os.path.join(a.data, "tok.model")
    open(mp, "wb").write(tokenizer(a.gguf))
    judged = {p for f in a.without for p in open(f).read().split("\n") if len(p) >= 50}
    docs = [json.loads(l)["text"] for l in open(os.path.join(a.data, "docs.jsonl"))]
    kept = [d for d in docs if not judged.intersection(d.split("\n"))]
    print(len(docs), "documents,", len(docs) - len(kept), "left out")
    held = [int(hashlib.md5(d.encode()).hexdigest()[:8], 16) % 100 == 0 for d in kept]
    with Pool(2, init, (mp,)) as pool:
        for name, want in (("val", True), ("train", False)):
            some = [d for d, h in zip(kept, held) if h == want]
            ids = np.concatenate(pool.map(enc, some, chunksize=64))
            ids.tofile(os.path.join(a.data, name + ".bin"))
            print(name, len(some), "documents,", len(ids), "tokens")


if __name__ == "__main__":
    main()
