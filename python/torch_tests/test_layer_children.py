# SPDX-License-Identifier: Apache-2.0
"""Children of a layer that have more than a weight: adapters, hooks, shards and others."""

import copy

import gdn.torch
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

LAYOUTS = {"qwen3_5": ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"),
           "qwen3_next": ("in_proj_qkvz", "in_proj_ba")}
PROJECTIONS = [(layout, name) for layout, names in LAYOUTS.items()
               for name in (*names, "out_proj")]
CHILDREN = [*PROJECTIONS, ("qwen3_5", "conv1d"), ("qwen3_5", "norm")]
each_projection = pytest.mark.parametrize("layout, name", PROJECTIONS)
each_child = pytest.mark.parametrize("layout, name", CHILDREN)
with_and_without = pytest.mark.parametrize("grad", [False, True])


def layer_of(layout="qwen3_5"):
    layer = gdn.torch.GatedDeltaNet(24, 1, 2, 8, 8, layout=layout)
    for p in (layer.A_log, layer.dt_bias):
        nn.init.uniform_(p, -1, 1)
    return layer


def sample(T=9):
    return torch.randn(2, T, 24)


def near(got, want):
    torch.testing.assert_close(got, want, atol=2e-6, rtol=2e-5)


def backward(out):
    with torch.enable_grad():
        out.square().sum().backward()


class Lora(nn.Module):
    """As peft's: the weight of the base shows under .weight."""

    def __init__(self, base):
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        self.A = nn.Parameter(0.3 * torch.randn(2, base.in_features))
        self.B = nn.Parameter(0.3 * torch.randn(base.out_features, 2))

    @property
    def weight(self):
        return self.base_layer.weight

    def forward(self, x):
        return self.base_layer(x) + x @ self.A.T @ self.B.T


@with_and_without
@each_projection
def test_an_adapter_counts(layout, name, grad):
    """Outputs are those of merged weights, with a cache too; the adapter has a gradient."""
    merged = layer_of(layout)
    tuned = copy.deepcopy(merged)
    adapter = Lora(getattr(tuned, name))
    setattr(tuned, name, adapter)
    getattr(merged, name).weight += adapter.B @ adapter.A
    x, cache, other = sample(), tuned.new_cache(2), merged.new_cache(2)
    with torch.set_grad_enabled(grad):
        out = tuned(x)
    near(out, merged(x))
    if grad:
        backward(out)
        assert adapter.A.grad.any() and adapter.B.grad.any()
    for part in (x[:, :7], x[:, 7:8], x[:, 8:]):
        near(tuned(part, cache), merged(part, other))
    near(cache.state, other.state)
    near(cache.conv_state, other.conv_state)


@with_and_without
@each_child
def test_hooks_fire(layout, name, grad):
    """Once a call, forward and backward; what a forward hook returns counts."""
    layer, x, calls = layer_of(layout), sample(), []
    child = getattr(layer, name)
    with torch.set_grad_enabled(grad):
        plain = layer(x)
        child.register_forward_pre_hook(lambda *_: calls.append("before"))
        child.register_full_backward_hook(lambda *_: calls.append("back"))
        near(layer(x), plain)
        child.register_forward_hook(lambda module, inputs, out: 2 * out)
        out = layer(x)
    assert not torch.allclose(out, plain)
    if grad:
        backward(out)
    assert calls == ["before"] * 2 + ["back"] * grad


@with_and_without
def test_hooks_of_all_modules(grad):
    seen, layer = set(), layer_of()
    names = {child: name for name, child in layer.named_children()}
    hook = nn.modules.module.register_module_forward_hook(lambda m, *_: seen.add(names.get(m)))
    with torch.set_grad_enabled(grad):
        layer(sample())
    hook.remove()
    assert seen >= set(names.values())


@with_and_without
@pytest.mark.parametrize("name", ["A_log", "dt_bias"])
def test_parametrised_gates(name, grad):
    layer, x = layer_of(), sample()
    other = copy.deepcopy(layer)
    with torch.no_grad():
        getattr(other, name).mul_(2)
    parametrize.register_parametrization(layer, name, Twice())
    with torch.set_grad_enabled(grad):
        near(layer(x), other(x))
    kept = layer.parametrizations[name].original
    assert layer.to(torch.bfloat16).parametrizations[name].original is kept
    assert kept.dtype == torch.float32


class Twice(nn.Module):
    def forward(self, weight):
        return 2 * weight


@with_and_without
@each_child
def test_parametrisations(layout, name, grad):
    layer, x = layer_of(layout), sample()
    other = copy.deepcopy(layer)
    getattr(other, name).weight *= 2
    parametrize.register_parametrization(getattr(layer, name), "weight", Twice())
    with torch.set_grad_enabled(grad):
        out = layer(x)
    near(out, other(x))
    if grad:
        backward(out)
        assert getattr(layer, name).parametrizations.weight.original.grad.any()


