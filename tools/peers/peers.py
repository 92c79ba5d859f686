# SPDX-License-Identifier: Apache-2.0
"""Each peer's package as its tests import it, with gdn's functions in it."""

import importlib.util
import inspect
import os
import sys
import types

import gdn.torch
import on_cpu
import torch

PRIVATE = ("flashinfer.gdn_kernels",)
notes = []  # where a checkout's tests need another rule than the version that gdn follows


def _module(name, **members):
    module = types.ModuleType(name)
    module.__path__ = []
    vars(module).update(members)
    sys.modules[name] = module
    parent, _, leaf = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], leaf, module)
    return module


def _members(module, *names):
    return {name: getattr(module, name) for name in names}


def _prefill(ours):
    """Before 0.7 FlashInfer declared use_qk_l2norm_in_kernel without reading it; tests pass it."""
    file = os.path.join(os.environ["GDN_PEER_PATH"], "flashinfer/gdn_prefill.py")
    with open(file) as source:
        if "normalize_qk" in source.read():
            return ours.chunk_gated_delta_rule
    notes.append("use_qk_l2norm_in_kernel is ignored, as in this checkout's FlashInfer")
    signature = inspect.signature(ours.chunk_gated_delta_rule)

    def chunk_gated_delta_rule(*args, **kwargs):
        given = signature.bind(*args, **kwargs).arguments
        return ours.chunk_gated_delta_rule(**{**given, "use_qk_l2norm_in_kernel": False})

    return chunk_gated_delta_rule


def flashinfer(device):
    """The package alone: its kernels are not needed, so it need not be installed."""
    import gdn.flashinfer as ours

    if device == "cpu":
        on_cpu.pretend()
    _module("flashinfer")
    _module("flashinfer.utils", get_compute_capability=lambda *_: (9, 0),
            is_sm90a_supported=lambda *_: True,
            **{f"is_{name}_supported": lambda *_: False
               for name in ("sm100a", "sm100f", "sm110a", "sm120a", "sm121a", "sm12x")})
    _module("flashinfer.gdn_prefill", chunk_gated_delta_rule=_prefill(ours))
    _module("flashinfer.gdn_decode", **_members(
        ours, "gated_delta_rule_decode_pretranspose", "gated_delta_rule_decode",
        "gated_delta_rule_mtp"))
    _module("flashinfer.gdn_kernels")
    _module("flashinfer.cute_dsl")
    _module("flashinfer.cute_dsl.utils", is_cute_dsl_arch_supported=lambda *_: True)


def _chunk_offsets(cu_seqlens, chunk_size=64, **_):
    counts = (cu_seqlens.diff() + chunk_size - 1) // chunk_size
    offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    return offsets, int(offsets[-1])


def flashqla(device):
    """The package, with the checkout's own functions that pack test data."""
    import gdn.flashqla as ours

    if device == "cpu":
        on_cpu.pretend()
    _module("flash_qla", **_members(ours, "chunk_gated_delta_rule", "chunk_gated_delta_rule_fwd",
                                    "chunk_gated_delta_rule_bwd"))
    file = os.path.join(os.environ["GDN_PEER_PATH"], "flash_qla/utils/pack.py")
    spec = importlib.util.spec_from_file_location("flash_qla.utils.pack", file)
    pack = importlib.util.module_from_spec(spec)
    _module("flash_qla.utils", l2norm=gdn.torch.l2norm, prepare_chunk_offsets=_chunk_offsets)
    sys.modules[spec.name] = pack
    spec.loader.exec_module(pack)
    vars(sys.modules["flash_qla.utils"]).update(
        _members(pack, "pack", "unpack", "pad_and_reshape", "fill_last_chunk_of_g"))
    _module("tilelang")
    _module("tilelang.contrib")
    _module("tilelang.contrib.nvcc", get_target_compute_version=lambda *_: "9.0")


def fla(device):
    """The installed FLA, with both functions of the rule and its modules' functions assigned."""
    import fla_modules

    import gdn.fla

    gdn.fla.install()
    fla_modules.install()
    if device == "cpu":  # behind FLA, which looks for a GPU when it is imported
        on_cpu.pretend()


