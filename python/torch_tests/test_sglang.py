# SPDX-License-Identifier: Apache-2.0
"""gdn.sglang against the rule in float64, and in a stand-in for SGLang's dispatcher and hooks."""

import enum

import pytest
import torch
from samples import B, HV, K, P, T, V, raw_rule, reference, rule, stand_in

import gdn.sglang as ours

CU = torch.arange(B + 1, dtype=torch.int32) * T
SLOTS, LIVE = torch.tensor([4, -1, 0], dtype=torch.int32), [0, 2]


def close(got, wanted, limit=2e-5):
    torch.testing.assert_close(got.double(), wanted.double(), atol=limit, rtol=limit)


def packed(a):
    return {n: x.flatten(0, 1)[None] if x.dim() > 2 else x for n, x in a.items()}


def verified(out, rows):
    """out [1, B T, ..] is that of the live rows, and zero for padding."""
    got = out[0].unflatten(0, (B, -1))
    close(got[LIVE], rows[LIVE])
    assert not got[1].any()


def test_decode():
    a, exact = raw_rule((B, T))
    pool = torch.randn(P, HV, V, K)
    before, (out, final) = pool.clone(), reference(**exact, state=pool[SLOTS.long()])
    a = packed(a)
    o = ours.decode(**dict(a, a=a["a"][0], b=a["b"][0]), ssm_states=pool, cache_indices=SLOTS,
                    query_start_loc=CU, layer_id=1)
    verified(o, out)
    before[SLOTS[LIVE].long()] = final[LIVE].float()
    close(pool, before)


def test_packed_decode():
    a, exact = raw_rule((B,))
    exact = {n: x[:, None] for n, x in exact.items()}
    pool = torch.randn(P, HV, V, K)
    before, (out, final) = pool.clone(), reference(**exact, state=pool[SLOTS.long()])
    row = torch.cat([a.pop(n).flatten(1) for n in "qkv"], 1)
    more = dict(scale=K ** -0.5, ssm_states=pool, cache_indices=SLOTS, num_v_heads=HV,
                head_v_dim=V)
    verified(ours.packed_decode(row, **a, **more), out)
    before[SLOTS[LIVE].long()] = final[LIVE].float()
    close(pool, before)
    with pytest.raises(NotImplementedError, match="ReplaySSM"):
        ours.packed_decode(row, **a, **more, replayssm_d=pool)


def test_extend():
    lengths, every = (130, 64), 64
    a = rule("cpu", lead=(1, sum(lengths)))
    target, cu, slots = a.pop("out"), torch.tensor([0, 130, 194]), torch.tensor([3, 1])
    pool = torch.randn(P, HV, V, K)
    before = pool.clone()
    more = dict(ssm_states=pool, cache_indices=slots, query_start_loc=cu)
    o, last, h = ours.extend(**a, **more, inplace_update=False)
    assert last is None and h is None and torch.equal(pool, before)
    o, last, h = ours.extend(**a, **more, output=target, num_state_checkpoints=3,
                             state_checkpoint_every_n_tokens=every)
    assert last is None and h.shape == (1, 3, HV, V, K)
    assert o.data_ptr() == target.data_ptr()
    unit = {n: torch.nn.functional.normalize(x.double(), dim=-1) if n in "qk" else x
            for n, x in a.items()}
    for slot, first, n, kept in [(3, 0, 130, {64: 0, 128: 1}), (1, 130, 64, {64: 2})]:
        for length in (*kept, n):
            part = {name: x[:, first:first + length] for name, x in unit.items()}
            out, final = reference(**part, state=before[slot:slot + 1])
            if length in kept:
                close(h[0, kept[length]], final[0])
        close(o[0, first:first + n], out[0])
        close(pool[slot], final[0])


