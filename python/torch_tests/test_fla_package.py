# SPDX-License-Identifier: Apache-2.0
"""The modules that gdn.install() makes if FLA and causal_conv1d are absent."""

import functools
import importlib
import importlib.util
import sys
import types
import warnings

import pytest
import ranks
import torch
from samples import B, HV, K, T, V, reference, rule
from torch.nn import functional

import gdn.transformers

PACKAGES = "fla", "causal_conv1d"
D, W = 24, 4


@pytest.fixture(autouse=True)
def installed(request, monkeypatch):
    """The packages as gdn makes them, until the test ends."""
    if "modeling" not in request.fixturenames:  # which puts models back
        monkeypatch.setattr(gdn.transformers, "replace_rules", lambda: None)

    def ours(name):
        return name.split(".")[0] in PACKAGES

    before = {n: m for n, m in sys.modules.items() if ours(n)}
    for name in before:
        del sys.modules[name]
    hidden = _Hidden()
    sys.meta_path.insert(0, hidden)
    if "is_late" not in request.fixturenames:
        gdn.install(*PACKAGES)
    yield
    sys.meta_path.remove(hidden)
    for name in [n for n in sys.modules if ours(n)]:
        del sys.modules[name]
    sys.modules.update(before)


class _Hidden:
    """Makes packages absent that are installed here."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in PACKAGES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.fixture
def is_late():
    """The test installs the packages itself."""


def close(got, wanted, limit=2e-5):
    torch.testing.assert_close(got.double(), wanted.double(), atol=limit, rtol=limit)


def test_package():
    import fla
    from packaging import version

    assert version.parse(fla.__version__) >= version.parse("0.6")
    assert version.parse(fla.__version__).local == "gdn"
    assert fla.__spec__.name == "fla" and sys.modules["fla"] is fla
    for name in ("fla.ops.gla", "fla.models"):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(name)
    with pytest.raises(ImportError):
        from fla.modules import NoSuchName  # noqa: F401
    gdn.install(*PACKAGES)
    assert sys.modules["fla"] is fla


def test_transformers_finds_it(monkeypatch):
    utils = pytest.importorskip("transformers.utils.import_utils")
    from transformers.integrations.hub_kernels import use_kernel_func_from_hub_with_fallback

    assert utils._is_package_available("fla", return_version=True) == (True, "0.6.0+gdn")
    monkeypatch.setattr(utils, "is_torch_cuda_available", lambda: True)
    assert utils.is_flash_linear_attention_available.__wrapped__()
    calls = []

    def theirs(q, k, v, g, beta, **kwargs):
        calls.append("torch")

    a = rule("cpu")
    del a["out"]
    for name in ("chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule"):
        call = use_kernel_func_from_hub_with_fallback(name, "fla")(theirs)
        out, _ = call(**a, cu_seqlens=None, something=3)
        close(out, reference(**a, state=torch.zeros(B, HV, V, K))[0])
    assert not calls


def test_transformers_looks_again(is_late, monkeypatch):
    """An answer from before install() is forgotten."""
    utils = pytest.importorskip("transformers.utils.import_utils")
    monkeypatch.setattr(utils, "is_torch_cuda_available", lambda: True)
    names = "is_flash_linear_attention_available", "is_causal_conv1d_available"
    with monkeypatch.context() as before:
        before.setattr(utils, "_is_package_available", lambda *args, **kwargs: (False, "N/A"))
        for name in names:
            getattr(utils, name).cache_clear()
        assert not any(getattr(utils, name)() for name in names)
    gdn.install(*PACKAGES)
    try:
        assert all(getattr(utils, name)() for name in names)
    finally:
        for name in names:
            getattr(utils, name).cache_clear()


def test_what_it_does_not_know():
    """Arguments that FLA's functions take by name and gdn's do not know are refused."""
    from fla.modules import ShortConvolution
    from fla.modules.convolution import causal_conv1d
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule

    a = rule("cpu")
    del a["out"]
    calls = {"safe_gate": lambda **more: chunk_gated_delta_rule(**a, **more),
             "cp_context": lambda **more: fused_recurrent_gated_delta_rule(**a, **more),
             "lower_bound": lambda **more: causal_conv1d(torch.randn(1, 3, D), torch.randn(D, W),
                                                         **more),
             "share_conv_kernel": lambda **more: ShortConvolution(D, W, **more)}
    for name, call in calls.items():
        call(**{name: None})
        with pytest.raises(NotImplementedError, match=f"does not know {name}$"):
            call(**{name: 3})


def test_rule():
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
    from fla.ops.gated_delta_rule.chunk import chunk_gated_delta_rule as chunk
    from fla.ops.gated_delta_rule.fused_recurrent import fused_recurrent_gated_delta_rule as step

    assert chunk is chunk_gated_delta_rule and step is fused_recurrent_gated_delta_rule
    a = rule("cpu")
    del a["out"]
    for call in (chunk, step):
        close(call(**a)[0], reference(**a, state=torch.zeros(B, HV, V, K))[0])


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("is_raw", [False, True])
@torch.enable_grad()
def test_halves(is_packed, is_raw):
    """Forward and backward beside the function with gradients, and its apply()."""
    from fla.ops.gated_delta_rule.chunk import (ChunkGatedDeltaRuleFunction,
                                                chunk_gated_delta_rule_bwd,
                                                chunk_gated_delta_rule_fwd)
    a = rule("cpu", lead=(1, 70) if is_packed else (2, 70))
    del a["out"]
    count = 3 if is_packed else 2
    cu = torch.tensor([0, 9, 9, 70]) if is_packed else None
    raw = dict(use_gate_in_kernel=True, A_log=torch.randn(HV), dt_bias=torch.randn(HV))
    raw = raw if is_raw else {}
    start, dout = torch.randn(count, HV, K, V), torch.randn_like(a["v"])
    dfinal = torch.randn_like(start)
    given = {n: x.requires_grad_() for n, x in a.items()}
    weights = {n: x.requires_grad_() for n, x in raw.items() if n != "use_gate_in_kernel"}
    start.requires_grad_()
    out, final = ChunkGatedDeltaRuleFunction.apply(
        *given.values(), 0.3, start, True, False, cu, **raw)
    inputs = [*given.values(), start, *weights.values()]
    wanted = torch.autograd.grad([out, final], inputs, [dout, dfinal])
    more = dict(cu_seqlens=cu, use_gate_in_kernel=is_raw, **weights)
    g, o, A, h, initial, g_input = chunk_gated_delta_rule_fwd(
        *given.values(), 0.3, start, True, **more)
    assert torch.equal(o, out) and torch.equal(h, final) and initial is start
    dq, dk, dv, db, dg, dh0, dA_log, ddt_bias = chunk_gated_delta_rule_bwd(
        given["q"], given["k"], given["v"], g, given["beta"], A, 0.3, initial, dout, dfinal,
        g_input=g_input, **more)
    got = [dq, dk, dv, dg, db, dh0] + ([dA_log, ddt_bias] if is_raw else [])
    assert is_raw or dA_log is ddt_bias is None
    for x, right in zip(got, wanted, strict=True):
        torch.testing.assert_close(x, right, atol=1e-4, rtol=1e-4)
    with pytest.raises(NotImplementedError, match="chunk_size"):
        chunk_gated_delta_rule_fwd(*given.values(), 0.3, None, False, chunk_size=32)


def test_sums_and_inverses():
    """The intermediate values have FLA's meaning, so the two halves may come from different
    packages."""
    from fla.ops.gated_delta_rule.chunk import chunk_gated_delta_rule_fwd

    a = rule("cpu", lead=(1, 70))
    del a["out"]
    sums, _, A, *_ = chunk_gated_delta_rule_fwd(*a.values(), None, None, False)
    k, times = a["k"].double(), HV // a["k"].shape[2]
    for start, end in ((0, 64), (64, 70)):
        G = a["g"][0, start:end].double().cumsum(0)
        close(sums[0, start:end], G / torch.tensor(2.0).log().double())
        for h in range(HV):
            rows = k[0, start:end, h // times]
            L = (rows @ rows.t() * a["beta"][0, start:end, h, None].double()
                 * (G[:, None, h] - G[None, :, h]).exp()).tril(-1)
            inverse = torch.linalg.inv(torch.eye(end - start, dtype=torch.float64) + L)
            close(A[0, start:end, h, :end - start], inverse)


def test_inside_operators():
    """As trainers wrap the halves: operators of torch.library, whose kernels have no autograd."""
    from fla.modules.convolution import causal_conv1d_bwd, causal_conv1d_fwd
    from fla.ops.gated_delta_rule.chunk import (chunk_gated_delta_rule_bwd,
                                                chunk_gated_delta_rule_fwd, l2norm_fwd)

    @torch.library.custom_op("gdn_test::chunk", mutates_args=())
    def chunk(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor,
              beta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        sums, o, A, *_ = chunk_gated_delta_rule_fwd(l2norm_fwd(q)[0], l2norm_fwd(k)[0], v, g, beta,
                                                    0.5, None, False)
        return o, sums, A, chunk_gated_delta_rule_bwd(q, k, v, sums, beta, A, 0.5, None, o, None)[0]

    @torch.library.custom_op("gdn_test::conv", mutates_args=())
    def conv(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, _ = causal_conv1d_fwd(x, weight, None, None, activation="silu")
        return y, causal_conv1d_bwd(x, y, None, weight, activation="silu")[0]

    a = rule("cpu", lead=(2, 70))
    del a["out"]
    with torch.enable_grad():
        o, sums, A, dq = chunk(*(x.requires_grad_() for x in a.values()))
        y, dx = conv(torch.randn(2, 9, D).requires_grad_(), torch.randn(D, W))
    assert (sums.dtype, A.shape) == (torch.float32, (*a["v"].shape[:-1], 64))
    assert all(torch.isfinite(x).all() and x.any() for x in (o, dq, y, dx))


def test_short_names():
    from fla.modules.l2norm import l2_norm, l2norm
    from fla.ops.gated_delta_rule import fused_recurrent_gated_delta_rule, fused_recurrent_gdn

    assert l2_norm is l2norm and fused_recurrent_gdn is fused_recurrent_gated_delta_rule


def test_names_that_trainers_import():
    for name, names in {
            "fla.modules.conv": ["causal_conv1d"],
            "fla.modules.conv.causal_conv1d": ["causal_conv1d"],
            "fla.modules.conv.triton.ops": ["CausalConv1dFunction"],
            "fla.ops.gated_delta_rule.fused_recurrent": ["FusedRecurrentFunction"]}.items():
        module = importlib.import_module(name)
        for each in names:
            assert callable(getattr(module, each).apply if each.endswith("Function")
                            else getattr(module, each))
    from fla.modules.conv.triton.ops import CausalConv1dFunction
    from fla.ops.gated_delta_rule.fused_recurrent import FusedRecurrentFunction

    a = rule("cpu")
    out, _ = FusedRecurrentFunction.apply(a["q"], a["k"], a["v"], a["g"], beta=a["beta"])
    del a["out"]
    close(out, reference(**a, state=torch.zeros(B, HV, V, K))[0])
    x, weight = torch.randn(2, 9, D), torch.randn(D, W)
    y, _ = CausalConv1dFunction.apply(x, weight, None, None, None, False, "silu")
    close(y, convolution(x, weight, torch.zeros(D), torch.zeros(2, D, W)))


def convolution(x, weight, bias, past):
    """[B, T, D] in float64, with SiLU; past [B, D, W]."""
    rows = torch.cat([past[..., 1:].double(), x.double().transpose(1, 2)], -1)
    y = functional.conv1d(rows, weight.double()[:, None], bias.double(), groups=D)
    return functional.silu(y).transpose(1, 2)


@pytest.mark.parametrize("name", ["convolution", "causal_conv1d", "conv"])
@torch.enable_grad()
def test_convolution(name):
    module = importlib.import_module(f"fla.modules.{name}")
    inputs = [torch.randn(2, 9, D), torch.randn(D, W), torch.randn(D), torch.randn(2, 9, D),
              torch.randn(2, D, W)]
    dy, dht, results = torch.randn(2, 9, D), torch.randn(2, D, W), []
    for dtype in (torch.float32, torch.float64):
        x, weight, bias, residual, past = (t.to(dtype, copy=True).requires_grad_() for t in inputs)
        if dtype == torch.float32:
            y, final = module.causal_conv1d(x, weight, bias, residual, past, True, "silu")
            halves = module.causal_conv1d_fwd(x, weight, bias, residual, past, True, "silu")
            assert torch.equal(halves[0], y) and torch.equal(halves[1], final)
            back = module.causal_conv1d_bwd(x, dy, dht, weight, bias, residual, past, "silu")
            with pytest.raises(RuntimeError, match=r"\bdy: "):
                module.causal_conv1d_bwd(x, dy.mT, dht, weight, bias, residual, past, "silu")
        else:
            y = convolution(x, weight, bias, past) + residual
            final = torch.cat([past, x.transpose(1, 2)], -1)[..., -W:]
        found = torch.autograd.grad([y, final], [x, weight, bias, residual, past],
                                    [dy.to(dtype), dht.to(dtype)])
        results.append([y, final, *found])
    for got, wanted in zip(*results):
        close(got, wanted, 1e-4)
    for got, wanted in zip(back, results[1][2:]):
        close(got, wanted, 1e-4)


def test_packed_convolution():
    from fla.modules.convolution import causal_conv1d, causal_conv1d_update_states

    x, weight, bias = torch.randn(1, 12, D), torch.randn(D, W), torch.randn(D)
    cu, past = torch.tensor([0, 2, 2, 12]), torch.randn(3, D, W)
    y, final = causal_conv1d(x, weight, bias, None, past, True, "silu", cu_seqlens=cu)
    states = causal_conv1d_update_states(x, W, past, cu)
    for i, (start, end) in enumerate(zip(cu[:-1], cu[1:])):
        part = x[:, start:end]
        if len(part[0]):
            close(y[:, start:end], convolution(part, weight, bias, past[i:i + 1]))
        wanted = torch.cat([past[i], part[0].t()], -1)[..., -W:]
        assert torch.equal(final[i], wanted) and torch.equal(states[i], wanted)
    seq_idx = torch.tensor([[0] * 2 + [1] * 10])
    y, final = causal_conv1d(x, weight, bias, activation="silu", seq_idx=seq_idx)
    close(y[:, 2:], convolution(x[:, 2:], weight, bias, torch.zeros(1, D, W)))
    assert final is None
    with pytest.raises(ValueError, match="initial_state"):
        causal_conv1d(x, weight, initial_state=past[:2], cu_seqlens=cu)
    with pytest.raises(ValueError, match="backend"):
        causal_conv1d(x, weight, backend="other")


def test_short_convolution():
    from fla.modules import ShortConvolution

    layer, x = ShortConvolution(D, W, bias=True), torch.randn(2, 9, D)
    weight, bias = layer.weight[:, 0], layer.bias
    assert set(layer.state_dict()) == {"weight", "bias"} and layer.state_size == D * W
    wanted = convolution(x, weight, bias, torch.zeros(2, D, W))
    y, none = layer(x)
    close(y, wanted)
    assert none is None
    y, cache = layer(x[:, :6], output_final_state=True)
    rows, before = [y], cache
    for t in (6, 7, 8):
        y, cache = layer(x[:, t:t + 1], cache=cache, output_final_state=True)
        rows.append(y)
    close(torch.cat(rows, 1), wanted)
    assert cache is before and torch.equal(cache, x[:, -W:].transpose(1, 2))
    y, _ = layer(x[:, 6].unsqueeze(0), cache=before, cu_seqlens=torch.tensor([0, 1, 2]))
    assert y.shape == (1, 2, D)
    mask = torch.ones(2, 9)
    mask[0, :3] = 0
    close(layer(x, mask=mask)[0][:1], convolution(x[:1] * mask[:1, :, None], weight, bias,
                                                  torch.zeros(1, D, W)))
    with torch.enable_grad():
        layer(x)[0].sum().backward()
    assert layer.weight.grad.any() and layer.bias.grad.any()


@torch.enable_grad()
def test_norms():
    from fla.modules import FusedRMSNormGated, L2Norm
    from fla.modules.fused_norm_gate import rms_norm_gated
    from fla.modules.l2norm import l2norm, l2norm_bwd, l2norm_fwd

    x, dy = torch.randn(3, 5, 16).requires_grad_(), torch.randn(3, 5, 16)
    wide = x.double()
    wanted = wide * (wide.square().sum(-1, keepdim=True) + 1e-3).rsqrt()
    dx, = torch.autograd.grad(wanted, x, dy.double())
    y, rstd = l2norm_fwd(x, 1e-3)
    close(y, wanted)
    close(l2norm_bwd(y, rstd, dy), dx)
    close(torch.autograd.grad(l2norm(x, 1e-3), x, dy)[0], dx)
    close(L2Norm(1e-3)(x), wanted)
    assert l2norm(x.bfloat16(), output_dtype=torch.float32).dtype == torch.float32
    for activation in ("swish", "sigmoid"):
        norm, z = FusedRMSNormGated(16, activation=activation), torch.randn(3, 5, 16)
        gate = z.double().sigmoid() * (z.double() if activation == "swish" else 1)
        wanted = wide * (wide.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * gate
        close(norm(x, z), wanted)
        norm(x, z).sum().backward()
        assert norm.weight.grad.any()
    assert FusedRMSNormGated(16, elementwise_affine=False).weight is None
    with pytest.raises(NotImplementedError, match="residual"):
        rms_norm_gated(x, z, None, None, residual=x)


def test_numbers():
    from fla.ops import utils
    from fla.ops.utils.index import prepare_chunk_indices

    cu = torch.tensor([0, 70, 70, 73], dtype=torch.int32)
    assert prepare_chunk_indices(cu, 64).tolist() == [[0, 0], [0, 1], [2, 0]]
    assert prepare_chunk_indices(cu, 64).dtype == torch.int32
    assert utils.prepare_chunk_offsets(cu, 64).tolist() == [0, 2, 2, 3]
    assert utils.get_max_num_splits(cu, 64) == 2
    assert utils.prepare_lens(cu).tolist() == [70, 0, 3]
    assert utils.prepare_position_ids(cu).tolist() == [*range(70), 0, 1, 2]
    assert utils.prepare_sequence_ids(cu).tolist() == [0] * 70 + [1] * 3
    sequence, place = utils.prepare_token_indices(cu).t()  # FLA's passes over empty sequences
    assert sequence.tolist() == [0] * 70 + [2] * 3
    assert torch.equal(place, utils.prepare_position_ids(cu))
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    assert utils.prepare_lens_from_mask(mask).tolist() == [2, 1]
    assert utils.prepare_cu_seqlens_from_mask(mask).tolist() == [0, 2, 3]
    assert utils.prepare_cu_seqlens_from_lens(torch.tensor([2, 0, 1])).tolist() == [0, 2, 2, 3]


@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
def test_contexts(layout, monkeypatch):
    """The parts of two ranks hold every sequence once."""
    from fla.ops.cp import build_cp_context

    cu = torch.tensor([0, 3, 3, 10, 16])
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: 2)
    found = []
    for rank in (0, 1):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda group, rank=rank: rank)
        context = build_cp_context(cu, object(), layout=layout)
        assert context.is_cp_enabled and context.num_seqs == len(context.cu_seqlens) - 1
        found.append(context.copy_for_backward())
    if layout == "contiguous":
        assert [c.cu_seqlens.tolist() for c in found] == [[0, 3, 8], [0, 2, 8]]
        assert [c.is_first_rank for c in found] == [True, False]
        assert [c.is_last_rank for c in found] == [False, True]
        assert [(c.pre_num_ranks, c.post_num_ranks) for c in found] == [(0, 1), (1, 0)]
        assert [c.pre_num_conv_tokens for c in found] == [0, 5]
    else:  # parts 0 and 3, 1 and 2
        assert [c.cu_seqlens.tolist() for c in found] == [[0, 3, 4, 8], [0, 4, 6, 8]]
        assert [c.is_first_by_part for c in found] == [(True, False), (False, False)]
        assert [c.front_num_seqs for c in found] == [2, 1]
        assert [c.is_last_by_part for c in found] == [(False, True), (False, False)]
        assert [c.pre_num_ranks_by_part for c in found] == [(0, 1), (1, 2)]
        assert [c.post_num_ranks_by_part for c in found] == [(2, 0), (1, 1)]
        assert [c.pre_num_conv_tokens_by_part for c in found] == [(0, 2), (1, 5)]
    with pytest.raises(ValueError, match="multiple"):
        build_cp_context(torch.tensor([0, 5]), object(), layout=layout)


def test_one_rank(tmp_path):
    """A context of one rank through the rule and the convolution."""
    import fla.modules.convolution
    import fla.ops.gated_delta_rule
    from fla.ops.cp import (FLACPContext, all_reduce_sum, build_cp_context, send_recv_bwd,
                            send_recv_fwd)

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/ranks", rank=0,
                                         world_size=1)
    try:
        a = rule("cpu", lead=(1, 12))
        del a["out"]
        cu = torch.tensor([0, 5, 12])
        context = build_cp_context(cu, torch.distributed.group.WORLD)
        assert isinstance(context, FLACPContext)
        call = fla.ops.gated_delta_rule.chunk_gated_delta_rule
        close(call(**a, cp_context=context)[0], call(**a, cu_seqlens=cu)[0])
        x, weight = torch.randn(1, 12, D), torch.randn(D, W)
        call = fla.modules.convolution.causal_conv1d
        close(call(x, weight, cp_context=context)[0], call(x, weight, cu_seqlens=cu)[0])
        assert not send_recv_fwd(x, context.group).any()
        assert not send_recv_bwd(x, context.group).any()
        assert torch.equal(all_reduce_sum(x.clone(), context.group)[0], x)
    finally:
        torch.distributed.destroy_process_group()


def test_neighbours(monkeypatch):
    """verl's exchange for its convolution: the last tokens of each of three ranks."""
    from fla.ops.cp.comm import conv_cp_send_recv_bwd, conv_cp_send_recv_fwd

    monkeypatch.setattr(torch.distributed, "get_rank", lambda group: group.rank)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: group.size)
    monkeypatch.setattr(torch.distributed, "all_gather_into_tensor",
                        lambda out, x, group, _: bool(out.copy_(group.all_gather(x).view(-1))[0]))

    def exchanged(group):
        mine = torch.full((2, 3), 1.0 + group.rank)
        return [call(mine, group).unique().item()
                for call in (conv_cp_send_recv_fwd, conv_cp_send_recv_bwd)]

    assert ranks.run(3, exchanged) == [[0, 2], [1, 3], [2, 0]]


