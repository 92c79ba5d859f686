# SPDX-License-Identifier: Apache-2.0
"""
The functions of the Gated DeltaNet models of transformers (5.24) by libgdn.

    import gdn
    gdn.install("transformers")

install() assigns these functions in the modeling modules of qwen3_next, qwen3_5 and qwen3_5_moe:
models made before and after use them. If a function of the installed version has other parameters,
install() raises ImportError with one line and assigns nothing.

It also gives the class of the layer a forward() in which one token of each sequence with a cache
is one call of gdn.torch.step() between the layer's projections: convolution, gates, rule and gated
RMSNorm in one operator, which updates the cache's states in place. The layer's own forward() runs
with these functions where gradients are on, the cache records its past or is offloaded, tokens are
packed or masked, or the norm or the convolution has hooks. There the gated RMSNorm stays
transformers' own. A class whose forward() has other parameters than in 5.17 to 5.24 is left alone.

Gradients flow to every tensor, so models train; causal_conv1d_update(), which writes its state in
place, is forward only.
"""

import importlib

import gdn
import gdn.torch

from . import _drop_in
from . import _transformers_step as _by_step
from . import causal_conv1d as _conv

MODELS = {"qwen3_next": "Qwen3NextGatedDeltaNet", "qwen3_5": "Qwen3_5GatedDeltaNet",
          "qwen3_5_moe": "Qwen3_5MoeGatedDeltaNet"}  # the class of the layer


def _rule(op, query, key, value, g, beta, initial_state, output_final_state, l2norm, cu_seqlens):
    if cu_seqlens is not None and query.shape[0] != 1:
        raise ValueError(f"the batch size must be 1 with cu_seqlens, found {query.shape[0]}")
    return _drop_in.rule(op, query, key, value, g, beta, None, initial_state, output_final_state,
                         cu_seqlens, state_layout=gdn.STATE_KV,
                         norm=gdn.NORM_L2 if l2norm else gdn.NORM_NONE)


def torch_chunk_gated_delta_rule(query, key, value, g, beta, chunk_size=64, initial_state=None,
                                 output_final_state=False, use_qk_l2norm_in_kernel=False, **kwargs):
    """
    The rule over whole sequences.

    query, key [B, T, H, K], value [B, T, HV, V] of one dtype: float32, bfloat16 or float16. g (the
    logarithm of the decay), beta [B, T, HV]. initial_state [N, HV, K, V] is read only. kwargs:
    cu_seqlens [N + 1] packs sequences into B = 1; other names are ignored, as by transformers.
    chunk_size is ignored.

    Returns out [B, T, HV, V] and the final state in float32, or None. With cu_seqlens the final
    state begins as a copy of initial_state.

    Copied: query, key, value if their last stride is not 1.

    Raises ValueError for B other than 1 with cu_seqlens, RuntimeError for other arguments that
    libgdn refuses.
    """
    return _rule(gdn.torch.prefill, query, key, value, g, beta, initial_state, output_final_state,
                 use_qk_l2norm_in_kernel, kwargs.get("cu_seqlens"))


def torch_recurrent_gated_delta_rule(query, key, value, g, beta, initial_state=None,
                                     output_final_state=False, use_qk_l2norm_in_kernel=False,
                                     **kwargs):
    """
    The rule token by token. Shapes, conversions, results and errors are those of
    torch_chunk_gated_delta_rule().
    """
    return _rule(gdn.torch.decode, query, key, value, g, beta, initial_state, output_final_state,
                 use_qk_l2norm_in_kernel, kwargs.get("cu_seqlens"))


def causal_conv1d_fn(hidden_states, weight, bias=None, activation=None, **kwargs):
    """
    gdn.causal_conv1d.causal_conv1d_fn() with the parameters of transformers. hidden_states
    [B, D, T]. kwargs: seq_idx [B, T]; other names are ignored, as by transformers.
    """
    return _conv.causal_conv1d_fn(hidden_states, weight, bias, kwargs.get("seq_idx"),
                                  activation=activation)


def causal_conv1d_update(hidden_states, conv_state, weight, bias=None, activation=None):
    """
    gdn.causal_conv1d.causal_conv1d_update() with the parameters of transformers. hidden_states
    [B, D, T]; conv_state [B, D, S] is updated in place.
    """
    return _conv.causal_conv1d_update(hidden_states, conv_state, weight, bias, activation)


_FUNCTIONS = (torch_chunk_gated_delta_rule, torch_recurrent_gated_delta_rule, causal_conv1d_fn,
              causal_conv1d_update)


def _add_step(layer):
    """Makes the forward() of a class of layers take one token by one operator."""
    theirs = layer.forward
    if not getattr(theirs, "is_gdn", False) and _by_step.takes_step(theirs):
        layer.forward = _by_step.with_step(theirs)


def install():
    """
    Assigns the functions of this module in the modeling modules of MODELS, and forward() in the
    classes of their layers. Raises ImportError where transformers, or a model of MODELS, is absent,
    or where a function has other parameters. A second call changes nothing.
    """
    modules = [importlib.import_module(f"transformers.models.{name}.modeling_{name}")
               for name in MODELS]
    for module in modules:
        for function in _FUNCTIONS:
            theirs = getattr(module, function.__name__, None)
            if theirs is None:
                raise ImportError(f"gdn: {module.__name__} has no {function.__name__}")
            _drop_in.require_same(function, theirs)
    for module in modules:
        for function in _FUNCTIONS:
            setattr(module, function.__name__, function)
    for module, layer in zip(modules, MODELS.values()):
        _add_step(getattr(module, layer))
