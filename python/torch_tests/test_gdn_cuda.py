# SPDX-License-Identifier: Apache-2.0
"""gdn.gdn_cuda against the rule in float64: whole calls, modes, and the stages one by one."""

import sys

import pytest
import torch
from samples import B, HV, K, V, reference, rule

import gdn.gdn_cuda as gdn_cuda

T, LENGTHS = 70, (70, 0, 13, 64)
CU = torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0)], dtype=torch.int32)


def close(got, wanted, limit=2e-5):
    torch.testing.assert_close(got.double(), wanted.double(), atol=limit, rtol=limit)


def arguments(is_packed, dtype=torch.float32):
    a = rule("cpu", dtype, (sum(LENGTHS),) if is_packed else (B, T))
    return [a[name] for name in ("q", "k", "v", "beta", "g")]


def expected(q, k, v, beta, g, state, is_packed):
    """out, final states."""
    if not is_packed:
        return reference(q, k, v, g, beta, state)
    outs, finals = [], []
    for s, n in enumerate(LENGTHS):
        row = [x[None, CU[s]:CU[s + 1]] for x in (q, k, v, g, beta)]
        out, final = v[None, :0].double(), state[s:s + 1]
        if n:
            out, final = reference(*row, final)
        outs.append(out[0])
        finals.append(final[0].double())
    return torch.cat(outs), torch.stack(finals)


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("call", [gdn_cuda.chunked_forward, gdn_cuda.recurrent_forward])
def test_forward(call, is_packed):
    q, k, v, beta, g = arguments(is_packed)
    state = torch.randn(len(LENGTHS) if is_packed else B, HV, V, K)
    more, before = dict(cu_seqlens=CU) if is_packed else {}, state.clone()
    out, final = expected(q, k, v, beta, g, state, is_packed)
    o, h = call(q, k, v, beta=beta, gate=g, initial_state=state, **more)
    close(o, out)
    close(h, final)
    assert torch.equal(state, before)
    out, final = expected(q, k, v, beta, g, torch.zeros_like(state), is_packed)
    o, h = call(q, k, v, beta=beta, gate=g, scale=0.5, **more)
    close(o, 0.5 * K ** 0.5 * out)
    close(h, final)


@pytest.mark.parametrize("is_packed", [False, True])
def test_spec_verify(is_packed):
    q, k, v, beta, g = arguments(is_packed)
    count = torch.tensor([3, 0, 2, 1] if is_packed else [3, 5, 1])
    state = torch.randn(len(count), HV, V, K)
    starts = CU[:-1].tolist() if is_packed else [T * s for s in range(B)]
    rows = [x if is_packed else x.flatten(0, 1) for x in (q, k, v, g, beta)]
    o, h = gdn_cuda.recurrent_forward(
        q, k, v, state, beta, g, CU if is_packed else None, count, gdn_cuda.SpecVerify, True)
    assert h.shape == (*v.shape[:-1], V, K)
    o, h = (x if is_packed else x.flatten(0, 1) for x in (o, h))
    others = torch.ones(len(h), dtype=torch.bool)
    for s, (first, n) in enumerate(zip(starts, count.tolist())):
        for t in range(n):
            part = [x[None, first:first + t + 1] for x in rows]
            out, final = reference(*part, state[s:s + 1])
            close(o[first + t], out[0, -1])
            close(h[first + t], final[0])
        others[first:first + n] = False
    assert not h[others].any() and not o[others].any()


def test_gating():
    a, b, A_log, dt_bias = torch.randn(B, T, 8), torch.randn(B, T, 8), *torch.randn(2, 8)
    beta, gate = gdn_cuda.fused_gdn_gating(A_log, dt_bias, a.bfloat16(), b.bfloat16())
    assert beta.dtype == torch.bfloat16 and gate.dtype == torch.float32
    close(beta, b.bfloat16().double().sigmoid(), 4e-3)
    wanted = -A_log.double().exp() * torch.nn.functional.softplus(
        a.bfloat16().double() + dt_bias.double())
    close(gate, wanted)
    again = gdn_cuda.fused_gdn_gating(A_log.expand_as(a), dt_bias, a.bfloat16(), b.bfloat16())
    assert torch.equal(again[1], gate)
    with pytest.raises(RuntimeError, match=r"\bdt_bias: "):
        gdn_cuda.fused_gdn_gating(A_log, dt_bias[:, None], a, b)


def sums(g, is_packed):
    """Inclusive sums inside chunks of 64, in float64 rounded once."""
    parts = g.split(LENGTHS) if is_packed else g.split(g.shape[1], 1)
    dim = -2
    return torch.cat([chunk.double().cumsum(dim) for part in parts
                      for chunk in part.split(64, dim)], dim).float()


