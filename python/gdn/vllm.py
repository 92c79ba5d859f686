# SPDX-License-Identifier: Apache-2.0
"""
The gated delta rule, KDA and the convolution under the names and signatures of vLLM 0.33.

    GDN_VLLM=1 vllm serve ...

With this variable vLLM's plugin loader, which finds the entry point "gdn" of vllm.general_plugins,
calls register(): vLLM then makes classes of gdn in place of ChunkGatedDeltaRule,
QwenGatedDeltaNetAttention and KimiGatedDeltaNetAttention. Prefill runs the rule by libgdn, and
decoding without drafts runs convolution, gates, norm and rule as one gdn_step(). install() replaces
vLLM's functions instead, in every layer that calls them: those of KDA in Kimi-Linear, Kimi K3,
Ling and GLM-5.3-Flash. A call that raises NotImplementedError here then goes to vLLM's own.
On a CPU GDN_VLLM_LAZY=16 keeps up to 16 tokens beside each state (docs/start/lazy-states.md).

Slots of vLLM's pools start at 1: block 0 is the null block. So slots of 0 and below are padding;
their outputs are zero where vLLM leaves them undefined.

Forward only. A tensor that requires a gradient raises NotImplementedError unless gradients are off.
"""

from importlib import import_module

import torch

import gdn
import gdn.torch
from gdn.torch._named import renamed

from . import _drop_in, _vllm_cpu, _vllm_glm, _vllm_kda, _vllm_rule
from ._vllm_kda import (chunk_kda, chunk_kda_with_fused_gate, fused_kda_gate, fused_recurrent_kda,
                        fused_recurrent_kda_fwd, fused_recurrent_kda_packed_decode)


@_drop_in.explained(q=4, k=4, v=4, g=3, beta=3, initial_state=4, cu_seqlens=1)
def chunk_gated_delta_rule(q, k, v, g, beta, scale=None, initial_state=None,
                           output_final_state=False, cu_seqlens=None, chunk_indices=None,
                           chunk_offsets=None, use_qk_l2norm_in_kernel=False, core_attn_out=None):
    """
    The rule over whole sequences.

    q, k [B, T, H, K], v [B, T, HV, V] of one dtype: float32, bfloat16 or float16. g (the logarithm
    of the decay), beta [B, T, HV]. initial_state [S, HV, V, K] is read only. cu_seqlens [S + 1]
    packs sequences into B = 1. core_attn_out: the outputs go to its first elements.
    chunk_indices and chunk_offsets are ignored.

    Returns o [B, T, HV, V] and the final state [S, HV, V, K] in float32, or None.

    Copied: q, k, v if their last stride is not 1.

    Raises NotImplementedError for tensors that require a gradient; ValueError where vLLM does;
    RuntimeError for other arguments that libgdn refuses.
    """
    _drop_in.refuse_grad(q=q, k=k, v=v, g=g, beta=beta, initial_state=initial_state)
    _vllm_rule.check_packed(q, cu_seqlens, initial_state)
    _drop_in.dimensions(g=(g, 3), beta=(beta, 3))
    out = None if core_attn_out is None else core_attn_out.view(-1)[:v.numel()].view(v.shape)
    return _drop_in.rule(gdn.torch.prefill, q, k, v, g, beta, scale, initial_state,
                         output_final_state, cu_seqlens, out=out,
                         norm=_drop_in.norm(use_qk_l2norm_in_kernel))


@_drop_in.explained(q=4, k=4, v=4, g=3, beta=3, initial_state=4, cu_seqlens=1,
                    ssm_state_indices=1)
