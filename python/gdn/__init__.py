# SPDX-License-Identifier: Apache-2.0
"""
Gated DeltaNet: the gated delta rule and the operators around it, by ctypes over libgdn.

    with gdn.Context(threads=4) as ctx:
        ctx.prefill(q=q, k=k, v=v, g=g, beta=beta, state=state, out=out)

The manual is gdn.h. Calls, arguments, constants, defaults and guarantees are the ones there,
under the same names without their prefix; everything is written into arrays of the caller.
Not wrapped are blobs: of gdn_blob_...() there are the structs, for ctypes, and no methods.
Arrays are NumPy's or any object with __array_interface__, DLPack or the buffer protocol, in any
strides that gdn.h allows; nothing is copied. bf16(array) passes 16-bit words as bfloat16.

On a GPU every array, those of a Batch too, is one of its device, by DLPack or
__cuda_array_interface__ (torch, cupy, numba, ...):

    with gdn.Context(backend="cuda", device=0) as ctx:
        ctx.decode(q=q, k=k, v=v, state=state, out=out, stream=torch.cuda.current_stream())

A call returns when it is launched, in order on its stream: an integer, or an object with
__cuda_stream__ or cuda_stream; without one, on the legacy default stream. Nothing waits for what
other streams do to its arrays, and they must live until the stream has passed the call.

The library is the file that the environment variable GDN_LIBRARY names, else libgdn.so beside
this file, else libgdn.so.0 where the system finds it.
"""

import ctypes
import operator
import os
import threading
from ctypes import (c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_uint32, c_uint64,
                    c_void_p)

from ._views import HOST, view_of

OK, E_ARG, E_SHAPE, E_DTYPE, E_UNSUPPORTED, E_MEMORY, E_CUDA, E_SELF_TEST = range(8)  # gdn_status
F32, BF16, F16, I8, E4M3, I32, I64, U8 = 0, 1, 2, 3, 4, 16, 17, 18  # gdn_dtype
BACKEND_CPU, BACKEND_CUDA = range(2)
CTX_CHECK_CONTENTS = 1  # gdn_ctx_flag
PAD_ZERO, PAD_KEEP, PAD_SINK = range(3)
WRITE_FINAL, WRITE_EACH, WRITE_NONE = range(3)
GATE_LOG, GATE_LINEAR, GATE_RAW = range(3)
BETA_GIVEN, BETA_SIGMOID, BETA_TWICE_SIGMOID = range(3)
HEADS_GROUPED, HEADS_INTERLEAVED = range(2)
STATE_VK, STATE_KV = range(2)
EXACT, BF16_PRODUCTS, BATCH_INVARIANT, NO_EARLY_STOP = 1, 2, 4, 8
ROUND_NEAREST, ROUND_STOCHASTIC = range(2)
NORM_NONE, NORM_L2, NORM_L2_ADD, NORM_L2_MAX = range(4)
ACT_NONE, ACT_SILU, ACT_SIGMOID = range(3)
MAX_DIMS = 6


# ---- The structs of gdn.h ----------------------------------------------------------------------


class gdn_tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("dtype", c_int32),
        ("ndim", c_int32),
        ("size", c_int64 * MAX_DIMS),
        ("stride", c_int64 * MAX_DIMS),
    ]


_CTYPES = dict(int32=c_int32, uint32=c_uint32, int64=c_int64, uint64=c_uint64, float=c_float,
               size=c_size_t, text=c_char_p, pointer=c_void_p, tensor=gdn_tensor)


def _struct(name, fields, outputs=()):
    """
    A struct from lines of a type and its fields. One with outputs, the tensors that the call
    writes, is the arguments of an op, which begin and end alike.
    """
    if outputs:
        fields = "uint32 flags" + fields + "pointer workspace\nsize workspace_bytes\npointer stream"
    lines = [line.split() for line in fields.strip().splitlines()]
    members = [(field, _CTYPES[kind]) for kind, *names in lines for field in names]
    members.insert(0, ("struct_size", c_uint32))
    return type(name, (ctypes.Structure,), {"_fields_": members, "outputs": outputs})


