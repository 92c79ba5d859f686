# SPDX-License-Identifier: Apache-2.0
"""
KDA under the names and signatures of vLLM 0.33: the functions of gdn.vllm for Kimi-Linear, Kimi K3
and Ling, and Kimi-Linear's layer.

Gates are per key channel, [B, T, HV, K]. Raw ones are -exp(A_log) softplus(g + dt_bias), or with a
lower_bound lower_bound sigmoid(exp(A_log) (g + dt_bias)); a raw beta stands for its sigmoid. Pools
are [P, HV, V, K]. Conversions and errors are those of gdn.vllm.chunk_gated_delta_rule().
"""

import gdn
import gdn.torch
from gdn.torch._named import renamed

from . import _drop_in, _vllm_rule

_TOKENS = dict(q=4, k=4, v=4)


def _refuse_other_betas(beta):
    """Kernels of vLLM take a beta [B, T, HV, V] as one for each value column, which is no KDA."""
    if beta is not None and beta.dim() != 3:
        raise NotImplementedError("gdn.vllm: beta has one value per head, [B, T, HV]")


def chunk(q, k, v, g, beta, scale, initial_state, output_final_state, l2norm, cu_seqlens,
          **options):
    """The rule over whole sequences: out, and the final state or None."""
    _vllm_rule.check_packed(q, cu_seqlens, initial_state)
    return _drop_in.rule(gdn.torch.prefill, q, k, v, g, beta, scale, initial_state,
                         output_final_state, cu_seqlens, norm=_drop_in.norm(l2norm), **options)


def _raw(g, A_log, dt_bias, lower_bound):
    return dict(_drop_in.raw_gates(g, A_log, dt_bias, lower_bound), **_drop_in.RAW_GATES)


@_drop_in.explained(**_TOKENS, g=4, beta=3, initial_state=4, cu_seqlens=1)
def chunk_kda(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False,
              use_qk_l2norm_in_kernel=False, cu_seqlens=None, **kwargs):
    """
    KDA over whole sequences.

    q, k [B, T, H, K], v [B, T, HV, V] of one dtype: float32, bfloat16 or float16. g [B, T, HV, K]
    (the logarithm of the decay), beta [B, T, HV]. initial_state [S, HV, V, K] is read only.
    cu_seqlens [S + 1] packs sequences into B = 1. kwargs are ignored, as by vLLM.

    Returns o [B, T, HV, V] and the final state [S, HV, V, K] in float32, or None.
    """
    _drop_in.refuse_grad(q=q, k=k, v=v, g=g, beta=beta, initial_state=initial_state)
    _drop_in.dimensions(g=(g, 4))
    _refuse_other_betas(beta)
    return chunk(q, k, v, g, beta, scale, initial_state, output_final_state,
                 use_qk_l2norm_in_kernel, cu_seqlens)


@_drop_in.explained(**_TOKENS, raw_g=4, raw_beta=3, A_log=1, g_bias=1, initial_state=4,
                    cu_seqlens=1, out=4)
@renamed(g="raw_g", beta="raw_beta", dt_bias="g_bias", gate_lower_bound="lower_bound")
def chunk_kda_with_fused_gate(q, k, v, raw_g, raw_beta, A_log, g_bias, scale=None,
                              initial_state=None, output_final_state=False, lower_bound=None,
                              use_qk_l2norm_in_kernel=False, cu_seqlens=None, out=None, **kwargs):
    """
    chunk_kda() with raw gates: raw_g [B, T, HV, K], raw_beta [B, T, HV], A_log with HV elements,
    g_bias with HV K or None. out [B, T, HV, V] takes the outputs.
    """
    _drop_in.refuse_grad(q=q, k=k, v=v, raw_g=raw_g, raw_beta=raw_beta, A_log=A_log, g_bias=g_bias,
                         initial_state=initial_state)
    _drop_in.dimensions(raw_g=(raw_g, 4), raw_beta=(raw_beta, 3))
    options = _raw(raw_g, A_log, g_bias, lower_bound)
    return chunk(q, k, v, raw_g, raw_beta, scale, initial_state, output_final_state,
                 use_qk_l2norm_in_kernel, cu_seqlens, out=out, **options)


