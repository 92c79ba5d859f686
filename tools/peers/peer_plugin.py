# SPDX-License-Identifier: Apache-2.0
"""pytest -p peer_plugin: a peer's tests through gdn's drop-in; see tools/peer_tests.sh."""

import collections
import os

import gdn
import gdn.torch
import on_cpu
import peers
import pytest
import torch
from gdn import _drop_in, flashqla, gdn_cuda

PEER, DEVICE = os.environ["GDN_PEER"], os.environ["GDN_PEER_DEVICE"]
SPOIL = float(os.environ.get("GDN_PEER_SPOIL", "1"))
calls, changes = collections.Counter(), collections.Counter()
through, outcomes = set(), collections.Counter()
_running = None


def _spoil(result, fields):
    """Multiplies what a call returned, and what it wrote to its arguments."""
    written = [fields.get(name) for name in ("checkpoints", "state_out", "states", "u", "w")]
    if written[1] is None and fields.get("write") != gdn.WRITE_NONE:
        written.append(fields.get("state"))
    returned = result if isinstance(result, tuple) else (result,)
    for x in {id(x): x for x in (*returned, *written) if x is not None}.values():
        x.mul_(SPOIL)


def _counted(name, function):
    def call(*args, **kwargs):
        result = function(*args, **kwargs)
        calls[name] += 1
        through.add(_running)
        if SPOIL != 1:
            _spoil(result, kwargs)
        return result

    return call


def _counted_overload(op, options, choose=gdn_cuda.overload):
    """The operator that a drop-in calls by name."""
    return _counted(op, choose(op, options))


def _watched(what, function):
    """A helper of the drop-ins that returns its first argument, or a changed one."""
    def call(x, *args):
        result = function(x, *args)
        if result is not x:
            changes[what(x, result)] += 1
        return result

    return call


def _dtypes(x, y):
    return f"{str(x.dtype)[6:]} to {str(y.dtype)[6:]}"


def _watch():
    stages = {"chunk_cumsum", "chunk_states", "chunk_output"}
    for name in set(gdn.torch.OPERATORS) & set(gdn.torch.__all__) | stages:  # autograd calls others
        setattr(gdn.torch, name, _counted(name, getattr(gdn.torch, name)))
    gdn_cuda.overload = _counted_overload
    flashqla.rule_gradients = _counted("prefill_backward", flashqla.rule_gradients)
    _drop_in.unit_stride = _watched(lambda x, _: f"copied: last stride {x.stride(-1)}",
                                    _drop_in.unit_stride)
    _drop_in.gate = _watched(lambda x, y: f"converted: gate {_dtypes(x, y)}", _drop_in.gate)
    _drop_in.cast = _watched(lambda x, y: f"converted: {_dtypes(x, y)}", _drop_in.cast)
    gdn_cuda._difference = _watched(lambda *_: "converted: sums of gates to gates",
                                    gdn_cuda._difference)
    into = _drop_in.into

    def watched_into(out, dtype, call):
        if out is not None and out.dtype != dtype:
            changes[f"converted: output to {str(out.dtype)[6:]}"] += 1
        return into(out, dtype, call)

    _drop_in.into = watched_into


_watch()
getattr(peers, PEER)(DEVICE)


def _why_skipped(error):
    """Why a test that ended so says nothing about the drop-in; or None."""
    text = str(error)
    if isinstance(error, ImportError) and any(name in text for name in peers.PRIVATE):
        return "names private kernels"
    if "libcuda.so cannot found" in text:
        return "runs the peer's own Triton kernels"
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    global _running
    _running = item.nodeid
    try:
        if on_cpu.pretends:
            with on_cpu.Mode():
                return (yield)
        return (yield)
    except (ImportError, AssertionError) as error:
        why = _why_skipped(error)
        if why is None:
            raise
        through.discard(item.nodeid)
        pytest.skip(why)


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        outcomes[report.outcome] += 1


def pytest_terminal_summary(terminalreporter):
    say = terminalreporter.write_line
    say("")
    say(f"{PEER} on {DEVICE}, libgdn {gdn.version()}: "
        + ", ".join(f"{outcomes[x]} {x}" for x in ("passed", "failed", "skipped")))
    say(f"  went through libgdn: {len(through)} tests ("
        + ", ".join(f"{name} {n}" for name, n in calls.most_common()) + ")")
    for note in peers.notes:
        say(f"  {note}")
    why = collections.Counter(
        (r.longrepr[2] if isinstance(r.longrepr, tuple) else str(r.longrepr)).removeprefix(
            "Skipped: ") for r in terminalreporter.stats.get("skipped", []))
    for text, n in why.most_common(8):
        say(f"  skipped: {text[:70]} x{n}")
    for text, n in sorted(changes.items()) or [("converted or copied: nothing", 0)]:
        say(f"  {text}" + (f" x{n}" if n else ""))
