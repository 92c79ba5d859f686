# SPDX-License-Identifier: Apache-2.0
"""Which tokens of a layer count: masks, packed batches, and rows that no sequence has."""

import gdn.torch
import pytest
import torch

T = 12
DTYPES = [torch.bool, torch.int64, torch.int32, torch.uint8, torch.float32, torch.bfloat16]
MASKS = {"left": [0] * 5 + [1] * 7, "right": [1] * 9 + [0] * 3, "hole": [1, 1, 1, 0, 0] + [1] * 7,
         "holes": [0, 1, 0, 1, 1, 0, 1, 0, 0, 1, 1, 0], "none": [0] * 12, "all": [1] * 12}
with_and_without = pytest.mark.parametrize("grad", [False, True])


@pytest.fixture
def layer(device):
    layer = gdn.torch.GatedDeltaNet(24, 2, 4, 8, 8, device=device)
    for p in layer.parameters():
        p.normal_(0, 0.4)
    return layer


def near(got, want):
    limit = 2e-5 if got.device.type == "cpu" else 2e-3
    torch.testing.assert_close(got, want, atol=limit, rtol=limit)


def masks(dtype, device):
    return torch.tensor(list(MASKS.values()), device=device).to(dtype)


@with_and_without
@pytest.mark.parametrize("dtype", DTYPES)
def test_masks(layer, device, dtype, grad):
    """A row gives what its kept tokens give alone, and 0 for masked tokens, whatever these hold."""
    mask = masks(dtype, device)
    x = torch.randn(len(mask), T, 24, device=device)
    kept = mask.bool()
    dirty = x.masked_fill(~kept[..., None], float("nan"))
    with torch.set_grad_enabled(grad):
        out = layer(dirty, attention_mask=mask)
    assert not out[~kept].any()
    for row, keep, got in zip(x, kept, out):
        if keep.any():
            near(got[keep], layer(row[None, keep])[0])


def test_gradients_of_masks(layer, device):
    """Gradients are those of the kept tokens alone, and 0 for masked tokens."""
    mask = masks(torch.int64, device)
    x = torch.randn(len(mask), T, 24, device=device)
    kept = mask.bool()
    names = [name for name, _ in layer.named_parameters()]
    with torch.enable_grad():
        dirty = x.masked_fill(~kept[..., None], float("inf")).requires_grad_()
        got = torch.autograd.grad(layer(dirty, attention_mask=mask).square().sum(),
                                  [dirty, *layer.parameters()])
        alone = sum(layer(row[None, keep]).square().sum() for row, keep in zip(x, kept)
                    if keep.any())
        want = torch.autograd.grad(alone, list(layer.parameters()))
    assert not got[0][~kept].any() and got[0][kept].any()
    for name, a, b in zip(names, got[1:], want):
        assert (a - b).abs().max() <= (1e-5 if device == "cpu" else 1e-2) * b.abs().max(), name


def test_masks_with_a_cache(layer, device):
    """States are those after the kept tokens; later masks have a column for every token so far."""
    mask = masks(torch.int64, device)
    x = torch.randn(len(mask), T, 24, device=device)
    cache, other = layer.new_cache(len(mask)), layer.new_cache(len(mask))
    for a, b in ((0, 7), (7, 8), (8, 9), (9, T)):
        layer(x[:, a:b], cache, attention_mask=mask[:, :b])
    for i, (row, keep) in enumerate(zip(x, mask.bool())):
        if keep.any():
            layer(row[None, keep], other, slots=torch.tensor([i], device=device))
    near(cache.state, other.state)
    near(cache.conv_state, other.conv_state)


@with_and_without
def test_a_mask_beside_cu_seqlens(layer, device, grad):
    """Sequences stay apart, and each is that of its kept tokens."""
    cuts = (1, 4, 4, 9, T)
    cu = torch.tensor(cuts, device=device)
    for row in masks(torch.int64, device):
        x = torch.randn(1, T, 24, device=device)
        with torch.set_grad_enabled(grad):
            out = layer(x, cu_seqlens=cu, attention_mask=row[None])[0]
        assert not out[~row.bool()].any() and not out[:1].any()
        for a, b in zip(cuts, cuts[1:]):
            keep = row[a:b].bool()
            if keep.any():
                near(out[a:b][keep], layer(x[:, a:b][:, keep])[0])


