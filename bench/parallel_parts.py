# SPDX-License-Identifier: Apache-2.0
"""
parallel_parts.py - the parts of a context-parallel pass, on one GPU: what a rank computes for its
share of a sequence. One JSON line for each share, with times in microseconds.

    python3 bench/parallel_parts.py [--heads 16/32,16/64,2/8] [--only forward,backward]
        [--out FILE]  # libgdn by GDN_LIBRARY

whole: gdn_prefill() of all tokens on one GPU. local: gdn_prefill() of the share from a given state.
summary: gdn_summary() of the share. offset: the same without M, of the first rank. fold:
gdn_summary_fold() of as many ranges as there are shares. walk: gdn_prefill_backward() of the share
for dstate alone. back: the same for every gradient. r: walk / back. *_all: with NO_EARLY_STOP. Keys
are normalised inside of the calls. Each time is the median of five rounds of about 20 ms.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

import gdn
import gdn.torch  # noqa: F401, operators
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent / "peers" / "gpu"))
import gates as kinds  # noqa: E402

DIM, TOTALS, SHARES = 128, (131072, 1048576), (2, 4, 8)


def timed(call):
    """Microseconds."""
    def once(count):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in "se")
        start.record()
        for _ in range(count):
            call()
        end.record()
        torch.cuda.synchronize()
        return 1000 * start.elapsed_time(end) / count

    once(2)
    count = max(1, min(200, int(20e3 / once(1))))
    return round(statistics.median(once(count) for _ in range(5)), 1)


class Inputs:
    def __init__(self, heads, n_tokens, kind):
        hk, hv = heads
        draw = torch.Generator("cuda").manual_seed(7)

        def normal(count):
            return torch.randn(n_tokens, count, DIM, dtype=torch.bfloat16, device="cuda",
                               generator=draw)

        a, A_log, dt_bias = (x.to("cuda") for x in kinds.raw(kind, n_tokens, hv))
        self.q, self.k, self.v, self.heads = normal(hk), normal(hk), normal(hv), hv
        self.g = kinds.logs_of(a, A_log, dt_bias)
        self.beta = torch.rand(n_tokens, hv, device="cuda", generator=draw)
        self.maps = torch.zeros(2, 8, hv, DIM, DIM, device="cuda")
        self.dout = self.v[n_tokens // 2:]  # of shares, which are half at most

    def rows(self, n, names):
        return {name: getattr(self, name)[:n] for name in names}

    def prefill(self, n, flags):
        state = torch.zeros(1, self.heads, DIM, DIM, device="cuda")
        out = torch.empty_like(self.v[:n])
        return timed(lambda: torch.ops.gdn.prefill.full(
            **self.rows(n, ("q", "k", "v", "g", "beta")), state=state, out=out, norm=gdn.NORM_L2,
            write=gdn.WRITE_NONE, flags=flags))

    def summary(self, n, flags, with_M=True):
        M, U = (x[:1] for x in self.maps)
        return timed(lambda: torch.ops.gdn.summary.full(
            **self.rows(n, ("k", "v", "g", "beta")), M=M if with_M else None, U=U,
            norm=gdn.NORM_L2, flags=flags))

    def backward(self, n, flags, alone):
        shape = (1, self.heads, DIM, DIM)
        options = dict(self.rows(n, ("q", "k", "v", "g", "beta")), dout=self.dout[:n],
                       dstate=torch.empty(shape, device="cuda"), norm=gdn.NORM_L2, flags=flags)
        if not alone:
            for name in ("q", "k", "v", "g", "beta"):
                options["d" + name] = torch.empty_like(options[name])
            options.update(state=torch.zeros(shape, device="cuda"),
                           dstate_out=torch.zeros(shape, device="cuda"))
        return timed(lambda: torch.ops.gdn.prefill_backward.full(**options))

    def fold(self, n_ranges):
        M, U = (torch.randn_like(x) / DIM for x in self.maps)
        order = torch.arange(n_ranges, dtype=torch.int32, device="cuda")[None]
        state = torch.empty(1, self.heads, DIM, DIM, device="cuda")
        return timed(lambda: torch.ops.gdn.summary_fold.default(M=M, U=U, order=order,
                                                                state_out=state))


FLAGS = {"": 0, "_all": gdn.NO_EARLY_STOP}


def backward_of(inputs, total):
    """A line for each number of shares."""
    for shares in SHARES:
        line, n = dict(shares=shares, tokens=total), total // shares
        for name, flag in FLAGS.items():
            line["walk" + name] = inputs.backward(n, flag, True)
            line["back" + name] = inputs.backward(n, flag, False)
            line["r" + name] = round(line["walk" + name] / line["back" + name], 3)
        yield line


def forward_of(inputs, total):
    """A line for each number of shares."""
    whole = {"whole" + name: inputs.prefill(total, flag) for name, flag in FLAGS.items()}
    for shares in SHARES:
        line, n = dict(shares=shares, tokens=total, **whole), total // shares
        for name, flag in FLAGS.items():
            line["local" + name] = inputs.prefill(n, flag)
            line["summary" + name] = inputs.summary(n, flag)
            line["offset" + name] = inputs.summary(n, flag, with_M=False)
            first = "offset" if shares == 2 else "summary"  # of the slowest rank
            line["s" + name] = round(line[first + name] / line["local" + name], 3)
            line["work" + name] = round((line[first + name] + line["local" + name]) /
                                        line["whole" + name], 3)
        yield dict(line, fold=inputs.fold(shares))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--heads", default="16/32,16/64,2/8")
    parser.add_argument("--gates", default="recipe,model")
    parser.add_argument("--only", default="forward,backward")
    parser.add_argument("--commit", default=None)
    parser.add_argument("--out")
    options = parser.parse_args()
    commit = options.commit or subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True,
        check=True).stdout.strip()
    base = dict(commit=commit, command="bench/parallel_parts.py",
                device=torch.cuda.get_device_name())
    for text in options.heads.split(","):
        for kind in options.gates.split(","):
            inputs = Inputs(tuple(map(int, text.split("/"))), max(TOTALS), kind)
            for only in options.only.split(","):
                lines = {"forward": forward_of, "backward": backward_of}[only]
                for line in (line for total in TOTALS for line in lines(inputs, total)):
                    row = json.dumps(dict(base, heads=text, dim=DIM, gates=kind, **line))
                    print(row, flush=True)
                    if options.out:
                        with open(options.out, "a") as file:
                            file.write(row + "\n")
            del inputs
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
