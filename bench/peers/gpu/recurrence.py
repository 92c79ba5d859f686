# SPDX-License-Identifier: Apache-2.0
"""
What the recurrence in float64 says of a few heads, token by token: results, and their gradients by
torch's autograd. Heads are value heads; of q, k and their gradients the key heads that they read.
"""
import math

import torch
import torch.nn.functional as F
from cases import RESULTS
from inputs import log_gates

SEGMENT = 64  # tokens whose steps autograd keeps


def recurrence(q, k, v, alpha, beta, S):
    """[T][n].. for n sequences and heads; alpha [T][n][1 or K], S [n][V][K]. Outputs, and the state
    after each token."""
    q, k, v = ([t[..., None] for t in x.unbind(0)] for x in (q, k, v))
    alpha, beta = alpha.unbind(0), [t[:, None, None] for t in beta.unbind(0)]
    for t in range(len(q)):
        S = alpha[t][:, None] * S
        u = beta[t] * torch.baddbmm(v[t], S, k[t], alpha=-1)
        S = torch.baddbmm(S, u, k[t].mT)
        yield (S @ q[t])[..., 0], S


# ---- Heads and rows ----------------------------------------------------------------------------


def quiet_head(x):
    """One of the heads without decay."""
    if "g" not in x:
        return set()
    quiet = (x["g"] == 0).flatten(2).all(-1) if x["g"].ndim > 2 else x["g"] == 0
    return set(quiet.all(0).nonzero().flatten().tolist()[:1])


