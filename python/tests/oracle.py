# SPDX-License-Identifier: Apache-2.0
"""
What gdn.h says, in NumPy and float64, written from its formulas and from nothing else.

Every op gives beside its values a bound of what float32 arithmetic may differ, to first order.
For the rule it is derived so. One token adds to column j of the state (a K-vector) an error of
at most

    eps (|alpha M_j| + |k| |u_j|) + |k| eps beta (|v_j| + |k|^T alpha M_j)

in length, where M is the magnitude of the state: the sum of the absolute values that any order
of summation, blocks included, may form it from. Later tokens multiply the error by alpha and by
I - beta k k^T, whose norm is max(1, |1 - beta |k|^2|). The output adds eps |q|^T M.

eps is 8 + 2 |g| units of 2^-24. On the longest path there are K / 16 + 40 roundings: a dot
product of K terms (K / 16 + 8), two norms (4), the gates of a block (8), the up to 16 terms of
its solve, decay and update (4). Of inputs without structure they add up like a random walk, to
the root of their number, which is below 8. An error of g comes back multiplied, hence 2 |g|.
"""

from dataclasses import dataclass

import gdn
import numpy as np
from arrays import load

UNIT = 2.0**-24
UNITS = 8
ROUNDOFF = {"f": UNIT, "e": 2.0**-11, "H": 2.0**-8}  # by dtype.char; uint16 is bfloat16
SMALLEST = {"f": 2.0**-149, "e": 2.0**-24, "H": 2.0**-133}


@dataclass
class Expected:
    """Values, how far off a result may be, and which elements the call computes."""

    value: np.ndarray
    bound: np.ndarray
    computed: np.ndarray

    @classmethod
    def of(cls, array):
        """Starts as what the array holds."""
        return cls(load(array), np.zeros(array.shape), np.zeros(array.shape, bool))

    def set(self, index, value, bound=None):
        """bound None: exactly value."""
        self.value[index] = value
        self.bound[index] = 0 if bound is None else bound
        self.computed[index] = bound is not None

    def stored_as(self, dtype):
        """Adds the error of rounding once to the dtype."""
        kind = np.dtype(dtype).char
        with np.errstate(invalid="ignore"):
            rounding = ROUNDOFF[kind] * (np.abs(self.value) + self.bound) + SMALLEST[kind]
        self.bound += np.where(self.computed, rounding, 0)
        return self


# ---- Functions of one row ----------------------------------------------------------------------


def sigmoid(x):
    return np.exp(-np.logaddexp(0, -x))


def silu(x):
    return x * sigmoid(x)


def softplus(x):
    return np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))


def l2norm(x, norm=gdn.NORM_L2, eps=1e-6):
    squares = (x * x).sum(-1, keepdims=True)
    if norm in (gdn.NORM_DEFAULT, gdn.NORM_NONE):
        return x
    if norm == gdn.NORM_L2:
        return x / np.sqrt(squares + eps)
    if norm == gdn.NORM_L2_ADD:
        return x / (np.sqrt(squares) + eps)
    return x / np.maximum(np.sqrt(squares), eps)


def rmsnorm_gated(x, z=None, weight=None, activation=gdn.ACT_SILU, eps=1e-6):
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    if weight is not None:
        y = y * weight
    if z is not None:
        y = y * (sigmoid(z) if activation == gdn.ACT_SIGMOID else silu(z))
    return y


def raw_gate(a, A_log, dt_bias=0, lower_bound=0):
    """Returns log alpha, and the magnitude of its error in float32, in units of 2^-24."""
    A, x = np.exp(A_log), a + dt_bias
    terms = A * (np.abs(a) + np.abs(dt_bias))
    if lower_bound < 0:
        g = lower_bound * sigmoid(A * x)
        return g, np.abs(g) * (1 + terms)  # sigmoid' <= sigmoid
    g = -A * softplus(x)
    return g, np.abs(g) + terms * sigmoid(x)


def raw_beta(b, kind):
    return sigmoid(b) * (2 if kind == gdn.BETA_TWICE_SIGMOID else 1)


