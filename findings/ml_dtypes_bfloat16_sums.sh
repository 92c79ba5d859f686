#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# ml_dtypes 0.6.0 with numpy 2.4.6: sums and sorting of bfloat16.
# Guess: sums run in float32, as they do pairwise for float16; a NaN is sorted to the end.
# Outcome: missed. Every addition is rounded: 4096 ones sum to 256, their mean is 0.0625. dot and
#   matmul are right. np.sort leaves [3, NaN, 1] as it is.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/python" -m pip install -q ml_dtypes==0.6.0 numpy==2.4.6
cat > "$dir/check.py" <<'PY'
import sys

import ml_dtypes
import numpy as np

one, half = np.ones(4096, ml_dtypes.bfloat16), np.ones(4096, np.float16)
mixed = np.array([3, np.nan, 1], np.float32)
got = dict(sum=float(one.sum()), mean=float(one.mean()), dot=float(np.dot(one, one)),
           float16=float(half.sum()))
order = np.sort(mixed.astype(ml_dtypes.bfloat16)).astype(np.float32)
print(got, "sorted", order, "in float32", np.sort(mixed))
right = got == dict(sum=256, mean=0.0625, dot=4096, float16=4096)
sys.exit(not (right and order[0] == 3 and order[2] == 1 and np.sort(mixed)[0] == 1))
PY
"$dir/venv/bin/python" "$dir/check.py"
