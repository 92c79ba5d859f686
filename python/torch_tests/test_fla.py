# SPDX-License-Identifier: Apache-2.0
"""gdn.fla against the rule in float64, and under FLA's own function where FLA is installed."""

import pytest
import torch
from samples import B, HV, K, T, V, reference, rule

import gdn.fla

BOTH = (gdn.fla.chunk_gated_delta_rule, gdn.fla.fused_recurrent_gated_delta_rule)


def arguments(**more):
    a = rule("cpu")
    del a["out"]
    return {**a, **more}


def close(got, wanted):
    torch.testing.assert_close(got.double(), wanted, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("call", BOTH)
@pytest.mark.parametrize("v_first", [False, True])
def test_values(call, v_first):
    a, state = arguments(), torch.randn(B, HV, V, K)
    out, final = reference(**a, state=state)
    mine = state if v_first else state.transpose(-1, -2)
    before = mine.clone()
    o, h = call(**a, initial_state=mine, output_final_state=True, state_v_first=v_first)
    close(o, out)
    close(h if v_first else h.transpose(-1, -2), final)
    assert h.dtype == torch.float32 and torch.equal(mine, before)
    o, h = call(**a, initial_state=mine, state_v_first=v_first)
    close(o, out)
    assert h is None and torch.equal(mine, before)


@pytest.mark.parametrize("call", BOTH)
def test_packed(call):
    a, state = arguments(), torch.randn(B, HV, V, K)
    out, final = reference(**a, state=state)
    # An empty sequence behind the others keeps its state.
    more = torch.cat([state, state[:1]]).transpose(-1, -2)
    cu = torch.tensor([0, T, 2 * T, 3 * T, 3 * T])
    packed = {n: x.flatten(0, 1)[None] for n, x in a.items()}
    o, h = call(**packed, initial_state=more, output_final_state=True, cu_seqlens=cu)
    close(o[0], out.flatten(0, 1))
    close(h[:B].transpose(-1, -2), final)
    assert torch.equal(h[B], more[B])
    with pytest.raises(ValueError, match="batch size"):
        call(**a, cu_seqlens=cu)


@pytest.mark.parametrize("call", BOTH)
@torch.enable_grad()
def test_default_layer(call):
    """The sizes of FLA's GatedDeltaNet: K = 256, V = 512."""
    lead, heads = (1, 70), 2
    q, k = (torch.nn.functional.normalize(torch.randn(*lead, heads, 256), dim=-1) for _ in "qk")
    a = dict(q=q, k=k, v=torch.randn(*lead, heads, 512), g=-torch.rand(*lead, heads),
             beta=torch.rand(*lead, heads))
    a["state"], weight = torch.randn(1, heads, 512, 256), torch.randn(*lead, heads, 512)
    results = []
    for dtype in (torch.float, torch.double):
        given = {n: x.to(dtype, copy=True).requires_grad_() for n, x in a.items()}
        if dtype == torch.double:
            out, final = reference(**given)
        else:
            inputs = dict(given)
            start = inputs.pop("state").transpose(-1, -2)
            out, final = call(**inputs, initial_state=start, output_final_state=True)
            final = final.transpose(-1, -2)
        ((out * weight).sum() + final.sum()).backward()
        results.append([out.detach(), final.detach(), *(x.grad for x in given.values())])
    for got, wanted in zip(*results):
        torch.testing.assert_close(got.double(), wanted, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("call", BOTH)
def test_raw_gates(call):
    a = arguments()
    raw, b, A_log, dt_bias = torch.randn(B, T, HV), torch.randn(B, T, HV), *torch.randn(2, HV)
    g = -A_log.double().exp() * torch.nn.functional.softplus(raw.double() + dt_bias.double())
    q, k = (torch.randn_like(a[n]) for n in "qk")
    unit = [x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for x in (q.double(), k.double())]
    out, _ = reference(*unit, a["v"], g, 2 * b.double().sigmoid(), torch.zeros(B, HV, V, K))
    o, _ = call(q=q, k=k, v=a["v"], g=raw, beta=b, use_gate_in_kernel=True, A_log=A_log,
                dt_bias=dt_bias, use_qk_l2norm_in_kernel=True, use_beta_sigmoid_in_kernel=True,
                allow_neg_eigval=True)
    close(o, out)


@pytest.mark.parametrize("call", BOTH)
def test_dtypes(call):
    """Each tensor has a dtype of its own."""
    half, brain = torch.float16, torch.bfloat16
    a = arguments()
    a.update(v=a["v"].to(half), g=a["g"].to(half), beta=a["beta"].to(brain))
    out, _ = reference(**a, state=torch.zeros(B, HV, V, K))
    o, _ = call(**a)
    close(o, out)
    a["k"] = a["k"].to(brain)
    out, _ = reference(**a, state=torch.zeros(B, HV, V, K))
    o, _ = call(**a)
    close(o, out)


@pytest.mark.parametrize("call", BOTH)
def test_scale(call):
    a = arguments()
    out, final = reference(**a, state=torch.zeros(B, HV, V, K))
    for scale in (0.0, 0.5):
        o, h = call(**a, scale=scale, output_final_state=True)
        close(o, out * K ** 0.5 * scale)
        close(h.transpose(-1, -2), final)
    with torch.enable_grad():
        a["q"].requires_grad_()
        a["v"].requires_grad_()
        o, h = call(**a, scale=0.0, output_final_state=True)
        (o.sum() + h.sum()).backward()
    assert not a["q"].grad.any() and a["v"].grad.any()


@pytest.mark.parametrize("call", BOTH)
def test_refusals(call):
    a = arguments()
    with pytest.raises(NotImplementedError, match="head_first"):
        call(**a, head_first=True)
    with pytest.raises(NotImplementedError, match="cp_context" if call is BOTH[0] else "channel"):
        call(**a, **({"cp_context": 1} if call is BOTH[0] else {"gk": a["g"]}))
    with pytest.warns(DeprecationWarning):
        call(**a, transpose_state_layout=True)


@pytest.mark.parametrize("call", BOTH)
@pytest.mark.parametrize("needs_grad", [False, True])
def test_states_of_other_sizes(call, needs_grad):
    """A packed batch copies the states before its operator checks them."""
    a = {n: x[:1] for n, x in arguments().items()}
    a["q"].requires_grad_(needs_grad)
    cuts = torch.tensor([0, 2, a["q"].shape[1]], dtype=torch.int32)
    for wrong in ((2, HV, K + 1, V), (2, HV - 1, K, V)):
        text = "".join(f"\\[{n}\\]" for n in wrong)
        with pytest.raises(RuntimeError, match=rf"initial_state: {text}, wanted \[.\]\[{HV}\]"):
            call(**a, initial_state=torch.zeros(wrong), cu_seqlens=cuts, output_final_state=True)


def test_registered():
    fla = pytest.importorskip("fla.ops.gated_delta_rule", reason="FLA is not installed",
                              exc_type=Exception)
    gdn.fla.register()
    gdn.fla.register()
    a = arguments()
    out, _ = reference(**a, state=torch.zeros(B, HV, V, K))
    o, _ = fla.chunk_gated_delta_rule(**a)
    close(o, out)
