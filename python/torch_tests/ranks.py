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


def _start(groups, function):
    """Returns [function(*groups of a rank)], a thread for each, or raises the error of one that
    failed; its groups end then."""
    results, errors = [None] * len(groups), {}

    def work(number):
        try:
            results[number] = function(*groups[number])
        except Exception as error:
            errors[number] = error
            for group in groups[number]:
                group._barrier.abort()

    threads = [threading.Thread(target=work, args=(number,), daemon=True)
               for number in range(len(groups))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
        if thread.is_alive():
            raise TimeoutError("a rank has not ended within 300 s")
    for number in sorted(errors,
                         key=lambda n: isinstance(errors[n], threading.BrokenBarrierError)):
        raise errors[number]
    return results


def _group(size):
    shared, barrier = [None] * size, threading.Barrier(size, timeout=60)
    return [_Rank(rank, shared, barrier) for rank in range(size)]


def run(size, function):
    """Returns [function(group) of every rank], or raises the error of a rank that failed."""
    return _start([(rank,) for rank in _group(size)], function)


def grid(rows, columns, function):
    """The same with two groups each: function(group of the row, group of the column)."""
    along = [_group(columns) for _ in range(rows)]
    across = [_group(rows) for _ in range(columns)]
    return _start([(along[i][j], across[j][i]) for i in range(rows) for j in range(columns)],
                  function)
