# SPDX-License-Identifier: Apache-2.0
"""
A small language model of Qwen3.5's kind over bytes: Gated DeltaNet in three layers of four, gated
attention in the fourth. Parameters have the names of transformers' Qwen3_5ForCausalLM.
"""

import gdn.torch
import torch
from torch import nn
from torch.nn import functional

CONFIG = dict(
    architectures=["Qwen3_5ForCausalLM"], model_type="qwen3_5_text", vocab_size=256,
    hidden_size=128, intermediate_size=256, num_hidden_layers=4, hidden_act="silu",
    layer_types=["linear_attention"] * 3 + ["full_attention"],
    num_attention_heads=4, num_key_value_heads=2, head_dim=32, attention_bias=False,
    linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=32,
    linear_value_head_dim=32, linear_conv_kernel_dim=4, rms_norm_eps=1e-6, initializer_range=0.02,
    tie_word_embeddings=True, max_position_embeddings=32768, attention_dropout=0.0,
    rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.25))


class Norm(nn.Module):
    """RMSNorm whose weight is that of the paper less 1."""

    def __init__(self, size, eps):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.zeros(size))

    def forward(self, x):
        return gdn.torch.rmsnorm_gated(x, weight=1 + self.weight, eps=self.eps)


def rotate(x, base, size):
    """Rotary position embedding of the first `size` values of x [B][heads][T][dim]."""
    half = torch.arange(0, size, 2, device=x.device) / size
    angle = torch.arange(x.shape[-2], device=x.device)[:, None] * base ** -half
    cos, sin = angle.cos(), angle.sin()
    first, second, rest = x.split((size // 2, size // 2, x.shape[-1] - size), -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), -1)


class Attention(nn.Module):
    """Attention; the sigmoid of a gate multiplies its output. q_proj gives q and gate of a head."""

    def __init__(self, config):
        super().__init__()
        hidden, self.dim, rope = (config["hidden_size"], config["head_dim"],
                                  config["rope_parameters"])
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.rope = rope["rope_theta"], int(self.dim * rope["partial_rotary_factor"])
        self.q_proj = nn.Linear(hidden, 2 * heads * self.dim, bias=False)
        self.k_proj = nn.Linear(hidden, kv_heads * self.dim, bias=False)
        self.v_proj = nn.Linear(hidden, kv_heads * self.dim, bias=False)
        self.o_proj = nn.Linear(heads * self.dim, hidden, bias=False)
        self.q_norm = Norm(self.dim, config["rms_norm_eps"])
        self.k_norm = Norm(self.dim, config["rms_norm_eps"])

    def forward(self, x):
        q, gate = self.q_proj(x).unflatten(-1, (-1, 2 * self.dim)).chunk(2, -1)
        k, v = (p(x).unflatten(-1, (-1, self.dim)) for p in (self.k_proj, self.v_proj))
        q, k = (rotate(norm(y).transpose(1, 2), *self.rope)
                for norm, y in ((self.q_norm, q), (self.k_norm, k)))
        out = functional.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True,
                                                      enable_gqa=True)
        return self.o_proj((out.transpose(1, 2) * gate.sigmoid()).flatten(-2))


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, hidden, wide):
        super().__init__()
        self.gate_proj = nn.Linear(hidden, wide, bias=False)
        self.up_proj = nn.Linear(hidden, wide, bias=False)
        self.down_proj = nn.Linear(wide, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


def delta_net(config):
    """The layer of libgdn that the configuration describes."""
    return gdn.torch.GatedDeltaNet(
        config["hidden_size"], config["linear_num_key_heads"], config["linear_num_value_heads"],
        config["linear_key_head_dim"], config["linear_value_head_dim"],
        config["linear_conv_kernel_dim"], config["rms_norm_eps"])


class Layer(nn.Module):
    def __init__(self, config, kind):
        super().__init__()
        hidden, eps = config["hidden_size"], config["rms_norm_eps"]
        self.mixer = "linear_attn" if kind == "linear_attention" else "self_attn"
        self.add_module(self.mixer, (delta_net if self.mixer == "linear_attn" else
                                     Attention)(config))
        self.mlp = Mlp(hidden, config["intermediate_size"])
        self.input_layernorm, self.post_attention_layernorm = Norm(hidden, eps), Norm(hidden, eps)

    def forward(self, x):
        x = x + getattr(self, self.mixer)(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = nn.ModuleList(Layer(config, kind) for kind in config["layer_types"])
        self.norm = Norm(config["hidden_size"], config["rms_norm_eps"])

    def forward(self, tokens):
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class LanguageModel(nn.Module):
    """Logits [B][T][vocabulary] of tokens [B][T]. The head is the embedding."""

    def __init__(self, config=CONFIG):
        super().__init__()
        self.model = Trunk(config)
        for name, p in self.named_parameters():
            if name.endswith("A_log"):
                p.data.uniform_(0.01, 16).log_()
            elif p.dim() == 2:
                p.data.normal_(0, config["initializer_range"])

    def forward(self, tokens):
        return functional.linear(self.model(tokens), self.model.embed_tokens.weight)


def by_transformers(config=CONFIG):
    """The same model of transformers, whose layers run by torch's own operators."""
    import sys

    sys.modules.setdefault("fla", None)  # transformers would take kernels that need a GPU
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    return Qwen3_5ForCausalLM(Qwen3_5TextConfig(**config))
