# SPDX-License-Identifier: Apache-2.0
"""Gradients of the operators around the rule, and of whole layers, against torch in float64."""

import gdn
import gdn.causal_conv1d
import gdn.torch
import pytest
import samples
import torch
from test_gradients import agree, grads, gradients  # noqa: F401 - the fixture
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

B, T, D, W, H = 2, 9, 12, 4, 5


def leaves(**shapes):
    return {name: torch.randn(shape).requires_grad_() for name, shape in shapes.items()}


def conv64(x, weight, bias, state, is_silu=True):
    """out and the last inputs of a convolution over [B][T][D], in float64."""
    full = torch.cat([state.double(), x.double().transpose(1, 2)], -1)
    rows = full[..., full.shape[-1] - x.shape[1] - W + 1:]
    out = functional.conv1d(rows, weight.double()[:, None], bias.double(), groups=D)
    out = functional.silu(out) if is_silu else out
    return out.transpose(1, 2), full[..., full.shape[-1] - state.shape[-1]:]


def gates64(a, b, A_log, dt_bias):
    a, b, A_log, dt_bias = (x.double() for x in (a, b, A_log, dt_bias))
    return -A_log.exp() * functional.softplus(a + dt_bias), b.sigmoid()


def norm64(x, z, weight, gate=functional.silu):
    x, z, weight = x.double(), z.double(), weight.double()
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight * gate(z)


# ---- Operators -----------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", [gdn.ACT_NONE, gdn.ACT_SILU])
@pytest.mark.parametrize("size", [W - 1, W + 2])
def test_conv1d(activation, size):
    a = leaves(x=(B, T, D), weight=(D, W), bias=(D,), state=(B, D, size))
    w = torch.randn(B, T, D).double(), torch.randn(B, D, size).double()
    got = grads(lambda: gdn.torch.conv1d(**a, return_state=True, activation=activation), a, w)
    agree(got, grads(lambda: conv64(**a, is_silu=activation == gdn.ACT_SILU), a, w), a)


def test_conv1d_packed():
    """A packed batch with an empty sequence has the gradients of its sequences one by one."""
    a = leaves(x=(T, D), weight=(D, W), bias=(D,), state=(3, D, W - 1))
    cuts, w = (0, 5, 5, T), (torch.randn(T, D).double(), torch.randn(3, D, W - 1).double())

    def alone():
        parts = [conv64(a["x"][None, start:end], a["weight"], a["bias"], a["state"][i:i + 1])
                 if start < end else (a["x"][None, :0], a["state"][i:i + 1])
                 for i, (start, end) in enumerate(zip(cuts, cuts[1:]))]
        return torch.cat([out[0] for out, _ in parts]), torch.cat([last for _, last in parts])

    got = grads(lambda: gdn.torch.conv1d(**a, return_state=True, activation=gdn.ACT_SILU,
                                         cu_seqlens=torch.tensor(cuts)), a, w)
    agree(got, grads(alone, a, w), a)


def test_final_states_of_conv1d():
    """return_state=True without gradients: the bits of those with gradients, and no pool."""
    a = leaves(x=(B, T, D), weight=(D, 1, W), state=(B, D, W))
    want = gdn.torch.conv1d(**a, return_state=True)
    before = a["state"].clone()
    with torch.no_grad():
        got = gdn.torch.conv1d(**a, return_state=True)
        assert torch.equal(a["state"], before) and all(map(torch.equal, got, want))
        with pytest.raises(RuntimeError, match="read_slots"):
            gdn.torch.conv1d(**a, return_state=True, read_slots=torch.arange(B))


def test_gates():
    a = leaves(a=(B, T, H), b=(B, T, H), A_log=(H,), dt_bias=(H,))
    w = torch.randn(B, T, H).double(), torch.randn(B, T, H).double()
    agree(grads(lambda: gdn.torch.gates(**a), a, w), grads(lambda: gates64(**a), a, w), a)