def test_varlen_states():
    from causal_conv1d.causal_conv1d_interface import causal_conv1d_fn
    from causal_conv1d.causal_conv1d_varlen import causal_conv1d_varlen_states

    assert causal_conv1d_fn is gdn.causal_conv1d.causal_conv1d_fn
    x, cu = torch.randn(9, D), torch.tensor([1, 3, 3, 9])
    got = causal_conv1d_varlen_states(x, cu, 3)
    assert got.shape == (3, D, 3)
    assert torch.equal(got[0], torch.cat([torch.zeros(D, 1), x[1:3].t()], 1))
    assert not got[1].any() and torch.equal(got[2], x[6:9].t())
    assert causal_conv1d_varlen_states(x[:0], cu * 0, 3).shape == (3, D, 3)


def test_late(is_late, monkeypatch):
    """A module that found no FLA is named in the warning; a module without these names is not."""
    late = types.ModuleType("late_trainer")
    late.chunk_gated_delta_rule = None
    monkeypatch.setitem(sys.modules, "late_trainer", late)
    with pytest.warns(UserWarning, match="too late for .*late_trainer"):
        gdn.install("fla")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gdn.install("fla")


def test_late_for_transformers(is_late, modeling):
    """Models that were imported before take the rules of libgdn."""
    ours = gdn.transformers.torch_chunk_gated_delta_rule
    assert modeling.torch_chunk_gated_delta_rule is not ours
    gdn.install("fla")
    for name in ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"):
        assert getattr(modeling, name) is getattr(gdn.transformers, name)
        assert getattr(modeling, name).__module__ == "gdn.transformers"


