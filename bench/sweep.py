# SPDX-License-Identifier: Apache-2.0
"""Prefill over the length of one sequence, and over the number of sequences of one length. Where
another form of the kernel takes over, a larger call must not be the faster one."""
import json

LENGTHS = (1, 16, 64, 128, 256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576,
           32768, 49152, 65536, 98304, 131072)
BATCHES = (("16/32", 2048, 32), ("2/8", 1024, 16))  # of up to so many sequences
GATES = ("recipe", "none", "model", "strong")  # of a line that names none: the first
FALL = 0.05  # what counts as one
# By a part of the kernel's name.
FORMS = {"summary": "segments", "wide": "wide", "prefill_sm90": "clusters"}
ABOUT = """Prefill of bf16, d = 128, over the length of one sequence and the number of sequences.

![Time over the length of one sequence](../docs/plots/prefill-length.svg)

![Time per token over the number of sequences](../docs/plots/prefill-batch.svg)"""


def commands():
    for heads in ("16/32", "2/8"):
        yield from (command(heads, length) for length in LENGTHS)
    for heads, length, most in BATCHES:
        yield from (command(heads, f"{length}x{n}") for n in range(1, most + 1))


def command(heads, seqlens):
    return (f"gdn bench prefill --heads {heads} --seqlens {seqlens} --dtype bf16 --backend cuda "
            "--gates all --json --seconds 0.05")


def gates_of(run):
    """The kind of gates of a line; lines were without when there was one."""
    return run.get("gates", GATES[0])


def form(run):
    return next((mark for name, mark in FORMS.items() if name in run["kernel"]), "general")


def curves(runs, gates):
    """The points (size, ns per token, us, form) of each curve, by size. A size is the length of
    one sequence, or how many there are of one length."""
    found = {}
    for r in (r for r in runs if gates_of(r) == gates):
        length, is_batch, count = r["seqlens"].partition("x")
        size = int(count) if is_batch else int(length)
        tokens = size * int(length) if is_batch else size
        name = f"{r['heads']}, sequences of {length}" if is_batch else f"{r['heads']}, one sequence"
        point = (size, 1e6 * r["ms"] / tokens, 1000 * r["ms"], form(r))
        found.setdefault(name, {})[size] = point
    return {name: [points[size] for size in sorted(points)] for name, points in found.items()}


def falls(points):
    """(part, larger, slowest of the smaller) where a larger call takes less time."""
    slowest = points[0]
    for point in points[1:]:
        if point[2] < slowest[2]:
            yield 1 - point[2] / slowest[2], point, slowest
        else:
            slowest = point


def numbers(points):
    yield f"{'size':>7} {'us':>8} {'ns/token':>9}  kernels"
    for size, cost, us, form in points:
        yield f"{size:7} {us:8.1f} {cost:9.1f}  {form}"


def beside(name, by_gates):
    """A table of one curve's sizes: us by gates, and how much more than without."""
    if len(by_gates) < 2:
        return
    kinds = [kind for kind in GATES if kind in by_gates]
    times = {kind: {size: us for size, _, us, _ in by_gates[kind]} for kind in kinds}
    yield from (f"{name}, us by gates:", "", "```", "   size" + "".join(f"{k:>16}" for k in kinds))
    for size in sorted(set().union(*times.values())):
        cells = []
        for kind in kinds:
            us, none = times[kind].get(size), times.get("none", {}).get(size)
            more = f" {100 * (us / none - 1):+6.1f}%" if us and none and kind != "none" else ""
            cells.append(f"{us:.1f}{more}" if us else "")
        yield f"{size:7}" + "".join(f"{cell:>16}" for cell in cells)
    yield from ("```", "")


def section(path):
    """Part of README.md: numbers of the recipe's gates, tables by gates, and where time falls."""
    runs = [json.loads(text) for text in path.read_text().splitlines()]
    seen = sorted({f"- {r['device']}, {r['isa']}, commit {r['commit']}" for r in runs})
    lines = [f"### Sweep, {path.stem}", "", *seen, "", ABOUT, ""]
    found = []
    by_gates = {kind: curves(runs, kind) for kind in GATES}
    for name, points in by_gates[GATES[0]].items():
        lines += [f"{name}:", "", "```", *numbers(points), "```", ""]
        kinds = {kind: by_gates[kind][name] for kind in GATES if name in by_gates[kind]}
        lines += beside(name, kinds)
        for kind, curve in kinds.items():
            what = name if kind == GATES[0] else f"{name}, gates {kind}"
            found += [(part, f"{what}: {large[0]} take {large[2]:.1f} us, {small[0]} "
                             f"{small[2]:.1f}") for part, large, small in falls(curve)]
    listed = [f"- {100 * part:.1f} %, {text}" for part, text in found if part > FALL]
    most = f", {100 * max(found)[0]:.1f} % at most" if found else ""
    where = ":" if listed else f": nowhere{most}."
    lines += [f"Where time falls by more than {100 * FALL:.0f} % as the size grows{where}", ""]
    return lines + (listed + [""] if listed else [])
