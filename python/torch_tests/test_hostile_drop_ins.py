# SPDX-License-Identifier: Apache-2.0
"""Drop-ins with every tensor as what no kernel may read: an error names what the caller passed."""

import re

import pytest
import torch

import gdn
import gdn.flashinfer
import gdn.flashqla
import gdn.gdn_cuda
import gdn.sglang
import gdn.transformers
import gdn.vllm
from gdn import _vllm_glm, fla

N, H, K = 13, 2, 8


def tokens(*names, lead=(1, N)):
    return {name: torch.randn(*lead, H, K) for name in names}


def gates(*names, lead=(1, N)):
    return {name: -torch.rand(*lead, H) for name in names}


def heads(*names):
    return {name: torch.randn(H) for name in names}


def pool(name, count=3):
    return {name: torch.zeros(count, H, K, K)}


CU = torch.tensor([0, 5, N])
ONE = dict(query_start_loc=torch.tensor([0, 1, 2]), cache_indices=torch.tensor([1, 0]))
QKV, RAW = tokens("q", "k", "v"), heads("A_log", "dt_bias")
PLACES = dict(ssm_state_indices=torch.tensor([1, 0]), cu_seqlens=CU)
CHANNELS = {name: -torch.rand(1, N, H, K) for name in "gbw"}
KDA = dict(QKV, g=CHANNELS["g"], **gates("beta"), **pool("initial_state", 1))
GDN2 = dict(QKV, **CHANNELS, **pool("initial_state", 1))
KDA_RAW = dict(QKV, g=CHANNELS["g"], **gates("beta"), A_log=RAW["A_log"],
               dt_bias=torch.randn(H * K))
