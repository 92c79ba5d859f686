#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# opengdn 0.1.0 (torch 2.15.0, CPU): gated_delta_chunkwise in float32 with a constant decay alpha.
# Guess: right to 1e-5 for every alpha.
# Outcome: missed. It divides running products of alpha. At 0.2 the product of a chunk of 64 tokens
#   is a denormal, and outputs and the state are off by some 5e-2. At 0.19 the product is 0, the
#   function takes its slow path, and all is right again; so is 0.26.
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
x = [unit(torch.randn(1, 128, 2, 32)), unit(torch.randn(1, 128, 2, 32)), torch.randn(1, 128, 2, 16)]
beta, errors = torch.rand(1, 128, 2), {}
for alpha in (0.26, 0.2, 0.19):
    decay = torch.full((1, 128, 2), alpha)
    right = gated_delta(*(t.double() for t in (*x, decay, beta)))[1]
    state = gated_delta_chunkwise(*x, decay, beta)[1]
    errors[alpha] = float((state - right).abs().max() / right.abs().max())
print("error of the state by alpha:", errors)
sys.exit(not (errors[0.2] > 1e-2 and max(errors[0.26], errors[0.19]) < 1e-5))
PY
"$python" "$dir/check.py"
