#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`gdn generate` against llama.cpp on one model: race_llama.py MODEL MODEL.gguf [--threads 1,2]

MODEL.gguf is what convert.py made of the folder MODEL. llama.cpp is the module xllamacpp, whose
wheels hold a stock build. Rounds take turns; a JSON line per case has the median of processor time
per token, in ms, and of tokens per second, from rounds in which other programs took less than a
tenth of the machine, if there were any. Loading is in neither: a call with more tokens is compared
with one with fewer. same_text: characters of 48 greedy tokens before the first other one.
"""
import argparse
import json
import os
import pathlib
import re
import resource
import statistics
import subprocess
import time

import xllamacpp

TEXT = ("The value of the standard library is that of its parts. An object is a part of a type, "
        "and a name is bound to an object in the scope of a block. ") * 8
CASES = {"prompt": ((1, 1), (513, 1)), "generation": ((8, 1), (8, 65))}  # (prompt, new tokens)


def others(before):
    """The share of the machine that went to other programs since then; its times now."""
    fields = [int(x) for x in open("/proc/stat").readline().split()[1:9]]
    used = sum(os.times()[:4])
    now = (sum(fields), fields[3] + fields[4], used)
    if not before:
        return 0, now
    ticks, idle = now[0] - before[0], now[1] - before[1]
    own = (now[2] - before[2]) * os.sysconf("SC_CLK_TCK")
    return max(0, (ticks - idle - own) / max(1, ticks)), now


class Gdn:
    def __init__(self, model, gdn, threads):
        self.command = [gdn, "generate", model, "--speed", "--threads", str(threads)]

    def run(self, prompt, n):
        """The text, its processor time, and its seconds without loading."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        p = subprocess.run([*self.command, "-p", TEXT[:prompt], "-n", str(n)], check=True,
                           capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = [float(x) for x in re.findall(r"([\d.e+-]+) s,", p.stderr.decode())]
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return p.stdout[prompt:].decode(errors="replace"), cpu, sum(seconds)


class Llama:
    def __init__(self, model, threads):
        params = xllamacpp.CommonParams()
        params.model.path, params.n_ctx, params.n_parallel, params.verbosity = model, 1024, 1, 0
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        self.server = xllamacpp.Server(params)

    def run(self, prompt, n):
        before = time.process_time()
        answer = self.server.handle_completions(dict(
            prompt=list(TEXT[:prompt].encode()), max_tokens=n, temperature=0, ignore_eos=True,
            cache_prompt=False))
        cpu, t = time.process_time() - before, answer["timings"]
        text = answer["choices"][0]["text"]
        return text, cpu, (t["prompt_ms"] + t["predicted_ms"]) / 1e3


def cost(contender, case):
    """Processor time and seconds of the tokens that the larger call has more than the smaller."""
    _, few_cpu, few_seconds = contender.run(*case[0])
    _, many_cpu, many_seconds = contender.run(*case[1])
    return many_cpu - few_cpu, many_seconds - few_seconds


def race(case, contenders, rounds):
    tokens, cpu, seconds = sum(case[1]) - sum(case[0]), [[], []], [[], []]
    for _ in range(rounds):
        for i, contender in enumerate(contenders):
            _, before = others(None)
            used, took = cost(contender, case)
            cpu[i].append(used * 1e3 / tokens)
            if others(before)[0] < 0.1:
                seconds[i].append(took)
    ms = [statistics.median(x) for x in cpu]
    found = dict(tokens=tokens, rounds=rounds, ms=ms[0], peer_ms=ms[1], speedup=ms[1] / ms[0])
    if all(seconds):
        speed = [tokens / statistics.median(x) for x in seconds]
        found.update(tokens_per_second=speed[0], peer_tokens_per_second=speed[1])
    return found


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=pathlib.Path, metavar="MODEL")
    p.add_argument("gguf", metavar="MODEL.gguf")
    p.add_argument("--gdn", default="build/release/gdn")
    p.add_argument("--threads", default="1,2")
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--commit", default="", help="of libgdn, for the lines")
    args = p.parse_args()
    info = json.loads(subprocess.check_output([args.gdn, "info", "--json"]))
    for threads in map(int, args.threads.split(",")):
        contenders = Gdn(str(args.model), args.gdn, threads), Llama(args.gguf, threads)
        same = os.path.commonprefix([c.run(13, 48)[0] for c in contenders])
        for case in CASES:
            print(json.dumps(dict(
                commit=args.commit, op=case,
                command=f"race_llama.py {args.model.name} --rounds {args.rounds}",
                peer="llama.cpp", peer_commit=f"xllamacpp {xllamacpp.__version__}",
                device=info["device"], isa=info["isa"], model=args.model.name, threads=threads,
                same_text=len(same), **race(CASES[case], contenders, args.rounds))), flush=True)


if __name__ == "__main__":
    main()
