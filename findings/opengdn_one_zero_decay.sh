#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# opengdn 0.1.0 (torch 2.15.0, CPU): gated_delta_chunkwise in bfloat16, one decay of 0 in one head.
# Guess: the other head keeps its results.
# Outcome: missed. One zero sends the whole call through the token-by-token form, whose state is
#   bfloat16: the error of the other head grows from 3e-3 to some 5e-2 of its largest output.
. "$(dirname "$0")/python.bash"
"$python" -m pip install -q torch==2.15.0
"$python" -m pip install -q opengdn==0.1.0
cat > "$dir/check.py" <<'PY'
import sys

import torch
from opengdn import gated_delta
from opengdn.chunkwise import gated_delta_chunkwise

torch.manual_seed(0)
unit = lambda x: x / x.norm(dim=-1, keepdim=True)
T = 512
x = [unit(torch.randn(1, T, 2, 32)), unit(torch.randn(1, T, 2, 32)), torch.randn(1, T, 2, 16),
     torch.full((1, T, 2), 0.995), torch.rand(1, T, 2)]
x = [t.bfloat16() for t in x]


def error_of_head_1():
    right = gated_delta(*(t.double() for t in x))[0][:, :, 1]
    out = gated_delta_chunkwise(*x)[0][:, :, 1]
    return float((out - right).abs().max() / right.abs().max())


before = error_of_head_1()
x[3][:, 0, 0] = 0
after = error_of_head_1()
print(f"error of head 1: {before:.1e}, with a decay of 0 in head 0: {after:.1e}")
sys.exit(not (before < 1e-2 and after > 2e-2))
PY
"$python" "$dir/check.py"