def heads_of(variants):
    """The key heads that are looked at, and the value heads: of gradients all that read them."""
    case = variants[0][0]
    group = case.Hv // case.Hq
    heads = {1, case.Hv // 2, case.Hv - 1}.union(*(quiet_head(x) for _, x in variants))
    if case.op in ("prefill", "decode"):
        heads = sorted(h for h in heads if h < case.Hv)
        return [h // group for h in heads], heads
    keys = sorted({h // group for h in heads if h < case.Hv})
    return keys, [key * group + i for key in keys for i in range(group)]


def by_token(case, rows):
    """Rows of tokens as [T][B].., shorter sequences padded with zeros."""
    if case.op == "decode":
        return rows.transpose(0, 1)
    return torch.nn.utils.rnn.pad_sequence(rows.split(case.lengths))


def rows_of(case, x, keys, heads):
    """q, k, v, log gates and beta of some heads as [T][B][heads].. Tokens of padding do nothing."""
    q, k = x["q"].double(), x["k"].double()
    if case.op == "decode" or case.inside != "neither":
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    beta = x["b"].double().sigmoid() if case.op == "decode" else x["beta"].double()
    at = x["v"].ndim - 2  # the dimension of heads
    device = x["v"].device
    keys, heads = (torch.tensor(n, device=device) for n in (keys, heads))
    rows = [(q, keys), (k, keys), (x["v"].double(), heads), (log_gates(case, x), heads),
            (beta, heads)]
    return [by_token(case, t.index_select(at, of)) for t, of in rows]


def start_of(x, heads):
    state = x["state"][x["slots"].long()] if "slots" in x else x["state"]
    return state[:, heads].double()


# ---- What is right -----------------------------------------------------------------------------


def joined(case, rows, S, reads):
    """Arguments of recurrence(): sequences and heads as one dimension, each value head with the
    rows that it reads."""
    q, k, v, g, beta = rows
    q, k = (t if reads is None else t[:, :, reads] for t in (q * case.dim**-0.5, k))
    alpha = g.exp() if g.ndim > 3 else g.exp()[..., None]
    return *(t.flatten(1, 2) for t in (q, k, v, alpha, beta)), S.flatten(0, 1)


def results(case, rows, S, reads=None):
    """out [T][B][heads][V], and the last state or, with `each`, all of them: [..][B][heads][V][K]
    behind one dimension."""
    outs, states = [], []
    for out, state in recurrence(*joined(case, rows, S, reads)):
        outs.append(out)
        states = [*states, state] if case.each else [state]
    return torch.stack(outs).view_as(rows[2]), torch.stack(states).unflatten(1, S.shape[:2])


def gradients(case, rows, S, reads, dout, dS):
    """out and the last state, then gradients of the rows and of the first state. Segments are
    walked again from the state before them, the last one first."""
    pieces = list(zip(*(t.split(SEGMENT) for t in (*rows, dout))))
    outs, starts, found = [], [S], []
    for *piece, _ in pieces:
        out, states = results(case, piece, starts[-1], reads)
        outs.append(out)
        starts.append(states[0])
    for (*piece, d), start in zip(reversed(pieces), reversed(starts[:-1])):
        leaves = [t.detach().requires_grad_() for t in (*piece, start)]
        with torch.enable_grad():
            out, states = results(case, leaves[:-1], leaves[-1], reads)
        *of_rows, dS = torch.autograd.grad((out, states), leaves, (d, dS[None]))
        dS = dS.detach()
        found.append(of_rows)
    of_rows = [torch.cat(parts[::-1]) for parts in zip(*found)]
    return torch.cat(outs), starts[-1][None], *of_rows, dS[None]


def expected(variants):
    """By result of each (case, inputs) of a row: its heads, and what is right of them. All in one
    go, as a step takes as long for few as for many."""
    case, (keys, heads) = variants[0][0], heads_of(variants)
    parts = [(rows_of(c, x, keys, heads), start_of(x, heads)) for c, x in variants]
    rows = [torch.cat(tensors, 1) for tensors in zip(*(rows for rows, _ in parts))]
    S, n = torch.cat([start for _, start in parts]), len(variants)
    if case.op in ("prefill", "decode"):  # keys are those of each head
        found = dict(zip(RESULTS[case.op], results(case, rows, S)))
    else:
        reads = [keys.index(h // (case.Hv // case.Hq)) for h in heads]
        dout, dS = (torch.cat([t] * n, d) for d, t in (
            (1, by_token(case, variants[0][1]["dout"][:, heads].double())),
            (0, variants[0][1]["dstate_out"][:, heads].double())))
        found = dict(zip(RESULTS["training"], gradients(case, rows, S, reads, dout, dS)))
    of = {name: keys if name in ("dq", "dk") else heads for name in found}
    pieces = {name: t.chunk(n, 1) for name, t in found.items()}
    return [{name: (of[name], pieces[name][i]) for name in found} for i in range(n)]


# ---- Errors ------------------------------------------------------------------------------------


def off(found, wanted):
    """RMS of the difference, by that of what is wanted; NaN counts as infinite."""
    difference = math.sqrt((found - wanted).square().mean().item())
    error = difference / math.sqrt(wanted.square().mean().item())
    return error if math.isfinite(error) else math.inf


def errors(case, result, wanted):
    """Of each result of a contender: rows [N][heads].. or [B][T][heads].., and states
    [B][Hv][V][K] or, with `each`, [B][T][Hv][V][K]."""
    found = []
    for name, t in zip(RESULTS[case.op], result, strict=True):
        heads, right = wanted[name]
        is_state = name in ("state", "dstate")
        t = t.index_select(t.ndim - 3 if is_state else t.ndim - of_head(name, t, case),
                           torch.tensor(heads, device=t.device)).double()
        if is_state:
            t = t.transpose(0, 1) if case.each else t[None]
        else:
            t, right = by_token(case, t), masked(case, right)
        found.append(off(t, right))
    return found


def masked(case, right):
    """Without what the float64 says of tokens of padding."""
    if case.op == "decode":
        return right
    lengths = torch.tensor(case.lengths, device=right.device)
    mask = torch.arange(case.T, device=right.device)[:, None] < lengths
    return right * mask.view(*mask.shape, *[1] * (right.ndim - 2))


def of_head(name, t, case):
    """From the end of a tensor of rows to its dimension of heads: behind it are channels."""
    return 1 if name == "dbeta" or (name == "dg" and not case.channels) else 2
