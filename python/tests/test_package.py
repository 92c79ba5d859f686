# SPDX-License-Identifier: Apache-2.0
"""The package itself: it has the headers' structs, takes arrays as they are, names mistakes."""

import array
import ctypes
import pathlib
import re
import subprocess
import sys
import threading

import gdn
import numpy as np
import pytest
from arrays import F16, F32, store

ROOT = pathlib.Path(__file__).parents[2]
HEADERS = "".join(path.read_text() for path in sorted((ROOT / "include").glob("*.h")))


def test_structs_have_the_sizes_of_the_abi():
    text = (ROOT / "tests/package/abi.txt").read_text()
    sizes = dict(re.findall(r"^struct (\w+) (\d+)$", text, re.M))
    assert set(sizes) == set(re.findall(r"^typedef struct (gdn_\w+) \{$", HEADERS, re.M))
    for name, size in sizes.items():
        assert ctypes.sizeof(getattr(gdn, name)) == int(size), name


def test_structs_have_the_fields_of_the_headers():
    """The names in the order of the headers, where a line is: type, names, comment."""
    text = re.sub(r"/\*.*?\*/", "", HEADERS, flags=re.S)
    found = re.findall(r"typedef struct (gdn_\w+) \{\n(.*?)\n\} \1;", text, re.S)
    assert len(found) > 20
    for struct, body in found:
        names = []
        for member in body.split(";"):
            if pointer := re.search(r"\(\*(\w+)\)", member):
                names.append(pointer[1])
            elif words := re.sub(r"\[\w+\]|\*|const|,", " ", member).split():
                names += words[1:]
        assert [name for name, _ in getattr(gdn, struct)._fields_] == names, struct


def test_constants_are_those_of_the_headers():
    found = re.findall(r"^ +GDN_(\w+) += (\d+),?", HEADERS, re.M)
    found += re.findall(r"GDN_(BACKEND_\w+) = (\d+)", HEADERS)
    for name, value in found:
        if not name.startswith("OP_"):
            assert getattr(gdn, name) == int(value), name
    assert len(found) > 40
    assert gdn.MAX_DIMS == int(re.search(r"GDN_MAX_DIMS (\d+)", HEADERS)[1])


def test_ops_are_those_of_the_header():
    ops = [(name.lower(), int(n)) for name, n in re.findall(r"GDN_OP_(\w+) += (\d+)", HEADERS)]
    rule = {"prefill": "rule", "decode": "rule"}
    structs = {name: getattr(gdn, f"gdn_{rule.get(name, name)}_args") for name, _ in ops}
    assert list(structs.items()) == list(gdn._OPS.items())
    assert [number for _, number in ops] == list(range(len(ops)))


def test_other_libraries_compute_beside_the_package_s(tmp_path):
    copy = tmp_path / "copy.so"
    copy.write_bytes(pathlib.Path(gdn.info()["library"]).resolve().read_bytes())
    with gdn.Context(threads=1) as ours, gdn.Context(threads=1, library=copy) as other:
        assert ours.isa == other.isa
        assert ours._core.lib._handle != other._core.lib._handle
        x, found = np.ones((2, 4), np.float32), np.zeros((2, 2, 4), np.float32)
        for ctx, out in zip((ours, other), found):
            ctx.l2norm(x=x, out=out)
        assert np.all(found == found[0]) and found[0, 0, 0] > 0
        with pytest.raises(gdn.Error, match="wanted"):
            other.l2norm(x=x, out=out[:1])
    with pytest.raises(ImportError, match="none.so"):
        gdn.Context(library=tmp_path / "none.so")


def test_version_and_info():
    text = (ROOT / "include/gdn.h").read_text()
    numbers = re.findall(r"#define GDN_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", text)
    assert gdn.version() == ".".join(numbers)
    info = gdn.info()
    assert info["version"] == gdn.version() and info["isa"] in ("scalar", "avx2", "avx512", "neon")
    assert info["threads"] >= 1 and info["library"]


def test_import_brings_no_library_of_arrays():
    script = "import sys, gdn; sys.exit(bool({'numpy', 'torch', 'cupy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


# ---- Arrays ------------------------------------------------------------------------------------


def test_buffers_without_numpy(ctx):
    x, out = array.array("f", [3, 4]), array.array("f", [0, 0])
    rows = [memoryview(a).cast("B").cast("f", [1, 2]) for a in (x, out)]
    ctx.l2norm(x=rows[0], out=rows[1])
    assert out.tolist() == pytest.approx([0.6, 0.8], rel=1e-6)


