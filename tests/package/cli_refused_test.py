#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the command refuses, from outside: cli_refused_test.py GDN [VECTORS] [--filter WORD]

A damaged file, a wrong argument and an output that cannot be written are refused in one line.
"""
import json
import os
import random
import struct
import subprocess
import sys
from array import array

import cli_test as cli
from cli_test import (BAD, OK, OUTSIDE, Skip, as_checkpoint, build, check, f32, gdn, i64, info,
                      load, pack, refused, run_json, save, vector, vectors, without, write)

# ---- Damaged files --------------------------------------------------------------------------


def refused_file(content, *names):
    """Refused by run, with a line that names the file; -o leaves nothing behind."""
    path = content if isinstance(content, str) else write("damaged.safetensors", content)
    out = os.path.join(cli.FOLDER, "never.safetensors")
    before = sorted(os.listdir(cli.FOLDER))
    line = refused("run", path, "-o", out, names=[os.path.basename(path), *names])
    check(sorted(os.listdir(cli.FOLDER)) == before, "a refused file left", os.listdir(cli.FOLDER))
    return line


def test_truncated():
    with open(vector("prefill_plain_delta"), "rb") as f:
        whole = f.read()
    n = struct.unpack("<Q", whole[:8])[0]
    cuts = {0, 1, 7, 8, 9, 8 + n // 2, 7 + n, 8 + n, 9 + n, len(whole) // 2, len(whole) - 1}
    rng = random.Random(1)
    cuts |= {rng.randrange(len(whole)) for _ in range(25)}
    for cut in sorted(cuts):
        refused_file(whole[:cut])
    refused_file(whole + b"\0", "end at")


def test_header():
    with open(vector("prefill_plain_delta"), "rb") as f:
        whole = f.read()
    n = struct.unpack("<Q", whole[:8])[0]
    for length in (n - 1, n + 1, 2**31, 2**32 + n, 2**63 - 1, 2**63, 2**64 - 1, 101 << 20, 0):
        refused_file(struct.pack("<Q", length) + whole[8:])
    texts = [
        b"", b"{", b"nonsense", b"[]", b"null", b"1", b'"x"', b'{"q":1}',
        b'{"q":null}', b'{"q":{}}', b'{"q":[]}', b"{}x", b"{} {}", b"\xff\xfe",
        b'{"q":{"dtype":"F32"', b"\0" * 16,
        b"[" * 100000, b'{"a":' * 100000, b'{"q":{"shape":' + b"[" * 5000,
        b'{"__metadata__":3}', b'{"__metadata__":{"op":3}}', b'{"__metadata__":{"op":{"a":1}}}',
        b'{"__metadata__":{},"__metadata__":{}}',
        b'{"__metadata__":{"op":"prefill","op":"decode"}}',
    ]
    for text in texts:
        refused_file(pack(text))
    refused_file(pack(b"{}"), "op")
    refused_file(pack(b'{"__metadata__":{"op":"fly"}}'), "fly")


def test_descriptors():
    """One tensor's description is a lie; the line names it."""
    metadata, tensors = load(vector("prefill_plain_delta"))
    header, data = build(metadata, tensors)
    end = len(data)
    begin, stop = header["v"]["data_offsets"]
    lies = {
        "dtype": ["F64", "f32", "", 3, None, [], "F8_E4M3", "I16", "X" * 1000, "\x1b[31m\n"],
        "shape": [
            [70, 2, -32], [70, 2, 33], [70, 2], [], None, "70", [70, 2, 32, 1, 1, 1, 1, 1],
            [2**62, 2, 32], [2**31, 2**31, 2**31], [2**53 + 2], [1e300], [70.5, 2, 32],
            [0, 2, 32], [0, 2**62, 2**62], ["70", 2, 32], [[70], 2, 32], [True, 2, 32],
        ],
        "data_offsets": [
            [begin, stop - 4], [begin + 4, stop + 4], [stop, begin], [begin, end + stop - begin],
            [-4, stop - begin - 4], [0, stop - begin], [begin], [begin, stop, 0], None, "0",
            [begin + 0.5, stop + 0.5], [2**62, 2**62 + stop - begin], [1e400, 1e400],
            [float("nan"), stop],
        ],
    }
    for key, values in lies.items():
        for value in values:
            changed = dict(header, v=dict(header["v"], **{key: value}))
            refused_file(pack(changed, data))
        refused_file(pack(dict(header, v=without(header["v"], key)), data), "'v'")
    for key in ("dtype", "shape"):
        refused_file(pack(dict(header, v=dict(header["v"], **{key: lies[key][0]})), data), "'v'")
    text = json.dumps(header)
    cut = text.rindex("}")
    twice = text[:cut] + ', "v": ' + json.dumps(header["v"]) + "}"
    refused_file(pack(twice.encode(), data), "'v'", "twice")
    refused_file(pack(header, data + bytes(64)), "end at")
    # a hole: the data of v moved up by 64 bytes at the end of the file
    hole = dict(header, v=dict(header["v"], data_offsets=[end + 64, end + 64 + stop - begin]))
    refused_file(pack(hole, data + bytes(64) + data[begin:stop]))


