# SPDX-License-Identifier: Apache-2.0
"""Gradients of gdn.torch, gdn.fla and gdn.flashqla against autograd through the float64 rule."""

import gdn
import gdn.fla
import gdn.flashqla
import gdn.torch
import pytest
import samples
import torch
from samples import B, HK, HV, K, V
from tiny import (RAW, Layered, Tiny, by_gdn, by_torch, loss_of, replica, rule64, text,
                  unit)
from torch.nn.functional import normalize
from torch.utils.checkpoint import checkpoint

T = 21  # more than a chunk of the backward, and no multiple of one


@pytest.fixture(autouse=True)
def gradients(clean):
    with torch.enable_grad():
        yield


def raw(lead=(B, T), dtype=torch.float32, is_raw=True):
    """Leaves of a rule with everything inside, or with its gates and norms outside."""
    def n(*shape):
        return torch.randn(*shape)

    a = dict(q=n(*lead, HK, K).to(dtype), k=n(*lead, HK, K).to(dtype), v=n(*lead, HV, V).to(dtype),
             g=n(*lead, HV), beta=n(*lead, HV), state=n(B, HV, V, K))
    if is_raw:
        a.update(A_log=n(HV), dt_bias=n(HV))
    else:
        a.update(q=normalize(a["q"], dim=-1), k=normalize(a["k"], dim=-1), g=-a["g"].abs(),
                 beta=a["beta"].sigmoid())
    return {name: x.requires_grad_() for name, x in a.items()}


def grads(call, leaves, weights):
    """The gradients of a weighted sum of what call() returns."""
    loss = sum((out.double() * w).sum() for out, w in zip(call(), weights))
    return torch.autograd.grad(loss, list(leaves.values()))


def agree(got, want, names, limit=3e-6):
    for name, x, y in zip(names, got, want):
        error = (x.double() - y.double()).abs().max() / y.double().abs().max()
        assert error <= limit, f"{name}: {error}"


def weights(lead=(B, T)):
    return torch.randn(*lead, HV, V, dtype=torch.float64), torch.randn(B, HV, V, K).double()


@pytest.mark.parametrize("is_raw", [True, False])
@pytest.mark.parametrize("op", ["prefill", "decode"])
def test_the_rule(op, is_raw):
    a, w = raw(is_raw=is_raw), weights()
    got = grads(lambda: getattr(gdn.torch, op)(**a, return_state=True, **(RAW if is_raw else {})),
                a, w)
    agree(got, grads(lambda: rule64(a, is_raw), a, w), a)
    assert all(x.dtype == y.dtype for x, y in zip(got, a.values()))


def test_batches():
    """Packed and padded batches have the gradients of calls for each sequence."""
    lengths, a = (5, 0, 16), raw()
    w = weights()
    for b, n in enumerate(lengths):
        w[0][b, n:] = 0

    def alone():
        outs = [gdn.torch.prefill(**{n: x[b:b + 1] if n in ("state",) else
                                     x[b:b + 1, :length] if x.dim() > 1 else x
                                     for n, x in a.items()}, return_state=True, **RAW)
                for b, length in enumerate(lengths)]
        padded = [torch.nn.functional.pad(o, (0, 0, 0, 0, 0, T - o.shape[1])) for o, _ in outs]
        return torch.cat(padded), torch.cat([s for _, s in outs])

    def packed():
        rows = {n: torch.cat([x[b, :length] for b, length in enumerate(lengths)])
                if n != "state" and x.dim() > 1 else x for n, x in a.items()}
        out, state = gdn.torch.prefill(**rows, return_state=True, **RAW,
                                       cu_seqlens=torch.tensor([0, 5, 5, 21]))
        parts = out.split(lengths)
        return torch.stack([torch.nn.functional.pad(o, (0, 0, 0, 0, 0, T - len(o)))
                            for o in parts]), state

    def padded():
        return gdn.torch.prefill(**a, return_state=True, **RAW, token_count=torch.tensor(lengths))

    want = grads(alone, a, w)
    agree(grads(packed, a, w), want, a)
    agree(grads(padded, a, w), want, a)


