# SPDX-License-Identifier: Apache-2.0
"""
The functions of the package gdn_cuda (h100_gdn_cuda) under their names and signatures.

    import gdn.gdn_cuda as gdn_cuda

install() makes `import gdn_cuda` find this module. The original has bfloat16 data alone and head
sizes padded to multiples of 64; here data are float32, bfloat16 or float16, and K and V are 1 to
256. Packed tensors [N] come with cu_seqlens [S + 1]; chunk_indices, cu_chunks, total_chunks and
compiled_dims are ignored, as chunks follow from cu_seqlens. Chunks have 64 tokens.

The stage calls take gates summed inside chunks. libgdn's stages take gates, so the differences of
these sums are computed: one new tensor of the size of gate. What follows a gate of -inf inside its
chunk is lost in the sum, and counts as no decay.

Forward only. A tensor that requires a gradient raises NotImplementedError unless gradients are off.
"""

import enum
import sys

import torch

import gdn
import gdn.torch

from . import _drop_in
from .torch._named import renamed
from .torch._operators import overload

_SHAPES = dict(query=3, key=3, value=3, beta=2, gate=2, initial_state=4, cu_seqlens=1)
_renamed = renamed(q="query", k="key", v="value", g="gate", state="initial_state",
                   token_count="num_accepted_tokens")


class InferenceMode(enum.IntEnum):
    """What recurrent_forward() is called for."""

    Prefill = 0
    Decode = 1
    SpecVerify = 2


Prefill, Decode, SpecVerify = InferenceMode


def init(library_root, cuda_home):
    """Does nothing: libgdn compiles nothing at run time. Both paths are ignored."""


def _lead(cu_seqlens):
    return {} if cu_seqlens is None else dict(cu_seqlens=cu_seqlens)


def _states(value, key, lead, start, is_written):
    """A new tensor for states; where no token may write a row, that of start, or zero."""
    shape = (*lead, value.shape[-2], value.shape[-1], key.shape[-1])
    if is_written:
        return value.new_empty(shape)
    return value.new_zeros(shape) if start is None else start.to(value.dtype, copy=True)


@_drop_in.explained(**_SHAPES)
@_renamed
def chunked_forward(query, key, value, beta, gate, scale=None, initial_state=None, cu_seqlens=None,
                    chunk_indices=None, cu_chunks=None, total_chunks=None):
    """
    The rule over whole sequences.

    query, key [B, T, H, K], value [B, T, HV, V] of one dtype, or packed [N, ..]; beta, gate
    [B, T, HV], gate the logarithm of the decay. scale None is 1 / sqrt(K). initial_state
    [S, HV, V, K] is read only.

    Returns (output of the shape of value, final states [S, HV, V, K] in the dtype of value).

    Copied: query, key, value if their last stride is not 1. Raises NotImplementedError for tensors
    that require a gradient, RuntimeError for arguments that libgdn refuses.
    """
    _drop_in.refuse_grad(query=query, key=key, value=value, beta=beta, gate=gate,
                         initial_state=initial_state)
    count = query.shape[0] if cu_seqlens is None else cu_seqlens.numel() - 1
    final = _states(value, key, (count,), initial_state, cu_seqlens is None)
    return _rule(gdn.torch.prefill, query, key, value, beta, gate, scale, state=initial_state,
                 state_out=final, **_lead(cu_seqlens)), final


def _rule(op, query, key, value, beta, gate, scale, **options):
    lead = value.dim() - 1
    _drop_in.dimensions(gate=(gate, lead), beta=(beta, lead))
    query, key, value = (_drop_in.unit_stride(x) for x in (query, key, value))
    gate, beta = (_drop_in.gate(x) for x in (gate, beta))
    return op(query, key, value, gate, beta, scale=scale or 0.0, **options)


