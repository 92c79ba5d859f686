# SPDX-License-Identifier: Apache-2.0
"""
The stages of the chunked form (gdn_research.h) as functions that make what they return. Letters in
shapes and **options are as in _functions.py; C is chunk_size: 16, 32 or 64. Without cu_seqlens [N]
is one sequence. Gates are logarithms, not summed.
"""

import torch

from ._autograd import rows
from ._functions import _refuse_grad
from ._named import named
from ._operators import overload


def _chunks(lead, chunk_size, cu_seqlens):
    """How many chunks tokens of these leading dimensions have, at most."""
    if cu_seqlens is not None:
        return lead[0] // chunk_size + cu_seqlens.numel() - 1
    rows = lead[0] if len(lead) > 1 else 1
    return rows * -(-lead[-1] // chunk_size)


@named("chunk_cumsum", g=2)
def chunk_cumsum(g, *, out=None, chunk_size=64, **options):
    """
    Inclusive sums of g [N][H] (float32, bfloat16 or float16) inside chunks. Returns out [N][H],
    float32 unless given.
    """
    _refuse_grad("chunk_cumsum", g=g)
    if out is None:
        out = rows(g, g.shape, options, torch.float32)
    overload("chunk_cumsum", options)(g, out, chunk_size=chunk_size, **options)
    return out


@named("chunk_uw", k=3, v=3)
def chunk_uw(k, v, g=None, beta=None, *, u=None, w=None, T=None, chunk_size=64, **options):
    """
    u = T diag(beta) V, w = T diag(beta gamma) K and T of every chunk.

    k [N][Hk][K], v [N][Hv][V]; g, beta [N][H]. Returns u [N][Hv][V] and w [N][Hv][K] in the dtype
    of k unless given, and T [N][Hv][C] in float32 unless given.
    """
    _refuse_grad("chunk_uw", k=k, v=v, g=g, beta=beta)
    if u is None:
        u = rows(k, v.shape, options)
    if w is None:
        w = rows(k, (*v.shape[:-1], k.shape[-1]), options)
    if T is None:
        T = rows(k, (*v.shape[:-1], chunk_size), options, torch.float32)
    overload("chunk_uw", options)(k=k, v=v, g=g, beta=beta, u=u, w=w, T=T, chunk_size=chunk_size,
                                  **options)
    return u, w, T


@named("chunk_states", k=3, u=3, cu_seqlens=1)
def chunk_states(k, u, w, g=None, *, state=None, states=None, chunk_size=64, **options):
    """
    The state at the start of every chunk.

    k [N][Hk][K], u [N][H][V], w [N][H][K] as chunk_uw() gives them, g [N][H]; state [B][H][V][K]
    is where sequences start. state_out [B][H][V][K] takes the final states. Returns states
    [NC][H][V][K], float32 unless given; with cu_seqlens it may have more chunks than there are.
    """
    _refuse_grad("chunk_states", k=k, u=u, w=w, g=g, state=state)
    if states is None:
        count = _chunks(u.shape[:-2], chunk_size, options.get("cu_seqlens"))
        states = torch.empty(count, u.shape[-2], u.shape[-1], k.shape[-1], dtype=torch.float32,
                             device=k.device)
    overload("chunk_states", options)(k=k, u=u, w=w, g=g, state=state, states=states,
                                      chunk_size=chunk_size, **options)
    return states


@named("chunk_output", q=3)
def chunk_output(q, k, u, w, states, g=None, *, out=None, chunk_size=64, **options):
    """
    The outputs of all tokens from the states at the starts of their chunks.

    q [N][Hq][K]; k, u, w, g as for chunk_states(), states as it gives them. scale 0 is 1 / sqrt(K).
    Returns out [N][H][V] in the dtype of q unless given.
    """
    _refuse_grad("chunk_output", q=q, k=k, u=u, w=w, states=states, g=g)
    if out is None:
        out = rows(q, u.shape, options)
    overload("chunk_output", options)(q=q, k=k, u=u, w=w, g=g, states=states, out=out,
                                      chunk_size=chunk_size, **options)
    return out
