# SPDX-License-Identifier: Apache-2.0
"""gdn_conv1d, gdn_gates, gdn_l2norm, gdn_rmsnorm_gated against the oracle, in random calls."""

import gdn
import numpy as np
import oracle
import pytest
from arrays import BF16, F16, F32, FLOATS, Guarded, call, load, store
from compare import same_bits, within_bound
from oracle import SMALLEST, UNIT, Expected


class Draw:
    """A random generator, and the fields and memory of one call."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.fields, self.memory = {}, {}

    def chance(self, p):
        return self.rng.random() < p

    def pick(self, options):
        return options[self.rng.integers(len(options))]

    def put(self, name, values, dtype=None, dense=1, is_input=True):
        dtype = dtype or self.pick(FLOATS)
        guarded = Guarded(self.rng, store(values, dtype), dense, is_input)
        self.memory[name], self.fields[name] = guarded, guarded.view

    def normal(self, *shape):
        return self.rng.standard_normal(shape)

    def leading(self, most):
        """Sizes of leading dimensions, now and then an empty one."""
        sizes = self.rng.integers(1, 5, self.rng.integers(1, most + 1))
        if self.chance(0.05):
            sizes[0] = 0
        return tuple(int(n) for n in sizes)

    def check(self, wanted):
        for name, expected in wanted.items():
            within_bound(name, self.fields[name], expected)
        written = [self.fields[name] for name in wanted]
        for name, memory in self.memory.items():
            if any(self.fields[name] is array for array in written):
                assert memory.gaps_are_untouched(), f"{name}: gaps changed"
            else:
                assert memory.is_untouched(), f"{name}: changed"


def computed(value, bound, dtype):
    return Expected(value, bound + 0 * value, np.ones(value.shape, bool)).stored_as(dtype)


# ---- Short convolution -------------------------------------------------------------------------


def draw_conv(seed):
    draw, batch = Draw(seed), {}
    rng = draw.rng
    D, W = int(draw.pick([1, 3, 16, 17, 64, 65, 200])), int(rng.integers(2, 9))
    B = int(rng.integers(1, 5))
    lengths = [int(n) for n in rng.choice([0, 1, 1, 2, 3, 5, 8, 9, 20], B)]
    A = draw.pick(FLOATS)
    layout = draw.pick(["packed", "padded", "plain"])
    if layout == "packed":
        ends = np.cumsum([0, *lengths])
        leading = (int(ends[-1]) + int(draw.pick([0, 2])),)
        batch["cu_seqlens"] = ends.astype(draw.pick([np.int32, np.int64]))
    else:
        lengths = lengths[:1] * B if layout == "padded" else lengths[:1]
        leading = (B, lengths[0]) if layout == "padded" else (lengths[0],)
        B = len(lengths)
    draw.put("x", draw.normal(*leading, D), A)
    draw.put("weight", draw.normal(D, W) if draw.chance(0.5) else draw.normal(D, 1, W), dense=0)
    if draw.chance(0.5):
        draw.put("bias", draw.normal(D), dense=0)
    use = draw.pick(["absent", "in place", "in place", "apart", "out only"])
    width = max(2, *lengths)
    S, P, dtype = W - 1 + int(draw.pick([0, 0, 1, 4])), B * width + 1, draw.pick(FLOATS)
    if use in ("in place", "apart"):
        draw.put("state", draw.normal(P, D, S), dtype, 0, False)
    if use in ("apart", "out only"):
        draw.put("state_out", draw.normal(P, D, S), dtype, 0, False)
    own = rng.permutation(P)[:-1].reshape(B, width).astype(np.int32)
    mode = draw.pick(["plain", "slots", "each", "none"])
    if mode != "plain":
        batch["read_slots"] = own[:, 0].copy()
    if mode == "slots" and draw.chance(0.5) and use != "absent":
        batch["write_slots"] = own[:, 1]
    if mode == "slots" and draw.chance(0.3):
        batch.update(pad_policy=int(rng.integers(0, 2)))
        batch["read_slots"][rng.integers(B)] = -1
    if mode == "each" and use != "absent":
        each = np.where(rng.random(own.shape) < 0.2, -1, own)
        batch.update(write=gdn.WRITE_EACH, write_slots=each)
    if mode == "none" and use != "absent":
        batch["write"] = gdn.WRITE_NONE
    if draw.chance(0.3):
        batch["has_initial_state"] = rng.integers(0, 2, B).astype(np.uint8)
    if draw.chance(0.3):
        batch["token_count"] = np.array([rng.integers(0, T + 1) for T in lengths])
    if draw.chance(0.2) and not any(draw.memory["x"].repeats):
        draw.fields["out"] = draw.fields["x"]
    else:
        draw.put("out", draw.normal(*leading, D), A, is_input=False)
    draw.fields["activation"] = int(rng.integers(0, 2))
    return draw, batch or None


@pytest.mark.parametrize("seed", range(100))
def test_conv1d(make_ctx, isas, seed):
    draw, batch = draw_conv(seed)
    wanted = oracle.conv1d(draw.fields, batch)
    call(make_ctx(draw.pick(isas), int(draw.rng.integers(1, 4))).conv1d, draw.fields, batch)
    draw.check(wanted)


@pytest.mark.parametrize("dtype", (F16, BF16))
@pytest.mark.parametrize("channels_last", (False, True))
def test_what_is_stored_is_rounded_to_nearest_even(each_ctx, dtype, channels_last):
    """By float32 inputs moving into a 16-bit state: ties, denormals, overflow, random bits."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 4000, dtype=np.uint32)
    bits[:1000] &= 0xFFFFF000  # many ties of f16 ...
    bits[1000:2000] = bits[1000:2000] & 0xFFFF0000 | 0x8000  # ... and of bfloat16
    x = bits.view(F32)
    x[2000:3000] = rng.standard_normal(1000) * 10.0 ** rng.uniform(-8, 5, 1000)
    x[~np.isfinite(x)] = np.inf
    x = x.reshape(4, 1000)
    state = np.zeros((1, 4, 1000) if channels_last else (1, 1000, 4), dtype)
    view = state.swapaxes(1, 2) if channels_last else state
    weight = np.zeros((1000, 5), F32)
    call(each_ctx.conv1d, dict(x=x, weight=weight, out=np.zeros_like(x), state=view))
    with np.errstate(over="ignore"):
        same_bits("state", view[0].T, store(x, dtype))


