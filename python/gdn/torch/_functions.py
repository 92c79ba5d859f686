# SPDX-License-Identifier: Apache-2.0
"""
The operators as functions that make what they return. Letters in shapes, as in gdn.h:

    B sequences, N tokens in all, T tokens of one sequence, Hq Hk Hv heads, H = max(Hq, Hv) state
    heads, K V head sizes, P slots of a pool, D channels, W taps

A is float32, bfloat16 or float16. [N] may be [B][T] everywhere. **options are further fields of the
op in gdn.h by their names (numbers, checkpoints, records, 8-bit scales) and of gdn_batch
(cu_seqlens, read_slots, write_slots, has_initial_state, token_start, token_count, ...). Index
tensors are int32 or int64. All tensors lie on one device. No tensor is copied or converted, but
those with torch's negative or conjugate bit are resolved first. Outputs that a function makes are
zero in rows of no sequence.

Errors are RuntimeError with the text of gdn_last_error(), which names the argument, what was found
and what was wanted; TypeError and ValueError for arguments that are no tensors or have too few
dimensions. Source: gdn.h of this version, gdn_prefill() and the others.
"""

import torch

from . import _conv_gradients, _gradients, _row_gradients
from ._autograd import needs_grad, rows
from ._named import named
from ._operators import overload
from ._vmap import spread

_POOL = "read_slots", "write_slots", "has_initial_state", "state_scales", "state_out_scales"


def _refuse_grad(op, **tensors):
    """No silent zero: the operator has no backward."""
    if torch.is_grad_enabled():
        for name, tensor in tensors.items():
            if tensor is not None and tensor.requires_grad:
                raise RuntimeError(f"{name}: requires a gradient, and gdn.torch.{op}() has no "
                                   "backward yet; call it under torch.no_grad()")


def _refuse_pool(state_out, options):
    """return_state makes one state for each sequence, not slots of a pool."""
    for name in ("state_out", *_POOL):
        if (state_out if name == "state_out" else options.get(name)) is not None:
            raise RuntimeError(f"{name}: given, and return_state=True has no place for it")


def _rule(op, q, k, v, g, beta, A_log, dt_bias, state, state_out, return_state, memory, out,
          options):
    inputs = q, k, v, g, beta, A_log, dt_bias, state, options.get("write_gate")
    if needs_grad(inputs):
        options.pop("write_gate", None)
        return _gradients.rule(op, inputs, state_out, return_state, memory, out, options)
    if return_state:
        _refuse_pool(state_out, options)
        state_out = _gradients.final_state(q, v, state, options)
    if state_out is not None:
        options["state_out"] = state_out
    if out is None:
        out = rows(q, (*q.shape[:-2], max(q.shape[-2], v.shape[-2]), v.shape[-1]), options)
    overload(op, options)(q, k, v, g, beta, A_log, dt_bias, state, out=out, **options)
    return (out, state_out) if return_state else out


@named("prefill", q=3, k=3, v=3, cu_seqlens=1)
@spread("q", "k", "v", "g", "beta", "A_log", "dt_bias", "state", "write_gate")
def prefill(q, k, v, g=None, beta=None, *, A_log=None, dt_bias=None, state=None, state_out=None,
            return_state=False, save_every=None, window_mib=None, out=None, **options):
    """
    The gated delta rule over whole sequences, in chunks.

    q [N][Hq][K], k [N][Hk][K], v [N][Hv][V]. g, beta [N][H]: log gates and write strengths, or raw
    ones with gate=gdn.GATE_RAW, beta_kind=gdn.BETA_SIGMOID, A_log and dt_bias [H]. For KDA, GDN-2
    and DeltaProduct, g and beta [N][H][K], write_gate and updates are as "The family" in gdn.h
    says. Every tensor has a dtype of its own: float32, bfloat16 or float16. On a GPU a prefill is
    fast if q, k, v and out have one dtype. state [P][H][V][K] is read and written in place
    (state_layout=gdn.STATE_KV for [K][V]), or written to state_out. q and k are normalised with
    norm=gdn.NORM_L2. scale 0 is 1 / sqrt(K). [N] without cu_seqlens is one sequence.

    Gradients flow to every tensor. Where one is needed, state [B][H][V][K] is read alone: pass
    write=gdn.WRITE_NONE, or return_state=True. Slots, checkpoints, out and state_out are then
    refused. The gradients are those of the rule in chunks whatever flags say. There is no second
    derivative. For gradients the call keeps the states after each save_every tokens (a multiple of
    64, 0: none), 4 H K V bytes each, so that backward does not walk through a long sequence twice;
    gdn_prefill_backward() in gdn_train.h says when. None: 2048, if a sequence may have more than
    8192 and the rule is Gated DeltaNet. On a GPU the workspace of backward is a window of up to
    window_mib MiB, and states between windows. None: 1536, which is one window of 32768 tokens of
    32 heads on Hopper. 0: the default of the library, 640.

    Returns out [N][H][V] of the dtype of q; with return_state=True (out, final states [B][H][V][K]
    float32), which leaves state as it is.
    """
    return _rule("prefill", q, k, v, g, beta, A_log, dt_bias, state, state_out, return_state,
                 (save_every, window_mib), out, options)


