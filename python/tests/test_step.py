# SPDX-License-Identifier: Apache-2.0
"""gdn_step as an engine calls it, against the separate calls: on a CPU to the bit."""

import gdn
import numpy as np
import pytest
from arrays import F16, F32, store
from compare import same_bits


class Mixer:
    """The weights of a layer between its projections, and its pools of P slots."""

    def __init__(self, rng, P):
        self.rng, self.Hk, self.Hv, self.K, self.V = rng, 2, 4, 16, 24
        self.D = 2 * self.Hk * self.K + self.Hv * self.V
        self.weights = dict(
            conv_weight=self.draw(self.D, 1, 4), A_log=self.draw(self.Hv),
            dt_bias=self.draw(self.Hv), norm_weight=self.draw(self.V),
        )
        self.conv_state = self.draw(P, self.D, 3, dtype=F16)
        self.state = self.draw(P, self.Hv, self.V, self.K)

    def draw(self, *shape, dtype=F32):
        return store(self.rng.standard_normal(shape) / 2, dtype)

    def tokens(self, *leading):
        """Draws the outputs of the projections: one buffer for q, k, v and z, one for b and a."""
        qkvz = self.draw(*leading, self.D + self.Hv * self.V, dtype=F16)
        ba = self.draw(*leading, 2 * self.Hv, dtype=F16)
        z = qkvz[..., self.D :].reshape(*leading, self.Hv, self.V)
        return dict(x=qkvz[..., : self.D], z=z, b=ba[..., : self.Hv], a=ba[..., self.Hv :])

    def step(self, ctx, tokens, batch):
        out = np.zeros_like(tokens["z"])
        ctx.step(
            **tokens, **self.weights, out=out, conv_state=self.conv_state, state=self.state,
            n_key_heads=self.Hk, n_value_heads=self.Hv, key_head_dim=self.K,
            value_head_dim=self.V, batch=batch,
        )
        return out

    def separate_calls(self, ctx, tokens, batch):
        mixed, out = np.zeros_like(tokens["x"]), np.zeros_like(tokens["z"])
        weights = self.weights
        ctx.conv1d(x=tokens["x"], weight=weights["conv_weight"], state=self.conv_state, out=mixed,
                   activation=gdn.ACT_SILU, batch=batch)
        keys, lead = self.Hk * self.K, mixed.shape[:-1]
        q, k, v = np.split(mixed, [keys, 2 * keys], -1)
        ctx.decode(
            q=q.reshape(*lead, self.Hk, self.K), k=k.reshape(*lead, self.Hk, self.K),
            v=v.reshape(*lead, self.Hv, self.V), g=tokens["a"], beta=tokens["b"],
            A_log=weights["A_log"], dt_bias=weights["dt_bias"], gate=gdn.GATE_RAW,
            beta_kind=gdn.BETA_SIGMOID, norm=gdn.NORM_L2, state=self.state, out=out, batch=batch,
        )
        ctx.rmsnorm_gated(x=out, z=tokens["z"], weight=weights["norm_weight"], out=out)
        return out


@pytest.mark.parametrize("T", (1, 4))
def test_the_bits_of_the_separate_calls(each_ctx, T):
    slots = np.array([4, 0, 2], np.int32)
    one, two = (Mixer(np.random.default_rng(T), 5) for _ in range(2))
    for _ in range(3):  # the states go on
        batch = gdn.Batch(read_slots=slots)
        tokens = one.tokens(3, T)
        got, wanted = one.step(each_ctx, tokens, batch), two.separate_calls(each_ctx, tokens, batch)
        same_bits("out", got, wanted)
        same_bits("state", one.state, two.state)
        same_bits("conv_state", one.conv_state, two.conv_state)
    assert each_ctx.last_kernel.startswith("rmsnorm_gated")


def test_packed_tokens_without_lengths_are_one_sequence(ctx):
    padded, packed = (Mixer(np.random.default_rng(0), 3) for _ in range(2))
    tokens = padded.tokens(1, 3)
    wanted = padded.step(ctx, tokens, None)
    got = packed.step(ctx, {name: x[0] for name, x in tokens.items()}, None)
    same_bits("out", got, wanted[0])
    same_bits("state", packed.state, padded.state)


def test_what_is_wrong_is_named(ctx):
    mixer = Mixer(np.random.default_rng(0), 2)
    tokens = mixer.tokens(2, 1)
    with pytest.raises(gdn.Error, match="^GDN_E_SHAPE: x"):
        mixer.step(ctx, dict(tokens, x=tokens["x"][..., 1:]), None)
    with pytest.raises(gdn.Error, match="^GDN_E_DTYPE: a"):
        mixer.step(ctx, dict(tokens, a=tokens["a"].astype(np.float32).view(np.int32)), None)
