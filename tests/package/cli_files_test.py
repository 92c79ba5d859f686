#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Files that the command writes, when memory, disk or patience end:
cli_files_test.py GDN HOSTILE_LIBC [--filter WORD]

HOSTILE_LIBC is the library of hostile_libc.c. Without it (a build with sanitizers, whose own
allocator cannot be replaced) what needs it is skipped.
"""
import json
import os
import random
import signal
import stat
import subprocess
import sys
import time

import cli_generate_test as generate_test
import cli_plan_test as plan_test
import cli_state_test as states
import cli_test as cli
import cli_tokenizer_test as tokenizer_test
import qwen35
from cli_test import BAD, OK, Skip, build, check, load, pack, refused, save, vector, write

LIBC = None
RUNS = int(os.environ.get("GDN_TEST_RUNS", "15"))  # of each file
EVERY = int(os.environ.get("GDN_TEST_EVERY_ALLOC", "9"))


def out(name="out"):
    return os.path.join(cli.FOLDER, name)


def gdn(*args, status=OK, **env):
    p = subprocess.run([cli.GDN, *args], capture_output=True, timeout=300,
                       env=dict(os.environ, **env))
    check(status is None or p.returncode == status, p.returncode, "wanted", status, args, p.stderr)
    return p


def hostile(*args, **env):
    if not LIBC:
        raise Skip("no HOSTILE_LIBC")
    return gdn(*args, status=None, LD_PRELOAD=LIBC, **{k: str(v) for k, v in env.items()})


def no_temporaries():
    check(not [n for n in os.listdir(cli.FOLDER) if ".gdn-" in n], os.listdir(cli.FOLDER))


def model():
    config = dict(qwen35.CONFIG, hidden_size=16, intermediate_size=16, head_dim=8,
                  linear_key_head_dim=4, linear_value_head_dim=4)
    tensors, _ = qwen35.random_weights(config, 3)
    return save("model.safetensors", qwen35.metadata(config), tensors), config, tensors


# ---- Where a file goes ----------------------------------------------------------------------


def test_left_by_a_killed_writer():
    """A temporary file of a process with the same number does not stop a later one."""
    script = f'touch "{out()}.gdn-$$"; exec "{cli.GDN}" run "{vector("prefill_d60")}" -o "{out()}"'
    p = subprocess.run(["sh", "-c", script], capture_output=True, timeout=60)
    check(p.returncode == OK and load(out())[1], p)


def test_link_and_mode():
    """A link stays one, a dangling one is refused, and the mode is kept."""
    os.mkdir(out("other"))
    target, link = out("other/target"), out("link")
    write("other/target", b"old")
    os.chmod(target, 0o600)
    os.symlink(target, link)
    gdn("run", vector("prefill_d60"), "-o", link)
    check(os.path.islink(link) and load(target)[1], "the link was replaced")
    check(stat.S_IMODE(os.stat(target).st_mode) == 0o600, oct(os.stat(target).st_mode))
    check(os.listdir(out("other")) == ["target"], os.listdir(out("other")))
    mask = os.umask(0o027)
    gdn("run", vector("prefill_d60"), "-o", out("new"))
    os.umask(mask)
    check(stat.S_IMODE(os.stat(out("new")).st_mode) == 0o640, oct(os.stat(out("new")).st_mode))
    os.symlink(out("nothing"), out("dangling"))
    refused("run", vector("prefill_d60"), "-o", out("dangling"), names=["dangling"])


def test_signals():
    """A signal while a file is written: the old file stays, no other one does."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        write("old", b"old")
        p = hostile("run", vector("prefill_d60"), "-o", out("old"), GDN_FSYNC_SIGNAL=int(number))
        check(p.returncode == -number, p)
        check(open(out("old"), "rb").read() == b"old", "the old file changed")
        no_temporaries()


def test_file_size_limit():
    write("old", b"old")
    script = f'ulimit -f 1; exec "{cli.GDN}" run "{vector("prefill_kfirst")}" -o "{out("old")}"'
    p = subprocess.run(["sh", "-c", script], capture_output=True, timeout=60)
    check(p.returncode == BAD and b"not written" in p.stderr and p.stderr.count(b"\n") == 1, p)
    check(open(out("old"), "rb").read() == b"old", "the old file changed")
    no_temporaries()


def test_output_is_gone():
    """A text that nobody can read is not continued, and the error is that of the write."""
    if not os.path.exists("/dev/full"):
        raise Skip("no /dev/full")
    path, *_ = model()
    for args in (["generate", path, "-p", "ab", "-n", "20000"],
                 ["generate", path, "-p", "ab", "-n", "20000", "--draft", "7"], ["--help"]):
        start = time.monotonic()
        with open("/dev/full", "wb") as full:
            p = subprocess.run([cli.GDN, *args], stdout=full, stderr=subprocess.PIPE, timeout=300)
        check(p.returncode == BAD and b"No space left" in p.stderr, p)
        check(p.stderr.count(b"\n") == 1 and time.monotonic() - start < 20, p)


