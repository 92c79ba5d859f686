# SPDX-License-Identifier: Apache-2.0
"""Megatron-core's layer with gdn's functions against its own torch path, on a CPU."""

import contextlib
import types

import pytest
import torch

import gdn
import gdn.fla
import gdn.torch

common = pytest.importorskip("megatron.core.ssm.gated_delta_net.common",
                             reason="megatron-core is not installed")
layers = pytest.importorskip("megatron.core.ssm.gated_delta_net.gdn")

HIDDEN, T, B = 32, 70, 2


class Project(torch.nn.Linear):
    """A projection as Megatron makes and calls it."""

    def __init__(self, inputs, outputs, *, bias, **_):
        super().__init__(inputs, outputs, bias=bias)

    def forward(self, x):
        return super().forward(x), None


class Norm(torch.nn.RMSNorm):
    def __init__(self, *, config, hidden_size, eps):
        super().__init__(hidden_size, eps)


def conv1d(x, weight, bias, activation, initial_state, output_final_state, cu_seqlens):
    assert initial_state is None and not output_final_state and activation == "silu"
    rows, options = (x, {}) if cu_seqlens is None else (x[0], dict(cu_seqlens=cu_seqlens))
    out = gdn.torch.conv1d(rows, weight, bias, activation=gdn.ACT_SILU, **options)
    return out.view(x.shape), None


@pytest.fixture
def layer(monkeypatch):
    """Makes the layer, by Megatron's torch path or by gdn's functions."""
    from megatron.core.transformer import TransformerConfig

    # Megatron compiles its gates, which takes long and is not what is tried.
    monkeypatch.setattr(torch._dynamo.config, "disable", True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    monkeypatch.setattr(common, "HAVE_FLA", True)
    monkeypatch.setattr(layers, "causal_conv1d", conv1d)
    monkeypatch.setattr(layers, "chunk_gated_delta_rule", gdn.fla.chunk_gated_delta_rule)
    monkeypatch.setattr(common, "l2norm", lambda x, dim=-1, eps=1e-6:
                        x * (x.square().sum(dim, keepdim=True) + eps).rsqrt())
    monkeypatch.setattr(common, "get_cuda_rng_tracker",
                        lambda: types.SimpleNamespace(fork=contextlib.nullcontext))
    alone = types.SimpleNamespace(size=lambda: 1, rank=lambda: 0)

    def make(deterministic_mode):
        config = TransformerConfig(
            num_layers=1, hidden_size=HIDDEN, num_attention_heads=2,
            activation_func=torch.nn.functional.silu, linear_conv_kernel_dim=4,
            linear_key_head_dim=16, linear_value_head_dim=24, linear_num_key_heads=2,
            linear_num_value_heads=4, deterministic_mode=deterministic_mode)
        torch.manual_seed(5)
        parts = common.GatedDeltaNetSubmodules(in_proj=Project, out_norm=Norm, out_proj=Project)
        groups = types.SimpleNamespace(tp=alone, cp=alone)
        return layers.GatedDeltaNet(config, parts, layer_number=1, pg_collection=groups)

    return make


def gradients(layer, x, dout, packed=None):
    x = x.clone().requires_grad_()
    with torch.enable_grad():
        out, _ = layer(x, None, packed_seq_params=packed)
        out.backward(dout)
    return out.detach(), {"x": x.grad, **{n: p.grad for n, p in layer.named_parameters()}}


def near(ours, theirs):
    for name, wanted in theirs.items():
        error = (ours[name] - wanted).norm() / wanted.norm()
        assert wanted.norm() > 0 and error < 2e-5, f"{name}: {error:.3g}"


def test_forward_and_gradients(layer):
    x, dout = torch.randn(T, B, HIDDEN), torch.randn(T, B, HIDDEN)
    theirs, ours = layer(True), layer(False)
    ours.load_state_dict(theirs.state_dict())
    wanted, dwanted = gradients(theirs, x, dout)
    out, found = gradients(ours, x, dout)
    near(dict(out=out), dict(out=wanted))
    near(found, dwanted)


def test_packed(layer):
    """Packed sequences, which Megatron's torch path has not: each as a batch of its own."""
    from megatron.core.packed_seq_params import PackedSeqParams

    x, dout = torch.randn(T, 1, HIDDEN), torch.randn(T, 1, HIDDEN)
    cuts = torch.tensor([0, 13, 50, T], dtype=torch.int32)
    packed = PackedSeqParams(qkv_format="thd", cu_seqlens_q=cuts, cu_seqlens_kv=cuts)
    theirs, ours = layer(True), layer(False)
    ours.load_state_dict(theirs.state_dict())
    out, found = gradients(ours, x, dout, packed)
    pieces = list(zip(x.tensor_split(cuts[1:-1].tolist()), dout.tensor_split(cuts[1:-1].tolist())))
    wanted = [gradients(theirs, *piece) for piece in pieces]  # parameters' gradients are summed
    near(dict(out=out, x=found.pop("x")),
         dict(out=torch.cat([w[0] for w in wanted]), x=torch.cat([w[1]["x"] for w in wanted])))
    near(found, {n: g for n, g in wanted[-1][1].items() if n != "x"})
