# SPDX-License-Identifier: Apache-2.0
"""
What arrays say about themselves, by whichever protocol they speak: NumPy's array interface, DLPack,
the CUDA array interface, the buffer protocol. No library of arrays is imported for it, but NumPy
for buffers.
"""

import collections
import ctypes
import re
from ctypes import c_char_p, c_int32, c_int64, c_uint32, c_uint64, c_void_p

# type as array interfaces name it, or "bfloat16", "float8_e4m3fn"; strides in elements; place is
# the number of a CUDA device, or words for what is none; owner keeps the memory alive.
View = collections.namedtuple("View", "data type shape strides is_readonly place owner")
HOST = "host memory"


def _strides(name, interface):
    """The strides, in elements, of an array interface."""
    shape, strides = interface["shape"], interface.get("strides")
    kind = re.fullmatch(r"[<>|=][a-zA-Z](\d+)", interface["typestr"])
    if not kind:  # objects, times
        raise TypeError(f"{name}: type {interface['typestr']}, wanted numbers")
    item = int(kind[1])
    if strides is None:
        return dense_strides(shape)
    for i, stride in enumerate(strides):
        if stride % item:
            raise ValueError(f"{name}: stride[{i}] is {stride} bytes, wanted a multiple of {item}")
    return [stride // item for stride in strides]


def dense_strides(shape):
    strides = [1] * len(shape)
    for i in reversed(range(len(shape) - 1)):
        strides[i] = strides[i + 1] * shape[i + 1]
    return strides


def _interface_view(name, interface, place, owner):
    """By __array_interface__ or __cuda_array_interface__, which are one format."""
    data, is_readonly = interface["data"]
    return View(data, interface["typestr"], interface["shape"], _strides(name, interface),
                is_readonly, place, owner)


def _buffer_view(name, array):
    import numpy

    try:
        array = numpy.asarray(memoryview(array))
    except TypeError:
        raise TypeError(f"{name}: {type(array).__name__}, wanted an array") from None
    return _interface_view(name, array.__array_interface__, HOST, array)


def view_of(name, array):
    """What an array says about itself."""
    if hasattr(array, "__array_interface__"):
        return _interface_view(name, array.__array_interface__, HOST, array)
    if hasattr(array, "__dlpack__"):
        return _dlpack_view(name, array)
    if hasattr(array, "__cuda_array_interface__"):
        interface = array.__cuda_array_interface__
        return _interface_view(name, interface, _device_of(interface["data"][0]), array)
    return _buffer_view(name, array)


# ---- DLPack --------------------------------------------------------------------------------------


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(c_int64)),
        ("strides", ctypes.POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class _DLVersioned(ctypes.Structure):
    _fields_ = [
        ("version", c_uint32 * 2),
        ("manager", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", _DLTensor),
    ]


_DL_HOSTS = 1, 3  # pageable, pinned
_DL_DEVICES = 2, 13  # of one device, managed
_DL_READ_ONLY = 1
_DL_TYPES = {(0, 8): "|i1", (0, 32): "<i4", (0, 64): "<i8", (1, 8): "|u1", (1, 16): "<u2",
             (2, 16): "<f2", (2, 32): "<f4", (2, 64): "<f8", (4, 16): "bfloat16", (6, 8): "|b1",
             (10, 8): "float8_e4m3fn", (12, 8): "float8_e5m2"}

_capsule_is = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is.argtypes = ctypes.py_object, c_char_p
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes, _capsule_pointer.restype = (ctypes.py_object, c_char_p), c_void_p


def _capsule_of(name, array):
    """The array's DLPack capsule, which owns what it shows as long as nobody takes it."""
    try:
        # -1: do not make any stream wait. Producers of host memory take no stream.
        stream = {} if array.__dlpack_device__()[0] in _DL_HOSTS else {"stream": -1}
        try:
            return array.__dlpack__(max_version=(1, 0), **stream)
        except TypeError:  # from before DLPack 1.0
            return array.__dlpack__(**stream)
    except (BufferError, RuntimeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from None


def _dl_place(tensor):
    if tensor.device_type in _DL_DEVICES:
        return tensor.device_id
    other = f"memory of DLPack device {tensor.device_type}"
    return HOST if tensor.device_type in _DL_HOSTS else other


def _dl_type(tensor):
    """The type as array interfaces name it, if they do."""
    key = tensor.code, tensor.bits
    if tensor.lanes == 1 and key in _DL_TYPES:
        return _DL_TYPES[key]
    return f"{tensor.lanes} x {tensor.bits} bits of DLPack type {tensor.code}"


def _refuse_torch(name, array):
    """Refuses a tensor of torch whose memory does not hold its values, which DLPack leaves out."""
    if array.is_neg():
        raise ValueError(f"{name}: torch's negative bit is set, so memory holds other values; "
                         f"wanted {name}.resolve_neg()")
    if array.numel() and not array.untyped_storage().nbytes():
        raise ValueError(f"{name}: no memory (its storage was freed)")


def _dlpack_view(name, array):
    capsule = _capsule_of(name, array)
    if hasattr(array, "untyped_storage"):
        _refuse_torch(name, array)
    if _capsule_is(capsule, b"dltensor_versioned"):
        pointer = _capsule_pointer(capsule, b"dltensor_versioned")
        versioned = _DLVersioned.from_address(pointer)
        tensor, is_readonly = versioned.tensor, bool(versioned.flags & _DL_READ_ONLY)
    else:
        tensor = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
        is_readonly = False
    shape = tensor.shape[: tensor.ndim]
    strides = tensor.strides[: tensor.ndim] if tensor.strides else dense_strides(shape)
    data = tensor.data and tensor.data + tensor.byte_offset
    return View(data, _dl_type(tensor), shape, strides, is_readonly, _dl_place(tensor), capsule)


def _device_of(pointer):
    """The device that memory is on, as the driver knows it; the array does not say."""
    ordinal = c_int32()
    which = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    try:
        ask = ctypes.CDLL("libcuda.so.1").cuPointerGetAttribute
    except (OSError, AttributeError):
        return "memory of an unknown device"
    status = ask(ctypes.byref(ordinal), which, c_uint64(pointer or 0))
    return "memory of no device" if status else ordinal.value
