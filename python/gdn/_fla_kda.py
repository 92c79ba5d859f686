# SPDX-License-Identifier: Apache-2.0
"""
KDA, the delta rule with a decay per key channel, and its gates, under the names and signatures of
FLA 0.6.
"""

import torch

import gdn
import gdn.torch

from . import _drop_in
from ._fla_family import call, check_chunk, first_of_v, refuse
from .torch._named import renamed
from .torch._operators import overload


def _call(op, q, k, v, g, beta, A_log, dt_bias, scale, initial_state, output_final_state, l2norm,
          raw, sigmoid, neg, lower_bound, v_first, cu_seqlens, safe_gate=False):
    _drop_in.wanted(g=g, beta=beta)
    _drop_in.dimensions(g=(g, 4))
    if beta.dim() != 3:  # FLA's kernels take a beta of each value column for this shape
        raise NotImplementedError("gdn.fla: beta has one value per head, [B, T, HV]")
    if neg and not sigmoid:
        raise ValueError("allow_neg_eigval=True: wanted use_beta_sigmoid_in_kernel=True beside it")
    kind = gdn.BETA_TWICE_SIGMOID if neg else gdn.BETA_SIGMOID
    options = dict(beta_kind=kind if sigmoid else gdn.BETA_GIVEN)
    if raw:
        options.update(_drop_in.raw_gates(g, A_log, dt_bias, lower_bound, safe_gate),
                       gate=gdn.GATE_RAW)
    return call(op, q, k, v, g, beta, scale, initial_state, output_final_state, cu_seqlens,
                l2norm=l2norm, v_first=v_first, **options)


def chunk_kda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: "float | None" = None,
    initial_state: "torch.Tensor | None" = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    lower_bound: "float | None" = None,
    disable_recompute: bool = False,
    return_intermediate_states: bool = False,
    state_v_first: bool = False,
    cu_seqlens: "torch.LongTensor | None" = None,
    cu_seqlens_cpu: "torch.LongTensor | None" = None,
    cp_context=None,
    use_graph: bool = False,
    max_num_seqs: "int | None" = None,
    **kwargs,
):
    """
    KDA over whole sequences.

    q, k [B, T, H, K], v [B, T, HV, V] of one dtype: float32, bfloat16 or float16; g [B, T, HV, K],
    the logarithm of the decay of each key channel, or with use_gate_in_kernel its raw value beside
    A_log [HV] and dt_bias [HV K] of kwargs; beta [B, T, HV]. lower_bound makes raw gates
    lower_bound sigmoid(exp(A_log) (g + dt_bias)). States and cu_seqlens are as for
    chunk_gated_delta_rule(). With safe_gate, lower_bound of raw gates must be -5 or more.
    disable_recompute, cu_seqlens_cpu, use_graph and max_num_seqs change nothing here. A cp_context
    is as for chunk_gated_delta_rule().

    Gradients flow to every tensor. Returns o [B, T, HV, V] and the final state in float32, or None.

    Raises NotImplementedError for a beta of [B, T, HV, V], return_intermediate_states and kwargs
    other than A_log, dt_bias, chunk_size and transpose_state_layout; ValueError for a
    chunk_size that FLA does not have, and for a lower_bound of 0 or more; other errors as
    chunk_gated_delta_rule().
    """
    _drop_in.only("chunk_kda", kwargs, "A_log", "dt_bias", "chunk_size", "transpose_state_layout")
    check_chunk(kwargs, "KDA", 32, 64)
    refuse(return_intermediate_states=return_intermediate_states)
    op = gdn.torch.prefill
    if cp_context is not None:
        op, cu_seqlens = _drop_in.on_ranks(cp_context, q, initial_state, output_final_state)
    return _call(op, q, k, v, g, beta, kwargs.get("A_log"), kwargs.get("dt_bias"),
                 scale, initial_state, output_final_state, use_qk_l2norm_in_kernel,
                 use_gate_in_kernel, use_beta_sigmoid_in_kernel, allow_neg_eigval, lower_bound,
                 first_of_v(state_v_first, kwargs), cu_seqlens, safe_gate)


