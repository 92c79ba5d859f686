# SPDX-License-Identifier: Apache-2.0
"""Gradients of the convolution, with the final states of its forward call."""

import gdn
import torch

from ._autograd import (BATCH, begin, first_order, given, gradient, in_dtypes, n_sequences, numbers,
                        refuse_in_place, refuse_others, rows)
from ._operators import overload

_INPUTS = "x", "weight", "bias", "state"
_FORWARD = "max_seqlen",  # of the forward call alone


def final_window(x, weight, state, options):
    """Where final states [B][D][S] go: in the dtype and size of state, or those of x and W - 1."""
    lead = x.shape[:-1]
    if state is None:
        size, dtype = weight.shape[-1] - 1, x.dtype
    else:
        size, dtype = state.shape[-1], state.dtype
    count = n_sequences(lead, options.get("cu_seqlens"))
    final = x.new_empty(count, size, x.shape[-1], dtype=dtype).transpose(1, 2)
    return begin(final, state, options, lead[-1])


class _Conv1d(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(return_state, activation, forward_numbers, cu_seqlens, token_start, token_count,
                *inputs):
        x, weight, _, state = inputs
        options = given(BATCH, (cu_seqlens, token_start, token_count))
        options.update(zip(_FORWARD, forward_numbers))
        final = None
        if return_state:
            options["state_out"] = final = final_window(x, weight, state, options)
        elif state is not None:
            options["write"] = gdn.WRITE_NONE
        out = rows(x, None, options)
        overload("conv1d", options)(*inputs, out=out, activation=activation, **options)
        return (out, final) if return_state else out

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.activation = inputs[1]
        ctx.save_for_backward(*inputs[3:])

    @staticmethod
    @first_order("conv1d")
    def backward(ctx, saved, dout, dstate_out=None):
        *batch, x, weight, bias, state = saved
        options = given(BATCH, batch)
        if dstate_out is not None:
            options["dstate_out"] = dstate_out
        inputs = x, weight, bias, state
        gradients = [gradient(t, needed, t.dtype if t is x else torch.float32)
                     if t is not None else None
                     for t, needed in zip(inputs, ctx.needs_input_grad[6:])]
        options.update(given(["d" + name for name in _INPUTS], gradients))
        overload("conv1d_backward", options)(
            x=x, weight=weight, bias=bias, state=state, dout=dout,
            activation=ctx.activation, **options)
        return (None,) * 6 + in_dtypes(gradients, inputs)


def conv1d(inputs, state_out, return_state, out, options):
    """gdn.torch.conv1d() if an input requires a gradient."""
    refuse_others("conv1d", {*BATCH, *_FORWARD, "activation", "write"},
                  dict(out=out, state_out=state_out, **options))
    refuse_in_place(inputs[3] is not None and not return_state, options)
    return _Conv1d.apply(return_state, options.get("activation", 0), numbers(_FORWARD, options),
                         *map(options.get, BATCH), *inputs)
