# SPDX-License-Identifier: Apache-2.0
"""
The constants and structs of gdn.h, once: all other modules take names, types, offsets and defaults
from here. A change of a field or of an enum in gdn.h changes this file and no other.
"""

import ctypes
from ctypes import (c_char_p, c_float, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p)

OK, E_ARG, E_SHAPE, E_DTYPE, E_UNSUPPORTED, E_MEMORY, E_CUDA, E_SELF_TEST = range(8)  # gdn_status
F32, BF16, F16, I8, E4M3, E5M2, I32, I64, U8 = 0, 1, 2, 3, 4, 5, 16, 17, 18  # gdn_dtype
BACKEND_CPU, BACKEND_CUDA = range(2)
CTX_CHECK_CONTENTS = 1  # gdn_ctx_flag
PAD_ZERO, PAD_KEEP, PAD_SINK = range(3)
WRITE_FINAL, WRITE_EACH, WRITE_NONE = range(3)
GATE_LOG, GATE_LINEAR, GATE_RAW = range(3)
BETA_DEFAULT, BETA_SIGMOID, BETA_TWICE_SIGMOID, BETA_GIVEN = range(4)
HEADS_GROUPED, HEADS_INTERLEAVED = range(2)
STATE_VK, STATE_KV = range(2)
EXACT, BF16_PRODUCTS, BATCH_INVARIANT, NO_EARLY_STOP = 1, 2, 4, 8
ACCUMULATE, ZERO_AS_GIVEN = 16, 32
ROUND_NEAREST, ROUND_STOCHASTIC = range(2)
NORM_DEFAULT, NORM_L2, NORM_L2_ADD, NORM_L2_MAX, NORM_NONE = range(5)
ACT_DEFAULT, ACT_SILU, ACT_SIGMOID, ACT_NONE = range(4)
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


def _struct(name, fields, needs="", outputs=(), later=""):
    """
    A struct from lines of a type and its fields. One with outputs, the tensors that the call
    writes, is the arguments of an op, which begin and end alike. needs: the tensors without which
    no call of the op is complete.
    """
    if outputs:
        fields = "uint32 flags" + fields + "pointer workspace\nsize workspace_bytes\n"
        fields += "pointer stream\n" + later
    lines = [line.split() for line in fields.strip().splitlines()]
    members = [(field, _CTYPES[kind]) for kind, *names in lines for field in names]
    members.insert(0, ("struct_size", c_uint32))
    return type(name, (ctypes.Structure,), {"_fields_": members, "needs": needs.split(),
                                             "outputs": outputs})


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
    int64 first_slot
""")

_CTYPES["batch"] = ctypes.POINTER(gdn_batch)

gdn_rule_args = _struct("gdn_rule_args", """
    tensor q k v g beta A_log dt_bias state state_out out checkpoints
    tensor state_scales state_out_scales checkpoint_scales
    tensor record_k record_u record_g record_count
    batch batch
    int32 gate beta_kind head_map state_layout norm
    float norm_eps scale gate_lower_bound
    int32 rounding updates
    uint64 seed
""", later="tensor write_gate", needs="q k v",
    outputs=("state", "state_out", "out", "checkpoints", "state_scales", "state_out_scales",
             "checkpoint_scales", "record_k", "record_u", "record_g"))

gdn_record_commit_args = _struct("gdn_record_commit_args", """
    tensor record_k record_u record_g record_count n_accepted path
    batch batch
""", needs="record_k record_u record_g record_count n_accepted",
    outputs=("record_k", "record_u", "record_g", "record_count"))

gdn_record_fold_args = _struct("gdn_record_fold_args", """
    tensor state state_scales record_k record_u record_g record_count
    batch batch
    int32 head_map state_layout rounding reserved
    uint64 seed
""", needs="state record_k record_u record_g record_count",
    outputs=("state", "state_scales", "record_count"))

gdn_conv1d_args = _struct("gdn_conv1d_args", """
    tensor x weight bias state state_out out checkpoints
    batch batch
    int32 activation reserved
""", needs="x weight",
    outputs=("state", "state_out", "out", "checkpoints"))

gdn_conv1d_backward_args = _struct("gdn_conv1d_backward_args", """
    tensor x weight bias state dout dstate_out dx dweight dbias dstate
    batch batch
    int32 activation reserved
""", needs="x weight dout",
    outputs=("dx", "dweight", "dbias", "dstate"))

gdn_gates_args = _struct("gdn_gates_args", """
    tensor a b A_log dt_bias g beta
    int32 gate beta_kind
    float gate_lower_bound
    int32 reserved
""", outputs=("g", "beta"))

gdn_gates_backward_args = _struct("gdn_gates_backward_args", """
    tensor a b A_log dt_bias dg dbeta da db dA_log ddt_bias
    int32 gate beta_kind
    float gate_lower_bound
    int32 reserved
""", needs="",
    outputs=("da", "db", "dA_log", "ddt_bias"))

gdn_l2norm_args = _struct("gdn_l2norm_args", """
    tensor x out
    int32 norm
    float eps
""", needs="x out",
    outputs=("out",))

gdn_l2norm_backward_args = _struct("gdn_l2norm_backward_args", """
    tensor x dout dx
    int32 norm
    float eps
""", needs="x dout dx",
    outputs=("dx",))

gdn_rmsnorm_gated_args = _struct("gdn_rmsnorm_gated_args", """
    tensor x z weight out
    int32 activation
    float eps
""", needs="x out",
    outputs=("out",))

gdn_rmsnorm_gated_backward_args = _struct("gdn_rmsnorm_gated_backward_args", """
    tensor x z weight dout dx dz dweight
    int32 activation
    float eps
