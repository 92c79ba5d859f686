#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""libgdn against the torch functions that Hugging Face's Qwen3-Next falls back to, on the CPU.

    PYTHONPATH=python GDN_LIBRARY=.../libgdn.so bench/peers/hf/race_hf.py [--seconds 3]

One process, the same inputs, interleaved rounds, medians; a JSON line per case. Needs torch and
transformers. torch_chunk_gated_delta_rule is raced by gdn_prefill, torch_recurrent_.. by
gdn_decode; both normalise q and k inside the call.
"""
import argparse
import json
import statistics
import time

import gdn
import torch
import transformers
from transformers.models.qwen3_next import modeling_qwen3_next as hf

D, HK = 128, 16


def inputs(B, T, Hv):
    generator = torch.Generator().manual_seed(1)

    def rand(*shape):
        return torch.rand(*shape, generator=generator)

    return dict(q=rand(B, T, HK, D) - 0.5, k=rand(B, T, HK, D) - 0.3, v=2 * rand(B, T, Hv, D) - 1,
                g=-0.001 - 0.5 * rand(B, T, Hv) ** 4, beta=rand(B, T, Hv),
                state=0.2 * (rand(B, Hv, D, D) - 0.5))


def rounds(contenders, seconds, clock=time.perf_counter):
    """Median seconds of one call of each, by that clock."""
    times, batch = [[] for _ in contenders], []
    for call in contenders:
        call()
        start = clock()
        call()
        batch.append(1 + int(0.03 / (clock() - start)))
    begin = time.perf_counter()
    while len(times[0]) < 5 or time.perf_counter() - begin < seconds:
        for call, n, found in zip(contenders, batch, times):
            start = clock()
            for _ in range(n):
                call()
            found.append((clock() - start) / n)
    return [statistics.median(found) for found in times], len(times[0])


def race(op, B, T, Hv, threads, seconds):
    x = inputs(B, T, Hv)
    torch.set_num_threads(threads)
    group = Hv // HK
    wide = [x[name].repeat_interleave(group, 2) for name in ("q", "k")]  # as the layer does
    function = hf.torch_chunk_gated_delta_rule if op == "prefill" else \
        hf.torch_recurrent_gated_delta_rule
    result = {}

    def peer():
        with torch.no_grad():
            result["out"], result["state"] = function(
                *wide, x["v"], g=x["g"], beta=x["beta"], initial_state=x["state"],
                output_final_state=True, use_qk_l2norm_in_kernel=True)

    own = {name: value.numpy() for name, value in x.items()}
    own["out"], own["state_out"] = (torch.zeros_like(x[n]).numpy() for n in ("v", "state"))
    with gdn.Context(threads=threads) as ctx:
        fields = dict(own, norm=gdn.NORM_L2, state_layout=gdn.STATE_KV)

        def ours():
            getattr(ctx, op)(**fields)

        peer(), ours()
        difference = max(abs(result["out"].numpy() - own["out"]).max(),
                         abs(result["state"].numpy() - own["state_out"]).max())
        (theirs, mine), n = rounds([peer, ours], seconds)
        isa = ctx.isa
    peer = f"{transformers.__version__}, torch {torch.__version__}"
    print(json.dumps(dict(
        op=op, peer="transformers", peer_commit=peer, isa=isa, threads=threads,
        heads=f"{HK}/{Hv}", dim=D, T=T, B=B, dtype="f32", rounds=n,
        difference=float(difference), peer_ms=1e3 * theirs, ms=1e3 * mine,
        speedup=theirs / mine)), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3)
    seconds = parser.parse_args().seconds
    for Hv in (32, 48):
        for threads in (1, 2):
            for T in (512, 2048):
                race("prefill", 1, T, Hv, threads, seconds)
            for B in (1, 8, 32):
                race("decode", B, 1, Hv, threads, seconds)


if __name__ == "__main__":
    main()
