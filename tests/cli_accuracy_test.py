#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`gdn accuracy`, from outside: cli_accuracy_test.py GDN [--filter WORD]"""
import json
import sys

import cli_test as cli
from cli_test import OK, check, refused

GATES = ("mild", "strong", "none", "slow")
SMALL = ("--tokens", "1100", "--dim", "32/24")


def lines(*args):
    status, text, err = cli.gdn("accuracy", *args, "--json")
    check(status == OK, status, err)
    return [json.loads(line) for line in text.splitlines()]


def key(row):
    return tuple(row[k] for k in ("gates", "tokens_per_call", "state", "rounding", "tokens"))


def test_rows():
    rows = lines(*SMALL)
    found = {key(row): row for row in rows}
    check(len(found) == len(rows) == 4 * 2 * 7 * 2, len(rows))
    for gates in GATES:
        for n in (1, 64):
            row = [found[gates, n, s, "nearest", 1100] for s in ("f32", "f16", "bf16", "i8")]
            errors = [r["out_rms_error"] for r in row]
            check(errors == sorted(errors), gates, n, errors)
            check(errors[0] < 1e-5, gates, n, errors)
            for r in row:
                check(0 < r["state_rms_error"] < r["state_max_error"], r)
                check(0 < r["out_rms_error"] < r["out_max_error"], r)


def test_call_lengths():
    """Fewer roundings, smaller errors; without prefill there are half as many rows."""
    found = {key(row): row for row in lines(*SMALL)}
    for state in ("bf16", "f16", "i8", "e4m3"):
        each, some = (found["none", n, state, "nearest", 1100] for n in (1, 64))
        check(some["out_rms_error"] < each["out_rms_error"], state)
    check(len(lines(*SMALL, "--call", "0")) == 4 * 7 * 2)


def test_reproducible():
    """The same rows whatever the layout's scales and the threads; other seeds, other rows."""
    one = lines(*SMALL, "--heads", "2")
    two = lines(*SMALL, "--heads", "2", "--threads", "3")
    for row in one + two:
        row.pop("threads")
    check(one == two)
    check(one[0]["out_rms_error"] != lines(*SMALL, "--seed", "9")[0]["out_rms_error"])


def test_layouts():
    status, text, err = cli.gdn("accuracy", *SMALL, "--layout", "k_first")
    check(status == OK and not err, status, err)
    check(text.count("\n  mild") == 2 * 14, text)


def test_refused():
    refused("accuracy", "--dim", "0", names=["--dim"])
    refused("accuracy", "--dim", "12x", names=["--dim"])
    refused("accuracy", "--dim", "300", names=["--dim"])
    refused("accuracy", "--layout", "v", names=["--layout"])
    refused("accuracy", "--tokens", "0", names=["--tokens"])
    refused("accuracy", "--tokens", "x", names=["--tokens"])
    refused("accuracy", "file", names=["file"])
    status, text, _ = cli.gdn("accuracy", "--help")
    check(status == OK and all(w in text for w in ("--tokens", "--call", "e4m3")), text)
    status, text, _ = cli.gdn("--help")
    check("gdn accuracy" in text, text)


if __name__ == "__main__":
    sys.exit(cli.main(globals()))
