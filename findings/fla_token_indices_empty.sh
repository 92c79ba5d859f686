#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# fla-core 0.6.0 with torch on a CPU: prepare_token_indices() of packed sequences, one of them
# without tokens.
# Guess: the first column names the sequence of each token, as prepare_chunk_indices() names
#   that of each chunk.
# Outcome: missed. Numbers of chunks count the empty sequence, numbers of tokens do not. Kernels of
#   NSA read cu_seqlens by a token's number, so they take the bounds of another sequence there.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv --system-site-packages "$dir/venv"
python=$dir/venv/bin/python
"$python" -c 'import torch' 2>/dev/null || "$python" -m pip install -q torch==2.11.0
"$python" -c 'import triton' 2>/dev/null || "$python" -m pip install -q triton==3.6.0
"$python" -m pip install -q --no-deps fla-core==0.6.0
"$python" -m pip install -q einops==0.8.2 packaging
cat > "$dir/check.py" <<'PY'
import sys
import warnings

import torch

warnings.simplefilter("ignore")
from fla.ops.utils import prepare_chunk_indices, prepare_token_indices  # noqa: E402

cu = torch.tensor([0, 0, 5])  # the second sequence has all five tokens
tokens = prepare_token_indices(cu)[:, 0].tolist()
chunks = prepare_chunk_indices(cu, 64)[:, 0].tolist()
print(f"sequence of each token {tokens}, of each chunk {chunks}")
first, end = cu[tokens[0]].item(), cu[tokens[0] + 1].item()
print(f"bounds of the first token's sequence by these numbers: {first} to {end}")
sys.exit(not (tokens == [0] * 5 and chunks == [1] and (first, end) == (0, 0)))
PY
"$python" "$dir/check.py"
