# SPDX-License-Identifier: Apache-2.0
"""gdn.fla's KDA beside a float64 recurrence under torch's autograd, with every gradient."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("gdn.torch")

from gdn import fla  # noqa: E402

B, T, H, HV, K, V = 2, 37, 2, 4, 32, 24
OPS = fla.chunk_kda, fla.fused_recurrent_kda


def recurrence(q, k, v, g, beta, S):
    """The rule of FLA's naive_recurrent_kda: [B, T, heads, size], S [B, HV, K, V]."""
    q, k = (x.repeat_interleave(HV // H, 2) for x in (q * K**-0.5, k))
    out = []
    for t in range(T):
        S = S * g[:, t].exp()[..., None]
        u = (v[:, t] - torch.einsum("bhk,bhkv->bhv", k[:, t], S)) * beta[:, t][..., None]
        S = S + k[:, t][..., None] * u[..., None, :]
        out.append(torch.einsum("bhk,bhkv->bhv", q[:, t], S))
    return torch.stack(out, 1), S


def leaf(*shape):
    return torch.randn(*shape).requires_grad_()


def normalised(x):
    return x / (x.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt()


def near(got, want, share=5e-5):
    assert (got.double() - want).abs().max() <= share * want.pow(2).mean().sqrt() + 1e-6


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("forgets", [False, True])
def test_gradients(op, forgets):
    torch.manual_seed(1)
    inputs = (leaf(B, T, H, K), leaf(B, T, H, K), leaf(B, T, HV, V), leaf(B, T, HV, K),
              leaf(B, T, HV), leaf(B, HV, K, V))
    holes = torch.zeros(B, T, HV, K)
    if forgets:  # a channel alone, and -60 beside gates near 0
        holes[:, 9, :, 3], holes[:, ::2, :, 5] = -1000, -60

    def run(rule, tensors):
        q, k, v, g, b, S = tensors
        gates = torch.nn.functional.logsigmoid(g) + holes.to(g)
        return rule(q, normalised(k), v, gates, b.sigmoid(), S)

    o, final = run(lambda *x: op(*x[:5], initial_state=x[5], output_final_state=True), inputs)
    w, wf = torch.randn_like(o), torch.randn_like(final)
    got = torch.autograd.grad((o * w).sum() + (final * wf).sum(), inputs)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    o2, final2 = run(recurrence, exact)
    want = torch.autograd.grad((o2 * w.double()).sum() + (final2 * wf.double()).sum(), exact)
    for a, b in zip((o, final, *got), (o2, final2, *want)):
        near(a, b)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("lower_bound", [None, -5.0])
def test_raw_gates(op, lower_bound):
    torch.manual_seed(2)
    inputs = (torch.randn(HV).requires_grad_(), leaf(HV * K), leaf(B, T, HV, K), leaf(B, T, HV))
    q, k, v = torch.randn(B, T, H, K), torch.randn(B, T, H, K), torch.randn(B, T, HV, V)
    A_log, dt_bias, g, beta = inputs
    o, _ = op(q, k, v, g, beta, use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True,
              use_beta_sigmoid_in_kernel=True, lower_bound=lower_bound, A_log=A_log,
              dt_bias=dt_bias)
    w = torch.randn_like(o)
    got = torch.autograd.grad((o * w).sum(), inputs)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    A, x = exact[0].exp()[:, None], exact[2] + exact[1].view(HV, K)
    gates = (-A * torch.nn.functional.softplus(x) if lower_bound is None
             else lower_bound * torch.sigmoid(A * x))
    o2, _ = recurrence(normalised(q.double()), normalised(k.double()), v.double(), gates,
                       exact[3].sigmoid(), torch.zeros(B, HV, K, V, dtype=torch.float64))
    want = torch.autograd.grad((o2 * w.double()).sum(), exact)
    for a, b in zip((o, *got), (o2, *want)):
        near(a, b)


@pytest.mark.parametrize("op", OPS)
def test_refuses_beta_of_columns(op):
    q = torch.randn(B, T, H, K)
    v, g = torch.randn(B, T, HV, V), -torch.rand(B, T, HV, K)
    with pytest.raises(NotImplementedError, match="beta"):
        op(q, q, v, g, torch.rand(B, T, HV, V))
