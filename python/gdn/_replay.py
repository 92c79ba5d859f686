# SPDX-License-Identifier: Apache-2.0
"""
Windows of raw inputs by slot, FlashInfer's ReplaySSM: what a verify keeps of T drafted tokens, from
which the accepted ones are computed again. rawk [P, H, T, K], rawv [P, HV, T, V], g and beta
[P, HV, T]. Keeping is gdn_state_copy() with to_slots; committing is gdn_decode() without out.
"""

import torch

import gdn
import gdn.torch
from gdn.torch._operators import overload

from . import _drop_in


def keep(slots, k, v, a, b, A_log, dt_bias, rawk, rawv, g, beta):
    """Copies the inputs of rows [B, T, ..] to the windows of their slots [B]; negative: none."""
    gates = gdn.torch.gates(a, b, A_log, dt_bias)
    for window, rows in zip((rawk, rawv, g, beta), (k, v, *gates)):
        gdn.torch.state_copy(window, rows.transpose(1, 2), to_slots=slots)


def commit(state, rawk, rawv, g, beta, slots, accepted, l2norm):
    """Takes the states [P, HV, V, K] of slots [B] through the first accepted[b] tokens of their
    windows. Negative slots are skipped."""
    rows = [x.index_select(0, slots.clamp(min=0)).transpose(1, 2) for x in (rawk, rawv, g, beta)]
    options = dict(read_slots=slots, token_count=accepted, norm=_drop_in.norm(l2norm))
    overload("decode", options)(rows[0], *rows, state=state, **options)
