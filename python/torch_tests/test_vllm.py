# SPDX-License-Identifier: Apache-2.0
"""gdn.vllm against the rule in float64, and in a stand-in for vLLM's registries."""

import functools
import importlib
import pathlib
import sys
import types

import pytest
import torch
from samples import B, HK, HV, K, P, T, V, kda_rule, raw_rule, reference, rule, stand_in

import gdn.vllm as ours
from gdn import _vllm_glm as glm

CU = torch.arange(B + 1, dtype=torch.int32) * T


def close(got, wanted, limit=2e-5):
    torch.testing.assert_close(got.double(), wanted.double(), atol=limit, rtol=limit)


def packed(a):
    """Of tensors [B, T, ..], those as [1, B T, ..]."""
    return {n: x.flatten(0, 1)[None] if x.dim() > 2 else x for n, x in a.items()}


def after_each(a, state):
    """out, and the states after every token [B, T, HV, V, K]."""
    outs, states = [], []
    for t in range(T):
        out, state = reference(**{n: x[:, t:t + 1] for n, x in a.items()}, state=state)
        outs.append(out)
        states.append(state)
    return torch.cat(outs, 1), torch.stack(states, 1)


def test_chunk():
    a, state = rule("cpu"), torch.randn(B, HV, V, K)
    del a["out"]
    out, final = reference(**a, state=state)
    target = torch.full((B * T + 2, HV, V), 7.0)
    o, h = ours.chunk_gated_delta_rule(**packed(a), initial_state=state, output_final_state=True,
                                       cu_seqlens=CU, core_attn_out=target)
    close(o[0], out.flatten(0, 1))
    close(h, final)
    assert torch.equal(o[0], target[:B * T]) and (target[B * T:] == 7).all()
    with pytest.raises(ValueError, match="initial states"):
        ours.chunk_gated_delta_rule(**packed(a), initial_state=state[:1], cu_seqlens=CU)


SLOTS = torch.tensor([[3, 4, 5, 6, 7], [0, 0, 0, 0, 0], [8, 9, 0, 1, 2]], dtype=torch.int32)
POOL, LIVE = 10, [0, 2]


@pytest.mark.parametrize("is_raw", [False, True])
@pytest.mark.parametrize("accepted", [None, torch.tensor([2, 1, 1, 1], dtype=torch.int32)])
def test_drafts(is_raw, accepted):
    """Block 0 is padding as a slot to start from, and drops a state as one to go to."""
    if is_raw:
        a, exact = raw_rule((B, T))
        call, a = ours.fused_sigmoid_gating_delta_rule_update, packed(a)
        a.update(a=a["a"][0], b=a["b"][0], use_qk_l2norm_in_kernel=True)
    else:
        exact = rule("cpu")
        del exact["out"]
        call, a = ours.fused_recurrent_gated_delta_rule, packed(exact)
    pool = torch.randn(POOL, HV, V, K)
    first = SLOTS[range(B), 0 if accepted is None else accepted[:B].long() - 1].long()
    before, (out, states) = pool.clone(), after_each(exact, pool[first])
    more = dict(cu_seqlens=CU, num_accepted_tokens=accepted, ssm_state_indices=torch.cat(
        [SLOTS, SLOTS[:1]]))  # a row more than there are sequences
    o, h = call(**a, initial_state=pool, inplace_final_state=False, **more)
    close(o[0].unflatten(0, (B, T))[LIVE], out[LIVE])
    close(h.unflatten(0, (B, T))[LIVE], states[LIVE])
    assert torch.equal(pool, before)
    o, h = call(**a, initial_state=pool, **more)
    assert h is pool and not o[0].unflatten(0, (B, T))[1].any()
    close(o[0].unflatten(0, (B, T))[LIVE], out[LIVE])
    for row in LIVE:
        for t in range(T):
            if SLOTS[row, t] > 0:
                before[SLOTS[row, t]] = states[row, t].float()
    close(pool, before)


