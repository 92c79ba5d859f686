# SPDX-License-Identifier: Apache-2.0
"""
The constants and structs of the headers, once: all other modules take names, types, offsets and
defaults from here. They are read from gdn_interface.json, which a build writes beside the library
(tools/interface.py); a wheel has it beside this module.
"""

import ctypes
import json
import os

from . import _library

_CTYPES = dict(int32=ctypes.c_int32, uint32=ctypes.c_uint32, int64=ctypes.c_int64,
               uint64=ctypes.c_uint64, float=ctypes.c_float, size=ctypes.c_size_t,
               text=ctypes.c_char_p, pointer=ctypes.c_void_p)


def _read():
    """Reads the description beside the library, else the one beside this module."""
    folders = [os.path.dirname(_library.path), os.path.dirname(os.path.abspath(__file__))]
    paths = [os.path.join(folder, "gdn_interface.json") for folder in folders if folder]
    for path in paths:
        if os.path.exists(path):
            with open(path, encoding="ascii") as file:
                return json.load(file)
    raise ImportError(f"gdn: none of {', '.join(paths)} is there. The build of the library writes "
                      "this file, and a wheel of gdn has it.")


def _struct(name, fields):
    """A struct from (name, kind, length) of its fields; length 0: no array."""
    members = [(field, _CTYPES[kind] * length if length else _CTYPES[kind])
               for field, kind, length in fields]
    return type(name, (ctypes.Structure,), {"_fields_": members, "needs": [], "outputs": ()})


def _structs(described):
    """All structs by name. gdn_tensor and gdn_batch are kinds of the fields of later ones."""
    for name, fields in described.items():
        struct = _struct(name, fields)
        if name == "gdn_tensor":
            _CTYPES["tensor"] = struct
        elif name == "gdn_batch":
            _CTYPES["batch"] = ctypes.POINTER(struct)
        yield name, struct


def _ops(described, structs):
    """
    The structs of the ops in the order of gdn_op. outputs: the tensors that a call writes. needs:
    those without which no call is complete.
    """
    for op in described:
        struct = structs[op["struct"]]
        struct.needs, struct.outputs = op["needs"], tuple(op["outputs"])
        yield op["name"], struct


_interface = _read()
globals().update(_interface["constants"])
globals().update(_structs(_interface["structs"]))
OPS = dict(_ops(_interface["ops"], globals()))
TEXTS = {op["name"]: op["text"] for op in _interface["ops"]}  # what each op does

__all__ = [*_interface["constants"], *_interface["structs"]]
