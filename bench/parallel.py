# SPDX-License-Identifier: Apache-2.0
"""
parallel.py - gdn.torch.distributed on several GPUs beside one of them, one process for each. One
JSON line for each measurement: times of the slowest rank in microseconds, the bytes that a rank
sends, and the error against one GPU, as a part of the largest element.

    torchrun --nproc-per-node 2 bench/parallel.py              # NCCL; libgdn by GDN_LIBRARY
    torchrun --nproc-per-node 2 bench/parallel.py --only context,graph --heads 2/8

Without a GPU it runs on gloo, with small sizes, as a trial. What a row cannot do is said in its
line (failed), and in a last line (skipped) what there was no time for.

Parts of a forward pass: `summary` up to the all-gather, `gather`, and `rest`, which is fold and
local pass; of a backward pass the same with `back_`. `fold` and `local` are measured by themselves.
"""
import argparse
import datetime
import functools
import json
import os
import pathlib
import statistics
import sys
import time

import gdn
import gdn.torch
import torch
import torch.distributed as dist
from gdn.torch import distributed

sys.path.insert(0, str(pathlib.Path(__file__).parent / "peers" / "gpu"))
import gates as kinds  # noqa: E402

LONG = 300e3  # microseconds of a call that is measured once
LIMIT = 2e-2  # of the largest element, in bfloat16: sums are cut at other places
NAMES = "q", "k", "v", "g", "beta"
NORM = dict(norm=gdn.NORM_L2)  # inside of the calls, which may stop early then
FORWARD = "summary", "gather", "rest"
BACKWARD = "back_summary", "back_gather", "back_rest"
ON_GPU = torch.cuda.is_available()
HIDDEN = {"16/32": 2048, "16/64": 4096, "2/8": 1024}  # of a layer with these heads

# ---- Time ----------------------------------------------------------------------------------------


def mark():
    """A point of time of the current stream; without a GPU, of the processor."""
    if not ON_GPU:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def between(start, end):
    """Microseconds."""
    return 1000 * start.elapsed_time(end) if ON_GPU else 1e6 * (end - start)


def wait():
    if ON_GPU:
        torch.cuda.synchronize()


class Clocked:
    """The group of all processes, as a Layout takes it. Notes the times of all-gathers."""

    def __init__(self, device):
        self.device, self.rank, self.size = device, dist.get_rank(), dist.get_world_size()
        self.marks, self.bytes = [], 0

    def all_gather(self, x):
        out = x.new_empty(self.size, *x.shape)
        self.marks.append(mark())
        if ON_GPU:
            dist.all_gather_into_tensor(out, x)
        else:
            dist.all_gather(list(out), x)
        self.marks.append(mark())
        self.bytes += x.numel() * x.element_size()
        return out

    def reduce(self, values, op):
        """Numbers of all ranks, reduced."""
        out = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(out, op=op)
        return out.tolist()

    def barrier(self):
        wait()
        self.reduce([0], dist.ReduceOp.SUM)
        wait()


def timed(group, call):
    """The time of a call on the slowest rank: the median over five rounds of about 30 ms each. A
    longer call is a round; of one of more than LONG, there is one."""
    call()
    group.barrier()
    start = mark()
    call()
    end = mark()
    wait()
    about = group.reduce([between(start, end)], dist.ReduceOp.MAX)[0]
    count = max(1, min(50, int(30e3 / about)))
    times = []
    for _ in range(5 if about < LONG else 1):
        group.barrier()
        start = mark()
        for _ in range(count):
            call()
        end = mark()
        wait()
        times.append(between(start, end) / count)
    return group.reduce([statistics.median(times)], dist.ReduceOp.MAX)[0]


def parts_of(group, us, call, names):
    """The parts of a call of that time by its all-gathers, and the bytes that it sends.
    call(points) may add a mark between two passes. An all-gather waits for the last rank, so its
    time is the shortest."""
    found = []
    for _ in range(5 if us < LONG else 1):
        group.barrier()
        group.marks, group.bytes = [mark()], 0
        call(group.marks)
        group.marks.append(mark())
        wait()
        found.append([between(a, b) for a, b in zip(group.marks, group.marks[1:])])
    if len(found[0]) != len(names):
        raise RuntimeError(f"{len(found[0])} parts, wanted {names}")
    medians = [statistics.median(part) for part in zip(*found)]
    slowest = group.reduce(medians, dist.ReduceOp.MAX)
    fastest = group.reduce(medians, dist.ReduceOp.MIN)
    return {name: round(low if "gather" in name else high, 1)
            for name, low, high in zip(names, fastest, slowest)}, group.bytes