def test_packed_decode():
    a, exact = raw_rule((B,))
    row = torch.cat([a[n].flatten(1) for n in "qkv"], 1)
    pool, slots = torch.randn(P, HV, V, K), torch.tensor([5, 0, 2], dtype=torch.int32)
    out, state = reference(**{n: x[:, None] for n, x in exact.items()}, state=pool[slots.long()])
    before, target = pool.clone(), torch.full((B, 1, HV, V), 7.0)
    o, h = ours.fused_recurrent_gated_delta_rule_packed_decode(
        row, a["a"], a["b"], a["A_log"], a["dt_bias"], K ** -0.5, pool, target, slots, True)
    assert o is target and h is pool and not o[1].any()
    close(o[LIVE], out[LIVE])
    before[slots[LIVE].long()] = state[LIVE].float()
    close(pool, before)
    with pytest.raises(ValueError, match="Invalid packed"):
        ours.fused_recurrent_gated_delta_rule_packed_decode(
            row[:, :-1], a["a"], a["b"], a["A_log"], a["dt_bias"], 1.0, pool, target, slots)


BOUNDS = pytest.mark.parametrize("bound", [None, -5.0])


def raw_kda(lead, bound):
    """Raw gates of KDA by the names of vLLM's functions, and what reference() takes."""
    a, exact = kda_rule(lead, bound)
    return dict({n: a[n] for n in ("q", "k", "v", "A_log", "dt_bias")}, raw_g=a["a"],
                raw_beta=a["b"], lower_bound=bound), exact


def kda_packed(a):
    return {n: x.flatten(0, 1)[None] if n in ("q", "k", "v", "raw_g", "raw_beta", "g", "beta")
            else x for n, x in a.items()}


@BOUNDS
def test_kda_chunk(bound):
    """A prompt in its two forms: gates given, by Ling, and raw, by Kimi-Linear."""
    a, exact = raw_kda((B, T), bound)
    a["g_bias"] = a.pop("dt_bias")
    state, target = torch.randn(B, HV, V, K), torch.full((1, B * T, HV, V), 7.0)
    out, final = reference(**exact, state=state)
    more = dict(initial_state=state, output_final_state=True, cu_seqlens=CU,
                use_qk_l2norm_in_kernel=True)
    o, h = ours.chunk_kda_with_fused_gate(**kda_packed(a), **more, out=target)
    assert o.data_ptr() == target.data_ptr() and h.dtype == torch.float32
    close(o[0], out.flatten(0, 1))
    close(h, final)
    given = dict({n: a[n] for n in "qkv"}, **{n: exact[n].float() for n in ("g", "beta")})
    o, h = ours.chunk_kda(**kda_packed(given), **more, safe_gate=True, lower_bound=bound)
    close(o[0], out.flatten(0, 1))
    close(h, final)
    raw = dict(kda_packed(a), beta=given["beta"].flatten(0, 1)[None])
    del raw["raw_beta"], raw["lower_bound"]
    bounded = {} if bound is None else dict(safe_gate=True, lower_bound=bound)
    o, h = glm.chunk_kda_with_fused_gate(**raw, **more, **bounded)
    close(o[0], out.flatten(0, 1))
    close(h, final)
    with pytest.raises(NotImplementedError, match="beta has one value per head"):
        ours.chunk_kda(**{**given, "beta": given["v"]})


