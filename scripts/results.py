#!/usr/bin/env python3
"""Writes the tables, plots and figures of the results from the rows in bench/results/data.

  scripts/results.py            writes every block, plot and marked figure anew
  scripts/results.py --check    writes nothing; names what differs from the data and what has no source, exit status 1 if anything does
  scripts/results.py --root DIR of another tree

bench/results/data/*.json are arrays of rows with the keys that the programs print, and with "commit", "machine" and
"command". They are the only source of numbers. A page has blocks and figures, in comments that Markdown does not show:

  <!-- block: NAME -->...<!-- end -->       a table or a plot of the list BLOCKS below
  <!-- data: NAME -->0.92<!-- end -->       a figure of the list FIGURES below

Other figures of README and docs are quotations. Each must stand in a page of results that its section links, or in the
page's own program, which the tests run. A page lists those of other projects, versions and settings in

  <!-- no measurement of kvtl: 0.1, 23.2 -->

Figures are numbers with a fraction, and those in front of %, ms, s, times or tokens/s.

A preset, a model or a task is added by appending rows (`kvtl-eval --leaderboard bench/results/data/leaderboard.json`).
Of rows that measure the same, the last one without an error counts. SPDX-License-Identifier: MIT
"""
import argparse
import html
import json
import math
import pathlib
import re
import sys

PAGES = ["README.md", "docs/*.md", "bench/results/*.md", "bench/results/log/*.md", "bench/results/papers/*.md"]
BLOCK = re.compile(r"(<!-- block: ([a-z0-9_ .-]+) -->\n)(.*?)(<!-- end -->)", re.S)
FIGURE = re.compile(r"(<!-- data: ([A-Za-z0-9_ .-]+) -->)([^<\n]*)(<!-- end -->)")
OPENING = re.compile(r"<!-- (?:block|data): ")
MIB = 1 << 20


class Wrong(Exception):
    """One sentence for the reader."""


# ------------------------------------------------------------------------------------------------------------- data
def load(root):
    data = {}
    for path in sorted((root / "bench/results/data").glob("*.json")):
        try:
            data[path.stem] = json.loads(path.read_text())
        except ValueError as error:
            raise Wrong(f"{path}: {error}") from None
        for row in data[path.stem]:
            measured = "kernel" if path.stem == "kernels" else "policy"
            needed = ["log"] if path.stem == "claims" else [measured, "commit", "machine", "command"]
            for key in needed:
                if not row.get(key):
                    raise Wrong(f"{path}: a row without '{key}'; valid: every row has {', '.join(needed)}")
    return data


def kind_of(task):
    """needle, facts, chain or text, whatever the length, the count and the seed."""
    name = task.split(":")[0]
    return {"nll": "text"}.get(name, name)


def line_of(row):
    return row["policy"] + (f", {row['variant']}" if row.get("variant") else "")


def boards(data):
    """{(model, attended): {preset: {kind: row}}}, full where nothing is attended less is in every board."""
    found = {}
    for row in data.get("leaderboard", []):
        if row.get("error"):
            continue
        board = found.setdefault((row["model"], row["attend_tokens"]), {})
        board.setdefault(line_of(row), {})[kind_of(row["task"])] = row
    return found


KINDS = ["needle", "facts", "chain"]


def mean_accuracy(tasks):
    shares = [tasks[k]["accuracy"] for k in KINDS if k in tasks]
    return sum(shares) / len(shares) if shares else None


def costs(tasks):
    """Peak MiB, KiB stored per token and layer-head entry, KiB read per token, ms per token: means over the questions."""
    rows = [tasks[k] for k in KINDS if k in tasks]
    if not rows:
        return None
    steps = sum(r["decoded_tokens"] for r in rows)
    return {
        "mib": max(r["resident_bytes_peak"] for r in rows) / MIB,
        "entry": sum(r["bytes_per_entry"] or 0 for r in rows) / len(rows),
        "read": sum(r["read_bytes_per_token"] * r["decoded_tokens"] for r in rows) / steps / 1024,
        "ms": 1000 * sum(r["decoded_tokens"] / r["tokens_per_s"] for r in rows) / steps,
    }


def ranked(board):
    def order(item):
        text = item[1].get("text")
        return (-(mean_accuracy(item[1]) or 0), text["kl"] if text else 9, item[0])

    return sorted(board.items(), key=order)


# ----------------------------------------------------------------------------------------------------------- tables
def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    return "\n".join(lines + ["| " + " | ".join(r) + " |" for r in rows]) + "\n"


def share(row):
    return "-" if row is None else f"{row['accuracy']:.2f}"


def leaderboard(data):
    text = []
    for (model, attended), board in sorted(boards(data).items()):
        rows = []
        for preset, tasks in ranked(board):
            of_text, cost = tasks.get("text"), costs(tasks)
            rows.append(
                [f"`{preset}`"]
                + [share(tasks.get(k)) for k in KINDS]
                + ([f"{of_text['kl']:.4f}", f"{of_text['top1_agreement']:.3f}"] if of_text else ["-", "-"])
                + ([f"{cost['mib']:.2f}", f"{cost['entry']:.0f}", f"{cost['read']:.0f}", f"{cost['ms']:.2f}"] if cost else ["-"] * 4)
            )
        text.append(f"**{model}, {attended} tokens attended**\n\n" + table(
            ["preset", "needle", "one of 8 facts", "chain", "KL, text", "top-1, text", "MiB", "bytes/entry", "KiB read/token", "ms/token"], rows))
        text.append(f"![accuracy](plots/{plot_name('accuracy', model, attended)})\n"
                    f"![cost](plots/{plot_name('cost', model, attended)})\n")
    return "\n".join(text) or "There are no rows yet.\n"


def runs(data, name):
    """Which commands printed the rows of a file."""
    seen = {}
    for row in data.get(name, []):
        key = (row["commit"], row["machine"], row["command"])
        seen.setdefault(key, 0)
        seen[key] += 1
    return table(["rows", "commit", "machine", "command"],
                 [[str(n), c, m, "`" + command.replace("|", "\\|") + "`"] for (c, m, command), n in seen.items()])


def budgets(data):
    rows, order = {}, []
    for r in data["retrieval"]:
        name = line_of(r)
        if name not in rows:
            order.append(name)
        rows.setdefault(name, {})[(kind_of(r["task"]), r["task"], r["attend_tokens"])] = r
    columns = sorted({k for r in rows.values() for k in r}, key=lambda k: (["needle_2048", "multikey8_1024", "vt_1024"].index(
        re.sub(r"^needle:|\.jsonl$", "", k[1])), k[2]))
    head = ["preset"] + [f"{re.sub('^needle:|_[0-9]+.jsonl$', '', t)}, {n}" for _, t, n in columns]
    return table(head, [[f"`{name}`"] + [f"{rows[name][c]['accuracy']:.2f}" for c in columns] for name in order])


def precision(data, which):
    """Bits per number against what they cost, of whole caches, of caches that choose, or of what a prompt leaves."""
    by = {}
    for r in data["precision"]:
        if r.get("measure"):
            continue
        of = "kept" if r["keep_tokens"] else "whole" if r["attend_tokens"] >= 2048 or r["policy"] == "full" else "chosen"
        if of == which:
            name = f"`{r['policy']}`" + (f", {r['keep_tokens']} kept" if of == "kept" else "") + (f", {r['variant']}" if r.get("variant") else "")
            by.setdefault(name, {})[kind_of(r["task"])] = r
    return table(["preset", "bytes/entry", "KL, text", "top-1, text", "perplexity ratio", "KL, needle", "needle"],
                 [[p, f"{t['text']['bytes_per_entry']:.0f}", f"{t['text']['kl']:.5f}", f"{t['text']['top1_agreement']:.3f}",
                   f"{math.exp(t['text']['nll'] - t['text']['nll_full']):.4f}", f"{t['needle']['kl']:.5f}", share(t["needle"])] for p, t in by.items()])


