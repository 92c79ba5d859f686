# SPDX-License-Identifier: Apache-2.0
"""
Hostile tensors: every operator with every argument as what no kernel may read as it is. A call has
the values of the same call with a tensor that holds them, or it raises an error that names the
argument. A crash ends the whole run.
"""

import random
import re

import gdn
import gdn.torch
import pytest
import samples
import torch

NAMES = [(op, name) for op in gdn.torch.OPERATORS for name in ("default", "full")
         if hasattr(getattr(torch.ops.gdn, op), name)]


def negative(x):
    """A tensor of the values of x whose memory holds their negatives, as torch.imag() makes them of
    conjugates."""
    if not x.dtype.is_floating_point:
        return torch._neg_view(-x)
    return torch.complex(torch.zeros_like(x), -x).conj().imag


def freed(x):
    """A tensor with an offset, without storage."""
    rows = torch.cat([x.flatten(), x.flatten()])[x.numel():].view(x.shape)
    rows.untyped_storage().resize_(0)
    return rows


def of_another_dtype(x):
    return x.to(torch.float64 if x.dtype.is_floating_point else torch.int16)


REFUSED = dict(
    none=lambda x: None, meta=lambda x: x.to("meta"), freed=freed, dtype=of_another_dtype,
    complex=lambda x: x.to(torch.complex64), list=lambda x: x.tolist(), numpy=lambda x: x.numpy(),
    sparse=lambda x: x.to_sparse(), wide=lambda x: x.view(*x.shape, *[1] * 8))
SIZED = dict(empty=lambda x: x[:0], scalar=lambda x: x.flatten()[0], flat=lambda x: x.flatten(),
             long=lambda x: torch.cat([x, x]), expanded=lambda x: x[:1].expand(x.shape),
             zeros=lambda x: torch._efficientzerotensor(x.shape, dtype=x.dtype))


def operator(op, name):
    return getattr(getattr(torch.ops.gdn, op), name)


def copy(args):
    return {n: x.clone() if isinstance(x, torch.Tensor) else x for n, x in args.items()}


def arguments(op, name):
    args = {**samples.of(op, "cpu"), **(samples.more(op, "cpu") if name == "full" else {})}
    return args, [n for n, x in args.items() if isinstance(x, torch.Tensor)]


def written(op, names):
    return [n for n in names if n in gdn._OPS[op].outputs]


def equal(got, want, names):
    return all(torch.equal(got[n], want[n]) for n in names)


@pytest.mark.parametrize("op, name", NAMES)
def test_refused(op, name):
    """An argument without memory that the operator can read is refused by its name."""
    args, tensors = arguments(op, name)
    needed = {a.name for a in operator(op, name)._schema.arguments if not a.has_default_value()}
    for at in tensors:
        for kind, hostile in REFUSED.items():
            if kind == "none" and at not in needed:
                continue
            again = copy(args)
            with pytest.raises((RuntimeError, TypeError, ValueError)) as error:
                operator(op, name)(**{**again, at: hostile(again[at])})
            if kind != "sparse":  # torch names its dispatch key
                assert re.search(rf"\b{at}\b", str(error.value)), (at, kind, str(error.value))
            if kind == "meta":
                assert "on meta" in str(error.value) and "on cpu" in str(error.value)
            others = [n for n in written(op, tensors) if n != at]
            assert equal(again, args, others), (at, kind)


@pytest.mark.parametrize("op, name", NAMES)
def test_negative(op, name):
    """The negative bit, on sources and targets, changes no value."""
    args, tensors = arguments(op, name)
    want = copy(args)
    operator(op, name)(**want)
    for at in tensors:
        for make in (negative, lambda x: torch._neg_view(-x)):
            got = copy(args)
            got[at] = make(got[at])
            assert got[at].is_neg()
            operator(op, name)(**got)
            for n in written(op, tensors):
                assert torch.equal(got[n].resolve_neg(), want[n]), (at, n)


