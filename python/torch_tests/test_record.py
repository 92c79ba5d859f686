# SPDX-License-Identifier: Apache-2.0
"""gdn.torch.Record: an engine with lazy states beside one without; prompts, forks, evictions."""

import gdn
import gdn.torch
import pytest
import torch

SLOTS, HK, H, K, V, W, ROWS = 7, 2, 4, 32, 24, 4, 6
CHANNELS = 2 * HK * K + H * V


def pool(layout=gdn.STATE_VK, dtype=torch.float32):
    size = (V, K) if layout == gdn.STATE_VK else (K, V)
    return torch.zeros(SLOTS, H, *size, dtype=dtype)


def tokens(n, channels=False):
    """[n][1] of q, k, v, g and beta."""
    q, k, v = torch.randn(n, 1, HK, K), torch.randn(n, 1, HK, K), torch.randn(n, 1, H, V)
    g = -torch.rand(n, 1, H, K if channels else 1).mul(0.2)
    return q, k, v, g if channels else g[..., 0], torch.rand(n, 1, H)


def packed(rows):
    return tuple(x.flatten(0, 1) for x in rows)


def some_slots(n):
    return torch.randperm(SLOTS)[:n].int()


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("layout,channels", [(gdn.STATE_VK, False), (gdn.STATE_KV, True)])
def test_engine(layout, channels, exact):
    torch.manual_seed(3)
    lazy, plain = pool(layout), pool(layout)
    record = gdn.torch.Record(lazy, HK, ROWS, state_layout=layout, channels=channels)
    options = dict(norm=gdn.NORM_L2, flags=gdn.EXACT if exact else 0)
    most = 0
    for i in range(40):
        slots = some_slots(4)
        given = tokens(4, channels)
        if i % 5 == 4:  # a prompt of 12 tokens, of slots that may have rows
            slots, given = slots[:1], packed(tokens(12, channels))
        calls = dict(options, read_slots=slots)
        op = "decode" if i % 5 < 4 else "prefill"
        out = getattr(record, op)(*given, **calls)
        want = getattr(gdn.torch, op)(*given, state=plain, state_layout=layout, **calls)
        torch.testing.assert_close(out, want, rtol=0, atol=0 if exact else 2e-5)
        most = max(most, int(record.count.max()))
        if i % 3 == 0:
            a, b = some_slots(4).split(2)
            record.fork(a, b)
            plain[b.long()] = plain[a.long()]
        if i % 7 == 6:
            record.clear(slots[:1])
            plain[slots[:1].long()] = 0
        if i % 11 == 5:
            record.fold(slots)
            assert not record.count[slots.long()].any()
    assert 1 < most < ROWS
    record.fold()
    torch.testing.assert_close(lazy, plain, rtol=0, atol=0 if exact else 2e-5)


def test_step():
    """The bits of plain steps, where rows and states are float32 and the call is exact."""
    torch.manual_seed(4)
    lazy, plain = pool(), pool()
    record = gdn.torch.Record(lazy, HK, ROWS)
    convs = torch.zeros(2, SLOTS, CHANNELS, W - 1)
    weight, A_log = torch.randn(CHANNELS, W), torch.rand(H)
    sizes = dict(key_heads=HK, value_heads=H, key_dim=K, value_dim=V, flags=gdn.EXACT)
    for _ in range(20):
        rows = [torch.randn(3, 1, n) for n in (CHANNELS, H, H)]
        given = *rows, weight, A_log
        calls = dict(sizes, read_slots=some_slots(3))
        out = record.step(*given, conv_state=convs[0], **calls)
        want = gdn.torch.step(*given, conv_state=convs[1], state=plain, **calls)
        assert torch.equal(out, want)
    assert record.count.any() and torch.equal(*convs)
    record.fold()
    assert torch.equal(lazy, plain)


def test_dtypes():
    """States of bf16 and i8: fewer roundings, so no larger error beside float64's stand-in, f32."""
    torch.manual_seed(5)
    for dtype in torch.bfloat16, torch.int8:
        pools = [torch.zeros(SLOTS, H, V, K, dtype=x) for x in (dtype, dtype, torch.float32)]
        scales = [torch.zeros(SLOTS, H, V) if dtype == torch.int8 else None for _ in range(2)]
        record = gdn.torch.Record(pools[0], HK, 16, state_scales=scales[0])
        errors = torch.zeros(2)
        for _ in range(64):
            given = tokens(SLOTS)
            out = record.decode(*given, norm=gdn.NORM_L2)
            plain = gdn.torch.decode(*given, state=pools[1], state_scales=scales[1],
                                     norm=gdn.NORM_L2)
            want = gdn.torch.decode(*given, state=pools[2], norm=gdn.NORM_L2)
            errors += torch.stack([(x - want).square().sum() for x in (out, plain)])
        assert errors[0] < 0.5 * errors[1]


