# SPDX-License-Identifier: Apache-2.0
"""Gates of a race: kinds, raw and as log gates, and the patterns of chunks of 64 tokens.

All are drawn on the CPU from a seed of their own, so that a kind has the same numbers whatever
else is raced. A gate is one number a head, or one a key channel.
"""
import math

import torch
import torch.nn.functional as F

CHUNK, SEED = 64, 31
KINDS = ("none", "recipe", "model", "strong")
DRAWS = ("model1", "model2")  # further draws of model
BOUND = -5.0  # of the log gates of the kinds below, as models that decay per channel have it
BOUNDED = {"trained": 0.02, "bounded": 2.5}  # the middle of their log gates, times -1
NO_DECAY = -1e3  # an A_log whose exp is 0
PLAIN, GATED, UNEVEN = -0.2, -0.5, -3.0


def bound(kind):
    """The lower bound of a kind's log gates, or None."""
    return BOUND if kind in BOUNDED else None


def normal(kind, shape):
    """What a has before its rounding, and what draws the rest."""
    seed = SEED + int(kind.removeprefix("model") or 0) if kind.startswith("model") else SEED
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=draw).bfloat16(), draw


def raw(kind, tokens, heads, channels=()):
    """a [tokens][heads] in bfloat16, A_log and dt_bias [heads]: the log gate is
    -exp(A_log) softplus(a + dt_bias), or with a bound of the kind's
    bound sigmoid(exp(A_log) (a + dt_bias)). With channels (K,): a [tokens][heads][K] and dt_bias
    [heads][K].

    none: 0. recipe: logsigmoid(normal) / 16, and 0 in a quarter of the heads. strong: -2.
    model: A uniform in 0.02 to 16, softplus(dt_bias) log-uniform in 0.001 to 0.1, a normal.
    trained: about -0.02 exp(normal), as a layer of Kimi K3 has them. bounded: -5 sigmoid(normal).
    """
    a, draw = normal(kind, (tokens, heads, *channels))
    zeros, biases = torch.zeros(heads), torch.zeros(heads, *channels)
    if kind == "none":
        return a, zeros + NO_DECAY, biases
    if kind == "recipe":
        A_log = zeros - math.log(16)
        A_log[torch.randperm(heads, generator=draw)[: heads // 4]] = NO_DECAY
        return a, A_log, biases
    if kind == "strong":
        return torch.zeros_like(a), zeros + math.log(2 / math.log(2)), biases
    if kind in BOUNDED:
        share = BOUNDED[kind] / -BOUND
        return a, zeros, biases + math.log(share / (1 - share))
    if kind != "model" and kind not in DRAWS:
        raise ValueError(f"gates: '{kind}', wanted "
                         f"{', '.join((*KINDS, *DRAWS, *BOUNDED))} or a pattern")
    A = 0.02 + (16 - 0.02) * torch.rand(heads, generator=draw)
    step = 0.001 * 100 ** torch.rand(biases.shape, generator=draw)
    return a, A.log(), step + torch.log(-torch.expm1(-step))  # softplus(that) is the step


def logs_of(a, A_log, dt_bias, bound=None):
    """The log gates of raw ones, in float64."""
    x = a.double() + dt_bias
    A = A_log.double().exp().view(-1, *[1] * (dt_bias.ndim - 1))
    logs = -A * F.softplus(x) if bound is None else bound * (A * x).sigmoid()
    return logs + 0.0  # no -0


def patterns_of(lengths, heads):
    """By name: the log gates [tokens][heads] of each pattern, as functions."""
    at = torch.cat([torch.arange(T) for T in lengths])[:, None]
    chunk, first = at // CHUNK, at % CHUNK == 0
    odd = torch.arange(heads)[None] % 2 == 1
    shape = len(at), heads

    def plain(where, value):
        return torch.full(shape, PLAIN).masked_fill(where.expand(shape), value)

    def gated(where):
        return plain(first & where, GATED)

    def half():
        draw = torch.Generator().manual_seed(SEED)
        which = first.flatten().cumsum(0) - 1
        return (torch.rand(int(which[-1]) + 1, heads, generator=draw) < 0.5)[which]

    def model(change=None):
        g = logs_of(*raw("model", *shape)).float()
        return change(g) if change else g

    every = torch.ones(1, 1, dtype=torch.bool)
    return {
        "plain -0.2": lambda: plain(~every, 0),
        "all gated": lambda: gated(every),
        "all uneven": lambda: plain(every, UNEVEN),
        "gated every 2nd": lambda: gated(chunk % 2 == 1),
        "gated 2 of 4": lambda: gated(chunk % 4 >= 2),
        "gated 8 of 16": lambda: gated(chunk % 16 >= 8),
        "gated every 10th": lambda: gated(chunk % 10 == 9),
        "uneven every 2nd": lambda: plain(chunk % 2 == 1, UNEVEN),
        "uneven every 10th": lambda: plain(chunk % 10 == 9, UNEVEN),
        "dead every 10th": lambda: plain(first & (chunk % 10 == 9), -math.inf),
        "random half gated": lambda: gated(half()),
        "odd heads all gated": lambda: gated(odd),
        "odd heads gated every 2nd": lambda: gated(odd & (chunk % 2 == 1)),
        "model0": model,
        "model0 firsts weak": lambda: model(lambda g: g.where(~first, g.clamp(min=PLAIN))),
        "model0 firsts strong": lambda: model(lambda g: g.where(~first, g.clamp(max=GATED))),
        "model0 halved": lambda: model(lambda g: g / 2),
        "model0 / 4": lambda: model(lambda g: g / 4),
    }


PATTERNS = tuple(patterns_of((1,), 1))


def named(text):
    """The kinds that an option names: all, patterns, or names separated by commas."""
    sets = {"all": KINDS, "patterns": ("none", *PATTERNS, "recipe")}
    kinds = sets.get(text) or tuple(name.strip() for name in text.split(","))
    known = *KINDS, *DRAWS, *BOUNDED, *PATTERNS
    for kind in kinds:
        if kind not in known:
            raise ValueError(f"gates: '{kind}', wanted all, patterns or some of "
                             f"{'; '.join(known)}")
    return kinds


def is_raw(kind):
    """A pattern has log gates alone."""
    return kind not in PATTERNS


def logs(kind, lengths, heads):
    """The log gates [tokens][heads] of a kind or a pattern."""
    if is_raw(kind):
        return logs_of(*raw(kind, sum(lengths), heads), bound(kind)).float()
    return patterns_of(lengths, heads)[kind]()
