# SPDX-License-Identifier: Apache-2.0
"""A small dense Qwen3.5 text model with random weights, and its logits in float64, token by token
and sum by sum. The judge of `gdn generate`; nothing but the standard library."""
import json
import math
import random
import struct
from array import array
from operator import mul

CONFIG = {
    "model_type": "qwen3_5_text",
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0,
                        "partial_rotary_factor": 0.25},
    "linear_conv_kernel_dim": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "tie_word_embeddings": True,
    "eos_token_id": None,
}
CODES = {"F32": "f", "F16": "e"}


# ---- Weights ------------------------------------------------------------------------------


def shapes(config):
    """{name: shape}, as Hugging Face names them."""
    c, hidden = config, config["hidden_size"]
    heads, values = c["linear_num_value_heads"], c["linear_value_head_dim"]
    keys = c["linear_num_key_heads"] * c["linear_key_head_dim"]
    q, kv = (c[n] * c["head_dim"] for n in ("num_attention_heads", "num_key_value_heads"))
    all_of = {"model.embed_tokens.weight": [c["vocab_size"], hidden], "model.norm.weight": [hidden]}
    if not c["tie_word_embeddings"]:
        all_of["lm_head.weight"] = [c["vocab_size"], hidden]
    linear = {
        "in_proj_qkv.weight": [2 * keys + heads * values, hidden],
        "in_proj_z.weight": [heads * values, hidden],
        "in_proj_b.weight": [heads, hidden],
        "in_proj_a.weight": [heads, hidden],
        "conv1d.weight": [2 * keys + heads * values, 1, c["linear_conv_kernel_dim"]],
        "A_log": [heads],
        "dt_bias": [heads],
        "norm.weight": [values],
        "out_proj.weight": [hidden, heads * values],
    }
    full = {
        "q_proj.weight": [2 * q, hidden],
        "k_proj.weight": [kv, hidden],
        "v_proj.weight": [kv, hidden],
        "o_proj.weight": [hidden, q],
        "q_norm.weight": [c["head_dim"]],
        "k_norm.weight": [c["head_dim"]],
    }
    for i in range(c["num_hidden_layers"]):
        mixer = ("self_attn.", full) if (i + 1) % 4 == 0 else ("linear_attn.", linear)
        layer = {
            "input_layernorm.weight": [hidden],
            "post_attention_layernorm.weight": [hidden],
            "mlp.gate_proj.weight": [c["intermediate_size"], hidden],
            "mlp.up_proj.weight": [c["intermediate_size"], hidden],
            "mlp.down_proj.weight": [hidden, c["intermediate_size"]],
            **{mixer[0] + name: shape for name, shape in mixer[1].items()},
        }
        all_of.update({f"model.layers.{i}.{name}": shape for name, shape in layer.items()})
    return all_of


def rounded(dtype, values):
    """Returns bytes of the dtype, and the values that these hold."""
    if dtype == "BF16":
        raw = b"".join(struct.pack("<f", x)[2:] for x in values)
        wide = b"".join(b"\0\0" + raw[i : i + 2] for i in range(0, len(raw), 2))
        return raw, list(array("f", wide))
    raw = struct.pack(f"<{len(values)}{CODES[dtype]}", *values)
    return raw, list(struct.unpack(f"<{len(values)}{CODES[dtype]}", raw))


def random_weights(config, seed, dtype="F32"):
    """{name: (dtype, shape, bytes)}, {name: flat list of float64}"""
    rng, tensors, values = random.Random(seed), {}, {}
    for name, shape in shapes(config).items():
        n, fan = math.prod(shape), shape[-1]
        if name.endswith("A_log"):
            flat = [math.log(rng.uniform(0.02, 0.5)) for _ in range(n)]  # outputs well above eps
        elif len(shape) == 1:
            flat = [rng.gauss(1 if "linear_attn.norm" in name else 0, 0.3) for _ in range(n)]
        else:
            flat = [rng.gauss(0, fan**-0.5) for _ in range(n)]
        raw, values[name] = rounded(dtype, flat)
        tensors[name] = (dtype, shape, raw)
    return tensors, values


def metadata(config):
    return {"format": "pt", "config": json.dumps(config)}


# ---- The model ----------------------------------------------------------------------------


def dot(a, b):
    return math.fsum(map(mul, a, b))


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def silu(x):
    return x * sigmoid(x)


def softplus(x):
    return math.log1p(math.exp(x)) if x < 30 else x


