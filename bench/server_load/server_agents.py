#!/usr/bin/env python3
# Agents with tool calls at a kvtl-server on loopback, which it starts and ends.
#
#   server_agents.py jobs KVTL-SERVER MODEL TEXT [--seeds 1,2,3] [--slots 2] [--pace 0.3]
#       agents as in bench/agents.hpp (8 to 10, 6 to 14 calls each, three kinds of tools): times of their jobs with a store of
#       files, without, and with a slot for each; and how well PTE and counts of tokens go with the time of a job
#   server_agents.py held KVTL-SERVER MODEL TEXT [--policies full,full_int8,full_int4] [--store-mib 16] [--agents 24]
#       how many agents' contexts a store of some size holds by preset, and the time to the first token of one that comes back
#
# PTE:    prefill token equivalents of a job: tokens of prompts that are computed, and c for each one generated; c is the time
#         of a decoded token in times of a prefilled one, measured on the same server while nobody else asks.
# Time:   of a job's calls, from question to answer, without its tools. Ranks: Spearman's correlation over jobs.
# Prints tables, and rows with --json FILE, as server_load.py. Only the standard library.
# SPDX-License-Identifier: MIT
import argparse
import concurrent.futures
import pathlib
import random
import statistics
import tempfile
import time

from server_load import Rows, Server, milliseconds


# ------------------------------------------------------------------------------------------------------------ jobs
def made_up_agents(seed):
    """For each agent its calls: new tokens, tokens of the answer, seconds of the tool behind it."""
    chance = random.Random(seed)
    agents = []
    for _ in range(chance.randint(8, 10)):
        calls = chance.randint(6, 14)
        agents.append([(chance.randint(300, 900) if i == 0 else chance.randint(30, 300), chance.randint(20, 120),
                        chance.choice([0.3, 2, 10]) * chance.lognormvariate(0, 0.6)) for i in range(calls)])
    return agents


def run_job(server, text, agent, number, pace):
    """What one agent's calls took and counted."""
    said, at = f"Agent {number}. ", 2000 * number
    job = {"seconds": 0.0, "prompts": 0, "computed": 0, "generated": 0, "length": 0}
    time.sleep(pace * 0.5 * number)
    for new, answer, tool_s in agent:
        more = 3 * new  # characters
        said += "".join(text[(at + i) % len(text)] for i in range(more))
        at += more
        _, took, usage, spoken = server.complete(said, answer)
        said += spoken
        job["seconds"] += took
        job["prompts"] += usage["prompt_tokens"]
        job["computed"] += usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
        job["generated"] += usage["completion_tokens"]
        job["length"] = usage["prompt_tokens"] + usage["completion_tokens"]
        time.sleep(pace * tool_s)
    return job


def decode_in_prefills(server, text):
    """Time of a generated token, in times of a prefilled one."""
    ratios = []
    for turn in range(3):
        first, all_of, usage, _ = server.complete("Alone. " + text[20000 + 3000 * turn : 23000 + 3000 * turn], 64)
        ratios.append((all_of - first) / (usage["completion_tokens"] - 1) / (first / usage["prompt_tokens"]))
    return statistics.median(ratios)


def ranks(values):
    order = sorted(range(len(values)), key=values.__getitem__)
    rank, i = [0.0] * len(values), 0
    while i < len(order):
        j = i
        while j + 1 < len(order) and values[order[j + 1]] == values[order[i]]:
            j += 1
        for k in range(i, j + 1):
            rank[order[k]] = (i + j) / 2
        i = j + 1
    return rank


def spearman(a, b):
    a, b = ranks(a), ranks(b)
    mean = statistics.mean(a)
    over = sum((x - mean) * (y - mean) for x, y in zip(a, b))
    return over / (sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b)) ** 0.5


def correlations(done):
    seconds = [j["seconds"] for j in done]
    rank = lambda key: round(spearman([key(j) for j in done], seconds), 3)
    return {"rank_pte": rank(lambda j: j["computed"] + j["cost"] * j["generated"]), "rank_length": rank(lambda j: j["length"]),
            "rank_sent_and_generated": rank(lambda j: j["prompts"] + j["generated"]), "rank_generated": rank(lambda j: j["generated"])}


