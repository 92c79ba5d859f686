# SPDX-License-Identifier: Apache-2.0
"""What a configuration of transformers asks of a layer."""

from collections.abc import Mapping

_LAYOUTS = {"qwen3_next": "qwen3_next", "qwen3_5": "qwen3_5", "qwen3_5_text": "qwen3_5",
            "qwen3_5_moe": "qwen3_5", "qwen3_5_moe_text": "qwen3_5",
            "qwen4_exp_text": "qwen3_5", "lara_mini": "qwen3_5"}
_SIZES = {"hidden_size": "hidden_size", "linear_num_key_heads": "key_heads",
          "linear_num_value_heads": "value_heads", "linear_key_head_dim": "key_dim",
          "linear_value_head_dim": "value_dim", "linear_conv_kernel_dim": "conv_kernel",
          "rms_norm_eps": "rms_eps"}
_GATES = {None: "silu", "silu": "silu", "swish": "silu", "sigmoid": "sigmoid"}


def _fields(config):
    """The fields of the configuration, or of its part for text, as a dictionary."""
    if not isinstance(config, Mapping) and not hasattr(config, "__dict__"):
        raise TypeError(f"config: {type(config).__name__}, wanted a configuration of transformers, "
                        "or a dictionary")
    fields = dict(config) if isinstance(config, Mapping) else dict(vars(config))
    fields.setdefault("model_type", getattr(config, "model_type", None))
    text = fields.get("text_config")
    if "linear_num_key_heads" not in fields and text is not None:
        return _fields(text)
    return fields


def _known(key, value, table):
    if value not in table:
        names = ", ".join(sorted(filter(None, table)))
        raise ValueError(f"{key}: {value!r}, but the layer knows {names} alone")
    return table[value]


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
    for key, value in fields.items():
        if key.startswith("linear_") and key not in _SIZES and value not in (None, False):
            raise ValueError(f"{key}: {value!r}, but the layer has no such thing")
    hidden_act = _known("hidden_act", fields.get("hidden_act"),
                        {name: gate for name, gate in _GATES.items() if gate == "silu"})
    gate = _known("output_gate_type", fields.get("output_gate_type") or hidden_act, _GATES)
    return dict({ours: fields[key] for key, ours in _SIZES.items()}, layout=layout,
                output_gate=gate)