def test_bf16_and_f16(ctx):
    x = np.array([[3.0, 4.0]])
    out = np.zeros((1, 2), F32)
    ctx.l2norm(x=store(x, F16), out=out)
    assert out[0] == pytest.approx([0.6, 0.8], rel=1e-6)
    words, out16 = store(x, np.uint16), np.zeros((1, 2), np.uint16)
    assert words.tolist() == [[0x4040, 0x4080]]
    ctx.l2norm(x=gdn.bf16(words), out=gdn.bf16(out16))
    assert out16.tolist() == [[0x3F1A, 0x3F4D]]


def test_arrays_are_taken_by_their_strides(ctx):
    rng = np.random.default_rng(0)
    big = rng.standard_normal((6, 5, 8)).astype(F32)
    before, out = big.copy(), np.zeros((5, 3, 8), F32)
    ctx.l2norm(x=big[::-2].transpose(1, 0, 2), out=out)
    x = before[::-2].transpose(1, 0, 2)
    np.testing.assert_allclose(out, x / np.linalg.norm(x, axis=-1, keepdims=True), rtol=1e-6)
    ctx.l2norm(x=out, out=big[1::2].transpose(1, 0, 2))
    np.testing.assert_allclose(big[1::2].transpose(1, 0, 2), out, rtol=1e-6)
    assert (big[::2] == before[::2]).all()


@pytest.mark.parametrize(
    "change, kind, text",
    [
        (dict(x=[[1.0, 2.0]]), TypeError, "x: list, wanted an array"),
        (dict(x=np.zeros((1, 2))), TypeError, "x: type <f8, wanted"),
        (dict(x=np.zeros((1, 2), ">f4")), TypeError, "x: type >f4, wanted"),
        (dict(x=np.zeros((1, 2), np.uint16)), TypeError, "x: type <u2, wanted"),
        (dict(x=gdn.bf16(np.zeros((1, 2), F32))), TypeError, "x: type <f4, wanted"),
        (dict(x=np.array([[1.0, None]])), TypeError, "x: type |O, wanted numbers"),
        (dict(x=np.zeros((1, 2), "M8[ns]")), TypeError, "x: type <M8[ns], wanted numbers"),
        (dict(x=np.zeros((1, 2), "S3")), TypeError, "x: type |S3, wanted"),
        (dict(x=np.zeros((1, 2), "i4,f4")), TypeError, "x: type |V8, wanted"),
        (dict(x=np.zeros((1,) * 6 + (2,), F32)), ValueError, "x: 7 dimensions"),
        (dict(out=np.broadcast_to(F32(0), (1, 2))), ValueError, "out: read-only"),
        (dict(y=1), TypeError, "no argument y"),
        (dict(struct_size=1), TypeError, "no argument struct_size"),
        (dict(norm=1.5), TypeError, "norm: float, wanted a number"),
        (dict(norm=2**32 + 1), ValueError, "norm: 4294967297 does not fit"),
        (dict(eps="small"), TypeError, "eps: str, wanted a number"),
        (dict(eps="1e-6"), TypeError, "eps: str, wanted a number"),
    ],
)
def test_mistakes_are_named(ctx, change, kind, text):
    fields = dict(x=np.ones((1, 2), F32), out=np.zeros((1, 2), F32))
    ctx.l2norm(**fields)
    with pytest.raises(kind, match=re.escape(text)):
        ctx.l2norm(**{**fields, **change})


def test_strides_of_half_an_element(ctx):
    words = np.zeros((4, 6), np.uint8)
    x = np.ndarray((3, 1), F32, words, strides=(6, 4))
    with pytest.raises(ValueError, match=r"x: stride\[0\] is 6 bytes, wanted a multiple of 4"):
        ctx.l2norm(x=x, out=np.zeros((3, 1), F32))


def test_batch_is_a_batch(ctx):
    q = np.ones((1, 1, 2), F32)
    with pytest.raises(TypeError, match="batch: dict, wanted a Batch"):
        ctx.prefill(q=q, k=q, v=q, out=q.copy(), batch={})
    with pytest.raises(TypeError, match=r"Batch\(\) has no argument slots"):
        gdn.Batch(slots=q)


def test_a_frozen_state_may_be_read_only(ctx):
    q, state = np.ones((1, 1, 2), F32), np.zeros((1, 1, 2, 2), F32)
    state.flags.writeable = False
    fields = dict(q=q, k=q, v=q, out=np.zeros((1, 1, 2), F32), state=state)
    with pytest.raises(ValueError, match="state: read-only"):
        ctx.decode(**fields)
    ctx.decode(**fields, batch=gdn.Batch(write=gdn.WRITE_NONE))
    ctx.decode(**fields, state_out=np.zeros((1, 1, 2, 2), F32))
    assert not state.any()


