# SPDX-License-Identifier: Apache-2.0
"""gdn.torch.distributed on two GPUs, by two processes and NCCL."""

import time

import on_gpus
import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2,
                                                  reason="fewer than two GPUs")]


def _run(function, folder, seconds):
    """Two processes of function(rank, folder). Returns how they ended; None: not in time."""
    spawn = torch.multiprocessing.get_context("spawn")
    both = [spawn.Process(target=function, args=(rank, str(folder))) for rank in range(2)]
    for process in both:
        process.start()
    end = time.monotonic() + seconds
    for process in both:
        process.join(max(0, end - time.monotonic()))
    codes = [process.exitcode for process in both]
    for process in both:
        process.kill()
    return codes


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nccl")
    codes = _run(on_gpus.values, folder, 240)
    found = []
    for rank in range(2):
        path = folder / str(rank)
        found.append(torch.load(path) if path.exists() else {})
    return codes, found


@pytest.mark.parametrize("case", list(on_gpus.CASES))
def test_two_ranks(texts, case):
    codes, found = texts
    assert [each.get(case, f"not done, ended with {codes}") for each in found] == ["", ""]


def test_a_rank_that_dies(tmp_path):
    """If a rank dies, the other one raises within the timeout of its group, 5 s."""
    first, second = _run(on_gpus.dying, tmp_path, 90)
    assert second == 1 and first not in (0, None)
