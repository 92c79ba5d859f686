# SPDX-License-Identifier: Apache-2.0
"""
The gated delta rule and KDA as kernels of SGLang 0.5.23's linear attention.

    python -m sglang.launch_server --linear-attn-backend gdn --linear-attn-verify-backend gdn ...

SGLang's plugin loader finds the entry point "gdn" of sglang.srt.plugins and calls register(): "gdn"
becomes a choice of --linear-attn-backend and of its kinds for prefill, decode and verifying, and
where it is chosen GDNKernelDispatcher and KDAKernelDispatcher take their kernels from here. Without
the flag for verifying SGLang chooses Triton for it. Without any of these flags nothing changes.
decode(), packed_decode(), extend(), extend_kda() and target_verify() are the kernels' methods as
functions.

All but extend() take both rules. With a dt_bias of HV K elements the rule is KDA: a then has a
number for each key channel, and lower_bound makes its gates
lower_bound sigmoid(exp(A_log) (a + dt_bias)).

Pools are [P, HV, V, K] and changed in place. A negative slot is padding: its output is zero, where
SGLang leaves it undefined. q and k are normalised inside. No call waits for the device. Copied: q,
k, v if their last stride is not 1.

Forward only. A tensor that requires a gradient raises NotImplementedError unless gradients are off.
"""

import functools

import torch
from torch.nn import functional

import gdn
import gdn.torch
from gdn.torch._named import renamed
from gdn.torch._places import refuse_mixed

from . import _drop_in

_LINEAR = "sglang.srt.layers.attention.linear."
DISPATCHER = _LINEAR + "gdn_backend.GDNKernelDispatcher.__init__"
KDA_DISPATCHER = _LINEAR + "kda_backend.KDAKernelDispatcher.__init__"


_NAMES = dict(state="ssm_states", read_slots="cache_indices", cu_seqlens="query_start_loc")
_SHAPES = dict(q=3, k=3, v=3, query_start_loc=1, cache_indices=1, ssm_states=4)
_RAW = dict(a=1, b=1, A_log=1, dt_bias=1)


def _rule(op, q, k, v, g, beta, **options):
    """op on packed tensors [1, N, ..] and gates [N, HV] or [N, HV, K]."""
    _drop_in.refuse_grad(q=q, k=k, v=v, g=g, beta=beta)
    q, k, v = (_drop_in.unit_stride(x[0]) for x in (q, k, v))
    return op(q, k, v, g, beta, norm=gdn.NORM_L2, **options)[None]


def _raw(a, b, A_log, dt_bias, lower_bound, tokens, heads, channels):
    """a and b by tokens and heads, and the options of raw gates."""
    if dt_bias.numel() not in (heads, heads * channels):
        raise ValueError(f"dt_bias: {list(dt_bias.shape)}, wanted {heads} or {heads * channels} "
                         "numbers")
    sizes = (heads, channels) if dt_bias.numel() != heads else (heads,)
    a, b = _drop_in.numbers(tokens, *sizes, a=a), _drop_in.numbers(tokens, heads, b=b)
    options = dict(A_log=A_log, dt_bias=dt_bias)
    if len(sizes) == 2:
        options = _drop_in.raw_gates(a, A_log, dt_bias, lower_bound)
    return a, b, dict(options, **_drop_in.RAW_GATES)


@_drop_in.explained(**_RAW, **_SHAPES)
@renamed(**_NAMES, g="a", beta="b", gate_lower_bound="lower_bound")
def decode(q, k, v, a, b, *, A_log, dt_bias, ssm_states, cache_indices, query_start_loc,
           lower_bound=None, **kwargs):
    """
    The next tokens of each sequence, with raw gates.

    q, k [1, N, H, K], v [1, N, HV, V]; a [.., N, HV] or for KDA [.., N, HV K]; b [.., N, HV];
    A_log with HV elements; dt_bias with HV or HV K; cache_indices [S]; query_start_loc [S + 1].
    kwargs are ignored. Returns out [1, N, HV, V].
    """
    a, b, options = _raw(a, b, A_log, dt_bias, lower_bound, v.shape[1], v.shape[2], k.shape[3])
    return _rule(gdn.torch.decode, q, k, v, a, b, state=ssm_states, read_slots=cache_indices,
                 cu_seqlens=query_start_loc, **options)


