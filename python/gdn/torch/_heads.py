# SPDX-License-Identifier: Apache-2.0
"""Tensor parallelism: the heads of a layer over the ranks of a group."""

from functools import partial

import gdn
import torch
from torch.func import functional_call

from ._layer import GatedDeltaNet, _Conv
from ._plain import is_whole
from .distributed._group import group_of, total


class _Copy(torch.autograd.Function):
    """A tensor that every rank has. Its gradient is the sum over all ranks."""

    @staticmethod
    def forward(ctx, group, x):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dx):
        return None, total(ctx.group, dx)


class _Sum(torch.autograd.Function):
    """The sum over ranks, of which each needs the gradient of its own part."""

    @staticmethod
    def forward(ctx, group, x):
        return total(group, x)

    @staticmethod
    def backward(ctx, dout):
        return None, dout


class _Keys(torch.autograd.Function):
    """Rows of weights whose first ones belong to the heads of q and k. Copies of a head, on this
    rank or on others, all get the sum of their gradients."""

    @staticmethod
    def forward(ctx, group, heads, key_dim, weight):
        ctx.group, ctx.heads, ctx.key_dim = group, heads, key_dim
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx, dweight):
        heads, own = ctx.heads, ctx.heads[ctx.group.rank]
        most, n_rows = max(map(len, heads)), 2 * len(own) * ctx.key_dim
        dkeys = dweight[:n_rows].unflatten(0, (2, len(own), ctx.key_dim))
        sent = dweight.new_zeros(2, most, *dkeys.shape[2:])
        sent[:, :len(own)] = dkeys
        received = ctx.group.all_gather(sent)
        copies = [(rank, i, head) for rank, ids in enumerate(heads) for i, head in enumerate(ids)]
        sums = {head: sum(received[rank, :, i] for rank, i, other in copies if other == head)
                for head in set(own)}
        first = torch.stack([sums[head] for head in own], 1).flatten(0, 2)
        return None, None, None, torch.cat([first, dweight[n_rows:]])


