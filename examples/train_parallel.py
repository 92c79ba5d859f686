#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
train_parallel.py - trains a small hybrid language model of bytes on packed texts: by one rank, by
two ranks that divide the tokens, and by two ranks that divide the heads. All have the same losses,
to rounding; the command fails where they have not.

    python3 examples/train_parallel.py [--steps 40]                  # gloo, on a CPU
    torchrun --nproc-per-node 2 examples/train_parallel.py --mode tokens      # NCCL, a GPU each

The text is the reference of the Python language, which every installation of CPython holds.
"""

import argparse
import os
import pathlib
import sys
import tempfile

import gdn.torch
import torch
import torch.distributed as dist
from gdn.torch import distributed
from torch import nn
from torch.nn import functional

HIDDEN, HEADS, LAYERS = 64, 4, 4  # every fourth layer is attention
LIMIT = 1e-3  # nats, of the difference of two losses of one step

# ---- Text ----------------------------------------------------------------------------------------


def texts():
    from pydoc_data.topics import topics

    return [torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).long()
            for _, text in sorted(topics.items())]


def batch(step, all_texts, n_tokens):
    """Bytes of some texts one after the other, the next byte of each, -100 behind the last one of a
    text, and cu_seqlens. The same on every rank."""
    draw = torch.Generator().manual_seed(step)
    tokens, targets, cuts = [], [], [0]
    while cuts[-1] < n_tokens:
        text = all_texts[torch.randint(len(all_texts), (1,), generator=draw)]
        text = text[:n_tokens - cuts[-1]]
        tokens.append(text)
        targets.append(functional.pad(text[1:], (0, 1), value=-100))
        cuts.append(cuts[-1] + len(text))
    return torch.cat(tokens), torch.cat(targets), torch.tensor(cuts, dtype=torch.int32)


# ---- Model ---------------------------------------------------------------------------------------


class Gather(torch.autograd.Function):
    """Rows of all ranks, which are as many on each."""

    @staticmethod
    def forward(ctx, x):
        rows = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(rows, x.contiguous())
        return torch.cat(rows)

    @staticmethod
    def backward(ctx, dout):
        dout = dout.contiguous()
        dist.all_reduce(dout)
        return dout.chunk(dist.get_world_size())[dist.get_rank()]


class Attention(nn.Module):
    """Causal attention within each text. A rank has q of its own tokens, k and v of all."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.out = nn.Linear(HIDDEN, HIDDEN, bias=False)

    def forward(self, x, cu_seqlens, layout):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).unbind(-3)
        place = torch.arange(int(cu_seqlens[-1]), device=x.device)
        text = torch.searchsorted(cu_seqlens[1:].contiguous(), place, right=True)
        mine = place if layout is None else layout.local(place)
        if layout is not None:
            k, v = Gather.apply(k), Gather.apply(v)
        mask = (mine[:, None] >= place) & (text[mine][:, None] == text)
        out = functional.scaled_dot_product_attention(
            *(y.transpose(0, 1)[None] for y in (q, k, v)), attn_mask=mask)
        return self.out(out[0].transpose(0, 1).flatten(-2))


class Layer(nn.Module):
    def __init__(self, mixer):
        super().__init__()
        self.mixer = mixer
        self.norms = nn.ModuleList(nn.RMSNorm(HIDDEN) for _ in range(2))
        self.mlp = nn.Sequential(nn.Linear(HIDDEN, 2 * HIDDEN), nn.SiLU(),
                                 nn.Linear(2 * HIDDEN, HIDDEN))

    def forward(self, x, cu_seqlens, layout):
        y = self.norms[0](x)
        if isinstance(self.mixer, Attention):
            y = self.mixer(y, cu_seqlens, layout)
        elif layout is None:
            y = self.mixer(y[None], cu_seqlens=cu_seqlens)[0]
        else:
            y = self.mixer(y[None], token_layout=layout)[0]
        x = x + y
        return x + self.mlp(self.norms[1](x))


class Model(nn.Module):
    """The same parameters on every rank; divide_heads() makes Gated DeltaNet a rank's share."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(256, HIDDEN)
        self.layers = nn.ModuleList(
            Layer(Attention() if i % 4 == 3 else gdn.torch.GatedDeltaNet(HIDDEN, 2, HEADS, 16, 16))
            for i in range(LAYERS))
        self.head = nn.Linear(HIDDEN, 256)

    def divide_heads(self):
        for layer in self.layers:
            if not isinstance(layer.mixer, Attention):
                layer.mixer = gdn.torch.HeadShare(layer.mixer)

    def forward(self, tokens, cu_seqlens, layout):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, cu_seqlens, layout)
        return self.head(x)


# ---- Training ------------------------------------------------------------------------------------


def advance(model, optimizer, data, layout):
    """One step. Returns the loss of all tokens."""
    tokens, targets, cu_seqlens = data
    count = (targets >= 0).sum()
    if layout is not None:
        tokens, targets = layout.local(tokens), layout.local(targets)
    logits = model(tokens, cu_seqlens, layout)
    loss = functional.cross_entropy(logits, targets, reduction="sum") / count
    optimizer.zero_grad()
    loss.backward()
    loss = loss.detach()
    if layout is not None:  # each rank has the part of its tokens in the loss and the gradients
        for x in [loss, *(p.grad for p in model.parameters())]:
            dist.all_reduce(x)
    optimizer.step()
    return loss.item()


def train(mode, steps, n_tokens, device):
    """The losses of all steps. mode: one, tokens or heads."""
    model = Model().to(device)
    if mode == "heads":
        model.divide_heads()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    all_texts, losses = texts(), []
    for step in range(steps):
        tokens, targets, cu_seqlens = batch(step, all_texts, n_tokens)
        layout = distributed.Layout(cu_seqlens.tolist()) if mode == "tokens" else None
        data = [x.to(device) for x in (tokens, targets, cu_seqlens)]
        losses.append(advance(model, optimizer, data, layout))
    return losses


def process(rank, options, folder):
    """A rank of two, by gloo; the first one leaves its losses."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    found = {mode: train(mode, options.steps, options.tokens, "cpu")
             for mode in ("tokens", "heads")}
    if rank == 0:
        torch.save(found, f"{folder}/losses")
    dist.destroy_process_group()


def compare(options):
    """Trains in all ways and compares the losses. Returns the status of the command."""
    found = dict(one=train("one", options.steps, options.tokens, "cpu"))
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(process, (options, folder), nprocs=2)
        found.update(torch.load(pathlib.Path(folder) / "losses"))
    for step, row in enumerate(zip(*found.values())):
        if step % 10 == 0 or step + 1 == options.steps:
            print(f"step {step:3}  " + "  ".join(f"{name} {loss:.5f}" for name, loss in
                                                 zip(found, row)))
    most = max(abs(x - y) for mode in ("tokens", "heads")
               for x, y in zip(found[mode], found["one"]))
    print(f"losses of two ranks differ from those of one by {most:.1e} at most")
    return int(not most <= LIMIT)


def main():
    parser = argparse.ArgumentParser(description="Trains on several ranks in three ways.")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=1024, help="of a step; the ranks divide it")
    parser.add_argument("--mode", choices=("tokens", "heads"), default="tokens",
                        help="what the ranks of torchrun divide")
    options = parser.parse_args()
    if "RANK" not in os.environ:
        sys.exit(compare(options))
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    losses = train(options.mode, options.steps, options.tokens, device)
    if dist.get_rank() == 0:
        print("\n".join(f"step {i:3}  {loss:.5f}" for i, loss in enumerate(losses)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
