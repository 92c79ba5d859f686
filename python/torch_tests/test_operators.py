# SPDX-License-Identifier: Apache-2.0
"""The operators torch.ops.gdn.*: values, torch's own checks, compilation, export, mistakes."""

import threading

import gdn
import gdn.torch
import pytest
import samples
import torch
from samples import of, reference

NAMES = [(op, name) for op in gdn.torch.OPERATORS for name in ("default", "full")
         if hasattr(getattr(torch.ops.gdn, op), name)]


def operator(op, name="default"):
    return getattr(getattr(torch.ops.gdn, op), name)


def close(got, want, limit=2e-6):
    assert (got.double() - want).abs().max() <= limit * max(1, float(want.abs().max()))


@pytest.mark.parametrize("op", ["prefill", "decode"])
def test_values(op, device):
    args = of(op, device)
    slots, before = args["read_slots"].long(), args["state"].clone()
    out, state = reference(*(args[n] for n in ("q", "k", "v", "g", "beta")), before[slots])
    operator(op)(**args)
    # On a device products of float32 take factors of 22 bits.
    limit = 2e-6 if device == "cpu" else 1e-5
    close(args["out"], out, limit)
    close(args["state"][slots], state, limit)
    others = [s for s in range(samples.P) if s not in slots.tolist()]
    assert torch.equal(args["state"][others], before[others])


@pytest.mark.parametrize("op, name", NAMES)
def test_opcheck(op, name, device):
    args = {**of(op, device), **(samples.more(op, device) if name == "full" else {})}
    torch.library.opcheck(operator(op, name), (), args)


@pytest.mark.parametrize("op, name", NAMES)
def test_schema(op, name):
    """What torch knows of the operator is what the structs say, and 0 is every number's default."""
    full = op if name == "default" else f"{op}.full"
    found = operator(op, name)._schema
    assert [a.name for a in found.arguments] == gdn.torch.arguments(full)
    written = {a.name for a in found.arguments if a.alias_info and a.alias_info.is_write}
    assert written == set(gdn._OPS[op].outputs) & set(gdn.torch.arguments(full))
    assert all(a.default_value == 0 for a in found.arguments if a.name in gdn.torch.NUMBERS)


def layer(args, pool):
    """A layer's middle: it changes the pool and returns something of the result."""
    out = gdn.torch.decode(args["q"], args["k"], args["v"], args["g"], args["beta"], state=pool,
                           read_slots=args["read_slots"])
    return out * 2


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile(backend, device):
    args = of("decode", device)
    want_pool = args["state"].clone()
    want = layer(args, want_pool)
    pool = args["state"].clone()
    where = pool.data_ptr()
    got = torch.compile(layer, fullgraph=True, backend=backend)(args, pool)
    assert torch.equal(got, want) and torch.equal(pool, want_pool) and pool.data_ptr() == where


def test_the_pool_is_not_copied(device):
    """What inductor makes of a layer has neither a clone nor a copy of the mutated pool."""
    from torch._inductor.utils import run_and_get_code

    args = of("decode", device)
    _, codes = run_and_get_code(torch.compile(layer, fullgraph=True), args, args["state"])
    calls = [line for line in codes[0].splitlines() if "gdn.decode" in line]
    pool = f"({samples.P}, {samples.HV}, {samples.V}, {samples.K})"
    copies = [line for line in codes[0].splitlines() if "empty_strided" in line and pool in line]
    assert calls and not copies, copies


def test_export(device):
    class Module(torch.nn.Module):
        def forward(self, q, k, v, g, beta):
            return gdn.torch.prefill(q, k, v, g, beta, norm=gdn.NORM_L2)

    args = of("prefill", device)
    given = tuple(args[n] for n in ("q", "k", "v", "g", "beta"))
    tokens = torch.export.Dim("tokens", min=2, max=4096)
    shapes = tuple({1: tokens} for _ in given)
    program = torch.export.export(Module(), given, dynamic_shapes=(*shapes,))
    longer = tuple(torch.cat([x, x], 1) for x in given)
    assert torch.equal(program.module()(*longer), Module()(*longer))


# ---- Who may call, and with what -----------------------------------------------------------------


def test_two_threads_at_once(device):
    """Calls of two threads at once have the bits of calls one by one."""
    samples_of = [of("prefill", device) for _ in range(4)]
    alone = []
    for args in samples_of:
        again = {n: x.clone() for n, x in args.items()}
        operator("prefill")(**again)
        alone.append(again)
    if device == "cuda":
        torch.cuda.synchronize()

    def work(args):
        operator("prefill")(**args)
        if device == "cuda":
            torch.cuda.synchronize()

    workers = [threading.Thread(target=work, args=(args,)) for args in samples_of]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for got, want in zip(samples_of, alone):
        assert torch.equal(got["out"], want["out"]) and torch.equal(got["state"], want["state"])


