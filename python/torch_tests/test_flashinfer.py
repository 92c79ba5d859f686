# SPDX-License-Identifier: Apache-2.0
"""gdn.flashinfer against the rule in float64."""

import pytest
import torch
from samples import B, HK, HV, K, P, T, V, raw_rule, reference, rule, slots

import gdn.flashinfer as fi


def close(got, wanted, limit=2e-5):
    torch.testing.assert_close(got.double(), wanted.double(), atol=limit, rtol=limit)


def packed():
    """Arguments of chunk_gated_delta_rule() with one empty sequence behind the others, and g."""
    a = rule("cpu")
    a = {n: x.flatten(0, 1) for n, x in a.items() if n != "out"}
    g = a.pop("g")
    cu = torch.tensor([0, T, 2 * T, 3 * T, 3 * T])
    return dict(a, g=g.exp(), cu_seqlens=cu), g


def expected(a, g, state):
    rows = {n: a[n].unflatten(0, (B, T)) for n in ("q", "k", "v", "beta")}
    return reference(**rows, g=g.unflatten(0, (B, T)), state=state)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("step", [1, 3])
def test_prefill(dtype, step):
    a, g = packed()
    state = torch.randn(B + 1, HV, V, K * step).to(dtype)[..., ::step]
    out, final = expected(a, g, state[:B].float())
    empty = torch.full((B + 1, HV, V, K), 7.0).to(dtype)
    before = state.float()
    o, h = fi.chunk_gated_delta_rule(**a, initial_state=state, output_final_state=True,
                                     output_state=empty, max_seqlen=T)
    close(o, out.flatten(0, 1))
    assert h is empty and torch.equal(state.float(), before)
    close(h[:B].float(), final, 2e-5 if dtype == torch.float32 else 0.13)
    assert (h[B].float() == 7).all()
    o = fi.chunk_gated_delta_rule(**a, initial_state=state)
    close(o, out.flatten(0, 1))
    assert torch.equal(state.float(), before)


def test_prefill_of_a_pool():
    a, g = packed()
    pool, chosen = torch.randn(P, HV, V, K).transpose(-1, -2).contiguous().transpose(-1, -2), slots(
        "cpu", B + 1).long()
    before = pool.clone()
    out, final = expected(a, g, before[chosen[:B]])
    output = torch.empty(B * T, HV, V, dtype=torch.bfloat16)
    o, h = fi.chunk_gated_delta_rule(**a, initial_state=pool, output_state=pool, output=output,
                                     output_final_state=True, state_indices=chosen)
    assert o is output and h is pool
    close(o, out.flatten(0, 1), 1e-2)
    before[chosen[:B]] = final.float()
    close(pool, before)


def test_checkpoints():
    lengths, every = (130, 64), 64
    a = rule("cpu", lead=(sum(lengths),))
    del a["out"]
    cu = torch.tensor([0, 130, 194])
    kept = torch.zeros(3, HV, V, K)
    fi.chunk_gated_delta_rule(**{**a, "g": a["g"].exp()}, cu_seqlens=cu, state_checkpoints=kept,
                              checkpoint_cu_starts=torch.tensor([0, 2, 3]),
                              checkpoint_every_n_tokens=every)
    for row, (first, n) in enumerate([(0, 64), (0, 128), (130, 64)]):
        part = {name: x[None, first:first + n] for name, x in a.items()}
        close(kept[row], reference(**part, state=torch.zeros(1, HV, V, K))[1][0])


def decoded(a, state, steps):
    """out and the state after every token, from samples.raw_rule()."""
    outs, states = [], [state.double()]
    for t in range(steps):
        token = {n: x[:, t:t + 1] for n, x in a.items()}
        out, last = reference(**token, state=states[-1])
        outs.append(out)
        states.append(last)
    return torch.cat(outs, 1), torch.stack(states[1:], 1)


def test_decode():
    a, exact = raw_rule((B, 1))
    out, states = decoded(exact, state := torch.randn(B, HV, V, K), 1)
    mine = state.clone()
    o, h = fi.gated_delta_rule_decode_pretranspose(state=mine, **a)
    assert h is mine
    close(o, out)
    close(mine, states[:, 0])
    mine = state.transpose(-1, -2).contiguous()
    o, h = fi.gated_delta_rule_decode(state=mine, **a)
    close(o, out)
    close(mine.transpose(-1, -2), states[:, 0])