# ---- The rule ------------------------------------------------------------------------------------


def inputs_of(heads, lengths, kind, device, dtype):
    """The same on every rank: q, k, v, log gates, strengths, and dout."""
    n_tokens, (hk, hv), dim = sum(lengths), heads, 128
    draw = torch.Generator(device).manual_seed(7)

    def n(count, type_of=dtype):
        return torch.randn(n_tokens, count, dim, dtype=type_of, device=device, generator=draw)

    q, k = n(hk), n(hk)
    a, A_log, dt_bias = (x.to(device) for x in kinds.raw(kind, n_tokens, hv))
    g = kinds.logs_of(a, A_log, dt_bias)
    beta = torch.rand(n_tokens, hv, device=device, generator=draw)
    return dict(zip(NAMES, (q, k, n(hv), g, beta))), n(hv)


def both(op, args, dout, points=None, **options):
    """Output and gradients."""
    leaves = {name: x.detach().requires_grad_() for name, x in args.items()}
    with torch.enable_grad():
        out = op(**leaves, **options)
    if points is not None:
        points.append(mark())
    grads = torch.autograd.grad(out, list(leaves.values()), dout)
    return dict(out=out.detach(), **{f"d{name}": x for name, x in zip(leaves, grads)})


def errors(group, got, want):
    """The largest difference of each tensor on any rank, over the largest element on any rank."""
    names, lows, tops = list(got), [], []
    for name in names:
        diff = top = 0.0
        for x, y in zip(got[name].flatten().split(1 << 25), want[name].flatten().split(1 << 25)):
            diff = max(diff, (x.float() - y.float()).abs().max().item())
            top = max(top, y.float().abs().max().item())
        is_finite = all(x.isfinite().all().item() for x in got[name].split(1 << 17))
        lows.append(diff if is_finite else float("inf"))
        tops.append(top)
    lows, tops = (group.reduce(x, dist.ReduceOp.MAX) for x in (lows, tops))
    found = {name: float(f"{low / max(top, 1e-30):.2g}")
             for name, low, top in zip(names, lows, tops)}
    return dict(error=found, right=max(found.values()) <= LIMIT)


def line(alone, us, size):
    """The times of a row."""
    found = dict(us=round(us, 1))
    if alone is not None:
        found.update(one_us=round(alone, 1), faster=round(alone / us, 3),
                     efficiency=round(alone / us / size, 3))
    return found


class Rule:
    """One set of inputs: what one GPU makes of it, and then this rank's part."""

    def __init__(self, bench, heads, lengths, kind, dtype):
        self.group, device = bench.group, bench.group.device
        cuts = [0]
        for length in lengths:
            cuts.append(cuts[-1] + length)
        self.layout = distributed.Layout(cuts, bench.group)
        self.args, self.dout = inputs_of(heads, lengths, kind, device, dtype)
        self.one = dict(NORM) if len(lengths) == 1 else dict(
            cu_seqlens=torch.tensor(cuts, dtype=torch.int32, device=device), **NORM)
        self.alone, self.want, self.notes = {}, {}, {}

    def run_alone(self, bench):
        """One GPU. What it cannot do, it leaves out."""
        start, end = self.layout.ranges[0]
        jobs = dict(forward=lambda: dict(out=gdn.torch.prefill(**self.args, **self.one)),
                    both=lambda: both(gdn.torch.prefill, self.args, self.dout, **self.one))
        for name, job in jobs.items():
            def step(name=name, job=job):
                self.want[name] = {n: x[start:end].clone() for n, x in job().items()}
                self.alone[name] = timed(self.group, job)

            note = bench.attempt(step)
            if note:
                self.want.pop(name, None)
                self.alone.pop(name, None)
                self.notes[name] = f"one GPU: {note}"
        self.args = {name: x[start:end].clone() for name, x in self.args.items()}
        self.dout = self.dout[start:end].clone()
        if ON_GPU:
            torch.cuda.empty_cache()

    def report(self, bench, name, us, found, parts, sent):
        line_of = line(self.alone.get(name), us, self.group.size)
        if name in self.want:
            line_of.update(errors(self.group, found, self.want[name]))
        if name in self.notes:
            line_of["note"] = self.notes[name]
        bench.say(**bench.row, **{"pass": name}, **line_of, parts=parts, bytes=sent)

    def forward(self, bench):
        call = functools.partial(distributed.prefill, **self.args, **NORM, layout=self.layout)
        us = timed(self.group, call)
        parts, sent = parts_of(self.group, us, lambda _: call(), FORWARD)
        parts.update(self.alone_parts())
        self.report(bench, "forward", us, dict(out=call()), parts, sent)

    def alone_parts(self):
        """The fold of all other ranks, and the pass over this rank's tokens from a state."""
        v, dim, size = self.args["v"], 128, self.group.size
        heads = v.shape[1]
        M, U = torch.randn(2, size, heads, dim, dim, device=v.device) / dim
        order = torch.arange(size - 1, dtype=torch.int32, device=v.device)[None]
        state = torch.zeros(self.layout.n_pieces, heads, dim, dim, device=v.device)
        out = torch.empty(1, heads, dim, dim, device=v.device)
        cu = self.layout.cu_seqlens(v.device)
        fold = timed(self.group, lambda: torch.ops.gdn.summary_fold.default(
            M=M, U=U, order=order, state_out=out))
        local = timed(self.group, lambda: gdn.torch.prefill(
            **self.args, **NORM, state=state, write=gdn.WRITE_NONE, cu_seqlens=cu))
        return dict(fold=round(fold, 1), local=round(local, 1))

    def both(self, bench):
        call = functools.partial(both, distributed.prefill, self.args, self.dout,
                                 layout=self.layout, **NORM)
        us = timed(self.group, call)
        parts, sent = parts_of(self.group, us, lambda points: call(points=points),
                               FORWARD + BACKWARD)
        self.report(bench, "both", us, call(), parts, sent)


