#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""plots.py [FOLDER] - draws the plots of the documents from bench/results, as SVG.

`make plots` runs it. FOLDER is docs/plots unless another is given. The same results, and the same
version of matplotlib, give the same bytes. A plot shows the newest line of each case; no number is
typed in here.
"""
import io
import json
import pathlib
import re
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

import sweep  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
OURS, THEIRS, OTHER, LIMIT = "#1f6f8b", "#b8bfc6", "#e0a030", "#888888"
STATES = {"f32": OURS, "bf16": OTHER, "f16": "#7a5195"}
PEERS = {"flashinfer": ("FlashInfer", "#b8bfc6"), "flashqla": ("FlashQLA", "#e0a030"),
         "fla": ("FLA", "#7a5195")}
SETTINGS = {
    "svg.hashsalt": "gdn", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9,
    "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 10,
    "axes.titlelocation": "left", "legend.frameon": False, "figure.constrained_layout.use": True,
    "figure.facecolor": "white", "lines.linewidth": 1.6, "lines.markersize": 4,
}


def lines_of(name):
    return [json.loads(text) for text in (HERE / "results" / name).read_text().splitlines()]


def newest(name, key, **fields):
    """{key(line): line} of the newest lines that have these fields (None: have them not)."""
    found = {}
    for r in lines_of(name):
        if all(r.get(field) == value for field, value in fields.items()):
            found[key(r)] = r
    return found


def total_tokens(seqs):
    """"8192x4" is four sequences of 8192 tokens: (tokens of one, sequences)."""
    tokens, _, count = seqs.partition("x")
    return int(tokens), int(count or 1)


def save(figure, folder, name):
    """Writes FOLDER/NAME.svg in ASCII, without a date and blanks at the ends of lines."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    clean = re.sub(r"[ \t]+$", "", text.getvalue(), flags=re.M)
    (folder / f"{name}.svg").write_text(clean, "ascii", "xmlcharrefreplace")


def pairs(axis, labels, ours, theirs, names):
    """Two horizontal bars a row, and how many times faster the first is."""
    places = range(len(labels))
    axis.barh([p - 0.2 for p in places], theirs, 0.38, color=THEIRS, label=names[1])
    axis.barh([p + 0.2 for p in places], ours, 0.38, color=OURS, label=names[0])
    for p, a, b in zip(places, ours, theirs):
        axis.text(max(a, b), p, f" {b / a:.2f}x", va="center", fontsize=8)
    axis.set_yticks(list(places), labels)
    axis.invert_yaxis()
    axis.set_xlim(right=1.15 * max([*ours, *theirs]))
    axis.legend(loc="upper right")


def flashinfer_prefill(commit="d864315"):
    """The even rows of the newest commit that raced every row beside FlashInfer."""
    rows = newest("peers/gpu-h200.jsonl", lambda r: (r["heads"], r["seqs"]), op="prefill",
                  peer="flashinfer", commit=commit, gates="recipe")
    return {key: row for key, row in rows.items() if "+" not in key[1]}


def alone(op, peer, key, **fields):
    """The rows of a peer from a run without libgdn (bench/README.md says how they compare)."""
    return newest("peers_alone/h200.jsonl", key, op=op, peer=peer, **fields)


def prefill_of(peer):
    """{(heads, sequences): microseconds} of a peer: raced beside libgdn if it was, else alone."""
    if peer == "flashinfer":
        return {key: r["peer_us"] for key, r in flashinfer_prefill().items()}
    runs = alone("prefill", peer, lambda r: (r["heads"], r["seqs"]))
    return {key: r["us"] for key, r in runs.items()}


def name_of(peer):
    """"FLA 0.6.0": the name and the version of the rows that are drawn."""
    versions = {r["version"] for r in lines_of("peers_alone/h200.jsonl") if r["peer"] == peer}
    return " ".join([PEERS[peer][0], *versions])


def ggml(threads):
    return newest("peers/ggml-emerald-rapids.jsonl", lambda r: (r["op"], r["T"], r["B"]),
                  threads=threads, heads="16/32", dtype="f32", bf16_products=None)


