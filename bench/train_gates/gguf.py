"""A small reader and writer of GGUF v3 (numpy only)."""
# SPDX-License-Identifier: MIT
import struct
import numpy as np

U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)
FMT = {U8: "<B", I8: "<b", U16: "<H", I16: "<h", U32: "<I", I32: "<i", F32: "<f", BOOL: "<?", U64: "<Q", I64: "<q", F64: "<d"}
ALIGN = 32


def _str(s):
    b = s.encode() if isinstance(s, str) else s
    return struct.pack("<Q", len(b)) + b


def _val(t, v):
    if t == STR:
        return _str(v)
    if t == ARR:
        et, xs = v
        return struct.pack("<IQ", et, len(xs)) + b"".join(_val(et, x) for x in xs)
    return struct.pack(FMT[t], v)


def write(path, kv, tensors):
    """kv: [(key, type, value)]; tensors: [(name, array)] with float16 or float32 arrays in row-major [rows, cols]"""
    head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(kv))]
    for k, t, v in kv:
        head.append(_str(k) + struct.pack("<I", t) + _val(t, v))
    off = 0
    for name, a in tensors:
        dims = a.shape[::-1]
        head.append(_str(name) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d) for d in dims)
                    + struct.pack("<IQ", {np.dtype("f4"): 0, np.dtype("f2"): 1}[a.dtype], off))
        off += (a.nbytes + ALIGN - 1) // ALIGN * ALIGN
    h = b"".join(head)
    with open(path, "wb") as f:
        f.write(h + b"\0" * (-len(h) % ALIGN))
        for _, a in tensors:
            b = np.ascontiguousarray(a).tobytes()
            f.write(b + b"\0" * (-len(b) % ALIGN))


def _parse(d):
    """-> ([(key, type, value)] as write() takes them, [(name, dims, type, byte offset)])"""
    p = 0

    def num(f):
        nonlocal p
        v = struct.unpack_from(f, d, p)[0]
        p += struct.calcsize(f)
        return v

    def string():
        nonlocal p
        n = num("<Q")
        s = d[p:p + n]
        p += n
        return s.decode()

    def val(t):
        if t == STR:
            return string()
        if t == ARR:
            et, n = num("<I"), num("<Q")
            return et, [val(et) for _ in range(n)]
        return num(FMT[t])

    assert d[:4] == b"GGUF"
    p = 4
    assert num("<I") == 3
    nt, nk = num("<Q"), num("<Q")
    kv = []
    for _ in range(nk):
        k, t = string(), num("<I")
        kv.append((k, t, val(t)))
    info = []
    for _ in range(nt):
        name, nd = string(), num("<I")
        dims = [num("<Q") for _ in range(nd)]
        info.append((name, dims, num("<I"), num("<Q")))
    base = (p + ALIGN - 1) // ALIGN * ALIGN
    return kv, [(name, dims, t, base + off) for name, dims, t, off in info]


TYPES = {0: "<f4", 1: "<f2"}


def read(path):
    """-> (metadata dict, {name: array})"""
    d = open(path, "rb").read()
    kv, info = _parse(d)
    return ({k: v[1] if t == ARR else v for k, t, v in kv},
            {name: np.frombuffer(d, TYPES[t], int(np.prod(dims)), at).reshape(dims[::-1]) for name, dims, t, at in info})


def with_tensors(path, source, tensors, values={}):
    """Writes the file `source` once more with other numbers: {name: array} of all its tensors, in their shapes; and with
    other values of some of its keys: {key: value}."""
    kv, info = _parse(open(source, "rb").read())
    data = []
    for name, dims, t, _ in info:
        assert tensors[name].shape == tuple(dims[::-1]), name
        data.append((name, np.ascontiguousarray(tensors[name], np.dtype(TYPES[t]))))
    assert set(values) <= {k for k, _, _ in kv}
    write(path, [(k, t, values.get(k, v)) for k, t, v in kv], data)
