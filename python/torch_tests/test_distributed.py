# SPDX-License-Identifier: Apache-2.0
"""gdn.torch.distributed: layouts, and every rank's part against one device."""

import datetime

import parallel
import pytest
import ranks
import torch
from gdn.torch import distributed
from parallel import CU, compare, conv_case, rule_case

SPLITS = [(1, {}), (2, {}), (3, dict(lengths=[20, 0, 27])), (4, {}), (8, {}),
          (3, dict(split="zigzag")), (2, dict(ranges=[[(40, 47), (0, 16)], [(16, 17), (17, 40)]]))]
SHORT = 6, dict(lengths=[6, 1, 1, 0, 2, 37])  # ranges shorter than the taps


# ---- Layouts -------------------------------------------------------------------------------------


def test_a_layout():
    def call(group):
        layout = distributed.Layout(CU, group, split="zigzag")
        return layout.ranges, layout.begins, layout.ends, layout.cu_seqlens().tolist()

    assert ranks.run(2, call) == [
        ([(0, 11), (35, 47)], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [0, 5, 5, 11, 16, 23, 23]),
        ([(11, 23), (23, 35)], [], [], [0, 12, 24])]


def test_layouts_that_disagree():
    """Every rank raises, whichever of them has other lengths or cannot make its layout."""
    def attempt(group, *cuts):
        try:
            distributed.Layout(cuts[group.rank], group)
        except ValueError as error:
            return str(error)

    assert all("differ" in text for text in ranks.run(3, lambda g: attempt(g, CU, CU, (0, 47))))
    texts = ranks.run(2, lambda g: attempt(g, (0, 5), (0, 5, 3)))
    assert "rank 1 could not make it" in texts[0] and "cu_seqlens: begins with" in texts[1]


@pytest.mark.parametrize("wrong, match", [
    (dict(split="ring"), "split"), (dict(lengths=[47]), "of 1 ranks"),
    (dict(lengths=[20, 20]), "40 tokens"), (dict(ranges=[[(0, 20)], [(21, 47)]]), "follows 20")])
def test_layouts_that_cannot_be(wrong, match):
    with pytest.raises(ValueError, match=match):
        ranks.run(2, lambda group: distributed.Layout(CU, group, **wrong))


# ---- Ranks as threads ----------------------------------------------------------------------------


@pytest.mark.parametrize("size, split", SPLITS)
@pytest.mark.parametrize("gates", ["raw", "strong", "-inf"])
def test_prefill(size, split, gates):
    case = rule_case(gates)
    ranks.run(size, lambda group: compare(case, group, **split))


@pytest.mark.parametrize("size, split", [*SPLITS[1:], SHORT])
@pytest.mark.parametrize("length", [3, 5])
def test_conv1d(size, split, length):
    case = conv_case(length)
    ranks.run(size, lambda group: compare(case, group, **split))
