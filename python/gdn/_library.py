# SPDX-License-Identifier: Apache-2.0
"""The loaded library, and the exception for a call that it refuses."""

import ctypes
import os
import sys
from ctypes import c_char_p, c_uint32

_NAMES = {"win32": ("gdn.dll",), "darwin": ("libgdn.0.dylib", "libgdn.dylib")}.get(
    sys.platform, ("libgdn.so.0", "libgdn.so"))


def _find():
    """Returns GDN_LIBRARY, else the file beside this module (in a wheel), else the system's
    library."""
    here = os.path.dirname(os.path.abspath(__file__))
    beside = [os.path.join(here, name) for name in _NAMES]
    found = [path for path in beside if os.path.exists(path)]
    return os.environ.get("GDN_LIBRARY") or (found + [_NAMES[0]])[0]


def load(path):
    """The library of that path."""
    try:
        library = ctypes.CDLL(path)
        library.gdn_version.restype = c_uint32
    except (OSError, AttributeError) as error:
        raise ImportError(
            f"gdn: the library {path} cannot be loaded ({error}). Install the wheel of gdn, or set "
            f"GDN_LIBRARY to the path of a {_NAMES[0]}."
        ) from None
    library.gdn_ctx_destroy.restype = None
    for name in ("gdn_status_name", "gdn_last_error", "gdn_last_kernel", "gdn_isa"):
        getattr(library, name).restype = c_char_p
    return library


path = _find()
lib = load(path)


def address_of(name):
    """The address of a function of the library."""
    return ctypes.cast(getattr(lib, name), ctypes.c_void_p).value


class Error(RuntimeError):
    """A call that the library refused: status (E_ARG, ...), its name, and the text."""

    def __init__(self, status, text):
        self.status = status
        self.name = lib.gdn_status_name(status).decode()
        self.text = text
        super().__init__(f"{self.name}: {text}")


def version():
    """The version of the library that runs, as "major.minor.patch"."""
    number = lib.gdn_version()
    return f"{number >> 16}.{number >> 8 & 255}.{number & 255}"
