# SPDX-License-Identifier: Apache-2.0
"""
The gated delta rule under the names and signatures of FlashInfer 0.7.2.

    from gdn.flashinfer import chunk_gated_delta_rule, gated_delta_rule_mtp

install() puts the functions into FlashInfer's place. A call that raises NotImplementedError here
then goes to FlashInfer's own function. Where FlashInfer is importable, importing this module
compares the signatures and raises ImportError with one line if they differ.

FlashInfer's limits of head sizes (at least 128, multiples of tiles) are not kept: libgdn takes K
from 1 to 256 and V from 1 to 1024.

Forward only. A tensor that requires a gradient raises NotImplementedError unless gradients are off.
"""

import warnings

import torch

import gdn
import gdn.torch
from gdn.torch._named import renamed

from . import _drop_in, _replay

_STATES = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)


def _expect(condition, text):
    """Raises what FlashInfer's assert raises, also under python -O."""
    if not condition:
        raise AssertionError(text)


def _is_index(x):
    return x.dtype in (torch.int32, torch.int64)


def _backend(backend, ours, others):
    if backend in others:
        raise NotImplementedError(f"gdn.flashinfer: backend={backend!r} is FlashInfer's own")
    if backend not in ours:
        raise ValueError(f"unsupported GDN backend: {backend!r}")


def _check_interval(every, checkpoints, starts):
    if every < 0:
        raise ValueError(f"checkpoint_every_n_tokens must be non-negative, got {every}")
    if every % 64:
        raise ValueError("checkpoint_every_n_tokens must be a multiple of the chunk size (64), "
                         f"got {every}")
    if every == 0:
        if checkpoints is not None or starts is not None:
            raise ValueError("state_checkpoints and checkpoint_cu_starts must be None "
                             "when checkpoint_every_n_tokens == 0")
    elif checkpoints is None or starts is None:
        raise ValueError("state_checkpoints and checkpoint_cu_starts must both be provided "
                         "when checkpoint_every_n_tokens > 0")


def _check_checkpoints(checkpoints, starts, count, last):
    if checkpoints.dtype not in _STATES:
        raise ValueError("state_checkpoints must have dtype float32, bfloat16, float16, "
                         f"float8_e4m3fn, or float8_e5m2, got {checkpoints.dtype}")
    if checkpoints.dim() != 4 or tuple(checkpoints.shape[1:]) != last:
        raise ValueError(f"state_checkpoints shape mismatch: expected {['*', *last]}, "
                         f"got {list(checkpoints.shape)}")
    if not _is_index(starts) or tuple(starts.shape) != (count + 1,):
        raise ValueError(f"checkpoint_cu_starts must have {count + 1} elements of an integer "
                         f"dtype, got {list(starts.shape)} of {starts.dtype}")