def products(data):
    """Exact and relaxed products of attention: what both lose against the full model."""
    by = {}
    for r in data["precision"]:
        if r.get("measure") == "products":
            by.setdefault((r["policy"], r["config"]["cache.precision"]), {})[r["task"].split(":")[1].split(",")[0]] = r
    return table(["preset", "products"] + [f"KL, {w}" for w in TEXTS.values()] + [f"top-1, {w}" for w in TEXTS.values()] + ["KL, needle", "needle"],
                 [[f"`{p}`", precision] + [f"{t[k]['kl']:.6f}" for k in TEXTS] + [f"{t[k]['top1_agreement']:.4f}" for k in TEXTS]
                  + ([f"{t['gen']['kl']:.6f}", share(t["gen"])] if "gen" in t else ["-", "-"]) for (p, precision), t in by.items()])


def bits_of_llama(data):
    """llama.cpp with cells of fewer bits, against its own of f16."""
    return table(["llama.cpp's cells", "bytes/entry", "KL, text", "top-1, text", "perplexity ratio", "largest KL of a token"],
                 [[f"`{r['config']['cells']}`" + (", rotated" if r["config"]["rotated"] == "true" else ""), f"{r['bytes_per_entry']:.0f}", f"{r['kl']:.5f}",
                   f"{r['top1_agreement']:.3f}", f"{r['perplexity_ratio']:.4f}", f"{r['kl_max']:.3f}"]
                  for r in data["precision"] if r.get("measure") == "llama.cpp"])


def answers_by_bits(data):
    """Questions by the bits of a whole cache, kvtl's and llama.cpp's: shares with their intervals."""
    by = {}
    for r in data["precision"]:
        if r.get("measure") == "answers":
            cells = r["config"].get("cells")
            name = f"llama.cpp's `{cells}`" + (", rotated" if r["config"]["rotated"] == "true" else "") if cells else f"`{r['policy']}`"
            if r.get("variant"):
                name += f", {r['variant']}"
            by.setdefault(name, {})[kind_of(r["task"])] = r
    cells = lambda r: [f"{round(r['accuracy'] * r['examples'])} of {r['examples']}", interval(r), f"{r['kl']:.5f}"]
    return table(["cache", "bytes/entry"] + [h for k in ("needles", "facts", "chains") for h in (k, "interval", f"KL, {k}")],
                 [[name, f"{t['needle']['bytes_per_entry']:.0f}"] + [c for k in KINDS for c in cells(t[k])] for name, t in by.items()])


def wear(data):
    """Bytes that presets write to storage, beside what they read."""
    rows = sorted(data["wear"], key=lambda r: (r["write_amplification"], r["policy"]))
    return table(["preset", "KiB read per step", "bytes written per token and layer", "amplification, decode", "amplification, with the prompt"],
                 [[f"`{r['policy']}`", f"{r['read_bytes_per_step'] / 1024:,.0f}", f"{r['bytes_written_per_token_and_layer']:,.0f}",
                   f"{r['write_amplification']:.2f}", f"{r['write_amplification_since_open']:.2f}"] for r in rows])


def demotion(data):
    """Entries in two forms against entries that are dropped, in the same memory."""
    by = {}
    for r in data["demotion"]:
        by.setdefault((line_of(r), r["keep_tokens"]), {})[kind_of(r["task"])] = r
    rows = []
    for (name, keep), t in sorted(by.items(), key=lambda item: (item[0][1] or 0, item[0][0])):
        needle, text = t.get("needle"), t.get("text")
        held = needle or text
        of_layers = held["kept_entries_by_layer"]
        entries = f"{sum(of_layers) / len(of_layers):.0f}" if of_layers else "all"
        rows.append([f"`{name}`", "all" if keep is None else str(keep), f"{held['kept_bytes'] / 1024:.0f}", f"{held['bytes_per_entry']:.0f}",
                     entries, share(needle), f"{needle['kl']:.3f}" if needle else "-"]
                    + ([f"{text['kl']:.4f}", f"{text['top1_agreement']:.3f}", f"{math.exp(text['nll'] - text['nll_full']):.4f}"] if text else ["-"] * 3))
    return table(["preset", "keep_tokens", "KiB kept", "bytes/entry", "entries per head", "needle", "KL, needle", "KL, text", "top-1, text",
                  "perplexity ratio"], rows)


def whole(data, measure):
    return [r for r in data["whole_caches"] if r["measure"] == measure]


def least_memory(data):
    rows = sorted(whole(data, "least_memory"), key=lambda r: -r["least_mib"])
    whole_cache = rows[0]["least_mib"]
    return table(["preset", "least MiB", "of the whole cache"],
                 [[f"`{r['policy']}`", f"{r['least_mib']:.1f}", f"{100 * r['least_mib'] / whole_cache:.1f} %"] for r in rows])


def median(values):
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def step_time(data):
    by = {}
    for r in whole(data, "speed"):
        by.setdefault(r["policy"], []).append(r)
    return table(["preset", "MiB resident", "ms per step, median of 3", "KiB read", "hit rate", "attention found"],
                 [[f"`{p}`", f"{rs[0]['resident_mib']:.1f}", f"{median([r['step_ms_median'] for r in rs]):.2f}",
                   str(rs[0]["read_kib_per_step"]), "-" if rs[0]["hit_rate"] is None else f"{rs[0]['hit_rate']:.2f}",
                   f"{rs[0]['mass_recall']:.2f}"] for p, rs in by.items()])


def codes(data):
    """Whole caches of codes beside f16 rows, each with the `full` of its own runs."""
    lines, full = [], {}
    for r in whole(data, "codes"):
        (full.setdefault(r["command"], []) if r["policy"] == "full" else lines).append(r)
    by = {}
    for r in lines:
        by.setdefault((r["policy"], r["command"]), []).append(r)
    middle = lambda rs: median([r["step_ms_median"] for r in rs])
    return table(["preset", "MiB resident", "ms per step, median of 3", "`full` beside it", "times"],
                 [[f"`{p}`", f"{rs[0]['resident_mib']:.1f}", f"{middle(rs):.2f}", f"{middle(full[c]):.2f}", f"{middle(rs) / middle(full[c]):.2f}"]
                  for (p, c), rs in by.items()])


def flash(data):
    """Steps that read a file: where their time goes, and what the device reads for one thread and for all."""
    by = {}
    for r in whole(data, "flash"):
        by.setdefault((r["policy"], r["threads"]), []).append(r)
    middle = lambda rs, of: median([of(r) for r in rs])
    part = lambda rs, *phases: f"{middle(rs, lambda r: sum(r['phase_us'][p] for p in phases)) / 1000:.2f}"
    thousands = lambda rs, key: "-" if rs[0][key] is None else f"{middle(rs, lambda r: r[key]) / 1000:.0f}"
    return table(["preset", "threads", "runs", "ms per step", "scores and choice", "share of the step", "attention", "maintenance", "waiting for reads", "reads",
                  "thousand reads per s, one queue", "all queues"],
                 [[f"`{p}`", str(t), str(len(rs)), f"{middle(rs, lambda r: r['step_ms_median']):.2f}", part(rs, "score", "choose"),
                   f"{middle(rs, lambda r: (r['phase_us']['score'] + r['phase_us']['choose']) / 1000 / r['step_ms_median']):.2f}" if t == 1 else "-",
                   part(rs, "attend"), part(rs, "maintain"), part(rs, "fetch_wait"), str(rs[0]["reads_per_step"]),
                   thousands(rs, "reads_per_s_of_one"), thousands(rs, "reads_per_s_of_threads")] for (p, t), rs in by.items()])


