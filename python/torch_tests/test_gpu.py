# SPDX-License-Identifier: Apache-2.0
"""What a GPU alone has: streams, graphs, several devices, memory."""

import subprocess
import sys

import gdn.torch
import pytest
import samples
import test_training_step
import tiny
import torch
from gdn import fla, transformers
from samples import of, reference

pytestmark = pytest.mark.gpu
decode, prefill = torch.ops.gdn.decode.default, torch.ops.gdn.prefill


def expected(args, slots, state):
    return reference(*(args[n] for n in ("q", "k", "v", "g", "beta")), state[slots.long()])


def test_a_graph_replays_with_other_slots_and_lengths(gpu):
    args = of("decode", gpu)
    count = torch.full((samples.B,), samples.T, device=gpu)
    full = torch.ops.gdn.decode.full
    full(**args, token_count=count)  # makes the context
    pool = torch.randn_like(args["state"])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        full(**args, token_count=count)
    for seed in range(3):
        torch.manual_seed(seed)
        args["read_slots"].copy_(samples.slots(gpu))
        count.fill_(samples.T - seed)
        args["q"].normal_()
        args["state"].copy_(pool)
        graph.replay()
        torch.cuda.synchronize()
        n = samples.T - seed
        cut = {name: args[name][:, :n] for name in ("q", "k", "v", "g", "beta")}
        out, state = expected(cut, args["read_slots"], pool)
        assert (args["out"][:, :n] - out).abs().max() < 1e-4
        assert not args["out"][:, n:].any()
        assert (args["state"][args["read_slots"].long()] - state).abs().max() < 1e-4


def test_a_first_call_cannot_be_captured(gpu):
    """In a process of its own: the context is made by the first call, which says so."""
    script = """if True:
        import torch, gdn.torch
        x, graph = torch.ones(2, 16, device="cuda"), torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                gdn.torch.l2norm(x)
        except RuntimeError as error:
            assert "warm_up() before the capture" in str(error), error
        else:
            raise SystemExit("captured")
        gdn.torch.warm_up()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = gdn.torch.l2norm(x)
        graph.replay()
        torch.cuda.synchronize()
        assert (out - 0.25).abs().max() < 1e-6
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_graph_with_scratch_memory(gpu):
    """A long prefill takes memory from torch's allocator, which the graph keeps."""
    args = samples.rule(gpu, torch.bfloat16, (1, 8192))
    args["state"] = torch.zeros(1, samples.HV, samples.V, samples.K, device=gpu)
    prefill(**args)
    want = args["out"].clone()
    args["state"].zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        prefill(**args)
    held = torch.empty(1 << 26, dtype=torch.uint8, device=gpu).fill_(255)  # noqa: F841
    args["state"].zero_()
    args["out"].zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(args["out"], want)


def test_another_stream(gpu):
    args = of("decode", gpu)
    pool = args["state"].clone()
    out, state = expected(args, args["read_slots"], pool)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        args["state"].copy_(pool)
        decode(**args)
    torch.cuda.current_stream().wait_stream(stream)
    assert (args["out"] - out).abs().max() < 1e-5


def test_no_allocation_in_a_second_call(gpu):
    args = of("decode", gpu)
    decode(**args)
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    free = torch.cuda.mem_get_info()[0]
    for _ in range(10):
        decode(**args)
    torch.cuda.synchronize()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    assert torch.cuda.mem_get_info()[0] == free


def test_two_devices(gpu):
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    torch.manual_seed(1)
    first = of("decode", "cuda:0")
    second = {n: x.to("cuda:1") for n, x in first.items()}
    with torch.cuda.device(0):  # the operator computes on the device of its tensors
        decode(**second)
        decode(**first)
        assert torch.cuda.current_device() == 0
    assert torch.equal(first["out"].cpu(), second["out"].cpu())
    assert torch.equal(first["state"].cpu(), second["state"].cpu())


def test_direct_calls_take_a_stream(gpu):
    args = of("decode", gpu)
    pool = args["state"].clone()
    decode(**args)
    with gdn.Context(backend="cuda") as ctx:
        out = torch.empty_like(args["out"])
        ctx.decode(**{**args, "state": pool, "out": out}, stream=torch.cuda.current_stream())
        torch.cuda.synchronize()
    assert torch.equal(out, args["out"]) and torch.equal(pool, args["state"])


def test_profiler_names_the_operator(gpu):
    args = of("decode", gpu)
    decode(**args)
    with torch.profiler.profile() as profile:
        decode(**args)
        torch.cuda.synchronize()
    assert "gdn::decode" in {event.key for event in profile.key_averages()}


