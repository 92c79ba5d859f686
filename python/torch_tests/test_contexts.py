# SPDX-License-Identifier: Apache-2.0
"""Contexts of FLA and FlashQLA: a rank's part by the drop-ins has the values of one device."""

import functools
import types

import gdn.fla
import gdn.flashqla
import pytest
import ranks
import samples
import torch
from gdn.torch import distributed
from parallel import CUTS, context
from samples import HV, K, V

N = CUTS[-1]


def run(call, args, dout, **options):
    leaves = {name: x.clone().requires_grad_() for name, x in args.items()}
    with torch.enable_grad():
        out, final = call(**leaves, use_qk_l2norm_in_kernel=True, **options)
    assert final is None
    return dict(zip(args, torch.autograd.grad(out, list(leaves.values()), dout)), out=out.detach())


GDN, KDA, GDN2 = gdn.fla.chunk_gated_delta_rule, gdn.fla.chunk_kda, gdn.fla.chunk_gdn2
PRODUCT = functools.partial(gdn.fla.chunk_gated_delta_product, num_householder=2)


def of_rule(call):
    """Arguments of a call, and how many rows of each a token has."""
    args = samples.rule("cpu", lead=(1, N))
    args.pop("out")
    if call in (KDA, GDN2):
        args["g"] = -3 * torch.rand(1, N, HV, K) ** 4
    if call is GDN2:
        args.update(b=torch.rand(1, N, HV, K), w=torch.rand(1, N, HV, V))
        args.pop("beta")
    if call is PRODUCT:
        args.update(samples.rule("cpu", lead=(1, 2 * N)), q=args["q"], g=args["g"])
        args.pop("out")
    return args, {name: x.shape[1] // N for name, x in args.items()}


@pytest.mark.parametrize("kind, size, call", [
    ("contiguous", 2, GDN), ("contiguous", 4, GDN), ("zigzag", 3, GDN),
    ("flashqla", 3, gdn.flashqla.chunk_gated_delta_rule),
    ("contiguous", 3, KDA), ("zigzag", 2, KDA), ("contiguous", 2, GDN2), ("zigzag", 2, GDN2),
    ("contiguous", 3, PRODUCT), ("zigzag", 2, PRODUCT),
])
def test_values(kind, size, call):
    args, rows = of_rule(call)
    dout = torch.randn(1, N, HV, V)
    want = run(call, args, dout, cu_seqlens=torch.tensor(CUTS))

    def on_rank(group):
        given = context(kind, group.rank, size, group)
        layout = distributed.layout_of(given)

        def own(name, x):
            tokens = x.unflatten(1, (N, rows.get(name, 1)))
            return layout.local(tokens, 1).flatten(1, 2)

        mine = {name: own(name, x) for name, x in args.items()}
        got = run(call, mine, layout.local(dout, 1), cp_context=given)
        gathers = len(group.bytes)
        assert distributed.layout_of(given) is layout and len(group.bytes) == gathers
        for name, x in got.items():
            error = (x - own(name, want[name])).abs().max()
            assert error <= 4e-6 * want[name].abs().max(), name

    ranks.run(size, on_rank)


@pytest.mark.parametrize("module", [gdn.fla, gdn.flashqla])
def test_no_group(module):
    """Without one, the context says where sequences begin, and no more."""
    args = samples.rule("cpu", lead=(1, N))
    args.pop("out")
    cuts = torch.tensor(CUTS)
    given = types.SimpleNamespace(group=None, cu_seqlens=cuts, cu_seqlens_cpu=None)
    state = torch.randn(len(CUTS) - 1, HV, K, V)
    call = module.chunk_gated_delta_rule
    got = call(**args, initial_state=state, output_final_state=True, cp_context=given)
    want = call(**args, initial_state=state, output_final_state=True, cu_seqlens=cuts)
    assert all(map(torch.equal, got, want))


@pytest.mark.parametrize("module", [gdn.fla, gdn.flashqla])
def test_mistakes(module):
    args = samples.rule("cpu", lead=(1, N))
    args.pop("out")
    call = module.chunk_gated_delta_rule

    def on_rank(group):
        given = context("contiguous", 0, 1, group)
        with pytest.raises(AssertionError, match="final states"):
            call(**args, output_final_state=True, cp_context=given)
        with pytest.raises(ValueError, match="batch size must be 1"):
            call(**{n: x.expand(2, *x.shape[1:]) for n, x in args.items()}, cp_context=given)
        given.pre_num_ranks_dev = torch.zeros(1)
        with pytest.raises(NotImplementedError, match="pre_num_ranks_dev"):
            call(**args, cp_context=given)

    ranks.run(1, on_rank)
    with pytest.raises(NotImplementedError, match="cp_context: int"):
        call(**args, cp_context=1)


def test_contexts_of_fla():
    """What FLA itself builds."""
    cp = pytest.importorskip("fla.ops.cp.context", reason="FLA is not installed",
                             exc_type=Exception)
    for kind in ("contiguous", "zigzag"):
        def on_rank(group, kind=kind):
            given = cp.get_cp_cu_seqlens(torch.tensor(CUTS), world_size=group.size,
                                         rank=group.rank, layout=kind)
            given.group = group
            layout = distributed.layout_of(given)
            want = distributed.Layout(CUTS, group, split=kind)
            assert layout.ranges == want.ranges
            assert torch.equal(layout.cu_seqlens(), want.cu_seqlens())

        ranks.run(3, on_rank)
