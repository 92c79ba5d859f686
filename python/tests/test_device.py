# SPDX-License-Identifier: Apache-2.0
"""
Arrays on a GPU. What they say about themselves needs none; contexts on one, and what is launched
with what, are held with the driver of tests/cuda/fake_cuda.c (marker fake); results with a GPU and
torch (marker gpu).
"""

import gdn
import numpy as np
import pytest
from arrays import BF16, F32, store
from devices import CUDA, Cai, Dl, address, fake_driver


def row(x, **more):
    return Dl(x.ctypes.data, x.shape, **more)


# ---- What arrays say ---------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [None, 0], ids=["old", "versioned"])
def test_dlpack_on_the_cpu(ctx, flags):
    x, out = np.array([[3, 4], [6, 8]], F32), np.zeros((2, 2), F32)
    ctx.l2norm(x=row(x, flags=flags), out=row(out, flags=flags))
    assert out == pytest.approx(np.array([[0.6, 0.8]] * 2), rel=1e-6)
    backwards = Dl(x.ctypes.data, (2, 2), offset=8, strides=(-2, 1), flags=flags)
    x[1] = 0, 2
    ctx.l2norm(x=backwards, out=row(out, flags=flags))
    assert out == pytest.approx(np.array([[0, 1], [0.6, 0.8]]), rel=1e-6)
    assert backwards.streams == [None]
    ctx.l2norm(x=row(x, flags=flags, device=(3, 0)), out=out)  # pinned
    assert out == pytest.approx(np.array([[0.6, 0.8], [0, 1]]), rel=1e-6)


def test_dlpack_types(ctx):
    words, out = store(np.array([[3.0, 4.0]]), BF16), np.zeros((1, 2), F32)
    for dtype, marked in ((("bf", 16), False), (("u", 16), True)):
        x = row(words, dtype=dtype)
        ctx.l2norm(x=gdn.bf16(x) if marked else x, out=out)
        assert out[0] == pytest.approx([0.6, 0.8], rel=1e-6)
    state, scales = np.full((1, 1, 1, 1), 0x38, np.uint8), np.full((1, 1, 1), 2, F32)  # 1 x 2
    one = np.ones((1, 1, 1), F32)
    out = np.zeros((1, 1, 1), F32)
    ctx.decode(q=one, k=one, v=one, beta=one[0] * 0, scale=1, out=out, state_scales=scales,
               state=row(state, dtype=("e4m3fn", 8)))
    assert out[0, 0, 0] == 2
    state[:] = 0x44  # 4, without scales
    ctx.decode(q=one, k=one, v=one, beta=one[0] * 0, scale=1, out=out,
               state=row(state, dtype=("e5m2", 8)))
    assert out[0, 0, 0] == 4
    for dtype, lanes, said in (
        (("f", 64), 1, "<f8"), (("f", 32), 2, "2 x 32 bits of DLPack type 2"),
        (("u", 16), 1, "<u2"), (("b", 1), 1, "1 x 1 bits of DLPack type 6"),
    ):
        bad = row(np.zeros((1, 2)), dtype=dtype, lanes=lanes)
        with pytest.raises(TypeError, match=f"x: type {said}, wanted"):
            ctx.l2norm(x=bad, out=np.zeros((1, 2), F32))


def test_dlpack_read_only(ctx):
    x = np.ones((1, 2), F32)
    ctx.l2norm(x=row(x, flags=1), out=x)
    with pytest.raises(ValueError, match="out: read-only"):
        ctx.l2norm(x=x, out=row(x, flags=1))


def test_arrays_without_elements_have_no_address(ctx):
    nothing = Dl(0, (0, 2))
    ctx.l2norm(x=nothing, out=nothing)
    with pytest.raises(ValueError, match="^x: no memory"):
        ctx.l2norm(x=Dl(0, (1, 2)), out=np.zeros((1, 2), F32))


def test_a_refusal_of_the_producer_is_named(ctx):
    class Grad(Dl):
        def __dlpack__(self, **_):
            raise BufferError("requires grad")

    with pytest.raises(ValueError, match="x: requires grad"):
        ctx.l2norm(x=Grad(64, (1, 2)), out=np.zeros((1, 2), F32))


def test_device_arrays_on_a_cpu_context(ctx):
    x = np.ones((1, 2), F32)
    assert ctx.device is None
    for there in (Dl(4096, (1, 2), device=(CUDA, 3)), Dl(4096, (1, 2), device=(10, 0)),
                  Cai(4096, (1, 2))):
        with pytest.raises(ValueError, match="out: in memory of .* context computes in host mem"):
            ctx.l2norm(x=x, out=there)
    q = np.ones((2, 1, 2), F32)
    batch = gdn.Batch(cu_seqlens=Dl(4096, (3,), ("i", 32), device=(CUDA, 0)))
    with pytest.raises(ValueError, match="cu_seqlens: in memory of CUDA device 0, but"):
        ctx.prefill(q=q, k=q, v=q, out=q.copy(), batch=batch)
    with pytest.raises(ValueError, match="out: in memory of CUDA device 3"):
        ctx.supported("l2norm", x=x, out=Dl(4096, (1, 2), device=(CUDA, 3)))


