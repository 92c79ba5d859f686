# SPDX-License-Identifier: Apache-2.0
"""The Gated DeltaNet layer of Qwen3-Next, Qwen3.5 and OLMo-Hybrid as a module over operators."""

import re
from functools import partial

import gdn
import torch
from torch import nn

from ._autograd import given, needs_grad
from ._block import block, composed, joined, operators_of, raw
from ._config import arguments_of
from ._functions import rmsnorm_gated
from ._named import renamed
from ._packing import Kept, check_shape, check_tensors, kept_of, outside, sequences_of, shown
from ._plain import has_global_hooks, is_hooked, weight_of


class Cache:
    """
    What a layer keeps of sequences: conv_state [P][D][W-1] of the dtype of the activations, and
    state [P][Hv][V][K] float32, both zero at first, updated in place by the layer.
    """

    def __init__(self, conv_state, state):
        self.conv_state, self.state = conv_state, state

    def reset(self, slots=None):
        """Makes slots (an index tensor; None: all) those of new sequences. Negative: skipped."""
        for pool in (self.conv_state, self.state):
            pool[slice(None) if slots is None else slots[slots >= 0]] = 0


class _Norm(nn.Module):
    """The gated RMSNorm under its name in a checkpoint."""

    def __init__(self, size, eps, gate, **options):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size, **options))
        self.eps, self.gate = eps, gate

    @property
    def activation(self):
        """The gate's function as a number of gdn.h."""
        return gdn.ACT_SIGMOID if self.gate == "sigmoid" else gdn.ACT_SILU

    def forward(self, x, z):
        return rmsnorm_gated(x, z, self.weight, eps=self.eps, activation=self.activation)


class _Conv(nn.Conv1d):
    """The convolution under its name in a checkpoint, over tokens [..][T][channels]. operator: that
    of this process or of a rank."""

    def forward(self, x, operator, **options):
        return operator(x, self.weight, self.bias, activation=gdn.ACT_SILU, **options)


def _refuse_meta(name, module, x):
    """torch's product with a weight on meta is no error, and computes nothing. A hook of accelerate
    brings the weight."""
    weight = module.__dict__["_parameters"].get("weight")
    if weight is not None and weight.is_meta and not x.is_meta and not is_hooked(module):
        raise RuntimeError(f"{name}.weight: on meta, but hidden_states on {x.device}")


def _is_depthwise(conv):
    """Whether a torch.nn.Conv1d computes each channel alone, and every token."""
    return (conv.groups, conv.stride, conv.dilation) == (conv.in_channels, (1,), (1,))


def _is_cast(x):
    """Whether torch.autocast chooses the dtypes of products with x."""
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)


_GATE = re.compile(r"(parametrizations\.)?(A_log|dt_bias)(\.original\d*)?$")
# The input projections, norm and last projection.
_NAMES = {
    "qwen3_next": (("in_proj_qkvz", "in_proj_ba"), "norm", "out_proj"),
    "qwen3_5": (("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"), "norm", "out_proj"),
    "olmo_hybrid": (("q_proj", "k_proj", "v_proj", "g_proj", "b_proj", "a_proj"), "o_norm",
                    "o_proj"),
}
# The names that block() has for weights, where a layer has others.
_OF_BLOCK = {"q_proj": "in_proj_q", "k_proj": "in_proj_k", "v_proj": "in_proj_v",
             "b_proj": "in_proj_b", "a_proj": "in_proj_a", "f_proj": "in_proj_a",
             "f_a_proj": "in_proj_a_down", "f_b_proj": "in_proj_a", "g_proj": "in_proj_z",
             "g_a_proj": "in_proj_z_down", "g_b_proj": "in_proj_z", "o_proj": "out_proj"}
_LINEAR, _CONVS, _NORM = (nn.Linear,), (_Conv, nn.Conv1d), (_Norm,)


