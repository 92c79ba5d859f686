# SPDX-License-Identifier: Apache-2.0
"""What is raced: cases, their inputs, and what the recurrence in float64 says of a few heads."""
import dataclasses
import math

import gates
import torch
import torch.nn.functional as F

PREFILL_HEADS = ((16, 32), (16, 64), (2, 8), (8, 32), (16, 16), (4, 16))
PREFILL_LENGTHS = ((2048,), (8192,), (32768,), (8192,) * 4, (4096,) * 8, (4096,), (2048,) * 4,
                   (1024,) * 8)
# Sets of rows: heads, lengths, dim. gates: where gates were seen to cost; others: beside them.
ROWS = {
    "gates": [(16, 32, (8192,) * 4, 128), (16, 32, (4096,) * 8, 128), (16, 32, (8192,), 128),
              (16, 32, (32768,), 128), (16, 32, (2048,) * 4, 128), (16, 32, (1024,) * 8, 128),
              (16, 64, (2048,) * 4, 128), (16, 64, (32768,), 128), (8, 24, (32768,), 128),
              (2, 8, (32768,), 128)],
    "others": [(8, 24, (8192,) * 4, 128), (16, 48, (8192,) * 4, 128), (16, 48, (32768,), 128),
               (32, 32, (8192,) * 4, 128), (32, 32, (32768,), 128), (4, 16, (8192,) * 4, 128),
               (4, 16, (32768,), 128),
               (16, 32, (100, 3000, 8192, 517, 4096, 1, 2048, 12000), 128),
               (16, 32, (8192,) * 4, 64), (16, 32, (32768,), 64), (16, 32, (8192,) * 4, 256),
               (16, 32, (32768,), 256)],
}
ROWS["claims"] = ROWS["gates"] + ROWS["others"]
INSIDE = ("neither", "norm", "raw")
DECODE_HEADS = ((16, 32), (16, 64))
DECODE_BATCHES = (1, 8, 32, 128, 256, 512)
# tokens, state, layout, pool, each
DECODE_FORMS = (
    (1, "f32", "k_last", False, False),
    (1, "bf16", "k_last", False, False),
    (1, "f32", "k_first", False, False),
    (4, "f32", "k_last", False, False),
    (4, "bf16", "k_last", False, False),
    (4, "f32", "k_last", False, True),
    (1, "f32", "k_last", True, False),
    (1, "bf16", "k_last", True, False),
    (2, "f32", "k_last", False, False),
    (8, "f32", "k_last", False, False),
    (2, "bf16", "k_last", False, False),
    (8, "bf16", "k_last", False, False),
    (4, "f32", "k_first", False, False),
    (4, "bf16", "k_last", False, True),
)
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


@dataclasses.dataclass(frozen=True)
class Case:
    """lengths: tokens of each sequence. pool: states in slots; each: every token's state kept.
    gates: a kind or a pattern. inside, of prefill: the norms of q and k, or raw gates too, are the
    call's part."""
    op: str
    Hq: int
    Hv: int
    lengths: tuple
    state: str = "f32"
    layout: str = "k_last"
    pool: bool = False
    each: bool = False
    dim: int = 128
    gates: str = "recipe"
    inside: str = "neither"

    @property
    def B(self):
        return len(self.lengths)

    @property
    def T(self):
        return max(self.lengths)

    def fields(self):
        """As a JSON line says it."""
        even = len(set(self.lengths)) == 1
        seqs = f"{self.T}x{self.B}" if even else "+".join(map(str, self.lengths))
        line = dict(op=self.op, heads=f"{self.Hq}/{self.Hv}", dim=self.dim, seqs=seqs, B=self.B,
                    T=self.T, dtype="bf16", state=self.state, layout=self.layout,
                    gates=self.gates)
        if self.inside != "neither":
            line["inside"] = self.inside
        return line | {name: True for name in ("pool", "each") if getattr(self, name)}

    def state_bytes(self):
        """Of all states read and written."""
        one = self.Hv * self.dim**2 * DTYPES[self.state].itemsize
        return one * self.B * (1 + self.T if self.each else 2)