# ---- Batches -----------------------------------------------------------------------------------


@dataclass
class Sequence:
    tokens: range  # in the tensors with their leading dimensions flattened
    n_valid: int
    read: int  # slot, or -1: from zero
    write: int  # slot of the final state, or -1
    each: list  # slots of the states after every valid token, or None
    pad: bool = False  # computes nothing
    keep: bool = False  # and leaves the output alone


def token_ranges(batch, leading):
    if len(leading) == 2:
        return [range(b * leading[1], (b + 1) * leading[1]) for b in range(leading[0])]
    if "cu_seqlens" in batch:
        ends = [int(c) for c in batch["cu_seqlens"]]
        return [range(*pair) for pair in zip(ends, ends[1:])]
    return [range(leading[0])]


def sequences(batch, leading):
    """The sequences of a batch (a dict of fields, or None) over tokens of that leading shape."""
    batch = batch or {}

    def at(name, b, default):
        return int(batch[name][b]) if name in batch else default

    for b, tokens in enumerate(token_ranges(batch, leading)):
        policy = batch.get("pad_policy", gdn.PAD_ZERO)
        mode = batch.get("write", gdn.WRITE_FINAL)
        if "num_accepted_tokens" in batch:
            read = int(batch["read_slots"][b][int(batch["num_accepted_tokens"][b]) - 1])
        else:
            read = at("read_slots", b, b)
        n_valid = at("token_count", b, len(tokens))
        each, write = None, -1
        if read < 0 and policy != gdn.PAD_SINK:
            yield Sequence(tokens, n_valid, -1, -1, None, True, policy == gdn.PAD_KEEP)
            continue
        if read < 0:
            read = write = batch["sink_slot"]
        elif mode == gdn.WRITE_EACH:
            each = [int(s) for s in batch["write_slots"][b][:n_valid]]
        else:
            write = at("write_slots", b, read)
        if mode == gdn.WRITE_NONE:
            write = -1
        if not at("has_initial_state", b, 1):
            read = -1
        if len(tokens) == 0:
            write, each = -1, None
        yield Sequence(tokens, n_valid, read, write, each)


def put_output(out, seq, value, bound):
    """Rows of a flattened output; value and bound are those of the valid tokens."""
    if out is None or seq.keep:
        return
    out.set(slice(seq.tokens.start, seq.tokens.stop), 0)
    if not seq.pad:
        out.set(slice(seq.tokens.start, seq.tokens.start + seq.n_valid), value, bound)


def put_states(pool, seq, states, bounds, start):
    """The states after the tokens of a sequence, into the slots of a pool."""
    if pool is None or seq.pad:
        return
    for slot, state, bound in zip(seq.each or [], states, bounds):
        if slot >= 0:
            pool.set(slot, state, bound)
    if seq.write >= 0 and seq.n_valid:
        pool.set(seq.write, states[-1], bounds[-1])
    elif seq.write >= 0:
        pool.set(seq.write, start)


def flat(array, n_leading):
    return array.reshape(-1, *array.shape[n_leading:])


def clear_tail(out, batch):
    """Output past the end of cu_seqlens is zero."""
    if out is not None and batch and "cu_seqlens" in batch:
        out.set(slice(int(batch["cu_seqlens"][-1]), None), 0)


# ---- The rule ----------------------------------------------------------------------------------