@BOUNDS
@pytest.mark.parametrize("accepted", [None, torch.tensor([2, 1, 1, 1], dtype=torch.int32)])
def test_kda_drafts(accepted, bound):
    a, exact = raw_kda((B, T), bound)
    pool = torch.randn(POOL, HV, V, K)
    first = SLOTS[range(B), 0 if accepted is None else accepted[:B].long() - 1].long()
    before, (out, states) = pool.clone(), after_each(exact, pool[first])
    for row in LIVE:
        for t in range(T):
            if SLOTS[row, t] > 0:
                before[SLOTS[row, t]] = states[row, t].float()
    more = dict(initial_state=pool.clone(), cu_seqlens=CU, ssm_state_indices=SLOTS,
                num_accepted_tokens=accepted)
    target = torch.full((1, B * T, HV, V), 7.0)
    o, h = ours.fused_recurrent_kda(**kda_packed(a), **more, out=target)
    assert o.data_ptr() == target.data_ptr() and h is more["initial_state"]
    assert not o[0].unflatten(0, (B, T))[1].any()
    close(o[0].unflatten(0, (B, T))[LIVE], out[LIVE])
    close(h, before)
    given = dict({n: a[n] for n in "qkv"}, **{n: exact[n].float() for n in ("g", "beta")})
    for raw in (False, True) if bound else (False,):  # GLM's gates have a bound
        more["initial_state"], target = pool.clone(), torch.full((1, B * T, HV, V), 7.0)
        gates = dict(sigmoid_beta=True, compute_gate=True, a_log=a["A_log"], g_bias=a["dt_bias"],
                     lower_bound=bound, **kda_packed(dict(g=a["raw_g"], beta=a["raw_beta"])))
        o, h = glm.fused_recurrent_kda(**{**kda_packed(given), **(gates if raw else {})}, **more,
                                       out=target)
        assert o.data_ptr() == target.data_ptr()
        close(o[0].unflatten(0, (B, T))[LIVE], out[LIVE])
        close(h, before)
    more["initial_state"] = pool
    o, h = ours.fused_recurrent_kda_fwd(**kda_packed(given), scale=K ** -0.5, **more,
                                        use_qk_l2norm_in_kernel=True)
    close(o[0].unflatten(0, (B, T))[LIVE], out[LIVE])
    close(h, before)


@pytest.mark.parametrize("into", [False, True])
def test_kda_unpacked(into):
    """Sequences of one length, without cu_seqlens."""
    a, exact = raw_kda((B, T), -5.0)
    pool, slots = torch.randn(P, HV, V, K), torch.tensor([5, 0, 2], dtype=torch.int32)
    before, (out, state) = pool.clone(), reference(**exact, state=pool[slots.long()])
    before[slots[LIVE].long()] = state[LIVE].float()
    of_glm = dict({n: a[n] for n in "qkv"}, g=a["raw_g"], beta=a["raw_beta"], a_log=a["A_log"],
                  g_bias=a["dt_bias"], lower_bound=-5.0, compute_gate=True, sigmoid_beta=True)
    for call, given in ((ours.fused_recurrent_kda, a), (glm.fused_recurrent_kda, of_glm)):
        target = torch.full((B, T, HV, V), 7.0) if into else None
        o, h = call(**given, initial_state=pool.clone(), cu_seqlens=None, ssm_state_indices=slots,
                    out=target)
        assert o.shape == (B, T, HV, V) and not o[1].any()
        assert not into or o.data_ptr() == target.data_ptr()
        close(o[LIVE], out[LIVE])
        close(h, before)


@BOUNDS
@pytest.mark.parametrize("into", [False, True])
def test_kda_packed_decode(into, bound):
    a, exact = raw_kda((B,), bound)
    row = torch.cat([a.pop(n).flatten(1) for n in "qkv"], 1)
    pool, slots = torch.randn(P, HV, V, K), torch.tensor([5, 0, 2], dtype=torch.int32)
    out, state = reference(**{n: x[:, None] for n, x in exact.items()}, state=pool[slots.long()])
    before, target = pool.clone(), torch.full((1, B, HV, V), 7.0) if into else None
    a.update(raw_g=a["raw_g"][None], raw_beta=a["raw_beta"][None])
    o, h = ours.fused_recurrent_kda_packed_decode(row, **a, initial_state=pool,
                                                  state_indices=slots, out=target)
    assert h is pool and o.shape == (1, B, HV, V) and not o[0, 1].any()
    assert not into or o is target
    close(o[0, LIVE], out[LIVE, 0])
    before[slots[LIVE].long()] = state[LIVE].float()
    close(pool, before)


@BOUNDS
def test_kda_gate(bound):
    a, exact = kda_rule((B, T), bound)
    got = ours.fused_kda_gate(a["a"].flatten(-2), a["A_log"].view(1, 1, HV, 1), K, a["dt_bias"],
                              lower_bound=bound)
    close(got, exact["g"])
    with pytest.raises(NotImplementedError, match="softplus beta"):
        ours.fused_kda_gate(a["a"].flatten(-2), a["A_log"], K, beta=2.0)


