#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# mlx-lm 0.32.2, mlx 0.32.4 on a CPU: BatchGenerator, which its server uses by itself, with a
#   prompt of 5 tokens beside one of 23, for six recurrent models with random weights.
# Guess: the first new token of each prompt has the log-probabilities that the prompt has alone.
# Outcome: half right. For Qwen3-Next and Mamba-2 they are the same to the bit. RWKV-7, Mamba,
#   Jamba and Bailing's linear attention read no mask, so the pads behind the short prompt enter
#   its states: its log-probabilities are off by 0.3 to 2.6, silently. The long prompt has no
#   pads and is right.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/python" -m pip install -q mlx==0.32.4 mlx-cpu==0.32.4 mlx-lm==0.32.2 \
    transformers==5.24.0 numpy==2.4.6
cat > "$dir/check.py" <<'PY'
import importlib
import sys

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map
from mlx_lm.generate import BatchGenerator

mx.set_default_device(mx.cpu)
size = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2)
heads = dict(num_attention_heads=2, num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-6,
             rope_theta=1e4, max_position_embeddings=512, tie_word_embeddings=False)
experts = dict(num_experts=0, num_experts_per_tok=1, moe_intermediate_size=16)
mamba = dict(state_size=32, conv_kernel=4, use_bias=False, use_conv_bias=True, time_step_rank=4)
models = {
    "qwen3_next": size | heads | experts | dict(
        linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=32,
        linear_value_head_dim=32, linear_conv_kernel_dim=4, full_attention_interval=2,
        decoder_sparse_step=1, mlp_only_layers=[0, 1], shared_expert_intermediate_size=16,
        partial_rotary_factor=1.0),
    "mamba2": size | mamba | dict(
        num_heads=2, head_dim=32, layer_norm_epsilon=1e-5, expand=2, n_groups=1,
        time_step_limit=(0.0, float("inf")), tie_word_embeddings=False),
    "mamba": size | mamba,
    "rwkv7": size | dict(hidden_size=64, norm_eps=1e-5, head_dim=32, a_low_rank_dim=8,
                         v_low_rank_dim=8, gate_low_rank_dim=8, decay_low_rank_dim=8),
    "jamba": size | heads | dict(
        attn_layer_offset=1, attn_layer_period=2, expert_layer_offset=1, expert_layer_period=2,
        mamba_d_conv=4, mamba_d_state=16, mamba_expand=2, num_experts=1, num_experts_per_tok=1,
        mamba_dt_rank=4, mamba_proj_bias=False, mamba_conv_bias=True),
    "bailing_moe_linear": size | heads | experts | dict(
        num_experts=2, num_shared_experts=1, first_k_dense_replace=2, norm_topk_prob=True,
        rope_scaling=None, rope_traditional=False, use_bias=False, use_qkv_bias=False,
        use_qk_norm=True, layer_group_size=2, group_norm_size=1, max_window_layers=2, n_group=1,
        topk_group=1, routed_scaling_factor=1.0, partial_rotary_factor=1.0)}
off = {}
for name, config in models.items():
    module = importlib.import_module("mlx_lm.models." + name)
    model = module.Model(module.ModelArgs.from_dict(dict(config, model_type=name)))
    r = np.random.default_rng(0)
    noise = lambda p: p + mx.array(r.standard_normal(p.shape) * 0.1, p.dtype)
    model.update(tree_map(noise, model.parameters()))
    prompts = [r.integers(1, 64, n).tolist() for n in (5, 23)]

    def first(prompts):
        generator = BatchGenerator(model, stop_tokens=[])
        uids = generator.insert(prompts, [1] * len(prompts))
        found = {}
        while responses := generator.next_generated():
            found |= {x.uid: np.array(x.logprobs) for x in responses}
        return [found[u] for u in uids]

    together, alone = first(prompts), [first([p])[0] for p in prompts]
    off[name] = [float(np.abs(x - y).max()) for x, y in zip(together, alone)]
    print(f"{name}: short prompt off by {off[name][0]:.3f}, long one by {off[name][1]:.3f}")
short = {n: x for n, (x, _) in off.items()}
sys.exit(not (short["qwen3_next"] == short["mamba2"] == 0
              and all(long < 1e-4 for _, long in off.values())
              and all(short[n] > 0.05 for n in ("mamba", "rwkv7", "jamba", "bailing_moe_linear"))))
PY
"$dir/venv/bin/python" "$dir/check.py"
