#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# mlx-lm 0.32.2: sanitize() of a Qwen3-Next checkpoint that has no experts (every layer dense).
# Guess: weights of the norms gain 1 and the weight of the convolution changes its layout, as in
#   checkpoints with experts.
# Outcome: missed. It returns at once where it finds no experts: norms stay as in the checkpoint
#   (about 0 instead of about 1) and the convolution keeps torch's layout.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/python" -m pip install -q mlx==0.32.4 mlx-cpu==0.32.4 mlx-lm==0.32.2 \
    transformers==5.24.0
cat > "$dir/check.py" <<'PY'
import sys
from types import SimpleNamespace

import mlx.core as mx
from mlx_lm.models import qwen3_next

layer = "model.layers.0."
common = {"model.norm.weight": mx.zeros(4),
          layer + "linear_attn.conv1d.weight": mx.zeros((8, 1, 4))}
experts = {f"{layer}mlp.experts.{i}.{n}.weight": mx.zeros((2, 2))
           for i in range(2) for n in ("up_proj", "down_proj", "gate_proj")}
model = SimpleNamespace(args=SimpleNamespace(tie_word_embeddings=False, num_experts=2))


def converted(weights):
    w = qwen3_next.Model.sanitize(model, dict(weights))
    return (float(w["model.norm.weight"][0]), w[layer + "linear_attn.conv1d.weight"].shape)


dense, moe = converted(common), converted(common | experts)
print("norm and convolution: dense", dense, "with experts", moe)
sys.exit((dense, moe) != ((0.0, (8, 1, 4)), (1.0, (8, 4, 1))))
PY
"$dir/venv/bin/python" "$dir/check.py"
