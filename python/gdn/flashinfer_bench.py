# SPDX-License-Identifier: Apache-2.0
"""
Solutions of FlashInfer-Bench for its GDN definitions prefill and decode.

    json.dump(gdn.flashinfer_bench.solution("prefill", "gdn_prefill_qk4_v8_d128"), file)

A solution's source imports prefill() or decode() of this module, which take a definition's inputs
and then its outputs by position, and write the outputs. The definitions are those of the page
"op-types/gdn": prefill takes alpha, decode raw gates. States are [V, K].
"""

import gdn
import gdn.torch

from . import _drop_in


def prefill(q, k, v, g, beta, cu_seqlens, initial_state, scale, output, final_state):
    """
    q [N, HQ, K], k [N, HK, K], v [N, HV, K]; g (alpha), beta [N, H] float32 or None: 1;
    cu_seqlens [S + 1]; initial_state [S, H, K, K] or None: 0; scale None: 1 / sqrt(K). Writes
    output [N, H, K] and final_state [S, H, K, K]; an empty sequence keeps its initial state.

    Copied: initial_state into final_state.
    """
    final_state.zero_() if initial_state is None else final_state.copy_(initial_state)
    _drop_in.into(output, q.dtype, lambda out: gdn.torch.prefill(
        q, k, v, g, beta, state=final_state, out=out, scale=scale or 0.0, cu_seqlens=cu_seqlens,
        gate=gdn.GATE_LINEAR))


def decode(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm, output, new_state):
    """
    q [B, 1, HQ, K], k [B, 1, HK, K], v [B, 1, HV, K]; a, b [B, 1, H]; A_log, dt_bias [H]; state
    [B, H, K, K] or None: 0, read only; scale None: 1 / sqrt(K). Writes output [B, 1, H, K] and
    new_state [B, H, K, K].
    """
    gdn.torch.decode(
        q, k, v, _drop_in.gate(a), _drop_in.gate(b), A_log=A_log, dt_bias=dt_bias, state=state,
        state_out=new_state, out=output, scale=scale or 0.0,
        norm=_drop_in.norm(use_qk_l2norm), **_drop_in.RAW_GATES)


def solution(kind, definition, hardware=("cpu", "cuda")):
    """
    The solution as FlashInfer-Bench reads it from JSON. kind: "prefill" or "decode"; definition:
    the name of the definition that it solves.
    """
    if kind not in ("prefill", "decode"):
        raise ValueError(f"kind: {kind!r}, wanted 'prefill' or 'decode'")
    source = f"from gdn.flashinfer_bench import {kind} as run  # noqa: F401\n"
    return dict(
        name=f"gdn_{kind}_libgdn", definition=definition, author="libgdn",
        description="One call of libgdn over the caller's tensors.",
        spec=dict(language="python", target_hardware=list(hardware), entry_point="main.py::run",
                  dependencies=["gdn", "torch"], destination_passing_style=True),
        sources=[dict(path="main.py", content=source)])
