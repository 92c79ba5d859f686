# SPDX-License-Identifier: Apache-2.0
"""Gradients of the operators that treat each row of a tensor alone: norms and gates."""

import gdn
import torch
from torch.nn.functional import silu

from ._autograd import given, gradient, in_dtypes, numbers, refuse_others, refuse_second
from ._operators import overload


class _L2norm(torch.autograd.Function):
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
    def backward(ctx, dout):
        refuse_second("l2norm")
        x, = ctx.saved_tensors
        dx = gradient(x, True, x.dtype)
        torch.ops.gdn.l2norm_backward.default(x, dout.contiguous(), dx, norm=ctx.norm, eps=ctx.eps)
        return dx, None, None


def l2norm(x, out, options):
    """gdn.torch.l2norm() where x requires a gradient."""
    refuse_others("l2norm", {"norm", "eps"}, dict(out=out, **options))
    return _L2norm.apply(x, *numbers(("norm", "eps"), options))


_GATE_NUMBERS = "gate", "beta_kind", "gate_lower_bound"


class _Gates(torch.autograd.Function):
    @staticmethod
    def forward(gate_numbers, *inputs):
        options = dict(zip(_GATE_NUMBERS, gate_numbers))
        g, beta = (torch.empty(x.shape, dtype=torch.float32, device=x.device) for x in inputs[:2])
        overload("gates", options)(*inputs, g, beta, **options)
        return g, beta

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.numbers, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx, dg, dbeta):
        refuse_second("gates")
        inputs = ctx.saved_tensors
        gradients = [gradient(x, needed, x.dtype if i < 2 else torch.float32)
                     for i, (x, needed) in enumerate(zip(inputs, ctx.needs_input_grad[1:]))]
        options = dict(zip(_GATE_NUMBERS, ctx.numbers))
        options.update(given(("a", "b", "A_log", "dt_bias"), inputs))
        options.update(given(("da", "db", "dA_log", "ddt_bias"), gradients))
        overload("gates_backward", options)(dg=dg.contiguous(), dbeta=dbeta.contiguous(),
                                            **options)
        return None, *in_dtypes(gradients, inputs)


def gates(a, b, A_log, dt_bias, g, beta, options):
    """gdn.torch.gates() where one of its inputs requires a gradient."""
    refuse_others("gates", _GATE_NUMBERS, dict(g=g, beta=beta, **options))
    return _Gates.apply(numbers(_GATE_NUMBERS, options), a, b, A_log, dt_bias)


def rmsnorm_gated(x, z, weight, out, options):
    """gdn.torch.rmsnorm_gated() where one of its inputs requires a gradient."""
    refuse_others("rmsnorm_gated", {"activation", "eps"}, dict(out=out, **options))
    rows = x.float()
    rows = rows * (rows.square().mean(-1, keepdim=True) + (options.get("eps") or 1e-6)).rsqrt()
    if weight is not None:
        rows = rows * weight
    if z is not None:
        is_sigmoid = options.get("activation", 0) == gdn.ACT_SIGMOID
        rows = rows * (torch.sigmoid if is_sigmoid else silu)(z.float())
    return rows.to(x.dtype)
