# SPDX-License-Identifier: Apache-2.0
"""
The convolution, the norm and the gated norm of FLA's layers, under the names and signatures of FLA
0.6. Used by gdn.fla.install(). Gradients flow, but through causal_conv1d_update().
"""

import torch
from torch import nn
from torch.nn import functional

import gdn
import gdn.torch
from gdn.torch import distributed

from . import _drop_in
from . import causal_conv1d as _package
from .torch._named import renamed
from .torch._operators import overload

_SMALLEST = 2.0 ** -126  # an eps of 0 would be the default's


# ---- Norms ---------------------------------------------------------------------------------------


def l2norm(x, eps=1e-6, output_dtype=None):
    """x / sqrt(sum x^2 + eps) of the last dimension, in output_dtype or the dtype of x."""
    _drop_in.wanted(x=x)
    if output_dtype is not None and x.dtype != torch.float32:
        x = x.float()  # so that the result is rounded once
    out = gdn.torch.l2norm(_drop_in.unit_stride(x), eps=eps or _SMALLEST)
    return out if output_dtype is None else out.to(output_dtype)


l2_norm = l2norm


@torch.no_grad()
def l2norm_fwd(x, eps=1e-6, output_dtype=None):
    """l2norm(), and 1 / sqrt(sum x^2 + eps) in float32 for l2norm_bwd()."""
    return l2norm(x, eps, output_dtype), (x.float().square().sum(-1) + eps).rsqrt()


@torch.no_grad()
def l2norm_bwd(y, rstd, dy, eps=1e-6):
    """The gradient of x in the dtype of y, from the results of l2norm_fwd()."""
    y32, dy = y.float(), dy.float()
    return ((dy - (dy * y32).sum(-1, keepdim=True) * y32) * rstd[..., None]).to(y.dtype)


class L2Norm(nn.Module):
    """l2norm() as a module."""

    def __init__(self, eps=1e-6, output_dtype=None):
        super().__init__()
        self.eps, self.output_dtype = eps, output_dtype

    def forward(self, x):
        """l2norm() of x."""
        return l2norm(x, self.eps, self.output_dtype)


def rms_norm_gated(x, g, weight, bias, activation="swish", residual=None, prenorm=False,
                   residual_in_fp32=False, eps=1e-6):
    """
    x / sqrt(mean x^2 + eps) weight silu(g), or the sigmoid of g. x, g [.., D]; weight [D] or None.

    Raises NotImplementedError for bias, residual and prenorm.
    """
    _drop_in.wanted(x=x, g=g)
    for name, given in (("bias", bias), ("residual", residual), ("prenorm", prenorm or None)):
        if given is not None:
            raise NotImplementedError(f"gdn.fla: rms_norm_gated() does not have {name}")
    if activation not in ("swish", "silu", "sigmoid"):
        raise ValueError(f"activation: {activation!r}, wanted 'swish', 'silu' or 'sigmoid'")
    kind = gdn.ACT_SIGMOID if activation == "sigmoid" else gdn.ACT_SILU
    return gdn.torch.rmsnorm_gated(_drop_in.unit_stride(x), _drop_in.unit_stride(g), weight,
                                   eps=eps or _SMALLEST, activation=kind)


class FusedRMSNormGated(nn.Module):
    """rms_norm_gated() as a module."""

    def __init__(self, hidden_size, elementwise_affine=True, eps=1e-5, activation="swish",
                 device=None, dtype=None):
        super().__init__()
        if activation not in ("swish", "silu", "sigmoid"):
            raise ValueError(f"Unsupported activation: {activation}")
        self.hidden_size, self.elementwise_affine = hidden_size, elementwise_affine
        self.eps, self.activation = eps, activation
        weight = torch.ones(hidden_size, device=device, dtype=dtype)
        self.register_parameter("weight", nn.Parameter(weight) if elementwise_affine else None)
        self.register_parameter("bias", None)

    def reset_parameters(self):
        """Makes every weight 1."""
        if self.weight is not None:
            nn.init.ones_(self.weight)

    def extra_repr(self):
        """The sizes, for print()."""
        return f"{self.hidden_size}, eps={self.eps}, activation={self.activation}"

    def forward(self, x, g, residual=None, prenorm=False, residual_in_fp32=False):
        """rms_norm_gated() of x and g."""
        return rms_norm_gated(x, g, self.weight, self.bias, self.activation, residual, prenorm,
                              residual_in_fp32, self.eps)


# ---- Convolution ---------------------------------------------------------------------------------


def _rows(x, weight):
    """x as [B, T, D]; FLA takes [B, T, heads, ..] too."""
    _drop_in.wanted(x=x, weight=weight)
    return x.flatten(2) if x.dim() > 3 and x.shape[-1] != weight.shape[0] else x


