#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The command, from outside: cli_test.py GDN [VECTORS] [--filter WORD]

Every vector passes, a changed expectation fails, a damaged file is refused in one line and
never crashes anything. Needs nothing but the standard library.
"""
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import traceback
from array import array

GDN = VECTORS = FOLDER = None
OK, OUTSIDE, BAD = 0, 1, 2


class Failure(Exception):
    pass


class Skip(Exception):
    pass


def check(condition, *what):
    if not condition:
        raise Failure(" ".join(str(w) for w in what))


# The sanitizers of CI thin their cases; so does what takes long here.
THIN = int(os.environ.get("GDN_TEST_EVERY", "1")) >= 30


# ---- The command --------------------------------------------------------------------------


def gdn(*args, env=None):
    environment = dict(os.environ, **(env or {}))
    p = subprocess.run([GDN, *args], capture_output=True, env=environment, timeout=300)
    check(p.returncode in (OK, OUTSIDE, BAD), "status", p.returncode, args, p.stderr[-2000:])
    return p.returncode, p.stdout.decode(), p.stderr.decode("utf-8", "replace")


def run_json(*args, want=OK, env=None):
    status, out, err = gdn("run", "--json", *args, env=env)
    check(status == want, "status", status, "wanted", want, args, out, err)
    return [json.loads(line) for line in out.splitlines()]


def refused(*args, names=()):
    """Checks exit status 2, an empty stdout, and one line on stderr with every name."""
    status, out, err = gdn(*args)
    check(status == BAD, "status", status, "wanted 2:", args, out, err)
    check(out == "", "stdout of a refused call:", out)
    check(err.count("\n") == 1 and err.endswith("\n") and err.startswith("gdn: "), "stderr:", err)
    check(len(err) > 10, "an empty line")
    for name in names:
        check(name in err, repr(name), "is not in", err)
    return err


# ---- safetensors --------------------------------------------------------------------------

SIZES = {"F32": 4, "BF16": 2, "F16": 2, "I32": 4, "I64": 8, "U8": 1, "BOOL": 1}


def load(path):
    """metadata, {name: (dtype, shape, bytes)}"""
    with open(path, "rb") as f:
        raw = f.read()
    n = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + n])
    metadata = header.pop("__metadata__", {})
    data = raw[8 + n :]
    return metadata, {
        name: (t["dtype"], t["shape"], data[t["data_offsets"][0] : t["data_offsets"][1]])
        for name, t in header.items()
    }


def pack(header, data=b"", pad=True):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    if pad:
        text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def build(metadata, tensors):
    header, data = {}, b""
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, (dtype, shape, raw) in tensors.items():
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        data += raw
    return header, data


def write(name, content):
    path = os.path.join(FOLDER, name)
    with open(path, "wb") as f:
        f.write(content)
    return path


def save(name, metadata, tensors):
    return write(name, pack(*build(metadata, tensors)))


def vector(name):
    return os.path.join(VECTORS, name + ".safetensors")


def vectors(prefix=""):
    names = sorted(n for n in os.listdir(VECTORS) if n.endswith(".safetensors"))
    return [os.path.join(VECTORS, n) for n in names if n.startswith(prefix)]


def f32(values):
    return array("f", values).tobytes()


def i64(values):
    return array("q", values).tobytes()


def floats(tensor):
    dtype, _, raw = tensor
    if dtype == "F32":
        return list(array("f", raw))
    if dtype == "BF16":
        return [struct.unpack("<f", b"\0\0" + raw[i : i + 2])[0] for i in range(0, len(raw), 2)]
    return [struct.unpack("<e", raw[i : i + 2])[0] for i in range(0, len(raw), 2)]


def half(dtype, values):
    """To F16, or to BF16 by cutting: the results are then exact inputs."""
    if dtype == "F16":
        return b"".join(struct.pack("<e", x) for x in values)
    return b"".join(struct.pack("<f", x)[2:] for x in values)


def without(items, *names):
    return {name: item for name, item in items.items() if name not in names}


def rms(x):
    return (sum(v * v for v in x) / len(x)) ** 0.5


# ---- Vectors ------------------------------------------------------------------------------


def info():
    status, out, err = gdn("info", "--json")
    check(status == OK and err == "", err)
    return json.loads(out)


def test_vectors():
    here = info()
    paths = vectors()
    check(len(paths) >= 20, "only", len(paths), "vectors in", VECTORS)
    loops = {k.split(".")[0] for k in here["kernels"]}
    for path in paths:
        (line,) = run_json(path)
        check(line["ok"] and line["compared"], line)
        check(line["version"] == here["version"] and line["ms"] > 0, line)
        expected = [n for n in load(path)[1] if n.startswith("expected.")]
        check(sorted("expected." + o["name"] for o in line["outputs"]) == sorted(expected), line)
        for output in line["outputs"]:
            check(output["compared"] and output["ok"], line)
            check(0 <= output["max_error"] <= output["max_limit"] and output["rms"] > 0, line)
        kernels = [k for p in line["phases"] for k in p["kernel"].split(": ")[1].split()]
        check(kernels, "no kernel:", line)
        for kernel in kernels:
            check(kernel.endswith("." + here["isa"]), kernel, "is not of", here["isa"])
            check(kernel.split(".")[0] in loops, kernel, "is not in gdn info")
    if not os.environ.get("GDN_CPU"):
        best = [t["name"] for t in here["tables"] if t["runs_here"]][-1]
        check(here["isa"] == best, "chosen", here["isa"], "of", here["tables"])


def test_family():
    """KDA, GDN-2 and Gated DeltaProduct; layers of Kimi-Linear and OLMo-Hybrid."""
    folder = os.path.join(VECTORS, "family")
    paths = sorted(os.path.join(folder, n) for n in os.listdir(folder)
                   if n.endswith(".safetensors"))
    check(len(paths) >= 19, "only", len(paths), "vectors in", folder)
    for line in run_json("--threads", "2", *paths):
        check(line["ok"] and line["compared"], line)
    for table in info()["tables"]:
        if table["runs_here"] and not os.environ.get("GDN_CPU"):
            for line in run_json("--isa", table["name"], "--threads", "1", *paths):
                check(line["ok"], table["name"], line)


def as_checkpoint(metadata, tensors, is_kimi):
    """A layer under the names of its checkpoint: a convolution each for q, k and v, no
    forget_gate, and Kimi's sizes in linear_attn_config."""
    config, found = json.loads(metadata["config"]), {}
    if is_kimi:
        heads, K = config.pop("linear_num_heads"), config.pop("linear_head_dim")
        config["linear_attn_config"] = dict(num_heads=heads, head_dim=K)
        channels = [heads * K] * 3
    else:
        keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
        values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
        channels = [keys, keys, values]
    for name, (kind, shape, raw) in tensors.items():
        head, d, last = name.replace("forget_gate.", "").rpartition("conv1d.weight")
        if not d:
            found[last] = kind, shape, raw
            continue
        values, taps = array("f", raw), shape[-1]
        for letter, n in zip("qkv", channels):
            part, values = values[: n * taps], values[n * taps :]
            found[f"{head}{letter}_conv1d.weight"] = kind, [n, 1, taps], part.tobytes()
    return dict(metadata, config=json.dumps(config)), found