class Model:
    def __init__(self, config, values):
        self.config, self.values = config, values
        self.past = [{} for _ in range(config["num_hidden_layers"])]
        self.position = 0

    def product(self, name, x):
        w, n = self.values[name], len(x)
        return [dot(w[i : i + n], x) for i in range(0, len(w), n)]

    def norm(self, name, x):
        scale = (dot(x, x) / len(x) + self.config["rms_norm_eps"]) ** -0.5
        return [a * scale * (1 + w) for a, w in zip(x, self.values[name])]

    def linear(self, at, past, x):
        c, v = self.config, self.values
        K, V = c["linear_key_head_dim"], c["linear_value_head_dim"]
        Hk, H, taps = (c["linear_num_key_heads"], c["linear_num_value_heads"],
                       c["linear_conv_kernel_dim"])
        new = self.product(at + "in_proj_qkv.weight", x)
        window = past.setdefault("window", [[0.0] * len(new)] * (taps - 1))
        window = past["window"] = window[-(taps - 1) :] + [new]
        w = v[at + "conv1d.weight"]
        qkv = [silu(sum(w[d * taps + i] * window[i][d] for i in range(taps)))
               for d in range(len(new))]
        z = self.product(at + "in_proj_z.weight", x)
        b = self.product(at + "in_proj_b.weight", x)
        a = self.product(at + "in_proj_a.weight", x)
        states = past.setdefault("states", [[[0.0] * K for _ in range(V)] for _ in range(H)])
        out = []
        for h in range(H):
            key = h // (H // Hk)
            q, k = (self.unit(qkv[o + key * K : o + (key + 1) * K]) for o in (0, Hk * K))
            value = qkv[2 * Hk * K + h * V : 2 * Hk * K + (h + 1) * V]
            alpha = math.exp(-math.exp(v[at + "A_log"][h]) *
                             softplus(a[h] + v[at + "dt_bias"][h]))
            o = []
            for i, row in enumerate(states[h]):
                row = [alpha * s for s in row]
                u = sigmoid(b[h]) * (value[i] - dot(row, k))
                states[h][i] = row = [s + u * y for s, y in zip(row, k)]
                o.append(dot(row, q) * K**-0.5)
            scale = (dot(o, o) / V + c["rms_norm_eps"]) ** -0.5
            gate = sigmoid if c.get("output_gate_type") == "sigmoid" else silu
            out += [y * scale * w * gate(g) for y, w, g in
                    zip(o, v[at + "norm.weight"], z[h * V : (h + 1) * V])]
        return self.product(at + "out_proj.weight", out)

    @staticmethod
    def unit(x):
        scale = (dot(x, x) + 1e-6) ** -0.5
        return [a * scale for a in x]

    def rotated(self, head):
        rope, D = self.config["rope_parameters"], self.config["head_dim"]
        n, head = int(D * rope["partial_rotary_factor"]), list(head)
        for i in range(n // 2):
            angle = self.position * rope["rope_theta"] ** (-2 * i / n)
            a, b, cos, sin = head[i], head[i + n // 2], math.cos(angle), math.sin(angle)
            head[i], head[i + n // 2] = a * cos - b * sin, b * cos + a * sin
        return head

    def full(self, at, past, x):
        c, D = self.config, self.config["head_dim"]
        H, shared = c["num_attention_heads"], c["num_attention_heads"] // c["num_key_value_heads"]
        q, k, v = (self.product(f"{at}{n}_proj.weight", x) for n in "qkv")
        cut = lambda row, i: row[i * D : (i + 1) * D]
        past.setdefault("k", []).append([self.rotated(self.norm(at + "k_norm.weight", cut(k, i)))
                                         for i in range(H // shared)])
        past.setdefault("v", []).append([cut(v, i) for i in range(H // shared)])
        out = []
        for h in range(H):
            kv, gate = h // shared, cut(q, 2 * h + 1)
            head = self.rotated(self.norm(at + "q_norm.weight", cut(q, 2 * h)))
            p = [math.exp(dot(head, keys[kv]) * D**-0.5) for keys in past["k"]]
            total = math.fsum(p)
            out += [dot(p, [values[kv][i] for values in past["v"]]) / total * sigmoid(gate[i])
                    for i in range(D)]
        return self.product(at + "o_proj.weight", out)

    def logits(self, token):
        """Those after the next token."""
        c = self.config
        n, embedding = c["hidden_size"], self.values["model.embed_tokens.weight"]
        x = embedding[token * n : (token + 1) * n]
        for i, past in enumerate(self.past):
            at = f"model.layers.{i}."
            y = self.norm(at + "input_layernorm.weight", x)
            y = (self.full(at + "self_attn.", past, y) if (i + 1) % 4 == 0
                 else self.linear(at + "linear_attn.", past, y))
            x = [a + b for a, b in zip(x, y)]
            y = self.norm(at + "post_attention_layernorm.weight", x)
            gate = self.product(at + "mlp.gate_proj.weight", y)
            up = self.product(at + "mlp.up_proj.weight", y)
            y = self.product(at + "mlp.down_proj.weight", [silu(g) * u for g, u in zip(gate, up)])
            x = [a + b for a, b in zip(x, y)]
        self.position += 1
        head = "model.embed_tokens" if c["tie_word_embeddings"] else "lm_head"
        return self.product(head + ".weight", self.norm("model.norm.weight", x))
