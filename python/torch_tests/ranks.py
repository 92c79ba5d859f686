# SPDX-License-Identifier: Apache-2.0
"""Ranks of a group as threads of this process: an all-gather without torch.distributed."""

import threading

import torch


class _Rank:
    """A group as gdn.torch.distributed takes it."""

    device = torch.device("cpu")

    def __init__(self, rank, shared, barrier):
        self.rank, self.size = rank, len(shared)
        self._shared, self._barrier = shared, barrier
        self.bytes = []  # of each all-gather

    def all_gather(self, x):
        self.bytes.append(x.numel() * x.element_size())
        self._shared[self.rank] = x.detach().clone()
        self._barrier.wait()
        out = torch.stack(self._shared)
        self._barrier.wait()
        return out


def run(size, function):
    """Returns [function(group) of every rank], or raises the error of a rank that failed."""
    shared, barrier = [None] * size, threading.Barrier(size, timeout=60)
    results, errors = [None] * size, {}

    def work(rank):
        try:
            results[rank] = function(_Rank(rank, shared, barrier))
        except Exception as error:
            errors[rank] = error
            barrier.abort()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank in sorted(errors, key=lambda r: isinstance(errors[r], threading.BrokenBarrierError)):
        raise errors[rank]
    return results
