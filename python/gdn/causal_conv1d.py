# SPDX-License-Identifier: Apache-2.0
"""
The convolution under the names and signatures of the package causal_conv1d (1.5 to 1.7).

    from gdn.causal_conv1d import causal_conv1d_fn, causal_conv1d_update

Where causal_conv1d is importable, importing this module compares the signatures and raises
ImportError with one line if they differ. install() puts the functions into its place.

Gradients flow through causal_conv1d_fn() to every tensor. causal_conv1d_update(), which writes its
state in place, raises NotImplementedError for a tensor that requires one, unless gradients are off.
"""

import torch

import gdn
import gdn.torch
from gdn.torch._named import renamed

from . import _drop_in, _stand_in


def activation_of(activation):
    """The number of libgdn for an activation of the package."""
    if activation not in (None, "silu", "swish"):
        raise NotImplementedError("activation must be None, silu, or swish")
    return gdn.ACT_NONE if activation is None else gdn.ACT_SILU


def _check(x, weight, bias, seq_idx, initial_states, final_states_out):
    _drop_in.wanted(x=x, weight=weight)
    _drop_in.optional(bias=bias, seq_idx=seq_idx, initial_states=initial_states,
                      final_states_out=final_states_out)
    _drop_in.dimensions(x=(x, 3))
    B, D, T = x.shape
    states = [B, D, weight.shape[-1] - 1]
    if seq_idx is not None:
        _drop_in.same_tokens(seq_idx, (B, T), x.device)
    for name, given, shape in (("initial_states", initial_states, states),
                               ("final_states_out", final_states_out, states)):
        if given is not None and list(given.shape) != shape:
            raise ValueError(f"{name}: {list(given.shape)}, wanted {shape}")


def _past(rows, ids, first, T, taps):
    """
    The states [S, D, W - 1] of runs that begin at tokens first [S], or None if all are zero: tokens
    of the same number before it, where another number came between. rows [N, D], ids [N]; T tokens
    a row.
    """
    place = first[:, None] + torch.arange(1 - taps, 0, device=ids.device)
    is_inside = place >= (first - first % T)[:, None]
    place = place.clamp(min=0)
    is_same = is_inside & (ids[place] == ids[first, None])
    if not torch.compiler.is_compiling() and not is_same.any():
        return None
    return rows[place].masked_fill(~is_same[..., None], 0).transpose(1, 2)


def _packed(x, weight, bias, seq_idx, act):
    """The convolution cut by seq_idx. Tokens of negative numbers count for nothing."""
    rows, ids = x.transpose(1, 2).flatten(0, 1), seq_idx.flatten()
    cu_seqlens = gdn.torch.cu_seqlens_of(seq_idx)
    first = cu_seqlens[:-1].long()
    count = cu_seqlens.diff() * (ids[first] >= 0)
    options = dict(activation=act, cu_seqlens=cu_seqlens, token_count=count)
    state = _past(rows, ids, first, x.shape[-1], weight.shape[-1])
    if state is not None:
        options.update(state=state, write=gdn.WRITE_NONE)
    out = gdn.torch.conv1d(rows, weight, bias, **options)
    return out.unflatten(0, seq_idx.shape).transpose(1, 2)


def causal_conv1d_fn(x, weight, bias=None, seq_idx=None, initial_states=None,
                     return_final_states=False, final_states_out=None, activation=None):
    """
    Causal depthwise convolution of whole sequences.

    x [B, D, T], weight [D, W], bias [D] of float32, bfloat16 or float16. seq_idx [B, T]: the number
    of the sequence of each token, for packed rows; a negative number is padding, whose output is
    zero. A number that comes back within W - 1 tokens goes on with its own tokens, as in the
    package. initial_states [B, D, W - 1] is read only. final_states_out [B, D, W - 1] is written if
    return_final_states is true. activation: None, "silu" or "swish".

    Returns out [B, D, T] in the order of the memory of x; with return_final_states, (out, final
    states) in the dtype of x.

    With seq_idx, x is copied if its rows do not lie one behind the other, and on a GPU the call
    waits for the device.

    Raises NotImplementedError for another activation, for seq_idx with initial_states (which 1.7
    has) or return_final_states; TypeError and ValueError that name an argument of another kind or
    shape; RuntimeError for what else libgdn refuses.
    """
    act = activation_of(activation)
    _check(x, weight, bias, seq_idx, initial_states, final_states_out)
    if seq_idx is not None and (initial_states is not None or return_final_states):
        raise NotImplementedError("gdn.causal_conv1d: seq_idx with initial_states or "
                                  "return_final_states is not supported")
    if seq_idx is not None:
        return _packed(x, weight, bias, seq_idx, act)
    rows, options = x.transpose(1, 2), dict(activation=act)
    if initial_states is not None and not return_final_states:
        options["write"] = gdn.WRITE_NONE
    found = gdn.torch.conv1d(rows, weight, bias, state=initial_states,
                             return_state=return_final_states, **options)
    if not return_final_states:
        return found.transpose(1, 2)
    out, final = found
    final = final.to(x.dtype) if final_states_out is None else final_states_out.copy_(final)
    return out.transpose(1, 2), final


