# SPDX-License-Identifier: Apache-2.0
"""G1: a refused call names the argument and leaves every array as it was."""

import copy

import gdn
import numpy as np
import pytest
from arrays import F16, F32, call, load
from numpy.lib.stride_tricks import as_strided


def ones(*shape, dtype=F32):
    return np.ones(shape, dtype)


def rule_call():
    """5 tokens of 2 sequences, 4 slots; GVA of 2 on 4 heads."""
    fields = dict(
        q=ones(5, 2, 8), k=ones(5, 2, 8), v=ones(5, 4, 6), g=-ones(5, 4), beta=ones(5, 4),
        state=ones(4, 4, 6, 8), out=ones(5, 4, 6),
    )
    return fields, dict(cu_seqlens=np.array([0, 3, 5]), read_slots=np.array([0, 1]))


def conv_call():
    fields = dict(x=ones(5, 7), weight=ones(7, 4), bias=ones(7), state=ones(4, 7, 3))
    batch = dict(cu_seqlens=np.array([0, 3, 5]), read_slots=np.array([0, 1]))
    return dict(fields, out=ones(5, 7)), batch


def gates_call():
    fields = dict(a=ones(5, 4), b=ones(5, 4), A_log=ones(4), dt_bias=ones(4), g=ones(5, 4))
    return dict(fields, beta=ones(5, 4)), None


def l2norm_call():
    return dict(x=ones(5, 8), out=ones(5, 8)), None


def rmsnorm_call():
    return dict(x=ones(5, 8), z=ones(5, 8), weight=ones(8), out=ones(5, 8)), None


def block_call():
    """Hk 2, Hv 4, K 8, V 6: 56 channels, 24 values."""
    fields = dict(
        hidden=ones(5, 16), out=ones(5, 16), in_proj_qkvz=ones(80, 16), in_proj_ba=ones(8, 16),
        conv_weight=ones(56, 4), A_log=ones(4), dt_bias=ones(4), norm_weight=ones(6),
        out_proj=ones(16, 24), conv_state=ones(4, 56, 3), state=ones(4, 4, 6, 8),
        n_key_heads=2, n_value_heads=4, key_head_dim=8, value_head_dim=6,
    )
    return fields, dict(cu_seqlens=np.array([0, 3, 5]), read_slots=np.array([0, 1]))


CALLS = dict(
    prefill=rule_call, decode=rule_call, conv1d=conv_call, gates=gates_call,
    l2norm=l2norm_call, rmsnorm_gated=rmsnorm_call, block=block_call,
)
ARG, SHAPE, DTYPE, UNSUPPORTED = gdn.E_ARG, gdn.E_SHAPE, gdn.E_DTYPE, gdn.E_UNSUPPORTED
slots = np.array
EACH = dict(write=gdn.WRITE_EACH, write_slots=slots([[0, 2, 3]] * 2))