def _heads_of(size, key_heads, value_heads):
    """Returns for each rank its first value head, the one behind its last, and its key heads.

    Key heads are those that its value heads read, or a copy for each value head if these do not
    divide evenly."""
    if size > value_heads:
        raise ValueError(f"group: {size} ranks, but the layer has {value_heads} value heads")
    times, shares = value_heads // key_heads, []
    for rank in range(size):
        first, end = (value_heads * i // size for i in (rank, rank + 1))
        each = [head // times for head in range(first, end)]
        heads = sorted(set(each))
        is_even = all(each.count(head) * len(heads) == len(each) for head in heads)
        shares.append((first, end, heads if is_even else each))
    return shares


def _projections(layer):
    """Weights of the input projections as Qwen3.5 has them: (q, k, v, z, b, a), by heads."""
    sizes = layer.sizes
    hk, hv, K, V = (sizes[n] for n in ("key_heads", "value_heads", "key_dim", "value_dim"))
    if layer.layout == "qwen3_next":
        times = hv // hk
        parts = layer.in_proj_qkvz.weight.unflatten(0, (hk, -1)).split(
            (K, K, times * V, times * V), 1)
        parts += layer.in_proj_ba.weight.unflatten(0, (hk, -1)).split(times, 1)
        q, k, v, z, b, a = (part.flatten(0, 1) for part in parts)
    else:
        q, k, v = layer.in_proj_qkv.weight.split((hk * K, hk * K, hv * V))
        z, b, a = layer.in_proj_z.weight, layer.in_proj_b.weight, layer.in_proj_a.weight
    return tuple(x.unflatten(0, (n, -1)) for x, n in zip((q, k, v, z, b, a),
                                                         (hk, hk, hv, hv, hv, hv)))


class HeadShare(GatedDeltaNet):
    """
    A rank's heads of a layer (tensor parallelism). Every rank makes it of the whole layer and calls
    it with the same hidden states; the output is the sum over ranks.

        share = HeadShare(layer, group)        # a GatedDeltaNet with fewer heads, layout "qwen3_5"
        y = share(x)

    Rank r of n has the value heads from Hv r // n to Hv (r + 1) // n, at least one, and the key
    heads that they read. A key head may be on several ranks; all copies get the same gradients. The
    forward pass has one sum over ranks, the backward pass one for the hidden states, one for the
    norm's weight and, where key heads have copies, one all-gather for each weight that has rows of
    them. group is as for distributed.Layout. With token_layout, tokens are divided too, over
    another group.
    """

    def __init__(self, layer, group=None):
        if layer.layout not in ("qwen3_next", "qwen3_5"):
            raise TypeError(f"layer: of the layout {layer.layout}, wanted qwen3_next or qwen3_5")
        names = [name for name, weight in layer._child_weights().items() if weight is None]
        if names or layer.conv1d.bias is not None:
            raise TypeError(f"layer: {', '.join(names or ['conv1d'])}: more than a weight (an "
                            "adapter, hooks, a bias, a parametrisation), wanted plain weights")
        group = group_of(group)
        sizes = layer.sizes
        shares = _heads_of(group.size, sizes["key_heads"], sizes["value_heads"])
        first, end, keys = shares[group.rank]
        weight = layer.out_proj.weight
        super().__init__(weight.shape[0], len(keys), end - first, sizes["key_dim"],
                         sizes["value_dim"], layer.conv1d.weight.shape[-1], layer.norm.eps,
                         output_gate=layer.norm.gate, device=weight.device, dtype=weight.dtype,
                         allow_neg_eigval=layer.beta_kind == gdn.BETA_TWICE_SIGMOID)
        self._group, self._key_heads = group, [share[2] for share in shares]
        copies = [head for heads in self._key_heads for head in heads]
        self._has_copies = len(copies) > len(set(copies))
        self._load_share(layer, keys, slice(first, end))

    @torch.no_grad()
    def _load_share(self, layer, keys, values):
        def flat(parts):
            return torch.cat([part[heads].flatten(0, 1) for part, heads in parts])

        q, k, v, z, b, a = _projections(layer)
        sizes, columns = layer.sizes, layer.sizes["value_heads"]
        channels = layer.conv1d.weight.split(
            [sizes[n] * sizes[d] for n, d in (("key_heads", "key_dim"),) * 2
             + (("value_heads", "value_dim"),)])
        counts = sizes["key_heads"], sizes["key_heads"], columns
        conv = [x.unflatten(0, (n, -1)) for x, n in zip(channels, counts)]
        self.in_proj_qkv.weight.copy_(flat([(q, keys), (k, keys), (v, values)]))
        self.conv1d.weight.copy_(flat(list(zip(conv, (keys, keys, values)))))
        for module, part in ((self.in_proj_z, z), (self.in_proj_b, b), (self.in_proj_a, a)):
            module.weight.copy_(flat([(part, values)]))
        self.A_log.copy_(layer.A_log[values])
        self.dt_bias.copy_(layer.dt_bias[values])
        self.norm.weight.copy_(layer.norm.weight)
        self.out_proj.weight.copy_(
            layer.out_proj.weight.unflatten(1, (columns, -1))[:, values].flatten(1))

    def _shared(self, name):
        """The function of a child's weight that adds up gradients over ranks, or None."""
        if name == "norm":
            return partial(_Copy.apply, self._group)
        if name in ("in_proj_qkv", "conv1d") and self._has_copies:
            return partial(_Keys.apply, self._group, self._key_heads, self.sizes["key_dim"])
        return None

    def _call(self, name, *args, **kwargs):
        module, shared = self._modules[name], self._shared(name)
        if shared is None or not torch.is_grad_enabled():
            return super()._call(name, *args, **kwargs)
        if [n for n, _ in module.named_parameters()] != ["weight"] or not is_whole(module.weight):
            raise TypeError(f"{name}: a {type(module).__qualname__}; gradients of its weight are "
                            "added up over ranks, so it can have no other parameters")
        return functional_call(module, {"weight": shared(module.weight)}, args, kwargs)

    def _convolve(self, x, **options):
        if not isinstance(self.conv1d, _Conv):
            raise TypeError(f"conv1d: a {type(self.conv1d).__qualname__}, wanted the share's own")
        return super()._convolve(x, **options)

    def forward(self, hidden_states, *args, **kwargs):
        """As GatedDeltaNet.forward(); caches and states are of this rank's heads."""
        out = super().forward(_Copy.apply(self._group, hidden_states), *args, **kwargs)
        return _Sum.apply(self._group, out)
