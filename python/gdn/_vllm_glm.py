# SPDX-License-Identifier: Apache-2.0
"""
The two functions of vLLM 0.33 that its GLM-5.3-Flash calls for KDA. They have names of gdn.vllm's,
but other parameters, so they are no names of gdn.vllm. Tensors and errors are those of _vllm_kda.
"""

import gdn
import gdn.torch
from gdn.torch._named import renamed

from . import _drop_in, _vllm_kda, _vllm_rule

_TOKENS = dict(q=4, k=4, v=4)


@_drop_in.explained(**_TOKENS, raw_g=4, beta=3, A_log=1, g_bias=1, initial_state=4, cu_seqlens=1)
@renamed(g="raw_g", dt_bias="g_bias", gate_lower_bound="lower_bound")
def chunk_kda_with_fused_gate(q, k, v, raw_g, beta, A_log, g_bias, scale=None, initial_state=None,
                              output_final_state=False, use_qk_l2norm_in_kernel=False,
                              cu_seqlens=None, safe_gate=False, lower_bound=-5.0, **kwargs):
    """
    gdn.vllm.chunk_kda() with raw gates raw_g [B, T, HV, K] and with beta as it is. lower_bound
    counts with safe_gate alone. kwargs are ignored.
    """
    _drop_in.refuse_grad(q=q, k=k, v=v, raw_g=raw_g, beta=beta, A_log=A_log, g_bias=g_bias,
                         initial_state=initial_state)
    _drop_in.dimensions(raw_g=(raw_g, 4), beta=(beta, 3))
    options = _drop_in.raw_gates(raw_g, A_log, g_bias, lower_bound if safe_gate else None)
    return _vllm_kda.chunk(q, k, v, raw_g, beta, scale, initial_state, output_final_state,
                           use_qk_l2norm_in_kernel, cu_seqlens, gate=gdn.GATE_RAW, **options)


@_drop_in.explained(**_TOKENS, g=4, beta=3, a_log=1, g_bias=1, initial_state=4, cu_seqlens=1,
                    ssm_state_indices=1, out=4)
@renamed(A_log="a_log", dt_bias="g_bias", gate_lower_bound="lower_bound", state="initial_state",
         read_slots="ssm_state_indices")
def fused_recurrent_kda(q, k, v, g, beta=None, scale=None, initial_state=None,
                        inplace_final_state=True, use_qk_l2norm_in_kernel=True, cu_seqlens=None,
                        ssm_state_indices=None, num_accepted_tokens=None, out=None,
                        sigmoid_beta=False, a_log=None, g_bias=None, compute_gate=False,
                        lower_bound=-5.0, **kwargs):
    """
    gdn.vllm.fused_recurrent_kda_fwd(). With compute_gate, g is raw beside a_log and g_bias, and
    with sigmoid_beta beta is. out [B, T, HV, V] takes the outputs. kwargs are ignored.
    """
    _drop_in.refuse_grad(q=q, k=k, v=v, g=g, beta=beta, a_log=a_log, g_bias=g_bias,
                         initial_state=initial_state)
    _drop_in.dimensions(g=(g, 4), beta=(beta, 3))
    options = dict(beta_kind=gdn.BETA_SIGMOID if sigmoid_beta else gdn.BETA_GIVEN)
    if compute_gate:
        options.update(_drop_in.raw_gates(g, a_log, g_bias, lower_bound), gate=gdn.GATE_RAW)
    return _vllm_rule.decode(q, k, v, g, beta, scale, initial_state, inplace_final_state,
                             cu_seqlens, ssm_state_indices, num_accepted_tokens,
                             use_qk_l2norm_in_kernel, out=out, **options)