gdn_options = _struct("gdn_options", """
    int32 backend n_threads
    text isa
    pointer alloc release alloc_user log log_user
    text error_text
    size error_text_bytes
    pointer parallel_for parallel_user
    int32 device
    uint32 flags
""")

gdn_batch = _struct("gdn_batch", """
    int32 pad_policy write max_seqlen
    int64 sink_slot checkpoint_every
    tensor cu_seqlens read_slots write_slots has_initial_state num_accepted_tokens
    tensor token_start token_count parents path
    tensor checkpoint_starts checkpoint_positions checkpoint_slots
""")

_CTYPES["batch"] = ctypes.POINTER(gdn_batch)

gdn_rule_args = _struct("gdn_rule_args", """
    tensor q k v g beta A_log dt_bias state state_out out checkpoints
    tensor state_scales state_out_scales checkpoint_scales
    tensor record_k record_u record_g record_count
    batch batch
    int32 gate beta_kind head_map state_layout norm
    float norm_eps scale gate_lower_bound
    int32 rounding reserved
    uint64 seed
""", outputs=("state", "state_out", "out", "checkpoints", "state_scales", "state_out_scales",
              "checkpoint_scales", "record_k", "record_u", "record_g"))

gdn_record_commit_args = _struct("gdn_record_commit_args", """
    tensor record_k record_u record_g record_count n_accepted path
    batch batch
""", outputs=("record_k", "record_u", "record_g", "record_count"))

gdn_record_fold_args = _struct("gdn_record_fold_args", """
    tensor state state_scales record_k record_u record_g record_count
    batch batch
    int32 head_map state_layout rounding reserved
    uint64 seed
""", outputs=("state", "state_scales", "record_count"))

gdn_conv1d_args = _struct("gdn_conv1d_args", """
    tensor x weight bias state state_out out checkpoints
    batch batch
    int32 activation reserved
""", outputs=("state", "state_out", "out", "checkpoints"))

gdn_gates_args = _struct("gdn_gates_args", """
    tensor a b A_log dt_bias g beta
    int32 gate beta_kind
    float gate_lower_bound
    int32 reserved
""", outputs=("g", "beta"))

gdn_l2norm_args = _struct("gdn_l2norm_args", """
    tensor x out
    int32 norm
    float eps
""", outputs=("out",))

gdn_rmsnorm_gated_args = _struct("gdn_rmsnorm_gated_args", """
    tensor x z weight out
    int32 activation
    float eps
""", outputs=("out",))

gdn_step_args = _struct("gdn_step_args", """
    tensor x a b z conv_weight conv_bias A_log dt_bias norm_weight conv_state state
    tensor state_scales out
    batch batch
    int32 n_key_heads n_value_heads key_head_dim value_head_dim
    int32 beta_kind head_map state_layout norm
    float norm_eps rms_eps scale gate_lower_bound
    int32 rounding reserved
    uint64 seed
""", outputs=("conv_state", "state", "state_scales", "out"))

gdn_block_args = _struct("gdn_block_args", """
    tensor hidden in_proj_qkvz in_proj_ba in_proj_qkv in_proj_z in_proj_b in_proj_a
    tensor conv_weight conv_bias A_log dt_bias norm_weight out_proj conv_state state out
    tensor checkpoints conv_checkpoints state_scales checkpoint_scales
    batch batch
    int32 n_key_heads n_value_heads key_head_dim value_head_dim state_layout
    float rms_eps
    int32 rounding reserved
    uint64 seed
""", outputs=("conv_state", "state", "out", "checkpoints", "conv_checkpoints", "state_scales",
              "checkpoint_scales"))

