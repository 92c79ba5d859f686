# SPDX-License-Identifier: Apache-2.0
"""Decode on a GPU: a row for every form of src/cuda/decode/select.c. Some results have `skip`: the
table of forms was without these, so that the next one took the call."""
import itertools
import json

HEADS = "--heads 16/32 --dtype bf16"
ABOUT = """A row for each form of decode ([decode-kernels.md](../docs/gpu/decode-kernels.md)), 16/32
heads, q, k and v in bfloat16 unless the row says otherwise. The share is that of scaling the states
in place. "Next" is the form that takes the call if the table of forms is without the first one, and
how much longer it needs."""


def commands():
    for batch, state, layout in itertools.product((1, 32, 128), ("f32", "bf16"),
                                                  ("k_last", "k_first")):
        row = f"--batch {batch} --state {state} --layout {layout}"
        tokens = [f"--tokens {n} --pool" for n in (2, 4, 8)] + ["--tokens 4 --each"]
        for call in ("", "--pool", "--call packed", *tokens):
            yield command(f"{HEADS} --dim 128 {row} {call}")
    for batch, state in itertools.product((1, 128), ("f32", "bf16")):
        row = f"--dim 128 --batch {batch} --state {state}"
        yield command(f"--heads 16/32 --dtype f32 {row}")
        yield command(f"{HEADS} {row} --exact")
        for call, tokens in itertools.product(("counts", "interleaved", "slots64"), (1, 4)):
            yield command(f"{HEADS} {row} --pool --call {call} --tokens {tokens}")
    for batch in (1, 128):
        yield command(f"{HEADS} --dim 128 --batch {batch} --state i8")
        calls = "", "--pool", "--call packed", "--tokens 4"
        for dim, call in itertools.product((64, 256), calls):
            yield command(f"{HEADS} --dim {dim} --batch {batch} --state bf16 {call}")


def command(case):
    return f"gdn bench decode {' '.join(case.split())} --backend cuda --json --seconds 0.03"


def kernel(run):
    return run["kernel"].removeprefix("decode: ").removeprefix("gdn_decode_")


def section(path, describe):
    runs = [json.loads(text) for text in path.read_text().splitlines()]
    rows, after = {}, {}
    for r in runs:
        name = describe(r).removeprefix("decode: heads 16/32, ")
        (after if "skip" in r else rows).setdefault(name, r)
    seen = sorted({f"- {r['device']}, {r['isa']}, commit {r['commit']}" for r in runs})
    lines = [f"### Forms of decode, {path.stem}", "", *seen, "", ABOUT, "",
             "| case | kernel | us | share | next | us |", "|---|---|---|---|---|---|"]
    for name, r in rows.items():
        cells = [name, kernel(r), f"{1e3 * r['ms']:.1f}", f"{100 * r['share']:.0f} %", "", ""]
        if name in after:
            slow = after[name]
            more = slow["ms"] / slow["first_ms"]
            cells[4:] = kernel(slow), f"{1e3 * slow['ms']:.1f}, **{more:.2f}**"
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]
