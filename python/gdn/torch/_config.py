# SPDX-License-Identifier: Apache-2.0
"""What a configuration of transformers asks of a layer."""

from collections.abc import Mapping

_LAYOUTS = {"qwen3_next": "qwen3_next", "qwen3_5": "qwen3_5", "qwen3_5_text": "qwen3_5",
            "qwen3_5_moe": "qwen3_5", "qwen3_5_moe_text": "qwen3_5",
            "qwen4_exp_text": "qwen3_5", "lara_mini": "qwen3_5", "olmo_hybrid": "olmo_hybrid"}
_SIZES = {"hidden_size": "hidden_size", "linear_num_key_heads": "key_heads",
          "linear_num_value_heads": "value_heads", "linear_key_head_dim": "key_dim",
          "linear_value_head_dim": "value_dim", "linear_conv_kernel_dim": "conv_kernel",
          "rms_norm_eps": "rms_eps"}
_STARTS = ("linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max",
           "linear_dt_init_floor")  # of parameters before training, by OLMo-Hybrid
_GATES = {None: "silu", "silu": "silu", "swish": "silu", "sigmoid": "sigmoid"}


def _fields(config, key="linear_num_key_heads"):
    """The fields of the configuration, or of its part for text if that alone has the key, as a
    dictionary."""
    if not isinstance(config, Mapping) and not hasattr(config, "__dict__"):
        raise TypeError(f"config: {type(config).__name__}, wanted a configuration of transformers, "
                        "or a dictionary")
    fields = dict(config) if isinstance(config, Mapping) else dict(vars(config))
    fields.setdefault("model_type", getattr(config, "model_type", None))
    text = fields.get("text_config")
    if key not in fields and text is not None:
        return _fields(text, key)
    return fields


def _known(key, value, table):
    if value not in table:
        names = ", ".join(sorted(filter(None, table)))
        raise ValueError(f"{key}: {value!r}, but the layer knows {names} alone")
    return table[value]


def _refuse_others(fields, known, begins, place=""):
    """Refuses a key of the layer's kind that is on and that nothing here reads."""
    for key, value in fields.items():
        if key.startswith(begins) and key not in known and value not in (None, False):
            raise ValueError(f"{place}{key}: {value!r}, but the layer has no such thing")


def arguments_of(config, layout=None):
    """
    The arguments of GatedDeltaNet for a configuration: an object of transformers, or a dictionary
    as in config.json. A layout that is given replaces the one that model_type says.

    Raises ValueError that names a key which is absent, or which wants what the layer has not.
    """
    fields = _fields(config)
    if layout is None:
        layout = _known("model_type", fields["model_type"], _LAYOUTS)
    for key in _SIZES:
        if fields.get(key) is None:
            raise ValueError(f"{key}: the configuration has none")
    neg = bool(fields.get("linear_allow_neg_eigval"))
    _refuse_others(fields, {*_SIZES, *_STARTS, "linear_allow_neg_eigval"}, "linear_")
    hidden_act = _known("hidden_act", fields.get("hidden_act"),
                        {name: gate for name, gate in _GATES.items() if gate == "silu"})
    gate = _known("output_gate_type", fields.get("output_gate_type") or hidden_act, _GATES)
    arguments = dict({ours: fields[key] for key, ours in _SIZES.items()}, layout=layout,
                     output_gate=gate, allow_neg_eigval=neg)
    if layout == "olmo_hybrid":
        arguments["rms_eps"] = 1e-5  # of the gated norm, whatever the configuration has
    return arguments


# ---- KDA -----------------------------------------------------------------------------------------

# In transformers' configurations, and in linear_attn_config of checkpoints.
_KDA = {"heads": ("linear_num_heads", "num_heads"), "head_dim": ("linear_head_dim", "head_dim"),
        "conv_kernel": ("linear_conv_kernel_dim", "short_conv_kernel_size")}
_KDA_OTHERS = "linear_attn_config", "linear_lower_bound", "kda_safe_gate", "kda_lower_bound"
_KDA_PART = "kda_layers", "full_attn_layers", "gate_lower_bound", "safe_gate"
_KDA_MODELS = {name: name.removesuffix("_text")
               for name in ("kimi_linear", "glm5_next_text", "bailing_hybrid")}


def _bound(model, fields, part):
    """The lower bound of the gates, or None."""
    if model == "bailing_hybrid":
        return fields.get("kda_lower_bound", -5.0) if fields.get("kda_safe_gate", True) else None
    bound = part.get("gate_lower_bound", fields.get("linear_lower_bound"))
    if model == "glm5_next" and bound is None and part and part.get("safe_gate", True):
        return -5.0
    return bound


def kda_arguments_of(config):
    """The arguments of KimiDeltaAttention for a configuration; errors as in arguments_of()."""
    fields = _fields(config, "linear_num_heads")
    model = _known("model_type", fields["model_type"], _KDA_MODELS)
    part = fields.get("linear_attn_config") or {}
    if model == "bailing_hybrid" and "linear_num_heads" not in fields:
        part = dict(num_heads=fields.get("num_attention_heads"), head_dim=fields.get("head_dim"),
                    short_conv_kernel_size=fields.get("short_conv_kernel_size"))
    keys, shorts = zip(*_KDA.values())
    _refuse_others(fields, {*keys, *_KDA_OTHERS, *_SIZES}, ("linear_", "kda_"))
    _refuse_others(part, {*shorts, *_KDA_PART}, "", "linear_attn_config: ")
    found = {ours: part.get(short, fields.get(key)) for ours, (key, short) in _KDA.items()}
    found.update(hidden_size=fields.get("hidden_size"), rms_eps=fields.get("rms_norm_eps"))
    for ours, value in found.items():
        if value is None:
            name = {"rms_eps": "rms_norm_eps"}.get(ours, _KDA.get(ours, (ours,))[0])
            raise ValueError(f"{name}: the configuration has none")
    _known("hidden_act", fields.get("hidden_act"),
           {name: gate for name, gate in _GATES.items() if gate == "silu"})
    _known("output_gate_type", fields.get("output_gate_type"), {None: None, "sigmoid": "sigmoid"})
    is_full = model == "bailing_hybrid"
    return dict(found, gate_lower_bound=_bound(model, fields, part), full_rank=is_full)