@renamed(state="initial_state", read_slots="ssm_state_indices")
def fused_recurrent_gated_delta_rule(q, k, v, g, beta=None, scale=None, initial_state=None,
                                     inplace_final_state=True, cu_seqlens=None,
                                     ssm_state_indices=None, num_accepted_tokens=None,
                                     use_qk_l2norm_in_kernel=False):
    """
    The rule token by token over a pool.

    q, k [B, T, H, K], v [B, T, HV, V] of one dtype; g, beta [B, T, HV]; cu_seqlens [S + 1] packs
    sequences into B = 1. initial_state: a pool [P, HV, V, K]. ssm_state_indices [>= S]: the slots
    of the sequences; or [>= S, D]: the slot of the state after each token, where a sequence starts
    from slot num_accepted_tokens[s] - 1 of its row, or 0. Without inplace_final_state the states
    after all tokens are returned as [B T, HV, V, K], and the pool is read only.

    Returns o [B, T, HV, V] and the pool, or the states after all tokens. Conversions and errors are
    those of chunk_gated_delta_rule().
    """
    _drop_in.refuse_grad(q=q, k=k, v=v, g=g, beta=beta, initial_state=initial_state)
    _drop_in.dimensions(g=(g, 3), beta=(beta, 3))
    return _vllm_rule.decode(q, k, v, g, beta, scale, initial_state, inplace_final_state,
                             cu_seqlens, ssm_state_indices, num_accepted_tokens,
                             use_qk_l2norm_in_kernel)


@_drop_in.explained(q=4, k=4, v=4, A_log=1, a=2, b=2, dt_bias=1, initial_state=4, cu_seqlens=1,
                    ssm_state_indices=1)
@renamed(g="a", beta="b", state="initial_state", read_slots="ssm_state_indices")
def fused_sigmoid_gating_delta_rule_update(A_log, a, b, dt_bias, q, k, v, beta=1.0, threshold=20.0,
                                           scale=None, initial_state=None,
                                           inplace_final_state=True, cu_seqlens=None,
                                           ssm_state_indices=None, num_accepted_tokens=None,
                                           use_qk_l2norm_in_kernel=False, is_kda=False):
    """
    fused_recurrent_gated_delta_rule() with raw gates a, b [N, HV] or [B, T, HV], A_log, dt_bias
    [HV]. threshold is ignored: the softplus is exact.

    Raises NotImplementedError for is_kda and for a beta (of the softplus) other than 1.
    """
    if is_kda or beta != 1.0:
        raise NotImplementedError("gdn.vllm: is_kda, and a softplus beta other than 1, are not "
                                  "supported")
    _drop_in.refuse_grad(q=q, k=k, v=v, a=a, b=b, A_log=A_log, dt_bias=dt_bias,
                         initial_state=initial_state)
    return _vllm_rule.decode(q, k, v, a, b, scale, initial_state, inplace_final_state,
                             cu_seqlens, ssm_state_indices, num_accepted_tokens,
                             use_qk_l2norm_in_kernel, A_log=A_log, dt_bias=dt_bias,
                             **_drop_in.RAW_GATES)


@_drop_in.explained(mixed_qkv=2, a=2, b=2, A_log=1, initial_state=4, out=4, ssm_state_indices=1,
                    dt_bias=1)
@renamed(q="mixed_qkv", k="mixed_qkv", v="mixed_qkv", g="a", beta="b", state="initial_state",
         read_slots="ssm_state_indices")
