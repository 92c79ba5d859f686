# SPDX-License-Identifier: Apache-2.0
"""What must hold between calls, and needs no oracle: cuts, order, linearity, rollback, bits."""

import copy

import gdn
import numpy as np
import oracle
import pytest
from arrays import BF16, F32, FLOATS, call, store
from compare import same_bits, within_bound, within_limits

K, V, HEADS = 24, 40, (2, 2, 4)  # of q, k, v


def draw(seed, T, B=None, dtype=F32):
    """Inputs of B sequences (None: one, packed) of T tokens, and a pool of 8 states."""
    rng = np.random.default_rng(seed)
    leading = (T,) if B is None else (B, T)

    def normal(*shape):
        return rng.standard_normal(shape)

    q, k, v = (normal(*leading, n, size) for n, size in zip(HEADS, (K, K, V)))
    return dict(
        q=store(q, dtype),
        k=store(k, dtype),
        v=store(v, dtype),
        g=store(-rng.exponential(0.2, (*leading, HEADS[2])), F32),
        beta=store(rng.uniform(0, 1, (*leading, HEADS[2])), F32),
        out=store(np.zeros((*leading, HEADS[2], V)), dtype),
        state=store(normal(8, HEADS[2], V, K), F32),
        norm=gdn.NORM_L2,
    )


TOKENS = ("q", "k", "v", "g", "beta", "out")


def part(fields, index):
    """The same call on some of the tokens; out and state stay shared."""
    return {name: f[index] if name in TOKENS else f for name, f in fields.items()}


def run_parts(functions, cuts, fields):
    fields = copy.deepcopy(fields)
    for function, a, b in zip(functions, cuts, cuts[1:]):
        call(function, part(fields, slice(a, b)))
    return fields


# ---- Cuts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_g4_prefill_cut_at_multiples_of_16_is_the_same_bits(each_ctx, seed):
    rng = np.random.default_rng(seed)
    T = int(rng.choice([25, 48, 57, 64, 139]))
    inner = np.arange(16, T - 8, 16)  # every part has more than 8 tokens
    cuts = [0, *sorted(rng.choice(inner, rng.integers(1, len(inner) + 1), replace=False)), T]
    fields = draw(seed, T, dtype=FLOATS[seed % 3])
    whole = run_parts([each_ctx.prefill], [0, T], fields)
    parts = run_parts([each_ctx.prefill] * len(cuts), cuts, fields)
    same_bits("out", parts["out"], whole["out"])
    same_bits("state", parts["state"], whole["state"])


@pytest.mark.parametrize("seed", range(6))
def test_g4_decode_cut_anywhere_is_the_same_bits(each_ctx, seed):
    rng = np.random.default_rng(seed)
    fields = {name: f[None] if name in TOKENS else f for name, f in draw(seed, 20).items()}
    whole, parts = copy.deepcopy(fields), copy.deepcopy(fields)
    call(each_ctx.decode, whole)
    cuts = [0, *sorted(rng.choice(np.arange(1, 20), rng.integers(1, 19), replace=False)), 20]
    for a, b in zip(cuts, cuts[1:]):
        call(each_ctx.decode, part(parts, np.s_[:, a:b]))
    same_bits("out", parts["out"], whole["out"])
    same_bits("state", parts["state"], whole["state"])


@pytest.mark.parametrize("seed", range(12))
def test_g5_prefill_cut_anywhere_and_then_decode_agree_to_rounding(ctx, seed):
    """Each way within the bound of the oracle on the whole, and near the others."""
    rng = np.random.default_rng(seed)
    T = int(rng.integers(2, 150))
    fields = draw(seed, T)
    wanted = oracle.rule(fields)
    cuts = [0, *np.unique(rng.integers(1, T, rng.integers(1, 6))), T]
    tokens = [*range(cuts[-2], T + 1)]
    whole = run_parts([ctx.prefill], [0, T], fields)
    parts = run_parts([ctx.prefill] * len(cuts), cuts, fields)
    then = run_parts([ctx.prefill] + [ctx.decode] * T, [0, *tokens], fields)
    for found in (whole, parts, then):
        for name in ("out", "state"):
            within_bound(name, found[name], wanted[name])
            within_limits(name, found[name], whole[name].astype(np.float64), F32)