def test_wrong_tensors():
    metadata, tensors = load(vector("prefill_gva_varlen_f32"))

    def lie(name, tensor, *names):
        refused_file(save("damaged.safetensors", metadata, dict(tensors, **{name: tensor})), *names)

    n = len(array("q", tensors["cu_seqlens"][2]))
    N = tensors["q"][1][0]
    for ends in (
        [0] * (n - 1) + [N + 1], [2] + [1] * (n - 1), [0, N, N - 1] + [N] * (n - 3),
        [0] * (n - 1) + [2**62], [-1] + [N] * (n - 1), [0, -5] + [N] * (n - 2), [2**63 - 1] * n,
    ):
        lie("cu_seqlens", ("I64", [n], i64(ends)), "cu_seqlens")
    lie("cu_seqlens", ("F32", [n], f32([0] * n)), "cu_seqlens")
    lie("cu_seqlens", ("I64", [n, 1], tensors["cu_seqlens"][2]), "cu_seqlens")
    lie("cu_seqlens", ("I64", [0], b""), "cu_seqlens")
    lie("cu_seqlens", ("I64", [n + 1], i64([0] * n + [N])), "slot 5")

    q = tensors["q"]
    lie("q", ("F32", [q[1][0], q[1][1] * q[1][2]], q[2]), "'q'")
    lie("q", ("F32", [1, *q[1]], q[2]), "'k'")
    lie("q", ("F32", [1, 1, *q[1]], q[2]), "'q'")
    lie("q", ("I32", q[1], q[2]), "q")
    lie("q", ("F32", [0, *q[1][1:]], b""), "expected.output")
    lie("q", ("F32", [q[1][0], 0, q[1][2]], b""), "'q'")
    lie("q", ("F32", [q[1][0], q[1][1], 0], b""), "'q'")
    lie("q", ("F32", [0, 2**40, 2**20], b""))
    lie("q", ("F32", [q[1][0], q[1][2], q[1][1]], q[2]))
    lie("beta", ("F32", [N], f32([0.5] * N)), "beta")
    lie("g_log", ("F32", [1, 4], f32([0] * 4)), "g_log")
    lie("initial_state", ("F32", [1], f32([1])), "initial_state")
    state = tensors["initial_state"]
    one = ("F32", [1, *state[1][1:]], state[2][: len(state[2]) // 5])
    lie("initial_state", one, "expected.final_state")
    bare = without(tensors, "expected.output", "expected.final_state")
    path = save("damaged.safetensors", metadata, dict(bare, initial_state=one))
    refused_file(path, "read_slots")
    want = tensors["expected.output"]
    flat = ("F32", [want[1][0], want[1][1] * want[1][2]], want[2])
    lie("expected.output", flat, "expected.output")
    lie("expected.output", ("I32", want[1], want[2]), "expected.output")
    lie("expected.outputs", want, "expected.outputs")
    lie("betas", tensors["beta"], "betas")
    lie("b", tensors["beta"], "beta")
    lie("g", tensors["g_log"], "g_log")
    lie("scale", ("F32", [2], f32([1, 2])), "scale")
    lie("bad\nname\x1b", ("F32", [], f32([1])))
    for name in ("q", "k", "v"):
        refused_file(save("damaged.safetensors", metadata, without(tensors, name)), f"'{name}'")


def test_wrong_metadata():
    metadata, tensors = load(vector("prefill_plain_delta"))
    for key, value in {
        "op": "decod", "gate": "exp", "beta": "0.5", "head_map": "", "use_qk_l2norm": "2",
        "norm": "l3", "norm_eps": "nan", "scale": "inf", "state_layout": "klast",
        "exact": "2",
        "pad_policy": "skip", "write": "all", "sink_slot": "-1", "first_slot": "x",
        "gate_lower_bound": "1e999",
        "scales": "1",
    }.items():
        changed = dict(metadata, **{key: value})
        if key == "norm":
            changed.pop("use_qk_l2norm")
        refused_file(save("damaged.safetensors", changed, tensors), key)
    for key, value in (("scale", "0"), ("scale", "0.1x"), ("write", "each"),
                       ("gate_lower_bound", "1")):
        changed = dict(metadata, **{key: value})
        refused_file(save("damaged.safetensors", changed, tensors), key)


def test_wrong_layers():
    for name in ("layer_qwen3_next", "layer_qwen3_5"):
        metadata, tensors = load(vector(name))
        for tensor in tensors:
            bad = dict(tensors, **{tensor: ("F32", [3], f32([1, 2, 3]))})
            refused_file(save("damaged.safetensors", metadata, bad))
            if tensor in ("expected.output", "layer.dt_bias"):
                continue
            rest = without(tensors, tensor)
            refused_file(save("damaged.safetensors", metadata, rest))
        config = json.loads(metadata["config"])
        for key in config:
            for value in (0, -1, 1.5, 10**9, "2", None, 1e300):
                if key in ("hidden_size", "linear_conv_kernel_dim"):
                    continue
                changed = dict(metadata, config=json.dumps(dict(config, **{key: value})))
                if key == "rms_norm_eps" and value is None:
                    continue
                refused_file(save("damaged.safetensors", changed, tensors), key)
        for key, value in {"config": "{", "prefill_tokens": "77"}.items():
            refused_file(save("damaged.safetensors", dict(metadata, **{key: value}), tensors), key)
        refused_file(save("damaged.safetensors", without(metadata, "config"), tensors), "config")
        for tokens in ("0", "1", "69", "76"):
            changed = dict(metadata, prefill_tokens=tokens)
            run_json(save("cut.safetensors", changed, tensors))
        ids = array("q", tensors["token_ids"][2])
        ids[5] ^= 1
        bad = dict(tensors, token_ids=("I64", [len(ids)], ids.tobytes()))
        refused_file(save("damaged.safetensors", metadata, bad), "hidden_states", "token 5")
        ids[5] = 256
        bad = dict(tensors, token_ids=("I64", [len(ids)], ids.tobytes()))
        refused_file(save("damaged.safetensors", metadata, bad), "token_ids", "256")


def test_layers_of_the_family():
    """What a file or its configuration has twice, or the layer has not, is named."""
    metadata, tensors = load(vector("family/layer_kimi_linear"))
    config = json.loads(metadata["config"])
    for key, value in (("linear_num_heads", 0), ("linear_head_dim", None),
                       ("output_gate_type", "tanh"), ("linear_allow_neg_eigval", 1)):
        changed = dict(metadata, config=json.dumps({**config, key: value}))
        refused_file(save("damaged.safetensors", changed, tensors), key)
    changed = dict(metadata, gate_lower_bound="5")
    refused_file(save("damaged.safetensors", changed, tensors), "gate_lower_bound")
    twice = dict(tensors, **{"layer.A_log": tensors["layer.forget_gate.A_log"]})
    refused_file(save("damaged.safetensors", metadata, twice), "layer.A_log", "another name")
    rest = without(tensors, "layer.g_a_proj.weight")
    refused_file(save("damaged.safetensors", metadata, rest), "layer.g_b_proj.weight")
    for name, value in (("output_gate_type", "silu"), ("gate_lower_bound", None)):  # not as it is
        changed = (dict(metadata, config=json.dumps({**config, name: value})) if value else
                   dict(metadata, **{name: "-5"}))
        run_json(save("other.safetensors", changed, tensors), want=OUTSIDE)


def test_three_convolutions():
    for name in "family/layer_kimi_linear", "family/backward_layer_kimi_linear":
        whole = load(vector(name))
        metadata, tensors = as_checkpoint(*whole, True)
        for letter in "qkv":
            part = f"layer.{letter}_conv1d.weight"
            refused_file(save("damaged.safetensors", metadata, without(tensors, part)), part,
                         "absent")
            for shape in ([128], [32, 4], [32, 2, 2], [32, 4, 1], [64, 1, 2], [2**62, 1, 0]):
                n = 1
                for size in shape:
                    n *= size
                changed = dict(tensors, **{part: ("F32", shape, f32([1] * n))})
                refused_file(save("damaged.safetensors", metadata, changed), "_conv1d.weight")
            changed = dict(tensors, **{part: ("F32", [31, 1, 4], f32([1] * 124))})
            refused_file(save("damaged.safetensors", metadata, changed),
                         "[31,1,4]" if "backward" in name else "conv_weight")
            changed = dict(tensors, **{part: ("I32", [32, 1, 4], tensors[part][2])})
            refused_file(save("damaged.safetensors", metadata, changed), part)
        twice = dict(tensors, **{"layer.conv1d.weight": whole[1]["layer.conv1d.weight"]})
        refused_file(save("damaged.safetensors", metadata, twice), "layer.q_conv1d.weight",
                     "another name")
    config = json.loads(metadata["config"])
    for key, value in (("num_heads", 0), ("head_dim", None)):
        part = {**config["linear_attn_config"], key: value}
        changed = dict(metadata, config=json.dumps(dict(config, linear_attn_config=part)))
        refused_file(save("damaged.safetensors", changed, tensors), f" {key} ")


def test_layer_gradients():
    """The tensors tell the op, and each given parameter has a gradient."""
    metadata, tensors = load(vector("backward_layer_qwen3_5"))
    (line,) = run_json(save("nameless.safetensors", without(metadata, "op"), tensors))
    names = {o["name"] for o in line["outputs"] if o["compared"] and o["ok"]}
    check(line["op"] == "layer_backward" and [p["name"] for p in line["phases"]] == [
        "prefill", "backward"], line)
    check({"expected." + n for n in names} == {n for n in tensors if "expected." in n}, names)
    for name in ("grad_output", "layer.in_proj_z.weight", "layer.A_log"):
        refused_file(save("damaged.safetensors", metadata, without(tensors, name)))
        bad = dict(tensors, **{name: ("F32", [3], f32([1, 2, 3]))})
        refused_file(save("damaged.safetensors", metadata, bad))
    changed = dict(metadata, prefill_tokens="7")
    refused_file(save("damaged.safetensors", changed, tensors), "prefill_tokens")


def test_byte_flips():
    """Whatever a flipped bit does, it is not a crash. Half of them hit the header."""
    rng = random.Random(20)
    out = os.path.join(cli.FOLDER, "flip-out.safetensors")
    seen = {OK: 0, OUTSIDE: 0, BAD: 0}
    files = ["prefill_plain_delta", "prefill_empty_f16", "decode_gva_kfirst", "layer_qwen3_5",
             "backward_layer_qwen3_5"]
    for i in range(80 if cli.THIN else 320):
        with open(vector(files[i % len(files)]), "rb") as f:
            raw = bytearray(f.read())
        end = 8 + struct.unpack("<Q", raw[:8])[0]
        for _ in range(rng.choice((1, 1, 2, 5))):
            raw[rng.randrange(end if i % 8 < 4 else len(raw))] ^= 1 << rng.randrange(8)
        path = write("flipped.safetensors", bytes(raw))
        status, stdout, err = gdn("run", "--threads", "1", path, "-o", out)
        seen[status] += 1
        if status == BAD:
            check(stdout == "" and err.count("\n") == 1 and "flipped" in err, err)
            check(not os.path.exists(out), "an output file of a refused file")
        else:
            load(out)
            os.remove(out)
    check(all(seen.values()), "flips gave", seen)


def test_missing_files():
    refused("run", os.path.join(cli.FOLDER, "none.safetensors"), names=["none.safetensors"])
    refused("run", cli.FOLDER, names=[cli.FOLDER])
    refused("run", "/dev/null", names=["/dev/null"])
    refused("run", "--all", "--vectors", os.path.join(cli.FOLDER, "none"), names=["none"])
    empty = os.path.join(cli.FOLDER, "empty")
    os.mkdir(empty)
    refused("run", "--all", "--vectors", empty, names=["empty"])


def test_several_files():
    """Each file is told about; the worst of them is the status."""
    good, bad = vector("prefill_d60"), write("bad.safetensors", b"bad")
    status, out, err = gdn("run", "--json", good, bad, good)
    check(status == BAD and len(out.splitlines()) == 2 and err.count("\n") == 1, out, err)


# ---- Arguments ------------------------------------------------------------------------------


def test_help():
    for command in ([], ["run"], ["bench"], ["check"], ["info"]):
        status, out, err = gdn(*command, "--help")
        check(status == OK and err == "" and "gdn" in out, command, err)
        check(max(map(len, out.splitlines())) <= 100, "a long line in", command)
    _, out, _ = gdn("run", "--help")
    for word in ("gate_lower_bound", "pad_policy", "use_qk_l2norm", "expected.", "2e-5"):
        check(word in out, word, "is not in gdn run --help")
    status, out, _ = gdn("--version")
    check(status == OK and out == f"gdn {info()['version']}\n", out)


def test_bad_arguments():
    good = vector("prefill_d60")
    for args in (
        [], ["fly"], ["fly", "--help"], ["--fly"], ["info", "x"], ["info", "--all"], ["run"],
        ["run", "--fly", good], ["run", good, "--threads"], ["run", good, "--threads", "x"],
        ["run", good, "--threads", "-1"], ["run", good, "--threads", "1e9"],
        ["run", good, "--threads=2x"], ["run", good, "--json=1"], ["run", good, "--isa", "mmx"],
        ["run", good, "--backend", "cuda"], ["run", good, "--backend", "tpu"],
        ["run", "--all", good],
    ):
        refused(*args)
    for args in (
        "", "fly", "conv block", "prefill --heads 3/8", "prefill --heads x", "prefill --heads 16",
        "prefill --dim 257", "prefill --dim 128/1025", "prefill --dim 0", "prefill --dtype f64",
        "prefill --seqlens 12x",
        "prefill --seqlens=", "prefill --seqlens 1,,2", "prefill --batch 2", "decode --seqlens 12",
        "prefill --seqlens 99999999999", "decode --batch 0", "decode --seconds nan",
        "decode --layout left", "block --heads 8/4", "decode --isa mmx", "conv --gates all",
        "prefill --gates weak", "prefill --rule fly", "conv --rule kda", "block --rule kda",
        "prefill --updates 2", "prefill --rule product --updates 9",
        "prefill --rule kda --exact --state bf16",
        "prefill --layer kimi_linear",
        "block --layer kimi",
    ):
        refused("bench", *args.split())
    refused("run", good, "--isa", "mmx", names=["mmx"])


def test_unexpected_arguments():
    for word in ("--help", "-h", "help", "--version"):
        refused(word, "info", names=[f"{word}: unexpected argument 'info'"])
    refused("fly", "info", names=["unknown command 'fly'"])


def test_check_of_an_instruction_set():
    """Exit status 77 if the machine lacks the instruction set, or the build has no table for it."""
    here = {table["name"] for table in info()["tables"] if table["runs_here"]}
    for isa in ("scalar", "avx2", "avx512", "neon"):
        p = subprocess.run([cli.GDN, "check", f"--isa={isa}", "--list"], capture_output=True,
                           timeout=60)
        check(p.returncode == (OK if isa in here else 77), isa, p)
    status, out, err = gdn("check", "--isa=mmx")
    check(status == BAD and 'no instruction set is called "mmx"' in err, status, err)


def test_numbers_of_check():
    for option, value, wanted in (
            ("--repeat", "0", "from 1 to 1000000"), ("--repeat", "x", "from 1"),
            ("--seed", "-1", "from 0"), ("--seed", "1" * 21, "from 0"), ("--seed", "", "from 0")):
        status, out, err = gdn("check", "--function", "exp_row", option, value)
        check(status == BAD and not out and err.count("\n") == 1, option, value, out, err)
        check(f"{option}: '{value}', wanted a whole number {wanted}" in err, err)


def test_values_of_options():
    """--name value and --name=value, in every command; "--" ends the options."""
    rows = "--heads 1/1 --dim 8 --seqlens 9 --seconds 0.01".split()
    vector_ = vector("prefill_d60")
    for isa in (["--isa", "scalar"], ["--isa=scalar"]):
        for command in (["run", *isa, "--", vector_], ["run", *isa, vector_, "--"],
                        ["bench", *isa, *rows, "--", "l2norm"], ["info", *isa, "--"],
                        ["check", *isa, "--function=exp_row", "--"],
                        ["check", *isa, "--function", "exp_row", "--seed", "7", "--repeat", "1"],
                        ["check", *isa, "--list"]):
            status, out, err = gdn(*command)
            check(status == OK and err == "", command, status, err)
            check("scalar" in out and (command[0] == "info" or "avx" not in out), command, out)
    refused("run", "--", "--json", names=["--json"])
    refused("info", "--", "--json", names=["unexpected argument '--json'"])
    for command in (["check", "--isa"], ["check", "--", "--list"], ["check", "--isax=scalar"]):
        status, out, err = gdn(*command)
        check(status == BAD and "not understood" in err, command, status, err)


def test_escape_codes():
    """The progress bar is for a terminal that has them and a user who wants them."""
    import pty
    wanted = {"xterm": {"TERM": "xterm"}, "dumb": {"TERM": "dumb"}, "none": {"TERM": ""},
              "no colour": {"TERM": "xterm", "NO_COLOR": "1"}}
    for name, env in wanted.items():
        ours, theirs = pty.openpty()
        environment = {k: v for k, v in os.environ.items() if k not in ("TERM", "NO_COLOR")}
        p = subprocess.Popen([cli.GDN, "accuracy", "--tokens", "1024", "--dim", "8"],
                             stdout=subprocess.DEVNULL, stderr=theirs, env={**environment, **env})
        os.close(theirs)
        seen = b""
        try:
            while part := os.read(ours, 4096):
                seen += part
        except OSError:
            pass  # the other end is closed
        os.close(ours)
        check(p.wait(timeout=60) in (OK, OUTSIDE), name, seen)
        check((b"\x1b" in seen) == (name == "xterm"), name, seen)


def test_environment():
    (line,) = run_json(vector("prefill_d60"), env={"GDN_CPU": "scalar"})
    check(line["isa"] == "scalar" and ".scalar" in line["kernel"], line)
    status, out, err = gdn("run", vector("prefill_d60"), env={"GDN_CPU": "mmx"})
    check(status == BAD and "GDN_CPU" in err and err.count("\n") == 1, err)
    status, out, err = gdn("run", vector("prefill_d60"), env={"GDN_LOG": "1"})
    check(status == OK and "prefill:" in err, err)
    status, out, err = gdn("run", vector("prefill_d60"), env={"GDN_LOG": "0"})
    check(status == OK and err == "", err)


def test_full_disk():
    if not os.path.exists("/dev/full"):
        raise Skip("no /dev/full")
    with open("/dev/full", "wb") as full:
        p = subprocess.run([cli.GDN, "info"], stdout=full, stderr=subprocess.PIPE, timeout=60)
    check(p.returncode == BAD and b"standard output" in p.stderr, p)


if __name__ == "__main__":
    sys.exit(cli.main(globals()))