def prompts(data):
    """What a prompt costs with a preset, beside what it costs with `full`, chunk for chunk."""
    return table(["preset", "tokens of a chunk", "processor time, s", "of `full`", "times", "times, by the clock"],
                 [[f"`{r['policy']}`", str(r["chunk"]), f"{r['cpu_s']:.2f}", f"{r['full_cpu_s']:.2f}", f"{r['cpu_ratio']:.2f}",
                   f"{r['wall_ratio']:.2f}"] for r in data["prompts"]])


def page_of(name):
    """From a page of a paper: a page of the log, or one of a question."""
    return f"../{name}.md" if name in ("precision", "demotion", "quality", "memory", "speed", "long_context") else f"../log/{name}.md"


def claims(data, paper):
    rows = [c for c in data["claims"] if c["paper"] == paper]
    if not rows:
        raise Wrong(f"claims: no claim of the paper '{paper}'")
    return table(["claim", "theirs", "here", "holds?", "command"],
                 [[c["claim"], c["theirs"], c["here"], c["verdict"], ", ".join(f"[{f}]({page_of(f)})" for f in c["log"])] for c in rows])


def long_context(data, measure):
    """Presets at a length that small models do not have: answers with their interval, budgets as shares of the whole cache."""
    def entries(r):
        if r["policy"] == "full":
            return "all"
        kept = f"{r['keep_tokens']:,} kept" if r["keep_tokens"] else ""
        attended = f"{r['attend_tokens']:,} attended" if r["attend_tokens"] != r["keep_tokens"] else ""
        return ", ".join(t for t in (kept, attended) if t)

    rows = [r for r in data["long_context"] if r["measure"] == measure]
    if not rows:
        raise Wrong(f"long_context: no row of the measure '{measure}'")
    lines = []
    for r in rows:
        answered = ["-", "-"] if r["accuracy"] is None else [f"{round(r['accuracy'] * r['examples'])} of {r['examples']}", interval(r)]
        lines.append([f"`{line_of(r)}`", r["question"] or "-", kind_of(r["task"]), entries(r), f"{r['resident_bytes_peak'] / MIB:.2f}",
                      f"{r['kept_bytes'] / r['raw_cache_bytes']:.3f}"]
                     + answered + ["-" if r["kl"] is None else f"{r['kl']:.3f}", f"{r['read_bytes_per_token'] / 1024:.0f}"])
    return table(["preset", "question", "task", "tokens", "peak MiB", "kept / whole cache", "answered", "interval, 95 %", "KL", "KiB read/token"], lines)


def shared_layers(data):
    """Models whose layers share caches, against the same model whose layers do not."""
    by = {}
    for r in data["shared_layers"]:
        if r["policy"] == "full":
            by.setdefault((r["model"], r["caches"], r["owner"]), {})[kind_of(r["task"])] = r
    whole_bytes = max(t["text"]["kept_bytes"] for t in by.values())
    return table(["model", "caches", "owner of each layer", "bytes of entries", "needle", "perplexity ratio, text", "KL, text", "KL, needle"],
                 [[f"`{m}`", str(n), f"`{owner}`", f"{t['text']['kept_bytes'] / whole_bytes:.2f}", share(t["needle"]),
                   f"{math.exp(t['text']['nll'] - t['text']['nll_full']):.3f}", f"{t['text']['kl']:.3f}",
                   f"{t['needle']['kl']:.3f}"] for (m, n, owner), t in by.items()])


def saved(data, measure):
    """What saves, loads and forks of long sequences take."""
    rows = [r for r in data["saved"] if r["measure"] == measure]
    if measure == "fork":
        return table(["preset", "tokens", "fork, ms", "its first token, ms", "a later token, ms", "moved by forks, MiB", "fork and end, ms"],
                     [[f"`{r['policy']}`", f"{r['tokens']:,}", f"{r['fork_ms']:.3f}", f"{r['first_ms']:.0f}", f"{r['later_ms']:.0f}",
                       f"{r['moved_mib']:.1f}", f"{r['unused_ms']:.2f}"] for r in rows])
    if measure == "flips":
        return table(["preset", "bits", "refused", "generation before", "bears nothing", "another sequence"],
                     [[f"`{r['policy']}`"] + [f"{r[key]:,}" for key in ("flips", "refused", "before", "harmless", "wrong")] for r in rows])
    if measure == "fuzz":
        return table(["target", "inputs", "seconds", "findings"],
                     [[f"`{r['target']}`", f"{r['inputs']:,}", f"{r['seconds']}", f"{r['findings']}"] for r in rows]
                     + [["all", f"{sum(r['inputs'] for r in rows):,}", f"{sum(r['seconds'] for r in rows)}", f"{sum(r['findings'] for r in rows)}"]])
    rows.sort(key=lambda r: (r["shape"], r["tokens"], r["compute_us"]))
    return table(["shape", "tokens", "preset", "compute, ms", "first save, MiB", "later save, MiB", "later save, ms", "share of the steps", "load, ms", "prompt's attention, s",
                  "prompt / load"],
                 [[r["shape"], f"{r['tokens']:,}", f"`{r['policy']}`", f"{r['compute_us'] / 1000:g}", f"{r['first_mib']:.1f}", f"{r['save_mib']:.1f}", f"{r['save_ms']:.1f}",
                   f"{r['share_of_steps']:.1f} %", f"{r['load_ms']:.1f}"]
                  + ([f"{r['prompt_s']:.1f}", f"{1000 * r['prompt_s'] / r['load_ms']:,.0f}"] if r["attended"] else ["-", "-"]) for r in rows])


def field(data, measure):
    """What the field compares with: a line per preset and variant, with the columns that the rows name."""
    lines, heads = {}, []
    for r in data["field"]:
        if r["measure"] != measure:
            continue
        cells = {r["column"]: f"{r['kl']:.4f}" if kind_of(r["task"]) == "text" else share(r)}
        if measure == "top-p":
            cells[f"{r['column']}, KiB/token"] = f"{r['read_bytes_per_token'] / 1024:.1f}"
        heads += [h for h in cells if h not in heads]
        lines.setdefault(line_of(r), {}).update(cells)
    if not lines:
        raise Wrong(f"field: no row of the measure '{measure}'")
    return table(["preset"] + heads, [[f"`{name}`"] + [cells.get(h, "-") for h in heads] for name, cells in lines.items()])


def many_answers(data):
    """Several answers from one document: a table of facts, a conversation."""
    lines = {}
    for r in data["many_answers"]:
        lines.setdefault(line_of(r), {})[kind_of(r["task"])] = r
    cells = lambda r: [f"{r['resident_bytes_peak'] / MIB:.2f}", share(r), interval(r), f"{r['kl']:.3f}"] if r else ["-"] * 4
    return table(["preset"] + ["peak MiB", "rows of tables", "interval, 95 %", "KL"] + ["peak MiB", "answers of conversations", "interval, 95 %", "KL"],
                 [[f"`{name}`"] + cells(t.get("table")) + cells(t.get("turns")) for name, t in lines.items()])


LIBRARIES = ["kvtl", "kvtl, relaxed", "ik_llama.cpp", "ggml"]
PLACES = ["1K", "4K", "32K", "mem"]


def attention(data):
    """{(type, numbers, queries, place, threads): {library: row}}"""
    by = {}
    for r in data["kernels"]:
        m = re.fullmatch(r"attend/(\w+)/(\d+)/g=(\d+)/(\w+)(?:/t=(\d+))?", r["kernel"])
        if m:
            by.setdefault((m[1], m[2], m[3], m[4], m[5] or "1"), {})[r["of"]] = r
    return by


