# SPDX-License-Identifier: Apache-2.0
"""
The gated delta rule as a kernel of SGLang 0.5.23's linear attention.

    python -m sglang.launch_server --linear-attn-backend gdn --linear-attn-verify-backend gdn ...

SGLang's plugin loader finds the entry point "gdn" of sglang.srt.plugins and calls register(): "gdn"
becomes a choice of --linear-attn-backend and of its kinds for prefill, decode and verifying, and
where it is chosen GDNKernelDispatcher takes its kernels from here. Without the flag for verifying
SGLang chooses Triton for it. Without any of these flags nothing changes. decode(), packed_decode(),
extend() and target_verify() are the kernel's methods as functions.

Pools are [P, HV, V, K] and changed in place. A negative slot is padding: its output is zero, where
SGLang leaves it undefined. q and k are normalised inside. No call waits for the device. Copied: q,
k, v if their last stride is not 1.

Forward only. A tensor that requires a gradient raises NotImplementedError unless gradients are off.
"""

import functools

import torch

import gdn
import gdn.torch
from gdn.torch._named import renamed

from . import _drop_in

DISPATCHER = "sglang.srt.layers.attention.linear.gdn_backend.GDNKernelDispatcher.__init__"


_NAMES = dict(state="ssm_states", read_slots="cache_indices", cu_seqlens="query_start_loc")
_SHAPES = dict(q=3, k=3, v=3, ssm_states=4, cache_indices=1, query_start_loc=1)
_RAW = dict(a=1, b=1, A_log=1, dt_bias=1)


def _rule(op, q, k, v, g, beta, **options):
    """op on packed tensors [1, N, ..]; gates may be [N, HV]."""
    _drop_in.refuse_grad(q=q, k=k, v=v, g=g, beta=beta)
    q, k, v = (_drop_in.unit_stride(x[0]) for x in (q, k, v))
    g, beta = (_drop_in.gate(x).view(-1, x.shape[-1]) for x in (g, beta))
    return op(q, k, v, g, beta, norm=gdn.NORM_L2, **options)[None]


@_drop_in.explained(**_SHAPES, **_RAW)
@renamed(**_NAMES, g="a", beta="b")
def decode(q, k, v, a, b, *, A_log, dt_bias, ssm_states, cache_indices, query_start_loc, **kwargs):
    """
    The next tokens of each sequence, with raw gates.

    q, k [1, N, H, K], v [1, N, HV, V]; a, b [N, HV]; A_log, dt_bias [HV]; cache_indices [S];
    query_start_loc [S + 1]. kwargs are ignored. Returns out [1, N, HV, V].
    """
    return _rule(gdn.torch.decode, q, k, v, a, b, A_log=A_log, dt_bias=dt_bias, state=ssm_states,
                 read_slots=cache_indices, cu_seqlens=query_start_loc, **_drop_in.RAW_GATES)


@_drop_in.explained(mixed_qkv=2, ssm_states=4, cache_indices=1, **_RAW)
@renamed(**_NAMES, q="mixed_qkv", k="mixed_qkv", v="mixed_qkv", g="a", beta="b")
def packed_decode(mixed_qkv, a, b, *, A_log, dt_bias, scale, ssm_states, cache_indices, num_v_heads,
                  head_v_dim, **kwargs):
    """
    The next token of each sequence from rows behind the convolution, mixed_qkv [B, 2 H K + HV V].

    Returns out [1, B, HV, V]. Raises NotImplementedError for SGLang's ReplaySSM caches in kwargs.
    """
    if any(kwargs.get(name) is not None for name in ("replayssm_d", "replayssm_k", "replayssm_g")):
        raise NotImplementedError("gdn.sglang: ReplaySSM is not supported")
    q, k, v = _drop_in.split(_drop_in.unit_stride(mixed_qkv), ssm_states)
    _drop_in.refuse_grad(mixed_qkv=mixed_qkv, a=a, b=b)
    _drop_in.dimensions(a=(a, 2), b=(b, 2))
    a, b = (_drop_in.gate(x)[:, None] for x in (a, b))
    out = gdn.torch.decode(q, k, v, a, b, A_log=A_log, dt_bias=dt_bias, state=ssm_states,
                           read_slots=cache_indices, scale=scale, norm=gdn.NORM_L2,
                           **_drop_in.RAW_GATES)
    return out.transpose(0, 1)


@_drop_in.explained(**_SHAPES, g=1, beta=1)
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
    out = _rule(gdn.torch.prefill, q, k, v, g, beta, state=ssm_states, read_slots=cache_indices,
                cu_seqlens=query_start_loc, **options)
    return out, None, None if h is None else h[None]


