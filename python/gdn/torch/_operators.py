# SPDX-License-Identifier: Apache-2.0
"""
The operators torch.ops.gdn.*: schemas made of the structs of gdn.h, fake kernels, and kernels in C
for CPU and CUDA.

Every operator returns nothing. It writes the tensors that its schema marks, in place. Its arguments
are the tensors that no call can do without, the other tensors, those of gdn_batch, then numbers,
all under the names of gdn.h; 0 is the default of every number. The overload `default` has what
most calls use, and `full` has every field; an operator without rare fields has no `full`.
"""

import fnmatch
import string

import torch

from .. import _fast
from . import _bits, _places, _vmap

if _fast.native is None:
    raise ImportError("gdn.torch: this Python cannot import the extension gdn._native (it needs "
                      "CPython from 3.9 on with the GIL); gdn.Context works without it")

OPERATORS = ("prefill", "decode", "conv1d", "gates", "l2norm", "rmsnorm_gated", "step", "block",
             "state_copy", "record_fold", "summary", "summary_fold", "chunk_cumsum", "chunk_uw",
             "chunk_states", "chunk_output", "prefill_backward", "conv1d_backward",
             "gates_backward", "l2norm_backward", "rmsnorm_gated_backward")

# Not in the overload `default`: torch spends up to 0.1 us on every argument of a schema, given or
# not, so that one has what the steps of an engine need. torch.ops.gdn.decode finds the overload by
# the arguments; torch.ops.gdn.decode.full names it, which is quicker.
_RARE = ("*checkpoint*", "*_scales", "record_*", "parents", "path", "rounding", "seed",
         "sink_slot", "first_slot", "flags", "write_slots", "max_seqlen", "has_initial_state",
         "num_accepted_tokens", "token_*", "state_out", "pad_policy", "write", "head_map",
         "norm_eps", "gate_lower_bound", "*write_gate", "updates", "in_proj_[qkv]", "*_down")
_NEVER = ("struct_size", "batch", "workspace*", "stream", "reserved")
_TENSOR, _FLOAT = 0, 4  # kinds of fields, see _fast._KINDS


def _is(name, patterns):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _fields(op, is_full):
    """The fields of the operator in the order of its arguments, as _fast.fields_of gives them."""
    left = _NEVER if is_full else _NEVER + _RARE
    fields = [f for f in _fast.fields_of(op) if f[4] or not _is(f[0], left)]
    needed = [f for f in fields if f[4]]
    tensors = [f for f in fields if f[1] == _TENSOR and not f[4]]
    return needed + tensors + [f for f in fields if f[1] != _TENSOR]


def overload(op, options):
    """Returns the operator that takes these options beside its positional arguments."""
    lean, full = _OVERLOADS[op]  # torch.compile of torch 2.11 takes no bool for an index
    return lean if options.keys() <= _LEAN[op] else full


def _schema(name, fields):
    """The operator in torch's language."""
    letters, arguments = iter(string.ascii_lowercase), []
    for field, kind, _, is_output, is_needed, _ in fields:
        if kind == _TENSOR:
            alias = f"({next(letters)}!)" if is_output else ""
            arguments.append(f"Tensor{alias} {field}" if is_needed else
                             f"Tensor{alias}? {field}=None")
        else:
            arguments.append(f"float {field}=0.0" if kind == _FLOAT else f"int {field}=0")
    return f"{name}({', '.join(arguments)}) -> ()"


def _has_rare(op):
    return len(_fields(op, True)) > len(_fields(op, False))


# name -> (op, fields)
_TABLE = {}
for _op in OPERATORS:
    _TABLE[_op] = _op, _fields(_op, False)
    if _has_rare(_op):
        _TABLE[f"{_op}.full"] = _op, _fields(_op, True)


_LEAN = {op: frozenset(f[0] for f in _TABLE[op][1]) for op in OPERATORS}


def arguments(name):
    """The names of the operator's arguments in order; name: "decode", "decode.full"."""
    return [field[0] for field in _TABLE[name][1]]


def _numbers():
    found = set()
    for _, fields in _TABLE.values():
        found |= {name for name, kind, *_ in fields if kind != _TENSOR}
    return frozenset(found)


NUMBERS = _numbers()


def tensors_of(op):
    """The tensors among the arguments of the operator, as {name: whether every call needs it}."""
    return {f[0]: f[4] for f in _fields(op, True) if f[1] == _TENSOR}


def schema(name):
    """The operator's schema, as torch prints it too."""
    return _schema(name, _TABLE[name][1])


# ---- Registration --------------------------------------------------------------------------------

# Kept as long as the process: torch drops the operators with it.
_library = torch.library.Library("gdn", "DEF")


def _tags():
    """Strided tensors reach the kernels as they are."""
    stride = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)
    return torch.Tag.pt2_compliant_tag, stride


def _define():
    for name, (op, fields) in _TABLE.items():
        _library.define(schema(name), tags=_tags())
        names, tensors = [f[0] for f in fields], {f[0] for f in fields if f[1] == _TENSOR}
        torch.library.register_fake(f"gdn::{name}", _places.fake(name, names, tensors),
                                    lib=_library)
        operator = getattr(getattr(torch.ops.gdn, op), "full" if "." in name else "default")
        kernel = _bits.kernel(operator, names, {f[0] for f in fields if f[3]})
        for key in _bits.KEYS:
            _library.impl(name, kernel, key)
        _library.impl(name, _vmap.kernel(operator, names, {f[0] for f in fields if f[3]}),
                      _vmap.KEY)


def _register():
    """Registers kernels for each dispatch key that this torch has."""
    describes = [_fast.describe(op, name, [f[0] for f in fields])
                 for name, (op, fields) in _TABLE.items()]
    for key in ("CPU", "CUDA") if torch.version.cuda else ("CPU",):
        why_not = _fast.native.torch_register("gdn", key, describes)
        if why_not:
            raise ImportError(f"gdn.torch needs torch 2.10 or newer: {why_not}")


def _overloads(op):
    """The overloads `default` and `full`."""
    packet = getattr(torch.ops.gdn, op)
    return packet.default, getattr(packet, "full", packet.default)


_define()
_OVERLOADS = {op: _overloads(op) for op in OPERATORS}
_register()