@pytest.mark.parametrize("given, passed", [(None, 1536), (0, 0), (100, 100)])
def test_window_memory(monkeypatch, given, passed):
    """window_mib: the backward call gets it."""
    a, w, calls = raw((B, 30)), weights((B, 30)), []

    def spy(op, options):
        calls.append((op, options.get("window_mib")))
        return gdn.torch._operators.overload(op, options)

    monkeypatch.setattr(gdn.torch._gradients, "overload", spy)
    grads(lambda: gdn.torch.prefill(**a, window_mib=given, return_state=True, **RAW), a, w)
    assert calls == [("prefill", None), ("prefill_backward", passed)]


@pytest.mark.parametrize("layout", [gdn.STATE_VK, gdn.STATE_KV])
def test_saved_states(monkeypatch, layout):
    """save_every: the backward call gets the states of the forward call."""
    a, w = raw((B, 150)), weights((B, 150))
    if layout == gdn.STATE_KV:
        a["state"] = a["state"].detach().transpose(2, 3).contiguous().requires_grad_()
        w = w[0], w[1].transpose(2, 3)
    options, calls = dict(return_state=True, state_layout=layout, **RAW), []

    def spy(op, options):
        calls.append((op, options.get("checkpoints"), options.get("checkpoint_every")))
        return gdn.torch._operators.overload(op, options)

    want = grads(lambda: gdn.torch.prefill(**a, **options), a, w)
    monkeypatch.setattr(gdn.torch._gradients, "overload", spy)
    for every in 64, 192:
        calls.clear()
        got = grads(lambda: gdn.torch.prefill(**a, save_every=every, **options), a, w)
        agree(got, want, a)
        (forward, there, n), (backward, here, m) = calls
        assert (forward, backward, n, m) == ("prefill", "prefill_backward", every, every)
        assert there.data_ptr() == here.data_ptr() and len(here) == B * 150 // every
    cut = {n: x[:, :64] if n != "state" and x.dim() > 1 else x for n, x in a.items()}
    calls.clear()
    _, last = gdn.torch.prefill(**cut, save_every=64, **options)
    assert torch.equal(calls[0][1], last)
    with torch.no_grad():  # nothing is saved if no tensor requires a gradient
        gdn.torch.prefill(**a, save_every=64, **options)
    for n, flags, every in (8192, 0, None), (8193, 0, 2048), (8193, gdn.BATCH_INVARIANT, None):
        calls.clear()
        gdn.torch.prefill(**{**raw((B, n)), "state": a["state"]}, flags=flags, **options)
        assert calls[0][2] == every


def test_no_states_that_nothing_reads(monkeypatch):
    """Gradients of a decay per channel, of a write gate and of several updates read none."""
    n, calls = 8193, []
    q, k, v = torch.randn(1, n, 1, 8).requires_grad_(), torch.randn(1, n, 1, 8), \
        torch.randn(1, n, 1, 8)
    g, beta = -torch.rand(1, n, 1), torch.rand(1, n, 1)

    def spy(op, options):
        calls.append(options.get("checkpoint_every"))
        return gdn.torch._operators.overload(op, options)

    monkeypatch.setattr(gdn.torch._gradients, "overload", spy)
    with torch.enable_grad():
        for of_g, of_beta, more, every in (
                (g, beta, {}, 2048), (g[..., None], beta[..., None], {}, 2048),
                (g[..., None].expand(-1, -1, -1, 8), beta, {}, None),
                (g, beta[..., None].expand(-1, -1, -1, 8), {}, None),
                (g, beta, dict(write_gate=torch.rand(1, n, 1, 8)), None)):
            calls.clear()
            out = gdn.torch.prefill(q, k, v, of_g.contiguous(), of_beta.contiguous(), **more,
                                    norm=gdn.NORM_L2)
            out.sum().backward()
            assert calls == [every, every]
        calls.clear()
        two = [x.repeat_interleave(2, 1) for x in (k, v, beta)]
        gdn.torch.prefill(q, *two[:2], g, two[2], updates=2, norm=gdn.NORM_L2).sum().backward()
        assert calls == [None, None]


