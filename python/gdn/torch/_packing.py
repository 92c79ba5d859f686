# SPDX-License-Identifier: Apache-2.0
"""Where sequences begin in a packed row, from what transformers says of it."""

import torch


def _starts(seq_idx, position_ids):
    if seq_idx is not None:
        first = torch.ones_like(seq_idx[..., :1], dtype=torch.bool)
        return torch.cat([first, seq_idx[..., 1:] != seq_idx[..., :-1]], -1)
    starts = position_ids == 0
    starts[..., :1] = True
    return starts


def cu_seqlens_of(seq_idx=None, position_ids=None):
    """
    cu_seqlens [B+1] int32 of packed tokens, for the rows one behind the other.

    seq_idx [rows][T]: the number of the sequence of each token (transformers' return_seq_idx,
    causal_conv1d). position_ids [rows][T]: the position of each token in its sequence; one begins
    wherever it is 0. Sequences end with their row. Exactly one of both is given, else ValueError.
    A negative number in seq_idx is one like the others here.

    The number of sequences depends on contents, so on a GPU this waits for the device, and
    torch.compile takes it as an output of unknown size: compute cu_seqlens once for all layers.
    """
    if (seq_idx is None) == (position_ids is None):
        raise ValueError("seq_idx, position_ids: wanted exactly one of both")
    name, x = ("position_ids", position_ids) if seq_idx is None else ("seq_idx", seq_idx)
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name}: {type(x).__name__}, wanted a torch.Tensor")
    if x.dim() not in (1, 2) or x.is_floating_point():
        raise ValueError(f"{name}: {list(x.shape)} of {x.dtype}, wanted [rows, T] of integers")
    starts = _starts(seq_idx, position_ids).flatten()
    ends = starts.new_ones(1)
    return torch.cat([starts, ends]).nonzero().flatten().to(torch.int32)
