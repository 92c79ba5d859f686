# SPDX-License-Identifier: Apache-2.0
"""
gdn_prefill and gdn_decode against the oracle, in random calls: dtypes, heads, head sizes,
gates, norms, layouts, strides, batches. A case is its seed; the same seed is the same case.
"""

import gdn
import numpy as np
import oracle
import pytest
from arrays import F32, FLOATS, Guarded, call, load, store
from compare import within_bound, within_limits

SIZES = [1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 48, 60, 64, 65, 100, 128]
LONG = [257, 512, 1000, 1024]  # of V alone
LENGTHS = {False: [0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40, 65], True: [0, 1, 1, 1, 2, 3, 5]}
INDEX = (np.int32, np.int64)


class Case:
    """One call: fields as views, batch, and the Guarded memory of each."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.is_decode = bool(self.chance(0.4))
        self.memory, self.fields, self.batch = {}, {}, {}
        self.draw_shapes()
        self.draw_batch()
        self.draw_tokens()
        self.draw_gates()
        self.draw_state()
        self.draw_options()

    def chance(self, p):
        return self.rng.random() < p

    def pick(self, options):
        return options[self.rng.integers(len(options))]

    def put(self, name, values, dtype, dense=1, is_input=True):
        """A field that holds the values, rounded to dtype."""
        guarded = Guarded(self.rng, store(values, dtype), dense, is_input)
        self.memory[name] = guarded
        self.fields[name] = guarded.view

    def draw_shapes(self):
        self.H = int(self.pick([1, 2, 3, 4, 6]))
        divisors = [n for n in range(1, self.H + 1) if self.H % n == 0]
        self.Hq, self.Hk, self.Hv = (int(self.pick(divisors)) for _ in "qkv")
        if self.chance(0.5):
            self.Hq = self.H
        else:
            self.Hv = self.H
        self.K, self.V = (int(self.pick(SIZES)) for _ in "KV")
        if self.K < 20 and self.H < 3:
            self.V = int(self.pick(LONG))
        self.B = int(self.rng.integers(1, 5))
        lengths = LENGTHS[self.is_decode]
        layout = self.pick(["packed", "padded", "plain"])
        if layout == "padded":
            self.lengths = [int(self.pick(lengths))] * self.B
            self.leading = (self.B, self.lengths[0])
        elif layout == "packed":
            self.lengths = [int(self.pick(lengths)) for _ in range(self.B)]
            ends = np.cumsum([0, *self.lengths])
            self.leading = (int(ends[-1]) + int(self.pick([0, 0, 3])),)
            self.batch["cu_seqlens"] = ends.astype(self.pick(INDEX))
        else:
            self.B, self.lengths = 1, [int(self.pick(lengths))]
            self.leading = (self.lengths[0],)

    def draw_batch(self):
        """Slots: each sequence has three of its own, and one more is there to be shared."""
        B, longest = self.B, max(self.lengths)
        width = max(3, longest if self.is_decode else 0)
        self.P = B * width + 1
        slots = self.rng.permutation(self.P)
        own, shared = slots[:-1].reshape(B, width), slots[-1]
        index = self.pick(INDEX)
        mode = self.pick(["plain", "slots", "shared", "accepted", "each", "none"])
        if mode == "each" and not self.is_decode:
            mode = "slots"
        if mode in ("slots", "each", "none"):
            self.batch["read_slots"] = own[:, 0].astype(index)
        if mode == "slots" and self.chance(0.5):
            self.batch["write_slots"] = own[:, 1].astype(index)
        if mode == "shared":
            self.batch["read_slots"] = np.full(B, shared, index)
            self.batch["write_slots"] = own[:, 1].astype(index)
        if mode == "accepted":
            self.batch["read_slots"] = own.astype(index)
            self.batch["num_accepted_tokens"] = self.rng.integers(1, width + 1, B).astype(index)
        if mode == "each":
            self.batch["write"] = gdn.WRITE_EACH
            each = np.where(self.rng.random(own.shape) < 0.2, -1, own)
            self.batch["write_slots"] = each.astype(index)
            if self.chance(0.5):
                self.batch["num_accepted_tokens"] = self.rng.integers(1, width + 1, B).astype(index)
                self.batch["read_slots"] = own.astype(index)
        if mode == "none":
            self.batch["write"] = gdn.WRITE_NONE
        if self.chance(0.3):
            self.batch["has_initial_state"] = self.rng.integers(0, 2, B).astype(
                self.pick([np.bool_, np.uint8, *INDEX])
            )
        if self.chance(0.3):
            counts = [self.rng.integers(0, T + 1) for T in self.lengths]
            self.batch["token_count"] = np.array(counts, self.pick(INDEX))
        if mode == "slots" and self.chance(0.5):
            self.batch["pad_policy"] = int(self.rng.integers(0, 3))
            self.batch["sink_slot"] = int(shared)
            self.batch["read_slots"][self.rng.integers(B)] = -1

    def draw_tokens(self):
        self.A = self.pick(FLOATS)
        self.norm = int(self.rng.integers(0, 5))
        for name, n in (("q", self.Hq), ("k", self.Hk)):
            x = self.rng.standard_normal((*self.leading, n, self.K))
            if self.norm in (gdn.NORM_DEFAULT, gdn.NORM_NONE):
                x /= np.linalg.norm(x, axis=-1, keepdims=True)
            self.put(name, x, self.A)
        size = 10.0 ** self.rng.uniform(-2, 1, (self.Hv, 1))
        self.put("v", size * self.rng.standard_normal((*self.leading, self.Hv, self.V)), self.A)

    def draw_gates(self):
        shape, rng = (*self.leading, self.H), self.rng
        kind = self.pick([None, gdn.GATE_LOG, gdn.GATE_LINEAR, gdn.GATE_RAW])
        strength = self.pick([0.01, 0.3, 10])
        if kind == gdn.GATE_LOG or kind == gdn.GATE_LINEAR:
            g = -strength * rng.exponential(size=shape)
            g[rng.random(shape) < 0.05] = -np.inf
            g[rng.random(shape) < 0.05] = 0
            values = np.exp(g) if kind == gdn.GATE_LINEAR else g
            self.put("g", values, self.pick([F32, self.A]), dense=0)
        if kind == gdn.GATE_RAW:
            self.put("g", 4 * rng.standard_normal(shape), self.pick([F32, self.A]), dense=0)
            self.put("A_log", rng.uniform(-4, 2, self.H), self.pick(FLOATS), dense=0)
            if self.chance(0.7):
                self.put("dt_bias", rng.standard_normal(self.H), self.pick(FLOATS), dense=0)
            if self.chance(0.3):
                self.fields["gate_lower_bound"] = -5.0
        if kind is not None:
            self.fields["gate"] = kind
        kind = self.pick([None, gdn.BETA_GIVEN, gdn.BETA_SIGMOID, gdn.BETA_TWICE_SIGMOID])
        if kind is None:
            return
        beta = 2 * rng.standard_normal(shape)
        if kind == gdn.BETA_GIVEN:
            beta = rng.uniform(0, 1, shape)
            beta[rng.random(shape) < 0.1] = 0
        self.put("beta", beta, self.pick([F32, self.A]), dense=0)
        self.fields["beta_kind"] = kind

    def draw_state(self):
        self.layout = int(self.rng.integers(0, 2))
        sizes = (self.K, self.V) if self.layout == gdn.STATE_KV else (self.V, self.K)
        shape = (self.P, self.H, *sizes)
        dtype = self.pick(FLOATS)
        use = self.pick(["absent", "in place", "in place", "apart", "out only", "same view"])
        values = self.rng.standard_normal(shape)
        for name, uses in (("state", ("in place", "apart", "same view")),
                           ("state_out", ("apart", "out only"))):
            if use in uses and self.chance(0.3):  # the other of the last two dimensions is dense
                self.put(name, values.swapaxes(-1, -2), dtype, is_input=False)
                self.fields[name] = self.fields[name].swapaxes(-1, -2)
            elif use in uses:
                self.put(name, values, dtype, is_input=False)
        if use == "same view":
            self.fields["state_out"] = self.fields["state"]
        self.fields["state_layout"] = self.layout
        # These need a pool to be about.
        if use == "absent":
            for name in ("write_slots", "write"):
                self.batch.pop(name, None)

    def draw_options(self):
        writes = "state" in self.fields or "state_out" in self.fields
        writes = writes and self.batch.get("write") != gdn.WRITE_NONE
        if self.Hv == self.H and not any(self.memory["v"].repeats) and self.chance(0.1):
            self.fields["out"] = self.fields["v"]
        elif self.chance(0.9) or not writes:
            out = self.rng.standard_normal((*self.leading, self.H, self.V))
            self.put("out", out, self.A, is_input=False)
        self.fields["norm"] = self.norm
        if self.chance(0.5):
            self.fields["norm_eps"] = float(self.pick([1e-6, 1e-5, 1e-2]))
        if self.chance(0.5):
            self.fields["scale"] = float(self.pick([1.0, -0.3]))
        if self.H > 1 and self.chance(0.3):
            self.fields["head_map"] = gdn.HEADS_INTERLEAVED

    def dtypes(self):
        states = [self.fields[n].dtype for n in ("state", "state_out") if n in self.fields]
        return [self.A, *states]


@pytest.mark.parametrize("seed", range(240))
def test_g6_random_calls_agree_with_the_oracle(make_ctx, isas, seed):
    case = Case(seed)
    ctx = make_ctx(case.pick(isas), int(case.rng.integers(1, 4)))
    batch = case.batch or None
    wanted = oracle.rule(case.fields, batch)
    call(ctx.decode if case.is_decode else ctx.prefill, case.fields, batch)
    for name, expected in wanted.items():
        within_bound(name, case.fields[name], expected)
        computed = expected.computed
        got, want = case.fields[name][computed], expected.value[computed]
        within_limits(name, got, want, *case.dtypes())
    written = [case.fields[name] for name in wanted]
    for name, memory in case.memory.items():
        is_written = any(case.fields[name] is array for array in written)
        assert memory.gaps_are_untouched() if is_written else memory.is_untouched(), name


@pytest.mark.parametrize("seed", range(5))
def test_weak_gates_after_strong_ones_keep_their_digits(each_ctx, seed):
    """
    One key is written and then only decays: o[t] is the product of the gates since. Sums of
    gates near -50 in the same chunk must not cost the small ones after them their digits.
    """
    rng = np.random.default_rng(seed)
    T, j = 16, int(rng.integers(4, 12))
    g = np.where(np.arange(T) < j, -rng.uniform(20, 60, T), -rng.uniform(0, 3, T)).astype(F32)
    one, k = np.ones((T, 1, 1), F32), np.zeros((T, 1, 1), F32)
    k[j], out = 1, np.zeros((T, 1, 1), F32)
    each_ctx.prefill(q=one, k=k, v=one, g=g[:, None], out=out, scale=1.0)
    exponent = np.cumsum(np.where(np.arange(T) > j, g, 0).astype(np.float64))
    want = np.where(np.arange(T) >= j, np.exp(exponent), 0)
    error = np.abs(out[:, 0, 0] - want)
    assert (error <= oracle.UNIT * (8 + 2 * np.abs(exponent)) * want).all()


def test_the_sweep_reaches_everything():
    """The sweep has all the cases that it is for."""
    cases = [Case(seed) for seed in range(240)]
    for name in ("g", "beta", "A_log", "dt_bias", "state", "state_out", "out", "head_map"):
        assert 10 < sum(name in case.fields for case in cases) < 241, name
    for name in ("cu_seqlens", "read_slots", "write_slots", "has_initial_state",
                 "num_accepted_tokens", "token_count", "pad_policy", "write"):
        assert sum(name in case.batch for case in cases) > 10, name
    assert sum(case.Hq < case.H for case in cases) > 10
    assert sum(case.Hv < case.H for case in cases) > 10
