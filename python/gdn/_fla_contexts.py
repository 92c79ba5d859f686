# SPDX-License-Identifier: Apache-2.0
"""
Contexts of ranks that share sequences, under the names and signatures of FLA 0.6, as gdn.fla takes
them. Used by gdn.fla.install().
"""

import dataclasses

import torch
from torch import distributed


@dataclasses.dataclass
class FLACPContext:
    """
    A rank's part of packed sequences; of a zigzag layout, two parts, and what is true of each.

    is_first, is_last: whether the first sequence begins, and the last ends, in the part. pre and
    post_num_ranks: how many parts before and behind have tokens of these. pre_num_conv_tokens: the
    tokens of the first sequence before the part.
    """

    group: object = None
    cu_seqlens: "torch.Tensor | None" = None
    cu_seqlens_cpu: "torch.Tensor | None" = None
    is_last_rank: "bool | None" = None
    pre_num_ranks: "int | None" = None
    is_first_rank: "bool | None" = None
    post_num_ranks: "int | None" = None
    conv1d_kernel_size: "int | None" = None
    pre_num_conv_tokens: "int | None" = None
    layout: str = "contiguous"
    part_len: "int | None" = None
    front_num_seqs: "int | None" = None
    pre_num_ranks_by_part: "tuple[int, int] | None" = None
    post_num_ranks_by_part: "tuple[int, int] | None" = None
    is_first_by_part: "tuple[bool, bool] | None" = None
    is_last_by_part: "tuple[bool, bool] | None" = None
    pre_num_conv_tokens_by_part: "tuple[int, int] | None" = None

    def copy_for_backward(self):
        """Returns a copy with its own tensors."""
        return dataclasses.replace(self, **{
            name: x.clone() for name in ("cu_seqlens", "cu_seqlens_cpu")
            for x in [getattr(self, name)] if x is not None})

    @property
    def num_seqs(self):
        """How many sequences have tokens on this rank."""
        return 0 if self.cu_seqlens is None else len(self.cu_seqlens) - 1

    @property
    def is_cp_enabled(self):
        """Whether there are ranks."""
        return self.group is not None


def _part(cuts, n, length):
    """The cuts inside part n of so many tokens, and what FLACPContext has of it."""
    start, end = n * length, (n + 1) * length
    inside = [0] + [c - start for c in sorted(set(cuts)) if start < c < end] + [length]
    before, behind = max(c for c in cuts if c <= start), min(c for c in cuts if c >= end)
    return inside, dict(
        is_first=before == start, is_last=behind == end, pre_num_ranks=n - before // length,
        post_num_ranks=(behind - 1) // length - n, pre_num_conv_tokens=start - before)


def build_cp_context(cu_seqlens, group, conv1d_kernel_size=None, cu_seqlens_cpu=None,
                     use_tf32x3_affine_chain=True, layout="contiguous", **kwargs):
    """
    The context of this rank of a group, which takes as many of the cu_seqlens[-1] tokens as every
    other: the next ones, or with layout "zigzag" parts r and 2 R - 1 - r of 2 R. use_tf32x3_affine_
    chain is ignored. Raises ValueError if the tokens cannot be divided so.
    """
    if layout not in ("contiguous", "zigzag"):
        raise ValueError(f"layout: {layout!r}, wanted 'contiguous' or 'zigzag'")
    if kwargs:
        raise TypeError(f"{next(iter(kwargs))}: build_cp_context() has no such argument")
    size, rank = distributed.get_world_size(group), distributed.get_rank(group)
    cuts = (cu_seqlens if cu_seqlens_cpu is None else cu_seqlens_cpu).tolist()
    count = size if layout == "contiguous" else 2 * size
    length = cuts[-1] // count
    if not length or cuts[-1] % count:
        raise ValueError(f"cu_seqlens: {cuts[-1]} tokens, wanted a multiple of {count}, at least "
                         "one each")
    mine = [rank] if layout == "contiguous" else [rank, count - 1 - rank]
    parts = [_part(cuts, n, length) for n in mine]
    local = list(parts[0][0]) + [c + length for inside, _ in parts[1:] for c in inside[1:]]
    local = torch.tensor(local, dtype=torch.int32)
    context = FLACPContext(group, local.to(cu_seqlens.device), local, layout=layout,
                           conv1d_kernel_size=conv1d_kernel_size)
    if layout == "zigzag":
        context.part_len, context.front_num_seqs = length, len(parts[0][0]) - 1
    for name in parts[0][1]:
        values = tuple(its[name] for _, its in parts)
        if layout == "zigzag":
            setattr(context, f"{name}_by_part", values)
        else:
            setattr(context, f"{name}_rank" if name.startswith("is_") else name, values[0])
    return context
