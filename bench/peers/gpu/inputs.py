# SPDX-License-Identifier: Apache-2.0
"""Inputs of a case: what the cases of one row share, and what is a case's own."""
import gates
import torch
import torch.nn.functional as F
from cases import DTYPES

ALIKE = 0.93  # cosine of keys where gates are of a trained layer
SURE = 3.0  # the middle of b there


def unit(x):
    return F.normalize(x.float(), dim=-1).to(x.dtype)


def alike(k):
    """Keys of length 1 that lie near the first one of their head."""
    k = F.normalize(k.float(), dim=-1)
    return F.normalize((1 - ALIKE)**0.5 * k + ALIKE**0.5 * k[:1], dim=-1).bfloat16()


def chunked_inputs(case, device):
    """q and k as they come, and normalised; the initial state [B][Hv][V][K]; room for results,
    which all contenders share."""
    N, bf16 = sum(case.lengths), dict(device=device, dtype=torch.bfloat16)
    rows = tuple(torch.randn(N, case.Hq, case.dim, **bf16) for _ in range(2))
    v = torch.randn(N, case.Hv, case.dim, **bf16)
    b = torch.randn(N, case.Hv, **bf16)
    state = torch.randn(case.B, case.Hv, case.dim, case.dim, device=device)
    offsets = F.pad(torch.tensor(case.lengths).cumsum(0), (1, 0))
    x = dict(rows=rows, unit=tuple(map(unit, rows)), v=v, b=b, state=state,
             cu_seqlens=offsets.to(device), out=torch.empty_like(v),
             state_out=torch.empty_like(state))
    if case.op == "prefill":
        return x
    return x | dict(dout=torch.randn_like(v), dstate_out=torch.randn_like(state))


def chunked_variant(case, x):
    """The inputs with the gates of a case, and q, k and beta as it takes them."""
    device, b = x["v"].device, x["b"]
    q, k = x["unit" if case.inside == "neither" else "rows"]
    if case.gates == "trained":
        k, b = alike(k), b + SURE
    x = x | dict(q=q, k=k, b=b, beta=b.float().sigmoid())
    if not gates.is_raw(case.gates):
        return x | dict(g=gates.logs(case.gates, case.lengths, case.Hv).to(device))
    raw = gates.raw(case.gates, sum(case.lengths), case.Hv, case.channels)
    a, A_log, dt_bias = (t.to(device) for t in raw)
    x["g"] = gates.logs_of(a, A_log, dt_bias, gates.bound(case.gates)).float()
    return x | dict(a=a, A_log=A_log, dt_bias=dt_bias) if case.inside == "raw" else x


def decode_inputs(case, device):
    """q k as they come and raw gates; slots are those of a pool with a quarter of them unused."""
    B, T, bf16 = case.B, case.T, dict(device=device, dtype=torch.bfloat16)
    q, k = (torch.randn(B, T, case.Hq, case.dim, **bf16) for _ in range(2))
    v = torch.randn(B, T, case.Hv, case.dim, **bf16)
    a = torch.randn(B, T, case.Hv, *case.channels, **bf16)
    b = torch.randn(B, T, case.Hv, **bf16)
    A_log = torch.randn(case.Hv, device=device)
    dt_bias = torch.randn(case.Hv, *case.channels, device=device)
    slots = torch.randperm(B + B // 4 + 1)[:B] if case.pool else torch.arange(B)
    n = B + B // 4 + 1 if case.pool else B
    pool = torch.randn(n, case.Hv, case.dim, case.dim, device=device)
    return dict(q=q, k=k, v=v, a=a, b=b, A_log=A_log, dt_bias=dt_bias,
                state=pool.to(DTYPES[case.state]), slots=slots.to(device, torch.int32))


def decode_variant(case, x):
    """The inputs with the gates of a case; those of the recipe are there."""
    if case.gates == "recipe":
        return x
    raw = gates.raw(case.gates, case.B * case.T, case.Hv, case.channels)
    a, A_log, dt_bias = (t.to(x["a"].device) for t in raw)
    return x | dict(a=a.view_as(x["a"]), A_log=A_log, dt_bias=dt_bias)


def inputs(case, device):
    torch.manual_seed(0)
    return (decode_inputs if case.op == "decode" else chunked_inputs)(case, device)


def variant(case, x):
    """What a case's calls take, of the inputs that cases of one row share."""
    return (decode_variant if case.op == "decode" else chunked_variant)(case, x)


def log_gates(case, x):
    """In float64, if raw by their formula."""
    if case.op != "decode":
        return x["g"].double()
    raw = (x[name].double() for name in ("a", "A_log", "dt_bias"))
    return gates.logs_of(*raw, gates.bound(case.gates))
