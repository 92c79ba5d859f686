#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`gdn generate` of OLMo-Hybrid and Kimi-Linear, from outside: cli_hybrids_test.py GDN
[--filter WORD]

Models are random and small; hybrids.py computes their logits in float64. Where transformers is
installed, it judges too, and makes a checkpoint.
"""
import sys

import cli_test as cli
import hybrids
from cli_generate_test import PROMPT, device, folder, generate, near, need_device, out
from cli_test import Skip, check, refused

MODELS = {"olmo": (hybrids.OLMO, hybrids.Olmo), "kimi": (hybrids.KIMI, hybrids.Kimi)}


def model(name, seed=1, dtype="F32", **changes):
    """A folder; its config, tensors and values."""
    config = dict(MODELS[name][0], **changes)
    tensors, values = hybrids.random_weights(config, seed, dtype)
    return folder(config, {"model.safetensors": tensors}, name=name), config, tensors, values


def judge(name, dtype="F32", n=6, **changes):
    """Logits within 1e-4 of float64, each token the largest."""
    path, config, _, values = model(name, 2, dtype, **changes)
    text, tokens, logits = generate(path, "-n", str(n), "--draft", "2")
    reference, worst, size = MODELS[name][1](config, values), 0, 0
    check(len(tokens) == len(PROMPT) + n and text.startswith(PROMPT.encode()), tokens)
    for i, row in enumerate(logits):
        want = reference.logits(tokens[i])
        worst = max(worst, *(abs(a - b) for a, b in zip(row, want)))
        size = max(size, cli.rms(want))
        if i + 1 >= len(PROMPT):
            check(want.index(max(want)) == tokens[i + 1], "token", i + 1, tokens[i + 1])
    check(worst < 1e-4 and size > 0.3, name, "logits are off by", worst, "of", size)


def test_olmo():
    judge("olmo")
    judge("olmo", "BF16", 2, rope_parameters={"rope_type": "default", "rope_theta": None})


def test_kimi():
    judge("kimi")
    judge("kimi", "F16", 2)


def test_lazy():
    """Lazy states of both rules, KDA with a gate for each channel: the bits of plain ones."""
    for name in MODELS:
        path, *_ = model(name)
        plain = generate(path, "-n", "12", "--exact")
        check(generate(path, "-n", "12", "--exact", "--lazy", "5") == plain, name, "other bits")


def test_kimi_config_of_its_own():
    """The keys of Kimi-Linear's own files."""
    path, config, tensors, _ = model("kimi")
    want = generate(path, "-n", "4")
    own = {n: x for n, x in config.items() if not n.startswith("linear_")}
    del own["layer_types"], own["mlp_layer_types"]
    own.update(first_k_dense_replace=4, num_experts=256, mla_use_nope=True, linear_attn_config=dict(
        num_heads=2, head_dim=16, short_conv_kernel_size=4, kda_layers=[1, 2, 3],
        full_attn_layers=[4]))
    check(generate(folder(own, {"model.safetensors": tensors}), "-n", "4") == want, "another text")


def test_other_names():
    """conv1d of all channels, and the names that transformers writes."""
    for name, (config, _) in MODELS.items():
        path, _, tensors, _ = model(name)
        want, renamed = generate(path, "-n", "4"), {}
        for full, (dtype, shape, raw) in tensors.items():
            if "q_conv1d" in full:
                parts = [tensors[full.replace("q_conv1d", f"{x}_conv1d")] for x in "qkv"]
                rows = sum(part[1][0] for part in parts)
                renamed[full.replace("q_conv1d", "conv1d")] = (
                    dtype, [rows, *shape[1:]], b"".join(part[2] for part in parts))
            elif "_conv1d" not in full:
                full = full.replace("self_attn.f_", "self_attn.forget_gate.f_")
                if name == "kimi":
                    full = full.replace(".mlp.", ".block_sparse_moe.")
                elif ".3." not in full:
                    full = full.replace("input_layernorm", "attention_layer_norm").replace(
                        "post_attention_layernorm", "feedforward_layer_norm")
                renamed[full] = (dtype, shape, raw)
        where = folder(config, {"model.safetensors": renamed}, name="renamed")
        check(generate(where, "-n", "4") == want, name, "another text")