@_drop_in.explained(**_SHAPES, num_accepted_tokens=1)
@_renamed
def recurrent_forward(query, key, value, initial_state=None, beta=None, gate=None, cu_seqlens=None,
                      num_accepted_tokens=None, inference_mode=0, is_qk_norm=False, scale=None):
    """
    The rule token by token. Shapes, conversions and errors are those of chunked_forward().

    num_accepted_tokens [S]: only so many tokens of each sequence count; the outputs of the others
    are zero. inference_mode: with SpecVerify the states after every token are returned,
    [B, T, HV, V, K] or packed [N, HV, V, K], zero where a token does not count; else, with Prefill
    and Decode alike, the final ones [S, HV, V, K]. is_qk_norm divides query and key by their
    lengths.

    Returns (output, states in the dtype of value).
    """
    if beta is None or gate is None:
        raise TypeError("recurrent_forward() needs beta and gate")
    mode = InferenceMode(inference_mode)
    _drop_in.refuse_grad(query=query, key=key, value=value, beta=beta, gate=gate,
                         initial_state=initial_state)
    options = dict(norm=_drop_in.norm(is_qk_norm), **_lead(cu_seqlens))
    if num_accepted_tokens is not None:
        options["token_count"] = num_accepted_tokens
    counts = cu_seqlens is None and num_accepted_tokens is None
    if mode == SpecVerify:
        states = _states(value, key, value.shape[:-2], None, counts)
        options.update(state_out=states.view(-1, *states.shape[-3:]), write=gdn.WRITE_EACH,
                       write_slots=_drop_in.slots_of_tokens(value, cu_seqlens))
    else:
        count = query.shape[0] if cu_seqlens is None else cu_seqlens.numel() - 1
        states = options["state_out"] = _states(value, key, (count,), initial_state, counts)
    out = _rule(gdn.torch.decode, query, key, value, beta, gate, scale, state=initial_state,
                **options)
    return out, states


@_drop_in.explained(A_log=1, dt_bias=1, a=1, b=1)
def fused_gdn_gating(A_log, dt_bias, a, b, is_var_len=False):
    """
    beta = sigmoid(b) and gate = -exp(A_log) softplus(a + dt_bias).

    a, b [.., HV]; dt_bias [HV]; A_log [HV], or of more dimensions, as the original makes gate of
    the shape of A_log: the first HV values count. is_var_len is ignored.

    Returns (beta in the dtype of b, gate in the dtype of A_log), both of the shape of a. Converted:
    from float32, in which both are computed.
    """
    gate, beta = gdn.torch.gates(a, b, *(x.reshape(-1, x.shape[-1])[0] for x in (A_log, dt_bias)))
    return beta.to(b.dtype), gate.to(A_log.dtype)


