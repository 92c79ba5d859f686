#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
family_cpu.py - calls of the family on a CPU beside those of Gated DeltaNet: float32, log gates of
-0.05 to 0, betas of 0 to 1. Rules take turns in one process. Times are of the processor, in
milliseconds; one JSON line for each op, with the minimum of the rounds and the median of the ratio
to Gated DeltaNet in the same round. It wants numpy.

    PYTHONPATH=python GDN_LIBRARY=.../libgdn.so bench/family_cpu.py [--ops prefill_backward,...]
"""

import argparse
import json
import statistics
import sys
import time

import gdn
import numpy as np

RULES = {  # channels of g and beta, a write gate, updates of a token
    "gdn": (False, False, False, 1),
    "kda": (True, False, False, 1),
    "gdn2": (True, True, True, 1),
}


def draw(rule, B, T, heads, D):
    g_rows, beta_rows, write, n = RULES[rule]
    of = np.random.default_rng(7)
    qk, v = heads

    def rows(count, head, channels):
        return of.random((B, count, head, *([D] if channels else [])), dtype=np.float32)

    q, k = rows(T, qk, True) - 0.5, rows(n * T, qk, True) - 0.5
    given = dict(q=q, k=k, v=rows(n * T, v, True) - 0.5, g=-0.05 * rows(T, v, g_rows),
                 beta=rows(n * T, v, beta_rows))
    if write:
        given["write_gate"] = rows(n * T, v, True)
    return given


def call_of(ctx, op, rule, B, T, heads, D):
    x = draw(rule, B, T, heads, D)
    x.update(updates=RULES[rule][3], norm=gdn.NORM_L2)
    if op == "prefill_backward":
        x["dout"] = np.ones_like(x["v"])
        names = [name for name in ("q", "k", "v", "g", "beta", "write_gate") if name in x]
        x.update({"d" + name: np.empty_like(x[name]) for name in names})
    else:
        x["out"] = np.empty_like(x["v"])
        x["state"] = np.zeros((B, heads[1], D, D), dtype=np.float32)
    return lambda: getattr(ctx, op)(**x)


def timed(call):
    start = time.process_time()
    call()
    return 1e3 * (time.process_time() - start)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ops", default="prefill_backward,prefill,decode")
    parser.add_argument("--rules", default="kda,gdn2")
    parser.add_argument("--heads", default="16/32")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=8, help="sequences of decode")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--isa")
    parser.add_argument("--commit", default="")
    o = parser.parse_args()
    heads, names = tuple(map(int, o.heads.split("/"))), ["gdn", *o.rules.split(",")]
    ctx = gdn.Context(threads=1, **({"isa": o.isa} if o.isa else {}))
    for op in o.ops.split(","):
        B, T = (o.batch, 1) if op == "decode" else (1, o.tokens)
        calls = {name: call_of(ctx, op, name, B, T, heads, 128) for name in names}
        times = {name: [] for name in names}
        inner = 40 if op == "decode" else 1
        for i in range(o.rounds + 1):
            for name in names[i % len(names):] + names[:i % len(names)]:
                ms = sum(timed(calls[name]) for _ in range(inner)) / inner
                if i:
                    times[name].append(ms)
        line = dict(commit=o.commit, command=" ".join(sys.argv), isa=ctx.isa, threads=1,
                    clock="cpu", op=op, heads=o.heads, dim=128, B=B, T=T,
                    dtype="f32", rounds=o.rounds)
        for name in names:
            line[name + "_ms_min"] = round(min(times[name]), 3)
            if name != "gdn":
                line[name + "_of_gdn_min"] = round(min(times[name]) / min(times["gdn"]), 3)
                pairs = (a / b for a, b in zip(times[name], times["gdn"]))
                line[name + "_of_gdn_median"] = round(statistics.median(pairs), 3)
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