@_drop_in.explained(**_TOKENS, g=4, beta=3, initial_state=4, cu_seqlens=1, ssm_state_indices=1)
@renamed(state="initial_state", read_slots="ssm_state_indices")
def fused_recurrent_kda_fwd(q, k, v, g, beta, scale, initial_state, inplace_final_state=True,
                            cu_seqlens=None, ssm_state_indices=None, num_accepted_tokens=None,
                            use_qk_l2norm_in_kernel=False):
    """
    KDA token by token over a pool: gdn.vllm.fused_recurrent_gated_delta_rule() with
    g [B, T, HV, K].
    """
    _drop_in.refuse_grad(q=q, k=k, v=v, g=g, beta=beta, initial_state=initial_state)
    _drop_in.dimensions(g=(g, 4))
    _refuse_other_betas(beta)
    return _vllm_rule.decode(q, k, v, g, beta, scale, initial_state, inplace_final_state,
                             cu_seqlens, ssm_state_indices, num_accepted_tokens,
                             use_qk_l2norm_in_kernel)


@_drop_in.explained(**_TOKENS, raw_g=4, raw_beta=3, A_log=1, dt_bias=1, initial_state=4,
                    cu_seqlens=1, ssm_state_indices=1, out=4)
@renamed(g="raw_g", beta="raw_beta", gate_lower_bound="lower_bound", state="initial_state",
         read_slots="ssm_state_indices")
def fused_recurrent_kda(q, k, v, raw_g, raw_beta, A_log, dt_bias, lower_bound, initial_state,
                        cu_seqlens, ssm_state_indices, num_accepted_tokens=None, out=None,
                        fuse_gate=None):
    """
    KDA token by token over a pool, with raw gates and q and k normalised inside.

    q, k [1, N, H, K], v [1, N, HV, V]; raw_g [1, N, HV, K], raw_beta [1, N, HV]; A_log with HV
    elements, dt_bias with HV K or None. Slots, num_accepted_tokens and cu_seqlens are as for
    gdn.vllm.fused_recurrent_gated_delta_rule(), states in place. fuse_gate is ignored.

    Returns (out [1, N, HV, V], initial_state).
    """
    _drop_in.refuse_grad(q=q, k=k, v=v, raw_g=raw_g, raw_beta=raw_beta, A_log=A_log,
                         dt_bias=dt_bias, initial_state=initial_state)
    _drop_in.dimensions(raw_g=(raw_g, 4), raw_beta=(raw_beta, 3))
    options = _raw(raw_g, A_log, dt_bias, lower_bound)
    return _vllm_rule.decode(q, k, v, raw_g, raw_beta, None, initial_state, True, cu_seqlens,
                             ssm_state_indices, num_accepted_tokens, True, out=out, **options)


@_drop_in.explained(mixed_qkv=2, raw_g=4, raw_beta=3, initial_state=4, state_indices=1, A_log=1,
                    dt_bias=1, out=4)
@renamed(q="mixed_qkv", k="mixed_qkv", v="mixed_qkv", g="raw_g", beta="raw_beta",
         gate_lower_bound="lower_bound", state="initial_state", read_slots="state_indices")
def fused_recurrent_kda_packed_decode(mixed_qkv, raw_g, raw_beta, A_log, dt_bias, lower_bound,
                                      initial_state, state_indices, scale=None, out=None):
    """
    The next token of each sequence from rows behind the convolution, mixed_qkv [N, 2 H K + HV V].

    raw_g [1, N, HV, K], raw_beta [1, N, HV]; A_log with HV elements, dt_bias with HV K;
    initial_state: a pool [P, HV, V, K], updated in place at state_indices [N]; out [1, N, HV, V].

    Returns (out, initial_state). Raises ValueError for other numbers of dimensions.
    """
    _drop_in.dimensions(mixed_qkv=(mixed_qkv, 2), raw_g=(raw_g, 4), raw_beta=(raw_beta, 3),
                        state_indices=(state_indices, 1), initial_state=(initial_state, 4))
    _drop_in.refuse_grad(mixed_qkv=mixed_qkv, raw_g=raw_g, raw_beta=raw_beta, A_log=A_log,
                         dt_bias=dt_bias, initial_state=initial_state)
    _drop_in.optional(out=out)
    q, k, v = _drop_in.split(_drop_in.unit_stride(mixed_qkv), initial_state)
    options = _raw(raw_g, A_log, dt_bias, lower_bound)
    if out is not None:
        options["out"] = out.transpose(0, 1)
    g, beta = (_drop_in.gate(x[0])[:, None] for x in (raw_g, raw_beta))
    found = gdn.torch.decode(q, k, v, g, beta, state=initial_state, scale=scale or 0.0,
                             norm=gdn.NORM_L2, read_slots=state_indices, **_vllm_rule.FIRST_SLOT,
                             **options)
    return found.transpose(0, 1) if out is None else out, initial_state


