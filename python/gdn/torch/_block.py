# SPDX-License-Identifier: Apache-2.0
"""
A whole layer: the operator block, or, where gradients are needed, torch's projections around
operators that have gradients. Letters in shapes are as in _functions.py.
"""

import gdn
import torch
from torch.nn.functional import linear

from . import _functions, distributed
from ._autograd import BATCH, needs_grad, refuse_in_place, refuse_others, rows
from ._functions import rmsnorm_gated
from ._named import named
from ._operators import overload
from ._places import refuse_mixed

_RULE = dict(gate=gdn.GATE_RAW, beta_kind=gdn.BETA_SIGMOID, norm=gdn.NORM_L2,
             write=gdn.WRITE_NONE)
_TENSORS = ("hidden", "in_proj_qkvz", "in_proj_ba", "in_proj_qkv", "in_proj_z", "in_proj_b",
            "in_proj_a", "conv_weight", "conv_bias", "A_log", "dt_bias", "norm_weight", "out_proj",
            "conv_state", "state")
_KNOWN = {*BATCH, "flags", "max_seqlen", "rms_eps", "state_layout", "write"}


def _by_key_head(x, qkvz, ba, heads, dims):
    """The projections of Qwen3-Next, whose rows are grouped by key head, in the order of Qwen3.5:
    q, k and v of all heads; z; b; a."""
    times = heads[1] // heads[0]
    parts = linear(x, qkvz).unflatten(-1, (heads[0], -1)).split(
        (dims[0], dims[0], times * dims[1], times * dims[1]), -1)
    q, k, v, z, b, a = (part.flatten(-2) for part in (
        *parts, *linear(x, ba).unflatten(-1, (heads[0], -1)).split(times, -1)))
    return torch.cat((q, k, v), -1), z, b, a


def _composed(hidden, in_proj, conv_weight, conv_bias, A_log, dt_bias, norm_weight, out_proj,
              conv_state, state, heads, dims, token_layout, options):
    """block() by operators that have gradients, or on a rank's part of the tokens."""
    ops = _functions if token_layout is None else distributed
    batch = {name: x for name, x in options.items()
             if name in (*BATCH, "max_seqlen") and x is not None}
    if token_layout is not None:
        batch["layout"] = token_layout
    if in_proj[0] is not None:
        mixed, z, b, a = _by_key_head(hidden, *in_proj[:2], heads, dims)
    else:
        mixed, z, b, a = (linear(hidden, weight) for weight in in_proj[2:])
    mixed = ops.conv1d(mixed, conv_weight, conv_bias, state=conv_state, activation=gdn.ACT_SILU,
                       write=gdn.WRITE_NONE, **batch)
    keys = heads[0] * dims[0]
    q, k, v = (x.unflatten(-1, (-1, dim)) for x, dim in zip(
        mixed.split((keys, keys, heads[1] * dims[1]), -1), (dims[0], dims[0], dims[1])))
    flags, eps = options.get("flags", 0), options.get("rms_eps", 0.0)
    out = ops.prefill(q, k, v, a, b, A_log=A_log, dt_bias=dt_bias, state=state,
                      state_layout=options.get("state_layout", 0),
                      flags=flags & ~gdn.ZERO_AS_GIVEN, **_RULE, **batch)
    if eps == 0 and flags & gdn.ZERO_AS_GIVEN:
        eps = 2.0 ** -126
    out = rmsnorm_gated(out, z.unflatten(-1, (-1, dims[1])), norm_weight, eps=eps)
    return linear(out.flatten(-2), out_proj)


@named("block", cu_seqlens=1)
def block(hidden, conv_weight, A_log, dt_bias, norm_weight, out_proj, *, key_heads, value_heads,
          key_dim, value_dim, in_proj_qkvz=None, in_proj_ba=None, in_proj_qkv=None, in_proj_z=None,
          in_proj_b=None, in_proj_a=None, conv_bias=None, conv_state=None, state=None, out=None,
          token_layout=None, **options):
    """
    A whole layer: projections, convolution, rule, gated norm, output projection. GatedDeltaNet is
    this function with its weights and its cache.

    hidden [N][hidden size] of dtype A. Weights as Hugging Face saves them: in_proj_qkvz and
    in_proj_ba (Qwen3-Next), or in_proj_qkv, in_proj_z, in_proj_b and in_proj_a (Qwen3.5). States as
    for step(). [N] without cu_seqlens is one sequence.

    Gradients flow to every tensor. Where one is needed, the layer runs as torch's projections and
    the operators between them, and keeps what these keep. Initial states [B] are read alone then:
    pass write=gdn.WRITE_NONE. Slots, checkpoints and out are refused. token_layout: hidden holds
    this rank's tokens, as a distributed.Layout says, and initial states are of the sequences that
    begin on it; the same holds for the call then.

    Returns out, of the shape and dtype of hidden.
    """
    in_proj = in_proj_qkvz, in_proj_ba, in_proj_qkv, in_proj_z, in_proj_b, in_proj_a
    weights = conv_weight, conv_bias, A_log, dt_bias, norm_weight, out_proj
    if token_layout is not None or needs_grad((hidden, *in_proj, *weights, conv_state, state)):
        known = _KNOWN if token_layout is None else _KNOWN - set(BATCH)
        refuse_others("block", known, dict(out=out, **options))
        refuse_in_place(state is not None or conv_state is not None, options)
        given = hidden, *in_proj, *weights, conv_state, state  # torch's linear() takes any mixture
        refuse_mixed("block", dict(zip(_TENSORS, given)))
        return _composed(hidden, in_proj, *weights, conv_state, state, (key_heads, value_heads),
                         (key_dim, value_dim), token_layout, options)
    if out is None:
        out = rows(hidden, None, options)
    overload("block", options)(
        hidden, conv_weight, A_log, dt_bias, norm_weight, out_proj, out, *in_proj, conv_bias,
        conv_state, state,
        n_key_heads=key_heads, n_value_heads=value_heads, key_head_dim=key_dim,
        value_head_dim=value_dim, **options)
    return out