def test_scales_of_a_frozen_state_may_be_read_only(ctx):
    q = np.ones((1, 1, 2), F32)
    scales, out_scales = q.copy(), q.copy()
    state, state_out = np.zeros((1, 1, 2, 2), np.int8), np.zeros((1, 1, 2, 2), np.int8)
    state.flags.writeable = scales.flags.writeable = False
    fields = dict(q=q, k=q, v=q, out=np.zeros((1, 1, 2), F32), state=state, state_scales=scales)
    ctx.decode(**fields, batch=gdn.Batch(write=gdn.WRITE_NONE))
    ctx.decode(**fields, state_out=state_out, state_out_scales=out_scales)
    assert state_out.any()
    with pytest.raises(ValueError, match="state_scales: read-only"):
        ctx.decode(**{**fields, "state": state_out})


def test_a_record_folds_into_states_that_may_be_written(ctx):
    k, u, g, count = (np.ones((1, 1, 1, 2), F32), np.ones((1, 1, 1, 2), F32),
                      np.ones((1, 1, 1), F32), np.ones(1, np.int32))
    state = np.zeros((1, 1, 2, 2), F32)
    state.flags.writeable = False
    with pytest.raises(ValueError, match="state: read-only"):
        ctx.record_fold(record_k=k, record_u=u, record_g=g, record_count=count, state=state,
                        batch=gdn.Batch(write=gdn.WRITE_NONE))


# ---- Contexts ----------------------------------------------------------------------------------


def test_a_context_says_what_it_is(isas):
    for isa in isas:
        with gdn.Context(threads=2, isa=isa) as ctx:
            assert (ctx.isa, ctx.n_threads) == (isa, 2)
            ctx.self_test()
            x = np.ones((1, 2), F32)
            ctx.l2norm(x=x, out=x.copy())
            assert ctx.last_kernel.startswith("l2norm: ") and f".{isa}" in ctx.last_kernel


def test_a_context_that_cannot_be(ctx):
    with pytest.raises(gdn.Error, match='isa: "mmx", this machine runs: scalar') as caught:
        gdn.Context(isa="mmx")
    assert caught.value.status == gdn.E_ARG and caught.value.name == "GDN_E_ARG"
    with pytest.raises(TypeError, match="isa: int, wanted a string"):
        gdn.Context(isa=3)
    with pytest.raises(gdn.Error, match="n_threads: -1"):
        gdn.Context(threads=-1)


def test_a_closed_context():
    ctx = gdn.Context(threads=1)
    ctx.close()
    ctx.close()
    x = np.ones((1, 2), F32)
    with pytest.raises(ValueError, match="closed"):
        ctx.l2norm(x=x, out=x.copy())


def test_one_context_from_many_threads():
    """Calls wait for each other instead of meeting in the context's memory."""
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((2, 50, 2, 16)).astype(F32) for _ in range(4)]
    outputs = [np.zeros_like(x) for x in inputs]
    with gdn.Context(threads=2) as ctx:

        def work(x, out):
            for _ in range(50):
                ctx.prefill(q=x, k=x, v=x, out=out, norm=gdn.NORM_L2)

        workers = [threading.Thread(target=work, args=pair) for pair in zip(inputs, outputs)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        for x, out in zip(inputs, outputs):
            alone = np.zeros_like(x)
            ctx.prefill(q=x, k=x, v=x, out=alone, norm=gdn.NORM_L2)
            assert (alone == out).all()


def test_supported(ctx):
    x = np.ones((3, 4), F32)
    assert ctx.supported("l2norm", x=x, out=x.copy())
    assert not ctx.supported("l2norm", x=x, out=x[:2])
    with pytest.raises(ValueError, match="op: 'norm', wanted prefill, decode, "):
        ctx.supported("norm", x=x, out=x)


def test_types_have_the_methods_of_a_context():
    folder = pathlib.Path(gdn._path).parent
    text = (folder / "__init__.pyi").read_text()
    methods = text[text.index("\nclass Context:"):].split("\nclass ")[1]
    for op in gdn._OPS:
        assert f"    def {op}(self" in methods, op
        assert callable(getattr(gdn.Context, op)), op
    assert gdn.Context.summary_apply.__doc__ == (
        "gdn_summary_apply: computes S_out = M S_in + U; fields of gdn_summary_apply_args.")
    assert gdn.Context.decode.__doc__.endswith("drafts included; fields of gdn_rule_args.")
