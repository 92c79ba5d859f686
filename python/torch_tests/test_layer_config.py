# SPDX-License-Identifier: Apache-2.0
"""Layers from configurations, and the dtypes of their parameters."""

import copy
import types

import gdn
import gdn.torch
import pytest
import ranks
import torch
from torch.nn import functional

SIZES = dict(hidden_size=24, linear_num_key_heads=1, linear_num_value_heads=2,
             linear_key_head_dim=8, linear_value_head_dim=8, linear_conv_kernel_dim=4,
             rms_norm_eps=1e-5)


def config_of(**fields):
    fields = {"model_type": "qwen3_5_text", "hidden_act": "silu", **SIZES, **fields}
    return types.SimpleNamespace(**{name: x for name, x in fields.items() if x != "absent"})


@pytest.mark.parametrize("key, value", [
    ("model_type", "kimi_linear"), ("model_type", "absent"),
    ("hidden_act", "gelu"), ("hidden_act", "sigmoid"), ("output_gate_type", "tanh"),
    ("linear_window", 4), ("linear_num_key_heads", "absent"),
    ("linear_conv_kernel_dim", None)])
def test_what_the_layer_lacks(key, value):
    for config in (config_of(**{key: value}), vars(config_of(**{key: value}))):
        with pytest.raises(ValueError, match=f"^{key}: "):
            gdn.torch.GatedDeltaNet.from_config(config)


@pytest.mark.parametrize("model_type, layout", [
    ("qwen3_next", "qwen3_next"), ("qwen3_5_text", "qwen3_5"), ("qwen3_5_moe_text", "qwen3_5"),
    ("lara_mini", "qwen3_5")])
def test_models(model_type, layout):
    layer = gdn.torch.GatedDeltaNet.from_config(config_of(model_type=model_type))
    assert layer.layout == layout and layer.norm.eps == 1e-5
    outer = types.SimpleNamespace(model_type="qwen3_5", text_config=config_of(
        model_type=model_type, hidden_act="swish"))
    assert gdn.torch.GatedDeltaNet.from_config(outer).layout == layout
    assert gdn.torch.GatedDeltaNet.from_config(vars(outer)).layout == layout


def test_a_layout_for_a_model_that_is_not_known():
    config = config_of(model_type="mine")
    assert gdn.torch.GatedDeltaNet.from_config(config, layout="qwen3_next").in_proj_ba
    with pytest.raises(ValueError, match="layout: 'mine'"):
        gdn.torch.GatedDeltaNet.from_config(config, layout="mine")


@pytest.mark.parametrize("name, part", [("Qwen3NextConfig", None), ("Qwen3_5Config", "text_config"),
                                        ("Qwen3_5TextConfig", None)])
def test_configurations_of_transformers(name, part):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = getattr(transformers, name)()
    sizes = config if part is None else getattr(config, part)
    for key, value in SIZES.items():
        setattr(sizes, key, value)
    layer = gdn.torch.GatedDeltaNet.from_config(config)
    assert layer.sizes == dict(key_heads=1, value_heads=2, key_dim=8, value_dim=8)


