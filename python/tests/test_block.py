# SPDX-License-Identifier: Apache-2.0
"""gdn_block against the oracle: both ways to save the weights, dtypes, batches, states."""

import copy

import gdn
import numpy as np
import oracle
import pytest
from arrays import F32, FLOATS, Guarded, call, load, store
from compare import same_bits, within_limits
from oracle import ROUNDOFF


class Layer:
    """Random weights of one layer as fields of gdn_block."""

    def __init__(self, rng):
        self.rng = rng
        self.Hk, ratio = int(rng.integers(1, 4)), int(rng.integers(1, 4))
        self.Hv = self.Hk * ratio
        self.K, self.V, self.W = int(self.pick([4, 16, 33])), int(self.pick([8, 17, 32])), 4
        self.W = int(rng.integers(2, 6))
        self.hidden, self.D = int(self.pick([8, 40, 64])), 2 * self.Hk * self.K + self.Hv * self.V
        self.fields = dict(
            n_key_heads=self.Hk, n_value_heads=self.Hv, key_head_dim=self.K, value_head_dim=self.V
        )
        values = self.Hv * self.V
        if rng.random() < 0.5:
            self.weight("in_proj_qkvz", self.D + values, self.hidden)
            self.weight("in_proj_ba", 2 * self.Hv, self.hidden)
        else:
            self.weight("in_proj_qkv", self.D, self.hidden)
            self.weight("in_proj_z", values, self.hidden)
            self.weight("in_proj_b", self.Hv, self.hidden)
            self.weight("in_proj_a", self.Hv, self.hidden)
        self.weight("conv_weight", *self.pick([(self.D, self.W), (self.D, 1, self.W)]))
        if rng.random() < 0.5:
            self.weight("conv_bias", self.D)
        self.put("A_log", rng.uniform(-3, 1, self.Hv))
        self.put("dt_bias", rng.standard_normal(self.Hv))
        self.put("norm_weight", rng.uniform(0.5, 1.5, self.V))
        self.weight("out_proj", self.hidden, values)
        if rng.random() < 0.5:
            self.fields["rms_eps"] = 1e-5

    def pick(self, options):
        return options[self.rng.integers(len(options))]

    def put(self, name, values):
        guarded = Guarded(self.rng, store(values, self.pick(FLOATS)), values.ndim)
        self.fields[name] = guarded.view

    def weight(self, name, *shape):
        self.put(name, self.rng.standard_normal(shape) / np.sqrt(shape[-1]))

    def states(self, P, dtype):
        """Pools of P slots with something in them."""
        layout = int(self.rng.integers(0, 2))
        sizes = (self.K, self.V) if layout == gdn.STATE_KV else (self.V, self.K)
        S = self.W - 1 + int(self.pick([0, 1, 3]))
        conv = store(self.rng.standard_normal((P, self.D, S)), dtype)
        rule = store(self.rng.standard_normal((P, self.Hv, *sizes)), dtype)
        return dict(conv_state=conv, state=rule, state_layout=layout)


def draw_batch(rng, B, lengths, P):
    batch, slots = {}, rng.permutation(P)
    if rng.random() < 0.5:
        batch["read_slots"] = slots[:B].astype(np.int32)
        if rng.random() < 0.3:
            batch["write_slots"] = slots[B : 2 * B].astype(np.int32)
        if rng.random() < 0.3:
            batch["read_slots"][rng.integers(B)] = -1
            batch["pad_policy"] = int(rng.integers(0, 2))
    if rng.random() < 0.3:
        batch["has_initial_state"] = rng.integers(0, 2, B).astype(np.uint8)
    if rng.random() < 0.3:
        batch["token_count"] = np.array([rng.integers(0, T + 1) for T in lengths])
    return batch


def check(name, got, expected):
    """
    The limit of an f32 result, what the rule's error becomes where the norm enlarges it (four
    times: q, k, v and g come with errors of their own), and one rounding of what is stored
    narrower.
    """
    want, computed = expected.value, expected.computed
    rounding = ROUNDOFF[got.dtype.char] if got.dtype != F32 else 0
    rms = np.sqrt(np.mean(want[computed] ** 2)) if computed.any() else 0
    limit = 2e-5 * rms + 1e-6 + 4 * expected.bound + 1.01 * rounding * np.abs(want)
    error = np.abs(load(got) - want)
    bad = np.argwhere(~(error <= np.where(computed, limit, 0)))
    assert not len(bad), f"{name}{bad[0]}: {len(bad)} of {want.size}, largest {np.max(error)}"