def test_backends_are_named():
    with pytest.raises(ValueError, match="backend: 'gpu', wanted cpu or cuda"):
        gdn.Context(backend="gpu")
    with pytest.raises(TypeError, match="device: str, wanted a number"):
        gdn.Context(backend="cuda", device="cuda:0")


# ---- With a driver that computes nothing --------------------------------------------------------


@pytest.fixture
def fake():
    driver = fake_driver()
    if driver is None:
        pytest.skip("the driver is not the fake one: run by ctest")
    driver.n_devices = 2
    return driver


@pytest.fixture
def cuda(fake):
    try:
        with gdn.Context(backend="cuda", device=1) as ctx:
            yield ctx
    except gdn.Error as error:
        if "no device code" not in error.text:
            raise
        pytest.skip(error.text)


def there(at=0, shape=(100, 128), device=1, **more):
    return Dl(address(device, at), shape, device=(CUDA, device), **more)


@pytest.mark.fake
def test_a_context_on_a_device(fake, cuda):
    assert (cuda.device, cuda.isa) == (1, "sm_90")
    with pytest.raises(gdn.Error, match="device: 2, wanted 0 to 1") as caught:
        gdn.Context(backend="cuda", device=2)
    assert caught.value.status == gdn.E_ARG


@pytest.mark.fake
def test_a_call_launches_on_what_it_was_given(fake, cuda):
    out = there(1 << 20)
    for x, dtype in ((there(0x500, offset=0x40), gdn.F32), (there(0x540, flags=1), gdn.F32),
                     (there(0x540, dtype=("bf", 16)), gdn.BF16),
                     (Cai(address(1, 0x540), (100, 128)), gdn.F32)):
        before = sum(fake.n_calls)
        cuda.l2norm(x=x, out=out)
        assert sum(fake.n_calls) > before
        assert fake.kernel == b"gdn_norm_row" and fake.launch.grid[0] > 0
        assert fake.first_lines == (address(1, 0x540), dtype)
        assert not fake.launch.stream
    assert set(out.streams) == {-1}, "the producer was asked to make a stream wait"
    assert cuda.last_kernel == "l2norm: gdn_norm_row"


@pytest.mark.fake
def test_streams(fake, cuda):
    class Torch:
        cuda_stream = 0x7F00_0000_1230

    class Protocol:
        def __cuda_stream__(self):
            return (0, 0x7F00_0000_4560)

    x, out = there(), there(1 << 20)
    for stream, number in ((Torch(), 0x7F00_0000_1230), (Protocol(), 0x7F00_0000_4560), (2, 2),
                           (0, None), (None, None)):
        cuda.l2norm(x=x, out=out, stream=stream)
        assert fake.launch.stream == number
    with pytest.raises(TypeError, match="stream: str, wanted a number"):
        cuda.l2norm(x=x, out=out, stream="default")


@pytest.mark.fake
def test_arrays_elsewhere_are_refused(fake, cuda):
    good, before = there(1 << 20), fake.n_calls[:]
    for bad, said in (
        (np.ones((100, 128), F32), "host memory"),
        (Dl(4096, (100, 128)), "host memory"),
        (there(device=0), "memory of CUDA device 0"),
        (Cai(address(0), (100, 128)), "memory of CUDA device 0"),
        (Cai(4096, (100, 128)), "memory of no device"),
    ):
        for fields in (dict(x=bad, out=good), dict(x=good, out=bad)):
            with pytest.raises(ValueError, match=f": in {said}, but .* in memory of CUDA device 1"):
                cuda.l2norm(**fields)
            with pytest.raises(ValueError, match=f": in {said}, but"):
                cuda.supported("l2norm", **fields)
    assert fake.n_calls[:] == before
    assert cuda.supported("l2norm", x=there(), out=good)


@pytest.mark.fake
def test_index_arrays_are_on_the_device(fake, cuda):
    q, out = there(shape=(5, 2, 8)), there(1 << 20, (5, 2, 8))
    fields = dict(q=q, k=q, v=q, out=out)
    here = gdn.Batch(cu_seqlens=np.array([0, 3, 5]))
    with pytest.raises(ValueError, match="cu_seqlens: in host memory"):
        cuda.supported("prefill", batch=here, **fields)
    for kind in (("i", 32), ("i", 64)):
        batch = gdn.Batch(cu_seqlens=there(1 << 21, (3,), dtype=kind))
        assert cuda.supported("prefill", batch=batch, **fields)


