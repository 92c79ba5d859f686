# SPDX-License-Identifier: Apache-2.0
"""Models of one layer, trained by gdn.torch or torch. Processes of a test import them quickly."""

import datetime

import gdn
import gdn.torch
import samples
import torch
from samples import HK, HV, K, V
from torch.nn.functional import softplus

RAW = dict(gate=gdn.GATE_RAW, beta_kind=gdn.BETA_SIGMOID, norm=gdn.NORM_L2)


def unit(x):
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


def rule64(a, is_raw=True):
    """The rule in float64 on the leaves of raw()."""
    a = {name: x.double() for name, x in a.items()}
    if is_raw:
        a["g"] = -a.pop("A_log").exp() * softplus(a["g"] + a.pop("dt_bias"))
        a["q"], a["k"], a["beta"] = unit(a["q"]), unit(a["k"]), a["beta"].sigmoid()
    return samples.reference(**a)


class Tiny(torch.nn.Module):
    """One layer between an embedding and a head. rule(): the function under test."""

    def __init__(self, rule, seed=3):
        super().__init__()
        torch.manual_seed(seed)
        self.rule, self.sizes = rule, (HK * K, HK * K, HV * V, HV, HV)
        self.embed = torch.nn.Embedding(16, 32)
        self.project = torch.nn.Linear(32, sum(self.sizes))
        self.A_log, self.dt_bias = (torch.nn.Parameter(torch.zeros(HV)) for _ in range(2))
        self.head = torch.nn.Linear(HV * V, 16)

    def forward(self, tokens):
        q, k, v, g, beta = self.project(self.embed(tokens)).split(self.sizes, -1)
        out = self.rule(dict(q=q.unflatten(-1, (HK, K)), k=k.unflatten(-1, (HK, K)),
                             v=v.unflatten(-1, (HV, V)), g=g, beta=beta, A_log=self.A_log,
                             dt_bias=self.dt_bias, state=q.new_zeros(len(tokens), HV, V, K)))
        return self.head(out.flatten(-2).to(self.head.weight.dtype))


class Layered(torch.nn.Module):
    """A whole layer between an embedding and a head."""

    def __init__(self, seed=3, is_kda=False):
        super().__init__()
        torch.manual_seed(seed)
        self.embed, self.head = torch.nn.Embedding(16, 32), torch.nn.Linear(32, 16)
        self.layer = (gdn.torch.KimiDeltaAttention(32, HV, K) if is_kda else
                      gdn.torch.GatedDeltaNet(32, HK, HV, K, V))

    def forward(self, tokens):
        return self.head(self.layer(self.embed(tokens)))


def by_gdn(a):
    return gdn.torch.prefill(**a, **RAW, write=gdn.WRITE_NONE)


def by_torch(a):
    return rule64(a)[0]


def loss_of(model, tokens):
    return torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1),
                                             tokens[:, 1:].flatten())


def text():
    """Four rows that repeat themselves."""
    return torch.randint(16, (4, 8)).repeat(1, 4)


def replica(rank, folder):
    """Process `rank` of two: saves the gradients of its half of the batch, averaged over both."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank,
                                         world_size=2, timeout=datetime.timedelta(minutes=2))
    model = torch.nn.parallel.DistributedDataParallel(Layered())
    loss_of(model, torch.load(f"{folder}/tokens").chunk(2)[rank]).backward()
    torch.save([x.grad for x in model.module.parameters()], f"{folder}/{rank}")
    del model  # it holds threads of the group
    torch.distributed.barrier()  # no process ends while another one talks to it
    torch.distributed.destroy_process_group()