def test_drawn():
    """Two hostile tensors at once, and those of other sizes: no crash, and every text names the
    operator or an argument."""
    draw, kinds = random.Random(51), {**REFUSED, **SIZED, "negative": negative}
    refused = 0
    for _ in range(250):
        op, name = draw.choice(NAMES)
        args, tensors = arguments(op, name)
        args = copy(args)
        for at in draw.sample(tensors, min(len(tensors), draw.choice((1, 2)))):
            args[at] = kinds[draw.choice(list(kinds))](args[at])
        try:
            operator(op, name)(**args)
        except (RuntimeError, TypeError, ValueError) as error:
            named = f"gdn::{op}", "GDN_E_", "ZeroTensor", *(f"{n}: " for n in tensors)
            assert any(name in str(error) for name in named), str(error)
            refused += 1
    assert 125 < refused < 250


# ---- Functions -----------------------------------------------------------------------------------


def call(op, args, **change):
    """gdn.torch's function of the operator, which makes its outputs."""
    sizes = dict(n_key_heads="key_heads", n_value_heads="value_heads", key_head_dim="key_dim",
                 value_head_dim="value_dim")
    names = dict(gates=("g", "beta"), chunk_uw=("u", "w", "T"), chunk_states=("states",),
                 state_copy=()).get(op, ("out",))
    given = {sizes.get(n, n): x for n, x in args.items() if n not in names}
    return getattr(gdn.torch, op)(**{**given, **change})


FUNCTIONS = [op for op in gdn.torch.OPERATORS if hasattr(gdn.torch, op)]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("op", FUNCTIONS)
def test_functions_name_what_is_no_tensor(op, grad):
    args, tensors = arguments(op, "default")
    with torch.set_grad_enabled(grad):
        for at in tensors:
            if at in written(op, tensors) and at != "state":
                continue
            for hostile in ([1.0], args[at].numpy(), 1.0):
                with pytest.raises(TypeError, match=rf"^{at}: .*wanted a torch.Tensor"):
                    call(op, args, **{at: hostile})
    first = tensors[0] if op != "state_copy" else "to_pool"
    with pytest.raises(TypeError, match=f"^{first}: NoneType, wanted a torch.Tensor"):
        call(op, args, **{first: None})


def test_dimensions_are_named():
    q = torch.zeros(3, 2, 4)
    with pytest.raises(ValueError, match="^k: 1 dimensions, wanted 3 or more"):
        gdn.torch.prefill(q, q[0, 0], q[0, 0])
    with pytest.raises(ValueError, match="^cu_seqlens: 0 dimensions, wanted 1 or more"):
        gdn.torch.prefill(q, q, q, cu_seqlens=torch.tensor(3), return_state=True)


def test_the_tensor_apart_is_named():
    """If one tensor is on another device, the error names that tensor, also the first one."""
    q, k, v = torch.zeros(3, 5, 2, 4)
    for at in "qkv":
        args = dict(q=q, k=k, v=v)
        args[at] = args[at].to("meta")
        with pytest.raises(RuntimeError, match=f"prefill: {at}: on meta, but . is on cpu"):
            gdn.torch.prefill(**args, out=torch.zeros(5, 2, 4))
    with pytest.raises(RuntimeError, match="prefill: state: on meta, but q is on cpu"):
        gdn.torch.prefill(q, k, v, cu_seqlens=torch.tensor([0, 5]), return_state=True,
                          state=torch.zeros(1, 2, 4, 4, device="meta"))
    assert gdn.torch.prefill(*(x.to("meta") for x in (q, k, v))).is_meta


@pytest.mark.parametrize("grad", [False, True])
def test_weights_of_a_layer_apart(grad):
    """torch's linear() computes with a weight on meta, and returns what memory holds."""
    for name in ("in_proj_qkv", "conv1d", "out_proj"):
        layer = gdn.torch.GatedDeltaNet(32, 2, 4, 8, 16)
        getattr(layer, name).to("meta")
        with torch.set_grad_enabled(grad), pytest.raises(RuntimeError, match="on meta, but .* cpu"):
            layer(torch.randn(1, 5, 32))


def test_wanted_dtypes_are_named():
    q, slots = torch.zeros(3, 2, 4), torch.tensor([0], dtype=torch.int16)
    with pytest.raises(RuntimeError, match="cu_seqlens: int16, wanted.*I32.*I64"):
        gdn.torch.prefill(q, q, q, cu_seqlens=torch.tensor([0, 3], dtype=torch.int16))
    with pytest.raises(RuntimeError, match="to_slots: int16, wanted.*I32.*I64"):
        gdn.torch.state_copy(torch.zeros(2, 1, 4, 4), from_slots=slots.int(), to_slots=slots)
    with pytest.raises(RuntimeError, match="q: float64, wanted.*F32"):
        gdn.torch.prefill(q.double(), q, q)


