# SPDX-License-Identifier: Apache-2.0
"""
Arrays that are anywhere, by hand: views of NumPy arrays, or of addresses that nobody reads, which
speak DLPack or the CUDA array interface. And the fake driver of tests/cuda/fake_cuda.c.
"""

import ctypes

import gdn
from gdn import _views

CPU, CUDA = 1, 2  # DLDeviceType
_KINDS = {"i": 0, "u": 1, "f": 2, "bf": 4, "b": 6, "e4m3fn": 10, "e5m2": 12}

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p


class Dl:
    """Speaks DLPack: dtype is a kind and bits, as ("f", 32); strides in elements or None."""

    def __init__(self, data, shape, dtype=("f", 32), device=(CPU, 0), strides=None, offset=0,
                 flags=None, lanes=1):
        """flags None: a producer from before DLPack 1.0."""
        self.device, self.flags, self.streams = device, flags, []
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.strides = strides and (ctypes.c_int64 * len(shape))(*strides)
        self.managed = _views._DLVersioned(flags=flags or 0)
        self.managed.version[:] = 1, 0
        tensor = self.managed.tensor
        tensor.data, tensor.byte_offset = data, offset
        tensor.device_type, tensor.device_id = device
        tensor.ndim, tensor.shape, tensor.lanes = len(shape), self.shape, lanes
        tensor.code, tensor.bits = _KINDS[dtype[0]], dtype[1]
        if strides:
            tensor.strides = self.strides

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, stream=None, **version):
        if self.flags is None and version:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        self.streams.append(stream)
        old = self.flags is None
        where = ctypes.addressof(self.managed) + (_views._DLVersioned.tensor.offset if old else 0)
        return _new_capsule(where, b"dltensor" if old else b"dltensor_versioned", None)


class Cai:
    """Speaks the CUDA array interface."""

    def __init__(self, data, shape, typestr="<f4", is_readonly=False, strides=None):
        self.__cuda_array_interface__ = dict(
            version=3, data=(data, is_readonly), shape=tuple(shape), typestr=typestr,
            strides=strides)


def address(device, offset=0):
    """Memory of a device of the fake driver."""
    return (device + 1 << 32) + offset


class Config(ctypes.Structure):  # struct gdn_cu_config
    _fields_ = [("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3),
                ("shared_bytes", ctypes.c_uint), ("stream", ctypes.c_void_p),
                ("attributes", ctypes.c_void_p), ("n_attributes", ctypes.c_uint)]


class FakeCuda(ctypes.Structure):  # struct fake_cuda
    _fields_ = [("n_devices", ctypes.c_int), ("major", ctypes.c_int), ("minor", ctypes.c_int),
                ("most_shared_bytes", ctypes.c_int), ("from_ptx", ctypes.c_int),
                ("load_ms", ctypes.c_int), ("error", ctypes.c_int),
                ("fails", ctypes.c_char_p),
                ("missing", ctypes.c_char_p), ("lacks", ctypes.c_char_p),
                ("captures", ctypes.c_int), ("copies", ctypes.c_int),
                ("n_calls", ctypes.c_int * 64), ("depth", ctypes.c_int),
                ("capture_mode", ctypes.c_int), ("launch", Config),
                ("kernel", ctypes.c_char_p), ("args", ctypes.c_char * 4096)]

    @property
    def first_lines(self):
        """x of the last norm, struct gdn_cu_lines behind struct gdn_cu_leads: address, dtype."""
        at = ctypes.addressof(self) + FakeCuda.args.offset + 48
        return ctypes.c_uint64.from_address(at).value, ctypes.c_int32.from_address(at + 48).value


def fake_driver():
    """What the fake driver knows; None: the driver, if any, is a real one."""
    try:
        return FakeCuda.in_dll(ctypes.CDLL("libcuda.so.1"), "fake_cuda")
    except (OSError, ValueError):
        return None
