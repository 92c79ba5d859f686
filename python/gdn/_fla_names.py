# SPDX-License-Identifier: Apache-2.0
"""Where FLA, from 0.4 to 0.6, has what gdn.fla.install() provides."""

from . import _fla_contexts, _fla_modules, _fla_ops, _fla_ranks, fla


def _of(module, *names):
    return {name: getattr(module, name) for name in names}


_CHUNK = _of(fla, "chunk_gated_delta_rule", "chunk_gdn")
_RECURRENT = _of(fla, "fused_recurrent_gated_delta_rule", "fused_recurrent_gdn")
_KDA = _of(fla, "chunk_kda", "fused_recurrent_kda")
_GDN2 = _of(fla, "chunk_gdn2", "fused_recurrent_gdn2")
_PRODUCT = _of(fla, "chunk_gated_delta_product")
_INDEX = _of(_fla_ops, "get_max_num_splits", "prepare_chunk_indices", "prepare_chunk_offsets",
             "prepare_cu_seqlens_from_lens", "prepare_cu_seqlens_from_mask", "prepare_lens",
             "prepare_lens_from_mask", "prepare_position_ids", "prepare_sequence_ids",
             "prepare_token_indices")
_CONTEXTS = _of(_fla_contexts, "FLACPContext", "build_cp_context")
_RANKS = _of(_fla_ranks, "all_gather_into_tensor", "all_reduce_sum", "conv_cp_send_recv_bwd",
             "conv_cp_send_recv_fwd", "send_recv_bwd", "send_recv_fwd")
_CONVOLUTION = _of(_fla_modules, "CausalConv1dFunction", "ShortConvolution", "causal_conv1d",
                   "causal_conv1d_bwd", "causal_conv1d_fwd", "causal_conv1d_update",
                   "causal_conv1d_update_states")
_NORM = _of(_fla_modules, "L2Norm", "l2_norm", "l2norm", "l2norm_bwd", "l2norm_fwd")
_GATED = _of(_fla_modules, "FusedRMSNormGated", "rms_norm_gated")

# Names that an installed FLA keeps: its cached numbers, its kernels that share the norm's sums, and
# its contexts.
KEEP = {*_INDEX, *_CONTEXTS, *_RANKS, "l2norm_bwd", "l2norm_fwd"}

MODULES = {
    "fla.ops": {**_CHUNK, **_RECURRENT, **_KDA},
    "fla.ops.kda": _KDA,
    "fla.ops.kda.chunk": _of(fla, "chunk_kda"),
    "fla.ops.kda.fused_recurrent": _of(fla, "fused_recurrent_kda"),
    "fla.ops.kda.gate": _of(fla, "fused_kda_gate", "kda_gate_bwd", "kda_gate_fwd"),
    "fla.ops.gdn2": _GDN2,
    "fla.ops.gdn2.chunk": _of(fla, "chunk_gdn2"),
    "fla.ops.gdn2.fused_recurrent": _of(fla, "fused_recurrent_gdn2"),
    "fla.ops.gated_delta_product": _PRODUCT,
    "fla.ops.gated_delta_product.chunk": _PRODUCT,
    "fla.ops.gated_delta_rule": {**_CHUNK, **_RECURRENT},
    "fla.ops.gated_delta_rule.chunk": {
        **_CHUNK, **_of(_fla_ops, "ChunkGatedDeltaRuleFunction", "chunk_gated_delta_rule_bwd",
                        "chunk_gated_delta_rule_fwd"),
        **_of(_fla_modules, "l2norm_bwd", "l2norm_fwd")},
    "fla.ops.gated_delta_rule.fused_recurrent": {
        **_RECURRENT, **_of(_fla_ops, "FusedRecurrentFunction")},
    "fla.ops.utils": _INDEX,
    "fla.ops.utils.index": _INDEX,
    "fla.ops.cp": {**_CONTEXTS, **_RANKS},
    "fla.ops.cp.comm": _RANKS,
    "fla.ops.cp.context": _CONTEXTS,
    "fla.modules": _of(_fla_modules, "FusedRMSNormGated", "L2Norm", "ShortConvolution"),
    "fla.modules.causal_conv1d": _CONVOLUTION,
    "fla.modules.causal_conv1d.ops": _CONVOLUTION,
    "fla.modules.conv": _CONVOLUTION,
    "fla.modules.conv.causal_conv1d": _CONVOLUTION,
    "fla.modules.conv.short_conv": _CONVOLUTION,
    "fla.modules.conv.triton": _CONVOLUTION,
    "fla.modules.conv.triton.ops": _CONVOLUTION,
    "fla.modules.convolution": _CONVOLUTION,
    "fla.modules.fused_norm_gate": _GATED,
    "fla.modules.l2norm": _NORM,
    "fla.modules.norm": _of(_fla_modules, "FusedRMSNormGated", "L2Norm"),
    "fla.modules.norm.fused_norm_gate": _GATED,
    "fla.modules.norm.l2norm": _NORM,
}