def test_number_of_threads():
    """torch's number of threads may change between calls, and changes no bit."""
    args, before = of("block", "cpu"), torch.get_num_threads()
    found = []
    try:
        for n in (1, 2, 3, 1):
            torch.set_num_threads(n)
            again = {name: x.clone() if isinstance(x, torch.Tensor) else x
                     for name, x in args.items()}
            operator("block")(**again)
            found.append(again["out"])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(found[0], x) for x in found)


def test_mistakes_are_named(device):
    args = of("decode", device)
    for change, text in ((dict(v=args["v"][:2]), "v: "),
                         (dict(q=args["q"].double()), "q: "),
                         (dict(state=args["state"].permute(0, 1, 3, 2)[:, :2]), "state"),
                         (dict(norm=17), "norm: 17")):
        with pytest.raises((RuntimeError, TypeError), match=text):
            operator("decode")(**{**args, **change})


@pytest.mark.gpu
def test_another_device_is_named(gpu):
    args = of("decode", gpu)
    with pytest.raises(RuntimeError, match="read_slots: on cpu, but . is on cuda"):
        operator("decode")(**{**args, "read_slots": args["read_slots"].cpu()})


def test_parameters_and_gradients(device):
    """A tensor that requires a gradient is refused, except under no_grad."""
    args = of("decode", device)
    want = gdn.torch.decode(args["q"], args["k"], args["v"])
    q = torch.nn.Parameter(args["q"])
    assert torch.equal(gdn.torch.decode(q, args["k"], args["v"]), want)
    x = torch.nn.Parameter(torch.ones(2, 4, device=device))
    with torch.enable_grad(), pytest.raises(RuntimeError, match="g: requires a gradient"):
        gdn.torch.chunk_cumsum(x)
    with torch.inference_mode():
        assert torch.equal(gdn.torch.decode(q, args["k"], args["v"]), want)


def test_subclasses(device):
    class Named(torch.Tensor):
        pass

    args = of("decode", device)
    want = gdn.torch.decode(args["q"], args["k"], args["v"])
    got = gdn.torch.decode(args["q"].as_subclass(Named), args["k"], args["v"])
    assert torch.equal(torch.Tensor(got), want)


def test_fake_tensors(device):
    from torch._subclasses import FakeTensorMode

    args = of("decode", device)
    with FakeTensorMode() as mode:
        q, k, v = (mode.from_tensor(args[n]) for n in "qkv")
        assert gdn.torch.decode(q, k, v).shape == args["out"].shape
    with gdn.Context(threads=1) as ctx, pytest.raises((ValueError, RuntimeError, TypeError)):
        ctx.decode(q=q, k=k, v=v, out=args["out"].cpu())


def test_strides_and_no_elements(device):
    args = of("decode", device)
    q, k, v = (args[n] for n in "qkv")
    wide = torch.randn(samples.B, samples.T, samples.HK + 3, samples.K, device=device)
    view = wide[:, :, 2:2 + samples.HK]
    assert torch.equal(gdn.torch.decode(view, k, v), gdn.torch.decode(view.contiguous(), k, v))
    assert gdn.torch.decode(q[:0], k[:0], v[:0]).shape[0] == 0


def test_functions(device):
    """Every function returns what its operator writes."""
    for op in gdn.torch.OPERATORS:
        # Autograd, gdn.torch.distributed and Record call these, no function does.
        if op.endswith("_backward") or op in ("summary", "summary_fold", "record_fold"):
            continue
        args = of(op, device)
        written = {n: x.clone() if isinstance(x, torch.Tensor) else x for n, x in args.items()}
        operator(op)(**written)
        sizes = dict(n_key_heads="key_heads", n_value_heads="value_heads", key_head_dim="key_dim",
                     value_head_dim="value_dim")
        names = dict(gates=("g", "beta"), state_copy=("to_pool",), chunk_uw=("u", "w", "T"),
                     chunk_states=("states",)).get(op, ("out",))
        given = {sizes.get(n, n): x for n, x in args.items()
                 if n not in names or op == "state_copy"}
        result = getattr(gdn.torch, op)(**given)
        for got, name in zip(result if isinstance(result, tuple) else (result,), names):
            assert torch.equal(got, written[name]), op


def test_conv1d_update(device):
    args = of("conv1d", device)
    x, state = args["x"], args["state"].clone()
    options = dict(state=state, read_slots=args["read_slots"], activation=gdn.ACT_SILU)
    rows = [gdn.torch.conv1d_update(x[:, t], args["weight"], args["bias"], **options)
            for t in range(samples.T)]
    operator("conv1d")(**args)
    close(torch.stack(rows, 1), args["out"].double())
    assert torch.equal(state, args["state"])