def test_float16_is_decoded_as_bfloat16():
    """FlashInfer computes float16 as bfloat16: values that both dtypes have give the same
    result."""
    a, _ = raw_rule((B, 1))
    a = {n: x if n in ("A_log", "dt_bias") else x.bfloat16() for n, x in a.items()}
    half = {n: x.half() if x.dtype == torch.bfloat16 else x for n, x in a.items()}
    assert all(torch.equal(half[n].bfloat16(), a[n]) for n in "qkvab")
    state = torch.randn(B, HV, V, K)
    o, _ = fi.gated_delta_rule_decode_pretranspose(state=state.clone(), **a)
    h, _ = fi.gated_delta_rule_decode_pretranspose(state=state, **half)
    assert h.dtype == torch.float16 and torch.equal(h, o.half())


def test_decode_of_a_pool():
    a, exact = raw_rule((B, 1))
    pool = torch.randn(P, HV, V, K)
    before, read, write = pool.clone(), torch.tensor([2, -1, 0]), torch.tensor([4, -1, 1])
    out, states = decoded(exact, pool[read], 1)
    o, h = fi.gated_delta_rule_decode_pretranspose(
        state=None, initial_state=pool, initial_state_indices=read, output_state_indices=write, **a)
    assert h is pool and not o[1].any()
    close(o[[0, 2]], out[[0, 2]])
    before[[4, 1]] = states[[0, 2], 0].float()
    close(pool, before)


def test_padding_of_a_bfloat16_pool_goes_to_slot_0():
    a, exact = raw_rule((B, 1), size=128)
    pool = torch.randn(P, HV, 128, 128).bfloat16()
    before, read = pool.clone(), torch.tensor([2, -1, 3])
    out, states = decoded(exact, pool[read.clamp(min=0)], 1)
    o, _ = fi.gated_delta_rule_decode_pretranspose(state=None, initial_state=pool,
                                                   initial_state_indices=read, **a)
    close(o[[0, 2]], out[[0, 2]], 1e-4)
    before[[2, 0, 3]] = states[:, 0].bfloat16()
    close(pool, before, 1e-2)


def mtp(pool, a, read, **more):
    return fi.gated_delta_rule_mtp(initial_state=pool, initial_state_indices=read, **a, **more)


def test_mtp():
    a, exact = raw_rule((B, T))
    pool, read = torch.randn(P, HV, V, K), torch.tensor([2, -1, 0])
    before = pool.clone()
    out, states = decoded(exact, pool[read], T)
    buffer, output = torch.zeros(B, T + 1, HV, V, K), torch.full((B, T, HV, V), 7.0)
    with pytest.warns(DeprecationWarning, match="0.8.0"):
        o, _ = mtp(pool, a, read, intermediate_states_buffer=buffer, output=output)
    assert o is output and (o[1] == 7).all() and torch.equal(pool, before)
    close(o[[0, 2]], out[[0, 2]])
    close(buffer[[0, 2], :T], states[[0, 2]])
    assert not buffer[1].any() and not buffer[:, T].any()
    o, _ = mtp(pool, a, read, disable_state_update=False,
               output_state_indices=torch.tensor([5, -1, -1]))
    assert not o[1].any()
    before[5] = states[0, -1].float()
    close(pool, before)


def test_mtp_to_a_slot_for_every_token():
    a, exact = raw_rule((1, 2))
    pool, each = torch.randn(P, HV, V, K), torch.tensor([[3, 1]], dtype=torch.int32)
    before = pool.clone()
    _, states = decoded(exact, pool[2:3], 2)
    mtp(pool, a, torch.tensor([2]), ssm_state_indices=each, disable_state_update=False)
    before[[3, 1]] = states[0].float()
    close(pool, before)


@pytest.mark.parametrize("l2norm", [True, False])
def test_replay_of_raw_inputs(l2norm):
    """Two layers: the states become those after the accepted drafts, and no others change."""
    pools, read = torch.randn(2, P, HV, V, K), torch.tensor([2, -1, 0], dtype=torch.int32)
    windows = [torch.full((2, P, *shape), 7.0) for shape in
               ((HV, T, V), (HK, T, K), (HV, T), (HV, T))]
    accepted, before, wanted = torch.tensor([2, 1, 0], dtype=torch.int32), pools.clone(), []
    for layer in range(2):
        a, exact = raw_rule((B, T))
        if not l2norm:
            exact.update(q=a["q"], k=a["k"])
        out, states = decoded(exact, pools[layer][read], T)
        o, _ = mtp(pools[layer], a, read, disable_state_update=True, cache_replayssm=True,
                   use_qk_l2norm=l2norm,
                   **{f"replayssm_{n}": w[layer] for n, w in zip(("rawv", "rawk", "g", "beta"),
                                                                 windows)})
        close(o[[0, 2]], out[[0, 2]], 1e-4)
        wanted.append(states[0, 1])
    assert torch.equal(pools, before) and all((w[:, [1, 3]] == 7).all() for w in windows)
    fi.gated_delta_rule_replayssm_commit(pools, *windows, read, accepted, use_qk_l2norm=l2norm)
    before[:, 2] = torch.stack(wanted).float()
    close(pools, before, 1e-4)
    with pytest.raises(NotImplementedError, match="track"):
        fi.gated_delta_rule_replayssm_commit(pools, *windows, read, accepted, track_steps=read)