def convolved(x, weight, bias, past):
    """SiLU of the convolution of x [D, T] behind past [D, W - 1], and the next past."""
    whole = torch.cat([past, x], 1).double()
    y = torch.nn.functional.conv1d(whole[None], weight[:, None].double(), bias.double(),
                                   groups=len(x))[0]
    return torch.nn.functional.silu(y), whole[:, 1 - weight.shape[1]:]


def test_convolution():
    """Pools with more columns than the state needs, as with drafts; block 0 is padding."""
    D, W = 6, 4
    weight, bias, x = torch.randn(D, W), torch.randn(D), torch.randn(D, B * T)
    pool, slots = torch.randn(P, D, W + 1), torch.tensor([4, 0, 2], dtype=torch.int32)
    before, has = pool.clone(), torch.tensor([True, True, False])
    o = ours.causal_conv1d_fn(x, weight, bias, pool, CU, slots, has)
    for row in LIVE:
        past = before[slots[row], :, :W - 1] * has[row]
        out, last = convolved(x[:, row * T:row * T + T], weight, bias, past)
        close(o[:, row * T:row * T + T], out)
        before[slots[row], :, :W - 1] = last.float()
    assert torch.equal(pool, before)
    for rows, more in ((torch.randn(B, D), {}), (torch.randn(B, D, T), {}),
                       (torch.randn(B * T, D), dict(query_start_loc=CU))):
        given = rows.clone()
        o = ours.causal_conv1d_update(rows, pool, weight, bias, "silu", slots, **more)
        assert o is rows
        split = [y.reshape(B, -1, D).transpose(1, 2) if more else y.reshape(B, D, -1)
                 for y in (given, o)]
        for row in LIVE:
            out, last = convolved(split[0][row], weight, bias, before[slots[row], :, :W - 1])
            close(split[1][row], out)
            before[slots[row], :, :W - 1] = last.float()
        assert torch.equal(split[1][1], split[0][1]) and torch.equal(pool, before)
    with pytest.raises(NotImplementedError, match="num_accepted_tokens"):
        ours.causal_conv1d_update(rows, pool, weight, num_accepted_tokens=slots)


@pytest.fixture
def engine(monkeypatch):
    """vLLM's registries and two classes, as far as register() needs them."""
    op, qwen, layer_names, platforms, on_cpu, kimi, graphs = stand_in(monkeypatch, [
        "vllm.model_executor.custom_op", "vllm.model_executor.layers.mamba.gdn."
        "qwen_gdn_linear_attn", "vllm.model_executor.layers.mamba.mamba_utils", "vllm.platforms",
        "vllm.model_executor.layers.mamba.ops.cpu.gdn_attention", "vllm.model_executor.layers."
        "mamba.gdn.kimi_gdn_linear_attn", "vllm.compilation.breakable_cudagraph"])
    graphs.eager_break_during_capture = lambda function: function
    layer_names.is_conv_state_dim_first = lambda: False
    platforms.current_platform = types.SimpleNamespace(is_cpu=lambda: True)

    def _cpu_gdn_attention_nonspec(layer, attn_metadata_i, mixed_qkv, b, a, core_attn_out):
        return "theirs"

    on_cpu._cpu_gdn_attention_nonspec = _cpu_gdn_attention_nonspec
    on_cpu._conv_buffer_view = lambda layer: layer.kv_cache[0].transpose(-1, -2)
    on_cpu._ssm_state_view = lambda layer: layer.kv_cache[1]
    on_cpu._unpacked_conv_weight = lambda layer: layer.conv1d.weight[:, 0]
    registered = {}

    class Base:
        def __new__(cls, *args, **kwargs):
            return super().__new__(registered.get(cls.__name__, cls))

        @classmethod
        def register_oot(cls, layer, name):
            assert name not in registered
            registered[name] = layer

    class ChunkGatedDeltaRule(Base):
        def __init__(self):
            self._forward_method = self.forward_native

        def forward_native(self, q, k, v, g, beta, initial_state, output_final_state,
                           cu_seqlens=None, chunk_indices=None, chunk_offsets=None,
                           use_qk_l2norm_in_kernel=True, core_attn_out=None,
                           aiter_prefill_metadata=None):
            return "theirs"

    class QwenGatedDeltaNetAttention(Base):
        def _forward_core_decode_non_spec(self, mixed_qkv, b, a, core_attn_out, attn_metadata):
            return "theirs"

    class KimiGatedDeltaNetAttention(Base):
        def _forward(self, mixed_qkv, g1, g2, beta, core_attn_out):
            return "theirs"

    op.CustomOp = op.PluggableLayer = Base
    kimi.KimiGatedDeltaNetAttention = KimiGatedDeltaNetAttention
    kimi.is_conv_state_dim_first = layer_names.is_conv_state_dim_first
    kimi.batches = {}
    kimi.get_forward_context = lambda: types.SimpleNamespace(attn_metadata=kimi.batches)
    qwen.kimi = kimi
    qwen.ChunkGatedDeltaRule = ChunkGatedDeltaRule
    qwen.QwenGatedDeltaNetAttention = QwenGatedDeltaNetAttention
    qwen.on_cpu, qwen.platforms = on_cpu, platforms
    monkeypatch.setattr(ours, "_classes", None)
    return qwen


