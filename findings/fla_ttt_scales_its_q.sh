#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# fla-core 0.6.0 with torch on a CPU: chunk_ttt_linear_ref called twice with the same tensors, for
#   32 and 31 tokens, in float32 and bfloat16.
# Guess: both calls return the same, and q, k and v stay as they were.
# Outcome: missed for whole chunks of float32: q is multiplied by the scale in place, so a second
#   call reads q / 16 instead of q / 4 (of 16 channels) and its outputs are off by 0.6. One token
#   less, or bfloat16, makes a copy on the way, and q stays.
. "$(dirname "$0")/python.bash"
install_fla
cat > "$dir/check.py" <<'PY'
import sys
import warnings

import torch

warnings.simplefilter("ignore")
from fla.ops.ttt.naive import chunk_ttt_linear_ref  # noqa: E402

H, D = 2, 16
found = {}
for T, dtype in ((32, torch.float32), (31, torch.float32), (32, torch.bfloat16)):
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, T, H, D).to(dtype) for _ in range(3))
    w, b, eta = torch.ones(H, D), torch.zeros(H, D), torch.full((1, T, H, 1), 0.1)
    state = torch.randn(1, H, D, D) / 4
    before = q.clone()
    call = lambda: chunk_ttt_linear_ref(q, k, v, w, b, eta, initial_state=state)[0]
    first = call()
    ratio = float((q / before).float().mean())
    second = call()
    off = float((second - first).abs().max() / first.abs().max())
    found[T, dtype] = ratio, off
    print(f"{T} tokens, {dtype}: q times {ratio:g}, outputs of the second call off by {off:.2g}")
kept = [x for key, x in found.items() if key != (32, torch.float32)]
ratio, off = found[32, torch.float32]
sys.exit(not (kept == [(1, 0)] * 2 and ratio == 0.25 and off > 0.1))
PY
"$python" "$dir/check.py"
