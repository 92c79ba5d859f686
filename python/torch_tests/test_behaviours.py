# SPDX-License-Identifier: Apache-2.0
"""Rows of docs/design/behaviours.md: places where implementations of the rule disagree."""

import math
import pathlib
import re

import gdn.torch
import pytest
import torch
from samples import HV, K, P, V, W, reference, rule
from torch.nn import functional

import gdn.causal_conv1d
import gdn.fla
import gdn.flashinfer

ROOT = pathlib.Path(__file__).resolve().parents[2]
BOTH = (gdn.fla.chunk_gated_delta_rule, gdn.fla.fused_recurrent_gated_delta_rule)


def arguments(device, T=150, dtype=torch.float32):
    a = rule(device, dtype, lead=(1, T))
    del a["out"]
    return a


def start(device):
    return torch.randn(1, HV, V, K, device=device)


def check(call, a, state, limit=2e-5):
    """Out and final state beside the recurrence in float64, relative to the largest value."""
    wanted = reference(**{n: x.cpu() for n, x in a.items()}, state=state.cpu())
    got = call(**a, initial_state=state, output_final_state=True, state_v_first=True)
    for x, y in zip(got, wanted):
        assert ((x.cpu().double() - y).abs().max() / y.abs().max()).item() < limit


@pytest.mark.parametrize("call", BOTH)
@pytest.mark.parametrize("gate", [-math.inf, -1e30, -1e5, -100.0])
def test_one_strong_gate(call, gate, device):
    a = arguments(device)
    a["g"][:, 10] = gate
    check(call, a, start(device))


@pytest.mark.parametrize("call", BOTH)
@pytest.mark.parametrize("gate", [math.log(0.2), -30.0, -1e4])
def test_strong_gates_throughout(call, gate, device):
    a = arguments(device)
    a["g"][:] = gate
    check(call, a, start(device))


@pytest.mark.parametrize("call", BOTH)
def test_gates_that_grow(call, device):
    a = arguments(device)
    a["g"][:] = 0.05
    check(call, a, start(device), 1e-4)


@torch.enable_grad()
@pytest.mark.parametrize("gate", [-30.0, -200.0])
def test_gradients_of_strong_gates(gate, device):
    a, state = arguments(device, 70), start(device)
    a["g"][:] = gate
    weight, grads = torch.randn(1, 70, HV, V), []
    for call in ("ours", "exact"):
        given = {n: (x if call == "ours" else x.cpu().double()).requires_grad_()
                 for n, x in ((n, x.detach().clone()) for n, x in a.items())}
        if call == "ours":
            out = BOTH[0](**given, initial_state=state.mT.contiguous())[0].cpu()
        else:
            out = reference(**given, state=state.cpu())[0]
        (out * weight).sum().backward()
        grads.append({n: x.grad.cpu().double() for n, x in given.items()})
    for n, exact in grads[1].items():
        scale = exact.abs().max().clamp_min(1e-20)
        assert ((grads[0][n] - exact).abs().max() / scale).item() < 1e-4, n


@pytest.mark.parametrize("call", BOTH)
def test_no_tokens(call, device):
    a, state = arguments(device, 0), start(device)
    out, final = call(**a, initial_state=state, output_final_state=True, state_v_first=True)
    assert out.shape == (1, 0, HV, V) and torch.equal(final, state)
    x, weight = torch.randn(1, 24, 0, device=device), torch.randn(24, W, device=device)
    past = torch.randn(1, 24, W - 1, device=device)
    out, final = gdn.causal_conv1d.causal_conv1d_fn(x, weight, None, None, past, True)
    assert out.shape == x.shape and torch.equal(final, past)


@pytest.mark.parametrize("call", BOTH)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dtypes_of_results(call, dtype, device):
    a = arguments(device, 20, dtype)
    for state in (start(device), start(device).to(dtype)):
        out, final = call(**a, initial_state=state, output_final_state=True, state_v_first=True)
        assert out.dtype == dtype and final.dtype == torch.float32


def test_a_gate_of_zero(device):
    """A logarithm in FLA, the decay itself in FlashInfer."""
    a, state = arguments(device, 1), start(device)
    a["g"][:], a["beta"][:] = 0, 0
    for call in BOTH:
        final = call(**a, initial_state=state, output_final_state=True, state_v_first=True)[1]
        assert torch.equal(final, state)
    final = gdn.flashinfer.chunk_gated_delta_rule(
        *(a[n][0] for n in ("q", "k", "v", "g", "beta")), initial_state=state,
        output_final_state=True, cu_seqlens=torch.tensor([0, 1], device=device))[1]
    assert not final.any()


def test_a_scale_of_zero(device):
    """No output in FLA, the default in FlashInfer's prefill."""
    a, state = arguments(device, 9), start(device)
    for call in BOTH:
        assert not call(**a, initial_state=state, scale=0.0, state_v_first=True)[0].any()
    wanted = BOTH[0](**a, initial_state=state, state_v_first=True)[0]
    a["g"] = a["g"].exp()
    out = gdn.flashinfer.chunk_gated_delta_rule(
        *(a[n][0] for n in ("q", "k", "v", "g", "beta")), scale=0.0, initial_state=state,
        cu_seqlens=torch.tensor([0, 9], device=device))
    torch.testing.assert_close(out, wanted[0], atol=2e-5, rtol=2e-5)


