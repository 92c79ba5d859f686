#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measured runs of `gdn bench`, kept as JSON lines, and the tables of bench/README.md from them.

    bench.py run GDN [NAME]   run every case with the command GDN; append one line per case and
                              kind of gates, with commit and command, to results/NAME.jsonl
                              (default: cpu)
    bench.py sweep            the commands of a sweep (sweep.py); their lines go to results/sweep/
    bench.py forms            the commands of a row for each form of decode (forms.py); to
                              results/forms/
    bench.py tables [--check] rewrite the part of README.md between its markers; with --check
                              write nothing, and fail if that part differs

A table shows the newest line of each case. Nothing is typed in by hand.
"""
import json
import pathlib
import re
import statistics
import subprocess
import sys

import forms
import sweep

HERE = pathlib.Path(__file__).resolve().parent
HEADS = ["--heads", "16/32", "--dim", "128"]
GATES = sweep.GATES
CALLS = {"packed": "by cu_seqlens", "counts": "token_count", "interleaved": "interleaved heads",
         "slots64": "int64 slots"}
INSIDE = {"norm": "norms inside", "raw": "gates and norms inside"}


def cases():
    """The arguments of every run, in the order of the tables."""
    for threads in ("1", "2"):
        end = ["--threads", threads]
        kinds = ["--gates", "all", *end]
        for tokens in ("512", "2048", "8192"):
            yield ["prefill", *HEADS, "--seqlens", tokens, "--dtype", "f32", *kinds]
        yield ["prefill", *HEADS, "--seqlens", "2048", "--dtype", "bf16", *kinds]
        for batch in ("1", "8", "32"):
            for layout in ("k_last", "k_first"):
                yield ["decode", *HEADS, "--batch", batch, "--dtype", "f32", "--layout", layout,
                       *end]
        yield ["prefill", *HEADS, "--seqlens", "2048", "--dtype", "f32", "--exact", *kinds]
        yield ["prefill", *HEADS, "--seqlens", "2048", "--dtype", "bf16", "--bf16-products", *kinds]
        for layout in ("k_last", "k_first"):
            yield ["decode", *HEADS, "--batch", "32", "--dtype", "f32", "--layout", layout,
                   "--exact", *end]
        yield ["decode", *HEADS, "--batch", "32", "--dtype", "bf16", "--state", "bf16", *end]
        yield ["decode", *HEADS, "--batch", "8", "--tokens", "4", "--dtype", "f32", *end]
        yield ["conv", "--channels", "8192", "--seqlens", "2048", "--dtype", "f32", *end]
        yield ["conv", "--channels", "8192", "--batch", "32", "--dtype", "f32", *end]
        yield ["block", *HEADS, "--hidden", "2048", "--seqlens", "512", "--dtype", "f32", *kinds]
        yield ["block", *HEADS, "--hidden", "2048", "--seqlens", "512", "--dtype", "bf16", *kinds]


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def run(gdn, name):
    git = ["git", "-C", str(HERE.parent)]
    commit = output(*git, "rev-parse", "--short=12", "HEAD")
    if output(*git, "status", "--porcelain", "--", ".", ":!bench/results"):
        commit += "-dirty"
    for case in cases():
        arguments = ["bench", *case, "--json"]
        for text in output(gdn, *arguments).splitlines():
            result = json.loads(text)
            line = {"commit": commit, "command": " ".join(["gdn", *arguments]), **result}
            with open(HERE / "results" / f"{name}.jsonl", "a") as file:
                file.write(json.dumps(line) + "\n")
            print(f"{line['command']}: {sweep.gates_of(line)}, {result['ms']:.4g} ms, "
                  f"{100 * result['share']:.0f} %")


def dims(r):
    """K, or K/V."""
    V = r.get("value_dim", r["dim"])
    return str(V) if V == r["dim"] else f"{r['dim']}/{V}"


def describe(r):
    """What was run, for people."""
    sizes = [f"heads {r['heads']}, d {dims(r)}"] if "heads" in r else [f"{r['channels']} channels"]
    if "hidden" in r:
        sizes.append(f"hidden {r['hidden']}")
    if "seqlens" in r:
        lengths = r["seqlens"].split(",")
        sizes.append(f"T = {r['seqlens']}" if len(lengths) < 6 else f"{len(lengths)} lengths")
    if r["op"] == "decode":
        sizes.append(f"B = {r['batch']}, T = {r['tokens']}, {r['layout']}")
    elif "seqlens" not in r:
        sizes.append(f"B = {r['batch']}, T = 1")
    state = f", state {r['state']}" if r.get("state", r["dtype"]) != r["dtype"] else ""
    mode = ", exact" if r.get("exact") else ", bf16 products" if r.get("bf16_products") else ""
    for key, words in (("raw", "gates and norms inside"), ("each", "every state kept"),
                       ("pool", "slots"), ("gated", "gated norm"),
                       ("batch_invariant", "batch invariant")):
        mode += f", {words}" if r.get(key) else ""
    mode += f", states saved after each {r['save_every']}" if "save_every" in r else ""
    mode += f", {CALLS[r['call']]}" if "call" in r else ""
    mode += ", without sm90" if "GDN_CUDA_WITHOUT=sm90" in r.get("command", "") else ""
    rule = f", rule {r['rule']}" if "rule" in r else ""
    return f"{r['op']}{rule}: {', '.join(sizes)}, {r['dtype']}{state}{mode}"


def cell(r):
    """Time, and what part of the machine that is."""
    limit = f"{r['gflops']:.0f} GFLOP/s" if r["bound"] == "flops" else f"{r['gbs']:.0f} GB/s"
    text = f"{r['ms']:.3g} ms, {limit}, {100 * r['share']:.0f} %"
    if "conv_ms" in r:
        text += f" (convolution {r['conv_ms']:.3g} + decode {r['decode_ms']:.3g} ms apart)"
    if "projections" in r and r.get("backend") != "cuda":  # there its parts alone take longer
        text += f" (projections {100 * r['projections']['share']:.0f} %)"
    return text


def describe_race(r):
    if "model" in r:
        return f"{r['op']}: model {r['model']}, processor time of a token of {r['tokens']}"
    sizes = f"heads {r['heads']}, d {r['dim']}" if "heads" in r else f"{r['channels']} channels"
    mode = ", ours with bf16 products" if r.get("bf16_products") else ""
    return f"{r['op']}: {sizes}, T = {r['T']}, B = {r['B']}, {r['dtype']}{mode}"


def race_cell(r):
    share = f", {100 * r['share']:.0f} %" if "share" in r else ""
    return f"{r['peer_ms']:.3g} / {r['ms']:.3g} ms, **{r['speedup']:.2f}**{share}"


def newest_of(path, name_of):
    """The newest line of each case, by number of threads and gates."""
    newest = {}
    for text in path.read_text().splitlines():
        r = json.loads(text)
        newest.setdefault(name_of(r), {})[r["threads"], GATES.index(sweep.gates_of(r))] = r
    return newest


def column_of(runs, threads, gates):
    """The head of a column; a device has no threads to tell of."""
    is_device = any(r.get("backend") == "cuda" for r in runs)
    head = "time" if is_device else f"{threads} thread{'s' * (threads > 1)}"
    return f"{head}, gates {GATES[gates]}" if gates else head


def table_of(path, name_of, cell_of):
    newest = newest_of(path, name_of)
    runs = [r for row in newest.values() for r in row.values()]
    columns = sorted({column for row in newest.values() for column in row})
    peer = {f", {r['peer']} {r['peer_commit']}" for r in runs if "peer" in r} or {""}
    seen = sorted({f"- {r['device']}, {r['isa']}, commit {r['commit']}" for r in runs})
    lines = [f"### {path.stem}", "", *[line + next(iter(peer)) for line in seen], ""]
    lines += ["| | " + " | ".join(column_of(runs, *column) for column in columns) + " |"]
    lines += ["|---" * (len(columns) + 1) + "|"]
    for name, row in newest.items():
        cells = [cell_of(row[column]) if column in row else "" for column in columns]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines + [""]


def describe_gpu(r):
    if "channels" in r:
        return f"{r['op']}: {r['channels']} channels, {r['seqs']}"
    state = r["state"] if r["layout"] == "k_last" else f"{r['state']} {r['layout']}"
    more = [text for key, text in (("pool", "slots"), ("each", "each kept")) if r.get(key)]
    tokens = f"B = {r['B']}, T = {r['T']}" if r["op"] == "decode" else r["seqs"]
    heads = f"heads {r['heads']}" + (f", d {r['dim']}" if r["dim"] != 128 else "")
    more += [INSIDE[r["inside"]]] if "inside" in r else []
    more += ["without sm90"] if "GDN_CUDA_WITHOUT=sm90" in r["command"] else []
    op = f"{r['op']} of {r['rule']}" if "rule" in r else r["op"]
    return ", ".join([f"{op}: {heads}", tokens, f"state {state}", *more])


def gpu_cell(r, prefix=""):
    """Time; of ours the part of the limit, of theirs how many times faster ours is."""
    if prefix + "us" not in r:
        return "refused"
    more = f", **{r['speedup']:.2f}**" if prefix and "speedup" in r else ""
    share = f", {100 * r['share']:.0f} %" if not prefix and "share" in r else ""
    return f"{r[prefix + 'us']:.3g} us{more or share}"


def gates_cell(r):
    """Ours, theirs, how many times faster ours is; and what the gates cost ours."""
    if "us" not in r:
        return "refused"
    text = f"{r['us']:.3g}"
    if "peer_us" in r:
        text += f" / {r['peer_us']:.3g}, **{r['speedup']:.2f}**"
    return text + (f", {100 * (r['over_base'][0] - 1):+.1f} %" if "over_base" in r else "")


def gates_table_of(runs, peer, inside):
    """A row per case that was raced with other gates than the recipe's, beside a peer or nobody."""
    rows = {}
    for r in runs:
        is_here = r.get("peer") == peer and r.get("inside") == inside
        if is_here and sweep.gates_of(r) in GATES:
            rows.setdefault(describe_gpu(r), {})[sweep.gates_of(r)] = r
    rows = {name: row for name, row in rows.items() if set(row) != {"recipe"}}
    if not rows:
        return []
    beside = f" beside {peer}" if peer else ""
    lines = [f"By gates{beside}, us, and what they cost ours over none:", ""]
    lines += [f"| | {' | '.join(GATES)} | commit |", "|---" * (len(GATES) + 2) + "|"]
    for name, row in rows.items():
        cells = [gates_cell(row[kind]) if kind in row else "" for kind in GATES]
        commits = " ".join(dict.fromkeys(r["commit"][:7] for r in row.values()))
        lines.append(f"| {name} | {' | '.join(cells)} | {commits} |")
    for what, of in (("geometric mean", statistics.geometric_mean), ("least", min)):
        found = [[row[kind]["speedup"] for row in rows.values() if "speedup" in row.get(kind, {})]
                 for kind in GATES]
        if any(found):
            cells = [f"**{of(ratios):.2f}**" if ratios else "" for ratios in found]
            lines.append(f"| {what} | {' | '.join(cells)} | |")
    return [*lines, ""]


