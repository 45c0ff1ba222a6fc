#!/usr/bin/env python3
"""Makes static pages of the documentation, the results and the comments of the public headers, with a search box.

  scripts/site/site.py OUT            writes the pages below OUT; OUT/index.html is the README
  scripts/site/site.py --check OUT    writes nothing; names every link and anchor below OUT that leads nowhere

The pages need no server and load nothing from elsewhere. cmark-gfm turns Markdown into HTML (Debian: cmark-gfm). A link
to a file of the tree that is no page leads to a page with its text. Exit status: 1 if a link leads nowhere, 2 for wrong
arguments or a missing program. SPDX-License-Identifier: MIT
"""
import argparse
import html
import html.parser
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse

HERE = pathlib.Path(__file__).resolve().parent
PAGES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/*.md", "examples/README.md", "examples/*/README.md", "packaging/README.md", "bench/*.md",
         "bench/results/*.md", "bench/results/*/*.md"]
# Folders of include/kvtl whose headers users include or derive from.
PUBLIC = ["", "presets", "slots", "policies", "io", "layout", "calibration", "calibration/fit", "save", "store"]
SHOWN_AS_THEY_ARE = {".svg", ".png"}
# The pages of the menu, in order; the others are reached by links and by search.
MENU = [
    ("Start", ["README.md", "docs/five_minutes.md", "docs/concepts.md", "docs/choose_a_preset.md", "docs/integrate.md", "docs/faq.md"]),
    ("Use", ["docs/settings.md", "docs/size_it.md", "docs/errors.md", "docs/save.md", "docs/prefix_store.md", "docs/server.md",
             "docs/own_attention.md", "docs/calibrate.md", "examples/README.md", "packaging/README.md"]),
    ("Policies", ["docs/policies.md", "docs/presets.md", "docs/write_a_policy.md"]),
    ("Results", ["bench/results/README.md", "bench/results/papers/dynakv.md", "bench/results/papers/kvswap.md",
                 "bench/results/papers/dynamickv.md", "bench/results/papers/token_adaptive_rank.md",
                 "bench/results/papers/abstracts.md", "docs/compare.md", "bench/DEAD_ENDS.md"]),
    ("More", ["docs/glossary.md", "CONTRIBUTING.md", "docs/style.md", "docs/release_notes_0.1.0.md", "CHANGELOG.md"]),
]
KEYWORDS = ("alignas auto bool break case char class concept const constexpr continue default delete do double else enum explicit "
            "extern false float for friend if inline int long mutable namespace new noexcept nullptr operator private protected public "
            "requires return short signed sizeof static struct switch template this true try typename union unsigned using virtual void while")
CODE = re.compile(r"(?P<c>//[^\n]*|/\*.*?\*/)|(?P<s>\"(?:\\.|[^\"\\\n])*\")|(?P<p>^#[a-z]+)|(?P<k>\b(?:" + KEYWORDS.replace(" ", "|") + r")\b)",
                  re.S | re.M)


class Wrong(Exception):
    """One sentence for the reader."""


def highlighted(code):
    parts, at = [], 0
    for m in CODE.finditer(code):
        parts += [html.escape(code[at:m.start()], False), f'<span class="{m.lastgroup}">{html.escape(m[0], False)}</span>']
        at = m.end()
    return "".join(parts) + html.escape(code[at:], False)


def slug(heading):
    """The anchor of a heading, as in the links of the pages."""
    return re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-")


def markdown(text):
    ran = subprocess.run(["cmark-gfm", "--unsafe", "-e", "table", "-e", "autolink", "-e", "strikethrough"], input=text,
                         capture_output=True, encoding="utf-8")
    if ran.returncode:
        raise Wrong(f"cmark-gfm failed with exit status {ran.returncode}: {ran.stderr.strip()}")
    return re.sub(r"<!--.*?-->", "", ran.stdout, flags=re.S)


def plain(fragment):
    text = re.sub(r"<[^>]+>", " ", re.sub(r"</?(?:a|b|code|em|span|strong)\b[^>]*>", "", fragment))
    return re.sub(r"\s+", " ", html.unescape(text)).strip()


