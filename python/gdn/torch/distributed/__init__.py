# SPDX-License-Identifier: Apache-2.0
"""
Several processes for one batch, over a group of torch.distributed or any object with an all-gather.

Context parallelism: a Layout says which tokens of a packed batch each rank holds; prefill() and
conv1d() compute the rank's part, with gradients. Sequences may cross ranks anywhere.
"""

from ._contexts import layout_of
from ._conv import conv1d
from ._layout import Layout
from ._prefill import prefill

__all__ = ["Layout", "conv1d", "layout_of", "prefill"]
