# SPDX-License-Identifier: Apache-2.0
"""Adapters, shards and projections of eight bits in the layers of Kimi-Linear and OLMo-Hybrid."""

import copy

import gdn.torch
import pytest
import torch
from test_layer_children import (Int8, backward, by_bitsandbytes, by_torchao, expect_sharded, near,
                                 sample)
from torch import nn

GATES = ("f_a_proj", "f_b_proj", "g_a_proj", "g_b_proj")
LAYERS = {"kda": (*GATES, "q_proj", "k_proj", "v_proj", "b_proj", "o_proj"),
          "olmo": ("q_proj", "k_proj", "v_proj", "g_proj", "b_proj", "a_proj", "o_proj")}
each_layer = pytest.mark.parametrize("which", LAYERS)


def layer_of(which):
    layer = (gdn.torch.KimiDeltaAttention(24, 2, 8) if which == "kda" else
             gdn.torch.GatedDeltaNet(24, 1, 2, 8, 8, layout="olmo_hybrid"))
    for p in (layer.A_log, layer.dt_bias):
        nn.init.uniform_(p, -1, 1)
    return layer


def by_parts(layer, x):
    """A prompt and a token, through a cache."""
    cache = layer.new_cache(len(x))
    return torch.cat([layer(part.detach(), cache) for part in x.split(x.shape[1] - 1, 1)], 1)


@each_layer
def test_peft(which):
    peft = pytest.importorskip("peft", reason="peft is not installed")
    layer, x = layer_of(which), sample()
    config = peft.LoraConfig(r=2, target_modules=list(LAYERS[which]), init_lora_weights=False)
    model = peft.get_peft_model(nn.ModuleDict({"attention": layer}), config)
    with torch.enable_grad():
        out = layer(x)
        backward(out)
    adapters = [p for n, p in layer.named_parameters() if "lora" in n]
    assert len(adapters) == 2 * len(LAYERS[which]) and all(p.grad.any() for p in adapters)
    near(by_parts(layer, x), out)
    near(model.merge_and_unload()["attention"](x), out)


def by_hand(layer):
    for name, child in list(layer.named_children()):
        if type(child) is nn.Linear:
            setattr(layer, name, Int8(child))


@each_layer
@pytest.mark.parametrize("quantise", [by_hand, by_torchao, by_bitsandbytes])
def test_projections_of_eight_bits(quantise, which):
    layer, x = layer_of(which), sample().requires_grad_()
    other = copy.deepcopy(layer)
    quantise(layer)
    for name in LAYERS[which]:
        child = getattr(other, name)
        child.weight.copy_(getattr(layer, name)(torch.eye(child.in_features)).T)
    with torch.enable_grad():
        out = layer(x)
    near(out, other(x))
    backward(out)
    assert x.grad.any()
    if quantise is by_hand:  # theirs round activations by the row of tokens
        near(by_parts(layer, x), other(x))


@each_layer
def test_fully_shard(mesh, which):
    """FSDP2 on each projection, and on the layer around them."""
    expect_sharded(layer_of(which), LAYERS[which], mesh)
