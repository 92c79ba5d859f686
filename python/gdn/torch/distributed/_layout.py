# SPDX-License-Identifier: Apache-2.0
"""Which tokens of a packed batch each rank holds, and which ranges a state passes through."""

import bisect
import hashlib
from typing import NamedTuple

import torch

from ._group import group_of


class Piece(NamedTuple):
    """The tokens that one range has of one sequence."""

    sequence: int
    row: int  # the piece's number on its rank
    first: int  # its first token, counted on its rank
    length: int
    begins: bool  # with the first token of the sequence
    ends: bool  # with the last one

    @property
    def tokens(self):
        return slice(self.first, self.first + self.length)


class Part(NamedTuple):
    """A range of tokens of one rank."""

    rank: int
    number: int  # among the ranges of its rank
    slot: int  # among those of all ranks, in what an all-gather returns
    pieces: tuple

    @property
    def receives(self):
        """Whether its first sequence comes from an earlier range."""
        return bool(self.pieces) and not self.pieces[0].begins

    @property
    def sends(self):
        """Whether its last sequence goes on in a later range."""
        return bool(self.pieces) and not self.pieces[-1].ends


# ---- Ranges --------------------------------------------------------------------------------------


def _ranges_of(n_tokens, size, split, lengths, ranges):
    """Returns for each rank its ranges (start, end)."""
    if ranges is not None:
        return [[(int(start), int(end)) for start, end in rank] for rank in ranges]
    if split == "zigzag":
        cuts = [n_tokens * i // (2 * size) for i in range(2 * size + 1)]
        return [[(cuts[i], cuts[i + 1]) for i in (rank, 2 * size - 1 - rank)]
                for rank in range(size)]
    if split != "contiguous":
        raise ValueError(f"split: {split!r}, wanted 'contiguous' or 'zigzag'")
    if lengths is None:
        lengths = [n_tokens * (i + 1) // size - n_tokens * i // size for i in range(size)]
    cuts = [0]
    for length in lengths:
        cuts.append(cuts[-1] + int(length))
    return [[pair] for pair in zip(cuts, cuts[1:])]


def _check(cu_seqlens, ranges, size):
    """Ends do not fall, and the ranges hold every token once."""
    if len(cu_seqlens) < 2 or cu_seqlens[0] != 0 or cu_seqlens != sorted(cu_seqlens):
        raise ValueError(f"cu_seqlens: begins with {cu_seqlens[:4]}, wanted 0 and then at least "
                         "one end, none below the one before")
    if len(ranges) != size:
        raise ValueError(f"ranges: those of {len(ranges)} ranks, wanted {size}")
    end = 0
    for start, stop in sorted(pair for rank in ranges for pair in rank):
        if start != end or stop < start:
            raise ValueError(f"ranges: {start} to {stop} follows {end}, wanted every token once")
        end = stop
    if end != cu_seqlens[-1]:
        raise ValueError(f"ranges: {end} tokens in all, cu_seqlens has {cu_seqlens[-1]}")


def _cut(cu_seqlens, start, end, is_last):
    """Returns the sequences of a range as (number, first token, last token + 1). An empty sequence
    is in the range whose tokens it stands before; behind all tokens, in the last range."""
    found = []
    i = bisect.bisect_left(cu_seqlens, start, 1) - 1
    while i + 1 < len(cu_seqlens) and cu_seqlens[i] <= end:
        first, last = max(cu_seqlens[i], start), min(cu_seqlens[i + 1], end)
        if cu_seqlens[i] == cu_seqlens[i + 1]:
            is_here = start <= cu_seqlens[i] < end or (is_last and cu_seqlens[i] == end)
        else:
            is_here = first < last
        if is_here:
            found.append((i, first, last))
        i += 1
    return found


def _parts_of(cu_seqlens, ranges):
    """Returns all parts in the order of their tokens."""
    last = max((pair, rank, i) for rank, pairs in enumerate(ranges) for i, pair in enumerate(pairs))
    per_rank, parts = max(map(len, ranges)), []
    for rank, pairs in enumerate(ranges):
        row = token = 0
        for number, (start, end) in enumerate(pairs):
            pieces = []
            for i, a, b in _cut(cu_seqlens, start, end, ((start, end), rank, number) == last):
                pieces.append(Piece(i, row, token + a - start, b - a, a == cu_seqlens[i],
                                    b == cu_seqlens[i + 1]))
                row += 1
            parts.append(((start, end, rank, number),
                          Part(rank, number, rank * per_rank + number, tuple(pieces))))
            token += end - start
    return [part for _, part in sorted(parts, key=lambda pair: pair[0])]


class Layout:
    """
    Which tokens of a packed batch each rank of a group holds.

        layout = Layout(cu_seqlens, group)                        # even ranges, one for each rank
        layout = Layout(cu_seqlens, group, lengths=[100, 28])     # so many tokens for each rank
        layout = Layout(cu_seqlens, group, split="zigzag")        # ranges r and 2 size - 1 - r
        layout = Layout(cu_seqlens, group, ranges=[[(0, 7), (20, 31)], [(7, 20)]])  # any, by rank

    cu_seqlens [B+1] is that of the whole batch, in host memory. group is a group of
    torch.distributed (None: the default one), or an object with rank, size, device and
    all_gather(tensor). Every rank makes the layout of a batch with the same arguments. A hash of
    them is compared: where it differs, or where one rank cannot make its layout, every rank raises
    ValueError.

    ranges: what this rank holds, in its order. begins and ends: the numbers of the sequences whose
    first token, whose last token this rank holds, in the order of its tokens. An empty sequence
    begins and ends on one rank.
    """

    def __init__(self, cu_seqlens, group=None, *, split="contiguous", lengths=None, ranges=None):
        self.group = group_of(group)
        self._tensors, error = {}, None
        try:
            cu_seqlens = [int(x) for x in cu_seqlens]
            ranges = _ranges_of(cu_seqlens[-1] if cu_seqlens else 0, self.group.size, split,
                                lengths, ranges)
            _check(cu_seqlens, ranges, self.group.size)
            self._plan(cu_seqlens, ranges)
        except Exception as caught:  # to be raised once the other ranks have heard of it
            error = caught
        self._compare((cu_seqlens, ranges), error)

    def _plan(self, cu_seqlens, ranges):
        self.ranges, self.per_rank = ranges[self.group.rank], max(map(len, ranges))
        self.parts = _parts_of(cu_seqlens, ranges)
        self.mine = sorted((part for part in self.parts if part.rank == self.group.rank),
                           key=lambda part: part.number)
        self.crosses = any(part.sends for part in self.parts)
        self.receivers = [part for part in self.mine if part.receives]
        self.senders = [part for part in self.mine if part.sends]
        pieces = [piece for part in self.mine for piece in part.pieces]
        self.n_pieces, self.n_tokens = len(pieces), sum(piece.length for piece in pieces)
        self.begins = [piece.sequence for piece in pieces if piece.begins]
        self.ends = [piece.sequence for piece in pieces if piece.ends]
        cuts = [0]
        for piece in pieces:
            cuts.append(cuts[-1] + piece.length)
        self._lists = dict(
            cu_seqlens=cuts, begins=[piece.row for piece in pieces if piece.begins],
            ends=[piece.row for piece in pieces if piece.ends],
            receives=[part.pieces[0].row for part in self.receivers],
            sends=[part.pieces[-1].row for part in self.senders],
            forward=_padded([[part.slot for part in self.path_to(part)[::-1]]
                             for part in self.receivers]),
            backward=_padded([[part.slot for part in self.path_from(part)[::-1]]
                              for part in self.senders]))

    def _compare(self, arguments, error):
        """Every rank made its layout, and of the same arguments."""
        digest = hashlib.sha256(repr(arguments).encode()).digest()
        key = 0 if error else 1 + int.from_bytes(digest[:7], "little")
        mine = torch.tensor([key], dtype=torch.int64, device=self.group.device)
        keys = self.group.all_gather(mine).flatten().tolist()
        if error:
            raise error
        for rank, other in enumerate(keys):
            if other == 0:
                raise ValueError(f"layout: rank {rank} could not make it")
            if other != key:
                raise ValueError(f"layout: cu_seqlens or ranges of rank {rank} differ from those "
                                 f"of rank {self.group.rank}")

    def check_tokens(self, name, x):
        """Raises ValueError if x [N][...] does not hold this rank's tokens."""
        if x.shape[0] != self.n_tokens:
            raise ValueError(f"{name}: {x.shape[0]} tokens, but the layout has {self.n_tokens} for "
                             f"rank {self.group.rank}")

    def check_state(self, state):
        """Raises ValueError if there is a state, and not one for each sequence that begins here."""
        if state is not None and state.shape[0] != len(self.begins):
            raise ValueError(f"state: of {state.shape[0]} sequences, but {len(self.begins)} begin "
                             f"on rank {self.group.rank}")

    def path_to(self, part):
        """Of a part that receives: returns the earlier parts with tokens of its first piece's
        sequence, the nearest one first."""
        path, i = [], self.parts.index(part)
        while not path or not path[-1].pieces[-1].begins:
            i -= 1
            if self.parts[i].sends:  # the others are empty
                path.append(self.parts[i])
        return path

    def path_from(self, part):
        """Of a part that sends: returns the later parts with tokens of its last piece's sequence,
        the nearest one first."""
        path, i = [], self.parts.index(part)
        while not path or not path[-1].pieces[0].ends:
            i += 1
            if self.parts[i].receives:
                path.append(self.parts[i])
        return path

    def local(self, x, dim=0):
        """This rank's tokens of a tensor of the whole batch, whose tokens are dimension dim."""
        return torch.cat([x.narrow(dim, start, end - start) for start, end in self.ranges], dim)

    def tensor(self, name, device, make=None):
        """One of the lists as an int32 tensor, copied to the device once; make: makes the list."""
        key = name, torch.device(device)
        if key not in self._tensors:
            values = make() if make else self._lists[name]
            self._tensors[key] = torch.tensor(values, dtype=torch.int32).to(device)
        return self._tensors[key]

    def rows(self, name):
        """Returns one of the lists as a slice, if its numbers are evenly apart; else None."""
        rows = self._lists[name]
        step = rows[1] - rows[0] if len(rows) > 1 else 1
        even = list(range(rows[0], rows[-1] + 1, step)) if rows and step > 0 else None
        return slice(rows[0], rows[-1] + 1, step) if even == rows else None

    def cu_seqlens(self, device="cpu"):
        """cu_seqlens of this rank's pieces of sequences."""
        return self.tensor("cu_seqlens", device)


def _padded(rows):
    """Rows of slots of the same length, with -1 behind the shorter ones."""
    most = max(map(len, rows), default=0)
    return [row + [-1] * (most - len(row)) for row in rows]
