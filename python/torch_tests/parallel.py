# SPDX-License-Identifier: Apache-2.0
"""gdn.torch.distributed on the ranks of a group, against one device. The processes of a test import
this module, which is quick."""

import copy
import datetime
import importlib
import importlib.util
import pathlib
import types

import gdn
import gdn.torch
import torch
from gdn.torch import distributed
from samples import HK, HV, K, V
from tiny import RAW, unit

CU = 0, 5, 5, 40, 47, 47  # an empty sequence in the middle, and one at the end
CUTS = 0, 7, 30, 31, 48  # of contexts, whose parts are even
N, B, D, W = CU[-1], len(CU) - 1, 6, 4
OF_STATES, OF_RANKS = "state", ("A_log", "dt_bias", "weight", "bias")
LIMIT = 4e-6  # of the largest element; sums over ranks are rounded once more for each rank


def rule_case(gates):
    """prefill() for all tokens: its op, arguments, options, and weights of its results. raw gates;
    strong ones, which forget within a few tokens; or some of -inf, the first and last tokens of
    ranges among them."""
    def n(*shape):
        return torch.randn(*shape)

    a = dict(q=n(N, HK, K), k=n(N, HK, K), v=n(N, HV, V), g=n(N, HV), beta=n(N, HV),
             state=n(B, HV, V, K))
    weights = n(N, HV, V), n(B, HV, V, K)
    if gates == "raw":
        return "prefill", dict(a, A_log=n(HV), dt_bias=n(HV)), RAW, weights
    a.update(q=unit(a["q"]), k=unit(a["k"]), beta=2 * a["beta"].sigmoid(),
             g=a["g"].abs() * (-20 if gates == "strong" else -0.1))
    if gates == "-inf":
        a["g"][::5, ::2] = a["g"][15:17] = a["g"][31] = -torch.inf
    return "prefill", a, {}, weights


def conv_case(size):
    """The same for conv1d() with states of that length."""
    leaves = dict(x=torch.randn(N, D), weight=torch.randn(D, W), bias=torch.randn(D),
                  state=torch.randn(B, D, size))
    return ("conv1d", leaves, dict(activation=gdn.ACT_SILU),
            (torch.randn(N, D), torch.randn(B, D, size)))


def _run(call, leaves, options, weights):
    """Outputs, final states and gradients of a weighted sum of both."""
    leaves = {name: x.clone().requires_grad_() for name, x in leaves.items()}
    out, last = call(**leaves, **options, return_state=True)
    loss = (out * weights[0]).sum() + (last * weights[1]).sum()
    grads = torch.autograd.grad(loss, list(leaves.values()))
    return dict(zip(leaves, grads), out=out.detach(), last=last.detach())


def _local(layout, name, x):
    if name in OF_RANKS:
        return x
    return x[layout.begins] if name == OF_STATES else layout.local(x)


def compare(case, group, device="cpu", **split):
    """Raises AssertionError if a rank's part differs from the result of one device, or if a second
    run gives other bits."""
    op, leaves, options, weights = case
    leaves = {name: x.to(device) for name, x in leaves.items()}
    weights = [x.to(device) for x in weights]
    with torch.enable_grad():
        layout = distributed.Layout(CU, group, **split)
        want = _run(getattr(gdn.torch, op), leaves,
                    dict(options, cu_seqlens=torch.tensor(CU, device=device)), weights)
        mine = {name: _local(layout, name, x) for name, x in leaves.items()}
        own = layout.local(weights[0]), weights[1][layout.ends]
        call = getattr(distributed, op)
        got, again = (_run(call, mine, dict(options, layout=layout), own) for _ in range(2))
    for name, x in got.items():
        assert torch.equal(x, again[name]), f"{name}: other bits"
        whole = want[name]
        if name in OF_RANKS:
            x = layout.group.all_gather(x).sum(0)
        else:
            whole = whole[layout.ends] if name == "last" else _local(layout, name, whole)
        error = (x - whole).abs().max() if x.numel() else x.new_zeros(())
        assert error <= LIMIT * want[name].abs().max(), f"{name}: {error}"


# ---- Contexts of FLA and FlashQLA ----------------------------------------------------------------


def _part(start, end):
    """Returns the sequences of a part as a context has them, and whether the first one begins in
    the part. A sequence that goes on behind the part counts with its tokens inside."""
    inside = [cut - start for cut in CUTS if start < cut < end]
    return [0, *inside, end - start], start in CUTS