def transpose_to_mn_major(input, alignment=16):
    """
    A copy of input [.., M, N] in memory order [.., N, M], with M padded by zeros to multiples of
    alignment bytes. The stage calls here take tensors of any strides as well.
    """
    if alignment % input.element_size():
        raise RuntimeError(f"alignment: {alignment}, wanted a multiple of the size of an element, "
                           f"{input.element_size()}")
    *lead, m, n = input.shape
    step = alignment // input.element_size()
    out = input.new_zeros(*lead, n, -(-m // step) * step).transpose(-1, -2)
    out[..., :m, :].copy_(input)
    return out


def chunk_local_cumsum_bf16(input, output, batch_size, seq_len, num_heads, head_first=False,
                            cu_seqlens=None, chunk_indices=None):
    """
    Writes to output (float32) the inclusive sums of input inside chunks. As in the original, memory
    is in the order [B, HV, T], packed [HV, N], unless head_first is true: then [B, T, HV], packed
    [N, HV]. Both tensors are contiguous. chunk_indices is ignored.
    """
    lead = (batch_size, seq_len) if cu_seqlens is None else (seq_len,)
    if head_first:
        g, out = (x.view(*lead, num_heads) for x in (input, output))
    else:
        g, out = (x.view(*lead[:-1], num_heads, seq_len).transpose(-1, -2)
                  for x in (input, output))
    gdn.torch.chunk_cumsum(g, out=out, **_lead(cu_seqlens))


def _places(like, cu_seqlens):
    """[T] or [N]: the place of each token in its sequence."""
    tokens = torch.arange(like.shape[-3], device=like.device)
    if cu_seqlens is None:
        return tokens
    sequence = torch.searchsorted(cu_seqlens[1:].to(tokens.dtype), tokens, right=True)
    return tokens - cu_seqlens[sequence.clamp(max=cu_seqlens.numel() - 2)]


def _difference(sums, like, cu_seqlens):
    """The gates whose sums inside chunks are given, with as many tokens as like has."""
    if sums is None:
        return None
    *lead, n, heads, _ = like.shape
    wanted = [*lead, max(n, sums.shape[-2]) if sums.dim() > 1 else n, heads]
    if list(sums.shape) != wanted:
        raise ValueError(f"gate: {list(sums.shape)}, wanted {wanted}")
    sums = sums[..., :n, :].float()
    before = torch.nn.functional.pad(sums, (0, 0, 1, 0))[..., :-1, :]
    first = _places(like, cu_seqlens) % 64 == 0
    return (sums - before.masked_fill(first[:, None], 0)).nan_to_num(nan=0.0, neginf=-torch.inf)


@_drop_in.explained(k=3, v=3, u=3, w=3, beta=2, gate=2, cu_seqlens=1)
@renamed(g="gate")
def bf16_gdn_compute_u_w(k, v, u, w, beta, gate=None, compiled_dims="t", cu_seqlens=None,
                         chunk_indices=None):
    """
    Writes u = T diag(beta) V [.., HV, V] and w = T diag(beta exp(gate)) K [.., HV, K].

    k [B, T, H, K], v [B, T, HV, V], or packed [N, ..]; beta, gate [.., >= T, HV], gate summed
    inside chunks. Converted: gate to differences.
    """
    beta = _drop_in.gate(beta[..., :v.shape[-3], :])
    options = _lead(cu_seqlens)
    overload("chunk_uw", options)(k=k, v=v, g=_difference(gate, v, cu_seqlens), beta=beta, u=u, w=w,
                                  chunk_size=64, **options)


@_drop_in.explained(k=3, u=3, w=3, state=4, initial_state=4, final_state=4, gate=2, cu_seqlens=1)
@renamed(g="gate", states="state", state="initial_state", state_out="final_state")
def bf16_chunked_seq_state_update(k, u, w, initial_state, state, final_state, gate=None,
                                  compiled_dims="t", cu_seqlens=None, cu_chunks=None,
                                  total_chunks=None, chunk_size=64):
    """
    Writes the states at the starts of chunks to state [B, NC, HV, V, K], packed [NC, HV, V, K], the
    final ones to final_state [S, HV, V, K] unless it is None, and d = u - w S over u.

    k [.., H, K], u [.., HV, V], w [.., HV, K], gate as for bf16_gdn_compute_u_w(). initial_state
    [S, HV, V, K] or None. chunk_size is 64. Converted: gate to differences; w S is a new float32
    tensor of the size of u.
    """
    if chunk_size != 64:
        raise NotImplementedError(f"gdn.gdn_cuda: chunk_size is 64, found {chunk_size}")
    states, options = state.view(-1, *state.shape[-3:]), _lead(cu_seqlens)
    if final_state is not None:
        options["state_out"] = final_state
    gdn.torch.chunk_states(k, u, w, _difference(gate, u, cu_seqlens), state=initial_state,
                           states=states, **options)
    # w S is the output of the queries w and no keys.
    nothing = k.new_zeros(k.shape[-1]).expand(*k.shape[:-2], 1, -1)
    product = torch.empty(u.shape, dtype=torch.float32, device=u.device)
    gdn.torch.chunk_output(w, nothing, u, w, states, out=product, scale=1.0, **_lead(cu_seqlens))
    u.sub_(product)


@_drop_in.explained(q=3, state=4, k=3, u=3, o=3, gate=2, cu_seqlens=1)
@renamed(g="gate", states="state", out="o")
def bf16_gdn_chunked_compute_O(q, state, k, u, o, gate=None, scale=None, compiled_dims="t",
                               cu_seqlens=None, chunk_indices=None, cu_chunks=None, chunk_size=64):
    """
    Writes the outputs of all tokens to o [.., HV, V].

    q, k [.., H, K]; state and u as bf16_chunked_seq_state_update() leaves them: states at the
    starts of chunks, and d. gate as for bf16_gdn_compute_u_w(). scale None is 1 / sqrt(K).
    Converted: gate to differences.
    """
    if chunk_size != 64:
        raise NotImplementedError(f"gdn.gdn_cuda: chunk_size is 64, found {chunk_size}")
    # u is d already, so w is zero.
    w = u.new_zeros(k.shape[-1]).expand(*u.shape[:-1], -1)
    gdn.torch.chunk_output(q, k, u, w, state.view(-1, *state.shape[-3:]),
                           _difference(gate, u, cu_seqlens), out=o, scale=scale or 0.0,
                           **_lead(cu_seqlens))


def install():
    """Makes `import gdn_cuda` find this module. Call it before other modules import gdn_cuda."""
    sys.modules["gdn_cuda"] = sys.modules[__name__]
