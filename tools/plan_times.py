#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
plan_times.py [--check] - writes cli/plan/times.inc, the times that `gdn plan` knows, from the kept
runs of bench/results: of each case the newest line. --check: fails if the file is another than
would be written.
"""
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
FILE = ROOT / "cli/plan/times.inc"
# The kept runs, and the machine's name in times.c. Those of family/h100 are of older kernels.
RUNS = (("cuda-h200", "H200"), ("cuda-h100", "H100"), ("cpu-emerald-rapids", "EMERALD_RAPIDS"),
        ("cpu-zen4", "ZEN4"), ("family/h200", "H200"))
OPS = {"conv": "CONV", "prefill": "PREFILL", "step": "STEP", "decode": "DECODE",
       "prefill_backward": "BACKWARD"}
FORMS = ("exact", "each", "call", "save_every", "bf16_products", "batch_invariant",
         "no_early_stop", "pool", "raw")
DTYPES = {"f32": "GDN_F32", "bf16": "GDN_BF16", "f16": "GDN_F16"}
HEAD = """\
/* SPDX-License-Identifier: Apache-2.0 */
/* Made by tools/plan_times.py from bench/results. Do not edit. */
/* machine, call, hopper, channels, heads of keys, of values, K, V, sequences, tokens, threads,
 * dtypes, us */
"""


def lengths(r):
    """Sequences and tokens of each; None: of several lengths."""
    if "batch" in r:
        return r["batch"], r["tokens"]
    text = r["seqlens"]
    if "," in text:
        return None
    tokens, _, count = text.partition("x")
    return int(count or 1), int(tokens)


def is_kept(r):
    environment = r["command"].split("gdn bench")[0]
    if r["op"] == "decode" and r["backend"] == "cuda":
        return False  # the step was measured there
    if environment.strip() not in ("", "GDN_CUDA_WITHOUT=sm90"):
        return False
    return (r["op"] in OPS and lengths(r) and not any(r.get(form) for form in FORMS) and
            r.get("rule") in (None, "kda") and
            r.get("layout", "k_last") == "k_last" and "--isa" not in r["command"] and
            r.get("gates", "recipe") == "recipe" and
            r["dtype"] in DTYPES and r.get("state", "f32") in DTYPES)


def case(r, machine):
    """The fields of a row but for its time. A convolution has one head of all channels."""
    B, T = lengths(r)
    if "heads" in r:
        heads = [int(n) for n in r["heads"].split("/")]
        sizes = (*heads, r["dim"], r["value_dim"])
    else:
        sizes = (1, 1, 1, r["channels"])
    # Of KDA the form by mma.sync is what other chips run; GDN's older forms are gone.
    without = "GDN_CUDA_WITHOUT=sm90" in r["command"]
    without = without or ("rule" in r and "sm90" not in r["kernel"])
    return (machine, OPS[r["op"]], without, int("rule" in r), *sizes, B, T, r["threads"],
            DTYPES[r["dtype"]], DTYPES[r.get("state", "f32")])


def rows():
    found = {}
    for name, machine in RUNS:
        for line in (ROOT / f"bench/results/{name}.jsonl").read_text().splitlines():
            r = json.loads(line)
            if is_kept(r):
                found[case(r, machine)] = r
    for (machine, call, _, *rest), r in sorted(found.items()):
        values = ", ".join(str(f) for f in rest)
        hopper = int("sm90" in r["kernel"])
        yield f"TIME({machine}, {call}, {hopper}, {values}, {1e3 * r['ms']:.4g})\n"


def main():
    text = HEAD + "".join(rows())
    if sys.argv[1:] == ["--check"]:
        if FILE.read_text() != text:
            sys.exit(f"{FILE.relative_to(ROOT)} is not what tools/plan_times.py writes")
    else:
        FILE.write_text(text)


if __name__ == "__main__":
    main()