def each(rows):
    return {key: of for key, of in rows.items() if key[0] != "int4" and key[3] in PLACES}


def rivals(data):
    """Attention of one KV head a thread: a library a column, for one thread and for two."""
    rows = each(attention(data))
    us = lambda of, name: f"{of[name]['us_median']:,.1f}" if name in of else "-"
    return table(["kernel"] + LIBRARIES + [f"2 threads: {name}" for name in LIBRARIES],
                 [[f"`attend/{t}/{n}/g={g}/{place}`"] + [us(rows.get((t, n, g, place, threads), {}), name) for threads in "12" for name in LIBRARIES]
                  for t, n, g, place, threads in rows if threads == "1"])


def rivals_ratio(data):
    """Time of kvtl over time of ik_llama.cpp, heads of 64 / 128 numbers."""
    rows = each(attention(data))
    lines = []
    for t, ours in [("f16", "kvtl"), ("bf16", "kvtl"), ("bf16", "kvtl, relaxed"), ("int8", "kvtl"), ("int8", "kvtl, relaxed")]:
        for g in "148":
            def cell(place, threads):
                both = [rows.get((t, n, g, place, threads), {}) for n in ("64", "128")]
                return " / ".join(f"{of[ours]['us_median'] / of['ik_llama.cpp']['us_median']:.2f}" if ours in of and "ik_llama.cpp" in of else "-"
                                  for of in both)
            lines.append([f"{t}{', relaxed' if ours != 'kvtl' else ''}, {g}"] + [cell(place, threads) for threads in "12" for place in PLACES])
    return table(["rows, queries"] + PLACES + [f"2 threads: {place}" for place in PLACES], lines)


def rivals_error(data):
    """The largest error over queries and threads."""
    worst = {}
    for (t, n, _, place, _), of in each(attention(data)).items():
        for name in LIBRARIES:
            if name in of:
                line = worst.setdefault((t, n, place), {})
                line[name] = max(line.get(name, 0), of[name]["error"])
    return table(["rows"] + LIBRARIES, [[f"{t}, {n} numbers, {place}"] + [f"{line[name]:.0e}" if name in line else "-" for name in LIBRARIES]
                                        for (t, n, place), line in worst.items()])


def from_memory(data):
    """What comes from memory beside wide loads and beside the multiply-adds of exact products alone."""
    lines = []
    for (t, n, g, place, threads), of in each(attention(data)).items():
        if place != "mem":
            continue
        size = int(threads) * (256 << 20)  # of rivals_options::mib
        speed = lambda name: size / of[name]["us_median"] / 1000
        loads, products = speed("wide loads"), speed("multiply-adds")
        ours = lambda name: (f"{speed(name):.1f} ({speed(name) / loads:.2f})" if name in of else "-")
        lines.append([f"{t}, {n}, {g}", threads, f"{loads:.1f}", f"{products:.1f} ({products / loads:.2f})"]
                     + [ours(name) for name in LIBRARIES[:3]] + [f"{speed('kvtl') / min(loads, products):.2f}"])
    return table(["rows, numbers, queries", "threads", "wide loads, GB/s", "multiply-adds alone"] + LIBRARIES[:3] + ["kvtl / nearer bound"], lines)


def four_bits(data):
    """Attention over 4-bit rows and over as many f16 rows, in turn."""
    lines = []
    for (t, n, g, place, threads), of in attention(data).items():
        if t == "int4":
            ours, wide = of["kvtl"], of["kvtl, f16 rows"]
            lines.append([f"`{ours['kernel']}`", f"{ours['us_median']:,.1f}", f"{wide['us_median']:,.1f}",
                          f"{wide['us_median'] / ours['us_median']:.2f}", f"{ours['error']:.0e}"])
    return table(["kernel", "4 bits, us", "f16, us", "f16 / 4 bits", "error, 4 bits"], lines)


def other_kernels(data):
    """Products, distances and assignments: theirs / ours, and errors."""
    by = {}
    for r in data["kernels"]:
        if not r["kernel"].startswith("attend/"):
            by.setdefault(r["kernel"], {})[r["of"].split()[0]] = r
    names = ["simsimd", "OpenBLAS", "faiss", "hnswlib"]
    lines = []
    for kernel, of in by.items():
        ours = of["kvtl"]
        if len(of) > 1:
            lines.append([f"`{kernel}`", f"{ours['us_median']:,.1f} ({ours['error']:.0e})"]
                         + [f"{of[n]['us_median'] / ours['us_median']:.2f} ({of[n]['error']:.0e})" if n in of else "-" for n in names])
    return table(["kernel", "kvtl, us (error)"] + [f"{n}, times ours (error)" for n in names], lines)


def interval(row):
    return " to ".join(f"{bound:.2f}" for bound in row["accuracy_ci95"])


def episodes(data):
    """Questions at the end of dialogues: caches that chose before the question was known."""
    rows = [r for r in data["epicache"] if "kept_entries_by_layer" not in r]
    name = lambda r: f"`{r['policy']}`" + (f", {r.get('variant', 'four episodes')}" if r["policy"] == "epicache" else "")
    tokens = lambda r: int(re.search(r"tokens=([0-9]+)", r["task"])[1])
    return table(["policy", "tokens", "kept", "questions", "answered", "interval", "KL", "MiB kept and decoded"],
                 [[name(r), f"{tokens(r):,}", str(r["keep_tokens"] or "all"), str(r["examples"]), share(r), interval(r), f"{r['kl']:.3f}",
                   f"{r['kept_bytes'] / MIB:.2f}"] for r in rows])


def drift_layers(data):
    """Budgets of layers by the drift of their keys, against equal budgets."""
    rows = [r for r in data["epicache"] if "kept_entries_by_layer" in r]
    entries = lambda r: ", ".join(f"{n - r['decoded_tokens'] / r['examples']:.0f}" for n in r["kept_entries_by_layer"])
    return table(["layers", "answered", "interval", "KL", "entries of the layers, decoded ones less"],
                 [["by drift" if r.get("variant") else "all alike", share(r), interval(r), f"{r['kl']:.3f}", entries(r)] for r in rows])


def gates(data, later):
    """Policies that learnt what to keep: means over the seeds of a task. later: attention_gate, and more entries than 128."""
    by = {}
    for r in data["gates"]:
        if (r["policy"] == "attention_gate" or r["keep_tokens"] == 192) == later and r["policy"] != "full" and "keys=4" not in r["task"]:
            by.setdefault((line_of(r), r["keep_tokens"]), {}).setdefault(kind_of(r["task"]), []).append(r)

    def mean(rows, key):
        return sum(r[key] * r["examples"] for r in rows) / sum(r["examples"] for r in rows)

    lines = []
    for (name, keep), t in by.items():
        held = mean([r for k in KINDS for r in t[k]], "kept_bytes") / (6 * 2 * 256)  # layers, KV heads, bytes of an entry
        cells = [cell for k in KINDS for cell in (f"{mean(t[k], 'accuracy'):.2f}", f"{mean(t[k], 'kl'):.3f}")]
        lines.append([f"`{name}`", str(keep), f"{held:.0f}"] + cells + [f"{mean(t['text'], 'kl'):.3f}" if "text" in t else "-"])
    return table(["policy", "kept", "held with decoded ones", "needles", "KL", "facts", "KL", "chains", "KL", "text, KL"], lines)