def context(kind, rank, size, group):
    """As build_cp_context() of FLA or FlashQLA makes it."""
    if kind == "zigzag":
        half = CUTS[-1] // (2 * size)
        front, is_first = _part(rank * half, (rank + 1) * half)
        back, is_back_first = _part(CUTS[-1] - (rank + 1) * half, CUTS[-1] - rank * half)
        cuts = torch.tensor(front + [half + cut for cut in back[1:]], dtype=torch.int32)
        return types.SimpleNamespace(
            group=group, cu_seqlens=cuts, cu_seqlens_cpu=cuts, layout="zigzag",
            front_num_seqs=len(front) - 1, is_first_by_part=(is_first, is_back_first),
            is_first_rank=None, pre_num_ranks_dev=None)
    cuts, is_first = _part(CUTS[-1] * rank // size, CUTS[-1] * (rank + 1) // size)
    common = dict(group=group, cu_seqlens=torch.tensor(cuts, dtype=torch.int32),
                  cu_seqlens_cpu=None, is_first_rank=is_first)
    if kind == "flashqla":
        return types.SimpleNamespace(**common, is_inter=True, is_intra=False)
    return types.SimpleNamespace(**common, layout="contiguous", pre_num_ranks_dev=None)


def _layout_of_context(rank):
    """A context's layout has what a Layout of the whole batch has."""
    for kind in ("contiguous", "zigzag"):
        got = distributed.layout_of(context(kind, rank, 3, torch.distributed.group.WORLD))
        want = distributed.Layout(CUTS, split=kind)
        assert got.ranges == want.ranges and torch.equal(got.cu_seqlens(), want.cu_seqlens())
    return ""


# ---- Training ------------------------------------------------------------------------------------


def _train():
    """examples/train_parallel.py: ranks that divide tokens or heads have the losses of one."""
    path = pathlib.Path(__file__).parents[2] / "examples/train_parallel.py"
    spec = importlib.util.spec_from_file_location("train_parallel", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    one, tokens, heads = (torch.tensor(example.train(mode, 2, 129, "cpu"))
                          for mode in ("one", "tokens", "heads"))
    error = max((x - one).abs().max() for x in (tokens, heads))
    return "" if error <= 1e-5 else f"losses {one}, {tokens}, {heads}"


def _fully_shard(rank, group):
    """FSDP2 on projections and on the layer around them: each rank has half of the rows, and the
    gradients are the mean over the ranks."""
    fsdp = importlib.import_module("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        return ""
    torch.manual_seed(3)
    layer, x = gdn.torch.GatedDeltaNet(24, 1, 2, 8, 8), torch.randn(2, 9, 24)
    plain = copy.deepcopy(layer)
    mesh = torch.distributed.device_mesh.DeviceMesh.from_group(group, "cpu")
    for name in ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"):
        fsdp.fully_shard(getattr(layer, name), mesh=mesh)
    fsdp.fully_shard(layer, mesh=mesh)
    with torch.enable_grad():
        out, want = layer(x[rank:rank + 1]), plain(x)
        out.square().sum().backward()
        (want.square().sum() / 2).backward()
    found = [(name, p.grad.full_tensor(), q.grad) for (name, p), q in
             zip(layer.named_parameters(), plain.parameters())]
    found.append(("out", out, want[rank:rank + 1]))
    wrong = [name for name, got, wanted in found
             if not torch.allclose(got, wanted, atol=1e-6, rtol=1e-4)]
    return f"other values: {wrong}" if wrong else ""


# ---- Processes -----------------------------------------------------------------------------------


def _failing(rank, group):
    """What becomes of the other ranks when one fails between two all-gathers; None: no error."""
    layout = distributed.Layout(CU, group)
    try:
        if rank == 0:
            raise RuntimeError("rank 0 fails")
        distributed.conv1d(torch.randn(layout.n_tokens, D), torch.randn(D, W), layout=layout)
    except RuntimeError as error:
        return str(error)


def process(rank, folder):
    """Process `rank` of three: the cases of test_processes, and then a rank that fails. Saves the
    texts of what went wrong, "" where nothing did."""
    dist = torch.distributed
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=3,
                            timeout=datetime.timedelta(minutes=2))
    pair = dist.new_group([0, 1])
    hasty = dist.new_group(timeout=datetime.timedelta(seconds=1))
    texts = {}
    for name, (case, is_pair, split) in torch.load(f"{folder}/cases").items():
        if is_pair and rank == 2:
            continue
        try:
            compare(case, pair if is_pair else None, **split)
            texts[name] = ""
        except (AssertionError, RuntimeError, ValueError) as error:
            texts[name] = str(error)
    texts["fully_shard"] = _fully_shard(rank, pair) if rank < 2 else ""
    with torch.enable_grad():
        texts["train"] = _train()
    texts["context"] = _layout_of_context(rank)
    texts["failing"] = _failing(rank, hasty)
    torch.save(texts, f"{folder}/{rank}")
    dist.barrier()
    dist.destroy_process_group()
