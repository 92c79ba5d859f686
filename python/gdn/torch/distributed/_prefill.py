# SPDX-License-Identifier: Apache-2.0
"""
The rule on a rank's tokens. A sequence that comes from another rank starts from the state that its
earlier ranges end in, which their maps (M, U) give: S_out = M S_in + U. Each rank sends the maps of
its own ranges and folds those that it needs. The gradients of states go the other way, by the
transposed maps (docs/design/math.md, sections 12 and 13).
"""

import gdn
import torch

from .._autograd import numbers, refuse_others, refuse_second
from .._gradients import _FORWARD, _INPUTS, _NUMBERS, BOTH_WAYS, rule_gradients
from .._operators import overload

_OF_UPDATES = "k", "v", "beta", "write_gate"  # n = updates rows a token
_WHOLE = "A_log", "dt_bias", "state"  # of all tokens


class _Sizes:
    """Head sizes, and the maps of ranges in one tensor [ranges][H][V K + K K]: U, then M."""

    def __init__(self, q, v, is_kv):
        self.H, self.K, self.V = max(q.shape[-2], v.shape[-2]), q.shape[-1], v.shape[-1]
        self.state = (self.K, self.V) if is_kv else (self.V, self.K)

    def states(self, like, count):
        return torch.zeros(count, self.H, *self.state, dtype=torch.float32, device=like.device)

    def maps(self, like, count):
        """Returns memory for the maps of `count` ranges. A fold reads only maps that a rank has
        written."""
        return torch.empty(count, self.H, self.K * (self.V + self.K), dtype=torch.float32,
                           device=like.device)

    def split(self, maps):
        """U [ranges][H][V][K] and M [ranges][H][K][K], as views of maps without gaps."""
        K, V, width = self.K, self.V, self.K * (self.V + self.K)
        count = maps.numel() // (self.H * width)
        U = maps.as_strided((count, self.H, *self.state),
                            (self.H * width, width, self.state[1], 1))
        M = maps.as_strided((count, self.H, K, K), (self.H * width, width, K, 1), K * V)
        return U, M


def _fold(out, M, U, order, state_layout, state=None):
    """Writes the states that ranges in these orders end in to out, which has no gaps in a row."""
    torch.ops.gdn.summary_fold.default(M=M, U=U, order=order, state=state, state_out=out,
                                       state_layout=state_layout)


def _fold_rows(states, layout, name, M, U, order, state_layout):
    """The same, to the rows that the layout lists: in place where they are evenly apart, because
    an indexed copy takes several launches."""
    rows = layout.rows(name)
    if rows is not None:
        return _fold(states[rows], M, U, order, state_layout)
    found = torch.empty_like(states[:order.shape[0]])
    _fold(found, M, U, order, state_layout)
    states[layout.tensor(name, states.device)] = found


# ---- Forward -------------------------------------------------------------------------------------


def _log_gates(g, A_log, dt_bias, options):
    """Logarithms of the decay, float32 or as they are given."""
    gate = options["gate"]
    if g is None or gate == gdn.GATE_LOG:
        return g
    if gate == gdn.GATE_LINEAR:
        return g.float().log()
    out = torch.empty(g.shape, dtype=torch.float32, device=g.device)
    torch.ops.gdn.gates.full(a=g, A_log=A_log, dt_bias=dt_bias, g=out,
                             gate_lower_bound=options["gate_lower_bound"])
    return out


def _strengths(beta, options):
    kind = options["beta_kind"]
    if beta is None or kind in (gdn.BETA_DEFAULT, gdn.BETA_GIVEN):
        return beta
    return beta.float().sigmoid() * (2 if kind == gdn.BETA_TWICE_SIGMOID else 1)


def _writes(write_gate, options):
    kind = options["beta_kind"]
    if write_gate is None or kind in (gdn.BETA_DEFAULT, gdn.BETA_GIVEN):
        return write_gate
    return write_gate.float().sigmoid()


