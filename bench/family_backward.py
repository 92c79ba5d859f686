# SPDX-License-Identifier: Apache-2.0
"""
family_backward.py - gradients of the family on a GPU, in milliseconds, beside those of Gated
DeltaNet: bf16, q k v of 128, log gates of -0.05 to 0 and betas of 0 to 1 in float32, all gradients
but those of states. One JSON line for each rule and shape: the median of 15 calls, by events. It
wants torch.

    GDN_CUDA_WITHOUT=sm90 python bench/family_backward.py [COMMIT] [HEADSxBxT...]
"""

import json
import os
import statistics
import sys

import gdn
import torch

D, CALLS = 128, 15
RULES = {  # channels of g and beta, a write gate, updates of a token
    "gdn": (False, False, False, 1),
    "kda": (True, False, False, 1),
    "gdn2": (True, True, True, 1),
    "gdp2": (False, False, False, 2),
}


def draw(rule, B, T, H):
    g_rows, beta_rows, write, n = RULES[rule]

    def bf16(*shape):
        return torch.randn(*shape, D, device="cuda", dtype=torch.bfloat16)

    def f32(rows, channels):
        return torch.rand(B, rows, H, *([D] if channels else []), device="cuda")

    q, k, v, dout = bf16(B, T, H), bf16(B, n * T, H), bf16(B, n * T, H), bf16(B, T, H)
    given = dict(q=q, k=k, v=v, dout=dout, g=-0.05 * f32(T, g_rows), beta=f32(n * T, beta_rows))
    if write:
        given["write_gate"] = f32(n * T, True)
    made = {"d" + name: torch.empty_like(t) for name, t in given.items() if name != "dout"}
    return {**given, **made}


def measure(ctx, fields, updates):
    times = []
    for i in range(CALLS + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        ctx.prefill_backward(**fields, updates=updates, norm=gdn.NORM_L2,
                             stream=torch.cuda.current_stream().cuda_stream)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times[3:]), min(times[3:])


def main():
    commit = sys.argv[1] if len(sys.argv) > 1 else ""
    shapes = sys.argv[2:] or ["32x1x8192", "32x1x2048"]
    ctx = gdn.Context(backend="cuda")
    for shape in shapes:
        H, B, T = map(int, shape.split("x"))
        for rule in RULES:
            fields = draw(rule, B, T, H)
            ms, least = measure(ctx, fields, RULES[rule][3])
            print(json.dumps(dict(
                commit=commit, command="python bench/family_backward.py", version=gdn.version(),
                without=os.environ.get("GDN_CUDA_WITHOUT", ""), op="prefill_backward",
                device=torch.cuda.get_device_name(), rule=rule, heads=f"{H}/{H}", dim=D, B=B, T=T,
                dtype="bf16", ms=round(ms, 4), least_ms=round(least, 4),
                kernel=ctx.last_kernel)), flush=True)


main()
