# SPDX-License-Identifier: Apache-2.0
"""Shared by the functions of autograd: room for gradients and for final states, and refusals."""

import functools

import gdn
import torch
from torch.autograd import forward_ad

BATCH = "cu_seqlens", "token_start", "token_count"


def needs_grad(tensors):
    """Whether gradients are on and one of the tensors (or None) requires one. Refuses tangents of
    forward-mode differentiation, which operators would drop."""
    if forward_ad._current_level >= 0:
        _refuse_tangents(tensors)
    if not torch.is_grad_enabled():
        return False
    if not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack():
        tensors = map(_inside, tensors)
    return any(x is not None and x.requires_grad for x in tensors)


def _inside(x):
    """The tensor in the wrappers of torch.func.vmap(), which hide what requires a gradient."""
    while x is not None and torch._C._functorch.is_batchedtensor(x):
        x = torch._C._functorch.get_unwrapped(x)
    return x


def _refuse_tangents(tensors):
    for x in tensors:
        if x is not None and forward_ad.unpack_dual(x).tangent is not None:
            raise RuntimeError("gdn.torch: a tensor has a tangent (torch.func.jvp, forward_ad); "
                               "gradients of the operators go backward alone")


def given(names, values):
    """Returns {name: value} without values that are None."""
    return {name: x for name, x in zip(names, values) if x is not None}


def numbers(names, options):
    """Returns the options of these names as a tuple, which autograd.Function can keep."""
    return tuple(options.get(name) or 0 for name in names)


def gradient(x, is_needed, dtype=torch.float32):
    """Returns room for the gradient of x, or None."""
    return x.new_empty(x.shape, dtype=dtype) if is_needed else None


def rows(like, shape, options, dtype=None):
    """Returns room for the output of tokens, in the dtype of `like` unless given; shape None: in
    the shape and strides of `like`. With cu_seqlens it is zero, because operators leave the tokens
    before the first sequence as they are."""
    is_packed = options.get("cu_seqlens") is not None
    if shape is None:
        return (torch.zeros_like if is_packed else torch.empty_like)(like)
    return (like.new_zeros if is_packed else like.new_empty)(shape, dtype=dtype)


def in_dtypes(gradients, inputs):
    """Returns each gradient (or None) in the dtype of its input."""
    return tuple(None if d is None else d.to(x.dtype) for d, x in zip(gradients, inputs))


def n_sequences(lead, cu_seqlens):
    """Returns how many sequences a batch has. lead: the leading dimensions of its tokens."""
    if cu_seqlens is not None:
        return cu_seqlens.shape[0] - 1
    return lead[0] if len(lead) > 1 else 1


def _sizes(x):
    return "".join(f"[{n}]" for n in x.shape)


def begin(final, state, options, n_tokens):
    """Writes the initial states to final if a sequence may be empty, because an operator leaves the
    state of an empty sequence alone."""
    if n_tokens > 0 and all(options.get(name) is None for name in BATCH):
        return final
    if state is None:
        return final.zero_()
    if state.shape != final.shape:
        raise RuntimeError(f"state: {_sizes(state)}, wanted {_sizes(final)}")
    return final.copy_(state)


class _Final(torch.autograd.Function):
    """Gradients (the first n tensors) that depend on the other tensors and have none themselves."""

    generate_vmap_rule = True

    @staticmethod
    def forward(op, n, *tensors):
        return tuple(None if x is None else x.view_as(x) for x in tensors[:n])

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.op = inputs[0]

    @staticmethod
    def backward(ctx, *_):
        raise RuntimeError(f"gdn.torch.{ctx.op}(): its gradients have none themselves, so there is "
                           "no second derivative by torch.func")


def refuse_second(op):
    """torch's once_differentiable lets a second derivative pass that goes through inputs alone. In
    compiled code torch itself refuses it."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError(f"gdn.torch.{op}(): its gradients have none themselves; call backward "
                           "without create_graph, and what torch.func.vjp() returns under "
                           "torch.no_grad()")


def first_order(op):
    """Marks backward(ctx, saved tensors, *gradients of the outputs) of an operator's function: its
    gradients have none themselves. torch.func.grad always wants a graph of them, so there the graph
    refuses."""

    def mark(backward):
        @functools.wraps(backward)
        def run(ctx, *douts):
            saved = ctx.saved_tensors  # may be read once: activation checkpointing
            of_func = torch._C._functorch.peek_interpreter_stack() is not None
            if torch.compiler.is_compiling() or not of_func:
                refuse_second(op)
                return backward(ctx, saved, *douts)
            with torch.no_grad():
                gradients = backward(ctx, saved, *douts)
            return _Final.apply(op, len(gradients), *gradients, *douts, *saved)

        return run

    return mark


def refuse_others(op, known, options):
    """Refuses options (name -> value or None) whose names are not among the known ones."""
    for name, x in options.items():
        if name not in known and x is not None:
            raise RuntimeError(f"{name}: given to gdn.torch.{op}(), whose gradients do not go "
                               "through it; call it under torch.no_grad(), or without it")


def refuse_in_place(is_written, options):
    """Refuses a state that the operator would write in place; is_written: there is such a state."""
    if is_written and options.get("write", 0) != gdn.WRITE_NONE:
        raise RuntimeError("state: would be written in place, where gradients are needed; pass "
                           "return_state=True or write=gdn.WRITE_NONE")