def jobs(a):
    text = pathlib.Path(a.text).read_text()
    rows = Rows(a, policy=a.policy, measure="agents")
    kinds = {"files": [a.slots, "--store", "store"], "no files": [a.slots, "--store-mib", "0"],
             "a slot for each, no files": [10, "--store-mib", "0"]}
    every = []
    for kind, (slots, *arguments) in kinds.items():
        done = []
        for seed in map(int, a.seeds.split(",")):
            agents = made_up_agents(seed)
            with tempfile.TemporaryDirectory() as folder, \
                    Server(a.program, a.model, folder, "--threads", "1", "--policy", a.policy, "-c", a.context, "--parallel", slots,
                           "--memory-mib", a.memory_mib, *arguments) as server:
                cost = decode_in_prefills(server, text)
                with concurrent.futures.ThreadPoolExecutor(len(agents)) as all_agents:
                    these = list(all_agents.map(lambda n: run_job(server, text, agents[n], n, a.pace), range(len(agents))))
            done += [j | {"cost": cost} for j in these]
        every += done
        rows.add(server=kind, slots=slots, jobs=len(done), mean_job_s=round(statistics.mean(j["seconds"] for j in done), 2),
                 longest_job_s=round(max(j["seconds"] for j in done), 2), tokens_sent=sum(j["prompts"] for j in done),
                 tokens_computed=sum(j["computed"] for j in done), tokens_generated=sum(j["generated"] for j in done),
                 decode_in_prefills=round(statistics.median(j["cost"] for j in done), 1), **correlations(done))
    rows.add(server="all of these", slots=None, jobs=len(every), mean_job_s=None, longest_job_s=None, tokens_sent=None, tokens_computed=None,
             tokens_generated=None, decode_in_prefills=None, **correlations(every))


# ------------------------------------------------------------------------------------------------------------ held
def held(a):
    text = pathlib.Path(a.text).read_text()
    for policy in a.policies.split(","):
        rows = Rows(a, policy=policy, measure="held agents")
        texts = [f"Agent {n}. " + text[1000 * n : 1000 * n + a.chars] for n in range(a.agents)]
        with tempfile.TemporaryDirectory() as folder:
            arguments = ["--threads", "1", "--policy", policy, "--parallel", "1", "--memory-mib", a.memory_mib, "--store", "store",
                         "--store-mib", a.store_mib]
            with Server(a.program, a.model, folder, *arguments) as server:
                computed = [server.complete(t)[0] for t in texts]
                server.complete("The last one is stored when its slot is needed.")
                end = server.metrics()
            with Server(a.program, a.model, folder, *arguments) as server:
                back = [server.complete(t) for t in reversed(texts[-3:])]
        stored = int(end["kvtl_store_conversations"])
        rows.add(agents=len(texts), tokens_each=round(statistics.mean(b[2]["prompt_tokens"] for b in back)), store_mib=a.store_mib, held=stored,
                 mib_each=round(end["kvtl_store_bytes"] / stored / 2**20, 2), ms_computed=milliseconds(statistics.median(computed)),
                 ms_from_file=milliseconds(statistics.median(b[0] for b in back)),
                 tokens_reused=[b[2]["prompt_tokens_details"]["cached_tokens"] for b in back])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["jobs", "held"])
    parser.add_argument("program", type=lambda p: str(pathlib.Path(p).resolve()))
    parser.add_argument("model", type=lambda p: str(pathlib.Path(p).resolve()))
    parser.add_argument("text")
    parser.add_argument("--seeds", default="1,2,3", help="of the made-up agents")
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--pace", type=float, default=0.3, help="tools take this share of their time")
    parser.add_argument("--context", type=int, default=6144)
    parser.add_argument("--policy", default="dynakv_estimate")
    parser.add_argument("--memory-mib", default="64")
    parser.add_argument("--policies", default="full,full_int8,full_int4,dynakv_estimate")
    parser.add_argument("--store-mib", type=int, default=16)
    parser.add_argument("--agents", type=int, default=24)
    parser.add_argument("--chars", type=int, default=3600)
    parser.add_argument("--json", type=pathlib.Path, help="append the rows to the array in this file")
    a = parser.parse_args()
    {"jobs": jobs, "held": held}[a.what](a)


if __name__ == "__main__":
    main()
