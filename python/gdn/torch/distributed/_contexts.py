# SPDX-License-Identifier: Apache-2.0
"""
Contexts of FLA (fla.ops.cp.build_cp_context()) and FlashQLA (build_cp_context(enable_inter=True))
as layouts. A context has the sequences of its own rank alone, so the ranks gather theirs, once for
each context.
"""

import torch

from ._group import group_of
from ._layout import Layout


def _parts_of(context):
    """This rank's parts in the order of its tokens: (does its first sequence come from an earlier
    part, lengths of its pieces of sequences)."""
    cuts = context.cu_seqlens if context.cu_seqlens_cpu is None else context.cu_seqlens_cpu
    cuts = cuts.tolist()
    lengths = [end - start for start, end in zip(cuts, cuts[1:])]
    if getattr(context, "layout", "contiguous") == "contiguous":
        return [(not context.is_first_rank, lengths)]
    n = context.front_num_seqs
    return [(not is_first, piece) for is_first, piece in
            zip(context.is_first_by_part, (lengths[:n], lengths[n:]))]


def _gathered(group, numbers):
    """Lists of numbers of all ranks."""
    count = torch.tensor([len(numbers)], device=group.device)
    counts = group.all_gather(count).flatten().tolist()
    mine = torch.tensor(numbers + [0] * (max(counts) - len(numbers)), device=group.device)
    return [row[:n] for row, n in zip(group.all_gather(mine).tolist(), counts)]


def _decode(numbers):
    """Returns the parts of a list of numbers: of each part `continues`, the number of its pieces,
    and their lengths."""
    parts = []
    while numbers:
        n = numbers[1]
        parts.append((numbers[0], numbers[2:2 + n]))
        numbers = numbers[2 + n:]
    return parts


def _make(context):
    group = group_of(context.group)
    numbers = [x for continues, lengths in _parts_of(context)
               for x in (int(continues), len(lengths), *lengths)]
    ranks = [_decode(row) for row in _gathered(group, numbers)]
    is_zigzag = len(ranks[0]) == 2
    parts = [parts[0] for parts in ranks] + [parts[1] for parts in ranks[::-1] if is_zigzag]
    sequences = []
    for continues, lengths in parts:
        if continues and sequences:
            sequences[-1] += lengths[0]
            lengths = lengths[1:]
        sequences += lengths
    cuts = [0]
    for length in sequences:
        cuts.append(cuts[-1] + length)
    return Layout(cuts, group, split="zigzag") if is_zigzag else Layout(
        cuts, group, lengths=[sum(lengths) for _, lengths in parts])


def layout_of(context):
    """
    The Layout of a context; None if its ranks share no sequence (a context without a group). Every
    rank calls it with its context. Raises NotImplementedError for another object, and for a context
    whose numbers are on the device for a graph.
    """
    if getattr(context, "cu_seqlens", None) is None or not hasattr(context, "group"):
        raise NotImplementedError(f"cp_context: {type(context).__name__}, wanted a context of FLA "
                                  "or FlashQLA with cu_seqlens")
    if getattr(context, "pre_num_ranks_dev", None) is not None:
        raise NotImplementedError("cp_context: with pre_num_ranks_dev, wanted a context whose "
                                  "numbers are on the host")
    if context.group is None or not getattr(context, "is_inter", True):
        return None
    if getattr(context, "_gdn_layout", None) is None:
        context._gdn_layout = _make(context)
    return context._gdn_layout
