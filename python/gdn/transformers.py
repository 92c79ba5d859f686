# SPDX-License-Identifier: Apache-2.0
"""
The functions of the Gated DeltaNet and KDA models of transformers (5.24) by libgdn.

    import gdn
    gdn.install("transformers")

install() assigns these functions in the modeling modules of qwen3_next, qwen3_5, qwen3_5_moe,
qwen4_exp, lara_mini and olmo_hybrid, and of the KDA models kimi_linear, glm5_next and
bailing_hybrid: models made before and after use them. If a function of the first three models has
other parameters, install() raises ImportError with one line and assigns nothing. A version without
one of the others leaves it out.

It also gives the class of the layer a forward() in which one token of each sequence
with a cache is one call of gdn.torch.step() between the layer's projections: convolution, gates,
rule and gated RMSNorm in one operator, which updates the cache's states in place. The layer's own
forward() runs with these functions where gradients are on, the cache records its past or is
offloaded, tokens are packed or masked, or the norm or the convolution has hooks. There the gated
RMSNorm stays transformers' own. A class whose forward() has other parameters than in 5.17 to 5.24
is left alone.

Gradients flow to every tensor, so models train; causal_conv1d_update(), which writes its state in
place, is forward only.
"""

import importlib
import sys
import warnings

import gdn
import gdn.torch
from gdn.torch._named import renamed

from . import _drop_in
from . import _transformers_step as _by_step
from . import causal_conv1d as _conv

MODELS = {"qwen3_next": "Qwen3NextGatedDeltaNet", "qwen3_5": "Qwen3_5GatedDeltaNet",
          "qwen3_5_moe": "Qwen3_5MoeGatedDeltaNet", "qwen4_exp": "Qwen4ExpTextGatedDeltaNet",
          "lara_mini": "LaraMiniGatedDeltaNet",
          "olmo_hybrid": "OlmoHybridGatedDeltaNet"}  # the class of the layer
KDA_MODELS = {"kimi_linear": "KimiLinearDeltaAttention",
              "glm5_next": "Glm5NextTextLinearAttention",
              "bailing_hybrid": "BailingHybridDeltaAttention"}
_LATER = "qwen4_exp", "lara_mini", "olmo_hybrid", *KDA_MODELS  # older versions have others, or none


def _one_row(name, x):
    if len(x) != 1:
        raise ValueError(f"{name}: given for {len(x)} rows, wanted one packed row")


@renamed(q="query", k="key", v="value")
def _rule(op, query, key, value, g, beta, initial_state, output_final_state, l2norm, packing):
    _drop_in.wanted(beta=beta)
    _drop_in.optional(initial_state=initial_state)
    _drop_in.dimensions(query=(query, 4), key=(key, 4), value=(value, 4), beta=(beta, 3))
    tensors, (cu_seqlens, seq_idx) = (query, key, value, g, beta), packing
    if cu_seqlens is not None:
        _drop_in.wanted(cu_seqlens=cu_seqlens)
        _one_row("cu_seqlens", query)
    elif seq_idx is not None:
        _drop_in.same_tokens(seq_idx, query.shape[:2], query.device)
        cu_seqlens = gdn.torch.cu_seqlens_of(seq_idx)
        tensors = [x.flatten(0, 1)[None] for x in tensors]
    out, final = _drop_in.rule(op, *tensors, None, initial_state, output_final_state, cu_seqlens,
                               state_layout=gdn.STATE_KV, norm=_drop_in.norm(l2norm))
    return out.view(*query.shape[:2], *out.shape[2:]), final


def _packing(kwargs):
    """What says where sequences begin. The GDN models hand cu_seq_lens_q on as cu_seqlens, the KDA
    models under its own name."""
    cu_seqlens = kwargs.get("cu_seqlens")
    return kwargs.get("cu_seq_lens_q") if cu_seqlens is None else cu_seqlens, kwargs.get("seq_idx")


def torch_chunk_gated_delta_rule(query, key, value, g, beta, chunk_size=64, initial_state=None,
                                 output_final_state=False, use_qk_l2norm_in_kernel=False, **kwargs):
    """
    The rule over whole sequences.

    query, key [B, T, H, K], value [B, T, HV, V] of one dtype: float32, bfloat16 or float16. g (the
    logarithm of the decay), beta [B, T, HV]. initial_state [N, HV, K, V] is read only. kwargs:
    cu_seqlens or cu_seq_lens_q [N + 1] packs sequences into B = 1; without them, seq_idx [B, T]
    does, and on a GPU the call waits for the device then; other names are ignored, as by
    transformers. chunk_size is ignored.

    Returns out [B, T, HV, V] and the final state in float32, or None. With cu_seqlens the final
    state begins as a copy of initial_state.

    Copied: query, key, value if their last stride is not 1.

    Raises ValueError for B other than 1 with cu_seqlens, and for another number of initial states;
    TypeError for what is no tensor; RuntimeError for what else libgdn refuses.
    """
    return _gdn(gdn.torch.prefill, query, key, value, g, beta, initial_state, output_final_state,
                use_qk_l2norm_in_kernel, _packing(kwargs))


def torch_recurrent_gated_delta_rule(query, key, value, g, beta, initial_state=None,
                                     output_final_state=False, use_qk_l2norm_in_kernel=False,
                                     **kwargs):
    """
    The rule token by token. Shapes, conversions, results and errors are those of
    torch_chunk_gated_delta_rule().
    """
    return _gdn(gdn.torch.decode, query, key, value, g, beta, initial_state, output_final_state,
                use_qk_l2norm_in_kernel, _packing(kwargs))