# Of each measure of a kvtl-server: headings, and what stands below them: a key, or a function of a row.
SERVER = {
    "first token": [("preset", lambda r: f"`{r['policy']}`"), ("where the prompt comes from", "from"), ("tokens of the prompt", "prompt_tokens"),
                    ("median ms to the first token", "ms_median"), ("most ms", "ms_most"), ("tokens not computed", "tokens_reused")],
    "load": [("requests per s", "rate"), ("answered", "answered"), ("503", "refused"), ("lost", "lost"), ("p50 ms", "ms_p50"), ("p99 ms", "ms_p99"),
             ("most ms", "ms_most"), ("memory of the process during the run, MiB", "process_mib")],
    "users": [("cache", "cache"), ("model", "model"), ("slots", "slots"), ("turns", "turns"), ("seconds", "seconds"),
              ("tokens generated per s", "tokens_per_s"), ("p50 ms to the first token", "ms_p50"), ("most ms", "ms_most"),
              ("not computed again, %", "reused_percent"), ("process memory held (VmHWM), MiB", "process_mib"), ("cache, MiB", "cache_mib")],
    "agents": [("server", "server"), ("slots", "slots"), ("jobs", "jobs"), ("mean job, s", "mean_job_s"), ("longest job, s", "longest_job_s"),
               ("tokens sent", "tokens_sent"), ("computed", "tokens_computed"), ("generated", "tokens_generated"),
               ("a generated one in prefilled ones", "decode_in_prefills")],
    "ranks": [("server", "server"), ("jobs", "jobs"), ("PTE", "rank_pte"), ("tokens of the trajectory", "rank_length"),
              ("tokens sent and generated", "rank_sent_and_generated"), ("tokens generated", "rank_generated")],
    "held agents": [("preset", lambda r: f"`{r['policy']}`"), ("tokens of a context", "tokens_each"), ("MiB of its file", "mib_each"),
                    ("contexts held", "held"), ("ms to the first token, computed", "ms_computed"), ("from its file", "ms_from_file")],
}


def server(data, measure, like=None, of=None):
    """What programs of bench/server_load printed: the rows of a measure, in the columns of one."""
    columns = SERVER[like or measure]

    def word(row, key):
        value = key(row) if callable(key) else row.get(key)
        if isinstance(value, list):
            return ", ".join(map(str, value))
        return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)

    rows = [r for r in data["server"] if r["measure"] == (of or measure)]
    return table([heading for heading, _ in columns], [[word(r, key) for _, key in columns] for r in rows])


def agents(data, command):
    """Simulated agents: who leaves memory."""
    rows = [r for r in data["agents"] if r["command"] == command]
    number = lambda value: f"{value:,.0f}"
    return table(["policy", "mean job, s", "longest job, s", f"calls with their context in memory, of {rows[0]['calls']:.1f}", "tokens read again",
                  "tokens loaded"],
                 [[f"`{r['policy']}`", f"{r['mean_job_s']:.2f}", f"{r['longest_job_s']:.2f}", f"{r['in_memory']:.1f}",
                   number(r["tokens_prefilled_again"]), number(r["tokens_reloaded"])] for r in rows])


TEXTS = {"builtin": "essays", "docs.txt": "manual", "source.txt": "source code"}


def best(data, measure):
    return [r for r in data["best"] if r["measure"] == measure]


def best_text(data):
    """Three kinds of text in equal memory: error, divergence, the worst token, what is kept in tables and what is read."""
    by = {}
    for r in best(data, "text"):
        if r["policy"] == "full":
            continue
        by.setdefault((int(r["config"]["memory_bytes"]) / MIB, r["policy"]), {})[r["task"].split(":")[1]] = r

    def line(mib, policy, t):
        parts, decoded = t["builtin"]["share_by_part"], sum(r["decoded_tokens"] for r in t.values())
        return ([f"{mib:g}", f"`{policy}`", f"{decoded:,}"] + [f"{t[k]['output_error']:.3f}" for k in TEXTS] + [f"{t[k]['kl']:.4f}" for k in TEXTS]
                + [f"{max(r['kl_max'] for r in t.values()):.2f}", f"{100 * (parts['index'] + parts['metadata']):.1f} %",
                   f"{sum(r['read_bytes_per_token'] * r['decoded_tokens'] for r in t.values()) / decoded / 1024:.0f}"])

    ordered = sorted(by.items(), key=lambda item: (item[0][0], item[1]["builtin"]["output_error"]))
    return table(["MiB", "preset", "tokens of text"] + [f"error, {w}" for w in TEXTS.values()] + [f"KL, {w}" for w in TEXTS.values()]
                 + ["largest KL of a token", "index and tables, of the whole cache", "KiB read/token"], [line(*key, t) for key, t in ordered])


def best_answers(data):
    """Chains of facts: answers that take more than one step."""
    return table(["preset", "answered", "interval", "KL", "KiB read/token"],
                 [[f"`{r['policy']}`", f"{round(r['accuracy'] * r['examples'])} of {r['examples']}", interval(r), f"{r['kl']:.4f}",
                   f"{r['read_bytes_per_token'] / 1024:.0f}"] for r in best(data, "chains")])


def best_parts(data):
    """Clusters and the price of what is in memory: error, divergence and the worst token, nothing else deciding."""
    by = {}
    for r in best(data, "parts"):
        key = (r["policy"], r["config"]["clusterer.tokens_per_cluster"], r["config"].get("selector.resident_share", "-"), int(r["config"]["memory_bytes"]) / MIB)
        by.setdefault(key, {})[r["task"].split(":")[1]] = r
    error = lambda r: "-" if r["output_error"] is None else f"{r['output_error']:.4f}"
    return table(["preset", "tokens per cluster", "`resident_share`", "MiB", "tokens of text"] + [f"error, {w}" for w in TEXTS.values()] + [f"KL, {w}" for w in TEXTS.values()]
                 + ["largest KL of a token"],
                 [[f"`{key[0]}`", key[1], key[2], f"{key[3]:g}", f"{sum(r['decoded_tokens'] for r in t.values()):,}"] + [error(t[k]) for k in TEXTS]
                  + [f"{t[k]['kl']:.5f}" for k in TEXTS] + [f"{max(r['kl_max'] for r in t.values()):.3f}"] for key, t in by.items()])


def best_queries(data):
    """The same model with longer queries: units that are not read are estimated, or left out."""
    by, factors = {}, {"tiny-2k.gguf": "1", "q2.gguf": "2", "q4.gguf": "4"}
    for r in best(data, "queries"):
        by.setdefault((r["policy"], "left out" if r["config"]["estimator.share"] == "0" else "estimated"), {})[factors[r["model"]]] = r
    return table(["preset", "what is not read"] + [f"error, queries x {f}" for f in factors.values()] + [f"KL, x {f}" for f in factors.values()],
                 [[f"`{policy}`", way] + [f"{t[f]['output_error']:.3f}" for f in factors.values()] + [f"{t[f]['kl']:.4f}" for f in factors.values()]
                  for (policy, way), t in by.items()])


def best_ablation(data):
    """What is lost when a part of the preset is taken away: error, divergence, and factors beside the prototype's."""
    by = {}
    for r in best(data, "ablation"):
        by.setdefault(r["taken_away"], {})[r["task"].split(":")[1]] = r
    base = by["nothing"]

    def times(t, key):
        return math.exp(sum(math.log(t[k][key] / base[k][key]) for k in TEXTS) / len(TEXTS))

    return table(["taken away", "attended"] + [f"error, {w}" for w in TEXTS.values()] + ["times", "prototype's times"] + [f"KL, {w}" for w in TEXTS.values()]
                 + ["times", "largest KL of a token"],
                 [[name, str(t["builtin"]["attend_tokens"])] + [f"{t[k]['output_error']:.4f}" for k in TEXTS]
                  + [f"{times(t, 'output_error'):.2f}", str(t["builtin"].get("prototype", "-"))] + [f"{t[k]['kl']:.5f}" for k in TEXTS]
                  + [f"{times(t, 'kl'):.1f}", f"{max(r['kl_max'] for r in t.values()):.3f}"] for name, t in by.items()])


