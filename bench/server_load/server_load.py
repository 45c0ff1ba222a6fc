#!/usr/bin/env python3
# Load and waiting times of kvtl-server, from outside. It starts what it needs on loopback, and ends it.
#
#   server_load.py load KVTL-SERVER MODEL [--requests 10000] [--rates 50,100,200]
#       requests that arrive at random (Poisson, seed 1): times to the whole answer, what is lost, memory of the process
#   server_load.py first-token KVTL-SERVER MODEL [TEXT] [--rounds 5] [--tokens N]
#       time to the first token of a long prompt: computed, from a slot, from a file after a restart, from Redis. --tokens: a
#       prompt of N random tokens, for a model of random weights
#   server_load.py failing-remote KVTL-SERVER MODEL TEXT [--rounds 5]
#       the same with a Redis of three that is lost, hangs, or is slow
#   server_load.py users KVTL-SERVER MODEL TEXT [--users 8] [--turns 4] [--chars 3000] [--cells N]
#                             [--plain KVTL-PLAIN-USERS --plain-cells N,..]
#       users in turn, whose histories are larger than the memory: tokens per second, times, memory of the process; and the
#       same with llama.cpp and its own cache of so many cells
#   server_load.py users KVTL-SERVER MODEL TEXT --against OTHER-SERVER [--pairs 3] [--at-once [--pause S]] [--parallel 2]
#       the same users at two servers in turn, and medians. --at-once: all users ask at the same time, each as soon as it has
#       its answer, or after S seconds on average (seed: the user)
#
# Prints tables of Markdown. --json FILE appends the same as rows, with commit, machine and command, to the array in FILE
# (bench/results/data/server.json). Only the standard library.
# SPDX-License-Identifier: MIT
import argparse
import asyncio
import collections
import concurrent.futures
import http.client
import json
import os
import pathlib
import random
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    def __init__(self, program, model, folder, *arguments):
        self.log = open(pathlib.Path(folder) / "log", "a")
        self.process = subprocess.Popen([program, "-m", model, "--port", "0", *map(str, arguments)], cwd=folder,
                                        stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.process.stdout.readline()
        if not line.startswith("listening on "):
            sys.exit(f"no server: {line}; see {self.log.name}")
        self.port = int(line.strip().rpartition(":")[2])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(120)
        self.log.close()

    def resident_mib(self, what="VmRSS"):
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(what):
                return int(line.split()[1]) / 1024
        return 0

    def processor_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def complete(self, prompt, tokens=1):
        """Seconds to the first token and to the end, usage, text."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1800)
        begin = time.monotonic()
        connection.request("POST", "/v1/completions", json.dumps(
            {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True,
             "stream_options": {"include_usage": True}}), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        first, text, usage = None, "", None
        while line := reply.readline():
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(event["error"])
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                if first is None and (choice["text"] or choice["finish_reason"]):
                    first = time.monotonic() - begin
                text += choice["text"]
        connection.close()
        return first, time.monotonic() - begin, usage, text

    def metrics(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        connection.close()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


class Redis:
    def __init__(self, folder):
        self.port = free_port()
        self.process = subprocess.Popen(["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
                                         "--dir", str(folder)], stdout=subprocess.DEVNULL)
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except OSError:
                time.sleep(0.01)

    def keys(self):
        return int(subprocess.run(["redis-cli", "-p", str(self.port), "dbsize"], check=True, capture_output=True, text=True).stdout.split()[-1])

    def end(self):
        self.process.kill()
        self.process.wait()


class Slow:
    """Passes bytes on to a server, a few KiB at a time."""

    def __init__(self, port, bytes_per_s):
        self.target, self.rate = port, bytes_per_s
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listening.accept()
            server = socket.create_connection(("127.0.0.1", self.target))
            threading.Thread(target=self.pass_on, args=(client, server, None), daemon=True).start()
            threading.Thread(target=self.pass_on, args=(server, client, self.rate), daemon=True).start()

    @staticmethod
    def pass_on(source, target, rate):
        try:
            while data := source.recv(4096 if rate else 65536):
                if rate:
                    time.sleep(len(data) / rate)
                target.sendall(data)
        except OSError:
            pass
        for s in (source, target):
            s.close()


def percentile(values, p):
    values = sorted(values)
    return values[min(len(values) - 1, int(p * len(values)))]


def milliseconds(seconds):
    return round(1000 * seconds)


# ------------------------------------------------------------------------------------------------------------ rows
def commit():
    here = pathlib.Path(__file__).resolve().parent
    return subprocess.run(["git", "-C", here, "describe", "--always", "--dirty", "--abbrev=8", "--exclude=*"], check=True,
                          capture_output=True, text=True).stdout.strip()


def machine():
    fields = dict(line.split(":", 1) for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if ":" in line)
    fields = {name.strip(): value.strip() for name, value in fields.items()}
    gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return (f"{fields.get('model name', 'unknown processor')} (family {fields.get('cpu family', '?')}), "
            f"{os.cpu_count()} virtual cores, {gib:.0f} GiB, load average {os.getloadavg()[0]:.1f} at the start")


class Rows:
    """Lines of a table of Markdown, and the same as rows of JSON."""

    def __init__(self, a, **common):
        programs = {a.program: "KVTL-SERVER", getattr(a, "plain", None): "KVTL-PLAIN-USERS", getattr(a, "against", None): "OTHER-SERVER"}
        root = pathlib.Path(__file__).resolve().parents[2]
        words, given = [], iter(sys.argv[1:])
        for word in given:
            if word == "--json":
                next(given)
                continue
            path = pathlib.Path(word).resolve()
            inside = str(path.relative_to(root)) if path.is_relative_to(root) else path.name
            words.append(programs.get(str(path)) or (inside if path.exists() else word))
        self.file, self.headed = a.json, None
        self.common = common
        self.source = {"model": pathlib.Path(a.model).name, "commit": commit(), "machine": machine(),
                       "command": shlex.join([pathlib.Path(sys.argv[0]).name, *words])}

    def add(self, **row):
        row = self.common | row
        if self.headed != list(row):
            self.headed = list(row)
            print(f"| {' | '.join(row)} |\n|{' --- |' * len(row)}")
        words = [", ".join(map(str, v)) if isinstance(v, list) else "-" if v is None else str(v) for v in row.values()]
        print(f"| {' | '.join(words)} |", flush=True)
        if not self.file:
            return
        kept = json.loads(self.file.read_text()) if self.file.exists() else []
        lines = ",\n".join(json.dumps(r, ensure_ascii=False) for r in [*kept, row | self.source])
        self.file.write_text(f"[\n{lines}\n]\n")


# ------------------------------------------------------------------------------------------------------------ load
async def one_request(port, body, times, states):
    begin = time.monotonic()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        answer = await asyncio.wait_for(reader.read(), 120)
        writer.close()
        status = answer[9:12].decode()
        whole = b'"finish_reason"' in answer
        states[status if whole or status != "200" else "cut off"] += 1
        if status == "200" and whole:
            times.append(time.monotonic() - begin)
    except (OSError, asyncio.TimeoutError) as e:
        states[type(e).__name__] += 1


async def arrive(server, rate, requests, rss):
    chance = random.Random(1)
    times, states, tasks = [], collections.Counter(), set()
    due = time.monotonic()
    for i in range(requests):
        due += chance.expovariate(rate)
        await asyncio.sleep(max(0, due - time.monotonic()))
        body = json.dumps({"prompt": f"Request {chance.randrange(1000)}: what is", "max_tokens": chance.randint(1, 4),
                           "temperature": 0}).encode()
        task = asyncio.create_task(one_request(server.port, body, times, states))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        if i % (requests // 4) == requests // 8:
            rss.append(server.resident_mib())
    await asyncio.gather(*tasks)
    rss.append(server.resident_mib())
    return times, states


def load(a):
    rows = Rows(a, policy=a.policy, measure="load")
    with tempfile.TemporaryDirectory() as folder, Server(a.program, a.model, folder, "--store", "store", "--threads", "1", "--policy", a.policy,
                                                         "--memory-mib", a.memory_mib, "--parallel", "8", "--queue", "512") as server:
        server.complete("Hello")
        for rate in map(float, a.rates.split(",")):
            rss = []
            times, states = asyncio.run(arrive(server, rate, a.requests, rss))
            rows.add(rate=int(rate) if rate.is_integer() else rate, answered=states["200"], refused=states["503"],
                     lost=sum(states.values()) - states["200"] - states["503"], ms_p50=milliseconds(percentile(times, .5)),
                     ms_p99=milliseconds(percentile(times, .99)), ms_most=milliseconds(max(times)),
                     process_mib=[round(m) for m in rss])


# ----------------------------------------------------------------------------------------------------- first token
class Waits:
    """Times to the first token by where a prompt came from."""

    def __init__(self, a, measure):
        self.all_of, self.rows = {}, Rows(a, policy=a.policy, measure=measure)

    def note(self, name, measured):
        usage = measured[2]
        self.all_of.setdefault(name, []).append((measured[0], usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]))

    def print(self):
        for name, seen in self.all_of.items():
            seconds = [m[0] for m in seen]
            self.rows.add(**{"from": name}, prompt_tokens=round(statistics.mean(m[1] for m in seen)),
                          ms_median=milliseconds(statistics.median(seconds)), ms_most=milliseconds(max(seconds)), tokens_reused=[m[2] for m in seen])


class Site:
    """A folder, servers of Redis, and kvtl-servers that use them."""

    def __init__(self, a, redis):
        self.a = a
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.temporary.name)
        self.redis = [Redis(self.folder) for _ in range(redis)]
        self.remote = [r.port for r in self.redis]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for r in self.redis:
            r.end()
        self.temporary.cleanup()

    def server(self, store):
        ports = ",".join(f"127.0.0.1:{port}" for port in self.remote)
        more = ["-c", self.a.tokens + 64, "--remote-timeout-ms", 20000] if self.a.tokens else []
        return Server(self.a.program, self.a.model, self.folder, "--store", store, "--threads", "1", "--policy", self.a.policy,
                      "--memory-mib", self.a.memory_mib, "--parallel", self.a.parallel, "--remote", f"redis://{ports}", *more)

    @staticmethod
    def until_sent(server):
        while server.metrics()["kvtl_remote_put_total"] < 1:
            time.sleep(0.05)


def prompt_of(a, turn):
    if a.tokens:
        chance = random.Random(turn)
        return [chance.randrange(5, 256) for _ in range(a.tokens)]
    return pathlib.Path(a.text).read_text()[500 * turn : 500 * turn + a.chars]


def first_token(a):
    waits = Waits(a, f"first token of {a.tokens}" if a.tokens else "first token")
    for turn in range(a.rounds):
        prompt = prompt_of(a, turn)
        with Site(a, redis=3) as site:
            with site.server("one") as s:
                waits.note("computed", s.complete(prompt))
                waits.note("from its slot", s.complete(prompt))
                site.until_sent(s)
            with site.server("one") as s:
                waits.note("from a file, after a restart", s.complete(prompt))
            with site.server("two") as s:
                waits.note("from Redis, by another server", s.complete(prompt))
    waits.print()


def failing_remote(a):
    waits = Waits(a, "failing remote")
    for turn in range(a.rounds):
        prompt = prompt_of(a, turn)
        with Site(a, redis=3) as site:
            with site.server("one") as s:
                s.complete(prompt)
                site.until_sent(s)
            nothing, _, has = sorted(site.redis, key=Redis.keys)
            nothing.end()
            with site.server("two") as s:
                waits.note("one of three is lost, others have it", s.complete(prompt))
            has.end()
            with site.server("three") as s:
                waits.note("two of three are lost, one of which had it", s.complete(prompt))
        with Site(a, redis=3) as site:
            with site.server("one") as s:
                s.complete(prompt)
                site.until_sent(s)
            hangs = max(site.redis, key=Redis.keys).process
            hangs.send_signal(signal.SIGSTOP)
            with site.server("two") as s:
                waits.note("one of three hangs, which had it", s.complete(prompt))
                waits.note("the next prompt", s.complete(prompt_of(a, turn + 20)))
            hangs.send_signal(signal.SIGCONT)
        with Site(a, redis=1) as site:
            with site.server("one") as s:
                s.complete(prompt)
                site.until_sent(s)
            site.remote = [Slow(site.redis[0].port, 1 << 20).port]
            with site.server("two") as s:
                waits.note("the only one sends 1 MiB per s", s.complete(prompt))
    waits.print()


# ----------------------------------------------------------------------------------------------------------- users
def talk(a, server, begun):
    """All turns of all users; what was measured."""
    r = {"first": [], "later": [], "cached": 0, "prompts": 0, "generated": 0, "histories": 0}
    said, pauses, lock = list(begun), [random.Random(u) for u in range(a.users)], threading.Lock()

    def ask(turn, u):
        f, _, usage, answer = server.complete(said[u], 16)
        said[u] += answer + f" And what is {turn}?"
        with lock:
            (r["first"] if turn == 0 else r["later"]).append(f)
            r["cached"] += usage["prompt_tokens_details"]["cached_tokens"]
            r["prompts"] += usage["prompt_tokens"]
            r["generated"] += usage["completion_tokens"]
            if turn + 1 == a.turns:
                r["histories"] += usage["prompt_tokens"] + usage["completion_tokens"]

    def all_turns(u):
        for turn in range(a.turns):
            if a.pause > 0:
                time.sleep(pauses[u].expovariate(1 / a.pause))
            ask(turn, u)

    begin = time.monotonic()
    if a.at_once:
        with concurrent.futures.ThreadPoolExecutor(a.users) as all_users:
            list(all_users.map(all_turns, range(a.users)))  # raises what a user has raised
    else:
        for turn in range(a.turns):
            for u in range(a.users):
                ask(turn, u)
    r["seconds"] = time.monotonic() - begin
    r["first"] += r["later"]
    r["metrics"], r["processor"] = server.metrics(), server.processor_seconds()
    r["process_mib"], r["cache_mib"] = round(server.resident_mib("VmHWM")), round(r["metrics"]["kvtl_cache_memory_bytes"] / 2**20, 1)
    return r


def users_of(a, program, begun, arguments):
    with tempfile.TemporaryDirectory() as folder, \
            Server(program, a.model, folder, "--threads", "1", "--context", a.cells, *arguments) as server:
        return talk(a, server, begun)


def users(a):
    text = pathlib.Path(a.text).read_text()
    step = (len(text) - a.chars) // a.users  # so that no two begin alike
    begun = [text[step * u : step * u + a.chars] for u in range(a.users)]
    paged = ["--policy", a.policy, "--memory-mib", a.memory_mib, "--parallel", a.parallel, "--store", "store"]
    if a.against:
        return pairs(a, begun, paged)
    rows = Rows(a, measure="users")

    def row(policy, name, slots, r, process_mib, cache_mib=None):
        rows.add(policy=policy, cache=name, slots=slots, turns=len(r["first"]), seconds=round(r["seconds"], 1),
                 tokens_per_s=round(r["generated"] / r["seconds"], 1), ms_p50=milliseconds(percentile(r["first"], .5)),
                 ms_most=milliseconds(max(r["first"])), reused_percent=round(100 * r["cached"] / r["prompts"]),
                 process_mib=process_mib, cache_mib=cache_mib, histories_tokens=r.get("histories"))

    for policy, name, slots, arguments in ((a.policy, "files", a.parallel, paged),
                                           ("full", "no files", a.whole, ["--policy", "full", "--parallel", a.whole, "--store-mib", "0"])):
        r = users_of(a, a.program, begun, arguments)
        row(policy, f"`kvtl-server`, `{policy}`, {name}", slots, r, r["process_mib"], r["cache_mib"])
    for cells in map(int, a.plain_cells.split(",")) if a.plain else []:
        texts = "".join(f"{len(t.encode())}\n{t}" for t in begun)
        ended = subprocess.run(["/usr/bin/time", "-f", "%M", a.plain, a.model, str(cells), str(a.turns), "16", "1"], input=texts,
                               capture_output=True, text=True, check=True)
        row("llama.cpp", f"llama.cpp, {cells:,} cells", None, json.loads(ended.stdout), round(int(ended.stderr.split()[-1]) / 1024))


def pairs(a, begun, arguments):
    """Two servers in turn, the first one of each pair in turn, too."""
    print("| server | tokens generated per s | p50 ms to the first token | p50 ms of later turns | processor, s | read from flash, MiB | "
          "share in memory | tokens of all histories |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    measured = {"first": [], "second": []}

    def row(name, values):
        print(f"| {name} | {values[0]:.1f} | {values[1]:.0f} | {values[2]:.0f} | {values[3]:.2f} | {values[4]:.1f} | "
              f"{values[5]:.3f} | {values[6]:.0f} |",
              flush=True)

    for pair in range(a.pairs):
        both = [("first", a.program), ("second", a.against)]
        for name, program in both if pair % 2 == 0 else reversed(both):
            r = users_of(a, program, begun, arguments)
            measured[name].append((r["generated"] / r["seconds"], 1000 * statistics.median(r["first"]),
                                   1000 * statistics.median(r["later"]), r["processor"],
                                   r["metrics"]["kvtl_cache_read_bytes_total"] / 2**20, r["metrics"]["kvtl_cache_hit_rate"],
                                   r["histories"]))
            row(name, measured[name][-1])
    for name, all_of in measured.items():
        row(f"{name}, median of {a.pairs}", [statistics.median(column) for column in zip(*all_of)])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["load", "first-token", "failing-remote", "users"])
    parser.add_argument("program", type=lambda p: str(pathlib.Path(p).resolve()))
    parser.add_argument("model", type=lambda p: str(pathlib.Path(p).resolve()))
    parser.add_argument("text", nargs="?")
    parser.add_argument("--requests", type=int, default=10000)
    parser.add_argument("--rates", default="50,100,200")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--users", type=int, default=8)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--chars", type=int, default=3000, help="of a prompt; users: of each user's first one")
    parser.add_argument("--tokens", type=int, default=0, help="random ones, in place of TEXT")
    parser.add_argument("--plain", type=lambda p: str(pathlib.Path(p).resolve()))
    parser.add_argument("--plain-cells", default="4608", help="of llama.cpp's own cache, a size for each run")
    parser.add_argument("--cells", type=int, default=4608, help="tokens of the longest conversation")
    parser.add_argument("--whole", type=int, default=1, help="whole caches that fit into the memory")
    parser.add_argument("--parallel", type=int, default=2, help="conversations that are answered at once")
    parser.add_argument("--at-once", action="store_true", help="all users ask at the same time")
    parser.add_argument("--pause", type=float, default=0, help="seconds before each question, on average; with --at-once")
    parser.add_argument("--against", type=lambda p: str(pathlib.Path(p).resolve()), help="another kvtl-server")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--policy", default="dynakv_estimate")
    parser.add_argument("--memory-mib", default="64")
    parser.add_argument("--json", type=pathlib.Path, help="append the rows to the array in this file")
    a = parser.parse_args()
    if a.what != "load" and not (a.what == "first-token" and a.tokens) and a.text is None:
        parser.error("TEXT is missing; valid: a file of text")
    {"load": load, "first-token": first_token, "failing-remote": failing_remote, "users": users}[a.what](a)


if __name__ == "__main__":
    main()
