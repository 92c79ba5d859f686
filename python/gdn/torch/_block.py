# SPDX-License-Identifier: Apache-2.0
"""
A whole layer: the operator block, or, where gradients are needed, torch's projections around
operators that have gradients. Letters in shapes are as in _functions.py.
"""

from functools import partial

import gdn
import torch
from torch.nn.functional import linear

from . import _functions, distributed
from ._autograd import BATCH, needs_grad, refuse_others, rows
from ._functions import rmsnorm_gated
from ._named import named
from ._operators import overload
from ._places import refuse_mixed

_TENSORS = ("hidden", "in_proj_qkvz", "in_proj_ba", "in_proj_qkv", "in_proj_z", "in_proj_b",
            "in_proj_a", "conv_weight", "conv_bias", "A_log", "dt_bias", "norm_weight", "out_proj",
            "conv_state", "state")
_APART = "in_proj_q", "in_proj_k", "in_proj_v", "in_proj_z_down", "in_proj_a_down"
_KNOWN = {*BATCH, "activation", "beta_kind", "flags", "gate_lower_bound", "max_seqlen", "rms_eps",
          "state_layout", "write"}


def operators_of(token_layout):
    """conv1d() and prefill() for tokens of this process, or of a rank."""
    return _functions if token_layout is None else distributed


def raw(beta_kind):
    """What a layer asks of prefill(): raw gates, and q and k that are not normalised yet."""
    return dict(gate=gdn.GATE_RAW, beta_kind=beta_kind or gdn.BETA_SIGMOID, norm=gdn.NORM_L2)


def joined(projections):
    """Returns a function of x: the columns of several projections, one behind the other."""
    return lambda x: torch.cat([project(x) for project in projections], -1)


def chained(first, then):
    """A projection of low rank."""
    return lambda x: then(first(x))


def _of_weights(in_proj, apart):
    """The projections of weights, as composed() takes them."""
    def project(weight, down=None):
        up = partial(linear, weight=weight)
        return up if down is None else chained(partial(linear, weight=down), up)

    qkvz, ba, qkv, z, b, a = in_proj
    if qkvz is not None:
        return project(qkvz), project(ba)
    q, k, v, z_down, a_down = apart
    qkv = joined([project(x) for x in (q, k, v)]) if qkv is None else project(qkv)
    return qkv, project(z, z_down), project(b), project(a, a_down)


def projected(hidden, in_proj, heads, dims):
    """q, k and v of all heads; z; b; a. in_proj: functions qkv, z, b, a (Qwen3.5), or qkvz and ba,
    whose results are grouped by key head (Qwen3-Next)."""
    if len(in_proj) == 4:
        return tuple(project(hidden) for project in in_proj)
    times = heads[1] // heads[0]
    qkvz, ba = (project(hidden).unflatten(-1, (heads[0], -1)) for project in in_proj)
    parts = qkvz.split((dims[0], dims[0], times * dims[1], times * dims[1]), -1)
    q, k, v, z, b, a = (part.flatten(-2) for part in (*parts, *ba.split(times, -1)))
    return torch.cat((q, k, v), -1), z, b, a


def composed(hidden, in_proj, conv, rule, norm, out_proj, heads, dims):
    """A layer of its parts, which are functions: conv(channels), rule(q, k, v, a, b), norm(out, z).
    """
    mixed, z, b, a = projected(hidden, in_proj, heads, dims)
    keys = heads[0] * dims[0]
    q, k, v = (x.unflatten(-1, (-1, dim)) for x, dim in zip(
        conv(mixed).split((keys, keys, heads[1] * dims[1]), -1), (dims[0], dims[0], dims[1])))
    out = norm(rule(q, k, v, a, b), z.unflatten(-1, (-1, dims[1])))
    return out_proj(out.flatten(-2))


def per_channel(prefill, dt_bias, **options):
    """The rule of a layer by prefill(): gates are per channel if dt_bias [Hv][K] is."""
    def run(q, k, v, a, b):
        a = a.unflatten(-1, dt_bias.shape) if dt_bias.dim() == 2 else a
        return prefill(q, k, v, a, b, dt_bias=dt_bias, **options)

    return run


