# SPDX-License-Identifier: Apache-2.0
"""The KDA layer of Kimi-Linear, GLM-5.3-Flash and Ling-3.0 as a module."""

from functools import partial

import gdn
import torch
from torch import nn

from ._block import chained, joined, per_channel, raw
from ._config import kda_arguments_of
from ._layer import GatedDeltaNet

_QKV, _CONVS = ("q_proj", "k_proj", "v_proj"), ("q_conv1d", "k_conv1d", "v_conv1d")


def _as_ours(tensors):
    """A checkpoint's tensors under the layer's names: its own, Kimi's or those of transformers."""
    found = {name.removeprefix("forget_gate."): x for name, x in tensors.items()}
    convs = [f"{name}.weight" for name in _CONVS]
    if all(name in found for name in convs):
        found["conv1d.weight"] = torch.cat([found.pop(name) for name in convs])
    for name in "A_log", "dt_bias":
        if name in found:
            found[name] = found[name].flatten()
    return found


class KimiDeltaAttention(GatedDeltaNet):
    """
    The layer `self_attn` of Kimi-Linear's linear layers, whose gates decay each key channel (KDA):
    q_proj, k_proj, v_proj, conv1d, f_a_proj and f_b_proj of the gates, g_a_proj and g_b_proj of the
    output gate, a sigmoid; with full_rank f_proj and g_proj. heads have head_dim as K and V.
    gate_lower_bound bounds the gates.

        layer = KimiDeltaAttention.from_config(config)
        layer.load_layer(tensors, "model.layers.0.self_attn.")

    load_layer() takes the names of Kimi's checkpoints (q_conv1d, k_conv1d and v_conv1d, A_log
    [1][1][heads][1]) and those of transformers (forget_gate.f_a_proj). Calls, caches and gradients
    are as in GatedDeltaNet.

    Source: transformers' KimiLinearDeltaAttention, Glm5NextTextLinearAttention and
    BailingHybridDeltaAttention.
    """

    def __init__(self, hidden_size, heads, head_dim=128, conv_kernel=4, rms_eps=1e-5,
                 gate_lower_bound=None, full_rank=False, device=None, dtype=None):
        nn.Module.__init__(self)
        if gate_lower_bound is not None and not gate_lower_bound < 0:  # 0 would be none
            raise ValueError(f"gate_lower_bound: {gate_lower_bound}, wanted below 0, or None")
        self._full_rank, self.gate_lower_bound = full_rank, gate_lower_bound
        self.layout, self.rms_eps, self.beta_kind = "kimi_linear", rms_eps, gdn.BETA_SIGMOID
        self.sizes = dict(key_heads=heads, value_heads=heads, key_dim=head_dim, value_dim=head_dim)
        down, up = (hidden_size, head_dim), (head_dim, heads * head_dim)
        special = {"b_proj": (hidden_size, heads), "f_a_proj": down, "f_b_proj": up,
                   "g_a_proj": down, "g_b_proj": up}
        shapes = {name: special.get(name, (hidden_size, heads * head_dim))
                  for name in self._projections()}
        self._make(shapes, hidden_size, conv_kernel, heads * head_dim, "sigmoid",
                   dict(device=device, dtype=dtype))

    @classmethod
    def from_config(cls, config, **options):
        """
        The layer that a configuration of transformers describes (KimiLinearConfig,
        Glm5NextTextConfig or BailingHybridConfig), or a dictionary as in config.json. options:
        device, dtype.

        Raises ValueError that names a key which is absent, or which wants what the layer has not.
        """
        return cls(**kda_arguments_of(config), **options)

    def load_layer(self, tensors, prefix=""):
        """As GatedDeltaNet.load_layer(), from any of the names that the class knows."""
        return super().load_layer(_as_ours({name[len(prefix):]: x for name, x in tensors.items()
                                            if name.startswith(prefix)}))

    def _names(self):
        gates = (("f_proj", "g_proj") if self._full_rank else
                 ("f_a_proj", "f_b_proj", "g_a_proj", "g_b_proj"))
        return (*_QKV, "b_proj", *gates), "o_norm", "o_proj"

    def _inputs(self):
        call = {name: partial(self._call, name) for name in self._projections()}
        qkv, b = joined([call[name] for name in _QKV]), call["b_proj"]
        if self._full_rank:
            return qkv, call["g_proj"], b, call["f_proj"]
        return (qkv, chained(call["g_a_proj"], call["g_b_proj"]), b,
                chained(call["f_a_proj"], call["f_b_proj"]))

    def _of_heads(self, dt_bias):
        return dt_bias.unflatten(0, (self.sizes["value_heads"], -1))

    def _rule(self, prefill, **options):
        return per_channel(prefill, self._of_heads(self.dt_bias), A_log=self.A_log,
                           gate_lower_bound=self.gate_lower_bound or 0, **raw(self.beta_kind),
                           **options)
