# SPDX-License-Identifier: Apache-2.0
"""Where sequences begin in packed rows, and which tokens count, from what transformers says."""

import torch


def shown(shape):
    """A shape as errors of libgdn show it."""
    return "".join(f"[{size}]" for size in shape) or "a number"


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


def check_tensors(**arguments):
    """Raises TypeError with the name of the argument that is neither a tensor nor None."""
    for name, x in arguments.items():
        if not isinstance(x, (torch.Tensor, type(None))):
            raise TypeError(f"{name}: {type(x).__name__}, wanted a tensor")


def check_shape(name, x, shape, device):
    """Raises an error that names the argument, if x is not of this shape and device."""
    if x.shape != torch.Size(shape):
        raise ValueError(f"{name}: {shown(x.shape)}, wanted {shown(shape)}")
    if x.device != device:
        raise ValueError(f"{name}: on {x.device}, but hidden_states on {device}")


def sequences_of(hidden, seq_idx, position_ids):
    """cu_seqlens of hidden [rows][T][hidden size], or None if both others are None."""
    lead, device = hidden.shape[:-1], hidden.device
    if seq_idx is not None:
        check_shape("seq_idx", seq_idx, lead, device)
        return cu_seqlens_of(seq_idx)
    if position_ids is None:
        return None
    if position_ids.dim() == 3:  # text, time, height, width
        check_shape("position_ids", position_ids, (4, *lead), device)
        position_ids = position_ids[0]
    check_shape("position_ids", position_ids, lead, device)
    return cu_seqlens_of(position_ids=position_ids)


def outside(cu_seqlens, n_tokens):
    """Which tokens are in no sequence, [N] bool."""
    at = torch.arange(n_tokens, device=cu_seqlens.device)
    return (at < cu_seqlens[0]) | (at >= cu_seqlens[-1])


def kept_of(mask, hidden, has_cache):
    """
    Which tokens a mask keeps, [B][T] bool, or None if a look shows that it keeps all. Contents are
    looked at on a CPU alone, because a GPU would have to be waited for: there a token counts if
    its mask is 1.
    """
    B, T = hidden.shape[:2]
    if has_cache and mask.dim() == 2:
        mask = mask[:, -T:]  # that of all tokens so far
    check_shape("attention_mask", mask, (B, T), hidden.device)
    kept = mask == 1
    if mask.device.type != "cpu" or torch.compiler.is_compiling():
        return kept
    if kept.all():
        return None
    odd = mask[~kept & (mask != 0)]
    if odd.numel():
        raise ValueError(f"attention_mask: holds {odd[0].item()}, wanted 0 and 1 alone; documents "
                         "that are numbered are packed by seq_idx or cu_seqlens")
    return kept


class Kept:
    """
    The tokens that a mask keeps, moved in front of the others, so that each sequence of a packed
    batch is what is left of it. mask [B][T] bool; cu_seqlens as without the mask, or None if each
    row is a sequence. batch: what says so to an operator. Nothing waits for a GPU.
    """

    def __init__(self, mask, cu_seqlens):
        rows, T = mask.shape
        self._left_out, self._order = ~mask[..., None], None
        if T == 1 and cu_seqlens is None:
            self.batch = {"token_count": mask[:, 0].to(torch.int32)}
            return
        kept = mask.flatten()
        self._order = torch.argsort((~kept).to(torch.uint8), stable=True)
        count = torch.nn.functional.pad(kept.cumsum(0), (1, 0))
        starts = torch.arange(rows + 1, device=mask.device) * T
        cu = starts if cu_seqlens is None else cu_seqlens.long()
        inside = cu.clamp(0, rows * T)  # what lies elsewhere stays, for the operators to refuse
        cu = torch.where(cu == inside, count[inside], cu).to(torch.int32)
        self.batch = {"cu_seqlens": cu, **({} if cu_seqlens is not None else {"max_seqlen": T})}

    def moved(self, x):
        """x [B][T][D] as [N][D] with the kept tokens first. The others are zero, because NaN times
        0 would be NaN."""
        x = x.masked_fill(self._left_out, 0)
        return x if self._order is None else x.flatten(0, 1).index_select(0, self._order)

    def back(self, out):
        """Returns outputs [B][T][D] at the places of their tokens, and zeros elsewhere. Those of a
        packed batch have their places already."""
        if self._order is None:
            return out.masked_fill(self._left_out, 0)
        return out.index_select(0, self._order.argsort()).unflatten(0, self._left_out.shape[:2])
