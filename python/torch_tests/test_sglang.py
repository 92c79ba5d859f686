# SPDX-License-Identifier: Apache-2.0
"""gdn.sglang against the rule in float64, and in a stand-in for SGLang's dispatcher and hooks."""

import enum

import pytest
import torch
from samples import B, HV, K, P, T, V, kda_rule, raw_rule, reference, rule, stand_in

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


RULES = {"gdn": raw_rule, "kda": kda_rule, "bounded": lambda lead: kda_rule(lead, -5.0)}


@pytest.fixture(params=RULES)
def drawn(request):
    """The raw rule of given leading sizes as SGLang passes it, and what reference() takes of it."""

    def draw(lead):
        a, exact = RULES[request.param](lead)
        if request.param != "gdn":  # as Kimi-Linear has them
            a.update(A_log=a["A_log"].view(1, 1, HV, 1), a=a["a"].flatten(-2))
        if request.param == "bounded":
            a["lower_bound"] = -5.0
        return a, exact

    return draw


def of_tokens(a):
    """Gates of packed tokens: a [N, ..], b [1, N, HV]."""
    return {n: x.flatten(0, 1)[None] if n in ("q", "k", "v", "b") else
            x.flatten(0, 1) if n == "a" else x for n, x in a.items()}


def test_decode(drawn):
    a, exact = drawn((B, T))
    pool = torch.randn(P, HV, V, K)
    before, (out, final) = pool.clone(), reference(**exact, state=pool[SLOTS.long()])
    o = ours.decode(**of_tokens(a), ssm_states=pool, cache_indices=SLOTS, query_start_loc=CU,
                    layer_id=1)
    verified(o, out)
    before[SLOTS[LIVE].long()] = final[LIVE].float()
    close(pool, before)


def test_packed_decode(drawn):
    a, exact = drawn((B,))
    exact = {n: x[:, None] for n, x in exact.items()}
    pool = torch.randn(P, HV, V, K)
    before, (out, final) = pool.clone(), reference(**exact, state=pool[SLOTS.long()])
    row = torch.cat([a.pop(n).flatten(1) for n in "qkv"], 1)
    more = dict(scale=K ** -0.5, ssm_states=pool, cache_indices=SLOTS, num_v_heads=HV,
                head_v_dim=V)
    verified(ours.packed_decode(row, **dict(a, b=a["b"][None]), **more), out)
    before[SLOTS[LIVE].long()] = final[LIVE].float()
    close(pool, before)
    with pytest.raises(NotImplementedError, match="ReplaySSM"):
        ours.packed_decode(row, **a, **more, replayssm_d=pool)
    for name, size in (("dt_bias", HV + 1), ("a", 3), ("b", 3)):
        with pytest.raises(ValueError, match=rf"^{name}: \[{size}\], wanted"):
            ours.packed_decode(row, **{**a, name: torch.zeros(size)}, **more)


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


@pytest.mark.parametrize("bound", [None, -5.0])
@pytest.mark.parametrize("is_raw", [False, True])
def test_extend_kda(is_raw, bound):
    """Prompts of which some keep the state after 64 or 128 tokens; one has no slot."""
    lengths, chunks, slots = (130, 64, 70, 3), (2, -1, 1, -1), (3, 1, 5, -1)
    a, exact = kda_rule((1, sum(lengths)), bound)
    more = dict(g=exact["g"].float(), beta=exact["beta"].float())
    if is_raw:
        more = dict(g=a["a"], beta=a["b"], A_log=a["A_log"].view(1, 1, HV, 1), lower_bound=bound,
                    dt_bias=a["dt_bias"], beta_is_raw=True)
    pool, kept = torch.randn(P, HV, V, K), torch.full((4, HV, V, K), 7.0)
    before, cu = pool.clone(), torch.tensor([0, *lengths]).cumsum(0)
    more.update(ssm_states=pool, cache_indices=torch.tensor(slots), query_start_loc=cu,
                layer_id=1, **{n: a[n] for n in "qkv"})
    o = ours.extend_kda(**more)
    pool.copy_(before)
    again, h = ours.extend_kda(**more, return_intermediate_states=True, track_state=kept,
                               track_chunk_idx=torch.tensor(chunks, dtype=torch.int32))
    assert h is None and torch.equal(o, again)
    for s, (slot, chunk) in enumerate(zip(slots, chunks)):
        part = {n: x[:, cu[s]:cu[s + 1]] for n, x in exact.items()}
        if slot < 0:
            assert not o[0, cu[s]:].any()
            continue
        out, final = reference(**part, state=before[slot:slot + 1])
        close(o[0, cu[s]:cu[s + 1]], out[0])
        close(pool[slot], final[0])
        if chunk > 0:
            early = {n: x[:, :64 * chunk] for n, x in part.items()}
            close(kept[s], reference(**early, state=before[slot:slot + 1])[1][0])
    assert (kept[[1, 3]] == 7).all()


