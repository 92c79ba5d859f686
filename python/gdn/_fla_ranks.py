# SPDX-License-Identifier: Apache-2.0
"""
What ranks with a context send to each other, under the names and signatures of FLA 0.6. Used by
gdn.fla.install(). Without gradients, as in FLA.
"""

import torch
from torch import distributed


@torch.no_grad()
def all_gather_into_tensor(inp, out=None, group=None, async_op=False):
    """The inp of every rank, [ranks, ..], in out or a new tensor; and the handle with async_op."""
    if out is None:
        out = inp.new_empty(distributed.get_world_size(group), *inp.shape)
    flat = inp.contiguous().view(-1)  # Gloo takes no stack of tensors
    return out, distributed.all_gather_into_tensor(out.view(-1), flat, group, async_op)


@torch.no_grad()
def all_reduce_sum(inp, group=None, async_op=False):
    """The sum of every rank's inp, in inp; and the handle with async_op."""
    return inp, distributed.all_reduce(inp, group=group, async_op=async_op)


def _of_neighbour(x, group, step):
    """The x of the rank that is so many steps further, or zeros if there is none."""
    found, _ = all_gather_into_tensor(x, group=group)
    rank = distributed.get_rank(group) + step
    return found[rank].clone() if 0 <= rank < len(found) else torch.zeros_like(x)


def send_recv_fwd(send_tensor, group, recv_from_prev=True):
    """The send_tensor of the rank before, or of the next; zeros if there is none."""
    return _of_neighbour(send_tensor, group, -1 if recv_from_prev else 1)


def send_recv_bwd(send_tensor, group, recv_from_next=True):
    """The send_tensor of the next rank, or of the one before; zeros if there is none."""
    return _of_neighbour(send_tensor, group, 1 if recv_from_next else -1)


def conv_cp_send_recv_fwd(tails, group):
    """The last inputs of the rank before, which a convolution's first tokens need."""
    return send_recv_fwd(tails, group)


def conv_cp_send_recv_bwd(d_initial_state, group):
    """The gradient of this rank's last inputs, from the next rank."""
    return send_recv_bwd(d_initial_state, group)
