# SPDX-License-Identifier: Apache-2.0
"""Gradients of the operators that treat each row of a tensor alone: norms and gates."""

import torch

from ._autograd import first_order, given, gradient, in_dtypes, numbers, refuse_others
from ._operators import overload


class _L2norm(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x, norm, eps):
        out = torch.empty_like(x)
        torch.ops.gdn.l2norm.default(x, out, norm=norm, eps=eps)
        return out

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.norm, ctx.eps = inputs
        ctx.save_for_backward(x)

    @staticmethod
    @first_order("l2norm")
    def backward(ctx, saved, dout):
        x, = saved
        dx = gradient(x, True, x.dtype)
        torch.ops.gdn.l2norm_backward.default(x, dout.contiguous(), dx, norm=ctx.norm, eps=ctx.eps)
        return dx, None, None


def l2norm(x, out, options):
    """gdn.torch.l2norm() where x requires a gradient."""
    refuse_others("l2norm", {"norm", "eps"}, dict(out=out, **options))
    return _L2norm.apply(x, *numbers(("norm", "eps"), options))


_GATE_NUMBERS = "gate", "beta_kind", "gate_lower_bound"


class _Gates(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(gate_numbers, *inputs):
        options = dict(zip(_GATE_NUMBERS, gate_numbers))
        g, beta = (x if x is None else x.new_empty(x.shape, dtype=torch.float32)
                   for x in inputs[:2])
        overload("gates", options)(*inputs, g, beta, **options)
        return g, beta

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.numbers, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    @first_order("gates")
    def backward(ctx, saved, dg, dbeta):
        inputs = saved
        gradients = [gradient(x, needed, x.dtype if i < 2 else torch.float32)
                     if x is not None else None
                     for i, (x, needed) in enumerate(zip(inputs, ctx.needs_input_grad[1:]))]
        options = dict(zip(_GATE_NUMBERS, ctx.numbers))
        options.update(given(("a", "b", "A_log", "dt_bias"), inputs))
        options.update(given(("da", "db", "dA_log", "ddt_bias"), gradients))
        overload("gates_backward", options)(dg=dg, dbeta=dbeta, **options)
        return None, *in_dtypes(gradients, inputs)


def gates(a, b, A_log, dt_bias, g, beta, options):
    """gdn.torch.gates() if an input requires a gradient."""
    refuse_others("gates", _GATE_NUMBERS, dict(g=g, beta=beta, **options))
    return _Gates.apply(numbers(_GATE_NUMBERS, options), a, b, A_log, dt_bias)


class _RmsnormGated(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(activation, eps, x, z, weight):
        out = torch.empty_like(x)
        torch.ops.gdn.rmsnorm_gated.default(x, out, z, weight, activation=activation, eps=eps)
        return out

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.activation, ctx.eps, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    @first_order("rmsnorm_gated")
    def backward(ctx, saved, dout):
        x, z, weight = inputs = saved
        gradients = [gradient(t, needed, torch.float32 if t is weight else t.dtype)
                     if t is not None else None
                     for t, needed in zip(inputs, ctx.needs_input_grad[2:])]
        torch.ops.gdn.rmsnorm_gated_backward.default(
            x=x, z=z, weight=weight, dout=dout.contiguous(), activation=ctx.activation,
            eps=ctx.eps, **given(("dx", "dz", "dweight"), gradients))
        return None, None, *in_dtypes(gradients, inputs)


def rmsnorm_gated(x, z, weight, out, options):
    """gdn.torch.rmsnorm_gated() if an input requires a gradient."""
    refuse_others("rmsnorm_gated", {"activation", "eps"}, dict(out=out, **options))
    return _RmsnormGated.apply(*numbers(("activation", "eps"), options), x, z, weight)
