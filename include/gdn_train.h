/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_train.h - gradients of the ops of gdn.h, for training.
 *
 * This header is the manual of these calls. Letters, conventions and guarantees are those of gdn.h.
 */
#ifndef GDN_TRAIN_H
#define GDN_TRAIN_H

#include "gdn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Gradients of the rule ------------------------------------------------------------------- */

/*
 * gdn_prefill_backward - computes the gradients of gdn_prefill(). Given dout, the gradient of out,
 * and dstate_out, the gradient of the final states, it computes the gradient of every input. It
 * computes the states again from the inputs, so it needs no result of the forward call, but takes
 * states that the forward call saved. docs/design/math.md derives the formulas.
 *
 *     q k v g beta A_log dt_bias   as in gdn_prefill(), with gate, beta_kind, head_map, norm,
 *                                  norm_eps, scale and gate_lower_bound. A dtype each, as below
 *     state         [B][H][V][K]   f32, bf16, f16; initial states. Absent: zero.
 *     dout          [N][H][V]      f32, bf16 or f16; dense
 *     dstate_out    [B][H][V][K]   f32, bf16, f16; absent: zero
 *     checkpoints   [P][H][V][K]   f32, bf16, f16; saved states, see below; absent: none
 *     dq dk dv      as q, k, v     f32, bf16 or f16; dense; dq and dk are with respect to q and k
 *                                  before their norm
 *     dg            as g           f32; with respect to g as given: log alpha, alpha or a
 *     dbeta         as beta        f32; with respect to beta as given: beta or b
 *     dA_log ddt_bias [H]          f32; for GDN_GATE_RAW alone; sums over all sequences.
 *                                  ddt_bias is [H][K] if dt_bias is
 *     dstate        [B][H][V][K]   f32
 *     write_gate dwrite_gate       as in gdn_prefill(), with updates; as write_gate, f32
 *
 * Shapes of "The family" at gdn_prefill() are taken too, and checkpoints are not read for them. A
 * channel that forgets has the dg 0. On a GPU bf16 goes by chunks on tensor cores if a token has
 * one update: KDA takes 4 to 5 times as long as Gated DeltaNet. Other calls go token by token, in
 * float32.
 *
 * Every gradient may be absent, but not all of them. If dstate is the only one, the call computes
 * no states and is several times faster; on tensor cores see below. state, dstate_out, checkpoints
 * and dstate have the layout state_layout; one of their last two strides is 1. If several state
 * heads read one head of q, k or v, the gradient of that head is their sum, in the order of the
 * state heads. Sequences, and [B][T] instead of [N], are as for gdn_prefill(). Of batch, only
 * cu_seqlens, token_start, token_count and, with checkpoints, checkpoint_every may be set. Masked
 * tokens have the gradient zero. If all tokens of a sequence are masked, dstate is dstate_out.
 *
 * If a gate is -inf (alpha = 0), its dg is 0, and later tokens give no gradient to earlier tokens
 * and to the initial state. The same holds for a gate below -104, whose exp() is 0 in float32.
 *
 * Saved states. A long sequence is cut into segments (GPU: windows, docs/gpu/backward.md). A first
 * walk through it computes the states before these. If gdn_prefill() saved states as checkpoints,
 * and the call gets them with the same batch, then segments begin there, without a first walk.
 *
 *   which     checkpoint_every = E is a multiple of 64, without checkpoint_slots. Checkpoints take
 *             4 H K V bytes for each E tokens, if they are float32.
 *   when      Checkpoints are read if a segment may have E tokens or more. On a CPU it may have
 *             max(16, 32 MiB / (4 H' (K + 32) (V + 48))) chunks of 16, or more, with
 *             H' = H / gcd(Hq, Hk, Hv). On a GPU it may have max(8, T / 2048) chunks of 64, T being
 *             N or T; on tensor cores max(8, c / B). If windows go through the batch, checkpoints
 *             are read if c chunks have 3 E tokens or more. docs/gpu/backward.md has c.
 *   values    Gradients differ by rounding from those without saved states. On a GPU G2 needs
 *             GDN_BATCH_INVARIANT, which reads none. A state that the tensor lacks is zero on a
 *             GPU, GDN_E_ARG on a CPU.
 *
 * Memory. On tensor cores, and for the family on a GPU, a window has as many chunks as window_mib
 * MiB hold, and c is at least 128 (family: 64). The workspace is one window, and states between
 * windows. If all chunks fit into one window, long sequences need no first walk, and on Hopper a
 * full batch takes up to a quarter less time. With GDN_BATCH_INVARIANT no bit of a gradient but
 * dA_log and ddt_bias depends on window_mib; else gradients differ by rounding.
 *
 * Flags:
 *
 *   GDN_ACCUMULATE        Gradients are added to what the tensors hold, and the gradients of masked
 *                         tokens stay as they are. Each sum is rounded once, to the dtype of the
 *                         tensor.
 *   GDN_NO_EARLY_STOP     Hopper, where every token then counts. Without it, and with more than one
 *                         window, states come from the kernels of gdn_prefill(), which may stop
 *                         early. If dstate is the only gradient and norm is not GDN_NORM_NONE, last
 *                         tokens may be left out: from a multiple of 64 on, if the product over the
 *                         tokens before is at most 2^-24 (docs/design/guarantees.md, "Early stop").
 *                         A column of dstate is off by at most 2^-24 of the length that it has
 *                         behind these tokens. Values there that are not finite are forgotten.
 *   GDN_BATCH_INVARIANT   Hopper: the call computes the states between windows itself. If dstate is
 *                         the only gradient, a sequence may be split into units, which are computed
 *                         at the same time (not with GDN_ACCUMULATE). Units then have 8192 tokens
 *                         in any call.
 *
 * Elsewhere the last two flags change nothing.
 *
 * Arithmetic is float32, in chunks of 16 tokens (GPU: 64). Tensor cores take q, k, v and dout of
 * one dtype of 16 bits, if K and V are multiples of 8; if the GPU is no Hopper, K at most 128.
 * Factors of products have that dtype there. With float16 the gradients of states and of u are
 * infinite above about 65504 times the scale, and lose bits where dout is below about 2^-12. No
 * tensor that is written may overlap another one. Guarantees, on a GPU too: G1, G3, G12 and G13;
 * G2 for all gradients except dA_log and ddt_bias. On tensor cores, with more than one window or
 * with units, G2 needs GDN_BATCH_INVARIANT, else it holds to rounding. Errors: as for
 * gdn_prefill().
 */
