#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`gdn plan`, from outside: cli_plan_test.py GDN [--filter WORD]"""
import json
import sys

import cli_test as cli
from cli_test import OK, check, gdn, refused, write

# Configurations as the hub has them, without what the plan does not read.
QWEN3_NEXT = {
    "model_type": "qwen3_next", "num_hidden_layers": 48, "hidden_size": 2048,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "full_attention_interval": 4,
    "hidden_act": "silu", "torch_dtype": "bfloat16"}
QWEN3_5 = {
    "model_type": "qwen3_5", "text_config": {
        **QWEN3_NEXT, "model_type": "qwen3_5_text", "num_hidden_layers": 8,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2,
        "mamba_ssm_dtype": "float32", "torch_dtype": "float16"}}
KIMI = {
    "model_type": "kimi_linear", "num_hidden_layers": 8, "hidden_act": "silu", "dtype": "bfloat16",
    "linear_attn_config": {"kda_layers": [1, 2, 3, 5, 6, 7], "full_attn_layers": [4, 8],
                           "head_dim": 128, "num_heads": 32, "short_conv_kernel_size": 4}}
OLMO = {
    "model_type": "olmo_hybrid", "num_hidden_layers": 32, "hidden_size": 3840,
    "num_attention_heads": 30, "linear_allow_neg_eigval": True}
GLM = {
    "model_type": "glm5_next", "text_config": {
        "model_type": "glm5_next_text", "num_hidden_layers": 5, "linear_head_dim": 128,
        "linear_num_heads": 64, "linear_lower_bound": -4.5}}
FLA = {  # of fla.models
    "gated_deltanet": {"head_dim": 32, "num_heads": 2, "num_v_heads": None, "expand_v": 1.5,
                       "allow_neg_eigval": True, "attn": {"layers": [1, 3], "num_heads": 4}},
    "kda": {"head_dim": 32, "num_heads": 2, "num_v_heads": 4, "safe_gate": True,
            "lower_bound": -4, "attn": [{"layers": [0]}, {"layers": [2]}]},
    "gdn2": {"head_dim": 32, "num_heads": 2},
    "gated_deltaproduct": {"head_dim": 32, "num_heads": 2, "expand_v": 1.0, "num_householder": 3,
                           "use_forget_gate": True}}
CALLS = ["gdn_conv1d", "gdn_prefill", "gdn_step", "gdn_prefill_backward"]


def config(values):
    text = values if isinstance(values, bytes) else json.dumps(values).encode()
    return write("config.json", text)


def plan(values, *args):
    status, text, err = gdn("plan", config(values), *args, "--json")
    check(status == OK, status, err)
    found = json.loads(text)
    has_decay = values.get("use_forget_gate", True) if isinstance(values, dict) else True
    token = "gdn_step" if has_decay else "gdn_decode"
    wanted = [token if op == "gdn_step" else op for op in CALLS]
    check([c["op"] for c in found["calls"]] == wanted, found["calls"])
    found["by"] = {c["op"]: c for c in found["calls"]}
    return found


def warned(found, *words):
    check(any(all(w in line for w in words) for line in found["warnings"]), words,
          found["warnings"])


