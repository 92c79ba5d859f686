# SPDX-License-Identifier: Apache-2.0
"""torch.func.vmap over the functions: results, and gradients of each element, as of calls apart."""

import gdn
import gdn.torch
import pytest
import torch

RAW = dict(gate=gdn.GATE_RAW, beta_kind=gdn.BETA_SIGMOID, norm=gdn.NORM_L2)


def rule(op):
    def run(q, k, v, a, b, A_log, dt_bias, state):
        out, last = op(q, k, v, a, b, A_log=A_log, dt_bias=dt_bias, state=state,
                       return_state=True, **RAW)
        return torch.cat([out.flatten(), last.flatten()])

    return run


def gdn2(q, k, v, g, b, w):
    return gdn.torch.prefill(q, k, v, -g.abs(), b, write_gate=w)


# Sizes of one element.
RULE = [(1, 20, 2, 8)] * 3 + [(1, 20, 2)] * 2 + [(2,)] * 2 + [(1, 2, 8, 8)]
CASES = [(rule(gdn.torch.prefill), RULE, (0,) * 5 + (None,) * 3),
         (rule(gdn.torch.prefill), RULE, (None, 1) + (None,) * 6),
         (rule(gdn.torch.prefill), RULE, (None,) * 5 + (0, None, None)),
         (gdn2, [(1, 20, 2, 8)] * 6, (None,) * 5 + (0,)),
         (rule(gdn.torch.decode), RULE, (None,) * 7 + (0,)),
         (gdn.torch.conv1d, [(2, 9, 6), (6, 4)], (0, None)),
         (gdn.torch.conv1d, [(2, 9, 6), (6, 4)], (None, 2)),
         (gdn.torch.l2norm, [(4, 5)], (1,)),
         (gdn.torch.rmsnorm_gated, [(3, 5), (3, 5), (5,)], (0, None, None)),
         (lambda *x: torch.cat(gdn.torch.gates(*x)), [(3, 4), (3, 4), (4,), (4,)],
          (0, 0, None, None))]


def element(x, dim, i):
    return x if dim is None else x.select(dim, i)


@pytest.mark.parametrize("function, sizes, dims", CASES)
def test_elements(function, sizes, dims):
    """Values, and the gradients of every input, have the bits of calls apart."""
    tensors = [torch.randn(*size) if dim is None else torch.randn(2, *size).movedim(0, dim)
               for size, dim in zip(sizes, dims)]
    places = tuple(range(len(tensors)))

    def loss(*x):
        return function(*x).square().sum()

    got = torch.func.vmap(function, in_dims=dims)(*tensors)
    slopes = torch.func.vmap(torch.func.grad(loss, places), in_dims=dims)(*tensors)
    for i in range(2):
        one = [element(x, dim, i) for x, dim in zip(tensors, dims)]
        assert torch.equal(got[i], function(*one))
        for slope, want in zip(slopes, torch.func.grad(loss, places)(*one)):
            assert torch.equal(slope[i], want)


def test_gradients_through_it():
    """The gradient of a tensor that all elements share is the sum over the elements."""
    x, w = torch.randn(3, 9, 6), torch.randn(6, 4, requires_grad=True)
    with torch.enable_grad():
        torch.func.vmap(lambda x: gdn.torch.conv1d(x, w))(x).square().sum().backward()
        got, w.grad = w.grad, None
        gdn.torch.conv1d(x, w).square().sum().backward()
    torch.testing.assert_close(got, w.grad)


def test_nested():
    q, k = torch.randn(2, 3, 5, 2, 4), torch.randn(3, 5, 2, 4)

    def function(q, k):
        return gdn.torch.prefill(q, k, k, norm=gdn.NORM_L2)

    got = torch.func.vmap(torch.func.vmap(function), in_dims=(0, None))(q, k)
    for i in range(2):
        for j in range(3):
            assert torch.equal(got[i, j], function(q[i, j], k[j]))


def test_a_shared_state_is_not_written():
    q, state = torch.randn(2, 5, 2, 8), torch.zeros(1, 2, 8, 8)
    with pytest.raises(RuntimeError, match="state: is written"):
        torch.func.vmap(lambda q: gdn.torch.prefill(q, q, q, state=state))(q)
    states = torch.zeros(2, *state.shape)
    torch.func.vmap(lambda q, state: gdn.torch.prefill(q, q, q, state=state))(q, states)
    for i in range(2):
        want = state.clone()
        gdn.torch.prefill(q[i], q[i], q[i], state=want)
        assert torch.equal(states[i], want)


def test_functions_of_transformers(modeling):
    """vmap takes transformers' functions before and after gdn.install("transformers")."""
    q, k, v = torch.randn(3, 2, 1, 20, 2, 8)
    g, b = -torch.rand(2, 1, 20, 2), torch.rand(2, 1, 20, 2)
    names = "torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"

    def mapped(name):
        return torch.func.vmap(lambda *x: getattr(modeling, name)(
            *x, use_qk_l2norm_in_kernel=True, initial_state=None, output_final_state=False)[0])

    theirs = [mapped(name)(q, k, v, g, b) for name in names]
    gdn.install("transformers")
    for name, want in zip(names, theirs):
        torch.testing.assert_close(mapped(name)(q, k, v, g, b), want, atol=1e-5, rtol=1e-4)
