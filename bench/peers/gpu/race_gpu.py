#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""libgdn beside its peers on one GPU: the same torch tensors, in one process.

    PYTHONPATH=python GDN_LIBRARY=.../libgdn.so bench/peers/gpu/race_gpu.py [--file lines.jsonl]

First each result is compared with the recurrence in float64, on a few heads, and with ours on all.
Then CUDA graphs of one call are replayed in turn, round by round, the order reversed every round,
with 256 MB written before each replay so that nothing starts in L2. All kinds of gates, all that
may be inside the call, all contenders and all libraries of ours are in the same turns; times are
medians, and what is said of two of them is the median of their ratios round by round. A JSON line
per case, library and peer. A peer that is not installed is named and left out; what one refuses or
computes wrongly is kept in its line.
"""
import argparse
import dataclasses
import gc
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import time

import channels
import contenders
import engines
import gates
import interpreted
import torch
from cases import INSIDE, OPS, SETS, cases
from inputs import inputs, variant
from recurrence import errors, expected, off

WRONG = 0.1  # errors of 10 % are none of rounding: not timed
TFLOPS, TBS = 790, 4.3  # of an H200, as measured by large products and copies
FLUSH = 256 << 20  # bytes
HERE = pathlib.Path(__file__).resolve().parent
PEERS = {"gdn": contenders.PEERS | engines.PEERS, "kda": channels.PEERS}
DEFAULT_PEERS = {"gdn": tuple(contenders.PEERS), "kda": tuple(channels.PEERS)}
DEFAULT_GATES = {"prefill": gates.KINDS, "decode": ("recipe",), "gradients": ("recipe", "model")}
WITHOUT = "GDN_CUDA_WITHOUT"  # families of kernels that our library is to leave out


# ---- Times -------------------------------------------------------------------------------------


def graph_of(call, pool=None):
    """A captured call, ready to replay. Graphs may share a pool of memory, since nothing of one
    replay is read in another."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        call()
    graph.replay()
    torch.cuda.synchronize()
    return graph.replay


def rounds(runs, n, flush):
    """Microseconds of each in n rounds, taking turns; a round before them does not count."""
    times = {name: [] for name in runs}
    for i in range(-1, n):
        events = {name: [torch.cuda.Event(enable_timing=True) for _ in range(2)] for name in runs}
        for name in list(runs)[:: 1 if i % 2 else -1]:
            flush.zero_()
            torch.cuda._sleep(20000)  # the host is ahead when the replay begins
            events[name][0].record()
            runs[name]()
            events[name][1].record()
        torch.cuda.synchronize()
        for name, (start, end) in events.items():
            if i >= 0:
                times[name].append(1e3 * start.elapsed_time(end))
    return times


def paired(these, those):
    """The median of the ratios round by round, and between which of them, in order, it lies with at
    least 95 %, whatever their distribution is."""
    ratios = sorted(a / b for a, b in zip(these, those, strict=True))
    n, outside, k = len(ratios), 1, 0  # outside: ways to lie below the k-th, of 2^n
    while 2 * outside <= 0.05 * 2**n:
        k += 1
        outside += math.comb(n, k)
    low = max(k - 1, 0)
    return [statistics.median(ratios), ratios[low], ratios[n - 1 - low]]