@with_and_without
@each_child
def test_weight_norm(layout, name, grad):
    """weight_norm keeps the weight until its scale changes."""
    layer, x = layer_of(layout), sample()
    other = copy.deepcopy(layer)
    child = parametrizations.weight_norm(getattr(layer, name), dim=0)
    for factor in (1, 3):
        child.parametrizations.weight.original0 *= factor
        getattr(other, name).weight *= factor
        with torch.set_grad_enabled(grad):
            out = layer(x)
        near(out, other(x))
    if grad:
        backward(out)
        assert child.parametrizations.weight.original0.grad.any()


class Int8(nn.Module):
    """Weights of eight bits with a scale for each row, as bitsandbytes and torchao have them."""

    def __init__(self, base):
        super().__init__()
        scale = base.weight.abs().amax(1, keepdim=True) / 127
        self.register_buffer("weight", (base.weight / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)

    def forward(self, x):
        return nn.functional.linear(x, self.weight.to(x.dtype) * self.scale.to(x.dtype))


@with_and_without
@pytest.mark.parametrize("layout", LAYOUTS)
def test_projections_of_eight_bits(layout, grad):
    """They stand around the rule, with a cache of the dtype of the activations."""
    layer, x = layer_of(layout), sample().requires_grad_(grad)
    other = copy.deepcopy(layer)
    for name in (*LAYOUTS[layout], "out_proj"):
        small = Int8(getattr(layer, name))
        setattr(layer, name, small)
        getattr(other, name).weight.copy_(small.weight * small.scale)
    with torch.set_grad_enabled(grad):
        out = layer(x)
    near(out, other(x))
    if grad:
        backward(out)
        assert x.grad.any()
    cache = layer.new_cache(2)
    assert cache.conv_state.dtype == torch.float32
    near(torch.cat([layer(part.detach(), cache) for part in x.split(5, 1)], 1), other(x))


def by_torchao(layer):
    torchao = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    torchao.quantize_(layer, torchao.Int8WeightOnlyConfig())


def by_bitsandbytes(layer):
    bnb = pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed").nn
    for name, child in list(layer.named_children()):
        if type(child) is nn.Linear:
            small = bnb.Linear8bitLt(child.in_features, child.out_features, bias=False,
                                     has_fp16_weights=False)
            small.weight = bnb.Int8Params(child.weight.detach().clone(), requires_grad=False,
                                          has_fp16_weights=False)
            setattr(layer, name, small.to("cpu"))


@with_and_without
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("quantise", [by_torchao, by_bitsandbytes])
def test_packages_of_eight_bits(quantise, layout, grad):
    """Their projections stand around the rule; each is linear, so its weights show by a unit."""
    layer, x = layer_of(layout), sample().requires_grad_(grad)
    other = copy.deepcopy(layer)
    quantise(layer)
    for name in (*LAYOUTS[layout], "out_proj"):
        child = getattr(other, name)
        child.weight.copy_(getattr(layer, name)(torch.eye(child.in_features)).T)
    with torch.set_grad_enabled(grad):
        out = layer(x)
    near(out, other(x))
    if grad:
        backward(out)
        assert x.grad.any()


class Linear(nn.Linear):
    """A subclass that computes something else."""

    def forward(self, x):
        return 3 * super().forward(x)


@with_and_without
@each_projection
def test_subclasses(layout, name, grad):
    layer, x = layer_of(layout), sample()
    other, base = copy.deepcopy(layer), getattr(layer, name)
    child = Linear(base.in_features, base.out_features, bias=False)
    child.weight.copy_(base.weight)
    setattr(layer, name, child)
    getattr(other, name).weight *= 3
    with torch.set_grad_enabled(grad):
        near(layer(x), other(x))


@with_and_without
def test_biases(grad):
    """Those of a Linear and of a Conv1d in place of the layer's are added. Tokens that no sequence
    has stay 0."""
    layer, x = layer_of(), sample()
    shift, conv = torch.randn(24), layer.conv1d
    want = layer(x) + shift
    out_proj = nn.Linear(16, 24)
    out_proj.load_state_dict({"weight": layer.out_proj.weight, "bias": shift})
    layer.out_proj = out_proj
    with torch.set_grad_enabled(grad):
        near(layer(x), want)
        out = layer(x[:1], cu_seqlens=torch.tensor([2, 5]))
    assert not out[0, :2].any() and not out[0, 5:].any() and out[0, 2:5].any()
    layer.conv1d = nn.Conv1d(32, 32, 4, groups=32, padding=3)
    layer.conv1d.load_state_dict({"weight": conv.weight, "bias": torch.ones(32)})
    with torch.set_grad_enabled(grad):
        out = layer(x)

    def shifted(x, operator, **options):
        return operator(x, conv.weight, torch.ones(32), activation=gdn.ACT_SILU, **options)

    layer.conv1d = conv
    conv.forward = shifted
    near(out, layer(x))


def test_what_stands_for_conv1d():
    layer, x = layer_of(), sample()
    conv = layer.conv1d
    layer.conv1d = nn.Conv1d(32, 32, 4, groups=32, padding=3)
    layer.conv1d.register_forward_hook(lambda *_: None)
    with pytest.raises(TypeError, match="conv1d: a torch.nn.*Conv1d.*hooks"):
        layer(x)
    layer.conv1d = nn.Sequential(conv)
    with pytest.raises(TypeError, match="conv1d: a .*Sequential"):
        layer(x)


@with_and_without
@pytest.mark.parametrize("other", [dict(dilation=2), dict(stride=2), dict(groups=16)])
def test_another_convolution(other, grad):
    layer, x = layer_of(), sample()
    layer.conv1d = nn.Conv1d(32, 32, 4, **{"groups": 32, "bias": False, **other})
    with torch.set_grad_enabled(grad), pytest.raises(ValueError, match="conv1d: .*groups=32"):
        layer(x)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_peft(layout):
    peft = pytest.importorskip("peft", reason="peft is not installed")
    layer, x = layer_of(layout), sample()
    names = [*LAYOUTS[layout], "out_proj"]
    config = peft.LoraConfig(r=2, target_modules=names, init_lora_weights=False)
    model = peft.get_peft_model(nn.ModuleDict({"linear_attn": layer}), config)
    with torch.enable_grad():
        out = layer(x)
        backward(out)
    adapters = [p for n, p in layer.named_parameters() if "lora" in n]
    assert len(adapters) == 2 * len(names) and all(p.grad.any() for p in adapters)
    merged = model.merge_and_unload()["linear_attn"]
    near(out, merged(x))


def test_offloading():
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    layer, x = layer_of(), sample()
    want = layer(x)
    accelerate.cpu_offload(layer, torch.device("cpu"), offload_buffers=True)
    assert layer.conv1d.weight.is_meta and layer.A_log.is_meta
    near(layer(x), want)
    with pytest.raises(ValueError, match="device: absent"):
        layer.new_cache(2)
    cache = layer.new_cache(2, device="cpu", dtype=torch.float32)
    near(torch.cat([layer(part, cache) for part in x.split(5, 1)], 1), want)


def expect_sharded(layer, names, mesh):
    """A layer with shards of these children and of the rest has the values of the whole one."""
    plain, x = copy.deepcopy(layer), sample()
    for child in (*(getattr(layer, name) for name in names), layer):
        torch.distributed.fsdp.fully_shard(child, mesh=mesh)
    near(layer(x), plain(x))
    with torch.enable_grad():
        backward(layer(x))
        backward(plain(x))
    for (name, got), want in zip(layer.named_parameters(), plain.parameters()):
        assert torch.allclose(got.grad.full_tensor(), want.grad, atol=1e-6, rtol=1e-4), name


@pytest.mark.parametrize("names", [(*LAYOUTS["qwen3_5"], "out_proj"), ("conv1d", "norm"), ()])
def test_fully_shard(mesh, names):
    """FSDP2 on children, and on the layer around them."""
    expect_sharded(layer_of(), names, mesh)


@with_and_without
def test_adapters_compiled(grad):
    layer, x = layer_of(), sample()
    layer.in_proj_qkv = Lora(layer.in_proj_qkv)
    layer.out_proj = Linear(16, 24, bias=False)
    with torch.set_grad_enabled(grad):
        near(torch.compile(layer, fullgraph=True, backend="aot_eager")(x), layer(x))


@pytest.mark.parametrize("what", ["a subclass", "a hook of all modules"])
def test_a_norm_of_transformers(modeling, what):
    """If the norm is of another class, or has a hook, transformers' layer takes one token by its
    own forward()."""
    from test_transformers import tiny

    model, seen = tiny(modeling).eval(), []
    layer, x = model.model.layers[0].linear_attn, torch.randn(2, 1, 32)

    class Norm(modeling.Qwen3_5RMSNormGated):
        def forward(self, hidden_states, gate):
            seen.append(self)
            return super().forward(hidden_states, gate)

    gdn.install("transformers")
    cache = model(torch.randint(0, 64, (2, 9)), use_cache=True).past_key_values
    if what == "a subclass":
        layer.norm.__class__ = Norm
        layer(x, cache)
    else:
        with nn.modules.module.register_module_forward_hook(lambda m, *_: seen.append(m)):
            layer(x, cache)
    assert layer.norm in seen