@pytest.mark.parametrize("is_tree", [False, True])
def test_target_verify(is_tree):
    a, exact = raw_rule((B, T))
    parents = [-1, 0, 0, 1, 2] if is_tree else [-1, 0, 1, 2, 3]
    pool, rows = torch.randn(P, HV, V, K), torch.tensor([2, 1, 0])
    before = pool.clone()
    # Rows with room for more drafts than there are.
    buffer = torch.zeros(B, T + 2, HV, V, K)[:, :T]
    more = dict(retrieve_parent_token=torch.tensor([[7, *parents[1:], 9]] * B)) if is_tree else {}
    a = packed(a)
    o = ours.target_verify(**dict(a, a=a["a"][0], b=a["b"][0]), ssm_states=pool,
                           cache_indices=SLOTS, query_start_loc=CU, cache_steps=T,
                           intermediate_states_buffer=buffer, intermediate_state_indices=rows,
                           **more)
    assert torch.equal(pool, before)
    outs, states = [], []
    for t, parent in enumerate(parents):
        token = {n: x[:, t:t + 1] for n, x in exact.items()}
        state = states[parent] if t else pool[SLOTS.long()]
        out, after = reference(**token, state=state)
        outs.append(out)
        states.append(after)
    verified(o, torch.cat(outs, 1))
    for row in LIVE:
        close(buffer[rows[row]], torch.stack(states, 1)[row])
    assert not buffer[rows[1]].any()


def test_registered(monkeypatch):
    names = ("sglang.srt.arg_groups.choices", "sglang.srt.plugins.hook_registry",
             "sglang.srt.layers.attention.linear.kernels.kernel_backend",
             "sglang.srt.layers.attention.linear.utils")
    choices, hooks, base, backends = stand_in(monkeypatch, names)
    choices.LINEAR_ATTN_KERNEL_BACKEND_CHOICES = names = ["triton"]
    choices.add_linear_attn_kernel_backend_choices = names.extend
    found = []
    hooks.HookType = enum.Enum("HookType", "AROUND")
    hooks.HookRegistry = type("HookRegistry", (), dict(
        register=staticmethod(lambda *args: found.append(args))))
    base.LinearAttnKernelBase = type("LinearAttnKernelBase", (), dict(supports_packed_decode=False))
    Backend = backends.LinearAttnKernelBackend = enum.Enum("Backend", "TRITON FLASHINFER CUSTOM")

    from gdn import _plugins

    _plugins.sglang()
    _plugins.sglang()
    assert names == ["triton", "gdn"] and len(found) == 1
    target, hook, _ = found[0]
    assert target.endswith("GDNKernelDispatcher.__init__")

    class Dispatcher:
        pass

    def constructor(self, decode_backend, prefill_backend, verify_backend=None):
        assert Backend.CUSTOM not in (decode_backend, prefill_backend, verify_backend)
        self.decode_kernel = self.extend_kernel = self.verify_kernel = "triton"
        self.tree_verify_kernel, self.supports_packed_decode = "triton", False
        self.verify_kernel_is_flashinfer = True

    def made(*backends):
        it = Dispatcher()
        hook(constructor, it, *backends)
        return [x if isinstance(x, str) else type(x).__name__
                for x in (it.decode_kernel, it.extend_kernel, it.verify_kernel)], it

    kernels, it = made(Backend.CUSTOM, Backend.CUSTOM)
    assert kernels == ["GdnKernel"] * 3 and it.supports_packed_decode
    assert it.extend_kernel.uses_state_checkpoints and not it.verify_kernel_is_flashinfer
    kernels, it = made(Backend.TRITON, Backend.CUSTOM, Backend.TRITON)
    assert kernels == ["triton", "GdnKernel", "triton"] and not it.supports_packed_decode
    assert made(Backend.FLASHINFER, Backend.TRITON)[0] == ["triton"] * 3
    with pytest.raises(ImportError, match="gdn takes"):
        hook(lambda self, backends: None, Dispatcher(), Backend.CUSTOM, Backend.CUSTOM)
