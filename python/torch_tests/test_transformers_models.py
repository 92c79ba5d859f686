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
LATENT = dict(num_key_value_heads=2, linear_num_heads=2, linear_head_dim=16, kv_lora_rank=8,
              qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=16, intermediate_size=32,
              num_local_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
              n_group=1, topk_group=1, mlp_layer_types=["dense", "sparse"], pad_token_id=None,
              bos_token_id=None,
              layer_types=["linear_attention", "full_attention"])
VISION = dict(depth=1, hidden_size=16, num_heads=2, intermediate_size=16, out_hidden_size=32,
              projection_intermediate_size=16)
MADE = {
    "qwen4_exp": ("Qwen4ExpTextConfig", "Qwen4ExpForCausalLM", dict(
        EXPERTS, **INDEXED, layer_types=["linear_attention", "indexed_attention"])),
    "lara_mini": ("LaraMiniConfig", "LaraMiniForCausalLM", dict(
        EXPERTS, layer_types=["linear_attention", "full_attention"])),
    "olmo_hybrid": ("OlmoHybridConfig", "OlmoHybridForCausalLM", dict(
        intermediate_size=32, linear_value_head_dim=32, pad_token_id=None,
        layer_types=["linear_attention", "full_attention"])),
    "kimi_linear": ("KimiLinearConfig", "KimiLinearForCausalLM", LATENT),
    "glm5_next": ("Glm5NextConfig", "Glm5NextForConditionalGeneration", dict(
        LATENT, qk_rope_head_dim=0, q_lora_rank=8, index_topk=4, index_head_dim=8, index_n_heads=2,
        index_kpool=2, hc_mult=2)),
    "bailing_hybrid": ("BailingHybridConfig", "BailingHybridForCausalLM", dict(
        LATENT, first_k_dense_replace=1)),
}
CASES = [("qwen4_exp", {}), ("qwen4_exp", dict(output_gate_type="sigmoid")), ("lara_mini", {}),
         ("olmo_hybrid", {}), ("olmo_hybrid", dict(linear_allow_neg_eigval=False)),
         ("kimi_linear", {}), ("glm5_next", {}), ("glm5_next", dict(linear_lower_bound=None)),
         ("bailing_hybrid", {}), ("bailing_hybrid", dict(kda_safe_gate=False))]
NAMES = [name + "".join(f"-{x}" for x in more.values()) for name, more in CASES]


def tiny(name, **more):
    import transformers

    module = gdn.transformers.modules().get(name)
    if module is None:
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    config, model, sizes = MADE[name]
    sizes = {**SIZES, **sizes, **more}
    if name == "glm5_next":  # a model of pictures too
        sizes = dict(text_config=sizes, vision_config=VISION)
    return getattr(module, model)(getattr(module, config)(**sizes))


@pytest.mark.parametrize("name, more", CASES, ids=NAMES)
def test_logits(modeling, monkeypatch, name, more):
    """A prompt, then tokens one by one, each by step(), then two tokens at once. glm5_next passes a
    mask of ones to its layers, so there the layer's own forward() runs."""
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
    steps = ["conv1d", "decode"] * 2 if name == "glm5_next" else ["step"] * 2
    assert calls == ["conv1d", "prefill", *steps, "conv1d", "prefill"]


@pytest.mark.parametrize("padding", [0, 20])
@pytest.mark.parametrize("name", gdn.transformers.KDA_MODELS)
def test_greedy_tokens(modeling, name, padding):
    """Greedy tokens behind prompts of more than a chunk, one with padding at its left; the logits
    of prompts in bfloat16."""
    model, tokens, found = tiny(name).eval(), torch.randint(0, 64, (2, 75)), []
    half, mask = copy.deepcopy(model).bfloat16(), torch.ones_like(tokens)
    mask[0, :padding] = 0
    for installs in (False, True):
        if installs:
            gdn.install("transformers")
        out = model.generate(tokens, attention_mask=mask, do_sample=False, max_new_tokens=8,
                             pad_token_id=0)
        found.append((out, half(tokens).logits))
    (wanted, logits), (got, ours) = found
    assert wanted.shape == (2, 83) and torch.equal(got, wanted)
    assert (ours - logits).norm() < 0.05 * logits.norm()  # a router may choose another expert