# ---- Gates -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(60))
def test_gates(make_ctx, isas, seed):
    """a and b reach where softplus and sigmoid are steep, flat, linear, and underflow."""
    draw = Draw(seed)
    shape = (*draw.leading(3), int(draw.pick([1, 2, 7, 16, 33])))
    size, H, f = float(draw.pick([1, 10, 60])), shape[-1], draw.fields
    bound = float(draw.pick([0, 0, -5]))
    wanted, has_g = {}, draw.chance(0.8)
    if has_g:
        draw.put("a", size * draw.normal(*shape))
        draw.put("A_log", draw.rng.uniform(-4, 2, H), dense=0)
        if draw.chance(0.7):
            draw.put("dt_bias", draw.normal(H), dense=0)
        dt_bias = load(f["dt_bias"]) if "dt_bias" in f else 0
        g, g_size = oracle.raw_gate(load(f["a"]), load(f["A_log"]), dt_bias, bound)
        factor = -bound if bound else np.exp(load(f["A_log"]))
        linear = draw.chance(0.5)
        f.update(gate=gdn.GATE_LINEAR if linear else gdn.GATE_LOG, gate_lower_bound=bound)
        error = 5 * UNIT * g_size + factor * SMALLEST["f"]  # sigmoid and exp underflow
        if draw.chance(0.2) and not any(draw.memory["a"].repeats):
            f["g"] = f["a"]
        else:
            draw.put("g", draw.normal(*shape), is_input=False)
        if linear:
            g, error = np.exp(g), np.exp(g) * (np.expm1(error) + 2 * UNIT) + 2.0**-149
        wanted["g"] = computed(g, error, f["g"].dtype)
    if draw.chance(0.8) or not has_g:
        draw.put("b", size * draw.normal(*shape))
        f["beta_kind"] = int(draw.rng.integers(0, 3))
        draw.put("beta", draw.normal(*shape), is_input=False)
        beta = oracle.raw_beta(load(f["b"]), f["beta_kind"])
        wanted["beta"] = computed(beta, 5 * UNIT * beta, f["beta"].dtype)
    call(make_ctx(draw.pick(isas), 2).gates, f)
    draw.check(wanted)


