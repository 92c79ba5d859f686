# SPDX-License-Identifier: Apache-2.0
"""Contexts, shared by all tests: one per instruction set of this machine and thread count."""

import functools
import os

import gdn
import pytest

os.environ.pop("GDN_CPU", None)  # would lower what contexts are asked for


def has(isa):
    try:
        gdn.Context(threads=1, isa=isa).close()
    except gdn.Error:
        return False
    return True


ISAS = [isa for isa in ("scalar", "avx2", "avx512", "neon") if has(isa)]


@functools.cache
def context_of(isa=None, threads=1):
    return gdn.Context(threads=threads, isa=isa)


def pytest_configure(config):
    config.addinivalue_line("markers", "fake: needs the driver of tests/cuda/fake_cuda.c")
    config.addinivalue_line("markers", "gpu: needs a GPU and a library of arrays on it")


@pytest.fixture
def ctx():
    return context_of(threads=2)


@pytest.fixture(params=ISAS)
def each_ctx(request):
    """The test once per instruction set."""
    return context_of(request.param, 2)


@pytest.fixture
def make_ctx():
    return context_of


@pytest.fixture
def isas():
    return ISAS
