# SPDX-License-Identifier: Apache-2.0
"""
The convolution on a rank's tokens. A sequence that comes from another rank starts from its last S
inputs there, the halo, as from an initial state.
"""

import gdn
import torch

from .._autograd import refuse_others, refuse_second
from .._functions import conv1d as local_conv1d


def _sources(layout, part, size):
    """Which rows of the gathered tails [ranges][size] are the halo of a range, the oldest first."""
    rows = []
    for before in layout.path_to(part):  # the nearest range first
        piece = before.pieces[-1]
        known = size if piece.begins else min(size, piece.length)
        rows += [before.slot * size + size - 1 - i for i in range(min(known, size - len(rows)))]
    return rows[::-1]


def _readers(layout, size):
    """For each row of this rank's tails: the rows of the gathered gradients of halos that add up to
    its gradient, in the order of ranges. The row behind the last one is zero."""
    n_rows, zero = layout.per_rank * size, layout.group.size * layout.per_rank * size
    first, found = layout.group.rank * n_rows, [[] for _ in range(n_rows)]
    for part in layout.parts:
        for entry, row in enumerate(_sources(layout, part, size) if part.receives else []):
            if first <= row < first + n_rows:
                found[row - first].append(part.slot * size + entry)
    most = max(1, *map(len, found))
    return [rows + [zero] * (most - len(rows)) for rows in found]


class _Halo(torch.autograd.Function):
    """tails [ranges of this rank][S][D] -> halos [ranges that receive][S][D]. x and state are there
    because a rank that sends no tail has to join the all-gather of the backward pass too."""

    @staticmethod
    def forward(ctx, layout, tails, x, state):
        ctx.layout, size = layout, tails.shape[1]
        rows = layout.group.all_gather(tails.contiguous()).flatten(0, 2)
        table = layout.tensor(("halo", size), rows.device,
                              lambda: [_sources(layout, part, size) for part in layout.receivers])
        return rows[table.view(-1, size)]

    @staticmethod
    def backward(ctx, dhalos):
        refuse_second("distributed.conv1d")
        layout, size = ctx.layout, dhalos.shape[1]
        own = dhalos.new_zeros(layout.per_rank, *dhalos.shape[1:])
        for part, halo in zip(layout.receivers, dhalos):
            own[part.number] = halo
        rows = layout.group.all_gather(own).flatten(0, 2)
        rows = torch.cat([rows, rows.new_zeros(1, rows.shape[-1])])
        table = layout.tensor(("readers", size), rows.device, lambda: _readers(layout, size))
        return None, rows[table].sum(1).view(own.shape), None, None


def _tails(layout, x, first_state, size):
    """The last inputs of each of this rank's ranges [ranges][S][D]. Those that come before the
    range's last piece are zero, and are not read."""
    tails = [x.new_zeros(size, x.shape[-1])] * layout.per_rank
    for part in layout.senders:
        piece = part.pieces[-1]
        rows = x[piece.tokens][-size:]
        if piece.begins and first_state is not None:
            before = first_state[layout.begins.index(piece.sequence)].T
        else:
            before = x.new_zeros(size, x.shape[-1])
        tails[part.number] = torch.cat([before.to(x.dtype), rows])[-size:]
    return torch.stack(tails)


def conv1d(x, weight, bias=None, *, layout, state=None, return_state=False, **options):
    """
    gdn.torch.conv1d() of a batch whose tokens lie on several ranks, as a Layout says. Every rank
    calls it with its own tokens, and, where gradients are needed, every rank runs the backward
    pass: each of the two holds one all-gather, of the last W - 1 inputs of each range.

    x [N][D] or [1][N][D]: this rank's tokens. state [len(layout.begins)][D][S]: the inputs before
    the sequences that begin on this rank. Gradients flow to every tensor; those of weight and bias
    are of this rank's tokens alone.

    Returns out, of the shape of x; with return_state=True (out, the last S inputs
    [len(layout.ends)][D][S] of the sequences that end on this rank).
    """
    refuse_others("distributed.conv1d", {"activation", "max_seqlen", "write"}, options)
    rows = x.flatten(0, -2)
    layout.check_tokens("x", rows)
    layout.check_state(state)
    size = weight.shape[-1] - 1 if state is None else state.shape[-1]
    dtype = x.dtype if state is None else state.dtype
    starts = torch.zeros(layout.n_pieces, size, x.shape[-1], dtype=dtype, device=x.device)
    if state is not None:
        starts = starts.index_copy(0, layout.tensor("begins", x.device).long(),
                                   state.transpose(1, 2))
    if layout.crosses:
        halos = _Halo.apply(layout, _tails(layout, rows, state, size), x, state)
        starts = starts.index_copy(0, layout.tensor("receives", x.device).long(), halos.to(dtype))
    options["write"] = gdn.WRITE_FINAL if return_state else gdn.WRITE_NONE
    result = local_conv1d(rows, weight, bias, state=starts.transpose(1, 2),
                          return_state=return_state, cu_seqlens=layout.cu_seqlens(x.device),
                          **options)
    if not return_state:
        return result.view_as(x)
    return result[0].view_as(x), result[1][layout.tensor("ends", x.device)]