def rule_sequence(q, k, v, g, g_size, beta, S, scale):
    """
    q k [T][H][K], v [T][H][V], g and beta [T][H], S [H][K][V]: outputs [T][H][V], states after
    every token [T][H][K][V], bounds of both. g_size is the magnitude of g's own error.
    """
    M, e = np.abs(S), np.zeros(v.shape[1:])
    rows = [[np.empty((0, *shape))] for shape in (e.shape, e.shape, S.shape, S.shape)]
    for t in range(len(q)):
        alpha = np.exp(g[t])
        dead, closed = alpha == 0, beta[t] == 0
        units = UNITS + 2 * np.where(dead, 0, g_size[t])
        eps = (UNIT * units)[:, None]
        S = np.where(dead[:, None, None], 0, alpha[:, None, None] * S)
        M = np.where(dead[:, None, None], 0, alpha[:, None, None] * M)
        size_k = np.linalg.norm(k[t], axis=-1)
        p, p_size = np.einsum("hk,hkv->hv", k[t], S), np.einsum("hk,hkv->hv", np.abs(k[t]), M)
        u = np.where(closed[:, None], 0, beta[t][:, None] * (v[t] - p))
        u_size = np.where(closed[:, None], 0, np.abs(beta[t])[:, None] * (np.abs(v[t]) + p_size))
        growth = np.maximum(1, np.abs(1 - beta[t] * size_k**2))
        e = np.where(dead[:, None], 0, (alpha * growth)[:, None] * e)
        e = e + eps * (np.linalg.norm(M, axis=1) + size_k[:, None] * (np.abs(u) + u_size))
        S = S + k[t][:, :, None] * u[:, None]
        M = M + np.abs(k[t][:, :, None] * u[:, None])
        o = scale * np.einsum("hk,hkv->hv", q[t], S)
        o_size = np.einsum("hk,hkv->hv", np.abs(q[t]), M)
        o_bound = abs(scale) * (np.linalg.norm(q[t], axis=-1)[:, None] * e + eps * o_size)
        for row, value in zip(rows, (o, o_bound, S, np.broadcast_to(e[:, None], S.shape))):
            row.append(value[None])
    return [np.concatenate(row) for row in rows]