def equal_error(data):
    """{preset: [(attended, error, ms of a step, times that of full)]}: errors on text, times of steps that presets made in turn."""
    time, found = {}, {}
    for r in best(data, "equal error"):
        if "step_ms_median" in r:
            time.setdefault(r["policy"], {})[(r["run"], r["config"]["attend_tokens"])] = r["step_ms_median"]
    for r in best(data, "equal error"):
        if "step_ms_median" not in r:
            n = r["attend_tokens"]
            of = {key: t for key, t in time[r["policy"]].items() if n in (key[1], 4096)}  # 4096: everything, at any budget
            found.setdefault(r["policy"], []).append(
                (n, r["output_error"], median(list(of.values())), median([t / time["full"][key] for key, t in of.items()])))
    return found


def best_sweep(data):
    """Error and time of a step by what is attended."""
    of = equal_error(data)
    counts = sorted({n for settings in of.values() for n, *_ in settings if n != 4096})
    cells = lambda found, n: [c for m, e, ms, _ in found if m in (n, 4096) for c in (f"{e:.4f}", f"{ms:.3f}")] or ["-", "-"]
    return table(["preset"] + [h for n in counts for h in (f"error, {n}", "ms")],
                 [[f"`{p}`"] + [c for n in counts for c in cells(found, n)] for p, found in of.items()])


def best_equal_error(data):
    """The least time in which each preset reaches an error, in times of `full`, and with how many entries."""
    targets = (0.05, 0.02, 0.01)

    def cell(found, target):
        reached = [(t, n) for n, e, _, t in found if e <= target]
        return "-" if not reached else f"{min(reached)[0]:.2f} ({'all' if min(reached)[1] == 4096 else min(reached)[1]})"

    return table(["preset"] + [f"error of at most {t:g}" for t in targets],
                 [[f"`{p}`"] + [cell(found, t) for t in targets] for p, found in equal_error(data).items()])


def bits_of_clusters(data):
    """DynaKV and its rivals by the bits of an entry."""
    rows = best(data, "bits")
    of_dynakv = {(r["config"]["memory_mib"], r["entry_bytes"]): r["step_ms_median"] for r in rows if r["policy"].startswith("dynakv")}
    return table(["MiB", "preset", "bytes/entry", "entries per page", "KiB read per step", "reads per step", "entries per read", "hit rate", "tokens/s",
                  "ms per step", "of DynaKV's", "attention found"],
                 [[f"{r['config']['memory_mib']:g}", f"`{r['policy']}`", str(r["entry_bytes"]), str(4096 // r["entry_bytes"]),
                   f"{r['read_bytes_per_step'] / 1024:,.0f}", f"{r['reads_per_step']:,.0f}", f"{r['mean_read_entries']:.1f}", f"{r['hit_rate']:.2f}",
                   f"{1000 / r['step_ms_median']:.1f}", f"{r['step_ms_median']:.1f}",
                   f"{r['step_ms_median'] / of_dynakv[(r['config']['memory_mib'], r['entry_bytes'])]:.1f}", f"{r['mass_recall']:.2f}"] for r in rows])


def million_tokens(data):
    """Least memory of a context of a million tokens."""
    return table(["preset", "setting", "least memory", "of the raw cache", "index alone", "file, at most"],
                 [[f"`{r['policy']}`", f"`{r['setting']}`", f"{r['least_memory_bytes'] / MIB:,.1f} MiB",
                   f"{100 * r['least_memory_bytes'] / r['raw_cache_bytes']:.1f} %", f"{r['bytes_by_part']['index'] / MIB:,.1f} MiB",
                   f"{r['storage_bytes'] / MIB / 1024:.1f} GiB"] for r in data["million"]])


LONG_CONTEXT = ["thirteenth", "sixth", "facts", "400 attended", "484 kept", "137 kept", "boxes", "decode"]

BLOCKS = {
    "leaderboard": leaderboard,
    "million tokens": million_tokens,
    "leaderboard runs": lambda d: runs(d, "leaderboard"),
    "budgets": budgets,
    "budgets runs": lambda d: runs(d, "retrieval"),
    "precision": lambda d: precision(d, "whole"),
    "precision of chosen entries": lambda d: precision(d, "chosen"),
    "precision of kept entries": lambda d: precision(d, "kept"),
    "precision runs": lambda d: runs(d, "precision"),
    "precision of answers": answers_by_bits,
    "precision of products": products,
    "precision of llama.cpp": bits_of_llama,
    "wear": wear,
    "wear runs": lambda d: runs(d, "wear"),
    "demotion": demotion,
    "demotion runs": lambda d: runs(d, "demotion"),
    "least memory": least_memory,
    "step time": step_time,
    "codes": codes,
    "flash": flash,
    "prompts": prompts,
    "prompts runs": lambda d: runs(d, "prompts"),
    "whole caches runs": lambda d: runs(d, "whole_caches"),
    **{f"field {m}": (lambda d, m=m: field(d, m)) for m in ("eviction", "long-decode", "heads", "top-p", "merging", "chunks")},
    "rivals us": rivals,
    "rivals ratio": rivals_ratio,
    "rivals error": rivals_error,
    "from memory": from_memory,
    "other kernels": other_kernels,
    "four bits": four_bits,
    "rivals runs": lambda d: runs(d, "kernels"),
    "field runs": lambda d: runs(d, "field"),
    "many answers": many_answers,
    "many answers runs": lambda d: runs(d, "many_answers"),
    **{f"long context {m}": (lambda d, m=m: long_context(d, m)) for m in LONG_CONTEXT},
    "long context runs": lambda d: runs(d, "long_context"),
    "best text": best_text,
    "best chains": best_answers,
    "best parts": best_parts,
    "best queries": best_queries,
    "best ablation": best_ablation,
    "best sweep": best_sweep,
    "best equal error": best_equal_error,
    "bits of clusters": bits_of_clusters,
    "best runs": lambda d: runs({"best": [r for m in ("text", "parts", "ablation", "queries", "equal error", "chains") for r in best(d, m)]}, "best"),
    "bits of clusters runs": lambda d: runs({"best": best(d, "bits")}, "best"),
    "shared layers": shared_layers,
    "shared layers runs": lambda d: runs(d, "shared_layers"),
    "saved checkpoint": lambda d: saved(d, "checkpoint"),
    "saved flips": lambda d: saved(d, "flips"),
    "saved fork": lambda d: saved(d, "fork"),
    "saved fuzz": lambda d: saved(d, "fuzz"),
    "saved runs": lambda d: runs(d, "saved"),
    "million runs": lambda d: runs(d, "million"),
    "compile runs": lambda d: runs(d, "compile"),
    "eviction runs": lambda d: runs(d, "eviction"),
    "token rank runs": lambda d: runs(d, "token_rank"),
    "episodes": episodes,
    "layers by drift": drift_layers,
    "gates": lambda d: gates(d, False),
    "gates with attention": lambda d: gates(d, True),
    **{f"server {m}": (lambda d, m=m: server(d, m)) for m in ("first token", "load", "users", "agents", "held agents")},
    "server first token of 32000": lambda d: server(d, "first token of 32000", like="first token"),
    "server failing remote": lambda d: server(d, "failing remote", like="first token"),
    "server ranks": lambda d: server(d, "ranks", of="agents"),
    "server runs": lambda d: runs(d, "server"),
    "agents without files": lambda d: agents(d, "kvtl-agents --traces 200 --file-tokens 0"),
    "agents with files": lambda d: agents(d, "kvtl-agents --traces 200"),
    "agents busy": lambda d: agents(d, "kvtl-agents --traces 200 --file-tokens 4000 --prefill-rate 300 --load-rate 10000"),
    "agents runs": lambda d: runs(d, "agents"),
    **{f"claims {p}": (lambda d, p=p: claims(d, p)) for p in ("dynakv", "token_adaptive_rank", "kvswap", "dynamickv", "abstracts")},
}


def one(rows, **wanted):
    found = [r for r in rows if all(r.get(k) == v for k, v in wanted.items())]
    if len(found) != 1:
        raise Wrong(f"figure: {len(found)} rows with {wanted}; valid: one")
    return found[0]


def figures(data):
    """{name: text} of everything that a page may quote."""
    all_of = {}
    for row in whole(data, "least_memory"):
        all_of[f"memory {row['policy']}"] = f"{row['least_mib']:.3g}"
    for p in ("full", "full_int8", "dynakv", "dynakv_estimate", "kvtl_best"):
        speed = [r for r in whole(data, "speed") if r["policy"] == p]
        all_of[f"step {p}"] = f"{median([r['step_ms_median'] for r in speed]):.2f}"
        all_of[f"resident {p}"] = f"{speed[0]['resident_mib']:.0f}"
    for p in ("full", "full_int8", "dynakv", "dynakv_estimate"):
        for n in (128, 256):
            row = one(whole(data, "quality"), policy=p, task="needle:needle_2048.jsonl", attend_tokens=n)
            all_of[f"needles {p} {n}"] = f"{row['accuracy']:.2f}"
        all_of[f"text kl {p}"] = f"{one(whole(data, 'quality'), policy=p, task='nll:HELD')['kl']:.2g}"
    for r in data["retrieval"]:
        task = re.sub(r"^needle:|\.jsonl$", "", r["task"])
        all_of[f"{task} {r['policy']} {r['attend_tokens']}"] = f"{r['accuracy']:.2f}"
    for r in data["eviction"]:
        what = ("needles", f"{r['accuracy']:.2f}") if r["accuracy"] is not None else ("kl", f"{r['kl']:.3f}")
        all_of[f"kept {what[0]} {line_of(r).replace(',', '')} {r['keep_tokens']}"] = what[1]
    for r in data["token_rank"]:
        name = line_of(r).replace(",", "")
        all_of[f"rank bytes {name}"] = str(r["bytes_per_entry"])
        if r["kl"] is not None:
            all_of[f"rank kl {name}"] = f"{r['kl']:.4f}"
        elif r["task"].startswith("needle:needle"):
            all_of[f"rank needles {name}"] = f"{100 * r['accuracy']:.0f}"
    for r in data["saved"]:
        if r["measure"] == "checkpoint" and r["shape"] == "1B" and not r["compute_us"]:
            all_of[f"load {r['policy']} {r['tokens']}"] = f"{r['load_ms'] / 1000:.2g}"
            all_of[f"prompt {r['policy']} {r['tokens']}"] = f"{r['prompt_s']:.0f}"
    compiled = {r["unit"]: r for r in data["compile"]}
    for unit, r in compiled.items():
        all_of[f"compile KB {unit}"] = f"{r['text_bytes'] / 1000:.{0 if r['text_bytes'] >= 1000 else 1}f}"
        all_of[f"compile time {unit}"] = f"{r['user_s'] / compiled['headers']['user_s']:.1f}"
    for (_, attended), board in boards(data).items():
        for preset, tasks in board.items():
            for k in KINDS:
                if k in tasks:
                    all_of[f"board {k} {preset} {attended}"] = share(tasks[k])
            if all(k in tasks for k in KINDS):
                all_of[f"board mean {preset} {attended}"] = f"{mean_accuracy(tasks):.2f}"
    return all_of


# ------------------------------------------------------------------------------------------------------------ plots
COLOURS = ["#2a6fbb", "#d9822b", "#3d9970", "#8e44ad", "#c0392b", "#7f8c8d", "#16a085", "#b7950b"]


def svg(width, height, parts):
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" fill="#ffffff"/>\n'
            + "\n".join(parts) + "\n</svg>\n")


