# SPDX-License-Identifier: Apache-2.0
"""What is raced: the rows of each rule and op, in the order in which they matter, since time may
run out."""
import dataclasses

import torch

PREFILL_HEADS = ((16, 32), (16, 64), (2, 8), (8, 32), (16, 16), (4, 16))
PREFILL_LENGTHS = ((2048,), (8192,), (32768,), (8192,) * 4, (4096,) * 8, (4096,), (2048,) * 4,
                   (1024,) * 8)
RAGGED = 32768, 12000, 100, 24576, 517, 3000, 20480, 16384, 1, 8192, 2048, 11006  # 131,072 tokens


def product(heads, lengths, dims=(128,)):
    return [(*h, tokens, dim) for dim in dims for h in heads for tokens in lengths]


# Of Gated DeltaNet's prefill. gates: where gates were seen to cost; others: beside them.
GATES = product(((16, 32),), ((8192,) * 4, (4096,) * 8, (8192,), (32768,), (2048,) * 4,
                              (1024,) * 8))
GATES += product(((16, 64),), ((2048,) * 4, (32768,))) + product(((8, 24), (2, 8)), ((32768,),))
OTHERS = [(8, 24, (8192,) * 4, 128), *product(((16, 48), (32, 32), (4, 16)),
                                              ((8192,) * 4, (32768,))),
          (16, 32, (100, 3000, 8192, 517, 4096, 1, 2048, 12000), 128),
          *product(((16, 32),), ((8192,) * 4, (32768,)), (64, 256))]
# Kernels for any GPU: heads and lengths beside FLA.
PORTABLE = product(((16, 32), (2, 8)), ((2048,), (8192,), (32768,), (8192,) * 4, (1024,) * 8))
# Those of which the time of cuDNN's engine on an H100 is public: pull request 1017 of its frontend.
PUBLISHED = [(H, H, (tokens,) * B, 128) for tokens, H, B in (
    (2048, 12, 1), (2048, 16, 1), (4096, 8, 1), (4096, 12, 1), (2048, 12, 4), (8192, 16, 1),
    (1024, 4, 1), (3072, 10, 1), (8192, 24, 1), (2048, 16, 8))]
CHANNELS = product(((32, 32),), ((8192,), (8192,) * 4, (2048,), (1024,) * 8))
CHANNELS += product(((2, 8),), ((32768,),))
TRAINING = [(16, 32, (8192,), 128), (16, 32, (8192,) * 4, 128), (16, 32, (32768,), 128),
            (2, 8, (8192,), 128), (2, 8, (32768,), 128), (8, 24, (8192,), 128),
            (32, 32, (2048,) * 4, 128), (16, 64, (8192,), 128), (16, 48, (16384,), 128),
            (16, 32, RAGGED, 128)]
# By rule and op: named sets of rows (heads, lengths, dim); "table" is taken unless one is named.
ROWS = {
    ("gdn", "prefill"): {"table": product(PREFILL_HEADS, PREFILL_LENGTHS), "gates": GATES,
                         "others": OTHERS, "claims": GATES + OTHERS, "portable": PORTABLE},
    ("gdn", "gradients"): {"table": TRAINING, "portable": PORTABLE},
    ("kda", "prefill"): {"table": CHANNELS, "published": PUBLISHED, "claims": CHANNELS + PUBLISHED},
    ("kda", "gradients"): {"table": CHANNELS},
}
SETS = tuple(dict.fromkeys(name for sets in ROWS.values() for name in sets))
INSIDE = ("neither", "norm", "raw")
# tokens, state, layout, pool, each
DECODE_FORMS = (
    (1, "f32", "k_last", False, False),
    (1, "bf16", "k_last", False, False),
    (1, "f32", "k_first", False, False),
    (4, "f32", "k_last", False, False),
    (4, "bf16", "k_last", False, False),
    (4, "f32", "k_last", False, True),
    (1, "f32", "k_last", True, False),
    (1, "bf16", "k_last", True, False),
    (2, "f32", "k_last", False, False),
    (8, "f32", "k_last", False, False),
    (2, "bf16", "k_last", False, False),
    (8, "bf16", "k_last", False, False),
    (4, "f32", "k_first", False, False),
    (4, "bf16", "k_last", False, True),
)
# By rule: forms, heads, batches.
DECODE = {
    "gdn": (DECODE_FORMS, ((16, 32), (16, 64)), (1, 8, 32, 128, 256, 512)),
    "kda": (DECODE_FORMS[:2], ((32, 32),), (1, 8, 32, 128)),
}
OPS = ("prefill", "decode", "gradients")
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
GRADIENTS = ("dq", "dk", "dv", "dg", "dbeta", "dstate")
# What a call of an op gives. training: the forward call and then the gradients.
RESULTS = {"prefill": ("out", "state"), "decode": ("out", "state"), "gradients": GRADIENTS,
           "training": ("out", "state", *GRADIENTS)}