def _by_parts(hidden, in_proj, conv_weight, conv_bias, A_log, dt_bias, norm_weight, out_proj,
              conv_state, state, heads, dims, token_layout, options):
    """block() by operators that have gradients, or on a rank's part of the tokens."""
    ops = operators_of(token_layout)
    batch = {name: x for name, x in options.items()
             if name in (*BATCH, "max_seqlen") and x is not None}
    batch.update(write=gdn.WRITE_NONE)
    if token_layout is not None:
        batch["layout"] = token_layout
    flags, eps = options.get("flags", 0), options.get("rms_eps", 0.0)
    conv = partial(ops.conv1d, weight=conv_weight, bias=conv_bias, state=conv_state,
                   activation=gdn.ACT_SILU, **batch)
    rule = per_channel(ops.prefill, dt_bias, A_log=A_log, state=state,
                       gate_lower_bound=options.get("gate_lower_bound", 0),
                       state_layout=options.get("state_layout", 0),
                       flags=flags & ~gdn.ZERO_AS_GIVEN, **raw(options.get("beta_kind", 0)),
                       **batch)
    if eps == 0 and flags & gdn.ZERO_AS_GIVEN:
        eps = 2.0 ** -126
    norm = partial(rmsnorm_gated, weight=norm_weight, eps=eps,
                   activation=options.get("activation", 0))
    return composed(hidden, in_proj, conv, rule, norm, partial(linear, weight=out_proj), heads,
                    dims)


@named("block", cu_seqlens=1)
def block(hidden, conv_weight, A_log, dt_bias, norm_weight, out_proj, *, key_heads, value_heads,
          key_dim, value_dim, in_proj_qkvz=None, in_proj_ba=None, in_proj_qkv=None, in_proj_z=None,
          in_proj_b=None, in_proj_a=None, in_proj_q=None, in_proj_k=None, in_proj_v=None,
          in_proj_z_down=None, in_proj_a_down=None, conv_bias=None, conv_state=None, state=None,
          out=None, token_layout=None, **options):
    """
    A whole layer: projections, convolution, rule, gated norm, output projection. GatedDeltaNet is
    this function with its weights and its cache.

    hidden [N][hidden size] of dtype A. Weights as Hugging Face saves them: in_proj_qkvz and
    in_proj_ba (Qwen3-Next), or in_proj_qkv, in_proj_z, in_proj_b and in_proj_a (Qwen3.5). In place
    of in_proj_qkv: in_proj_q, in_proj_k and in_proj_v. Of low rank, in_proj_z [Hv V][R] comes after
    in_proj_z_down [R][hidden size], and a alike. dt_bias [Hv][K] makes gates per channel (KDA).
    States as for step(). [N] without cu_seqlens is one sequence.

    Gradients flow to every tensor. Where one is needed, the layer runs as torch's projections and
    the operators between them, and keeps what these keep. Initial states [B] are read alone then:
    pass write=gdn.WRITE_NONE. Slots, checkpoints and out are refused. token_layout: hidden holds
    this rank's tokens, as a distributed.Layout says, and initial states are of the sequences that
    begin on it; the same holds for the call then.

    Returns out, of the shape and dtype of hidden.
    """
    in_proj = in_proj_qkvz, in_proj_ba, in_proj_qkv, in_proj_z, in_proj_b, in_proj_a
    apart = in_proj_q, in_proj_k, in_proj_v, in_proj_z_down, in_proj_a_down
    weights = conv_weight, conv_bias, A_log, dt_bias, norm_weight, out_proj
    if token_layout is not None or needs_grad((hidden, *in_proj, *apart, *weights, conv_state,
                                               state)):
        known = _KNOWN if token_layout is None else _KNOWN - set(BATCH)
        refuse_others("block", known, dict(out=out, **options))
        for name, x in (("conv_state", conv_state), ("state", state)):
            if x is not None and options.get("write", 0) != gdn.WRITE_NONE:
                raise RuntimeError(f"{name}: would be written in place, where gradients are "
                                   "needed; pass write=gdn.WRITE_NONE")
        given = hidden, *in_proj, *weights, conv_state, state, *apart  # linear() takes any mix
        refuse_mixed("block", dict(zip(_TENSORS + _APART, given)))
        return _by_parts(hidden, _of_weights(in_proj, apart), *weights, conv_state, state,
                         (key_heads, value_heads), (key_dim, value_dim), token_layout, options)
    options.update((name, x) for name, x in zip(_APART, apart) if x is not None)
    if out is None:
        out = rows(hidden, None, options)
    overload("block", options)(
        hidden, conv_weight, A_log, dt_bias, norm_weight, out_proj, out, *in_proj, conv_bias,
        conv_state, state,
        n_key_heads=key_heads, n_value_heads=value_heads, key_head_dim=key_dim,
        value_head_dim=value_dim, **options)
    return out
