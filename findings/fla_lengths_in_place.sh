#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# fla-core 0.6.0 with torch on a CPU: prepare_chunk_indices(), prepare_lens() and
#   prepare_cu_seqlens_from_mask() after their argument was written in place.
# Guess: they see the new contents: the cache in front of them asks for the version of the
#   tensor.
# Outcome: missed. It asks only whether the object is the same one. With a buffer of bounds that
#   is filled anew for each batch, the plan of the first batch is used: here for two chunks
#   instead of three, so the last tokens are in no chunk. A result that a caller changes stays
#   changed as well. The text of the decorator speaks of identity, that of the functions does
#   not.
. "$(dirname "$0")/python.bash"
install_fla --target "$dir/packages"
cat > "$dir/check.py" <<'PY'
import sys
import warnings

import torch

warnings.simplefilter("ignore")
from fla.ops.utils import prepare_chunk_indices, prepare_cu_seqlens_from_mask  # noqa: E402
from fla.ops.utils import prepare_lens  # noqa: E402

bounds = torch.tensor([0, 64, 128])
plan = lambda x: prepare_chunk_indices(x, 64).tolist()
first = plan(bounds)
bounds.copy_(torch.tensor([0, 10, 128]))  # the next batch, in the same buffer
got, right = plan(bounds), plan(bounds.clone())
print(f"first plan {first}, plan of the next batch {got}, of a copy of it {right}")

mask = torch.ones(2, 4, dtype=torch.int64)
prepare_cu_seqlens_from_mask(mask)
mask[0, :3] = 0
masked = [prepare_cu_seqlens_from_mask(x).tolist() for x in (mask, mask.clone())]
print(f"bounds of a mask after three pads were written {masked[0]}, of a copy of it {masked[1]}")

lens = prepare_lens(right_bounds := torch.tensor([0, 3, 5]))
lens += 1
again = prepare_lens(right_bounds).tolist()
print("lengths of [0, 3, 5] after a caller added 1 to the result:", again)
sys.exit(not (first == got == [[0, 0], [1, 0]] and right == [[0, 0], [1, 0], [1, 1]]
              and masked == [[0, 4, 8], [0, 1, 5]] and again == [4, 3]))
PY
PYTHONPATH=$dir/packages "$python" "$dir/check.py"
