# SPDX-License-Identifier: Apache-2.0
"""Every file of tests/vectors, through the package and through the oracle."""

import json
import pathlib
import struct

import gdn
import numpy as np
import oracle
import pytest
from arrays import BF16, F16, F32, call, load
from compare import within_limits

FILES = sorted((pathlib.Path(__file__).parents[2] / "tests/vectors").glob("*.safetensors"))
DTYPES = {"F32": F32, "F16": F16, "BF16": BF16, "I32": np.int32, "I64": np.int64}


def read_safetensors(path):
    """Tensors by name, and the metadata."""
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        flat = np.frombuffer(data[begin:end], DTYPES[entry["dtype"]])
        tensors[name] = flat.reshape(entry["shape"])
    return tensors, metadata


def rule_fields(tensors, metadata):
    """Arguments of gdn_prefill or gdn_decode; state is a copy, out is new."""
    q, v = tensors["q"], tensors["v"]
    H, K, V = max(q.shape[-2], v.shape[-2]), q.shape[-1], v.shape[-1]
    layouts = {"k_last": gdn.STATE_VK, "k_first": gdn.STATE_KV}
    fields = dict(
        q=q,
        k=tensors["k"],
        v=v,
        out=np.empty((*q.shape[:-2], H, V), q.dtype),
        scale=float(metadata["scale"]),
        norm=int(metadata["use_qk_l2norm"]),
        state_layout=layouts[metadata["state_layout"]],
    )
    if metadata["op"] == "decode":
        fields.update(g=tensors["a"], beta=tensors["b"], A_log=tensors["A_log"])
        fields.update(dt_bias=tensors["dt_bias"], state=tensors["state"].copy())
        fields.update(gate=gdn.GATE_RAW, beta_kind=gdn.BETA_SIGMOID)
        return fields, None
    fields.update(g=tensors.get("g_log"), beta=tensors.get("beta"))
    batch = dict(cu_seqlens=tensors["cu_seqlens"])
    if "initial_state" in tensors:
        fields["state"] = tensors["initial_state"].copy()
    else:
        n = len(tensors["cu_seqlens"]) - 1
        size = (K, V) if fields["state_layout"] == gdn.STATE_KV else (V, K)
        fields["state"] = np.zeros((n, H, *size), F32)
    return fields, batch


def block_fields(tensors, metadata):
    """Arguments of gdn_block but for hidden, out and states; hidden; empty states."""
    config = json.loads(metadata["config"])
    fields = dict(
        n_key_heads=config["linear_num_key_heads"],
        n_value_heads=config["linear_num_value_heads"],
        key_head_dim=config["linear_key_head_dim"],
        value_head_dim=config["linear_value_head_dim"],
        rms_eps=config["rms_norm_eps"],
    )
    for name, tensor in tensors.items():
        if name.startswith("layer."):
            name = name.removeprefix("layer.")
            name = {"conv1d.weight": "conv_weight", "norm.weight": "norm_weight"}.get(name, name)
            fields[name.removesuffix(".weight")] = tensor
    channels, _, taps = fields["conv_weight"].shape
    fields["conv_state"] = np.zeros((1, channels, taps - 1), F32)
    sizes = [fields[n] for n in ("n_value_heads", "value_head_dim", "key_head_dim")]
    fields["state"] = np.zeros((1, *sizes), F32)
    return fields


def check(name, got, want, dtypes):
    want = np.asarray(want, np.float64)
    within_limits(name, got, want.reshape(got.shape), *dtypes)


def names_of(op):
    files = [path.stem for path in FILES if path.stem.startswith(op)]
    assert files, f"no {op}_*.safetensors in tests/vectors"
    return files


def read(name):
    return read_safetensors(next(path for path in FILES if path.stem == name))


@pytest.mark.parametrize("name", names_of("prefill") + names_of("decode"))
def test_rule(each_ctx, name):
    tensors, metadata = read(name)
    fields, batch = rule_fields(tensors, metadata)
    call(getattr(each_ctx, metadata["op"]), fields, batch)
    state = tensors.get("expected.final_state", tensors.get("expected.new_state"))
    dtypes = (fields["q"].dtype, fields["state"].dtype)
    check("out", fields["out"], tensors["expected.output"], dtypes)
    check("state", fields["state"], state, dtypes)


@pytest.mark.parametrize("name", names_of("prefill") + names_of("decode"))
def test_oracle_of_rule(name):
    """The oracle agrees with the stored values, which are float32, to their rounding."""
    tensors, metadata = read(name)
    fields, batch = rule_fields(tensors, metadata)
    found = oracle.rule(fields, batch)
    state = tensors.get("expected.final_state", tensors.get("expected.new_state"))
    for got, want in ((found["out"], tensors["expected.output"]), (found["state"], state)):
        np.testing.assert_allclose(got.value, want.astype(np.float64), rtol=2.0**-23, atol=1e-9)


@pytest.mark.parametrize("name", names_of("layer"))
def test_block(each_ctx, name):
    tensors, metadata = read(name)
    fields = block_fields(tensors, metadata)
    hidden = tensors["hidden_states"]
    out = np.empty_like(hidden)
    cut = int(metadata["prefill_tokens"])
    for a, b in [(0, cut), *((t, t + 1) for t in range(cut, hidden.shape[1]))]:
        call(each_ctx.block, dict(fields, hidden=hidden[:, a:b], out=out[:, a:b]))
    # bfloat16 weights are exact in float32, and nothing else is rounded to 16 bits
    check("out", out, tensors["expected.output"], [F32])


@pytest.mark.parametrize("name", names_of("layer"))
def test_oracle_of_block(name):
    tensors, metadata = read(name)
    hidden = tensors["hidden_states"]
    fields = dict(block_fields(tensors, metadata), hidden=hidden, out=np.empty_like(hidden))
    got, want = oracle.block(fields)["out"].value, load(tensors["expected.output"])
    # the modules cast to float32 here and there, so this is about float32's precision
    within_limits("out", got, want, F32)
