# SPDX-License-Identifier: Apache-2.0
"""What the drop-ins share: rows outside of all sequences, and errors that name the argument."""

import contextlib

import pytest
import torch
from samples import B, HV, K, T, V, raw_rule, reference, rule

import gdn.causal_conv1d
import gdn.fla
import gdn.flashinfer
import gdn.flashqla
import gdn.gdn_cuda
import gdn.sglang
import gdn.transformers
import gdn.vllm

N, CUTS = 12, (2, 5, 9)  # rows 0, 1 and 9 to 11 belong to no sequence
INSIDE = slice(CUTS[0], CUTS[-1])


@contextlib.contextmanager
def filled():
    """New memory holds NaN, as far as torch fills it."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def packed():
    a = rule("cpu", lead=(1, N))
    del a["out"]
    return a, torch.tensor(CUTS)


def expected(a):
    return torch.cat([reference(**{n: x[:, i:j] for n, x in a.items()},
                                state=torch.zeros(1, HV, V, K))[0]
                      for i, j in zip(CUTS, CUTS[1:])], 1)[0]


def check_rows(rows, wanted):
    """rows [N, ..]: wanted inside of sequences, else zero."""
    torch.testing.assert_close(rows[INSIDE].double(), wanted.double(), atol=2e-5, rtol=2e-5)
    assert (rows[:CUTS[0]] == 0).all() and (rows[CUTS[-1]:] == 0).all()


def by_sglang(a, cu):
    return gdn.sglang.extend(**a, ssm_states=torch.zeros(2, HV, V, K),
                             cache_indices=torch.arange(2), query_start_loc=cu)[0]


WHOLE = {
    "fla": lambda a, cu: gdn.fla.chunk_gated_delta_rule(**a, cu_seqlens=cu)[0],
    "fla recurrent": lambda a, cu: gdn.fla.fused_recurrent_gated_delta_rule(
        **a, cu_seqlens=cu)[0],
    "flashqla": lambda a, cu: gdn.flashqla.chunk_gated_delta_rule(**a, cu_seqlens=cu)[0],
    "flashinfer": lambda a, cu: gdn.flashinfer.chunk_gated_delta_rule(
        **{n: x.exp()[0] if n == "g" else x[0] for n, x in a.items()}, cu_seqlens=cu)[None],
    "transformers": lambda a, cu: gdn.transformers.torch_chunk_gated_delta_rule(
        *a.values(), cu_seqlens=cu)[0],
    "vllm": lambda a, cu: gdn.vllm.chunk_gated_delta_rule(**a, cu_seqlens=cu)[0],
    "vllm recurrent": lambda a, cu: gdn.vllm.fused_recurrent_gated_delta_rule(
        **a, cu_seqlens=cu, inplace_final_state=False)[0],
    "sglang": by_sglang,
}


@pytest.mark.parametrize("name", WHOLE)
def test_rows_of_nobody(name):
    a, cu = packed()
    with filled():
        out = WHOLE[name](a, cu)
    check_rows(out[0], expected(a))


@pytest.mark.parametrize("name", ["fla", "fla recurrent", "flashqla", "transformers"])
@torch.enable_grad()
def test_gradients_of_nobody(name):
    a, cu = packed()
    given = {n: x.requires_grad_() for n, x in a.items()}
    with filled():
        out = WHOLE[name](given, cu)
        out[:, INSIDE].square().sum().backward()
    for x in given.values():
        assert torch.isfinite(x.grad).all() and x.grad[0, INSIDE].any()
        assert not x.grad[0, :CUTS[0]].any() and not x.grad[0, CUTS[-1]:].any()


def test_states_of_nobody():
    """Other tensors that drop-ins allocate for each token are zero in rows of no sequence."""
    a, cu = packed()
    with filled():
        sums, A, *_ = gdn.flashqla.chunk_gated_delta_rule_fwd(**a, cu_seqlens=cu)
        kept = gdn.vllm.fused_recurrent_gated_delta_rule(**a, cu_seqlens=cu,
                                                         inplace_final_state=False)[1]
        x, weight = torch.randn(6, N), torch.randn(6, 4)
        conv = gdn.vllm.causal_conv1d_fn(x, weight, None, torch.zeros(2, 6, 3), cu,
                                         torch.tensor([1, 0]), activation=None)
        ours = gdn.transformers.causal_conv1d_fn(x[None], weight, cu_seq_lens_q=cu)[0]
    for rows in (sums[0], A[0], kept, conv.t(), ours.t()):
        check_rows(rows, rows[INSIDE])
        assert rows[INSIDE].any()


def test_final_state_of_an_empty_sequence():
    """In gdn.flashinfer it is the initial state, else zeros."""
    a = {n: x[0, :1] for n, x in packed()[0].items()}
    start = torch.randn(2, HV, V, K)
    for initial in (None, start, start.bfloat16()):
        with filled():
            _, final = gdn.flashinfer.chunk_gated_delta_rule(
                **a, cu_seqlens=torch.tensor([0, 0, 1]), initial_state=initial,
                output_final_state=True)
        wanted = torch.zeros(HV, V, K) if initial is None else initial[0].float()
        assert final.dtype == torch.float32 and torch.equal(final[0], wanted)
        assert final[1].any() and (initial is None or not torch.equal(final[1], initial[1].float()))


@pytest.mark.parametrize("name", ["fla", "fla recurrent", "flashqla", "transformers"])
@pytest.mark.parametrize("shape", [(0, T), (B, 0)])
@torch.enable_grad()
def test_backward_of_nothing(name, shape):
    a = {n: x.requires_grad_() for n, x in rule("cpu", lead=shape).items() if n != "out"}
    WHOLE[name](a, None).sum().backward()
    assert all(x.grad.shape == x.shape for x in a.values())


@pytest.mark.parametrize("call", [
    gdn.fla.chunk_gated_delta_rule, gdn.fla.fused_recurrent_gated_delta_rule,
    gdn.flashqla.chunk_gated_delta_rule, gdn.vllm.chunk_gated_delta_rule,
    lambda q, k, v, g, beta, **more: gdn.transformers.torch_chunk_gated_delta_rule(
        q, k, v, g, beta, **more)],
    ids=["fla", "fla recurrent", "flashqla", "vllm", "transformers"])
def test_number_of_states(call):
    a, cu = packed()
    for more, count in ((dict(cu_seqlens=cu), 3), ({}, 2)):
        with pytest.raises(ValueError, match="initial.state"):
            call(**a, **more, initial_state=torch.zeros(count, HV, K, V), output_final_state=True)
    rows = {n: x[0] for n, x in a.items()}
    with pytest.raises(ValueError, match="^initial_state: 3 states, wanted 2"):
        gdn.flashinfer.chunk_gated_delta_rule(**rows, cu_seqlens=cu,
                                              initial_state=torch.zeros(3, HV, V, K))


def test_names():
    """Lists, arrays and None in place of a tensor."""
    a, cu = packed()
    rows = {n: x[0] for n, x in a.items()}
    calls = {
        "q": lambda x: gdn.fla.chunk_gated_delta_rule(**{**a, "q": x}),
        "k": lambda x: gdn.flashqla.chunk_gated_delta_rule(**{**a, "k": x}),
        "v": lambda x: gdn.flashinfer.chunk_gated_delta_rule(**{**rows, "v": x}, cu_seqlens=cu),
        "cu_seqlens": lambda x: gdn.flashinfer.chunk_gated_delta_rule(**rows, cu_seqlens=x),
        "query": lambda x: gdn.transformers.torch_chunk_gated_delta_rule(x, *list(a.values())[1:]),
    }
    for name, call in calls.items():
        for value in (None, [1.0], rows["q"].numpy()):
            with pytest.raises(TypeError, match=f"^{name}: "):
                call(value)
    with pytest.raises(TypeError, match="^cu_seqlens: list"):
        gdn.fla.chunk_gated_delta_rule(**a, cu_seqlens=[0, N])
    with pytest.raises(TypeError, match="^q: list"):
        gdn.vllm.chunk_gated_delta_rule(**{**a, "q": [1.0]})
    with pytest.raises(TypeError, match="^beta: list"):
        by_sglang({**a, "beta": [1.0]}, cu)
    with pytest.raises(ValueError, match="^q: .*4 dimensions"):
        gdn.fla.chunk_gated_delta_rule(**{**a, "q": rows["q"]})


def test_negative_eigenvalues_need_a_raw_beta():
    a, _ = packed()
    for call in (gdn.fla.chunk_gated_delta_rule, gdn.fla.fused_recurrent_gated_delta_rule):
        with pytest.raises(ValueError, match="use_beta_sigmoid_in_kernel"):
            call(**a, allow_neg_eigval=True)


@pytest.mark.parametrize("call", WHOLE)
@pytest.mark.parametrize("is_on", [False, True], ids=["no gradients", "gradients"])
def test_one_tensor_on_meta(call, is_on):
    a, cu = packed()
    with torch.set_grad_enabled(is_on):
        for name in a:
            with pytest.raises(RuntimeError, match=rf"{name}\w*: on meta"):
                WHOLE[call]({**a, name: a[name].to("meta")}, cu)
        with pytest.raises(RuntimeError, match="meta"):
            WHOLE[call](a, cu.to("meta"))


def test_a_weight_on_meta():
    x, weight = torch.ones(1, 2, 3), torch.ones(2, 4, device="meta")
    for call in (gdn.causal_conv1d.causal_conv1d_fn, gdn.transformers.causal_conv1d_fn):
        for seq_idx in (None, torch.zeros(1, 3, dtype=torch.int32)):
            with pytest.raises(RuntimeError, match="weight: on meta"):
                call(x, weight, seq_idx=seq_idx)
    with pytest.raises(RuntimeError, match="weight: on meta"):
        gdn.causal_conv1d.causal_conv1d_update(x[..., 0], torch.zeros(1, 2, 3), weight)


@pytest.mark.parametrize("given", ["seq_idx", "cu", "both"])
@torch.enable_grad()
def test_packed_model_of_transformers(given):
    """Either description of sequences cuts the convolution and the rule of a layer."""
    x, weight = torch.randn(1, 6, 7), torch.randn(6, 4)
    a, _ = raw_rule((1, 7))
    q, k, v = a["q"], a["k"], a["v"]
    g, beta = -torch.rand(1, 7, HV), torch.rand(1, 7, HV)
    seq_idx, cu = torch.tensor([[0, 0, 0, 1, 1, 1, 1]]), torch.tensor([0, 3, 7])
    conv = {n: x for n, x in dict(seq_idx=seq_idx, cu_seq_lens_q=cu).items()
            if given == "both" or n.startswith(given)}
    rule_options = {n.replace("_seq_lens_q", "_seqlens"): x for n, x in conv.items()}
    parts = slice(0, 3), slice(3, 7)
    wanted = torch.cat([gdn.transformers.causal_conv1d_fn(x[..., s], weight) for s in parts], -1)
    got = gdn.transformers.causal_conv1d_fn(x, weight, **conv)
    torch.testing.assert_close(got, wanted)
    for name in ("chunk", "recurrent"):
        call = getattr(gdn.transformers, f"torch_{name}_gated_delta_rule")
        options = dict(use_qk_l2norm_in_kernel=True, output_final_state=True)
        alone = [call(*(t[:, s] for t in (q, k, v, g, beta)), **options) for s in parts]
        out, final = call(q, k, v, g, beta, **options, **rule_options)
        torch.testing.assert_close(out, torch.cat([o for o, _ in alone], 1))
        torch.testing.assert_close(final, torch.cat([f for _, f in alone]))


def test_rows_of_transformers():
    """seq_idx of several rows; cu_seqlens of several rows is refused."""
    a = rule("cpu", lead=(2, T))
    del a["out"]
    seq_idx = torch.tensor([[0] * 2 + [1] * (T - 2), [5] * T])
    out, _ = gdn.transformers.torch_chunk_gated_delta_rule(*a.values(), seq_idx=seq_idx)
    for row, part in ((0, slice(0, 2)), (0, slice(2, T)), (1, slice(0, T))):
        wanted, _ = reference(**{n: x[row:row + 1, part] for n, x in a.items()},
                              state=torch.zeros(1, HV, V, K))
        torch.testing.assert_close(out[row:row + 1, part].double(), wanted, atol=2e-5, rtol=2e-5)
    with pytest.raises(ValueError, match="^seq_idx: "):
        gdn.transformers.torch_chunk_gated_delta_rule(*a.values(), seq_idx=seq_idx[:, 1:])
    with pytest.raises(ValueError, match="^cu_seq_lens_q: "):
        gdn.transformers.causal_conv1d_fn(torch.ones(2, 4, T), torch.ones(4, 4),
                                          cu_seq_lens_q=torch.tensor([0, T]))


def test_packing():
    """Descriptions of sequences: kinds and shapes."""
    of = gdn.torch.cu_seqlens_of
    assert of(position_ids=torch.tensor([0, 1, 2])).tolist() == [0, 3]
    assert of(position_ids=torch.zeros(1, 0, dtype=torch.long)).tolist() == [0]
    for name, wrong, kind in (("position_ids", torch.zeros(4, 1, 3, dtype=torch.long), ValueError),
                              ("seq_idx", torch.zeros(1, 3), ValueError),
                              ("seq_idx", [[0, 0]], TypeError)):
        with pytest.raises(kind, match=f"^{name}: "):
            of(**{name: wrong})


def _rule_of(name):
    """A drop-in's rule by FLA's names, on rows [1, T, H, D] with everything optional."""
    q, v = torch.randn(1, T, 2, K), torch.randn(1, T, 2, K)
    a = dict(q=q, k=q, v=v, g=-torch.rand(1, T, 2), beta=torch.rand(1, T, 2),
             initial_state=torch.zeros(1, 2, K, K), cu_seqlens=torch.tensor([0, T]),
             output_final_state=True)
    if name == "flashinfer":
        a.update({n: a[n][0] for n in ("q", "k", "v", "g", "beta")})
        a["g"] = a["g"].exp()
        return gdn.flashinfer.chunk_gated_delta_rule, a
    if name == "transformers":
        for ours, theirs in (("q", "query"), ("k", "key"), ("v", "value")):
            a[theirs] = a.pop(ours)
        return gdn.transformers.torch_chunk_gated_delta_rule, a
    return {"fla": gdn.fla, "flashqla": gdn.flashqla}[name].chunk_gated_delta_rule, a


@pytest.mark.parametrize("name", ["fla", "flashqla", "flashinfer", "transformers"])
def test_errors_name_what_the_caller_passed(name):
    call, a = _rule_of(name)
    call(**a)
    with pytest.raises(RuntimeError, match=": initial_state: on meta, but .* on cpu"):
        call(**{**a, "initial_state": a["initial_state"].to("meta")})
    for at in ("g", "beta"):
        with pytest.raises(TypeError, match=f"^{at}: list, wanted"):
            call(**{**a, at: a[at].tolist()})
    for at in ("g", "initial_state", "cu_seqlens"):
        with pytest.raises((RuntimeError, ValueError), match=f"{at}: "):
            call(**{**a, at: a[at].sum()})


def test_errors_of_a_convolution_name_what_the_caller_passed():
    x, weight, state = torch.randn(1, 6, 5), torch.randn(6, 4), torch.zeros(2, 6, 3)
    update = gdn.causal_conv1d.causal_conv1d_update
    with pytest.raises(RuntimeError, match="conv_state_indices: slot 4"):
        update(x, state, weight, conv_state_indices=torch.tensor([4]))
    with pytest.raises(RuntimeError, match="conv_state: on meta, but .* on cpu"):
        update(x, state[:1].to("meta"), weight)
    with pytest.raises(ValueError, match="seq_idx: on meta, but the tokens are on cpu"):
        gdn.causal_conv1d.causal_conv1d_fn(
            x, weight, seq_idx=torch.zeros(1, 5, dtype=torch.int32, device="meta"))


def test_engines_name_what_is_no_tensor():
    q, g = torch.randn(1, T, 2, K), torch.zeros(1, T, 2)
    state, cu = torch.zeros(2, 2, K, K), torch.tensor([0, T])
    for call in (gdn.vllm.chunk_gated_delta_rule, gdn.vllm.fused_recurrent_gated_delta_rule):
        a = dict(q=q, k=q, v=q, g=g, beta=g, initial_state=state[:1], cu_seqlens=cu)
        for at, wrong in (("v", None), ("cu_seqlens", [0, T]), ("q", torch.tensor(1.0))):
            with pytest.raises((TypeError, ValueError), match=f"^{at}: .*wanted"):
                call(**{**a, at: wrong})
    one = q[:, :1].bfloat16()
    a = dict(q=one, k=one, v=one, A_log=g[0, 0], a=g[:, :1].bfloat16(), dt_bias=g[0, 0],
             b=g[:, :1].bfloat16(), initial_state=state, initial_state_indices=torch.tensor([1]))
    for call in (gdn.flashinfer.gated_delta_rule_mtp,
                 lambda **a: gdn.flashinfer.gated_delta_rule_decode_pretranspose(state=None, **a)):
        with pytest.raises(RuntimeError, match=": initial_state_indices: on meta"):
            call(**{**a, "initial_state_indices": torch.tensor([1], device="meta")})
        with pytest.raises(TypeError, match="^initial_state: list, wanted"):
            call(**{**a, "initial_state": state.tolist()})
