#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# fla-core 0.6.0 with torch on a CPU: chunk_titans_linear_ref and chunk_ttt_linear_ref, one
#   token.
# Guess: both move the state along the gradient of the same loss, the squared error of a layer
#   norm of k @ state, as autograd has it in float64: TTT by once, Titans by twice its rate.
# Outcome: half right. TTT does, to 1e-6. A misplaced bracket of Titans leaves the first term of
#   the gradient of the layer norm undivided: the step is some 65 times too long here and points
#   elsewhere, at a cosine of 0.74.
. "$(dirname "$0")/python.bash"
install_fla
cat > "$dir/check.py" <<'PY'
import sys
import warnings

import torch
import torch.nn.functional as F

warnings.simplefilter("ignore")
from fla.ops.titans.naive import chunk_titans_linear_ref  # noqa: E402
from fla.ops.ttt.naive import chunk_ttt_linear_ref  # noqa: E402

torch.manual_seed(0)
D = 16
q, k, v = (torch.randn(1, 1, 1, D) for _ in range(3))
w, b, state = torch.rand(1, D) + 0.5, torch.randn(1, D) / 10, torch.randn(1, 1, D, D)
one, zero = torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1, 1)

S = state[0, 0].double().requires_grad_()
k64, v64, w64, b64 = k[0, 0].double(), v[0, 0].double(), w[0].double(), b[0].double()
loss = (F.layer_norm(k64 @ S, (D,), w64, b64, 1e-6) - (v64 - k64)).square().sum() / 2
(gradient,) = torch.autograd.grad(loss, S)


def compare(step):
    step = step[0, 0].double().flatten()
    cosine = float(F.cosine_similarity(step, gradient.flatten(), dim=0))
    return float(step.norm() / gradient.norm()), cosine


ttt = chunk_ttt_linear_ref(q.clone(), k, v, w, b, one.clone(), mini_batch_size=1,
                           initial_state=state.clone(), output_final_state=True)[1]
titans = compare((state - chunk_titans_linear_ref(
    q, k, v, w, b, one, zero, zero, chunk_size=1, initial_state=state.clone(),
    output_final_state=True)[1]) / 2)
ttt = compare(state - ttt)
print("length over the gradient's and cosine: TTT %.6f %.6f, Titans %.1f %.2f" % (*ttt, *titans))
sys.exit(not (abs(ttt[0] - 1) < 1e-5 and abs(ttt[1] - 1) < 1e-6
              and titans[0] > 50 and titans[1] < 0.9))
PY
"$python" "$dir/check.py"
