# SPDX-License-Identifier: Apache-2.0
"""The rule token by token over vLLM's pools, whose slots start at 1."""

import torch

import gdn
import gdn.torch

from . import _drop_in

FIRST_SLOT = dict(first_slot=1)


def check_packed(q, cu_seqlens, initial_state=None):
    """Raises vLLM's ValueError where packed tokens have another batch size than 1, or another
    number of initial states than sequences."""
    if cu_seqlens is None:
        return
    if q.shape[0] != 1:
        raise ValueError(f"The batch size is expected to be 1 rather than {q.shape[0]} when using "
                         "`cu_seqlens`.")
    count = cu_seqlens.numel() - 1
    if initial_state is not None and initial_state.shape[0] != count:
        raise ValueError("The number of initial states is expected to be equal to the number of "
                         f"input sequences, i.e., {count} rather than {initial_state.shape[0]}.")


def _by_row(q, lead, **named):
    """A gate of heads, or of heads and key channels, with those leading sizes: name=tensor. Raises
    ValueError if it is neither [N, ..] nor [B, T, ..] with the tokens of q [B, T, ..]."""
    (name, x), = named.items()
    if x is None:
        return x
    wanted = q.shape[:2] if x.dim() > 2 else (lead.numel(),)
    if x.shape[:len(wanted)] != wanted:
        raise ValueError(f"{name}: {list(x.shape)}, wanted [{', '.join(map(str, wanted))}, ..]")
    return _drop_in.gate(x).view(*lead, *x.shape[len(wanted):])


def decode(q, k, v, g, beta, scale, state, inplace, cu_seqlens, slots, accepted, l2norm, out=None,
           **options):
    """The rule on [B, T, ..]: out, and the pool or the states after all tokens. out may be given
    to take the outputs."""
    check_packed(q, cu_seqlens)
    if scale is not None and not scale > 0:
        raise AssertionError("scale must be positive")
    count = q.shape[0] if cu_seqlens is None else cu_seqlens.numel() - 1
    rows = [x if cu_seqlens is None else x[0] for x in (q, k, v)]
    lead = rows[0].shape[:-2]
    g, beta = _by_row(q, lead, g=g), _by_row(q, lead, beta=beta)
    options.update(_drop_in.into_rows(out, cu_seqlens))
    if cu_seqlens is not None:
        options["cu_seqlens"] = cu_seqlens
    options.update(_places(slots, accepted, count, inplace))
    final = state
    if not inplace:
        tokens = lead.numel()
        dtype = torch.float32 if state is None else state.dtype
        first = options.get("first_slot", 0)
        # Tokens outside of all sequences have zeros.
        kept = (q.new_empty if cu_seqlens is None else q.new_zeros)(
            first + tokens, v.shape[-2], v.shape[-1], k.shape[-1], dtype=dtype)
        final = kept[first:]
        options.update(state_out=kept, write=gdn.WRITE_EACH,
                       write_slots=_drop_in.slots_of_tokens(rows[0], cu_seqlens) + first)
    q, k, v = (_drop_in.unit_stride(x) for x in rows)
    out = gdn.torch.decode(q, k, v, g, beta, state=state, scale=scale or 0.0,
                           norm=_drop_in.norm(l2norm), **options)
    return (out if cu_seqlens is None else out[None]), final


def _places(slots, accepted, count, inplace):
    """Fields of the batch: where sequences start, and where states go if in place."""
    if slots is None:
        return {}
    slots = slots[:count]
    if slots.dim() == 1:
        if accepted is not None:
            raise ValueError("num_accepted_tokens needs ssm_state_indices of two dimensions")
        return dict(read_slots=slots, **FIRST_SLOT)
    fields = dict(read_slots=slots[:, 0], **FIRST_SLOT)
    if accepted is not None:
        fields.update(read_slots=slots, num_accepted_tokens=accepted[:count])
    if inplace:
        fields.update(write=gdn.WRITE_EACH, write_slots=slots)
    return fields
