# SPDX-License-Identifier: Apache-2.0
"""Errors that name the argument, where Python or torch would name something of the inside."""

import functools
import inspect
import re

import torch

from ._operators import tensors_of
from ._places import refuse_mixed


def needed_by(signature):
    """The names of the parameters without a default."""
    return {name for name, p in signature.parameters.items() if p.default is p.empty}


def _explain(op, least, bound):
    """Raises an error that names the argument of the call that is no tensor where one is wanted,
    has fewer dimensions than the function takes, or is on another device. Returns if there is
    none."""
    given = {**bound.arguments, **bound.arguments.get("options", {})}
    wanted = needed_by(bound.signature)
    for name, needed in tensors_of(op).items():
        x = given.get(name)
        if isinstance(x, torch.Tensor):
            if x.dim() < least.get(name, 0):
                raise ValueError(f"{name}: {x.dim()} dimensions, wanted {least[name]} or more")
        elif x is not None or (name in wanted and (needed or name in least)):
            raise TypeError(f"{name}: {type(x).__name__}, wanted a torch.Tensor")
    refuse_mixed(op, {name: given.get(name) for name in tensors_of(op)})


_FIRST = re.compile(r"((?:gdn::[\w.]+: )?)(\w+)")


def renamed(**names):
    """Marks a function that passes arguments on under other names, {name of the operator: name of
    the function}. Errors then name what the caller passed."""

    def mark(function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            try:
                return function(*args, **kwargs)
            except (RuntimeError, ValueError) as error:
                found = _FIRST.match(str(error))
                if found is None or found[2] not in names:
                    raise
                text = found[1] + names[found[2]] + str(error)[found.end():]
                kind = ValueError if isinstance(error, ValueError) else RuntimeError
            raise kind(text)

        return call

    return mark


def explained_by(explain):
    """Marks a function: if a call fails as it does with wrong arguments, explain(bound arguments,
    error) first has a chance to raise an error that names the argument. A call that succeeds pays
    for no check, and if Python itself refuses the arguments, its error stays."""

    def mark(function):
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args, **kwargs):
            try:
                return function(*args, **kwargs)
            except (AttributeError, IndexError, RuntimeError, TypeError) as error:
                try:
                    bound = signature.bind(*args, **kwargs)
                except TypeError:
                    bound = None
                if bound is not None:
                    explain(bound, error)
                raise

        return call

    return mark


def named(op, **least):
    """Marks a function of the operator. least: the tensors that the function itself needs, and how
    many dimensions it takes for granted."""
    return explained_by(lambda bound, error: _explain(op, least, bound))
