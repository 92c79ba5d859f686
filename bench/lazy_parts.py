# SPDX-License-Identifier: Apache-2.0
"""
lazy_parts.py - what a lazy state costs on a CPU by the rows that are pending: decode of 32
sequences, 16 key and 32 state heads of 128, one token, bf16 inputs and rows, R = 16, one thread.
One JSON line for each dtype and layout of the state: milliseconds of plain decode, of a call with
0 to 14 pending rows, of the call that folds, and the mean over R calls. All are medians of the
thread's processor time over rounds, in which each kind follows the others.

    python bench/lazy_parts.py [--rounds N]
"""

import json
import statistics
import sys
import time

import gdn
import torch

B, HK, H, D, R = 32, 16, 32, 128, 16
COUNTS = 0, 1, 4, 8, 14, R - 1


def by_head(heads, *size, dtype=torch.bfloat16):
    return torch.randn(B, heads, R, *size).mul(0.1).to(dtype).transpose(1, 2)


def fields(dtype):
    bf16 = torch.bfloat16
    return dict(q=torch.randn(B, 1, HK, D).to(bf16), k=torch.randn(B, 1, HK, D).to(bf16),
                v=torch.randn(B, 1, H, D).to(bf16), g=torch.full((B, 1, H), -0.01),
                beta=torch.full((B, 1, H), 0.5), out=torch.zeros(B, 1, H, D, dtype=bf16),
                state=torch.zeros(B, H, D, D).to(dtype))


def timed(call):
    start = time.thread_time_ns()
    call()
    return (time.thread_time_ns() - start) / 1e6


def measure(ctx, dtype, layout, rounds):
    given = dict(fields(dtype), norm=gdn.NORM_L2, state_layout=layout)
    count = torch.zeros(B, dtype=torch.int32)
    record = dict(record_k=by_head(HK, D), record_u=by_head(H, D), record_count=count,
                  record_g=by_head(H, dtype=torch.float32).fill_(0.99))
    times = {key: [] for key in ("plain", *COUNTS)}
    for _ in range(rounds):
        times["plain"].append(timed(lambda: ctx.decode(**given)))
        for pending in COUNTS:
            count.fill_(pending)
            times[pending].append(timed(lambda: ctx.decode(**given, **record)))
    return {key: statistics.median(values) for key, values in times.items()}


def mean_of(ms):
    """Over R calls; between the counts that were measured time is a line."""
    total, at = ms[R - 1], 0
    for a, b in zip(COUNTS, COUNTS[1:-1]):
        total += sum(ms[a] + (ms[b] - ms[a]) * i / (b - a) for i in range(b - a))
        at = b
    return (total + ms[at]) / R


def main():
    rounds = int(sys.argv[sys.argv.index("--rounds") + 1]) if "--rounds" in sys.argv else 25
    with gdn.Context(threads=1) as ctx:
        for dtype in torch.float32, torch.bfloat16:
            for name, layout in ("k_last", gdn.STATE_VK), ("k_first", gdn.STATE_KV):
                ms = measure(ctx, dtype, layout, rounds)
                mean = mean_of(ms)
                print(json.dumps(dict(
                    bench="lazy_parts", state=str(dtype)[6:], layout=name, gdn=gdn.version(),
                    plain_ms=round(ms["plain"], 2), fold_ms=round(ms[R - 1], 2),
                    pending_ms={c: round(ms[c], 2) for c in COUNTS[:-1]},
                    mean_ms=round(mean, 2), gain=round(ms["plain"] / mean, 3))), flush=True)


if __name__ == "__main__":
    main()