def test_masks_compiled(layer, device):
    """No graph break, with gradients too."""
    mask = masks(torch.int64, device)
    x = torch.randn(len(mask), T, 24, device=device)

    def call(x):
        return layer(x, attention_mask=mask)

    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            near(torch.compile(call, fullgraph=True, backend="aot_eager")(x), call(x))


@pytest.mark.parametrize("mask, text", [
    (torch.ones(1, T - 1), r"\[1\]\[11\], wanted \[1\]\[12\]"),
    (torch.ones(1, T + 1), r"\[1\]\[13\], wanted \[1\]\[12\]"),
    (torch.ones(2, T), r"\[2\]\[12\], wanted \[1\]\[12\]"),
    (torch.ones(T), r"\[12\], wanted \[1\]\[12\]"),
    (torch.ones(1, 1, T, T), r"\[1\]\[1\]\[12\]\[12\], wanted"),
    (torch.full((1, T), 0.5), "holds 0.5, wanted 0 and 1"),
    (torch.full((1, T), -1e9), "holds -1000000000.0, wanted 0 and 1"),
    (torch.arange(T)[None] // 4, "holds 2, wanted 0 and 1 alone; documents"),
    ([[1] * T], "list, wanted a tensor"),
])
def test_masks_that_are_refused(mask, text):
    layer = gdn.torch.GatedDeltaNet(24, 1, 2, 8, 8)
    for grad in (False, True):
        with torch.set_grad_enabled(grad), pytest.raises((TypeError, ValueError),
                                                         match=f"attention_mask: {text}"):
            layer(torch.randn(1, T, 24), attention_mask=mask)


@pytest.mark.parametrize("name, value, text", [
    ("seq_idx", torch.zeros(1, 2, dtype=torch.int64), r"\[1\]\[2\], wanted \[1\]\[12\]"),
    ("seq_idx", torch.zeros(T + 1, dtype=torch.int64), r"\[13\], wanted"),
    ("position_ids", torch.arange(T - 1)[None], r"\[1\]\[11\], wanted \[1\]\[12\]"),
    ("position_ids", torch.arange(T), r"\[12\], wanted \[1\]\[12\]"),
    ("position_ids", torch.arange(T).expand(3, 1, T), r"\[3\]\[1\]\[12\], wanted \[4\]\[1\]"),
    ("slots", torch.arange(1), "given without a cache"),
])
def test_descriptions_that_are_refused(name, value, text):
    layer = gdn.torch.GatedDeltaNet(24, 1, 2, 8, 8)
    with pytest.raises(ValueError, match=f"{name}: {text}"):
        layer(torch.randn(1, T, 24), **{name: value})


def test_position_ids_of_four_rows(layer, device):
    """The first has the positions of text, as in transformers."""
    text = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3, 4]], device=device)
    x = torch.randn(1, T, 24, device=device)
    rows = torch.stack([text, *torch.arange(3 * T, device=device).view(3, 1, T)])
    assert torch.equal(layer(x, position_ids=rows), layer(x, position_ids=text))


@pytest.mark.parametrize("how", [{}, dict(slots=torch.arange(1))])
def test_caches_that_are_refused(how):
    layer = gdn.torch.GatedDeltaNet(24, 1, 2, 8, 8)
    cache = layer.new_cache(2)
    with pytest.raises(ValueError, match=r"slots: \[1\], wanted \[3\]|cache: 2 slots for 3 seq"):
        layer(torch.randn(3, T, 24), cache, **how)


@pytest.mark.parametrize("name", ["hidden_states", "cu_seqlens", "seq_idx", "position_ids",
                                  "attention_mask", "slots", "cache"])
