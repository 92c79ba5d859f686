#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
train.py - trains the model of model.py on bytes, on a CPU or a GPU, and writes it as a folder that
transformers and `gdn generate` load.

    python3 examples/tinylm/train.py OUT
    gdn generate OUT -p "The "

OUT also gets loss.svg, and checkpoint.pt, from which the same command continues after an
interruption. The text is a file, or else the reference of the Python language, which every
installation of CPython holds.
"""

import argparse
import json
import math
import pathlib
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from curve import plot
from model import CONFIG, LanguageModel, by_transformers
from torch.nn.functional import cross_entropy


def read_text(path):
    if path:
        return pathlib.Path(path).read_bytes()
    from pydoc_data.topics import topics

    paragraphs = "\n\n".join(topics[name] for name in sorted(topics)).split("\n\n")
    return "\n\n".join(dict.fromkeys(paragraphs)).encode()  # topics repeat each other


def batch(data, args, generator):
    """Inputs and targets [batch][tokens], from random places."""
    starts = torch.randint(len(data) - args.tokens, (args.batch,), generator=generator)
    rows = torch.stack([data[i:i + args.tokens + 1] for i in starts]).long().to(args.device)
    return rows[:, :-1], rows[:, 1:]


def loss_of(model, inputs, targets):
    logits = model(inputs)
    logits = getattr(logits, "logits", logits)
    return cross_entropy(logits.flatten(0, 1), targets.flatten())


def rate(step, args):
    """The learning rate: a tenth of the steps up, then half a cosine down to a tenth."""
    warm = max(1, args.steps // 10)
    if step < warm:
        return args.rate * (step + 1) / warm
    done = (step - warm) / max(1, args.steps - warm)
    return args.rate * (0.55 + 0.45 * math.cos(math.pi * done))


class Training:
    """A model, its optimizer, and how far they are; saved and loaded as a whole."""

    def __init__(self, args):
        torch.manual_seed(args.seed)
        self.args, self.step, self.seconds, self.losses = args, 0, 0.0, []
        self.model = LanguageModel()
        if args.torch:
            start, self.model = self.model.state_dict(), by_transformers()
            self.model.load_state_dict(start, strict=False)  # their head is tied
        self.model.to(args.device)
        self.adam = torch.optim.AdamW(self.model.parameters(), args.rate, betas=(0.9, 0.95),
                                      weight_decay=0.1, fused=True)
        self.generator = torch.Generator().manual_seed(args.seed)
        self.map = map
        if args.parts > 1:
            torch.set_num_threads(1)
            self.map = ThreadPoolExecutor(args.parts).map
        self.file = args.out / "checkpoint.pt"
        if self.file.exists():
            self.load(torch.load(self.file, weights_only=True))

    def load(self, saved):
        self.model.load_state_dict(saved["model"])
        self.adam.load_state_dict(saved["adam"])
        self.generator.set_state(saved["generator"])
        self.step, self.seconds, self.losses = saved["step"], saved["seconds"], saved["losses"]

    def save(self):
        torch.save(dict(model=self.model.state_dict(), adam=self.adam.state_dict(),
                        generator=self.generator.get_state(), step=self.step,
                        seconds=self.seconds, losses=self.losses), self.file)

    def part_gradients(self, inputs, targets):
        """The loss of some rows, as their share of the batch, and its gradients."""
        loss = loss_of(self.model, inputs, targets) * (len(inputs) / self.args.batch)
        return loss, torch.autograd.grad(loss, list(self.model.parameters()))

    def find_gradients(self, inputs, targets):
        """Threads take a part of the rows each: operators of this size have little to share."""
        n = self.args.parts
        parts = list(self.map(self.part_gradients, inputs.chunk(n), targets.chunk(n)))
        for p, *gradients in zip(self.model.parameters(), *(g for _, g in parts)):
            p.grad = sum(gradients[1:], gradients[0])
        return sum(loss.item() for loss, _ in parts)

    def advance(self, data):
        begin = time.perf_counter()
        for group in self.adam.param_groups:
            group["lr"] = rate(self.step, self.args)
        loss = self.find_gradients(*batch(data, self.args, self.generator))
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.adam.step()
        self.losses.append(loss)
        self.step += 1
        self.seconds += time.perf_counter() - begin

    def show(self):
        done = self.step / self.args.steps
        speed = self.step * self.args.batch * self.args.tokens / self.seconds
        recent = self.losses[-20:]
        line = (f"[{'#' * int(30 * done):30}] {self.step}/{self.args.steps}  loss "
              f"{sum(recent) / len(recent):.3f}  {speed:.0f} tokens/s  {self.seconds:.0f} s")
        print(f"\r{line}" if sys.stdout.isatty() else line,
              end="" if sys.stdout.isatty() and done < 1 else "\n", flush=True)


@torch.no_grad()
def held_out(model, data, args):
    """The mean loss over the part of the text that was not trained on."""
    cuts = range(0, len(data) - args.tokens - 1, args.tokens)
    rows = torch.stack([data[i:i + args.tokens + 1] for i in cuts]).long().to(args.device)
    return sum(loss_of(model, part[:, :-1], part[:, 1:]).item() * len(part)
               for part in rows.split(args.batch)) / len(rows)


def write_safetensors(path, tensors, metadata):
    """The tensors in bfloat16."""
    header, rows, at = {"__metadata__": metadata}, [], 0
    for name, x in sorted(tensors.items()):
        rows.append(bytes(x.detach().cpu().bfloat16().flatten().view(torch.uint8).tolist()))
        end = at + len(rows[-1])
        header[name] = dict(dtype="BF16", shape=list(x.shape), data_offsets=[at, end])
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(rows))


def export(training, note):
    out, tensors = training.args.out, dict(training.model.named_parameters())  # no tied head
    name = "torch" if training.args.torch else "libgdn"
    write_safetensors(out / "model.safetensors", tensors,
                      {"format": "pt", "config": json.dumps(CONFIG), "training": note})
    (out / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    (out / "loss.svg").write_text(plot({name: training.losses}))


def arguments():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out", type=pathlib.Path, metavar="OUT", help="the folder to write")
    p.add_argument("--text", metavar="FILE", help="what to learn; default: Python's reference")
    p.add_argument("--steps", type=int, default=1500, help="steps in all (1500)")
    p.add_argument("--batch", type=int, default=8, help="rows of a step (8)")
    p.add_argument("--tokens", type=int, default=256, help="bytes of a row (256)")
    p.add_argument("--rate", type=float, default=4e-3, help="largest learning rate (0.004)")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--parts", type=int, help="parts of a batch, of which threads of the CPU take "
                   "one each (as many as torch has threads; 1 on a GPU)")
    p.add_argument("--torch", action="store_true",
                   help="train transformers' model by torch's own operators, for comparison")
    args = p.parse_args()
    if args.parts is None:
        args.parts = torch.get_num_threads() if args.device == "cpu" else 1
    return args


def main():
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    text = torch.frombuffer(bytearray(read_text(args.text)), dtype=torch.uint8)
    cut = len(text) - max(args.tokens + 1, len(text) // 25)
    training = Training(args)
    while training.step < args.steps:
        training.advance(text[:cut])
        if training.step % 20 == 0 or training.step == args.steps:
            training.show()
        if training.step % 100 == 0 or training.step == args.steps:
            training.save()
    loss = held_out(training.model, text[cut:], args)
    tokens = args.steps * args.batch * args.tokens
    note = (f"{tokens} bytes in {training.seconds:.0f} s on {args.device}; held out: "
            f"{loss:.3f} nats a byte")
    print(note)
    export(training, note)


if __name__ == "__main__":
    main()