def label(x, y, text, anchor="start", colour="#222222"):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{html.escape(text)}</text>'


def bars(title, names, series):
    """Horizontal bars: series [(legend, [value or None])], values 0 to 1."""
    left, row, wide = 170, 12 * len(series) + 8, 420
    parts = [label(10, 20, title)]
    for s, (legend, _) in enumerate(series):
        parts.append(f'<rect x="{left + 150 * s}" y="30" width="10" height="10" fill="{COLOURS[s]}"/>')
        parts.append(label(left + 14 + 150 * s, 39, legend))
    for i, name in enumerate(names):
        y = 52 + row * i
        parts.append(label(left - 8, y + row / 2, name, "end"))
        for s, (_, values) in enumerate(series):
            v = values[i]
            if v is None:
                continue
            parts.append(f'<rect x="{left}" y="{y + 12 * s}" width="{wide * v:.1f}" height="10" fill="{COLOURS[s]}"/>')
            parts.append(label(left + wide * v + 4, y + 12 * s + 9, f"{v:.2f}"))
    return svg(left + wide + 50, 60 + row * len(names), parts)


def chart(title, x_name, y_name, lines, points=False):
    """Lines or labelled points: [(name, [(x, y)])], y from 0 to 1, x from 0."""
    left, top, wide, high = 60, 40, 560, 300
    most = max((x for _, xy in lines for x, _ in xy), default=1) or 1
    px = lambda x: left + wide * x / most
    py = lambda y: top + high * (1 - y)
    parts = [label(10, 20, title), label(left + wide / 2, top + high + 36, x_name, "middle"),
             f'<path d="M{left} {top}V{top + high}H{left + wide}" fill="none" stroke="#888888"/>']
    for k in range(5):
        parts += [label(left - 6, py(k / 4) + 4, f"{k / 4:.2f}", "end"),
                  label(px(most * k / 4), top + high + 18, f"{most * k / 4:.0f}", "middle")]
    parts.append(label(10, top - 6, y_name))
    placed = []  # of labels: each goes down until none is in its way
    for i, (name, xy) in enumerate(lines):
        c = COLOURS[i % len(COLOURS)]
        if not points:
            path = " ".join(f"{px(x):.1f},{py(y):.1f}" for x, y in xy)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{c}" stroke-width="2"/>')
        parts += [f'<circle cx="{px(x):.1f}" cy="{py(y):.1f}" r="4" fill="{c}"/>' for x, y in xy]
        x, y = px(xy[-1][0]) + 7, py(xy[-1][1]) + 4
        while any(abs(x - a) < 110 and abs(y - b) < 13 for a, b in placed):
            y += 1
        placed.append((x, y))
        parts.append(label(x, y, name, colour=c))
    return svg(left + wide + 150, top + high + 50, parts)


def plot_name(what, model, attended):
    return f"{what}-{re.sub('[^A-Za-z0-9]+', '-', model.removesuffix('.gguf'))}-{attended}.svg"


