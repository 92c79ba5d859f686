# SPDX-License-Identifier: Apache-2.0
"""
Operators without memory to compute on: fake tensors, and those of the device meta. torch takes a
call for one of these if a single tensor is there, so the tensors have to be in one place.
"""


def refuse_mixed(op, tensors):
    """Refuses tensors (name -> tensor or None) on several devices: names the one that is apart."""
    devices = {name: x.device for name, x in tensors.items() if x is not None}
    if len(set(devices.values())) < 2:
        return
    first, *others = devices
    other = next(name for name in others if devices[name] != devices[first])
    n_first = sum(device == devices[first] for device in devices.values())
    apart, rest = (first, other) if 2 * n_first < len(devices) else (other, first)
    raise RuntimeError(f"gdn::{op}: {apart}: on {devices[apart]}, but {rest} is on {devices[rest]}")


def fake(op, names, is_tensor):
    """The fake kernel of the operator with arguments of these names. It returns nothing, as the
    operator does."""

    def check(*args, **kwargs):
        given = dict(zip(names, args), **kwargs)
        refuse_mixed(op, {name: x for name, x in given.items() if name in is_tensor})

    return check