def _of_piece(inputs, piece, options):
    """The rows of a piece: its tokens, of which each has `updates` rows of k, v, beta and
    write_gate. A_log, dt_bias and the state stay as they are."""
    n, tokens = options["updates"] or 1, piece.tokens
    updates = slice(n * tokens.start, n * tokens.stop)
    return [x if x is None or name in _WHOLE else x[updates if name in _OF_UPDATES else tokens]
            for name, x in zip(_INPUTS, inputs)]


def _write_map(M, U, piece, inputs, options):
    """M and U of a piece; M None: not wanted."""
    A_log, dt_bias = inputs[5:7]
    _, k, v, g, beta, *_, write_gate = _of_piece(inputs, piece, options)
    flags = options["flags"] & (gdn.BATCH_INVARIANT | gdn.NO_EARLY_STOP)
    torch.ops.gdn.summary.full(
        k=k, v=v, g=_log_gates(g, A_log, dt_bias, options), beta=_strengths(beta, options), M=M,
        U=U, write_gate=_writes(write_gate, options), updates=options["updates"],
        head_map=options["head_map"], state_layout=options["state_layout"],
        norm=options["norm"], norm_eps=options["norm_eps"], flags=flags)


def _own_maps(layout, sizes, inputs, options):
    """The maps of this rank's ranges. That of a range in which its last sequence begins is the
    state that this ends in; M is then not read."""
    state, kind = inputs[7], options["state_layout"]
    maps = sizes.maps(inputs[0], layout.per_rank)
    U, M = sizes.split(maps)
    for part in layout.senders:
        piece, own = part.pieces[-1], slice(part.number, part.number + 1)
        starts = piece.begins and state is not None
        _write_map(None if piece.begins and not starts else M[own], U[own], piece, inputs, options)
        if starts:
            first = layout.begins.index(piece.sequence)
            ended = torch.empty_like(U[own])
            _fold(ended, M[own], U[own], layout.tensor("one", U.device, lambda: [[0]]), kind,
                  state[first:first + 1])
            U[own] = ended
    return maps


def _starts(layout, sizes, inputs, options):
    """The states that this rank's pieces start from (None: all zero), and its maps."""
    state, kind = inputs[7], options["state_layout"]
    if not layout.crosses and state is None:
        return None, None
    starts, maps = sizes.states(inputs[0], layout.n_pieces), None
    if state is not None:
        starts[layout.tensor("begins", starts.device)] = state.float()
    if layout.crosses:
        maps = _own_maps(layout, sizes, inputs, options)
        U, M = sizes.split(layout.group.all_gather(maps))
        if layout.receivers:
            _fold_rows(starts, layout, "receives", M, U, layout.tensor("forward", U.device), kind)
    return starts, maps


# ---- Backward ------------------------------------------------------------------------------------


def _own_gradient_maps(layout, sizes, inputs, maps, dout, dlast, options):
    """The same of gradients: U is the gradient of a range's first state where that of its last one
    is zero, or known because the sequence ends there; M is that of the forward pass."""
    back = sizes.maps(inputs[0], layout.per_rank)
    U, M = sizes.split(back)
    for part in layout.receivers:
        piece, own = part.pieces[0], slice(part.number, part.number + 1)
        known = dict(zip(_INPUTS, _of_piece(inputs, piece, options)), dout=dout[piece.tokens],
                     dstate=U[own])
        if piece.ends and dlast is not None:
            known["dstate_out"] = dlast[piece.row:piece.row + 1]
        torch.ops.gdn.prefill_backward.full(**known, **options)
        if not piece.ends:
            M[own] = sizes.split(maps)[1][own]
    return back


def _last_gradients(layout, sizes, inputs, maps, dout, dfinal, options):
    """The gradients of the states that this rank's pieces end in; None: all zero."""
    if not layout.crosses and dfinal is None:
        return None
    dlast = sizes.states(inputs[0], layout.n_pieces)
    if dfinal is not None:
        dlast[layout.tensor("ends", dlast.device)] = dfinal
    if layout.crosses:
        back = _own_gradient_maps(layout, sizes, inputs, maps, dout, dlast, options)
        U, M = sizes.split(layout.group.all_gather(back))
        if layout.senders:
            _fold_rows(dlast, layout, "sends", M.transpose(-1, -2), U,
                       layout.tensor("backward", U.device), options["state_layout"])
    return dlast