# ---- Large and lying files ------------------------------------------------------------------


def quick(*args, names=()):
    """Refused in one line before five seconds and 600 MB are gone."""
    start = time.monotonic()
    script = 'ulimit -v 1500000; exec "$0" "$@"' if LIBC else 'exec "$0" "$@"'
    p = subprocess.run(["sh", "-c", script, cli.GDN, *args], capture_output=True, timeout=60)
    check(p.returncode == BAD and p.stderr.count(b"\n") == 1, p.returncode, p.stderr[:500])
    for name in names:
        check(name.encode() in p.stderr, name, "is not in", p.stderr)
    check(time.monotonic() - start < 5, time.monotonic() - start, "seconds")


def test_many_keys():
    metadata = {f"key{i:06}": "x" for i in range(60000)}
    quick("run", write("keys", pack({"__metadata__": metadata})), names=["keys"])
    text = json.dumps({"__metadata__": metadata}).replace("key059999", "key059998")
    quick("run", write("twice", pack(text.encode())), names=["key059998", "twice"])


def test_many_tensors():
    """An index of a megabyte, all of whose tensors are there."""
    names = [f"model.layers.0.weight{i:06}" for i in range(30000)]
    os.mkdir(out("many"))
    save("many/a.safetensors", None, {n: ("U8", [0], b"") for n in names})
    index = {"weight_map": {n: "a.safetensors" for n in names}}
    write("many/config.json", json.dumps(qwen35.CONFIG).encode())
    write("many/model.safetensors.index.json", json.dumps(index).encode())
    quick("generate", out("many"), "-p", "a", names=["embed_tokens"])


def test_state_of_many_tokens():
    """A small state file that claims many tokens takes no memory for them."""
    path, *_ = model()
    gdn("generate", path, "-p", "abc", "-n", "1", "--save-state", out())
    metadata, tensors = load(out())
    lying = save("lying", dict(metadata, tokens="30000000"), tensors)
    quick("generate", path, "--load-state", lying, names=["keys"])


# ---- Files that lie ------------------------------------------------------------------------

HOSTILE = [None, True, -1, 0, 1, 2.5, 1e300, -1e300, 2**31, 2**53 + 2, "", "x", "\u00e9" * 300, [],
           {}, [[]], [0] * 9, {"x": "x"}, {"type": "x"}, "layers.0", [[[[[[[[]]]]]]]]]


def places(json_value, path=()):
    """The way to every value of a JSON file."""
    yield path
    pairs = (json_value.items() if isinstance(json_value, dict) else
             enumerate(json_value) if isinstance(json_value, list) else ())
    for key, value in list(pairs)[:40]:
        yield from places(value, (*path, key))


def changed(rng, good):
    """Changes one or two values, drops them, or adds a value beside them."""
    whole = json.loads(json.dumps({"": good}))
    for _ in range(rng.choice((1, 1, 2))):
        path = ("", *rng.choice(list(places(whole[""]))))
        at = whole
        for key in path[:-1]:
            at = at[key]
        how = rng.randrange(8)
        if how == 0 and path != ("",):
            del at[path[-1]]
        elif how == 1 and isinstance(at, dict) and path != ("",):
            at[rng.choice(("x", path[-1] + "x"))] = rng.choice(HOSTILE)
        else:
            at[path[-1]] = rng.choice(HOSTILE)
    return whole[""]


def survives(*args):
    start = time.monotonic()
    p = subprocess.run([cli.GDN, *args], capture_output=True, timeout=60)
    check(p.returncode in (0, 1, 2), p.returncode, args, p.stderr[-2000:])
    check(p.stderr.count(b"\n") == (p.returncode == BAD), p.returncode, p.stderr[-2000:])
    check(time.monotonic() - start < 20, time.monotonic() - start, "seconds")
    return p.returncode == OK


