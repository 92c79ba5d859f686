# SPDX-License-Identifier: Apache-2.0
"""
The extension _native, where this Python can import it: the calls of a Context in about a
microsecond. It gets everything that it knows of the ops from _abi.py. native None: this Python
cannot (PyPy, free-threaded CPython, no file), and all calls go through ctypes. The environment
variable GDN_NATIVE names the file of a build that is not installed; if empty, none is used.
"""

import ctypes
import importlib.util
import os
import sys

from . import _abi, _library
from ._abi import OPS, gdn_batch
from ._arguments import _HIDDEN, bf16



def _load():
    path = os.environ.get("GDN_NATIVE")
    try:
        if path is None:
            from . import _native
        elif not path:
            return None
        else:
            spec = importlib.util.spec_from_file_location("gdn._native", path)
            _native = importlib.util.module_from_spec(spec)
        return _native
    except ImportError:
        return None


native = _load()

HOST, NOWHERE, MIXED = -1, -2, -3  # places of arrays as _native knows them
_KINDS = {_abi.gdn_tensor: 0, ctypes.c_int32: 1, ctypes.c_uint32: 2, ctypes.c_int64: 3,
          ctypes.c_uint64: 3, ctypes.c_float: 4, ctypes.c_void_p: 5, ctypes.c_size_t: 3,
          _abi._CTYPES["batch"]: 6}


def _kind_of(kind):
    """What arrays of a type are to _native; asked once for each type."""
    numpy = sys.modules.get("numpy")
    return int(numpy is not None and kind is numpy.ndarray)


def fields_of(op, positional=None):
    """The fields that _native may set, as (name, kind, offset, is_output, is_needed, in batch).
    positional: these names alone, in this order; the rest keeps its defaults."""
    struct, found = OPS[op], {}
    hidden = _HIDDEN if positional is None else _HIDDEN[:1]
    for source in (struct, gdn_batch) if hasattr(struct, "batch") else (struct,):
        in_batch = source is gdn_batch
        for name, ctype in source._fields_:
            if name in hidden or name in found:
                continue
            found[name] = (name, _KINDS[ctype], getattr(source, name).offset,
                           not in_batch and name in struct.outputs, name in struct.needs,
                           in_batch)
    return list(found.values()) if positional is None else [found[n] for n in positional]


def describe(op, name=None, positional=None):
    """A description of the op for _native."""
    struct = OPS[op]
    offset = {n: getattr(struct, n).offset for n, _ in struct._fields_}
    return native.describe(
        name or op, list(OPS).index(op), _library.address_of(f"gdn_{op}"), ctypes.sizeof(struct),
        ctypes.sizeof(gdn_batch), offset.get("batch", 0), offset["workspace"],
        offset["workspace_bytes"], offset["stream"], fields_of(op, positional))


if native:
    native.setup(_kind_of, bf16, *map(_library.address_of, (
        "gdn_ctx_create", "gdn_ctx_destroy", "gdn_last_error", "gdn_workspace_bytes")))
    described = {op: describe(op) for op in OPS}
