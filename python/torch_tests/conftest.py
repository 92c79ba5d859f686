# SPDX-License-Identifier: Apache-2.0
"""The devices that torch computes on: the CPU, and a GPU if there is one."""

import inspect
import os

import pytest

# Inductor's cache on disk does not look at schemas, so it may hold code for those of yesterday.
os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"

import torch  # noqa: E402


def _why_no_gpu():
    if not torch.cuda.is_available():
        return "torch finds no GPU"
    import gdn.torch

    try:
        gdn.torch.warm_up("cuda")
    except RuntimeError as error:
        return str(error)
    return None


WHY_NO_GPU = _why_no_gpu()


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs a GPU")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    if request.param == "cuda" and WHY_NO_GPU:
        pytest.skip(WHY_NO_GPU)
    return request.param


@pytest.fixture
def gpu():
    if WHY_NO_GPU:
        pytest.skip(WHY_NO_GPU)
    return torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def clean():
    torch.manual_seed(0)
    torch._dynamo.reset()
    with torch.no_grad():
        yield


@pytest.fixture
def mesh():
    """A mesh of this process alone, for FSDP2."""
    if not torch.distributed.is_available():
        pytest.skip("this torch has no torch.distributed")
    if not hasattr(pytest.importorskip("torch.distributed.fsdp"), "fully_shard"):
        pytest.skip("this torch has no fully_shard")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0,
                                         world_size=1)
    yield torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


@pytest.fixture
def modeling(monkeypatch):
    """The models of transformers, by torch's own operators until a test installs others."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    import gdn.transformers as ours

    try:
        from transformers.models.qwen3_5 import modeling_qwen3_5 as module
    except ImportError as error:
        pytest.skip(str(error))
    modules = ours.modules()
    for name, each in modules.items():  # undone after the test
        for function in ours.functions(name):  # unwrapped: not an installed FLA's code
            theirs = inspect.unwrap(getattr(each, function.__name__))
            monkeypatch.setattr(each, function.__name__, theirs)
    for name, of_layer in {**ours.MODELS, **ours.KDA_MODELS}.items():
        layer = getattr(modules.get(name), of_layer, None)
        if layer is not None:
            monkeypatch.setattr(layer, "forward", layer.forward)
    return module
