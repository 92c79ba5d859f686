# SPDX-License-Identifier: Apache-2.0
"""
Arguments of Python as structs of gdn.h, by ctypes. This path takes every kind of array and names
every mistake. _fast.py takes the common kinds in less time, and comes here for all others.
"""

import ctypes
import operator
from ctypes import c_double, c_float, c_void_p

from ._abi import (BF16, E4M3, E5M2, F16, F32, I8, I32, I64, MAX_DIMS, U8, WRITE_NONE,
                   gdn_batch, gdn_record_fold_args, gdn_tensor)
from ._views import HOST, dense_strides, view_of

# ---- Arrays as tensor views --------------------------------------------------------------------

_DTYPES = {"|i1": I8, "<f4": F32, "<f2": F16, "<i4": I32, "<i8": I64, "|u1": U8, "|b1": U8,
           "bfloat16": BF16, "float8_e4m3fn": E4M3, "float8_e5m2": E5M2}  # these by DLPack alone


class bf16:
    """Marks an array of 16-bit unsigned integers as bfloat16."""

    def __init__(self, array):
        self.array = array


def _tensor(name, value, is_output):
    """Returns a gdn_tensor of an array's memory, and the object that owns the memory."""
    is_bf16 = isinstance(value, bf16)
    view = view_of(name, value.array if is_bf16 else value)
    dtype = (BF16 if view.type == "<u2" else None) if is_bf16 else _DTYPES.get(view.type)
    if dtype is None:
        wanted = "<u2 within bf16()" if is_bf16 else f"{' '.join(_DTYPES)} or bf16(<u2)"
        raise TypeError(f"{name}: type {view.type}, wanted {wanted}")
    if view.is_readonly and is_output:
        raise ValueError(f"{name}: read-only, but the call writes it")
    n = len(view.shape)
    if n > MAX_DIMS:
        raise ValueError(f"{name}: {n} dimensions, wanted 1 to {MAX_DIMS}")
    data, strides = view.data, view.strides
    if 0 in view.shape:  # may have no address, which here would say "absent", and any strides
        data, strides = 64, dense_strides([max(size, 1) for size in view.shape])
    if not data:
        raise ValueError(f"{name}: no memory (a fake tensor, or one of the device meta)")
    tensor = gdn_tensor(data=data, dtype=dtype, ndim=n)
    tensor.size[:n] = view.shape
    tensor.stride[:n] = strides
    return tensor, view


# ---- Arguments ---------------------------------------------------------------------------------

# Memory for scratch is the context's affair here.
_HIDDEN = ("struct_size", "workspace", "workspace_bytes")


# What a sequence starts from; written in place, if no other tensor takes its final state.
_STARTS = "state", "state_scales", "conv_state"


def _number(name, ctype, value):
    """The value as ctype holds it; ctypes alone would cut off high bits."""
    try:
        number = c_double(value).value if ctype is c_float else operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: {type(value).__name__}, wanted a number") from None
    if ctype is not c_float and (ctype(number).value or 0) != number:
        raise ValueError(f"{name}: {number} does not fit")
    return number


def _stream(value):
    """A CUstream as an integer."""
    if hasattr(value, "__cuda_stream__"):
        value = value.__cuda_stream__()[1]
    return _number("stream", c_void_p, getattr(value, "cuda_stream", value))


def _outputs(struct, fields):
    """The tensors that the call writes; a state that only is read may be read-only."""
    batch = fields.get("batch")
    write = batch.args.write if isinstance(batch, Batch) else fields.get("write")
    if struct is gdn_record_fold_args:  # writes the state whatever its batch says
        return struct.outputs
    if write == WRITE_NONE or fields.get("state_out") is not None:
        return [name for name in struct.outputs if name not in _STARTS]
    return struct.outputs


def _with_batch(struct, fields):
    """The fields, with those of gdn_batch among them gathered in a Batch."""
    if not hasattr(struct, "batch"):
        return fields
    of_batch = {n for n, _ in gdn_batch._fields_} - {n for n, _ in struct._fields_}
    inner = {n: value for n, value in fields.items() if n in of_batch and value is not None}
    if not inner:
        return {n: value for n, value in fields.items() if n not in of_batch}
    if fields.get("batch") is not None:
        raise TypeError(f"{next(iter(inner))}: given beside a Batch, wanted inside it")
    outer = {n: value for n, value in fields.items() if n not in of_batch}
    return {**outer, "batch": Batch(**inner)}


def _arguments(struct, what, fields):
    """A struct filled from fields; args.keep holds the objects that it points to, args.places
    where each array is."""
    args = struct(struct_size=ctypes.sizeof(struct))
    args.keep, args.places = [], []
    ctypes_of = {n: t for n, t in struct._fields_ if n not in _HIDDEN}
    fields = _with_batch(struct, fields)
    outputs = _outputs(struct, fields)
    for name, value in fields.items():
        if name not in ctypes_of:
            raise TypeError(f"{what}() has no argument {name}")
        if value is None:
            continue
        if name == "batch":
            if not isinstance(value, Batch):
                raise TypeError(f"batch: {type(value).__name__}, wanted a Batch")
            args.batch = ctypes.pointer(value.args)
            args.keep.append(value)
            args.places += value.args.places
        elif ctypes_of[name] is gdn_tensor:
            tensor, view = _tensor(name, value, name in outputs)
            setattr(args, name, tensor)
            args.keep.append(view.owner)
            args.places.append((name, view.place))
        elif name == "stream":
            args.stream = _stream(value)
        else:
            setattr(args, name, _number(name, ctypes_of[name], value))
    return args


def _place_of(places):
    """The one place of all arrays as _native knows it: a device, -1 for the host, -2 if there are
    none, -3 for several or other places."""
    kinds = {-1 if place == HOST else place for _, place in places}
    if not kinds:
        return -2
    only = kinds.pop()
    return only if not kinds and isinstance(only, int) else -3


class Batch:
    """gdn_batch: which tokens form which sequence, and where its states are. Its arrays, which
    lie where the context computes, may change between calls; one Batch serves every call of a
    step."""

    def __init__(self, **fields):
        self.args = _arguments(gdn_batch, "Batch", fields)
        self._address = ctypes.addressof(self.args)
        self._place = _place_of(self.args.places)