gdn_state_copy_args = _struct("gdn_state_copy_args", """
    tensor from_pool to_pool from_slots to_slots from_scales to_scales
    int32 from_layout to_layout rounding reserved
    uint64 seed
""", outputs=("to_pool", "to_scales"))

gdn_blob_args = _struct("gdn_blob_args", """
    uint32 flags
    tensor state conv_state slots position
    int32 state_layout head_map n_query_heads n_key_heads n_value_heads
    int32 key_head_dim value_head_dim rank n_ranks reserved
    pointer blob
    size blob_bytes
    tensor state_scales
    int32 query_copies key_copies value_copies rounding
    uint64 seed
""")

gdn_blob_info = _struct("gdn_blob_info", """
    uint32 version
    tensor state conv_state position
    int32 state_layout head_map n_query_heads n_key_heads n_value_heads
    int32 key_head_dim value_head_dim rank n_ranks
    uint32 checksum
    tensor state_scales
    int32 query_copies key_copies value_copies reserved
""")

gdn_summary_args = _struct("gdn_summary_args", """
    tensor k v g beta M U
    batch batch
    int32 head_map state_layout
""", outputs=("M", "U"))

gdn_summary_compose_args = _struct("gdn_summary_compose_args", """
    tensor M1 U1 M2 U2 M U
    int32 state_layout reserved
""", outputs=("M", "U"))

gdn_summary_apply_args = _struct("gdn_summary_apply_args", """
    tensor M U state state_out
    int32 state_layout reserved
""", outputs=("state_out",))

gdn_chunk_cumsum_args = _struct("gdn_chunk_cumsum_args", """
    tensor g out
    batch batch
    int32 chunk_size
    float scale
""", outputs=("out",))

gdn_chunk_uw_args = _struct("gdn_chunk_uw_args", """
    tensor k v g beta u w T
    batch batch
    int32 head_map chunk_size
""", outputs=("u", "w", "T"))

gdn_chunk_states_args = _struct("gdn_chunk_states_args", """
    tensor k u w g state states state_out
    batch batch
    int32 head_map state_layout chunk_size reserved
""", outputs=("states", "state_out"))

gdn_chunk_output_args = _struct("gdn_chunk_output_args", """
    tensor q k u w g states out
    batch batch
    int32 head_map state_layout chunk_size
    float scale
""", outputs=("out",))

_OPS = {  # in the order of gdn_op
    "prefill": gdn_rule_args,
    "decode": gdn_rule_args,
    "conv1d": gdn_conv1d_args,
    "gates": gdn_gates_args,
    "l2norm": gdn_l2norm_args,
    "rmsnorm_gated": gdn_rmsnorm_gated_args,
    "block": gdn_block_args,
    "state_copy": gdn_state_copy_args,
    "summary": gdn_summary_args,
    "summary_compose": gdn_summary_compose_args,
    "summary_apply": gdn_summary_apply_args,
    "chunk_cumsum": gdn_chunk_cumsum_args,
    "chunk_uw": gdn_chunk_uw_args,
    "chunk_states": gdn_chunk_states_args,
    "chunk_output": gdn_chunk_output_args,
    "record_commit": gdn_record_commit_args,
    "record_fold": gdn_record_fold_args,
    "step": gdn_step_args,
}


# ---- The library -------------------------------------------------------------------------------


def _find():
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libgdn.so")
    return os.environ.get("GDN_LIBRARY") or (beside if os.path.exists(beside) else "libgdn.so.0")


def _load(path):
    library = ctypes.CDLL(path)
    library.gdn_version.restype = c_uint32
    library.gdn_ctx_destroy.restype = None
    for name in ("gdn_status_name", "gdn_last_error", "gdn_last_kernel", "gdn_isa"):
        getattr(library, name).restype = c_char_p
    return library


_path = _find()
_lib = _load(_path)


