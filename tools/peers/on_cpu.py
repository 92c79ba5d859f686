# SPDX-License-Identifier: Apache-2.0
"""Tests that were written for a Hopper GPU, on a CPU."""

import torch
from torch.overrides import TorchFunctionMode


def _device(x):
    is_cuda = (isinstance(x, torch.device) and x.type == "cuda"
               or isinstance(x, str) and x.startswith("cuda"))
    return torch.device("cpu") if is_cuda else x


pretends = False


class Mode(TorchFunctionMode):
    """Every device cuda is the CPU."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.cuda:
            return args[0]
        kwargs = {name: _device(x) for name, x in (kwargs or {}).items()}
        return function(*(_device(x) if isinstance(x, (str, torch.device)) else x for x in args),
                        **kwargs)


def pretend():
    """What tests ask torch.cuda before and while they run. Tests then run in a Mode."""
    global pretends
    pretends = True
    cuda = torch.cuda
    cuda.is_available = lambda: True
    cuda.get_device_capability = lambda *_: (9, 0)
    cuda.mem_get_info = lambda *_: (0, 0)  # tests of pools of many GB skip
    for name in ("synchronize", "manual_seed", "manual_seed_all", "empty_cache"):
        setattr(cuda, name, lambda *_, **__: None)
    if not torch.version.cuda:
        torch.version.cuda = "13.0"
