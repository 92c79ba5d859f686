# SPDX-License-Identifier: Apache-2.0
"""
One token of each cached sequence through a Gated DeltaNet or KDA layer of transformers: the
projections, which stay the layer's modules, and one call of gdn.torch.step between them, which
updates the cache's states in place.
"""

import functools
import inspect

import gdn
import gdn.torch
import torch

from . import _drop_in
from .torch._plain import has_global_hooks, is_hooked

_CACHE = "cache", "cache_params"  # the parameter's name in transformers 5.24, and in 5.17 to 5.19
_GATES = {"silu": gdn.ACT_SILU, "sigmoid": gdn.ACT_SIGMOID}  # of the norm
_REFUSED = "attention_mask", "cu_seq_lens_q", "seq_idx"


def _norm(layer):
    """The gated RMSNorm of a layer; OLMo-Hybrid has another name for it."""
    return layer.o_norm if hasattr(layer, "o_norm") else layer.norm


def _is_known(layer):
    """Whether the norm and KDA's gate are those of the layer's module of transformers, and calls of
    these and of the convolution do no more than their forward()."""
    norm = _norm(layer)
    whole = [norm, layer.conv1d, *([layer.forget_gate] if hasattr(layer, "forget_gate") else [])]
    known = {each.__module__ for each in type(layer).__mro__}
    return (not any(map(is_hooked, whole)) and not has_global_hooks()
            and all(type(part).__module__ in known for part in whole if part is not layer.conv1d)
            and getattr(norm, "activation", None) in _GATES and _has_known_bound(layer))


def _bound(layer):
    """The lower bound of KDA's gates, or None."""
    gate = getattr(layer, "forget_gate", None)
    if getattr(gate, "safe_gate", False):
        return gate.lower_bound
    return getattr(gate, "safe_gate_lower_bound", None)


def _has_known_bound(layer):
    """step() takes a bound of 0 for none, and none above."""
    bound = _bound(layer)
    return bound is None or bound < 0


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
        return mixed, _raw_gates(layer, x), layer.b_proj(x), _by_head(layer, _output_gate(layer, x))
    z = _by_head(layer, layer.in_proj_z(x))
    return layer.in_proj_qkv(x), layer.in_proj_a(x), layer.in_proj_b(x), z


def _by_head(layer, z):
    return z.unflatten(-1, (-1, layer.head_v_dim if hasattr(layer, "head_v_dim")
                            else layer.head_dim))


def _output_gate(layer, x):
    return layer.g_proj(x) if hasattr(layer, "g_proj") else layer.g_b_proj(layer.g_a_proj(x))


def _raw_gates(layer, x):
    if not hasattr(layer, "forget_gate"):
        return layer.a_proj(x)
    gate = layer.forget_gate
    a = gate.f_proj(x) if hasattr(gate, "f_proj") else gate.f_b_proj(gate.f_a_proj(x))
    return a.unflatten(-1, (layer.num_heads, -1))


def _gates(layer):
    """A_log, dt_bias and what else gdn.torch.step() is told of gates, heads and sizes."""
    if not hasattr(layer, "forget_gate"):
        twice = getattr(layer, "allow_neg_eigval", False)
        return dict(A_log=layer.A_log, dt_bias=layer.dt_bias, key_heads=layer.num_k_heads,
                    value_heads=layer.num_v_heads, key_dim=layer.head_k_dim,
                    value_dim=layer.head_v_dim,
                    beta_kind=gdn.BETA_TWICE_SIGMOID if twice else gdn.BETA_SIGMOID)
    gate, heads, dim = layer.forget_gate, layer.num_heads, layer.head_dim
    return dict(A_log=gate.A_log.flatten(), dt_bias=gate.dt_bias.view(heads, dim),
                key_heads=heads, value_heads=heads, key_dim=dim, value_dim=dim,
                gate_lower_bound=float(_bound(layer) or 0), beta_kind=gdn.BETA_SIGMOID)


def _step(layer, x, conv_state, state):
    mixed, a, b, z = _projected(layer, x)
    norm = _norm(layer)
    out = gdn.torch.step(
        mixed, a, b, layer.conv1d.weight, z=z, conv_bias=layer.conv1d.bias,
        norm_weight=norm.weight, conv_state=conv_state, state=state, state_layout=gdn.STATE_KV,
        activation=_GATES[norm.activation], rms_eps=norm.variance_epsilon, **_gates(layer))
    return (layer.o_proj if hasattr(layer, "o_proj") else layer.out_proj)(out.flatten(2))


def takes_step(theirs):
    """Whether the layer's forward() has the parameters that with_step() knows."""
    names = list(inspect.signature(theirs).parameters)
    return names[:2] + names[3:] == ["self", "hidden_states", "attention_mask", "kwargs"] \
        and names[2] in _CACHE


def with_step(theirs):
    """Returns the layer's forward() with step() for one token. Other calls go to theirs."""
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