def cases(op, heads, lengths, batches, dims, rows=None):
    """In the order in which they matter, since time may run out. None: those of the tables."""
    if op == "prefill" and rows:
        yield from (Case("prefill", *heads, tokens, dim=dim) for *heads, tokens, dim in ROWS[rows])
        return
    if op == "prefill":
        yield from (Case("prefill", *h, tokens, dim=dim) for dim in dims
                    for h in heads or PREFILL_HEADS for tokens in lengths or PREFILL_LENGTHS)
        return
    for T, state, layout, pool, each in DECODE_FORMS:
        for h in heads or DECODE_HEADS:
            for B in batches or DECODE_BATCHES:
                if not each or B <= 128:
                    yield from (Case("decode", *h, (T,) * B, state, layout, pool, each, dim)
                                for dim in dims)


# ---- Inputs ------------------------------------------------------------------------------------


def unit(x):
    return F.normalize(x.float(), dim=-1).to(x.dtype)


def prefill_inputs(case, device):
    """q and k as they come, and normalised; the initial state [B][Hv][V][K]; room for results,
    which all contenders share."""
    N, bf16 = sum(case.lengths), dict(device=device, dtype=torch.bfloat16)
    rows = tuple(torch.randn(N, case.Hq, case.dim, **bf16) for _ in range(2))
    v = torch.randn(N, case.Hv, case.dim, **bf16)
    b = torch.randn(N, case.Hv, **bf16)
    state = torch.randn(case.B, case.Hv, case.dim, case.dim, device=device)
    offsets = F.pad(torch.tensor(case.lengths).cumsum(0), (1, 0))
    return dict(rows=rows, unit=tuple(map(unit, rows)), v=v, b=b, beta=b.float().sigmoid(),
                state=state, cu_seqlens=offsets.to(device), out=torch.empty_like(v),
                state_out=torch.empty_like(state))


def prefill_variant(case, x):
    """The inputs with the gates of a case, and q and k as it takes them."""
    q, k = x["unit" if case.inside == "neither" else "rows"]
    device = x["v"].device
    x = x | dict(q=q, k=k, g=gates.logs(case.gates, case.lengths, case.Hv).to(device))
    if case.inside == "raw":
        raw = gates.raw(case.gates, sum(case.lengths), case.Hv)
        x |= {n: t.to(device) for n, t in zip(("a", "A_log", "dt_bias"), raw)}
    return x


