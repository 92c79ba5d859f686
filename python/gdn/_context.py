# SPDX-License-Identifier: Apache-2.0
"""Context: where and with how many threads the library computes; its methods are the ops."""

import ctypes
import functools
import os
import threading
from ctypes import c_char_p, c_int32, c_void_p

from . import _fast
from ._abi import BACKEND_CPU, BACKEND_CUDA, CTX_CHECK_CONTENTS, OPS, TEXTS, gdn_options
from ._arguments import Batch, _arguments, _number, _stream
from ._library import Error, lib, load
from ._views import HOST

_BACKENDS = {"cpu": BACKEND_CPU, "cuda": BACKEND_CUDA}


def _name_of(place):
    return place if isinstance(place, str) else f"memory of CUDA device {place}"


def _create(library, backend, device, threads, isa, check_contents):
    """A gdn_ctx of the library."""
    if backend not in _BACKENDS:
        raise ValueError(f"backend: {backend!r}, wanted {' or '.join(_BACKENDS)}")
    if not isinstance(isa, (str, type(None))):
        raise TypeError(f"isa: {type(isa).__name__}, wanted a string")
    text = ctypes.create_string_buffer(512)
    options = gdn_options(
        struct_size=ctypes.sizeof(gdn_options),
        backend=_BACKENDS[backend],
        device=_number("device", c_int32, device),
        flags=CTX_CHECK_CONTENTS if check_contents else 0,
        n_threads=_number("threads", c_int32, threads),
        isa=None if isa is None else isa.encode(),
        error_text=ctypes.cast(text, c_char_p),
        error_text_bytes=len(text),
    )
    ctx = c_void_p()
    status = library.gdn_ctx_create(ctypes.byref(options), ctypes.byref(ctx))
    if status:
        raise Error(status, text.value.decode())
    return ctx


class _NativeLock:
    """The lock that calls through _native take, too."""

    def __init__(self, handle):
        self.handle = handle

    def __enter__(self):
        _fast.native.acquire(self.handle)

    def __exit__(self, *_):
        _fast.native.release(self.handle)


class _Core:
    """A gdn_ctx, its place, its lock. A Context and the functions taken from it keep it. Calls of
    another library than the package's go through ctypes."""

    ctx = None

    def __init__(self, backend, device, threads, isa, check_contents=False, library=None):
        self.lib = lib if library is None else load(os.path.abspath(library))
        self.native = _fast.native if library is None else None
        self.ctx = _create(self.lib, backend, device, threads, isa, check_contents)
        self.process = os.getpid()
        self.place = device if backend == "cuda" else HOST
        if self.native:
            place = device if backend == "cuda" else _fast.HOST
            self.handle = _fast.native.handle(self.ctx.value, place)
            self.lock = _NativeLock(self.handle)
        else:
            self.lock = threading.Lock()

    def close(self):
        # A child of fork() has the context's memory but not its threads.
        if self.ctx and self.process == os.getpid():
            with self.lock:
                self.lib.gdn_ctx_destroy(self.ctx)
                self.ctx = None
                if self.native:
                    _fast.native.forget(self.handle)

    __del__ = close

    def run(self, function, *arguments):
        with self.lock:
            if not self.ctx:
                raise ValueError("the context is closed")
            status = function(self.ctx, *arguments)
            if status:
                raise Error(status, self.lib.gdn_last_error(self.ctx).decode())

    def arguments(self, op, fields):
        """Returns the struct of the op. Its arrays must be on the device of the context."""
        args = _arguments(OPS[op], op, fields)
        for name, place in args.places:
            if place != self.place:
                raise ValueError(f"{name}: in {_name_of(place)}, but the context computes in "
                                 f"{_name_of(self.place)}")
        return args

    def call(self, op, /, **fields):
        args = self.arguments(op, fields)
        self.run(getattr(self.lib, f"gdn_{op}"), ctypes.byref(args))

    def bind(self, op, plan=None, slow=None):
        """The op as a function of _native; None: an argument of the plan is not for it."""
        return _fast.native.bind(_fast.described[op], self.handle,
                                 slow or functools.partial(self.call, op), _fail, _stream, plan)


def _fail(status, text):
    raise Error(status, text)


class Context:
    """
    gdn_ctx: an instruction set, threads, memory. threads 0: one per processor; isa "scalar",
    "avx2", "avx512" or "neon": use no more than that. Or, with backend "cuda", the GPU that has
    the number `device`; it checks slots and lengths on each call if check_contents, which is for
    debugging. library: the path of another libgdn that computes, so that several can be compared
    in one process. Closed by close(), `with`, or when collected.

    Every op takes the fields of its struct by name, and those of gdn_batch beside them or in a
    Batch. It raises Error with the library's text, or TypeError and ValueError for arguments that
    are no arrays or numbers; each names the argument. Nothing is copied or converted.
    """

    def __init__(self, threads=0, isa=None, backend="cpu", device=0, check_contents=False,
                 library=None):
        self._core = _Core(backend, device, threads, isa, check_contents, library)
        if self._core.native:
            for op in OPS:  # in place of the methods, which are the manual
                setattr(self, op, self._core.bind(op))

    def close(self):
        """Frees the context. Later calls raise ValueError."""
        self._core.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __reduce_ex__(self, protocol):
        raise TypeError("a Context cannot be copied or pickled; make another one")

    @property
    def device(self):
        """The number of the GPU that computes; None: none does."""
        return None if self._core.place == HOST else self._core.place

    @property
    def isa(self):
        """The instruction set: "avx2", say; of a GPU "sm_90"."""
        return self._core.lib.gdn_isa(self._core.ctx).decode()

    @property
    def n_threads(self):
        """How many threads compute, the caller's included."""
        return self._core.lib.gdn_n_threads(self._core.ctx)

    @property
    def last_kernel(self):
        """The inner loops or kernels of the last call, as "op: loop.isa"."""
        return self._core.lib.gdn_last_kernel(self._core.ctx).decode()

    def self_test(self):
        """gdn_self_test: raises Error if this machine computes wrong values."""
        self._core.run(self._core.lib.gdn_self_test)

    def plan(self, op, /, **fields):
        """
        A function that calls the op of that name with these fields, whose arrays it keeps; fields
        given to the function replace them for that call. It saves the time of describing the
        arrays again: less than a microsecond is left beside the op itself. If torch moved or freed
        the memory of a tensor since, the call takes its new memory or raises ValueError.
        """
        if op not in OPS:
            raise ValueError(f"op: {op!r}, wanted {', '.join(OPS)}")
        self._core.arguments(op, fields)  # names what is wrong now, not at the first call
        core = self._core

        def call(**changes):
            core.call(op, **{**fields, **changes})

        return core.native and core.bind(op, plan=fields, slow=call) or call

    def supported(self, op, /, **fields):
        """Would the op of that name accept these fields? Contents of arrays are not read."""
        if op not in OPS:
            raise ValueError(f"op: {op!r}, wanted {', '.join(OPS)}")
        args = self._core.arguments(op, fields)
        try:
            self._core.run(self._core.lib.gdn_supported, list(OPS).index(op), ctypes.byref(args))
        except Error:
            return False
        return True


def _method(op):
    """The op as a method of Context."""
    def call(self, **fields):
        self._core.call(op, **fields)

    call.__name__, call.__qualname__ = op, f"Context.{op}"
    call.__doc__ = f"gdn_{op}: {TEXTS[op]}; fields of {OPS[op].__name__}."
    return call


for _op in OPS:
    setattr(Context, _op, _method(_op))
