# SPDX-License-Identifier: Apache-2.0
"""Raw gates for peers that take them made: one launch, which is the least that they need."""
import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def kernel(a, b, A_log, dt_bias, alpha, beta, n, H: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside, head = at < n, at % H
    x = tl.load(a + at, inside, 0).to(tl.float32) + tl.load(dt_bias + head)
    softplus = tl.where(x > 20, x, tl.log(1 + tl.exp(x)))
    g = -tl.exp(tl.load(A_log + head)) * softplus
    tl.store(alpha + at, tl.exp(g), inside)
    tl.store(beta + at, tl.sigmoid(tl.load(b + at, inside, 0).to(tl.float32)), inside)


def write(a, b, A_log, dt_bias, alpha, beta):
    """alpha: exp of the log gates; beta: sigmoid(b)."""
    kernel[(triton.cdiv(a.numel(), BLOCK),)](a, b, A_log, dt_bias, alpha, beta, a.numel(),
                                             a.shape[-1], BLOCK)