def limit(case, n, flush):
    """Microseconds that no way of computing it can beat, and how that is known."""
    if case.op == "decode":  # scaled in place: the same bytes move
        x = torch.ones(case.state_bytes() // 2 // 4, device="cuda")
        times = rounds({"scale": graph_of(lambda: x.mul_(0.999))}, n, flush)
        return statistics.median(times["scale"]), "scale"
    chunks = sum(math.ceil(T / 64) for T in case.lengths)
    tokens = sum(case.lengths)
    rows = tokens * (2 * case.Hq + 2 * case.Hv) * case.dim * 2
    gates = 4 * math.prod(case.channels) + 4  # bytes of a token and head, beta too
    moved = rows + tokens * case.Hv * gates + case.state_bytes()
    mflop = (6 * 64 * case.dim**2 + 8 * 64**2 * case.dim) / 1e6  # of a chunk and head
    return max(mflop * chunks * case.Hv / TFLOPS, moved / TBS / 1e6), "computed"


# ---- One row -----------------------------------------------------------------------------------


def attempt(contender, case, x):
    """Its call, the result, and what kept it from having one."""
    try:
        method = getattr(contender, case.op, None)
        contenders.refuse_if(method is None, f"no {case.op}")
        call = method(case, x)
        result = [t.clone() for t in contenders.shown(case, x, call())]
        if x["v"].is_cuda:
            torch.cuda.synchronize()
        return call, result, None
    except Exception as error:  # whatever a peer raises, the race goes on
        return None, None, f"{type(error).__name__}: {error}".strip()[:200]


def judge(racers, case, x, wanted):
    """By contender: what its line says of it; and the calls that can be timed. Without what is
    wanted results are compared with those of the first library alone."""
    said, calls, first = {}, {}, None
    for name, contender in racers.items():
        call, result, refusal = attempt(contender, case, x)
        if refusal:
            said[name] = dict(refused=refusal)
            continue
        said[name] = {}
        if contender.is_ours:
            said[name]["kernel"] = contender.kernel()
        if first:
            said[name]["difference"] = [off(a.float(), b.float()) for a, b in zip(result, first)]
        elif contender.is_ours:
            first = result
        if wanted:
            said[name]["error"] = errors(case, result, wanted)
        found = max(said[name].get("error") or said[name].get("difference") or [0])
        if found < WRONG:
            calls[name] = call
        else:
            said[name]["refused"] = f"wrong: off by {found:.2g}"
    return said, calls


def default_gates(case):
    return ("recipe", "trained") if case.rule == "kda" else DEFAULT_GATES[case.op]


def variants_of(case, options):
    """The cases of one row, which share its inputs."""
    for op in ("gradients", "training") if case.op == "gradients" else (case.op,):
        for inside in options.inside if op == "prefill" else INSIDE[:1]:
            for kind in options.gates or default_gates(case):
                if gates.is_raw(kind) or (inside != "raw" and op != "decode"):
                    yield dataclasses.replace(case, op=op, gates=kind, inside=inside)


def race(racers, case, options, flush):
    """By case of the row: what is known of each contender afterwards."""
    shared, said, calls, made = inputs(case, options.device), {}, {}, {}
    variants = list(variants_of(case, options))
    for c in variants:  # gradients and training have the same inputs, and the same is right of them
        if (c.gates, c.inside) not in made:
            made[c.gates, c.inside] = c, variant(c, shared)
    wanted = {} if options.unchecked else dict(zip(made, expected(list(made.values()))))
    for c in variants:
        key = c.gates, c.inside
        said[c], found = judge(racers, c, made[key][1], wanted.get(key))
        calls |= {(c, name): call for name, call in found.items()}
    if options.check:
        return said
    del wanted
    runs, pool = {}, torch.cuda.graph_pool_handle()
    for (c, name), call in calls.items():  # all have run: no workspace grows under a graph
        try:
            runs[c, name] = graph_of(call, pool)
        except Exception as error:
            torch.cuda.synchronize()
            said[c][name]["refused"] = f"no graph: {type(error).__name__}: {error}"[:200]
    times = rounds(runs, options.rounds, flush)
    for (c, name), found in times.items():
        said[c][name] |= dict(us=statistics.median(found), times=found)
    for c in said:
        compare(said, c)
    return said


def base_of(said, c):
    """The case to which the gates of c are compared: no gates, or the first kind."""
    same = [other for other in said if (other.op, other.inside) == (c.op, c.inside)]
    return next((other for other in same if other.gates == "none"), same[0])


def compare(said, c):
    """Adds a contender's ratios to itself without gates, and with nothing inside, and to ours."""
    beside = dict(over_base=base_of(said, c),
                  over_neither=dataclasses.replace(c, inside=INSIDE[0]))
    first = next(iter(said[c].values()))
    for name, known in said[c].items():
        if "us" not in known:
            continue
        for key, other in beside.items():
            if other != c and "us" in said.get(other, {}).get(name, {}):
                known[key] = paired(known["times"], said[other][name]["times"])
        if known is not first and "us" in first:
            known["over_first"] = paired(known["times"], first["times"])


# ---- What is said of it ------------------------------------------------------------------------


def lines_of(racers, case, said, common):
    """A line per library of ours and peer, ours in each; ours alone if nobody else is there."""
    keys = ("us", "error", "kernel", "refused", "over_base", "over_neither")
    peers = [name for name in said if not racers[name].is_ours]
    for mine in (name for name in said if racers[name].is_ours):
        ours = said[mine]
        line = common | case.fields() | {key: ours[key] for key in keys if key in ours}
        if racers[mine].path:
            line |= dict(library=mine, **{key: ours[key] for key in ("over_first", "difference")
                                          if key in ours})
        if "us" in line and "limit_us" in line:
            line["share"] = line["limit_us"] / line["us"]
        if not peers:
            yield line
        for name in peers:
            theirs = said[name]
            more = {f"peer_{key}": theirs[key] for key in keys if key in theirs}
            if "difference" in theirs:
                more["difference"] = theirs["difference"]
            if "us" in line and "peer_us" in more:
                more["speedup"] = more["peer_us"] / line["us"]
                more["speedup_paired"] = paired(theirs["times"], ours["times"])
            yield line | dict(peer=name, peer_commit=common["versions"][name]) | more


def percent(ratio):
    """A ratio and its interval as percents above 1."""
    middle, low, high = (100 * (r - 1) for r in ratio)
    return f"{middle:+.1f} [{low:.1f} {high:.1f}]"


def heading(case):
    fields = case.fields()
    parts = [fields["heads"], fields["seqs"]] + [f"d{case.dim}"] * (case.dim != 128)
    parts += [fields["state"], fields["layout"]] if case.op == "decode" else []
    return " ".join(parts + [key for key in ("pool", "each") if fields.get(key)])


def kind_of(c):
    more = [c.inside] * (c.inside != INSIDE[0]) + [c.op] * (c.op in ("gradients", "training"))
    return ", ".join([c.gates, *more])


def cell_of(known, check):
    """us, what gates cost, what is inside costs (i), time by that of the first (x)."""
    words = [f"{known['us']:.1f}"] if "us" in known else []
    if "refused" in known:
        words.append(known["refused"][:60])
    words += [f"{mark}{percent(known[key])}" for mark, key in (("", "over_base"),
                                                               ("i", "over_neither"))
              if key in known]
    if "over_first" in known:
        words.append(f"x{known['over_first'][0]:.3f}")
    if check and "error" in known:
        words.append("off by " + " ".join(f"{error:.1e}" for error in known["error"]))
    return " ".join(words)


def table(head, names, rows):
    """Lines of a head, then names and cells, in columns."""
    lines = [[head, *names], *([f"  {name}", *cells] for name, cells in rows)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]


def row_table(case, racers, said, check):
    """For people: what is known of one row."""
    return table(heading(case), racers,
                 [(kind_of(c), [cell_of(known[name], check) for name in racers])
                  for c, known in said.items()])


def geomean(values):
    return math.exp(statistics.fmean(map(math.log, values)))


def costs_of(found):
    """Of (ratio with its interval, row) of each row: the mean, the worst, and its upper end."""
    if not found:
        return ""
    worst, row = max(found)
    mean = 100 * (geomean([ratio[0] for ratio, _ in found]) - 1)
    return f"{mean:+.1f}, most {percent(worst)}: {row}"


def speedups_of(found):
    """Of (ratio, row) of each row: the mean, the least, and how many are below 1."""
    if not found:
        return ""
    (least, row), behind = min(found), sum(ratio < 1 for ratio, _ in found)
    return f"{geomean([r for r, _ in found]):.3f}, {behind} below 1, least {least:.3f}: {row}"


def summary(racers, results):
    """Over all rows, by gates and what is inside."""
    groups, names, first = {}, list(racers), next(iter(racers))
    for said in results:
        for c, known in said.items():
            groups.setdefault(kind_of(c), []).append((heading(c), known))

    def costs(key):
        for kind, rows in groups.items():
            cells = [costs_of([(known[name][key], row) for row, known in rows
                               if key in known[name]]) for name in names]
            if any(cells):
                yield kind, cells

    def speedups(pairs):
        for kind, rows in groups.items():
            yield kind, [speedups_of([(known[b]["us"] / known[a]["us"], row) for row, known in rows
                                      if "us" in known[a] and "us" in known[b]]) for a, b in pairs]

    pairs = [(a, b) for a in names if racers[a].is_ours for b in names
             if b != a and (not racers[b].is_ours or a == first)]
    yield from table(f"{len(results)} rows: % over no gates", names, costs("over_base"))
    if any(c.inside != INSIDE[0] for said in results for c in said):
        yield from table("% over neither inside", names, costs("over_neither"))
    if pairs:
        yield from table("time by another's", [f"{b} / {a}" for a, b in pairs], speedups(pairs))


# ---- The whole ---------------------------------------------------------------------------------


def racers_of(options):
    """Ours, and the peers that are there."""
    libraries = [text.split("=", 1) for text in options.library]
    if libraries:  # the package itself needs one
        os.environ.setdefault("GDN_LIBRARY", libraries[0][1])
    racers = {name: contenders.Ours(options.device, path)
              for name, path in libraries or [("gdn", None)]}
    asked = options.peers.split(",") if options.peers else DEFAULT_PEERS[options.rule]
    for name in [] if options.ours_only else asked:
        try:
            racers[name] = PEERS[options.rule][name](options.device)
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
    without = os.environ.get(WITHOUT)
    words = [f"{WITHOUT}={without}"] * bool(without) + ["race_gpu.py", *sys.argv[1:]]
    for option in ("--file", "--commit"):
        if option in words:
            at = words.index(option)
            del words[at : at + 2]
    return " ".join(words)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--rule", choices=tuple(PEERS), default="gdn", help="gates of a head or of a key channel")
    add("--peers", help="; ".join(f"{rule}: some of {','.join(peers)} (default: "
                                  f"{','.join(DEFAULT_PEERS[rule])})"
                                  for rule, peers in PEERS.items()))
    add("--ours-only", action="store_true")
    add("--library", action="append", default=[], metavar="NAME=FILE",
        help="a libgdn.so, once or several times: they take turns; instead of the package's")
    add("--op", choices=OPS, help="prefill and decode without it; gradients: alone, and with the "
        "forward call (training)")
    add("--gates", type=gates_of, help="all, patterns, or some of "
        f"{', '.join((*gates.KINDS, *gates.DRAWS, *gates.BOUNDED))} and the patterns (default: all "
        "of prefill, recipe of decode, recipe and model of gradients; kda: recipe and trained)")
    add("--inside", type=inside_of, default=INSIDE[:1],
        help="all, or some of neither,norm,raw: what of norms and raw gates prefill computes")
    add("--rows", choices=SETS, help="a named set instead of the table")
    add("--dims", type=lambda text: [int(dim) for dim in text.split(",")], default=[128],
        help="head sizes: 64,128,256")
    add("--heads", type=heads_of, help="16/32,2/8: instead of those of the tables")
    add("--lengths", type=lengths_of, help="8192x4,100+3000: but of decode")
    add("--batches", type=lambda s: [int(n) for n in s.split(",")], help="1,32: of decode")
    add("--rounds", type=int, default=15)
    add("--seconds", type=float, default=math.inf, help="no row is begun after them")
    add("--check", action="store_true", help="compare and time nothing; without a GPU on the CPU")
    add("--unchecked", action="store_true", help="compare with the first of ours alone")
    add("--file", help="lines are appended to it")
    add("--commit", default=commit(), help="that was built")
    options = parser.parse_args()
    if any("=" not in text for text in options.library):
        parser.error("--library: wanted NAME=FILE")
    if unknown := set((options.peers or "").split(",")) - set(PEERS[options.rule]) - {""}:
        parser.error(f"--peers: '{min(unknown)}', wanted some of {','.join(PEERS[options.rule])}")
    if options.rule == "kda" and not all(map(gates.is_raw, options.gates or ())):
        parser.error("--gates: patterns have one gate per head")
    try:
        options.todo = [case for op in ([options.op] if options.op else OPS[:2])
                        for case in cases(op, options)]
    except ValueError as error:
        parser.error(error)
    options.device = "cuda" if torch.cuda.is_available() else "cpu"
    if options.device == "cpu" and not options.check:
        parser.error("no GPU; --check compares without one")
    return options


def gates_of(text):
    try:
        return gates.named(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(error) from None


def inside_of(text):
    names = INSIDE if text == "all" else tuple(text.split(","))
    if not set(names) <= set(INSIDE):
        raise argparse.ArgumentTypeError(f"'{text}', wanted all or some of {', '.join(INSIDE)}")
    return names


def heads_of(text):
    return [tuple(map(int, pair.split("/"))) for pair in text.split(",")]


def lengths_of(text):
    """8192x4: four sequences of 8192; 1x8192: one; 100+3000: one of each."""
    def one(part):
        tokens, _, n = part.partition("x")
        return (int(n),) if tokens == "1" and n else (int(tokens),) * int(n or 1)
    return [sum(map(one, batch.split("+")), ()) for batch in text.split(",")]


def run_row(racers, case, options, flush, common):
    """Races a row, prints it and appends its lines. What is known of it."""
    known = race(racers, case, options, flush)
    print("\n".join(row_table(case, racers, known, options.check)), flush=True)
    if not options.check and case.op != "gradients":
        common["limit_us"], common["limit_by"] = limit(case, options.rounds, flush)
    lines = [json.dumps(line) + "\n" for c, said in known.items()
             for line in lines_of(racers, c, said, common)]
    if options.file:
        with open(options.file, "a") as file:
            file.writelines(lines)
    return known


def main():
    options, start = arguments(), time.monotonic()
    racers = racers_of(options)
    if options.device == "cpu":
        interpreted.begin()
    device = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    common = dict(
        commit=options.commit, command=command(), device=device,
        isa=next(iter(racers.values())).isa, built_with=contenders.versions(),
        rounds=options.rounds, versions={n: r.version for n, r in racers.items()})
    flush = torch.empty(FLUSH if options.device == "cuda" else 0, dtype=torch.uint8,
                        device=options.device)
    todo = options.todo
    results = []
    print(f"{device}, {options.commit}: us, median of {options.rounds} rounds; % over no gates, "
          "[95 %]; i: % over neither inside; x: time by the first one's", flush=True)
    for i, case in enumerate(todo):
        if time.monotonic() - start > options.seconds:
            print(f"time is up: {len(todo) - i} of {len(todo)} rows left out")
            break
        try:
            results.append(run_row(racers, case, options, flush, common))
        except Exception as error:  # inputs or float64 without room; peers' own are caught before
            print(f"{heading(case)}: left out, {type(error).__name__}: {error}"[:300], flush=True)
        if options.device == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
    if not options.check:
        print("\n".join(summary(racers, results)))
    print(f"{len(results)} rows in {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    with torch.no_grad():
        main()
