# SPDX-License-Identifier: Apache-2.0
"""The Gated DeltaNet layer of Qwen3-Next and Qwen3.5 as a module over the operator block."""

import torch
from torch import nn

from ._block import block
from ._packing import cu_seqlens_of


class Cache:
    """
    What a layer keeps of sequences: conv_state [P][D][W-1] of the dtype of the activations, and
    state [P][Hv][V][K] float32, both zero at first, updated in place by the layer.
    """

    def __init__(self, conv_state, state):
        self.conv_state, self.state = conv_state, state

    def reset(self, slots=None):
        """Makes the slots (an index tensor; None: all) those of new sequences."""
        for pool in (self.conv_state, self.state):
            if slots is None:
                pool.zero_()
            else:
                pool[slots] = 0


class _Norm(nn.Module):
    """The weight of the gated RMSNorm under its name in a checkpoint."""

    def __init__(self, size, **options):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size, **options))


class GatedDeltaNet(nn.Module):
    """
    The layer `linear_attn` of Qwen3-Next (layout "qwen3_next": in_proj_qkvz, in_proj_ba) or of
    Qwen3.5 (layout "qwen3_5": in_proj_qkv, in_proj_z, in_proj_b, in_proj_a). Parameters have the
    names and shapes of transformers, so load_state_dict() takes a checkpoint's tensors.

        layer = GatedDeltaNet.from_config(config).load_layer(tensors, "model.layers.0.linear_attn.")
        cache = layer.new_cache(batch_size)
        with torch.no_grad():
            y = layer(prompt, cache)            # [B][T][hidden], any T
            y = layer(next_token, cache)        # [B][1][hidden]

    Gradients flow to the hidden states and to every parameter, but not through a cache.
    Source: transformers' Qwen3NextGatedDeltaNet and Qwen3_5GatedDeltaNet.
    """

    def __init__(self, hidden_size, key_heads, value_heads, key_dim=128, value_dim=128,
                 conv_kernel=4, rms_eps=1e-6, layout="qwen3_5", device=None, dtype=None):
        super().__init__()
        if layout not in ("qwen3_next", "qwen3_5"):
            raise ValueError(f"layout: {layout!r}, wanted 'qwen3_next' or 'qwen3_5'")
        self.sizes = dict(key_heads=key_heads, value_heads=value_heads, key_dim=key_dim,
                          value_dim=value_dim)
        self.rms_eps, self.layout = rms_eps, layout
        keys, values = key_heads * key_dim, value_heads * value_dim
        channels, options = 2 * keys + values, dict(device=device, dtype=dtype)

        def linear(outputs, inputs=hidden_size):
            return nn.Linear(inputs, outputs, bias=False, **options)

        if layout == "qwen3_next":
            self.in_proj_qkvz = linear(channels + values)
            self.in_proj_ba = linear(2 * value_heads)
        else:
            self.in_proj_qkv = linear(channels)
            self.in_proj_z = linear(values)
            self.in_proj_b = linear(value_heads)
            self.in_proj_a = linear(value_heads)
        self.conv1d = nn.Conv1d(channels, channels, conv_kernel, groups=channels, bias=False,
                                padding=conv_kernel - 1, **options)
        self.dt_bias = nn.Parameter(torch.ones(value_heads, **options))
        self.A_log = nn.Parameter(torch.zeros(value_heads, **options))
        self.norm = _Norm(value_dim, **options)
        self.out_proj = linear(hidden_size, values)

    @classmethod
    def from_config(cls, config, **options):
        """The layer that a configuration of transformers describes (Qwen3NextConfig,
        Qwen3_5TextConfig, ...); options: device, dtype, layout."""
        layout = "qwen3_next" if config.model_type.startswith("qwen3_next") else "qwen3_5"
        return cls(config.hidden_size, config.linear_num_key_heads, config.linear_num_value_heads,
                   config.linear_key_head_dim, config.linear_value_head_dim,
                   config.linear_conv_kernel_dim, config.rms_norm_eps,
                   **{"layout": layout, **options})

    def load_layer(self, tensors, prefix=""):
        """Loads the tensors whose names begin with prefix, as load_state_dict() does. Raises
        RuntimeError that names what is missing or of another shape. Returns the layer."""
        self.load_state_dict({name[len(prefix):]: tensor for name, tensor in tensors.items()
                              if name.startswith(prefix)})
        return self

    def new_cache(self, slots, state_dtype=torch.float32):
        """A Cache of that many slots, with the layer's device and dtype."""
        heads, like = self.sizes, self.out_proj.weight
        channels, _, taps = self.conv1d.weight.shape
        return Cache(like.new_zeros(slots, channels, taps - 1),
                     like.new_zeros(slots, heads["value_heads"], heads["value_dim"],
                                    heads["key_dim"], dtype=state_dtype))

    def _weights(self):
        """The weights as block() takes them."""
        weights = {name: module.weight for name, module in self.named_children()
                   if name.startswith("in_proj")}
        return dict(weights, conv_weight=self.conv1d.weight, A_log=self.A_log,
                    dt_bias=self.dt_bias, norm_weight=self.norm.weight,
                    out_proj=self.out_proj.weight)

    def forward(self, hidden_states, cache=None, *, slots=None, cu_seqlens=None, seq_idx=None,
                position_ids=None, attention_mask=None, token_layout=None):
        """
        hidden_states [B][T][hidden], or packed [1][N][hidden] with one of cu_seqlens [B+1],
        seq_idx [1][N], position_ids [1][N], as transformers packs. position_ids has an effect only
        on one row without a cache. slots [B]: the slots of the cache; absent: slot b for
        sequence b. attention_mask [B][T], 0 for padding on either side: such tokens change no
        state, and their outputs are 0. If T is 1, the mask has no effect. token_layout: a
        distributed.Layout, of which [1][N][hidden] are this rank's tokens; there is no cache then.

        Returns [B][T][hidden].
        """
        batch = dict(read_slots=slots, token_layout=token_layout)
        if token_layout is not None:
            position_ids = None  # the layout says where sequences begin
        if cu_seqlens is None and seq_idx is not None:
            cu_seqlens = cu_seqlens_of(seq_idx)
        elif (cu_seqlens is None and position_ids is not None and cache is None
              and len(hidden_states) == 1):
            cu_seqlens = cu_seqlens_of(position_ids=position_ids[-1:])
        x = hidden_states
        if cu_seqlens is not None or token_layout is not None:
            batch["cu_seqlens"], x = cu_seqlens, x.flatten(0, -2)
        elif attention_mask is not None and x.shape[1] > 1:
            mask = attention_mask[:, -x.shape[1]:].to(torch.int32)
            batch.update(token_start=mask.argmax(1), token_count=mask.sum(1))
        out = block(x, **self._weights(), **self.sizes, rms_eps=self.rms_eps,
                    conv_state=None if cache is None else cache.conv_state,
                    state=None if cache is None else cache.state, **batch)
        return out.view_as(hidden_states)
