# SPDX-License-Identifier: Apache-2.0
"""A drafted tree, its path accepted by a record, against decode of the accepted tokens."""
import numpy as np

import gdn

B, T, R, HK, H, K, V = 2, 5, 8, 2, 4, 16, 12
PARENTS = np.array([[-1, 0, 0, 1, 2], [-1, -1, 1, 2, 0]], np.int32)
PATH = np.array([[0, 2, 4], [1, 2, 0]], np.int32)
ACCEPTED = np.array([3, 2], np.int32)


def draw(shape, seed):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_record_of_a_tree():
    tokens = dict(q=draw((B, T, HK, K), 1), k=draw((B, T, HK, K), 2), v=draw((B, T, H, V), 3),
                  g=-np.abs(draw((B, T, H), 4)), beta=np.abs(np.tanh(draw((B, T, H), 5))))
    start = draw((B, H, V, K), 6)
    state, plain = start.copy(), start.copy()
    out, want = np.zeros((B, T, H, V), np.float32), np.zeros((B, 3, H, V), np.float32)
    record = dict(record_k=np.zeros((B, R, HK, K), np.float32),
                  record_u=np.zeros((B, R, H, V), np.float32),
                  record_g=np.zeros((B, R, H), np.float32), record_count=np.zeros(B, np.int32))
    rows = np.arange(B)[:, None]
    chain = {name: np.ascontiguousarray(x[rows, PATH]) for name, x in tokens.items()}
    with gdn.Context() as ctx:
        ctx.decode(**tokens, **record, state=state, out=out, norm=gdn.NORM_L2,
                   batch=gdn.Batch(parents=PARENTS, write=gdn.WRITE_NONE))
        assert np.array_equal(state, start)
        ctx.record_commit(**record, n_accepted=ACCEPTED, path=PATH)
        assert record["record_count"].tolist() == [3, 2]
        ctx.record_fold(**record, state=state)
        ctx.decode(**chain, state=plain, out=want, norm=gdn.NORM_L2,
                   batch=gdn.Batch(token_count=ACCEPTED))
    assert record["record_count"].tolist() == [0, 0]
    assert np.array_equal(state, plain)
    for b, n in enumerate(ACCEPTED):
        assert np.array_equal(out[b, PATH[b, :n]], want[b, :n])
