# SPDX-License-Identifier: Apache-2.0
"""
Gated DeltaNet: the gated delta rule and the operators around it, by ctypes over libgdn.

    with gdn.Context(threads=4) as ctx:
        ctx.prefill(q=q, k=k, v=v, g=g, beta=beta, state=state, out=out)

The manual is gdn.h. Calls, arguments, constants, defaults and guarantees are the ones there,
under the same names without their prefix; everything is written into arrays of the caller.
Not wrapped are blobs: of gdn_blob_...() there are the structs, for ctypes, and no methods.
Arrays are NumPy's or any object with __array_interface__, DLPack or the buffer protocol, in any
strides that gdn.h allows; nothing is copied. bf16(array) passes 16-bit words as bfloat16.

On a GPU every array, those of a Batch too, is one of its device, by DLPack or
__cuda_array_interface__ (torch, cupy, numba, ...):

    with gdn.Context(backend="cuda", device=0) as ctx:
        ctx.decode(q=q, k=k, v=v, state=state, out=out, stream=torch.cuda.current_stream())

A call returns when it is launched, in order on its stream: an integer, or an object with
__cuda_stream__ or cuda_stream; without one, on the legacy default stream. Nothing waits for what
other streams do to its arrays, and they must live until the stream has passed the call.

The library is the file that the environment variable GDN_LIBRARY names, else libgdn.so.0 (gdn.dll
on Windows, libgdn.0.dylib on macOS) beside this file, else there where the system finds it.
"""

from . import _abi
from ._abi import *  # noqa: F403 - the constants and structs of gdn.h
from ._abi import OPS as _OPS
from ._arguments import Batch, _arguments, bf16
from ._context import Context
from ._library import Error, lib as _lib, path as _path, version


def info():
    """What runs here by default: version, library, isa, threads."""
    with Context() as ctx:
        return dict(version=version(), library=_path, isa=ctx.isa, threads=ctx.n_threads)


_INSTALLABLE = ("causal_conv1d", "fla", "flashinfer", "flashqla", "gdn_cuda", "transformers",
                "vllm")


def install(*names):
    """Puts libgdn into the place of the packages that docs/start/drop-ins.md names."""
    from importlib import import_module

    for name in names:
        if name not in _INSTALLABLE:
            raise ValueError(f"install: found {name!r}, wanted one of {', '.join(_INSTALLABLE)}")
    for name in names:
        import_module(f"{__name__}.{name}").install()


__all__ = ["Batch", "Context", "Error", "bf16", "info", "install", "version"] + _abi.__all__
