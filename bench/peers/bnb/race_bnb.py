#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""libgdn against the fused rule of bitsandbytes-cpu-fork, on the CPU: prefill, and a forward with
its backward pass.

    pip install --no-deps --target FOLDER bitsandbytes-cpu-fork
    OMP_NUM_THREADS=1 PYTHONPATH=python:FOLDER GDN_LIBRARY=.../libgdn.so \\
        bench/peers/bnb/race_bnb.py [--seconds 3] [--clock wall|cpu]

--clock cpu measures processor time, for one thread on a machine where other programs run.

One process, the same inputs, interleaved rounds, medians; a JSON line per case. Both are called
through torch, with as many threads as OMP_NUM_THREADS says. Keys and queries have length 1. The
peer has one head of q and k for each head of v, so libgdn gets those too.
"""
import argparse
import importlib.metadata
import json
import os
import pathlib
import sys
import time

import gdn.torch
import torch
from bitsandbytes import gdn_cpu

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "hf"))
from race_hf import D, inputs, rounds  # noqa: E402

HV = 32
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
NAMES = "q", "k", "v", "g", "beta", "state"


def wide(T):
    x = inputs(1, T, HV)
    for name in ("q", "k"):
        x[name] = torch.nn.functional.normalize(x[name], dim=-1).repeat_interleave(2, 2)
    return x


def peer(x):
    return gdn_cpu.fused_recurrent_gated_delta_rule(
        x["q"], x["k"], x["v"], x["beta"], x["g"], scale=D ** -0.5, initial_state=x["state"],
        output_final_state=True)


def ours(x):
    return gdn.torch.prefill(*(x[name] for name in NAMES[:5]), state=x["state"],
                             state_layout=gdn.STATE_KV, return_state=True)


def results(call, x, dout, is_train):
    """Outputs, final state and, in training, all gradients."""
    if not is_train:
        with torch.no_grad():
            return call(x)
    leaves = {name: x[name].detach().requires_grad_() for name in NAMES}
    out, state = call(leaves)
    gradients = torch.autograd.grad((out * dout).sum() + state.sum(), list(leaves.values()))
    return (out.detach(), state.detach(), *gradients)


def race(op, dtype, T, seconds, clock):
    is_train = op == "gradients"
    x = wide(T)
    for name in "qkv":
        x[name] = x[name].to(dtype)
    dout = torch.randn(x["v"].shape, generator=torch.Generator().manual_seed(2)).to(dtype)
    found = {call: results(call, x, dout, is_train) for call in (peer, ours)}
    difference = max(float((a.float() - b.float()).norm() / b.float().norm())
                     for a, b in zip(found[peer], found[ours]))
    (theirs, mine), n = rounds([lambda: results(peer, x, dout, is_train),
                                lambda: results(ours, x, dout, is_train)], seconds,
                                CLOCKS[clock])
    version = importlib.metadata.version("bitsandbytes-cpu-fork")
    print(json.dumps(dict(
        op=op, peer="bitsandbytes-cpu-fork", peer_commit=f"{version}, torch {torch.__version__}",
        isa=gdn.info()["isa"], threads=torch.get_num_threads(), heads=f"{HV}/{HV}", dim=D, T=T,
        B=1, dtype=str(dtype).removeprefix("torch."), clock=clock, rounds=n, difference=difference,
        peer_ms=1e3 * theirs, ms=1e3 * mine, speedup=theirs / mine)), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))
    for op in ("prefill", "gradients"):
        for dtype in (torch.float32, torch.bfloat16):
            for T in (128, 512, 2048):
                race(op, dtype, T, options.seconds, options.clock)


if __name__ == "__main__":
    main()