def gpu_table_of(path):
    """A column for ours and for each peer, each with its newest line, and for the commit of ours,
    or in brackets another one; what peers refused."""
    rows, peers, why = {}, {}, {}
    runs = [json.loads(text) for text in path.read_text().splitlines()]
    runs = [r for r in runs if "library" not in r]
    for r in (r for r in runs if sweep.gates_of(r) == "recipe"):
        row = rows.setdefault(describe_gpu(r), {})
        row["ours"], row["commit"] = gpu_cell(r), r["commit"][:7]
        if "peer" in r:
            peers[r["peer"]] = r["peer_commit"]
            row[r["peer"]] = gpu_cell(r, "peer_"), r["commit"][:7]
            if "peer_refused" in r:
                why[f"{r['peer']}: {r['peer_refused']}"] = True
    seen = sorted({f"- {r['device']}, {r['isa']}, commit {r['commit']}, {r['built_with']}"
                   for r in runs})
    heads = ["", "ours", *(f"{peer} {version}" for peer, version in peers.items()), "commit"]
    lines = [f"### {path.stem}", "", *seen, "", f"| {' | '.join(heads)} |"]
    lines += ["|---" * len(heads) + "|"]
    for name, row in rows.items():
        cells = [row["ours"]]
        for text, commit in (row.get(peer, ("", row["commit"])) for peer in peers):
            cells.append(text if commit == row["commit"] else f"{text} ({commit})")
        lines.append(f"| {name} | {' | '.join([*cells, row['commit']])} |")
    lines += ["", *(["Refused. " + "; ".join(why) + ".", ""] if why else [])]
    for peer in [*peers, None]:
        for inside in (None, *INSIDE):
            lines += gates_table_of(runs, peer, inside)
    return lines