def test_hopper():
    """Kernels, states and times of Qwen3-Next on an H100."""
    found = plan(QWEN3_NEXT, "--gpu", "h100")
    by = found["by"]
    check(found["layer_types"].count("linear_attention") == 36, found["layer_types"])
    check(by["gdn_prefill"]["kernels"] == ["gdn_prefill_sm90_wide_BF16"], by["gdn_prefill"])
    check(by["gdn_prefill"]["why"] == ["prefill: sm90"], by["gdn_prefill"])
    check("gdn_backward_sm90_prepare_BF16" in by["gdn_prefill_backward"]["kernels"], by)
    check(by["gdn_prefill"]["measured"].startswith("NVIDIA H100: 16/32 heads"), by)
    step = by["gdn_step"]  # measured as it is
    check(step["kernels"] == ["gdn_step_rows_F32_BF16"], step)
    check(step["factor"] == 1 and "NVIDIA H200" in step["measured"], step)
    check(abs(step["layers_ms"] - 36 * step["layer_ms"]) < 1e-9, step)
    slots = {s["state"]: s for s in found["slots"]}
    conv = (2 * 16 * 128 + 32 * 128) * 3 * 2
    check(slots["f32"]["layer_bytes"] == 32 * 128 * 128 * 4 + conv, slots)
    check(slots["i8"]["layer_bytes"] == 32 * 128 * (128 + 4) + conv, slots)
    check(slots["bf16"]["bytes"] == 36 * (32 * 128 * 128 * 2 + conv), slots)
    check(slots["f32"]["slots"] == 80 * 2**30 // slots["f32"]["bytes"], slots)
    warned(found, "K is V")
    warned(found, "interleaved")
    warned(found, "in_proj_qkvz")
    check(by["gdn_prefill"]["measured_on"] == "NVIDIA H100", by)
    warned(found, "times are not of H100", "gdn_step on NVIDIA H200")
    kimi = plan(KIMI, "--gpu", "H100")
    check(kimi["by"]["gdn_prefill"]["measured_on"] == "NVIDIA H200", kimi["by"])
    warned(kimi, "times are not of H100", "gdn_prefill on NVIDIA H200")
    there = plan(KIMI, "--gpu", "H200")
    check({c.get("measured_on") for c in there["calls"]} == {"NVIDIA H200", None}, there["calls"])
    check(not any("times are not" in w for w in there["warnings"]), there["warnings"])


def test_ranks():
    """Heads, states and memory of one rank; the batch is part of the choice."""
    one = plan(QWEN3_NEXT, "--gpu", "H200", "--memory", "10")
    four = plan(QWEN3_NEXT, "--gpu", "H200", "--memory", "10", "--tp", "4")
    check((four["key_heads"], four["value_heads"]) == (4, 8), four)
    check(4 * four["slots"][0]["bytes"] == one["slots"][0]["bytes"], four["slots"])
    check(four["slots"][0]["slots"] // 4 == one["slots"][0]["slots"], four["slots"])
    single = plan(QWEN3_NEXT, "--gpu", "H200", "--batch", "1", "--tp", "4")["by"]["gdn_prefill"]
    check("gdn_prefill_sm90_summary_BF16" in single["kernels"], single)
    check(single["workspace_bytes"] > 0, single)


def test_olmo():
    """Sizes that follow from attention; reasons against fast kernels; beta to 2."""
    found = plan(OLMO, "--gpu", "H100")
    check((found["value_heads"], found["key_dim"], found["value_dim"]) == (30, 96, 192), found)
    why = found["by"]["gdn_step"]["why"]
    check(any("parts (rows, pairs, general: K or V is above 128)" in line for line in why), why)
    check("sm90" in found["by"]["gdn_prefill"]["kernels"][0], found["by"])
    warned(found, "GDN_BETA_TWICE_SIGMOID")
    odd = {**OLMO, "linear_key_head_dim": 100, "linear_value_head_dim": 100}
    found = plan(odd, "--gpu", "H100")
    check(found["by"]["gdn_prefill"]["why"] ==
          ["prefill: portable (sm90: K or V is not a multiple of 8)"], found["by"])
    warned(found, "gdn_prefill: no kernel of Hopper takes", "multiple of 8")


def test_other_gpus():
    """Portable kernels; no times of Hopper's kernels for them."""
    for gpu in ("A100", "NVIDIA RTX 4090", "b200", "gb10"):
        found = plan(QWEN3_NEXT, "--gpu", gpu)
        prefill = found["by"]["gdn_prefill"]
        check(prefill["kernels"][0] == "gdn_prefill_portable_chunks_BF16", gpu, prefill)
        check("no code for sm_90a runs" in prefill["why"][0], prefill)
        check("layer_ms" not in prefill, prefill)
        warned(found, "portable kernels")


def test_channels():
    """What takes a layer of KDA: all calls of a CPU. What a GPU refuses names the argument."""
    found = plan(KIMI, "--batch", "2", "--context", "100")
    check(found["rule"] == "KDA" and found["layer_types"][3] == "full_attention", found)
    for call in found["calls"]:
        check(call["kernels"], call)
        check(("layer_ms" in call) == (call["op"] == "gdn_conv1d"), call)
    warned(found, "GDN_ACT_SIGMOID")
    by = plan(KIMI, "--gpu", "H200")["by"]
    for op in ("gdn_prefill", "gdn_prefill_backward"):
        check(by[op]["measured"].startswith("NVIDIA H200: 32/32 heads"), by[op])
    check(any("norm" in name for name in by["gdn_step"]["kernels"]), by["gdn_step"])
    check("layer_ms" not in by["gdn_step"], by["gdn_step"])
    warned(plan(GLM), "gate_lower_bound to -4.5")


def fla(type_, **more):
    return {"model_type": type_, "num_hidden_layers": 4, **FLA[type_], **more}


def test_fla():
    """Models of FLA itself, whose configurations have names of their own."""
    rules = {"gated_deltanet": "GDN", "kda": "KDA", "gdn2": "GDN-2",
             "gated_deltaproduct": "Gated DeltaProduct"}
    for type_, rule in rules.items():
        found = plan(fla(type_), "--batch", "2", "--context", "40")
        check(found["rule"] == rule and found["key_heads"] == 2, found)
        check(all(call["kernels"] for call in found["calls"]), found["calls"])
        there = plan(fla(type_), "--gpu", "H100", "--batch", "2", "--context", "40")
        check(not any("refused" in call for call in there["calls"]), there["calls"])
    found = plan(fla("gated_deltanet"))
    check((found["value_dim"], found["value_heads"]) == (48, 2), found)
    check(found["layer_types"] == ["linear_attention", "full_attention"] * 2, found)
    warned(found, "GDN_BETA_TWICE_SIGMOID")
    found = plan(fla("kda"))
    check(found["layer_types"] == ["full_attention", "linear_attention"] * 2, found)
    warned(found, "gate_lower_bound to -4")
    warned(found, "GDN_ACT_SIGMOID")
    found = plan(fla("gated_deltaproduct", use_forget_gate=False, use_output_gate=False))
    warned(found, "3 rows for each token")
    warned(found, "gdn_step needs a decay")
    warned(found, "gdn_block has no Gated DeltaProduct")
    warned(found, "use_output_gate is false")
    conv = (2 * 32 * 4 + 3 * 2 * 32) * 3 * 2  # q, three k, three v; bf16
    check(found["slots"][0]["layer_bytes"] == 2 * 32 * 32 * 4 + conv, found["slots"])
    found = plan({"model_type": "kda"}, "--batch", "1", "--context", "16")  # all by default
    check((found["key_heads"], found["key_dim"]) == (16, 128), found)
    for key, value in (("expand_v", 1.3), ("expand_v", "x"), ("num_v_heads", 3), ("head_dim", 0),
                       ("lower_bound", 1), ("attn", {"layers": [4]}), ("attn", {"layers": 3}),
                       ("attn", {"layers": [0, 1, 2, 3]}), ("use_short_conv", 1)):
        bad(fla("kda", **{key: value}), key)


def test_bounds():
    """A bound of null is none, but for safe_gate of GLM's checkpoints."""
    def bound(model, **own):
        found = plan({**model, "linear_attn_config": {**KIMI["linear_attn_config"], **own}},
                     "--batch", "1", "--context", "16")
        return [w.split()[-1] for w in found["warnings"] if "gate_lower_bound to" in w], found

    glm = {**GLM["text_config"], "num_hidden_layers": 8, "linear_lower_bound": None}
    check(bound(glm, gate_lower_bound=None, safe_gate=False)[0] == [], "null")
    check(bound(glm, gate_lower_bound=None)[0] == ["-5"], "safe_gate is true by default")
    check(bound(glm, gate_lower_bound=-3, safe_gate=True)[0] == ["-3"], "a number")
    check(bound(KIMI)[0] == [], "Kimi-Linear")
    found, kimi = bound(KIMI, safe_gate=True)
    check(found == [], found)
    warned(kimi, "unknown gate", "safe_gate")
    check(bound(KIMI, safe_gate=True, gate_lower_bound=-5)[0] == ["-5"], "K3")
    bad({**KIMI, "linear_attn_config": {**KIMI["linear_attn_config"], "safe_gate": 1}}, "safe_gate")


def test_cpu():
    found = plan(QWEN3_5, "--threads", "1", "--isa", "scalar", "--batch", "1")
    check(found["isa"] == "scalar" and found["threads"] == 1, found)
    check(found["dtype"] == "f16" and found["state"] == "f32", found)
    check(all(k.endswith(".scalar") for c in found["calls"] for k in c["kernels"]), found)
    check(found["by"]["gdn_step"]["rule_only"], found["by"])
    check(plan(QWEN3_5, "--state", "i8", "--dtype", "f32")["state"] == "i8")


def test_text():
    status, text, err = gdn("plan", config(QWEN3_NEXT), "--gpu", "H100")
    check(status == OK, err)
    for words in ("36 layers: 0-2, 4-6,", "gdn_prefill_sm90_wide_BF16", "slots in 80 GiB",
                  "measured: NVIDIA H200", "warning: times are not of H100: gdn_conv1d on NVIDIA "
                  "H200, gdn_step on NVIDIA H200"):
        check(words in text, words, text)


def test_gates():
    """A gate that the library does not have is a warning, with its key."""
    warned(plan({**QWEN3_NEXT, "hidden_act": "gelu"}), "unknown gate", "hidden_act", "gelu")
    warned(plan({**QWEN3_NEXT, "linear_gate_rank": 3}), "unknown gate", "linear_gate_rank")
    part = {**KIMI["linear_attn_config"], "gate_rank": 3}
    warned(plan({**KIMI, "linear_attn_config": part}), "unknown gate", "gate_rank")
    warned(plan({**QWEN3_NEXT, "output_gate_type": "sigmoid"}), "sigmoid")
    warned(plan({**QWEN3_NEXT, "output_gate_type": "tanh"}), "unknown gate", "output_gate_type")
    big = plan({**QWEN3_NEXT, "linear_key_head_dim": 512})
    check("256" in big["by"]["gdn_prefill"]["refused"], big["by"])


def bad(values, *names, args=()):
    refused("plan", config(values), *args, names=["config.json", *names])


def test_malformed():
    """Errors name the key."""
    for text in (b"", b"{", b"[]", b"3"):
        bad(text)
    bad({}, "model_type")
    bad({"model_type": "llama"}, "model_type", "llama")
    bad({"model_type": "qwen3_5", "text_config": 3}, "text_config")
    for key in ("num_hidden_layers", "linear_num_key_heads", "linear_value_head_dim"):
        for value in (None, 0, -1, 1.5, "x", 1e30, True, []):
            bad({**QWEN3_NEXT, key: value}, key)
    bad({**QWEN3_NEXT, "linear_num_value_heads": 24}, "linear_num_value_heads")
    bad({**QWEN3_NEXT, "linear_conv_kernel_dim": 0}, "linear_conv_kernel_dim")
    bad({**QWEN3_NEXT, "torch_dtype": "int4"}, "torch_dtype", "int4")
    bad({**QWEN3_NEXT, "hidden_act": 3}, "hidden_act")
    bad({**QWEN3_NEXT, "full_attention_interval": 1}, "layer_types")
    for types in (3, [], ["linear_attention"], ["linear_attention"] * 47 + [3],
                  ["full_attention"] * 48):
        bad({**QWEN3_NEXT, "layer_types": types}, "layer_types")
    own = KIMI["linear_attn_config"]
    for key, value in (("kda_layers", [1, 2]), ("kda_layers", 3), ("full_attn_layers", [9]),
                       ("head_dim", 0), ("num_heads", "x")):
        bad({**KIMI, "linear_attn_config": {**own, key: value}}, key)
    bad({**KIMI, "linear_attn_config": 3}, "linear_attn_config")
    bad({**KIMI, "linear_attn_config": None}, "layer_types")
    bad({**OLMO, "linear_allow_neg_eigval": 1}, "linear_allow_neg_eigval")
    bad({"model_type": "glm5_next_text", "num_hidden_layers": 4, "linear_head_dim": 8,
         "linear_num_heads": 2, "linear_lower_bound": 5}, "linear_lower_bound")


def test_arguments():
    path = config(QWEN3_NEXT)
    refused("plan", names=["wanted one"])
    refused("plan", path, path, names=["wanted one"])
    refused("plan", "/nowhere.json", names=["nowhere.json"])
    refused("plan", path, "--gpu", "V100", names=["--gpu", "V100", "H100"])
    refused("plan", path, "--tp", "3", names=["--tp"])
    refused("plan", path, "--state", "f64", names=["--state"])
    refused("plan", path, "--dtype", "i8", names=["--dtype"])
    refused("plan", path, "--gpu", "H100", "--threads", "2", names=["--threads"])
    refused("plan", path, "--batch", "0", names=["--batch"])
    refused("plan", path, "--memory", "0", names=["--memory"])


if __name__ == "__main__":
    sys.exit(cli.main(globals()))