class Error(Exception):
    """A call that the library refused: status (E_ARG, ...), its name, and the text."""

    def __init__(self, status, text):
        self.status = status
        self.name = _lib.gdn_status_name(status).decode()
        self.text = text
        super().__init__(f"{self.name}: {text}")


def version():
    """The version of the library that runs, as "major.minor.patch"."""
    number = _lib.gdn_version()
    return f"{number >> 16}.{number >> 8 & 255}.{number & 255}"


def info():
    """What runs here by default: version, library, isa, threads."""
    with Context() as ctx:
        return dict(version=version(), library=_path, isa=ctx.isa, threads=ctx.n_threads)


# ---- Arrays as tensor views --------------------------------------------------------------------

_DTYPES = {"|i1": I8, "<f4": F32, "<f2": F16, "<i4": I32, "<i8": I64, "|u1": U8, "|b1": U8,
           "bfloat16": BF16, "float8_e4m3fn": E4M3}  # the last two by DLPack alone


class bf16:
    """Marks an array of 16-bit unsigned integers as bfloat16."""

    def __init__(self, array):
        self.array = array


def _tensor(name, value, is_output):
    """A gdn_tensor that shows the elements of an array, where they are, and their owner."""
    is_bf16 = isinstance(value, bf16)
    view = view_of(name, value.array if is_bf16 else value)
    dtype = (BF16 if view.type == "<u2" else None) if is_bf16 else _DTYPES.get(view.type)
    if dtype is None:
        wanted = "<u2 within bf16()" if is_bf16 else f"{' '.join(_DTYPES)} or bf16(<u2)"
        raise TypeError(f"{name}: type {view.type}, wanted {wanted}")
    if view.is_readonly and is_output:
        raise ValueError(f"{name}: read-only, but the call writes it")
    n = len(view.shape)
    if n > MAX_DIMS:
        raise ValueError(f"{name}: {n} dimensions, wanted 1 to {MAX_DIMS}")
    data = view.data
    if not data and 0 in view.shape:
        data = 64  # arrays without elements may have no address, which here would say "absent"
    tensor = gdn_tensor(data=data, dtype=dtype, ndim=n)
    tensor.size[:n] = view.shape
    tensor.stride[:n] = view.strides
    return tensor, view


# ---- Arguments ---------------------------------------------------------------------------------


# Memory for scratch is the context's affair here.
_HIDDEN = ("struct_size", "workspace", "workspace_bytes")


# What a sequence starts from; written in place, if no other tensor takes its final state.
_STARTS = "state", "state_scales", "conv_state"


def _number(name, ctype, value):
    """The value as ctype holds it; ctypes alone would cut off high bits."""
    try:
        number = c_double(value).value if ctype is c_float else operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: {type(value).__name__}, wanted a number") from None
    if ctype is not c_float and (ctype(number).value or 0) != number:
        raise ValueError(f"{name}: {number} does not fit")
    return number


def _stream(value):
    """A CUstream as an integer."""
    if hasattr(value, "__cuda_stream__"):
        value = value.__cuda_stream__()[1]
    return _number("stream", c_void_p, getattr(value, "cuda_stream", value))


def _outputs(struct, fields):
    """The tensors that the call writes; a state that only is read may be read-only."""
    batch = fields.get("batch")
    frozen = isinstance(batch, Batch) and batch.args.write == WRITE_NONE
    if struct is gdn_record_fold_args:  # writes the state whatever its batch says
        return struct.outputs
    if frozen or fields.get("state_out") is not None:
        return [name for name in struct.outputs if name not in _STARTS]
    return struct.outputs