@pytest.mark.parametrize("gate", ["silu", "sigmoid"])
def test_rmsnorm_gated(gate):
    a, w = leaves(x=(B, T, D), z=(B, T, D), weight=(D,)), (torch.randn(B, T, D).double(),)
    activation = dict(silu=gdn.ACT_SILU, sigmoid=gdn.ACT_SIGMOID)[gate]
    got = grads(lambda: (gdn.torch.rmsnorm_gated(**a, activation=activation),), a, w)
    want = grads(lambda: (norm64(**a, gate=getattr(torch.nn.functional, gate)),), a, w)
    agree(got, want, a)


@pytest.mark.parametrize("op", ["conv1d", "gates", "rmsnorm_gated"])
def test_one_input_alone(op):
    """Only a tensor that requires a gradient gets one: with the same bits, in its own dtype."""
    a = dict(conv1d=dict(x=(B, T, D), weight=(D, W), bias=(D,)),
             gates=dict(a=(B, T, H), b=(B, T, H), A_log=(H,), dt_bias=(H,)),
             rmsnorm_gated=dict(x=(B, T, D), z=(B, T, D), weight=(D,)))[op]
    a = {n: x.bfloat16().detach().requires_grad_() for n, x in leaves(**a).items()}

    def call(**inputs):
        found = getattr(gdn.torch, op)(**inputs)
        return found if isinstance(found, tuple) else (found,)

    w = [torch.randn(out.shape).double() for out in call(**a)]
    want = dict(zip(a, grads(lambda: call(**a), a, w)))
    for name in a:
        one = {n: x if n == name else x.detach() for n, x in a.items()}
        got, = grads(lambda: call(**one), {name: a[name]}, w)
        assert got.dtype == torch.bfloat16 and torch.equal(got, want[name]), name


def test_causal_conv1d():
    a = leaves(x=(B, D, T), weight=(D, W), bias=(D,), initial_states=(B, D, W - 1))
    w = torch.randn(B, D, T).double(), torch.randn(B, D, W - 1).double()

    def want():
        out, last = conv64(a["x"].transpose(1, 2), a["weight"], a["bias"], a["initial_states"])
        return out.transpose(1, 2), last

    got = grads(lambda: gdn.causal_conv1d.causal_conv1d_fn(
        **a, return_final_states=True, activation="silu"), a, w)
    agree(got, grads(want, a, w), a)


# ---- Layers --------------------------------------------------------------------------------------


def layer_of(layout, value_dim=8):
    torch.manual_seed(1)
    layer = gdn.torch.GatedDeltaNet(16, 2, 4, 16, value_dim, layout=layout)
    with torch.no_grad():
        for p in layer.parameters():
            p.normal_(0, 0.5)
    return layer


