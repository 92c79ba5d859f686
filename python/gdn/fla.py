# SPDX-License-Identifier: Apache-2.0
"""
The gated delta rule, KDA, GDN-2 and Gated DeltaProduct under the names and signatures of
flash-linear-attention (FLA) 0.6.

    from gdn.fla import chunk_gated_delta_rule

Where FLA is importable, importing this module compares both signatures with FLA's and raises
ImportError with one line if they differ. register() makes FLA's own chunk_gated_delta_rule call
this one; FLA's fused_recurrent_gated_delta_rule does not dispatch. install() takes the place of the
package, which need not be there.

Gradients flow to every tensor; those of fused_recurrent_gated_delta_rule, which FLA does not have,
are computed in chunks.
"""

import importlib
import inspect

import torch

import gdn
import gdn.torch

from . import _drop_in
from ._fla_family import (chunk_gated_delta_product, chunk_gdn2, first_of_v,
                          fused_recurrent_gdn2)
from ._fla_kda import (chunk_kda, fused_kda_gate, fused_recurrent_kda, kda_gate_bwd,
                       kda_gate_fwd)

_KWARGS = "chunk_size", "head_first", "transpose_state_layout"


def _call(op, q, k, v, g, beta, scale, initial_state, output_final_state, l2norm, sigmoid, neg,
          v_first, cu_seqlens, raw, A_log, dt_bias, kwargs):
    _drop_in.wanted(q=q, k=k, v=v)
    _drop_in.optional(g=g, beta=beta, initial_state=initial_state, cu_seqlens=cu_seqlens,
                      A_log=A_log, dt_bias=dt_bias)
    _drop_in.dimensions(q=(q, 4), k=(k, 4), v=(v, 4), g=(g, 3))  # g of four would be KDA's
    if kwargs.get("head_first"):
        raise NotImplementedError("gdn.fla: head_first=True is not supported; wanted [B, T, H, D]")
    if beta is not None and beta.dim() != 3:
        raise NotImplementedError("gdn.fla: beta has one value per head, [B, T, HV]")
    if cu_seqlens is not None and q.shape[0] != 1:
        raise ValueError(f"the batch size must be 1 with cu_seqlens, found {q.shape[0]}")
    if sigmoid and beta is None:
        raise ValueError("use_beta_sigmoid_in_kernel needs beta")
    if neg and not sigmoid:
        raise ValueError("allow_neg_eigval=True: wanted use_beta_sigmoid_in_kernel=True beside it")
    kind = gdn.BETA_TWICE_SIGMOID if neg else gdn.BETA_SIGMOID
    options = dict(state_layout=gdn.STATE_VK if v_first else gdn.STATE_KV,
                   norm=_drop_in.norm(l2norm), beta_kind=kind if sigmoid else gdn.BETA_GIVEN,
                   gate=gdn.GATE_RAW if raw else gdn.GATE_LOG)
    if raw:
        options.update(A_log=A_log, dt_bias=dt_bias)
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    return _drop_in.rule(op, q, k, v, g, beta, scale, initial_state, output_final_state, cu_seqlens,
                         **options)


def chunk_gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: "float | None" = None,
    initial_state: "torch.Tensor | None" = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: "torch.LongTensor | None" = None,
    cu_seqlens_cpu: "torch.LongTensor | None" = None,
    chunk_indices: "torch.LongTensor | None" = None,
    cp_context=None,
    **kwargs,
):
    """
    The rule over whole sequences.

    q, k [B, T, H, K], v [B, T, HV, V] of one dtype: float32, bfloat16 or float16; K up to 256, V
    up to 1024. g, beta [B, T, HV]. initial_state [N, HV, K, V], or [N, HV, V, K] with
    state_v_first. cu_seqlens [N + 1] packs sequences into B = 1. kwargs: use_gate_in_kernel,
    A_log [HV] and dt_bias [HV] make g the raw gate; transpose_state_layout is the old name of
    state_v_first; other names are ignored, as by FLA. cu_seqlens_cpu and chunk_indices are ignored.

    Returns o [B, T, HV, V] and the final state in float32, or None. With cu_seqlens the final state
    begins as a copy of initial_state, because an empty sequence keeps its state.

    Copied: q, k, v if their last stride is not 1.

    cp_context of fla.ops.cp.build_cp_context(): B = 1, and q to beta hold this rank's tokens, on
    any device; without initial and final states. A context's first call gathers the sequences of
    all ranks, and waits for the device.

    Raises ValueError for B other than 1 with cu_seqlens, for another number of initial states and
    for allow_neg_eigval without use_beta_sigmoid_in_kernel; AssertionError for states with a
    cp_context; TypeError for what is no tensor; NotImplementedError for other kwargs, which FLA
    ignores; RuntimeError for what else libgdn refuses.
    """
    _drop_in.only("chunk_gated_delta_rule", kwargs, "use_gate_in_kernel", "A_log", "dt_bias",
                  *_KWARGS)
    op = gdn.torch.prefill
    if cp_context is not None:
        op, cu_seqlens = _drop_in.on_ranks(cp_context, q, initial_state, output_final_state)
    raw = kwargs.get("use_gate_in_kernel", False)
    return _call(op, q, k, v, g, beta, scale, initial_state, output_final_state,
                 use_qk_l2norm_in_kernel, use_beta_sigmoid_in_kernel, allow_neg_eigval,
                 first_of_v(state_v_first, kwargs), cu_seqlens, raw, kwargs.get("A_log"),
                 kwargs.get("dt_bias"), kwargs)


