# SPDX-License-Identifier: Apache-2.0
"""examples/tinylm/same_bits.py: a trainer's log-probabilities have the bits of the sampler's."""

import pathlib
import sys

import gdn
import pytest
import torch

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples/tinylm"


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import same_bits

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small matrices
    with torch.enable_grad():
        yield same_bits
    torch.set_num_threads(threads)
    for name in ("same_bits", "model"):
        sys.modules.pop(name)


def pair(example, model, prompt, flags):
    """Log-probabilities of 24 tokens by the sampler, and by the trainer."""
    tokens, sampled = example.sample(model, prompt, 24, flags)
    return sampled, example.again(model, prompt, tokens, flags)


def test_sampled_and_trained(example):
    """G23: over several chunks. Without the flag some differ, so that the comparison can fail."""
    torch.manual_seed(1)
    model = example.load(EXAMPLE / "model")
    prompt = torch.tensor([list(b"The delta ru")])
    sampled, trained = pair(example, model, prompt, gdn.SPLIT_INVARIANT)
    assert torch.equal(sampled, trained)
    trained.sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    with torch.no_grad():
        assert not torch.equal(*pair(example, model, prompt, 0))
