# SPDX-License-Identifier: Apache-2.0
"""
Arrays as the library stores them, and what surrounds them. A dtype is NumPy's, but uint16 is
bfloat16. A Guarded array is a view with odd strides into memory whose other elements read as
NaN, and which tells what a call changed.
"""

import gdn
import numpy as np

F32, F16, BF16 = np.float32, np.float16, np.uint16
FLOATS = (F32, F16, BF16)


def load(array):
    """The stored numbers as float64; integers as they are."""
    with np.errstate(invalid="ignore"):  # signalling NaNs in memory nobody wrote
        if array.dtype == BF16:
            return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return array.astype(np.float64) if array.dtype.kind == "f" else np.array(array)


def store(values, dtype):
    """The numbers rounded to dtype, to nearest even. Not for NaN."""
    values = np.asarray(values)
    if dtype != BF16:
        return values.astype(dtype)
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def given(array):
    """The array as the package takes it."""
    if isinstance(array, np.ndarray) and array.dtype == BF16:
        return gdn.bf16(array)
    return array


def call(function, fields, batch=None):
    """Calls a method of the context on arrays; batch is a dict of the fields of gdn_batch."""
    fields = {name: given(value) for name, value in fields.items()}
    if batch is not None:
        fields["batch"] = gdn.Batch(**batch)
    function(**fields)


class Guarded:
    """view has the values; gaps, steps, order of axes and broadcasting are drawn."""

    def __init__(self, rng, values, dense=1, may_repeat=False):
        """dense: so many last axes stay contiguous; may_repeat: strides of 0 are allowed."""
        free = values.ndim - dense
        self.axes = [*rng.permutation(free), *range(free, values.ndim)]
        may_repeat = may_repeat and values.size > 0
        self.repeats = [may_repeat and i < free and rng.random() < 0.1 for i in range(values.ndim)]
        once = values[tuple(slice(0, 1) if r else slice(None) for r in self.repeats)]
        shape, self.index, self.flip = [], (), ()
        for axis in self.axes:
            step = int(rng.choice([1, 1, 1, 2])) if axis < free else 1
            may_pad = axis < free or axis == values.ndim - 1
            before, after = rng.integers(0, 3, 2) if may_pad else (0, 0)
            end = before + once.shape[axis] * step
            shape.append(end + after)
            self.index += (slice(before, end, step),)
            self.flip += (slice(None, None, -1 if axis < free and rng.random() < 0.2 else 1),)
        self.memory = np.empty(shape, values.dtype)
        self.memory.view(np.uint8)[...] = 0xFF
        self.view = self._view_of(self.memory)
        self.view[...] = once
        if any(self.repeats):
            self.view = np.broadcast_to(self.view, values.shape)
        self.before = self.memory.copy()

    def _view_of(self, memory):
        return memory[self.index][self.flip].transpose(np.argsort(self.axes))

    def gaps_are_untouched(self):
        bytes_of = self.memory.dtype.itemsize
        changed = self.memory.view(np.uint8) != self.before.view(np.uint8)
        changed = changed.reshape(*self.memory.shape, bytes_of).any(-1)
        self._view_of(changed)[...] = False
        return not changed.any()

    def is_untouched(self):
        return self.memory.tobytes() == self.before.tobytes()
