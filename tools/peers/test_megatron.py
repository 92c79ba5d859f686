# SPDX-License-Identifier: Apache-2.0
"""
Megatron-core's layer by gdn's functions and by its own torch path, both against float64.

The judge is the same layer in float64, with the rule token by token. gdn's result and each of its
gradients may be no further from it than those of Megatron's torch path, but for the luck of
rounding: single cases scatter by half, so the mean error over a few is compared.
"""

import collections
import os
import statistics
import sys

import peers
import pytest
import torch
from megatron.core.models.backends import LocalSpecProvider
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.ssm.gated_delta_net import GatedDeltaNet, GatedDeltaNetSubmodules
from megatron.core.transformer import TransformerConfig
from torch.overrides import TorchFunctionMode

DEVICE, HIDDEN = os.environ["GDN_PEER_DEVICE"], 64
HEADS = {"grouped": (2, 4, 32, 32), "equal": (4, 4, 64, 64), "uneven": (2, 4, 16, 24)}
LENGTHS = (1, 33, 64, 65, 90, 130)
LIMIT = {torch.float32: 1e-5, torch.bfloat16: 5e-2}
SCATTER = 1.5
means = collections.defaultdict(list)  # of each tensor: errors of Megatron's path and of gdn's


class Wide(TorchFunctionMode):
    """What the layer casts to float32 becomes float64."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.float:
            function = torch.Tensor.double
        return function(*args, **(kwargs or {}))


def torch_l2norm(x, eps=1e-6):
    return x * (x.square().sum(-1, keepdim=True) + eps).rsqrt()


@pytest.fixture(scope="module", autouse=True)
def alone():
    """A group of one process, and at the end the mean errors as notes."""
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()
    for (name, dtype), errors in means.items():
        theirs, ours = map(statistics.mean, zip(*errors))
        peers.notes.append(f"{name}, {str(dtype)[6:]}: mean error of Megatron's torch path "
                           f"{theirs:.1e}, of gdn {ours:.1e}")


def make_layer(heads, is_torch):
    key_heads, value_heads, K, V = HEADS[heads]
    config = TransformerConfig(
        num_layers=1, hidden_size=HIDDEN, num_attention_heads=2, normalization="RMSNorm",
        activation_func=torch.nn.functional.silu, experimental_attention_variant="gated_delta_net",
        linear_attention_freq=1, linear_num_key_heads=key_heads,
        linear_num_value_heads=value_heads, linear_key_head_dim=K, linear_value_head_dim=V,
        perform_initialization=False, use_cpu_initialization=True, deterministic_mode=is_torch)
    backend, world = LocalSpecProvider(), torch.distributed.group.WORLD
    parts = GatedDeltaNetSubmodules(in_proj=backend.column_parallel_linear(),
                                    out_norm=backend.layer_norm(rms_norm=True),
                                    out_proj=backend.row_parallel_linear())
    return GatedDeltaNet(config, parts, layer_number=1, conv_bias=True,
                         pg_collection=ProcessGroupCollection(tp=world, cp=world))


def fill(layer, gates):
    """The gates that Megatron begins with, under which little is left after a token, or mild."""
    shapes = {name: x.shape for name, x in layer.named_parameters()}
    values = {name: torch.randn(shape) * shape[-1] ** -0.5 for name, shape in shapes.items()}
    heads = shapes["A_log"]
    if gates == "Megatron's":
        values.update(A_log=torch.empty(heads).uniform_(1, 16).log(), dt_bias=torch.ones(heads))
    else:
        values.update(A_log=torch.empty(heads).uniform_(-4, 0),
                      dt_bias=torch.empty(heads).uniform_(-3, 1))
    values["out_norm.weight"] = 1 + values["out_norm.weight"]
    return values


def run(layer, values, x, dout, dtype, packed=None):
    layer.to(DEVICE, dtype)
    layer.load_state_dict(values, strict=False)
    x = x.detach().to(DEVICE, dtype).requires_grad_()
    out, _ = layer(x, None, packed_seq_params=packed)
    out.backward(dout.to(out))
    found = {name: parameter.grad for name, parameter in layer.named_parameters()}
    return {"out": out.detach(), "x": x.grad, **found}


def by_torch(monkeypatch, heads, dtype, rule=None):
    """The layer whose functions are all torch's, the rule Megatron's or another."""
    new = {"l2norm": torch_l2norm}
    if rule is not None:
        new["torch_chunk_gated_delta_rule"] = rule
    for name, module in list(sys.modules.items()):
        if name.startswith("megatron.core.ssm.gated_delta_net"):
            for function in new.keys() & vars(module).keys():
                monkeypatch.setattr(module, function, new[function])
    return make_layer(heads, True)


def judge(heads, *case):
    with pytest.MonkeyPatch.context() as patch, Wide():
        layer = by_torch(patch, heads, torch.float64, peers.reference)
        found = run(layer, *case, torch.float64)
    assert all(x.dtype == torch.float64 for x in found.values())
    return found


def by_megatron(heads, *case):
    with pytest.MonkeyPatch.context() as patch:
        return run(by_torch(patch, heads, case[-1]), *case)


def distance(x, wanted):
    length = wanted.norm().item()
    return ((x - wanted).norm() / (length or 1)).item()


def compare(cases, dtype):
    """cases: what ours, theirs and the judge found, each by the names of the tensors."""
    for name in cases[0][0]:
        errors = [(distance(theirs[name], exact[name]), distance(ours[name], exact[name]))
                  for ours, theirs, exact in cases]
        theirs, ours = map(statistics.mean, zip(*errors))
        means[name, dtype].append((theirs, ours))
        assert ours <= min(SCATTER * theirs, LIMIT[dtype]), name


@pytest.mark.parametrize("dtype", LIMIT, ids=str)
@pytest.mark.parametrize("gates", ["Megatron's", "mild"])
@pytest.mark.parametrize("heads", HEADS)
def test_layer(heads, gates, dtype):
    cases = []
    for T in LENGTHS:
        torch.manual_seed(T)
        layer = make_layer(heads, False)
        values = {name: x.to(dtype) for name, x in fill(layer, gates).items()}
        x, dout = torch.randn(2, T, 2, HIDDEN).to(dtype)
        cases.append((run(layer, values, x, dout, dtype),
                      by_megatron(heads, values, x, dout, dtype), judge(heads, values, x, dout)))
    compare(cases, dtype)


def joined(runs):
    """Of sequences that ran one by one: rows one behind the other, the sums of the rest."""
    return {name: (torch.cat if name in ("out", "x") else sum)([run[name] for run in runs])
            for name in runs[0]}


@pytest.mark.parametrize("gates", ["Megatron's", "mild"])
@pytest.mark.parametrize("heads", HEADS)
def test_packed(heads, gates):
    """Packed sequences; Megatron's torch path refuses them and so runs each alone."""
    cuts, cases = torch.tensor([0, 13, 80, 110], dtype=torch.int32), []
    lengths, cu_seqlens = cuts.diff().tolist(), cuts.to(DEVICE)
    packed = PackedSeqParams(qkv_format="thd", cu_seqlens_q=cu_seqlens, cu_seqlens_kv=cu_seqlens)
    for seed in range(3):
        torch.manual_seed(seed)
        layer = make_layer(heads, False)
        values, (x, dout) = fill(layer, gates), torch.randn(2, sum(lengths), 1, HIDDEN)
        try:
            ours = run(layer, values, x, dout, torch.float32, packed)
        except NotImplementedError:
            pytest.skip("this version of Megatron takes no packed sequences")
        pieces = list(zip(x.split(lengths), dout.split(lengths)))
        theirs = [by_megatron(heads, values, *piece, torch.float32) for piece in pieces]
        exact = [judge(heads, values, *piece) for piece in pieces]
        cases.append((ours, joined(theirs), joined(exact)))
    compare(cases, torch.float32)
