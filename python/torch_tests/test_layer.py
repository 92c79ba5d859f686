# SPDX-License-Identifier: Apache-2.0
"""GatedDeltaNet: the layers of tests/vectors, which transformers computed; caches; packing."""

import json
import pathlib
import struct

import gdn.torch
import pytest
import torch

VECTORS = pathlib.Path(__file__).parents[2] / "tests/vectors"
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "I64": torch.int64}


def read(name):
    data = bytearray((VECTORS / f"{name}.safetensors").read_bytes())
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + size])
    metadata, tensors = header.pop("__metadata__"), {}
    for key, entry in header.items():
        begin, end = (8 + size + at for at in entry["data_offsets"])
        flat = torch.frombuffer(data[begin:end], dtype=DTYPES[entry["dtype"]])
        tensors[key] = flat.reshape(entry["shape"])
    return tensors, metadata


class Config:
    """Of transformers, as far as the layer looks."""

    def __init__(self, metadata):
        self.__dict__.update(json.loads(metadata["config"]), model_type=metadata["kind"])


def make(name, device, dtype=None):
    tensors, metadata = read(name)
    dtype = dtype or tensors["layer.out_proj.weight"].dtype
    layer = gdn.torch.GatedDeltaNet.from_config(Config(metadata), device=device, dtype=dtype)
    layer.load_layer(tensors, "layer.")
    return layer, tensors, int(metadata["prefill_tokens"])


NAMES = ["layer_qwen3_5", "layer_qwen3_next", "layer_qwen3_next_bf16"]
ALL = pytest.mark.parametrize("name", NAMES)


def near(got, want, device):
    rms = want.double().pow(2).mean().sqrt()
    limit = 2e-5 * rms + 1e-6 if device == "cpu" else 1e-3 * rms  # TF32 products of cuBLAS
    assert (got.cpu().double() - want.double()).abs().max() <= limit


@ALL
def test_prefill_then_decode(name, device):
    layer, tensors, cut = make(name, device)
    hidden = tensors["hidden_states"].to(device)
    layer.float()
    cache = layer.new_cache(1)
    cuts = [(0, cut), *((t, t + 1) for t in range(cut, hidden.shape[1]))]
    out = torch.cat([layer(hidden[:, a:b], cache) for a, b in cuts], 1)
    near(out, tensors["expected.output"], device)
    cache.reset()
    near(layer(hidden, cache), tensors["expected.output"], device)


def test_a_layer_in_bfloat16(device):
    layer, tensors, _ = make("layer_qwen3_next_bf16", device)
    out = layer(tensors["hidden_states"].to(device, torch.bfloat16))
    error = (out.cpu().double() - tensors["expected.output"].double()).pow(2).mean().sqrt()
    assert error <= 2e-2 * tensors["expected.output"].double().pow(2).mean().sqrt()


def test_slots(device):
    """Two sequences in slots of a larger cache, apart and together."""
    layer, tensors, _ = make("layer_qwen3_5", device)
    hidden = tensors["hidden_states"].to(device)
    rows = torch.cat([hidden[:, :20], hidden[:, 20:40]])
    cache = layer.new_cache(5)
    slots = torch.tensor([3, 1], dtype=torch.int32, device=device)
    out = layer(rows, cache, slots=slots)
    near(out[:1], tensors["expected.output"][:, :20], device)
    step = layer(hidden[:, 20:21].expand(2, -1, -1), cache, slots=slots)
    near(step[:1], tensors["expected.output"][:, 20:21], device)
    assert not cache.state[[0, 2, 4]].any()
    cache.reset(slots[:1])
    assert not cache.state[3].any() and cache.state[1].any()
    cache.state[4] = 1
    cache.reset(slots[:1] - 4)
    assert cache.state[4].all()


def test_packing(device):
    """seq_idx, position_ids and cu_seqlens, as transformers packs, against each sequence alone."""
    layer, tensors, _ = make("layer_qwen3_5", device)
    hidden = tensors["hidden_states"].to(device)
    lengths = [5, 1, 40, 30]
    cu = torch.tensor([0, 5, 6, 46, 76], dtype=torch.int32, device=device)
    idx = torch.repeat_interleave(torch.arange(4), torch.tensor(lengths))[None].to(device)
    positions = torch.cat([torch.arange(n) for n in lengths])[None].to(device)
    assert torch.equal(gdn.torch.cu_seqlens_of(idx), cu)
    assert torch.equal(gdn.torch.cu_seqlens_of(position_ids=positions), cu)
    alone = torch.cat([layer(x) for x in hidden.split(lengths, 1)], 1)
    for how in (dict(cu_seqlens=cu), dict(seq_idx=idx), dict(position_ids=positions)):
        near(layer(hidden, **how), alone.cpu(), device)
    with pytest.raises(ValueError, match="exactly one"):
        gdn.torch.cu_seqlens_of()


def test_rows_of_seq_idx():
    idx = torch.tensor([[0, 0, 1], [1, 1, 2]])
    assert gdn.torch.cu_seqlens_of(idx).tolist() == [0, 2, 3, 5, 6]


def test_padding(device):
    """Masked tokens on either side change nothing for the others."""
    layer, tensors, _ = make("layer_qwen3_5", device)
    hidden, mask = tensors["hidden_states"][:, :20].to(device), torch.ones(3, 20, device=device)
    mask[1, :7] = 0
    mask[2, 15:] = 0
    cache = layer.new_cache(3)
    out = layer(hidden.expand(3, -1, -1), cache, attention_mask=mask)
    near(out[1:2, 7:], layer(hidden[:, 7:]).cpu(), device)
    near(out[2:, :15], layer(hidden[:, :15]).cpu(), device)
    assert not out[1, :7].any() and not out[2, 15:].any()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled(backend, device):
    if (backend, device) == ("inductor", "cpu"):
        pytest.skip("takes half a minute; test_operators.py compiles operators by it")
    layer, tensors, cut = make("layer_qwen3_5", device)
    hidden = tensors["hidden_states"].to(device)
    eager, compiled = layer.new_cache(1), layer.new_cache(1)

    def run(x, conv_state, state):
        return layer(x, gdn.torch.Cache(conv_state, state)) + 1

    function = torch.compile(run, fullgraph=True, backend=backend)
    for x in (hidden[:, :cut], hidden[:, cut:cut + 1]):
        want = run(x, eager.conv_state, eager.state)
        assert torch.equal(function(x, compiled.conv_state, compiled.state), want)
    assert torch.equal(eager.state, compiled.state)


def test_exported(device):
    layer, tensors, _ = make("layer_qwen3_5", device)
    hidden = tensors["hidden_states"].to(device)
    program = torch.export.export(layer, (hidden,))
    assert torch.equal(program.module()(hidden), layer(hidden))


def test_names_of_transformers(device):
    """The parameters have the names and shapes of transformers' modules."""
    for name in NAMES[:2]:
        layer, tensors, _ = make(name, device)
        want = {n.removeprefix("layer."): x.shape for n, x in tensors.items()
                if n.startswith("layer.")}
        assert {n: x.shape for n, x in layer.state_dict().items()} == want
        with pytest.raises(RuntimeError, match="A_log"):
            layer.load_layer({n: x for n, x in tensors.items() if "A_log" not in n}, "layer.")
