#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`gdn accuracy`, from outside: cli_accuracy_test.py GDN [--filter WORD]"""
import json
import sys

import cli_test as cli
from cli_test import OK, check, refused

GATES = ("mild", "strong", "none", "slow")
SMALL = ("--tokens", "1100", "--dim", "32/24")

# out_rms_error after the 1100 tokens of SMALL, as "scalar", "avx2" and "avx512" gave it within a
# fifth, for:
STATES = (("f32", "nearest"), ("bf16", "nearest"), ("f16", "nearest"), ("i8", "nearest"),
          ("i8", "stochastic"), ("e4m3", "nearest"), ("e4m3", "stochastic"),
          ("e5m2", "nearest"), ("e5m2", "stochastic"))
ERRORS = {  # by gates and tokens per call
    ("mild", 1): (2.6e-7, 9.7e-3, 1.2e-3, 3.0e-2, 4.3e-2, 1.3e-1, 1.9e-1, 2.5e-1, 3.6e-1),
    ("mild", 64): (2.4e-7, 1.1e-3, 1.5e-4, 3.6e-3, 5.4e-3, 1.7e-2, 2.3e-2, 3.3e-2, 4.7e-2),
    ("strong", 1): (9.0e-8, 1.3e-3, 1.7e-4, 3.6e-3, 4.9e-3, 1.9e-2, 2.7e-2, 3.8e-2, 5.4e-2),
    ("strong", 64): (1.4e-7, 1.3e-4, 1.6e-5, 3.9e-4, 4.6e-4, 1.8e-3, 2.7e-3, 4.1e-3, 5.2e-3),
    ("none", 1): (2.1e-7, 1.1e-2, 1.4e-3, 3.6e-2, 5.3e-2, 1.5e-1, 2.2e-1, 3.0e-1, 4.4e-1),
    ("none", 64): (2.6e-7, 1.5e-3, 1.8e-4, 4.7e-3, 6.5e-3, 2.1e-2, 2.9e-2, 4.1e-2, 5.6e-2),
    ("slow", 1): (5.5e-7, 3.6e-2, 4.4e-3, 1.1e-1, 1.6e-1, 4.8e-1, 6.2e-1, 2.3, 1.2),
    ("slow", 64): (5.5e-7, 4.4e-3, 5.6e-4, 1.5e-2, 2.2e-2, 6.5e-2, 8.9e-2, 1.2e-1, 1.8e-1),
}


def lines(*args):
    status, text, err = cli.gdn("accuracy", *args, "--json")
    check(status == OK, status, err)
    return [json.loads(line) for line in text.splitlines()]


def key(row):
    return tuple(row[k] for k in ("gates", "tokens_per_call", "state", "rounding", "tokens"))


def test_record():
    """States of 16 and 8 bits err less if they are rounded once in 16 tokens: by the root of 16,
    of which half is asked for. Rows of bf16 add errors of their own."""
    args = (*SMALL, "--call", "0")
    plain = {key(row): row["out_rms_error"] for row in lines(*args)}
    lazy = {key(row): row["out_rms_error"] for row in lines(*args, "--record", "16")}
    rows = {key(row): row["out_rms_error"]
            for row in lines(*args, "--record", "16", "--rows", "bf16")}
    check(plain.keys() == lazy.keys() == rows.keys(), len(plain), len(lazy))
    for k, error in lazy.items():
        f32 = k[2] == "f32"
        check(error <= (1.3 if f32 else 0.5) * plain[k], k, error, plain[k])
        check(not f32 or 1e-4 < rows[k] < 1e-2, k, rows[k])


def test_rows():
    rows = lines(*SMALL)
    found = {key(row): row for row in rows}
    check(len(found) == len(rows) == 4 * 2 * 9 * 2, len(rows))
    for gates in GATES:
        for n in (1, 64):
            row = [found[gates, n, s, "nearest", 1100] for s in ("f32", "f16", "bf16", "i8")]
            errors = [r["out_rms_error"] for r in row]
            check(errors == sorted(errors), gates, n, errors)
            for r in row:
                check(0 < r["state_rms_error"] < r["state_max_error"], r)
                check(0 < r["out_rms_error"] < r["out_max_error"], r)


def test_sizes():
    """Errors are within a factor of 2 of kept ones."""
    found = {key(row): row["out_rms_error"] for row in lines(*SMALL)}
    for (gates, n), errors in ERRORS.items():
        for state, usual in zip(STATES, errors):
            error = found[gates, n, *state, 1100]
            check(usual / 2 < error < usual * 2, gates, n, state, error, "usual:", usual)


def test_call_lengths():
    """Fewer roundings, smaller errors; without prefill there are half as many rows."""
    found = {key(row): row for row in lines(*SMALL)}
    for state in ("bf16", "f16", "i8", "e4m3", "e5m2"):
        each, some = (found["none", n, state, "nearest", 1100] for n in (1, 64))
        check(some["out_rms_error"] < each["out_rms_error"], state)
    check(len(lines(*SMALL, "--call", "0")) == 4 * 9 * 2)


def test_reproducible():
    """The rows do not depend on the number of threads; another seed gives other rows."""
    one = lines(*SMALL, "--heads", "2")
    two = lines(*SMALL, "--heads", "2", "--threads", "3")
    for row in one + two:
        row.pop("threads")
    check(one == two)
    check(one[0]["out_rms_error"] != lines(*SMALL, "--seed", "9")[0]["out_rms_error"])


def test_layouts():
    status, text, err = cli.gdn("accuracy", *SMALL, "--layout", "k_first")
    check(status == OK and not err, status, err)
    check(text.count("\n  mild") == 2 * 18, text)


def test_rules():
    """Rules of the family are right in float32, and err less in it than in 16 and 8 bits."""
    for rule in ("kda", "gdn2", "product"):
        rows = lines("--tokens", "300", "--dim", "32/24", "--rule", rule)
        check(all(row["rule"] == rule for row in rows), rows[0])
        for gates in GATES:
            errors = [row["out_rms_error"] for row in rows
                      if row["gates"] == gates and row["tokens_per_call"] == 1 and
                      row["rounding"] == "nearest" and row["state"] in ("f32", "f16", "i8")]
            check(errors == sorted(errors) and 0 < errors[0] < 1e-6, rule, gates, errors)


def test_refused():
    refused("accuracy", "--rule", "delta", names=["--rule", "delta"])
    refused("accuracy", "--dim", "0", names=["--dim"])
    refused("accuracy", "--dim", "12x", names=["--dim"])
    refused("accuracy", "--dim", "300", names=["--dim"])
    refused("accuracy", "--layout", "v", names=["--layout"])
    refused("accuracy", "--tokens", "0", names=["--tokens"])
    refused("accuracy", "--tokens", "x", names=["--tokens"])
    refused("accuracy", "--record", "0", names=["--record", "from 1 "])
    refused("accuracy", "file", names=["file"])
    status, text, _ = cli.gdn("accuracy", "--help")
    check(status == OK and all(w in text for w in ("--tokens", "--call", "e4m3")), text)
    status, text, _ = cli.gdn("--help")
    check("gdn accuracy" in text, text)


if __name__ == "__main__":
    sys.exit(cli.main(globals()))