def test_the_fifth_argument_of_fla(device):
    a = arguments(device, 9)
    rows = [a[n] for n in ("q", "k", "v", "g", "beta")]
    assert torch.equal(BOTH[0](*rows)[0], BOTH[0](**a)[0])
    with pytest.raises(NotImplementedError, match="gk"):
        BOTH[1](*rows)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_raw_gates_of_16_bits(dtype, device):
    """a + dt_bias and its softplus are not rounded to 16 bits."""
    n = 400
    a, dt_bias = (4 * torch.randn(n, HV)).to(dtype), torch.full((HV,), -3.3).to(dtype)
    A_log, g = torch.full((HV,), 1.3), torch.empty(n, HV, device=device)
    gdn.torch.gates(a.to(device), torch.zeros_like(g), A_log=A_log.to(device),
                    dt_bias=dt_bias.to(device), g=g, beta=torch.empty_like(g))
    exact = -A_log.double().exp() * functional.softplus(a.double() + dt_bias.double())
    assert (g.cpu().double() / exact - 1).abs().max() < 1e-6


@pytest.mark.parametrize("channels", [(), (K,)])
def test_raw_gates_far_from_zero(channels, device):
    """softplus keeps its digits below -17, and its gradient is a number from 89 on."""
    x = torch.tensor([-20.0, -17.0, -15.0, -10.0, 0.0, 30.0, 88.0, 89.0, 100.0])
    a = x.view(-1, 1, *(1 for _ in channels)).expand(-1, HV, *channels).contiguous().to(device)
    a.requires_grad_()
    zeros = torch.zeros(len(x), HV, device=device)
    dt_bias = torch.zeros(HV, *channels, device=device)
    with torch.enable_grad():
        g, _ = gdn.torch.gates(a, zeros, A_log=zeros[0], dt_bias=dt_bias)
        (slope,) = torch.autograd.grad(g.sum(), a)
    exact = a.detach().cpu().double()
    assert (g.detach().cpu().double() / -functional.softplus(exact) - 1).abs().max() < 1e-6
    assert (slope.cpu().double() / -exact.sigmoid() - 1).abs().max() < 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_convolution_of_16_bits_is_rounded_once(dtype, device):
    x, weight = torch.randn(2, 64, 200).to(dtype), torch.randn(64, W).to(dtype)
    full = functional.pad(x.double(), (W - 1, 0))
    exact = functional.silu(functional.conv1d(full, weight.double()[:, None], groups=64))
    out = gdn.causal_conv1d.causal_conv1d_fn(x.to(device), weight.to(device), activation="silu")
    assert (out.cpu() != exact.to(dtype)).double().mean() < 1e-3


def test_silu_of_far_values(device):
    x = torch.tensor([-17.0, -18.0, -20.0, -88.0, -math.inf], device=device)
    tap = torch.tensor([0.0, 1.0], device=device).expand(5, 2).contiguous()
    out = gdn.causal_conv1d.causal_conv1d_fn(x.view(1, 5, 1), tap, activation="silu").flatten()
    exact = x[:4].double() * torch.sigmoid(x[:4].double())
    assert ((out[:4].double() / exact - 1).abs() < 1e-6).all()
    assert out[4] == 0


def test_a_decay_may_be_a_denormal(device):
    a, state = arguments(device, 1), start(device).abs() * 1e35
    a["g"][:], a["beta"][:] = -95.0, 0
    check(BOTH[1], a, state, 1e-2)


def test_values_beyond_8_bits(device):
    """The largest value instead of infinity, as Triton converts on a GPU; a NaN stays a NaN."""
    values = torch.tensor([448.0, 465, 1e9, math.inf, -math.inf, 61440, math.nan, 1])
    for dtype, largest in ((torch.float8_e4m3fn, 448.0), (torch.float8_e5m2, 57344.0)):
        pool = torch.zeros(1, 1, 1, 8, dtype=dtype, device=device)
        gdn.torch.state_copy(pool, values.view(1, 1, 1, 8).to(device))
        got = pool.cpu().float().flatten()
        assert got[[3, 4, 5]].tolist() == [largest, -largest, largest]
        assert got[6].isnan() and got[7] == 1 and got[2] == largest


def test_slots_below_zero_and_slot_zero(device):
    """Slot -1 is skipped and its output is zero; slot 0 is an ordinary slot."""
    a = rule(device, lead=(3, 1))
    pool = torch.randn(P, HV, V, K, device=device)
    before = pool.clone()
    slots = torch.tensor([2, -1, 0], dtype=torch.int32, device=device)
    gdn.torch.decode(**a, state=pool, read_slots=slots)
    assert not a["out"][1].any() and a["out"][[0, 2]].any()
    changed = (pool != before).flatten(1).any(1).tolist()
    assert changed == [True, False, True] + [False] * (P - 3)


def test_one_slot_for_two_rows():
    a, pool = rule("cpu", lead=(2, 1)), torch.randn(P, HV, V, K)
    before = pool.clone()
    with pytest.raises(RuntimeError, match="slot 1: written by sequence 0 and by sequence 1"):
        gdn.torch.decode(**a, state=pool, read_slots=torch.tensor([1, 1], dtype=torch.int32))
    assert torch.equal(pool, before)


def test_named_tests_exist():
    """Each test that the table names is one: FILE::NAME in Python, FILE: "NAME" in C."""
    page = (ROOT / "docs/design/behaviours.md").read_text()
    named = re.findall(r"`([\w./]+\.(?:py|c))(?:::(\w+)|: ([^`]+))`", page)
    assert len(named) > 30
    for file, function, string in named:
        text = (ROOT / file).read_text()
        assert f"def {function}(" in text if function else f'"{string}"' in text, (file, string)


def test_findings_are_listed():
    listed = set(re.findall(r"\[(\w+)\]\(\w+\.sh\)", (ROOT / "findings/README.md").read_text()))
    assert listed == {f.stem for f in (ROOT / "findings").glob("*.sh")}
