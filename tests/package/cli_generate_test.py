#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`gdn generate`, from outside: cli_generate_test.py GDN [--filter WORD]

Models are random and small; qwen35.py computes their logits in float64. Where transformers is
installed, it judges too.
"""
import json
import math
import os
import random
import re
import shlex
import subprocess
import sys
from array import array

import cli_test as cli
import qwen35
from cli_test import BAD, OK, Skip, build, check, load, pack, refused, save, write

PROMPT = "The delta rule writes what the state does not know."


def out(name="out"):
    return os.path.join(cli.FOLDER, name)


def model(seed=1, dtype="F32", name="model.safetensors", **changes):
    """A file with everything in it; its config, tensors and values."""
    config = dict(qwen35.CONFIG, **changes)
    tensors, values = qwen35.random_weights(config, seed, dtype)
    return save(name, qwen35.metadata(config), tensors), config, tensors, values


def generate(path, *args, prompt=PROMPT):
    """The bytes of the text, the tokens and the logits (rows of floats) of --logits."""
    args = [*args, "--logits", out("logits")]
    if prompt:
        args += ["-p", prompt]
    p = subprocess.run([cli.GDN, "generate", path, *args], capture_output=True, timeout=300)
    check(p.returncode == OK and not p.stderr, p.returncode, p.stderr, args)
    _, tensors = load(out("logits"))
    tokens = list(array("i", tensors["tokens"][2]))
    rows, vocab = tensors["logits"][1]
    flat = array("f", tensors["logits"][2])
    return p.stdout, tokens, [flat[i * vocab : (i + 1) * vocab] for i in range(rows)]


# ---- Logits and text ----------------------------------------------------------------------


def judge(path, config, values, n=12):
    """Logits within 1e-4 of float64, each token the largest."""
    text, tokens, logits = generate(path, "-n", str(n))
    start = len(PROMPT)
    check(bytes(tokens) == text and text.startswith(PROMPT.encode()), text, tokens)
    check(len(tokens) == start + n and len(logits) == start + n - 1, len(tokens), len(logits))
    reference, worst, size = qwen35.Model(config, values), 0, 0
    for i, row in enumerate(logits):
        want = reference.logits(tokens[i])
        worst = max(worst, *(abs(a - b) for a, b in zip(row, want)))
        size = max(size, cli.rms(want))
        if i + 1 >= start:
            check(want.index(max(want)) == tokens[i + 1], "token", i + 1, tokens[i + 1])
    check(worst < 1e-4 and size > 0.3, "logits are off by", worst, "of", size)


def test_logits():
    path, config, _, values = model()
    judge(path, config, values)


def test_logits_bf16_own_head():
    path, config, _, values = model(2, "BF16", tie_word_embeddings=False)
    judge(path, config, values)


def test_a_sigmoid_gate():
    path, config, _, values = model(4, output_gate_type="sigmoid")
    judge(path, config, values, 4)


def test_logits_f16():
    path, config, _, values = model(3, "F16")
    judge(path, config, values, 4)


def test_transformers():
    sys.modules.setdefault("fla", None)  # its kernels need a GPU
    try:
        import torch
        from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig
    except ImportError as missing:
        raise Skip(str(missing))
    path, config, tensors, values = model(5, tie_word_embeddings=False)
    theirs = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**config)).eval()
    weights = {name: torch.tensor(values[name]).reshape(shape)
               for name, (_, shape, _) in tensors.items()}
    theirs.load_state_dict(weights, strict=True)
    text, tokens, logits = generate(path, "-n", "24")
    with torch.no_grad():
        want = theirs(torch.tensor([tokens])).logits[0, : len(logits)]
        greedy = theirs.generate(torch.tensor([list(PROMPT.encode())]), max_new_tokens=24,
                                 do_sample=False, pad_token_id=0)
    error = (torch.tensor([list(row) for row in logits]) - want).abs().max().item()
    check(error < 1e-4, "logits are off by", error)
    check(bytes(greedy[0].tolist()) == text, text, greedy)


def test_threads():
    """No bit depends on threads; a long prompt has several windows."""
    path, *_ = model()
    prompt = PROMPT * 6
    one = generate(path, "-n", "6", "--threads", "1", prompt=prompt)
    check(one == generate(path, "-n", "6", "--threads", "3", prompt=prompt), "threads change bits")


def test_tinylm():
    """The last command of `make run` writes the text of its page, whatever computes it."""
    command, = re.findall(r"gdn (generate examples/tinylm/.*)", open("Makefile").read())
    page = open("examples/tinylm/README.md").read()
    for more in ([], ["--threads", "1"], ["--isa", "scalar"]):
        p = subprocess.run([cli.GDN, *shlex.split(command), *more], capture_output=True, timeout=60)
        check(p.returncode == OK, p.stderr)
        check(f"{command}\n{p.stdout.decode()}\n```" in page, p.stdout, more)


# ---- Sampling -----------------------------------------------------------------------------


def random_number(seed, position):
    mask = (1 << 64) - 1
    z = (seed * 0xD1342543DE82EF95 + position * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & mask
    return ((z ^ z >> 31) >> 11) * 2.0**-53


def test_help_and_speed():
    status, text, err = cli.gdn("generate", "--help")
    check(status == OK and not err and "--load-state" in text, text, err)
    check("gdn generate" in cli.gdn("--help")[1], "not in gdn --help")
    status, text, err = cli.gdn("generate", model()[0], "-p", "ab", "-n", "0", "--speed")
    check(status == OK and text == "ab" and "prompt 2 tokens" in err, status, text, err)


def test_temperature():
    """The logits, the temperature and the seed decide the tokens."""
    path, *_ = model()
    texts = set()
    for temperature, seed in ((0.8, 0), (0.8, 7), (2.5, 7)):
        text, tokens, logits = generate(path, "-n", "40", f"-t={temperature}", f"--seed={seed}")
        for i in range(len(PROMPT), len(tokens)):
            row = logits[i - 1]
            p = [math.exp((x - max(row)) / temperature) for x in row]
            at, token = math.fsum(p) * random_number(seed, i), 0
            while at >= p[token]:
                at -= p[token]
                token += 1
            check(token == tokens[i], "token", i, "is", tokens[i], "wanted", token)
        texts.add(text)
    check(len(texts) == 3, "equal texts")


def test_end():
    """The text ends before a token of eos_token_id."""
    _, tokens, _ = generate(model()[0], "-n", "12")
    end = tokens[len(PROMPT) + 5]
    want = tokens[: tokens.index(end, len(PROMPT))]
    for ends in (end, [300, end]):
        _, stopped, _ = generate(model(eos_token_id=ends)[0], "-n", "12")
        check(stopped == want, stopped, want)


def test_known_keys():
    """Keys that change nothing are let through."""
    path, config, tensors, _ = model()
    want = generate(path, "-n", "4")
    rope = {"rope_type": "default", "type": "mrope", "rope_theta": 10000.0,
            "mrope_section": [1, 1, 1], "mrope_interleaved": True, "partial_rotary_factor": 0.25}
    more = dict(config, architectures=["Qwen3_5ForCausalLM"], rope_parameters=rope,
                rope_scaling=None, attn_output_gate=True, output_gate_type="swish",
                dtype="bfloat16", use_cache=True,
                attention_bias=False, mlp_only_layers=[], mamba_ssm_dtype="float32",
                transformers_version="5.24.0", max_position_embeddings=262144, bos_token_id=1,
                mtp_num_hidden_layers=1, _name_or_path="x", unsloth_fixed=True, new_option=None,
                id2label={"0": "a"}, temperature=0.7, repetition_penalty=1.0)
    check(generate(folder(more, {"model.safetensors": tensors}), "-n", "4") == want, "another text")


def test_generation_config():
    """Ends of generation_config.json take the place of those of config.json."""
    path, config, tensors, _ = model()
    _, tokens, _ = generate(path, "-n", "12")
    first, end = tokens[len(PROMPT)], tokens[len(PROMPT) + 5]
    where = folder(dict(config, eos_token_id=first), {"model.safetensors": tensors})
    for ends in (end, [300, end]):
        write("folder/generation_config.json", json.dumps({"eos_token_id": ends, "top_k": 20,
                                                           "do_sample": True}).encode())
        _, stopped, _ = generate(where, "-n", "12")
        check(stopped == tokens[: tokens.index(end, len(PROMPT))], stopped, tokens)
    write("folder/generation_config.json", b"{}")
    check(generate(where, "-n", "12")[1] == tokens[: len(PROMPT)], "config.json has an end")
    for text, name in ((b"{", "not JSON"), (b'{"eos_token_id": "x"}', "eos_token_id"),
                       (b'{"suppress_tokens": [3]}', "suppress_tokens"),
                       (b'{"repetition_penalty": 1.05}', "repetition_penalty"),
                       (b'{"some_option": 1}', "some_option"), (b"[]", "not an object")):
        write("folder/generation_config.json", text)
        refused("generate", where, "-p", "a", names=["generation_config.json", name])


# ---- States -------------------------------------------------------------------------------


def test_state():
    """A text that is saved twice and continued: the same bytes, tokens and logits."""
    path, *_ = model()
    for options in ([], ["-t", "0.9", "--seed", "3"]):
        text, tokens, logits = generate(path, "-n", "30", *options)
        parts = [generate(path, "-n", "11", "--save-state", out("s"), *options)]
        parts += [generate(path, "-n", "9", "--load-state", out("s"), "--save-state", out("s"),
                           prompt=None)]
        parts += [generate(path, "-n", "10", "--load-state", out("s"), prompt=None)]
        check(b"".join(p[0] for p in parts) == text, parts, text)
        check(sum((p[1] for p in parts), []) == tokens, "tokens differ")
        check(sum((p[2] for p in parts), []) == logits, "logits differ")


def test_state_and_prompt():
    """--exact: a prompt in two parts is the prompt."""
    path, *_ = model()
    whole = generate(path, "-n", "10", "--exact")
    generate(path, "-n", "0", "--exact", "--save-state", out("s"), prompt=PROMPT[:17])
    rest = generate(path, "-n", "10", "--exact", "--load-state", out("s"), prompt=PROMPT[17:])
    check(PROMPT[:17].encode() + rest[0] == whole[0], rest[0], whole[0])
    check(rest[2] == whole[2][17:], "logits differ")


def test_state_refused():
    path, *_ = model()
    generate(path, "-n", "3", "--save-state", out("s"))
    metadata, tensors = load(out("s"))

    def bad(*names, model=path):
        refused("generate", model, "--load-state", out("bad"), names=names)

    def changed(metadata=metadata, **changes):
        names = {n.replace(".", "_"): n for n in tensors}
        new = dict(tensors, **{names[n]: t for n, t in changes.items()})
        save("bad", metadata, {n: t for n, t in new.items() if t})

    changed()
    bad("another model", model=model(9, name="other")[0])
    changed(dict(metadata, tokens="0"))
    bad("bad", "tokens")
    changed(dict(metadata, tokens="9"))
    bad("layers.3.keys")
    changed({"op": "prefill"})
    bad("not a state")
    changed(layers_1_state=None)
    bad("layers.1.state", "absent")
    changed(logits=("F16", [256], bytes(512)))
    bad("logits")
    write("bad", open(out("s"), "rb").read()[:-5])
    bad("bad")


# ---- Guesses ------------------------------------------------------------------------------


def test_draft():
    """The text, the logits and the state are those of plain decoding, to the bit."""
    path, *_ = model()
    for options in ([], ["--exact"], ["-t", "0.4", "--seed", "3"]):
        plain = generate(path, "-n", "60", "--save-state", out("plain"), *options)
        rest = generate(path, "-n", "20", "--load-state", out("plain"), prompt=None)
        for n in ("1", "4", "7"):
            found = generate(path, "-n", "60", "--save-state", out("s"), "--draft", n, *options)
            check(found == plain, "--draft", n, options, found[0], plain[0])
            check(load(out("s")) == load(out("plain")), "other states with", n, options)
            found = generate(path, "-n", "20", "--load-state", out("s"), "--draft", n, prompt=None)
            check(found == rest, "other text after a state with", n, options)
    check(generate(path, "-n", "9", "--draft", "7") == generate(path, "-n", "9"), "without --save")


def test_lazy():
    """Lazy states give the same tokens. With --exact they give the same bits, also in saved
    states."""
    path, *_ = model()
    for options in ([], ["--draft", "3"], ["-t", "0.4", "--seed", "3"]):
        plain = generate(path, "-n", "60", *options)
        for rows in ("1", "7", "100"):
            found = generate(path, "-n", "60", "--lazy", rows, *options)
            check(found[:2] == plain[:2], "--lazy", rows, options, found[0], plain[0])
    exact = ["-n", "40", "--exact", "--save-state"]
    plain = generate(path, *exact, out("plain"))
    for more in ([], ["--draft", "2"]):
        check(generate(path, *exact, out("s"), "--lazy", "16", *more) == plain, "other bits", more)
        check(load(out("s")) == load(out("plain")), "other states", more)
    rest = ["-n", "20", "--load-state", out("s")]
    check(generate(path, *rest, "--lazy", "5")[:2] == generate(path, *rest)[:2], "after a state")
    refused("generate", path, "-p", "a", "--lazy", "0", names=("--lazy", "from 1 to 65536"))
    refused("generate", path, "-p", "a", "--lazy", "4", "--backend", "cuda",
            names=("--lazy", "cuda"))


def test_draft_saves_calls():
    """Drafts save calls in a text that repeats itself, and the text ends where the model ends
    it."""
    page = ["generate", "examples/tinylm/model", "-p", "The ", "-n", "200"]
    texts, calls = [], []
    for n in ("0", "7"):
        status, text, err = cli.gdn(*page, "--speed", "--draft", n)
        check(status == OK, err)
        texts.append(text)
        calls.append(int(re.search(r"in (\d+) calls", err).group(1)))
    check(texts[0] == texts[1] and calls[0] == 199 and calls[1] < 120, texts, calls)
    _, tokens, _ = generate(model()[0], "-n", "40")
    path = model(eos_token_id=tokens[-3])[0]
    check(generate(path, "-n", "40", "--draft", "7") == generate(path, "-n", "40"), "another end")
    refused("generate", path, "-p", "a", "--draft", "8", names=("--draft", "7"))


# ---- On a GPU -----------------------------------------------------------------------------


def device(path, *args, prompt=PROMPT):
    return generate(path, "--backend", "cuda", *args, prompt=prompt)


def need_device():
    status, _, err = cli.gdn("generate", model()[0], "-p", "a", "-n", "0", "--backend", "cuda")
    if status == BAD and re.search("driver|device|image|libcu", err):
        raise Skip(err.strip())
    check(status == OK, err)


def near(found, plain):
    """The same text and tokens; logits to rounding."""
    check(found[:2] == plain[:2], found[0], plain[0])
    worst = max(abs(a - b) for x, y in zip(found[2], plain[2]) for a, b in zip(x, y))
    check(len(found[2]) == len(plain[2]) and worst < 1e-4, "logits are off by", worst)


def test_device():
    """The text is the CPU's, whatever the weights' dtype; states go from one to the other."""
    need_device()
    for dtype in ("F32", "BF16", "F16"):
        path, *_ = model(2, dtype, tie_word_embeddings=dtype != "F32")
        near(device(path, "-n", "6"), generate(path, "-n", "6"))
    plain = generate(path, "-n", "8")
    for first, second in ((device, generate), (generate, device), (device, device)):
        first(path, "-n", "5", "--save-state", out("s"))
        text, *_ = second(path, "-n", "3", "--load-state", out("s"), prompt=None)
        check(plain[0].endswith(text), text, plain[0])


def test_device_draft():
    """Drafts leave the text as it is; with --exact every bit of it, and of its logits."""
    need_device()
    path, *_ = model()
    near(device(path, "-n", "16", "--draft", "4"), generate(path, "-n", "16"))
    exact = device(path, "-n", "16", "--exact")
    near(exact, generate(path, "-n", "16"))
    check(device(path, "-n", "16", "--exact", "--draft", "7") == exact, "a draft changes bits")


# ---- Folders ------------------------------------------------------------------------------


def folder(config, shards, index=None, name="folder"):
    """Writes config.json, shards {file: tensors}, and an index if there are several shards."""
    os.makedirs(out(name), exist_ok=True)
    write(name + "/config.json", json.dumps(config).encode())
    for file, tensors in shards.items():
        write(f"{name}/{file}", pack(*build({"format": "pt"}, tensors)))
    if index is None and len(shards) > 1:
        index = {"weight_map": {n: file for file, tensors in shards.items() for n in tensors}}
    if index is not None:
        text = index if isinstance(index, bytes) else json.dumps(index).encode()
        write(name + "/model.safetensors.index.json", text)
    return out(name)


def halves(tensors):
    names = sorted(tensors)
    return {f"model-0000{i + 1}-of-00002.safetensors": {n: tensors[n] for n in names[i::2]}
            for i in range(2)}


def test_folders():
    """One file, a folder, shards, and the text model of a larger one: the same text."""
    path, config, tensors, _ = model(4, "BF16", tie_word_embeddings=False)
    want = generate(path, "-n", "8")
    one = folder(config, {"model.safetensors": tensors}, name="one")
    check(generate(one, "-n", "8") == want, "a folder differs")
    check(generate(folder(config, halves(tensors)), "-n", "8") == want, "shards differ")
    inner = {n.replace("model.", "model.language_model.", 1): t for n, t in tensors.items()}
    inner["model.visual.patch_embed.proj.bias"] = ("BF16", [2], bytes(4))
    inner["model.visual.patch_embed.proj.weight"] = ("F8_E4M3", [1, 1, 2, 1, 1, 1, 1, 2], bytes(4))
    inner["model.visual.odd"] = ("F32", [1] * 9, bytes(4))
    inner["model.visual.unknown"] = ("X7", [3], bytes(5))
    inner["mtp.fc.weight"] = ("I8", [2, 2], bytes(4))
    inner["model.layers.0.self_attn.rotary_emb.inv_freq"] = ("F32", [1], bytes(4))
    outer = {"model_type": "qwen3_5", "vision_config": {}, "tie_word_embeddings": False,
             "text_config": dict(config)}
    check(generate(folder(outer, halves(inner), name="vl"), "-n", "8") == want, "nested differs")


def test_unaligned_data():
    """A header whose length is odd: the data is not aligned, and is copied."""
    path, config, tensors, _ = model()
    want = generate(path, "-n", "4")
    header = json.dumps(build(qwen35.metadata(config), tensors)[0]).encode()
    header += b" " * (1 - len(header) % 2)
    odd = write("odd", pack(header, build(None, tensors)[1], pad=False))
    check(generate(odd, "-n", "4") == want, "unaligned data differs")


def test_refused():
    path, config, tensors, _ = model()
    one = {"model.safetensors": tensors}

    def bad(path, *names):
        refused("generate", path, "-p", "a", "-n", "1", names=names)

    bad(out("none"), "none")
    bad(cli.FOLDER, "config.json")
    bad(save("x", {"op": "prefill"}, tensors), "config")
    bad(save("x", {"config": "{"}, tensors), "not JSON")
    for change, word in (
        ({"model_type": "qwen3_5_moe_text", "num_experts": 8}, "mixture of experts"),
        ({"model_type": "llama"}, "llama"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"num_hidden_layers": 1e9}, "num_hidden_layers"),
        ({"num_hidden_layers": 5}, "layers.4."),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"head_dim": "many"}, "head_dim"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["full_attention"] * 3 + ["mamba"]}, "mamba"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "yarn"),
        ({"rms_norm_eps": -1}, "rms_norm_eps"),
        ({"intermediate_size": 45}, "mlp.gate_proj.weight"),
        ({"tie_word_embeddings": False}, "lm_head.weight"),
        ({"vocab_size": 257}, "embed_tokens"),
        ({"text_config": 3}, "text_config"),
        ({"eos_token_id": "<|end|>"}, "eos_token_id"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_scaling": {"rope_type": "linear"}}, "linear"),
        ({"rope_scaling": {"factor": 4.0}}, "factor"),
        ({"rope_scaling": "yarn"}, "rope_scaling"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "full_attention"),
        ({"rope_parameters": {"rope_theta": 1e4, "type": "dynamic"}}, "dynamic"),
        ({"output_gate_type": "tanh"}, "output_gate_type"),
        ({"attn_output_gate": False}, "attn_output_gate"),
        ({"mlp_bias": True}, "mlp_bias"), ({"use_sliding_window": True}, "use_sliding_window"),
        ({"logits_soft_cap": 30.0}, "logits_soft_cap"), ({"auto_map": {}}, "auto_map"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"repetition_penalty": 1.5}, "repetition_penalty"),
    ):
        bad(folder(dict(config, **change), one), word)
    text = json.dumps(config)
    write("folder/config.json", (text[:-1] + ', "rms_norm_eps": 1e-3}').encode())
    bad(out("folder"), "rms_norm_eps", "twice")
    linear, full = "model.layers.0.linear_attn.", "model.layers.3.self_attn."
    for name in (linear + "in_proj_qkv.weight_scale", linear + "in_proj_qkv.lora_A.weight",
                 linear + "conv1d.bias", full + "q_proj.bias", "lm_head.bias",
                 "model.layers.0.mlp.gate_proj.weight_scale_inv", "model.layers.4.x",
                 "score.weight"):
        bad(folder(config, {"model.safetensors": dict(tensors, **{name: ("F32", [1], bytes(4))})}),
            name)
    name = linear + "in_proj_qkv.weight"
    bad(folder(config, {"model.safetensors": dict(tensors, **{name: ("F8_E4M3", [4], bytes(4))})}),
        name, "F8_E4M3")
    both = {"a.safetensors": tensors,
            "b.safetensors": {"model.norm.weight": ("F32", [1], bytes(4))}}
    index = {"weight_map": dict({n: "a.safetensors" for n in tensors},
                                **{"model.norm.weight": "b.safetensors"})}
    os.remove(out("folder/model.safetensors"))
    bad(folder(config, both, index), "model.norm.weight", "too")
    where = folder(config, one, name="adapter")
    write("adapter/adapter_config.json", b"{}")
    bad(where, "adapter")
    lost = {n: t for n, t in tensors.items() if n != "model.layers.2.linear_attn.A_log"}
    bad(folder(config, {"model.safetensors": lost}), "layers.2.linear_attn.A_log")
    ints = dict(tensors, **{"model.norm.weight": ("I32", [32], bytes(128))})
    bad(folder(config, {"model.safetensors": ints}), "model.norm.weight", "I32")
    refused("generate", path, names=["-p"])
    refused("generate", path, path, "-p", "a", names=["MODEL"])
    refused("generate", path, "-p", "a", "-t", "-1", names=["-t"])
    nan = dict(tensors, **{"model.norm.weight": ("F32", [32], cli.f32([math.nan] * 32))})
    status, text, err = cli.gdn("generate", folder(config, {"model.safetensors": nan}), "-p", "a")
    check(status == BAD and text == "a" and "not finite" in err, status, text, err)


def test_damaged_index():
    _, config, tensors, _ = model()
    shards, rng = halves(tensors), random.Random(3)
    files, name = list(shards), next(iter(tensors))
    good = {"weight_map": {n: file for file in files for n in shards[file]}}
    where = folder(config, shards, name="damaged")

    def bad(index, *names):
        folder(config, {}, index, name="damaged")
        refused("generate", where, "-p", "a", "-n", "1", names=names)

    bad(b"", "not JSON")
    bad({}, "weight_map")
    for value in (3, "", "../x", "/etc/passwd", None, []):
        bad({"weight_map": dict(good["weight_map"], **{name: value})}, name, "name of a file")
    bad({"weight_map": dict(good["weight_map"], **{name: "none"})}, "none")
    bad({"weight_map": dict(good["weight_map"], extra=files[0])}, "extra", files[0])
    bad({"weight_map": {n: files[0] for n in shards[files[0]]}}, "no tensor")
    text = json.dumps(good).encode()
    for _ in range(40):
        at = rng.randrange(len(text))
        folder(config, {}, text[:at] + rng.randbytes(1) + text[at + 1 :], name="damaged")
        status, _, err = cli.gdn("generate", where, "-p", "a", "-n", "1")
        check(status == OK or err.count("\n") == 1, status, err)
    folder(config, {}, good, name="damaged")
    whole = open(out("damaged/" + files[1]), "rb").read()
    write("damaged/" + files[1], whole[: len(whole) // 2])
    refused("generate", where, "-p", "a", "-n", "1", names=[files[1]])


if __name__ == "__main__":
    sys.exit(cli.main(globals()))
