#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# mlx 0.32.4 on a CPU: mx.load of a GGUF file with BF16 tensors, written by gguf 0.19.0.
# Guess: they arrive as bfloat16.
# Outcome: missed. They arrive as float16: 70000 becomes infinity and 1e-9 becomes 0, silently.
#   Files of safetensors keep bfloat16, and mx.save_gguf refuses it.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/python" -m pip install -q mlx==0.32.4 mlx-cpu==0.32.4 gguf==0.19.0 numpy==2.4.6
cat > "$dir/check.py" <<'PY'
import sys
import tempfile

import gguf
import mlx.core as mx
import numpy as np

bf16 = gguf.GGMLQuantizationType.BF16
name = tempfile.NamedTemporaryFile(suffix=".gguf", dir=sys.path[0]).name
w = gguf.GGUFWriter(name, "qwen3next")
for n, value in (("big", 70000), ("small", 1e-9), ("one", 1)):
    w.add_tensor(n, gguf.quants.quantize(np.full((2, 64), value, np.float32), bf16),
                 raw_dtype=bf16)
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()
read = mx.load(name)
got = {n: float(read[n][0, 0].astype(mx.float32)) for n in ("big", "small", "one")}
print(read["one"].dtype, got)
sys.exit(not (read["one"].dtype == mx.float16 and got == dict(big=float("inf"), small=0, one=1)))
PY
"$dir/venv/bin/python" "$dir/check.py"