# ---- Norms -------------------------------------------------------------------------------------


def norm_shape(draw):
    return (*draw.leading(3), int(draw.pick([1, 2, 15, 16, 60, 128, 256, 300, 1000])))


@pytest.mark.parametrize("seed", range(60))
def test_l2norm(make_ctx, isas, seed):
    """All formulas, with rows so short that eps counts, and zero rows."""
    draw = Draw(seed)
    shape, f = norm_shape(draw), draw.fields
    x = 10.0 ** draw.rng.uniform(-4, 1, (*shape[:-1], 1)) * draw.normal(*shape)
    x[draw.rng.random(shape[:-1]) < 0.1] = 0
    draw.put("x", x)
    if draw.chance(0.2) and not any(draw.memory["x"].repeats):
        f["out"] = f["x"]
    else:
        draw.put("out", draw.normal(*shape), is_input=False)
    f["norm"] = int(draw.rng.integers(0, 4))
    f["eps"] = float(draw.pick([0, 1e-6, 1e-5, 1e-2]))
    y = oracle.l2norm(load(f["x"]), f["norm"] or gdn.NORM_L2, f["eps"] or 1e-6)
    # half the error of the sum of squares, the root, eps, the quotient
    bound = UNIT * (8 + shape[-1] / 32) * np.abs(y)
    wanted = dict(out=computed(y, bound, f["out"].dtype))
    call(make_ctx(draw.pick(isas), 2).l2norm, f)
    draw.check(wanted)


@pytest.mark.parametrize("seed", range(60))
def test_rmsnorm_gated(make_ctx, isas, seed):
    draw = Draw(seed)
    shape, f = norm_shape(draw), draw.fields
    draw.put("x", 10.0 ** draw.rng.uniform(-3, 1, (*shape[:-1], 1)) * draw.normal(*shape))
    if draw.chance(0.7):
        draw.put("z", 4 * draw.normal(*shape))
    if draw.chance(0.7):
        draw.put("weight", draw.normal(shape[-1]), dense=0)
    alias = draw.pick(["x", "z", None, None])
    if alias in f and not any(draw.memory[alias].repeats):
        f["out"] = f[alias]
    else:
        draw.put("out", draw.normal(*shape), is_input=False)
    f["activation"] = int(draw.pick([0, gdn.ACT_SILU, gdn.ACT_SIGMOID]))
    f["eps"] = float(draw.pick([0, 1e-6, 1e-5, 1e-2]))
    y = oracle.rmsnorm_gated(
        load(f["x"]),
        load(f["z"]) if "z" in f else None,
        load(f["weight"]) if "weight" in f else None,
        f["activation"] or gdn.ACT_SILU,
        f["eps"] or 1e-6,
    )
    wanted = dict(out=computed(y, UNIT * (14 + shape[-1] / 32) * np.abs(y), f["out"].dtype))
    call(make_ctx(draw.pick(isas), 2).rmsnorm_gated, f)
    draw.check(wanted)


def test_zero_rows_stay_zero(each_ctx):
    x, out = np.zeros((3, 20), F32), np.ones((3, 20), F32)
    for norm in (gdn.NORM_L2, gdn.NORM_L2_ADD, gdn.NORM_L2_MAX):
        each_ctx.l2norm(x=x, out=out, norm=norm)
        same_bits("out", out, x)