def draw_prefill_bars(axis):
    """The time of each peer over libgdn's; the labels have libgdn's time."""
    ours = {key: r["us"] for key, r in flashinfer_prefill().items()}
    cases = ["2048x1", "8192x1", "32768x1", "1024x8", "2048x4", "8192x4"]
    for i, (peer, (_, color)) in enumerate(PEERS.items()):
        times = prefill_of(peer)
        ratios = [times["16/32", seqs] / ours["16/32", seqs] for seqs in cases]
        places = [p + 0.27 * (i - 1) for p in range(len(cases))]
        axis.barh(places, ratios, 0.25, color=color, label=name_of(peer))
        for place, ratio in zip(places, ratios):
            axis.text(ratio, place, f" {ratio:.1f}", va="center", fontsize=7)
    axis.axvline(1, color=OURS, linewidth=1.6)
    axis.set_yticks(range(len(cases)), ["{} x {}: {:.0f} us".format(
        *total_tokens(seqs)[::-1], ours["16/32", seqs]) for seqs in cases])
    axis.invert_yaxis()
    axis.set_xlim(right=7)
    axis.legend(loc="upper right", fontsize=8)
    axis.set_title("Prefill, H200: peer's time over libgdn's")
    axis.set_xlabel("times (bf16, weak gates); line: libgdn")
    axis.set_ylabel("sequences x tokens: libgdn's time")


def draw_decode_share(axis):
    """Bandwidth of decode over that of scaling the same bytes in place."""
    for state, color in STATES.items():
        rows = newest("cuda-h200.jsonl", lambda r: r["batch"], op="decode", heads="16/32", dim=128,
                      layout="k_last", dtype="bf16", state=state, tokens=1, raw=True, pool=None,
                      each=None)
        if rows:
            batches = sorted(rows)
            axis.plot(batches, [100 * rows[b]["share"] for b in batches], "o-", color=color,
                      label=f"{state} states")
    axis.axhline(100, color=LIMIT, linewidth=0.8, linestyle=":")
    axis.set_xscale("log")
    axis.set_xticks([1, 8, 32, 128, 512], ["1", "8", "32", "128", "512"])
    axis.minorticks_off()
    axis.set_ylim(0, 115)
    axis.set_xlabel("sequences of one token")
    axis.set_title("Decode, H200: % of measured bandwidth")
    axis.legend(loc="lower right")


def draw_ggml_bars(axis, threads=1):
    rows = ggml(threads)
    cases = [key for key in sorted(rows, reverse=True) if key[0] != "conv"]
    pairs(axis, [f"prefill, {T} tokens" if op == "prefill" else f"decode, {B} seq." for op, T, B
                 in cases],
          [1000 * rows[c]["ms"] / (rows[c]["T"] * rows[c]["B"]) for c in cases],
          [1000 * rows[c]["peer_ms"] / (rows[c]["T"] * rows[c]["B"]) for c in cases],
          ("libgdn", "ggml"))
    axis.set_title(f"CPU, {threads} thread{'s' * (threads > 1)} of a Xeon (AVX-512): time")
    axis.set_xlabel("microseconds per token (f32)")


def summary(folder):
    """The chart of the README."""
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.4), width_ratios=(1.1, 0.9, 1.1))
    figure.suptitle("16 query and key heads, 32 value heads, of 128", x=0.005, ha="left",
                    fontsize=9, color="#555555")
    draw_prefill_bars(axes[0])
    draw_decode_share(axes[1])
    draw_ggml_bars(axes[2])
    save(figure, folder, "summary")


def prefill_length(folder):
    """Time over the length of one sequence, per contender."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True)
    for axis, heads in zip(axes, ("16/32", "2/8")):
        runs = newest("sweep/h200.jsonl", lambda r: total_tokens(r["seqlens"]), op="prefill",
                      heads=heads)
        lengths = sorted(T for T, B in runs if B == 1)
        axis.plot(lengths, [1000 * runs[T, 1]["ms"] for T in lengths], "o-", color=OURS,
                  label="libgdn")
        for peer, (_, color) in PEERS.items():
            found = sorted((total_tokens(seqs)[0], us) for (h, seqs), us
                           in prefill_of(peer).items() if h == heads and seqs.endswith("x1"))
            axis.plot(*zip(*found), "s--", color=color, label=name_of(peer))
        axis.set(xscale="log", yscale="log", xlabel="tokens of one sequence",
                 title=f"Prefill of one sequence, H200, {heads} heads")
    axes[0].set_ylabel("microseconds (bf16, d = 128, weak gates)")
    axes[0].legend()
    save(figure, folder, "prefill-length")


def prefill_batch(folder):
    """Time per token over the number of sequences, per contender."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.4))
    for axis, (heads, tokens, _) in zip(axes, sweep.BATCHES):
        runs = newest("sweep/h200.jsonl", lambda r: total_tokens(r["seqlens"]), op="prefill",
                      heads=heads)
        counts = sorted(B for T, B in runs if T == tokens)
        axis.plot(counts, [1e6 * runs[tokens, B]["ms"] / (tokens * B) for B in counts], "o-",
                  color=OURS, label="libgdn")
        for peer, (_, color) in PEERS.items():
            found = sorted((total_tokens(seqs)[1], us) for (h, seqs), us
                           in prefill_of(peer).items()
                           if h == heads and total_tokens(seqs)[0] == tokens)
            if found:
                axis.plot([B for B, _ in found], [1e3 * us / (tokens * B) for B, us in found],
                          "s--", color=color, label=name_of(peer))
        axis.set(xlabel="sequences", title=f"{heads} heads, sequences of {tokens} tokens")
        axis.set_ylim(bottom=0)
        axis.legend()
    axes[0].set_ylabel("nanoseconds per token (bf16, d = 128)")
    figure.suptitle("Prefill of several sequences, H200, weak gates", x=0.005, ha="left",
                    fontsize=10)
    save(figure, folder, "prefill-batch")


