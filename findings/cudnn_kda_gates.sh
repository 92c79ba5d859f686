#!/usr/bin/env bash
# Needs a GPU: Hopper, CUDA 13 with its headers. About 40 s. SPDX-License-Identifier: Apache-2.0
#
# nvidia-cudnn-frontend 1.32.0, kimi_delta_attention with the plan kda_hopper_cuda.
# Guess: gates stronger than about -1.4 a token lose small products between tokens, and all results
#   stay finite and right to 1e-2. An empty sequence keeps its state.
# Outcome: missed. Gates of -5 throughout are right to 1e-2, as is a single gate of -20. Gates of
#   -16 throughout, a single gate of -100, or -20 in one channel of 128 make every output of the
#   sequence NaN, tokens before the gate too, and the final state. Nothing is raised or logged.
# The gates are logarithms in the range that the function documents: exp(g) lies in (0, 1].
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv --without-pip "$dir/venv" # torch and pip may be those of the python around it
python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
    > "$(echo "$dir"/venv/lib/python3*/site-packages)/outer.pth"
"$dir/venv/bin/python" -m pip install -q torch==2.11.0 triton==3.6.0
"$dir/venv/bin/python" -m pip install -q --no-deps nvidia-cudnn-frontend==1.32.0 \
    cuda-bindings==13.5.0 cuda-pathfinder==1.9.1
cat > "$dir/check.py" <<'PY'
import sys

import torch
from cudnn.linear_attention.ops import kimi_delta_attention

T, H, D = 100, 4, 128
r = torch.Generator().manual_seed(0)
draw = lambda *s: torch.randn(*s, generator=r)
unit = lambda x: (x / x.norm(dim=-1, keepdim=True)).bfloat16().cuda()
q, k, v = unit(draw(T, H, D)), unit(draw(T, H, D)), draw(T, H, D).bfloat16().cuda()
beta = draw(T, H).sigmoid().cuda()
ends = torch.tensor([0, T], dtype=torch.int32, device="cuda")


def finite(gates):
    g = torch.full((T, H, D), -0.05)
    gates(g)
    out, state = kimi_delta_attention(
        q, k, v, g.cuda(), beta, ends, initial_state=torch.zeros(1, H, D, D, device="cuda"),
        output_final_state=True, plan_name="kda_hopper_cuda")
    return float(out.isfinite().float().mean()), float(state.isfinite().float().mean())


rows = [("all -5", lambda g: g.fill_(-5), 1), ("one of -20", lambda g: g[5].fill_(-20), 1),
        ("all -16", lambda g: g.fill_(-16), 0), ("one of -100", lambda g: g[5].fill_(-100), 0),
        ("one channel of -20", lambda g: g[:, :, 7].fill_(-20), 0)]
bad = 0
for name, gates, share in rows:
    got = finite(gates)
    print(f"{name}: share of finite outputs {got[0]:g}, of the state {got[1]:g}")
    bad |= got != (share, share)
sys.exit(bad)
PY
"$dir/venv/bin/python" "$dir/check.py"
