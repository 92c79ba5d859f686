# SPDX-License-Identifier: Apache-2.0
# Made by tools/stubs.py from _abi.py. Do not edit.
import ctypes
from collections.abc import Callable
from typing import Any, TypedDict

from typing_extensions import Unpack

# NumPy's or torch's array, or any object with __array_interface__, DLPack,
# __cuda_array_interface__ or the buffer protocol.
Array = Any
# A CUstream as an integer, or an object with __cuda_stream__ or cuda_stream.
Stream = Any

class Error(RuntimeError):
    status: int
    name: str
    text: str
    def __init__(self, status: int, text: str) -> None: ...

class bf16:
    array: Array
    def __init__(self, array: Array) -> None: ...

def version() -> str: ...
def info() -> dict[str, Any]: ...
def install(*names: str) -> None: ...

OK: int
E_ARG: int
E_SHAPE: int
E_DTYPE: int
E_UNSUPPORTED: int
E_MEMORY: int
E_CUDA: int
E_SELF_TEST: int
F32: int
BF16: int
F16: int
I8: int
E4M3: int
E5M2: int
I32: int
I64: int
U8: int
BACKEND_CPU: int
BACKEND_CUDA: int
CTX_CHECK_CONTENTS: int
PAD_ZERO: int
PAD_KEEP: int
PAD_SINK: int
WRITE_FINAL: int
WRITE_EACH: int
WRITE_NONE: int
GATE_LOG: int
GATE_LINEAR: int
GATE_RAW: int
BETA_DEFAULT: int
BETA_SIGMOID: int
BETA_TWICE_SIGMOID: int
BETA_GIVEN: int
HEADS_GROUPED: int
HEADS_INTERLEAVED: int
STATE_VK: int
STATE_KV: int
EXACT: int
BF16_PRODUCTS: int
BATCH_INVARIANT: int
NO_EARLY_STOP: int
ACCUMULATE: int
ZERO_AS_GIVEN: int
ROUND_NEAREST: int
ROUND_STOCHASTIC: int
NORM_DEFAULT: int
NORM_L2: int
NORM_L2_ADD: int
NORM_L2_MAX: int
NORM_NONE: int
ACT_DEFAULT: int
ACT_SILU: int
ACT_SIGMOID: int
ACT_NONE: int
MAX_DIMS: int
_CTYPES: int

class _batch_fields(TypedDict, total=False):
    pad_policy: int
    write: int
    max_seqlen: int
    sink_slot: int
    checkpoint_every: int
    cu_seqlens: Array | None
    read_slots: Array | None
    write_slots: Array | None
    has_initial_state: Array | None
    num_accepted_tokens: Array | None
    token_start: Array | None
    token_count: Array | None
    parents: Array | None
    path: Array | None
    checkpoint_starts: Array | None
    checkpoint_positions: Array | None
    checkpoint_slots: Array | None
    first_slot: int

class Batch:
    def __init__(self, **fields: Unpack[_batch_fields]) -> None: ...

class _rule_args(_batch_fields, total=False):
    flags: int
    q: Array | None
    k: Array | None
    v: Array | None
    g: Array | None
    beta: Array | None
    A_log: Array | None
    dt_bias: Array | None
    state: Array | None
    state_out: Array | None
    out: Array | None
    checkpoints: Array | None
    state_scales: Array | None
    state_out_scales: Array | None
    checkpoint_scales: Array | None
    record_k: Array | None
    record_u: Array | None
    record_g: Array | None
    record_count: Array | None
    batch: Batch | None
    gate: int
    beta_kind: int
    head_map: int
    state_layout: int
    norm: int
    norm_eps: float
    scale: float
    gate_lower_bound: float
    rounding: int
    updates: int
    seed: int
    stream: Stream | None
    write_gate: Array | None

class _conv1d_args(_batch_fields, total=False):
    flags: int
    x: Array | None
    weight: Array | None
    bias: Array | None
    state: Array | None
    state_out: Array | None
    out: Array | None
    checkpoints: Array | None
    batch: Batch | None
    activation: int
    stream: Stream | None

class _gates_args(TypedDict, total=False):
    flags: int
    a: Array | None
    b: Array | None
    A_log: Array | None
    dt_bias: Array | None
    g: Array | None
    beta: Array | None
    gate: int
    beta_kind: int
    gate_lower_bound: float
    stream: Stream | None