@pytest.mark.fake
def test_read_only_arrays_of_a_device(fake, cuda):
    frozen = Cai(address(1), (100, 128), is_readonly=True)
    cuda.l2norm(x=frozen, out=there(1 << 20))
    with pytest.raises(ValueError, match="out: read-only"):
        cuda.l2norm(x=there(), out=frozen)


# ---- With a GPU --------------------------------------------------------------------------------


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def gpu(torch):
    if fake_driver() is not None or not torch.cuda.is_available():
        pytest.skip("no GPU")
    with gdn.Context(backend="cuda") as ctx:
        yield ctx


@pytest.mark.gpu
def test_torch_tensors(gpu, torch):
    generator = torch.Generator("cuda").manual_seed(1)
    for dtype, half_ulp in ((torch.float32, 0), (torch.float16, 2**-11), (torch.bfloat16, 2**-8)):
        x = torch.randn(1000, 128, generator=generator, device="cuda").to(dtype)
        out = torch.empty_like(x)
        gpu.l2norm(x=x, out=out, stream=torch.cuda.current_stream())
        want = torch.nn.functional.normalize(x.double(), dim=-1)
        tiny = 2**-25 if dtype == torch.float16 else 0  # half a denormal
        limit = (half_ulp + 2**-20) * want.abs() + tiny
        assert ((out.double() - want).abs() <= limit).all(), dtype


@pytest.mark.gpu
def test_cupy_arrays(gpu):
    cupy = pytest.importorskip("cupy")
    x = cupy.arange(1, 257, dtype=cupy.float32).reshape(2, 128)
    stream = cupy.cuda.Stream(non_blocking=True)
    for array_of in (lambda a: a, lambda a: Cai(a.data.ptr, a.shape)):
        with stream:
            out = cupy.zeros_like(x)
            stream.synchronize()
            gpu.l2norm(x=array_of(x), out=array_of(out), stream=stream.ptr)
            norms = cupy.linalg.norm(out, axis=1)
            stream.synchronize()
        assert cupy.allclose(norms, 1, rtol=1e-6)


@pytest.mark.gpu
def test_a_call_in_a_graph(gpu, torch):
    x = torch.full((4, 128), 2.0, device="cuda")
    out = torch.zeros_like(x)
    gpu.l2norm(x=x, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gpu.l2norm(x=x, out=out, stream=torch.cuda.current_stream())
    x[:, 64:] = 0
    graph.replay()
    torch.cuda.synchronize()
    assert (out[:, :64] - 0.125).abs().max() < 1e-6 and not out[:, 64:].any()


@pytest.mark.gpu
@pytest.mark.parametrize("index", ["int32", "int64"])
def test_rule_with_index_tensors(gpu, ctx, torch, index):
    """Decode by slots of a pool, then prefill of a packed batch, beside the CPU. Seven tokens:
    both compute them one by one, in float32."""
    cpu = torch.Generator().manual_seed(2)
    K, H = 128, 4
    host = {n: torch.randn(7, H, K, generator=cpu) for n in ("q", "k", "v")}
    host["g"] = -torch.rand(7, H, generator=cpu)
    host["beta"] = torch.rand(7, H, generator=cpu)
    for op, lists in (("decode", dict(read_slots=[3, 0, 5, 6, 1, 2, 7])),
                      ("prefill", dict(cu_seqlens=[0, 7], read_slots=[4]))):
        pool = torch.randn(8, H, K, K, generator=cpu)
        found = []
        for context, device in ((ctx, "cpu"), (gpu, "cuda")):
            x = {n: t.to(device) for n, t in host.items()}
            if op == "decode":
                x = {n: t[:, None] for n, t in x.items()}
            state, out = pool.clone().to(device), torch.zeros_like(x["v"])
            indices = {n: torch.tensor(l, dtype=getattr(torch, index), device=device)
                       for n, l in lists.items()}
            getattr(context, op)(**x, state=state, out=out, norm=gdn.NORM_L2,
                                 batch=gdn.Batch(**indices))
            found.append((out.cpu(), state.cpu()))
        untouched = [s for s in range(8) if s not in lists["read_slots"]]
        assert torch.equal(found[1][1][untouched], pool[untouched])
        for here, on_gpu in zip(*found):
            assert (here - on_gpu).abs().max() <= 1e-5 * here.abs().max(), op
        assert not torch.equal(found[1][1], pool)


@pytest.mark.gpu
def test_torch_host_tensors_are_refused(gpu, torch):
    x = torch.ones(2, 128, device="cuda")
    for bad in (torch.ones(2, 128), torch.ones(2, 128).pin_memory(), np.ones((2, 128), F32)):
        with pytest.raises(ValueError, match="out: in host memory"):
            gpu.l2norm(x=x, out=bad)
