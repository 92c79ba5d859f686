# SPDX-License-Identifier: Apache-2.0
"""Arguments of every operator, and the rule in float64 by torch's own operators."""

import sys
import types

import gdn
import torch

B, T, HK, HV, K, V, W, P, HIDDEN = 3, 5, 2, 4, 16, 16, 4, 6, 32
D = 2 * HK * K + HV * V
SIZES = dict(n_key_heads=HK, n_value_heads=HV, key_head_dim=K, value_head_dim=V)


def rule(device, dtype=torch.float32, lead=(B, T)):
    def n(*shape):
        return torch.randn(*shape, device=device)

    q, k = (torch.nn.functional.normalize(n(*lead, HK, K), dim=-1).to(dtype) for _ in "qk")
    return dict(q=q, k=k, v=n(*lead, HV, V).to(dtype), g=-torch.rand(*lead, HV, device=device),
                beta=torch.rand(*lead, HV, device=device),
                out=torch.zeros(*lead, HV, V, device=device, dtype=dtype))


def slots(device, count=B):
    return torch.randperm(P)[:count].to(device, torch.int32)


def of(op, device):
    """Keyword arguments of the operator `op`, only those of its overload `default`."""
    def n(*shape):
        return torch.randn(*shape, device=device)

    pools = dict(state=n(P, HV, V, K), read_slots=slots(device))
    if op in ("prefill", "decode"):
        return {**rule(device), **pools}
    if op == "prefill_backward":
        a = rule(device)
        dout = a.pop("out").normal_()
        given = dict(a, dout=dout, state=n(B, HV, V, K))
        return {**given, **{f"d{name}": torch.randn_like(x) for name, x in a.items()},
                "dstate": n(B, HV, V, K)}
    if op == "conv1d_backward":
        return dict(x=n(B, T, D), weight=n(D, W), bias=n(D), state=n(B, D, W - 1),
                    dout=n(B, T, D), dstate_out=n(B, D, W - 1), dx=n(B, T, D), dweight=n(D, W),
                    dbias=n(D), dstate=n(B, D, W - 1), activation=gdn.ACT_SILU)
    if op == "gates_backward":
        return dict(a=n(B, T, HV), b=n(B, T, HV), A_log=n(HV), dt_bias=n(HV), dg=n(B, T, HV),
                    dbeta=n(B, T, HV), da=n(B, T, HV), db=n(B, T, HV), dA_log=n(HV),
                    ddt_bias=n(HV))
    if op == "l2norm_backward":
        return dict(x=n(B, T, K), dout=n(B, T, K), dx=n(B, T, K))
    if op == "rmsnorm_gated_backward":
        return dict(x=n(B, T, V), z=n(B, T, V), weight=n(V), dout=n(B, T, V), dx=n(B, T, V),
                    dz=n(B, T, V), dweight=n(V))
    if op == "conv1d":
        return dict(x=n(B, T, D), weight=n(D, W), bias=n(D), state=n(P, D, W - 1),
                    out=n(B, T, D), activation=gdn.ACT_SILU, read_slots=slots(device))
    if op == "gates":
        return dict(a=n(B, T, HV), b=n(B, T, HV), A_log=n(HV), dt_bias=n(HV), g=n(B, T, HV),
                    beta=n(B, T, HV))
    if op == "l2norm":
        return dict(x=n(B, T, K), out=n(B, T, K))
    if op == "rmsnorm_gated":
        return dict(x=n(B, T, V), z=n(B, T, V), weight=n(V), out=n(B, T, V))
    if op == "step":
        return dict(x=n(B, T, D), a=n(B, T, HV), b=n(B, T, HV), z=n(B, T, HV, V),
                    conv_weight=n(D, W), A_log=n(HV), dt_bias=n(HV), norm_weight=n(V),
                    conv_state=n(P, D, W - 1), out=n(B, T, HV, V), **pools, **SIZES)
    if op == "block":
        return dict(hidden=n(B, T, HIDDEN), in_proj_qkv=n(D, HIDDEN), in_proj_z=n(HV * V, HIDDEN),
                    in_proj_b=n(HV, HIDDEN), in_proj_a=n(HV, HIDDEN), conv_weight=n(D, 1, W),
                    A_log=n(HV), dt_bias=n(HV), norm_weight=n(V), out_proj=n(HIDDEN, HV * V),
                    conv_state=n(P, D, W - 1), out=n(B, T, HIDDEN), **pools, **SIZES)
    if op == "summary":
        return dict(k=n(B, T, HK, K), v=n(B, T, HV, V), g=-torch.rand(B, T, HV, device=device),
                    beta=n(B, T, HV).sigmoid(), M=n(B, HV, K, K), U=n(B, HV, V, K))
    if op == "summary_fold":
        order = torch.randint(-1, P, (B, 2), dtype=torch.int32, device=device)
        return dict(M=n(P, HV, K, K), U=n(P, HV, V, K), order=order, state=n(B, HV, V, K),
                    state_out=n(B, HV, V, K))
    if op == "chunk_cumsum":
        return dict(g=n(B, T, HV), out=n(B, T, HV), chunk_size=16)
    if op.startswith("chunk"):
        tokens = dict(k=n(B, T, HK, K), g=-torch.rand(B, T, HV, device=device), chunk_size=16)
        if op == "chunk_uw":
            return dict(tokens, v=n(B, T, HV, V), beta=n(B, T, HV).sigmoid(), u=n(B, T, HV, V),
                        w=n(B, T, HV, K), T=n(B, T, HV, 16))
        tokens.update(u=n(B, T, HV, V), w=n(B, T, HV, K), states=n(B, HV, V, K))
        if op == "chunk_states":
            return dict(tokens, state=n(B, HV, V, K))
        return dict(tokens, q=n(B, T, HK, K), out=n(B, T, HV, V))
    if op == "record_fold":
        return dict(**pools, record_k=n(P, 3, HK, K), record_u=n(P, 3, HV, V),
                    record_g=torch.rand(P, 3, HV, device=device),
                    record_count=torch.full((P,), 2, dtype=torch.int32, device=device))
    assert op == "state_copy"
    return dict(from_pool=n(P, HV, V, K), to_pool=n(P, HV, V, K), from_slots=slots(device),
                to_slots=slots(device))