VLLM_RAW = dict(raw_g=CHANNELS["g"], **gates("raw_beta"), A_log=RAW["A_log"])
MIXED = dict(mixed_qkv=torch.randn(2, 3 * H * K), **gates("a", "b", lead=(2,)), **RAW)
CALLS = {
    "sglang.decode": (gdn.sglang.decode, dict(
        tokens("q", "k", "v", lead=(1, 2)), **gates("a", "b", lead=(2,)), **RAW,
        **pool("ssm_states"), **ONE)),
    "sglang.packed_decode": (gdn.sglang.packed_decode, dict(
        MIXED, **pool("ssm_states"), cache_indices=ONE["cache_indices"], scale=0.1, num_v_heads=H,
        head_v_dim=K)),
    "sglang.extend": (gdn.sglang.extend, dict(
        QKV, **gates("g", "beta"), **pool("ssm_states"), query_start_loc=CU,
        cache_indices=ONE["cache_indices"])),
    "sglang.extend_kda": (gdn.sglang.extend_kda, dict(
        KDA_RAW, **pool("ssm_states"), query_start_loc=CU, cache_indices=ONE["cache_indices"],
        track_state=torch.zeros(2, H, K, K), track_chunk_idx=torch.tensor([-1, -1]))),
    "sglang.decode_kda": (gdn.sglang.decode, dict(
        tokens("q", "k", "v", lead=(1, 2)), a=torch.randn(2, H * K), b=torch.randn(1, 2, H),
        A_log=RAW["A_log"], dt_bias=torch.randn(H * K), **pool("ssm_states"), **ONE)),
    "sglang.target_verify": (gdn.sglang.target_verify, dict(
        tokens("q", "k", "v", lead=(1, 2)), **gates("a", "b", lead=(2,)), **RAW,
        **pool("ssm_states"), **ONE, intermediate_states_buffer=torch.zeros(3, 1, H, K, K),
        intermediate_state_indices=torch.tensor([0, 1]))),
    "vllm.sigmoid": (gdn.vllm.fused_sigmoid_gating_delta_rule_update, dict(
        QKV, **gates("a", "b", lead=(N,)), **RAW, **pool("initial_state"), **PLACES)),
    "vllm.packed_decode": (gdn.vllm.fused_recurrent_gated_delta_rule_packed_decode, dict(
        MIXED, **pool("initial_state"), out=torch.zeros(2, 1, H, K), scale=0.1,
        ssm_state_indices=torch.tensor([1, 2]))),
    "vllm.recurrent": (gdn.vllm.fused_recurrent_gated_delta_rule, dict(
        QKV, **gates("g", "beta"), **pool("initial_state"), **PLACES)),
    "vllm.chunk": (gdn.vllm.chunk_gated_delta_rule, dict(
        QKV, **gates("g", "beta"), **pool("initial_state", 1))),
    "vllm.kda": (gdn.vllm.chunk_kda, KDA),
    "vllm.kda_raw": (gdn.vllm.chunk_kda_with_fused_gate, dict(
        tokens("q", "k", "v", "out"), **VLLM_RAW, g_bias=torch.randn(H * K),
        **pool("initial_state", 1))),
    "vllm.kda_recurrent": (gdn.vllm.fused_recurrent_kda_fwd, dict(
        QKV, g=CHANNELS["g"], **gates("beta"), scale=0.1, **pool("initial_state"), **PLACES)),
    "vllm.kda_recurrent_raw": (gdn.vllm.fused_recurrent_kda, dict(
        tokens("q", "k", "v", "out"), **VLLM_RAW, dt_bias=torch.randn(H * K), lower_bound=-5.0,
        **pool("initial_state"), **PLACES)),
    "vllm.kda_of_glm": (_vllm_glm.chunk_kda_with_fused_gate, dict(
        QKV, raw_g=CHANNELS["g"], **gates("beta"), A_log=RAW["A_log"], g_bias=torch.randn(H * K),
        **pool("initial_state", 1))),
    "vllm.kda_of_glm_recurrent": (_vllm_glm.fused_recurrent_kda, dict(
        tokens("q", "k", "v", "out"), g=CHANNELS["g"], **gates("beta"), a_log=RAW["A_log"],
        g_bias=torch.randn(H * K), compute_gate=True, **pool("initial_state"), **PLACES)),
    "vllm.kda_packed": (gdn.vllm.fused_recurrent_kda_packed_decode, dict(
        mixed_qkv=torch.randn(2, 3 * H * K), raw_g=torch.randn(1, 2, H, K),
        raw_beta=torch.randn(1, 2, H), A_log=RAW["A_log"], dt_bias=torch.randn(H * K),
        lower_bound=None, **pool("initial_state"), out=torch.zeros(1, 2, H, K),
        state_indices=torch.tensor([1, 2]))),
    "vllm.kda_gate": (gdn.vllm.fused_kda_gate, dict(
        g=torch.randn(N, H * K), A=RAW["A_log"], head_k_dim=K, g_bias=torch.randn(H * K))),
    "vllm.conv": (gdn.vllm.causal_conv1d_fn, dict(
        x=torch.randn(6, N), weight=torch.randn(6, 4), bias=torch.randn(6),
        conv_states=torch.zeros(3, 6, 3), query_start_loc=CU,
        cache_indices=torch.tensor([1, 2]))),
    "vllm.conv_update": (gdn.vllm.causal_conv1d_update, dict(
        x=torch.randn(2, 6), conv_state=torch.zeros(3, 6, 3), weight=torch.randn(6, 4),
        bias=torch.randn(6), conv_state_indices=torch.tensor([1, 2]), out=torch.zeros(2, 6))),
    "gdn_cuda.chunked": (gdn.gdn_cuda.chunked_forward, dict(
        tokens("query", "key", "value"), **gates("gate", "beta"), **pool("initial_state", 1))),
    "gdn_cuda.recurrent": (gdn.gdn_cuda.recurrent_forward, dict(
        tokens("query", "key", "value"), **gates("gate", "beta"), **pool("initial_state", 1))),
    "flashqla": (gdn.flashqla.chunk_gated_delta_rule, dict(
        QKV, **gates("g", "beta"), **pool("initial_state", 1))),
    "flashinfer.chunk": (gdn.flashinfer.chunk_gated_delta_rule, dict(
        tokens("q", "k", "v", lead=(N,)), **gates("g", "beta", lead=(N,)), cu_seqlens=CU,
        **pool("initial_state", 2))),
    "flashinfer.decode": (gdn.flashinfer.gated_delta_rule_decode_pretranspose, dict(
        tokens("q", "k", "v", lead=(2, 1)), **gates("a", "b", lead=(2, 1)), **RAW,
        **pool("state", 2))),
    "transformers.gdn": (gdn.transformers.torch_chunk_gated_delta_rule, dict(
        tokens("query", "key", "value"), **gates("g", "beta"), **pool("initial_state", 1))),
    "transformers.kda": (gdn.transformers.chunk_kimi_delta_attention, dict(
        tokens("query", "key", "value"), g=CHANNELS["g"], **gates("beta"),
        **pool("initial_state", 1))),
    "fla.gdn": (fla.chunk_gated_delta_rule, dict(
        QKV, **gates("g", "beta"), **pool("initial_state", 1))),
    "fla.kda": (fla.chunk_kda, KDA),
    "fla.kda_recurrent": (fla.fused_recurrent_kda, KDA),
    "fla.kda_raw": (fla.chunk_kda, dict(
        KDA, use_gate_in_kernel=True, A_log=RAW["A_log"], dt_bias=torch.randn(H * K))),
    "fla.gdn2": (fla.chunk_gdn2, GDN2),
    "fla.gdn2_recurrent": (fla.fused_recurrent_gdn2, GDN2),
    "fla.product": (fla.chunk_gated_delta_product, dict(
        tokens("q", lead=(1, 5)), **tokens("k", "v", lead=(1, 10)), **gates("g", lead=(1, 5)),
        **gates("beta", lead=(1, 10)), **pool("initial_state", 1), num_householder=2)),
    "fla.gate": (fla.fused_kda_gate, dict(
        g=CHANNELS["g"], A_log=RAW["A_log"], dt_bias=torch.randn(H * K))),
    "fla.gate_bwd": (fla.kda_gate_bwd, dict(
        g=CHANNELS["g"], A_log=RAW["A_log"], dt_bias=torch.randn(H * K), dyg=CHANNELS["b"])),
}
KINDS = dict(none=lambda x: None, list=lambda x: x.tolist(), numpy=lambda x: x.numpy(),
             meta=lambda x: x.to("meta"), complex=lambda x: x.to(torch.complex64))
