# SPDX-License-Identifier: Apache-2.0
"""
torch.func.vmap over the operators: one call for each element of the mapped dimension, on views. So
each element has the bits of a call of its own, whatever its options are.
"""

import functools
import inspect
import itertools

import gdn
import torch
from torch._C import _functorch

KEY = "FuncTorchBatched"


def _is_written(name, given):
    """Whether a call with these arguments writes the tensor: a state may be read alone."""
    return name != "state" or (given.get("state_out") is None and not given.get("return_state") and
                               given.get("write", 0) != gdn.WRITE_NONE)


def _flat(x):
    """The tensor inside the wrappers of torch.func, the dimensions of it that x shows, and those
    that are mapped, as {level: dimension}."""
    if _functorch.is_gradtrackingtensor(x):
        return _flat(_functorch.get_unwrapped(x))
    if not _functorch.is_batchedtensor(x):
        return x, list(range(x.dim())), {}
    level = _functorch.maybe_get_level(x)
    inner, mapped = _functorch._unwrap_batched(x, level)
    base, shown, levels = _flat(inner)
    levels[level] = shown.pop(mapped)
    return base, shown, levels


def _element(flat, index):
    """What a tensor shows in one element, {level: place}; a view."""
    base, shown, levels = flat
    view = base.permute(*levels.values(), *shown)
    return view[tuple(index[level] for level in levels)] if levels else view


def kernel(operator, names, outputs):
    """The kernel at KEY of an operator with arguments of these names, which writes outputs."""
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    def run(*args, **kwargs):
        given = dict(zip(names, args), **kwargs)
        tensors = {name: _flat(x) for name, x in given.items() if isinstance(x, torch.Tensor)}
        sizes = {level: base.shape[dim] for base, _, levels in tensors.values()
                 for level, dim in levels.items()}
        for name in outputs & tensors.keys():
            if tensors[name][2].keys() != sizes.keys() and _is_written(name, given):
                raise RuntimeError(f"{name}: is written, and is one tensor for all elements of "
                                   "torch.func.vmap(); map it too, or return states")
        with temporarily_clear_interpreter_stack():
            for places in itertools.product(*map(range, sizes.values())):
                index = dict(zip(sizes, places))
                operator(**given | {name: _element(x, index) for name, x in tensors.items()})

    return run


def _is_on():
    return _functorch.peek_interpreter_stack() is not None


def spread(*inputs):
    """Decorates a function whose inputs by these names may be mapped: inside torch.func.vmap() all
    of them are, because outputs and gradients depend on each."""

    def decorate(function):
        parameters = list(inspect.signature(function).parameters)

        @functools.wraps(function)
        def run(*args, **kwargs):
            if torch.compiler.is_compiling() or not _is_on():
                return function(*args, **kwargs)
            values = dict(zip(parameters, args), **kwargs)
            tensors = {name: values[name] for name in inputs
                       if isinstance(values.get(name), torch.Tensor) and
                       not (name == "state" and _is_written(name, values))}
            if not any(_flat(x)[2] for x in tensors.values()):
                return function(*args, **kwargs)
            anchor = sum(x.detach().new_zeros((), dtype=torch.float32) for x in tensors.values())
            for name, x in tensors.items():
                values[name] = anchor.new_empty(x.shape, dtype=x.dtype).copy_(x)
            return function(**values)

        return run

    return decorate