def context(bench, heads, lengths, kind):
    """Tokens over ranks."""
    bench.row = dict(mode="context", heads="/".join(map(str, heads)), dim=128, tokens=sum(lengths),
                     sequences=len(lengths), gates=kind)
    rule = Rule(bench, heads, lengths, kind, bench.dtype)
    rule.run_alone(bench)
    for name in ("forward", "both"):
        note = bench.attempt(lambda name=name: getattr(rule, name)(bench))
        if note:
            bench.say(**bench.row, **{"pass": name}, failed=note, note=rule.notes.get(name))


# ---- FLA ---------------------------------------------------------------------------------------


def fla(bench, heads, lengths, kind):
    """FLA's context parallelism beside one GPU with FLA and beside ours, on the same inputs."""
    from fla.ops.cp import build_cp_context
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    bench.row = dict(mode="fla", heads="/".join(map(str, heads)), dim=128, tokens=sum(lengths),
                     sequences=len(lengths), gates=kind)
    rule, group = Rule(bench, heads, lengths, kind, bench.dtype), bench.group
    start, end = rule.layout.ranges[0]
    cuts = [0]
    for length in lengths:
        cuts.append(cuts[-1] + length)
    cu_seqlens = torch.tensor(cuts, device=group.device)
    context = build_cp_context(cu_seqlens, group=dist.group.WORLD)

    def theirs(q, k, v, g, beta, **options):
        return chunk_gated_delta_rule(*(x[None] for x in (q, k, v, g, beta)),
                                      use_qk_l2norm_in_kernel=True, **options)[0][0]

    mine = {name: x[start:end].clone() for name, x in rule.args.items()}
    dout = rule.dout[start:end].clone()
    ours = functools.partial(distributed.prefill, layout=rule.layout, **NORM)
    for name in ("forward", "both"):
        def step(name=name):
            def call(op, args, dout, **options):
                if name == "forward":
                    return dict(out=op(**args, **options))
                return both(op, args, dout, **options)

            alone = timed(group, lambda: call(theirs, rule.args, rule.dout, cu_seqlens=cu_seqlens))
            us = timed(group, lambda: call(theirs, mine, dout, cp_context=context))
            gdn_us = timed(group, lambda: call(ours, mine, dout))
            found = errors(group, call(theirs, mine, dout, cp_context=context),
                           call(ours, mine, dout))
            bench.say(**bench.row, **{"pass": name}, **line(alone, us, group.size),
                      gdn_us=round(gdn_us, 1), ours_faster=round(us / gdn_us, 3), **found)

        note = bench.attempt(step)
        if note:
            bench.say(**bench.row, **{"pass": name}, failed=note)


# ---- A graph -------------------------------------------------------------------------------------


