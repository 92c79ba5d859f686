# SPDX-License-Identifier: Apache-2.0
"""gdn.install("transformers") for the models that came after Qwen3.5: tiny ones, random weights."""

import copy

import pytest
import torch

import gdn
import gdn.transformers

SIZES = dict(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
             num_key_value_heads=1, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4,
             linear_key_head_dim=16, linear_value_head_dim=16, eos_token_id=None)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
               shared_expert_intermediate_size=16)
INDEXED = dict(hc_count=2, hc_lowrank=8, indexer_n_heads=2, indexer_kv_heads=1,
               indexer_head_dim=16, indexer_budget=8, indexer_compress_ratio=2)
MADE = {
    "qwen4_exp": ("Qwen4ExpTextConfig", "Qwen4ExpForCausalLM", dict(
        EXPERTS, **INDEXED, layer_types=["linear_attention", "indexed_attention"])),
    "lara_mini": ("LaraMiniConfig", "LaraMiniForCausalLM", dict(
        EXPERTS, layer_types=["linear_attention", "full_attention"])),
    "olmo_hybrid": ("OlmoHybridConfig", "OlmoHybridForCausalLM", dict(
        intermediate_size=32, linear_value_head_dim=32, pad_token_id=None,
        layer_types=["linear_attention", "full_attention"])),
}
CASES = [("qwen4_exp", {}), ("qwen4_exp", dict(output_gate_type="sigmoid")), ("lara_mini", {}),
         ("olmo_hybrid", {}), ("olmo_hybrid", dict(linear_allow_neg_eigval=False))]
NAMES = [name + "".join(f"-{x}" for x in more.values()) for name, more in CASES]


def tiny(name, **more):
    import transformers

    module = gdn.transformers.modules().get(name)
    if module is None:
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    config, model, sizes = MADE[name]
    return getattr(module, model)(getattr(module, config)(**{**SIZES, **sizes, **more}))


@pytest.mark.parametrize("name, more", CASES, ids=NAMES)
def test_logits(modeling, monkeypatch, name, more):
    """A prompt, then tokens one by one and two at once; step() takes one token unless the output
    gate is a sigmoid."""
    model = tiny(name, **more).eval()
    tokens = torch.randint(0, 64, (2, 13))

    def logits():
        cache, rows = None, []
        for start, end in ((0, 9), (9, 10), (10, 11), (11, 13)):
            found = model(tokens[:, start:end], cache=cache, use_cache=True)
            cache = found.cache
            rows.append(found.logits)
        return torch.cat(rows, 1)

    wanted, calls = logits(), []
    gdn.install("transformers")
    for op in ("prefill", "decode", "conv1d", "step"):
        def counted(*args, _name=op, _call=getattr(gdn.torch, op), **kwargs):
            calls.append(_name)
            return _call(*args, **kwargs)
        monkeypatch.setattr(gdn.torch, op, counted)
    torch.testing.assert_close(logits(), wanted, atol=1e-4, rtol=1e-4)
    steps = ["conv1d", "decode"] * 2 if "output_gate_type" in more else ["step"] * 2
    assert calls == ["conv1d", "prefill", *steps, "conv1d", "prefill"]


@pytest.mark.parametrize("name", MADE)
@torch.enable_grad()
def test_gradients(modeling, name):
    model = tiny(name)
    tokens, found = torch.randint(0, 64, (2, 24)), []
    for installs in (False, True):
        if installs:
            gdn.install("transformers")
        each = copy.deepcopy(model)
        each(tokens, labels=tokens, use_cache=False).loss.backward()
        found.append({n: p.grad for n, p in each.named_parameters() if p.grad is not None})
    assert any("A_log" in n for n in found[0]) and found[0].keys() == found[1].keys()
    for n, wanted in found[0].items():
        torch.testing.assert_close(found[1][n], wanted, atol=1e-5, rtol=1e-3, msg=lambda m: n + m)


def test_a_version_with_other_functions(modeling, monkeypatch):
    """A later model whose functions are others is left alone, with a line; Qwen3.5 is not."""
    module = gdn.transformers.modules().get("lara_mini")
    if module is None:
        pytest.skip("transformers has no lara_mini")
    before = module.causal_conv1d_update
    monkeypatch.setattr(module, "causal_conv1d_fn", lambda x: x)
    with pytest.warns(UserWarning, match="gdn takes .*lara_mini is left alone"):
        gdn.install("transformers")
    assert module.causal_conv1d_update is before
    assert modeling.causal_conv1d_update is gdn.transformers.causal_conv1d_update