class _l2norm_args(TypedDict, total=False):
    flags: int
    x: Array | None
    out: Array | None
    norm: int
    eps: float
    stream: Stream | None

class _rmsnorm_gated_args(TypedDict, total=False):
    flags: int
    x: Array | None
    z: Array | None
    weight: Array | None
    out: Array | None
    activation: int
    eps: float
    stream: Stream | None

class _block_args(_batch_fields, total=False):
    flags: int
    hidden: Array | None
    in_proj_qkvz: Array | None
    in_proj_ba: Array | None
    in_proj_qkv: Array | None
    in_proj_z: Array | None
    in_proj_b: Array | None
    in_proj_a: Array | None
    conv_weight: Array | None
    conv_bias: Array | None
    A_log: Array | None
    dt_bias: Array | None
    norm_weight: Array | None
    out_proj: Array | None
    conv_state: Array | None
    state: Array | None
    out: Array | None
    checkpoints: Array | None
    conv_checkpoints: Array | None
    state_scales: Array | None
    checkpoint_scales: Array | None
    batch: Batch | None
    n_key_heads: int
    n_value_heads: int
    key_head_dim: int
    value_head_dim: int
    state_layout: int
    rms_eps: float
    rounding: int
    activation: int
    seed: int
    stream: Stream | None
    beta_kind: int

class _state_copy_args(TypedDict, total=False):
    flags: int
    from_pool: Array | None
    to_pool: Array | None
    from_slots: Array | None
    to_slots: Array | None
    from_scales: Array | None
    to_scales: Array | None
    from_layout: int
    to_layout: int
    rounding: int
    seed: int
    stream: Stream | None

class _summary_args(_batch_fields, total=False):
    flags: int
    k: Array | None
    v: Array | None
    g: Array | None
    beta: Array | None
    M: Array | None
    U: Array | None
    batch: Batch | None
    head_map: int
    state_layout: int
    norm: int
    norm_eps: float
    stream: Stream | None
    write_gate: Array | None
    updates: int

class _summary_compose_args(TypedDict, total=False):
    flags: int
    M1: Array | None
    U1: Array | None
    M2: Array | None
    U2: Array | None
    M: Array | None
    U: Array | None
    state_layout: int
    stream: Stream | None

class _summary_apply_args(TypedDict, total=False):
    flags: int
    M: Array | None
    U: Array | None
    state: Array | None
    state_out: Array | None
    state_layout: int
    stream: Stream | None

class _chunk_cumsum_args(_batch_fields, total=False):
    flags: int
    g: Array | None
    out: Array | None
    batch: Batch | None
    chunk_size: int
    scale: float
    stream: Stream | None

class _chunk_uw_args(_batch_fields, total=False):
    flags: int
    k: Array | None
    v: Array | None
    g: Array | None
    beta: Array | None
    u: Array | None
    w: Array | None
    T: Array | None
    batch: Batch | None
    head_map: int
    chunk_size: int
    stream: Stream | None

class _chunk_states_args(_batch_fields, total=False):
    flags: int
    k: Array | None
    u: Array | None
    w: Array | None
    g: Array | None
    state: Array | None
    states: Array | None
    state_out: Array | None
    batch: Batch | None
    head_map: int
    state_layout: int
    chunk_size: int
    stream: Stream | None

class _chunk_output_args(_batch_fields, total=False):
    flags: int
    q: Array | None
    k: Array | None
    u: Array | None
    w: Array | None
    g: Array | None
    states: Array | None
    out: Array | None
    batch: Batch | None
    head_map: int
    state_layout: int
    chunk_size: int
    scale: float
    stream: Stream | None

class _record_commit_args(_batch_fields, total=False):
    flags: int
    record_k: Array | None
    record_u: Array | None
    record_g: Array | None
    record_count: Array | None
    n_accepted: Array | None
    path: Array | None
    batch: Batch | None
    stream: Stream | None

class _record_fold_args(_batch_fields, total=False):
    flags: int
    state: Array | None
    state_scales: Array | None
    record_k: Array | None
    record_u: Array | None
    record_g: Array | None
    record_count: Array | None
    batch: Batch | None
    head_map: int
    state_layout: int
    rounding: int
    seed: int
    stream: Stream | None