def _convolve(x, weight, bias, initial_state, output_final_state, act, cu_seqlens):
    """The rows of x and the final state [N, D, W] or None."""
    packed = {}
    if cu_seqlens is not None:
        _drop_in.wanted(cu_seqlens=cu_seqlens)
        if x.shape[0] != 1:
            raise ValueError(f"x: {x.shape[0]} rows, wanted 1 with cu_seqlens")
        x, packed = x[0], dict(cu_seqlens=cu_seqlens)
    count = len(x) if cu_seqlens is None else len(cu_seqlens) - 1
    state = initial_state
    if state is not None and len(state) != count:
        raise ValueError(f"initial_state: {len(state)} states, wanted {count}")
    if state is None and output_final_state:
        state = x.new_zeros(count, x.shape[-1], weight.shape[-1])
    if state is not None and not output_final_state:
        packed["write"] = gdn.WRITE_NONE
    found = gdn.torch.conv1d(x, weight, bias, state=state, activation=act,
                             return_state=bool(output_final_state), **packed)
    y, final = found if output_final_state else (found, None)
    return (y if cu_seqlens is None else y[None]), None if final is None else final.to(x.dtype)


def causal_conv1d(x, weight=None, bias=None, residual=None, initial_state=None,
                  output_final_state=False, activation=None, backend="triton", cu_seqlens=None,
                  cu_seqlens_cpu=None, chunk_indices=None, cp_context=None, **kwargs):
    """
    Causal depthwise convolution. x [B, T, D], weight [D, W], bias [D]; residual, like x, is added
    to the result. initial_state [N, D, W] is read only. cu_seqlens [N + 1] packs sequences into
    B = 1; without it, seq_idx [B, T] in kwargs does. activation: None, "silu" or "swish".
    cp_context of build_cp_context(): x holds this rank's tokens. backend, cu_seqlens_cpu and
    chunk_indices are ignored.

    Returns y of the shape of x and the final state [N, D, W] in the dtype of x, or None.

    Raises AssertionError for states with a cp_context, NotImplementedError for seq_idx with states
    and for other kwargs.
    """
    _drop_in.only("causal_conv1d", kwargs, "seq_idx")
    if backend not in ("triton", "cuda", "mix"):
        raise ValueError(f"Unsupported backend: {backend}")
    rows, seq_idx = _rows(x, weight), kwargs.get("seq_idx")
    act, layout = _package.activation_of(activation), None
    if cp_context is not None:
        if initial_state is not None or output_final_state:
            raise AssertionError("initial and final states are not supported with a cp_context")
        layout, cu_seqlens = distributed.layout_of(cp_context), cp_context.cu_seqlens
    if layout is not None:
        y, final = distributed.conv1d(rows[0], weight, bias, layout=layout, activation=act), None
    elif cu_seqlens is None and seq_idx is not None:
        y, final = _package.causal_conv1d_fn(
            rows.transpose(1, 2), weight, bias, seq_idx, initial_state, bool(output_final_state),
            activation=activation).transpose(1, 2), None
    else:
        y, final = _convolve(rows, weight, bias, initial_state, output_final_state, act,
                             cu_seqlens)
    y = y.reshape(x.shape)
    return y if residual is None else y + residual, final


@torch.no_grad()
def causal_conv1d_fwd(x, weight, bias, residual, initial_state=None, output_final_state=False,
                      activation=None, cu_seqlens=None, cu_seqlens_cpu=None, chunk_indices=None,
                      chunk_size=64, layout_fallback=False):
    """causal_conv1d() without gradients."""
    return causal_conv1d(x, weight, bias, residual, initial_state, output_final_state, activation,
                         cu_seqlens=cu_seqlens)


@torch.no_grad()
@renamed(dout="dy")
def causal_conv1d_bwd(x, dy, dht, weight=None, bias=None, residual=None, initial_state=None,
                      activation=None, cu_seqlens=None, cu_seqlens_cpu=None, chunk_indices=None,
                      chunk_size=64, layout_fallback=False):
    """
    The gradients of causal_conv1d_fwd(); dht, like the final state, or None. Returns dx, dweight,
    dbias, the gradient of residual and that of initial_state, in the dtypes of their inputs; None
    for what was not given.
    """
    _drop_in.wanted(dy=dy)
    rows, state = _rows(x, weight), initial_state
    dout, options = _rows(dy, weight), dict(activation=_package.activation_of(activation))
    if cu_seqlens is not None:
        rows, dout, options["cu_seqlens"] = rows[0], dout[0], cu_seqlens
    if dht is not None:
        options["dstate_out"] = dht
        state = torch.zeros_like(dht) if state is None else state
    given = {n: t for n, t in dict(x=rows, weight=weight, bias=bias, state=initial_state).items()
             if t is not None}
    found = {"d" + n: torch.empty(t.shape, dtype=t.dtype if n == "x" else torch.float32,
                                  device=t.device) for n, t in given.items()}
    overload("conv1d_backward", options)(x=rows, weight=weight, bias=bias, state=state, dout=dout,
                                         **found, **options)
    dx, dweight, dbias, dstate = (found["d" + n].to(given[n].dtype) if n in given else None
                                  for n in ("x", "weight", "bias", "state"))
    return dx.view(x.shape), dweight, dbias, None if residual is None else dy, dstate