@renamed(state="conv_state", read_slots="conv_state_indices")
def causal_conv1d_update(x, conv_state, weight, bias=None, activation=None, cache_seqlens=None,
                         conv_state_indices=None):
    """
    The next token, or the next T tokens, of each of B sequences.

    x [B, D] or [B, D, T], weight [D, W], bias [D]. conv_state [P, D, S], S at least W - 1, is
    updated in place; P is B without conv_state_indices [B], which names the slots.

    Returns out of the shape of x.

    Raises NotImplementedError for cache_seqlens (a circular state), for another activation and for
    tensors that require a gradient; RuntimeError for other arguments that libgdn refuses.
    """
    act = activation_of(activation)
    if cache_seqlens is not None:
        raise NotImplementedError("gdn.causal_conv1d: a circular state (cache_seqlens) is not "
                                  "supported")
    _drop_in.wanted(x=x, conv_state=conv_state, weight=weight)
    _drop_in.optional(bias=bias, conv_state_indices=conv_state_indices)
    _drop_in.dimensions(conv_state=(conv_state, 3))
    if x.dim() not in (2, 3):
        raise ValueError(f"x: {list(x.shape)}, wanted [B, D] or [B, D, T]")
    if conv_state_indices is None and len(conv_state) != len(x):
        raise ValueError(f"conv_state: {len(conv_state)} states, wanted {len(x)}")
    _drop_in.refuse_grad(x=x, conv_state=conv_state, weight=weight, bias=bias)
    options = dict(activation=act)
    if conv_state_indices is not None:
        options["read_slots"] = conv_state_indices
    rows = x[:, None] if x.dim() == 2 else x.transpose(1, 2)
    out = torch.empty_like(rows)
    gdn.torch.conv1d(rows, weight, bias, state=conv_state, out=out, **options)
    return out[:, 0] if x.dim() == 2 else out.transpose(1, 2)


def causal_conv1d_varlen_states(x, cu_seqlens, state_len):
    """
    The last state_len inputs of each packed sequence, zeros before its first, [S, D, state_len] in
    the dtype of x. x [N, D]; cu_seqlens [S + 1].
    """
    _drop_in.wanted(x=x, cu_seqlens=cu_seqlens)
    _drop_in.dimensions(x=(x, 2), cu_seqlens=(cu_seqlens, 1))
    place = cu_seqlens[1:, None] + torch.arange(-state_len, 0, device=cu_seqlens.device)
    is_outside = place < cu_seqlens[:-1, None]
    if not len(x):
        return x.new_zeros(len(place), x.shape[1], state_len)
    rows = x[place.masked_fill(is_outside, 0)].masked_fill(is_outside[..., None], 0)
    return rows.transpose(1, 2)


_MODULES = {"causal_conv1d": (causal_conv1d_fn, causal_conv1d_update),
            "causal_conv1d.causal_conv1d_interface": (causal_conv1d_fn, causal_conv1d_update),
            "causal_conv1d.causal_conv1d_varlen": (causal_conv1d_varlen_states,)}


def install():
    """
    Makes `import causal_conv1d` find these functions, its modules causal_conv1d_interface and
    causal_conv1d_varlen too. If causal_conv1d is importable, its functions are replaced, in modules
    loaded already too.
    """
    _stand_in.install("causal_conv1d", "1.6.1+gdn", {
        name: {f.__name__: f for f in functions} for name, functions in _MODULES.items()})


def _compare():
    try:
        import causal_conv1d as package
    except Exception:  # the package is absent, or its extension does not load here
        return
    _drop_in.require_known(causal_conv1d_fn, package.causal_conv1d_fn)
    _drop_in.require_known(causal_conv1d_update, package.causal_conv1d_update)


_compare()
