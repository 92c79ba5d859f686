#!/usr/bin/env bash
# Needs a GPU. About 15 s. SPDX-License-Identifier: Apache-2.0
#
# torch 2.11.0, cumsum of float32 along the last dimension on the GPU: the sums of gates.
# Guess: the bits of a row do not depend on how many rows there are, or on the layout.
# Outcome: missed. The first of 64 rows of 4096 has other bits than the same row alone, and a
#   transposed copy gives a third set. The same call twice gives the same bits. On the CPU all three
#   agree. So a chunked form that sums gates by cumsum depends on the batch.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv --without-pip "$dir/venv" # torch and pip may be those of the python around it
python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
    > "$(echo "$dir"/venv/lib/python3*/site-packages)/outer.pth"
"$dir/venv/bin/python" -m pip install -q torch==2.11.0
cat > "$dir/check.py" <<'PY'
import sys

import torch


def compare(device):
    x = -torch.rand(64, 4096, generator=torch.Generator().manual_seed(0)).to(device)
    all_ = x.cumsum(1)
    alone, turned = x[:1].cumsum(1), x.t().contiguous().cumsum(0).t()
    return [torch.equal(all_[:1], alone), torch.equal(all_, turned), torch.equal(all_, x.cumsum(1))]


gpu, cpu = compare("cuda"), compare("cpu")
print("alone, transposed, twice: GPU", gpu, "CPU", cpu)
sys.exit((gpu, cpu) != ([False, False, True], [True, True, True]))
PY
"$dir/venv/bin/python" "$dir/check.py"
