#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""libgdn beside FlashInfer, FLA and FlashQLA on one GPU: the same torch tensors, in one process.

    PYTHONPATH=python GDN_LIBRARY=.../libgdn.so bench/peers/gpu/race_gpu.py [--file lines.jsonl]

First each result is compared with the recurrence in float64, on a few heads, and with ours on all.
Then CUDA graphs are replayed in turn, round by round, with 256 MB written before each replay so
that nothing starts in L2; times are medians. A JSON line per case and peer. A peer that is not
installed is named and left out; what one refuses or computes wrongly is kept in its line.
"""
import argparse
import json
import math
import pathlib
import statistics
import subprocess
import sys
import time

import contenders
import torch
from cases import cases, errors, expected, inputs, off

WRONG = 0.1  # errors of 10 % are none of rounding: not timed
TFLOPS, TBS = 790, 4.3  # of an H200, as measured by large products and copies
HERE = pathlib.Path(__file__).resolve().parent


# ---- Times -------------------------------------------------------------------------------------


def graph_of(call):
    """A captured call, ready to replay; the call itself where it cannot be captured."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    graph.replay()
    torch.cuda.synchronize()
    return graph.replay


def rounds(runs, n, flush):
    """Median microseconds of each, taking turns."""
    times = {name: [] for name in runs}
    for _ in range(n):
        events = {name: [torch.cuda.Event(enable_timing=True) for _ in range(2)] for name in runs}
        for name, run in runs.items():
            flush.zero_()
            torch.cuda._sleep(20000)  # the host is ahead when the replay begins
            events[name][0].record()
            run()
            events[name][1].record()
        torch.cuda.synchronize()
        for name, (start, end) in events.items():
            times[name].append(1e3 * start.elapsed_time(end))
    return {name: statistics.median(found) for name, found in times.items()}