def test_one_input_alone():
    """Only a tensor that requires a gradient gets one, with the same bits."""
    a, w = raw(), weights()
    want = dict(zip(a, grads(lambda: gdn.torch.prefill(**a, return_state=True, **RAW), a, w)))
    for name in a:
        one = {n: x if n == name else x.detach() for n, x in a.items()}
        got, = grads(lambda: gdn.torch.prefill(**one, return_state=True, **RAW),
                     {name: a[name]}, w)
        assert torch.equal(got, want[name]), name


def test_an_input_twice():
    x, w = torch.randn(B, T, HV, V).requires_grad_(), weights()

    def through(call):
        unit_x = unit(x.double()).to(x.dtype) if call is gdn.torch.prefill else unit(x.double())
        return call(unit_x, unit_x, unit_x)

    def want(q, k, v):
        zeros = torch.zeros(B, T, HV, dtype=torch.float64)
        return samples.reference(q, k, v, zeros, zeros + 1, torch.zeros(B, HV, V, K))[:1]

    got = grads(lambda: (through(gdn.torch.prefill),), {"x": x}, w)
    agree(got, grads(lambda: through(want), {"x": x}, w), "x")


def test_l2norm():
    x, w = torch.randn(7, 33).requires_grad_(), (torch.randn(7, 33),)
    agree(grads(lambda: (gdn.torch.l2norm(x),), {"x": x}, w),
          grads(lambda: (unit(x.double()),), {"x": x}, w), "x")


def layer(q, k, v, g, beta, state, A_log, dt_bias):
    q, k = gdn.torch.l2norm(q * 2), gdn.torch.l2norm(k)
    out, last = gdn.torch.prefill(q, k, v, g, beta, A_log=A_log, dt_bias=dt_bias, state=state,
                                  return_state=True, gate=gdn.GATE_RAW,
                                  beta_kind=gdn.BETA_SIGMOID)
    return out * 2, last


def test_compile():
    """Forward and backward without a graph break have the values of eager calls."""
    a, w = raw(), weights()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    want = grads(lambda: layer(**a), a, w)
    agree(grads(lambda: compiled(**a), a, w), want, a, 1e-6)


def test_activation_checkpointing():
    a, w = raw(), weights()
    got = grads(lambda: checkpoint(lambda *x: layer(**dict(zip(a, x))), *a.values(),
                                   use_reentrant=False), a, w)
    assert all(map(torch.equal, got, grads(lambda: layer(**a), a, w)))


def test_autocast():
    """Tensors keep their dtypes: bfloat16 from a projection, float32 gates."""
    x, weight = torch.randn(B, T, 8), torch.randn(HK * K * 2 + HV * V, 8, requires_grad=True)
    a = {n: x for n, x in raw().items() if n not in "qkv"}

    def call(rule):
        q, k, v = torch.nn.functional.linear(x, weight).split((HK * K, HK * K, HV * V), -1)
        return rule(dict(q=q.unflatten(-1, (HK, K)), k=k.unflatten(-1, (HK, K)),
                         v=v.unflatten(-1, (HV, V)), **a))

    w = weights()
    with torch.autocast("cpu", torch.bfloat16):
        got = grads(lambda: call(lambda b: gdn.torch.prefill(**b, return_state=True, **RAW)),
                    {"weight": weight}, w)
    agree(got, grads(lambda: call(rule64), {"weight": weight}, w), ["weight"], 2e-2)


def test_what_has_no_gradient_is_named():
    a = raw()
    with pytest.raises(RuntimeError, match="state: would be written in place"):
        gdn.torch.prefill(**a, **RAW)
    with pytest.raises(RuntimeError, match="read_slots: .*prefill"):
        gdn.torch.prefill(**a, **RAW, return_state=True, read_slots=torch.arange(B))
    with pytest.raises(RuntimeError, match="out: .*decode"):
        gdn.torch.decode(**a, **RAW, return_state=True, out=torch.empty(B, T, HV, V))
    with pytest.raises(RuntimeError, match="k: .*chunk_uw.* no backward"):
        gdn.torch.chunk_uw(*(a[n] for n in ("k", "v", "g", "beta")))
    out, _ = gdn.torch.prefill(**a, **RAW, return_state=True)
    with pytest.raises(RuntimeError, match="create_graph"):
        torch.autograd.grad(out.sum(), a["v"], create_graph=True)