ERRORS = AssertionError, RuntimeError, TypeError, ValueError
OPTIONAL = {"g", "beta", "gate", "initial_state", "ssm_states", "cache_indices", "bias", "out",
            "ssm_state_indices", "conv_state_indices", "state", "A_log", "dt_bias",
            "intermediate_states_buffer", "cu_seqlens", "query_start_loc", "track_state",
            "g_bias", "a_log"}


def again(args):
    return {n: x.clone() if isinstance(x, torch.Tensor) else x for n, x in args.items()}


@pytest.mark.parametrize("name", CALLS)
def test_refused(name):
    """None may leave a tensor out; all else is refused by the name of the caller's argument."""
    call, args = CALLS[name]
    call(**again(args))
    for at in [n for n, x in args.items() if isinstance(x, torch.Tensor)]:
        for kind, make in KINDS.items():
            if kind == "none" and at in OPTIONAL:
                continue
            if kind == "complex" and not args[at].is_floating_point():
                continue
            with pytest.raises(ERRORS) as error:
                call(**{**again(args), at: make(args[at])})
            assert re.search(rf"\b{at}\b", str(error.value)), (at, kind, str(error.value))
            assert not isinstance(error.value, NotImplementedError), (at, kind)


@pytest.mark.parametrize("name", CALLS)
def test_absent_is_not_blamed(name):
    """An error about one tensor does not name another, which is absent and may be."""
    call, args = CALLS[name]
    given = [n for n, x in args.items() if isinstance(x, torch.Tensor)]
    n_errors = 0
    for absent in given:
        try:
            call(**{**again(args), absent: None})
        except ERRORS:
            continue  # it is wanted
        for at, kind in [(at, kind) for at in given if at != absent
                         for kind in ("none", "list", "meta")]:
            try:
                call(**{**again(args), absent: None, at: KINDS[kind](args[at])})
            except ERRORS as error:
                n_errors += 1
                assert not re.match(rf"{absent}\b", str(error)), (absent, at, kind, str(error))
    assert n_errors > 0 or name == "flashinfer.decode"  # which wants all of them


OF_HEADS = [name for name in CALLS if not name.startswith(("fla.g", "fla.k", "vllm.conv", "vllm.s",
                                                           "vllm.kda_g",
                                                           "sglang.t", "sglang.d", "sglang.e"))]


@pytest.mark.parametrize("name", [*OF_HEADS, "fla.gdn", "fla.kda"])
def test_gates_of_another_rule(name):
    """A rule of one gate and one beta per head takes none per channel, which would be KDA's or
    GDN-2's."""
    call, args = CALLS[name]
    for at in ("g", "a", "b", "gate", "beta"):
        if at not in args or args[at].dim() > 3:
            continue
        wide = args[at][..., None].expand(*args[at].shape, K).contiguous()
        with pytest.raises((NotImplementedError, ValueError), match=rf"\b{at}\b"):
            call(**{**again(args), at: wide})