class _Prefill(torch.autograd.Function):
    @staticmethod
    def forward(ctx, layout, return_state, forward_numbers, rule_numbers, *inputs):
        options = dict(zip(_NUMBERS, rule_numbers))
        q, v = inputs[0], inputs[2]
        sizes = _Sizes(q, v, options["state_layout"] == gdn.STATE_KV)
        starts, maps = _starts(layout, sizes, inputs, dict(options, flags=forward_numbers[0]))
        ctx.layout, ctx.sizes, ctx.numbers = layout, sizes, rule_numbers
        ctx.flags = forward_numbers[0] & BOTH_WAYS
        ctx.save_for_backward(*inputs[:7], inputs[8], starts, maps)
        ctx.has_state = inputs[7] is not None
        cu_seqlens = layout.cu_seqlens(q.device)
        more = dict(zip(_FORWARD, forward_numbers), cu_seqlens=cu_seqlens)
        if return_state:
            more["state_out"] = final = sizes.states(q, layout.n_pieces)
            if starts is not None:
                final.copy_(starts)  # of empty sequences
        elif starts is not None:
            more["write"] = gdn.WRITE_NONE
        out = q.new_empty(q.shape[0], sizes.H, sizes.V)
        overload("prefill", {**options, **more})(
            *inputs[:7], starts, out=out, write_gate=inputs[8], **options, **more)
        return (out, final[layout.tensor("ends", out.device)]) if return_state else out

    @staticmethod
    def backward(ctx, dout, dfinal=None):
        refuse_second("distributed.prefill")
        *inputs, write_gate, starts, maps = ctx.saved_tensors
        layout, options = ctx.layout, dict(zip(_NUMBERS, ctx.numbers), flags=ctx.flags)
        dout = dout.contiguous()
        dlast = _last_gradients(layout, ctx.sizes, [*inputs, None, write_gate], maps, dout,
                                dfinal, options)
        is_needed = ctx.needs_input_grad[4:]
        *found, dstarts, dwrite = rule_gradients(
            (*inputs, starts, write_gate), is_needed, dout, dlast,
            dict(options, cu_seqlens=layout.cu_seqlens(dout.device)))
        if dstarts is not None:
            dstarts = dstarts[layout.tensor("begins", dstarts.device)]
        return None, None, None, None, *found, dstarts, dwrite


def prefill(q, k, v, g=None, beta=None, *, layout, A_log=None, dt_bias=None, state=None,
            return_state=False, write_gate=None, **options):
    """
    gdn.torch.prefill() of a batch whose tokens lie on several ranks, as a Layout says. Every rank
    calls it with its own tokens, and, where gradients are needed, every rank runs the backward
    pass: each of the two holds one all-gather, of H K (V + K) float32 numbers for each range.

    q [N][Hq][K], k [N][Hk][K], v [N][Hv][V], g, beta [N][H]: this rank's N tokens, or [1][N]. For
    KDA, GDN-2 and DeltaProduct they, write_gate and updates are as in gdn.torch.prefill().
    state [len(layout.begins)][H][V][K] float32: initial states of the sequences that begin on this
    rank. Options are those of gdn.torch.prefill() that have gradients, without masks of tokens.
    Gradients flow to every tensor. Those of A_log and dt_bias are of this rank's tokens alone; add
    them up over ranks, as those of other weights.

    Returns out [N][H][V]; with return_state=True (out, final states [len(layout.ends)][H][V][K] of
    the sequences that end on this rank).
    """
    refuse_others("distributed.prefill", {*_NUMBERS, *_FORWARD, "write"}, options)
    rows = [q, k, v, g, beta, write_gate]
    is_padded = q.dim() == 4
    if is_padded:
        rows = [x if x is None else x.squeeze(0) for x in rows]
    layout.check_tokens("q", rows[0])
    layout.check_state(state)
    result = _Prefill.apply(layout, return_state, numbers(_FORWARD, options),
                            numbers(_NUMBERS, options), *rows[:5], A_log, dt_bias, state, rows[5])
    if not is_padded:
        return result
    return (result[0][None], result[1]) if return_state else result[None]