def test_maps_beyond_2_to_31_elements(gpu):
    """Where gates forget, a summary has the U of the last tokens. A fold of ranges that are far
    apart has the bits of one where they are not."""
    if torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("less than 12 GiB of memory")
    far_summary(gpu, 140_032, 128)
    far_fold(gpu, 1 << 31)


def far_summary(device, n_tokens, heads, last=512):
    """v has n_tokens * heads * 128 elements."""
    k = torch.nn.functional.normalize(torch.randn(n_tokens, 1, 16, device=device), dim=-1)
    v = torch.empty(n_tokens, heads, 128, dtype=torch.bfloat16, device=device).normal_()
    g = torch.full((n_tokens, heads), -0.5, device=device)
    found = []
    for first in (0, n_tokens - last):
        U = torch.zeros(1, heads, 128, 16, device=device)
        torch.ops.gdn.summary.default(k=k[first:].bfloat16(), v=v[first:], g=g[first:], U=U)
        found.append(U)
    assert (found[0] - found[1]).abs().max() <= 1e-5 * found[1].abs().max()
    assert found[1].abs().max() > 0.1


def far_fold(device, distance):
    """The maps of two ranges in bfloat16 with so many elements between them."""
    shape = 2, 2, 16, 16
    near = [torch.randn(shape, device=device).bfloat16() for _ in "MU"]
    room = torch.empty(distance + 2048, dtype=torch.bfloat16, device=device)
    far = [room.as_strided(shape, (distance, 256, 16, 1), at).copy_(x)
           for at, x in zip((0, 512), near)]
    order = torch.tensor([[0, 1]], dtype=torch.int32, device=device)
    found = []
    for M, U in (near, far):
        out = torch.zeros(1, *shape[1:], device=device)
        torch.ops.gdn.summary_fold.default(M=M, U=U, order=order, state_out=out)
        found.append(out)
    assert torch.equal(*found)


def family_calls(device, dtype):
    """{name: (function of the tensors, tensors)} of the drop-ins of KDA, GDN-2, DeltaProduct."""
    B, T, H, K, V = 2, 70, 4, 64, 32

    def made(*shape, scale=1):
        return (scale * torch.randn(*shape)).to(device, dtype)

    q, k, v = made(B, T, H, K), made(B, T, H, K), made(B, T, H, V)
    g, b, w = -made(B, T, H, K).abs(), made(B, T, H, K).sigmoid(), made(B, T, H, V).sigmoid()
    state = torch.randn(B, H, K, V).to(device)
    options = dict(output_final_state=True, use_qk_l2norm_in_kernel=True)
    kda, gdn2 = (q, k, v, g, b[..., 0], state), (q, k, v, g, b, w, state)

    def call(function):
        return lambda *x: function(*x[:-1], initial_state=x[-1], **options)

    return {
        "chunk_kda": (call(fla.chunk_kda), kda),
        "fused_recurrent_kda": (call(fla.fused_recurrent_kda), kda),
        "transformers, chunk": (call(transformers.chunk_kimi_delta_attention), kda),
        "transformers, recurrent": (call(transformers.recurrent_kimi_delta_attention), kda),
        "chunk_gdn2": (call(fla.chunk_gdn2), gdn2),
        "fused_recurrent_gdn2": (call(fla.fused_recurrent_gdn2), gdn2),
        "chunk_gated_delta_product": (
            lambda q, k, v, g, beta, state: fla.chunk_gated_delta_product(
                q[:, ::2], k, v, g[:, ::2, :, 0], beta, 2, initial_state=state, **options), kda),
        "fused_kda_gate": (lambda g, A_log: (fla.fused_kda_gate(g, A_log),),
                           (g, state[0, :, 0, 0])),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.enable_grad()
def test_the_family_beside_the_cpu(gpu, dtype):
    """Results and gradients of the drop-ins on a GPU and on a CPU, from the same numbers."""
    torch.manual_seed(1)
    calls = family_calls("cpu", dtype)
    for name, (call, tensors) in calls.items():
        found = []
        for device in (gpu, torch.device("cpu")):
            inputs = [x.detach().to(device).requires_grad_() for x in tensors]
            results = call(*inputs)
            loss = sum(x.float().square().sum() for x in results)
            found.append([*results, *torch.autograd.grad(loss, inputs)])
        for got, wanted in zip(*found):
            assert got.device == gpu and got.dtype == wanted.dtype
            share = 2e-4 if dtype is torch.float32 else 2e-2
            limit = share * wanted.float().square().mean().sqrt()
            error = (got.cpu().float() - wanted.float()).square().mean().sqrt()
            assert error <= limit, (name, float(error), float(limit))


@pytest.mark.parametrize("is_kda", [False, True])
def test_a_compiled_training_step(gpu, is_kda):
    test_training_step.compare(tiny.Layered(is_kda=is_kda).to(gpu))