# ---- Rows of no sequence -------------------------------------------------------------------------


PACKED = ["prefill", "decode", "conv1d", "step", "block", "chunk_cumsum", "chunk_uw",
          "chunk_output"]


@pytest.mark.parametrize("op", PACKED)
def test_rows_before_the_first_sequence(op):
    """Outputs that gdn.torch allocates are zero for tokens of no sequence."""
    args, tensors = arguments(op, "default")
    args = {n: x.flatten(0, 1) if n in tensors and x.shape[:2] == (samples.B, samples.T) else x
            for n, x in args.items()}
    cu = torch.tensor([4, 9, 9, 13])
    for _ in range(3):
        dirt = [torch.full((n,), float("nan")) for n in range(32, 4096, 16)]
        del dirt
        found = call(op, args, cu_seqlens=cu)
        for out in found if isinstance(found, tuple) else (found,):
            assert out[4:13].isfinite().all() and out[4:13].any()
            assert not out[:4].any() and not out[13:].any()


@pytest.mark.parametrize("op", ["prefill", "decode", "conv1d"])
def test_gradients_before_the_first_sequence(op):
    args, tensors = arguments(op, "default")
    names = [n for n in tensors if n not in ("out", "state", "read_slots")]
    args = {n: x.flatten(0, 1) if n in tensors and x.shape[:2] == (samples.B, samples.T) else x
            for n, x in args.items()}
    cu = torch.tensor([4, 9, 13])

    def gradients(first, last, cu_seqlens):
        leaves = {n: (args[n][first:last] if len(args[n]) == 15 else args[n]).clone()
                  .requires_grad_() for n in names}
        with torch.enable_grad():
            out = getattr(gdn.torch, op)(**leaves, cu_seqlens=cu_seqlens)
            out.square().sum().backward()
        return out.detach(), {n: x.grad for n, x in leaves.items()}

    out, got = gradients(0, 15, cu)
    want_out, want = gradients(4, 13, cu - 4)
    assert torch.equal(out[4:13], want_out) and not out[:4].any() and not out[13:].any()
    for n, x in got.items():
        if len(x) == 15:
            assert torch.equal(x[4:13], want[n]) and not x[:4].any() and not x[13:].any(), n
        else:
            assert (x - want[n]).abs().max() <= 1e-5 * want[n].abs().max(), n


# ---- Nothing, and gradients ----------------------------------------------------------------------


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


ROWS = [(0,), (0, 3), (2, 0)]


@pytest.mark.parametrize("lead", ROWS)
def test_backward_of_nothing(lead):
    """Without tokens, gradients of tokens are empty, those of weights zero, and those of states as
    given."""
    def check(function, *inputs, passed=()):
        with torch.enable_grad():
            out = function(*inputs)
            sum(x.sum() for x in (out if isinstance(out, tuple) else (out,))).backward()
        for x in inputs:
            want = torch.ones_like(x) if any(x is y for y in passed) else torch.zeros_like(x)
            assert torch.equal(x.grad, want)

    check(gdn.torch.l2norm, leaf(*lead, 4))
    check(gdn.torch.rmsnorm_gated, leaf(*lead, 4), leaf(*lead, 4), leaf(4))
    check(gdn.torch.gates, leaf(*lead, 2), leaf(*lead, 2), leaf(2), leaf(2))
    check(gdn.torch.conv1d, leaf(*lead, 6), leaf(6, 4), leaf(6))
    count = lead[0] if len(lead) > 1 else 1
    state, window = leaf(count, 2, 4, 4), leaf(count, 6, 3)
    check(lambda x, w, s: gdn.torch.conv1d(x, w, state=s, return_state=True), leaf(*lead, 6),
          leaf(6, 4), window, passed=[window])
    for op in (gdn.torch.prefill, gdn.torch.decode):
        check(op, *(leaf(*lead, 2, 4) for _ in "qkv"), leaf(*lead, 2), leaf(*lead, 2))
        state.grad = None
        check(lambda q, k, v, s: op(q, k, v, state=s, return_state=True),
              *(leaf(*lead, 2, 4) for _ in "qkv"), state, passed=[state])


