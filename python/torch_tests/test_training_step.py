# SPDX-License-Identifier: Apache-2.0
"""Steps of training whose forward pass, loss and backward pass are compiled without graph break."""

import copy

import gdn
import pytest
import tiny
import torch


def losses(model, wrap, steps=3):
    model = copy.deepcopy(model)
    tokens = tiny.text().to(next(model.parameters()).device)
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


@pytest.mark.parametrize("is_kda", [False, True])
@torch.enable_grad()
def test_whole_step(is_kda):
    """Forward pass, loss, backward pass and the update of the weights are one graph."""
    if not hasattr(torch._dynamo.config, "trace_autograd_ops"):
        pytest.skip("this torch compiles no backward()")
    torch.manual_seed(1)
    tokens, found = tiny.text(), []

    def step(model, weights):
        loss = tiny.loss_of(model, tokens)
        slopes = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for w, slope in zip(weights, slopes):
                w.sub_(0.1 * slope)
        return loss.detach()

    for call in (step, torch.compile(step, fullgraph=True, backend="aot_eager")):
        model = tiny.Layered(is_kda=is_kda)
        weights = list(model.parameters())
        with torch._dynamo.config.patch(trace_autograd_ops=True):
            found.append([call(model, weights).item() for _ in range(3)])
    assert found[0] == found[1] and found[0][-1] < found[0][0]


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