def fused_recurrent_gated_delta_rule_packed_decode(mixed_qkv, a, b, A_log, dt_bias, scale,
                                                   initial_state, out, ssm_state_indices,
                                                   use_qk_l2norm_in_kernel=False):
    """
    The next token of each sequence from rows behind the convolution.

    mixed_qkv [B, 2 H K + HV V]; a, b [B, HV]; A_log, dt_bias [HV]; initial_state: a pool
    [P, HV, V, K], updated in place at ssm_state_indices [B]; out [B, 1, HV, V].

    Returns (out, initial_state). Raises ValueError for other shapes, NotImplementedError for
    tensors that require a gradient, RuntimeError for other arguments that libgdn refuses.
    """
    if mixed_qkv.dim() != 2 or ssm_state_indices.dim() != 1 or initial_state.dim() != 4:
        raise ValueError(f"mixed_qkv, ssm_state_indices, initial_state: {mixed_qkv.dim()}, "
                         f"{ssm_state_indices.dim()}, {initial_state.dim()} dimensions, wanted "
                         "2, 1, 4")
    B, (HV, V) = mixed_qkv.shape[0], initial_state.shape[1:3]
    if tuple(out.shape) != (B, 1, HV, V):
        raise ValueError(f"`out` must have shape {(B, 1, HV, V)} (got {tuple(out.shape)}).")
    _drop_in.refuse_grad(mixed_qkv=mixed_qkv, a=a, b=b, A_log=A_log, dt_bias=dt_bias,
                         initial_state=initial_state)
    q, k, v = _drop_in.split(mixed_qkv, initial_state)
    _drop_in.dimensions(a=(a, 2), b=(b, 2))
    a, b = (_drop_in.gate(x)[:, None] for x in (a, b))
    gdn.torch.decode(
        q, k, v, a, b, A_log=A_log, dt_bias=dt_bias, state=initial_state, out=out,
        scale=scale, norm=_drop_in.norm(use_qk_l2norm_in_kernel), read_slots=ssm_state_indices,
        **_vllm_rule.FIRST_SLOT, **_drop_in.RAW_GATES)
    return out, initial_state


def _activation(activation):
    if activation is True or activation in ("silu", "swish"):
        return gdn.ACT_SILU
    if activation in (None, False):
        return gdn.ACT_NONE
    raise NotImplementedError(f"gdn.vllm: activation {activation!r}, wanted None, silu or swish")


def _conv_slots(slots, null_block_id):
    """Fields of the batch; a null block other than 0 costs a new tensor of slots."""
    if null_block_id == 0:
        return dict(read_slots=slots, **_vllm_rule.FIRST_SLOT)
    if null_block_id is not None and null_block_id > 0:
        slots = slots.where(slots != null_block_id, -1)
    return dict(read_slots=slots)


@_drop_in.explained(x=2, weight=2, conv_states=3, query_start_loc=1, bias=1, cache_indices=1,
                    has_initial_state=1)
@renamed(state="conv_states", cu_seqlens="query_start_loc", read_slots="cache_indices")
def causal_conv1d_fn(x, weight, bias, conv_states, query_start_loc, cache_indices=None,
                     has_initial_state=None, activation="silu", pad_slot_id=-1, null_block_id=0,
                     metadata=None, validate_data=False):
    """
    Causal depthwise convolution of packed sequences over a pool.

    x [D, N]; weight [D, W]; bias [D]; conv_states [P, D, >= W - 1], of which the first W - 1
    columns are the state, updated in place; query_start_loc [S + 1]; cache_indices [S], where
    null_block_id and negative slots are padding; has_initial_state [S]. pad_slot_id, metadata and
    validate_data are ignored.

    Returns out [D, N] in the order of the memory of x. Converted: x to the dtype of conv_states and
    back. Raises NotImplementedError for another activation and for tensors that require a gradient,
    RuntimeError for other arguments that libgdn refuses.
    """
    options = dict(activation=_activation(activation), cu_seqlens=query_start_loc)
    _drop_in.refuse_grad(x=x, weight=weight, bias=bias, conv_states=conv_states)
    if cache_indices is not None:
        options.update(_conv_slots(cache_indices, null_block_id))
    if has_initial_state is not None:
        options["has_initial_state"] = has_initial_state
    rows = _drop_in.cast(x.t(), conv_states.dtype)
    out = gdn.torch.conv1d(rows, weight, bias, state=conv_states[..., :weight.shape[1] - 1],
                           **options)
    return out.to(x.dtype).t()


@_drop_in.explained(x=2, conv_state=3, weight=2, bias=1, conv_state_indices=1, query_start_loc=1,
                    out=2)