def graph(bench, heads, lengths, kind):
    """Captured on every rank; replayed with other values and compared with the same calls."""
    bench.row = dict(mode="graph", heads="/".join(map(str, heads)), dim=128, tokens=sum(lengths),
                     sequences=len(lengths), gates=kind)
    rule = Rule(bench, heads, lengths, kind, bench.dtype)
    start, end = rule.layout.ranges[0]
    args = {name: x[start:end].clone() for name, x in rule.args.items()}
    dout = rule.dout[start:end].clone()
    jobs = dict(forward=lambda: dict(out=distributed.prefill(**args, layout=rule.layout, **NORM)),
                both=lambda: both(distributed.prefill, args, dout, layout=rule.layout, **NORM))
    rule.layout.group = distributed._group.group_of(None)  # no events inside of a graph
    for name, job in jobs.items():
        def step(name=name, job=job):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                job()
            torch.cuda.current_stream().wait_stream(stream)
            bench.group.barrier()
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured, capture_error_mode="thread_local"):
                found = job()
            args["v"].mul_(-1.5)
            args["g"].mul_(0.5)
            bench.group.barrier()
            captured.replay()
            wait()
            equal = all(torch.equal(found[n], x) for n, x in job().items())
            equal = bool(bench.group.reduce([equal], dist.ReduceOp.MIN)[0])
            us, direct = timed(bench.group, captured.replay), timed(bench.group, job)
            bench.say(**bench.row, **{"pass": name}, us=round(us, 1), direct_us=round(direct, 1),
                      same_bits=equal)

        note = bench.attempt(step)
        if note:
            bench.say(**bench.row, **{"pass": name}, failed=note)


# ---- A layer -------------------------------------------------------------------------------------


