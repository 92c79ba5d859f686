# SPDX-License-Identifier: Apache-2.0
"""Shared by the modules that take the place of another package's functions."""

import functools
import inspect
import re
import sys

import gdn
import gdn.torch
import torch
from gdn.torch import distributed
from gdn.torch._named import explained_by, needed_by, renamed
from torch.nn import functional

CHUNK_SIZE = 64  # of FLA and FlashQLA
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
RAW_GATES = dict(gate=gdn.GATE_RAW, beta_kind=gdn.BETA_SIGMOID)


def wanted(**tensors):
    """Raises TypeError with the name of the first of these arguments that is no tensor."""
    for name, x in tensors.items():
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name}: {type(x).__name__}, wanted a torch.Tensor")


def optional(**tensors):
    """As wanted(), but an argument may be None."""
    for name, x in tensors.items():
        if x is not None and not isinstance(x, torch.Tensor):
            raise TypeError(f"{name}: {type(x).__name__}, wanted a torch.Tensor or None")


def dimensions(**counts):
    """Raises ValueError that names the first argument with another number of dimensions:
    name=(tensor or None, number)."""
    for name, (x, count) in counts.items():
        if x is not None and x.dim() != count:
            raise ValueError(f"{name}: {list(x.shape)}, wanted {count} dimensions")


def same_tokens(seq_idx, lead, device):
    """Raises ValueError if seq_idx has another shape than the tokens [B, T] that it numbers, or is
    on another device."""
    wanted(seq_idx=seq_idx)
    if seq_idx.shape != torch.Size(lead):
        raise ValueError(f"seq_idx: {list(seq_idx.shape)}, wanted {list(lead)}")
    if seq_idx.device != device:
        raise ValueError(f"seq_idx: on {seq_idx.device}, but the tokens are on {device}")


def refuse_grad(**tensors):
    """Raises if gradients are on and a tensor requires one, which the function does not have; and
    for what is neither a tensor nor None."""
    optional(**tensors)
    if torch.is_grad_enabled():
        for name, tensor in tensors.items():
            if tensor is not None and tensor.requires_grad:
                raise NotImplementedError(f"gdn: {name} requires a gradient, which this function "
                                          "does not have; call it under torch.no_grad()")


def only(function, kwargs, *known):
    """Raises NotImplementedError that names the first argument which is not among the known ones,
    and not None."""
    for name, x in kwargs.items():
        if name not in known and x is not None:
            raise NotImplementedError(f"gdn: {function}() does not know {name}")


def unit_stride(x):
    """Returns x, or a contiguous copy if the last dimension of x has another stride than 1."""
    return x if x.shape[-1] <= 1 or x.stride(-1) == 1 else x.contiguous()


def gate(x):
    """Returns x, as float32 if it is a real number other than a float of 16 or 32 bits."""
    return x if x is None or x.dtype in FLOATS or x.is_complex() else x.float()


def norm(is_l2):
    """The norm of q and k inside the rule."""
    return gdn.NORM_L2 if is_l2 else gdn.NORM_NONE


def shaped(lead, last, **named):
    """name=tensor as [*lead, *last]. Raises ValueError for another number of elements, and for last
    sizes that are neither last nor its product: a transposed tensor would be read in wrong order.
    """
    (name, x), = named.items()
    shape, flat = torch.Size((*lead, *last)), torch.Size(last).numel()
    is_ordered = x.shape[-1:] == (flat,) or x.shape[-len(last):] == tuple(last)
    if x.numel() != shape.numel() or not is_ordered:
        either = f" or {[*lead, flat]}" if len(last) > 1 else ""
        raise ValueError(f"{name}: {list(x.shape)}, wanted {list(shape)}{either}")
    return x.reshape(shape)


def numbers(tokens, *sizes, **named):
    """A gate as [tokens, *sizes]: name=tensor, which shaped() takes."""
    (name, x), = named.items()
    return shaped((tokens,), sizes, **{name: gate(x)})


def raw_gates(g, A_log, dt_bias, lower_bound, safe_gate=False):
    """The options for raw gates [.., HV, K]. dt_bias None is 0."""
    optional(A_log=A_log, dt_bias=dt_bias)
    if A_log is None and lower_bound is None:
        raise ValueError("A_log: absent, wanted where lower_bound is None")
    if lower_bound is not None and not lower_bound < 0:  # 0 would be none, and NaN is refused
        raise ValueError(f"lower_bound: {lower_bound}, wanted below 0")
    if safe_gate and (lower_bound is None or lower_bound < -5):
        raise ValueError(f"lower_bound: {lower_bound}, wanted from -5 to below 0 with safe_gate")
    if A_log is not None and A_log.numel() != max(A_log.shape, default=1):
        raise ValueError(f"A_log: {list(A_log.shape)}, wanted one size above 1, that of heads")
    bias = (g.new_zeros(g.shape[-2:], dtype=torch.float32) if dt_bias is None else
            shaped((), g.shape[-2:], dt_bias=dt_bias))
    return dict(A_log=A_log if A_log is None else A_log.reshape(-1), dt_bias=bias,
                gate_lower_bound=float(lower_bound or 0))