@renamed(state="conv_state", cu_seqlens="query_start_loc", read_slots="conv_state_indices")
def causal_conv1d_update(x, conv_state, weight, bias=None, activation=None,
                         conv_state_indices=None, num_accepted_tokens=None, query_start_loc=None,
                         max_query_len=-1, null_block_id=0, validate_data=False, out=None):
    """
    The next tokens through the convolution over a pool.

    x [B, D], [B, D, T], or with query_start_loc [S + 1] packed [N, D]. conv_state
    [P, D, >= W - 1], of which the first W - 1 columns are the state, updated in place at
    conv_state_indices, where null_block_id and negative slots are padding: such rows of out stay as
    they were. out has the shape of x; absent: x is overwritten. validate_data and max_query_len are
    ignored.

    Returns out. Converted: x to the dtype of conv_state and back.

    Raises NotImplementedError for num_accepted_tokens (a window of drafted inputs that slides in
    the state), for another activation and for tensors that require a gradient; ValueError for an
    out of another shape; RuntimeError for other arguments that libgdn refuses.
    """
    options = dict(activation=_activation(activation), pad_policy=gdn.PAD_KEEP)
    if num_accepted_tokens is not None:
        raise NotImplementedError("gdn.vllm: causal_conv1d_update with num_accepted_tokens is not "
                                  "supported")
    _drop_in.refuse_grad(x=x, conv_state=conv_state, weight=weight, bias=bias)
    out = x if out is None else out
    if out.shape != x.shape:
        raise ValueError(f"`out` shape {tuple(out.shape)} must match `x` shape {tuple(x.shape)}.")
    if conv_state_indices is not None:
        options.update(_conv_slots(conv_state_indices, null_block_id))
    if query_start_loc is not None:
        options["cu_seqlens"] = query_start_loc
        rows, to = x, out
    elif x.dim() == 2:
        rows, to = x[:, None], out[:, None]
    else:
        rows, to = x.transpose(1, 2), out.transpose(1, 2)
    rows, result = (_drop_in.cast(y, conv_state.dtype) for y in (rows, to))
    gdn.torch.conv1d(rows, weight, bias, state=conv_state[..., :weight.shape[1] - 1], out=result,
                     **options)
    if result is not to:
        to.copy_(result)
    return out


_PLACES = {
    "vllm.third_party.flash_linear_attention.ops": (
        chunk_gated_delta_rule, fused_recurrent_gated_delta_rule,
        fused_recurrent_gated_delta_rule_packed_decode, fused_sigmoid_gating_delta_rule_update),
    "vllm.model_executor.layers.mamba.ops.causal_conv1d": (causal_conv1d_fn, causal_conv1d_update),
}
_KDA_PLACES = {
    "vllm.third_party.flash_linear_attention.ops.kda": (
        chunk_kda, fused_kda_gate, fused_recurrent_kda_fwd),
    "vllm.models.kimi_k3.nvidia.ops.third_party.kda": (
        chunk_kda, chunk_kda_with_fused_gate, fused_kda_gate, fused_recurrent_kda,
        fused_recurrent_kda_packed_decode),
    "vllm.models.glm5next.nvidia.ops.third_party.kda": (
        _vllm_glm.chunk_kda_with_fused_gate, _vllm_glm.fused_recurrent_kda),
}


def _pairs():
    """Ours and vLLM's functions. A vLLM without such models has no modules for KDA."""
    for name, functions in {**_PLACES, **_KDA_PLACES}.items():
        try:
            module = import_module(name)
        except ModuleNotFoundError:
            if name in _KDA_PLACES:
                continue
            raise
        for ours in functions:
            yield ours, getattr(module, ours.__name__)


def install():
    """
    Puts the functions into the place of vLLM's, in modules loaded already too. Raises ImportError
    where vLLM is not importable, or where a function of it has other parameters. A second call
    changes nothing.
    """
    pairs = list(_pairs())
    for ours, theirs in pairs:
        _drop_in.require_known(ours, theirs)
    for ours, theirs in pairs:
        _drop_in.replace(ours, theirs)