def layer_of(name, model):
    """The model's first layer of linear attention; its class has step() after install()."""
    kinds = {**gdn.transformers.MODELS, **gdn.transformers.KDA_MODELS}
    return next(each for each in model.modules() if type(each).__name__ == kinds[name])


@pytest.mark.parametrize("name", MADE)
@torch.enable_grad()
def test_packed_layer(modeling, name):
    """cu_seq_lens_q or seq_idx alone cuts a whole layer. KDA's layers hand the former on under its
    own name."""
    layer, x = layer_of(name, tiny(name)), torch.randn(1, 9, 32)
    gdn.install("transformers")
    cu, seq_idx = torch.tensor([0, 4, 9]), torch.tensor([[0] * 4 + [1] * 5])

    def run(x, **more):
        out = layer(x, **more)
        return out[0] if isinstance(out, tuple) else out

    wanted = torch.cat([run(x[:, :4]), run(x[:, 4:])], 1)
    for more in (dict(cu_seq_lens_q=cu), dict(cu_seq_lens_q=cu.int()), dict(seq_idx=seq_idx),
                 dict(cu_seq_lens_q=cu, seq_idx=seq_idx)):
        torch.testing.assert_close(run(x, **more), wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", gdn.transformers.KDA_MODELS)
def test_step_on_other_devices(modeling, monkeypatch, name):
    """KDA's layers take step() wherever their tensors lie: here on a device without values."""
    from transformers import DynamicCache

    gdn.install("transformers")
    model, calls = tiny(name), []
    layer, x = layer_of(name, model).to("meta"), torch.randn(2, 3, 32, device="meta")
    cache, step = DynamicCache(config=model.config), gdn.torch.step
    layer(x[:, :2], cache)
    monkeypatch.setattr(gdn.torch, "step", lambda *a, **b: calls.append(0) or step(*a, **b))
    assert layer(x[:, 2:], cache).shape == (2, 1, 32) and calls == [0]


@pytest.mark.parametrize("name, key, bound", [
    ("glm5_next", "linear_lower_bound", 0.0), ("bailing_hybrid", "kda_lower_bound", 0.0),
    ("bailing_hybrid", "kda_lower_bound", 0.5)])
def test_a_bound_that_step_has_not(modeling, name, key, bound):
    """step() takes a bound of 0 for none; the layer's own forward() computes it."""
    from transformers import DynamicCache

    model, found = tiny(name, **{key: bound}), []
    layer = layer_of(name, model)
    for p in layer.parameters():
        p.data.normal_(std=0.3)
    x = torch.randn(2, 3, 32)
    for installs in (False, True):
        if installs:
            gdn.install("transformers")
        cache = DynamicCache(config=model.config)
        found.append([layer(x[:, :2], cache), layer(x[:, 2:], cache)])
    torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-4)


def test_another_forget_gate(modeling):
    """A gate of another class has a forward() of its own, which is called."""
    layer = layer_of("kimi_linear", tiny("kimi_linear"))
    known = gdn.transformers._by_step._is_known
    assert known(layer)
    gate = layer.forget_gate
    gate.__class__ = type("Twice", (type(gate),), {"__module__": __name__})
    assert not known(layer)


def test_kda_is_assigned(modeling):
    module = gdn.transformers.modules().get("kimi_linear")
    if module is None:
        pytest.skip("transformers has no kimi_linear")
    for _ in range(2):
        gdn.install("transformers")
        for function in (gdn.transformers.chunk_kimi_delta_attention,
                         gdn.transformers.recurrent_kimi_delta_attention):
            assert getattr(module, function.__name__) is function


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