def _gdn(op, query, key, value, g, *args):
    _drop_in.wanted(query=query, key=key, value=value, g=g)
    _drop_in.dimensions(g=(g, 3))  # of four, they would be KDA's
    return _rule(op, query, key, value, g, *args)


def _kda(op, query, key, value, g, beta, *args):
    _drop_in.wanted(query=query, key=key, value=value, g=g, beta=beta)
    _drop_in.dimensions(g=(g, 4))
    return _rule(op, query, key, value, g, beta, *args)


def chunk_kimi_delta_attention(query, key, value, g, beta, chunk_size=64, initial_state=None,
                               output_final_state=False, use_qk_l2norm_in_kernel=False, **kwargs):
    """
    KDA over whole sequences: g [B, T, HV, K] is the logarithm of the decay of each key channel. All
    else is as in torch_chunk_gated_delta_rule().
    """
    return _kda(gdn.torch.prefill, query, key, value, g, beta, initial_state, output_final_state,
                use_qk_l2norm_in_kernel, _packing(kwargs))


def recurrent_kimi_delta_attention(query, key, value, g, beta, initial_state, output_final_state,
                                   use_qk_l2norm_in_kernel=False, **kwargs):
    """
    KDA token by token. Shapes, conversions, results and errors are those of
    chunk_kimi_delta_attention().
    """
    return _kda(gdn.torch.decode, query, key, value, g, beta, initial_state, output_final_state,
                use_qk_l2norm_in_kernel, _packing(kwargs))


def causal_conv1d_fn(hidden_states, weight, bias=None, activation=None, **kwargs):
    """
    gdn.causal_conv1d.causal_conv1d_fn() with the parameters of transformers. hidden_states
    [B, D, T]. kwargs: seq_idx [B, T]; without it, cu_seq_lens_q [N + 1] packs sequences into B = 1;
    other names are ignored, as by transformers.
    """
    seq_idx, cu_seqlens = kwargs.get("seq_idx"), kwargs.get("cu_seq_lens_q")
    if seq_idx is not None or cu_seqlens is None:
        return _conv.causal_conv1d_fn(hidden_states, weight, bias, seq_idx, activation=activation)
    _drop_in.wanted(hidden_states=hidden_states, cu_seq_lens_q=cu_seqlens)
    _one_row("cu_seq_lens_q", hidden_states)
    out = gdn.torch.conv1d(hidden_states[0].t(), weight, bias, cu_seqlens=cu_seqlens,
                           activation=_conv.activation_of(activation))
    return out.t()[None]


def causal_conv1d_update(hidden_states, conv_state, weight, bias=None, activation=None):
    """
    gdn.causal_conv1d.causal_conv1d_update() with the parameters of transformers. hidden_states
    [B, D, T]; conv_state [B, D, S] is updated in place.
    """
    return _conv.causal_conv1d_update(hidden_states, conv_state, weight, bias, activation)


_GDN = torch_chunk_gated_delta_rule, torch_recurrent_gated_delta_rule
_KDA = chunk_kimi_delta_attention, recurrent_kimi_delta_attention
_CONV = causal_conv1d_fn, causal_conv1d_update


def functions(model):
    """The functions of this module that replace those of a model."""
    return (_KDA if model in KDA_MODELS else _GDN) + _CONV


def _add_step(layer):
    """Makes the forward() of a class of layers take one token by one operator."""
    theirs = layer.forward
    if not getattr(theirs, "is_gdn", False) and _by_step.takes_step(theirs):
        layer.forward = _by_step.with_step(theirs)


def replace_rules():
    """Assigns the rules in modeling modules that took FLA's or torch's functions when they were
    imported. Modules whose functions have other parameters are left alone."""
    for name, module in list(sys.modules.items()):
        if not name.startswith("transformers.models."):
            continue
        for function in _GDN + _KDA:
            theirs = vars(module).get(function.__name__)
            if theirs is not None and _drop_in.difference(function, theirs) is None:
                setattr(module, function.__name__, function)


def modules():
    """Returns {model: its modeling module} for MODELS and KDA_MODELS, without absent ones of
    _LATER."""
    found = {}
    for name in (*MODELS, *KDA_MODELS):
        try:
            found[name] = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
        except ModuleNotFoundError:
            if name not in _LATER:
                raise
    return found


def _check(name, module):
    """Raises ImportError where a function of a model's module is absent, or has other
    parameters."""
    for function in functions(name):
        theirs = getattr(module, function.__name__, None)
        if theirs is None:
            raise ImportError(f"gdn: {module.__name__} has no {function.__name__}")
        _drop_in.require_same(function, theirs)


def install():
    """
    Assigns the functions of this module in the modeling modules of MODELS and KDA_MODELS, and
    forward() in the classes of their layers. Raises ImportError where transformers, or one
    of its first three models, is absent, or where their functions have other parameters; of the
    others, one line warns. A second call changes nothing.
    """
    found = modules()
    for name, module in list(found.items()):
        try:
            _check(name, module)
        except ImportError as error:
            if name not in _LATER:
                raise
            warnings.warn(f"{error}; {name} is left alone", stacklevel=3)
            del found[name]
    for name, module in found.items():
        for function in functions(name):
            setattr(module, function.__name__, function)
        _add_step(getattr(module, {**MODELS, **KDA_MODELS}[name]))