typedef struct gdn_prefill_backward_args {
    uint32_t struct_size;
    uint32_t flags; /* gdn_flag: GDN_ACCUMULATE, GDN_ZERO_AS_GIVEN, the two above */
    gdn_tensor q, k, v, g, beta, A_log, dt_bias, state, dout, dstate_out, checkpoints;
    gdn_tensor dq, dk, dv, dg, dbeta, dA_log, ddt_bias, dstate;
    const gdn_batch *batch;
    int32_t gate;           /* gdn_gate_kind */
    int32_t beta_kind;      /* gdn_beta_kind; 0: GIVEN */
    int32_t head_map;       /* gdn_head_map */
    int32_t state_layout;   /* gdn_state_layout */
    int32_t norm;           /* gdn_norm, of q and k, inside the call; 0: NONE */
    float norm_eps;         /* 0: 1e-6 */
    float scale;            /* 0: 1 / sqrt(K) */
    float gate_lower_bound; /* 0: none; else below 0, for GDN_GATE_RAW */
    void *workspace;
    size_t workspace_bytes;
    void *stream;
    gdn_tensor write_gate, dwrite_gate;
    int32_t updates;     /* of each token; 0: 1 */
    uint32_t window_mib; /* GPU: memory of a window, in MiB; 0: 640 */
} gdn_prefill_backward_args;

GDN_DEFINE_INIT(gdn_prefill_backward_args, gdn_prefill_backward_args_init)

GDN_API gdn_status gdn_prefill_backward(gdn_ctx *ctx, const gdn_prefill_backward_args *args);