@pytest.mark.parametrize("grad", [False, True])
def test_a_sigmoid_gate(grad):
    """The gated norm has the sigmoid of z in place of the SiLU."""
    layer = gdn.torch.GatedDeltaNet.from_config(config_of(output_gate_type="sigmoid"))
    other, x = copy.deepcopy(layer), torch.randn(2, 9, 24)

    def gated(rule, z):
        mean = rule.square().mean(-1, keepdim=True)
        return rule * (mean + 1e-5).rsqrt() * layer.norm.weight * functional.sigmoid(z)

    other.norm.forward = gated
    with torch.set_grad_enabled(grad):
        torch.testing.assert_close(layer(x), other(x), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("grad", [False, True])
def test_twice_the_sigmoid(grad, monkeypatch):
    """linear_allow_neg_eigval doubles beta, in the whole layer and in its parts."""
    layer = gdn.torch.GatedDeltaNet.from_config(config_of(linear_allow_neg_eigval=True))
    other, x = copy.deepcopy(layer), torch.randn(2, 9, 24)
    other.beta_kind, rule = gdn.BETA_SIGMOID, gdn.torch._functions.prefill

    def doubled(q, k, v, g, beta, beta_kind, **options):
        assert beta_kind == gdn.BETA_SIGMOID
        return rule(q, k, v, g, 2 * beta.sigmoid(), **options)

    with torch.set_grad_enabled(grad):
        got = layer(x)
        monkeypatch.setattr(gdn.torch._functions, "prefill", doubled)
        monkeypatch.setattr(other, "_plain_weights", lambda: None)
        torch.testing.assert_close(got, other(x), atol=1e-6, rtol=1e-5)


# ---- A_log and dt_bias ---------------------------------------------------------------------------

CONVERSIONS = {
    "dtype": lambda: gdn.torch.GatedDeltaNet(24, 1, 2, 8, 8, dtype=torch.bfloat16),
    "to": lambda: gdn.torch.GatedDeltaNet(24, 1, 2, 8, 8).to(torch.bfloat16),
    "to a device": lambda: gdn.torch.GatedDeltaNet(24, 1, 2, 8, 8).to("cpu", torch.bfloat16),
    "bfloat16": lambda: gdn.torch.GatedDeltaNet(24, 1, 2, 8, 8).bfloat16(),
    "half": lambda: gdn.torch.GatedDeltaNet(24, 1, 2, 8, 8).half(),
    "in a model": lambda: torch.nn.Sequential(gdn.torch.GatedDeltaNet(24, 1, 2, 8, 8)).half()[0],
    "to_empty": lambda: gdn.torch.GatedDeltaNet(24, 1, 2, 8, 8, device="meta",
                                                dtype=torch.bfloat16).to_empty(device="cpu")}


@pytest.mark.parametrize("how", CONVERSIONS)
def test_gates_stay_float32(how):
    layer = CONVERSIONS[how]()
    assert {p.dtype for n, p in layer.named_parameters() if n in ("A_log", "dt_bias")} \
        == {torch.float32}
    assert all(p.dtype.itemsize == 2 for n, p in layer.named_parameters() if "." in n)


def test_values_and_gradients_stay():
    layer = gdn.torch.GatedDeltaNet(24, 1, 2, 8, 8)
    layer.A_log.fill_(1 / 3)
    layer.A_log.grad = torch.full((2,), 1 / 7)
    before = layer.A_log
    layer.bfloat16()
    assert layer.A_log is before and layer.A_log.grad.dtype == torch.float32
    assert torch.equal(layer.A_log, torch.full((2,), 1 / 3))
    assert torch.equal(layer.A_log.grad, torch.full((2,), 1 / 7))
    tensors = {"l." + n: x for n, x in layer.state_dict().items()}
    other = gdn.torch.GatedDeltaNet(24, 1, 2, 8, 8, dtype=torch.bfloat16).load_layer(tensors, "l.")
    assert torch.equal(other.A_log, layer.A_log)
    assert layer.double().float().A_log.dtype == torch.float32


@pytest.mark.parametrize("how", ["load_layer", "HeadShare", "to"])
def test_the_decay_is_that_of_float32(how):
    """Tokens of zeros change a state by its decay alone."""
    layer = gdn.torch.GatedDeltaNet(24, 1, 2, 8, 8)
    layer.A_log.copy_(torch.tensor([-3.3, -4.7]))
    layer.dt_bias.copy_(torch.tensor([0.3, 0.7]))
    g = -layer.A_log.double().exp() * functional.softplus(layer.dt_bias.double())
    if how == "load_layer":
        other = gdn.torch.GatedDeltaNet(24, 1, 2, 8, 8, dtype=torch.bfloat16)
        layer = other.load_layer(layer.state_dict())
    elif how == "HeadShare":
        layer = ranks.run(1, lambda group: gdn.torch.HeadShare(layer.bfloat16(), group))[0]
    else:
        layer = layer.to(torch.bfloat16)
    cache, zeros = layer.new_cache(1), torch.zeros(1, 32, 24, dtype=torch.bfloat16)
    layer(torch.randn(1, 5, 24, dtype=torch.bfloat16), cache)
    layer(zeros[:, :4], cache)  # behind these the convolution has zeros too
    before = cache.state.double()
    layer(zeros, cache)
    want = before * (32 * g).exp()[:, None, None]
    torch.testing.assert_close(cache.state.double(), want, atol=1e-9, rtol=1e-5)


@pytest.mark.parametrize("config", [None, [1], "Qwen/Qwen3.5"])
def test_what_is_no_configuration(config):
    with pytest.raises(TypeError, match="^config: .*wanted a configuration"):
        gdn.torch.GatedDeltaNet.from_config(config)