def test_state():
    """A text that is saved and continued, with --exact to the bit."""
    for name in MODELS:
        path, *_ = model(name)
        whole = generate(path, "-n", "10", "--exact")
        generate(path, "-n", "0", "--exact", "--save-state", out("s"), prompt=PROMPT[:17])
        rest = generate(path, "-n", "10", "--exact", "--load-state", out("s"), prompt=PROMPT[17:])
        check(PROMPT[:17].encode() + rest[0] == whole[0], rest[0], whole[0])
        check(rest[2] == whole[2][17:], "logits differ")


def test_transformers():
    """Checkpoints that transformers makes: the logits are its own, and so is the text."""
    sys.modules.setdefault("fla", None)  # its kernels need a GPU
    try:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError as missing:
        raise Skip(str(missing))
    for name, (config, _) in MODELS.items():
        options = {key: x for key, x in config.items() if key != "model_type"}
        torch.manual_seed(3)
        theirs = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(config["model_type"], pad_token_id=0, **options)).eval()
        for key, x in theirs.named_parameters():
            if x.dim() == 2:
                x.data.normal_(0, x.shape[-1] ** -0.5)
            elif key.endswith("A_log"):
                x.data.uniform_(-3, -0.5)
        theirs.save_pretrained(out(name))
        text, tokens, logits = generate(out(name), "-n", "16")
        with torch.no_grad():
            want = theirs(torch.tensor([tokens])).logits[0, : len(logits)]
            greedy = theirs.generate(torch.tensor([list(PROMPT.encode())]), max_new_tokens=16,
                                     do_sample=False, pad_token_id=0)
        error = (torch.tensor([list(row) for row in logits]) - want).abs().max().item()
        check(error < 1e-4, name, "logits are off by", error)
        check(bytes(greedy[0].tolist()) == text, text, greedy)


def test_refused():
    def bad(name, change, *words):
        path, config, tensors, _ = model(name)
        where = folder(dict(config, **change), {"model.safetensors": tensors})
        refused("generate", where, "-p", "a", "-n", "1", names=words)

    for name, change, *words in (
        ("kimi", {"mlp_layer_types": ["dense"] * 3 + ["sparse"]}, "mlp_layer_types", "sparse"),
        ("kimi", {"mlp_layer_types": None, "first_k_dense_replace": 1}, "first_k_dense_replace",
         "mixture of experts"),
        ("kimi", {"mlp_layer_types": None}, "first_k_dense_replace"),
        ("kimi", {"q_lora_rank": 8}, "q_lora_rank"),
        ("kimi", {"mla_use_nope": False}, "mla_use_nope"),
        ("kimi", {"linear_num_heads": 3}, "self_attn.q_proj.weight"),
        ("kimi", {"layer_types": None}, "layer_types"),
        ("kimi", {"linear_attn_config": {"num_heads": 2, "rank": 3}}, "linear_attn_config", "rank"),
        ("kimi", {"kv_lora_rank": 0}, "kv_lora_rank"),
        ("kimi", {"gate_lower_bound": -5.0}, "gate_lower_bound"),
        ("olmo", {"linear_allow_neg_eigval": 1}, "linear_allow_neg_eigval"),
        ("olmo", {"linear_value_head_dim": 23}, "linear_attn.v_proj.weight"),
        ("olmo", {"layer_types": None}, "layer_types"),
        ("olmo", {"attn_output_gate": True}, "attn_output_gate"),
        ("olmo", {"attention_bias": True}, "attention_bias"),
        ("olmo", {"rope_parameters": {"rope_type": "yarn"}}, "yarn"),
    ):
        bad(name, change, *words)
    path, config, tensors, _ = model("olmo")
    short = dict(tensors)
    name = "model.layers.1.linear_attn.v_conv1d.weight"
    dtype, (rows, one, taps), raw = tensors[name]
    short[name] = (dtype, [rows - 1, one, taps], raw[: -4 * taps])
    refused("generate", folder(config, {"model.safetensors": short}), "-p", "a", names=["v_conv1d"])


def test_device():
    """A GPU makes the text of the CPU, and states of one work on the other."""
    need_device()
    for name in MODELS:
        path, *_ = model(name, 2, "BF16")
        near(device(path, "-n", "6"), generate(path, "-n", "6"))
        device(path, "-n", "4", "--save-state", out("s"))
        text, *_ = generate(path, "-n", "2", "--load-state", out("s"), prompt=None)
        check(generate(path, "-n", "6")[0].endswith(text), text)


if __name__ == "__main__":
    sys.exit(cli.main(globals()))
