# SPDX-License-Identifier: Apache-2.0
"""gdn.flashqla against the rule in float64."""

import pytest
import torch
from samples import B, HK, HV, K, V, reference, rule

import gdn.flashqla as qla

T = 70


def close(got, wanted, limit=2e-5):
    torch.testing.assert_close(got.double(), wanted.double(), atol=limit, rtol=limit)


def arguments():
    a = rule("cpu", lead=(B, T))
    del a["out"]
    return a


@pytest.mark.parametrize("v_first", [False, True])
@pytest.mark.parametrize("is_packed", [False, True])
def test_values(v_first, is_packed):
    a, state = arguments(), torch.randn(B, HV, V, K)
    out, final = reference(**a, state=state)
    start = state if v_first else state.transpose(-1, -2)
    more = dict(initial_state=start, output_final_state=True, state_v_first=v_first)
    rows = a
    if is_packed:
        rows = {n: x.flatten(0, 1)[None] for n, x in a.items()}
        more["cu_seqlens"] = torch.arange(B + 1) * T
        out = out.flatten(0, 1)[None]
    o, last = qla.chunk_gated_delta_rule(**rows, **more)
    close(o, out)
    close(last if v_first else last.transpose(-1, -2), final)
    sums, A, o, h, last, cache = qla.chunk_gated_delta_rule_fwd(**rows, **more, output_h=True)
    assert cache is None
    close(o, out)
    close(last if v_first else last.transpose(-1, -2), final)
    h = (h if v_first else h.transpose(-1, -2)).reshape(B, 2, HV, V, K)
    close(h[:, 0], state)
    part = {n: x[:, :64] for n, x in a.items()}
    close(h[:, 1], reference(**part, state=state)[1], 1e-4)
    sums, A = (x.reshape(B, T, *x.shape[2:]) for x in (sums, A))
    close(sums[:, 64:], a["g"][:, 64:].cumsum(1))
    k = a["k"][:, :64].repeat_interleave(HV // HK, 2).transpose(1, 2).double()
    L = (a["beta"][:, :64].transpose(1, 2)[..., None] * (k @ k.mT)).tril(-1)
    close(A[:, :64].transpose(1, 2), torch.linalg.inv(torch.eye(64) + L))


def test_refusals():
    a = arguments()
    with torch.enable_grad(), pytest.raises(NotImplementedError, match="beta requires a gradient"):
        qla.chunk_gated_delta_rule_fwd(**{**a, "beta": a["beta"].clone().requires_grad_()})
    with pytest.raises(NotImplementedError, match="cp_context"):
        qla.chunk_gated_delta_rule_fwd(**a, cp_context=1)
    with pytest.raises(AssertionError, match="head_first"):
        qla.chunk_gated_delta_rule(**a, head_first=True)
    with pytest.raises(AssertionError, match="one dtype"):
        qla.chunk_gated_delta_rule(**{**a, "v": a["v"].bfloat16()})
    with pytest.raises(ValueError, match="batch size"):
        qla.chunk_gated_delta_rule(**a, cu_seqlens=torch.tensor([0, T]))