def _arguments(struct, what, fields):
    """A struct filled from fields; args.keep holds the objects that it points to, args.places
    where each array is."""
    args = struct(struct_size=ctypes.sizeof(struct))
    args.keep, args.places = [], []
    ctypes_of = {n: t for n, t in struct._fields_ if n not in _HIDDEN}
    outputs = _outputs(struct, fields)
    for name, value in fields.items():
        if name not in ctypes_of:
            raise TypeError(f"{what}() has no argument {name}")
        if value is None:
            continue
        if name == "batch":
            if not isinstance(value, Batch):
                raise TypeError(f"batch: {type(value).__name__}, wanted a Batch")
            args.batch = ctypes.pointer(value.args)
            args.keep.append(value)
            args.places += value.args.places
        elif ctypes_of[name] is gdn_tensor:
            tensor, view = _tensor(name, value, name in outputs)
            setattr(args, name, tensor)
            args.keep.append(view.owner)
            args.places.append((name, view.place))
        elif name == "stream":
            args.stream = _stream(value)
        else:
            setattr(args, name, _number(name, ctypes_of[name], value))
    return args


class Batch:
    """gdn_batch: which tokens form which sequence, and where its states are. Its arrays, which
    lie where the context computes, may change between calls; one Batch serves every call of a
    step."""

    def __init__(self, **fields):
        self.args = _arguments(gdn_batch, "Batch", fields)


# ---- Context -----------------------------------------------------------------------------------

_BACKENDS = {"cpu": BACKEND_CPU, "cuda": BACKEND_CUDA}


def _name_of(place):
    return place if isinstance(place, str) else f"memory of CUDA device {place}"


