# SPDX-License-Identifier: Apache-2.0
"""gdn.causal_conv1d against torch's convolution in float64."""

import pytest
import torch
from torch.nn import functional

from gdn.causal_conv1d import causal_conv1d_fn, causal_conv1d_update

B, D, T, W, P = 3, 24, 9, 4, 5


def reference(x, weight, bias, past, activation):
    full = torch.cat([past, x], -1).double()
    last = full[..., 1 + full.shape[-1] - x.shape[-1] - W:]
    y = functional.conv1d(last, weight.double()[:, None],
                          bias.double(), groups=D)
    return functional.silu(y) if activation else y, full


def close(got, wanted):
    torch.testing.assert_close(got.double(), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("activation", [None, "silu", "swish"])
@pytest.mark.parametrize("last", [False, True])
def test_whole(activation, last):
    x, weight, bias = torch.randn(B, D, T), torch.randn(D, W), torch.randn(D)
    if last:
        x = x.transpose(1, 2).contiguous().transpose(1, 2)
    past = torch.randn(B, D, W - 1)
    before = past.clone()
    close(causal_conv1d_fn(x, weight, bias, activation=activation),
          reference(x, weight, bias, torch.zeros_like(past), activation)[0])
    wanted, full = reference(x, weight, bias, past, activation)
    close(causal_conv1d_fn(x, weight, bias, None, past, activation=activation), wanted)
    to = torch.empty(B, D, W - 1)
    for given in (None, to):
        out, final = causal_conv1d_fn(x, weight, bias, None, past, True, given, activation)
        close(out, wanted)
        close(final, full[..., 1 - W:])
    assert final is to and torch.equal(past, before)


def test_packed():
    x, weight, bias = torch.randn(2, D, T), torch.randn(D, W), torch.randn(D)
    seq_idx = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1, 2], [0, 1, 1, 1, 1, 1, 1, 1, 1]],
                           dtype=torch.int32)
    out = causal_conv1d_fn(x, weight, bias, seq_idx)
    for row, start, end in ((0, 0, 3), (0, 3, 8), (0, 8, 9), (1, 0, 1), (1, 1, 9)):
        part = x[row:row + 1, :, start:end]
        close(out[row:row + 1, :, start:end],
              reference(part, weight, bias, x.new_zeros(1, D, W - 1), None)[0])


def package(x, weight, bias, seq_idx):
    """causal-conv1d 1.6 and 1.7 in float64: a tap counts if its token has the output's number."""
    x, ids = functional.pad(x.double(), (W - 1, 0)), functional.pad(seq_idx, (W - 1, 0), value=-9)
    same = ids.unfold(-1, W, 1) == seq_idx[..., None]
    y = (x.unfold(-1, W, 1) * same[:, None] * weight.double()[:, None]).sum(-1) + bias[:, None]
    return y.masked_fill((seq_idx < 0)[:, None], 0)


@torch.enable_grad()
def test_numbers_as_in_the_package():
    """Padding has no output and no gradient; a number that comes back goes on."""
    seq_idx = torch.tensor([[0, 0, 1, 0, 0, 0, 2, 2, 1], [-1, 3, 3, -1, -1, 3, 4, -2, -2]])
    inputs = torch.randn(2, D, T), torch.randn(D, W), torch.randn(D)
    weights, results = torch.randn(2, D, T), []
    for call in (causal_conv1d_fn, package):
        given = [x.clone().requires_grad_() for x in inputs]
        out = call(*given, seq_idx)
        (out * weights).sum().backward()
        results.append([out.detach(), *(x.grad for x in given)])
    for got, wanted in zip(*results):
        close(got, wanted.double())
    assert not results[0][0][1, :, 7:].any() and not results[0][1][1, :, 7:].any()
    x = inputs[0].clone()
    x[1, :, 7:] = torch.nan
    given = [x, *(t.clone().requires_grad_() for t in inputs[1:])]
    (causal_conv1d_fn(*given, seq_idx) * weights).sum().backward()
    close(given[1].grad, results[1][2].double())


def test_named_arguments():
    x, weight, state = torch.randn(1, D, 3), torch.randn(D, W), torch.zeros(1, D, W - 1)
    for text, kind, call in (
            ("seq_idx", ValueError, lambda: causal_conv1d_fn(x, weight, None, torch.zeros(1, 2))),
            ("seq_idx", ValueError, lambda: causal_conv1d_fn(x, weight, None, torch.zeros(1, 4))),
            ("seq_idx", TypeError, lambda: causal_conv1d_fn(x, weight, None, [[0, 0, 0]])),
            ("x", TypeError, lambda: causal_conv1d_fn(x.numpy(), weight)),
            ("weight", TypeError, lambda: causal_conv1d_fn(x, None)),
            ("initial_states", ValueError,
             lambda: causal_conv1d_fn(x, weight, initial_states=torch.zeros(2, D, W - 1))),
            ("final_states_out", ValueError, lambda: causal_conv1d_fn(
                x, weight, return_final_states=True, final_states_out=torch.zeros(2, D, W - 1))),
            ("conv_state", ValueError,
             lambda: causal_conv1d_update(x[..., 0], torch.zeros(2, D, W - 1), weight)),
            ("conv_state", TypeError, lambda: causal_conv1d_update(x[..., 0], None, weight)),
            ("x", ValueError, lambda: causal_conv1d_update(x[0, :, 0], state, weight))):
        with pytest.raises(kind, match=f"^{text}: "):
            call()


@pytest.mark.parametrize("size", [W - 1, W, W + 2])
@pytest.mark.parametrize("tokens", [None, 1, 3])
def test_update(size, tokens):
    pool, weight, bias = torch.randn(P, D, size), torch.randn(D, W), torch.randn(D)
    slots = torch.tensor([4, 0, 2], dtype=torch.int32)
    x = torch.randn(B, D) if tokens is None else torch.randn(B, D, tokens)
    wanted, full = reference(x.view(B, D, -1), weight, bias, pool[slots.long()], "silu")
    other = pool[[1, 3]].clone()
    out = causal_conv1d_update(x, pool, weight, bias, "silu", conv_state_indices=slots)
    assert out.shape == x.shape
    close(out, wanted.view(x.shape))
    close(pool[slots.long()], full[..., -size:])
    assert torch.equal(pool[[1, 3]], other)


def test_refusals():
    x, weight, state = torch.randn(B, D, T), torch.randn(D, W), torch.zeros(B, D, W - 1)
    with pytest.raises(NotImplementedError, match="activation"):
        causal_conv1d_fn(x, weight, activation="relu")
    with pytest.raises(NotImplementedError, match="circular"):
        causal_conv1d_update(x, state, weight, cache_seqlens=torch.zeros(B, dtype=torch.int32))
    with pytest.raises(NotImplementedError, match="seq_idx"):
        causal_conv1d_fn(x, weight, None, torch.zeros(B, T, dtype=torch.int32), state)
    with torch.enable_grad(), pytest.raises(NotImplementedError, match="weight requires"):
        causal_conv1d_update(x, state, weight.requires_grad_())
