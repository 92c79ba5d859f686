#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
stubs.py [--check] - writes python/gdn/__init__.pyi, the types of the package, from the structs in
python/gdn/_abi.py. --check: fails if the file is another than would be written.
"""

import importlib.util
import pathlib
import sys

PACKAGE = pathlib.Path(__file__).parents[1] / "python/gdn"
HEAD = '''\
# SPDX-License-Identifier: Apache-2.0
# Made by tools/stubs.py from _abi.py. Do not edit.
import ctypes
from collections.abc import Callable
from typing import Any, TypedDict

from typing_extensions import Unpack

# NumPy's or torch's array, or any object with __array_interface__, DLPack,
# __cuda_array_interface__ or the buffer protocol.
Array = Any
# A CUstream as an integer, or an object with __cuda_stream__ or cuda_stream.
Stream = Any

class Error(RuntimeError):
    status: int
    name: str
    text: str
    def __init__(self, status: int, text: str) -> None: ...

class bf16:
    array: Array
    def __init__(self, array: Array) -> None: ...

def version() -> str: ...
def info() -> dict[str, Any]: ...
def install(*names: str) -> None: ...
'''
BATCH = '''
class Batch:
    def __init__(self, **fields: Unpack[_batch_fields]) -> None: ...
'''
CONTEXT = '''
class Context:
    def __init__(self, threads: int = 0, isa: str | None = None, backend: str = "cpu",
                 device: int = 0, check_contents: bool = False,
                 library: str | None = None) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Context: ...
    def __exit__(self, *_: object) -> None: ...
    @property
    def device(self) -> int | None: ...
    @property
    def isa(self) -> str: ...
    @property
    def n_threads(self) -> int: ...
    @property
    def last_kernel(self) -> str: ...
    def self_test(self) -> None: ...
    def plan(self, op: str, /, **fields: Any) -> Callable[..., None]: ...
    def supported(self, op: str, /, **fields: Any) -> bool: ...
'''
HIDDEN = ("struct_size", "workspace", "workspace_bytes", "reserved")


def load():
    spec = importlib.util.spec_from_file_location("_abi", PACKAGE / "_abi.py")
    abi = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(abi)
    return abi


def fields_of(abi, struct):
    """The fields as lines of a TypedDict."""
    kinds = {abi.gdn_tensor: "Array | None", abi.c_float: "float", abi.c_void_p: "Stream | None",
             abi._CTYPES["batch"]: "Batch | None"}
    for name, kind in struct._fields_:
        if name not in HIDDEN:
            yield f"    {name}: {kinds.get(kind, 'int')}\n"


def stubs():
    abi = load()
    parts = [HEAD, "\n"]
    names = [n for n in abi.__all__ if n.isupper()]
    parts += [f"{name}: int\n" for name in names]
    parts.append("\nclass _batch_fields(TypedDict, total=False):\n")
    parts += fields_of(abi, abi.gdn_batch)
    parts.append(BATCH)
    for struct in dict.fromkeys(abi.OPS.values()):
        base = "_batch_fields" if hasattr(struct, "batch") else "TypedDict"
        parts.append(f"\nclass _{struct.__name__[4:]}({base}, total=False):\n")
        parts += fields_of(abi, struct)
    parts.append(CONTEXT)
    for op, struct in abi.OPS.items():
        parts.append(f"    def {op}(self, **fields: Unpack[_{struct.__name__[4:]}]) -> None: ...\n")
    parts.append("\n")
    for name in abi.__all__:
        if not name.isupper():
            parts.append(f"class {name}(ctypes.Structure): ...\n")
    return "".join(parts)


def main():
    path, text = PACKAGE / "__init__.pyi", stubs()
    if "--check" not in sys.argv:
        path.write_text(text)
    elif not path.exists() or path.read_text() != text:
        sys.exit(f"{path.name} is not what _abi.py says; run tools/stubs.py")


main()