@_drop_in.explained(mixed_qkv=2, **_RAW, ssm_states=4, cache_indices=1)
@renamed(**_NAMES, q="mixed_qkv", k="mixed_qkv", v="mixed_qkv", g="a", beta="b",
         gate_lower_bound="lower_bound")
def packed_decode(mixed_qkv, a, b, *, A_log, dt_bias, scale, ssm_states, cache_indices, num_v_heads,
                  head_v_dim, lower_bound=None, **kwargs):
    """
    The next token of each sequence from rows behind the convolution, mixed_qkv [B, 2 H K + HV V].
    Gates are as for decode() with B tokens.

    Returns out [1, B, HV, V]. Raises NotImplementedError for SGLang's ReplaySSM caches in kwargs.
    """
    if any(kwargs.get(name) is not None for name in ("replayssm_d", "replayssm_k", "replayssm_g")):
        raise NotImplementedError("gdn.sglang: ReplaySSM is not supported")
    q, k, v = _drop_in.split(_drop_in.unit_stride(mixed_qkv), ssm_states)
    _drop_in.refuse_grad(mixed_qkv=mixed_qkv, a=a, b=b)
    a, b, options = _raw(a, b, A_log, dt_bias, lower_bound, len(v), v.shape[2], k.shape[3])
    out = gdn.torch.decode(q, k, v, a[:, None], b[:, None], state=ssm_states,
                           read_slots=cache_indices, scale=scale, norm=gdn.NORM_L2, **options)
    return out.transpose(0, 1)


@_drop_in.explained(g=1, beta=1, **_SHAPES)
@renamed(**_NAMES, out="output")
def extend(q, k, v, g, beta, *, ssm_states, cache_indices, query_start_loc, inplace_update=True,
           output=None, num_state_checkpoints=0, state_checkpoint_every_n_tokens=0, **kwargs):
    """
    Prefill. q, k [1, N, H, K], v [1, N, HV, V]; g (the logarithm of the decay), beta [1, N, HV].

    num_state_checkpoints: after every state_checkpoint_every_n_tokens tokens of a sequence the
    state is kept, numbered through the sequences. Other kwargs are ignored.

    Returns (out [1, N, HV, V] or output, None, h [1, C, HV, V, K] of the kept states or None).
    """
    options, h = {}, None
    if output is not None:
        options["out"] = output[0]
    if num_state_checkpoints:
        h = ssm_states.new_empty(num_state_checkpoints, *ssm_states.shape[1:])
        options.update(checkpoints=h, checkpoint_every=state_checkpoint_every_n_tokens)
    if not inplace_update:
        options["write"] = gdn.WRITE_NONE
    g, beta = (_drop_in.numbers(*v.shape[1:3], **x) for x in (dict(g=g), dict(beta=beta)))
    out = _rule(gdn.torch.prefill, q, k, v, g, beta, state=ssm_states, read_slots=cache_indices,
                cu_seqlens=query_start_loc, **options)
    return out, None, None if h is None else h[None]


def _tracked(states, chunks):
    """The batch's checkpoints: of sequence s that after chunks[s] chunks, in row s of states."""
    count, is_tracked = len(chunks), chunks > 0
    starts = functional.pad(is_tracked.cumsum(0), (1, 0))
    places = starts[:-1].where(is_tracked, count)  # the last place takes what nobody wants
    rows = torch.arange(count, device=chunks.device)
    slots, positions = (x.new_full((count + 1,), -1).scatter(0, places, x)[:count]
                        for x in (rows, _drop_in.CHUNK_SIZE * chunks.long()))
    return dict(checkpoints=states, checkpoint_starts=starts, checkpoint_positions=positions,
                checkpoint_slots=slots)


@_drop_in.explained(g=3, beta=2, **_SHAPES, A_log=1, dt_bias=1, track_state=4, track_chunk_idx=1)
@renamed(**_NAMES, gate_lower_bound="lower_bound", checkpoints="track_state",
         checkpoint_starts="track_chunk_idx", checkpoint_positions="track_chunk_idx",
         checkpoint_slots="track_chunk_idx")
