# SPDX-License-Identifier: Apache-2.0
"""Lazy states: records of tokens beside the slots of a pool. Manual: gdn_record.h."""

from numbers import Integral

import gdn
import torch

from . import _block, _functions
from ._named import explained_by, needed_by
from ._operators import overload


def _explain_slots(bound, error):
    """Raises an error that names the argument which is no tensor of slots."""
    for name, x in bound.arguments.items():
        if name == "self" or (x is None and name not in needed_by(bound.signature)):
            continue
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name}: {type(x).__name__}, wanted a torch.Tensor of slots")


class Record:
    """
    A pool of states whose tokens go to records first: decoding reads a state, and writes it once in
    `rows` tokens. On a GPU there is no `block()`.

        record = gdn.torch.Record(pool, key_heads=16)
        record.prefill(q, k, v, g, beta, cu_seqlens=cu, read_slots=slots)
        out = record.decode(q, k, v, g, beta, read_slots=slots)

    state [P][H][V][K] is the pool ([P][H][K][V] with state_layout=gdn.STATE_KV), state_scales its
    scales if it has 8 bits. dtype is that of the rows of k and u. channels: g has a last size K, as
    in KDA. The record owns its rows and counts; the pool stays the caller's. Who else reads a slot
    of the pool folds it first.
    """

    def __init__(self, state, key_heads, rows=16, *, dtype=torch.float32, state_scales=None,
                 state_layout=gdn.STATE_VK, head_map=gdn.HEADS_GROUPED, channels=False):
        for name, x in ("state", state), ("state_scales", state_scales):
            if not isinstance(x, torch.Tensor) and (x is not None or name == "state"):
                raise TypeError(f"{name}: {type(x).__name__}, wanted a torch.Tensor")
        if state.dim() != 4:
            raise ValueError(f"state: {state.dim()} dimensions, wanted 4")
        for name, n in ("key_heads", key_heads), ("rows", rows):
            if not isinstance(n, Integral) or n < 1:
                raise ValueError(f"{name}: {n!r}, wanted a whole number of at least 1")
        slots, heads, V, K = state.shape
        if state_layout == gdn.STATE_KV:
            V, K = K, V

        def by_head(n, *size, dtype=dtype):
            """The rows of a head lie together, so that kernels read them in one piece."""
            return state.new_zeros((slots, n, rows, *size), dtype=dtype).transpose(1, 2)

        self.state, self.state_scales = state, state_scales
        self.count = state.new_zeros(slots, dtype=torch.int32)
        self.k, self.u = by_head(key_heads, K), by_head(heads, V)
        self.g = by_head(heads, *((K,) if channels else ()), dtype=torch.float32)
        self._numbers = dict(state_layout=state_layout, head_map=head_map)

    @property
    def fields(self):
        """What a call of gdn.torch takes, by the names of gdn.h."""
        return dict(state=self.state, state_scales=self.state_scales, record_k=self.k,
                    record_u=self.u, record_g=self.g, record_count=self.count)

    def decode(self, q, k, v, g=None, beta=None, **options):
        """gdn.torch.decode(): the tokens are accepted at once."""
        return _functions.decode(q, k, v, g, beta, **self.fields, **self._numbers, **options)

    def step(self, *tensors, **options):
        """gdn.torch.step(), the same."""
        return _functions.step(*tensors, **self.fields, **self._numbers, **options)

    def prefill(self, q, k, v, g=None, beta=None, **options):
        """gdn.torch.prefill() with this record. It folds the slots that it reads; slots that it
        writes have no rows."""
        return _functions.prefill(q, k, v, g, beta, **self.fields, **self._numbers, **options)

    def block(self, *tensors, **options):
        """gdn.torch.block(): sequences of up to 8 tokens as decode(), others as prefill()."""
        layout = dict(state_layout=self._numbers["state_layout"])
        return _block.block(*tensors, **self.fields, **layout, **options)

    @explained_by(_explain_slots)
    def fold(self, slots=None):
        """Writes the rows of these slots, [M], to their states; None: of all."""
        options = dict(self.fields, **self._numbers, read_slots=slots)
        overload("record_fold", options)(**options)

    @explained_by(_explain_slots)
    def fork(self, from_slots, to_slots):
        """
        Makes slots [M] equal to others: states, rows and counts. Negative slots are as in
        gdn.torch.state_copy(). The convolution's pool is the caller's to copy.
        """
        self._copy(to_slots, self.state, from_slots=from_slots, from_scales=self.state_scales,
                   from_layout=self._numbers["state_layout"])
        kept = to_slots >= 0
        sources, targets = from_slots[kept].long(), to_slots[kept].long()
        for rows in self.k, self.u, self.g, self.count:
            rows[targets] = rows[sources.clamp(min=0)]
        self.count[targets[sources < 0]] = 0

    @explained_by(_explain_slots)
    def clear(self, slots):
        """Empties slots [M] for new sequences: states of zero, no rows. Negative: skipped."""
        self._copy(slots)
        self.count[slots[slots >= 0].long()] = 0

    def _copy(self, to_slots, *pool, **options):
        _functions.state_copy(self.state, *pool, to_slots=to_slots, to_scales=self.state_scales,
                              to_layout=self._numbers["state_layout"], **options)