def layer(bench, heads, n_tokens):
    """Heads over ranks, tokens over ranks, and both, where ranks are 4 or more."""
    group, text = bench.group, "/".join(map(str, heads))
    device, size = group.device, group.size
    torch.manual_seed(5)
    hidden = HIDDEN.get(text, 64 * heads[1])
    whole = gdn.torch.GatedDeltaNet(hidden, *heads, 128, 128, device=device, dtype=bench.dtype)
    with torch.no_grad():
        _, A_log, dt_bias = kinds.raw("model", 1, heads[1])
        whole.A_log.copy_(A_log)
        whole.dt_bias.copy_(dt_bias)
    x, dout = (torch.randn(n_tokens, hidden, device=device, dtype=bench.dtype) for _ in "xd")

    def job(module, x, dout, with_gradients, **options):
        if not with_gradients:
            with torch.no_grad():
                return dict(out=module(x[None], **options)[0])
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            out = module(x[None], **options)[0]
        dx, *_ = torch.autograd.grad(out, [x, *module.parameters()], dout)
        return dict(out=out.detach(), dx=dx)

    base = dict(heads=text, dim=128, hidden=hidden, tokens=n_tokens, gates="model")
    alone, want = {}, {}
    for name in ("forward", "both"):
        bench.row = dict(base, mode="layer")

        def step(name=name):
            want[name] = job(whole, x, dout, name == "both")
            alone[name] = timed(group, lambda: job(whole, x, dout, name == "both"))

        note = bench.attempt(step)
        if note:
            alone.pop(name, None)
            want.pop(name, None)
            bench.say(**bench.row, **{"pass": name}, failed=f"one GPU: {note}")
    for mode in ("tensor", "context layer", "both"):
        if mode == "both" and (size < 4 or size % 2):
            continue
        bench.row = dict(base, mode=mode)

        def modules(mode=mode):
            cuts = [0, n_tokens]
            if mode == "tensor":
                return gdn.torch.HeadShare(whole), None
            if mode == "context layer":
                return whole, distributed.Layout(cuts, group)
            pairs, halves = ([dist.new_group(ranks) for ranks in lists] for lists in (
                [[i, i + size // 2] for i in range(size // 2)],
                [list(range(i * size // 2, (i + 1) * size // 2)) for i in range(2)]))
            return (gdn.torch.HeadShare(whole, halves[group.rank // (size // 2)]),
                    distributed.Layout(cuts, pairs[group.rank % (size // 2)]))

        for name in alone:
            def step(name=name, modules=modules):
                module, layout = modules()
                options = {} if layout is None else dict(token_layout=layout)
                cut = (lambda t: t) if layout is None else layout.local
                mine = [cut(t).contiguous() for t in (x, dout)]
                call = functools.partial(job, module, *mine, name == "both", **options)
                us, found = timed(group, call), call()
                bench.say(**bench.row, **{"pass": name}, **line(alone[name], us, size),
                          **errors(group, found, {n: cut(t) for n, t in want[name].items()}))

            note = bench.attempt(step)
            if note:
                bench.say(**bench.row, **{"pass": name}, failed=note)


# ---- Rows ----------------------------------------------------------------------------------------


def ragged(n_tokens):
    """Lengths of packed texts, log-uniform from 64 to a quarter of all tokens."""
    draw = torch.Generator().manual_seed(3)
    lengths, left = [], n_tokens
    while left:
        most = max(n_tokens // 256, 1)
        length = int(64 * most ** torch.rand(1, generator=draw).item())
        lengths.append(min(length, left))
        left -= lengths[-1]
    return lengths


def rows(options):
    """(name, function) in the order of what is wanted most."""
    heads = [tuple(map(int, pair.split("/"))) for pair in options.heads.split(",")]
    short, long = options.tokens
    for kind in ("model", "recipe"):
        for pair in heads:
            yield "context", functools.partial(context, heads=pair, lengths=[short], kind=kind)
    for kind in ("model", "recipe"):
        yield "ragged", functools.partial(context, heads=heads[0], lengths=ragged(short), kind=kind)
    for pair in heads:
        yield "layer", functools.partial(layer, heads=pair, n_tokens=short)
    for pair in heads:
        yield "fla", functools.partial(fla, heads=pair, lengths=[short], kind="model")
    for pair in heads:
        yield "graph", functools.partial(graph, heads=pair, lengths=[short], kind="model")
    for kind in ("model", "recipe"):
        for pair in heads[::-1]:
            yield "long", functools.partial(context, heads=pair, lengths=[long], kind=kind)


class Bench:
    def __init__(self, group, dtype, out):
        self.group, self.dtype, self.out, self.row = group, dtype, out, {}

    def say(self, **fields):
        if self.group.rank:
            return
        text = json.dumps(dict(bench="parallel", ranks=self.group.size, **fields))
        print(text, flush=True)
        if self.out:
            with open(self.out, "a") as file:
                file.write(text + "\n")

    def attempt(self, step):
        """Returns what went wrong on any rank, or None. If it went wrong on one rank alone, between
        two collectives, the group's timeout ends all."""
        text = ""
        try:
            step()
            wait()
        except Exception as error:
            text = f"rank {self.group.rank}: {type(error).__name__}: {str(error)[:300]}"
        if ON_GPU and text:
            torch.cuda.empty_cache()
        texts = [None] * self.group.size
        dist.all_gather_object(texts, text)
        return next((t for t in texts if t), None)


def main():
    started = time.monotonic()
    parser = argparse.ArgumentParser(description="gdn.torch.distributed beside one GPU.")
    parser.add_argument("--only", default="context,ragged,layer,graph,long",
                        help="kinds of rows; also fla, where FLA is installed")
    parser.add_argument("--heads", default="16/32,16/64,2/8" if ON_GPU else "1/2")
    parser.add_argument("--tokens", type=int, nargs=2, metavar=("SHORT", "LONG"),
                        default=(131072, 1048576) if ON_GPU else (512, 1024))
    parser.add_argument("--seconds", type=float, default=120, help="no row starts after these")
    parser.add_argument("--out", help="a file to append the lines to")
    options = parser.parse_args()
    if ON_GPU:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        gdn.torch.warm_up()
    dist.init_process_group("nccl" if ON_GPU else "gloo", timeout=datetime.timedelta(seconds=60))
    device = torch.device("cuda", torch.cuda.current_device()) if ON_GPU else torch.device("cpu")
    group = Clocked(device)
    bench = Bench(group, torch.bfloat16 if ON_GPU else torch.float32, options.out)
    torch.set_grad_enabled(False)
    bench.say(device=torch.cuda.get_device_name() if ON_GPU else "cpu", torch=torch.__version__,
              gdn=gdn.version(), backend=dist.get_backend(),
              start_s=round(time.monotonic() - started, 1))
    skipped = []
    for name, row in rows(options):
        late = group.reduce([time.monotonic() - started], dist.ReduceOp.MAX)[0] > options.seconds
        if name not in options.only.split(","):
            continue
        if late or (name == "graph" and not ON_GPU):
            skipped.append(f"{name} {row.keywords}"[:120])
            continue
        begun = time.monotonic()
        note = bench.attempt(lambda row=row: row(bench))
        if note:
            bench.say(**bench.row, failed=note)
        if ON_GPU:
            torch.cuda.empty_cache()
        bench.say(row=name, **{"heads": str(row.keywords["heads"])},
                  took_s=round(time.monotonic() - begun, 1))
    bench.say(skipped=skipped, seconds=round(time.monotonic() - started, 1))
    dist.destroy_process_group()


main()