@pytest.mark.parametrize("is_packed", [False, True])
def test_cumsum(is_packed):
    g = arguments(is_packed)[4].bfloat16()
    wanted = sums(g, is_packed)
    lead, cu = ((1, len(g)), CU) if is_packed else (g.shape[:2], None)
    for head_first in (True, False):
        x = g if head_first else g.transpose(-1, -2).contiguous()
        out = torch.empty_like(x, dtype=torch.float32)
        gdn_cuda.chunk_local_cumsum_bf16(x, out, *lead, HV, head_first, cu)
        close(out if head_first else out.transpose(-1, -2), wanted, 1e-6)


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("is_gated", [False, True])
def test_stages(is_packed, is_gated):
    """One after the other they are the rule; u becomes d = u - w S on the way."""
    q, k, v, beta, g = arguments(is_packed)
    if not is_gated:
        g = torch.zeros_like(g)
    start = torch.randn(len(LENGTHS) if is_packed else B, HV, V, K)
    out, final = expected(q, k, v, beta, g, start, is_packed)
    gate = gdn_cuda.transpose_to_mn_major(sums(g, is_packed), 128) if is_gated else None
    beta = gdn_cuda.transpose_to_mn_major(beta)
    cu = CU if is_packed else None
    u, w = torch.empty_like(v), v.new_empty(*v.shape[:-1], K)
    gdn_cuda.bf16_gdn_compute_u_w(k, v, u, w, beta, gate, "t", cu)
    chunks = [-(-n // 64) for n in LENGTHS]
    states = torch.zeros(*((sum(chunks),) if is_packed else (B, 2)), HV, V, K)
    last, before = start.clone(), u.clone()
    gdn_cuda.bf16_chunked_seq_state_update(k, u, w, start, states, last, gate, "t", cu)
    close(last, final)
    starts = states[[0, 2, 3]] if is_packed else states[:, 0]
    close(starts, start[[0, 2, 3]] if is_packed else start)
    was, now, rows = ((x if is_packed else x[0])[:64] for x in (before, u, w))
    close(now, was - torch.einsum("thk,hvk->thv", rows, start[0]), 1e-4)
    o = torch.empty_like(v)
    gdn_cuda.bf16_gdn_chunked_compute_O(q, states, k, u, o, gate, None, "t", cu)
    close(o, out, 1e-4)


def test_turned_gates_of_stages():
    """Gates [B, HV, T] have as many numbers, so the error names them, and not what is absent."""
    q, k, v, beta, g = arguments(False)
    u, w, turned = torch.empty_like(v), v.new_empty(*v.shape[:-1], K), g.transpose(1, 2)
    states, last = torch.zeros(B, 2, HV, V, K), torch.zeros(B, HV, V, K)
    for call in (lambda gate: gdn_cuda.bf16_gdn_compute_u_w(k, v, u, w, beta, gate),
                 lambda gate: gdn_cuda.bf16_chunked_seq_state_update(k, u, w, None, states, last,
                                                                     gate),
                 lambda gate: gdn_cuda.bf16_gdn_chunked_compute_O(q, states, k, u, v, gate)):
        call(g)
        for wrong in turned, g[:, :5], g[..., None].expand(*g.shape, K), g[0, :, 0]:
            with pytest.raises(ValueError, match=r"^gate: \[.*\], wanted \["):
                call(wrong)


def test_mn_major():
    x = torch.randn(B, 5, HV)
    y = gdn_cuda.transpose_to_mn_major(x)
    assert y.shape == (B, 8, HV) and y.stride() == (8 * HV, 1, 8)
    assert torch.equal(y[:, :5], x) and not y[:, 5:].any()
    with pytest.raises(RuntimeError, match="alignment"):
        gdn_cuda.transpose_to_mn_major(x, 6)


def test_refusals():
    q, k, v, beta, g = arguments(False)
    with torch.enable_grad(), pytest.raises(NotImplementedError, match="value requires"):
        gdn_cuda.chunked_forward(q, k, v.clone().requires_grad_(), beta, g)
    with pytest.raises(TypeError, match="beta and gate"):
        gdn_cuda.recurrent_forward(q, k, v)
    with pytest.raises(NotImplementedError, match="chunk_size"):
        gdn_cuda.bf16_gdn_chunked_compute_O(q, torch.zeros(1, 1, 1, 1), k, v, v, chunk_size=32)


def test_installed(monkeypatch):
    monkeypatch.delitem(sys.modules, "gdn_cuda", raising=False)
    gdn_cuda.install()
    import gdn_cuda as found

    monkeypatch.delitem(sys.modules, "gdn_cuda")
    found.init("/root", "/cuda")
    assert found.InferenceMode(2) is found.SpecVerify
