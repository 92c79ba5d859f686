# SPDX-License-Identifier: Apache-2.0
"""
FLA's tests of context parallelism, on gloo processes of a CPU, or on GPUs and NCCL. The checkout's
context and what compares tensors are used; the rule is gdn's. FLA's kernels are not imported.
"""

import contextlib
import importlib
import os
import sys
import types

import gdn.fla
import gdn.torch.distributed
import on_cpu
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def _package(name):
    """The package without what its __init__ does."""
    module = types.ModuleType(name)
    module.__path__ = [os.path.join(os.environ["GDN_PEER_PATH"], *name.split("."))]
    sys.modules[name] = module
    return module


def install():
    """The modules that tests import, and processes of ours where they start theirs."""
    for name in ("fla", "fla.ops", "fla.ops.cp"):
        _package(name)
    sys.modules["fla"].__version__ = "0"
    context = importlib.import_module("fla.ops.cp.context")
    sys.modules["fla.ops.cp"].build_cp_context = context.build_cp_context
    rule = types.ModuleType("fla.ops.gated_delta_rule")
    rule.chunk_gated_delta_rule = gdn.fla.chunk_gated_delta_rule
    sys.modules["fla.ops.gated_delta_rule"] = rule
    if os.environ["GDN_PEER_DEVICE"] == "cpu":
        torch.cuda.device_count = lambda: 8
    mp.start_processes = _start


_start_processes = mp.start_processes


def _start(function, args, nprocs, join, start_method):
    file = sys.modules[function.__module__].__file__
    return _start_processes(_run, (file, function.__name__, nprocs, *args), nprocs, join,
                            start_method=start_method)


def _gloo(start):
    def init_process_group(**options):
        return start(**{**options, "backend": "gloo"})

    return init_process_group


def _run(rank, file, name, n_ranks, *args):
    """A rank: the worker of the test."""
    install()
    is_cpu = os.environ["GDN_PEER_DEVICE"] == "cpu"
    if is_cpu:
        on_cpu.pretend()
        torch.cuda.set_device = lambda *_: None
        torch.set_num_threads(1)
        dist.init_process_group = _gloo(dist.init_process_group)
    maps = []
    layout_of = gdn.torch.distributed.layout_of

    def counted(context):
        maps.append(layout_of(context))
        return maps[-1]

    gdn.torch.distributed.layout_of = counted
    spec = importlib.util.spec_from_file_location("peer_test", file)
    test = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(test)
    with on_cpu.Mode() if is_cpu else contextlib.nullcontext():
        getattr(test, name)(rank, *args)
    assert len(maps) == 1 and len(maps[0].ranges) > 0, "the call did not go through libgdn"
    sys.stdout.flush()
    os._exit(0)  # threads of gloo that are left would abort the process