""", needs="x dout",
    outputs=("dx", "dz", "dweight"))

gdn_step_args = _struct("gdn_step_args", """
    tensor x a b z conv_weight conv_bias A_log dt_bias norm_weight conv_state state
    tensor state_scales out
    batch batch
    int32 n_key_heads n_value_heads key_head_dim value_head_dim
    int32 beta_kind head_map state_layout norm
    float norm_eps rms_eps scale gate_lower_bound
    int32 rounding activation
    uint64 seed
""", needs="x a b A_log",
    outputs=("conv_state", "state", "state_scales", "out"))

gdn_block_args = _struct("gdn_block_args", """
    tensor hidden in_proj_qkvz in_proj_ba in_proj_qkv in_proj_z in_proj_b in_proj_a
    tensor conv_weight conv_bias A_log dt_bias norm_weight out_proj conv_state state out
    tensor checkpoints conv_checkpoints state_scales checkpoint_scales
    batch batch
    int32 n_key_heads n_value_heads key_head_dim value_head_dim state_layout
    float rms_eps
    int32 rounding activation
    uint64 seed
""", later="int32 beta_kind reserved",
    needs="hidden conv_weight A_log dt_bias norm_weight out_proj out",
    outputs=("conv_state", "state", "out", "checkpoints", "conv_checkpoints", "state_scales",
              "checkpoint_scales"))

gdn_state_copy_args = _struct("gdn_state_copy_args", """
    tensor from_pool to_pool from_slots to_slots from_scales to_scales
    int32 from_layout to_layout rounding reserved
    uint64 seed
""", needs="to_pool",
    outputs=("to_pool", "to_scales"))

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
    int32 head_map state_layout norm
    float norm_eps
""", later="tensor write_gate\nint32 updates reserved", needs="k",
    outputs=("M", "U"))

gdn_summary_compose_args = _struct("gdn_summary_compose_args", """
    tensor M1 U1 M2 U2 M U
    int32 state_layout reserved
""", outputs=("M", "U"))

gdn_summary_apply_args = _struct("gdn_summary_apply_args", """
    tensor M U state state_out
    int32 state_layout reserved
""", needs="M state_out",
    outputs=("state_out",))

gdn_summary_fold_args = _struct("gdn_summary_fold_args", """
    tensor M U order state state_out
    int32 state_layout reserved
""", needs="M U state_out",
    outputs=("state_out",))

gdn_collective = _struct("gdn_collective", """
    int32 rank size reserved
    pointer all_gather user
""")

gdn_chunk_cumsum_args = _struct("gdn_chunk_cumsum_args", """
    tensor g out
    batch batch
    int32 chunk_size
    float scale
""", needs="g out",
    outputs=("out",))

gdn_chunk_uw_args = _struct("gdn_chunk_uw_args", """
    tensor k v g beta u w T
    batch batch
    int32 head_map chunk_size
""", needs="k",
    outputs=("u", "w", "T"))

gdn_chunk_states_args = _struct("gdn_chunk_states_args", """
    tensor k u w g state states state_out
    batch batch
    int32 head_map state_layout chunk_size reserved
""", needs="k u w",
    outputs=("states", "state_out"))

gdn_chunk_output_args = _struct("gdn_chunk_output_args", """
    tensor q k u w g states out
    batch batch
    int32 head_map state_layout chunk_size
    float scale
""", needs="q k u w states out",
    outputs=("out",))

gdn_prefill_backward_args = _struct("gdn_prefill_backward_args", """
    tensor q k v g beta A_log dt_bias state dout dstate_out checkpoints
    tensor dq dk dv dg dbeta dA_log ddt_bias dstate
    batch batch
    int32 gate beta_kind head_map state_layout norm
    float norm_eps scale gate_lower_bound
""", later="tensor write_gate dwrite_gate\nint32 updates reserved", needs="q k v dout",
    outputs=("dq", "dk", "dv", "dg", "dbeta", "dA_log", "ddt_bias", "dstate", "dwrite_gate"))

gdn_block_backward_args = _struct("gdn_block_backward_args", """
    tensor hidden in_proj_qkvz in_proj_ba in_proj_qkv in_proj_z in_proj_b in_proj_a
    tensor conv_weight conv_bias A_log dt_bias norm_weight out_proj conv_state state dout
    tensor dconv_state_out dstate_out
    tensor dhidden din_proj_qkvz din_proj_ba din_proj_qkv din_proj_z din_proj_b
    tensor din_proj_a dconv_weight dconv_bias dA_log ddt_bias dnorm_weight dout_proj
    tensor dconv_state dstate
    batch batch
    int32 n_key_heads n_value_heads key_head_dim value_head_dim
    int32 state_layout
    float rms_eps
""", later="int32 activation beta_kind",
    needs="hidden conv_weight A_log dt_bias norm_weight out_proj dout",
    outputs=("dhidden", "din_proj_qkvz", "din_proj_ba", "din_proj_qkv", "din_proj_z",
             "din_proj_b", "din_proj_a", "dconv_weight", "dconv_bias", "dA_log", "ddt_bias",
             "dnorm_weight", "dout_proj", "dconv_state", "dstate"))

OPS = {  # in the order of gdn_op
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
    "l2norm_backward": gdn_l2norm_backward_args,
    "prefill_backward": gdn_prefill_backward_args,
    "gates_backward": gdn_gates_backward_args,
    "conv1d_backward": gdn_conv1d_backward_args,
    "rmsnorm_gated_backward": gdn_rmsnorm_gated_backward_args,
    "block_backward": gdn_block_backward_args,
    "summary_fold": gdn_summary_fold_args,
}

__all__ = [name for name in list(globals()) if name.isupper() or name.startswith("gdn_")]
__all__.remove("OPS")