def more(op, device):
    """Arguments that the overload `full` alone has."""
    if op == "state_copy":
        to = torch.zeros(P, HV, V, K, device=device, dtype=torch.int8)
        return dict(to_pool=to, to_scales=torch.zeros(P, HV, V, device=device))
    if op in ("l2norm", "rmsnorm_gated", "summary_fold", "l2norm_backward",
              "rmsnorm_gated_backward"):
        return dict(flags=0)
    if op == "record_fold":
        return dict(rounding=1, seed=3)
    if op in ("gates", "gates_backward"):
        return dict(gate_lower_bound=-5.0)
    return dict(token_count=torch.full((B,), T - 1, device=device))


def reference(q, k, v, g, beta, state):
    """[B][T] of the rule in float64: out, final states. g [B][T][HV], or for KDA [B][T][HV][K]."""
    times = v.shape[2] // q.shape[2]
    q, k = (x.double().repeat_interleave(times, 2) for x in (q, k))
    S, v, g, beta, out = state.double(), v.double(), g.double(), beta.double(), []
    for t in range(v.shape[1]):
        S = S * g[:, t].exp().view(*S.shape[:2], 1, -1)
        u = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhvk,bhk->bhv", S, k[:, t]))
        S = S + u[..., None] * k[:, t, :, None, :]
        out.append(q.shape[-1] ** -0.5 * torch.einsum("bhvk,bhk->bhv", S, q[:, t]))
    return torch.stack(out, 1), S


def raw_rule(lead, size=K):
    """Arguments of a rule with raw gates and its norm inside, and what reference() takes of it."""
    def n(*shape):
        return torch.randn(*shape)

    a = dict(q=n(*lead, HK, size), k=n(*lead, HK, size), v=n(*lead, HV, size), A_log=n(HV),
             a=n(*lead, HV), dt_bias=n(HV), b=n(*lead, HV))
    g = -a["A_log"].double().exp() * torch.nn.functional.softplus(
        a["a"].double() + a["dt_bias"].double())
    unit = {name: x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
            for name, x in a.items() if name in "qk" for x in [x.double()]}
    return a, dict(unit, v=a["v"], g=g, beta=a["b"].double().sigmoid())


def kda_rule(lead, lower_bound=None, size=K):
    """raw_rule() of KDA: a [.., HV, K], dt_bias [HV K]. Some channels forget at once."""
    a, exact = raw_rule(lead, size)
    a["a"] = torch.randn(*lead, HV, size)
    a["dt_bias"] = torch.randn(HV * size)
    a["a"][..., ::5] += 60
    x = a["a"].double() + a["dt_bias"].double().view(HV, size)
    A = a["A_log"].double().exp()[:, None]
    g = -A * torch.nn.functional.softplus(x) if lower_bound is None else (
        lower_bound * (A * x).sigmoid())
    return a, dict(exact, g=g)


def stand_in(monkeypatch, names):
    """Empty modules of these dotted names, with the packages above them, until the test ends."""
    for whole in names:
        parts = whole.split(".")
        for depth in range(1, len(parts) + 1):
            name = ".".join(parts[:depth])
            if name in sys.modules:
                continue
            module = types.ModuleType(name)
            module.__path__ = []
            monkeypatch.setitem(sys.modules, name, module)
            if depth > 1:
                setattr(sys.modules[".".join(parts[:depth - 1])], parts[depth - 1], module)
    return [sys.modules[name] for name in names]