@pytest.mark.parametrize("seed", range(6))
def test_g5_chunks_agree_with_the_recurrence(each_ctx, seed):
    T = [9, 16, 31, 64, 100, 257][seed]
    fields = draw(seed, T, B=2)
    chunks, recurrence = copy.deepcopy(fields), copy.deepcopy(fields)
    call(each_ctx.prefill, chunks)
    assert "chunk" in each_ctx.last_kernel or "block" in each_ctx.last_kernel
    call(each_ctx.decode, recurrence)
    for name in ("out", "state"):
        within_limits(name, chunks[name], recurrence[name].astype(np.float64), F32)


# ---- Batches -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("op", ["prefill", "decode"])
def test_g2_order_of_sequences_and_threads_change_no_bit(make_ctx, isas, op, seed):
    rng = np.random.default_rng(seed)
    lengths = rng.choice([0, 1, 3, 9, 20, 48], 6)
    ends = np.cumsum([0, *lengths])
    fields = draw(seed, ends[-1], dtype=FLOATS[seed % 3])

    def run(ctx, order):
        tokens = np.concatenate([np.arange(ends[b], ends[b + 1]) for b in order])
        call_fields = copy.deepcopy(part(fields, tokens))
        cu_seqlens = np.cumsum([0, *lengths[order]])
        batch = dict(cu_seqlens=cu_seqlens, read_slots=np.array(order))
        call(getattr(ctx, op), call_fields, batch)
        out = np.zeros_like(fields["out"])
        out[tokens] = call_fields["out"]
        return out, call_fields["state"]

    for isa in isas:
        out, state = run(make_ctx(isa, 1), np.arange(6))
        for threads in (1, 2, 3):
            other = run(make_ctx(isa, threads), rng.permutation(6))
            same_bits("out", other[0], out)
            same_bits("state", other[1], state)
        b = int(rng.integers(0, 6))
        alone = run(make_ctx(isa, 2), np.array([b]))
        same_bits("out of one", alone[0][ends[b] : ends[b + 1]], out[ends[b] : ends[b + 1]])
        same_bits("state of one", alone[1][b], state[b])


def test_g3_again_is_the_same_bits(each_ctx):
    fields = draw(0, 100)
    runs = [run_parts([each_ctx.prefill], [0, 100], fields) for _ in range(3)]
    for again in runs[1:]:
        same_bits("out", again["out"], runs[0]["out"])
        same_bits("state", again["state"], runs[0]["state"])


# ---- Linearity ---------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["prefill", "decode"])
def test_linear_in_v_and_state(ctx, op):
    """Of two inputs with the same q, k, g, beta, the sum gives the sum, to rounding."""
    one, two = draw(1, 70, B=2), draw(2, 70, B=2)
    two.update({name: one[name] for name in ("q", "k", "g", "beta")})
    both = copy.deepcopy(one)
    for name in ("v", "state"):
        both[name] = one[name] + two[name]
    for fields in (one, two, both):
        call(getattr(ctx, op), fields)
    for name in ("out", "state"):
        wanted = one[name].astype(np.float64) + two[name]
        within_limits(name, both[name], wanted, F32)


@pytest.mark.parametrize("op", ["prefill", "decode"])
def test_twice_v_and_state_is_twice_the_bits(each_ctx, op):
    """Powers of two pass through every product and sum."""
    one = draw(3, 50, B=2)
    two = copy.deepcopy(one)
    for name in ("v", "state"):
        two[name] *= 4
    for fields in (one, two):
        call(getattr(each_ctx, op), fields)
    for name in ("out", "state"):
        same_bits(name, two[name], one[name] * 4)