def _check_sequences(cu_seqlens, tokens, longest, slots):
    """Returns the number of sequences."""
    _expect(cu_seqlens is not None, "cu_seqlens is required for varlen mode")
    if not _is_index(cu_seqlens):
        raise ValueError(f"cu_seqlens must have an integer dtype, got {cu_seqlens.dtype}")
    _drop_in.dimensions(cu_seqlens=(cu_seqlens, 1))
    count = cu_seqlens.shape[0] - 1
    if count <= 0:
        raise ValueError("cu_seqlens must contain at least two entries")
    if longest is not None:
        if type(longest) is not int or longest < 0:
            raise ValueError("max_seqlen must be a nonnegative integer")
        if tokens and longest == 0:
            raise ValueError("max_seqlen must be positive when q is nonempty")
        if longest < -(-tokens // count):
            raise ValueError("max_seqlen cannot be smaller than ceil(total_seq_len / num_seqs)")
        if longest > tokens:
            raise ValueError("max_seqlen cannot exceed total_seq_len")
    if slots is not None:
        if not _is_index(slots):
            raise ValueError(f"state_indices must have an integer dtype, got {slots.dtype}")
        if tuple(slots.shape) != (count,):
            raise ValueError(f"state_indices must have shape {(count,)}, got {tuple(slots.shape)}")
    return count


@renamed(state="initial_state", state_out="output_state", read_slots="state_indices",
         out="output")
def chunk_gated_delta_rule(
    q,
    k,
    v,
    g=None,
    beta=None,
    scale=None,
    initial_state=None,
    output_final_state=False,
    cu_seqlens=None,
    use_qk_l2norm_in_kernel=False,
    output=None,
    output_state=None,
    state_checkpoints=None,
    checkpoint_cu_starts=None,
    checkpoint_every_n_tokens=0,
    use_cp="auto",
    state_indices=None,
    _cp_chunk_len=None,
    backend="auto",
    max_seqlen=None,
):
    """
    Prefill of packed sequences.

    q [N, HQ, K], k [N, HK, K], v [N, HV, V] of one dtype: float32, bfloat16 or float16. g (the
    decay itself, alpha), beta [N, H] float32, H = max(HQ, HV); None is 1. scale None or 0 is
    1 / sqrt(K). cu_seqlens [B + 1] int32 or int64. initial_state, output_state: [B, H, V, K], or
    with state_indices [B] pools [P, H, V, K]; one tensor may be both. Without an output_state a
    new one is float32, in which an empty sequence has its initial state, or zeros.
    state_checkpoints [C, H, V, K] takes the state after every n tokens, numbered through the
    sequences. max_seqlen is a hint. use_cp and _cp_chunk_len are ignored.

    Returns output [N, H, V], with output_final_state (output, output_state). An empty sequence
    leaves its row of a given output_state alone. Without output_final_state no state is written.
    use_qk_l2norm_in_kernel normalises in float32; FlashInfer rounds to the dtype of q between.

    Copied: q, k, v if their last stride is not 1. Converted: an output of another dtype than q.

    Raises NotImplementedError for backend "cake_gdn" or "cudnn" and for tensors that require a
    gradient; ValueError and AssertionError where FlashInfer does; RuntimeError for other arguments
    that libgdn refuses.
    """
    _drop_in.wanted(q=q, k=k, v=v, cu_seqlens=cu_seqlens)
    _drop_in.optional(g=g, beta=beta, initial_state=initial_state, output=output,
                      output_state=output_state, state_indices=state_indices)
    _drop_in.dimensions(q=(q, 3), k=(k, 3), v=(v, 3), g=(g, 2), beta=(beta, 2),
                        initial_state=(initial_state, 4))
    _backend(backend, ("auto", "flashinfer"), ("cake_gdn", "cudnn"))
    if use_cp not in ("auto", True, False):
        raise ValueError(f'use_cp must be "auto", True, or False, got {use_cp!r}')
    every = checkpoint_every_n_tokens
    _check_interval(every, state_checkpoints, checkpoint_cu_starts)
    count = _check_sequences(cu_seqlens, q.shape[0], max_seqlen, state_indices)
    last = max(q.shape[1], v.shape[1]), v.shape[-1], q.shape[-1]
    if every:
        _check_checkpoints(state_checkpoints, checkpoint_cu_starts, count, last)
    if state_indices is not None and output_final_state and output_state is None:
        raise ValueError("state_indices requires an explicit output_state pool sized like the "
                         "state pool ([N_pool, H, V, K])")
    _drop_in.refuse_grad(q=q, k=k, v=v, g=g, beta=beta, initial_state=initial_state)
    if initial_state is not None and state_indices is None and len(initial_state) != count:
        raise ValueError(f"initial_state: {len(initial_state)} states, wanted {count}")
    if output_final_state and output_state is None:  # an empty sequence keeps its state
        output_state = (q.new_zeros((count, *last), dtype=torch.float32) if initial_state is None
                        else initial_state.to(torch.float32, copy=True))
    options = dict(cu_seqlens=cu_seqlens)
    if state_indices is not None:
        options["read_slots"] = state_indices
    if max_seqlen:
        options["max_seqlen"] = max_seqlen
    if every:
        options.update(checkpoint_every=every, checkpoints=state_checkpoints)
    if output_final_state:
        options["state_out"] = output_state
    elif initial_state is not None:
        options["write"] = gdn.WRITE_NONE
    q, k, v = (_drop_in.unit_stride(x) for x in (q, k, v))
    g, beta = (_drop_in.gate(x) for x in (g, beta))
    output = _drop_in.into(output, q.dtype, lambda out: gdn.torch.prefill(
        q, k, v, g, beta, state=initial_state, out=out, gate=gdn.GATE_LINEAR,
        norm=_drop_in.norm(use_qk_l2norm_in_kernel), scale=scale or 0.0, **options))
    return (output, output_state) if output_final_state else output


def _decode(q, k, v, pool, A_log, a, dt_bias, b, scale, output, l2norm, *, read=None, write=None,
            each=None, buffer=None, frozen=False, layout=gdn.STATE_VK, **options):
    """
    What FlashInfer's decode functions have in common. read, write [B]: slots of the pool; each
    [B, T]: the slot of the state after every token; buffer [.., >= T, HV, V, K] takes them too.
    """
    _expect(A_log.dtype == torch.float32, f"A_log must be float32, got {A_log.dtype}")
    _expect(dt_bias.dtype in (torch.bfloat16, torch.float32),
            f"dt_bias must be bfloat16 or float32, got {dt_bias.dtype}")
    for name, slots in (("initial_state_indices", read), ("output_state_indices", write)):
        if slots is not None:
            _expect(_is_index(slots), f"{name} must be int32 or int64, got {slots.dtype}")
            _expect(tuple(slots.shape) == (q.shape[0],),
                    f"Expected {name} shape [{q.shape[0]}], got {list(slots.shape)}")
    _drop_in.refuse_grad(q=q, k=k, v=v, state=pool, a=a, b=b, A_log=A_log, dt_bias=dt_bias)
    B, T = q.shape[:2]
    if read is not None:
        options["read_slots"] = read
    if each is not None:
        options.update(write=gdn.WRITE_EACH, write_slots=each)
    elif frozen:
        options["write"] = gdn.WRITE_NONE
    elif write is not None:
        options["write_slots"] = write
    if buffer is not None:
        options.update(checkpoint_every=1, checkpoints=buffer.flatten(0, 1))
        if buffer.shape[1] != T:
            rows = torch.arange(B, device=q.device) * buffer.shape[1]
            slots = rows[:, None] + torch.arange(T, device=q.device)
            options["checkpoint_slots"] = slots.flatten()
    wanted = q.dtype if output is None else output.dtype
    if q.dtype == torch.float16:
        q, k, v, a, b = (_drop_in.cast(x, torch.bfloat16) for x in (q, k, v, a, b))
    q, k, v = (_drop_in.unit_stride(x) for x in (q, k, v))
    a, b = (_drop_in.gate(x) for x in (a, b))
    output = gdn.torch.decode(
        q, k, v, a, b, A_log=A_log, dt_bias=dt_bias, state=pool, out=output,
        state_layout=layout, norm=_drop_in.norm(l2norm), **_drop_in.scaled(scale),
        **_drop_in.RAW_GATES, **options)
    return _drop_in.cast(output, wanted), pool


def _sizes(q, k, v, a, b, A_log, dt_bias):
    """B, T, HV, K, V of the arguments of a decode function."""
    _drop_in.wanted(q=q, k=k, v=v, a=a, b=b, A_log=A_log, dt_bias=dt_bias)
    _drop_in.dimensions(q=(q, 4), k=(k, 4), v=(v, 4), a=(a, 3), b=(b, 3))
    return *q.shape[:2], v.shape[2], q.shape[3], v.shape[3]


@_drop_in.explained(q=4, k=4, v=4, initial_state=4, initial_state_indices=1)
@renamed(g="a", beta="b", read_slots="initial_state_indices", write_slots="output_state_indices",
         out="output")
def gated_delta_rule_decode_pretranspose(
    q,
    k,
    v,
    state,
    A_log,
    a,
    dt_bias,
    b,
    scale=None,
    output=None,
    use_qk_l2norm=True,
    initial_state=None,
    initial_state_indices=None,
    output_state_indices=None,
    intermediate_states_buffer=None,
    disable_state_update=False,
    backend="auto",
):
    """
    The next tokens of each sequence, with raw gates and states [V, K].

    q, k [B, T, H, K], v [B, T, HV, V] of one dtype. a, b [B, T, HV]; A_log [HV] float32; dt_bias
    [HV] float32 or bfloat16. state [B, HV, V, K], updated in place; or state None, a pool
    initial_state [P, HV, V, K] and initial_state_indices [B], with output_state_indices [B] where
    states go elsewhere. T > 1: intermediate_states_buffer [>= B, >= T, HV, V, K] takes the state
    after every token, and disable_state_update leaves the pool alone.

    A slot of -1 is padding, as in FlashInfer: with a bfloat16 pool and K = V = 128 the row goes to
    slot 0 (only the first such row, further ones are skipped); else it is skipped, and its output
    is zero (float32, T > 1: stays as it was).

    Returns (output [B, T, HV, V], state or initial_state).

    Copied: q, k, v if their last stride is not 1. Converted: float16 q, k, v, a and b to bfloat16,
    as in FlashInfer.

    Raises NotImplementedError for backend "cake_gdn" or "rubin", a uGPU pool and for
    tensors that require a gradient; ValueError and AssertionError where FlashInfer does;
    RuntimeError for other arguments that libgdn refuses.
    """
    B, T, HV, K, V = _sizes(q, k, v, a, b, A_log, dt_bias)
    if T == 1 and intermediate_states_buffer is not None:
        raise ValueError("intermediate_states_buffer is supported only for T > 1")
    if T == 1 and disable_state_update:
        raise ValueError("disable_state_update is supported only for T > 1")
    _drop_in.optional(state=state)
    is_pool = initial_state is not None
    _expect(is_pool == (initial_state_indices is not None),
            "initial_state and initial_state_indices must be provided together")
    _expect(is_pool or output_state_indices is None,
            "output_state_indices can only be used with initial_state (pool mode)")
    _expect(is_pool or state is not None, "Either state or initial_state must be provided")
    pool = initial_state if is_pool else state
    if is_pool and pool.dim() == 5:
        raise NotImplementedError("gdn.flashinfer: a uGPU pool is FlashInfer's own")
    rows, name = (pool.shape[0], "initial_state") if is_pool else (B, "state")
    _expect(pool.shape == (rows, HV, V, K),
            f"Expected {name} shape {[rows, HV, V, K]}, got {list(pool.shape)}")
    _expect(not is_pool or pool.stride(-1) == 1, "initial_state must be K-contiguous "
            f"(stride[-1] == 1) for pretranspose decode, got stride={pool.stride()}")
    _backend(backend, ("auto", "flashinfer"), ("cake_gdn", "rubin"))
    is_short = pool.dtype == torch.bfloat16 and K == V == 128
    if T > 1 and not is_short:
        _expect(is_pool, f"fp32 state with T={T} > 1 requires pool mode (pass initial_state and "
                "initial_state_indices instead of state).")
        return gated_delta_rule_mtp(
            q, k, v, initial_state, initial_state_indices, A_log, a, dt_bias, b, scale, output,
            intermediate_states_buffer, None, disable_state_update, use_qk_l2norm,
            output_state_indices)
    padding = dict(pad_policy=gdn.PAD_SINK, sink_slot=0) if is_short and is_pool else {}
    return _decode(q, k, v, pool, A_log, a, dt_bias, b, scale, output, use_qk_l2norm,
                   read=initial_state_indices, write=output_state_indices,
                   buffer=intermediate_states_buffer, frozen=disable_state_update, **padding)


def gated_delta_rule_decode(
    q,
    k,
    v,
    state,
    A_log,
    a,
    dt_bias,
    b,
    scale=None,
    output=None,
    use_qk_l2norm=True,
    backend="auto",
):
    """
    The next token of each sequence, T = 1, with states [K, V].

    Arguments, conversions and errors are those of gated_delta_rule_decode_pretranspose(); state
    [B, HV, K, V] float32 is updated in place.

    Returns (output [B, 1, HV, V], state).
    """
    B, T, HV, K, V = _sizes(q, k, v, a, b, A_log, dt_bias)
    _expect(T == 1, f"Decode only supports T=1, got T={T}")
    _expect(state.shape == (B, HV, K, V),
            f"Expected state shape {[B, HV, K, V]}, got {list(state.shape)}")
    _expect(state.dtype == torch.float32, f"state must be float32, got {state.dtype}")
    _backend(backend, ("auto", "flashinfer"), ("cake_gdn",))
    return _decode(q, k, v, state, A_log, a, dt_bias, b, scale, output, use_qk_l2norm,
                   layout=gdn.STATE_KV)


def _check_buffer(buffer, B, T):
    if buffer is None:
        return
    _expect(buffer.shape[0] >= B, f"intermediate_states_buffer first dim ({buffer.shape[0]}) must "
            f"be at least B={B}")
    _expect(buffer.shape[1] >= T, "intermediate_states_buffer second dimension (cache_steps="
            f"{buffer.shape[1]}) must be at least T={T}")
    _expect(buffer.dtype == torch.float32,
            f"intermediate_states_buffer must be float32, got {buffer.dtype}")
    _expect(buffer.is_contiguous(), "intermediate_states_buffer must be contiguous")


def _check_each(slots, buffer, frozen, B, T):
    if slots is None:
        return
    _expect(buffer is None,
            "ssm_state_indices and intermediate_states_buffer are mutually exclusive")
    _expect(not frozen,
            "ssm_state_indices requires state writes; disable_state_update must be False")
    _expect(T >= 2, f"ssm_state_indices requires T >= 2 (got T={T})")
    _expect(slots.shape == (B, T), f"ssm_state_indices must have shape [B={B}, T={T}], "
            f"got {tuple(slots.shape)}")
    _expect(slots.dtype == torch.int32, f"ssm_state_indices must be int32, got {slots.dtype}")


@_drop_in.explained(q=4, k=4, v=4, initial_state=4, initial_state_indices=0)
@renamed(g="a", beta="b", state="initial_state", read_slots="initial_state_indices",
         write_slots="output_state_indices", out="output")
def gated_delta_rule_mtp(
    q,
    k,
    v,
    initial_state,
    initial_state_indices,
    A_log,
    a,
    dt_bias,
    b,
    scale=None,
    output=None,
    intermediate_states_buffer=None,
    ssm_state_indices=None,
    disable_state_update=None,
    use_qk_l2norm=True,
    output_state_indices=None,
    cache_replayssm=False,
    replayssm_rawv=None,
    replayssm_rawk=None,
    replayssm_g=None,
    replayssm_beta=None,
):
    """
    Drafted tokens of each sequence over a float32 pool.

    Arguments, conversions and errors are those of gated_delta_rule_decode_pretranspose() with a
    pool. ssm_state_indices [B, T] int32: the state after token t goes to that slot, and no other
    state is written. A negative initial_state_indices[b] skips the row, whose output stays as it
    was (zero without output). A negative output_state_indices[b] drops the row's final state.
    disable_state_update None is True, with a DeprecationWarning, as in FlashInfer 0.7.

    cache_replayssm: the raw inputs of the drafts go to the replayssm_* windows of their slots, for
    gated_delta_rule_replayssm_commit(). Any chip, head sizes and T.

    Returns (output [B, T, HV, V], initial_state).

    Raises NotImplementedError for what gated_delta_rule_decode_pretranspose() raises it for.
    """
    if disable_state_update is None:
        warnings.warn("gated_delta_rule_mtp(): disable_state_update defaults to True, and to False "
                      "from FlashInfer 0.8.0 on; pass it", DeprecationWarning, stacklevel=4)
        disable_state_update = True
    windows = replayssm_rawk, replayssm_rawv, replayssm_g, replayssm_beta
    if cache_replayssm:
        _check_windows(windows, k, v, initial_state, disable_state_update,
                       intermediate_states_buffer, ssm_state_indices)
    else:
        _expect(all(x is None for x in windows),
                "replayssm_* buffers require cache_replayssm=True")
    B, T, HV, K, V = _sizes(q, k, v, a, b, A_log, dt_bias)
    rows = initial_state.shape[0]
    _expect(initial_state.shape == (rows, HV, V, K),
            f"Expected initial_state shape {[rows, HV, V, K]}, got {list(initial_state.shape)}")
    _expect(initial_state.dtype == torch.float32,
            f"initial_state must be float32, got {initial_state.dtype}")
    _check_buffer(intermediate_states_buffer, B, T)
    _check_each(ssm_state_indices, intermediate_states_buffer, disable_state_update, B, T)
    if output is None:
        output = torch.zeros((B, T, HV, V), dtype=q.dtype, device=q.device)
    result = _decode(q, k, v, initial_state, A_log, a, dt_bias, b, scale, output, use_qk_l2norm,
                     read=initial_state_indices, write=output_state_indices,
                     each=ssm_state_indices, buffer=intermediate_states_buffer,
                     frozen=disable_state_update, pad_policy=gdn.PAD_KEEP)
    if cache_replayssm:
        _replay.keep(initial_state_indices, k, v, a, b, A_log, dt_bias, *windows)
    return result


def _check_windows(windows, k, v, pool, frozen, buffer, slots):
    _expect(frozen, "ReplaySSM verify must leave the checkpoint frozen (disable_state_update=True)")
    _expect(buffer is None, "ReplaySSM replaces full intermediate-state snapshots")
    _expect(slots is None, "ReplaySSM and per-token state scatter are mutually exclusive")
    _expect(all(x is not None for x in windows),
            "cache_replayssm=True requires replayssm_rawv/rawk/g/beta")
    (T, H, K), (HV, V), P = k.shape[1:], v.shape[2:], pool.shape[0]
    shapes = (P, H, T, K), (P, HV, T, V), (P, HV, T), (P, HV, T)
    for name, x, shape in zip(("rawk", "rawv", "g", "beta"), windows, shapes):
        _expect(tuple(x.shape) == shape,
                f"replayssm_{name} must have shape {list(shape)}, got {tuple(x.shape)}")


def gated_delta_rule_replayssm_commit(
    checkpoint_state,
    rawv_cache,
    rawk_cache,
    g_cache,
    beta_cache,
    state_indices,
    accept_lens,
    *,
    track_state_indices=None,
    track_steps=None,
    use_qk_l2norm=True,
    null_block_id=-1,
    backend="auto",
):
    """
    Takes the states of all layers, [L, P, HV, V, K], through the accepted tokens of the windows
    that gated_delta_rule_mtp(cache_replayssm=True) kept: rawv [L, P, HV, T, V], rawk
    [L, P, H, T, K], g and beta [L, P, HV, T]. state_indices [B], those up to null_block_id are
    skipped; accept_lens [B] from 0 to T.

    Raises NotImplementedError for track_state_indices and for backend="tcgen05".
    """
    _backend(backend, ("auto", "simt"), ("tcgen05",))
    if track_state_indices is not None or track_steps is not None:
        raise NotImplementedError("gdn.flashinfer: track_state_indices is FlashInfer's own")
    if rawk_cache.ndim != 5:
        raise ValueError("rawk_cache must be [layers, slots, H, T, K]")
    slots = state_indices.where(state_indices > null_block_id, -1)
    for layer in zip(checkpoint_state, rawk_cache, rawv_cache, g_cache, beta_cache):
        _replay.commit(*layer, slots, accept_lens, use_qk_l2norm)


_PLACES = dict(gdn_prefill=(chunk_gated_delta_rule,),
               gdn_decode=(gated_delta_rule_decode_pretranspose, gated_delta_rule_decode,
                           gated_delta_rule_mtp, gated_delta_rule_replayssm_commit))


def _pairs():
    """Ours and FlashInfer's functions."""
    from importlib import import_module

    for name, functions in _PLACES.items():
        module = import_module(f"flashinfer.{name}")
        for function in functions:
            yield function, getattr(module, function.__name__)


def install():
    """
    Puts the functions into the place of FlashInfer's, in modules loaded already too. Raises
    ImportError where FlashInfer is not importable. A second call changes nothing.
    """
    for ours, theirs in list(_pairs()):
        _drop_in.replace(ours, theirs)


_drop_in.compare(_pairs)