@pytest.mark.parametrize("name, at, shape", [
    ("sglang.extend", "g", (1, H, N)), ("sglang.extend", "beta", (H, N)),
    ("sglang.extend_kda", "g", (1, H, N, K)), ("sglang.extend_kda", "g", (1, N, K, H)),
    ("sglang.extend_kda", "beta", (1, H, N)), ("sglang.decode_kda", "a", (H * K, 2))])
def test_turned_gates(name, at, shape):
    """Heads before tokens, or channels before heads: as many numbers, but in another order."""
    call, args = CALLS[name]
    assert args[at].numel() == torch.Size(shape).numel()
    with pytest.raises(ValueError, match=rf"^{at}: {re.escape(str(list(shape)))}, wanted \["):
        call(**{**again(args), at: torch.zeros(shape)})


@pytest.mark.parametrize("name, at", [(name, at) for name, (_, args) in CALLS.items()
                                      for at in ("dt_bias", "g_bias")
                                      if at in args and args[at].numel() == H * K])
def test_turned_bias(name, at):
    call, args = CALLS[name]
    call(**{**again(args), at: args[at].view(H, K)})
    with pytest.raises(ValueError, match=rf"^{at}: \[8, 2\], wanted \[2, 8\] or \[16\]"):
        call(**{**again(args), at: args[at].view(K, H)})


@pytest.mark.parametrize("name, at", [("vllm.sigmoid", "a"), ("vllm.sigmoid", "b"),
                                      ("vllm.recurrent", "g"), ("vllm.recurrent", "beta"),
                                      ("vllm.kda_recurrent", "g"),
                                      ("vllm.kda_recurrent_raw", "raw_g"),
                                      ("vllm.kda_recurrent_raw", "raw_beta"),
                                      ("vllm.kda_of_glm_recurrent", "beta")])
def test_tokens_before_sequences(name, at):
    """Gates [T, B, ..] have as many numbers as those [B, T, ..]."""
    call, args = CALLS[name]
    args = dict(again(args), cu_seqlens=None)
    for n, x in args.items():
        if isinstance(x, torch.Tensor) and N in x.shape[:2]:
            args[n] = x.expand(2, N, *x.shape[x.dim() - (1 if x.dim() < 4 else 2):]).contiguous()
    call(**again(args))
    with pytest.raises(ValueError, match=rf"^{at}: \[13, 2, .*, wanted \[2, 13, \.\.\]"):
        call(**{**again(args), at: args[at].transpose(0, 1).contiguous()})


def test_bounds():
    """A bound of 0 is no bound to the operator, so it is refused; safe_gate wants one."""
    call, args = CALLS["fla.kda_raw"]
    for bound in (0, 0.0, 2.0, float("nan")):
        for run in (lambda b: call(**args, lower_bound=b),
                    lambda b: fla.fused_kda_gate(args["g"], args["A_log"], lower_bound=b),
                    lambda b: fla.chunk_gdn2(**GDN2, use_gate_in_kernel=True, lower_bound=b)):
            with pytest.raises(ValueError, match="^lower_bound: .*below 0"):
                run(bound)
        with pytest.raises(ValueError, match="^gate_lower_bound: .*below 0"):
            gdn.torch.KimiDeltaAttention(32, 2, 16, gate_lower_bound=bound)
    for more in ({}, dict(lower_bound=-6.0)):
        with pytest.raises(ValueError, match="^lower_bound: .*safe_gate"):
            call(**args, safe_gate=True, **more)
    call(**args, safe_gate=True, lower_bound=-5)
    with pytest.raises(ValueError, match=r"^dt_bias: \[3\], wanted \[2, 8\] or \[16\]"):
        call(**{**args, "dt_bias": torch.zeros(3)})
    with pytest.raises(ValueError, match=r"^A_log: \[2, 2\], wanted one size above 1"):
        fla.fused_kda_gate(torch.zeros(1, N, 4, K), torch.zeros(2, 2))
    with pytest.raises(RuntimeError, match=r": A_log: \[3\]"):
        fla.fused_kda_gate(args["g"], torch.zeros(3))


@pytest.mark.parametrize("count, error", [(0, ValueError), (-1, ValueError), (2.0, TypeError),
                                          (None, TypeError), (9, NotImplementedError)])
def test_number_of_updates(count, error):
    call, args = CALLS["fla.product"]
    with pytest.raises(error, match="num_householder"):
        call(**{**args, "num_householder": count})