class Site:
    def __init__(self, root, out):
        self.root, self.out = root, out
        self.pages = {}  # path in the tree: path in the site
        self.index = []  # [title, section, address, text] of every section
        self.waiting = []  # files that a link names, to be shown with their text
        for pattern in PAGES:
            for path in sorted(root.glob(pattern)):
                source = path.relative_to(root)
                name = "index" if source.stem == "README" else source.stem
                self.pages[source.as_posix()] = (source.parent / f"{name}.html").as_posix()

    # ------------------------------------------------------------------------------------------------- links
    def address(self, source, target):
        """Where a link of a page leads in the site, seen from the page; as it is if it leaves the site."""
        if re.match(r"[a-z]+:", target) or target.startswith("#"):
            return target
        path, hash_sign, anchor = urllib.parse.unquote(target).partition("#")
        named = os.path.normpath(os.path.join(os.path.dirname(source), path))
        place = self.root / named
        if place.is_dir() and (place / "README.md").exists():
            named = os.path.normpath(f"{named}/README.md")
        if named not in self.pages:
            if not (self.root / named).exists() or named.startswith(".."):
                return target  # --check names it
            to = named if pathlib.Path(named).suffix in SHOWN_AS_THEY_ARE else f"files/{named}.html"
            self.pages[named] = to
            self.waiting.append(named)
        return os.path.relpath(self.pages[named], os.path.dirname(self.pages[source]) or ".") + hash_sign + anchor

    def with_links(self, source, body):
        def changed(m):
            return f'{m[1]}="{html.escape(self.address(source, html.unescape(m[2])))}"'

        return re.sub(r'\b(href|src|srcset)="([^"]*)"', changed, body)

    # ------------------------------------------------------------------------------------------------- pages
    def menu(self, source):
        parts = []
        for name, entries in [*MENU, ("Reference", ["include/kvtl"])]:
            links = []
            for entry in entries:
                if entry not in self.pages:
                    continue
                here = ' aria-current="page"' if entry == source else ""
                to = os.path.relpath(self.pages[entry], os.path.dirname(self.pages[source]) or ".")
                links.append(f'<li><a href="{to}"{here}>{html.escape(self.titles[entry])}</a></li>')
            parts.append(f"<h2>{name}</h2><ul>{''.join(links)}</ul>")
        return "".join(parts)

    def write(self, source, title, body):
        to = self.out / self.pages[source]
        up = os.path.relpath(".", os.path.dirname(self.pages[source]) or ".")
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{html.escape(title)} - kvtl</title>
<link rel="stylesheet" href="{up}/style.css">
<script src="{up}/search.js" data-root="{up}" defer></script>
<header><a class="home" href="{up}/index.html">kvtl</a>
<input type="search" id="search" placeholder="Search" aria-label="Search" autocomplete="off"><div id="found" hidden></div></header>
<details class="menu"><summary>Pages</summary><nav>{self.menu(source)}</nav></details>
<main>
{body}
</main>
</html>
""", encoding="utf-8")

    def add_to_index(self, source, title, body):
        for part in re.split(r"(?=<h[1-4] id=)", body):
            heading = re.match(r'<h[1-4] id="([^"]*)">(.*?)</h', part, re.S)
            anchor, name = (heading[1], plain(heading[2])) if heading else ("", title)
            text = plain(re.sub(r"^<h[1-4].*?</h[1-4]>", "", part, flags=re.S))
            if heading or text:
                self.index.append([title, name, self.pages[source] + (f"#{anchor}" if anchor else ""), text])

    @staticmethod
    def framed(m):
        """A table that scrolls where the page is narrower; its columns stay wide if cells are sentences."""
        longest = max(len(plain(cell)) for cell in re.findall(r"<t[dh].*?</t[dh]>", m[0], re.S))
        return f'<div class="table{" sentences" if longest > 60 else ""}">{m[0]}</div>'

    def page(self, source):
        text = (self.root / source).read_text(encoding="utf-8")
        body, seen = markdown(text), {}

        def heading(m):
            anchor = slug(plain(m[2]))
            seen[anchor] = seen.get(anchor, -1) + 1
            anchor += f"-{seen[anchor]}" if seen[anchor] else ""
            return f'<h{m[1]} id="{anchor}">{m[2]} <a class="anchor" href="#{anchor}" aria-label="Link to this section">#</a></h{m[1]}>'

        body = re.sub(r"<h([1-4])>(.*?)</h\1>", heading, body, flags=re.S)
        body = re.sub(r'<pre><code class="language-cpp">(.*?)</code></pre>',
                      lambda m: f"<pre><code>{highlighted(html.unescape(m[1]))}</code></pre>", body, flags=re.S)
        body = re.sub(r"<table>.*?</table>", self.framed, body, flags=re.S)
        self.add_to_index(source, self.titles[source], re.sub(r' <a class="anchor".*?</a>', "", body))
        self.write(source, self.titles[source], self.with_links(source, body))

    def file(self, source):
        """A file that a link names: as it is, or a page with its text, or with what a folder holds."""
        path = self.root / source
        if path.suffix in SHOWN_AS_THEY_ARE:
            to = self.out / self.pages[source]
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, to)
            return
        if path.is_dir():
            entries = sorted(p.relative_to(self.root).as_posix() for p in path.iterdir() if not p.name.startswith((".", "__")))
            links = "".join(f'<li><a href="{html.escape(os.path.relpath(e, os.path.dirname(source) or "."))}">{html.escape(pathlib.Path(e).name)}</a></li>'
                            for e in entries)
            body = self.with_links(source, f"<ul>{links}</ul>")
        else:
            text = path.read_text(encoding="utf-8", errors="replace")
            code = highlighted(text) if path.suffix in (".hpp", ".cpp") else html.escape(text, False)
            body = f'<pre class="file"><code>{code}</code></pre>'
        self.write(source, source, f"<h1>{html.escape(source)}</h1>\n{body}")

    # --------------------------------------------------------------------------------------------- reference
    def comment(self, lines):
        """The HTML of a comment. An indented block that is no list is a table or a picture: it keeps its lines. Paragraphs
        that hang from a word and a colon ("Cost:  ...") begin with it."""
        made, hangs, listed, fresh = [], 0, False, True
        for line in lines:
            label = re.match(r"([A-Z][A-Za-z]+): +(?=\S)", line)
            if label and not line[len(label[0]) - 1:].startswith("  ") and not (fresh or hangs):
                label = None  # a sentence that goes on
            if label:
                hangs = len(label[0])
                made += ["", f"**{label[1]}:** {self.as_text(line[hangs:])}"]
                listed = fresh = False
                continue
            if hangs and line.strip() and not line.startswith(" " * hangs):
                hangs = 0
                made.append("")
            line = line[hangs:]
            indented, item = line.startswith("  "), re.match(r" *([-*]|\d+\.) ", line)
            if not line.strip():
                made.append("")
                hangs = 0 if not line.strip() else hangs
                listed, fresh = False, True
            elif indented and not item and not listed and (fresh or made[-1].startswith("    ")):
                made.append("    " + line)
                fresh = False
            else:
                if listed and not indented and not item:
                    made.append("")
                listed = bool(item) or (listed and indented)
                made.append(self.as_text(line))
                fresh = False
        return markdown("\n".join(made))

    @staticmethod
    def as_text(line):
        """Without tags, outside of `code`."""
        return "`".join(part if at % 2 else part.replace("<", "&lt;") for at, part in enumerate(line.split("`")))

    def header(self, source):
        lines = (self.root / source).read_text(encoding="utf-8").splitlines()
        opening = []
        while lines and lines[0].startswith("//"):
            opening.append(re.sub(r"^// ?", "", lines.pop(0)))
        opening = [line for line in opening if not line.startswith("SPDX")]
        parts, note, hidden = [self.comment(opening)], [], False
        at = 0
        while at < len(lines):
            line = lines[at]
            if re.match(r"namespace detail\b", line):
                hidden = True
            elif hidden and re.match(r"\} // namespace detail", line):
                hidden = False
            doc = re.match(r"\s*/// ?(.*)", line)
            if doc and not hidden:
                note.append(doc[1])
            elif note:
                declared = []
                depth = len(line) - len(line.lstrip())
                while at < len(lines) and len(declared) < 12:
                    declared.append(lines[at][depth:] if not lines[at][:depth].strip() else lines[at].strip())
                    if re.search(r"[;{}]\s*(//.*)?$", lines[at]) or not lines[at].strip():
                        break
                    at += 1
                parts.append(f"<pre><code>{highlighted(chr(10).join(declared).rstrip())}</code></pre>\n{self.comment(note)}")
                note = []
            at += 1
        include = source.removeprefix("include/")
        body = f'<h1 id="top">{html.escape(include)}</h1>\n' + "\n".join(parts)
        self.add_to_index(source, include, body)
        self.write(source, include, body)
        return plain(parts[0])

    def reference(self):
        body = ["<h1>Headers</h1>", "<p>The comments of the headers that users include, folder by folder. The files below <code>core/</code>, "
                "<code>simd/</code> and <code>policies/support/</code> are the inside of the library.</p>"]
        for folder in PUBLIC:
            headers = [h for h in self.headers if os.path.dirname(h) == os.path.normpath(f"include/kvtl/{folder}")]
            if not headers:
                continue
            rows = []
            for h in headers:
                text = self.header(h)
                first = re.match(r".*?[.:](?= |$)", text)
                to = os.path.relpath(self.pages[h], os.path.dirname(self.pages["include/kvtl"]))
                rows.append(f'<tr><td><a href="{to}">{os.path.basename(h)}</a></td><td>{html.escape(first[0] if first else text)}</td></tr>')
            body.append(f'<h2 id="{slug(folder) or "kvtl"}">kvtl/{folder}</h2><div class="table"><table>{"".join(rows)}</table></div>')
        self.write("include/kvtl", "Headers", "\n".join(body))

    # --------------------------------------------------------------------------------------------------- all
    def make(self):
        self.titles = {"include/kvtl": "Headers"}
        for source in self.pages:
            title = re.search(r"^# (.*)", (self.root / source).read_text(encoding="utf-8"), re.M)
            self.titles[source] = plain(html.escape(title[1].replace("`", ""))) if title else source
        self.headers = [h.relative_to(self.root).as_posix() for folder in PUBLIC
                        for h in sorted((self.root / "include/kvtl" / folder).glob("*.hpp"))]
        for h in self.headers:
            self.pages[h] = "reference/" + h.removeprefix("include/") + ".html"
        pages = [p for p in self.pages if p.endswith(".md")]
        self.pages["include/kvtl"] = "reference/index.html"
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / "search_index.js").touch()  # marks a folder of pages, also if this run is interrupted
        for source in pages:
            self.page(source)
        self.reference()
        while self.waiting:
            self.file(self.waiting.pop())
        for name in ("style.css", "search.js"):
            shutil.copyfile(HERE / name, self.out / name)
        (self.out / "search_index.js").write_text("window.searchIndex = " + json.dumps(self.index, ensure_ascii=False, separators=(",", ":")) + ";\n",
                                                  encoding="utf-8")
        return len(list(self.out.rglob("*.html")))


# ------------------------------------------------------------------------------------------------------------- check
class Links(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.ids, self.links = set(), []

    def handle_starttag(self, tag, attrs):
        for key, value in attrs:
            if key == "id":
                self.ids.add(value)
            elif key in ("href", "src", "srcset"):
                self.links.append(value)


def check(out):
    """What leads nowhere: a list of sentences."""
    read = {}
    for path in out.rglob("*.html"):
        read[path.resolve()] = Links()
        read[path.resolve()].feed(path.read_text(encoding="utf-8"))
    if not read:
        raise Wrong(f"{out}: no page; run scripts/site/site.py {out} first")
    index = out / "search_index.js"
    if not index.is_file() or not index.stat().st_size:
        raise Wrong(f"{out}: no search_index.js, or an empty one; run scripts/site/site.py {out} first")
    wrong = []

    def look(name, base, link):
        path, _, anchor = link.partition("#")
        target = (base.parent / path).resolve() if path else base
        if re.match(r"[a-z]+:", link):
            return
        if not target.is_file():
            wrong.append(f"{name}: links to {link}, which is not there")
        elif anchor and anchor not in read.get(target, Links()).ids:
            wrong.append(f"{name}: links to {link}, but the page has no such anchor")

    for path, links in sorted(read.items()):
        for link in links.links:
            look(path.relative_to(out.resolve()), path, link)
    for _, _, address, _ in json.loads(index.read_text(encoding="utf-8").removeprefix("window.searchIndex = ").rstrip(";\n")):
        look("search_index.js", out.resolve() / "search_index.js", address)
    return wrong, len(read)


def main():
    parser = argparse.ArgumentParser(description="Makes static pages of the documentation, with a search box.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if a link of the pages leads nowhere")
    parser.add_argument("--root", type=pathlib.Path, default=HERE.parent.parent, help="of the tree")
    parser.add_argument("out", type=pathlib.Path, metavar="OUT", help="folder of the pages; what it holds is replaced")
    parser.error = lambda message: (print(f"site.py: {message}", file=sys.stderr), sys.exit(2))
    args = parser.parse_args()
    if args.out.exists() and not args.out.is_dir():
        raise Wrong(f"{args.out} is no folder; valid: a folder for the pages")
    if args.check:
        wrong, pages = check(args.out)
        for sentence in wrong:
            print(sentence, file=sys.stderr)
        if not wrong:
            print(f"{pages} pages: every link leads somewhere")
        return 1 if wrong else 0
    if not shutil.which("cmark-gfm"):
        raise Wrong("cmark-gfm is missing, which turns Markdown into HTML; install it (Debian and Ubuntu: apt-get install cmark-gfm)")
    if args.out.exists() and any(args.out.iterdir()) and not (args.out / "search_index.js").exists():
        raise Wrong(f"{args.out} is no folder of pages; valid: an empty folder, or one that this program has written")
    print(f"{Site(args.root.resolve(), args.out).make()} pages; open {args.out / 'index.html'}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Wrong as wrong_text:
        print(f"site.py: {wrong_text}", file=sys.stderr)
        sys.exit(2)