def tables(only_check):
    lines = []
    for path in sorted((HERE / "results").glob("*.jsonl")):
        lines += table_of(path, describe, cell)
    for path in sorted((HERE / "results/sweep").glob("*.jsonl")):
        lines += sweep.section(path)
    for path in sorted((HERE / "results/forms").glob("*.jsonl")):
        lines += forms.section(path, describe)
    lines += ["## Against others", "", "Theirs / ours, and how many times faster ours is.", ""]
    for path in sorted((HERE / "results/peers").glob("*.jsonl")):
        is_gpu = path.stem.startswith("gpu-")
        lines += gpu_table_of(path) if is_gpu else table_of(path, describe_race, race_cell)
    readme = HERE / "README.md"
    new = "<!-- tables -->\n\n" + "\n".join(lines) + "<!-- end -->"
    old = readme.read_text()
    text = re.sub(r"<!-- tables -->.*<!-- end -->", lambda _: new, old, flags=re.S)
    if only_check and text != old:
        sys.exit("bench/README.md: tables differ from bench/results; run bench/bench.py tables")
    if text != old:
        readme.write_text(text)


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"] and len(sys.argv) in (3, 4):
        run(sys.argv[2], sys.argv[3] if len(sys.argv) == 4 else "cpu")
    elif sys.argv[1:] in (["sweep"], ["forms"]):
        print("\n".join((sweep if sys.argv[1] == "sweep" else forms).commands()))
    elif sys.argv[1:] in (["tables"], ["tables", "--check"]):
        tables(len(sys.argv) == 3)
    else:
        sys.exit(__doc__)