def draw_rows(axis, value):
    """value(row) of every row that was raced, over sequences and tokens, a colour per heads."""
    rows = flashinfer_prefill()
    heads = sorted({h for h, _ in rows}, key=lambda h: [int(n) for n in h.split("/")])
    cases = sorted({seqs for _, seqs in rows}, key=lambda s: total_tokens(s)[::-1])
    for i, h in enumerate(heads):
        axis.plot(range(len(cases)), [value(rows[h, c]) for c in cases], "o", label=h,
                  color=plt.cm.viridis(i / len(heads)))
    axis.set_xticks(range(len(cases)),
                    ["{} x {}".format(*total_tokens(c)[::-1]) for c in cases])
    axis.set_xlabel("sequences x tokens")


def prefill_share(folder):
    """Prefill's share of what no way of computing can beat."""
    figure, axis = plt.subplots(figsize=(7, 3.6))
    draw_rows(axis, lambda row: 100 * row["share"])
    axis.axhline(100, color=LIMIT, linewidth=0.8, linestyle=":")
    axis.set(ylim=(0, 105), ylabel="%",
             title="Prefill, H200, weak gates: % of the computed limit")
    axis.legend(title="heads", ncols=2)
    save(figure, folder, "prefill-share")


def prefill_peers(folder):
    """How many times as long FlashInfer takes, in every row that was raced."""
    figure, axis = plt.subplots(figsize=(7, 3.6))
    draw_rows(axis, lambda row: row["speedup"])
    axis.axhline(1, color=LIMIT, linewidth=0.8)
    axis.set(ylabel="times", yscale="log",
             title="Prefill, H200, weak gates: FlashInfer's time over libgdn's")
    axis.set_yticks([1, 1.5, 2, 3, 4], ["1", "1.5", "2", "3", "4"])
    axis.minorticks_off()
    axis.legend(title="heads", ncols=2)
    save(figure, folder, "prefill-peers")


def prefill_gates(folder):
    """What gates cost, and the same ratio with them."""
    figure, axis = plt.subplots(figsize=(7, 3.6))
    kinds = ["none", "recipe", "model", "strong"]
    runs = newest("peers/gpu-h100-gates.jsonl", lambda r: (r["heads"], r["seqs"], r["gates"]),
                  peer="flashinfer", inside=None, dim=128)
    for heads, seqs in sorted({key[:2] for key in runs}):
        found = [(i, runs[heads, seqs, kind]["speedup"]) for i, kind in enumerate(kinds)
                 if (heads, seqs, kind) in runs]
        axis.plot(*zip(*found), "o-", alpha=0.8, label=f"{heads}, {seqs}")
    axis.axhline(1, color=LIMIT, linewidth=0.8)
    axis.set_xticks(range(len(kinds)), kinds)
    axis.set(ylim=(0.85, None), xlabel="gates", ylabel="times",
             title="Prefill, H100: FlashInfer's time over libgdn's, by gates")
    axis.legend(title="heads, tokens x sequences", fontsize=7, loc="upper left",
                bbox_to_anchor=(1, 1))
    save(figure, folder, "prefill-gates")


def decode_share(folder):
    figure, axis = plt.subplots(figsize=(6, 3.2))
    draw_decode_share(axis)
    save(figure, folder, "decode-share")