def test_hostile_json():
    """Every JSON file with values changed: taken, or refused in one line."""
    rng = random.Random(int(os.environ.get("GDN_TEST_SEED", "1")))
    path, config, tensors = model()
    where = generate_test.folder(dict(config, vocab_size=300), {}, name="model")
    big = dict(config, vocab_size=300)
    weights = qwen35.random_weights(big, 3)[0]
    gdn("generate", path, "-p", "abc", "-n", "1", "--save-state", out("state"))
    header = lambda *a: build(*a)[0]
    files = {
        "config.json": big,
        "generation_config.json": {"eos_token_id": [3, 4], "top_k": 20, "temperature": 0.7},
        "tokenizer.json": tokenizer_test.tokenizer(truncation={"max_length": 100}),
        "tokenizer_config.json": {"add_bos_token": False, "added_tokens_decoder": {}},
        "model.safetensors": header({"format": "pt"}, weights),
    }
    data = {"model.safetensors": build(None, weights)[1]}
    put = lambda name, value: write("model/" + name, pack(value, data[name]) if name in data else
                                    json.dumps(value).encode())
    for name, value in files.items():
        put(name, value)
    check(survives("generate", where, "-p", "The delta", "-n", "1"), "the good files")
    for name, good in files.items():
        for _ in range(RUNS):
            put(name, changed(rng, good))
            survives("generate", where, "-p", "The delta <|go|>", "-n", "1")
        put(name, good)
    for good, args in ((load(out("state")), ["generate", path, "-n", "1", "--load-state"]),
                       (load(vector("prefill_d60")), ["run"]),
                       (load(vector("layer_qwen3_5")), ["run"])):
        good, data = build(*good)
        for _ in range(RUNS):
            survives(*args, write("lie", pack(changed(rng, good), data)))


# ---- Allocations that fail ------------------------------------------------------------------


def blobs():
    """A whole layer and its two slices."""
    whole = states.blob(heads=(2, 2, 4))
    write("whole", whole)
    for rank in "01":
        gdn("state", "slice", out("whole"), "--rank", rank, "--of", "2", "-o", out("s" + rank))
    return out("whole")


def commands():
    """(name, arguments; OUT is the file that is written)"""
    path, config, tensors = model()
    whole = blobs()
    gdn("generate", path, "-p", "abc", "-n", "2", "--save-state", out("half"))
    write("changed", open(whole, "rb").read())
    one = ["--threads", "1"]
    yield "run", ["run", vector("prefill_d60"), "-o", "OUT", *one]
    yield "run --json", ["run", vector("prefill_d60"), "--json", *one]
    yield "layer", ["run", vector("layer_qwen3_5"), "-o", "OUT", *one]
    yield "inspect", ["state", "inspect", whole, "--json"]
    yield "convert", ["state", "convert", whole, "--dtype", "bf16", "-o", "OUT"]
    yield "slice", ["state", "slice", whole, "--rank", "1", "--of", "2", "-o", "OUT"]
    yield "merge", ["state", "merge", out("s0"), out("s1"), "-o", "OUT"]
    yield "diff", ["state", "diff", whole, out("changed")]
    yield "diff --json", ["state", "diff", whole, out("changed"), "--json"]
    sizes = plan_test.config(plan_test.QWEN3_NEXT)
    yield "plan", ["plan", sizes, "--json", *one]
    yield "plan --gpu", ["plan", sizes, "--json", "--gpu", "H100"]
    yield "generate", ["generate", path, "-p", "abc", "-n", "3", "--draft", "2",
                       "--save-state", "OUT", *one]
    yield "continue", ["generate", path, "--load-state", out("half"), "-n", "3",
                       "--logits", "OUT", *one]


def plain(text):
    """Without what differs from run to run: times."""
    try:
        line = json.loads(text)
    except ValueError:
        return text if b"tokens/s" not in text else b""
    for phase in line.get("phases", []):
        phase.pop("ms")
    for key in ("ms", "device"):  # "unknown CPU" if the name cannot be read
        line.pop(key, None)
    return line


def test_failing_allocations():
    """Of every command: all of it is there and right, or one line, exit 2 and the old file."""
    rng = random.Random(5)
    for name, args in commands():
        args = [out("result") if a == "OUT" else a for a in args]
        writes = out("result") in args
        p = hostile(*args, GDN_COUNT_ALLOC=out("count"))
        check(p.returncode == OK, name, p)
        n, text = int(open(out("count")).read()), plain(p.stdout)
        result = open(out("result"), "rb").read() if writes else b""
        check(n > 10, name, n, "allocations")
        for i in range(1 + rng.randrange(EVERY), n + 1, EVERY):
            if writes:
                write("result", b"old")
            p = hostile(*args, GDN_FAIL_ALLOC=i)
            now = open(out("result"), "rb").read() if writes else b""
            if p.returncode == OK:
                check(now == result and plain(p.stdout) == text, name, "allocation", i, "of", n, p)
            else:
                check(p.returncode == BAD, name, "allocation", i, "of", n, p)
                check(p.stderr.startswith(b"gdn: ") and p.stderr.count(b"\n") == 1, name, i, p)
                check(now == (b"old" if writes else b""), name, "allocation", i, "of", n)
            no_temporaries()


if __name__ == "__main__":
    if "--filter" not in sys.argv[2:3] and len(sys.argv) > 2:
        LIBC = os.path.abspath(sys.argv.pop(2))
    sys.exit(cli.main(globals()))