# op, the argument that the text names, the status, what is changed
BAD = [
    ("prefill", "flags", ARG, dict(flags=16)),
    ("prefill", "gate", ARG, dict(gate=3)),
    ("prefill", "beta_kind", ARG, dict(beta_kind=-1)),
    ("prefill", "head_map", ARG, dict(head_map=2)),
    ("prefill", "state_layout", ARG, dict(state_layout=2)),
    ("prefill", "norm", ARG, dict(norm=5)),
    ("prefill", "norm_eps", ARG, dict(norm_eps=-1)),
    ("prefill", "scale", ARG, dict(scale=float("nan"))),
    ("prefill", "gate_lower_bound", ARG, dict(gate_lower_bound=1)),
    ("prefill", "q", ARG, dict(q=None)),
    ("prefill", "k", ARG, dict(k=None)),
    ("prefill", "v", ARG, dict(v=None)),
    ("prefill", "out", ARG, dict(out=None, state=None)),
    ("prefill", "A_log", ARG, dict(gate=gdn.GATE_RAW)),
    ("prefill", "A_log", ARG, dict(A_log=ones(4))),
    ("prefill", "g", ARG, dict(gate=gdn.GATE_RAW, g=None, A_log=ones(4))),
    ("prefill", "beta", ARG, dict(beta=None, beta_kind=gdn.BETA_SIGMOID)),
    ("prefill", "q", SHAPE, dict(q=ones(8))),
    ("prefill", "k", SHAPE, dict(k=ones(5, 2, 7))),
    ("prefill", "k", SHAPE, dict(k=ones(4, 2, 8))),
    ("prefill", "q k v", SHAPE, dict(k=ones(5, 3, 8))),
    ("prefill", "g", SHAPE, dict(g=ones(5, 2))),
    ("prefill", "state", SHAPE, dict(state=ones(4, 4, 8, 6))),
    ("prefill", "state", SHAPE,
     dict(state=as_strided(ones(4, 4, 6), (4, 4, 6, 8), (96, 24, 4, 0)))),
    ("prefill", "out", SHAPE, dict(out=ones(5, 2, 6))),
    ("prefill", "q", SHAPE, dict(q=ones(5, 2, 16)[..., ::2])),
    ("prefill", "k", DTYPE, dict(k=ones(5, 2, 8, dtype=np.int32))),
    ("prefill", "g", DTYPE, dict(g=ones(5, 4, dtype=np.int32))),
    ("prefill", "state", DTYPE, dict(state=ones(4, 4, 6, 8, dtype=np.int32))),
    ("prefill", "q", UNSUPPORTED, dict(q=ones(5, 2, 257), k=ones(5, 2, 257))),
    ("prefill", "out", SHAPE, dict(out=as_strided(ones(4, 6), (5, 4, 6), (0, 24, 4)))),
    ("prefill", "cu_seqlens", ARG, dict(cu_seqlens=slots([0, 3, 2]))),
    ("prefill", "cu_seqlens", ARG, dict(cu_seqlens=slots([-1, 3, 5]))),
    ("prefill", "cu_seqlens", ARG, dict(cu_seqlens=slots([0, 3, 6]))),
    ("prefill", "cu_seqlens", DTYPE, dict(cu_seqlens=ones(3))),
    ("prefill", "read_slots", ARG, dict(read_slots=slots([0, 4]))),
    ("prefill", "read_slots", SHAPE, dict(read_slots=slots([0, 1, 2]))),
    ("prefill", "write_slots", ARG, dict(write_slots=slots([0, 4]))),
    ("prefill", "write_slots: slot 2", ARG, dict(write_slots=slots([2, 2]))),
    ("prefill", "read_slots: slot 1", ARG, dict(write_slots=slots([1, 2]))),
    ("prefill", "has_initial_state", DTYPE, dict(has_initial_state=ones(2))),
    ("prefill", "token_count", ARG, dict(token_count=slots([3, 3]))),
    ("prefill", "num_accepted_tokens", ARG,
     dict(read_slots=slots([[0, 2], [1, 3]]), num_accepted_tokens=slots([0, 1]))),
    ("prefill", "num_accepted_tokens", ARG,
     dict(read_slots=slots([[0, 2], [1, 3]]), num_accepted_tokens=slots([1, 3]))),
    ("prefill", "pad_policy", ARG, dict(pad_policy=3)),
    ("prefill", "max_seqlen", ARG, dict(max_seqlen=-1)),
    ("prefill", "sink_slot", ARG, dict(pad_policy=gdn.PAD_SINK, sink_slot=-1)),
    ("prefill", "write", ARG, dict(write=3)),
    ("prefill", "write", UNSUPPORTED, EACH),
    ("decode", "write_slots", ARG, dict(write=gdn.WRITE_EACH)),
    ("decode", "write_slots", SHAPE, dict(EACH, write_slots=slots([[0, 2], [1, 3]]))),
    ("decode", "q", UNSUPPORTED, dict(q=ones(5, 2, 257), k=ones(5, 2, 257))),
    ("conv1d", "activation", ARG, dict(activation=gdn.ACT_SIGMOID)),
    ("conv1d", "x", ARG, dict(x=None)),
    ("conv1d", "weight", ARG, dict(weight=None)),
    ("conv1d", "weight", SHAPE, dict(weight=ones(6, 4))),
    ("conv1d", "weight", SHAPE, dict(weight=ones(7, 1))),
    ("conv1d", "weight", UNSUPPORTED, dict(weight=ones(7, 17), state=ones(4, 7, 16))),
    ("conv1d", "bias", SHAPE, dict(bias=ones(6))),
    ("conv1d", "state", SHAPE, dict(state=ones(4, 7, 2))),
    ("conv1d", "out", DTYPE, dict(out=ones(5, 7, dtype=F16))),
    ("conv1d", "read_slots", ARG, dict(read_slots=slots([0, 9]))),
    ("gates", "gate", ARG, dict(gate=gdn.GATE_RAW)),
    ("gates", "beta_kind", ARG, dict(beta_kind=3)),
    ("gates", "gate_lower_bound", ARG, dict(gate_lower_bound=0.5)),
    ("gates", "A_log", ARG, dict(A_log=None)),
    ("gates", "A_log", SHAPE, dict(A_log=ones(3))),
    ("gates", "g", SHAPE, dict(g=ones(5, 3))),
    ("gates", "g", ARG, dict(g=None)),
    ("gates", "beta", DTYPE, dict(beta=ones(5, 4, dtype=np.int32))),
    ("l2norm", "x", ARG, dict(x=None)),
    ("l2norm", "out", ARG, dict(out=None)),
    ("l2norm", "out", SHAPE, dict(out=ones(5, 7))),
    ("l2norm", "x", SHAPE, dict(x=ones(5, 16)[:, ::2])),
    ("l2norm", "norm", ARG, dict(norm=4)),
    ("l2norm", "eps", ARG, dict(eps=-1)),
    ("l2norm", "x", UNSUPPORTED, dict(x=ones(1, 65537), out=ones(1, 65537))),
    ("rmsnorm_gated", "activation", ARG, dict(activation=3)),
    ("rmsnorm_gated", "z", SHAPE, dict(z=ones(5, 7))),
    ("rmsnorm_gated", "weight", SHAPE, dict(weight=ones(7))),
    ("rmsnorm_gated", "eps", ARG, dict(eps=float("nan"))),
    ("block", "n_key_heads", ARG, dict(n_key_heads=0)),
    ("block", "n_value_heads", ARG, dict(n_value_heads=3)),
    ("block", "hidden", ARG, dict(hidden=None)),
    ("block", "in_proj_qkvz", SHAPE, dict(in_proj_qkvz=ones(79, 16))),
    ("block", "in_proj_ba", ARG, dict(in_proj_ba=None)),
    ("block", "in_proj_z", ARG, dict(in_proj_z=ones(24, 16))),
    ("block", "conv_weight", ARG, dict(conv_weight=None)),
    ("block", "conv_bias", SHAPE, dict(conv_bias=ones(55))),
    ("block", "norm_weight", SHAPE, dict(norm_weight=ones(8))),
    ("block", "out_proj", SHAPE, dict(out_proj=ones(24, 16))),
    ("block", "conv_state", SHAPE, dict(conv_state=ones(3, 56, 3))),
    ("block", "state", SHAPE, dict(state=ones(4, 4, 8, 6))),
    ("block", "rms_eps", ARG, dict(rms_eps=-1)),
    ("block", "write", UNSUPPORTED, EACH),
    ("block", "read_slots", ARG, dict(read_slots=slots([0, 4]))),
]