def limit(case, n, flush):
    """Microseconds that no way of computing it can beat, and how that is known."""
    if case.op == "decode":  # scaled in place: the same bytes move
        x = torch.ones(case.state_bytes() // 2 // 4, device="cuda")
        return rounds({"scale": graph_of(lambda: x.mul_(0.999))}, n, flush)["scale"], "scale"
    chunks = sum(math.ceil(T / 64) for T in case.lengths)
    tokens = sum(case.lengths)
    rows = tokens * (2 * case.Hq + 2 * case.Hv) * case.dim * 2
    moved = rows + tokens * case.Hv * 8 + case.state_bytes()
    mflop = (6 * 64 * case.dim**2 + 8 * 64**2 * case.dim) / 1e6  # of a chunk and head
    return max(mflop * chunks * case.Hv / TFLOPS, moved / TBS / 1e6), "computed"


# ---- One case ----------------------------------------------------------------------------------


def attempt(contender, case, x):
    """Its call, the result, and what kept it from having one."""
    try:
        call = getattr(contender, case.op)(case, x)
        out, state = call()
        result = [out.clone(), contenders.shown(case, x, state).clone()]
        if x["v"].is_cuda:
            torch.cuda.synchronize()
        return call, result, None
    except Exception as error:  # whatever a peer raises, the race goes on
        return None, None, f"{type(error).__name__}: {error}".strip()[:200]


def judge(racers, case, x):
    """By contender: what its line says of it; and the calls that can be timed."""
    wanted, said, calls, ours = expected(case, x), {}, {}, None
    for name, contender in racers.items():
        call, result, refusal = attempt(contender, case, x)
        if refusal:
            said[name] = dict(refused=refusal)
            continue
        found = errors(case, result, wanted)
        said[name] = dict(error=found)
        if name == "gdn":
            said[name]["kernel"], ours = contender.kernel(), result
        elif ours:
            said[name]["difference"] = [off(a.float(), b.float()) for a, b in zip(result, ours)]
        if max(found) < WRONG:
            calls[name] = call
        else:
            said[name]["refused"] = f"wrong: off by {max(found):.2g}"
    return said, calls


def race(racers, case, options, flush):
    """What is known of each contender afterwards."""
    x = inputs(case, options.device)
    said, calls = judge(racers, case, x)
    if options.check:
        return said
    runs = {}
    for name, call in calls.items():
        try:
            runs[name] = graph_of(call)
        except Exception as error:
            torch.cuda.synchronize()
            said[name]["refused"] = f"no graph: {type(error).__name__}: {error}"[:200]
    for name, us in rounds(runs, options.rounds, flush).items():
        said[name]["us"] = us
    return said


def lines_of(case, said, common):
    """A line per peer, ours in each; ours alone if nobody else is there."""
    ours = said.get("gdn", {})
    line = common | case.fields()
    for key in ("us", "error", "kernel", "refused"):
        if key in ours:
            line[key] = ours[key]
    if "us" in line and "limit_us" in line:
        line["share"] = line["limit_us"] / line["us"]
    peers = [name for name in said if name != "gdn"]
    if not peers:
        yield line
    for name in peers:
        more = {f"peer_{key}": value for key, value in said[name].items() if key != "difference"}
        if "difference" in said[name]:
            more["difference"] = said[name]["difference"]
        if "us" in line and "peer_us" in more:
            more["speedup"] = more["peer_us"] / line["us"]
        yield line | dict(peer=name, peer_commit=common["versions"][name]) | more


# ---- The whole ---------------------------------------------------------------------------------


def racers_of(options):
    """Ours, and the peers that are there."""
    racers = {"gdn": contenders.Ours(options.device)}
    for name in [] if options.ours_only else options.peers.split(","):
        try:
            racers[name] = contenders.PEERS[name](options.device)
        except Exception as error:  # an import can fail in any way
            print(f"{name}: left out, {type(error).__name__}: {error}"[:300], flush=True)
    return racers


def commit():
    git = ["git", "-C", str(HERE), "rev-parse", "--short=12", "HEAD"]
    try:
        return subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def command():
    """As it was called, but for where lines go."""
    words = ["race_gpu.py", *sys.argv[1:]]
    for option in ("--file", "--commit"):
        if option in words:
            at = words.index(option)
            del words[at : at + 2]
    return " ".join(words)


def shortly(line):
    """For people."""
    parts = [f"{line['op']} {line['heads']} {line['seqs']} {line['state']} {line['layout']}"]
    parts += [key for key in ("pool", "each") if line.get(key)]
    for who, prefix in (("gdn", ""), (line.get("peer"), "peer_")):
        if f"{prefix}us" in line:
            parts.append(f"{who} {line[f'{prefix}us']:.1f} us")
        elif f"{prefix}refused" in line:
            parts.append(f"{who} refused ({line[f'{prefix}refused'][:60]})")
        if f"{prefix}error" in line:
            parts.append("off by {:.1e} {:.1e}".format(*line[f"{prefix}error"]))
    if "speedup" in line:
        parts.append(f"x {line['speedup']:.2f}")
    return ", ".join(parts)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--peers", default=",".join(contenders.PEERS), help="some of %(default)s")
    add("--ours-only", action="store_true")
    add("--op", choices=("prefill", "decode"), help="both without it")
    add("--dims", type=lambda text: [int(dim) for dim in text.split(",")], default=[128],
        help="head sizes: 64,128,256")
    add("--heads", type=heads_of, help="16/32,2/8: instead of those of the tables")
    add("--lengths", type=lengths_of, help="8192x4,100+3000: of prefill")
    add("--batches", type=lambda s: [int(n) for n in s.split(",")], help="1,32: of decode")
    add("--rounds", type=int, default=13)
    add("--seconds", type=float, default=math.inf, help="no case is begun after them")
    add("--check", action="store_true", help="compare and time nothing; without a GPU on the CPU")
    add("--file", help="lines are appended to it")
    add("--commit", default=commit(), help="that was built")
    options = parser.parse_args()
    options.device = "cuda" if torch.cuda.is_available() else "cpu"
    if options.device == "cpu" and not options.check:
        parser.error("no GPU; --check compares without one")
    return options


def heads_of(text):
    return [tuple(map(int, pair.split("/"))) for pair in text.split(",")]


def lengths_of(text):
    """8192x4: four sequences of 8192; 100+3000: one of each."""
    def one(part):
        tokens, _, n = part.partition("x")
        return (int(tokens),) * int(n or 1)
    return [sum(map(one, batch.split("+")), ()) for batch in text.split(",")]


def main():
    options, start = arguments(), time.monotonic()
    racers = racers_of(options)
    name = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    common = dict(
        commit=options.commit, command=command(), device=name,
        isa=racers["gdn"].isa, built_with=contenders.versions(), rounds=options.rounds,
        versions={n: r.version for n, r in racers.items()})
    flush = torch.empty(256 << 20 if options.device == "cuda" else 0, dtype=torch.uint8,
                        device=options.device)
    todo = [case for op in ([options.op] if options.op else ["prefill", "decode"])
            for case in cases(op, options.heads, options.lengths, options.batches, options.dims)]
    for i, case in enumerate(todo):
        if time.monotonic() - start > options.seconds:
            print(f"time is up: {len(todo) - i} of {len(todo)} cases left out")
            break
        said = race(racers, case, options, flush)
        if not options.check:
            common["limit_us"], common["limit_by"] = limit(case, options.rounds, flush)
        for line in lines_of(case, said, common):
            print(shortly(line), flush=True)
            if options.file:
                with open(options.file, "a") as file:
                    file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    with torch.no_grad():
        main()