def test_over_an_installed_package(monkeypatch):
    """Functions of an importable package are replaced by name, and run where gdn's refuse."""
    from gdn import _stand_in

    def l2norm(x, eps=1e-6, output_dtype=None, grown=None):
        return "theirs"

    package, user = types.ModuleType("other_package"), types.ModuleType("user")
    package.l2norm = user.l2norm = l2norm
    package.kept = package.Thing = original = lambda x: "kept"
    for module in (package, user):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    from fla.modules.l2norm import L2Norm
    from fla.modules.l2norm import l2norm as ours

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del l2norm
        _stand_in.install("other_package", "1", {"other_package": dict(
            l2norm=ours, kept=lambda x: x, Thing=L2Norm)}, keep={"kept"})
    assert package.kept is package.Thing is original
    x = torch.randn(3, 4)
    assert torch.equal(user.l2norm(x), ours(x)) and user.l2norm(x, grown=1) == "theirs"


def test_late_over_an_installed_package(monkeypatch):
    """Attributes of objects follow; who else keeps the package's own function is named."""
    from gdn import _stand_in

    def l2norm(x, eps=1e-6, output_dtype=None):
        return "theirs"

    def with_default(x, call=l2norm):
        return call(x)

    package = types.ModuleType("other_package")
    package.l2norm = l2norm
    monkeypatch.setitem(sys.modules, "other_package", package)
    layer, partial = torch.nn.Module(), functools.partial(l2norm, eps=1)
    layer.norm = l2norm
    from fla.modules.l2norm import l2norm as ours

    del l2norm
    with pytest.warns(UserWarning, match="late for .*partial .l2norm., .*with_default .l2norm."):
        _stand_in.install("other_package", "1", {"other_package": dict(l2norm=ours)})
    x = torch.randn(3, 4)
    assert torch.equal(layer.norm(x), ours(x)) and partial(x) == with_default(x) == "theirs"