def decode_peers(folder):
    """Decode of one token beside FlashInfer, over the batch."""
    figure, axis = plt.subplots(figsize=(6, 3.4))
    for state, color in STATES.items():
        rows = newest("peers/gpu-h200.jsonl", lambda r: r["B"], op="decode", peer="flashinfer",
                      T=1, heads="16/32", state=state, layout="k_last", pool=None, each=None,
                      gates=None)
        rows = {B: r for B, r in rows.items() if "peer_us" in r}
        if rows:
            axis.plot(sorted(rows), [rows[B]["us"] for B in sorted(rows)], "o-", color=color,
                      label=f"libgdn, {state} states")
            axis.plot(sorted(rows), [rows[B]["peer_us"] for B in sorted(rows)], "s--", alpha=0.55,
                      color=color, label=f"{name_of('flashinfer')}, {state} states")
    rows = alone("decode", "fla", lambda r: r["B"], heads="16/32", T=1, state="f32")
    axis.plot(sorted(rows), [rows[B]["us"] for B in sorted(rows)], "^:", color="#444444",
              label=f"{name_of('fla')}, f32 states")
    axis.set(xscale="log", yscale="log", xlabel="sequences of one token", ylabel="microseconds",
             title="Decode, H200, 16/32 heads of 128")
    axis.legend()
    save(figure, folder, "decode-peers")


def cpu_peers(folder):
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.2))
    for axis, threads in zip(axes, (1, 2)):
        draw_ggml_bars(axis, threads)
    save(figure, folder, "cpu-peers")


def cpu_scaling(folder):
    """Share of the machine's limit over threads."""
    figure, axis = plt.subplots(figsize=(6, 3.2))
    cases = (("prefill", {"dtype": "bf16", "bf16_products": True}, "prefill, bf16 products"),
             ("prefill", {"dtype": "f32", "bf16_products": None}, "prefill, f32"),
             ("decode", {"dtype": "f32", "batch": 32, "layout": "k_last"}, "decode, f32, B = 32"))
    for (op, fields, label), color in zip(cases, (OTHER, OURS, "#7a5195")):
        runs = newest("cpu-emerald-rapids.jsonl", lambda r: (r["threads"], r["seqlens"])
                      if op == "prefill" else (r["threads"], "2048"), op=op, heads="16/32",
                      exact=None, gates=None, **fields)
        times = {threads: r["ms"] for (threads, seqlens), r in runs.items() if seqlens == "2048"}
        if 1 in times:
            axis.plot(sorted(times), [times[1] / times[t] for t in sorted(times)], "o-",
                      color=color, label=label)
    axis.plot([1, 16], [1, 16], color=LIMIT, linewidth=0.8, linestyle=":")
    axis.set(xscale="log", yscale="log", xlabel="threads", ylabel="times one thread's speed",
             title="A CPU with more threads: Xeon, 16/32 heads of 128")
    axis.set_xticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
    axis.set_yticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
    axis.minorticks_off()
    axis.legend()
    save(figure, folder, "cpu-scaling")


