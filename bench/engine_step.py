#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
engine_step.py - a step of an engine on one GPU: prompts and rows of one token in one call, beside
the two calls of its parts. One JSON line for each step.

    PYTHONPATH=python GDN_LIBRARY=.../libgdn.so bench/engine_step.py [--file lines.jsonl]

Raw gates, the norm of q and k inside, states in slots of a pool. `one` is a prefill of all;
`parts` a prefill of the prompts and a decode of the rows of one token, whose times are apart too.
They are captured, and replayed in turns with 256 MB written before each.
"""
import argparse
import itertools
import json
import pathlib
import statistics
import sys

import gdn
import gdn.torch
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent / "peers" / "gpu"))
from race_gpu import FLUSH, commit, graph_of, rounds  # noqa: E402

HEADS = (16, 32), (2, 8), (16, 64)
BATCHES = (((512,), 128), ((2048,), 32), ((2048,), 128), ((8192,), 64), ((1024, 300, 4000), 64),
           ((64,), 8), ((512,), 8))


def inputs(hk, hv, N, B):
    f32, bf16 = dict(device="cuda"), dict(device="cuda", dtype=torch.bfloat16)
    q, k, v = (torch.randn(N, h, 128, **bf16) for h in (hk, hk, hv))
    return dict(q=q, k=k, v=v, g=torch.randn(N, hv, **bf16), beta=torch.randn(N, hv, **bf16),
                out=torch.empty_like(v), A_log=torch.rand(hv, **f32) * 2.7,
                dt_bias=torch.rand(hv, **f32) * 5 - 7,
                state=torch.randn(2 * B, hv, 128, 128, **f32) / 16)


OPTIONS = dict(gate=gdn.GATE_RAW, beta_kind=gdn.BETA_SIGMOID, norm=gdn.NORM_L2)
BY_TOKEN = ("q", "k", "v", "g", "beta", "out")


def own_context():
    """A captured call keeps the workspace of its context: no other call may replace it."""
    return gdn.Context(backend="cuda")


def prefill(x, lengths, slots):
    cuts = torch.tensor([0, *lengths], device="cuda").cumsum(0).int()
    fields = {n: t[:sum(lengths)] if n in BY_TOKEN else t for n, t in x.items()}
    ctx, batch = own_context(), gdn.Batch(cu_seqlens=cuts, read_slots=slots)
    return lambda: ctx.prefill(**fields, **OPTIONS, batch=batch,
                               stream=torch.cuda.current_stream())


def decode(x, first, slots):
    fields = {n: t[first:, None] if n in BY_TOKEN else t for n, t in x.items()}
    ctx, batch = own_context(), gdn.Batch(read_slots=slots)
    return lambda: ctx.decode(**fields, **OPTIONS, batch=batch,
                              stream=torch.cuda.current_stream())


def measure(hk, hv, prompts, rows, options, flush):
    N, B = sum(prompts) + rows, len(prompts) + rows
    x = inputs(hk, hv, N, B)
    slots = torch.arange(0, 2 * B, 2, dtype=torch.int32, device="cuda")
    first = prefill(x, prompts, slots[:len(prompts)])
    then = decode(x, sum(prompts), slots[len(prompts):])
    calls = dict(one=prefill(x, prompts + (1,) * rows, slots), prefill=first, decode=then,
                 parts=lambda: (first(), then()))
    times = rounds({n: graph_of(c) for n, c in calls.items()}, options.rounds, flush)
    us = {n: statistics.median(t) for n, t in times.items()}
    return dict(bench="engine_step", Hq=hk, Hv=hv, prompts=list(prompts), rows=rows, us=us,
                ratio=us["one"] / us["parts"])


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    p.add_argument("--rounds", type=int, default=21)
    p.add_argument("--file", help="lines are appended to it")
    p.add_argument("--commit", default=commit(), help="that was built")
    options = p.parse_args()
    isa = own_context().isa
    flush = torch.empty(FLUSH, dtype=torch.uint8, device="cuda")
    for (hk, hv), (prompts, rows) in itertools.product(HEADS, BATCHES):
        line = measure(hk, hv, prompts, rows, options, flush)
        line.update(commit=options.commit, command="engine_step.py", isa=isa,
                    device=torch.cuda.get_device_name())
        print(json.dumps(line), flush=True)
        if options.file:
            with open(options.file, "a") as f:
                f.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
