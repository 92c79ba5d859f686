#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""libgdn's convolution beside the Triton ones of vLLM and SGLang on one GPU.

    PYTHONPATH=python:ENGINES GDN_LIBRARY=.../libgdn.so bench/peers/gpu/race_conv.py [--file FILE]

ENGINES is what unpack_engines.py wrote. Channels of q, k and v of a layer, four taps and SiLU, all
bfloat16; states in slots of a pool that is a quarter larger, channels last. Results are compared
with float64; times are taken as in race_gpu.py. A JSON line per case and peer. vLLM's function of
prompts takes its plan of the batch ready-made, as its engine gives it.
"""
import argparse
import dataclasses
import json
import statistics
import types

import contenders
import race_gpu
import torch
import torch.nn.functional as F
from recurrence import off

TAPS = 4
BATCHES = (1, 8, 32, 128, 256)
LENGTHS = ((2048,), (8192,), (32768,), (2048,) * 4, (1024,) * 8, (100, 3000, 517, 1, 2048, 12000))


@dataclasses.dataclass(frozen=True)
class Case:
    """conv_update: a token for each sequence. conv: whole sequences behind states that they had."""
    op: str
    lengths: tuple
    channels: int

    def fields(self):
        even = len(set(self.lengths)) == 1
        seqs = f"{self.lengths[0]}x{len(self.lengths)}"
        return dict(op=self.op, channels=self.channels, B=len(self.lengths), T=max(self.lengths),
                    seqs=seqs if even else "+".join(map(str, self.lengths)), taps=TAPS,
                    dtype="bf16", pool=True)


def inputs(case, device):
    torch.manual_seed(0)
    B, D, N = len(case.lengths), case.channels, sum(case.lengths)
    n, bf16 = B + B // 4 + 1, dict(device=device, dtype=torch.bfloat16)
    starts = F.pad(torch.tensor(case.lengths).cumsum(0), (1, 0))
    return dict(x=torch.randn(N, D, **bf16), weight=torch.randn(D, TAPS, **bf16),
                bias=torch.randn(D, **bf16), pool=torch.randn(n, TAPS - 1, D, **bf16),
                slots=torch.randperm(n)[:B].to(device, torch.int32),
                starts=starts.to(device, torch.int32))


def expected(case, x):
    """In float64: out [N][D], and the pool [P][W - 1][D] after the call."""
    weight, pool, out = x["weight"].double()[:, None], x["pool"].double(), []
    for slot, row in zip(x["slots"].tolist(), x["x"].double().split(case.lengths)):
        whole = torch.cat([pool[slot], row])
        y = F.conv1d(whole.T[None], weight, x["bias"].double(), groups=case.channels)[0].T
        out.append(F.silu(y))
        pool[slot] = whole[1 - TAPS:]
    return torch.cat(out), pool


class Ours:
    def __init__(self, device):
        self.own = contenders.Ours(device)
        self.version, self.isa = self.own.version, self.own.isa

    def call(self, case, x):
        gdn, pool, out = self.own.gdn, x["pool"].clone(), torch.empty_like(x["x"])
        places = dict(read_slots=x["slots"])
        if case.op == "conv":
            places["cu_seqlens"] = x["starts"]
        each = (lambda t: t) if case.op == "conv" else (lambda t: t[:, None])
        fields = dict(x=each(x["x"]), out=each(out), weight=x["weight"], bias=x["bias"],
                      state=pool.transpose(1, 2), activation=gdn.ACT_SILU)
        batch = gdn.Batch(**places)

        def call():
            self.own.call("conv1d", batch=batch, **fields)
            return out, pool
        return call


class Vllm:
    def __init__(self, device):
        import vllm
        from vllm.model_executor.layers.mamba.ops import causal_conv1d

        self.ops, self.version = causal_conv1d, vllm.__version__

    @staticmethod
    def plan(case, device):
        """Which block of 8 tokens of which sequence each program takes."""
        counts = [-(-n // 8) for n in case.lengths]
        pairs = [(i, j) for i, n in enumerate(counts) for j in range(n)]
        of, at = (torch.tensor(x, dtype=torch.int32, device=device) for x in zip(*pairs))
        block = dict(tot=len(pairs), mlist=of, mlist_len=len(pairs), offsetlist=at, batch_ptr=of,
                     token_chunk_offset_ptr=at)
        return types.SimpleNamespace(nums_dict={8: block}, batch_ptr=of, token_chunk_offset_ptr=at)

    def call(self, case, x):
        pool = torch.cat([x["pool"][:1], x["pool"]])  # the first slot is for padding
        states, slots, out = pool.transpose(1, 2), x["slots"] + 1, torch.empty_like(x["x"])
        rest = x["weight"], x["bias"]
        if case.op == "conv_update":
            def call():
                self.ops.causal_conv1d_update(x["x"], states, *rest, "silu",
                                              conv_state_indices=slots, out=out)
                return out, pool[1:]
            return call
        has, plan = torch.ones_like(slots, dtype=torch.bool), self.plan(case, out.device)

        def call():
            y = self.ops.causal_conv1d_fn(x["x"].T, *rest, states, x["starts"], slots, has,
                                          metadata=plan)
            return y.T, pool[1:]
        return call


class Sglang:
    def __init__(self, device):
        import sglang
        from sglang.kernels.ops.mamba import causal_conv1d_triton

        self.ops, self.version = causal_conv1d_triton, sglang.__version__

    def call(self, case, x):
        pool, rest = x["pool"].clone(), (x["weight"], x["bias"])
        states, slots = pool.transpose(1, 2), x["slots"]
        if case.op == "conv_update":
            def call():
                return self.ops.causal_conv1d_update(x["x"], states, *rest, "silu",
                                                     conv_state_indices=slots), pool
            return call
        has = torch.ones_like(slots, dtype=torch.bool)

        def call():
            y = self.ops.causal_conv1d_fn(x["x"].T, *rest, states, x["starts"],
                                          list(case.lengths), slots, has)
            return y.T, pool
        return call


PEERS = dict(vllm=Vllm, sglang=Sglang)


def judged(contender, case, x, wanted):
    """A contender's call, and its errors; or None and what kept it from having them."""
    try:
        call = contender.call(case, x)
        found = [off(got.double(), right) for got, right in zip(call(), wanted)]
    except Exception as error:  # whatever a peer raises, the race goes on
        return None, dict(refused=f"{type(error).__name__}: {error}"[:200])
    if max(found) >= race_gpu.WRONG:
        return None, dict(error=found, refused=f"wrong: off by {max(found):.2g}")
    return call, dict(error=found)