def test_names_of_checkpoints():
    """Three convolutions have the bits of one, and each has its own gradients."""
    for kind in "kimi_linear", "olmo_hybrid":
        for name in f"family/layer_{kind}", f"family/backward_layer_{kind}":
            layer = as_checkpoint(*load(vector(name)), kind == "kimi_linear")
            own = save("own.safetensors", *layer)
            (line,) = run_json(own)
            (other,) = run_json(vector(name))
            names = {o["name"] for o in line["outputs"] if o["compared"] and o["ok"]}
            check(names == {n[9:] for n in layer[1] if "expected." in n}, names)
            errors = {o["name"]: o["max_error"] for o in line["outputs"]}
            for o in other["outputs"]:
                n = o["name"].replace("forget_gate.", "")
                three = [errors.get(f"d{x}_conv1d.weight") for x in "qkv"]
                check((max(three) if n == "dconv1d.weight" else errors[n]) == o["max_error"], o)
    metadata, tensors = as_checkpoint(*load(vector("family/layer_kimi_linear")), True)
    config = json.loads(metadata["config"])
    config["linear_attn_config"]["gate_lower_bound"] = -5  # not as it is
    changed = dict(metadata, config=json.dumps(config))
    run_json(save("other.safetensors", changed, tensors), want=OUTSIDE)