def test_what_is_no_tensor(name):
    layer = gdn.torch.GatedDeltaNet(24, 1, 2, 8, 8)
    with pytest.raises(TypeError, match=f"{name}: list, wanted"):
        layer(**{"hidden_states": torch.randn(1, T, 24), name: [0, T]})
    with pytest.raises(TypeError, match="hidden_states: None, wanted a tensor"):
        layer(None)


@pytest.mark.parametrize("name", ["cache", "slots", "cu_seqlens", "seq_idx", "attention_mask"])
def test_what_is_refused_beside_a_token_layout(name):
    layer = gdn.torch.GatedDeltaNet(24, 1, 2, 8, 8)
    with pytest.raises(ValueError, match=f"{name}: given beside token_layout"):
        layer(torch.randn(1, T, 24), token_layout=object(), **{name: torch.ones(1)})


def fill_memory():
    """Fills what the allocator hands out next with NaN."""
    for size in (64, 256, 1024, 4096):
        torch.full((16, size), float("nan"))


@with_and_without
@pytest.mark.parametrize("cuts", [(5, 9, 12), (0, 4, 7), (3, 3, 8)])
def test_rows_of_no_sequence(layer, device, cuts, grad):
    """They are 0 and have no gradient."""
    x, cu = torch.randn(1, T, 24, device=device), torch.tensor(cuts, device=device)
    parts = [(a, b) for a, b in zip(cuts, cuts[1:]) if a < b]
    fill_memory()
    with torch.set_grad_enabled(grad):
        leaf = x.clone().requires_grad_(grad)
        out = layer(leaf, cu_seqlens=cu)
        alone = [layer(x[:, a:b]) for a, b in parts]
    for (a, b), want in zip(parts, alone):
        near(out[:, a:b], want)
    inside = torch.zeros(T, dtype=torch.bool, device=device)
    inside[cuts[0]:cuts[-1]] = True
    assert not out[0, ~inside].any()
    if not grad:
        return
    got = torch.autograd.grad(out, [leaf, *layer.parameters()], torch.ones_like(out))
    want = torch.autograd.grad(alone, list(layer.parameters()), [torch.ones_like(y) for y in alone])
    assert not got[0][0, ~inside].any()
    for a, b in zip(got[1:], want):
        torch.testing.assert_close(a, b, atol=1e-4 * b.abs().max().item(), rtol=1e-3)


def test_errors_name_the_arguments_of_the_layer():
    """Operators know hidden_states and slots by other names."""
    layer, x = gdn.torch.GatedDeltaNet(24, 2, 4, 8, 8), torch.randn(2, T, 24)
    cache = layer.new_cache(2)
    for slots, text in (([0, 9], "slots: slot 9"), ([0.0, 1.0], "slots: GDN_F32")):
        with torch.no_grad(), pytest.raises(RuntimeError, match=f"^gdn::block: {text}"):
            layer(x, cache, slots=torch.tensor(slots))
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            for wrong in (x[0, 0], x[None]):
                with pytest.raises(ValueError, match="^hidden_states: .*wanted .B..T..hidden."):
                    layer(wrong)
            with pytest.raises(ValueError, match=r"^hidden_states: \[12\]\[24\]"):
                layer(x[0], attention_mask=torch.ones(T))
            with pytest.raises(ValueError, match="^attention_mask: a number, wanted"):
                layer(x, attention_mask=torch.tensor(1))


def test_seq_idx_beside_cu_seqlens():
    layer, x = gdn.torch.GatedDeltaNet(24, 2, 4, 8, 8), torch.randn(1, T, 24)
    cu, ids = torch.tensor([0, 5, T]), (torch.arange(T) >= 5).int()[None]
    assert torch.equal(layer(x, cu_seqlens=cu, seq_idx=ids), layer(x, cu_seqlens=cu))
    with pytest.raises(ValueError, match=r"^seq_idx: \[1\]\[3\], wanted \[1\]\[12\]"):
        layer(x, cu_seqlens=cu, seq_idx=ids[:, :3])
