# SPDX-License-Identifier: Apache-2.0
"""gdn.transformers: its functions against float64; and tiny models, if transformers is
installed."""

import copy

import pytest
import samples
import torch

import gdn
import gdn.transformers


@pytest.mark.parametrize("name", ("chunk", "recurrent"))
def test_functions(name):
    a = samples.rule("cpu")
    start = torch.randn(samples.B, samples.HV, samples.V, samples.K)
    wanted = samples.reference(a["q"], a["k"], a["v"], a["g"], a["beta"], start)
    call = getattr(gdn.transformers, f"torch_{name}_gated_delta_rule")
    out, final = call(a["q"], a["k"], a["v"], a["g"], a["beta"], output_final_state=True,
                      initial_state=start.transpose(-1, -2).contiguous())
    for got, right in zip((out, final.transpose(-1, -2)), wanted):
        torch.testing.assert_close(got.double(), right, atol=1e-5, rtol=1e-5)


def tiny(modeling):
    from transformers import Qwen3_5TextConfig

    config = Qwen3_5TextConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, linear_num_key_heads=2,
        linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16,
        layer_types=["linear_attention", "full_attention"])
    return modeling.Qwen3_5ForCausalLM(config)


def test_model(modeling, monkeypatch):
    model = tiny(modeling).eval()
    tokens = torch.randint(0, 64, (2, 11))

    def logits():
        first = model(tokens[:, :9], use_cache=True)
        then = model(tokens[:, 9:10], past_key_values=first.past_key_values, use_cache=True)
        last = model(tokens[:, 10:], past_key_values=then.past_key_values, use_cache=True)
        return torch.cat([first.logits, then.logits, last.logits], 1)

    wanted, calls = logits(), []
    gdn.install("transformers")
    for name in ("prefill", "decode", "conv1d", "step"):
        def counted(*args, _name=name, _call=getattr(gdn.torch, name), **kwargs):
            calls.append(_name)
            return _call(*args, **kwargs)
        monkeypatch.setattr(gdn.torch, name, counted)
    got = logits()
    assert sorted(calls) == ["conv1d", "prefill", "step", "step"]
    torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("is_next", (False, True), ids=("qwen3_5", "qwen3_next"))
def test_step(modeling, monkeypatch, is_next):
    """One token by step() leaves the output and the states of the layer's own forward(), which a
    hook of the norm asks for."""
    model = (tiny_next() if is_next else tiny(modeling)).eval()
    gdn.install("transformers")
    layer, x = model.model.layers[0].linear_attn, torch.randn(2, 1, 32)
    first = model(torch.randint(0, 64, (2, 9)), use_cache=True)
    caches = [copy.deepcopy(first.past_key_values) for _ in range(2)]
    steps, seen = [], []

    def counted(*args, _call=gdn.torch.step, **kwargs):
        steps.append(args)
        return _call(*args, **kwargs)
    monkeypatch.setattr(gdn.torch, "step", counted)
    outs = [layer(x, caches[0])]
    with layer.norm.register_forward_hook(lambda *args: seen.append(args)):
        outs.append(layer(x, caches[1]))
    assert len(steps) == len(seen) == 1
    torch.testing.assert_close(*outs, atol=1e-5, rtol=1e-5)
    for name in ("conv_states", "recurrent_states"):
        got, right = (getattr(cache.layers[0], name)[0] for cache in caches)
        torch.testing.assert_close(got, right, atol=1e-6, rtol=1e-5)
        assert not torch.equal(got, getattr(first.past_key_values.layers[0], name)[0])


def tiny_next():
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    config = Qwen3NextConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, linear_num_key_heads=2,
        linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16,
        num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
        shared_expert_intermediate_size=16, layer_types=["linear_attention", "full_attention"])
    return Qwen3NextForCausalLM(config)


@pytest.mark.parametrize("is_next", (False, True), ids=("qwen3_5", "qwen3_next"))
def test_generate(modeling, is_next):
    """Greedy tokens, also with a static cache, and logits in float32 to rounding."""
    model = (tiny_next() if is_next else tiny(modeling)).eval()
    tokens = torch.randint(1, 64, (2, 9))
    options = dict(do_sample=False, max_new_tokens=8, eos_token_id=None, pad_token_id=0,
                   return_dict_in_generate=True, output_logits=True)

    def generated():
        return [model.generate(tokens, **options, **cache)
                for cache in ({}, dict(cache_implementation="static", disable_compile=True))]

    wanted = generated()
    gdn.install("transformers")
    for ours, theirs in zip(generated(), wanted):
        assert torch.equal(ours.sequences, theirs.sequences)
        torch.testing.assert_close(torch.stack(ours.logits), torch.stack(theirs.logits),
                                   atol=1e-5, rtol=1e-4)


def test_training(modeling):
    """Ten steps from one start have the losses of transformers' own functions to rounding."""
    torch.manual_seed(1)
    tokens, curves, start = torch.randint(0, 64, (2, 24)), [], tiny(modeling)
    for installs in (False, True):
        if installs:
            gdn.install("transformers")
        model, curve = copy.deepcopy(start), []
        adam = torch.optim.Adam(model.parameters(), 3e-3)
        for _ in range(10):
            with torch.enable_grad():
                loss = model(tokens, labels=tokens, use_cache=False).loss
                adam.zero_grad()
                loss.backward()
            adam.step()
            curve.append(loss.item())
        curves.append(torch.tensor(curve))
    torch.testing.assert_close(*curves, atol=1e-4, rtol=0)
    assert curves[1][-1] < curves[1][0] - 0.5


def test_signature(modeling, monkeypatch):
    monkeypatch.setattr(modeling, "causal_conv1d_fn", lambda x: x)
    before = modeling.causal_conv1d_update
    with pytest.raises(ImportError, match="gdn takes"):
        gdn.install("transformers")
    assert modeling.causal_conv1d_update is before
    with pytest.raises(ValueError, match="numpy"):
        gdn.install("numpy")


@pytest.mark.parametrize("is_next", (False, True), ids=("qwen3_5", "qwen3_next"))
@torch.enable_grad()
def test_packed_layer(modeling, is_next):
    """cu_seq_lens_q or seq_idx alone cuts a whole layer, gradients included."""
    model = (tiny_next() if is_next else tiny(modeling))
    gdn.install("transformers")
    layer, x = model.model.layers[0].linear_attn, torch.randn(1, 9, 32)
    weights = torch.randn(1, 9, 32)
    cu, seq_idx = torch.tensor([0, 4, 9]), torch.tensor([[0] * 4 + [1] * 5])

    def run(parts, **more):
        given = x.clone().requires_grad_()
        out = torch.cat([layer(given[:, s], **more) for s in parts], 1)
        (out * weights).sum().backward()
        return out, given.grad

    wanted = run((slice(0, 4), slice(4, 9)))
    for more in (dict(cu_seq_lens_q=cu), dict(seq_idx=seq_idx),
                 dict(cu_seq_lens_q=cu, seq_idx=seq_idx)):
        for got, right in zip(run((slice(0, 9),), **more), wanted):
            torch.testing.assert_close(got, right, atol=1e-5, rtol=1e-4)