class CausalConv1dFunction:
    """apply() alone of FLA's autograd function. Gradients flow."""

    @staticmethod
    def apply(x, weight=None, bias=None, residual=None, initial_state=None,
              output_final_state=False, activation=None, cu_seqlens=None, cu_seqlens_cpu=None,
              chunk_indices=None, chunk_size=64):
        """causal_conv1d() of these arguments."""
        return causal_conv1d(x, weight, bias, residual, initial_state, output_final_state,
                             activation, cu_seqlens=cu_seqlens)


def causal_conv1d_update(x, cache, residual=None, weight=None, bias=None, activation=None):
    """
    The next token of each of N sequences: x [N, D], [N, 1, D] or [1, N, D]; cache [N, D, W] is
    updated in place. residual, like x, is added to the result. Forward only.

    Returns y of the shape of x, and cache.
    """
    rows = _rows(x, weight)
    _drop_in.wanted(cache=cache)
    _drop_in.refuse_grad(x=x, cache=cache, weight=weight, bias=bias)
    rows = rows.reshape(-1, 1, rows.shape[-1])
    y = gdn.torch.conv1d(rows, weight, bias, state=cache,
                         activation=_package.activation_of(activation)).view(x.shape)
    return y if residual is None else y + residual, cache


def causal_conv1d_update_states(x, state_len, initial_state=None, cu_seqlens=None):
    """
    The last state_len inputs of each sequence, [N, D, state_len] in the dtype of x, oldest first,
    behind those of initial_state [N, D, <= state_len]. x [B, T, D], with cu_seqlens also [N, D].
    """
    _drop_in.wanted(x=x)
    if cu_seqlens is None:
        cu_seqlens = torch.arange(len(x) + 1, device=x.device) * x.shape[1]
    states = _package.causal_conv1d_varlen_states(x.reshape(-1, x.shape[-1]), cu_seqlens, state_len)
    if initial_state is None:
        return states
    past = functional.pad(initial_state, (state_len - initial_state.shape[-1], 0)).to(x.dtype)
    place = torch.arange(state_len, device=x.device) + cu_seqlens.diff()[:, None]
    older = past.gather(2, place.clamp(max=state_len - 1)[:, None].expand_as(states).long())
    return torch.where((place < state_len)[:, None], older, states)


class ShortConvolution(nn.Conv1d):
    """causal_conv1d() with its weights and a cache, as FLA's layers have it."""

    def __init__(self, hidden_size, kernel_size, bias=False, activation="silu", backend="triton",
                 device=None, dtype=None, **kwargs):
        _drop_in.only("ShortConvolution", kwargs, "use_fast_conv1d")
        super().__init__(hidden_size, hidden_size, kernel_size, groups=hidden_size, bias=bias,
                         padding=kernel_size - 1, device=device, dtype=dtype)
        if activation not in (None, "silu", "swish"):
            raise AssertionError(f"Activation `{activation}` not supported yet.")
        self.hidden_size, self.activation, self.backend = hidden_size, activation, backend

    @property
    def state_size(self):
        """The numbers of a sequence's state."""
        return self.hidden_size * self.kernel_size[0]

    def forward(self, x, residual=None, mask=None, cache=None, output_final_state=False,
                cu_seqlens=None, chunk_indices=None, **kwargs):
        """
        x [B, T, D], or packed [1, N, D] with cu_seqlens. mask [B, T] makes its zeros zero in x, not
        in place. cache [N, D, W]: where gradients are off and every sequence has one token, it is
        updated in place; else it is read only.

        Returns y [B, T, D] and the state [N, D, W], or None unless output_final_state.
        """
        if mask is not None:
            if cu_seqlens is not None:
                raise ValueError("`mask` and `cu_seqlens` cannot be provided at the same time")
            x = x * mask.unsqueeze(-1).to(x.dtype)
        tokens, count = x.shape[0] * x.shape[1], x.shape[0]
        if cu_seqlens is not None:
            count = len(cu_seqlens) - 1
        if (cache is not None and tokens == count and not torch.is_grad_enabled()
                and (cu_seqlens is None or bool((cu_seqlens.diff() == 1).all()))):
            _drop_in.only("ShortConvolution.forward", kwargs)
            return self.step(x, residual, cache, output_final_state, cu_seqlens)
        return causal_conv1d(x, self.weight[:, 0], self.bias, residual, cache, output_final_state,
                             self.activation, cu_seqlens=cu_seqlens, **kwargs)

    def step(self, x, residual, cache, output_final_state=False, cu_seqlens=None):
        """One token of each sequence; forward only. Returns as forward()."""
        if cache is None:
            count = len(x) if cu_seqlens is None else len(cu_seqlens) - 1
            cache = x.new_zeros(count, self.hidden_size, self.kernel_size[0])
        y, cache = causal_conv1d_update(x, cache, residual, self.weight[:, 0], self.bias,
                                        self.activation)
        return y, cache if output_final_state else None