def changed(op, change):
    fields, batch = CALLS[op]()
    for name, value in change.items():
        in_batch = name in dict(gdn.gdn_batch._fields_)
        (batch if in_batch else fields)[name] = value
    return fields, batch


def refuse(ctx, op, fields, batch, status, name):
    """Calls, and holds that the call is refused for that reason and has changed nothing."""
    arrays = {n: a for n, a in {**fields, **(batch or {})}.items() if isinstance(a, np.ndarray)}
    before = copy.deepcopy(arrays)
    with pytest.raises(gdn.Error) as caught:
        call(getattr(ctx, op), fields, batch)
    assert caught.value.status == status, caught.value
    assert caught.value.text.startswith(name), caught.value
    for n, a in arrays.items():
        assert (load(a) == load(before[n])).all(), n


@pytest.mark.parametrize("op", CALLS)
def test_the_good_calls_are_good(ctx, op):
    fields, batch = CALLS[op]()
    before = copy.deepcopy(fields)
    call(getattr(ctx, op), fields, batch)
    out = "beta" if op == "gates" else "out"
    assert (fields[out] != before[out]).any()


@pytest.mark.parametrize("i", range(len(BAD)), ids=lambda i: f"{BAD[i][0]}-{BAD[i][1]}-{i}")
def test_g1_refused_calls(ctx, i):
    op, name, status, change = BAD[i]
    fields, batch = changed(op, change)
    refuse(ctx, op, fields, batch, status, name)


def test_g1_overlaps(ctx):
    fields, batch = rule_call()
    memory = ones(200)
    fields["out"], fields["v"] = memory[:120].reshape(5, 4, 6), memory[8:128].reshape(5, 4, 6)
    refuse(ctx, "prefill", fields, batch, ARG, "out: overlaps v")
    fields, batch = rule_call()
    fields["state_out"] = fields["state"][::-1]
    refuse(ctx, "prefill", fields, batch, ARG, "state_out: overlaps state")
    fields, batch = conv_call()
    fields["out"] = fields["x"][::-1]
    refuse(ctx, "conv1d", fields, batch, ARG, "out: overlaps x")


def test_a_good_call_after_a_refused_one(ctx):
    fields, batch = rule_call()
    fresh = copy.deepcopy(fields)
    refuse(ctx, "decode", dict(fields, q=ones(8)), batch, SHAPE, "q")
    for f in (fields, fresh):
        call(ctx.decode, f, batch)
    assert (fields["out"] == fresh["out"]).all() and (fields["state"] == fresh["state"]).all()