def _chunk_class(base):
    class GdnChunkGatedDeltaRule(base):
        """vLLM's prefill of the rule by libgdn."""

        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self._forward_method = self.forward_gdn

        def forward_gdn(self, q, k, v, g, beta, initial_state, output_final_state, cu_seqlens=None,
                        chunk_indices=None, chunk_offsets=None, use_qk_l2norm_in_kernel=True,
                        core_attn_out=None, aiter_prefill_metadata=None):
            return chunk_gated_delta_rule(
                q, k, v, g, beta, None, initial_state, output_final_state, cu_seqlens,
                use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel, core_attn_out=core_attn_out)

    _drop_in.require_same(GdnChunkGatedDeltaRule.forward_gdn, base.forward_native)
    return GdnChunkGatedDeltaRule


def _layer_class(base, is_conv_state_dim_first):
    class GdnQwenGatedDeltaNetAttention(base):
        """vLLM's layer, with one gdn_step() for decoding without drafts."""

        def _forward_core_decode_non_spec(self, mixed_qkv, b, a, core_attn_out, attn_metadata):
            conv_state, state = self.kv_cache[0], self.kv_cache[1]
            if not is_conv_state_dim_first():
                conv_state = conv_state.transpose(-1, -2)
            if self.activation not in ("silu", "swish") or conv_state.dtype != mixed_qkv.dtype:
                return super()._forward_core_decode_non_spec(mixed_qkv, b, a, core_attn_out,
                                                             attn_metadata)
            n, weight = attn_metadata.num_actual_tokens, self.conv1d.weight
            gdn.torch.step(
                mixed_qkv[:n, None], a[:n, None], b[:n, None], weight, self.A_log,
                key_heads=self.num_k_heads // self.tp_size,
                value_heads=self.num_v_heads // self.tp_size, key_dim=self.head_k_dim,
                value_dim=self.head_v_dim, conv_bias=self.conv1d.bias, dt_bias=self.dt_bias,
                conv_state=conv_state[..., :weight.shape[-1] - 1], state=state,
                out=core_attn_out[:n, None],
                read_slots=attn_metadata.non_spec_state_indices_tensor[:n], **_vllm_rule.FIRST_SLOT)

    _drop_in.require_same(GdnQwenGatedDeltaNetAttention._forward_core_decode_non_spec,
                          base._forward_core_decode_non_spec)
    return GdnQwenGatedDeltaNetAttention


def _kimi_class():
    """Returns vLLM's class of Kimi-Linear's layers, and ours; None if vLLM has none."""
    try:
        kimi = import_module("vllm.model_executor.layers.mamba.gdn.kimi_gdn_linear_attn")
    except ModuleNotFoundError:
        return None
    return _vllm_kda.layer_class(kimi)


def register():
    """
    Registers the classes as vLLM's out-of-tree ones. Call it before a model is made. Raises
    ImportError where vLLM is not importable, or with one line where its methods have other
    parameters; nothing is registered then. ValueError for a GDN_VLLM_LAZY that is no number of
    rows, or not on a CPU. A second call does nothing.
    """
    from vllm.model_executor.custom_op import CustomOp, PluggableLayer
    from vllm.model_executor.layers.mamba.gdn import qwen_gdn_linear_attn as qwen
    from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first
    from vllm.platforms import current_platform

    global _classes
    if _classes is not None:
        return
    chunk = _chunk_class(qwen.ChunkGatedDeltaRule)
    layer = _layer_class(qwen.QwenGatedDeltaNetAttention, is_conv_state_dim_first)
    kimi = _kimi_class()
    if _vllm_cpu.lazy_rows() and not current_platform.is_cpu():
        raise ValueError(f"{_vllm_cpu.LAZY}: given, wanted none but on a CPU")
    if current_platform.is_cpu():
        from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention

        name = "_cpu_gdn_attention_nonspec"
        setattr(gdn_attention, name, _vllm_cpu.wrap(getattr(gdn_attention, name)))
    CustomOp.register_oot(chunk, name="ChunkGatedDeltaRule")
    PluggableLayer.register_oot(layer, name="QwenGatedDeltaNetAttention")
    if kimi is not None:
        PluggableLayer.register_oot(kimi, name="KimiGatedDeltaNetAttention")
    _classes = chunk, layer, kimi


_classes = None
