# SPDX-License-Identifier: Apache-2.0
"""examples/train_parallel.py: two ranks, by tokens and by heads, have the losses of one."""

import argparse
import importlib.util
import pathlib
import sys

import torch

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples/train_parallel.py"


def test_losses(capsys, monkeypatch):
    spec = importlib.util.spec_from_file_location("train_parallel", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "train_parallel", module)
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))  # for the processes
    spec.loader.exec_module(module)
    with torch.enable_grad():
        assert module.compare(argparse.Namespace(steps=3, tokens=256)) == 0
    text = capsys.readouterr().out
    assert "step   2  one " in text
    assert float(text.split(" by ")[1].split()[0]) < 1e-5
