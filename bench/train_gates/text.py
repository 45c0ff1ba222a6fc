#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Turn the documentation inside unpacked Debian packages into clean English prose.

  text.py --root DIR --out DIR [--bible FILE]

DIR under --root is where the packages were unpacked (dpkg -x PKG.deb DIR).
--bible is the output of `bible -f gen1:1-rev22:21` (package bible-kjv).
Writes OUT/docs.jsonl ({"src": ..., "text": ...}, one document per line), already shuffled.
"""
import argparse, glob, gzip, hashlib, html, json, os, random, re, sys
from multiprocessing import Pool

BLOCK = re.compile(r"</?(?:p|div|li|ul|ol|dl|dt|dd|h[1-6]|tr|td|th|table|br|section|article|blockquote|title|body|hr)\b[^>]*>", re.I)
DROP = re.compile(r"<(script|style|pre|nav|header|footer|head|svg|math|select|form|code\s+class)\b.*?</\1\s*>", re.I | re.S)
TAG = re.compile(r"<[^>]+>")
SP = re.compile(r"[ \t\u00a0]+")
TRANS = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u2014": " - ",
                       "\u2026": "...", "\u00b6": "", "\u00a7": "", "\u2022": "", "\ufeff": "", "\u200b": "", "\u00ad": "",
                       "\u2192": "->", "\u00d7": "x", "\u00b4": "'", "`": "'"})


def read(path):
    op = gzip.open if path.endswith((".gz", ".dz")) else open
    with op(path, "rb") as f:
        return f.read().decode("utf-8", "replace")


def tidy(paras, min_len=50):
    """Keep paragraphs that look like prose; one paragraph per line."""
    out = []
    for p in paras:
        p = SP.sub(" ", p.replace("\n", " ").translate(TRANS)).strip()
        if len(p) < min_len or "\ufffd" in p:
            continue
        letters = sum(c.isalpha() or c == " " for c in p)
        plain = sum(c.isascii() for c in p)
        if letters < 0.86 * len(p) or plain < 0.985 * len(p):
            continue
        if p[-1] not in ".!?:;\"')":
            continue
        out.append(p)
    return out


def from_html(s):
    s = DROP.sub(" ", s)
    s = re.sub(r"<!--.*?-->", " ", s, flags=re.S)
    s = s.replace("\n", " ")
    s = BLOCK.sub("\n\n", s)
    s = html.unescape(TAG.sub("", s))
    return tidy(s.split("\n\n"))


def from_plain(s):
    return tidy(re.split(r"\n\s*\n", s))


def from_markdown(s):
    s = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", s)
    s = re.sub(r"[*_#>\\]+", "", s)
    return tidy(re.split(r"\n\s*\n", html.unescape(s)))


def from_roff(s):
    out, cur, skip = [], [], False
    for ln in s.split("\n"):
        if ln.startswith((".EX", ".nf", ".TS")):
            skip = True
        elif ln.startswith((".EE", ".fi", ".TE")):
            skip = False
            continue
        if skip:
            continue
        if ln.startswith((".\\\"", "'\\\"")):
            continue
        m = re.match(r"[.'](\w+)\s*(.*)", ln)
        if m:
            mac, rest = m.groups()
            if mac in ("B", "I", "BR", "RB", "IR", "RI", "BI", "IB", "SM", "SB"):
                parts = re.findall(r'"[^"]*"|\S+', rest)
                parts = [q.strip('"') for q in parts]
                ln = ("" if mac in ("BR", "RB", "IR", "RI", "BI", "IB") else " ").join(parts)
            else:
                out.append(" ".join(cur)); cur = []
                continue
        ln = re.sub(r"\\f[BIRP]|\\f\(..|\\&|\\c$|\\/|\\,|\\s[-+]?\d", "", ln)
        ln = ln.replace("\\-", "-").replace("\\e", "\\").replace("\\(aq", "'").replace("\\(lq", '"').replace("\\(rq", '"') \
               .replace("\\(em", " - ").replace("\\(en", "-").replace("\\ ", " ").replace("\\(dq", '"').replace("\\(oq", "'").replace("\\(cq", "'")
        ln = re.sub(r"\\\(..|\\\[[^\]]*\]|\\\*.|\\[|^~%:]", "", ln)
        if ln.strip():
            cur.append(ln)
        else:
            out.append(" ".join(cur)); cur = []
    out.append(" ".join(cur))
    return tidy(out)


def from_pod(s):
    s = re.sub(r"[BCFILSX]<<+\s(.*?)\s>>+", r"\1", s, flags=re.S)
    for _ in range(3):
        s = re.sub(r"[BCFISXZ]<([^<>]*)>", r"\1", s)
        s = re.sub(r"L<(?:([^<>|]*)\|)?([^<>]*)>", lambda m: m.group(1) or m.group(2), s)
    s = s.replace("E<gt>", ">").replace("E<lt>", "<")
    return tidy([p for p in re.split(r"\n\s*\n", s) if not p.startswith((" ", "\t", "="))])


def from_rst(s):
    paras = [p for p in re.split(r"\n\s*\n", s) if not p.startswith("..")]
    paras = [re.sub(r":\w+:`([^`<]*)[^`]*`", r"\1", p).replace("``", "").replace("*", "") for p in paras]
    return tidy(paras)


def from_vim(s):
    paras = re.split(r"\n\s*\n", re.sub(r"[|*](\S+?)[|*]", r"\1", s))
    return tidy(paras)


def from_dict(s):
    return tidy([re.sub(r"[{}]|\[1913 Webster\]|\[PJC\]|\[Webster 1913 Suppl.\]", "", p) for p in re.split(r"\n\s*\n", s)], 40)


def from_fortune(s):
    return tidy([p for p in re.split(r"\n%\n", s)], 40)


# name, globs, extractor, cap in characters (0 = all)
SOURCES = [
    ("anarchism", ["usr/share/doc/anarchism/html/*.html"], from_html, 0),
    ("debian-handbook", ["usr/share/doc/debian-handbook/html/en-US/*.html"], from_html, 0),
    ("debian-reference-en", ["usr/share/debian-reference/*.en.html"], from_html, 0),
    ("developers-reference", ["usr/share/developers-reference/*.html"], from_html, 0),
    ("debian-policy", ["usr/share/doc/debian-policy/policy.html/*.html"], from_html, 0),
    ("debian-faq", ["usr/share/doc/debian/FAQ/*.en.html"], from_html, 0),
    ("installation-guide-amd64", ["usr/share/doc/installation-guide-amd64/en/*.html"], from_html, 0),
    ("aptitude-doc-en", ["usr/share/doc/aptitude/html/en/*.html"], from_html, 0),
    ("apache2-doc", ["usr/share/doc/apache2-doc/manual/en/**/*.html"], from_html, 0),
    ("postgresql-doc-15", ["usr/share/doc/postgresql-doc-15/html/*.html"], from_html, 0),
    ("python3.11-doc", ["usr/share/doc/python3.11/html/**/*.html"], from_html, 0),
    ("rust-doc", ["usr/share/doc/rust-doc/html/%s/**/*.html" % d for d in
                  ("book", "nomicon", "reference", "rust-by-example", "embedded-book", "edition-guide", "rustc", "cargo", "rustdoc", "unstable-book")], from_html, 4_000_000),
    ("git-doc", ["usr/share/doc/git-doc/**/*.html"], from_html, 0),
    ("linux-doc-6.1", ["usr/share/doc/linux-doc-6.1/Documentation/**/*.rst.gz", "usr/share/doc/linux-doc-6.1/Documentation/**/*.rst"], from_rst, 9_000_000),
    ("perl-doc", ["usr/share/perl/5.36.0/pod/*.pod"], from_pod, 0),
    ("manpages", ["usr/share/man/man*/*.gz"], from_roff, 0),
    ("vim-doc", ["usr/share/doc/vim/html/*.html", "usr/share/vim/vim90/doc/*.txt"], from_vim, 2_000_000),
    ("gnome-user-docs", ["usr/share/help/C/**/*.page"], from_html, 0),
    ("libreoffice-help-en-us", ["usr/share/libreoffice/help/en-US/**/*.html"], from_html, 2_000_000),
    ("fortunes", ["usr/share/games/fortunes/*"], from_fortune, 0),
    ("dict-gcide", ["usr/share/dictd/gcide.dict.dz"], from_dict, 10_000_000),
    ("dict-foldoc", ["usr/share/dictd/foldoc.dict.dz"], from_dict, 0),
    ("dict-jargon", ["usr/share/dictd/jargon.dict.dz"], from_dict, 0),
    ("dict-devil", ["usr/share/dictd/devil.dict.dz"], from_dict, 0),
]


def job(a):
    name, path, i = a
    try:
        fn = SOURCES[i][2]
        return name, path, fn(read(path))
    except Exception as e:
        print("text.py: %s: %s" % (path, e), file=sys.stderr)
        return name, path, []


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--root", required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--bible")
    ap.add_argument("--doc-chars", type=int, default=20000)
    a = ap.parse_args()
    os.makedirs(a.out, exist_ok=True)
    jobs = []
    for i, (name, globs, _, _) in enumerate(SOURCES):
        for g in globs:
            for p in sorted(glob.glob(os.path.join(a.root, g), recursive=True)):
                if os.path.isfile(p) and not p.endswith((".dat", ".u8")) and not os.path.islink(p):
                    jobs.append((name, p, i))
    rng = random.Random(1)
    per = {}
    with Pool(2) as pool:
        for name, path, paras in pool.imap_unordered(job, jobs, chunksize=16):
            if paras:
                per.setdefault(name, []).append((path, paras))
    for name in [s[0] for s in SOURCES if s[0] not in per]:
        print("text.py: no text from %s below %s: the corpus is not the one that the model was trained on" % (name, a.root),
              file=sys.stderr)
    if a.bible:
        chapters, cur, key = [], [], None
        for ln in open(a.bible):
            m = re.match(r"(\S+?)(\d+):(\d+) (.*)", ln)
            if not m:
                continue
            k = (m.group(1), m.group(2))
            if k != key and cur:
                chapters.append(("bible%05d" % len(chapters), [" ".join(cur)])); cur = []
            key = k
            cur.append(m.group(4).strip())
        chapters.append(("bible%05d" % len(chapters), [" ".join(cur)]))
        per["bible-kjv-text"] = chapters
    seen, docs, stat = set(), [], {}
    for name in sorted(per):
        files = sorted(per[name]); rng.shuffle(files)
        cap = dict((s[0], s[3]) for s in SOURCES).get(name, 0)
        tot = 0
        for path, paras in files:
            kept = []
            for p in paras:
                h = hashlib.md5(p.encode()).digest()[:8]
                if h in seen:
                    continue
                seen.add(h); kept.append(p)
            cur, n = [], 0
            for p in kept + [None]:
                if p is None or n + len(p) > a.doc_chars:
                    if n >= 200 and not (cap and tot >= cap):
                        docs.append({"src": name, "text": "\n".join(cur)}); tot += n
                    cur, n = [], 0
                if p is not None:
                    cur.append(p); n += len(p) + 1
        stat[name] = (len(files), tot)
    rng.shuffle(docs)
    with open(os.path.join(a.out, "docs.jsonl"), "w") as f:
        for d in docs:
            f.write(json.dumps(d) + "\n")
    for k, v in stat.items():
        print("%-28s files %5d chars %9d" % (k, *v))
    print("docs", len(docs), "chars", sum(len(d["text"]) for d in docs))


if __name__ == "__main__":
    main()
