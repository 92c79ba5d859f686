#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`gdn state`, from outside: cli_state_test.py GDN [--filter WORD]

The blobs are written here, by the words of docs/start/state-blob.md. Nothing but the standard
library.
"""
import itertools
import json
import os
import random
import struct
import sys

import cli_test as cli
from cli_test import BAD, OK, OUTSIDE, check, refused

F32, BF16, F16, I8 = 0, 1, 2, 3
CODES = {F32: "f", BF16: "H", F16: "e", I8: "b"}  # BF16 as the upper half of a float


def align(n):
    return -(-n // 64) * 64


def crc32c(data):
    table = []
    for x in range(256):
        for _ in range(8):
            x = x >> 1 ^ (0x82F63B78 if x & 1 else 0)
        table.append(x)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def numbers(dtype, values):
    if dtype == BF16:
        return b"".join(struct.pack("<f", x)[2:] for x in values)
    return struct.pack(f"<{len(values)}{CODES[dtype]}", *values)


def seal(blob):
    blob = bytearray(blob)
    blob[24:28] = bytes(4)
    blob[24:28] = struct.pack("<I", crc32c(blob))
    return bytes(blob)


def blob(B=2, heads=(2, 2, 4), K=3, V=2, S=3, dtype=F32, layout=0, conv=F16, head_map=0, rank=0,
         ranks=1, state=None, inputs=None, positions=None, scales=None, copies=None):
    """Returns a blob with the given values, or with small numbers that every dtype holds."""
    Hq, Hk, Hv = heads
    n_state, D = B * max(Hq, Hv) * K * V, (Hq + Hk) * K + Hv * V
    state = [(i * 7 % 97) - 48 for i in range(n_state)] if state is None else state
    inputs = [(i * 5 % 89) - 44 for i in range(B * D * S)] if inputs is None else inputs
    parts = [struct.pack(f"<{B}q", *(positions or range(7, 7 + B)))]
    parts += [numbers(dtype, state) if dtype >= 0 else b""]
    if scales:
        parts += [numbers(F32, scales)]
    parts += [numbers(conv, inputs) if conv >= 0 else b""]
    body = b"".join(p.ljust(align(len(p)), b"\0") for p in parts)
    fields = (head_map, Hq, Hk, Hv, K, V, dtype, layout, conv, S if conv >= 0 else 0, rank, ranks)
    version = 2 if copies or dtype > F16 else 1
    head = struct.pack("<8sIIQIIq12i", b"GDNSTATE", version, 128, 128 + len(body), 0, 0, B, *fields)
    if version == 2:
        head += struct.pack("<3i", *(copies or (1, 1, 1)))
    return seal(head.ljust(128, b"\0") + body)


def write(name, content):
    path = os.path.join(cli.FOLDER, name)
    with open(path, "wb") as f:
        f.write(content)
    return path


def read(path):
    with open(path, "rb") as f:
        return f.read()


def out(name="out"):
    return os.path.join(cli.FOLDER, name)


def state(*args, want=OK):
    status, text, err = cli.gdn("state", *args)
    check(status == want and err == "", "status", status, "wanted", want, args, text, err)
    return text


def line(*args, want=OK):
    (found,) = state(*args, "--json", want=want).splitlines()
    return json.loads(found)


# ---- inspect ------------------------------------------------------------------------------


def test_inspect():
    check(crc32c(b"123456789") == 0xE3069283, "the check value of CRC-32C")
    data = blob(positions=[5, 1 << 40])
    path = write("a", data)
    found = line("inspect", path)
    want = dict(file=path, format=1, bytes=len(data), positions=[5, 1 << 40], head_map="grouped",
                n_query_heads=2, n_key_heads=2, n_value_heads=4, key_head_dim=3, value_head_dim=2,
                rank=0, n_ranks=1, checksum="%08x" % struct.unpack_from("<I", data, 24),
                state=dict(dtype="f32", layout="vk", shape=[2, 4, 2, 3]),
                conv_state=dict(dtype="f16", shape=[2, 20, 3]))
    for name, value in want.items():
        check(found[name] == value, name, found[name], "wanted", value)
    text = state("inspect", path)
    for word in (want["checksum"], "2 of q, 2 of k, 4 of v", "[2][4][2][3]", "whole layer"):
        check(word in text, word, "is not in", text)
    part = blob(dtype=-1, head_map=1, rank=1, ranks=2)
    found = line("inspect", write("b", part))
    check(found["state"] is None and found["rank"] == 1 and found["head_map"] == "interleaved")
    check("rank 1 of 2" in state("inspect", write("b", part)), "the part")
    check(line("inspect", write("c", blob(B=0)))["positions"] == [], "no sequences")


# ---- convert ------------------------------------------------------------------------------


def turned(values, n, rows, columns):
    """n matrices, transposed."""
    size = rows * columns
    return [values[m * size + r * columns + c] for m in range(n) for c in range(columns)
            for r in range(rows)]


def test_convert():
    """To every dtype and layout, from every one: the bytes are those of a blob written here."""
    values = [(i * 7 % 97) - 48 for i in range(2 * 4 * 6)]
    names = ("f32", "bf16", "f16")
    for a, b, c, d in itertools.product((F32, BF16, F16), (F32, BF16, F16), (0, 1), (0, 1)):
        stored = turned(values, 8, 2, 3) if c else values
        wanted = turned(values, 8, 2, 3) if d else values
        path = write("a", blob(dtype=a, conv=b, layout=c, state=stored))
        state("convert", path, "-o", out(), "--dtype", names[b], "--conv-dtype", names[a],
              "--layout", ("vk", "kv")[d])
        check(read(out()) == blob(dtype=b, conv=a, layout=d, state=wanted), a, b, c, d)
        state("diff", path, out())
    state("convert", path, f"--output={path}")
    check(read(path) == blob(dtype=a, conv=b, layout=c, state=stored), "onto itself")


def test_convert_length():
    inputs = list(range(2 * 20 * 3))
    path = write("a", blob(inputs=inputs))
    longer = [x for i in range(40) for x in [0, 0] + inputs[3 * i : 3 * i + 3]]
    state("convert", path, "-o", out(), "--length", "5")
    check(read(out()) == blob(S=5, inputs=longer), "longer")
    state("convert", path, "-o", out(), "--length", "1")
    check(read(out()) == blob(S=1, inputs=inputs[2::3]), "shorter")


def test_convert_refused():
    path = write("a", blob())
    refused("state", "convert", path, names=["-o"])
    refused("state", "convert", path, path, "-o", out(), names=["2 files"])
    refused("state", "convert", path, "-o", out(), "--dtype", "i4",
            names=["--dtype: 'i4', wanted f32, bf16, f16, i8, e4m3 or e5m2\n"])
    refused("state", "convert", path, "-o", out(), "--layout", "vv",
            names=["--layout: 'vv', wanted vk or kv\n"])
    refused("state", "convert", path, "-o", out(), "--length", "0", names=["--length"])
    refused("state", "convert", path, "-o", cli.FOLDER, names=["not a regular file"])
    refused("state", "convert", path, "-o", out("no/such"), names=["not written"])
    for missing, option in ((dict(dtype=-1), "--dtype"), (dict(conv=-1), "--conv-dtype")):
        bare = write("b", blob(**missing))
        refused("state", "convert", bare, "-o", out(), option, "f16", names=[option])
        state("convert", bare, "-o", out("c"))
        check(read(out("c")) == blob(**missing), "one kind alone")
    check(sorted(os.listdir(cli.FOLDER)) == ["a", "b", "c"], os.listdir(cli.FOLDER))


# ---- slice and merge ----------------------------------------------------------------------


def cut(values, B, kinds, rank, n, period):
    """Heads of rank `rank` of n; kinds are (heads, values of one)."""
    row, found = sum(h * size for h, size in kinds), []
    for b in range(B):
        at = b * row
        for h, size in kinds:
            round_ = period or h
            for head in range(h):
                if head % round_ * n // round_ == rank:
                    found += values[at + head * size : at + (head + 1) * size]
            at += h * size
    return found


def test_slice_and_merge():
    for head_map, heads, n in ((0, (2, 2, 4), 2), (0, (4, 4, 8), 4), (0, (8, 4, 4), 2),
                               (1, (2, 2, 4), 2), (1, (4, 4, 12), 2), (1, (8, 4, 4), 4)):
        Hq, Hk, Hv = heads
        H, D = max(Hq, Hv), (Hq + Hk) * 3 + Hv * 2
        values, inputs = list(range(2 * H * 6)), list(range(2 * D * 3))
        whole = write("whole", blob(heads=heads, head_map=head_map, state=values, inputs=inputs))
        paths = [out(f"part{r}") for r in range(n)]
        period = min(heads) if head_map else 0
        for r, path in enumerate(paths):
            state("slice", whole, "--rank", str(r), "--of", str(n), "-o", path)
            want = blob(heads=[h // n for h in heads], head_map=head_map, rank=r, ranks=n,
                        state=cut(values, 2, [(H, 6)], r, n, period),
                        inputs=cut(inputs, 2, [(Hq, 9), (Hk, 9), (Hv, 6)], r, n, period))
            check(read(path) == want, "slice", r, "of", n, heads, head_map)
        random.Random(n).shuffle(paths)
        state("merge", *paths, "-o", out())
        check(read(out()) == read(whole), "merge", heads, head_map)
        refused("state", "merge", *paths[1:], "-o", out("no"), names=["blobs"])
        refused("state", "merge", *paths[1:], paths[1 % n], "-o", out("no"), names=["blobs"])
        check(not os.path.exists(out("no")), "an output of a refused call")


def test_slice_refused():
    path = write("a", blob())
    refused("state", "slice", path, "-o", out(), "--of", "2", names=["--rank"])
    refused("state", "slice", path, "-o", out(), "--rank", "0", names=["--of"])
    refused("state", "slice", path, "-o", out(), "--rank", "2", "--of", "2", names=["rank: 2"])
    refused("state", "slice", path, "-o", out(), "--rank", "0", "--of", "3", names=["divisor of 4"])
    refused("state", "merge", "-o", out(), names=["no files"])
    check(os.listdir(cli.FOLDER) == ["a"], os.listdir(cli.FOLDER))


# ---- diff ---------------------------------------------------------------------------------


def test_diff():
    a = write("a", blob())
    found = line("diff", a, write("b", blob(conv=F32, dtype=BF16)))
    check(found["equal"] and [p["different"] for p in found["parts"]] == [0] * 5, found)
    check(state("diff", a, a).endswith("equal\n"), "text")
    values, inputs = [float((i * 7 % 97) - 48) for i in range(48)], list(range(120))
    values[5] += 3
    values[40] -= 4
    inputs[60 + 6 * 3 + 1] += 10  # the second sequence, the first channel of k
    a = write("a", blob(conv=F32, inputs=list(range(120))))
    b = write("b", blob(conv=F32, state=values, inputs=inputs, positions=[7, 9]))
    found = line("diff", a, b, want=OUTSIDE)
    parts = {p["name"]: p for p in found["parts"]}
    check([p["different"] for p in found["parts"]] == [1, 2, 0, 1, 0], found)
    check(parts["state"]["max_abs"] == 4 and parts["conv k"]["max_abs"] == 10, found)
    check(abs(parts["state"]["rms"] - (25 / 48) ** 0.5) < 1e-12, found)
    check(state("diff", a, b, want=OUTSIDE).endswith("different\n"), "text")
    nan = [float("nan")] * 48
    a = write("a", blob(state=nan))
    check(line("diff", a, a)["equal"], "NaN beside itself")
    check(line("diff", a, write("b", blob()), want=OUTSIDE)["parts"][1]["different"] == 48, "NaN")


def test_eight_bits():
    """A state of codes with a scale for each value column; the values are code x scale."""
    B, H, V, K = 2, 4, 2, 3
    codes = [127 if i % K == 0 else (i * 7 % 97) - 48 for i in range(B * H * V * K)]
    scales = [2.0 ** (i % 5 - 2) for i in range(B * H * V)]
    values = [c * scales[i // K] for i, c in enumerate(codes)]
    eight = blob(dtype=I8, state=codes, scales=scales)
    a, b = write("a", eight), write("b", blob(state=values))
    check(line("inspect", a)["state"]["dtype"] == "i8" and line("inspect", a)["format"] == 2, "i8")
    state("convert", a, "-o", out(), "--dtype", "f32")
    check(read(out()) == read(b), "to f32")
    state("convert", b, "-o", out(), "--dtype", "i8")
    check(read(out()) == eight, "to i8")
    check(line("diff", a, b)["equal"], "the values are the same")
    for rank in range(4):
        state("slice", a, "--rank", str(rank), "--of", "4", "-o", out(f"r{rank}"))
    state("merge", *(out(f"r{rank}") for rank in (2, 0, 3, 1)), "-o", out())
    check(read(out()) == eight, "merged")
    found = line("inspect", out("r3"))
    check(found["key_copies"] == found["query_copies"] == 2 and found["value_copies"] == 1, found)
    check("copies     2 ranks have the head of q" in state("inspect", out("r3")), "text")
    refused("state", "convert", a, "-o", out(), "--conv-dtype", "i8", names=["--conv-dtype"])


def test_diff_of_other_lengths():
    """The newest inputs that both files have are compared, whichever file has more."""
    path = write("a", blob(inputs=list(range(2 * 20 * 3))))
    for length in ("1", "2", "5"):
        state("convert", path, "-o", out(), "--length", length)
        for files in ((path, out()), (out(), path)):
            found = line("diff", *files)
            n = 2 * 20 * min(3, int(length))
            check(found["equal"] and sum(p["values"] for p in found["parts"][2:]) == n, found)
    other = list(range(2 * 20 * 3))
    other[3 * 7 + 2] += 1  # the newest input of channel 7, of k
    state("convert", write("b", blob(inputs=other)), "-o", out(), "--length", "1")
    found = line("diff", path, out(), want=OUTSIDE)
    check([p["different"] for p in found["parts"]] == [0, 0, 0, 1, 0], found)


def test_diff_of_other_layers():
    a = write("a", blob())
    for other, field in ((dict(heads=(2, 2, 2)), "n_value_heads"), (dict(B=1), "n_sequences"),
                         (dict(head_map=1), "head_map"), (dict(conv=-1), "has conv_state"),
                         (dict(dtype=-1), "has state"), (dict(ranks=2), "n_ranks")):
        found = line("diff", a, write("b", blob(**other)), want=OUTSIDE)
        check(not found["equal"] and found["field"] == field, found)
        check(field in state("diff", a, out("b"), want=OUTSIDE), "text")
    text = state("diff", a, write("b", blob(head_map=1)), want=OUTSIDE)
    check("head_map: grouped, interleaved" in text, text)
    text = state("diff", a, write("b", blob(dtype=-1)), want=OUTSIDE)
    check("has state: yes, no" in text, text)
    refused("state", "diff", a, names=["1 files"])
    refused("state", "diff", a, a, "-o", out(), names=["-o"])


def test_options_of_other_actions():
    path = write("a", blob())
    more = {"convert": ("-o", out()), "merge": ("-o", out()), "diff": (path,),
            "slice": ("-o", out(), "--rank", "0", "--of", "1")}
    converts = "--dtype f16", "--conv-dtype f16", "--layout kv", "--length 4"
    cuts = "--rank 0", "--of 1"
    for action, options in (("inspect", ("-o x", *converts, *cuts)), ("diff", (*converts, *cuts)),
                            ("convert", (*cuts, "--json")), ("slice", (*converts, "--json")),
                            ("merge", (*converts, *cuts, "--json"))):
        for option in options:
            name = option.split()[0]
            refused("state", action, path, *more.get(action, ()), *option.split(),
                    names=[f"{name}: not for state {action}"])


# ---- Damage -------------------------------------------------------------------------------


def every_action(path, good, n):
    """A reading of the file by one of the commands."""
    return [("inspect", path), ("convert", path, "-o", out()),
            ("slice", path, "--rank", "0", "--of", "1", "-o", out()),
            ("merge", path, "-o", out()), ("diff", good, path), ("diff", path, good)][n % 6]


def refuse_damaged(good, cases):
    count = 0
    for count, damaged in enumerate(cases, 1):
        path = write("damaged", damaged)
        refused("state", *every_action(path, good, count), names=[path if count % 6 != 3 else ""])
        check(sorted(os.listdir(cli.FOLDER)) == ["damaged", "good"], os.listdir(cli.FOLDER))
    return count


def small():
    return blob(B=1, heads=(1, 1, 1), K=1, V=1)


def test_cut_anywhere():
    data = small()
    step = 5 if cli.THIN else 1
    lengths = range(0, len(data), step)
    n = refuse_damaged(write("good", data), (data[:n] for n in lengths))
    check(n == 320 // step, n, "lengths")


def test_changed_bytes():
    data, rng = small(), random.Random(5)

    def cases():
        for i in range(0, 300, 5 if cli.THIN else 1):
            at = i if i < 128 else rng.randrange(len(data))
            yield data[:at] + bytes([data[at] ^ rng.randrange(1, 256)]) + data[at + 1 :]
        yield data + b"\0"
        yield data + data
        yield bytes(320)
        yield rng.randbytes(320)
        yield b'{"no": "blob"}' * 30

    refuse_damaged(write("good", data), cases())


def test_changed_fields():
    """Any field changed under a right checksum: the blob is refused, or its description is
    sound."""
    data, rng = blob(), random.Random(7)
    values = (0, 1, 2, 3, 5, 255, 1 << 30, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
    for i in range(40 if cli.THIN else 200):
        at = rng.randrange(2, 32) * 4
        changed = bytearray(data)
        changed[at : at + 4] = struct.pack("<I", rng.choice(values))
        path = write("damaged", seal(changed))
        status, text, err = cli.gdn("state", *every_action(path, path, i))
        check(status == OK or (status == BAD and err.count("\n") == 1), status, err)


def test_files():
    good = write("good", small())
    refused("state", "inspect", out("none"), names=["none"])
    refused("state", "inspect", cli.FOLDER, names=["not a regular file"])
    refused("state", "inspect", "/dev/zero", names=["not a regular file"])
    os.mkfifo(out("pipe"))
    refused("state", "inspect", out("pipe"), names=["not a regular file"])
    refused("state", "convert", good, "-o", out("pipe"), names=["not a regular file"])
    refused("state", names=["no action"])
    refused("state", "destroy", good, names=["destroy"])
    refused("state", "inspect", good, "-o", out(), names=["-o"])
    status, text, _ = cli.gdn("state", "--help")
    check(status == OK and all(w in text for w in ("inspect", "convert", "slice", "merge", "diff")))
    status, text, _ = cli.gdn("--help")
    check("gdn state" in text, text)


if __name__ == "__main__":
    sys.exit(cli.main(globals()))
