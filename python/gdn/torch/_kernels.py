# SPDX-License-Identifier: Apache-2.0
"""
Kernels of the operators in Python, for torch before 2.10, whose stable ABI lacks what those in C
need. They take contexts from a pool for each device, as those do.
"""

import functools

import torch

from .. import _fast
from .._context import _Core

_SCRATCH = ["workspace", "workspace_bytes", "stream"]
_free = {}  # (device, threads) -> cores that wait for a call; list.pop and append are atomic


def _take(key):
    """A context: key is the number of a GPU, or -1 minus the number of threads on the CPU."""
    try:
        return _free[key].pop()
    except (KeyError, IndexError):
        _free.setdefault(key, [])
        core = _Core("cuda", key, 0, None) if key >= 0 else _Core("cpu", 0, -1 - key, None)
        core.bound = {}
        return core


def warm_up(device):
    key = device.index if device.type == "cuda" else -1 - torch.get_num_threads()
    _free.setdefault(key, []).append(_take(key))


def _slow(core, op, **fields):
    """Names what is wrong with the arguments."""
    for name in _SCRATCH[:2]:
        fields.pop(name, None)
    core.call(op, **fields)


def _bind(core, op, name, description):
    slow = functools.partial(_slow, core, op)
    core.bound[name] = tuple(core.bind(op, description, is_positional=True, slow=slow, asks=asks)
                             for asks in (False, True))
    return core.bound[name]


def _on_cpu(op, name, description):
    threads_of = torch.get_num_threads

    def run(*args):
        key = -1 - threads_of()
        core = _take(key)
        try:
            (core.bound.get(name) or _bind(core, op, name, description))[0](*args)
        finally:
            _free[key].append(core)

    return run


def _on_cuda(op, name, description):
    def run(*args):
        device = next(x.device for x in args if isinstance(x, torch.Tensor))
        core = _take(device.index)
        try:
            call, bytes_of = core.bound.get(name) or _bind(core, op, name, description)
            size = bytes_of(*args)
            scratch = torch.empty(max(size, 64), dtype=torch.uint8, device=device)
            call(*args, workspace=scratch.data_ptr(), workspace_bytes=size,
                 stream=torch.cuda.current_stream(device).cuda_stream)
        finally:
            _free[device.index].append(core)

    return run


def kernel(op, name, names, key):
    """The kernel of the operator, whose arguments have these names, at a dispatch key."""
    make = _on_cpu if key == "CPU" else _on_cuda
    return make(op, name, _fast.describe(op, name, names + _SCRATCH))