def test_every_isa():
    for table in info()["tables"]:
        if not table["runs_here"]:
            continue
        if os.environ.get("GDN_CPU") and table["name"] != "scalar":
            continue
        for line in run_json("--isa", table["name"], "--threads", "1", *vectors()):
            check(line["ok"] and line["isa"] == table["name"] and line["threads"] == 1, line)


def test_text():
    status, out, err = gdn("run", vector("layer_qwen3_next"))
    check(status == OK and err == "", err)
    for word in ("prompt", "prefill", "decode", "tokens/s", "max error", "ok"):
        check(word in out, word, "is not in", out)
    check("FAIL" not in out, out)


def test_changed_expectation():
    """One element off by twice the limit; each output of each vector."""
    for path in vectors():
        metadata, tensors = load(path)
        (line,) = run_json(path)
        for output in line["outputs"]:
            name = "expected." + output["name"]
            dtype, shape, raw = tensors[name]
            values = array("f", raw)
            at = len(values) // 2
            values[at] += 2 * output["max_limit"] + 1e-6
            changed = dict(tensors, **{name: (dtype, shape, values.tobytes())})
            (bad,) = run_json(save("changed.safetensors", metadata, changed), want=OUTSIDE)
            check(not bad["ok"], bad)
            check([o["name"] for o in bad["outputs"] if not o["ok"]] == [output["name"]], bad)
    status, out, _ = gdn("run", save("changed.safetensors", metadata, changed))
    check(status == OUTSIDE and "FAIL" in out, out)


def test_rms_limit():
    """16-bit outputs: an error in every element, each below the limit of one."""
    metadata, tensors = load(vector("prefill_bf16_d128"))
    dtype, shape, raw = tensors["expected.output"]
    values = array("f", raw)
    step = 2 * 6e-3 * rms(values)
    moved = array("f", (x + (step if i % 2 else -step) for i, x in enumerate(values)))
    tensors["expected.output"] = (dtype, shape, moved.tobytes())
    (line,) = run_json(save("rms.safetensors", metadata, tensors), want=OUTSIDE)
    output = line["outputs"][0]
    check(output["max_error"] < output["max_limit"], output)
    check(output["rms_error"] > output["rms_limit"], output)


def test_not_finite_expected():
    metadata, tensors = load(vector("prefill_d60"))
    dtype, shape, raw = tensors["expected.output"]
    for value in (float("nan"), float("inf"), float("-inf")):
        values = array("f", raw)
        values[3] = value
        changed = dict(tensors, **{"expected.output": (dtype, shape, values.tobytes())})
        run_json(save("changed.safetensors", metadata, changed), want=OUTSIDE)


def test_output_file():
    for path in vectors():
        out = os.path.join(FOLDER, "out.safetensors")
        (line,) = run_json(path, "-o", out)
        _, tensors = load(path)
        metadata, written = load(out)
        check(metadata["op"] == line["op"], metadata)
        check(sorted(written) == sorted(o["name"] for o in line["outputs"]), list(written))
        for output in line["outputs"]:
            dtype, shape, raw = written[output["name"]]
            wanted = tensors["expected." + output["name"]]
            check(shape == wanted[1], output["name"], shape, wanted[1])
            check(dtype == output["dtype"], output["name"], dtype)
            error = max(abs(a - b) for a, b in zip(floats(written[output["name"]]), floats(wanted)))
            close = abs(error - output["max_error"]) <= 1e-6 * error + 1e-12
            check(close, path, output["name"], error, output["max_error"])
        os.remove(out)
    check(not [n for n in os.listdir(FOLDER) if ".gdn-" in n], "a temporary file stayed")


def test_output_file_as_input():
    """A file that -o wrote can be read again, and has the same bits."""
    metadata, tensors = load(vector("prefill_kfirst"))
    out = os.path.join(FOLDER, "out.safetensors")
    run_json(vector("prefill_kfirst"), "-o", out)
    _, written = load(out)
    for name in ("output", "final_state"):
        tensors["expected." + name] = written[name]
    (line,) = run_json(save("again.safetensors", metadata, tensors))
    check([o["max_error"] for o in line["outputs"]] == [0, 0], line)
    os.remove(out)


