#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# gdn2-pallas 0.1.1 (module atomic_ops) with jax 0.10.2 on a CPU: gdn2_forward with large values.
# Guess: outputs and final state follow the token-by-token reference of the same package to 1e-5.
# Outcome: missed. Outputs do. The final state is cut to 10000 in magnitude, silently, so a sequence
#   that goes on from it in a second call is wrong.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/python" -m pip install -q jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 gdn2-pallas==0.1.1
cat > "$dir/check.py" <<'PY'
import sys

import jax.numpy as jnp
import numpy as np
from atomic_ops import gdn2_forward, gdn2_token_serial_reference

r = np.random.default_rng(0)
T, H, D = 256, 2, 32
draw = lambda *s: jnp.array(r.standard_normal(s), jnp.float32)
q, k, v = draw(1, T, H, D), draw(1, T, H, D), draw(1, T, H, D) * 1e5
k = k / jnp.linalg.norm(k, axis=-1, keepdims=True)
w, b = jnp.full((1, T, H, D), 0.5), jnp.full((1, T, H, D), 0.5)
g = jnp.full((1, T, H, D), -0.1)
out, state = gdn2_forward(q, k, v, w, b, g, D**-0.5)
right, kept = gdn2_token_serial_reference(q, k, v, g, b, w, D**-0.5)
error = float(jnp.abs(out - right).max() / jnp.abs(right).max())
print(f"outputs differ by {error:.1e}; largest of the state {float(jnp.abs(state).max()):g}, "
      f"of the reference's {float(jnp.abs(kept).max()):g}")
sys.exit(not (error < 1e-4 and float(jnp.abs(state).max()) == 1e4 and float(kept.max()) > 2e4))
PY
"$dir/venv/bin/python" "$dir/check.py"
