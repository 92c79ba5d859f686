#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# peft 0.21.2, transformers 5.24.0, torch 2.15.0 on a CPU: adapters on the convolution of a
#   Gated DeltaNet layer, target_modules=["conv1d"], in Qwen3-Next.
# Guess: the adapter changes the outputs and gets gradients, merging keeps the outputs; or peft
#   refuses, as it does for the convolution of Mamba.
# Outcome: missed. LoRA (of a rank that the groups divide), LoHa and LoKr attach without a word
#   and do nothing, since the layer reads conv1d.weight and never calls conv1d: outputs are
#   those of the bare model to the bit, no adapter weight gets a gradient. Merging LoHa and LoKr
#   then changes the outputs. Of Mamba, LoRA is refused and LoHa is not.
. "$(dirname "$0")/python.bash"
"$python" -m pip install -q torch==2.15.0 transformers==5.24.0 peft==0.21.2
cat > "$dir/check.py" <<'PY'
import copy
import sys
import warnings

import torch
from peft import LoHaConfig, LoKrConfig, LoraConfig, get_peft_model
from transformers import MambaConfig, MambaForCausalLM, Qwen3NextConfig, Qwen3NextForCausalLM

warnings.simplefilter("ignore")
torch.manual_seed(0)
model = Qwen3NextForCausalLM(Qwen3NextConfig(
    vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, head_dim=16,
    num_attention_heads=2, num_key_value_heads=1, linear_num_key_heads=2, linear_num_value_heads=2,
    linear_key_head_dim=16, linear_value_head_dim=16, num_experts=0, mlp_only_layers=[0, 1],
    layer_types=["linear_attention", "full_attention"])).eval()
ids = torch.randint(0, 64, (1, 10))
bare = model(ids).logits
conv = dict(target_modules=["conv1d"])
adapters = {"LoRA": LoraConfig(r=96, init_lora_weights=False, **conv),
            "LoHa": LoHaConfig(r=4, init_weights=False, **conv),
            "LoKr": LoKrConfig(r=4, init_weights=False, **conv)}
ok = True
for name, config in adapters.items():
    adapted = get_peft_model(copy.deepcopy(model), config).eval()
    out = adapted(ids).logits
    trainable = sum(p.requires_grad for p in adapted.parameters())
    print(f"{name}: {trainable} trainable tensors, outputs those of the bare model "
          f"{torch.equal(out, bare)}, they depend on the adapter {out.requires_grad}", end=", ")
    ok &= trainable > 0 and torch.equal(out, bare) and not out.requires_grad
    try:
        change = float((adapted.merge_and_unload()(ids).logits - bare).abs().max())
        print(f"merging changes them by {change:.3f}")
        ok &= name != "LoRA" and change > 1e-3
    except NotImplementedError:
        print("merging is refused")
        ok &= name == "LoRA"
mamba = MambaForCausalLM(MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1))
for name in ("LoRA", "LoHa"):
    try:
        get_peft_model(copy.deepcopy(mamba), adapters[name])
        refused = False
    except ValueError as error:
        refused = "incompatible" in str(error)
    print(f"{name} on the convolution of Mamba refused: {refused}")
    ok &= refused == (name == "LoRA")
sys.exit(not ok)
PY
"$python" "$dir/check.py"
