# SPDX-License-Identifier: Apache-2.0
"""The stages in a row, and a summary applied, against one prefill."""
import numpy as np
import pytest

import gdn

B, H, K, V, C = 2, 2, 24, 40, 32
LENGTHS = [70, 33]


@pytest.fixture
def inputs():
    draw = np.random.default_rng(7)
    N = sum(LENGTHS)
    k = draw.standard_normal((N, H, K)).astype(np.float32)
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    return dict(
        q=draw.standard_normal((N, H, K)).astype(np.float32),
        k=k,
        v=draw.standard_normal((N, H, V)).astype(np.float32),
        g=-draw.exponential(0.1, (N, H)).astype(np.float32),
        beta=draw.uniform(0, 1, (N, H)).astype(np.float32),
        batch=gdn.Batch(cu_seqlens=np.cumsum([0, *LENGTHS], dtype=np.int32)),
    )


def prefill(ctx, inputs, start):
    state = start.copy()
    out = np.zeros_like(inputs["v"])
    ctx.prefill(**inputs, state=state, out=out)
    return out, state


def part(inputs, *names):
    return {name: inputs[name] for name in (*names, "batch")}


def test_stages_in_a_row(inputs):
    start = np.random.default_rng(8).standard_normal((B, H, V, K)).astype(np.float32)
    u, out = np.zeros_like(inputs["v"]), np.zeros_like(inputs["v"])
    w, state = np.zeros_like(inputs["k"]), start.copy()
    states = np.zeros((sum(-(-n // C) for n in LENGTHS), H, V, K), np.float32)
    with gdn.Context() as ctx:
        want, final = prefill(ctx, inputs, start)
        ctx.chunk_uw(**part(inputs, "k", "v", "g", "beta"), u=u, w=w, chunk_size=C)
        ctx.chunk_states(**part(inputs, "k", "g"), u=u, w=w, state=state, states=states,
                         state_out=state, chunk_size=C)
        ctx.chunk_output(**part(inputs, "q", "k", "g"), u=u, w=w, states=states, out=out,
                         chunk_size=C)
    assert np.array_equal(states[0], start[0])
    assert np.abs(out - want).max() < 2e-5 * np.sqrt(np.mean(want**2))
    assert np.abs(state - final).max() < 2e-5 * np.sqrt(np.mean(final**2))


def test_summary_applied(inputs):
    start = np.random.default_rng(9).standard_normal((B, H, V, K)).astype(np.float32)
    M, U = np.zeros((B, H, K, K), np.float32), np.zeros((B, H, V, K), np.float32)
    out = np.zeros_like(start)
    with gdn.Context() as ctx:
        _, final = prefill(ctx, inputs, start)
        _, from_zero = prefill(ctx, inputs, np.zeros_like(start))
        ctx.summary(**part(inputs, "k", "v", "g", "beta"), M=M, U=U)
        ctx.summary_apply(M=M, U=U, state=start, state_out=out)
    assert np.array_equal(U, from_zero)
    assert np.abs(out - final).max() < 2e-5 * np.sqrt(np.mean(final**2))


def test_cumsum(inputs):
    out = np.zeros_like(inputs["g"])
    with gdn.Context() as ctx:
        ctx.chunk_cumsum(**part(inputs, "g"), out=out, chunk_size=C)
    first = 0
    for length in LENGTHS:
        for at in range(first, first + length, C):
            piece = slice(at, min(at + C, first + length))
            want = np.cumsum(inputs["g"][piece].astype(np.float64), axis=0)
            assert np.allclose(out[piece], want, rtol=2e-7, atol=0)
        first += length