# ---- Speculative decoding ----------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_rollback_of_drafted_tokens(each_ctx, seed):
    """Draft 4 tokens with a slot for each, accept some, go on from there: as if only the
    accepted ones had been decoded."""
    rng = np.random.default_rng(seed)
    B, T = 2, 4
    slots = rng.permutation(8).reshape(B, T)
    draft, more = draw(seed, T, B), draw(seed + 100, 3, B)
    accepted = rng.integers(1, T + 1, B)
    plain = copy.deepcopy(draft)
    more["state"] = draft["state"]
    start = dict(read_slots=slots[:, 0])
    call(each_ctx.decode, draft, dict(start, write=gdn.WRITE_EACH, write_slots=slots))
    spec = dict(read_slots=slots, num_accepted_tokens=accepted, write_slots=slots[:, 0])
    call(each_ctx.decode, more, spec)

    plain_more = copy.deepcopy(draw(seed + 100, 3, B))
    plain_more["state"] = plain["state"]
    call(each_ctx.decode, plain, dict(start, token_count=accepted))
    for b in range(B):
        n = accepted[b]
        same_bits("draft", draft["out"][b, :n], plain["out"][b, :n])
        assert not plain["out"][b, n:].any()
    call(each_ctx.decode, plain_more, start)
    same_bits("out", more["out"], plain_more["out"])
    for b in range(B):
        slot = slots[b, 0]
        same_bits("state", more["state"][slot], plain_more["state"][slot])


def test_commit_without_output(each_ctx):
    """With out absent, decode is the commit of the first token_count drafted tokens."""
    draft = draw(5, 4, B=2)
    frozen, counted, accepted = copy.deepcopy(draft), copy.deepcopy(draft), np.array([3, 0])
    call(each_ctx.decode, frozen, dict(write=gdn.WRITE_NONE))
    same_bits("frozen state", frozen["state"], draft["state"])
    commit = dict(frozen, out=None)
    call(each_ctx.decode, commit, dict(token_count=accepted))
    first = part(counted, np.s_[:1, :3])
    call(each_ctx.decode, first)
    same_bits("draft", frozen["out"][0, :3], first["out"][0])
    same_bits("state", commit["state"][0], counted["state"][0])
    same_bits("state of none", commit["state"][1:], draft["state"][1:])


@pytest.mark.parametrize("seed", range(6))
def test_rollback_of_the_convolution(each_ctx, seed):
    rng = np.random.default_rng(seed)
    B, T, D, W = 2, 4, 37, 4
    slots, accepted = rng.permutation(8).reshape(B, T), rng.integers(1, T + 1, B)
    x, more = (rng.standard_normal((B, n, D)).astype(F32) for n in (T, 3))
    weight = rng.standard_normal((D, W)).astype(F32)
    state = rng.standard_normal((8, D, W - 1)).astype(F32)
    out, plain_out, plain_state = np.zeros_like(x), np.zeros_like(more), state.copy()
    fields, start = dict(weight=weight, activation=gdn.ACT_SILU), dict(read_slots=slots[:, 0])
    each = dict(start, write=gdn.WRITE_EACH, write_slots=slots)
    call(each_ctx.conv1d, dict(fields, x=x, out=out, state=state), each)
    spec = dict(read_slots=slots, num_accepted_tokens=accepted, write_slots=slots[:, 0])
    spec_out = np.zeros_like(more)
    call(each_ctx.conv1d, dict(fields, x=more, out=spec_out, state=state), spec)
    count = dict(start, token_count=accepted)
    call(each_ctx.conv1d, dict(fields, x=x, out=out.copy(), state=plain_state), count)
    call(each_ctx.conv1d, dict(fields, x=more, out=plain_out, state=plain_state), start)
    same_bits("out", spec_out, plain_out)
    same_bits("state", state[slots[:, 0]], plain_state[slots[:, 0]])


def test_convolution_in_one_call_and_in_many_is_the_same_bits(each_ctx):
    rng = np.random.default_rng(0)
    for dtype in FLOATS:
        x, weight = (store(rng.standard_normal(s), dtype) for s in ((30, 70), (70, 4)))
        state = store(rng.standard_normal((1, 70, 3)), dtype)
        one, many = (np.zeros_like(x) for _ in range(2))
        states = state.copy(), state.copy()
        call(each_ctx.conv1d, dict(x=x, weight=weight, out=one, state=states[0]))
        for a, b in ((0, 1), (1, 3), (3, 20), (20, 21), (21, 30)):
            fields = dict(x=x[a:b], weight=weight, out=many[a:b], state=states[1])
            call(each_ctx.conv1d, fields)
        same_bits("out", many, one)
        same_bits("state", states[1], states[0])