def extend_kda(q, k, v, g, beta, *, ssm_states, cache_indices, query_start_loc, A_log=None,
               dt_bias=None, lower_bound=None, beta_is_raw=False, return_intermediate_states=False,
               track_state=None, track_chunk_idx=None, **kwargs):
    """
    Prefill of KDA. q, k [1, N, H, K], v [1, N, HV, V]; g [1, N, HV, K], beta [1, N, HV]. g is raw
    beside an A_log of HV elements and a dt_bias of HV K, else the logarithm of the decay. With
    beta_is_raw the rule takes the sigmoid of beta.

    track_state [S, HV, V, K]: row s takes the state of sequence s after 64 track_chunk_idx[s]
    tokens; 0 and below: none. Other kwargs are ignored.

    Returns out [1, N, HV, V], with return_intermediate_states (out, None): SGLang reads no state of
    the list of all chunks where it passes track_state, or wants final states alone.
    """
    g, beta = (_drop_in.numbers(*v.shape[1:3], k.shape[3], g=g),
               _drop_in.numbers(*v.shape[1:3], beta=beta))
    options = dict(beta_kind=gdn.BETA_SIGMOID if beta_is_raw else gdn.BETA_GIVEN)
    if A_log is not None:
        options.update(_drop_in.raw_gates(g, A_log, dt_bias, lower_bound), gate=gdn.GATE_RAW)
    if track_state is not None:
        _drop_in.wanted(track_chunk_idx=track_chunk_idx)
        options.update(_tracked(track_state, track_chunk_idx))
    out = _rule(gdn.torch.prefill, q, k, v, g, beta, state=ssm_states, read_slots=cache_indices,
                cu_seqlens=query_start_loc, **options)
    return (out, None) if return_intermediate_states else out


def _snapshots(buffer, rows, starts, tokens):
    """The buffer [R, S, ..] as slots, and the slot of each token: of the sequence s that has it,
    the next place in row rows[s]; -1 behind the last sequence, and where the row is negative."""
    pitch = buffer.stride(0) // buffer.stride(1)
    slots = torch.as_strided(buffer, ((len(buffer) - 1) * pitch + buffer.shape[1],
                                      *buffer.shape[2:]), buffer.stride()[1:])
    token, starts = torch.arange(tokens, device=rows.device), starts.long()
    of = torch.searchsorted(starts[1:].contiguous(), token, right=True)
    row = functional.pad(rows, (0, 1), value=-1)[of]
    return slots, (row * pitch + token - starts[of]).where(row >= 0, -1)


@_drop_in.explained(**_RAW, **_SHAPES, intermediate_states_buffer=5, intermediate_state_indices=1,
                    retrieve_parent_token=2)
@renamed(**_NAMES, g="a", beta="b", gate_lower_bound="lower_bound",
         checkpoints="intermediate_states_buffer", checkpoint_slots="intermediate_state_indices",
         parents="retrieve_parent_token")
def target_verify(A_log, dt_bias, q, k, v, a, b, *, ssm_states, cache_indices, query_start_loc,
                  intermediate_states_buffer=None, intermediate_state_indices=None,
                  cache_steps=None, retrieve_parent_token=None, lower_bound=None, cache_ring=False,
                  **kwargs):
    """
    Drafted tokens of each sequence, gates as for decode(); ssm_states is read only.

    intermediate_states_buffer [R, >= T, HV, V, K] takes the state after every token in row
    intermediate_state_indices[s]. retrieve_parent_token [S, >= T]: drafts are trees; what it has
    for the first token is ignored. cache_steps and other kwargs are ignored.

    Returns out [1, N, HV, V]. Raises NotImplementedError for cache_ring, SGLang's ReplaySSM.
    """
    if cache_ring:
        raise NotImplementedError("gdn.sglang: ReplaySSM is not supported")
    count = query_start_loc.numel() - 1
    a, b, options = _raw(a, b, A_log, dt_bias, lower_bound, v.shape[1], v.shape[2], k.shape[3])
    if intermediate_states_buffer is not None:
        _drop_in.wanted(intermediate_state_indices=intermediate_state_indices)
        refuse_mixed("decode", dict(q=q, query_start_loc=query_start_loc,
                                    intermediate_state_indices=intermediate_state_indices))
        slots, places = _snapshots(intermediate_states_buffer, intermediate_state_indices[:count],
                                   query_start_loc, v.shape[1])
        options.update(checkpoints=slots, checkpoint_slots=places, checkpoint_every=1)
    if retrieve_parent_token is not None:
        parents = retrieve_parent_token[:count].clone()
        parents[:, 0] = -1
        options["parents"] = parents
    return _rule(gdn.torch.decode, q, k, v, a, b, state=ssm_states,
                 read_slots=cache_indices[:count], cu_seqlens=query_start_loc,
                 write=gdn.WRITE_NONE, **options)


