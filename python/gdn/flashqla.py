# SPDX-License-Identifier: Apache-2.0
"""
The gated delta rule under the names and signatures of FlashQLA 0.1.3.

    from gdn.flashqla import chunk_gated_delta_rule

install() puts the functions into FlashQLA's place. A call that raises NotImplementedError here then
goes to FlashQLA's own function. Where FlashQLA is importable, importing this module compares the
signatures and raises ImportError with one line if they differ.

FlashQLA's limits (bfloat16 and float16 alone, K = V = 128) are not kept.

Gradients flow through chunk_gated_delta_rule to every tensor; chunk_gated_delta_rule_bwd computes
them alone.
"""

import torch

import gdn
import gdn.torch

from . import _drop_in
from .torch._gradients import rule_gradients
from .torch._operators import overload

CHUNK_SIZE = _drop_in.CHUNK_SIZE


def _refuse_context(cp_context):
    if cp_context is not None:
        raise NotImplementedError("gdn.flashqla: cp_context is supported by chunk_gated_delta_rule "
                                  "alone")


def _check(q, k, v, g, beta, cu_seqlens, initial_state):
    _drop_in.wanted(q=q, k=k, v=v)
    _drop_in.optional(g=g, beta=beta, cu_seqlens=cu_seqlens, initial_state=initial_state)
    _drop_in.dimensions(q=(q, 4), k=(k, 4), v=(v, 4), g=(g, 3), beta=(beta, 3),
                        initial_state=(initial_state, 4))
    if not q.dtype == k.dtype == v.dtype:
        raise AssertionError(f"q, k, v: {q.dtype}, {k.dtype}, {v.dtype}, wanted one dtype")
    if v.shape[2] % k.shape[2]:
        raise AssertionError(f"heads of v: {v.shape[2]}, wanted a multiple of {k.shape[2]}")
    if cu_seqlens is None:
        return
    if q.shape[0] != 1:
        raise ValueError(f"The batch size is expected to be 1 rather than {q.shape[0]} when using "
                         "`cu_seqlens`.")
    _drop_in.dimensions(cu_seqlens=(cu_seqlens, 1))
    count = cu_seqlens.numel() - 1
    if initial_state is not None and initial_state.shape[0] != count:
        raise ValueError("The number of initial states is expected to be equal to the number of "
                         f"input sequences, i.e., {count} rather than {initial_state.shape[0]}.")


def _layout(state_v_first):
    return gdn.STATE_VK if state_v_first else gdn.STATE_KV


def chunk_gated_delta_rule(q, k, v, g, beta, scale=None, initial_state=None,
                           output_final_state=False, use_qk_l2norm_in_kernel=False,
                           cu_seqlens=None, head_first=False, state_v_first=False, auto_cp=True,
                           enable_fwd_cp_cache=True, cp_context=None, force_intra_cp=False):
    """
    The rule over whole sequences.

    q, k [B, T, H, K], v [B, T, HV, V] of one dtype: float32, bfloat16 or float16. g (the logarithm
    of the decay), beta [B, T, HV]. scale None is 1 / sqrt(K). initial_state [S, HV, K, V], or
    [S, HV, V, K] with state_v_first, is read only. cu_seqlens [S + 1] packs sequences into B = 1.
    auto_cp, enable_fwd_cp_cache and force_intra_cp are ignored.

    Returns o [B, T, HV, V] and the final state in float32, or None. With cu_seqlens the final state
    begins as a copy of initial_state, because an empty sequence keeps its state.

    Copied: q, k, v if their last stride is not 1.

    cp_context of build_cp_context(enable_inter=True): as in gdn.fla. FlashQLA's cuts within a
    device are ignored.

    Raises AssertionError and ValueError where FlashQLA does, AssertionError for states with a
    cp_context that has several ranks, RuntimeError for other arguments that libgdn refuses.
    """
    if head_first:
        raise AssertionError("head_first=True is not supported.")
    op = gdn.torch.prefill
    if cp_context is not None:
        op, cu_seqlens = _drop_in.on_ranks(cp_context, q, initial_state, output_final_state)
    _check(q, k, v, g, beta, cu_seqlens, initial_state)
    return _drop_in.rule(op, q, k, v, g, beta, scale, initial_state,
                         output_final_state, cu_seqlens, state_layout=_layout(state_v_first),
                         norm=_drop_in.norm(use_qk_l2norm_in_kernel))


