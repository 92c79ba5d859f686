# SPDX-License-Identifier: Apache-2.0
"""
Gradients of the rule: an autograd.Function over the operators of the forward and its backward. The
backward operator allocates nothing, so the function makes the gradients that are needed alone.
"""

import gdn
import torch

from ._autograd import (BATCH, begin, first_order, given, gradient, in_dtypes, n_sequences, numbers,
                        refuse_in_place, refuse_others, rows)
from ._operators import overload

_INPUTS = "q", "k", "v", "g", "beta", "A_log", "dt_bias", "state", "write_gate"
_NUMBERS = ("gate", "beta_kind", "head_map", "state_layout", "norm", "norm_eps", "scale",
            "gate_lower_bound", "updates")
_FORWARD = "flags", "max_seqlen"  # of the forward call alone, but for
BOTH_WAYS = gdn.BATCH_INVARIANT | gdn.NO_EARLY_STOP | gdn.ZERO_AS_GIVEN
WINDOW_MIB = 1536  # where the caller gives no window_mib


def _room(count, q, v, options):
    """Room for so many float32 states of the call."""
    last = v.shape[-1], q.shape[-1]
    if options.get("state_layout", 0) == gdn.STATE_KV:
        last = last[::-1]
    return q.new_empty(count, max(q.shape[-2], v.shape[-2]), *last, dtype=torch.float32)


def final_state(q, v, state, options):
    """Returns memory for final states: float32, filled with the initial ones if a sequence may be
    empty."""
    lead = q.shape[:-2]
    final = _room(n_sequences(lead, options.get("cu_seqlens")), q, v, options)
    return begin(final, state, options, lead[-1])


def _is_family(inputs, options):
    """Whether a call is more than Gated DeltaNet (gdn.h): its gradients read no saved states."""
    per_head = inputs[0].dim() - 1
    is_wide = any(x is not None and x.dim() > per_head and x.shape[-1] > 1 for x in inputs[3:5])
    return is_wide or inputs[8] is not None or (options.get("updates") or 0) > 1


def _spacing(inputs, save_every, options):
    """The tokens between saved states; 0: none are saved. save_every may be None."""
    if save_every is not None:
        return save_every
    if _is_family(inputs, options):
        return 0
    q = inputs[0]
    n_tokens = q.shape[:-2].numel()
    cu_seqlens = options.get("cu_seqlens")
    count = n_sequences(q.shape[:-2], cu_seqlens)
    longest = q.shape[-3] if cu_seqlens is None else options.get("max_seqlen") or n_tokens
    is_invariant = options.get("flags", 0) & gdn.BATCH_INVARIANT
    return 2048 if longest > 8192 and n_tokens >= 1024 * count and not is_invariant else 0


def _checkpoints(q, v, every, options):
    """Options of a call that saves its states after each `every` tokens; none for 0."""
    count = q.shape[:-2].numel() // every if every else 0
    if not count:
        return {}
    return {"checkpoints": _room(count, q, v, options), "checkpoint_every": every}


def rule_gradients(inputs, is_needed, dout, dstate_out, options):
    """The gradients of the inputs (q, k, v, g, beta, A_log, dt_bias, state, and write_gate unless
    left out) that are needed, each in the dtype of its input; None for the others."""
    options = {"window_mib": WINDOW_MIB, **options}
    gradients = [gradient(x, needed, x.dtype if i < 3 else torch.float32)
                 if x is not None else None for i, (x, needed) in enumerate(zip(inputs, is_needed))]
    options = {**options, **given(["d" + name for name in _INPUTS], gradients)}
    if dstate_out is not None:
        options["dstate_out"] = dstate_out.contiguous()
    options.update(given(_INPUTS, inputs))
    overload("prefill_backward", options)(dout=dout.contiguous(), **options)
    return in_dtypes(gradients, inputs)


class _Rule(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(op, return_state, memory, forward_numbers, rule_numbers, cu_seqlens,
                token_start, token_count, *inputs):
        q, v, state = inputs[0], inputs[2], inputs[7]
        options = given((*BATCH, *_INPUTS[8:]), (cu_seqlens, token_start, token_count, *inputs[8:]))
        options.update(zip(_NUMBERS, rule_numbers))
        final = final_state(q, v, state, options) if return_state else None
        options.update(zip(_FORWARD, forward_numbers))
        saved = _checkpoints(q, v, memory[0], options)
        options.update(saved)
        if return_state:
            options["state_out"] = final
        elif state is not None:
            options["write"] = gdn.WRITE_NONE
        out = rows(q, (*q.shape[:-2], max(q.shape[-2], v.shape[-2]), v.shape[-1]), options)
        overload(op, options)(*inputs[:8], out=out, **options)
        return out, final, saved.get("checkpoints")

    @staticmethod
    def setup_context(ctx, inputs, output):
        states = output[2]
        if states is not None:
            ctx.mark_non_differentiable(states)
        ctx.memory, ctx.flags, ctx.numbers = inputs[2], inputs[3][0], inputs[4]
        ctx.save_for_backward(states, *inputs[5:])

    @staticmethod
    @first_order("prefill")
    def backward(ctx, saved, dout, dstate_out, _):
        states, *saved = saved
        options = given(BATCH, saved)
        save_every, window_mib = ctx.memory
        options.update(zip(_NUMBERS, ctx.numbers), flags=ctx.flags & BOTH_WAYS,
                       window_mib=window_mib)
        if states is not None:
            options.update(checkpoints=states, checkpoint_every=save_every)
        return (None,) * 8 + rule_gradients(saved[len(BATCH):], ctx.needs_input_grad[8:], dout,
                                            dstate_out, options)


def rule(op, inputs, state_out, return_state, memory, out, options):
    """gdn.torch.prefill() or decode() if an input requires a gradient."""
    refuse_others(op, {*BATCH, *_NUMBERS, *_FORWARD, "write"},
                  dict(out=out, state_out=state_out, **options))
    refuse_in_place(inputs[7] is not None and not return_state, options)
    save_every, window_mib = memory
    memory = (_spacing(inputs, save_every, options),
              WINDOW_MIB if window_mib is None else window_mib)
    out, final, _ = _Rule.apply(op, return_state, memory,
                                numbers(_FORWARD, options), numbers(_NUMBERS, options),
                                *map(options.get, BATCH), *inputs)
    return (out, final) if return_state else out