def test_output_refused():
    good = vector("prefill_d60")
    refused("run", good, "-o", os.path.join(FOLDER, "no-folder", "out"), names=["no-folder"])
    refused("run", good, "-o", FOLDER, names=[FOLDER])
    refused("run", good, good, "-o", os.path.join(FOLDER, "x"), names=["-o"])
    if os.path.exists("/dev/full"):
        refused("run", good, "-o", "/dev/full", names=["/dev/full"])
        check(os.path.exists("/dev/full"), "/dev/full was replaced")


# ---- Files of other forms -------------------------------------------------------------------


def test_traces():
    """FlashInfer's tensors, no metadata: alpha in g, a state k-last, raw decode gates."""
    metadata, tensors = load(vector("prefill_gva_varlen_f32"))
    alpha = [2.718281828459045**x for x in floats(tensors["g_log"])]
    trace = without(tensors, "g_log")
    trace["g"] = ("F32", tensors["g_log"][1], f32(alpha))
    (line,) = run_json(save("trace.safetensors", None, trace))
    check(line["op"] == "prefill" and line["compared"], line)
    trace["scale"] = ("F32", [], f32([0.125]))
    run_json(save("trace.safetensors", None, trace))
    trace["scale"] = ("F32", [1], f32([0.25]))
    run_json(save("trace.safetensors", None, trace), want=OUTSIDE)

    for name in ("decode_gva_klast", "decode_t4_gva", "decode_bf16_state"):
        _, tensors = load(vector(name))
        (line,) = run_json(save("trace.safetensors", None, tensors))
        check(line["op"] == "decode" and line["compared"], line)
    run_json(save("trace.safetensors", {"use_qk_l2norm": "0"}, tensors), want=OUTSIDE)


def test_without_expectation():
    metadata, tensors = load(vector("prefill_d60"))
    bare = without(tensors, "expected.output", "expected.final_state")
    path = save("bare.safetensors", metadata, bare)
    (line,) = run_json(path)
    check(line["ok"] and not line["compared"], line)
    status, out, _ = gdn("run", path)
    check(status == OK and "not compared" in out, out)


def test_padded_is_packed():
    """[B,T,...] with token_count against [N,...] with cu_seqlens, from the same numbers."""
    metadata, tensors = load(vector("prefill_d60"))
    ends = array("q", tensors["cu_seqlens"][2])
    lengths = [b - a for a, b in zip(ends, ends[1:])]
    longest = max(lengths)
    padded = {}
    for name, (dtype, shape, raw) in tensors.items():
        if name in ("cu_seqlens", "initial_state", "expected.final_state"):
            continue
        row = len(raw) // shape[0]
        fill = bytes(row) if name == "expected.output" else raw[:row]  # not zero in the inputs
        rows = [
            raw[a * row : b * row] + fill * (longest - b + a) for a, b in zip(ends, ends[1:])
        ]
        padded[name] = (dtype, [len(lengths), longest, *shape[1:]], b"".join(rows))
    for name in ("initial_state", "expected.final_state"):
        padded[name] = tensors[name]
    padded["token_count"] = ("I64", [len(lengths)], i64(lengths))
    run_json(save("padded.safetensors", metadata, padded))
    run_json(save("padded.safetensors", metadata, without(padded, "token_count")), want=OUTSIDE)


