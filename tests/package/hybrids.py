# SPDX-License-Identifier: Apache-2.0
"""Small random models of OLMo-Hybrid and Kimi-Linear, and their logits in float64, as qwen35.py has
them of Qwen3.5."""
import math
import random

from qwen35 import Model, dot, rounded, sigmoid, silu, softplus

_COMMON = {"vocab_size": 256, "hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 4,
           "num_attention_heads": 4, "hidden_act": "silu", "linear_conv_kernel_dim": 4,
           "layer_types": ["linear_attention"] * 3 + ["full_attention"],
           "tie_word_embeddings": False, "eos_token_id": None}
OLMO = dict(_COMMON, model_type="olmo_hybrid", num_key_value_heads=2, rms_norm_eps=1e-6,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=12,
            linear_value_head_dim=24, linear_allow_neg_eigval=True)
KIMI = dict(_COMMON, model_type="kimi_linear", rms_norm_eps=1e-5, linear_num_heads=2,
            linear_head_dim=16, kv_lora_rank=12, qk_nope_head_dim=16, qk_rope_head_dim=8,
            v_head_dim=20, q_lora_rank=None, mlp_layer_types=["dense"] * 4)


# ---- Weights ------------------------------------------------------------------------------


def _olmo_layer(c, full):
    hidden, D = c["hidden_size"], c["hidden_size"] // c["num_attention_heads"]
    if full:
        kv = c["num_key_value_heads"] * D
        return {"post_attention_layernorm.weight": [hidden],
                "post_feedforward_layernorm.weight": [hidden],
                "self_attn.q_proj.weight": [hidden, hidden],
                "self_attn.k_proj.weight": [kv, hidden], "self_attn.v_proj.weight": [kv, hidden],
                "self_attn.o_proj.weight": [hidden, hidden],
                "self_attn.q_norm.weight": [hidden], "self_attn.k_norm.weight": [kv]}
    heads, taps = c["linear_num_value_heads"], c["linear_conv_kernel_dim"]
    keys = c["linear_num_key_heads"] * c["linear_key_head_dim"]
    values = heads * c["linear_value_head_dim"]
    own = {"q_proj.weight": [keys, hidden], "k_proj.weight": [keys, hidden],
           "v_proj.weight": [values, hidden], "g_proj.weight": [values, hidden],
           "b_proj.weight": [heads, hidden], "a_proj.weight": [heads, hidden],
           "q_conv1d.weight": [keys, 1, taps], "k_conv1d.weight": [keys, 1, taps],
           "v_conv1d.weight": [values, 1, taps], "A_log": [heads], "dt_bias": [heads],
           "o_norm.weight": [c["linear_value_head_dim"]], "o_proj.weight": [hidden, values]}
    return {"input_layernorm.weight": [hidden], "post_attention_layernorm.weight": [hidden],
            **{"linear_attn." + name: shape for name, shape in own.items()}}


def _kimi_layer(c, full):
    hidden = c["hidden_size"]
    if full:
        heads, rank, shared = c["num_attention_heads"], c["kv_lora_rank"], c["qk_rope_head_dim"]
        own, V = c["qk_nope_head_dim"], c["v_head_dim"]
        mixer = {"q_proj.weight": [heads * (own + shared), hidden],
                 "kv_a_proj_with_mqa.weight": [rank + shared, hidden],
                 "kv_a_layernorm.weight": [rank],
                 "kv_b_proj.weight": [heads * (own + V), rank],
                 "o_proj.weight": [hidden, heads * V]}
    else:
        heads, K, taps = c["linear_num_heads"], c["linear_head_dim"], c["linear_conv_kernel_dim"]
        n = heads * K
        mixer = {**{f"{x}_proj.weight": [n, hidden] for x in "qkv"},
                 **{f"{x}_conv1d.weight": [n, 1, taps] for x in "qkv"},
                 "f_a_proj.weight": [K, hidden], "f_b_proj.weight": [n, K],
                 "g_a_proj.weight": [K, hidden], "g_b_proj.weight": [n, K],
                 "b_proj.weight": [heads, hidden], "A_log": [1, 1, heads, 1], "dt_bias": [n],
                 "o_norm.weight": [K], "o_proj.weight": [hidden, n]}
    return {"input_layernorm.weight": [hidden], "post_attention_layernorm.weight": [hidden],
            **{"self_attn." + name: shape for name, shape in mixer.items()}}