def layer_of(a, pool, columns):
    """What gdn reads of vLLM's layer, of two ranks, with random weights."""
    D, W = 2 * HK * K + HV * V, 4
    return dict(activation="silu", num_k_heads=2 * HK, num_v_heads=2 * HV, tp_size=2, head_k_dim=K,
                head_v_dim=V, A_log=a["A_log"], dt_bias=a["dt_bias"],
                conv1d=types.SimpleNamespace(weight=torch.randn(D, 1, W), bias=torch.randn(D)),
                kv_cache=(torch.randn(P, columns, D), pool))


def test_registered(engine, monkeypatch):
    from gdn import _plugins

    _plugins.vllm()
    assert ours._classes is None
    monkeypatch.setenv("GDN_VLLM", "1")
    _plugins.vllm()
    _plugins.vllm()
    a, state = rule("cpu"), torch.randn(B, HV, V, K)
    del a["out"]
    chunk = engine.ChunkGatedDeltaRule()
    o, h = chunk._forward_method(**a, initial_state=state, output_final_state=True,
                                 use_qk_l2norm_in_kernel=False)
    out, final = reference(**a, state=state)
    close(o, out)
    close(h, final)

    a, n = raw_rule((B,))[0], 2
    layer = engine.QwenGatedDeltaNetAttention()
    vars(layer).update(layer_of(a, torch.randn(P, HV, V, K), 4))
    row, slots = torch.cat([a[m].flatten(1) for m in "qkv"], 1), torch.tensor([3, 1, 9])
    conv, pool = (x.clone() for x in layer.kv_cache)
    wanted, got = torch.zeros(n, 1, HV, V), torch.zeros(B, HV, V)
    mixed = ours.causal_conv1d_update(row[:n].clone(), conv.transpose(1, 2),
                                      layer.conv1d.weight[:, 0], layer.conv1d.bias, "silu",
                                      slots[:n])
    ours.fused_recurrent_gated_delta_rule_packed_decode(
        mixed, a["a"][:n], a["b"][:n], a["A_log"], a["dt_bias"], K ** -0.5, pool, wanted,
        slots[:n], True)
    layer._forward_core_decode_non_spec(
        row, a["b"], a["a"], got, types.SimpleNamespace(num_actual_tokens=n,
                                                        non_spec_state_indices_tensor=slots))
    close(got[:n], wanted[:, 0])
    close(layer.kv_cache[0], conv)
    close(layer.kv_cache[1], pool)
    layer.activation = "relu"
    assert layer._forward_core_decode_non_spec(row, a["b"], a["a"], got, None) == "theirs"


def gated_norm(x, z, weight, eps):
    """KDA's RMSNorm with a sigmoid gate, in float64."""
    x = x.double()
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.double() * (
        z.double().sigmoid())


def kimi_layer(engine, bound):
    """A layer of Kimi-Linear with random weights, as many heads of q and k as of v."""
    layer, D = engine.kimi.KimiGatedDeltaNetAttention(), 3 * HV * K
    norm = types.SimpleNamespace(weight=torch.randn(K), eps=1e-5)
    vars(layer).update(
        prefix="layer", local_num_heads=HV, head_dim=K, gate_lower_bound=bound,
        A_log=torch.randn(HV), dt_bias=torch.randn(HV * K),
        conv1d=types.SimpleNamespace(weight=torch.randn(D, 1, 4), bias=None),
        kv_cache=(torch.randn(P, 4, D), torch.randn(P, HV, K, K)))

    class Norm:
        weight, eps = norm.weight, norm.eps

        def __call__(self, x, z):
            return gated_norm(x, z, self.weight, self.eps).to(x.dtype)

    layer.o_norm = Norm()
    return layer


