#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# transformers 5.24.0 with torch 2.15.0 on a CPU: the forget gates of Kimi Linear, GLM-5 Next
#   (with no bound) and Bailing, which are all -exp(A_log) * softplus(x), for x from -20 to 100.
# Guess: all three follow softplus in float64 to float32's rounding, and so do their gradients.
# Outcome: Bailing's does. Kimi's and GLM's take log(1 + exp(x)): off by 17 % at -15, 0 from -17
#   down. From 89 up their gate is right and its gradient is NaN, though a torch.where guards
#   the overflow. One such channel makes every gradient of the projection below it NaN.
. "$(dirname "$0")/python.bash"
"$python" -m pip install -q torch==2.15.0 transformers==5.24.0 numpy==2.4.6
cat > "$dir/check.py" <<'PY'
import math
import sys
from types import SimpleNamespace

import torch
from transformers.models.bailing_hybrid.modeling_bailing_hybrid import BailingHybridForgetGate
from transformers.models.glm5_next.modeling_glm5_next import Glm5NextTextForgetGate
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearForgetGate

torch.manual_seed(0)


def gate(kind, heads=1, dim=1):
    g = kind(SimpleNamespace(hidden_size=dim, linear_head_dim=dim, linear_num_heads=heads,
                             linear_lower_bound=None, kda_safe_gate=False, kda_lower_bound=None))
    torch.nn.init.zeros_(g.A_log)
    torch.nn.init.zeros_(g.dt_bias)
    return g


def value_and_gradient(kind, x):
    g = gate(kind)
    torch.nn.init.constant_(g.dt_bias, x)
    y = g(torch.zeros(1, 1, 1))
    y.sum().backward()
    return y.item(), g.dt_bias.grad.item()


errors, nans = {}, {}
for kind in (BailingHybridForgetGate, Glm5NextTextForgetGate, KimiLinearForgetGate):
    name = kind.__name__[:4]
    for x in (-20.0, -17.0, -15.0, -10.0, 0.0, 30.0, 88.0, 89.0, 100.0):
        value, gradient = value_and_gradient(kind, x)
        right = -(max(x, 0) + math.log1p(math.exp(-abs(x))))
        errors[name, x] = abs(value / right - 1)
        nans[name, x] = math.isnan(gradient)
    print(name, "off by", {x: f"{e:.0e}" for (n, x), e in errors.items() if n == name},
          "gradient NaN at", [x for (n, x), e in nans.items() if n == name and e])

g = gate(KimiLinearForgetGate, heads=2, dim=8)
torch.nn.init.constant_(g.dt_bias[3:4], 100)  # one channel of 16
g(torch.randn(1, 5, 8)).sum().backward()
lost = float(g.f_a_proj.weight.grad.isnan().float().mean())
print(f"one strong channel of 16: {lost:.0%} of the gradients of f_a_proj are NaN")
ok = all(e < 1e-6 for (n, x), e in errors.items() if n == "Bail" or x >= 0) and lost == 1
ok &= not any(e for (n, x), e in nans.items() if n == "Bail" or x < 89)
for n in ("Glm5", "Kimi"):
    ok &= errors[n, -17.0] == errors[n, -20.0] == 1 and 0.1 < errors[n, -15.0] < 0.3
    ok &= nans[n, 89.0] and nans[n, 100.0]
sys.exit(not ok)
PY
"$python" "$dir/check.py"