def shapes(c):
    """{name: shape}, as Hugging Face's files have them."""
    hidden, wide = c["hidden_size"], c["intermediate_size"]
    all_of = {"model.embed_tokens.weight": [c["vocab_size"], hidden],
              "model.norm.weight": [hidden], "lm_head.weight": [c["vocab_size"], hidden]}
    layer_of = _olmo_layer if c["model_type"] == "olmo_hybrid" else _kimi_layer
    for i, kind in enumerate(c["layer_types"]):
        layer = {**layer_of(c, kind == "full_attention"), "mlp.gate_proj.weight": [wide, hidden],
                 "mlp.up_proj.weight": [wide, hidden], "mlp.down_proj.weight": [hidden, wide]}
        all_of.update({f"model.layers.{i}.{name}": shape for name, shape in layer.items()})
    return all_of


def random_weights(config, seed, dtype="F32"):
    """{name: (dtype, shape, bytes)}, {name: flat list of float64}"""
    rng, tensors, values = random.Random(seed), {}, {}
    for name, shape in shapes(config).items():
        n, fan = math.prod(shape), shape[-1]
        if name.endswith("A_log"):
            flat = [math.log(rng.uniform(0.02, 0.5)) for _ in range(n)]
        elif len(shape) == 1:
            flat = [rng.gauss(0 if "dt_bias" in name else 1, 0.3) for _ in range(n)]
        else:
            flat = [rng.gauss(0, fan**-0.5) for _ in range(n)]
        raw, values[name] = rounded(dtype, flat)
        tensors[name] = (dtype, shape, raw)
    return tensors, values


# ---- The models ---------------------------------------------------------------------------


class Hybrid(Model):
    def norm(self, name, x, eps=None):
        scale = (dot(x, x) / len(x) + (eps or self.config["rms_norm_eps"])) ** -0.5
        return [a * scale * w for a, w in zip(x, self.values[name])]

    def convolved(self, at, past, x):
        """q, k and v: each projected, and its own convolution."""
        taps, out = self.config["linear_conv_kernel_dim"], []
        for letter in "qkv":
            new, w = self.product(f"{at}{letter}_proj.weight", x), self.values[
                f"{at}{letter}_conv1d.weight"]
            window = past.setdefault(letter, [[0.0] * len(new)] * (taps - 1))
            window = past[letter] = window[-(taps - 1) :] + [new]
            out.append([silu(sum(w[d * taps + i] * window[i][d] for i in range(taps)))
                        for d in range(len(new))])
        return out

    def rule(self, past, q, k, v, alpha, beta, Hk, K, V):
        """The outputs of all heads; alpha [H][K], beta [H]."""
        H, out = len(beta), []
        states = past.setdefault("states", [[[0.0] * K for _ in range(V)] for _ in range(H)])
        for h in range(H):
            at = h // (H // Hk) * K
            query, key = self.unit(q[at : at + K]), self.unit(k[at : at + K])
            for i, row in enumerate(states[h]):
                row = [a * s for a, s in zip(alpha[h], row)]
                u = beta[h] * (v[h * V + i] - dot(row, key))
                states[h][i] = row = [s + u * y for s, y in zip(row, key)]
                out.append(dot(row, query) * K**-0.5)
        return out

    def gated(self, name, out, z, V, gate, eps):
        return [y * gate(g) for h in range(0, len(out), V)
                for y, g in zip(self.norm(name, out[h : h + V], eps), z[h : h + V])]

    def attend(self, past, q, keys, values):
        """q [H][D]; keys and values of this token [heads][..], kept in past."""
        past.setdefault("k", []).append(keys)
        past.setdefault("v", []).append(values)
        out = []
        for h, head in enumerate(q):
            kv = h // (len(q) // len(keys))
            p = [math.exp(dot(head, k[kv]) * len(head) ** -0.5) for k in past["k"]]
            total = math.fsum(p)
            out += [dot(p, [v[kv][i] for v in past["v"]]) / total for i in range(len(values[0]))]
        return out

    def mlp(self, at, x):
        gate, up = (self.product(f"{at}{n}_proj.weight", x) for n in ("gate", "up"))
        return self.product(at + "down_proj.weight", [silu(g) * u for g, u in zip(gate, up)])

    def logits(self, token):
        n, embedding = self.config["hidden_size"], self.values["model.embed_tokens.weight"]
        x = embedding[token * n : (token + 1) * n]
        for i, past in enumerate(self.past):
            x = self.layer(f"model.layers.{i}.", past, x,
                           self.config["layer_types"][i] == "full_attention")
        self.position += 1
        return self.product("lm_head.weight", self.norm("model.norm.weight", x))

    def before(self, at, past, x, full):
        """A layer with norms before its parts."""
        y = self.norm(at + "input_layernorm.weight", x)
        x = [a + b for a, b in zip(x, (self.full if full else self.linear)(at, past, y))]
        y = self.norm(at + "post_attention_layernorm.weight", x)
        return [a + b for a, b in zip(x, self.mlp(at + "mlp.", y))]


