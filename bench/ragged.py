#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
ragged.py - prefill of random batches of long and short sequences on one GPU: what a call costs if
it says nothing of lengths, beside the best of what a caller might do instead. One JSON line for
each batch, and a last one of all.

    PYTHONPATH=python GDN_LIBRARY=.../libgdn.so bench/ragged.py --batches 300 --file lines.jsonl

Calls: `none` without max_seqlen; `max` with the true one; `all` with the number of all tokens;
`whole` without segments; `alone` each sequence in a call of its own, the sum; `long` the longest
alone and the others in a second call. They are captured, and replayed in turns with 256 MB written
before each. The first rows are even batches, where only `none`, `max` and `whole` say something.
"""
import argparse
import json
import math
import pathlib
import random
import statistics
import sys

import gdn
import gdn.torch
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent / "peers" / "gpu"))
import gates  # noqa: E402
from race_gpu import FLUSH, graph_of, rounds  # noqa: E402

HEADS = (1, 2), (2, 4), (2, 8), (4, 16), (8, 24), (16, 16), (16, 32), (16, 48), (16, 64), (32, 64)
TOKENS = 65536 * 32  # of all value heads, at most
KNOWN = (  # the ragged rows of the issue
    (2, 8, (24576, 8192)), (2, 8, (12000, 3000, 100)), (4, 16, (24576, 8192)),
    (16, 48, (24576, 8192)), (16, 48, (20000, 500)), (8, 24, (16384, 1024, 1024, 1024)))


EVEN = tuple((hk, hv, (length,) * count) for hk, hv, length, count in (
    (16, 32, 8192, 4), (16, 32, 2048, 16), (16, 32, 2048, 4), (16, 32, 1024, 8), (16, 32, 4096, 8),
    (16, 64, 2048, 4), (2, 8, 2048, 16), (2, 8, 8192, 16), (2, 8, 4864, 4), (4, 16, 8192, 4),
    (16, 16, 8192, 4), (8, 24, 8192, 4), (2, 4, 512, 33), (2, 4, 2048, 33), (1, 2, 64, 1000),
    (2, 8, 64, 1000), (2, 4, 200, 1000), (16, 32, 33, 500)))


def drawn(draw):
    """Head counts, and 1 to 32 lengths, log-uniform from 1 to what the tokens allow."""
    hk, hv = draw.choice(HEADS)
    room = min(TOKENS // hv, 131072)
    count = round(2 ** draw.uniform(0, 5))
    lengths = [round(room ** draw.uniform(0.3, 1)) for _ in range(count)]
    share = max(1, sum(lengths) / room)
    return hk, hv, tuple(max(1, int(length / share)) for length in lengths)


def inputs(hk, hv, lengths, kind):
    n, bf16 = sum(lengths), dict(device="cuda", dtype=torch.bfloat16)
    q, k, v = (torch.randn(n, h, 128, **bf16) for h in (hk, hk, hv))
    g = gates.logs(kind, lengths, hv).cuda()
    state = torch.zeros(len(lengths), hv, 128, 128, device="cuda")
    return dict(q=q, k=k, v=v, g=g, beta=torch.rand(n, hv, device="cuda"), state=state,
                out=torch.empty_like(v))


def part(x, cuts, first, last):
    """A call of the sequences from first to last."""
    rows = slice(cuts[first], cuts[last])
    some = {name: t[first:last] if name == "state" else t[rows] for name, t in x.items()}
    if last - first > 1:
        local = [cut - cuts[first] for cut in cuts[first:last + 1]]
        some["cu_seqlens"] = torch.tensor(local, dtype=torch.int32, device="cuda")
    return some


def ways(x, lengths):
    """By name: calls that compute the same."""
    cuts = [0]
    for length in lengths:
        cuts.append(cuts[-1] + length)
    n, whole = len(lengths), part(x, cuts, 0, len(lengths))
    at = max(range(n), key=lengths.__getitem__)
    pieces = [(a, b) for a, b in ((0, at), (at, at + 1), (at + 1, n)) if a < b]
    calls = dict(none=[dict(whole)], max=[dict(whole, max_seqlen=max(lengths))],
                 all=[dict(whole, max_seqlen=sum(lengths))],
                 whole=[dict(whole, flags=gdn.BATCH_INVARIANT)])
    if len(set(lengths)) > 1:
        calls["alone"] = [part(x, cuts, i, i + 1) for i in range(n)]
        calls["long"] = [part(x, cuts, a, b) for a, b in pieces]
    return {name: lambda rows=rows: [gdn.torch.prefill(**row, norm=gdn.NORM_L2) for row in rows]
            for name, rows in calls.items()}


def measured(hk, hv, lengths, kind, options, flush):
    x = inputs(hk, hv, lengths, kind)
    runs = {name: graph_of(call) for name, call in ways(x, lengths).items()}
    times = rounds(runs, options.rounds, flush)
    us = {name: round(statistics.median(found), 1) for name, found in times.items()}
    return dict(heads=f"{hk}/{hv}", seqs="+".join(map(str, lengths)), B=len(lengths), gates=kind,
                us=us, over_best=round(us["none"] / min(us.values()), 3),
                over_alone=round(us["none"] / us.get("alone", us["none"]), 3))


def main():
    parser = argparse.ArgumentParser(description="prefill of random ragged batches")
    parser.add_argument("--batches", type=int, default=300)
    parser.add_argument("--gates", default="model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--file")
    options = parser.parse_args()
    draw, lines = random.Random(11), []
    torch.manual_seed(0)
    flush = torch.empty(FLUSH, dtype=torch.uint8, device="cuda")
    rows = [*EVEN, *KNOWN, *(drawn(draw) for _ in range(options.batches))]
    with torch.no_grad():
        for hk, hv, lengths in rows:
            lines.append(measured(hk, hv, lengths, options.gates, options, flush))
    over = sorted(line["over_best"] for line in lines[len(EVEN):])
    lines.append(dict(rows=len(over), gates=options.gates, geomean=round(math.exp(
        statistics.fmean(map(math.log, over))), 3), median=statistics.median(over),
        p90=over[int(0.9 * len(over))], most=over[-1], within=sum(x <= 1.05 for x in over)))
    print(json.dumps(lines[-1]))
    if options.file:
        command = f"ragged.py --batches {options.batches} --gates {options.gates}"
        head = dict(commit=options.commit, command=command, device=torch.cuda.get_device_name())
        with open(options.file, "a") as file:
            file.writelines(json.dumps(head | line) + "\n" for line in lines)


if __name__ == "__main__":
    main()