def gates_of_sums(sums, cu_seqlens):
    """The gates [B, T, HV] in float32 whose sums inside chunks are given. A gate of -inf has no
    difference of sums, so the tokens behind it in its chunk have NaN."""
    place = torch.arange(sums.shape[1], device=sums.device)
    if cu_seqlens is not None:
        place = place - cu_seqlens[torch.searchsorted(cu_seqlens[1:], place, right=True)]
    before = functional.pad(sums.float()[:, :-1], (0, 0, 1, 0))
    return sums - before.masked_fill((place % CHUNK_SIZE == 0)[:, None], 0)


def scaled(scale):
    """Returns the options for a scale, which may be 0; None is 1 / sqrt(K)."""
    if scale == 0:
        return dict(scale=0.0, norm_eps=1e-6, flags=gdn.ZERO_AS_GIVEN)
    return {} if scale is None else dict(scale=float(scale))


def cast(x, dtype):
    """Returns x in that dtype. If x or the dtype is complex, returns x as it is: operators refuse
    it."""
    is_same = x.dtype == dtype or x.is_complex() or dtype.is_complex
    return x if is_same else x.to(dtype)


def difference(ours, theirs):
    """Returns one line about how the parameters of two functions differ, or None if they agree."""
    def described(function):
        return [(p.name, p.kind) for p in inspect.signature(function).parameters.values()]

    mine, other = described(ours), described(theirs)
    if mine == other:
        return None
    return (f"gdn: {theirs.__module__}.{theirs.__name__} of the installed version takes "
            f"({', '.join(n for n, _ in other)}), gdn takes ({', '.join(n for n, _ in mine)})")


def require_same(ours, theirs):
    """Raises ImportError with one line if the parameters of two functions differ."""
    line = difference(ours, theirs)
    if line:
        raise ImportError(line)


def _grown(ours, theirs):
    """Returns the parameters {name: default} that only theirs has, if the other parameters agree.
    None if they do not, or if a parameter of one function alone has no default."""
    mine, other = (inspect.signature(f).parameters for f in (ours, theirs))
    more = {n: p.default for n, p in other.items() if n not in mine}
    less = [p.default for n, p in mine.items() if n not in other]
    both = [[(n, p.kind) for n, p in of.items() if n in mine and n in other]
            for of in (mine, other)]
    fits = both[0] == both[1] and inspect.Parameter.empty not in (*more.values(), *less)
    return more if fits else None


def require_known(ours, theirs):
    """require_same(), but theirs may have grown parameters with defaults, or an older version may
    lack such."""
    if _grown(ours, theirs) is None:
        require_same(ours, theirs)


def _knowing(ours, theirs):
    """Returns ours with the parameters of theirs. A parameter that ours lacks is refused where it
    is passed with another value than its default."""
    more = _grown(ours, theirs)
    if not more:
        return ours
    signature = inspect.signature(theirs)

    def call(*args, **kwargs):
        given = signature.bind(*args, **kwargs).arguments
        for name, default in more.items():
            x = given.pop(name, default)
            if x is not default and not (isinstance(x, (bool, float, int, str)) and x == default):
                raise NotImplementedError(f"gdn: {ours.__name__}() does not know {name}")
        for name, parameter in signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                given.update(given.pop(name, {}))
        return ours(**given)

    return call


def compare(pairs):
    """Raises ImportError with one line if parameters of a pair (ours, theirs) differ. Parameters
    with a default that theirs has in addition are no difference. pairs() may fail."""
    try:
        found = list(pairs())
    except Exception:  # the other package is absent, or cannot be imported on this machine
        return
    for ours, theirs in found:
        require_known(ours, inspect.unwrap(theirs))


def or_theirs(ours, theirs):
    """Returns a function that calls ours, and theirs if ours raises NotImplementedError. Ours has
    then written nothing."""
    ours = _knowing(ours, inspect.unwrap(theirs))

    @functools.wraps(theirs)
    def call(*args, **kwargs):
        try:
            return ours(*args, **kwargs)
        except NotImplementedError:
            return theirs(*args, **kwargs)

    call.is_gdn = True
    return call


def replace(ours, theirs):
    """Puts or_theirs(ours, theirs) wherever a loaded module has theirs, under any name, and returns
    it. Returns None if theirs is gdn's already."""
    if getattr(theirs, "is_gdn", False):
        return None
    call = or_theirs(ours, theirs)
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is theirs:
                setattr(module, name, call)
    return call


