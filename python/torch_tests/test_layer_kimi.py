# SPDX-License-Identifier: Apache-2.0
"""The layers of KDA and of OLMo-Hybrid beside those of transformers, from the same weights."""

import copy
import types

import pytest
import torch
from test_transformers_models import MADE, SIZES, VISION

import gdn
import gdn.torch
import gdn.transformers
from gdn.torch import GatedDeltaNet, KimiDeltaAttention

MODELS = {"kimi_linear": ("KimiLinearDeltaAttention", KimiDeltaAttention, {}),
          "glm5_next": ("Glm5NextTextLinearAttention", KimiDeltaAttention, {}),
          "glm5_next-": ("Glm5NextTextLinearAttention", KimiDeltaAttention,
                         dict(linear_lower_bound=None)),
          "bailing_hybrid": ("BailingHybridDeltaAttention", KimiDeltaAttention,
                             dict(num_attention_heads=2, head_dim=16)),
          "bailing_hybrid-": ("BailingHybridDeltaAttention", KimiDeltaAttention,
                              dict(kda_safe_gate=False)),
          "olmo_hybrid": ("OlmoHybridGatedDeltaNet", GatedDeltaNet, {}),
          "olmo_hybrid-": ("OlmoHybridGatedDeltaNet", GatedDeltaNet,
                           dict(linear_allow_neg_eigval=False))}


def config_of(name, **more):
    """The configuration of a tiny model, and its part for text."""
    module = gdn.transformers.modules().get(name)
    if module is None:
        pytest.skip(f"transformers has no {name}")
    config, _, sizes = MADE[name]
    sizes = {**SIZES, **sizes, **more}
    if name == "glm5_next":
        whole = getattr(module, config)(text_config=sizes, vision_config=VISION)
        return whole, whole.text_config
    whole = getattr(module, config)(**sizes)
    return whole, whole


def pair(key):
    """Returns transformers' layer, by torch's operators, and ours with its weights."""
    name, (layer, cls, more) = key.rstrip("-"), MODELS[key]
    whole, text = config_of(name, **more)
    theirs = getattr(gdn.transformers.modules()[name], layer)(text, 0)
    for n, p in theirs.named_parameters():
        p.data.normal_(std=0.5 if "A_log" in n or "dt_bias" in n else 0.2)
    theirs.o_norm.weight.data.add_(1)
    return theirs, cls.from_config(whole).load_layer(theirs.state_dict())


@pytest.mark.parametrize("key", MODELS)
@torch.enable_grad()
def test_values_and_gradients(modeling, key):
    theirs, ours = pair(key)
    x, dout = torch.randn(2, 70, 32), torch.randn(2, 70, 32)
    found = []
    for layer in (theirs, ours):
        given = x.clone().requires_grad_()
        y = layer(given)
        y = y[0] if isinstance(y, tuple) else y
        y.backward(dout)
        named = {n.removeprefix("forget_gate."): p.grad.flatten()
                 for n, p in layer.named_parameters()}
        found.append({"out": y, "hidden": given.grad, **named})
    wanted, got = found
    assert wanted.keys() == got.keys()
    for n, right in wanted.items():
        torch.testing.assert_close(got[n], right, atol=2e-5 * right.abs().max().item() + 1e-6,
                                   rtol=2e-4, msg=lambda m: f"{n}: {m}")


@pytest.mark.parametrize("key", MODELS)
def test_a_cache(modeling, key):
    """A prompt, then token by token, in slots; and packed rows."""
    theirs, ours = pair(key)
    x = torch.randn(2, 13, 32)
    y = theirs(x)
    wanted = y[0] if isinstance(y, tuple) else y
    cache, slots = ours.new_cache(3), torch.tensor([2, 0])
    parts = [ours(x[:, s:e], cache, slots=slots) for s, e in ((0, 9), (9, 10), (10, 13))]
    torch.testing.assert_close(torch.cat(parts, 1), wanted, atol=2e-5, rtol=2e-4)
    packed = ours(x.flatten(0, 1)[None], cu_seqlens=torch.tensor([0, 13, 26]))
    torch.testing.assert_close(packed.view(2, 13, 32), wanted, atol=2e-5, rtol=2e-4)


@pytest.mark.parametrize("key", MODELS)
def test_one_call(modeling, key, monkeypatch):
    """Without gradients the layer is one call of block(), with the values of its parts."""
    _, ours = pair(key)
    x, caches = torch.randn(2, 21, 32), [ours.new_cache(2), ours.new_cache(2)]
    parts = ours._composed(x, caches[0].conv_state, caches[0].state, None, {})
    monkeypatch.setattr("gdn.torch._layer.composed", None)
    torch.testing.assert_close(ours(x, caches[1]), parts, atol=2e-5, rtol=2e-4)
    for name in ("conv_state", "state"):
        torch.testing.assert_close(*(getattr(cache, name) for cache in caches), atol=2e-5,
                                   rtol=2e-4)


