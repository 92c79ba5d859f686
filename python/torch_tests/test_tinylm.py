# SPDX-License-Identifier: Apache-2.0
"""examples/tinylm trains, and transformers reads its model."""

import argparse
import json
import pathlib
import sys

import pytest
import torch
from test_layer import read

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples/tinylm"


@pytest.fixture
def train(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.setitem(sys.modules, "fla", sys.modules.get("fla"))  # hidden until the test ends
    import train as module

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small matrices
    with torch.enable_grad():
        yield module
    torch.set_num_threads(threads)
    for name in ("train", "model", "curve"):
        sys.modules.pop(name)


def options(out, **changes):
    return argparse.Namespace(**{**dict(out=out, steps=4, batch=2, tokens=32, rate=4e-3, seed=0,
                                        parts=1, device="cpu", torch=False), **changes})


def text(n=2000):
    return torch.frombuffer(bytearray(b"The delta rule writes what is new. " * n)[:n],
                            dtype=torch.uint8)


def test_resume(train, tmp_path):
    """Training that is interrupted and resumed ends with the bits of one run."""
    whole = train.Training(options(tmp_path))
    for _ in range(4):
        whole.advance(text())
    half = train.Training(options(tmp_path))
    for _ in range(2):
        half.advance(text())
    half.save()
    rest = train.Training(options(tmp_path))
    assert rest.step == 2
    for _ in range(2):
        rest.advance(text())
    assert rest.losses == whole.losses
    assert all(map(torch.equal, rest.model.parameters(), whole.model.parameters()))
    train.export(rest, "a note")
    tensors, metadata = read(tmp_path / "model")
    want = {name: p.bfloat16() for name, p in rest.model.named_parameters()}
    assert tensors.keys() == want.keys() and all(torch.equal(tensors[n], want[n]) for n in want)
    assert json.loads(metadata["config"]) == json.loads((tmp_path / "config.json").read_text())
    assert (tmp_path / "loss.svg").read_text().count("<polyline") == 1


def test_parts_have_the_gradients_of_the_whole(train, tmp_path):
    runs = [train.Training(options(tmp_path, batch=3, parts=parts)) for parts in (1, 2)]
    batch = train.batch(text(), runs[0].args, runs[0].generator)
    losses = [run.find_gradients(*batch) for run in runs]
    assert abs(losses[0] - losses[1]) < 1e-5
    for whole, parts in zip(*(run.model.parameters() for run in runs)):
        torch.testing.assert_close(parts.grad, whole.grad, atol=1e-6, rtol=1e-4)


def test_torch_has_the_same_losses(train, modeling, tmp_path):
    """Our model, and transformers' by torch's operators, have the same losses from the same
    start."""
    runs = [train.Training(options(tmp_path, torch=by_torch)) for by_torch in (False, True)]
    for _ in range(4):
        for run in runs:
            run.advance(text())
    ours, theirs = (torch.tensor(run.losses) for run in runs)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
    assert ours[-1] < ours[0] - 0.1


def test_the_model_in_transformers(train, modeling):
    """The committed folder loads, and has the logits of model.py."""
    theirs = modeling.Qwen3_5ForCausalLM.from_pretrained(EXAMPLE / "model", dtype=torch.float32)
    ours, tensors = train.LanguageModel(), read(EXAMPLE / "model/model")[0]
    ours.load_state_dict(tensors)
    tokens = torch.tensor([list(b"The standard library contains a mutable object. ")])
    with torch.no_grad():
        logits = ours(tokens)
        torch.testing.assert_close(logits, theirs(tokens).logits, atol=1e-4, rtol=0)
    loss = torch.nn.functional.cross_entropy(logits[0, :-1], tokens[0, 1:])
    assert loss < 1.5  # it has learned English: without learning the loss is log(256)