def test_gradients_of_negatives():
    """Gradients and inputs with the negative bit."""
    def gradients(x, dout):
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(gdn.torch.l2norm(x), x, dout)[0]

    x, dout = torch.randn(2, 5, 4)
    want = gradients(x, dout)
    assert torch.equal(gradients(negative(x), dout), want)
    assert torch.equal(gradients(x, negative(dout)), want)
    q = torch.randn(5, 2, 4)

    def of_rule(q):
        q = q.detach().requires_grad_()
        with torch.enable_grad():
            gdn.torch.prefill(q, q, q, norm=gdn.NORM_L2).square().sum().backward()
        return q.grad

    assert torch.equal(of_rule(negative(q)), of_rule(q))


def test_torch_func():
    """torch.func.grad has the first derivative; the second is refused by its name."""
    x, weight = torch.randn(5, 2, 4), torch.randn(4)
    for f in (gdn.torch.l2norm, lambda y: gdn.torch.prefill(y, y, y, norm=gdn.NORM_L2)):
        y = x.clone().requires_grad_()
        with torch.enable_grad():
            (f(y) * weight).sum().backward()
            got = torch.func.grad(lambda y, f=f: (f(y) * weight).sum())(x)
            assert torch.equal(got, y.grad)
            with pytest.raises(RuntimeError, match="no second derivative"):
                torch.func.grad(lambda y, f=f: torch.func.grad(
                    lambda z: (f(z) * weight).sum())(y).sum())(x)


def test_tangents_are_refused():
    """Forward-mode differentiation would go through an operator as a tangent of zero."""
    x, t = torch.randn(2, 5, 2, 4)
    for f in (gdn.torch.l2norm, lambda y: gdn.torch.prefill(y, y, y),
              lambda y: gdn.torch.conv1d(y[0], torch.ones(4, 3))):
        with pytest.raises(RuntimeError, match="has a tangent"):
            torch.func.jvp(f, (x,), (t,))
        with torch.autograd.forward_ad.dual_level():
            with pytest.raises(RuntimeError, match="has a tangent"):
                f(torch.autograd.forward_ad.make_dual(x, t))
            f(x)


# ---- gdn.Context ---------------------------------------------------------------------------------


@pytest.fixture
def ctx():
    with gdn.Context(threads=1) as context:
        yield context


def test_context_refuses_negatives(ctx):
    x, z = torch.randn(3, 4), torch.randn(3, 4, dtype=torch.complex64).conj()
    for one in (z.imag, z.imag[:1, :1], torch.fft.ihfft(torch.randn(3, 6)).imag,
                torch._neg_view(x), torch._neg_view(x.bfloat16())):
        with pytest.raises(ValueError, match="^x: torch's negative bit"):
            ctx.l2norm(x=one, out=torch.zeros(one.shape))
    with pytest.raises(ValueError, match="^out: torch's negative bit"):
        ctx.l2norm(x=x, out=z.imag)


def test_context_names_what_has_no_memory(ctx):
    x, out = torch.randn(3, 4), torch.zeros(3, 4)
    for hostile in (x.to("meta"), freed(x)):
        with pytest.raises(ValueError, match="^x: "):
            ctx.l2norm(x=hostile, out=out)
        with pytest.raises(ValueError, match="^x: "):
            ctx.plan("l2norm", x=hostile, out=out)
    ctx.l2norm_backward(x=torch.zeros(0, 4), dout=torch.ones(1).expand(0, 4),
                        dx=torch.zeros(0, 4))


def test_a_plan_follows_memory(ctx):
    """torch may free the memory of a kept tensor, and give it new memory."""
    rows, out = torch.randn(8, 4), torch.zeros(3, 4)
    plan = ctx.plan("l2norm", x=rows[5:], out=out)
    plan()
    size = rows.untyped_storage().nbytes()
    rows.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="^x: no memory"):
        plan()
    plan(x=torch.ones(3, 4))
    assert torch.allclose(out, torch.full((3, 4), 0.5))
    hold = torch.empty(size // 4)  # noqa: F841 - takes the old place
    rows.untyped_storage().resize_(size)
    rows.normal_()
    plan()
    assert torch.allclose(out, torch.nn.functional.normalize(rows[5:]), atol=1e-6)
