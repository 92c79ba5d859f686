#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# transformers 5.24.0 with torch 2.15.0 on a CPU: float32 checkpoints of five families loaded
#   with dtype=torch.bfloat16: the parts of the gate -exp(A_log) * softplus(a + dt_bias), or of
#   the bounded one, that are rounded.
# Guess: none. All compute the gate in float32 on purpose, and Kimi keeps dt_bias in float32.
# Outcome: missed, and each family rounds something else. Qwen3-Next and Qwen3.5: A_log and
#   dt_bias. OLMo hybrid: dt_bias. Kimi Linear: A_log. Bailing keeps both and rounds the gate
#   itself, after computing it in float32. Decays are off by 1e-3 to 2e-3.
. "$(dirname "$0")/python.bash"
"$python" -m pip install -q torch==2.15.0 transformers==5.24.0 numpy==2.4.6
cat > "$dir/check.py" <<'PY'
import os
import sys

import torch
import torch.nn.functional as F
import transformers

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
both = dict(vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, head_dim=16,
            num_attention_heads=8, num_key_value_heads=8, pad_token_id=0, bos_token_id=1,
            eos_token_id=2, layer_types=["linear_attention", "full_attention"])
experts = dict(num_experts=2, num_experts_per_tok=1, moe_intermediate_size=16)
gdn = dict(linear_num_key_heads=8, linear_num_value_heads=8, linear_key_head_dim=16,
           linear_value_head_dim=16)
kda = dict(linear_num_heads=8, linear_head_dim=16, kv_lora_rank=8, qk_nope_head_dim=8,
           qk_rope_head_dim=8, v_head_dim=16)
families = {
    "Qwen3Next": ("Qwen3NextConfig", gdn | experts | dict(shared_expert_intermediate_size=16)),
    "Qwen3_5": ("Qwen3_5TextConfig", gdn),
    "OlmoHybrid": ("OlmoHybridConfig", gdn),
    "KimiLinear": ("KimiLinearConfig", kda | experts),
    "BailingHybrid": ("BailingHybridConfig", kda | experts | dict(q_lora_rank=8, n_group=1,
                                                                  topk_group=1))}
rounded, errors = {}, {}
for name, (config, more) in families.items():
    torch.manual_seed(0)
    config = getattr(transformers, config)(**both, **more)
    kind = getattr(transformers, name + "ForCausalLM")
    model = kind(config)
    exact = {}
    for n, p in model.named_parameters():
        if n.endswith(("A_log", "dt_bias")):
            p.data.uniform_(*((-2, 3) if n.endswith("A_log") else (-7, 1)))
            exact[n.rpartition(".")[2]] = p.detach().double()
    path = os.path.join(sys.path[0], name)
    model.save_pretrained(path)
    model = kind.from_pretrained(path, dtype=torch.bfloat16)
    found = {n.rpartition(".")[2]: p for n, p in model.named_parameters() if n.endswith(
        ("A_log", "dt_bias"))}
    module, seen = sys.modules[kind.__module__], {}
    rule = ("chunk_kimi_delta_attention" if more.get("linear_head_dim")
            else "torch_chunk_gated_delta_rule")
    original = getattr(module, rule)

    def watched(*args, **kwargs):
        seen["g"] = kwargs["g"]
        return original(*args, **kwargs)

    setattr(module, rule, watched)
    layer = next(m for n, m in model.named_modules() if n.endswith("layers.0.linear_attn")
                 or n.endswith("layers.0.self_attn"))
    with torch.no_grad():  # a = 0, so that only A_log and dt_bias decide the gate
        layer(torch.zeros(1, 1, 32, dtype=torch.bfloat16))
    A, bias = exact["A_log"].exp().flatten(), exact["dt_bias"].view(8, -1)
    right = (-5 * torch.sigmoid(A[:, None] * bias) if name == "BailingHybrid"
             else -A[:, None] * F.softplus(bias))
    g = seen["g"].double().view(8, -1)
    errors[name] = float((g.exp() - right.exp()).abs().max())
    rounded[name] = [n for n, x in sorted((found | dict(g=seen["g"])).items())
                     if x.dtype == torch.bfloat16]
    print(f"{name}: rounded {rounded[name]}, decays off by {errors[name]:.0e}")
sys.exit(not (rounded == {"Qwen3Next": ["A_log", "dt_bias"], "Qwen3_5": ["A_log", "dt_bias"],
                          "OlmoHybrid": ["dt_bias"], "KimiLinear": ["A_log"],
                          "BailingHybrid": ["g"]}
              and all(3e-4 < e < 1e-2 for e in errors.values())))
PY
"$python" "$dir/check.py"