/* ---- Gradients of the convolution ------------------------------------------------------------ */

/*
 * gdn_conv1d_backward - computes the gradients of gdn_conv1d(). Given dout, the gradient of out,
 * and dstate_out, the gradient of the final states, it computes the gradients of x, the weights,
 * the bias and the initial states. It needs the inputs of the forward call, and no result.
 *
 *     x dout dx         [N][D]       f32, bf16 or f16 each; any strides; or [B][T][D]
 *     weight bias       as in gdn_conv1d()
 *     state             [B][D][S]    f32, bf16 or f16; S >= W - 1; initial states. Absent: zero.
 *     dstate_out        as state     gradient of the states after the last tokens; absent: zero
 *     dweight           as weight    f32; sums over all tokens
 *     dbias             [D]          f32; sums over all tokens
 *     dstate            [B][D][S]    f32; allowed without a state
 *
 * Every gradient may be absent, but not all of them. If bias is absent, dbias is the gradient at
 * bias = 0. state, dstate_out and dstate have the same S. Activations: none, SiLU. Sequences are as
 * for gdn_conv1d(). Of batch, only cu_seqlens, token_start and token_count may be set. dx of masked
 * tokens is zero. If all tokens of a sequence are masked, dstate is dstate_out.
 *
 * GDN_ACCUMULATE in flags: gradients are added to what the tensors hold, and dx of masked tokens
 * stays as it is. Each sum is rounded once to its dtype. Arithmetic is float32. No tensor that is
 * written may overlap another one. Guarantees: G1, G3, G6, G12, G13; G2 for all gradients except
 * dweight and dbias, whose bits depend on neither threads nor time.
 */
typedef struct gdn_conv1d_backward_args {
    uint32_t struct_size;
    uint32_t flags; /* gdn_flag: GDN_ACCUMULATE */
    gdn_tensor x, weight, bias, state, dout, dstate_out, dx, dweight, dbias, dstate;
    const gdn_batch *batch;
    int32_t activation; /* gdn_activation: NONE or SILU; 0: NONE */
    int32_t reserved;   /* 0 */
    void *workspace;
    size_t workspace_bytes;
    void *stream;
} gdn_conv1d_backward_args;

GDN_DEFINE_INIT(gdn_conv1d_backward_args, gdn_conv1d_backward_args_init)

GDN_API gdn_status gdn_conv1d_backward(gdn_ctx *ctx, const gdn_conv1d_backward_args *args);

/* ---- Gradients of the gates ------------------------------------------------------------------ */

/*
 * gdn_gates_backward - computes the gradients of gdn_gates(). Given dg, the gradient of g, and
 * dbeta, the gradient of beta, it computes the gradients of a, b, A_log and dt_bias. Fields that
 * both calls have are as in the forward call. g and beta of the forward call are not needed.
 *
 *     a b da db dg dbeta   [...][H]   f32, bf16 or f16 each, any strides; 1 to 5 leading
 *                                     dimensions. Fastest if heads are dense
 *     A_log dt_bias        [H]        f32, bf16 or f16; dt_bias absent: 0,
 *                                     or [H][K] as in gdn_gates()
 *     dA_log ddt_bias      [H]        f32; sums over all rows; ddt_bias as dt_bias
 *
 * Every gradient may be absent, but not all of them. da, dA_log and ddt_bias need a, A_log and dg;
 * db needs b and dbeta. With GDN_GATE_LINEAR dg is the gradient of exp(g). No tensor that is
 * written may overlap another one. GDN_ACCUMULATE in flags: gradients are added to what the tensors
 * hold, and each sum is rounded once to its dtype. Arithmetic is float32. If a gate is infinite, a
 * gradient of 0 stays 0. Guarantees: G1, G3, G6, G12, G13; G2 for all gradients except dA_log and
 * ddt_bias, whose bits depend on neither threads nor time.
 */