def test_slots():
    """A pool of more slots than sequences, through read_slots, write_slots, BOOL and I32."""
    metadata, tensors = load(vector("prefill_d60"))
    dtype, shape, raw = tensors["initial_state"]
    size = len(raw) // shape[0]
    noise = f32([7.0] * (size // 4))
    first, second = raw[:size], raw[size:]
    want = tensors["expected.final_state"][2]
    pool = noise + second + noise + first + noise
    done = noise + second + want[:size] + first + want[size:]
    slots = dict(
        tensors,
        initial_state=(dtype, [5, *shape[1:]], pool),
        read_slots=("I32", [2], array("i", [3, 1]).tobytes()),
        write_slots=("I64", [2], i64([2, 4])),
        has_initial_state=("BOOL", [2], b"\1\1"),
    )
    slots["expected.final_state"] = (dtype, [5, *shape[1:]], done)
    run_json(save("slots.safetensors", metadata, slots))
    slots["has_initial_state"] = ("BOOL", [2], b"\1\0")
    run_json(save("slots.safetensors", metadata, slots), want=OUTSIDE)
    slots["write_slots"] = ("I64", [2], i64([2, 2]))
    refused("run", save("slots.safetensors", metadata, slots), names=["slots.", "slot 2"])
    slots["write_slots"] = ("I64", [2], i64([2, 5]))
    refused("run", save("slots.safetensors", metadata, slots), names=["write_slots"])


def test_padding_and_drafts():
    """decode: padding rows by each policy, states of every token, accepted tokens."""
    metadata, tensors = load(vector("decode_t4_gva"))
    dtype, shape, raw = tensors["state"]
    _, want_shape, want = tensors["expected.new_state"]
    B, size = shape[0], len(raw) // shape[0]
    row = len(tensors["expected.output"][2]) // B
    check(B == 3 and shape == want_shape, shape)

    padded = dict(tensors, read_slots=("I64", [B], i64([0, -1, 2])))
    for policy in ("zero", "keep", "sink"):
        changed = dict(metadata, pad_policy=policy, sink_slot="1")
        run_json(save("pad.safetensors", changed, padded), want=OK if policy == "sink" else OUTSIDE)
    output = tensors["expected.output"]
    zeroed = output[2][:row] + bytes(row) + output[2][2 * row :]
    states = want[:size] + raw[size : 2 * size] + want[2 * size :]
    padded["expected.output"] = (*output[:2], zeroed)
    padded["expected.new_state"] = (dtype, shape, states)
    for policy, status in {"zero": OK, "keep": OK, "sink": OUTSIDE}.items():
        changed = dict(metadata, pad_policy=policy, sink_slot="1")
        run_json(save("pad.safetensors", changed, padded), want=status)
    shifted = dict(padded, state=(dtype, [B + 1, *shape[1:]], bytes(size) + raw),
                   read_slots=("I64", [B], i64([1, 0, 3])))
    shifted["expected.new_state"] = (dtype, [B + 1, *shape[1:]], bytes(size) + states)
    for first, status in {"1": OK, "0": OUTSIDE}.items():
        changed = dict(metadata, first_slot=first)
        run_json(save("pad.safetensors", changed, shifted), want=status)

    last = [slot for b in range(B) for slot in (-1, -1, -1, B + b)]
    drafts = dict(
        tensors,
        state=(dtype, [2 * B, *shape[1:]], raw + bytes(len(raw))),
        write_slots=("I64", [B, 4], i64(last)),
    )
    drafts["expected.new_state"] = (dtype, [2 * B, *shape[1:]], raw + want)
    run_json(save("each.safetensors", dict(metadata, write="each"), drafts))
    drafts["write_slots"] = ("I64", [B], i64(range(B, 2 * B)))
    drafts["read_slots"] = ("I64", [B, 2], i64([4, 0, 1, 3, 5, 2]))
    drafts["num_accepted_tokens"] = ("I32", [B], array("i", [2, 1, 2]).tobytes())
    run_json(save("accepted.safetensors", metadata, drafts))
    drafts["num_accepted_tokens"] = ("I32", [B], array("i", [1, 1, 2]).tobytes())
    refused("run", save("accepted.safetensors", metadata, drafts), names=["slot 4"])
    drafts["num_accepted_tokens"] = ("I32", [B], array("i", [2, 0, 2]).tobytes())
    path = save("accepted.safetensors", metadata, drafts)
    refused("run", path, names=["num_accepted_tokens"])
    none = dict(drafts, num_accepted_tokens=("I32", [B], array("i", [2, 1, 2]).tobytes()))
    none["expected.new_state"] = (dtype, [2 * B, *shape[1:]], raw + bytes(len(raw)))
    run_json(save("none.safetensors", dict(metadata, write="none"), none))


def test_options_of_the_rule():
    """Each metadata key changes the result, or is the default."""
    metadata, tensors = load(vector("prefill_gva_varlen_f32"))
    same = {"gate": "log", "beta": "given", "head_map": "grouped", "norm": "none", "write": "final"}
    run_json(save("same.safetensors", dict(without(metadata, "use_qk_l2norm"), **same), tensors))
    run_json(save("exact.safetensors", dict(metadata, exact="1"), tensors))
    other = {"beta": "twice_sigmoid", "head_map": "interleaved", "scale": "0.2", "write": "none"}
    for key, value in other.items():
        changed = dict(metadata, **{key: value})
        run_json(save("other.safetensors", changed, tensors), want=OUTSIDE)
    metadata, tensors = load(vector("decode_gva_klast"))
    for key, value in {"use_qk_l2norm": "0", "gate_lower_bound": "-5"}.items():
        run_json(save("other.safetensors", dict(metadata, **{key: value}), tensors), want=OUTSIDE)
    metadata, tensors = load(vector("prefill_tiny_keys_l2norm"))
    metadata.pop("use_qk_l2norm")
    for norm, want in {"l2": OK, "l2_add": OUTSIDE, "l2_max": OUTSIDE, "none": OUTSIDE}.items():
        changed = dict(metadata, norm=norm)
        run_json(save("norm.safetensors", changed, tensors), want=want)
    changed = dict(metadata, norm="l2", norm_eps="0.01")
    run_json(save("norm.safetensors", changed, tensors), want=OUTSIDE)


def test_small_ops():
    """conv1d, gates and norms, from formulas written here."""
    from math import exp, log1p, sqrt

    rng = random.Random(7)

    def numbers(n):
        return list(array("f", (rng.uniform(-1, 1) for _ in range(n))))

    def sigmoid(x):
        return 1 / (1 + exp(-x))

    T, D, W = 9, 5, 4
    x, w, bias, past = numbers(T * D), numbers(D * W), numbers(D), numbers(D * (W - 1))

    def tap(t, d):
        return x[t * D + d] if t >= 0 else past[d * (W - 1) + t + W - 1]

    sums = [
        bias[d] + sum(w[d * W + i] * tap(t - W + 1 + i, d) for i in range(W))
        for t in range(T) for d in range(D)
    ]
    last = [tap(T - W + 1 + i, d) for d in range(D) for i in range(W - 1)]
    conv = {
        "x": ("F32", [T, D], f32(x)), "weight": ("F32", [D, 1, W], f32(w)),
        "bias": ("F32", [D], f32(bias)), "state": ("F32", [1, D, W - 1], f32(past)),
        "expected.output": ("F32", [T, D], f32(s * sigmoid(s) for s in sums)),
        "expected.new_state": ("F32", [1, D, W - 1], f32(last)),
    }
    (line,) = run_json(save("conv.safetensors", {"activation": "silu"}, conv))
    check(line["op"] == "conv1d" and len(line["outputs"]) == 2, line)
    run_json(save("conv.safetensors", {"activation": "none"}, conv), want=OUTSIDE)
    conv["expected.output"] = ("F32", [T, D], f32(sums))
    run_json(save("conv.safetensors", {"op": "conv1d"}, conv))
    run_json(save("conv.safetensors", {}, without(conv, "state")), want=OUTSIDE)

    H = 3
    a, b, A, dt = numbers(T * H), numbers(T * H), numbers(H), numbers(H)
    g = [-exp(A[i % H]) * log1p(exp(a[i] + dt[i % H])) for i in range(T * H)]
    gates = {
        "a": ("F32", [T, H], f32(a)), "b": ("F32", [T, H], f32(b)),
        "A_log": ("F32", [H], f32(A)), "dt_bias": ("F32", [H], f32(dt)),
        "expected.g": ("F32", [T, H], f32(g)),
        "expected.beta": ("F32", [T, H], f32(map(sigmoid, b))),
    }
    (line,) = run_json(save("gates.safetensors", None, gates))
    check(line["op"] == "gates" and len(line["outputs"]) == 2, line)
    gates["expected.g"] = ("F32", [T, H], f32(map(exp, g)))
    gates["expected.beta"] = ("F32", [T, H], f32(2 * sigmoid(v) for v in b))
    run_json(save("gates.safetensors", {"gate": "linear", "beta": "twice_sigmoid"}, gates))
    run_json(save("gates.safetensors", None, gates), want=OUTSIDE)

    def rows(f):
        return f32(v for t in range(T) for v in f(x[t * D : t * D + D], t))

    def l2(row, _):
        length = sqrt(sum(v * v for v in row) + 1e-6)
        return [v / length for v in row]

    z, weight = numbers(T * D), numbers(D)

    def rmsnorm(row, t):
        scale = 1 / sqrt(sum(v * v for v in row) / D + 1e-6)
        gate = z[t * D : t * D + D]
        return [v * scale * u * s * sigmoid(s) for v, u, s in zip(row, weight, gate)]

    norm = {"x": ("F32", [T, D], f32(x)), "expected.output": ("F32", [T, D], rows(l2))}
    (line,) = run_json(save("l2.safetensors", None, norm))
    check(line["op"] == "l2norm", line)
    run_json(save("l2.safetensors", {"norm_eps": "0.1"}, norm), want=OUTSIDE)
    norm.update(z=("F32", [T, D], f32(z)), weight=("F32", [D], f32(weight)))
    norm["expected.output"] = ("F32", [T, D], rows(rmsnorm))
    (line,) = run_json(save("rms.safetensors", None, norm))
    check(line["op"] == "rmsnorm_gated", line)
    run_json(save("rms.safetensors", {"activation": "sigmoid"}, norm), want=OUTSIDE)


# ---- info and bench -------------------------------------------------------------------------


def test_info():
    here = info()
    keys = "version device isa threads tables compiler flags cuda ops kernels"
    for key in keys.split():
        check(here.get(key), key, here)
    check(here["tables"][0] == {"name": "scalar", "runs_here": True}, here["tables"])
    check(here["self_test"] == "ok" and here["self_test_ms"] > 0, here)
    status, out, err = gdn("info")
    check(status == OK and "CUDA" in out and here["isa"] in out, out)
    check("self-test ok, " in out, out)
    status, out, _ = gdn("info", "--json", "--threads", "3", "--isa", "scalar")
    here = json.loads(out)
    check(here["isa"] == "scalar" and here["threads"] == 3, here)


def test_run_all():
    if THIN:
        raise Skip("a large case")
    status, out, err = gdn("run", "--all", "--vectors", VECTORS)
    check(status == OK and err == "", err)
    for word in ("layer_qwen3_5", "prefill_reset", "Qwen3-Next", "of peak", "All within"):
        check(word in out, word, "is not in", out)
    check("FAIL" not in out and "\x1b" not in out, out)
    status, out, err = gdn("run", "--all", "--vectors", VECTORS, "--json", "--threads", "1")
    lines = [json.loads(line) for line in out.splitlines()]
    check(status == OK and len(lines) == len(vectors()) + 2, len(lines), err)
    check(all(line["ok"] for line in lines), out)
    check([line["op"] for line in lines[-2:]] == ["prefill", "decode"], lines[-2:])


# ---- Runner ---------------------------------------------------------------------------------


def main(tests):
    global GDN, VECTORS, FOLDER
    args = sys.argv[1:]
    word = ""
    if "--filter" in args:
        at = args.index("--filter")
        word = args[at + 1]
        del args[at : at + 2]
    if not args:
        sys.exit(tests["__doc__"])
    GDN = os.path.abspath(args[0])
    beside = os.path.join(os.path.dirname(__file__), "../vectors")
    VECTORS = os.path.abspath(args[1] if len(args) > 1 else beside)
    count = {"passed": 0, "failed": 0, "skipped": 0}
    for name, test in sorted(tests.items()):
        if not name.startswith("test_") or word not in name:
            continue
        with tempfile.TemporaryDirectory() as FOLDER:
            try:
                test()
                result, why = "passed", ""
            except Skip as skip:
                result, why = "skipped", str(skip)
            except Failure as failure:
                result, why = "failed", str(failure)
            except Exception:
                result, why = "failed", traceback.format_exc()
        count[result] += 1
        print(f"{result:8} {name[5:]}" + (f": {why}" if why else ""), flush=True)
    print(", ".join(f"{n} {result}" for result, n in count.items()))
    if count["skipped"] and not count["passed"] + count["failed"]:
        return 77
    return 1 if count["failed"] or not count["passed"] else 0


if __name__ == "__main__":
    sys.exit(main(globals()))
