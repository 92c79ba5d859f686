#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`gdn bench`, from outside: cli_bench_test.py GDN [--filter WORD]"""
import json
import sys

import cli_test as cli
from cli_test import OK, check, gdn

BENCHES = {
    "prefill": "--heads 2/4 --seqlens 33,20x2 --dim 32",
    "prefill bf16": "--heads 4/2 --seqlens 1x40 --dim 24/40 --dtype bf16 --layout k_first",
    "decode": "--heads 2/4 --batch 3 --dim 32",
    "decode f16": "--heads 1/1 --batch 2 --tokens 4 --dim 60 --dtype f16 --state f16",
    "decode exact": "--exact --raw --heads 2/4 --batch 2 --tokens 40 --dim 32 --state i8",
    "prefill exact": "--exact --heads 2/4 --seqlens 90 --dim 24/40 --state bf16 --layout k_first",
    "prefill exact long": "--exact --heads 2/2 --seqlens 600,3 --dim 16 --state e4m3 --pool",
    "conv": "--channels 48 --seqlens 100",
    "conv bf16": "--channels 48 --batch 4 --tokens 2 --state bf16",
    "block": "--heads 2/4 --dim 16 --hidden 48 --seqlens 40",
    "block bf16": "--heads 2/4 --dim 16 --hidden 48 --batch 2 --dtype bf16",
    "prefill_backward": "--heads 2/4 --seqlens 33,20x2 --dim 32",
    "prefill_backward bf16": "--heads 4/2 --seqlens 1x40 --dim 24/40 --dtype bf16 --layout k_first",
    "prefill_backward saved": "--heads 2/4 --seqlens 300,70 --dim 32 --save-every 64",
    "prefill_backward window": "--heads 2/4 --seqlens 70 --dim 32 --window-mib 100",
    "layer_backward": "--heads 2/4 --dim 16 --hidden 48 --seqlens 40,3",
    "gates": "--heads 2/4 --seqlens 40",
    "l2norm": "--heads 2/4 --dim 16 --seqlens 40",
    "rmsnorm": "--heads 2/4 --dim 16 --seqlens 40",
}


def test_bench():
    keys = "op backend device kernel dtype state threads ms ms_mad gflops gbs share error version"
    for name, options in BENCHES.items():
        op = name.split()[0]
        status, out, err = gdn("bench", op, *options.split(), "--seconds", "0.02", "--json")
        check(status == OK and err == "", name, status, err)
        line = json.loads(out)
        for key in keys.split() + ["seqlens" if "--seqlens" in options else "batch"]:
            check(key in line, key, "is not in", line)
        check(line["op"] == op and line["ms"] > 0 and line["ms_mad"] >= 0, line)
        counted = op not in ("gates", "l2norm", "rmsnorm")
        check(line["share"] > 0 and line["gbs"] > 0, line)
        check(line["gflops"] > 0 if counted else line["gflops"] is None, line)
        check(0 < line["error"] < (5e-2 if "f16" in name else 1e-4), name, line["error"])
        check("dim" in line and "heads" in line or op == "conv", line)
        check("projections" in line or op != "block", line)
        check(line.get("gates") == ("recipe" if counted and op != "conv" else None), line)
    status, out, err = gdn("bench", "decode", *BENCHES["decode"].split(), "--seconds", "0.02")
    check(status == OK and "GFLOP/s" in out and "of RMS" in out, out, err)
    status, out, err = gdn("bench", "gates", *BENCHES["gates"].split(), "--seconds", "0.02")
    check(status == OK and "FLOP" not in out and "GB/s" in out, out, err)


def test_bench_names_what_is_timed():
    """With GDN_SPLIT_INVARIANT decode has the loops of chunks, and the call that is judged not."""
    for options, word in ("", "recur"), ("--record 64 --split", "chunk_solve"):
        status, out, err = gdn("bench", "decode", *BENCHES["decode"].split(), *options.split(),
                               "--seconds", "0.02", "--json")
        check(status == OK and word in json.loads(out)["kernel"], options, out, err)


def test_bench_of_gates():
    """A line for each kind, right by the judge whether raw or not."""
    for name in ("prefill", "prefill raw", "decode exact", "block", "step"):
        options = BENCHES.get(name, "--raw --heads 2/4 --seqlens 70,3 --dim 32")
        if name == "step":
            options = "--heads 2/4 --dim 32 --batch 2"
        status, out, err = gdn("bench", name.split()[0], *options.split(), "--gates", "all",
                               "--seconds", "0.02", "--json")
        lines = [json.loads(line) for line in out.splitlines()]
        check(status == OK and err == "", name, status, err)
        check([line["gates"] for line in lines] == ["recipe", "none", "model", "strong"], lines)
    status, out, err = gdn("bench", "prefill", "--gates", "trained", "--heads", "2/4", "--seqlens",
                           "90", "--dim", "32", "--seconds", "0.02", "--json")
    check(status == OK and json.loads(out)["gates"] == "trained", out, err)
    status, out, err = gdn("bench", "decode", "--gates", "model", "--heads", "2/4", "--batch", "2",
                           "--seconds", "0.02")
    check(status == OK and "gates model" in out, out, err)


def test_bench_of_rules():
    """The rules of the family are right by the judge, values and gradients; the line names them."""
    sizes = ("--heads", "2/4", "--dim", "24/40", "--seconds", "0.01", "--json")
    runs = (("prefill", "--seqlens", "70,3"), ("prefill", "--raw", "--seqlens", "40,20"),
            ("decode", "--batch", "2", "--tokens", "3", "--layout", "k_first"),
            ("decode", "--raw", "--pool", "--batch", "2"),
            ("prefill_backward", "--seqlens", "70,3"), ("step", "--gated", "--batch", "2"))
    for rule in ("kda", "gdn2", "product"):
        for run in runs:
            for gates in ("trained", "strong") if run == runs[0] else ("trained",):
                status, out, err = gdn("bench", *run, *sizes, "--rule", rule, "--gates", gates)
                check(status == OK and err == "", rule, run, gates, err)
                line = json.loads(out)
                check((line["rule"], line["gates"]) == (rule, gates), line)
                check(0 < line["error"] < 1e-4, line)
                check(line.get("updates") == (2 if rule == "product" else None), line)
    status, out, err = gdn("bench", "decode", *sizes[:-1], "--rule", "product", "--updates", "3",
                           "--batch", "1", "--tokens", "2")
    check(status == OK and "rule product" in out, out, err)


def test_bench_of_layers():
    """The layers of other models are right by the judge, values and gradients."""
    sizes = "--heads 2/4 --dim 16/24 --hidden 48 --seqlens 40,3 --seconds 0.01 --json".split()
    for layer, rule in (("qwen3_next", None), ("olmo_hybrid", None), ("kimi_linear", "kda")):
        for op in ("block", "layer_backward"):
            status, out, err = gdn("bench", op, "--layer", layer, *sizes)
            check(status == OK and err == "", layer, op, err)
            line = json.loads(out)
            check((line["layer"], line.get("rule")) == (layer, rule), line)
            check(0 < line["error"] < 1e-4, line)


if __name__ == "__main__":
    sys.exit(cli.main(globals()))
