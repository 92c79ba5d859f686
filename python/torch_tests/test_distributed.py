# SPDX-License-Identifier: Apache-2.0
"""gdn.torch.distributed: layouts, and every rank's part against one device."""

import copy

import gdn
import gdn.torch
import parallel
import pytest
import ranks
import torch
from gdn.torch import distributed
from parallel import CU, compare, conv_case, rule_case

SPLITS = [(1, {}), (2, {}), (3, dict(lengths=[20, 0, 27])), (4, {}), (8, {}),
          (3, dict(split="zigzag")), (2, dict(ranges=[[(40, 47), (0, 16)], [(16, 17), (17, 40)]]))]
SHORT = 6, dict(lengths=[6, 1, 1, 0, 2, 37])  # ranges shorter than the taps


# ---- Layouts -------------------------------------------------------------------------------------


def test_a_layout():
    def call(group):
        layout = distributed.Layout(CU, group, split="zigzag")
        return layout.ranges, layout.begins, layout.ends, layout.cu_seqlens().tolist()

    assert ranks.run(2, call) == [
        ([(0, 11), (35, 47)], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [0, 5, 5, 11, 16, 23, 23]),
        ([(11, 23), (23, 35)], [], [], [0, 12, 24])]


def test_layouts_that_disagree():
    """Every rank raises if any rank has other lengths or cannot make its layout."""
    def attempt(group, *cuts):
        try:
            distributed.Layout(cuts[group.rank], group)
        except ValueError as error:
            return str(error)

    assert all("differ" in text for text in ranks.run(3, lambda g: attempt(g, CU, CU, (0, 47))))
    texts = ranks.run(2, lambda g: attempt(g, (0, 5), (0, 5, 3)))
    assert "rank 1 could not make it" in texts[0] and "cu_seqlens: begins with" in texts[1]


@pytest.mark.parametrize("wrong, match", [
    (dict(split="ring"), "split"), (dict(lengths=[47]), "of 1 ranks"),
    (dict(lengths=[20, 20]), "40 tokens"), (dict(ranges=[[(0, 20)], [(21, 47)]]), "follows 20")])
def test_layouts_that_cannot_be(wrong, match):
    with pytest.raises(ValueError, match=match):
        ranks.run(2, lambda group: distributed.Layout(CU, group, **wrong))


# ---- Ranks as threads ----------------------------------------------------------------------------


@pytest.mark.parametrize("size, split", SPLITS)
@pytest.mark.parametrize("gates", ["raw", "strong", "-inf"])
def test_prefill(size, split, gates):
    case = rule_case(gates)
    ranks.run(size, lambda group: compare(case, group, **split))


@pytest.mark.parametrize("size, split", [*SPLITS[1:], SHORT])
@pytest.mark.parametrize("length", [3, 5])
def test_conv1d(size, split, length):
    case = conv_case(length)
    ranks.run(size, lambda group: compare(case, group, **split))


