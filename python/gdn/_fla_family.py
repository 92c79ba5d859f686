# SPDX-License-Identifier: Apache-2.0
"""
What KDA, GDN-2 and Gated DeltaProduct of FLA 0.6 share, and the latter two under FLA's names and
signatures. All run on CPU and CUDA tensors.
"""

import warnings

import torch

import gdn
import gdn.torch

from . import _drop_in
from .torch._named import renamed


def refuse(**given):
    """Raises NotImplementedError with the name of the first of these arguments that is given."""
    for name, x in given.items():
        if x is not None and x is not False:
            raise NotImplementedError(f"gdn.fla: {name} is not supported")


def first_of_v(state_v_first, kwargs):
    """state_v_first, which kwargs may have under its old name. Called by FLA's function itself."""
    if "transpose_state_layout" not in kwargs:
        return state_v_first
    if state_v_first:
        raise ValueError("state_v_first and transpose_state_layout are two names of one option")
    warnings.warn("transpose_state_layout is now state_v_first", DeprecationWarning, stacklevel=3)
    return kwargs["transpose_state_layout"]


def check_chunk(kwargs, rule, *sizes):
    """Raises ValueError for a chunk_size that FLA does not have. It changes nothing here."""
    size = kwargs.get("chunk_size", sizes[-1])
    if size not in sizes:
        wanted = " or ".join(map(str, sizes))
        raise ValueError(f"`chunk_size` must be {'either ' * (len(sizes) > 1)}{wanted} for {rule}, "
                         f"got {size}.")


def call(op, q, k, v, g, beta, scale, initial_state, output_final_state, cu_seqlens, *, l2norm,
         v_first=False, **options):
    """The rule on tensors [B, T, H, D]; options are further ones of gdn.torch.prefill()."""
    _drop_in.wanted(q=q, k=k, v=v)
    _drop_in.optional(initial_state=initial_state, cu_seqlens=cu_seqlens)
    _drop_in.dimensions(q=(q, 4), k=(k, 4), v=(v, 4))
    if cu_seqlens is not None and q.shape[0] != 1:
        raise ValueError(f"the batch size must be 1 with cu_seqlens, found {q.shape[0]}")
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    return _drop_in.rule(op, q, k, v, g, beta, scale, initial_state, output_final_state, cu_seqlens,
                         state_layout=gdn.STATE_VK if v_first else gdn.STATE_KV,
                         norm=_drop_in.norm(l2norm), **options)


@renamed(beta="b", write_gate="w")
def _gdn2(op, q, k, v, g, b, w, raw, scale, initial_state, output_final_state, cu_seqlens, options):
    _drop_in.wanted(g=g, b=b, w=w)
    _drop_in.dimensions(g=(g, 4), b=(b, 4), w=(w, 4))
    write = _drop_in.unit_stride(_drop_in.gate(w))
    if raw is not None:
        options.update(_drop_in.raw_gates(g, *raw), gate=gdn.GATE_RAW)
    return call(op, q, k, v, g, b, scale, initial_state, output_final_state, cu_seqlens,
                write_gate=write if cu_seqlens is None else write[0], **options)


def chunk_gdn2(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    b: torch.Tensor,
    w: torch.Tensor,
    scale: "float | None" = None,
    initial_state: "torch.Tensor | None" = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    cu_seqlens: "torch.LongTensor | None" = None,
    cu_seqlens_cpu: "torch.LongTensor | None" = None,
    safe_gate: bool = False,
    lower_bound: "float | None" = None,
    disable_recompute: bool = False,
    return_intermediate_states: bool = False,
    state_v_first: bool = False,
    cp_context=None,
    **kwargs,
):
    """
    GDN-2 over whole sequences: b [B, T, HV, K] erases, w [B, T, HV, V] writes. All else is as in
    chunk_kda(), without its options of beta.

    Raises NotImplementedError for return_intermediate_states and for kwargs other than A_log,
    dt_bias, transpose_state_layout and a chunk_size of 64; ValueError for another chunk_size.
    """
    _drop_in.only("chunk_gdn2", kwargs, "A_log", "dt_bias", "chunk_size", "transpose_state_layout")
    check_chunk(kwargs, "GDN-2", 64)
    refuse(return_intermediate_states=return_intermediate_states)
    op = gdn.torch.prefill
    if cp_context is not None:
        op, cu_seqlens = _drop_in.on_ranks(cp_context, q, initial_state, output_final_state)
    raw = kwargs.get("A_log"), kwargs.get("dt_bias"), lower_bound, safe_gate
    return _gdn2(op, q, k, v, g, b, w, raw if use_gate_in_kernel else None, scale,
                 initial_state, output_final_state, cu_seqlens,
                 dict(l2norm=use_qk_l2norm_in_kernel, v_first=first_of_v(state_v_first, kwargs)))


def fused_recurrent_gdn2(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    b: torch.Tensor,
    w: torch.Tensor,
    A_log: "torch.Tensor | None" = None,
    dt_bias: "torch.Tensor | None" = None,
    scale: "float | None" = None,
    initial_state: "torch.Tensor | None" = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    lower_bound: "float | None" = None,
    state_v_first: bool = False,
    cu_seqlens: "torch.LongTensor | None" = None,
    **kwargs,
):
    """
    GDN-2 token by token: arguments and results of chunk_gdn2(). Gradients flow, which FLA does not
    have. Raises NotImplementedError for kwargs other than transpose_state_layout.
    """
    _drop_in.only("fused_recurrent_gdn2", kwargs, "transpose_state_layout")
    return _gdn2(gdn.torch.decode, q, k, v, g, b, w,
                 (A_log, dt_bias, lower_bound) if use_gate_in_kernel else None, scale,
                 initial_state, output_final_state, cu_seqlens,
                 dict(l2norm=use_qk_l2norm_in_kernel, v_first=first_of_v(state_v_first, kwargs)))


def chunk_gated_delta_product(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    num_householder: int,
    scale: float = None,
    initial_state: torch.Tensor = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: "torch.LongTensor | None" = None,
    cu_seqlens_cpu: "torch.LongTensor | None" = None,
    cp_context=None,
):
    """
    Gated DeltaProduct over whole sequences: num_householder n, up to 8, pairs of k and v a token.
    k [B, n T, H, K], v [B, n T, HV, V], beta [B, n T, HV]; g [B, T, HV], or None for no decay.
    float32 too, which FLA refuses. All else is as in chunk_gated_delta_rule().
    """
    _drop_in.wanted(beta=beta)
    _drop_in.optional(g=g)
    if beta.dim() != 3:
        raise NotImplementedError("gdn.fla: beta has one value per head, [B, n T, HV]")
    _drop_in.dimensions(g=(g, 3))
    if not isinstance(num_householder, int):
        raise TypeError(f"num_householder: {type(num_householder).__name__}, wanted an int")
    if num_householder < 1:  # 0 would be the operator's default, 1
        raise ValueError(f"num_householder: {num_householder}, wanted 1 to 8")
    if num_householder > 8:
        raise NotImplementedError(f"gdn.fla: num_householder is at most 8, found {num_householder}")
    op = gdn.torch.prefill
    if cp_context is not None:
        op, cu_seqlens = _drop_in.on_ranks(cp_context, q, initial_state, output_final_state)
    return call(op, q, k, v, g, beta, scale, initial_state, output_final_state,
                cu_seqlens, l2norm=use_qk_l2norm_in_kernel, updates=num_householder)