def fla_ranks(device):
    """FLA's context of several ranks, and the rule of gdn; see fla_ranks.py."""
    import fla_ranks as ranks

    ranks.install()


def transformers(device):
    """The checkout's own package, with the functions of its models assigned."""
    import gdn.transformers

    gdn.transformers.install()


def reference(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False,
              use_qk_l2norm_in_kernel=False, cu_seqlens=None):
    """FLA's rule in float64 token by token, where its kernels do not run."""
    ends = [0, q.shape[1]] if cu_seqlens is None else cu_seqlens.tolist()
    wide = [x.double() for x in (q, k, v, g, beta)]
    if use_qk_l2norm_in_kernel:
        wide[:2] = [x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for x in wide[:2]]
    wide[:2] = [x.repeat_interleave(v.shape[2] // x.shape[2], 2) for x in wide[:2]]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    out, finals = torch.empty_like(wide[2]), []
    for n, (first, end) in enumerate(zip(ends, ends[1:])):
        rows = slice(None) if cu_seqlens is None else slice(n, n + 1)
        state = q.new_zeros(q.shape[0], v.shape[2], q.shape[-1], v.shape[-1], dtype=torch.float64)
        if initial_state is not None:
            state = initial_state[rows].double()
        for t in range(first, end):
            qt, kt, vt, gt, bt = (x[:, t] for x in wide)
            state = state * gt.exp()[..., None, None]
            u = bt[..., None] * (vt - torch.einsum("bhk,bhkv->bhv", kt, state))
            state = state + kt[..., None] * u[..., None, :]
            out[:, t] = scale * torch.einsum("bhk,bhkv->bhv", qt, state)
        finals.append(state)
    return out.to(q.dtype), torch.cat(finals).float() if output_final_state else None


def fla_family(device):
    """fla(), and float64 for the kernels that the reference of DeltaProduct calls."""
    fla(device)
    import fla.ops.gated_delta_product.chunk_ref as product

    product.chunk_gated_delta_rule = reference
    product.chunk_delta_rule = lambda q, k, v, beta, **more: reference(
        q, k, v, torch.zeros_like(beta), beta, **more)
    notes.append("DeltaProduct is compared with float64")


def megatron(device):
    """The folder's own package, which finds gdn's functions under the names of FLA's."""
    import fla_modules

    import gdn.causal_conv1d
    import gdn.fla

    gdn.causal_conv1d.install()  # of this package in version 0.16, later of FLA
    _module("fla")
    _module("fla.modules")
    _module("fla.modules.convolution", **_members(fla_modules, "causal_conv1d"))
    _module("fla.modules.l2norm", **_members(fla_modules, "l2norm"))
    _module("fla.ops")
    _module("fla.ops.gated_delta_rule", **_members(gdn.fla, "chunk_gated_delta_rule"))
    if device == "cpu":  # where the layer makes its parameters
        torch.cuda.current_device = lambda: torch.device("cpu")
    import megatron.core.jit

    megatron.core.jit.disable_jit_fuser()


def _with_scale(function):
    """The checkout's tests leave out scale, which its functions have had since."""
    def bf16_gdn_chunked_compute_O(*args):
        if len(args) > 6 and isinstance(args[6], str):
            args = (*args[:6], None, *args[6:])
        return function(*args)

    return bf16_gdn_chunked_compute_O


def gdn_cuda(device):
    """The package; on a CPU float64 for the functions of FLA that its tests compare with."""
    import gdn.gdn_cuda as ours

    ours.install()
    ours.bf16_gdn_chunked_compute_O = _with_scale(ours.bf16_gdn_chunked_compute_O)
    notes.append("bf16_gdn_chunked_compute_O gets the scale that its tests leave out")
    os.environ.setdefault("LIBRARY_ROOT_PATH", "/")
    if device != "cpu":
        return
    import fla.ops.gated_delta_rule as package
    import stages

    stages.install()
    on_cpu.pretend()
    package.chunk_gated_delta_rule = package.fused_recurrent_gated_delta_rule = reference