def fused_recurrent_kda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    A_log: "torch.Tensor | None" = None,
    dt_bias: "torch.Tensor | None" = None,
    scale: "float | None" = None,
    initial_state: torch.Tensor = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    lower_bound: "float | None" = None,
    state_v_first: bool = False,
    cu_seqlens: "torch.LongTensor | None" = None,
    **kwargs,
):
    """
    KDA token by token: arguments and results of chunk_kda(). Gradients flow, which FLA does not
    have. Raises NotImplementedError for kwargs other than transpose_state_layout.
    """
    _drop_in.only("fused_recurrent_kda", kwargs, "transpose_state_layout")
    return _call(gdn.torch.decode, q, k, v, g, beta, A_log, dt_bias, scale, initial_state,
                 output_final_state, use_qk_l2norm_in_kernel, use_gate_in_kernel,
                 use_beta_sigmoid_in_kernel, allow_neg_eigval, lower_bound,
                 first_of_v(state_v_first, kwargs), cu_seqlens)


# ---- Gates ---------------------------------------------------------------------------------------


def _options(g, A_log, dt_bias, lower_bound):
    """a [.., H, K], and A_log, dt_bias and gate_lower_bound of gdn.torch.gates()."""
    _drop_in.wanted(g=g)
    _drop_in.optional(A_log=A_log, dt_bias=dt_bias)
    if g.dim() < 3:
        raise ValueError(f"g: {list(g.shape)}, wanted [..., H, K]")
    return (_drop_in.unit_stride(_drop_in.gate(g)),
            _drop_in.raw_gates(g, A_log, dt_bias, lower_bound))


@renamed(a="g", gate_lower_bound="lower_bound")
def fused_kda_gate(
    g: torch.Tensor,
    A_log: "torch.Tensor | None" = None,
    dt_bias: "torch.Tensor | None" = None,
    lower_bound: "float | None" = None,
    output_dtype: torch.dtype = torch.float32,
):
    """
    The gates of KDA: -exp(A_log) softplus(g + dt_bias), or with lower_bound
    lower_bound sigmoid(exp(A_log) (g + dt_bias)), where A_log may be None. g [..., H, K]; A_log has
    H elements, dt_bias H K. Gradients flow.
    """
    a, options = _options(g, A_log, dt_bias, lower_bound)
    return gdn.torch.gates(a, None, **options)[0].to(output_dtype)


@torch.no_grad()
def kda_gate_fwd(
    g: torch.Tensor,
    A_log: "torch.Tensor | None" = None,
    dt_bias: "torch.Tensor | None" = None,
    lower_bound: "float | None" = None,
    output_dtype: torch.dtype = torch.float32,
):
    """fused_kda_gate() without gradients."""
    return fused_kda_gate(g, A_log, dt_bias, lower_bound, output_dtype)


@torch.no_grad()
@renamed(a="g", dg="dyg", gate_lower_bound="lower_bound")
def kda_gate_bwd(
    g: torch.Tensor,
    A_log: "torch.Tensor | None" = None,
    dt_bias: "torch.Tensor | None" = None,
    dyg: "torch.Tensor | None" = None,
    lower_bound: "float | None" = None,
):
    """The gradients of kda_gate_fwd() from dyg, that of its result: of g, A_log and dt_bias, each
    in the shape and dtype of its input; None for what was not given."""
    _drop_in.wanted(dyg=dyg)
    a, options = _options(g, A_log, dt_bias, lower_bound)
    options = {name: x for name, x in dict(options, a=a).items() if x is not None}
    found = {f"d{name}": torch.empty(x.shape, device=x.device) for name, x in options.items()
             if isinstance(x, torch.Tensor)}
    overload("gates_backward", options)(dg=dyg.contiguous(), **options, **found)
    return tuple(None if x is None else found[name].view(x.shape).to(x.dtype)
                 for name, x in (("da", g), ("dA_log", A_log), ("ddt_bias", dt_bias)))
