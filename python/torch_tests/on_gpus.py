# SPDX-License-Identifier: Apache-2.0
"""Two processes of NCCL, each with a GPU. Processes of a test import it quickly."""

import datetime
import itertools
import os
import time

import gdn.torch
import parallel
import torch
import torch.distributed as dist
from gdn.torch import distributed
from parallel import D, W, conv_case, rule_case

LENGTHS = 700, 1, 2500, 895  # of sequences, over which Hopper's kernels go in chunks of 64
LIMIT = 2e-2  # of the largest element, in bfloat16


def _start(rank, folder, seconds):
    torch.cuda.set_device(rank)
    torch.manual_seed(0)
    gdn.torch.warm_up()
    dist.init_process_group("nccl", init_method=f"file://{folder}/store", rank=rank, world_size=2,
                            timeout=datetime.timedelta(seconds=seconds))


def _long_case():
    """Arguments of prefill() of bfloat16 with heads of 128, and a gradient of its output."""
    n = sum(LENGTHS)
    q, k = (torch.nn.functional.normalize(torch.randn(n, 2, 128), dim=-1) for _ in "qk")
    args = dict(q=q.bfloat16(), k=k.bfloat16(), v=torch.randn(n, 4, 128).bfloat16(),
                g=torch.nn.functional.logsigmoid(torch.randn(n, 4)) / 16, beta=torch.rand(n, 4))
    return {name: x.cuda() for name, x in args.items()}, torch.randn(n, 4, 128).bfloat16().cuda()


def _cuts():
    return [0, *itertools.accumulate(LENGTHS)]


def _both(op, args, dout, **options):
    leaves = {name: x.detach().requires_grad_() for name, x in args.items()}
    with torch.enable_grad():
        out = op(**leaves, **options)
    return dict(zip(("out", *args), (out, *torch.autograd.grad(out, list(leaves.values()), dout))))


def _bfloat16(**split):
    args, dout = _long_case()
    layout = distributed.Layout(_cuts(), **split)
    want = _both(gdn.torch.prefill, args, dout,
                 cu_seqlens=torch.tensor(_cuts(), dtype=torch.int32, device="cuda"))
    got = _both(distributed.prefill, {n: layout.local(x) for n, x in args.items()},
                layout.local(dout), layout=layout)
    for name, x in got.items():
        error = (x.float() - layout.local(want[name]).float()).abs().max()
        assert error <= LIMIT * want[name].float().abs().max(), f"{name}: {error}"


def _graph(with_gradients):
    """A graph that every rank has captured replays with other values."""
    args, dout = _long_case()
    layout = distributed.Layout(_cuts())
    args = {name: layout.local(x) for name, x in args.items()}
    dout = layout.local(dout)

    def call():
        if with_gradients:
            return _both(distributed.prefill, args, dout, layout=layout)
        return dict(out=distributed.prefill(**args, layout=layout))

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        found = call()
    args["v"].mul_(-1.5)
    args["g"].mul_(0.5)
    graph.replay()
    torch.cuda.synchronize()
    for name, x in call().items():
        assert torch.equal(found[name], x), f"{name}: other bits"


def _heads():
    torch.manual_seed(1)
    layer = gdn.torch.GatedDeltaNet(16, 2, 4, 16, 16, device="cuda")
    x, weight = torch.randn(2, 2, 9, 16, device="cuda")

    def call(module):
        y = x.clone().requires_grad_()
        with torch.enable_grad():
            out = module(y)
        return out.detach(), torch.autograd.grad(out, y, weight)[0]

    for got, want in zip(call(gdn.torch.HeadShare(layer)), call(layer)):
        assert (got - want).abs().max() <= 1e-5 * want.abs().max()


CASES = {
    "prefill": lambda: parallel.compare(rule_case("raw"), None, "cuda"),
    "prefill, -inf": lambda: parallel.compare(rule_case("-inf"), None, "cuda", lengths=[20, 27]),
    "prefill, zigzag": lambda: parallel.compare(rule_case("strong"), None, "cuda", split="zigzag"),
    "conv1d": lambda: parallel.compare(conv_case(3), None, "cuda", lengths=[6, 41]),
    "bfloat16": _bfloat16,
    "bfloat16, zigzag": lambda: _bfloat16(split="zigzag"),
    "heads": _heads,
    "graph": lambda: _graph(False),
    "graph with gradients": lambda: _graph(True),
}


def values(rank, folder):
    """Saves after each case the text of its error, "" if there was none."""
    _start(rank, folder, 60)
    texts = {}
    for name, case in CASES.items():
        try:
            with torch.no_grad():
                case()
            texts[name] = ""
        except Exception as error:
            texts[name] = f"{type(error).__name__}: {error}"
        torch.save(texts, f"{folder}/{rank}")
    dist.destroy_process_group()


def dying(rank, folder):
    """Rank 1 dies between two all-gathers. Torch's watchdog ends rank 0 after the time limit of the
    group. With TORCH_NCCL_BLOCKING_WAIT torch has no watchdog, and the device waits for ever. The
    first all-gather makes NCCL's communicator: a rank that dies before that leaves NCCL waiting."""
    os.environ["TORCH_NCCL_DUMP_ON_TIMEOUT"] = "0"
    _start(rank, folder, 5)
    layout = distributed.Layout(parallel.CU)
    x, weight = torch.randn(layout.n_tokens, D, device="cuda"), torch.randn(D, W, device="cuda")
    distributed.conv1d(x, weight, layout=layout)
    torch.cuda.synchronize()
    if rank == 1:
        os._exit(1)
    time.sleep(1)
    try:
        distributed.conv1d(x, weight, layout=layout)
        torch.cuda.synchronize()
    except RuntimeError as error:
        print(error)
        os._exit(3)
    os._exit(0)