@named("decode", q=3, k=3, v=3, cu_seqlens=1)
@spread("q", "k", "v", "g", "beta", "A_log", "dt_bias", "state", "write_gate")
def decode(q, k, v, g=None, beta=None, *, A_log=None, dt_bias=None, state=None, state_out=None,
           return_state=False, save_every=0, window_mib=None, out=None, **options):
    """
    The next tokens of each sequence, one after the other. Arguments, result and gradients are those
    of prefill(). One token of each of B sequences: [B][1][Hq][K] and so on.
    """
    return _rule("decode", q, k, v, g, beta, A_log, dt_bias, state, state_out, return_state,
                 (save_every, window_mib), out, options)


@named("conv1d", x=2, weight=2, cu_seqlens=1)
@spread("x", "weight", "bias", "state")
def conv1d(x, weight, bias=None, *, state=None, state_out=None, return_state=False, out=None,
           **options):
    """
    Causal depthwise convolution over the tokens of each sequence.

    x [N][D] of dtype A, fastest with stride 1 along D; weight [D][W] or [D][1][W], W from 2 to 16;
    bias [D]. state [P][D][S], S at least W - 1, any strides: the inputs before the first token, and
    after the call the last S; written in place or to state_out. activation=gdn.ACT_SILU applies
    SiLU.

    Gradients flow to every tensor, under the conditions of prefill().

    Returns out [N][D] of dtype A; with return_state=True (out, final states [B][D][S] in the dtype
    of state), which leaves state as it is. Without a state S is W - 1 and the dtype is A.
    """
    inputs = x, weight, bias, state
    if needs_grad(inputs):
        return _conv_gradients.conv1d(inputs, state_out, return_state, out, options)
    if return_state:
        _refuse_pool(state_out, options)
        state_out = _conv_gradients.final_window(x, weight, state, options)
    if out is None:
        out = rows(x, None, options)
    if state_out is not None:
        options["state_out"] = state_out
    overload("conv1d", options)(x, weight, bias, state, out=out, **options)
    return (out, state_out) if return_state else out


@named("conv1d", x=2)
def conv1d_update(x, weight, bias=None, *, state, out=None, **options):
    """
    The next token of each of B sequences through the convolution: conv1d() of x [B][D], as
    [B][1][D], or of several tokens, x [B][T][D]. state is updated in place; read_slots [B] names
    its slots.

    Returns out, of the shape of x.
    """
    if x.dim() > 2:
        return conv1d(x, weight, bias, state=state, out=out, **options)
    result = out if out is None else out[:, None]
    return conv1d(x[:, None], weight, bias, state=state, out=result, **options)[:, 0]


@named("gates", a=0)
@spread("a", "b", "A_log", "dt_bias")
def gates(a, b, A_log, dt_bias=None, *, g=None, beta=None, **options):
    """
    The gates of the rule from their raw inputs: g = -exp(A_log) softplus(a + dt_bias) (natural
    logarithm of the decay), beta = sigmoid(b).

    a, b [...][H] float32, bfloat16 or float16; A_log, dt_bias [H]. With dt_bias [H][K] each key
    channel has a gate, a is [...][H][K]. gate=gdn.GATE_LINEAR gives exp(g),
    beta_kind=gdn.BETA_TWICE_SIGMOID twice the sigmoid, gate_lower_bound below 0 the bounded gate.

    Returns g like a and beta like b in float32; None for b None. Gradients flow to every tensor.
    """
    if needs_grad((a, b, A_log, dt_bias)):
        return _row_gradients.gates(a, b, A_log, dt_bias, g, beta, options)
    if g is None:
        g = a.new_empty(a.shape, dtype=torch.float32)
    if beta is None and b is not None:
        beta = b.new_empty(b.shape, dtype=torch.float32)
    overload("gates", options)(a, b, A_log, dt_bias, g, beta, **options)
    return g, beta