class Context:
    """
    gdn_ctx: an instruction set, threads, memory. threads 0: one per processor; isa "scalar",
    "avx2", "avx512" or "neon": use no more than that. Or, with backend "cuda", the GPU that has
    the number `device`; it checks slots and lengths on each call if check_contents, which is for
    debugging. Closed by close(), `with`, or when collected.
    """

    _ctx = None

    def __init__(self, threads=0, isa=None, backend="cpu", device=0, check_contents=False):
        if backend not in _BACKENDS:
            raise ValueError(f"backend: {backend!r}, wanted {' or '.join(_BACKENDS)}")
        if not isinstance(isa, (str, type(None))):
            raise TypeError(f"isa: {type(isa).__name__}, wanted a string")
        text = ctypes.create_string_buffer(512)
        options = gdn_options(
            struct_size=ctypes.sizeof(gdn_options),
            backend=_BACKENDS[backend],
            device=_number("device", c_int32, device),
            flags=CTX_CHECK_CONTENTS if check_contents else 0,
            n_threads=_number("threads", c_int32, threads),
            isa=None if isa is None else isa.encode(),
            error_text=ctypes.cast(text, c_char_p),
            error_text_bytes=len(text),
        )
        ctx = c_void_p()
        status = _lib.gdn_ctx_create(ctypes.byref(options), ctypes.byref(ctx))
        if status:
            raise Error(status, text.value.decode())
        self._ctx, self._process, self._lock = ctx, os.getpid(), threading.Lock()
        self._place = options.device if backend == "cuda" else HOST

    def close(self):
        # A child of fork() has the context's memory but not its threads.
        if self._ctx and self._process == os.getpid():
            with self._lock:
                _lib.gdn_ctx_destroy(self._ctx)
                self._ctx = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    __del__ = close

    @property
    def device(self):
        """The number of the GPU that computes; None: none does."""
        return None if self._place == HOST else self._place

    @property
    def isa(self):
        return _lib.gdn_isa(self._ctx).decode()

    @property
    def n_threads(self):
        return _lib.gdn_n_threads(self._ctx)

    @property
    def last_kernel(self):
        return _lib.gdn_last_kernel(self._ctx).decode()

    def _run(self, function, *arguments):
        with self._lock:
            if not self._ctx:
                raise ValueError("the context is closed")
            status = function(self._ctx, *arguments)
            if status:
                raise Error(status, _lib.gdn_last_error(self._ctx).decode())

    def self_test(self):
        """gdn_self_test: raises Error if this machine computes something else than it should."""
        self._run(_lib.gdn_self_test)

    def _arguments(self, op, fields):
        """The struct of the op; every array is where this context computes."""
        args = _arguments(_OPS[op], op, fields)
        for name, place in args.places:
            if place != self._place:
                raise ValueError(f"{name}: in {_name_of(place)}, but the context computes in "
                                 f"{_name_of(self._place)}")
        return args

    def _call(self, op, fields):
        args = self._arguments(op, fields)
        self._run(getattr(_lib, f"gdn_{op}"), ctypes.byref(args))

    def prefill(self, **fields):
        """gdn_prefill: the rule over whole sequences, in blocks; fields of gdn_rule_args."""
        self._call("prefill", fields)

    def decode(self, **fields):
        """gdn_decode: the rule token after token; fields of gdn_rule_args."""
        self._call("decode", fields)

    def conv1d(self, **fields):
        """gdn_conv1d: causal depthwise convolution; fields of gdn_conv1d_args."""
        self._call("conv1d", fields)

    def gates(self, **fields):
        """gdn_gates: g and beta from a and b; fields of gdn_gates_args."""
        self._call("gates", fields)

    def l2norm(self, **fields):
        """gdn_l2norm: rows of length 1; fields of gdn_l2norm_args."""
        self._call("l2norm", fields)

    def rmsnorm_gated(self, **fields):
        """gdn_rmsnorm_gated: RMSNorm, weight and gate; fields of gdn_rmsnorm_gated_args."""
        self._call("rmsnorm_gated", fields)

    def step(self, **fields):
        """gdn_step: next tokens through convolution, gates, rule, norm; fields of gdn_step_args."""
        self._call("step", fields)

    def block(self, **fields):
        """gdn_block: one whole layer; fields of gdn_block_args."""
        self._call("block", fields)

    def state_copy(self, **fields):
        """gdn_state_copy: pool slots to pool slots; fields of gdn_state_copy_args."""
        self._call("state_copy", fields)

    def summary(self, **fields):
        """gdn_summary: what ranges of tokens do to a state; fields of gdn_summary_args."""
        self._call("summary", fields)

    def summary_compose(self, **fields):
        """gdn_summary_compose: one range after another; fields of gdn_summary_compose_args."""
        self._call("summary_compose", fields)

    def summary_apply(self, **fields):
        """gdn_summary_apply: S_out = M S_in + U; fields of gdn_summary_apply_args."""
        self._call("summary_apply", fields)

    def chunk_cumsum(self, **fields):
        """gdn_chunk_cumsum: sums of gates inside chunks; fields of gdn_chunk_cumsum_args."""
        self._call("chunk_cumsum", fields)

    def chunk_uw(self, **fields):
        """gdn_chunk_uw: u, w and T of every chunk; fields of gdn_chunk_uw_args."""
        self._call("chunk_uw", fields)

    def chunk_states(self, **fields):
        """gdn_chunk_states: the state before every chunk; fields of gdn_chunk_states_args."""
        self._call("chunk_states", fields)

    def chunk_output(self, **fields):
        """gdn_chunk_output: o from those states; fields of gdn_chunk_output_args."""
        self._call("chunk_output", fields)

    def record_commit(self, **fields):
        """gdn_record_commit: accept drafted tokens; fields of gdn_record_commit_args."""
        self._call("record_commit", fields)

    def record_fold(self, **fields):
        """gdn_record_fold: a record's rows go into the state; fields of gdn_record_fold_args."""
        self._call("record_fold", fields)

    def supported(self, op, **fields):
        """Would the op of that name accept these fields? Contents of arrays are not read."""
        if op not in _OPS:
            raise ValueError(f"op: {op!r}, wanted {', '.join(_OPS)}")
        args = self._arguments(op, fields)
        try:
            self._run(_lib.gdn_supported, list(_OPS).index(op), ctypes.byref(args))
        except Error:
            return False
        return True