@pytest.mark.parametrize("seed", range(80))
def test_random_layers_agree_with_the_oracle(make_ctx, isas, seed):
    rng = np.random.default_rng(seed)
    layer = Layer(rng)
    B = int(rng.integers(1, 4))
    lengths = [int(n) for n in rng.choice([0, 1, 1, 2, 5, 9, 16, 20, 35], B)]
    if rng.random() < 0.1:
        lengths[0] = 300  # more than one window
    A, batch, P = layer.pick(FLOATS), {}, 2 * B + 1
    if rng.random() < 0.5:
        lengths = [lengths[0]] * B
        leading = (B, lengths[0])
    else:
        ends = np.cumsum([0, *lengths])
        leading, batch = (int(ends[-1]) + 1,), dict(cu_seqlens=ends)
    fields = dict(layer.fields)
    x = store(rng.standard_normal((*leading, layer.hidden)), A)
    hidden = Guarded(rng, x)
    out = Guarded(rng, store(rng.standard_normal(x.shape), A))
    fields.update(hidden=hidden.view, out=out.view)
    if rng.random() < 0.8:
        fields.update(layer.states(P, layer.pick(FLOATS)))
        batch.update(draw_batch(rng, B, lengths, P))
    wanted = oracle.block(fields, batch)
    call(make_ctx(layer.pick(isas), int(rng.integers(1, 3))).block, fields, batch)
    for name, expected in wanted.items():
        check(name, fields[name], expected)
    assert hidden.is_untouched() and out.gaps_are_untouched()


@pytest.mark.parametrize("seed", range(6))
def test_g5_prefill_then_decode(ctx, seed):
    """A layer over all tokens; and over some, then one by one: the results agree up to rounding."""
    rng = np.random.default_rng(seed)
    layer = Layer(rng)
    x = store(rng.standard_normal((60, layer.hidden)), F32)
    whole, parts = np.empty_like(x), np.empty_like(x)
    start = layer.states(1, F32)
    states, other = copy.deepcopy(start), copy.deepcopy(start)
    call(ctx.block, dict(layer.fields, hidden=x, out=whole, **states))
    cut = int(rng.integers(1, 60))
    for a, b in [(0, cut), *((t, t + 1) for t in range(cut, 60))]:
        call(ctx.block, dict(layer.fields, hidden=x[a:b], out=parts[a:b], **other))
    within_limits("out", parts, load(whole), F32)
    within_limits("state", other["state"], load(states["state"]), F32)
    within_limits("conv_state", other["conv_state"], load(states["conv_state"]), F32)


def test_g2_threads_and_batch_mates_change_no_bit(make_ctx, isas):
    rng = np.random.default_rng(0)
    layer = Layer(rng)
    lengths = [5, 40, 1, 17]
    ends = np.cumsum([0, *lengths])
    x = store(rng.standard_normal((ends[-1], layer.hidden)), F32)
    states = layer.states(4, F32)

    def run(ctx, order):
        tokens = np.concatenate([np.arange(ends[b], ends[b + 1]) for b in order])
        pools = copy.deepcopy(states)
        cu = np.cumsum([0, *(lengths[b] for b in order)])
        out = np.empty_like(x)
        part = np.empty((len(tokens), layer.hidden), F32)
        batch = dict(cu_seqlens=cu, read_slots=np.array(order))
        call(ctx.block, dict(layer.fields, hidden=x[tokens], out=part, **pools), batch)
        out[tokens] = part
        return out, pools

    for isa in isas:
        out, pools = run(make_ctx(isa, 1), [0, 1, 2, 3])
        other, other_pools = run(make_ctx(isa, 3), [2, 0, 3, 1])
        same_bits("out", other, out)
        same_bits("state", other_pools["state"], pools["state"])
        same_bits("conv_state", other_pools["conv_state"], pools["conv_state"])
        alone, _ = run(make_ctx(isa, 2), [1])
        same_bits("out of one", alone[ends[1] : ends[2]], out[ends[1] : ends[2]])
