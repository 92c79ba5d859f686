# SPDX-License-Identifier: Apache-2.0
"""Steps of training whose forward pass, loss and backward pass are compiled without graph break."""

import copy

import gdn
import tiny
import torch


def losses(model, wrap, steps=3):
    model, tokens = copy.deepcopy(model), tiny.text()
    loss_of = wrap(lambda: tiny.loss_of(model, tokens))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with torch.enable_grad():
        for _ in range(steps):
            optimizer.zero_grad()
            loss = loss_of()
            loss.backward()
            optimizer.step()
            yield loss.item()


def compare(model):
    def compiled(function):
        return torch.compile(function, fullgraph=True, backend="aot_eager")

    found = []
    for wrap in (compiled, lambda function: function):
        torch.manual_seed(1)  # tokens
        found.append(list(losses(model, wrap)))
    assert found[0] == found[1] and found[0][-1] < found[0][0]


def test_layer():
    compare(tiny.Layered())


class Logits(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        return self.model(tokens, use_cache=False).logits


def test_model_of_transformers(modeling):
    from test_transformers import tiny as tiny_model

    gdn.install("transformers")
    compare(Logits(tiny_model(modeling)))