def cut(row, size):
    return [row[i : i + size] for i in range(0, len(row), size)]


class Olmo(Hybrid):
    def layer(self, at, past, x, full):
        if not full:
            return self.before(at, past, x, full)
        y = self.norm(at + "post_attention_layernorm.weight", self.full(at, past, x))
        x = [a + b for a, b in zip(x, y)]
        y = self.norm(at + "post_feedforward_layernorm.weight", self.mlp(at + "mlp.", x))
        return [a + b for a, b in zip(x, y)]

    def linear(self, at, past, x):
        c, at = self.config, at + "linear_attn."
        K, V, Hk = (c["linear_key_head_dim"], c["linear_value_head_dim"],
                    c["linear_num_key_heads"])
        q, k, v = self.convolved(at, past, x)
        a, b = (self.product(f"{at}{n}_proj.weight", x) for n in "ab")
        alpha = [[math.exp(-math.exp(A) * softplus(x + dt))] * K for A, x, dt in
                 zip(self.values[at + "A_log"], a, self.values[at + "dt_bias"])]
        out = self.rule(past, q, k, v, alpha, [2 * sigmoid(x) for x in b], Hk, K, V)
        z = self.product(at + "g_proj.weight", x)
        return self.product(at + "o_proj.weight",
                            self.gated(at + "o_norm.weight", out, z, V, silu, 1e-5))

    def rotated(self, head):
        theta, D, head = self.config["rope_parameters"]["rope_theta"], len(head), list(head)
        for i in range(D // 2 if theta else 0):
            angle = self.position * theta ** (-2 * i / D)
            a, b, cos, sin = head[i], head[i + D // 2], math.cos(angle), math.sin(angle)
            head[i], head[i + D // 2] = a * cos - b * sin, b * cos + a * sin
        return head

    def full(self, at, past, x):
        at, D = at + "self_attn.", self.config["hidden_size"] // self.config["num_attention_heads"]
        q, k = ([self.rotated(head) for head in
                 cut(self.norm(f"{at}{n}_norm.weight", self.product(f"{at}{n}_proj.weight", x)), D)]
                for n in "qk")
        v = cut(self.product(at + "v_proj.weight", x), D)
        return self.product(at + "o_proj.weight", self.attend(past, q, k, v))


class Kimi(Hybrid):
    layer = Hybrid.before

    def linear(self, at, past, x):
        c, at = self.config, at + "self_attn."
        H, K, v = c["linear_num_heads"], c["linear_head_dim"], self.values
        low = lambda n: self.product(f"{at}{n}_b_proj.weight",
                                     self.product(f"{at}{n}_a_proj.weight", x))
        alpha = cut([math.exp(-math.exp(v[at + "A_log"][i // K]) * softplus(a + dt))
                     for i, (a, dt) in enumerate(zip(low("f"), v[at + "dt_bias"]))], K)
        beta = [sigmoid(b) for b in self.product(at + "b_proj.weight", x)]
        out = self.rule(past, *self.convolved(at, past, x), alpha, beta, H, K, K)
        return self.product(at + "o_proj.weight", self.gated(
            at + "o_norm.weight", out, low("g"), K, sigmoid, c["rms_norm_eps"]))

    def full(self, at, past, x):
        c, at = self.config, at + "self_attn."
        own, shared, V = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
        q = cut(self.product(at + "q_proj.weight", x), own + shared)
        latent = self.product(at + "kv_a_proj_with_mqa.weight", x)
        rank = c["kv_lora_rank"]
        rows = cut(self.product(at + "kv_b_proj.weight",
                                self.norm(at + "kv_a_layernorm.weight", latent[:rank], 1e-6)),
                   own + V)
        keys = [row[:own] + latent[rank:] for row in rows]
        return self.product(at + "o_proj.weight",
                            self.attend(past, q, keys, [row[own:] for row in rows]))
