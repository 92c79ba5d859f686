#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# mlx 0.32.4 on a CPU: exp, sigmoid and softplus below -87.3.
# Guess: as in numpy: the denormals 5.5e-42 at -95, since its casts keep denormals.
# Outcome: missed. exp and softplus are 0 from -87.4 down. sigmoid(-88) is the denormal 6e-39, and
#   at -95 it is 0 too. A cast of 1e-40 to bfloat16 keeps it.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/python" -m pip install -q mlx==0.32.4 mlx-cpu==0.32.4
cat > "$dir/check.py" <<'PY'
import sys

import mlx.core as mx
import mlx.nn as nn

at = lambda f, x: float(f(mx.array(x)))
softplus, sigmoid = nn.softplus, mx.sigmoid
got = {x: [at(f, x) for f in (mx.exp, sigmoid, softplus)] for x in (-87.0, -88.0, -95.0)}
cast = float(mx.array(1e-40).astype(mx.bfloat16).astype(mx.float32))
print(got, "1e-40 in bfloat16:", cast)
zero = not any(got[-95.0]) and got[-88.0][0] == got[-88.0][2] == 0 < got[-88.0][1]
sys.exit(not (zero and all(v > 1.6e-38 for v in got[-87.0]) and cast > 0))
PY
"$dir/venv/bin/python" "$dir/check.py"
