#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# deltanet-tpu 0.3.0 with jax 0.10.2 on a CPU (it wants Python 3.12; the reference runs on 3.11).
# reference_gdn of packed sequences with cu_seqlens and an initial state.
# Guess: one state per sequence, as in FLA: [N][H][K][V].
# Outcome: missed. There is one state per row of the batch. The first sequence starts from it, all
#   others from zero, and the final state is that of the last sequence alone.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/python" -m pip install -q jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
"$dir/venv/bin/python" -m pip install -q --no-deps --ignore-requires-python deltanet-tpu==0.3.0
cat > "$dir/check.py" <<'PY'
import sys

import jax.numpy as jnp
import numpy as np
from deltanet_tpu.reference import reference_gdn

r = np.random.default_rng(0)
T, H, D = 24, 2, 16
draw = lambda *s: jnp.array(r.standard_normal(s), jnp.float32)
q, k, v = draw(1, T, H, D), draw(1, T, H, D) / 4, draw(1, T, H, D)
g, beta = -jnp.abs(draw(1, T, H)), jnp.full((1, T, H), 0.5)
start = draw(1, H, D, D)


def run(a, b, state):
    return reference_gdn(*(x[:, a:b] for x in (q, k, v, g, beta)), initial_state=state,
                         output_final_state=True)


out, final = reference_gdn(q, k, v, g, beta, cu_seqlens=jnp.array([0, 10, T]),
                           initial_state=start, output_final_state=True)
first, second = run(0, 10, start), run(10, T, None)
near = lambda a, b: bool(np.allclose(a, b, atol=1e-5))
got = [final.shape, near(out[:, :10], first[0]), near(out[:, 10:], second[0]),
       near(final, second[1]), near(out[:, 10:], run(10, T, start)[0])]
print("shape of the final state; first from the state, second from zero, final of the last,",
      "second from the state:", got)
sys.exit(got != [(1, H, D, D), True, True, True, False])
PY
"$dir/venv/bin/python" "$dir/check.py"