def _snapshots(buffer, rows, steps):
    """The buffer [R, S, ..] as slots, and the slot of each token of its rows [B, steps]."""
    pitch = buffer.stride(0) // buffer.stride(1)
    slots = torch.as_strided(buffer, ((len(buffer) - 1) * pitch + buffer.shape[1],
                                      *buffer.shape[2:]), buffer.stride()[1:])
    places = rows[:, None] * pitch + torch.arange(steps, device=rows.device)
    return slots, places.where(rows[:, None] >= 0, -1).flatten()


@_drop_in.explained(**_SHAPES, **_RAW, intermediate_states_buffer=5, intermediate_state_indices=1,
                    retrieve_parent_token=2)
@renamed(**_NAMES, g="a", beta="b", checkpoints="intermediate_states_buffer",
         checkpoint_slots="intermediate_state_indices", parents="retrieve_parent_token")
def target_verify(A_log, dt_bias, q, k, v, a, b, *, ssm_states, cache_indices, query_start_loc,
                  intermediate_states_buffer=None, intermediate_state_indices=None,
                  cache_steps=None, retrieve_parent_token=None, **kwargs):
    """
    As many drafted tokens of each sequence; ssm_states is read only.

    intermediate_states_buffer [R, >= T, HV, V, K] takes the state after every token in row
    intermediate_state_indices[s]. retrieve_parent_token [S, >= T]: drafts are trees; what it has
    for the first token is ignored. cache_steps and other kwargs are ignored.

    Returns out [1, N, HV, V].
    """
    count = query_start_loc.numel() - 1
    steps, options = q.shape[1] // count, {}
    if intermediate_states_buffer is not None:
        _drop_in.wanted(intermediate_state_indices=intermediate_state_indices)
        slots, places = _snapshots(intermediate_states_buffer, intermediate_state_indices[:count],
                                   steps)
        options.update(checkpoints=slots, checkpoint_slots=places, checkpoint_every=1)
    if retrieve_parent_token is not None:
        parents = retrieve_parent_token[:count, :steps].clone()
        parents[:, 0] = -1
        options["parents"] = parents
    return _rule(gdn.torch.decode, q, k, v, a, b, A_log=A_log, dt_bias=dt_bias, state=ssm_states,
                 read_slots=cache_indices[:count], cu_seqlens=query_start_loc,
                 write=gdn.WRITE_NONE, **_drop_in.RAW_GATES, **options)


def kernel():
    """An object of SGLang's LinearAttnKernelBase with these functions as methods."""
    from sglang.srt.layers.attention.linear.kernels.kernel_backend import LinearAttnKernelBase

    methods = {f.__name__: staticmethod(f) for f in (decode, packed_decode, extend, target_verify)}
    flags = dict(supports_packed_decode=True, uses_state_checkpoints=True,
                 supports_strided_target_verify_qkv=True)
    return type("GdnKernel", (LinearAttnKernelBase,), {**methods, **flags})()


def _dispatch(original, self, decode_backend, prefill_backend, verify_backend=None):
    """
    Around the dispatcher's constructor: Triton's kernels first, then ours where asked for. Raises
    ImportError with one line if the constructor has other parameters.
    """
    from sglang.srt.layers.attention.linear.utils import LinearAttnKernelBackend as Backend

    _drop_in.require_same(functools.partial(_dispatch, original), original)

    def theirs(backend):
        return Backend.TRITON if backend is Backend.CUSTOM else backend

    original(self, theirs(decode_backend), theirs(prefill_backend), theirs(verify_backend))
    ours = kernel()
    if decode_backend is Backend.CUSTOM:
        self.decode_kernel, self.supports_packed_decode = ours, True
    if prefill_backend is Backend.CUSTOM:
        self.extend_kernel = ours
    if verify_backend is Backend.CUSTOM or (
            verify_backend is None and decode_backend is Backend.CUSTOM):
        self.verify_kernel = self.tree_verify_kernel = ours
        self.verify_kernel_is_flashinfer = False


def register():
    """
    Adds "gdn" to the choices of SGLang's linear attention kernels, and a hook around the
    constructor of GDNKernelDispatcher. Raises ImportError where SGLang is not importable. A second
    call does nothing.
    """
    from sglang.srt.arg_groups.choices import (LINEAR_ATTN_KERNEL_BACKEND_CHOICES,
                                               add_linear_attn_kernel_backend_choices)
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if "gdn" in LINEAR_ATTN_KERNEL_BACKEND_CHOICES:
        return
    add_linear_attn_kernel_backend_choices(["gdn"])
    HookRegistry.register(DISPATCHER, _dispatch, HookType.AROUND)
