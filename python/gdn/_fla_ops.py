# SPDX-License-Identifier: Apache-2.0
"""
What stands beside FLA's rule, under the names and signatures of FLA 0.6: the two halves of its
autograd function, and the numbers of packed sequences. Used by gdn.fla.install().
"""

import torch
from torch.nn import functional

import gdn
import gdn.torch

from . import _drop_in, fla
from .torch._gradients import rule_gradients


def _refuse_context(cp_context):
    if cp_context is not None:
        raise NotImplementedError("gdn.fla: cp_context is supported by chunk_gated_delta_rule "
                                  "alone")


@torch.no_grad()
def chunk_gated_delta_rule_fwd(q, k, v, g, beta, scale, initial_state, output_final_state,
                               state_v_first=False, cu_seqlens=None, cp_context=None,
                               chunk_indices=None, use_gate_in_kernel=False, A_log=None,
                               dt_bias=None, chunk_size=64):
    """
    The rule without gradients. Arguments are those of gdn.fla.chunk_gated_delta_rule().

    Returns (g, o, A, final state or None, initial_state, g or None) for
    chunk_gated_delta_rule_bwd(). g is as given, where FLA has its sums inside chunks, and A is
    None: libgdn computes both again. The last g is there with use_gate_in_kernel.
    """
    _refuse_context(cp_context)
    o, final = fla.chunk_gated_delta_rule(
        q, k, v, g, beta, scale, initial_state, output_final_state, state_v_first=state_v_first,
        cu_seqlens=cu_seqlens, use_gate_in_kernel=use_gate_in_kernel, A_log=A_log, dt_bias=dt_bias)
    return g, o, None, final, initial_state, g if use_gate_in_kernel else None


@torch.no_grad()
def chunk_gated_delta_rule_bwd(q, k, v, g, beta, A, scale, initial_state, do, dht,
                               state_v_first=False, cu_seqlens=None, cp_context=None,
                               chunk_indices=None, use_gate_in_kernel=False, g_input=None,
                               A_log=None, dt_bias=None, chunk_size=64):
    """
    The gradients of chunk_gated_delta_rule_fwd(), from what it returned. do [B, T, HV, V]; dht,
    like the final state, or None.

    Returns dq, dk, dv, dbeta, dg, the gradient of initial_state, dA_log, ddt_bias; None for what
    was not given. Each has the dtype of its input.

    Raises NotImplementedError for an A that is not None.
    """
    _refuse_context(cp_context)
    if A is not None:  # then g is summed
        raise NotImplementedError("gdn.fla: A is of another function than "
                                  "chunk_gated_delta_rule_fwd() of gdn")
    options = dict(_drop_in.scaled(scale),
                   state_layout=gdn.STATE_VK if state_v_first else gdn.STATE_KV)
    if use_gate_in_kernel:
        g, options["gate"] = g_input, gdn.GATE_RAW
    else:
        A_log = dt_bias = None
    tensors = [*map(_drop_in.unit_stride, (q, k, v)), *map(_drop_in.gate, (g, beta)), do]
    if cu_seqlens is not None:
        tensors, options["cu_seqlens"] = [x[0] for x in tensors], cu_seqlens
    *tensors, do = tensors
    inputs = [*tensors, A_log, dt_bias, initial_state]
    found = rule_gradients(inputs, [x is not None for x in inputs], do, dht, options)
    dq, dk, dv, dg, dbeta = found[:5]
    if cu_seqlens is not None:
        dq, dk, dv, dg, dbeta = (x[None] for x in (dq, dk, dv, dg, dbeta))
    dA_log, ddt_bias, dstate = found[5:]
    return dq, dk, dv, dbeta, dg, dstate, dA_log, ddt_bias


class ChunkGatedDeltaRuleFunction:
    """apply() alone of FLA's autograd function. Gradients flow."""

    @staticmethod
    def apply(q, k, v, g, beta, scale, initial_state, output_final_state, state_v_first=False,
              cu_seqlens=None, cu_seqlens_cpu=None, chunk_indices=None,
              use_qk_l2norm_in_kernel=False, use_gate_in_kernel=False, A_log=None, dt_bias=None,
              use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, cp_context=None,
              chunk_size=64):
        """gdn.fla.chunk_gated_delta_rule() of these arguments."""
        return fla.chunk_gated_delta_rule(
            q, k, v, g, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel,
            use_beta_sigmoid_in_kernel, allow_neg_eigval, state_v_first, cu_seqlens,
            cp_context=cp_context, use_gate_in_kernel=use_gate_in_kernel, A_log=A_log,
            dt_bias=dt_bias)


# ---- Numbers of packed sequences -----------------------------------------------------------------


def prepare_lens(cu_seqlens):
    """[S]: the tokens of each sequence."""
    return cu_seqlens.diff()


def prepare_lens_from_mask(mask):
    """[B] int32: the ones of each row of a mask [B, T]."""
    return mask.sum(-1, dtype=torch.int32)


def prepare_cu_seqlens_from_lens(lens, dtype=torch.int32):
    """[S + 1]: where sequences of these lengths begin, and the last end."""
    return functional.pad(lens.cumsum(0, dtype=dtype), (1, 0))


def prepare_cu_seqlens_from_mask(mask, dtype=torch.int32):
    """prepare_cu_seqlens_from_lens() of the rows of a mask [B, T]."""
    return prepare_cu_seqlens_from_lens(prepare_lens_from_mask(mask), dtype)


def _places(counts):
    """[sum of counts, 2]: for each part of each sequence, the sequence and the part's number."""
    sequence = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
    begin = functional.pad(counts.cumsum(0), (1, 0))[sequence]
    return torch.stack([sequence, torch.arange(len(sequence), device=counts.device) - begin], 1)


def prepare_token_indices(cu_seqlens, cu_seqlens_cpu=None):
    """[N, 2]: the sequence of each token, and the token's place in it. cu_seqlens_cpu, a copy on
    the host, spares the wait for a GPU, here and below."""
    source = cu_seqlens if cu_seqlens_cpu is None else cu_seqlens_cpu
    return _places(source.diff()).to(cu_seqlens)


def prepare_sequence_ids(cu_seqlens, cu_seqlens_cpu=None):
    """[N]: the sequence of each token; those without tokens do not count, as in FLA."""
    return prepare_position_ids(cu_seqlens, cu_seqlens_cpu).eq(0).cumsum(0) - 1


def prepare_position_ids(cu_seqlens, cu_seqlens_cpu=None):
    """[N]: the place of each token in its sequence."""
    return prepare_token_indices(cu_seqlens, cu_seqlens_cpu)[:, 1]


def _chunks(cu_seqlens, chunk_size):
    return (cu_seqlens.diff() + (chunk_size - 1)).div(chunk_size, rounding_mode="floor")


def prepare_chunk_indices(cu_seqlens, chunk_size, cu_seqlens_cpu=None):
    """[chunks, 2]: the sequence of each chunk, and the chunk's number in it."""
    source = cu_seqlens if cu_seqlens_cpu is None else cu_seqlens_cpu
    return _places(_chunks(source, chunk_size)).to(cu_seqlens)


def prepare_chunk_offsets(cu_seqlens, chunk_size):
    """[S + 1]: the number of the first chunk of each sequence among all chunks."""
    return functional.pad(_chunks(cu_seqlens, chunk_size), (1, 0)).cumsum(-1)


def get_max_num_splits(cu_seqlens, chunk_size, cu_seqlens_cpu=None):
    """The chunks of the longest sequence."""
    source = cu_seqlens if cu_seqlens_cpu is None else cu_seqlens_cpu
    return int(_chunks(source, chunk_size).max())