typedef struct gdn_gates_backward_args {
    uint32_t struct_size;
    uint32_t flags; /* gdn_flag: GDN_ACCUMULATE */
    gdn_tensor a, b, A_log, dt_bias, dg, dbeta, da, db, dA_log, ddt_bias;
    int32_t gate;           /* gdn_gate_kind of the output */
    int32_t beta_kind;      /* gdn_beta_kind: SIGMOID or TWICE_SIGMOID; 0: SIGMOID */
    float gate_lower_bound; /* 0: none; else below 0 */
    int32_t reserved;       /* 0 */
    void *workspace;
    size_t workspace_bytes;
    void *stream;
} gdn_gates_backward_args;

GDN_DEFINE_INIT(gdn_gates_backward_args, gdn_gates_backward_args_init)

GDN_API gdn_status gdn_gates_backward(gdn_ctx *ctx, const gdn_gates_backward_args *args);

/* ---- Gradients of the norms ------------------------------------------------------------------ */

/*
 * gdn_l2norm_backward - computes dx, the gradient of x in gdn_l2norm(), from dout, the gradient of
 * out. x, norm and eps are as in the forward call. out of the forward call is not needed.
 *
 *     x dout dx   [...][D]   f32, bf16 or f16 each, dense, D from 1 to 65536
 *
 * dx may overlap no other tensor. GDN_ACCUMULATE in flags: the gradient is added to what dx holds,
 * and the sum is rounded once to the dtype of dx. Arithmetic is float32. A zero row has dx = dout /
 * its divisor. With GDN_NORM_L2_MAX the same holds for a row shorter than eps. Such a gradient may
 * be too large for f16, and is infinite then. Guarantees: G1, G2, G3, G6, G12, G13.
 */
typedef struct gdn_l2norm_backward_args {
    uint32_t struct_size;
    uint32_t flags; /* gdn_flag: GDN_ACCUMULATE, GDN_ZERO_AS_GIVEN */
    gdn_tensor x, dout, dx;
    int32_t norm; /* gdn_norm, not NONE; 0: L2 */
    float eps;    /* 0: 1e-6 */
    void *workspace;
    size_t workspace_bytes;
    void *stream;
} gdn_l2norm_backward_args;

GDN_DEFINE_INIT(gdn_l2norm_backward_args, gdn_l2norm_backward_args_init)

GDN_API gdn_status gdn_l2norm_backward(gdn_ctx *ctx, const gdn_l2norm_backward_args *args);

/*
 * gdn_rmsnorm_gated_backward - computes the gradients of gdn_rmsnorm_gated(). Given dout, the
 * gradient of out, it computes the gradients of x, z and weight. Fields that both calls have are as
 * in the forward call. out of the forward call is not needed.
 *
 *     x z dout dx dz   [...][D]   f32, bf16 or f16 each, dense, D from 1 to 65536; z absent: no
 *                                 gate
 *     weight           [D]        f32, bf16 or f16; absent: 1
 *     dweight          [D]        f32; sums over all rows
 *
 * Every gradient may be absent, but not all of them. dz needs z. No tensor that is written may
 * overlap another one. GDN_ACCUMULATE in flags: gradients are added to what the tensors hold, and
 * each sum is rounded once to its dtype. Arithmetic is float32. Guarantees: G1, G3, G6, G12, G13;
 * G2 for dx and dz. The bits of dweight depend on neither threads nor time.
 */
typedef struct gdn_rmsnorm_gated_backward_args {
    uint32_t struct_size;
    uint32_t flags; /* gdn_flag: GDN_ACCUMULATE, GDN_ZERO_AS_GIVEN */
    gdn_tensor x, z, weight, dout, dx, dz, dweight;
    int32_t activation; /* gdn_activation: SILU or SIGMOID; 0: SILU */
    float eps;          /* 0: 1e-6 */
    void *workspace;
    size_t workspace_bytes;
    void *stream;
} gdn_rmsnorm_gated_backward_args;

GDN_DEFINE_INIT(gdn_rmsnorm_gated_backward_args, gdn_rmsnorm_gated_backward_args_init)

GDN_API gdn_status gdn_rmsnorm_gated_backward(gdn_ctx *ctx,
                                              const gdn_rmsnorm_gated_backward_args *args);

