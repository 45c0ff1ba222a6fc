#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""uring_file beside fio: random direct reads of one file, in turn.

    bench/peers/fio.py --bench build/release/bin/kvtl-bench --path ./io.kv

Writes a file (kvtl-bench io --keep), then lets kvtl-bench and fio (ioengine=io_uring; as it is, and with registered file
and buffers, large pages and without clock readings) make the same number of reads, round by round, each round in another order and
with other places. Prints medians and ratios to the better of both fio jobs: bandwidth (and with it IOPS) and processor
time per read. Exit status: 0, 1 when a run fails, 2 when something is missing.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys


# Has glibc ask for large pages for fio's buffers; kvtl-bench does so itself.
LARGE_PAGES = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def run(command, environment=None):
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        sys.exit(f"fio.py: {' '.join(command)}\n{done.stderr.strip()}")
    return done.stdout


def kvtl(a, block, depth, reads, seed):
    r = json.loads(run([a.bench, "io", "--path", a.path, "--keep", "--reuse", "--size", str(a.size), "--block", str(block),
                        "--depth", str(depth), "--reads", str(reads), "--seed", str(seed), "--json", "-"]))
    return r["mb_per_s"], r["cpu_us_per_io"]


def fio(a, block, depth, reads, seed, *more):
    # No map of places already read and no fixed seed: as the other side does it.
    job = json.loads(run(["fio", "--name=reads", f"--filename={a.path}", "--readonly", "--rw=randread", "--direct=1",
                          "--ioengine=io_uring", f"--size={a.size}M", f"--bs={block}", f"--iodepth={depth}",
                          f"--io_size={block * reads}", "--norandommap", f"--randseed={seed + 1}",
                          "--output-format=json", *more], LARGE_PAGES if more else None))["jobs"][0]
    cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] * 1000 / job["read"]["total_ios"]
    return job["read"]["bw_bytes"] / 1e6, cpu


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--bench", default="build/release/bin/kvtl-bench", help="the program (default %(default)s)")
    p.add_argument("--path", default="./kvtl-fio.kv", help="the file; written, and removed (default %(default)s)")
    p.add_argument("--size", type=int, default=1024, help="of the file, in MiB (default %(default)s)")
    p.add_argument("--blocks", default="4096,16384,65536,262144", help="bytes of a read (default %(default)s)")
    p.add_argument("--depths", default="1,8,32", help="reads in flight (default %(default)s)")
    p.add_argument("--rounds", type=int, default=5, help="default %(default)s")
    p.add_argument("--seconds", type=float, default=1, help="of a run, roughly (default %(default)s)")
    p.add_argument("--json", help="write all runs here")
    a = p.parse_args()
    if shutil.which("fio") is None:
        print("fio.py: fio is missing (Debian, Ubuntu: apt-get install fio)", file=sys.stderr)
        return 2
    if shutil.which(a.bench) is None:
        print(f"fio.py: {a.bench} is missing (cmake --build --preset release)", file=sys.stderr)
        return 2
    sides = {
        "fio": lambda *case: fio(a, *case),
        "fio, registered": lambda *case: fio(a, *case, "--fixedbufs", "--registerfiles", "--gtod_reduce=1"),
        "kvtl": lambda *case: kvtl(a, *case),
    }
    run([a.bench, "io", "--path", a.path, "--keep", "--size", str(a.size), "--reads", "1"])
    rows = []
    try:
        print("| block | depth | fio MB/s | registered | kvtl | ratio | fio us of CPU a read | registered | kvtl | ratio |")
        print("| --- " * 10 + "|")
        for block in map(int, a.blocks.split(",")):
            for depth in map(int, a.depths.split(",")):
                reads = max(64, int(kvtl(a, block, depth, 1000, 0)[0] * 1e6 / block * a.seconds))
                seen = {name: [] for name in sides}
                for round_ in range(a.rounds):
                    order = list(sides)
                    order = order[round_ % 3:] + order[:round_ % 3]
                    for name in order:
                        seen[name].append(sides[name](block, depth, reads, round_))
                rows.append({"block": block, "depth": depth, "reads": reads, "runs": seen})
                speed, cpu = ([statistics.median(s[i] for s in seen[name]) for name in sides] for i in (0, 1))
                print(f"| {block // 1024} KiB | {depth} | {speed[0]:.0f} | {speed[1]:.0f} | {speed[2]:.0f} "
                      f"| {speed[2] / max(speed[:2]):.2f} | {cpu[0]:.2f} | {cpu[1]:.2f} | {cpu[2]:.2f} "
                      f"| {cpu[2] / min(cpu[:2]):.2f} |", flush=True)
    finally:
        os.unlink(a.path)
    if a.json:
        with open(a.json, "w", encoding="utf-8") as f:
            json.dump(rows, f, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