def by_torch(layer, x, dtype=torch.float64):
    """The layer by torch's operators, all in float64 but for projections and convolution."""
    hk, hv, K, V = layer.sizes.values()
    w, x = {n: p.to(dtype) for n, p in layer.named_parameters()}, x.to(dtype)

    def project(name):
        return functional.linear(x, w[f"in_proj_{name}.weight"])

    if layer.layout == "qwen3_next":
        rows, ba = project("qkvz").unflatten(-1, (hk, -1)), project("ba").unflatten(-1, (hk, -1))
        q, k, v, z = (p.flatten(-2) for p in rows.split((K, K, hv // hk * V, hv // hk * V), -1))
        mixed = torch.cat([q, k, v], -1)
        b, a = (p.flatten(-2) for p in ba.chunk(2, -1))
    else:
        mixed, z, b, a = map(project, ("qkv", "z", "b", "a"))
    rows = functional.pad(mixed.transpose(1, 2), (3, 0))
    mixed = functional.silu(functional.conv1d(rows, w["conv1d.weight"], groups=rows.shape[1]))
    q, k, v = mixed.transpose(1, 2).split((hk * K, hk * K, hv * V), -1)
    unit = [p * (p.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
            for p in (q.unflatten(-1, (hk, K)), k.unflatten(-1, (hk, K)))]
    g, beta = gates64(a, b, w["A_log"], w["dt_bias"])
    out, _ = samples.reference(*unit, v.unflatten(-1, (hv, V)), g, beta,
                               x.new_zeros(len(x), hv, V, K))
    out = norm64(out, z.unflatten(-1, (hv, V)), w["norm.weight"])
    return functional.linear(out.flatten(-2).to(dtype), w["out_proj.weight"])


def of_layer(layer, x):
    return {"x": x, **dict(layer.named_parameters())}


def sample():
    return torch.randn(B, T, 16).requires_grad_(), (torch.randn(B, T, 16).double(),)


@pytest.mark.parametrize("value_dim", [8, 512])
@pytest.mark.parametrize("layout", ["qwen3_5", "qwen3_next"])
def test_layer(layout, value_dim):
    """Every parameter has a gradient, and the output is that of inference to rounding."""
    (x, w), layer = sample(), layer_of(layout, value_dim)
    leaves = of_layer(layer, x)
    got = grads(lambda: (layer(x),), leaves, w)
    agree(got, grads(lambda: (by_torch(layer, x),), leaves, w), leaves, 1e-5)
    with torch.no_grad():
        want = layer(x)
    torch.testing.assert_close(layer(x), want, atol=1e-5, rtol=1e-5)


def test_layer_masked():
    """Tokens that a mask leaves out have no gradient; packed rows have those of each row alone."""
    (x, w), layer, mask = sample(), layer_of("qwen3_5"), torch.ones(B, T)
    leaves, mask[1, :4] = of_layer(layer, x), 0
    got = grads(lambda: (layer(x, attention_mask=mask),), leaves, w)
    cu = torch.tensor([0, T, 2 * T - 4])
    rows = torch.cat([w[0][0], w[0][1, 4:]])
    want = grads(lambda: layer(torch.cat([x[0], x[1, 4:]])[None], cu_seqlens=cu), leaves, [rows])
    agree(got, want, leaves, 1e-6)
    assert not got[0][1, :4].any()


@pytest.mark.parametrize("how", ["compile", "checkpoint"])
def test_layer_transformed(how):
    """torch.compile without a graph break and activation checkpointing keep the gradients."""
    (x, w), layer = sample(), layer_of("qwen3_5")
    leaves = of_layer(layer, x)
    want = grads(lambda: (layer(x),), leaves, w)
    if how == "compile":
        call = torch.compile(layer, fullgraph=True, backend="aot_eager")
    else:
        def call(x):
            return checkpoint(layer, x, use_reentrant=False)
    agree(grads(lambda: (call(x),), leaves, w), want, leaves, 1e-6)


def test_layer_under_autocast():
    """Projections are bfloat16, parameters and their gradients float32; errors are at most those of
    torch's own path, which has the rule in float64."""
    (x, w), layer = sample(), layer_of("qwen3_next")
    leaves = of_layer(layer, x)
    want = grads(lambda: (by_torch(layer, x),), leaves, w)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x)
        got = grads(lambda: (out,), leaves, w)
        other = grads(lambda: (by_torch(layer, x, torch.float32),), leaves, w)
        with torch.no_grad():  # autocast holds where no gradient is needed too
            assert torch.equal(layer(x), out)
            cache = layer.new_cache(B)
            parts = torch.cat([layer(y, cache) for y in x.split([x.shape[1] - 1, 1], 1)], 1)
            assert (parts - out).norm() <= 0.01 * out.norm()
    assert out.dtype == torch.bfloat16 and all(d.dtype == torch.float32 for d in got)
    for name, ours, torchs, exact in zip(leaves, got, other, want):
        assert (ours - exact).norm() <= 1.5 * (torchs - exact).norm(), name


def test_what_the_layer_refuses():
    (x, _), layer = sample(), layer_of("qwen3_5")
    with pytest.raises(RuntimeError, match="cache: its states would be written in place"):
        layer(x, layer.new_cache(B))
    with pytest.raises(ValueError, match="slots: given without a cache"):
        layer(x, slots=torch.arange(B))
    weights, cache = layer._plain_weights(), layer.new_cache(B)
    for name in ("conv_state", "state"):
        with torch.enable_grad(), pytest.raises(RuntimeError, match=f"^{name}: .*write=gdn.WRITE"):
            gdn.torch.block(x, **weights, **layer.sizes, **{name: getattr(cache, name)})
