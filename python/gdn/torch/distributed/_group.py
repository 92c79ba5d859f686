# SPDX-License-Identifier: Apache-2.0
"""What is needed of a process group: rank, size, an all-gather and a sum."""

import torch
import torch.distributed as dist


class _Processes:
    """A group of torch.distributed; None: the default one."""

    def __init__(self, group):
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError("group: this process is not in it")
        self._has_one_buffer = "gloo" not in dist.get_backend(group)

    @property
    def device(self):
        """Where small tensors of the group lie."""
        return torch.device("cuda" if "nccl" in dist.get_backend(self.group) else "cpu")

    def all_gather(self, x):
        """Returns [size][...]: x, which is contiguous, of every rank."""
        out = x.new_empty(self.size, *x.shape)
        if self._has_one_buffer:
            dist.all_gather_into_tensor(out, x, group=self.group)
        else:  # older versions of gloo have no all_gather_into_tensor
            dist.all_gather(list(out), x, group=self.group)
        return out

    def all_reduce(self, x):
        """Returns the sum of x over ranks."""
        out = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(out, group=self.group)
        return out


def total(group, x):
    """The sum of x over the ranks of group_of(); in their order, if it has an all-gather alone."""
    if hasattr(group, "all_reduce"):
        return group.all_reduce(x)
    return group.all_gather(x.contiguous()).sum(0)


def group_of(group):
    """The group as an object with rank, size, device and all_gather(); the caller's own is taken as
    it is."""
    return group if hasattr(group, "all_gather") else _Processes(group)
