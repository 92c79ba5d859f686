# SPDX-License-Identifier: Apache-2.0
"""gdn.flashinfer_bench against the rule in float64, by the source of the solution itself."""

import inspect
import json

import pytest
import torch
from samples import B, HV, K, T, V, raw_rule, reference, rule

from gdn.flashinfer_bench import solution


def close(got, wanted, limit=2e-5):
    torch.testing.assert_close(got.double(), wanted.double(), atol=limit, rtol=limit)


def entry(kind):
    """The function that the solution names, as FlashInfer-Bench finds it."""
    found = json.loads(json.dumps(solution(kind, "a_definition")))
    file, name = found["spec"]["entry_point"].split("::")
    source, = (s["content"] for s in found["sources"] if s["path"] == file)
    module = {}
    exec(source, module)
    return module[name]


@pytest.mark.parametrize("is_given", [False, True])
def test_prefill(is_given):
    a = rule("cpu")
    del a["out"]
    if not is_given:
        a.update(g=torch.zeros_like(a["g"]), beta=torch.ones_like(a["beta"]))
    state = torch.randn(B + 1, HV, V, K) if is_given else torch.zeros(B + 1, HV, V, K)
    out, final = reference(**a, state=state[:B])
    a = {n: x.flatten(0, 1) for n, x in a.items()}
    output, last = torch.empty(B * T, HV, V, dtype=torch.bfloat16), torch.empty(B + 1, HV, V, K)
    cu = torch.tensor([0, T, 2 * T, 3 * T, 3 * T])
    given = (a["g"].exp(), a["beta"], cu, state, 0.25) if is_given else (None, None, cu, None, None)
    entry("prefill")(a["q"], a["k"], a["v"], *given, output, last)
    close(output, out.flatten(0, 1), 1e-2)
    close(last[:B], final)
    assert torch.equal(last[B], state[B])


@pytest.mark.parametrize("l2norm", [False, True])
def test_decode(l2norm):
    a, exact = raw_rule((B, 1))
    if not l2norm:
        exact.update(q=a["q"].double(), k=a["k"].double())
    state, new = torch.randn(B, HV, V, K), torch.empty(B, HV, V, K)
    output = torch.empty(B, 1, HV, V)
    out, final = reference(**exact, state=state)
    call, before = entry("decode"), state.clone()
    order = [n for n in inspect.signature(call).parameters if n in a]
    assert order == ["q", "k", "v", "A_log", "a", "dt_bias", "b"]
    call(a["q"], a["k"], a["v"], state, a["A_log"], a["a"], a["dt_bias"], a["b"], None, l2norm,
         output, new)
    close(output, out)
    close(new, final)
    assert torch.equal(state, before)
    with pytest.raises(ValueError, match="kind"):
        solution("mtp", "a_definition")