@pytest.mark.parametrize("is_tree", [False, True])
def test_target_verify(is_tree, drawn):
    a, exact = drawn((B, T))
    parents = [-1, 0, 0, 1, 2] if is_tree else [-1, 0, 1, 2, 3]
    pool, rows = torch.randn(P, HV, V, K), torch.tensor([2, 1, 0])
    before = pool.clone()
    # Rows with room for more drafts than there are.
    buffer = torch.zeros(B, T + 2, HV, V, K)[:, :T]
    more = dict(retrieve_parent_token=torch.tensor([[7, *parents[1:], 9]] * B)) if is_tree else {}
    o = ours.target_verify(**of_tokens(a), ssm_states=pool, cache_indices=SLOTS,
                           query_start_loc=CU, cache_steps=T, intermediate_states_buffer=buffer,
                           intermediate_state_indices=rows, **more)
    assert torch.equal(pool, before)
    out, states = verifying(exact, pool[SLOTS.long()], parents)
    verified(o, out)
    for row in LIVE:
        close(buffer[rows[row]], states[row])
    assert not buffer[rows[1]].any()
    with pytest.raises(NotImplementedError, match="ReplaySSM"):
        ours.target_verify(**of_tokens(a), ssm_states=pool, cache_indices=SLOTS,
                           query_start_loc=CU, cache_ring=True)


def verifying(exact, state, parents):
    """out, and the states after every token [B, T, HV, V, K]."""
    outs, states = [], []
    for t, parent in enumerate(parents):
        token = {n: x[:, t:t + 1] for n, x in exact.items()}
        out, after = reference(**token, state=states[parent] if t else state)
        outs.append(out)
        states.append(after)
    return torch.cat(outs, 1), torch.stack(states, 1)


def test_ragged_drafts(drawn):
    """Sequences of 2, 1 and 2 drafts, and two rows behind the last one."""
    a, exact = drawn((1, 7))
    cu, pool = torch.tensor([0, 2, 3, 5], dtype=torch.int32), torch.randn(P, HV, V, K)
    buffer = torch.full((B, 4, HV, V, K), 7.0)
    o = ours.target_verify(**of_tokens(a), ssm_states=pool, cache_indices=SLOTS,
                           query_start_loc=cu, cache_steps=4, intermediate_states_buffer=buffer,
                           intermediate_state_indices=torch.tensor([2, -1, 0]))
    for row, into in ((0, 2), (2, 0)):
        part = {n: x[:, cu[row]:cu[row + 1]] for n, x in exact.items()}
        out, states = verifying(part, pool[SLOTS[row:row + 1].long()], [-1, 0])
        close(o[:, cu[row]:cu[row + 1]], out)
        close(buffer[into, :2], states[0])
        assert (buffer[into, 2:] == 7).all()
    assert (buffer[1] == 7).all() and not o[0, 2].any() and not o[0, 5:].any()


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
    assert names == ["triton", "gdn"] and len(found) == 2
    (target, hook, _), (kda_target, kda_hook, _) = found
    assert target.endswith("GDNKernelDispatcher.__init__")
    assert kda_target.endswith("KDAKernelDispatcher.__init__")

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

    def kda_constructor(self, decode_backend, prefill_backend, verify_backend):
        constructor(self, decode_backend, prefill_backend, verify_backend)
        self.supports_packed_decode_safe_gate = False

    for chosen in ((Backend.CUSTOM,) * 3, (Backend.TRITON,) * 3):
        it, is_ours = Dispatcher(), chosen[0] is Backend.CUSTOM
        kda_hook(kda_constructor, it, *chosen)
        for made in it.decode_kernel, it.extend_kernel, it.verify_kernel:
            assert (type(made).__name__ == "KdaKernel") is is_ours
        assert it.supports_packed_decode is it.supports_packed_decode_safe_gate is is_ours
        assert not is_ours or (made.supports_track_state_snapshot and made.supports_safe_gate_verify
                               and made.extend is ours.extend_kda)
        assert it.tree_verify_kernel == "triton"  # GDN's alone
    with pytest.raises(ImportError, match="gdn takes"):
        kda_hook(lambda self, backends: None, Dispatcher(), *[Backend.CUSTOM] * 3)