# ---- Training ------------------------------------------------------------------------------------


def test_training():
    """20 steps have torch's own losses to rounding, and learn."""
    tokens, curves = text(), []
    for rule in (by_gdn, by_torch):
        model = Tiny(rule)
        adam, curve = torch.optim.Adam(model.parameters(), 1e-2), []
        for _ in range(20):
            adam.zero_grad()
            loss = loss_of(model, tokens)
            loss.backward()
            adam.step()
            curve.append(loss.item())
        curves.append(torch.tensor(curve))
    torch.testing.assert_close(*curves, atol=1e-4, rtol=0)
    assert curves[0][-1] < 0.5 * curves[0][0]


def test_two_processes(tmp_path):
    """DistributedDataParallel has the gradients of the whole batch in one process."""
    tokens, model = text(), Layered()
    torch.save(tokens, tmp_path / "tokens")
    other = torch.multiprocessing.spawn(replica, (str(tmp_path),), nprocs=1, join=False)
    replica(1, str(tmp_path))
    other.join()
    loss_of(model, tokens).backward()
    first, second = (torch.load(tmp_path / str(rank)) for rank in range(2))
    assert all(map(torch.equal, first, second))
    agree(first, [x.grad for x in model.parameters()], dict(model.named_parameters()))


# ---- Drop-ins ------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["chunk", "fused_recurrent"])
def test_fla(op):
    a, w = raw(), weights()
    kwargs = dict(use_qk_l2norm_in_kernel=True, use_beta_sigmoid_in_kernel=True,
                  use_gate_in_kernel=True, output_final_state=True, state_v_first=True)
    function = getattr(gdn.fla, f"{op}_gated_delta_rule")
    given = {("initial_state" if n == "state" else n): x for n, x in a.items()}
    agree(grads(lambda: function(**given, **kwargs), a, w), grads(lambda: rule64(a), a, w), a)


@pytest.mark.parametrize("is_packed", [False, True])
def test_flashqla(is_packed):
    a, w = raw(is_raw=False), weights()

    def call():
        rows = {n: x.flatten(0, 1)[None] if is_packed and n != "state" else x
                for n, x in a.items()}
        start = rows.pop("state").transpose(-1, -2)
        more = dict(cu_seqlens=torch.arange(B + 1) * T) if is_packed else {}
        o, last = gdn.flashqla.chunk_gated_delta_rule(**rows, initial_state=start,
                                                      output_final_state=True, **more)
        return o.reshape(B, T, HV, V), last.transpose(-1, -2)

    agree(grads(call, a, w), grads(lambda: rule64(a, False), a, w), a)


@pytest.mark.parametrize("cuts", [None, (0, 64, 64, 100)])
def test_flashqla_bwd(cuts):
    """FlashQLA's separate backward function has the gradients of autograd."""
    a = raw((1, 100), is_raw=False)
    rows = {n: x.detach() for n, x in a.items() if n != "state"}
    start = torch.randn(1 if cuts is None else 3, HV, V, K).requires_grad_()
    more = dict(cu_seqlens=None if cuts is None else torch.tensor(cuts), state_v_first=True)
    do, dht = torch.randn(1, 100, HV, V), torch.randn_like(start)
    want = torch.autograd.grad(gdn.flashqla.chunk_gated_delta_rule(
        **{n: a[n] for n in rows}, initial_state=start, output_final_state=True, **more),
        [a[n] for n in ("q", "k", "v", "beta", "g")] + [start], (do, dht))
    with torch.no_grad():
        more.update(initial_state=start)
        sums, A, *_ = gdn.flashqla.chunk_gated_delta_rule_fwd(**rows, **more)
        got = gdn.flashqla.chunk_gated_delta_rule_bwd(**{**rows, "g": sums}, A=A, do=do, dht=dht,
                                                      **more)
    agree(got, want, ("q", "k", "v", "beta", "g", "state"), 1e-5)
