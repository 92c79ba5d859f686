# SPDX-License-Identifier: Apache-2.0
"""
What stands beside FLA's rule, under the names and signatures of FLA 0.6: the two halves of its
autograd function, and the numbers of packed sequences. Used by gdn.fla.install().
"""

import math

import torch
from torch.nn import functional

import gdn
import gdn.torch

from . import _drop_in, fla
from .torch._gradients import rule_gradients
from .torch._operators import overload


def _refuse_context(cp_context):
    if cp_context is not None:
        raise NotImplementedError("gdn.fla: cp_context is supported by chunk_gated_delta_rule "
                                  "alone")


def _check_chunk(chunk_size):
    if chunk_size != _drop_in.CHUNK_SIZE:
        raise NotImplementedError(f"gdn.fla: chunk_size is {_drop_in.CHUNK_SIZE}, found "
                                  f"{chunk_size}")


def _intra(k, g, beta, cu_seqlens):
    """Sums of gates inside chunks, in logarithms of base 2, and A: as FLA's kernels have both."""
    options = {} if cu_seqlens is None else dict(cu_seqlens=cu_seqlens)
    new = k.new_empty if cu_seqlens is None else k.new_zeros  # rows outside of all sequences
    sums = new(g.shape, dtype=torch.float32)
    A = new(*beta.shape, _drop_in.CHUNK_SIZE)
    k, g, beta, rows, place = (x if cu_seqlens is None else x[0] for x in (k, g, beta, A, sums))
    overload("chunk_uw", options)(k=k, v=None, g=g, beta=beta, T=rows,
                                  chunk_size=_drop_in.CHUNK_SIZE, **options)
    gdn.torch.chunk_cumsum(g, out=place, **options)
    return sums.div_(math.log(2)), A


@torch.no_grad()
def chunk_gated_delta_rule_fwd(q, k, v, g, beta, scale, initial_state, output_final_state,
                               state_v_first=False, cu_seqlens=None, cp_context=None,
                               chunk_indices=None, use_gate_in_kernel=False, A_log=None,
                               dt_bias=None, chunk_size=64):
    """
    The rule without gradients. Arguments are those of gdn.fla.chunk_gated_delta_rule().

    Returns (sums of the gates inside chunks of 64 in logarithms of base 2, float32; o; A
    [B, T, HV, 64] in the dtype of k; final state or None; initial_state; g, or None without
    use_gate_in_kernel), as FLA's own backward takes them too. A is (I + tril(beta K K^T decay,
    -1))^-1 of each chunk.
    """
    _refuse_context(cp_context)
    _check_chunk(chunk_size)
    o, final = fla.chunk_gated_delta_rule(
        q, k, v, g, beta, scale, initial_state, output_final_state, state_v_first=state_v_first,
        cu_seqlens=cu_seqlens, use_gate_in_kernel=use_gate_in_kernel, A_log=A_log, dt_bias=dt_bias)
    gates = gdn.torch.gates(g, beta, A_log, dt_bias)[0] if use_gate_in_kernel else g
    sums, A = _intra(*map(_drop_in.gate, (_drop_in.unit_stride(k), gates, beta)), cu_seqlens)
    return sums, o, A, final, initial_state, g if use_gate_in_kernel else None


@torch.no_grad()
def chunk_gated_delta_rule_bwd(q, k, v, g, beta, A, scale, initial_state, do, dht,
                               state_v_first=False, cu_seqlens=None, cp_context=None,
                               chunk_indices=None, use_gate_in_kernel=False, g_input=None,
                               A_log=None, dt_bias=None, chunk_size=64):
    """
    The gradients of chunk_gated_delta_rule_fwd(), of gdn or of FLA, from what it returned. A is
    ignored. do [B, T, HV, V]; dht, like the final state, or None. A gate of -inf has no difference
    of sums, so without use_gate_in_kernel its chunk has gradients of NaN here.

    Returns dq, dk, dv, dbeta, dg (of the gates before they were summed), the gradient of
    initial_state, dA_log, ddt_bias; None for what was not given.
    """
    _refuse_context(cp_context)
    _check_chunk(chunk_size)
    options = dict(_drop_in.scaled(scale),
                   state_layout=gdn.STATE_VK if state_v_first else gdn.STATE_KV)
    if use_gate_in_kernel:
        g, options["gate"] = g_input, gdn.GATE_RAW
    else:
        g, A_log, dt_bias = _drop_in.gates_of_sums(g * math.log(2), cu_seqlens), None, None
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


class FusedRecurrentFunction:
    """apply() alone of FLA's autograd function of the rule token by token. Gradients flow."""

    @staticmethod
    def apply(*args, **kwargs):
        """gdn.fla.fused_recurrent_gated_delta_rule() of these arguments."""
        return fla.fused_recurrent_gated_delta_rule(*args, **kwargs)


# ---- Numbers of packed sequences -----------------------------------------------------------------


def prepare_lens(cu_seqlens):
    """[S]: the tokens of each sequence."""
    return cu_seqlens.diff()


def prepare_lens_from_mask(mask):
    """[B] int32: the ones of each row of a mask [B, T]."""
    return mask.sum(-1, dtype=torch.int32)


def prepare_cu_seqlens_from_lens(lens, dtype=torch.int32):
    """Returns [S + 1]: the places at which sequences of these lengths begin, and the end of the
    last one."""
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