def kernel(name, extend, **flags):
    """An object of SGLang's LinearAttnKernelBase with these functions as methods."""
    from sglang.srt.layers.attention.linear.kernels.kernel_backend import LinearAttnKernelBase

    methods = dict(decode=decode, packed_decode=packed_decode, extend=extend,
                   target_verify=target_verify)
    return type(name, (LinearAttnKernelBase,), {
        **{n: staticmethod(f) for n, f in methods.items()}, "supports_packed_decode": True,
        "supports_strided_target_verify_qkv": True, **flags})()


def _made(ours, original, self, decode_backend, prefill_backend, verify_backend):
    """Makes Triton's kernels, then ours for the backends that ask for them. Returns whether
    verifying is ours."""
    from sglang.srt.layers.attention.linear.utils import LinearAttnKernelBackend as Backend

    def theirs(backend):
        return Backend.TRITON if backend is Backend.CUSTOM else backend

    original(self, theirs(decode_backend), theirs(prefill_backend), theirs(verify_backend))
    if decode_backend is Backend.CUSTOM:
        self.decode_kernel, self.supports_packed_decode = ours, True
    if prefill_backend is Backend.CUSTOM:
        self.extend_kernel = ours
    is_ours = verify_backend is Backend.CUSTOM or (
        verify_backend is None and decode_backend is Backend.CUSTOM)
    if is_ours:
        self.verify_kernel = ours
    return is_ours


def _dispatch(original, self, decode_backend, prefill_backend, verify_backend=None):
    """Around the constructor of GDNKernelDispatcher. Raises ImportError with one line if it has
    other parameters."""
    _drop_in.require_same(functools.partial(_dispatch, original), original)
    ours = kernel("GdnKernel", extend, uses_state_checkpoints=True)
    if _made(ours, original, self, decode_backend, prefill_backend, verify_backend):
        self.tree_verify_kernel = ours
        self.verify_kernel_is_flashinfer = False


def _dispatch_kda(original, self, decode_backend, prefill_backend, verify_backend):
    """Around the constructor of KDAKernelDispatcher, as _dispatch(). Decoding is always packed: the
    dispatcher has other kernels than Triton's decode bounded gates in no other form."""
    _drop_in.require_same(functools.partial(_dispatch_kda, original), original)
    ours = kernel("KdaKernel", extend_kda, supports_packed_decode_safe_gate=True,
                  supports_safe_gate_verify=True, supports_track_state_snapshot=True)
    _made(ours, original, self, decode_backend, prefill_backend, verify_backend)
    if self.decode_kernel is ours:
        self.supports_packed_decode_safe_gate = True


def register():
    """
    Adds "gdn" to the choices of SGLang's linear attention kernels, and a hook around the
    constructor of each dispatcher. Raises ImportError where SGLang is not importable. A second call
    does nothing.
    """
    from sglang.srt.arg_groups.choices import (LINEAR_ATTN_KERNEL_BACKEND_CHOICES,
                                               add_linear_attn_kernel_backend_choices)
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if "gdn" in LINEAR_ATTN_KERNEL_BACKEND_CHOICES:
        return
    add_linear_attn_kernel_backend_choices(["gdn"])
    HookRegistry.register(DISPATCHER, _dispatch, HookType.AROUND)
    HookRegistry.register(KDA_DISPATCHER, _dispatch_kda, HookType.AROUND)