@_drop_in.explained(g=1, A=1, g_bias=1)
@renamed(a="g", A_log="A", dt_bias="g_bias", gate_lower_bound="lower_bound")
def fused_kda_gate(g, A, head_k_dim, g_bias=None, beta=1.0, threshold=20.0, lower_bound=None):
    """
    The gates of KDA from raw ones g [.., H K], A with H elements (the A_log of others) and g_bias
    with H K, or None. threshold is ignored: the softplus is exact.

    Returns [.., H, K] in float32. Raises NotImplementedError for a beta (of the softplus) other
    than 1.
    """
    if beta != 1.0:
        raise NotImplementedError("gdn.vllm: a softplus beta other than 1 is not supported")
    _drop_in.wanted(g=g)
    _drop_in.refuse_grad(g=g, A=A, g_bias=g_bias)
    a = _drop_in.gate(g).unflatten(-1, (-1, head_k_dim))
    return gdn.torch.gates(a, None, **_drop_in.raw_gates(a, A, g_bias, lower_bound))[0]


def layer_class(kimi):
    """Ours around the layer of that module of vLLM."""
    from vllm.compilation.breakable_cudagraph import eager_break_during_capture

    class GdnKimiGatedDeltaNetAttention(kimi.KimiGatedDeltaNetAttention):
        """vLLM's layer of Kimi-Linear: what runs between the projections of a batch without drafts
        is one gdn_step(), or for prompts convolution and rule by libgdn."""

        @eager_break_during_capture
        def _forward(self, mixed_qkv, g1, g2, beta, core_attn_out):
            batch = (kimi.get_forward_context().attn_metadata or {}).get(self.prefix)
            conv_state, state = self.kv_cache
            if not kimi.is_conv_state_dim_first():
                conv_state = conv_state.transpose(-1, -2)
            if (batch is None or batch.spec_sequence_masks is not None
                    or conv_state.dtype != mixed_qkv.dtype):
                return super()._forward(mixed_qkv, g1, g2, beta, core_attn_out)
            n = batch.num_actual_tokens
            run = _prefill if batch.num_prefills else _decode
            run(self, batch, mixed_qkv[:n], g1[0, :n], g2[:n], beta[0, :n], core_attn_out[0, :n],
                conv_state[..., :self.conv1d.weight.shape[-1] - 1], state)

    _drop_in.require_same(GdnKimiGatedDeltaNetAttention._forward,
                          kimi.KimiGatedDeltaNetAttention._forward)
    return GdnKimiGatedDeltaNetAttention


def _decode(layer, batch, mixed_qkv, g, z, beta, out, conv_state, state):
    heads, size = layer.local_num_heads, layer.head_dim
    g, z, beta, out = (x[:, None] for x in (g, z, beta, out))
    gdn.torch.step(
        mixed_qkv[:, None], g, beta, layer.conv1d.weight, layer.A_log, z=z, out=out,
        key_heads=heads, value_heads=heads, key_dim=size, value_dim=size,
        conv_bias=layer.conv1d.bias, dt_bias=layer.dt_bias.view(heads, size),
        norm_weight=layer.o_norm.weight, activation=gdn.ACT_SIGMOID, rms_eps=layer.o_norm.eps,
        gate_lower_bound=layer.gate_lower_bound or 0.0, conv_state=conv_state, state=state,
        read_slots=batch.non_spec_state_indices_tensor[:len(out)], **_vllm_rule.FIRST_SLOT)


def _prefill(layer, batch, mixed_qkv, g, z, beta, out, conv_state, state):
    places = dict(read_slots=batch.non_spec_state_indices_tensor, **_vllm_rule.FIRST_SLOT,
                  cu_seqlens=batch.non_spec_query_start_loc,
                  has_initial_state=batch.has_initial_state)
    rows = gdn.torch.conv1d(mixed_qkv, layer.conv1d.weight[:, 0], layer.conv1d.bias,
                            state=conv_state, activation=gdn.ACT_SILU, **places)
    q, k, v = (x.unflatten(-1, (-1, layer.head_dim)) for x in rows.chunk(3, -1))
    gdn.torch.prefill(q, k, v, g, beta, state=state, out=out, norm=gdn.NORM_L2, **places,
                      **_raw(g, layer.A_log, layer.dt_bias, layer.gate_lower_bound))
    out.copy_(layer.o_norm(out, z))
