#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# flash-linear-attention 0.6.0 with transformers 5.24.0 (it asks for 5.6.2 to 6) and torch on a
#   CPU: crop() of its Cache, which is a subclass of transformers' Cache, with keys and values
#   of 8 tokens.
# Guess: crop(-3) leaves 5 tokens and crop(0) then leaves 5, as transformers' own cache does.
# Outcome: half right. To transformers the number says how many tokens to remove, to FLA how
#   many to keep if it is not negative. So crop(0) deletes all keys and values. Speculative
#   generation of transformers calls crop(0) after each draft that was accepted whole.
. "$(dirname "$0")/python.bash"
install_fla --target "$dir/packages" flash-linear-attention==0.6.0
"$python" -m pip install -q transformers==5.24.0
cat > "$dir/check.py" <<'PY'
import sys
import warnings

import torch

warnings.simplefilter("ignore")
from fla.models.utils import Cache  # noqa: E402
from transformers import DynamicCache  # noqa: E402

x = torch.randn(1, 8, 2, 4)
left = {}
for name, cache in (("transformers", DynamicCache()), ("FLA", Cache())):
    if name == "FLA":
        cache.update(attn_state=(x, x), layer_idx=0, offset=8)
    else:
        cache.update(x.transpose(1, 2), x.transpose(1, 2), 0)
    left[name] = [cache.get_seq_length()]
    for n in (-3, 0):
        cache.crop(n)
        left[name].append(cache.get_seq_length())
    print(name, "tokens before, after crop(-3), after crop(0):", left[name])
sys.exit(left != {"transformers": [8, 5, 5], "FLA": [8, 5, 0]})
PY
PYTHONPATH=$dir/packages "$python" "$dir/check.py"