@dataclasses.dataclass(frozen=True)
class Case:
    """lengths: tokens of each sequence. pool: states in slots; each: every token's state kept.
    gates: a kind or a pattern. inside, of prefill: the norms of q and k, or raw gates too, are the
    call's part. rule: gdn, with a gate a head, or kda, with one a key channel."""
    op: str
    Hq: int
    Hv: int
    lengths: tuple
    state: str = "f32"
    layout: str = "k_last"
    pool: bool = False
    each: bool = False
    dim: int = 128
    gates: str = "recipe"
    inside: str = "neither"
    rule: str = "gdn"

    @property
    def B(self):
        return len(self.lengths)

    @property
    def T(self):
        return max(self.lengths)

    @property
    def channels(self):
        """Sizes of a head's gate."""
        return (self.dim,) if self.rule == "kda" else ()

    def fields(self):
        """As a JSON line says it."""
        even = len(set(self.lengths)) == 1
        seqs = f"{self.T}x{self.B}" if even else "+".join(map(str, self.lengths))
        line = dict(op=self.op, heads=f"{self.Hq}/{self.Hv}", dim=self.dim, seqs=seqs, B=self.B,
                    T=self.T, dtype="bf16", state=self.state, layout=self.layout,
                    gates=self.gates)
        if self.rule != "gdn":
            line["rule"] = self.rule
        if self.inside != "neither":
            line["inside"] = self.inside
        return line | {name: True for name in ("pool", "each") if getattr(self, name)}

    def state_bytes(self):
        """Of all states read and written."""
        one = self.Hv * self.dim**2 * DTYPES[self.state].itemsize
        return one * self.B * (1 + self.T if self.each else 2)


def decode_cases(options):
    forms, heads, batches = DECODE[options.rule]
    for T, state, layout, pool, each in forms:
        for h in options.heads or heads:
            for B in options.batches or batches:
                if not each or B <= 128:
                    yield from (Case("decode", *h, (T,) * B, state, layout, pool, each, dim,
                                     rule=options.rule) for dim in options.dims)


def cases(op, options):
    """Rows of an op: a set of them, or heads, lengths and dims that were given instead."""
    if op == "decode":
        yield from decode_cases(options)
        return
    sets = ROWS[options.rule, op]
    if options.rows and options.rows not in sets:
        raise ValueError(f"--rows {options.rows}: {op} of {options.rule} has {', '.join(sets)}")
    rows = sets[options.rows or "table"]
    if options.heads or options.lengths or options.dims != [128]:
        heads = options.heads or tuple(dict.fromkeys(row[:2] for row in rows))
        lengths = options.lengths or tuple(dict.fromkeys(row[2] for row in rows))
        rows = product(heads, lengths, options.dims)
    yield from (Case(op, *h, tokens, dim=dim, rule=options.rule) for *h, tokens, dim in rows)