def decode_inputs(case, device):
    """q k as they come and raw gates; slots are those of a pool with a quarter of them unused."""
    B, T, bf16 = case.B, case.T, dict(device=device, dtype=torch.bfloat16)
    q, k = (torch.randn(B, T, case.Hq, case.dim, **bf16) for _ in range(2))
    v = torch.randn(B, T, case.Hv, case.dim, **bf16)
    a, b = (torch.randn(B, T, case.Hv, **bf16) for _ in range(2))
    A_log, dt_bias = (torch.randn(case.Hv, device=device) for _ in range(2))
    slots = torch.randperm(B + B // 4 + 1)[:B] if case.pool else torch.arange(B)
    n = B + B // 4 + 1 if case.pool else B
    pool = torch.randn(n, case.Hv, case.dim, case.dim, device=device)
    return dict(q=q, k=k, v=v, a=a, b=b, A_log=A_log, dt_bias=dt_bias,
                state=pool.to(DTYPES[case.state]), slots=slots.to(device, torch.int32))


def decode_variant(case, x):
    """The inputs with the gates of a case; those of the recipe are there."""
    if case.gates == "recipe":
        return x
    raw = gates.raw(case.gates, case.B * case.T, case.Hv)
    a, A_log, dt_bias = (t.to(x["a"].device) for t in raw)
    return x | dict(a=a.view(case.B, case.T, case.Hv), A_log=A_log, dt_bias=dt_bias)


def inputs(case, device):
    torch.manual_seed(0)
    return (prefill_inputs if case.op == "prefill" else decode_inputs)(case, device)


def variant(case, x):
    """What a case's calls take, of the inputs that cases of one row share."""
    return (prefill_variant if case.op == "prefill" else decode_variant)(case, x)


# ---- Float64 -----------------------------------------------------------------------------------


def recurrence(q, k, v, alpha, beta, S):
    """[T][n].. for n sequences and heads; S [n][V][K]. Outputs, and the state after each token."""
    q, k, v = ([t[..., None] for t in x.unbind(0)] for x in (q, k, v))
    alpha, beta = ([t[:, None, None] for t in x.unbind(0)] for x in (alpha, beta))
    for t in range(len(q)):
        S = alpha[t] * S
        u = beta[t] * torch.baddbmm(v[t], S, k[t], alpha=-1)
        S = torch.baddbmm(S, u, k[t].mT)
        yield (S @ q[t])[..., 0], S


def rows_of(case, x, heads):
    """The inputs of some heads as [T][B x heads].., padded with tokens that do nothing."""
    group, B, T = case.Hv // case.Hq, case.B, case.T

    def padded(t):
        if case.op == "decode":
            return t.transpose(0, 1)
        return torch.nn.utils.rnn.pad_sequence(t.split(case.lengths))  # [T][B]..

    if case.op == "prefill":
        q, k, log_alpha, beta = x["q"].double(), x["k"].double(), x["g"], x["beta"]
        if case.inside != "neither":
            q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    else:
        q, k = (F.normalize(x[n].double(), dim=-1) for n in ("q", "k"))
        log_alpha = -x["A_log"].double().exp() * F.softplus(x["a"].double() + x["dt_bias"])
        beta = x["b"].double().sigmoid()
    reads = [h // group for h in heads]
    rows = [q[..., reads, :] * case.dim**-0.5, k[..., reads, :], x["v"][..., heads, :].double(),
            log_alpha[..., heads].double(), beta[..., heads].double()]
    q, k, v, log_alpha, beta = (padded(t).flatten(1, 2) for t in rows)
    return q, k, v, log_alpha.exp(), beta


def expected(variants):
    """Of each (case, inputs) of a row: heads, out [T][B x heads][V], state [B x heads][V][K] or,
    with `each`, [T] of them. All in one go, as a step takes as long for few as for many."""
    case = variants[0][0]
    heads = sorted({1, case.Hv // 2, case.Hv - 1}.union(*(quiet_head(x) for _, x in variants)))
    rows = zip(*(rows_of(c, x, heads) for c, x in variants))
    rows = [torch.cat(tensors, 1) for tensors in rows]
    start = [(x["state"][x["slots"].long()] if "slots" in x else x["state"])[:, heads]
             for _, x in variants]
    outs, states = [], []
    for out, S in recurrence(*rows, torch.cat(start).double().flatten(0, 1)):
        outs.append(out)
        states = [*states, S] if case.each else [S]
    outs = torch.stack(outs).chunk(len(variants), 1)
    states = torch.stack(states).chunk(len(variants), 1)
    return [(heads, *found) for found in zip(outs, states)]


def quiet_head(x):
    """One of the heads without decay."""
    quiet = (x["g"] == 0).all(0).nonzero().flatten().tolist() if "g" in x else []
    return set(quiet[:1])


def off(found, wanted):
    """RMS of the difference, by that of what is wanted; NaN counts as infinite."""
    difference = math.sqrt((found - wanted).square().mean().item())
    error = difference / math.sqrt(wanted.square().mean().item())
    return error if math.isfinite(error) else math.inf


def errors(case, result, wanted):
    """Of out and state of a contender, which are [N][Hv][V] or [B][T][Hv][V], and
    [B][Hv][V][K] or, with `each`, [B][T][Hv][V][K]."""
    (out, state), (heads, want_out, want_state) = result, wanted
    out, n = out[..., heads, :].double(), len(heads)
    if case.op == "prefill":
        out = torch.nn.utils.rnn.pad_sequence(out.split(case.lengths))
        mask = torch.arange(case.T)[:, None] < torch.tensor(case.lengths)
        want_out = want_out * mask.repeat_interleave(n, 1)[..., None].to(want_out)
    else:
        out = out.transpose(0, 1)
    state = state[..., heads, :, :].double()
    state = state.transpose(0, 1) if case.each else state[None]
    return off(out.flatten(1, 2), want_out), off(state.flatten(1, 2), want_state)
