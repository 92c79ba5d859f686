#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# safetensors 0.8.0 with numpy: save_file of an array that is a transposed or a strided view.
# Guess: it copies the view, or raises as the torch functions do.
# Outcome: missed. It writes the memory in its own order under the shape of the view, silently. So
#   states that were transposed from [K][V] to [V][K] by .T are saved untransposed.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/python" -m pip install -q safetensors==0.8.0 numpy==2.4.6
cat > "$dir/check.py" <<'PY'
import os
import sys

import numpy as np
from safetensors.numpy import load_file, save_file

name = os.path.join(sys.path[0], "a.safetensors")


def kept(x):
    save_file({"x": x}, name)
    return bool(np.array_equal(load_file(name)["x"], x))


x = np.arange(12, dtype=np.float32).reshape(3, 4)
got = dict(plain=kept(x), transposed=kept(x.T), strided=kept(x.ravel()[::2]),
           copied=kept(np.ascontiguousarray(x.T)))
print("kept:", got)
sys.exit(got != dict(plain=True, transposed=False, strided=False, copied=True))
PY
"$dir/venv/bin/python" "$dir/check.py"