class _step_args(_batch_fields, total=False):
    flags: int
    x: Array | None
    a: Array | None
    b: Array | None
    z: Array | None
    conv_weight: Array | None
    conv_bias: Array | None
    A_log: Array | None
    dt_bias: Array | None
    norm_weight: Array | None
    conv_state: Array | None
    state: Array | None
    state_scales: Array | None
    out: Array | None
    batch: Batch | None
    n_key_heads: int
    n_value_heads: int
    key_head_dim: int
    value_head_dim: int
    beta_kind: int
    head_map: int
    state_layout: int
    norm: int
    norm_eps: float
    rms_eps: float
    scale: float
    gate_lower_bound: float
    rounding: int
    activation: int
    seed: int
    stream: Stream | None

class _l2norm_backward_args(TypedDict, total=False):
    flags: int
    x: Array | None
    dout: Array | None
    dx: Array | None
    norm: int
    eps: float
    stream: Stream | None

class _prefill_backward_args(_batch_fields, total=False):
    flags: int
    q: Array | None
    k: Array | None
    v: Array | None
    g: Array | None
    beta: Array | None
    A_log: Array | None
    dt_bias: Array | None
    state: Array | None
    dout: Array | None
    dstate_out: Array | None
    checkpoints: Array | None
    dq: Array | None
    dk: Array | None
    dv: Array | None
    dg: Array | None
    dbeta: Array | None
    dA_log: Array | None
    ddt_bias: Array | None
    dstate: Array | None
    batch: Batch | None
    gate: int
    beta_kind: int
    head_map: int
    state_layout: int
    norm: int
    norm_eps: float
    scale: float
    gate_lower_bound: float
    stream: Stream | None
    write_gate: Array | None
    dwrite_gate: Array | None
    updates: int

class _gates_backward_args(TypedDict, total=False):
    flags: int
    a: Array | None
    b: Array | None
    A_log: Array | None
    dt_bias: Array | None
    dg: Array | None
    dbeta: Array | None
    da: Array | None
    db: Array | None
    dA_log: Array | None
    ddt_bias: Array | None
    gate: int
    beta_kind: int
    gate_lower_bound: float
    stream: Stream | None

class _conv1d_backward_args(_batch_fields, total=False):
    flags: int
    x: Array | None
    weight: Array | None
    bias: Array | None
    state: Array | None
    dout: Array | None
    dstate_out: Array | None
    dx: Array | None
    dweight: Array | None
    dbias: Array | None
    dstate: Array | None
    batch: Batch | None
    activation: int
    stream: Stream | None

class _rmsnorm_gated_backward_args(TypedDict, total=False):
    flags: int
    x: Array | None
    z: Array | None
    weight: Array | None
    dout: Array | None
    dx: Array | None
    dz: Array | None
    dweight: Array | None
    activation: int
    eps: float
    stream: Stream | None

class _block_backward_args(_batch_fields, total=False):
    flags: int
    hidden: Array | None
    in_proj_qkvz: Array | None
    in_proj_ba: Array | None
    in_proj_qkv: Array | None
    in_proj_z: Array | None
    in_proj_b: Array | None
    in_proj_a: Array | None
    conv_weight: Array | None
    conv_bias: Array | None
    A_log: Array | None
    dt_bias: Array | None
    norm_weight: Array | None
    out_proj: Array | None
    conv_state: Array | None
    state: Array | None
    dout: Array | None
    dconv_state_out: Array | None
    dstate_out: Array | None
    dhidden: Array | None
    din_proj_qkvz: Array | None
    din_proj_ba: Array | None
    din_proj_qkv: Array | None
    din_proj_z: Array | None
    din_proj_b: Array | None
    din_proj_a: Array | None
    dconv_weight: Array | None
    dconv_bias: Array | None
    dA_log: Array | None
    ddt_bias: Array | None
    dnorm_weight: Array | None
    dout_proj: Array | None
    dconv_state: Array | None
    dstate: Array | None
    batch: Batch | None
    n_key_heads: int
    n_value_heads: int
    key_head_dim: int
    value_head_dim: int
    state_layout: int
    rms_eps: float
    stream: Stream | None
    activation: int
    beta_kind: int

class _summary_fold_args(TypedDict, total=False):
    flags: int
    M: Array | None
    U: Array | None
    order: Array | None
    state: Array | None
    state_out: Array | None
    state_layout: int
    stream: Stream | None