def race(case, racers, options, flush):
    x = inputs(case, options.device)
    wanted = expected(case, x)
    found = {name: judged(racer, case, x, wanted) for name, racer in racers.items()}
    said = {name: what for name, (_, what) in found.items()}
    calls = {name: call for name, (call, _) in found.items() if call}
    if not options.check and calls:
        graphs = {name: race_gpu.graph_of(call) for name, call in calls.items()}
        for name, times in race_gpu.rounds(graphs, options.rounds, flush).items():
            said[name].update(us=statistics.median(times), times=times)
    return said


def lines(case, said, racers, common):
    """A line per peer, in the names that race_gpu.py has."""
    own = said["gdn"]
    for peer in (name for name in said if name != "gdn"):
        keys, theirs = ("us", "error", "refused"), said[peer]
        line = dict(common, **case.fields(), **{key: own[key] for key in keys if key in own})
        line.update(peer=peer, peer_commit=racers[peer].version)
        line.update({f"peer_{key}": theirs[key] for key in keys if key in theirs})
        if "us" in own and "us" in theirs:
            line.update(speedup=theirs["us"] / own["us"],
                        speedup_paired=race_gpu.paired(theirs["times"], own["times"]))
        yield line


def arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--peers", default=",".join(PEERS), help="some of %(default)s")
    p.add_argument("--channels", type=int, default=8192, help="of q, k and v (%(default)s)")
    p.add_argument("--rounds", type=int, default=31)
    p.add_argument("--check", action="store_true", help="compare, time nothing; also on a CPU")
    p.add_argument("--small", action="store_true", help="few and short sequences")
    p.add_argument("--file", help="lines are appended to it")
    p.add_argument("--commit", default=race_gpu.commit(), help="that was built")
    options = p.parse_args()
    options.device = "cuda" if torch.cuda.is_available() else "cpu"
    if options.device == "cpu" and not options.check:
        p.error("no GPU; --check compares without one")
    return options


def main():
    options = arguments()
    racers = {"gdn": Ours(options.device),
              **{name: PEERS[name](options.device) for name in options.peers.split(",")}}
    on_gpu = options.device == "cuda"
    common = dict(commit=options.commit, command="race_conv.py", isa=racers["gdn"].isa,
                  device=torch.cuda.get_device_name() if on_gpu else "cpu",
                  built_with=contenders.versions(), rounds=options.rounds)
    flush = torch.empty(race_gpu.FLUSH if on_gpu else 0, dtype=torch.uint8, device=options.device)
    updates, whole = (((3,), ((9, 1, 20),)) if options.small else (BATCHES, LENGTHS))
    todo = [*(Case("conv_update", (1,) * B, options.channels) for B in updates),
            *(Case("conv", lengths, options.channels) for lengths in whole)]
    for case in todo:
        for line in lines(case, race(case, racers, options, flush), racers, common):
            print(json.dumps(line), flush=True)
            if options.file:
                with open(options.file, "a") as file:
                    file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    with torch.no_grad():
        main()
