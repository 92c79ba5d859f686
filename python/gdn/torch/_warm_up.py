# SPDX-License-Identifier: Apache-2.0
"""Contexts made before they are needed."""

import torch

from .. import _fast


def warm_up(device="cuda"):
    """
    Makes a context for the device and looks up what it can do. The first call of an operator does
    the same, but inside the capture of a CUDA graph it cannot. A kernel is loaded by its first
    call, in a capture too.

    device: a torch.device, "cpu", "cuda", "cuda:1". Raises RuntimeError with the reason if there is
    no driver, no such GPU, or no device code in this build.
    """
    device = torch.device(device)
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device: {device}, wanted cpu or cuda")
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    _fast.native.torch_warm_up(-1 if device.type == "cpu" else device.index)
