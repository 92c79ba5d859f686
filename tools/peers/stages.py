# SPDX-License-Identifier: Apache-2.0
"""FLA's stages of the chunked form in float64, where its kernels do not run."""

import torch

CHUNK = 64


def _chunks(T, cu_seqlens):
    """Pairs of first and last row, sequence by sequence."""
    ends = [0, T] if cu_seqlens is None else cu_seqlens.tolist()
    return [[(t, min(t + CHUNK, end)) for t in range(first, end, CHUNK)]
            for first, end in zip(ends, ends[1:])]


def _heads(x, count):
    """Keys [B, T, H, K] as [B, H, T, K] in float64, for count value heads."""
    return x.double().transpose(1, 2).repeat_interleave(count // x.shape[2], 1)


def _decay(g):
    """exp(g_i - g_j) for j <= i, else 0."""
    return (g[..., :, None] - g[..., None, :]).tril().exp().tril()


def chunk_local_cumsum(g, chunk_size=CHUNK, cu_seqlens=None, **_):
    out = torch.empty_like(g)
    for first, end in sum(_chunks(g.shape[1], cu_seqlens), []):
        out[:, first:end] = g[:, first:end].cumsum(1)
    return out


def chunk_scaled_dot_kkt_fwd(k, g, beta, cu_seqlens=None, output_dtype=torch.float32, **_):
    keys, g, beta = _heads(k, g.shape[2]), g.double().mT, beta.double().mT
    out = keys.new_zeros(*keys.shape[:3], CHUNK)
    for a, b in sum(_chunks(k.shape[1], cu_seqlens), []):
        rows = keys[:, :, a:b]
        product = (rows @ rows.mT * _decay(g[..., a:b])).tril(-1)
        out[:, :, a:b, :b - a] = beta[..., a:b, None] * product
    return out.transpose(1, 2).to(output_dtype)


def solve_tril(A, cu_seqlens=None, output_dtype=None, **_):
    lower, out = A.double().transpose(1, 2), torch.zeros_like(A.double().transpose(1, 2))
    for a, b in sum(_chunks(A.shape[1], cu_seqlens), []):
        block = lower[:, :, a:b, :b - a]
        eye = torch.eye(b - a, dtype=block.dtype).expand_as(block)
        out[:, :, a:b, :b - a] = torch.linalg.inv(eye + block)
    return out.transpose(1, 2).to(output_dtype or A.dtype)


def recompute_w_u_fwd(k, v, beta, A, g, cu_seqlens=None, **_):
    keys, values = _heads(k, v.shape[2]), v.double().transpose(1, 2)
    inverse, beta, g = A.double().transpose(1, 2), beta.double().mT, g.double().mT
    w, u = torch.empty_like(keys), torch.empty_like(values)
    for a, b in sum(_chunks(k.shape[1], cu_seqlens), []):
        rows, scale = inverse[:, :, a:b, :b - a], beta[..., a:b, None]
        u[:, :, a:b] = rows @ (scale * values[:, :, a:b])
        w[:, :, a:b] = rows @ (scale * g[..., a:b, None].exp() * keys[:, :, a:b])
    return w.transpose(1, 2).to(k.dtype), u.transpose(1, 2).to(v.dtype)


def chunk_gated_delta_rule_fwd_h(k, w, u, g, initial_state=None, output_final_state=False,
                                 cu_seqlens=None, **_):
    keys, g = _heads(k, u.shape[2]), g.double().mT
    w, u = (x.double().transpose(1, 2) for x in (w, u))
    states, new, finals = [], torch.empty_like(u), []
    for n, chunks in enumerate(_chunks(k.shape[1], cu_seqlens)):
        state = keys.new_zeros(*keys.shape[:2], k.shape[-1], u.shape[-1])
        if initial_state is not None:
            state = initial_state[slice(None) if cu_seqlens is None else slice(n, n + 1)].double()
        for a, b in chunks:
            states.append(state)
            new[:, :, a:b] = u[:, :, a:b] - w[:, :, a:b] @ state
            left = (g[..., b - 1:b] - g[..., a:b]).exp()[..., None]
            state = (g[..., b - 1].exp()[..., None, None] * state
                     + keys[:, :, a:b].mT @ (left * new[:, :, a:b]))
        finals.append(state)
    final = torch.cat(finals).float() if output_final_state else None
    return torch.stack(states, 1).to(k.dtype), new.transpose(1, 2).to(k.dtype), final


def chunk_fwd_o(q, k, v, h, g, scale=None, cu_seqlens=None, **_):
    queries, keys = (_heads(x, v.shape[2]) for x in (q, k))
    values, g = v.double().transpose(1, 2), g.double().mT
    out = torch.empty_like(values)
    for c, (a, b) in enumerate(sum(_chunks(k.shape[1], cu_seqlens), [])):
        rows = queries[:, :, a:b]
        inside = (rows @ keys[:, :, a:b].mT * _decay(g[..., a:b])) @ values[:, :, a:b]
        out[:, :, a:b] = g[..., a:b, None].exp() * (rows @ h[:, c].double()) + inside
    return (out * (q.shape[-1] ** -0.5 if scale is None else scale)).transpose(1, 2).to(v.dtype)


def install():
    """In FLA's modules, from which tests take these functions by name."""
    import fla.ops.common.chunk_delta_h as delta_h
    import fla.ops.common.chunk_o as chunk_o
    import fla.ops.common.chunk_scaled_dot_kkt as kkt
    import fla.ops.gated_delta_rule.wy_fast as wy_fast
    import fla.ops.utils as utils

    kkt.chunk_scaled_dot_kkt_fwd = chunk_scaled_dot_kkt_fwd
    wy_fast.recompute_w_u_fwd = recompute_w_u_fwd
    delta_h.chunk_gated_delta_rule_fwd_h = chunk_gated_delta_rule_fwd_h
    chunk_o.chunk_fwd_o = chunk_fwd_o
    utils.chunk_local_cumsum, utils.solve_tril = chunk_local_cumsum, solve_tril