class GatedDeltaNet(nn.Module):
    """
    The layer `linear_attn` of Qwen3-Next (layout "qwen3_next": in_proj_qkvz, in_proj_ba), of
    Qwen3.5 (layout "qwen3_5": in_proj_qkv, in_proj_z, in_proj_b, in_proj_a) or of OLMo-Hybrid
    (layout "olmo_hybrid": q_proj, k_proj, v_proj, g_proj, b_proj, a_proj). Parameters have the
    names and shapes of transformers, so load_state_dict() takes a checkpoint's tensors.

        layer = GatedDeltaNet.from_config(config).load_layer(tensors, "model.layers.0.linear_attn.")
        cache = layer.new_cache(batch_size)
        with torch.no_grad():
            y = layer(prompt, cache)            # [B][T][hidden], any T
            y = layer(next_token, cache)        # [B][1][hidden]

    output_gate: "silu" or "sigmoid". allow_neg_eigval: beta is twice the sigmoid.

    Gradients flow to the hidden states and to every parameter, but not through a cache.
    Source: transformers' Qwen3NextGatedDeltaNet, Qwen3_5GatedDeltaNet and OlmoHybridGatedDeltaNet.
    """

    gate_lower_bound = None

    def __init__(self, hidden_size, key_heads, value_heads, key_dim=128, value_dim=128,
                 conv_kernel=4, rms_eps=1e-6, layout="qwen3_5", output_gate="silu", device=None,
                 dtype=None, allow_neg_eigval=False):
        super().__init__()
        if layout not in _NAMES:
            raise ValueError(f"layout: {layout!r}, wanted one of {', '.join(_NAMES)}")
        if output_gate not in ("silu", "sigmoid"):
            raise ValueError(f"output_gate: {output_gate!r}, wanted 'silu' or 'sigmoid'")
        keys, values = key_heads * key_dim, value_heads * value_dim
        outputs = {"in_proj_qkvz": 2 * (keys + values), "in_proj_ba": 2 * value_heads,
                   "in_proj_qkv": 2 * keys + values, "in_proj_z": values, "g_proj": values,
                   "q_proj": keys, "k_proj": keys, "v_proj": values}
        self.layout, self.rms_eps = layout, rms_eps
        self.sizes = dict(key_heads=key_heads, value_heads=value_heads, key_dim=key_dim,
                          value_dim=value_dim)
        self.beta_kind = gdn.BETA_TWICE_SIGMOID if allow_neg_eigval else gdn.BETA_SIGMOID
        shapes = {name: (hidden_size, outputs.get(name, value_heads))  # of b and a: heads
                  for name in self._projections()}
        self._make(shapes, hidden_size, conv_kernel, value_heads, output_gate,
                   dict(device=device, dtype=dtype))

    def _make(self, shapes, hidden_size, conv_kernel, biases, output_gate, options):
        """Makes the parts of a layer: projections of these shapes, gates with so many biases, and
        the rest."""
        sizes, (_, norm, out_proj) = self.sizes, self._names()
        values = sizes["value_heads"] * sizes["value_dim"]
        channels = 2 * sizes["key_heads"] * sizes["key_dim"] + values
        of_gates = dict(device=options["device"], dtype=torch.float32)
        for name, (inputs, outputs) in shapes.items():
            setattr(self, name, nn.Linear(inputs, outputs, bias=False, **options))
        self.conv1d = _Conv(channels, channels, conv_kernel, groups=channels, bias=False,
                            padding=conv_kernel - 1, **options)
        self.dt_bias = nn.Parameter(torch.ones(biases, **of_gates))
        self.A_log = nn.Parameter(torch.zeros(sizes["value_heads"], **of_gates))
        setattr(self, norm, _Norm(sizes["value_dim"], self.rms_eps, output_gate, **options))
        setattr(self, out_proj, nn.Linear(values, hidden_size, bias=False, **options))

    @classmethod
    def from_config(cls, config, *, layout=None, **options):
        """
        The layer that a configuration of transformers describes (Qwen3NextConfig, Qwen3_5Config,
        its text_config, ...), or a dictionary as in config.json. layout: for a model_type that is
        not known here. options: device, dtype.

        Raises ValueError that names a key which is absent, or which wants what the layer has not.
        """
        return cls(**arguments_of(config, layout), **options)

    def load_layer(self, tensors, prefix=""):
        """Loads the tensors whose names begin with prefix, as load_state_dict() does. Raises
        RuntimeError that names what is missing or of another shape. Returns the layer."""
        self.load_state_dict({name[len(prefix):]: tensor for name, tensor in tensors.items()
                              if name.startswith(prefix)})
        return self

    def _apply(self, fn, recurse=True):
        """A_log and dt_bias stay float32, as the models keep them: half() and to() move them."""
        own = [x for name, p in self.named_parameters() if _GATE.match(name)
               for x in (p, p.grad) if x is not None]

        def convert(x):
            new = fn(x)
            is_narrow = new.dtype.itemsize < 4 and any(x is y for y in own)
            return x.to(new.device, torch.float32) if is_narrow else new

        return super()._apply(convert, recurse)

    def new_cache(self, slots, state_dtype=torch.float32, *, device=None, dtype=None):
        """A Cache of that many slots. device, and dtype of the activations: those of the weight of
        conv1d, if absent."""
        sizes, like = self.sizes, self.conv1d.weight
        device = like.device if device is None else torch.device(device)
        if device.type == "meta":
            raise ValueError("device: absent, and the weight of conv1d is on meta; wanted the one "
                             "that the layer computes on")
        channels, _, taps = like.shape
        return Cache(torch.zeros(slots, channels, taps - 1, device=device,
                                 dtype=like.dtype if dtype is None else dtype),
                     torch.zeros(slots, sizes["value_heads"], sizes["value_dim"],
                                 sizes["key_dim"], device=device, dtype=state_dtype))

    # ---- Parts ---------------------------------------------------------------------------------

    def _names(self):
        """The names of the input projections, of the norm and of the last projection."""
        return _NAMES[self.layout]

    def _projections(self):
        return self._names()[0]

    def _child_weights(self):
        """{name of a child: its weight; None if a call of the child does more than multiply by
        it}."""
        parts, (inputs, norm, out_proj) = self._modules, self._names()
        weights = {name: weight_of(parts[name], _LINEAR) for name in (*inputs, out_proj)}
        conv = parts["conv1d"]
        is_ours = type(conv) is not nn.Conv1d or _is_depthwise(conv)
        weights["conv1d"] = weight_of(conv, _CONVS, takes_bias=True) if is_ours else None
        weights[norm] = weight_of(parts[norm], _NORM)
        return weights

    def _plain_weights(self):
        """Returns all weights as block() takes them, or None if block() would compute something
        else."""
        weights, own = self._child_weights(), self._parameters
        conv_weight, norm_weight = weights.pop("conv1d"), weights.pop(self._names()[1])
        if (conv_weight is None or norm_weight is None or has_global_hooks()
                or any(weight is None for weight in weights.values())):
            return None
        weights = {_OF_BLOCK.get(name, name): weight for name, weight in weights.items()}
        dt_bias = own["dt_bias"] if "dt_bias" in own else self.dt_bias
        return dict(weights, conv_weight=conv_weight, norm_weight=norm_weight,
                    conv_bias=self._modules["conv1d"].__dict__["_parameters"]["bias"],
                    A_log=own["A_log"] if "A_log" in own else self.A_log,
                    dt_bias=self._of_heads(dt_bias))

    def _of_heads(self, dt_bias):
        """dt_bias as the rule takes it."""
        return dt_bias

    def _call(self, name, *args, **kwargs):
        """Calls a child: so adapters, hooks, parametrisations and offloading work."""
        _refuse_meta(name, self._modules[name], args[0])
        return self._modules[name](*args, **kwargs)

    def _convolve(self, x, **options):
        conv, channels = self.conv1d, x.shape[-1]
        if isinstance(conv, _Conv):
            return self._call("conv1d", x, **options)
        if type(conv) is not nn.Conv1d or is_hooked(conv):
            raise TypeError(f"conv1d: a {type(conv).__module__}.{type(conv).__qualname__}, which "
                            "the layer cannot call; wanted its own, or torch.nn.Conv1d without "
                            "hooks")
        if not _is_depthwise(conv):
            raise ValueError(f"conv1d: {conv}, wanted one of groups={channels}, stride 1, "
                             "dilation 1")
        return _Conv.forward(conv, x, **options)

    def _inputs(self):
        """The input projections as composed() takes them."""
        calls = [partial(self._call, name) for name in self._projections()]
        return [joined(calls[:3]), *calls[3:]] if len(calls) == 6 else calls

    def _rule(self, prefill, **options):
        """The rule of a call: a function of q, k, v, a and b."""
        return partial(prefill, A_log=self.A_log, dt_bias=self.dt_bias, **raw(self.beta_kind),
                       **options)

    def _composed(self, x, conv_state, state, token_layout, batch):
        """The layer by calls of its children."""
        operators, sizes = operators_of(token_layout), self.sizes
        _, norm, out_proj = self._names()
        if token_layout is not None:
            batch = {"layout": token_layout}
        conv = partial(self._convolve, operator=operators.conv1d, state=conv_state, **batch)
        rule = self._rule(operators.prefill, state=state, **batch)
        return composed(x, self._inputs(), conv, rule, partial(self._call, norm),
                        partial(self._call, out_proj), (sizes["key_heads"], sizes["value_heads"]),
                        (sizes["key_dim"], sizes["value_dim"]))

    def _run(self, x, conv_state, state, token_layout, batch):
        by_parts = token_layout is not None or _is_cast(x)
        weights = None if by_parts else self._plain_weights()
        if weights is not None and not needs_grad((x, *weights.values())):
            norm = self._modules[self._names()[1]]
            bound = dict(gate_lower_bound=self.gate_lower_bound) if self.gate_lower_bound else {}
            return block(x, **weights, **self.sizes, rms_eps=norm.eps, activation=norm.activation,
                         beta_kind=self.beta_kind, conv_state=conv_state, state=state, **bound,
                         **batch)
        out = self._composed(x, conv_state, state, token_layout, batch)
        if weights is None and "cu_seqlens" in batch:  # a bias of a child would show
            out = out.masked_fill(outside(batch["cu_seqlens"], len(out))[:, None], 0)
        return out

    # ---- The call ------------------------------------------------------------------------------

    def _check_cache(self, x, cache, slots, cu_seqlens):
        if cache is None:
            if slots is not None:
                raise ValueError("slots: given without a cache")
            return
        if not hasattr(cache, "conv_state"):
            raise TypeError(f"cache: {type(cache).__name__}, wanted one of new_cache()")
        if torch.is_grad_enabled() and needs_grad((x, *self.parameters())):
            raise RuntimeError("cache: its states would be written in place, where gradients are "
                               "needed; call the layer under torch.no_grad(), or without a cache")
        if torch.compiler.is_compiling():  # the number of sequences may not be known yet
            return
        count = len(cu_seqlens) - 1 if cu_seqlens is not None else len(x) if x.dim() > 2 else 1
        if slots is not None and slots.shape != (count,):
            raise ValueError(f"slots: {shown(slots.shape)}, wanted [{count}]")
        if slots is None and count > len(cache.state):
            raise ValueError(f"cache: {len(cache.state)} slots for {count} sequences")

    @renamed(hidden="hidden_states", x="hidden_states", read_slots="slots")
    def forward(self, hidden_states, cache=None, *, slots=None, cu_seqlens=None, seq_idx=None,
                position_ids=None, attention_mask=None, token_layout=None):
        """
        hidden_states [B][T][hidden], or packed [1][N][hidden] with one of cu_seqlens [B+1],
        seq_idx [1][N], position_ids [1][N] (or [4][1][N], text first), as transformers packs.
        position_ids has an effect only on one row without a cache. slots [B]: the slots of the
        cache; absent: slot b for sequence b.

        attention_mask [B][T] of 0 and 1, with a cache also of all tokens so far: tokens of 0,
        wherever they are, count as if they were not there, and their outputs are 0. On a GPU
        contents are not looked at: a token counts if its mask is 1.

        token_layout: a distributed.Layout, of which [1][N][hidden] are this rank's tokens; there is
        no cache and no mask then, and position_ids has no effect.

        Returns [B][T][hidden].
        """
        if hidden_states is None:
            raise TypeError("hidden_states: None, wanted a tensor")
        check_tensors(hidden_states=hidden_states, slots=slots, cu_seqlens=cu_seqlens,
                      seq_idx=seq_idx, position_ids=position_ids, attention_mask=attention_mask)
        if hidden_states.dim() not in ((2, 3) if attention_mask is None else (3,)):
            raise ValueError(f"hidden_states: {shown(hidden_states.shape)}, wanted [B][T][hidden]")
        x, kept = hidden_states, None
        if token_layout is not None:
            _refuse_beside_layout(cache=cache, slots=slots, cu_seqlens=cu_seqlens, seq_idx=seq_idx,
                                  attention_mask=attention_mask)
            return self._run(x.flatten(0, -2), None, None, token_layout, {}).view_as(x)
        if cu_seqlens is None:
            is_row = cache is None and len(x) == 1
            cu_seqlens = sequences_of(x, seq_idx, position_ids if is_row else None)
        elif seq_idx is not None:  # seq_idx and cu_seqlens both say where sequences begin
            check_shape("seq_idx", seq_idx, x.shape[:-1], x.device)
        self._check_cache(x, cache, slots, cu_seqlens)
        batch = given(("read_slots", "cu_seqlens"), (slots, cu_seqlens))
        if attention_mask is not None:
            kept = kept_of(attention_mask, x, cache is not None)
        if kept is not None:
            kept = Kept(kept, cu_seqlens)
            batch.update(kept.batch)
            x = kept.moved(x)
        elif cu_seqlens is not None:
            x = x.flatten(0, -2)
        out = self._run(x, None if cache is None else cache.conv_state,
                        None if cache is None else cache.state, None, batch)
        out = out if kept is None else kept.back(out)
        # Without need no view: FSDP2 loses gradients if a caller then adds to one in place.
        return out if out.shape == hidden_states.shape else out.view_as(hidden_states)


def _refuse_beside_layout(**arguments):
    for name, x in arguments.items():
        if x is not None:
            raise ValueError(f"{name}: given beside token_layout")