@pytest.mark.parametrize("key", ["kimi_linear", "olmo_hybrid", "bailing_hybrid"])
@torch.enable_grad()
def test_gradients_of_block(modeling, key):
    """block() with gradients is the layer with gradients."""
    _, ours = pair(key)
    x, weights = torch.randn(2, 9, 32), ours._plain_weights()
    weights = {n: w.detach().requires_grad_() for n, w in weights.items() if w is not None}
    norm = getattr(ours, ours._names()[1])
    y = gdn.torch.block(x, **weights, **ours.sizes, rms_eps=norm.eps, activation=norm.activation,
                        beta_kind=ours.beta_kind, gate_lower_bound=ours.gate_lower_bound or 0)
    assert torch.equal(y, ours(x))
    for loss in (y, ours(x)):
        loss.square().sum().backward()
    right = {n: p.grad for n, p in ours.named_parameters()}
    for ours_name, name in (("q_proj.weight", "in_proj_q"), ("dt_bias", "dt_bias"),
                            ("conv1d.weight", "conv_weight"), ("o_proj.weight", "out_proj")):
        assert torch.equal(weights[name].grad.flatten(), right[ours_name].flatten()), name


def test_names_of_checkpoints(modeling):
    """Kimi's checkpoints have three convolutions, and A_log of four dimensions."""
    theirs, ours = pair("kimi_linear")
    tensors = {n.removeprefix("forget_gate."): x for n, x in theirs.state_dict().items()}
    for name, x in zip(("q", "k", "v"), tensors.pop("conv1d.weight").chunk(3)):
        tensors[f"{name}_conv1d.weight"] = x
    assert tensors["A_log"].shape == (1, 1, 2, 1)
    text = config_of("kimi_linear")[1]
    other = KimiDeltaAttention.from_config(text).load_layer(
        {f"model.layers.0.self_attn.{n}": x for n, x in tensors.items()},
        "model.layers.0.self_attn.")
    x = torch.randn(1, 5, 32)
    assert torch.equal(other(x), ours(x))
    with pytest.raises(RuntimeError, match="q_proj"):
        other.load_layer({n: x for n, x in tensors.items() if n != "q_proj.weight"})


FIELDS = dict(model_type="kimi_linear", hidden_size=32, hidden_act="silu", rms_norm_eps=1e-5,
              linear_attn_config=dict(head_dim=16, num_heads=2, short_conv_kernel_size=4))


def test_config_json():
    """A checkpoint's own configuration, which has its sizes in linear_attn_config."""
    layer = KimiDeltaAttention.from_config(FIELDS)
    assert layer.sizes == dict(key_heads=2, value_heads=2, key_dim=16, value_dim=16)
    assert layer.gate_lower_bound is None and layer.o_norm.eps == 1e-5
    glm = {**FIELDS, "model_type": "glm5_next_text"}
    assert KimiDeltaAttention.from_config(glm).gate_lower_bound == -5
    part = dict(glm["linear_attn_config"], gate_lower_bound=None, safe_gate=False)
    layer = KimiDeltaAttention.from_config({**glm, "linear_attn_config": part})
    assert layer.gate_lower_bound is None
    glm = dict(model_type="glm5_next_text", hidden_size=32, rms_norm_eps=1e-6,
               linear_num_heads=2, linear_head_dim=16, linear_conv_kernel_dim=4)
    assert KimiDeltaAttention.from_config(glm).gate_lower_bound == -5  # as transformers has it
    ling = dict(model_type="bailing_hybrid", hidden_size=32, hidden_act="silu", rms_norm_eps=1e-6,
                num_attention_heads=2, head_dim=16, short_conv_kernel_size=4)
    assert KimiDeltaAttention.from_config(ling).gate_lower_bound == -5
    assert KimiDeltaAttention.from_config({**ling, "kda_safe_gate": False}).gate_lower_bound is None


@pytest.mark.parametrize("key, value", [
    ("model_type", "qwen3_next"), ("hidden_act", "gelu"), ("hidden_size", None),
    ("rms_norm_eps", None)])
def test_what_the_layer_lacks(key, value):
    for config in ({**FIELDS, key: value}, types.SimpleNamespace(**{**FIELDS, key: value})):
        with pytest.raises(ValueError, match=f"^{key}: "):
            KimiDeltaAttention.from_config(config)
    for more in (dict(linear_allow_neg_eigval=True), dict(kda_other=1),
                 dict(output_gate_type="silu")):
        with pytest.raises(ValueError, match=f"^{next(iter(more))}: "):
            KimiDeltaAttention.from_config({**FIELDS, **more})
    part = dict(FIELDS["linear_attn_config"], allow_neg_eigval=True)
    with pytest.raises(ValueError, match="^linear_attn_config: allow_neg_eigval: True"):
        KimiDeltaAttention.from_config({**FIELDS, "linear_attn_config": part})
    with pytest.raises(ValueError, match="^linear_num_heads: the configuration has none"):
        KimiDeltaAttention.from_config({**FIELDS, "linear_attn_config": {}})


def test_the_gates_stay_float32():
    layer = KimiDeltaAttention.from_config(FIELDS).bfloat16()
    assert {layer.A_log.dtype, layer.dt_bias.dtype} == {torch.float32}
    x = torch.randn(1, 9, 32)
    exact = copy.deepcopy(layer).float()(x)
    assert (layer(x.bfloat16()) - exact).norm() < 0.03 * exact.norm()
    with pytest.raises(TypeError, match="layout kimi_linear"):
        gdn.torch.HeadShare(layer)