def fused_recurrent_gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: "torch.Tensor | None" = None,
    gk: "torch.Tensor | None" = None,
    gv: "torch.Tensor | None" = None,
    beta: "torch.Tensor | None" = None,
    scale: float = None,
    initial_state: torch.Tensor = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    A_log: "torch.Tensor | None" = None,
    dt_bias: "torch.Tensor | None" = None,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: "torch.LongTensor | None" = None,
    **kwargs,
):
    """
    The rule token by token. Shapes, conversions, results and errors are those of
    chunk_gated_delta_rule(). g None is no decay, beta None is 1.

    Raises NotImplementedError for gk and gv (a decay per channel) and for other kwargs.
    """
    _drop_in.only("fused_recurrent_gated_delta_rule", kwargs, "cu_seqlens_cpu", "chunk_indices",
                  *_KWARGS)
    if gk is not None or gv is not None:
        raise NotImplementedError("gdn.fla: a decay per channel (gk, gv) is not supported")
    return _call(gdn.torch.decode, q, k, v, g, beta, scale, initial_state, output_final_state,
                 use_qk_l2norm_in_kernel, use_beta_sigmoid_in_kernel, allow_neg_eigval,
                 first_of_v(state_v_first, kwargs), cu_seqlens, use_gate_in_kernel, A_log, dt_bias,
                 kwargs)


chunk_gdn = chunk_gated_delta_rule
fused_recurrent_gdn = fused_recurrent_gated_delta_rule


def register():
    """
    Registers libgdn as FLA's backend "gdn" of gated_delta_rule, before FLA's others; FLA_GDN=0 in
    the environment turns the backend off. Raises ImportError where FLA 0.6 is not importable. A
    second call does nothing.
    """
    global _backend
    if _backend is not None:
        return
    import fla.ops.gated_delta_rule  # noqa: F401 - FLA's own backends come first
    from fla.backends import BaseBackend
    from fla.backends import register as register_backend

    @register_backend("gated_delta_rule")
    class GdnBackend(BaseBackend):
        """By libgdn."""

        backend_type = "gdn"
        package_name = "gdn"
        env_var = "FLA_GDN"
        default_enable = True
        priority = 1

        def chunk_gated_delta_rule(self, *args, **kwargs):
            return chunk_gated_delta_rule(*args, **kwargs)

    _backend = GdnBackend


def install():
    """
    Makes `import fla` find these functions, and what _fla_names.py names beside them. If FLA's rule
    is importable, its functions are replaced instead, in modules loaded already too, and FLA's run
    where these raise NotImplementedError. Else no FLA and no Triton are needed.

    Models of transformers that were imported before take these functions too. Warns of other
    modules that were imported before and found no FLA.
    """
    from . import _fla_names, _stand_in
    from .transformers import replace_rules

    _stand_in.install("fla", "0.6.0+gdn", _fla_names.MODULES, "fla.ops.gated_delta_rule",
                      _fla_names.KEEP)
    replace_rules()


_FAMILY = {  # FLA's modules that older versions lack
    "kda": (chunk_kda, fused_recurrent_kda),
    "kda.gate": (fused_kda_gate, kda_gate_fwd, kda_gate_bwd),
    "gdn2": (chunk_gdn2, fused_recurrent_gdn2),
    "gated_delta_product": (chunk_gated_delta_product,),
}


def _compare():
    try:
        import fla.ops.gated_delta_rule as package
    except Exception:  # FLA is absent, or cannot be imported on this machine
        return
    for ours in (chunk_gated_delta_rule, fused_recurrent_gated_delta_rule):
        _drop_in.require_known(ours, getattr(package, ours.__name__))
    for name, functions in _FAMILY.items():
        try:
            module = importlib.import_module(f"fla.ops.{name}")
        except Exception:  # an older FLA
            continue
        for ours in functions:
            _drop_in.require_known(ours, inspect.unwrap(getattr(module, ours.__name__)))


_backend = None
_compare()
