#!/usr/bin/env bash
# Needs a GPU: Hopper. About 20 s. SPDX-License-Identifier: Apache-2.0
#
# triton 3.6.0, functions of float32 denormals on the GPU.
# Guess: exp and sigmoid give 0 where the result is a denormal; sqrt(1e-40) is 1e-20 and rsqrt is
#   1e20.
# Outcome: missed, both ways round. tl.exp(-95) is 5.5e-42, the right denormal, and so is a log of
#   one. tl.sigmoid(-95) is 0. tl.sqrt(1e-40) is 0 and rsqrt(1e-40) is infinity. So one kernel
#   keeps denormals in its decay and loses them in its norm.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv --without-pip "$dir/venv" # torch and pip may be those of the python around it
python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
    > "$(echo "$dir"/venv/lib/python3*/site-packages)/outer.pth"
"$dir/venv/bin/python" -m pip install -q torch==2.11.0 triton==3.6.0
cat > "$dir/check.py" <<'PY'
import math
import sys

import torch
import triton
import triton.language as tl


@triton.jit
def some(x, y):
    i = tl.arange(0, 2)
    a, b = tl.load(x + i), tl.load(x + 2 + i)
    tl.store(y + i, tl.exp(a))
    tl.store(y + 2 + i, tl.sigmoid(a))
    tl.store(y + 4 + i, tl.sqrt(b))
    tl.store(y + 6 + i, tl.rsqrt(b))
    tl.store(y + 8 + i, tl.log(b))


x = torch.tensor([-95.0, -80.0, 1e-40, 1e-30], device="cuda")
y = torch.empty(10, device="cuda")
some[(1,)](x, y)
y = y.tolist()
print("exp", y[:2], "sigmoid", y[2:4], "sqrt", y[4:6], "rsqrt", y[6:8], "log", y[8:])
right = (0 < y[0] < 1e-41, y[2] == 0 and y[3] > 0, y[4] == 0 and y[5] > 0, y[6] == math.inf,
         abs(y[8] + 92.1) < 0.1)
sys.exit(not all(right))
PY
"$dir/venv/bin/python" "$dir/check.py"