@pytest.mark.parametrize("layout", ["qwen3_5", "qwen3_next"])
def test_layer(layout):
    """A whole layer has the outputs and gradients of one device, those of weights as sums."""
    torch.manual_seed(1)
    layer = gdn.torch.GatedDeltaNet(16, 2, 4, 16, 8, layout=layout)
    x, weight = torch.randn(2, 47, 16)

    def call(x, weight, **batch):
        with torch.enable_grad():
            x = x.clone().requires_grad_()
            out = layer(x[None], **batch)
            return out.detach()[0], *torch.autograd.grad((out * weight).sum(),
                                                         [x, *layer.parameters()])

    def on_rank(group):
        layout = distributed.Layout(CU, group, split="zigzag")
        return layout, call(layout.local(x), layout.local(weight), token_layout=layout)

    want = call(x, weight, cu_seqlens=torch.tensor(CU))
    parts = ranks.run(3, on_rank)
    for layout, (out, dx, *_) in parts:
        torch.testing.assert_close(out, layout.local(want[0]), atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(dx, layout.local(want[1]), atol=1e-6, rtol=1e-5)
    for i, whole in enumerate(want[2:], 2):
        total = sum(results[i] for _, results in parts)
        assert (total - whole).abs().max() <= 1e-5 * whole.abs().max()


def test_options():
    """Rows [1][N] of bfloat16, states [K][V], heads that alternate, no initial states: the values
    of one device to the rounding of bfloat16."""
    a = {name: torch.randn(1, 47, heads, 16).bfloat16() for name, heads in zip("qkv", (2, 2, 4))}
    options = dict(g=-torch.rand(1, 47, 4), beta=torch.rand(1, 47, 4), norm=gdn.NORM_L2,
                   state_layout=gdn.STATE_KV, head_map=gdn.HEADS_INTERLEAVED)
    want, last = gdn.torch.prefill(**{n: x[0] for n, x in {**a, **options}.items()
                                      if torch.is_tensor(x)},
                                   **{n: x for n, x in options.items() if n not in ("g", "beta")},
                                   cu_seqlens=torch.tensor(CU), return_state=True)

    def call(group):
        layout = distributed.Layout(CU, group)
        mine = {n: layout.local(x, 1) if torch.is_tensor(x) else x
                for n, x in {**a, **options}.items()}
        got, final = distributed.prefill(**mine, layout=layout, return_state=True)
        assert torch.equal(distributed.prefill(**mine, layout=layout), got)
        assert got.dtype == torch.bfloat16 and got.shape[0] == 1
        assert len(group.bytes) == 3 and group.bytes[1] == 4 * 4 * 16 * (16 + 16)
        torch.testing.assert_close(got[0], layout.local(want), atol=1e-2, rtol=1e-2)
        torch.testing.assert_close(final, last[layout.ends], atol=1e-5, rtol=1e-5)

    ranks.run(3, call)


def test_mistakes():
    layout = ranks.run(1, lambda group: distributed.Layout((0, 4), group))[0]
    x, state = torch.randn(4, 2, 16), torch.zeros(2, 2, 16, 16)
    with pytest.raises(ValueError, match="q: 3 tokens, but the layout has 4"):
        distributed.prefill(x[:3], x[:3], x[:3], layout=layout)
    with pytest.raises(ValueError, match="state: of 2 sequences, but 1 begin"):
        distributed.prefill(x, x, x, layout=layout, state=state)
    with pytest.raises(RuntimeError, match="token_count: .*distributed.prefill"):
        distributed.prefill(x, x, x, layout=layout, token_count=torch.tensor([3]))
    with pytest.raises(ValueError, match="x: 3 tokens, but the layout has 4"):
        distributed.conv1d(torch.randn(3, 6), torch.randn(6, 4), layout=layout)


# ---- Heads ---------------------------------------------------------------------------------------


def copies_of(layer, n):
    """Returns a copy for each rank: threads may block each other if autograd graphs share a
    parameter."""
    return [copy.deepcopy(layer) for _ in range(n)]


@pytest.mark.parametrize("size, heads, layout", [
    (2, (2, 4), "qwen3_next"), (3, (2, 4), "qwen3_5"), (4, (2, 4), "qwen3_5"),
    (2, (3, 9), "qwen3_next"), (8, (1, 8), "qwen3_5")])
def test_heads(size, heads, layout):
    """Shares have the outputs and gradients of the whole layer, and its inference."""
    torch.manual_seed(1)
    layer, like = (gdn.torch.GatedDeltaNet(16, *heads, 8, 16, layout=layout) for _ in range(2))
    x, weight = torch.randn(2, 2, 9, 16)

    def call(layer):
        with torch.enable_grad():
            y = x.clone().requires_grad_()
            out = layer(y)
            found = torch.autograd.grad((out * weight).sum(), [y, *layer.parameters()])
        return [out.detach(), *found]

    want = call(layer)
    for p, gradient in zip(like.parameters(), want[2:]):
        p.copy_(gradient)
    whole = dict(like.named_parameters())
    layers, likes = copies_of(layer, size), copies_of(like, size)

    def on_rank(group):
        share = gdn.torch.HeadShare(layers.pop(), group)
        got = call(share)
        assert all(map(torch.equal, got, call(share)))
        expected = dict(out=want[0], x=want[1],
                        **dict(gdn.torch.HeadShare(likes.pop(), group).named_parameters()))
        for y, (name, z) in zip(got, expected.items()):
            largest = whole.get(name, z).abs().max()  # of all heads, if they have one layout
            assert (y - z).abs().max() <= 1e-5 * largest, name
        with torch.no_grad():
            torch.testing.assert_close(share(x), want[0], atol=1e-5, rtol=1e-5)

    ranks.run(size, on_rank)


@pytest.mark.parametrize("size", [2, 3])
def test_hooks_of_shares(size):
    """Hooks of a share's children fire, and gradients of key heads are those without hooks."""
    layers = copies_of(gdn.torch.GatedDeltaNet(16, 2, 4, 8, 16), size)
    x = torch.randn(2, 9, 16)

    def call(share):
        out = share(x)
        return torch.autograd.grad(out.square().sum(), list(share.parameters()))

    def on_rank(group):
        share, seen = gdn.torch.HeadShare(layers.pop(), group), []
        want = call(share)
        for name, child in share.named_children():
            child.register_forward_hook(lambda *_, name=name: seen.append(name))
        assert all(map(torch.equal, call(share), want))
        assert sorted(seen) == sorted(name for name, _ in share.named_children())

    ranks.run(size, on_rank)


def test_what_shares_refuse():
    """Children of the whole layer that are more than their weight, and adapters of a share on
    weights whose gradients are added up."""
    layer = gdn.torch.GatedDeltaNet(16, 2, 4, 8, 16)
    layer.out_proj.register_forward_hook(lambda *_: None)
    with pytest.raises(TypeError, match="layer: out_proj: .*wanted plain weights"):
        ranks.run(1, lambda group: gdn.torch.HeadShare(layer, group))
    for name in ("in_proj_qkv", "conv1d", "norm"):
        layers = copies_of(gdn.torch.GatedDeltaNet(16, 2, 4, 8, 16), 3)
        share = ranks.run(3, lambda group: gdn.torch.HeadShare(layers.pop(), group))[0]
        child = getattr(share, name)
        child.bias = torch.nn.Parameter(torch.zeros(child.weight.shape[0]))
        with torch.enable_grad(), pytest.raises(TypeError, match=f"{name}: .*no other parameters"):
            share(torch.randn(1, 4, 16))


def test_heads_and_tokens():
    """Both over ranks: two ranks have the heads of a token, three the tokens of a head."""
    torch.manual_seed(1)
    layer = gdn.torch.GatedDeltaNet(16, 2, 4, 8, 16)
    x, weight = torch.randn(2, 47, 16)

    def call(layer, x, weight, **batch):
        with torch.enable_grad():
            y = x.clone().requires_grad_()
            out = layer(y[None], **batch)
            return out.detach()[0], torch.autograd.grad((out * weight).sum(), y)[0]

    def on_rank(heads, tokens):
        layout = distributed.Layout(CU, tokens)
        got = call(gdn.torch.HeadShare(layers.pop(), heads), layout.local(x), layout.local(weight),
                   token_layout=layout)
        for y, z in zip(got, want):
            assert (y - layout.local(z)).abs().max() <= 1e-5 * z.abs().max()

    want = call(layer, x, weight, cu_seqlens=torch.tensor(CU))
    layers = copies_of(layer, 6)
    ranks.grid(3, 2, on_rank)


def test_more_ranks_than_value_heads():
    layer = gdn.torch.GatedDeltaNet(16, 1, 2, 8, 8)
    with pytest.raises(ValueError, match="3 ranks, but the layer has 2 value heads"):
        ranks.run(3, lambda group: gdn.torch.HeadShare(layer, group))


# ---- Processes -----------------------------------------------------------------------------------

CASES = ["prefill of 2", "prefill of 3", "zigzag of 2", "conv1d of 3"]


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """Starts three processes of gloo, this one being the first. Returns their results."""
    folder = tmp_path_factory.mktemp("processes")
    torch.manual_seed(0)
    cases = dict(zip(CASES, [
        (rule_case("raw"), True, {}), (rule_case("-inf"), False, dict(lengths=[20, 1, 26])),
        (rule_case("strong"), True, dict(split="zigzag")),
        (conv_case(3), False, dict(lengths=[6, 2, 39]))]))
    torch.save(cases, folder / "cases")
    others = [torch.multiprocessing.get_context("spawn").Process(
        target=parallel.process, args=(rank, str(folder))) for rank in (1, 2)]
    for other in others:
        other.start()
    parallel.process(0, str(folder))
    for other in others:
        other.join()
    return [torch.load(folder / str(rank)) for rank in range(3)]


@pytest.mark.parametrize("case", [*CASES, "train", "context", "fully_shard"])
def test_processes(processes, case):
    assert [texts.get(case, "") for texts in processes] == ["", "", ""]


def test_a_rank_that_fails(processes):
    """The others have an error, too, and do not hang."""
    assert all(texts["failing"] for texts in processes)