def plots(data):
    made = {}
    for (model, attended), board in boards(data).items():
        order = [(p, t) for p, t in ranked(board) if mean_accuracy(t) is not None]
        title = f"{model}, {attended} tokens attended: share of the questions answered"
        made[plot_name("accuracy", model, attended)] = bars(
            title, [p for p, _ in order], [(k, [t[k]["accuracy"] if k in t else None for _, t in order]) for k in KINDS])
        made[plot_name("cost", model, attended)] = chart(
            f"{model}, {attended} tokens attended", "KiB read per token", "mean share of the questions answered",
            [(p, [(costs(t)["read"], mean_accuracy(t))]) for p, t in order], points=True)

    def by_budget(presets, task, name, title):
        lines = [(p, sorted((r["attend_tokens"], r["accuracy"]) for r in data["retrieval"] if r["policy"] == p and r["task"] == task))
                 for p in presets]
        made[name] = chart(title, "tokens attended", "share of the questions answered", [l for l in lines if l[1]])

    by_budget(["dynakv", "dynakv_estimate", "dynakv_static", "clusterkv", "pqcache"], "needle:multikey8_1024.jsonl", "dynakv.svg",
              "One of eight facts, 1,024 tokens")
    by_budget(["kvswap", "kvswap_softmax", "shadowkv", "infinigen_star", "loki"], "needle:vt_1024.jsonl", "kvswap.svg",
              "Chains, 1,024 tokens")
    by_budget(["dynakv_estimate", "kvswap_softmax", "quest", "dynakv", "retroinfer", "streaming_llm"], "needle:needle_2048.jsonl",
              "budgets.svg", "Needles, 2,048 tokens")

    def lines_of_rows(rows, x, presets):
        return [(p, sorted((r[x], r["accuracy"]) for r in rows if r["policy"] == p and r["accuracy"] is not None)) for p in presets]

    needles = [r for r in data["eviction"] if r["task"] == "needle:needle_2048.jsonl"]
    made["dynamickv.svg"] = chart("Needles, 2,048 tokens, question known", "entries kept per layer and KV head", "share of the questions answered",
                                  lines_of_rows(needles, "keep_tokens", ["dynamickv", "snapkv_group", "pyramidkv", "adakv", "cake", "streaming_llm"]))
    facts = [r for r in data["token_rank"] if r["task"] == "needle:multikey8_1024.jsonl"]
    made["token_adaptive_rank.svg"] = chart(
        "One of eight facts, 1,024 tokens; 16-bit entries have 256 bytes", "bytes per entry", "share of the questions answered",
        lines_of_rows(facts, "bytes_per_entry", ["dynakv_lr", "dynakv_lr_energy", "palu", "matryoshka"]))
    known = {c: {r["policy"]: r["accuracy"] for r in data["field"] if r["column"] == c and not r["variant"]}
             for c in ("needles, known, 128", "needles, known, 256", "one of 8 facts, known, 128")}
    methods = sorted({r["policy"] for r in data["field"] if r["measure"] == "eviction"}, key=lambda p: (-known["needles, known, 128"].get(p, 0), p))
    made["abstracts.svg"] = bars("Entries kept per layer and KV head: share of 100 questions answered, question known", methods,
                                 [(c.replace(", known", ""), [values.get(p) for p in methods]) for c, values in known.items()])
    rows = sorted(whole(data, "least_memory"), key=lambda r: -r["least_mib"])
    most = rows[0]["least_mib"]
    made["memory.svg"] = bars("Least memory, as a share of the whole 16-bit cache (16,384 tokens, 1B shape)",
                              [r["policy"] for r in rows], [("share", [r["least_mib"] / most for r in rows])])
    return made


# ------------------------------------------------------------------------------------------------------------ pages
def written(page, text, data, known):
    def block(m):
        if m[2] not in BLOCKS:
            raise Wrong(f"{page}: unknown block '{m[2]}'; valid: {', '.join(sorted(BLOCKS))}")
        return m[1] + BLOCKS[m[2]](data) + m[4]

    def figure(m):
        if m[2] not in known:
            raise Wrong(f"{page}: no figure '{m[2]}' in the data")
        return m[1] + known[m[2]] + m[4]

    if len(OPENING.findall(text)) != len(BLOCK.findall(text)) + len(FIGURE.findall(text)):
        raise Wrong(f"{page}: a block or a figure without its <!-- end -->")
    return FIGURE.sub(figure, BLOCK.sub(block, text))


PROSE = [p for p in PAGES if not p.startswith("bench")]
NUMBER = re.compile(r"(?<![\w.,/#-])\d[\d,]*(?:\.\d+(?![\w.]*\d)|(?= (?:%|ms|s|times|tokens/s|tokens per second)(?!\w)))")
OTHERS = re.compile(r"<!-- no measurement of kvtl: ([0-9., ]+) -->")


def numbers(text):
    return {n.replace(",", "") for n in re.findall(r"\d[\d,]*(?:\.\d+)?", re.sub(r"(?<!\d)\.(?=\d)", "0.", text))}


def agrees(number, found):
    """That a number is among those of a page, there perhaps with more digits."""
    digits = len(number.partition(".")[2])
    return number in found or any(len(n.partition(".")[2]) > digits and f"{float(n):.{digits}f}" == number for n in found)


def quoted(root, path, text):
    """Figures of README and docs that no marker writes. Each stands in a page of results that its section links, in the page's
    own program, which the tests run, or in its list of numbers that are no measurements. Returns a line for each that does not."""
    lines = []
    allowed = numbers(" ".join(OTHERS.findall(text))) | numbers(" ".join(re.findall(r"^(?:```|<!-- )cpp$(.*?)^(?:```|-->)$", text, re.S | re.M)))
    text = FIGURE.sub("", BLOCK.sub("", text))
    text = re.sub(r"^```.*?^```|^<!-- cpp$.*?^-->$", "", text, flags=re.S | re.M)
    for section in re.split(r"^(?=#+ )", text, flags=re.M):
        linked = {(path.parent / link).resolve() for link in re.findall(r"\]\(([^)#]*bench/results/[^)#]+\.md)", section)}
        found = allowed.union(*(numbers(page.read_text()) for page in linked if page.exists()))
        for number in NUMBER.findall(re.sub(r"`[^`]*`|\]\([^)]*\)|<!--.*?-->", "", section)):
            if not agrees(number.replace(",", ""), found):
                heading = section.splitlines()[0].lstrip("# ")
                lines.append(f"{path.relative_to(root)}: {number} in '{heading}' is in no page of results that the section links")
    return lines


def main():
    parser = argparse.ArgumentParser(description="Writes the tables, plots and figures of the results from bench/results/data.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if a page or a plot differs from the data")
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent, help="of the tree")
    parser.error = lambda message: (print(f"results.py: {message}", file=sys.stderr), sys.exit(2))
    args = parser.parse_args()
    if not any((args.root / "bench/results/data").glob("*.json")):
        parser.error(f"--root: there is no bench/results/data in {args.root}")
    wrong = []
    try:
        data = load(args.root)
        known = figures(data)
        want = {args.root / "bench/results/plots" / name: text for name, text in plots(data).items()}
        for pattern in PAGES:
            for path in sorted(args.root.glob(pattern)):
                want[path] = written(path.relative_to(args.root), path.read_text(), data, known)
    except Wrong as error:
        print(error, file=sys.stderr)
        return 1
    without = [line for pattern in PROSE for path in sorted(args.root.glob(pattern)) if path.name != "presets.md"
               for line in quoted(args.root, path, want[path])]
    stray = set((args.root / "bench/results/plots").glob("*")) - set(want)
    for path, text in want.items():
        if path.exists() and path.read_text() == text:
            continue
        wrong.append(path)
        if not args.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    for path in stray:
        wrong.append(path)
        if not args.check:
            path.unlink()
    for path in wrong:
        said = "differs from bench/results/data; run scripts/results.py" if args.check else "written"
        print(f"{path.relative_to(args.root)}: {said}", file=sys.stderr if args.check else sys.stdout)
    print("".join(line + "\n" for line in without), end="", file=sys.stderr)
    return 1 if without or args.check and wrong else 0


if __name__ == "__main__":
    sys.exit(main())
