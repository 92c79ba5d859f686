# SPDX-License-Identifier: Apache-2.0
"""
Tensors whose memory does not hold their values: torch marks conjugates, negatives (z.conj().imag)
and zeros without memory by bits. The kernels of these dispatch keys give the operator tensors that
hold the values, and copy back what it wrote.
"""

import torch

KEYS = "Conjugate", "Negative", "ZeroTensor"


def _resolved(x):
    """Returns a tensor whose memory holds the values of x: x itself, if it does."""
    return x.clone() if x._is_zerotensor() else x.resolve_conj().resolve_neg()


def kernel(operator, names, outputs):
    """The kernel at KEYS of an operator with arguments of these names, which writes outputs."""

    def run(*args, **kwargs):
        given = dict(zip(names, args), **kwargs)
        held = {name: _resolved(x) if isinstance(x, torch.Tensor) else x
                for name, x in given.items()}
        operator(**held)
        for name in outputs & given.keys():
            if held[name] is not given[name]:
                given[name].copy_(held[name])

    return run
