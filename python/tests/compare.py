# SPDX-License-Identifier: Apache-2.0
"""When a result is right: within a derived bound, within the limits of the vectors, same bits."""

import numpy as np
from arrays import BF16, F16, load
from oracle import SMALLEST


def same_bits(name, got, want):
    assert got.dtype == want.dtype and got.shape == want.shape, name
    got, want = np.ascontiguousarray(got), np.ascontiguousarray(want)
    bits = np.dtype(f"u{got.dtype.itemsize}")
    different = np.argwhere(got.view(bits) != want.view(bits))
    assert not len(different), f"{name}{different[0]}: {len(different)} of {got.size} differ"


def within_bound(name, got, expected):
    """Every element by its own bound; NaN and infinities must be the same."""
    got = load(got)
    with np.errstate(invalid="ignore"):
        error = np.abs(got - expected.value)
    same = (got == expected.value) | (np.isnan(got) & np.isnan(expected.value))
    bad = np.argwhere(~(same | (error <= expected.bound)))
    if len(bad):
        i = tuple(bad[0])
        raise AssertionError(
            f"{name}{list(map(int, i))}: {got[i]}, wanted {expected.value[i]} "
            f"within {expected.bound[i]}; {len(bad)} of {got.size} are wrong"
        )


def within_limits(name, got, want, *dtypes):
    """The table of tests/vectors/README.md, for activations and state of these dtypes."""
    values = load(got)
    if not want.size:
        return
    error, largest = np.abs(values - want), np.abs(want).max()
    error = np.maximum(0, error - SMALLEST.get(got.dtype.char, 0) / 2)  # where numbers end
    rms = np.sqrt(np.mean(want**2))
    if BF16 in dtypes or F16 in dtypes:
        rms_limit, unit = (6e-3, 2.0**-8) if BF16 in dtypes else (8e-4, 2.0**-11)
        found = np.sqrt(np.mean(error**2))
        assert found <= rms_limit * rms, f"{name}: RMS of the error {found}, of the values {rms}"
        limit = 3 * unit * largest
    else:
        limit = 2e-5 * rms + 1e-6
    assert error.max() <= limit, f"{name}: largest error {error.max()}, limit {limit}"