def test_refusals():
    a, _ = packed()
    for more, text in [(dict(backend="none"), "unsupported"), (dict(use_cp="no"), "use_cp"),
                       (dict(checkpoint_every_n_tokens=65), "chunk size"),
                       (dict(state_checkpoints=a["q"]), "must be None"),
                       (dict(max_seqlen=1), "max_seqlen cannot"),
                       (dict(state_indices=torch.zeros(1, dtype=torch.int32)), "shape"),
                       (dict(state_indices=torch.arange(4), output_final_state=True), "pool")]:
        with pytest.raises(ValueError, match=text):
            fi.chunk_gated_delta_rule(**a, **more)
    with pytest.raises(NotImplementedError, match="cake_gdn"):
        fi.chunk_gated_delta_rule(**a, backend="cake_gdn")
    with torch.enable_grad(), pytest.raises(NotImplementedError, match="v requires a gradient"):
        fi.chunk_gated_delta_rule(**{**a, "v": a["v"].clone().requires_grad_()})
    a, _ = raw_rule((B, 1))
    state = torch.zeros(B, HV, V, K)
    for more, wrong in [(dict(backend="x"), ValueError),
                        (dict(disable_state_update=True), ValueError),
                        (dict(initial_state=state), AssertionError)]:
        with pytest.raises(wrong):
            fi.gated_delta_rule_decode_pretranspose(state=state, **a, **more)


def test_installed(monkeypatch):
    """Into a stand-in for FlashInfer: an importer's own name too; what libgdn refuses goes back."""
    import sys
    import types

    def original(q, k, v, state, A_log, a, dt_bias, b, scale=None, output=None, use_qk_l2norm=True,
                 backend="auto"):
        return "theirs"

    original.__name__ = "gated_delta_rule_decode"
    engine = types.ModuleType("engine")
    engine.gated_delta_rule_decode = original
    monkeypatch.setitem(sys.modules, "engine", engine)
    monkeypatch.setattr(fi, "_pairs", lambda: [(fi.gated_delta_rule_decode, original)])
    fi.install()
    installed = engine.gated_delta_rule_decode
    fi.install()
    assert installed is engine.gated_delta_rule_decode is not original
    a, exact = raw_rule((B, 1))
    state = torch.zeros(B, HV, K, V)
    close(installed(state=state, **a)[0], decoded(exact, torch.zeros(B, HV, V, K), 1)[0])
    assert installed(state=state, **a, backend="cake_gdn") == "theirs"
    fi._drop_in.compare(lambda: [(fi.gated_delta_rule_decode, original)])
    with pytest.raises(ImportError, match="gdn takes"):
        fi._drop_in.compare(lambda: [(fi.gated_delta_rule_mtp, original)])


def test_grown_parameters():
    """A parameter that a later FlashInfer adds is refused where it is passed, not at import."""
    def original(q, k, v, state, A_log, a, dt_bias, b, scale=None, output=None, use_qk_l2norm=True,
                 tree=None, backend="auto"):
        return "theirs"

    fi._drop_in.compare(lambda: [(fi.gated_delta_rule_decode, original)])
    call = fi._drop_in.or_theirs(fi.gated_delta_rule_decode, original)
    a, exact = raw_rule((B, 1))
    state, wanted = torch.zeros(B, HV, K, V), decoded(exact, torch.zeros(B, HV, V, K), 1)[0]
    close(call(state=state.clone(), **a)[0], wanted)
    close(call(state=state.clone(), **a, tree=None)[0], wanted)
    assert call(state=state, **a, tree=[1]) == "theirs" and not state.any()
    with pytest.raises(ImportError, match="gdn takes"):
        fi._drop_in.compare(lambda: [(fi.gated_delta_rule_decode, lambda q, k: None)])
    with pytest.raises(ImportError, match="gdn takes"):
        fi._drop_in.compare(lambda: [(lambda q: None, lambda q, needed: None)])