def accuracy(folder):
    """Errors of outputs by the dtype of states, stored after every token and after 64."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True)
    for axis, call in zip(axes, (1, 64)):
        runs = newest("accuracy/states.jsonl",
                      lambda r: (r["gates"], r["state"], r["rounding"]), tokens_per_call=call)
        for kind, color in (("strong", "#7a5195"), ("mild", OURS), ("none", OTHER)):
            cases = [key[1:] for key in runs if key[0] == kind]
            labels = [state + " ~" * (rounding == "stochastic") for state, rounding in cases]
            axis.plot(labels, [runs[(kind, *case)]["out_rms_error"] for case in cases], "o",
                      color=color, label=f"gates {kind}")
        axis.set(yscale="log", xlabel="dtype of states, ~ rounded at random",
                 title=f"Stored after {call} token{'s' * (call > 1)}")
    axes[0].set_ylabel("RMS error of outputs / RMS")
    axes[0].legend()
    save(figure, folder, "accuracy")


RULES = {"kda": ("KDA", OTHER), "gdn2": ("GDN-2", "#7a5195")}
OPS = {("prefill", 1): "prefill, 2048 tokens", ("prefill_backward", 1): "gradients, 2048 tokens",
       ("decode", 1): "decode, B = 1", ("decode", 8): "decode, B = 8",
       ("decode", 32): "decode, B = 32"}


def family(folder):
    """Rules of the family beside Gated DeltaNet: time on a CPU over GDN's, and prefill on an
    H200."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.4))
    runs = newest("family/xeon.jsonl", lambda r: (r["op"], r["B"]), isa="avx512")
    for i, (rule, (title, color)) in enumerate(RULES.items()):
        places = [p + 0.4 * i - 0.2 for p in range(len(OPS))]
        times = [runs[case][f"{rule}_of_gdn_median"] for case in OPS]
        axes[0].barh(places, times, 0.38, color=color, label=title)
        for p, t in zip(places, times):
            axes[0].text(t, p, f" {t:.2f}", va="center", fontsize=8)
    axes[0].axvline(1, color=LIMIT, linewidth=0.8, linestyle=":")
    axes[0].set(title="Xeon, one thread, 16/32 heads, f32", xlabel="time over GDN's", xlim=(0, 2.1))
    axes[0].set_yticks(range(len(OPS)), OPS.values())
    runs = newest("family/h200.jsonl", lambda r: (r["heads"], r.get("seqlens"), r["rule"]),
                  op="prefill")
    cases = [key[:2] for key in runs if key[2] == "gdn"]
    for i, (rule, title, color) in enumerate((("gdn", "GDN", OURS), ("kda", "KDA", OTHER))):
        places = [p + 0.4 * i - 0.2 for p in range(len(cases))]
        times = [runs[(*case, rule)]["ms"] for case in cases]
        axes[1].barh(places, times, 0.38, color=color, label=title)
        for p, t in zip(places, times):
            axes[1].text(t, p, f" {t:.2f}", va="center", fontsize=8)
    axes[1].set(title="Prefill on an H200, bf16, weak gates", xlabel="milliseconds")
    axes[1].set_yticks(range(len(cases)), [f"{heads}, {seqlens}" for heads, seqlens in cases])
    for axis in axes:
        axis.invert_yaxis()
        axis.legend(loc="lower right")
    axes[1].set_xlim(right=1.12 * axes[1].dataLim.x1)
    save(figure, folder, "family")


MODELS = {"qwen3_next": "Qwen3-Next", "olmo_hybrid": "OLMo-Hybrid", "kimi_linear": "Kimi-Linear",
          "glm5_next_text": "GLM-5 Next"}


def plan(folder):
    """What `gdn plan` says of four models: sequences that fit, and the time of prompts."""
    runs = newest("plan/default_configurations.jsonl", lambda r: r["model_type"])
    layers = {m: runs[m]["layer_types"].count("linear_attention") for m in MODELS}
    names = [f"{title}\n{layers[m]} {runs[m]['rule']} layers" for m, title in MODELS.items()]
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True)
    colors = {"i8": "#b8bfc6", "bf16": STATES["bf16"], "f32": STATES["f32"]}
    for place, (state, color) in enumerate(colors.items()):
        slots = [next(s["slots"] for s in runs[m]["slots"] if s["state"] == state) for m in MODELS]
        places = [p + 0.27 * (1 - place) for p in range(len(MODELS))]
        axes[0].barh(places, slots, 0.25, color=color, label=f"states {state}")
        for p, n in zip(places, slots):
            axes[0].text(n, p, f" {n}", va="center", fontsize=8)
    axes[0].set_title("Sequences whose states fit into 80 GiB")
    begin = [0] * len(MODELS)
    for op, color in (("gdn_conv1d", THEIRS), ("gdn_prefill", OURS)):
        ms = [next(c["layer_ms"] for c in runs[m]["calls"] if c["op"] == op) for m in MODELS]
        axes[1].barh(range(len(MODELS)), ms, 0.5, begin, color=color, label=op)
        begin = [a + b for a, b in zip(begin, ms)]
    axes[1].set(title="A layer's time for 32 prompts of 8192 tokens, H100",
                xlabel="milliseconds, from the nearest measurement")
    axes[0].set_yticks(range(len(MODELS)), names)
    axes[0].invert_yaxis()
    for axis, place in zip(axes, ("lower right", "upper right")):
        axis.set_xlim(right=1.12 * axis.dataLim.x1)
        axis.legend(loc=place)
    save(figure, folder, "plan")


PLOTS = (summary, prefill_length, prefill_batch, prefill_peers, prefill_gates, prefill_share,
         decode_share, decode_peers, cpu_peers, cpu_scaling, accuracy,
         family, plan)


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent / "docs" / "plots"
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(SETTINGS):
        for plot in PLOTS:
            plot(folder)
    print(f"{len(PLOTS)} plots in {folder}")


if __name__ == "__main__":
    main()
