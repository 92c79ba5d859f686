# SPDX-License-Identifier: Apache-2.0
"""
python_calls.py - what a call of gdn costs beyond the C call, in microseconds: a decode of 10
tensors (q k v g beta A_log dt_bias state read_slots out), 1 sequence, 1 head of 4 x 4, so that the
C call is short. One JSON line for each way to call: the median over many short windows of the
processor time of this thread, as other programs may hold the processors.

    python bench/python_calls.py [--cuda]
"""

import ctypes
import json
import platform
import statistics
import sys
import time

import gdn
import numpy as np


def median(function, calls=500, windows=41):
    for _ in range(50):
        function()
    times = []
    for _ in range(windows):  # each some milliseconds
        start = time.thread_time_ns()
        for _ in range(calls):
            function()
        times.append((time.thread_time_ns() - start) / calls / 1000)
    return statistics.median(times), min(times)


def arrays(zeros, int32):
    return dict(q=zeros(1, 1, 4), k=zeros(1, 1, 4), v=zeros(1, 1, 4), g=zeros(1, 1),
                beta=zeros(1, 1), A_log=zeros(1), dt_bias=zeros(1), state=zeros(1, 1, 4, 4),
                read_slots=int32(1), out=zeros(1, 1, 4))


OPTIONS = dict(gate=gdn.GATE_RAW, beta_kind=gdn.BETA_SIGMOID)


def row(way, function, base, **more):
    found, least = median(function)
    print(json.dumps(dict(
        bench="python_calls", way=way, us=round(found, 2), least_us=round(least, 2),
        beyond_c_us=round(found - base, 2), python=platform.python_version(), gdn=gdn.version(),
        **more)), flush=True)


def c_call(ctx, fields):
    """The C call alone: a filled struct, by a function of ctypes that keeps the GIL."""
    args = gdn._arguments(gdn.gdn_rule_args, "decode", {**fields, **OPTIONS})
    function = ctypes.PyDLL(gdn._path).gdn_decode
    function.argtypes = ctypes.c_void_p, ctypes.c_void_p
    handle, address = ctx._core.ctx.value, ctypes.addressof(args)
    empty = ctypes.PyDLL(gdn._path).gdn_dtype_bytes
    empty.argtypes = ctypes.c_int32,
    both, _ = median(lambda: function(handle, address))
    ctypes_alone, _ = median(lambda: empty(0))
    return both - ctypes_alone


def direct(ctx, fields, base, **more):
    q, k, v, g, beta, A_log, dt_bias, state, slots, out = fields.values()
    raw, sigmoid = OPTIONS.values()
    row("direct", lambda: ctx.decode(q=q, k=k, v=v, g=g, beta=beta, A_log=A_log, dt_bias=dt_bias,
                                     state=state, read_slots=slots, out=out, gate=raw,
                                     beta_kind=sigmoid), base, **more)
    plan = ctx.plan("decode", **fields, **OPTIONS)
    row("plan", plan, base, **more)
    row("plan, 5 new arrays", lambda: plan(q=q, k=k, v=v, g=g, out=out), base, **more)


def of_torch(device, base_of):
    import torch

    zeros = lambda *shape: torch.zeros(*shape, device=device)
    fields = arrays(zeros, lambda n: torch.zeros(n, dtype=torch.int32, device=device))
    q, k, v, g, beta, A_log, dt_bias, state, slots, out = fields.values()
    more = dict(torch=torch.__version__, arrays=f"torch {device}")
    with gdn.Context(threads=1, backend=device) as ctx:
        base = base_of(ctx, fields)
        row("C call", lambda: None, 0, c_us=round(base, 2), **more)
        direct(ctx, fields, base, **more)
        try:
            import gdn.torch as gt
        except ImportError:
            return
        torch.set_num_threads(1)
        op = torch.ops.gdn.decode.default
        order = gt.arguments("decode")
        given = [fields.get(n, OPTIONS.get(n)) for n in order]
        while given[-1] is None:
            given.pop()
        defaults = {n: 0 for n in order}
        given = [defaults[n] if x is None and n in gt.NUMBERS else x for n, x in zip(order, given)]
        with torch.no_grad():
            row("torch.ops, by position", lambda: op(*given), base, **more)
            row("torch.ops, by name", lambda: op(
                q, k, v, g=g, beta=beta, A_log=A_log, dt_bias=dt_bias, state=state,
                read_slots=slots, out=out, gate=2, beta_kind=1), base, **more)
            row("gdn.torch.decode", lambda: gt.decode(
                q, k, v, g, beta, A_log=A_log, dt_bias=dt_bias, state=state, read_slots=slots,
                out=out, gate=2, beta_kind=1), base, **more)


def main():
    with gdn.Context(threads=1) as ctx:
        fields = arrays(lambda *shape: np.zeros(shape, np.float32), lambda n: np.zeros(n, np.int32))
        base = c_call(ctx, fields)
        more = dict(numpy=np.__version__, arrays="numpy")
        row("C call", lambda: None, 0, c_us=round(base, 2), **more)
        direct(ctx, fields, base, **more)
    for device in ["cuda"] if "--cuda" in sys.argv else ["cpu"]:
        of_torch(device, c_call)


main()