/* ---- Gradients of the layer ------------------------------------------------------------------ */

/*
 * gdn_block_backward - computes the gradients of gdn_block(). Given dout, the gradient of out, and
 * dstate_out and dconv_state_out, the gradients of the final states, it computes the gradients of
 * hidden, of every parameter and of the initial states. It computes all values again from hidden,
 * so it needs no result of the forward call.
 *
 *     hidden, the weights   as in gdn_block(), and so are head counts, head sizes, state_layout,
 *                           rms_eps, activation, beta_kind and gate_lower_bound
 *     conv_state            [B][2 Hk K + Hv V][S]  f32, bf16, f16; initial states. Absent: zero.
 *     state                 [B][Hv][V][K]          f32, bf16, f16; initial states. Absent: zero.
 *     dout                  as out in gdn_block()  f32 or A
 *     dconv_state_out       as conv_state          f32, bf16, f16; absent: zero
 *     dstate_out            as state               f32, bf16, f16; absent: zero
 *     dhidden               as hidden              f32 or A
 *     din_proj_... dconv_weight dconv_bias dA_log ddt_bias dnorm_weight dout_proj
 *                           as their weights       f32; sums over all tokens. A matrix has rows in
 *                                                  order, with any distance between them
 *     dconv_state           as conv_state          f32; allowed without a conv_state
 *     dstate                as state               f32; allowed without a state
 *
 * Every gradient may be absent, but not all of them. A projection that is absent has no gradient.
 * Sequences are as for gdn_block(). Of batch, only cu_seqlens, token_start and token_count may be
 * set. Masked tokens have the gradient zero, and no other gradient depends on them.
 *
 * GDN_ACCUMULATE in flags: gradients are added to what the tensors hold, and each sum is rounded
 * once to its dtype. GDN_EXACT: on a GPU the library's own kernels compute the matrix products, in
 * place of cuBLAS. No tensor that is written may overlap another one. Values between the steps are
 * float32 (GPU: A). Gates are float32 and their gradients A. Matrix products sum in float32. All
 * tokens are computed at once, and the workspace holds the values between the steps. Guarantees:
 * G1, G3, G6, G12, G13. Errors: as for gdn_block().
 */
typedef struct gdn_block_backward_args {
    uint32_t struct_size;
    uint32_t flags; /* gdn_flag: GDN_ACCUMULATE, GDN_EXACT, GDN_ZERO_AS_GIVEN */
    gdn_tensor hidden, in_proj_qkvz, in_proj_ba, in_proj_qkv, in_proj_z, in_proj_b, in_proj_a,
        conv_weight, conv_bias, A_log, dt_bias, norm_weight, out_proj, conv_state, state, dout,
        dconv_state_out, dstate_out;
    gdn_tensor dhidden, din_proj_qkvz, din_proj_ba, din_proj_qkv, din_proj_z, din_proj_b,
        din_proj_a, dconv_weight, dconv_bias, dA_log, ddt_bias, dnorm_weight, dout_proj,
        dconv_state, dstate;
    const gdn_batch *batch;
    int32_t n_key_heads, n_value_heads;   /* Hk, Hv */
    int32_t key_head_dim, value_head_dim; /* K, V */
    int32_t state_layout;
    float rms_eps; /* of the gated RMSNorm; 0: 1e-6 */
    void *workspace;
    size_t workspace_bytes;
    void *stream;
    int32_t activation, beta_kind;
    float gate_lower_bound; /* as in gdn_block() */
    int32_t reserved;       /* 0 */
    gdn_tensor in_proj_q, in_proj_k, in_proj_v, in_proj_z_down, in_proj_a_down;
    gdn_tensor din_proj_q, din_proj_k, din_proj_v, din_proj_z_down, din_proj_a_down;
} gdn_block_backward_args;

GDN_DEFINE_INIT(gdn_block_backward_args, gdn_block_backward_args_init)

GDN_API gdn_status gdn_block_backward(gdn_ctx *ctx, const gdn_block_backward_args *args);

#ifdef __cplusplus
}
#endif

#endif