class Context:
    def __init__(self, threads: int = 0, isa: str | None = None, backend: str = "cpu",
                 device: int = 0, check_contents: bool = False,
                 library: str | None = None) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Context: ...
    def __exit__(self, *_: object) -> None: ...
    @property
    def device(self) -> int | None: ...
    @property
    def isa(self) -> str: ...
    @property
    def n_threads(self) -> int: ...
    @property
    def last_kernel(self) -> str: ...
    def self_test(self) -> None: ...
    def plan(self, op: str, /, **fields: Any) -> Callable[..., None]: ...
    def supported(self, op: str, /, **fields: Any) -> bool: ...
    def prefill(self, **fields: Unpack[_rule_args]) -> None: ...
    def decode(self, **fields: Unpack[_rule_args]) -> None: ...
    def conv1d(self, **fields: Unpack[_conv1d_args]) -> None: ...
    def gates(self, **fields: Unpack[_gates_args]) -> None: ...
    def l2norm(self, **fields: Unpack[_l2norm_args]) -> None: ...
    def rmsnorm_gated(self, **fields: Unpack[_rmsnorm_gated_args]) -> None: ...
    def block(self, **fields: Unpack[_block_args]) -> None: ...
    def state_copy(self, **fields: Unpack[_state_copy_args]) -> None: ...
    def summary(self, **fields: Unpack[_summary_args]) -> None: ...
    def summary_compose(self, **fields: Unpack[_summary_compose_args]) -> None: ...
    def summary_apply(self, **fields: Unpack[_summary_apply_args]) -> None: ...
    def chunk_cumsum(self, **fields: Unpack[_chunk_cumsum_args]) -> None: ...
    def chunk_uw(self, **fields: Unpack[_chunk_uw_args]) -> None: ...
    def chunk_states(self, **fields: Unpack[_chunk_states_args]) -> None: ...
    def chunk_output(self, **fields: Unpack[_chunk_output_args]) -> None: ...
    def record_commit(self, **fields: Unpack[_record_commit_args]) -> None: ...
    def record_fold(self, **fields: Unpack[_record_fold_args]) -> None: ...
    def step(self, **fields: Unpack[_step_args]) -> None: ...
    def l2norm_backward(self, **fields: Unpack[_l2norm_backward_args]) -> None: ...
    def prefill_backward(self, **fields: Unpack[_prefill_backward_args]) -> None: ...
    def gates_backward(self, **fields: Unpack[_gates_backward_args]) -> None: ...
    def conv1d_backward(self, **fields: Unpack[_conv1d_backward_args]) -> None: ...
    def rmsnorm_gated_backward(self, **fields: Unpack[_rmsnorm_gated_backward_args]) -> None: ...
    def block_backward(self, **fields: Unpack[_block_backward_args]) -> None: ...
    def summary_fold(self, **fields: Unpack[_summary_fold_args]) -> None: ...

class gdn_tensor(ctypes.Structure): ...
class gdn_options(ctypes.Structure): ...
class gdn_batch(ctypes.Structure): ...
class gdn_rule_args(ctypes.Structure): ...
class gdn_record_commit_args(ctypes.Structure): ...
class gdn_record_fold_args(ctypes.Structure): ...
class gdn_conv1d_args(ctypes.Structure): ...
class gdn_conv1d_backward_args(ctypes.Structure): ...
class gdn_gates_args(ctypes.Structure): ...
class gdn_gates_backward_args(ctypes.Structure): ...
class gdn_l2norm_args(ctypes.Structure): ...
class gdn_l2norm_backward_args(ctypes.Structure): ...
class gdn_rmsnorm_gated_args(ctypes.Structure): ...
class gdn_rmsnorm_gated_backward_args(ctypes.Structure): ...
class gdn_step_args(ctypes.Structure): ...
class gdn_block_args(ctypes.Structure): ...
class gdn_state_copy_args(ctypes.Structure): ...
class gdn_blob_args(ctypes.Structure): ...
class gdn_blob_info(ctypes.Structure): ...
class gdn_summary_args(ctypes.Structure): ...
class gdn_summary_compose_args(ctypes.Structure): ...
class gdn_summary_apply_args(ctypes.Structure): ...
class gdn_summary_fold_args(ctypes.Structure): ...
class gdn_collective(ctypes.Structure): ...
class gdn_chunk_cumsum_args(ctypes.Structure): ...
class gdn_chunk_uw_args(ctypes.Structure): ...
class gdn_chunk_states_args(ctypes.Structure): ...
class gdn_chunk_output_args(ctypes.Structure): ...
class gdn_prefill_backward_args(ctypes.Structure): ...
class gdn_block_backward_args(ctypes.Structure): ...