@named("l2norm")
@spread("x")
def l2norm(x, *, out=None, **options):
    """
    Rows of length 1: x / sqrt(sum x^2 + eps), eps 0 being 1e-6; norm= chooses another formula.

    x [...][D], D from 1 to 65536. Returns out, of the shape and dtype of x. A gradient flows to x.
    """
    if needs_grad((x,)):
        return _row_gradients.l2norm(x, out, options)
    if out is None:
        out = torch.empty_like(x)
    overload("l2norm", options)(x, out, **options)
    return out


@named("rmsnorm_gated")
@spread("x", "z", "weight")
def rmsnorm_gated(x, z=None, weight=None, *, out=None, **options):
    """
    x / sqrt(mean x^2 + eps) weight silu(z), eps 0 being 1e-6; activation=gdn.ACT_SIGMOID for the
    sigmoid of z. All in float32, rounded once.

    x, z [...][D], weight [D]; z None: no gate; weight None: 1. Returns out, of the shape and dtype
    of x. Gradients flow to every tensor.
    """
    if needs_grad((x, z, weight)):
        return _row_gradients.rmsnorm_gated(x, z, weight, out, options)
    if out is None:
        out = torch.empty_like(x)
    overload("rmsnorm_gated", options)(x, out, z, weight, **options)
    return out


@named("step", x=2, cu_seqlens=1)
def step(x, a, b, conv_weight, A_log, *, key_heads, value_heads, key_dim, value_dim, z=None,
         conv_bias=None, dt_bias=None, norm_weight=None, conv_state=None, state=None, out=None,
         **options):
    """
    The next tokens through all of a layer between its projections: convolution with SiLU, gates,
    norm of q and k, rule, gated RMSNorm.

    x [N][D] of dtype A, D = 2 Hk K + Hv V: channels of q, of k, of v as projected; a, b [N][Hv];
    z [N][Hv][V]; conv_weight [..][W]; A_log, dt_bias [Hv]; norm_weight [V]; conv_state [P][D][S]
    and state [P][Hv][V][K], updated in place. If conv_weight is None, x is behind the convolution,
    and conv_bias and conv_state are None too. key_heads Hk, value_heads Hv, key_dim K, value_dim V.
    [N] without cu_seqlens is one sequence. One token of each of B sequences: x [B][1][D] and so on.
    For KDA, GDN-2 and DeltaProduct a, b, dt_bias, write_gate and updates are as gdn_step() in gdn.h
    has them.

    Returns out [N][Hv][V] of dtype A.
    """
    _refuse_grad("step", x=x, a=a, b=b, conv_weight=conv_weight, A_log=A_log, z=z,
                 conv_bias=conv_bias, dt_bias=dt_bias, norm_weight=norm_weight,
                 write_gate=options.get("write_gate"))
    if out is None:
        out = rows(x, (*x.shape[:-1], value_heads, value_dim), options)
    overload("step", options)(
        x, a, b, A_log, z, conv_weight, conv_bias, dt_bias, norm_weight, conv_state, state, out=out,
        n_key_heads=key_heads, n_value_heads=value_heads, key_head_dim=key_dim,
        value_head_dim=value_dim, **options)
    return out


@named("state_copy")
def state_copy(to_pool, from_pool=None, *, from_slots=None, to_slots=None, **options):
    """
    Slots of one pool to slots of another: copy, fork, zero (from_pool None), gather; converts where
    dtypes, layouts or strides differ. A negative from-slot zeroes its target; a negative to-slot
    leaves the pair out.

    Pools [P][H][V][K] or [P][D][S]; slots [M]. Returns to_pool.
    """
    overload("state_copy", options)(to_pool, from_pool, from_slots=from_slots, to_slots=to_slots,
                                    **options)
    return to_pool