@BOUNDS
@pytest.mark.parametrize("lengths", [(1, 1, 1), (1, 1, 5, 3)])
def test_kimi_layer(engine, lengths, bound):
    """Decoding, and prompts behind decoded rows; slot 0 is padding, and a prompt starts from zero.
    Rows behind the last sequence stay."""
    ours.register()
    layer, count, N = kimi_layer(engine, bound), len(lengths), sum(lengths)
    slots = torch.tensor([3, 0, 1, 4][:count])
    has = torch.tensor([True, True, False, True][:count] if N > 3 else [True] * 3)
    starts = torch.tensor([0, *lengths]).cumsum(0)
    row, D = torch.randn(N + 2, 3 * HV * K + 8), 3 * HV * K
    g, z = torch.randn(1, N + 2, HV, K), torch.randn(N + 2, HV, K)
    beta, got = torch.randn(1, N + 2, HV), torch.full((1, N + 2, HV, K), 7.0)
    conv, pool = (x.clone() for x in layer.kv_cache)
    wanted, weight = torch.zeros(N, HV, K, dtype=torch.float64), layer.conv1d.weight[:, 0]
    x = g.double() + layer.dt_bias.double().view(HV, K)
    A = layer.A_log.double().exp()[:, None]
    gate = -A * torch.nn.functional.softplus(x) if bound is None else bound * (A * x).sigmoid()
    for i, slot in enumerate(slots):
        span = slice(starts[i], starts[i + 1])
        if slot == 0:
            continue
        mixed, past = convolved(row[span, :D].t(), weight, torch.zeros(D),
                                (conv[slot, :3] * has[i]).t())
        q, k, v = (y.unflatten(-1, (HV, K))[None] for y in mixed.t().chunk(3, -1))
        q, k = (y * (y.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for y in (q, k))
        out, final = reference(q, k, v, gate[:, span], beta[:, span].double().sigmoid(),
                               pool[slot:slot + 1] * has[i])
        wanted[span] = gated_norm(out[0], z[span], layer.o_norm.weight, layer.o_norm.eps)
        pool[slot], conv[slot, :3] = final[0].float(), past.t().float()
    batch = engine.kimi.batches["layer"] = types.SimpleNamespace(
        spec_sequence_masks=None, num_actual_tokens=N, num_prefills=int(N > 3),
        non_spec_state_indices_tensor=slots, non_spec_query_start_loc=starts.int(),
        has_initial_state=has)
    assert layer._forward(row[:, :D], g, z, beta, got) is None
    close(got[0, :N], wanted, 5e-5)
    assert (got[0, N:] == 7).all()
    close(layer.kv_cache[0], conv)
    close(layer.kv_cache[1], pool)
    batch.spec_sequence_masks = slots
    assert layer._forward(row[:, :D], g, z, beta, got) == "theirs"
    engine.kimi.batches.clear()
    assert layer._forward(row[:, :D], g, z, beta, got) == "theirs"


def test_installed(monkeypatch):
    """KDA's functions are replaced in the modules that vLLM has; without these modules the other
    functions are."""
    def same_as(ours):
        @functools.wraps(ours)
        def theirs(*args, **kwargs):
            raise AssertionError("vLLM's own function ran")

        return theirs

    def filled(places):
        for module, functions in zip(stand_in(monkeypatch, places), places.values()):
            for each in functions:
                setattr(module, each.__name__, same_as(each))

    filled(ours._PLACES)
    ours.install()
    filled(ours._KDA_PLACES)
    ours.install()
    for name, functions in ours._KDA_PLACES.items():
        for each in functions:
            assert getattr(sys.modules[name], each.__name__).is_gdn
    a, exact = kda_rule((B, T))
    theirs = sys.modules["vllm.third_party.flash_linear_attention.ops.kda"].fused_kda_gate
    close(theirs(a["a"].flatten(-2), a["A_log"], K, a["dt_bias"]), exact["g"])


def test_on_a_cpu(engine):
    """Two rows of a token, one of padding, and two prompts, of which one has a state already."""
    ours.register()
    lengths, slots = torch.tensor([1, 1, 1, 4, 7]), torch.tensor([3, 0, 1, 4, 2])
    has = torch.tensor([True, True, True, True, False])
    starts = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int()
    N, layer = int(starts[-1]), types.SimpleNamespace()
    a = raw_rule((N,))[0]
    vars(layer).update(layer_of(a, torch.randn(P, HV, K, V), 3))  # k-first, as vLLM views it
    conv, pool = (x.clone() for x in layer.kv_cache)
    row, got = torch.cat([a[m].flatten(1) for m in "qkv"], 1), torch.zeros(N, HV, V)
    mixed = ours.causal_conv1d_fn(row.t(), layer.conv1d.weight[:, 0], layer.conv1d.bias,
                                  conv.transpose(1, 2), starts, slots, has).t()
    keys = HK * K
    q, k, v = mixed[None].split((keys, keys, HV * V), -1)
    for i, slot in enumerate(slots):
        span = slice(starts[i], starts[i + 1])
        if slot > 0:
            start = pool[slot] * has[i]
            out, final = ours.fused_sigmoid_gating_delta_rule_update(
                a["A_log"], a["a"][span], a["b"][span], a["dt_bias"],
                q[:, span].unflatten(-1, (HK, K)), k[:, span].unflatten(-1, (HK, K)),
                v[:, span].unflatten(-1, (HV, V)), initial_state=start.mT.contiguous()[None],
                inplace_final_state=False, use_qk_l2norm_in_kernel=True)
            got[span], pool[slot] = out[0], final[-1].mT
    wanted = got.clone()
    call = engine.on_cpu._cpu_gdn_attention_nonspec
    batch = types.SimpleNamespace(
        num_decodes=3, num_decode_tokens=3, num_prefills=2, num_prefill_tokens=11,
        non_spec_state_indices_tensor=slots, non_spec_query_start_loc=starts,
        has_initial_state=has)
    call(layer, batch, row, a["b"], a["a"], got.fill_(7))
    close(got, wanted)
    close(layer.kv_cache[0], conv)
    close(layer.kv_cache[1], pool)
    layer.activation = "relu"
    assert call(layer, batch, row, a["b"], a["a"], got) == "theirs"


def vllm_config(mode="none", transfer=None, drafts=None):
    return types.SimpleNamespace(cache_config=types.SimpleNamespace(mamba_cache_mode=mode),
                                 kv_transfer_config=transfer, speculative_config=drafts)


def lazy_layer(a):
    layer = types.SimpleNamespace(vllm_config=vllm_config())
    vars(layer).update(layer_of(a, torch.randn(P, HV, K, V), 3))
    return layer


def batch_of(decodes, prompts):
    """vLLM's metadata of slots with a token each, and of (slot, tokens, has a state)."""
    lengths = torch.tensor([1] * len(decodes) + [n for _, n, _ in prompts])
    starts = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int()
    return int(starts[-1]), types.SimpleNamespace(
        num_decodes=len(decodes), num_decode_tokens=len(decodes), num_prefills=len(prompts),
        num_prefill_tokens=int(starts[-1]) - len(decodes),
        non_spec_state_indices_tensor=torch.tensor([*decodes, *(s for s, _, _ in prompts)]),
        non_spec_query_start_loc=starts,
        has_initial_state=torch.tensor([True] * len(decodes) + [has for _, _, has in prompts]))


def test_lazy_states(engine, monkeypatch):
    """
    An engine with lazy states beside one without. A slot of a sequence that ended or was preempted
    goes to another one, with rows still pending; a preempted sequence comes back by its prompt, in
    the same slot and in another one; prompts have one token, or come in parts.
    """
    ours.register()
    monkeypatch.setenv("GDN_VLLM_LAZY", "4")
    call = engine.on_cpu._cpu_gdn_attention_nonspec
    lazy = lazy_layer(raw_rule((1,))[0])
    plain = types.SimpleNamespace(**vars(lazy))
    plain.kv_cache = tuple(x.clone() for x in lazy.kv_cache)
    steps = [([], [(1, 7, False), (2, 3, False)]), ([1, 2], []), ([1, 2, 0], []), ([2], []),
             ([2, 1], [(3, 1, False)]),
             ([1, 3], [(2, 5, False)]),  # 2 was preempted, with pending rows
             ([3, 1, 2], []), ([3], [(1, 2, False), (4, 6, False)]),  # 1 ended; 4 is 1 again
             ([1, 3, 4], []), ([1, 4], [(3, 4, True)]),  # more of a prompt, behind decoded rows
             ([1], [(3, 1, True), (4, 1, False)]), ([1, 3, 4, 2], []), ([4, 3], [(2, 2, True)])]
    most = 0
    for decodes, prompts in steps * 3:
        N, batch = batch_of(decodes, prompts)
        a, found = raw_rule((N,))[0], []
        row = torch.cat([a[m].flatten(1) for m in "qkv"], 1)
        for layer, rows in (lazy, "4"), (plain, "0"):
            monkeypatch.setenv("GDN_VLLM_LAZY", rows)
            found.append(torch.zeros(N, HV, V))
            call(layer, batch, row, a["b"], a["a"], found[-1])
        close(*found)
        most = max(most, int(lazy._gdn_record.count.sum()))
    assert most > 4 and not hasattr(plain, "_gdn_record")
    lazy._gdn_record.fold()
    close(lazy.kv_cache[1][1:5], plain.kv_cache[1][1:5])
    close(lazy.kv_cache[0], plain.kv_cache[0])


def test_lazy_states_where_vllm_moves_them(engine, monkeypatch):
    ours.register()
    monkeypatch.setenv("GDN_VLLM_LAZY", "4")
    layer, (N, batch) = lazy_layer(raw_rule((1,))[0]), batch_of([], [(1, 2, False)])
    a = raw_rule((N,))[0]
    row = torch.cat([a[m].flatten(1) for m in "qkv"], 1)
    for name, config in (("the layer has no vllm_config", None),
                         ("mamba_cache_mode is 'align'", vllm_config(mode="align")),
                         ("kv_transfer_config is 3", vllm_config(transfer=3)),
                         ("speculative_config is 3", vllm_config(drafts=3))):
        layer.vllm_config = config
        with pytest.raises(ValueError, match=f"GDN_VLLM_LAZY: given, but {name}"):
            engine.on_cpu._cpu_gdn_attention_nonspec(layer, batch, row, a["b"], a["a"],
                                                     torch.zeros(N, HV, V))


def test_lazy_states_refused(engine, monkeypatch):
    for text in ("x", "-1", "65537"):
        monkeypatch.setenv("GDN_VLLM_LAZY", text)
        with pytest.raises(ValueError, match=f"GDN_VLLM_LAZY: '{text}', wanted the rows"):
            ours.register()
    monkeypatch.setenv("GDN_VLLM_LAZY", "4")
    engine.platforms.current_platform = types.SimpleNamespace(is_cpu=lambda: False)
    with pytest.raises(ValueError, match="GDN_VLLM_LAZY: given, wanted none but on a CPU"):
        ours.register()
    assert ours._classes is None


def test_entry_points():
    """The plugins that the wheel's metadata names exist."""
    tomllib = pytest.importorskip("tomllib")
    file = pathlib.Path(__file__).parents[2] / "pyproject.toml"
    groups = tomllib.loads(file.read_text())["project"]["entry-points"]
    assert set(groups) == {"vllm.general_plugins", "sglang.srt.plugins"}
    for group in groups.values():
        module, _, function = group["gdn"].partition(":")
        assert callable(getattr(importlib.import_module(module), function))


def test_another_version(engine, monkeypatch, caplog):
    from gdn import _plugins

    monkeypatch.setattr(engine.ChunkGatedDeltaRule, "forward_native", lambda self, q: q)
    monkeypatch.setenv("GDN_VLLM", "1")
    _plugins.vllm()
    assert ours._classes is None and "gdn takes" in caplog.text
