# SPDX-License-Identifier: Apache-2.0
"""
The trainer's log-probabilities have the sampler's bits. The model samples tokens by prefill and
decode; then one pass with gradients computes the log-probabilities of the same tokens again.

    python3 examples/tinylm/same_bits.py [TOKENS]

GDN_SPLIT_INVARIANT does it for the rule. The rest of the model is torch's, whose products depend on
how many tokens they get, so here they get one (attention: one and its past).
"""

import json
import pathlib
import sys

import gdn.torch
import torch
from model import LanguageModel
from torch.nn import functional

RULE = dict(gate=gdn.GATE_RAW, beta_kind=gdn.BETA_SIGMOID, norm=gdn.NORM_L2)


class Kept:
    """What a sampler keeps of one sequence in one layer. A trainer keeps nothing."""

    def __init__(self, layer, flags):
        self.past = []  # of attention
        if layer.mixer == "linear_attn":
            net, size = layer.linear_attn, layer.linear_attn.sizes
            heads, dims = ((size["key_heads"], size["value_heads"]),
                           (size["key_dim"], size["value_dim"]))
            self.conv = dict(state=torch.zeros(1, net.conv1d.weight.shape[0], 3))
            self.rule = dict(state=torch.zeros(1, heads[1], dims[1], dims[0]))
            if flags & gdn.SPLIT_INVARIANT:
                self.rule.update(record_k=torch.zeros(1, 64, heads[0], dims[0]),
                                 record_u=torch.zeros(1, 64, heads[1], dims[1]),
                                 record_g=torch.zeros(1, 64, heads[1], 2),
                                 record_count=torch.zeros(1, dtype=torch.int32))


def alone(function, x):
    """function() of each token x [1][T][..] alone."""
    return torch.cat([function(x[:, t:t + 1]) for t in range(x.shape[1])], 1)


def delta_net(net, x, rule, flags, kept):
    qkv, z, b, a = (alone(p, x) for p in (net.in_proj_qkv, net.in_proj_z, net.in_proj_b,
                                          net.in_proj_a))
    qkv = gdn.torch.conv1d(qkv, net.conv1d.weight, activation=gdn.ACT_SILU,
                           **(kept.conv if kept else {}))
    size = net.sizes
    keys, dims = size["key_heads"] * size["key_dim"], (size["key_dim"], size["value_dim"])
    q, k, v = (y.unflatten(-1, (-1, d)) for y, d in zip(
        qkv.split((keys, keys, qkv.shape[-1] - 2 * keys), -1), (dims[0], dims[0], dims[1])))
    out = rule(q, k, v, a, b, A_log=net.A_log, dt_bias=net.dt_bias, flags=flags, **RULE,
               **(kept.rule if kept else {}))
    return alone(net.out_proj, net.norm(out, z.unflatten(-1, (-1, dims[1]))).flatten(-2))


def attention(net, x, past):
    rows = []
    for t in range(x.shape[1]):
        past.append(x[:, t:t + 1])
        rows.append(net(torch.cat(past, 1))[:, -1:])
    return torch.cat(rows, 1)


def log_probabilities(model, tokens, rule, flags=gdn.SPLIT_INVARIANT, kept=None):
    """[1][T][vocabulary] behind tokens [1][T]; rule: gdn.torch.prefill or decode."""
    x = model.model.embed_tokens(tokens)
    for i, layer in enumerate(model.model.layers):
        y, its = layer.input_layernorm(x), kept[i] if kept else None
        x = x + (delta_net(layer.linear_attn, y, rule, flags, its)
                 if layer.mixer == "linear_attn" else
                 attention(layer.self_attn, y, its.past if its else []))
        x = x + alone(layer.mlp, layer.post_attention_layernorm(x))
    head = model.model.embed_tokens.weight
    return alone(lambda y: functional.linear(y, head).log_softmax(-1), model.model.norm(x))


@torch.no_grad()
def sample(model, prompt, n, flags=gdn.SPLIT_INVARIANT):
    """n tokens behind a prompt [1][T], and their log-probabilities."""
    kept = [Kept(layer, flags) for layer in model.model.layers]
    tokens, found, rule = [], [], gdn.torch.prefill
    new = prompt
    for _ in range(n):
        logs = log_probabilities(model, new, rule, flags, kept)[:, -1]
        new, rule = torch.multinomial(logs.exp(), 1), gdn.torch.decode
        tokens.append(new)
        found.append(logs.gather(1, new))
    return torch.cat(tokens, 1), torch.cat(found, 1)


def again(model, prompt, tokens, flags=gdn.SPLIT_INVARIANT):
    """The same log-probabilities in one pass, with gradients."""
    logs = log_probabilities(model, torch.cat((prompt, tokens[:, :-1]), 1), gdn.torch.prefill,
                             flags)
    return logs[:, prompt.shape[1] - 1:].gather(2, tokens[:, :, None])[:, :, 0]


def load(folder):
    """The trained model in float32."""
    model, data = LanguageModel(), (folder / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    tensors = {name: torch.frombuffer(bytearray(data[start + at["data_offsets"][0]:start +
                                                     at["data_offsets"][1]]),
                                      dtype=torch.bfloat16).view(at["shape"])
               for name, at in json.loads(data[8:start]).items() if name != "__metadata__"}
    model.load_state_dict(tensors)
    return model


def main(n):
    torch.manual_seed(0)
    model = load(pathlib.Path(__file__).parent / "model")
    prompt = torch.tensor([list(b"The delta rule writes what is new. ")])
    for flags, name in (gdn.SPLIT_INVARIANT, "GDN_SPLIT_INVARIANT"), (0, "no flag"):
        tokens, sampled = sample(model, prompt, n, flags)
        trained = again(model, prompt, tokens, flags)
        trained.sum().backward()
        differ = (sampled != trained).sum().item()
        print(f"{name}: {differ} of {n} log-probabilities differ, by at most "
              f"{(sampled - trained).abs().max().item():.1e}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
