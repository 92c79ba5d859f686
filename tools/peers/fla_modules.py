# SPDX-License-Identifier: Apache-2.0
"""FLA's norms, convolution and gate as calls of gdn.torch, for tests of FLA's modules."""

import sys

import torch

import gdn
import gdn.torch


def l2norm(x, eps=1e-6, output_dtype=None):
    out = gdn.torch.l2norm(x, eps=eps)
    return out if output_dtype is None else out.to(output_dtype)


def rms_norm_gated(x, g, weight, bias, activation="swish", residual=None, prenorm=False,
                   residual_in_fp32=False, eps=1e-6):
    if bias is not None or residual is not None or prenorm:
        raise NotImplementedError("libgdn has no gated norm with a bias or a residual")
    act = gdn.ACT_SIGMOID if activation == "sigmoid" else gdn.ACT_SILU
    return gdn.torch.rmsnorm_gated(x, g, weight, activation=act, eps=eps)


def _norm_linear(self, x, g, weight, bias, residual=None, prenorm=False, residual_in_fp32=False):
    rows = rms_norm_gated(x, g, self.weight, None, "swish", residual, prenorm, residual_in_fp32,
                          self.eps)
    return torch.nn.functional.linear(rows, weight, bias)


def _add(x, residual):
    return x if residual is None else x + residual


def _options(activation):
    return {"activation": gdn.ACT_NONE if activation is None else gdn.ACT_SILU}


def causal_conv1d(x, weight=None, bias=None, residual=None, initial_state=None,
                  output_final_state=False, activation=None, backend="triton", cu_seqlens=None,
                  cu_seqlens_cpu=None, chunk_indices=None, cp_context=None, **_):
    if cp_context is not None:
        raise NotImplementedError("libgdn's convolution has no context parallelism")
    options, rows = _options(activation), x.flatten(2).contiguous()
    width, n = weight.shape[-1], x.shape[0]
    if cu_seqlens is not None:
        options["cu_seqlens"], rows, n = cu_seqlens, rows[0], len(cu_seqlens) - 1
    if output_final_state and initial_state is None:
        initial_state = x.new_zeros(n, rows.shape[-1], width)
    if initial_state is not None and not output_final_state:
        options["write"] = gdn.WRITE_NONE
    found = gdn.torch.conv1d(rows, weight, bias, state=initial_state,
                             return_state=output_final_state, **options)
    out, final = found if output_final_state else (found, None)
    return _add(out.reshape(x.shape), residual), final


def causal_conv1d_update(x, cache, residual=None, weight=None, bias=None, activation=None):
    rows = x.flatten(2) if x.dim() == 4 else x
    if rows.dim() == 3 and rows.shape[0] == 1:  # a packed token of each sequence
        rows = rows.transpose(0, 1)
    out = gdn.torch.conv1d_update(rows.contiguous(), weight, bias, state=cache,
                                  **_options(activation))
    return _add(out.reshape(x.shape), residual), cache


def install():
    import fla.modules.conv.causal_conv1d
    import fla.modules.conv.triton.ops
    import fla.modules.convolution
    import fla.modules.fused_norm_gate
    import fla.modules.l2norm

    for name in ("l2norm", "l2_norm"):
        setattr(fla.modules.l2norm, name, l2norm)
    norms = fla.modules.fused_norm_gate
    norms.rms_norm_gated = rms_norm_gated
    for name in ("FusedRMSNormGatedLinear", "FusedRMSNormSwishGateLinear"):
        getattr(norms, name).forward = _norm_linear
    # The package fla.modules.conv has a function of the module's name.
    for name in ("convolution", "conv", "conv.causal_conv1d"):
        sys.modules[f"fla.modules.{name}"].causal_conv1d = causal_conv1d
    for name in ("convolution", "conv.triton", "conv.triton.ops"):
        sys.modules[f"fla.modules.{name}"].causal_conv1d_update = causal_conv1d_update
