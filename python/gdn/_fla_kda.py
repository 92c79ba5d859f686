# SPDX-License-Identifier: Apache-2.0
"""
KDA, the delta rule with a decay per key channel, under the names and signatures of FLA 0.6. On a
CPU: on a GPU libgdn refuses the gates by their name.
"""

import torch

import gdn
import gdn.torch

from . import _drop_in


def _refuse(kwargs, names):
    for name in names:
        if kwargs.get(name) is not None and kwargs[name] is not False:
            raise NotImplementedError(f"gdn.fla: {name} is not supported")


def _call(op, q, k, v, g, beta, A_log, dt_bias, scale, initial_state, output_final_state, l2norm,
          raw, sigmoid, neg, lower_bound, v_first, cu_seqlens):
    _drop_in.wanted(q=q, k=k, v=v, g=g, beta=beta)
    _drop_in.optional(initial_state=initial_state, cu_seqlens=cu_seqlens, A_log=A_log,
                      dt_bias=dt_bias)
    _drop_in.dimensions(q=(q, 4), k=(k, 4), v=(v, 4), g=(g, 4))
    if not q.device.type == "cpu":
        raise NotImplementedError("gdn.fla: KDA runs on a CPU alone")
    if beta.dim() != 3:  # FLA's kernels take a beta of each value column for this shape
        raise NotImplementedError("gdn.fla: beta has one value per head, [B, T, HV]")
    if cu_seqlens is not None and q.shape[0] != 1:
        raise ValueError(f"the batch size must be 1 with cu_seqlens, found {q.shape[0]}")
    if neg and not sigmoid:
        raise ValueError("allow_neg_eigval=True: wanted use_beta_sigmoid_in_kernel=True beside it")
    kind = gdn.BETA_TWICE_SIGMOID if neg else gdn.BETA_SIGMOID
    options = dict(state_layout=gdn.STATE_VK if v_first else gdn.STATE_KV,
                   norm=gdn.NORM_L2 if l2norm else gdn.NORM_NONE,
                   beta_kind=kind if sigmoid else gdn.BETA_GIVEN)
    if raw:
        bias = dt_bias if dt_bias is None else dt_bias.view(g.shape[-2:])
        options.update(gate=gdn.GATE_RAW, A_log=A_log, dt_bias=bias,
                       gate_lower_bound=float(lower_bound or 0))
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    return _drop_in.rule(op, q, k, v, g, beta, scale, initial_state, output_final_state, cu_seqlens,
                         **options)


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
    chunk_gated_delta_rule(). safe_gate, disable_recompute, cu_seqlens_cpu, use_graph and
    max_num_seqs change nothing here.

    Gradients flow to every tensor. Returns o [B, T, HV, V] and the final state in float32, or None.

    Raises NotImplementedError for a beta of [B, T, HV, V], cp_context and
    return_intermediate_states; other errors as chunk_gated_delta_rule().
    """
    _refuse(dict(cp_context=cp_context, return_intermediate_states=return_intermediate_states),
            ("cp_context", "return_intermediate_states"))
    return _call(gdn.torch.prefill, q, k, v, g, beta, kwargs.get("A_log"), kwargs.get("dt_bias"),
                 scale, initial_state, output_final_state, use_qk_l2norm_in_kernel,
                 use_gate_in_kernel, use_beta_sigmoid_in_kernel, allow_neg_eigval, lower_bound,
                 state_v_first, cu_seqlens)


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
    have. Raises NotImplementedError for ssm_state_indices, num_accepted_tokens and out too.
    """
    _refuse(kwargs, ("ssm_state_indices", "num_accepted_tokens", "out"))
    return _call(gdn.torch.decode, q, k, v, g, beta, A_log, dt_bias, scale, initial_state,
                 output_final_state, use_qk_l2norm_in_kernel, use_gate_in_kernel,
                 use_beta_sigmoid_in_kernel, allow_neg_eigval, lower_bound, state_v_first,
                 cu_seqlens)
