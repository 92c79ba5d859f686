# SPDX-License-Identifier: Apache-2.0
"""gdn.fla's GDN-2, Gated DeltaProduct and gates of KDA beside float64 under torch's autograd."""

from contextlib import nullcontext

import pytest
import torch

import gdn.fla
import gdn.torch
from gdn import fla

B, T, H, HV, K, V = 2, 37, 2, 4, 32, 24


def recurrence(q, k, v, g, b, w, S):
    """The family's rule, n updates a token: q [B, T, H, K], g [B, T, HV, K or 1], rows of k, v, b
    and w [B, n T, heads, size]."""
    n = k.shape[1] // q.shape[1]
    q, k = (x.repeat_interleave(HV // x.shape[2], 2) for x in (q * K**-0.5, k))
    out = []
    for t in range(q.shape[1]):
        S = S * g[:, t].exp()[..., None]
        for r in range(n * t, n * t + n):
            u = w[:, r] * v[:, r] - torch.einsum("bhk,bhkv->bhv", b[:, r] * k[:, r], S)
            S = S + k[:, r][..., None] * u[..., None, :]
        out.append(torch.einsum("bhk,bhkv->bhv", q[:, t], S))
    return torch.stack(out, 1), S


def normalised(x):
    return x / (x.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt()


def leaf(*shape):
    return torch.randn(*shape).requires_grad_()


def near(got, want, share=5e-5):
    assert got.dtype == torch.float32
    assert (got.double() - want).abs().max() <= share * want.pow(2).mean().sqrt() + 1e-6


def check(ours, wanted, inputs):
    """Compares results and gradients of ours with those of wanted in float64, from the same
    inputs."""
    exact = [x.detach().double().requires_grad_() for x in inputs]
    got, right = ours(*inputs), wanted(*exact)
    weights = [torch.randn_like(x) for x in got]
    loss = sum((x * w).sum() for x, w in zip(got, weights))
    double = sum((x * w.double()).sum() for x, w in zip(right, weights))
    for a, b in zip((*got, *torch.autograd.grad(loss, inputs)),
                    (*right, *torch.autograd.grad(double, exact))):
        near(a, b)


@pytest.mark.parametrize("op", [fla.chunk_gdn2, fla.fused_recurrent_gdn2])
@pytest.mark.parametrize("raw", [None, "softplus", "bounded", "bounded, no A_log"])
@torch.enable_grad()
def test_gdn2(op, raw):
    inputs = [leaf(B, T, H, K), leaf(B, T, H, K), leaf(B, T, HV, V), leaf(B, T, HV, K),
              leaf(B, T, HV, K), leaf(B, T, HV, V), leaf(B, HV, K, V)]
    if raw is not None:
        inputs += [leaf(HV * K)] if "no" in raw else [leaf(HV * K), leaf(HV)]
    bound = -5.0 if raw and "bounded" in raw else None

    def ours(q, k, v, g, b, w, S, *of_gates):
        more = dict(zip(("dt_bias", "A_log"), of_gates))
        if raw is None:
            g = torch.nn.functional.logsigmoid(g)
        return op(q, k, v, g, b.sigmoid(), w.sigmoid(), initial_state=S, output_final_state=True,
                  use_qk_l2norm_in_kernel=True, use_gate_in_kernel=raw is not None,
                  lower_bound=bound, **more)

    def wanted(q, k, v, g, b, w, S, *of_gates):
        if raw is None:
            g = torch.nn.functional.logsigmoid(g)
        else:
            x, A = g + of_gates[0].view(HV, K), 1
            if len(of_gates) > 1:
                A = of_gates[1].exp()[:, None]
            g = bound * torch.sigmoid(A * x) if bound else -A * torch.nn.functional.softplus(x)
        return recurrence(normalised(q), normalised(k), v, g, b.sigmoid(), w.sigmoid(), S)

    check(ours, wanted, inputs)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("decays", [False, True])
@torch.enable_grad()
def test_delta_product(n, decays):
    inputs = [leaf(B, T, HV, K), leaf(B, n * T, HV, K), leaf(B, n * T, HV, V),
              leaf(B, n * T, HV), leaf(B, HV, K, V)] + [leaf(B, T, HV)] * decays

    def ours(q, k, v, beta, S, g=None):
        g = None if g is None else torch.nn.functional.logsigmoid(g)
        return fla.chunk_gated_delta_product(q, k, v, g, beta.sigmoid(), n, initial_state=S,
                                             output_final_state=True, use_qk_l2norm_in_kernel=True)

    def wanted(q, k, v, beta, S, g=None):
        g = q.new_zeros(B, T, HV) if g is None else torch.nn.functional.logsigmoid(g)
        b = beta.sigmoid()[..., None]
        return recurrence(normalised(q), normalised(k), v, g[..., None], b, b, S)

    check(ours, wanted, inputs)


def test_packed():
    """Sequences of 5 and 32 tokens, and one without, beside each alone."""
    n, cu, parts = 2, torch.tensor([0, 5, 5, T]), (slice(0, 5), slice(5, T))
    q, g = torch.randn(1, T, HV, K), -torch.rand(1, T, HV, K)
    k, v = (normalised(torch.randn(1, n * T, HV, size)) for size in (K, V))
    b, w, beta = torch.rand(1, T, HV, K), torch.rand(1, T, HV, V), torch.rand(1, n * T, HV)
    S = torch.randn(3, HV, K, V)
    rows = [slice(n * p.start, n * p.stop) for p in parts]
    calls = {
        "product": (lambda s, r, **o: fla.chunk_gated_delta_product(
            q[:, s], k[:, r], v[:, r], g[:, s, :, 0], beta[:, r], n, output_final_state=True, **o)),
        "gdn2": (lambda s, r, **o: fla.chunk_gdn2(
            q[:, s], k[:, s], v[:, s], g[:, s], b[:, s], w[:, s], output_final_state=True, **o)),
    }
    for name, call in calls.items():
        o, final = call(slice(0, T), slice(0, n * T), cu_seqlens=cu, initial_state=S)
        alone = [call(s, r, initial_state=S[i:i + 1]) for i, s, r in zip((0, 2), parts, rows)]
        torch.testing.assert_close(o, torch.cat([x for x, _ in alone], 1), msg=name)
        torch.testing.assert_close(final, torch.cat([alone[0][1], S[1:2], alone[1][1]]), msg=name)


@pytest.mark.parametrize("bound", [None, -5.0])
@pytest.mark.parametrize("given", [("A_log", "dt_bias"), ("A_log",), ("dt_bias",), ()])
@torch.enable_grad()
def test_gates(bound, given):
    if bound is None and "A_log" not in given:
        with pytest.raises(ValueError, match="^A_log: absent"):
            fla.fused_kda_gate(torch.randn(T, HV, K))
        return
    g, of = leaf(B, T, HV, K), {"A_log": leaf(1, 1, HV, 1), "dt_bias": leaf(HV * K)}
    inputs = [g, *(of[name] for name in given)]

    def ours(g, *rest):
        return [fla.fused_kda_gate(g, **dict(zip(given, rest)), lower_bound=bound)]

    def wanted(g, *rest):
        more = dict(zip(given, rest))
        x = g + more["dt_bias"].view(HV, K) if "dt_bias" in more else g
        A = more["A_log"].exp() if "A_log" in more else 1
        return [bound * torch.sigmoid(A * x) if bound else -A * torch.nn.functional.softplus(x)]

    check(ours, wanted, inputs)
    named, dy = dict(zip(given, inputs[1:])), torch.randn_like(g)
    by_autograd = torch.autograd.grad((ours(*inputs)[0] * dy).sum(), inputs)
    y = fla.kda_gate_fwd(g, **named, lower_bound=bound, output_dtype=torch.bfloat16)
    assert torch.equal(y, ours(*inputs)[0].bfloat16()) and not y.requires_grad
    halves = fla.kda_gate_bwd(g, **named, dyg=dy, lower_bound=bound)
    for name, got in zip(("g", "A_log", "dt_bias"), halves):
        if name == "g" or name in named:
            right = by_autograd[("g", *given).index(name)]
            assert torch.equal(got, right) and got.shape == right.shape
        else:
            assert got is None


@pytest.mark.parametrize("op", [fla.chunk_kda, fla.fused_recurrent_kda, fla.chunk_gdn2,
                                fla.fused_recurrent_gdn2])
def test_the_old_name_of_a_layout(op):
    """transpose_state_layout is state_v_first."""
    q, v, g = torch.randn(1, T, HV, K), torch.randn(1, T, HV, V), -torch.rand(1, T, HV, K)
    gates = (torch.rand(1, T, HV),) if "kda" in op.__name__ else (torch.rand(1, T, HV, K),
                                                                   torch.rand(1, T, HV, V))
    S = torch.randn(1, HV, V, K)
    wanted = op(q, q, v, g, *gates, initial_state=S, state_v_first=True)[0]
    with pytest.warns(DeprecationWarning, match="state_v_first") as found:
        got = op(q, q, v, g, *gates, initial_state=S, transpose_state_layout=True)[0]
    assert torch.equal(got, wanted) and found[0].filename == __file__
    with pytest.raises(ValueError, match="two names"):
        op(q, q, v, g, *gates, state_v_first=True, transpose_state_layout=True)


@pytest.mark.parametrize("n", [0, 1, 3], ids=["gdn2", "one update", "three updates"])
def test_step_of_a_layer(n, device):
    """What FLA's layers of GDN-2 (n 0) and of Gated DeltaProduct compute between their projections
    is one gdn.torch.step(), with the channels of their convolutions one after the other."""
    updates, P, slots = max(n, 1), 4, [3, 1]
    keys, values = H * K, HV * V
    D = keys + updates * (keys + values)
    a = dict(x=torch.randn(2, 2, D), a=torch.randn(2, 2, HV), b=torch.randn(2, 2 * updates, HV),
             conv_weight=torch.randn(D, 1, 4), A_log=torch.randn(HV))
    more = dict(z=torch.randn(2, 2, HV, V), norm_weight=torch.randn(V), dt_bias=torch.randn(HV),
                conv_state=torch.randn(P, D, 3), state=torch.randn(P, HV, V, K))
    if n == 0:
        a.update(a=torch.randn(2, 2, HV, K), b=torch.randn(2, 2, HV, K))
        more.update(dt_bias=torch.randn(HV, K), write_gate=torch.randn(2, 2, HV, V))
    exact = {name: x.double() for name, x in {**a, **more}.items()}
    past = torch.cat([exact["conv_state"][slots], exact["x"].transpose(1, 2)], 2)
    mixed = torch.nn.functional.silu(torch.conv1d(past, exact["conv_weight"], groups=D))
    q, k, v = mixed.transpose(1, 2).split([keys, updates * keys, updates * values], 2)
    q, k = (normalised(x.reshape(2, -1, H, K)) for x in (q, k))
    gate = exact["a"] + exact["dt_bias"]
    A = exact["A_log"].exp().view(-1, *[1] * (gate.dim() - 3))
    g = -A * torch.nn.functional.softplus(gate)
    b = exact["b"].sigmoid() if n == 0 else exact["b"].sigmoid()[..., None]
    w = exact["write_gate"].sigmoid() if n == 0 else b
    out, final = recurrence(q, k, v.reshape(2, -1, HV, V), g if n == 0 else g[..., None], b, w,
                            exact["state"][slots].mT)
    out = out * (out.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * exact["norm_weight"]
    out = out * torch.nn.functional.silu(exact["z"])
    a, more = ({name: x.to(device) for name, x in given.items()} for given in (a, more))
    got = gdn.torch.step(
        **a, **more, key_heads=H, value_heads=HV, key_dim=K, value_dim=V,
        read_slots=torch.tensor(slots, device=device), **(dict(updates=n) if n else {}))
    near(got.cpu(), out)
    near(more["state"][slots].cpu(), final.mT)
    near(more["conv_state"][slots].cpu(), past[..., -3:])
    if n == 0:
        with torch.enable_grad(), pytest.raises(RuntimeError, match="^write_gate: requires"):
            gdn.torch.step(**a, **dict(more, write_gate=more["write_gate"].requires_grad_()),
                           key_heads=H, value_heads=HV, key_dim=K, value_dim=V)


def test_refusals():
    q, v, wide = torch.randn(1, T, HV, K), torch.randn(1, T, HV, V), torch.rand(1, T, HV, V)
    g, beta = -torch.rand(1, T, HV, K), torch.rand(1, T, HV)
    for call in (fla.chunk_kda, fla.fused_recurrent_kda):
        with pytest.raises(NotImplementedError, match="beta has one value per head"):
            call(q, q, v, g, wide)
    with pytest.raises(NotImplementedError, match="beta has one value per head"):
        fla.chunk_gated_delta_product(q, q, v, beta, wide, 1)
    for context, has in ((None, False), (object(), True)):  # all three have it in FLA 0.6
        for call in (lambda **o: fla.chunk_gdn2(q, q, v, g, g, wide, **o),
                     lambda **o: fla.chunk_gated_delta_product(q, q, v, beta, beta, 1, **o),
                     lambda **o: fla.chunk_kda(q, q, v, g, beta, **o)):
            with pytest.raises(NotImplementedError, match="cp_context") if has else nullcontext():
                call(cp_context=context)
    with pytest.raises(ValueError, match="must be 64"):
        fla.chunk_gdn2(q, q, v, g, g, wide, chunk_size=32)
    with pytest.raises(NotImplementedError, match="return_intermediate_states"):
        fla.chunk_gdn2(q, q, v, g, g, wide, return_intermediate_states=True)
    with pytest.raises(ValueError, match="must be either 32 or 64"):
        fla.chunk_kda(q, q, v, g, beta, chunk_size=16)
    for name in ("ssm_state_indices", "out"):
        with pytest.raises(NotImplementedError, match=name):
            fla.fused_recurrent_kda(q, q, v, g, beta, **{name: torch.zeros(1)})
    with pytest.raises(TypeError, match="^w: None"):
        fla.fused_recurrent_gdn2(q, q, v, g, g, None)
    with pytest.raises(RuntimeError, match=": w: "):
        fla.chunk_gdn2(q, q, v, g, g, wide[..., 1:])
    assert gdn.fla.chunk_gdn is fla.chunk_gated_delta_rule  # GDN's name is not GDN-2's