def chunk_gated_delta_rule_fwd(q, k, v, g, beta, scale=None, initial_state=None, cu_seqlens=None,
                               output_final_state=True, output_h=False, auto_cp=True,
                               state_v_first=False, enable_fwd_cp_cache=False, cp_context=None,
                               is_train=None):
    """
    The rule, and what FlashQLA's backward takes of it. Arguments, conversions and errors are those
    of chunk_gated_delta_rule().

    Returns (sums of g inside chunks of 64 in the dtype of g, A [B, T, HV, 64] in the dtype of k,
    o, h, final state or None, None). A is (I + tril(diag(beta) K K^T, -1))^-1 of each chunk,
    without gates. h [B, NC, HV, K, V] (with state_v_first [.., V, K]) in the dtype of k has the
    states at the starts of chunks; None unless output_h. With output_h and cu_seqlens the call
    waits for the device.
    """
    _refuse_context(cp_context)
    _check(q, k, v, g, beta, cu_seqlens, initial_state)
    _drop_in.refuse_grad(q=q, k=k, v=v, g=g, beta=beta, initial_state=initial_state)
    layout = _layout(state_v_first)
    o, final = _drop_in.rule(gdn.torch.prefill, q, k, v, g, beta, scale, initial_state,
                             output_final_state, cu_seqlens, state_layout=layout)
    options = {} if cu_seqlens is None else dict(cu_seqlens=cu_seqlens)
    k, v = _drop_in.unit_stride(k), _drop_in.unit_stride(v)
    new = torch.empty if cu_seqlens is None else torch.zeros  # rows outside of all sequences
    A = new(*v.shape[:-1], CHUNK_SIZE, dtype=k.dtype, device=k.device)
    sums = new(g.shape, dtype=g.dtype, device=g.device)
    rows = [x if cu_seqlens is None else x[0] for x in (k, v, g, beta, A, sums)]
    overload("chunk_uw", options)(k=rows[0], v=None, beta=rows[3], T=rows[4],
                                  chunk_size=CHUNK_SIZE, **options)
    gdn.torch.chunk_cumsum(rows[2], out=rows[5], **options)
    h = _states(*rows[:4], initial_state, layout, options) if output_h else None
    return sums, A, o, h, final, None


def _states(k, v, g, beta, initial_state, layout, options):
    """[B, NC, ..] in the dtype of k: the states at the starts of chunks."""
    last = v.shape[-1], k.shape[-1]
    if layout == gdn.STATE_KV:
        last = last[::-1]
    lead, cu_seqlens = v.shape[:-2], options.get("cu_seqlens")
    if cu_seqlens is None:
        rows, chunks = lead[0], -(-lead[1] // CHUNK_SIZE)
    else:
        rows, chunks = 1, int((cu_seqlens.diff() + CHUNK_SIZE - 1).div(
            CHUNK_SIZE, rounding_mode="floor").sum())
    h = k.new_empty(rows, chunks, v.shape[-2], *last)
    if not chunks:
        return h
    u, w = (torch.empty(*v.shape[:-1], x.shape[-1], dtype=torch.float32, device=k.device)
            for x in (v, k))
    overload("chunk_uw", options)(k=k, v=v, g=g, beta=beta, u=u, w=w, chunk_size=CHUNK_SIZE,
                                  **options)
    gdn.torch.chunk_states(k, u, w, g, state=initial_state, states=h.flatten(0, 1),
                           state_layout=layout, **options)
    return h


def chunk_gated_delta_rule_bwd(q, k, v, g, beta, A, do, dht=None, scale=None, initial_state=None,
                               cu_seqlens=None, state_v_first=False, auto_cp=True, cp_cache=None,
                               cp_context=None):
    """
    The gradients of chunk_gated_delta_rule(). g and A are the sums and the matrices that
    chunk_gated_delta_rule_fwd() returns; A is ignored, and so are auto_cp and cp_cache. do
    [B, T, HV, V] and dht, like the final state, are the gradients of the results; dht None is zero.
    Other arguments are those of the forward call. A gate of -inf has no difference of sums, so its
    chunk has gradients of NaN here.

    Returns dq, dk, dv, dbeta, dg and the gradient of initial_state (None without one). dg is that
    of g before it was summed. Each has the dtype of its input.

    Raises NotImplementedError for a cp_context, RuntimeError for what libgdn refuses.
    """
    _refuse_context(cp_context)
    _check(q, k, v, g, beta, cu_seqlens, initial_state)
    options = dict(_drop_in.scaled(scale), state_layout=_layout(state_v_first))
    inputs = [_drop_in.unit_stride(x) for x in (q, k, v)]
    inputs += [_drop_in.gates_of_sums(g, cu_seqlens), beta]
    if cu_seqlens is not None:
        inputs, do = [x[0] for x in inputs], do[0]
        options["cu_seqlens"] = cu_seqlens
    inputs += [None, None, initial_state]
    dq, dk, dv, dg, dbeta, _, _, dstate = rule_gradients(
        inputs, [x is not None for x in inputs], do, dht, options)
    found = (x if cu_seqlens is None else x[None] for x in (dq, dk, dv, dbeta, dg.to(g.dtype)))
    return *found, dstate


def _pairs():
    """Ours and FlashQLA's functions."""
    import flash_qla as package

    for ours in (chunk_gated_delta_rule, chunk_gated_delta_rule_fwd, chunk_gated_delta_rule_bwd):
        yield ours, getattr(package, ours.__name__)


def install():
    """
    Puts the functions into the place of FlashQLA's, in modules loaded already too. Raises
    ImportError where FlashQLA is not importable. A second call changes nothing.
    """
    for ours, theirs in list(_pairs()):
        _drop_in.replace(ours, theirs)


_drop_in.compare(_pairs)