@pytest.mark.parametrize("layout", [gdn.STATE_VK, gdn.STATE_KV])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
def test_negative_slots(layout, dtype):
    """As in state_copy(): a target is left out, or has a state of zero. Other slots stay."""
    scales = torch.zeros(SLOTS, H, V) if dtype == torch.int8 else None
    record = gdn.torch.Record(pool(layout, dtype), HK, ROWS, state_scales=scales,
                              state_layout=layout)
    for _ in range(ROWS + 2):  # 2 rows beside a state that is not zero
        record.decode(*tokens(SLOTS), norm=gdn.NORM_L2)
    record.fold(torch.tensor([0]))
    before, last = record.count.clone(), record.state[-1].clone()
    record.clear(torch.tensor([-1, 2]))
    record.fork(torch.tensor([-1, 0, 1]), torch.tensor([3, -1, 4]))
    before[[2, 3]] = 0
    assert torch.equal(record.count, before) and before[-1] == 2
    assert torch.equal(record.state[-1], last) and torch.equal(record.k[4], record.k[1])
    assert not record.state[2].any() and not record.state[3].any()
    assert torch.equal(record.state[4], record.state[1]) and record.state[1].any()


def test_one_channel():
    """Gates per channel, of keys of one channel."""
    lazy, plain = torch.zeros(2, SLOTS, H, V, 1)
    record = gdn.torch.Record(lazy, HK, ROWS, channels=True)
    for _ in range(ROWS + 2):
        q, k, v, g, beta = tokens(SLOTS, channels=True)
        given = q[..., :1], k[..., :1], v, g[..., :1], beta
        want = gdn.torch.decode(*given, state=plain, norm=gdn.NORM_L2)
        torch.testing.assert_close(record.decode(*given, norm=gdn.NORM_L2), want, rtol=0, atol=2e-5)
    assert (record.count == 2).all()
    record.fold()
    torch.testing.assert_close(lazy, plain, rtol=0, atol=2e-5)


def test_slots_that_are_no_tensors():
    record, one = gdn.torch.Record(pool(), HK, ROWS), torch.tensor([1])
    for wrong in [1], 1, (1,):
        for name, call in (("slots", record.fold), ("slots", record.clear),
                           ("from_slots", lambda x: record.fork(x, one)),
                           ("to_slots", lambda x: record.fork(one, x))):
            with pytest.raises(TypeError, match=f"^{name}: {type(wrong).__name__}, wanted a torch"):
                call(wrong)
    with pytest.raises(TypeError, match="^slots: NoneType, wanted"):
        record.clear(None)
    record.count = record.count.to("meta")
    with pytest.raises(RuntimeError, match="record_count: on meta"):
        record.fold(None)


def test_refusals():
    for name, change in ("rows", dict(rows=0)), ("key_heads", dict(key_heads=0)), \
            ("state", dict(state=pool()[0])):
        with pytest.raises(ValueError, match=f"{name}: "):
            gdn.torch.Record(**dict(dict(state=pool(), key_heads=HK), **change))
    for name, change in ("rows", dict(rows="16")), ("key_heads", dict(key_heads=2.0)):
        with pytest.raises(ValueError, match=f"^{name}: "):
            gdn.torch.Record(**dict(dict(state=pool(), key_heads=HK), **change))
    for name, change in ("state", dict(state=[1])), ("state_scales", dict(state_scales=[1])):
        with pytest.raises(TypeError, match=f"^{name}: list, wanted a torch.Tensor"):
            gdn.torch.Record(**dict(dict(state=pool(), key_heads=HK), **change))
    record = gdn.torch.Record(pool(), HK, ROWS)
    given = tokens(SLOTS)
    with pytest.raises(RuntimeError, match="write_slots"):
        record.decode(*given, read_slots=some_slots(SLOTS), write_slots=some_slots(SLOTS))
    record.count.fill_(ROWS + 1)
    with pytest.raises(RuntimeError, match="record_count"):
        record.decode(*given)
