# SPDX-License-Identifier: Apache-2.0
"""
One token of each cached sequence through a Gated DeltaNet layer of transformers: the projections,
which stay the layer's modules, and one call of gdn.torch.step between them, which updates the
cache's states in place.
"""

import functools
import inspect

import gdn
import gdn.torch
import torch

from . import _drop_in
from .torch._plain import has_global_hooks, is_hooked

_CACHE = "cache", "cache_params"  # the parameter's name in transformers 5.24, and in 5.17 to 5.19
_REFUSED = "attention_mask", "cu_seq_lens_q", "seq_idx"


def _norm(layer):
    """The gated RMSNorm of a layer; OLMo-Hybrid has another name for it."""
    return layer.o_norm if hasattr(layer, "o_norm") else layer.norm


def _is_known(layer):
    """Whether the norm is that of the layer's module of transformers, and calls of the norm and of
    the convolution do no more than their forward()."""
    norm = _norm(layer)
    return (not is_hooked(norm) and not is_hooked(layer.conv1d) and not has_global_hooks()
            and type(norm).__module__ in [each.__module__ for each in type(layer).__mro__]
            and getattr(norm, "activation", None) == "silu")


def _states(layer, cache):
    """The layer's states in the cache, or (None, None) where none may be updated in place."""
    held = None if getattr(cache, "offloading", True) else cache.layers[layer.layer_idx]
    started = getattr(held, "has_previous_state", None)
    if not isinstance(started, dict) or not started.get(0) or getattr(held, "record_past", True):
        return None, None
    return held.conv_states[0], held.recurrent_states[0]


def _is_step(layer, x, given):
    """Whether step() computes what the layer's own forward() would with the arguments given, if the
    cache has the states."""
    return (not torch.is_grad_enabled() and x.shape[1] == 1 and x.dtype in _drop_in.FLOATS
            and all(given.get(name) is None for name in _REFUSED)
            and layer.activation in ("silu", "swish") and _is_known(layer))


def _projected(layer, x):
    """Channels of q, k and v; a, b, z."""
    if hasattr(layer, "in_proj_qkvz"):
        q, k, v, z, b, a = layer.fix_query_key_value_ordering(layer.in_proj_qkvz(x),
                                                              layer.in_proj_ba(x))
        return torch.cat([part.flatten(2) for part in (q, k, v)], -1), a, b, z
    if hasattr(layer, "q_proj"):
        mixed = torch.cat([layer.q_proj(x), layer.k_proj(x), layer.v_proj(x)], -1)
        z = layer.g_proj(x).unflatten(-1, (-1, layer.head_v_dim))
        return mixed, layer.a_proj(x), layer.b_proj(x), z
    z = layer.in_proj_z(x).unflatten(-1, (-1, layer.head_v_dim))
    return layer.in_proj_qkv(x), layer.in_proj_a(x), layer.in_proj_b(x), z


def _step(layer, x, conv_state, state):
    mixed, a, b, z = _projected(layer, x)
    norm, twice = _norm(layer), getattr(layer, "allow_neg_eigval", False)
    out = gdn.torch.step(
        mixed, a, b, layer.conv1d.weight, layer.A_log, key_heads=layer.num_k_heads,
        value_heads=layer.num_v_heads, key_dim=layer.head_k_dim, value_dim=layer.head_v_dim, z=z,
        conv_bias=layer.conv1d.bias, dt_bias=layer.dt_bias, norm_weight=norm.weight,
        conv_state=conv_state, state=state, state_layout=gdn.STATE_KV,
        beta_kind=gdn.BETA_TWICE_SIGMOID if twice else gdn.BETA_SIGMOID,
        rms_eps=norm.variance_epsilon)
    return (layer.o_proj if hasattr(layer, "o_proj") else layer.out_proj)(out.flatten(2))


def takes_step(theirs):
    """Whether the layer's forward() has the parameters that with_step() knows."""
    names = list(inspect.signature(theirs).parameters)
    return names[:2] + names[3:] == ["self", "hidden_states", "attention_mask", "kwargs"] \
        and names[2] in _CACHE


def with_step(theirs):
    """The layer's forward() that takes one token by step(), and leaves all else to theirs."""
    @functools.wraps(theirs)
    def forward(self, hidden_states, *args, **kwargs):
        given = dict(zip(("cache", "attention_mask"), args), **kwargs)
        cache = given.get("cache", given.get("cache_params"))
        if cache is not None and _is_step(self, hidden_states, given):
            conv_state, state = _states(self, cache)
            if conv_state is not None:
                return _step(self, hidden_states, conv_state, state)
        return theirs(self, hidden_states, *args, **kwargs)

    forward.is_gdn = True
    return forward
