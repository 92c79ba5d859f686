#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# opengdn 0.1.0 (torch 2.15.0, CPU): where GatedDeltaMixer normalises q and k.
# Guess: per head, as every other implementation of the layer does.
# Outcome: missed. It normalises before it splits into heads: all heads of a token together have
#   length 1, a single head of four about 0.5. So weights do not move to or from other layers.
. "$(dirname "$0")/python.bash"
"$python" -m pip install -q torch==2.15.0
"$python" -m pip install -q opengdn==0.1.0
cat > "$dir/check.py" <<'PY'
import sys

import opengdn.mixer as mixer
import torch

torch.manual_seed(0)
seen, rule = {}, mixer.gated_delta


def watched(q, k, *rest):
    seen["k"] = k.detach()
    return rule(q, k, *rest)


mixer.gated_delta = watched
mixer.GatedDeltaMixer(32, 4, backend="reference")(torch.randn(1, 6, 32))
k = seen["k"][0, 3]
print("lengths of four heads", k.norm(dim=-1).tolist(), "together", float(k.norm()))
sys.exit(not (abs(float(k.norm()) - 1) < 1e-5 and float(k.norm(dim=-1).max()) < 0.95))
PY
"$python" "$dir/check.py"