def heads_of(array, H, interleaved):
    """The head of an [N][n][..] tensor that each of H state heads reads."""
    n, h = array.shape[1], np.arange(H)
    return array[:, h % n if interleaved else h // (H // n)]


def rule_gates(f, shape):
    """log g, the size of its error, and beta, for the fields of a call."""
    kind, g_size = f.get("gate", gdn.GATE_LOG), None
    if f.get("g") is None:
        g = np.zeros(shape)
    elif kind == gdn.GATE_RAW:
        dt_bias = 0 if f.get("dt_bias") is None else load(f["dt_bias"])
        g, g_size = raw_gate(load(f["g"]), load(f["A_log"]), dt_bias, f.get("gate_lower_bound", 0))
        g_size = 5 * g_size
    else:
        g = load(f["g"])
        if kind == gdn.GATE_LINEAR:
            with np.errstate(divide="ignore"):
                g = np.log(g)
    beta = np.ones(shape) if f.get("beta") is None else load(f["beta"])
    if f.get("beta_kind", gdn.BETA_DEFAULT) not in (gdn.BETA_DEFAULT, gdn.BETA_GIVEN):
        beta = raw_beta(beta, f["beta_kind"])
    return g, np.abs(g) if g_size is None else g_size, beta


def rule(f, batch=None):
    """gdn_prefill or gdn_decode on the fields f: what out and the written pool are then, by their
    names."""
    leading = f["q"].shape[:-2]
    H = max(f["q"].shape[-2], f["v"].shape[-2])
    interleaved = f.get("head_map", 0) == gdn.HEADS_INTERLEAVED
    q, k, v = (heads_of(flat(load(f[x]), len(leading)), H, interleaved) for x in "qkv")
    norm, eps = f.get("norm", 0), np.float32(f.get("norm_eps", 0) or 1e-6)
    q, k = l2norm(q, norm, float(eps)), l2norm(k, norm, float(eps))
    g, g_size, beta = (flat(x, len(leading)) for x in rule_gates(f, (*leading, H)))
    scale = float(np.float32(f.get("scale", 0))) or q.shape[-1] ** -0.5

    def first(state):  # [P][H][K][V]
        vk = f.get("state_layout", gdn.STATE_VK) == gdn.STATE_VK
        return state.swapaxes(-1, -2) if vk else state

    start_pool = None if f.get("state") is None else first(load(f["state"]))
    target = "state" if f.get("state_out") is None else "state_out"
    pool = None if f.get(target) is None else Expected.of(first(f[target]))
    out = None if f.get("out") is None else Expected.of(flat(f["out"], len(leading)))
    clear_tail(out, batch)
    for seq in sequences(batch, leading):
        start = np.zeros((H, q.shape[-1], v.shape[-1]))
        if start_pool is not None and seq.read >= 0:
            start = start_pool[seq.read]
        t = slice(seq.tokens.start, seq.tokens.start + (0 if seq.pad else seq.n_valid))
        o, o_bound, S, S_bound = rule_sequence(
            q[t], k[t], v[t], g[t], g_size[t], beta[t], start, scale
        )
        put_output(out, seq, o, o_bound)
        put_states(pool, seq, S, S_bound, start)
    found = {}
    if out is not None:
        shape = f["out"].shape
        found["out"] = Expected(*(x.reshape(shape) for x in vars(out).values()))
        found["out"].stored_as(f["out"].dtype)
    if pool is not None:
        found[target] = Expected(*(first(x) for x in vars(pool).values()))
        found[target].stored_as(f[target].dtype)
    return found


# ---- Short convolution -------------------------------------------------------------------------


def conv_sequence(x, weight, bias, past, activation):
    """x [T][D], weight [D][W], past [D][S]: outputs, bounds, states after every token."""
    W, S = weight.shape[1], past.shape[1]
    line = np.concatenate([past.T, x])  # [S + T][D]
    y, size = np.zeros(x.shape) + bias, np.abs(np.zeros(x.shape) + bias)
    for w in range(W):
        taps = line[S - W + 1 + w :][: len(x)]
        y = y + weight[:, w] * taps
        size = size + np.abs(weight[:, w] * taps)
    bound = UNIT * (8 + W) * size
    if activation == gdn.ACT_SILU:  # |silu'| < 1.1
        y = silu(y)
        bound = 1.1 * bound + UNIT * 8 * np.abs(y)
    states = [line[t + 1 : t + 1 + S].T for t in range(len(x))]
    return y, bound, states


def conv1d(f, batch=None):
    """gdn_conv1d on the fields f: what out and the written pool are then."""
    leading = f["x"].shape[:-1]
    x, weight = flat(load(f["x"]), len(leading)), load(f["weight"])
    weight = weight.reshape(weight.shape[0], weight.shape[-1])
    bias = 0 if f.get("bias") is None else load(f["bias"])
    start_pool = None if f.get("state") is None else load(f["state"])
    target = "state" if f.get("state_out") is None else "state_out"
    pool = None if f.get(target) is None else Expected.of(f[target])
    length = weight.shape[1] - 1 if pool is None else pool.value.shape[2]
    out = None if f.get("out") is None else Expected.of(flat(f["out"], len(leading)))
    clear_tail(out, batch)
    for seq in sequences(batch, leading):
        start = np.zeros((x.shape[1], length))
        if start_pool is not None and seq.read >= 0:
            start = start_pool[seq.read]
        t = slice(seq.tokens.start, seq.tokens.start + (0 if seq.pad else seq.n_valid))
        y, bound, states = conv_sequence(x[t], weight, bias, start, f.get("activation", 0))
        put_output(out, seq, y, bound)
        put_states(pool, seq, states, [0] * len(states), start)
    found = {}
    if out is not None:
        shape = f["out"].shape
        found["out"] = Expected(*(x.reshape(shape) for x in vars(out).values()))
        found["out"].stored_as(f["out"].dtype)
    if pool is not None:
        found[target] = pool.stored_as(f[target].dtype)
    return found


# ---- The layer ---------------------------------------------------------------------------------


HEAD_FIELDS = ("n_key_heads", "n_value_heads", "key_head_dim", "value_head_dim")


def projections(f, x):
    """Hugging Face's projections of x [N][hidden]: q k v side by side, z, b, a."""
    Hk, Hv, K, V = (f[n] for n in HEAD_FIELDS)
    r = Hv // Hk

    def project(name):
        return x @ load(f[name]).T

    if f.get("in_proj_qkvz") is None:
        return [project(f"in_proj_{name}") for name in ("qkv", "z", "b", "a")]
    # Qwen3-Next: rows are grouped by key head.
    groups = project("in_proj_qkvz").reshape(len(x), Hk, 2 * K + 2 * r * V)
    q, k, v, z = np.split(groups, [K, 2 * K, 2 * K + r * V], axis=2)
    b, a = np.split(project("in_proj_ba").reshape(len(x), Hk, 2 * r), 2, axis=2)
    q, k, v, z, b, a = (
        part.reshape(len(x), Hk * part.shape[2]) for part in (q, k, v, z, b, a)
    )
    return [np.concatenate([q, k, v], axis=1), z, b, a]


def block_sequence(f, x, past, S):
    """x [T][hidden], states of one sequence: outputs, how far the rule's own error takes them,
    and both states after the tokens."""
    Hk, Hv, K, V = (f[n] for n in HEAD_FIELDS)
    T = len(x)
    qkv, z, b, a = projections(f, x)
    weight = load(f["conv_weight"])
    weight = weight.reshape(weight.shape[0], weight.shape[-1])
    bias = 0 if f.get("conv_bias") is None else load(f["conv_bias"])
    qkv, _, pasts = conv_sequence(qkv, weight, bias, past, gdn.ACT_SILU)
    q, k, v = np.split(qkv, [Hk * K, 2 * Hk * K], axis=1)
    q, k = (heads_of(l2norm(x.reshape(T, Hk, K)), Hv, False) for x in (q, k))
    g, g_size = raw_gate(a, load(f["A_log"]), load(f["dt_bias"]))
    o, o_bound, states, _ = rule_sequence(
        q, k, v.reshape(T, Hv, V), g, g_size, sigmoid(b), S, K**-0.5
    )
    eps = float(np.float32(f.get("rms_eps", 0) or 1e-6))
    z, norm_weight, out_proj = z.reshape(T, Hv, V), load(f["norm_weight"]), load(f["out_proj"])
    y = rmsnorm_gated(o, z, norm_weight, eps=eps)
    # Where q and k nearly cancel, o is short and the norm brings its error up with it.
    length = np.sqrt((o * o).mean(-1, keepdims=True) + eps)
    error = o_bound / length * np.abs(silu(z) * norm_weight)
    error += np.abs(y) * np.sqrt((o_bound**2).mean(-1, keepdims=True)) / length
    bound = error.reshape(T, Hv * V) @ np.abs(out_proj).T
    out = y.reshape(T, Hv * V) @ out_proj.T
    return out, bound, pasts[-1] if T else past, states[-1] if T else S


def block(f, batch=None):
    """gdn_block on the fields f: out, conv_state and state. Bounds are of the rule alone."""
    leading = f["hidden"].shape[:-1]
    vk = f.get("state_layout", gdn.STATE_VK) == gdn.STATE_VK
    D, W = f["conv_weight"].shape[0], f["conv_weight"].shape[-1]
    x = flat(load(f["hidden"]), len(leading))
    out = Expected.of(flat(f["out"], len(leading)))
    pools = {name: Expected.of(f[name]) for name in ("conv_state", "state") if name in f}
    clear_tail(out, batch)
    for seq in sequences(batch, leading):
        past = np.zeros((D, f["conv_state"].shape[2] if "conv_state" in f else W - 1))
        S = np.zeros((f["n_value_heads"], f["key_head_dim"], f["value_head_dim"]))
        if "conv_state" in f and seq.read >= 0:
            past = load(f["conv_state"])[seq.read]
        if "state" in f and seq.read >= 0:
            S = load(f["state"])[seq.read]
            S = S.swapaxes(1, 2) if vk else S
        n = 0 if seq.pad else seq.n_valid
        tokens = x[seq.tokens.start : seq.tokens.start + n]
        o, bound, past, S = block_sequence(f, tokens, past, S)
        put_output(out, seq, o, bound)
        ends = {"conv_state": past, "state": S.swapaxes(1, 2) if vk else S}
        for name, pool in pools.items():
            put_states(pool, seq, [ends[name]] * n, [0] * n, ends[name])
    found = {"out": Expected(*(x.reshape(f["out"].shape) for x in vars(out).values())), **pools}
    return found
