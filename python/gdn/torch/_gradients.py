# SPDX-License-Identifier: Apache-2.0
"""
Gradients: an autograd.Function over the operators of each forward and its backward. The backward
operators allocate nothing, so the functions here make the gradients that are needed and no others.
"""

import gdn
import torch

from ._operators import overload

_INPUTS = "q", "k", "v", "g", "beta", "A_log", "dt_bias", "state"
_BATCH = "cu_seqlens", "token_start", "token_count"
_NUMBERS = ("gate", "beta_kind", "head_map", "state_layout", "norm", "norm_eps", "scale",
            "gate_lower_bound")
_FORWARD = "flags", "max_seqlen"  # of the forward call alone


def needs_grad(tensors):
    """Whether gradients are on and one of the tensors (or None) requires one."""
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def _given(names, values):
    return {name: x for name, x in zip(names, values) if x is not None}


def final_state(op, q, v, state, options):
    """Where final states go: float32, and the initial ones where a sequence may be empty."""
    cu_seqlens = options.get("cu_seqlens")
    if cu_seqlens is not None:
        count = cu_seqlens.shape[0] - 1
    else:
        count = q.shape[0] if q.dim() > 3 or op == "decode" else 1
    last = v.shape[-1], q.shape[-1]
    if options.get("state_layout", 0) == gdn.STATE_KV:
        last = last[::-1]
    final = torch.empty(count, max(q.shape[-2], v.shape[-2]), *last, dtype=torch.float32,
                        device=q.device)
    if any(options.get(name) is not None for name in _BATCH) or q.shape[-3] == 0:
        final.zero_() if state is None else final.copy_(state)
    return final


def _gradient(x, is_needed, dtype=torch.float32):
    """Room for the gradient of x, or None."""
    return torch.empty(x.shape, dtype=dtype, device=x.device) if is_needed else None


def _refuse_second(op):
    """torch's once_differentiable lets a second derivative pass that goes through inputs alone. In
    compiled code torch itself refuses it."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError(f"gdn.torch.{op}(): its gradients have none themselves; call backward "
                           "without create_graph")


class _Rule(torch.autograd.Function):
    @staticmethod
    def forward(op, return_state, forward_numbers, numbers, cu_seqlens, token_start, token_count,
                *inputs):
        q, v, state = inputs[0], inputs[2], inputs[7]
        options = _given(_BATCH, (cu_seqlens, token_start, token_count))
        options.update(zip(_NUMBERS, numbers))
        final = final_state(op, q, v, state, options) if return_state else None
        options.update(zip(_FORWARD, forward_numbers))
        if return_state:
            options["state_out"] = final
        elif state is not None:
            options["write"] = gdn.WRITE_NONE
        out = q.new_empty(*q.shape[:-2], max(q.shape[-2], v.shape[-2]), v.shape[-1])
        overload(op, options)(*inputs, out=out, **options)
        return (out, final) if return_state else out

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.return_state, ctx.flags, ctx.numbers = inputs[1], inputs[2][0], inputs[3]
        ctx.save_for_backward(*inputs[4:])

    @staticmethod
    def backward(ctx, dout, dstate_out=None):
        _refuse_second("prefill")
        cu_seqlens, token_start, token_count, *inputs = ctx.saved_tensors
        options = _given(_BATCH, (cu_seqlens, token_start, token_count))
        options.update(zip(_NUMBERS, ctx.numbers))
        options["flags"] = ctx.flags & gdn.BATCH_INVARIANT
        if dstate_out is not None:
            options["dstate_out"] = dstate_out.contiguous()
        q, k, v, g, beta, A_log, dt_bias, state = inputs
        gradients = [_gradient(x, needed, x.dtype if i < 3 else torch.float32)
                     if x is not None else None
                     for i, (x, needed) in enumerate(zip(inputs, ctx.needs_input_grad[7:]))]
        options.update(_given(["d" + name for name in _INPUTS], gradients))
        overload("prefill_backward", options)(
            q=q, k=k, v=v, g=g, beta=beta, A_log=A_log, dt_bias=dt_bias, state=state,
            dout=dout.contiguous(), **options)
        return (None,) * 7 + tuple(None if d is None else d.to(x.dtype)
                                   for d, x in zip(gradients, inputs))


def _check(op, state, state_out, return_state, out, options):
    """Refuses what the gradients of the rule do not cover."""
    known = {*_BATCH, *_NUMBERS, *_FORWARD, "write"}
    left = [name for name, x in options.items() if name not in known and x is not None]
    given = [name for name, x in (("out", out), ("state_out", state_out)) if x is not None]
    for name in given + left:
        raise RuntimeError(f"{name}: given to gdn.torch.{op}(), whose gradients do not go through "
                           "it; call it under torch.no_grad(), or without it")
    if state is not None and not return_state and options.get("write", 0) != gdn.WRITE_NONE:
        raise RuntimeError("state: would be written in place, where gradients are needed; pass "
                           "return_state=True or write=gdn.WRITE_NONE")


def rule(op, inputs, state_out, return_state, out, options):
    """gdn.torch.prefill() or decode() where one of the inputs requires a gradient."""
    _check(op, inputs[7], state_out, return_state, out, options)
    is_step = op == "decode" and inputs[0].dim() == 3 and options.get("cu_seqlens") is None
    if is_step:  # N sequences of one token, which the backward would take for one of N
        inputs = [x if x is None or i > 4 else x[:, None] for i, x in enumerate(inputs)]
    result = _Rule.apply(op, return_state, tuple(options.get(n) or 0 for n in _FORWARD),
                         tuple(options.get(n) or 0 for n in _NUMBERS),
                         *map(options.get, _BATCH), *inputs)
    if not is_step:
        return result
    return (result[0][:, 0], result[1]) if return_state else result[:, 0]


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
        _refuse_second("l2norm")
        x, = ctx.saved_tensors
        dx = _gradient(x, True, x.dtype)
        torch.ops.gdn.l2norm_backward.default(x, dout.contiguous(), dx, norm=ctx.norm, eps=ctx.eps)
        return dx, None, None


def l2norm(x, out, options):
    """gdn.torch.l2norm() where x requires a gradient."""
    if out is not None:
        raise RuntimeError("out: given to gdn.torch.l2norm(), whose gradient does not go through "
                           "it; call it under torch.no_grad(), or without it")
    return _L2norm.apply(x, options.get("norm", 0), options.get("eps", 0.0))
