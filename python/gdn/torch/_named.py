# SPDX-License-Identifier: Apache-2.0
"""Errors that name the argument, where Python or torch would name something of the inside."""

import functools
import inspect
import re

import torch

from ._operators import tensors_of
from ._places import refuse_mixed


def _explain(op, signature, least, args, kwargs):
    """Raises an error that names the argument of the call that is no tensor where one is wanted,
    has fewer dimensions than the function takes, or is on another device. Returns if there is
    none."""
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        return  # Python names the argument
    given = {**bound.arguments, **bound.arguments.get("options", {})}
    wanted = {name for name, argument in signature.parameters.items()
              if argument.default is argument.empty}
    for name, needed in tensors_of(op).items():
        x = given.get(name)
        if isinstance(x, torch.Tensor):
            if x.dim() < least.get(name, 0):
                raise ValueError(f"{name}: {x.dim()} dimensions, wanted {least[name]} or more")
        elif x is not None or (name in wanted and (needed or name in least)):
            raise TypeError(f"{name}: {type(x).__name__}, wanted a torch.Tensor")
    refuse_mixed(op, {name: given.get(name) for name in tensors_of(op)})


_FIRST = re.compile(r"(gdn::[\w.]+: )(\w+)")


def renamed(**names):
    """Marks a function that hands its arguments on to operators, which know them by other names:
    {name of the operator: name of the function}. Errors then name what the caller passed."""

    def mark(function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            try:
                return function(*args, **kwargs)
            except RuntimeError as error:
                found = _FIRST.match(str(error))
                if found is None or found[2] not in names:
                    raise
                text = found[1] + names[found[2]] + str(error)[found.end():]
            raise RuntimeError(text)

        return call

    return mark


def named(op, **least):
    """Marks a function of the operator. least: the tensors that the function itself needs, and how
    many dimensions it takes for granted. A call that succeeds pays for no check."""

    def mark(function):
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args, **kwargs):
            try:
                return function(*args, **kwargs)
            except (AttributeError, IndexError, RuntimeError, TypeError):
                _explain(op, signature, least, args, kwargs)
                raise

        return call

    return mark