# ---- Gates by selection ------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["prefill", "decode"])
@pytest.mark.parametrize("bad", [np.nan, 1e30, np.inf])
def test_g7_a_gate_of_minus_infinity_forgets(each_ctx, op, bad):
    fields = draw(0, 40, B=1)
    fields["g"][:, 13] = -np.inf
    clean = copy.deepcopy(fields)
    fields["state"][0] = bad
    clean["state"][0] = 0
    for f in (fields, clean):
        call(getattr(each_ctx, op), f)
    same_bits("out", fields["out"][:, 13:], clean["out"][:, 13:])
    same_bits("state", fields["state"], clean["state"])


@pytest.mark.parametrize("op", ["prefill", "decode"])
def test_g8_beta_of_zero_writes_nothing(each_ctx, op):
    fields = draw(0, 40, B=1)
    fields["beta"][:, [0, 7, 25]] = 0
    dirty = copy.deepcopy(fields)
    dirty["v"][:, [0, 7, 25]] = np.nan
    for f in (fields, dirty):
        call(getattr(each_ctx, op), f)
    same_bits("out", dirty["out"], fields["out"])
    same_bits("state", dirty["state"], fields["state"])


@pytest.mark.parametrize("op", ["prefill", "decode"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_g9_every_state_bit_stays(each_ctx, op, dtype):
    fields = draw(0, 40, B=1)
    fields["g"][:], fields["beta"][:] = 0, 0
    fields["state"] = np.random.default_rng(0).integers(0, 256, fields["state"].size * 4, np.uint8)
    fields["state"] = fields["state"].view(dtype)[: 8 * 4 * V * K].reshape(8, 4, V, K)
    finite = np.isfinite(fields["state"]) if dtype != BF16 else (fields["state"] & 0x7F80) != 0x7F80
    fields["state"][~finite] = 0
    before = fields["state"].copy()
    call(getattr(each_ctx, op), fields)
    same_bits("state", fields["state"], before)


@pytest.mark.parametrize("op", ["prefill", "decode"])
@pytest.mark.parametrize("name", ["q", "k", "v", "g", "beta"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_reaches_only_later_tokens_of_its_head(each_ctx, op, name, bad):
    """The policy of gdn.h: tokens before, other heads and other sequences keep every bit."""
    fields = draw(0, 45, B=2)
    dirty = copy.deepcopy(fields)
    dirty[name][0, 21, 0] = bad
    for f in (fields, dirty):
        call(getattr(each_ctx, op), f)
    heads = HEADS[2] // HEADS["qkv".index(name)] if name in "qkv" else 1
    same_bits("tokens before", dirty["out"][0, :21], fields["out"][0, :21])
    same_bits("other heads", dirty["out"][0, :, heads:], fields["out"][0, :, heads:])
    same_bits("other sequence", dirty["out"][1], fields["out"][1])
    same_bits("state of other heads", dirty["state"][0, heads:], fields["state"][0, heads:])
    same_bits("state of the other sequence", dirty["state"][1:], fields["state"][1:])
    assert not np.isfinite(dirty["out"][0, 21:, :heads]).all()


def test_g10_and_g11_what_does_not_count_is_not_touched(each_ctx):
    """Empty sequences, padding rows and tokens past token_count may hold anything."""
    fields = draw(0, 20, B=4)
    fields["out"][:] = 7
    for name in ("q", "k", "v", "g", "beta"):
        fields[name][1, 12:] = fields[name][2] = fields[name][3] = np.nan
    before = fields["state"].copy()
    batch = dict(read_slots=np.array([5, 6, -1, 2]), token_count=np.array([20, 12, 20, 0]))
    for op in (each_ctx.prefill, each_ctx.decode):
        call(op, fields, batch)
        assert np.isfinite(fields["out"]).all() and np.isfinite(fields["state"]).all()
        assert not fields["out"][1, 12:].any() and not fields["out"][2:].any()
        others = [0, 1, 2, 3, 4, 7]
        same_bits("state", fields["state"][others], before[others])
        assert (fields["state"][[5, 6]] != before[[5, 6]]).any()