def slots_of_tokens(value, cu_seqlens):
    """
    [S, T]: the number of each token of each sequence among all tokens of value [B, T, ..], or
    packed [N, ..]; -1 behind the end of a sequence.
    """
    if cu_seqlens is None:
        B, T = value.shape[:2]
        return torch.arange(B * T, device=value.device).view(B, T)
    slots = cu_seqlens[:-1, None] + torch.arange(value.shape[0], device=cu_seqlens.device)
    return slots.where(slots < cu_seqlens[1:, None], -1)


def into(out, dtype, call):
    """What call(out) returns, in out; if out has another dtype, through a copy of it."""
    if out is None or out.dtype == dtype:
        return call(out)
    return out.copy_(call(out.to(dtype)))


def into_rows(out, cu_seqlens):
    """The options that put outputs into out [B, T, ..], which may be None."""
    return {} if out is None else dict(out=out if cu_seqlens is None else out[0])


def split(mixed_qkv, pool):
    """q, k, v of rows [B, 2 H K + HV V] behind a convolution, as views [B, 1, H, .]."""
    HV, V, K = pool.shape[-3:]
    keys = mixed_qkv.shape[-1] - HV * V
    if keys <= 0 or keys % (2 * K):
        raise ValueError(f"Invalid packed `mixed_qkv` last dim={mixed_qkv.shape[-1]} for HV={HV}, "
                         f"V={V}, K={K}.")
    q, k, v = mixed_qkv[:, None].split((keys // 2, keys // 2, HV * V), -1)
    return q.unflatten(-1, (-1, K)), k.unflatten(-1, (-1, K)), v.unflatten(-1, (HV, V))


def on_ranks(cp_context, q, initial_state, output_final_state):
    """The op for rule() and its cu_seqlens, of a context of FLA or FlashQLA."""
    layout = distributed.layout_of(cp_context)
    if layout is None:
        return gdn.torch.prefill, cp_context.cu_seqlens
    if initial_state is not None or output_final_state:
        raise AssertionError("initial and final states are not supported with a cp_context")
    if q.shape[0] != 1:
        raise ValueError(f"the batch size must be 1 with a cp_context, found {q.shape[0]}")
    return functools.partial(distributed.prefill, layout=layout), None


def explained(**least):
    """Marks a function whose tensors have these names and at least so many dimensions. Errors name
    the argument which is no tensor, or has fewer. None is named only if the error is about one that
    has no name yet: it may be right without a default too. Such arguments are the last of least. A
    call that succeeds pays for no check."""

    def explain(bound, error):
        given, is_none = bound.arguments, re.search(r"(?<!: )NoneType", str(error))
        wanted(**{n: given[n] for n in least
                  if n in needed_by(bound.signature) and (is_none or given[n] is not None)})
        _explain(**{n: (given.get(n), count) for n, count in least.items()})

    return explained_by(explain)


@renamed(state="initial_state", gate_lower_bound="lower_bound")
def rule(op, q, k, v, g, beta, scale, initial_state, output_final_state, cu_seqlens, out=None,
         **options):
    """
    Runs op (gdn.torch.prefill or decode) on tensors [B][T][H][D] and returns (out, final state).
    Gradients flow. out may be given to take the outputs.

    With cu_seqlens, B is 1. The initial state is read only. The final state is float32; with
    cu_seqlens it begins as a copy of the initial state, because libgdn leaves the state of an empty
    sequence alone.
    """
    try:
        options.update(into_rows(out, cu_seqlens))
        return _rule(op, q, k, v, g, beta, scale, initial_state, output_final_state, cu_seqlens,
                     options)
    except (AttributeError, IndexError, TypeError):
        _explain(g=(g, 3), beta=(beta, 3), cu_seqlens=(cu_seqlens, 1),
                 initial_state=(initial_state, 4))
        raise


def _explain(**least):
    """Raises an error that names the argument which is no tensor, or has too few dimensions:
    name=(argument or None, number). A call that succeeds pays for no check."""
    for name, (x, count) in least.items():
        optional(**{name: x})
        if x is not None and x.dim() < count:
            raise ValueError(f"{name}: {list(x.shape)}, wanted {count} dimensions")


def _rule(op, q, k, v, g, beta, scale, initial_state, output_final_state, cu_seqlens, options):
    count = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    if initial_state is not None and len(initial_state) != count:
        raise ValueError(f"initial_state: {len(initial_state)} states, wanted {count}")
    g, beta = gate(g), gate(beta)
    q, k, v = unit_stride(q), unit_stride(k), unit_stride(v)
    if cu_seqlens is not None:
        q, k, v = q[0], k[0], v[0]
        g, beta = (x if x is None else x[0] for x in (g, beta))
        options["cu_seqlens"] = cu_seqlens
    if initial_state is not None and not output_final_state:
        options["write"] = gdn.WRITE_NONE
    found = op(q, k, v, g, beta, state=initial_state, return_state=output_final_state,
               **scaled(scale), **options)
    out, final = found if output_final_state else (found, None)
    return (out if cu_seqlens is None else out[None]), final
