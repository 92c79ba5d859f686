/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu */
/*
 * G1 for gdn_conv1d, gdn_gates, the norms and gdn_block: a valid call, spoilt in one place, is
 * refused for the stated reason and changes nothing. What batches refuse is in op_refused.c.
 */
#include <math.h>
#include <string.h>

#include "gdn_train.h"
#include "ring2.h"

static gdn_ctx *ctx;
static gdn_batch batch;

/* Spoils the call of `make` by the statements, which see it as a. */
#define REFUSE_SEEN(seen, op, make, what, want, needle, ...) \
    do {                                                     \
        if (!ring2_begin("G1 " #make ": %s", what)) break;   \
        gdn_##make##_args args = make(), *a = &args;         \
        (void)a;                                             \
        __VA_ARGS__;                                         \
        ring2_refused(ctx, op, a, seen, want, needle);       \
        ring2_end();                                         \
    } while (0)

/* ---- gdn_conv1d ---- */

static gdn_conv1d_args conv1d(void)
{
    static const int64_t cu[3] = { 0, 7, 9 };
    gdn_conv1d_args a = gdn_conv1d_args_init();
    a.x = ring2_new(GDN_F32, 0, 2, 9, 12, 0, 0);
    a.out = ring2_new(GDN_F32, 0, 2, 9, 12, 0, 0);
    a.weight = ring2_new(GDN_F32, 0, 2, 12, 4, 0, 0);
    a.bias = ring2_new(GDN_F32, 0, 1, 12, 0, 0, 0);
    a.state = ring2_new(GDN_F32, 0, 3, 5, 12, 3, 0);
    batch = gdn_batch_init();
    batch.cu_seqlens = ring2_indices(GDN_I32, 3, cu);
    a.batch = &batch;
    return a;
}

#define REFUSE(...) REFUSE_SEEN(RING2_STRUCT, GDN_OP_CONV1D, conv1d, __VA_ARGS__)
#define REFUSE_CONTENTS(...) REFUSE_SEEN(RING2_CONTENTS, GDN_OP_CONV1D, conv1d, __VA_ARGS__)

static void refuse_conv1d(void)
{
    REFUSE("struct_size", GDN_E_ARG, "struct_size", a->struct_size = 0);
    REFUSE("flags", GDN_E_ARG, "flags", a->flags = 4);
    REFUSE("reserved", GDN_E_ARG, "reserved", a->reserved = 1);
    REFUSE("activation sigmoid", GDN_E_ARG, "activation", a->activation = GDN_ACT_SIGMOID);
    REFUSE("activation 4", GDN_E_ARG, "activation", a->activation = 4);
    REFUSE("x absent", GDN_E_ARG, "x", a->x.data = NULL);
    REFUSE("x of I32", GDN_E_DTYPE, "x", a->x.dtype = GDN_I32);
    REFUSE("x of 1 dimension", GDN_E_SHAPE, "x", a->x.ndim = 1);
    REFUSE("channels of out share memory", GDN_E_SHAPE, "out", a->out.stride[1] = 0);
    REFUSE("out of another dtype", GDN_E_DTYPE, "out", a->out.dtype = GDN_BF16);
    REFUSE("out of fewer tokens", GDN_E_SHAPE, "out", a->out.size[0] = 8);
    REFUSE("out rows share memory", GDN_E_SHAPE, "out", a->out.stride[0] = 11);
    REFUSE("out on x, one element on", GDN_E_ARG, "out", a->out.data = (char *)a->x.data + 4);
    REFUSE("out on weight", GDN_E_ARG, "out", a->weight.data = a->out.data);
    REFUSE("out on state", GDN_E_ARG, "overlaps", a->state.data = a->out.data);
    REFUSE("weight absent", GDN_E_ARG, "weight", a->weight.data = NULL);
    REFUSE("weight of I64", GDN_E_DTYPE, "weight", a->weight.dtype = GDN_I64);
    REFUSE("weight of fewer channels", GDN_E_SHAPE, "weight", a->weight.size[0] = 11);
    REFUSE("weight of 1 dimension", GDN_E_SHAPE, "weight", a->weight.ndim = 1);
    REFUSE("weight [D][2][W]", GDN_E_SHAPE, "weight",
           a->weight = ring2_new(GDN_F32, 0, 3, 12, 2, 4, 0));
    REFUSE("1 tap", GDN_E_SHAPE, "weight", a->weight.size[1] = 1);
    REFUSE("17 taps", GDN_E_UNSUPPORTED, "weight",
           a->weight = ring2_new(GDN_F32, 0, 2, 12, 17, 0, 0));
    REFUSE("bias of fewer channels", GDN_E_SHAPE, "bias", a->bias.size[0] = 11);
    REFUSE("bias of U8", GDN_E_DTYPE, "bias", a->bias.dtype = GDN_U8);
    REFUSE("state of W - 2", GDN_E_SHAPE, "state", a->state.size[2] = 2);
    REFUSE("state of fewer channels", GDN_E_SHAPE, "state", a->state.size[1] = 11);
    REFUSE("state of I32", GDN_E_DTYPE, "state", a->state.dtype = GDN_I32);
    REFUSE("state of 2 dimensions", GDN_E_SHAPE, "state", a->state.ndim = 2);
    REFUSE("channels of the state share memory", GDN_E_SHAPE, "state", a->state.stride[1] = 2);
    REFUSE("state_out beside state by one", GDN_E_ARG, "state_out", a->state_out = a->state;
           a->state_out.data = (char *)a->state.data + 4; a->state_out.size[0] = 4);
    REFUSE("state on x", GDN_E_ARG, "state", a->state.data = a->x.data);
    REFUSE("batch struct_size", GDN_E_ARG, "struct_size", batch.struct_size = 0);
    REFUSE("pad_policy", GDN_E_ARG, "pad_policy", batch.pad_policy = 9);
    REFUSE("cu_seqlens of F32", GDN_E_DTYPE, "cu_seqlens", batch.cu_seqlens.dtype = GDN_F32);
    REFUSE_CONTENTS("cu_seqlens decreases", GDN_E_ARG, "cu_seqlens",
                    ring2_set(&batch.cu_seqlens, 1, 10));
    REFUSE_CONTENTS("slot P", GDN_E_ARG, "read_slots",
                    batch.read_slots = ring2_indices(GDN_I32, 2, (int64_t[]){ 1, 5 }));
    REFUSE_CONTENTS("slot written twice", GDN_E_ARG, "slot",
                    batch.write_slots = ring2_indices(GDN_I32, 2, (int64_t[]){ 4, 4 }));
    REFUSE_SEEN(RING2_WORKSPACE, GDN_OP_CONV1D, conv1d, "workspace too small", GDN_E_MEMORY,
                "workspace_bytes", a->workspace = ring2_alloc(64, 64);
                a->workspace_bytes = 64);
    REFUSE_SEEN(RING2_WORKSPACE, GDN_OP_CONV1D, conv1d, "workspace misaligned", GDN_E_ARG,
                "workspace", a->workspace = (char *)ring2_alloc(128, 64) + 32;
                a->workspace_bytes = (size_t)1 << 40);
}
#undef REFUSE

/* ---- gdn_gates ---- */

static gdn_gates_args gates(void)
{
    gdn_gates_args x = gdn_gates_args_init();
    x.a = ring2_new(GDN_F32, 0, 2, 9, 4, 0, 0), x.b = ring2_new(GDN_F32, 0, 2, 9, 4, 0, 0);
    x.g = ring2_new(GDN_F32, 0, 2, 9, 4, 0, 0), x.beta = ring2_new(GDN_F32, 0, 2, 9, 4, 0, 0);
    x.A_log = ring2_new(GDN_F32, 0, 1, 4, 0, 0, 0);
    x.dt_bias = ring2_new(GDN_F32, 0, 1, 4, 0, 0, 0);
    return x;
}

#define REFUSE(...) REFUSE_SEEN(RING2_STRUCT, GDN_OP_GATES, gates, __VA_ARGS__)

static void refuse_gates(void)
{
    REFUSE("struct_size", GDN_E_ARG, "struct_size", a->struct_size = 3);
    REFUSE("flags", GDN_E_ARG, "flags", a->flags = 1);
    REFUSE("reserved", GDN_E_ARG, "reserved", a->reserved = 1);
    REFUSE("gate raw", GDN_E_ARG, "gate", a->gate = GDN_GATE_RAW);
    REFUSE("beta_kind 3", GDN_E_ARG, "beta_kind", a->beta_kind = 3);
    REFUSE("gate_lower_bound 1", GDN_E_ARG, "gate_lower_bound", a->gate_lower_bound = 1);
    REFUSE("gate_lower_bound NaN", GDN_E_ARG, "gate_lower_bound", a->gate_lower_bound = NAN);
    REFUSE("nothing to do", GDN_E_ARG, "a",
           a->a.data = a->b.data = a->g.data = a->beta.data = NULL);
    REFUSE("a without g", GDN_E_ARG, "g", a->g.data = NULL);
    REFUSE("g without a", GDN_E_ARG, "a", a->a.data = NULL);
    REFUSE("beta without b", GDN_E_ARG, "b", a->b.data = NULL);
    REFUSE("A_log absent", GDN_E_ARG, "A_log", a->A_log.data = NULL);
    REFUSE("a of I32", GDN_E_DTYPE, "a", a->a.dtype = GDN_I32);
    REFUSE("beta of no dtype", GDN_E_DTYPE, "beta", a->beta.dtype = 6);
    REFUSE("a of 1 dimension", GDN_E_SHAPE, "a", a->a.ndim = a->g.ndim = 1);
    REFUSE("g of another shape", GDN_E_SHAPE, "g", a->g.size[0] = 8);
    REFUSE("b of another shape", GDN_E_SHAPE, "b", a->b.size[0] = a->beta.size[0] = 8);
    REFUSE("A_log of 3", GDN_E_SHAPE, "A_log", a->A_log.size[0] = 3);
    REFUSE("dt_bias of I64", GDN_E_DTYPE, "dt_bias", a->dt_bias.dtype = GDN_I64);
    REFUSE("no channels", GDN_E_SHAPE, "a", a->dt_bias = ring2_new(GDN_F32, 0, 2, 4, 0, 0, 0),
           a->a = ring2_new(GDN_F32, 0, 3, 9, 4, 0, 0), a->g = a->a);
    REFUSE("heads of g share memory", GDN_E_SHAPE, "g", a->g.stride[1] = 0);
    REFUSE("g rows share memory", GDN_E_SHAPE, "g", a->g.stride[0] = 0);
    REFUSE("g on b", GDN_E_ARG, "g", a->g.data = a->b.data);
    REFUSE("g on beta", GDN_E_ARG, "g", a->g.data = a->beta.data);
    REFUSE("g on a, one row on", GDN_E_ARG, "g", a->g.data = (char *)a->a.data + 16);
    REFUSE("beta on A_log", GDN_E_ARG, "beta", a->A_log.data = a->beta.data);
}
#undef REFUSE

static gdn_gates_backward_args gates_backward(void)
{
    gdn_gates_backward_args x = gdn_gates_backward_args_init();
    gdn_tensor *rows[] = { &x.a, &x.b, &x.dg, &x.dbeta, &x.da, &x.db };
    gdn_tensor *vectors[] = { &x.A_log, &x.dt_bias, &x.dA_log, &x.ddt_bias };
    for (int i = 0; i < 6; i++) *rows[i] = ring2_new(GDN_F32, 0, 2, 9, 4, 0, 0);
    for (int i = 0; i < 4; i++) *vectors[i] = ring2_new(GDN_F32, 0, 1, 4, 0, 0, 0);
    return x;
}

#define REFUSE(...) REFUSE_SEEN(RING2_STRUCT, GDN_OP_GATES_BACKWARD, gates_backward, __VA_ARGS__)

static void refuse_gates_backward(void)
{
    REFUSE("struct_size", GDN_E_ARG, "struct_size", a->struct_size = 3);
    REFUSE("flags", GDN_E_ARG, "flags", a->flags = GDN_EXACT);
    REFUSE("reserved", GDN_E_ARG, "reserved", a->reserved = 1);
    REFUSE("gate raw", GDN_E_ARG, "gate", a->gate = GDN_GATE_RAW);
    REFUSE("beta_kind 3", GDN_E_ARG, "beta_kind", a->beta_kind = 3);
    REFUSE("gate_lower_bound 1", GDN_E_ARG, "gate_lower_bound", a->gate_lower_bound = 1);
    REFUSE("nothing to do", GDN_E_ARG, "da",
           a->da.data = a->db.data = a->dA_log.data = a->ddt_bias.data = NULL);
    REFUSE("a absent", GDN_E_ARG, "a", a->a.data = NULL);
    REFUSE("A_log absent", GDN_E_ARG, "A_log", a->A_log.data = NULL);
    REFUSE("dg absent", GDN_E_ARG, "dg", a->dg.data = NULL);
    REFUSE("b absent", GDN_E_ARG, "b", a->b.data = NULL);
    REFUSE("dbeta absent", GDN_E_ARG, "dbeta", a->dbeta.data = NULL);
    REFUSE("dg of I32", GDN_E_DTYPE, "dg", a->dg.dtype = GDN_I32);
    REFUSE("dA_log of BF16", GDN_E_DTYPE, "dA_log", a->dA_log.dtype = GDN_BF16);
    REFUSE("ddt_bias of F16", GDN_E_DTYPE, "ddt_bias", a->ddt_bias.dtype = GDN_F16);
    REFUSE("a of 1 dimension", GDN_E_SHAPE, "a", a->a.ndim = 1);
    REFUSE("da of another shape", GDN_E_SHAPE, "da", a->da.size[0] = 8);
    REFUSE("dbeta of another shape", GDN_E_SHAPE, "dbeta", a->dbeta.size[1] = 3);
    REFUSE("ddt_bias of 3", GDN_E_SHAPE, "ddt_bias", a->ddt_bias.size[0] = 3);
    REFUSE("ddt_bias with channels", GDN_E_SHAPE, "ddt_bias",
           a->ddt_bias = ring2_new(GDN_F32, 0, 2, 4, 5, 0, 0));
    REFUSE("ddt_bias without elements", GDN_E_SHAPE, "ddt_bias",
           a->ddt_bias = ring2_new(GDN_F32, 0, 2, 4, 0, 0, 0));
    REFUSE("no channels", GDN_E_SHAPE, "a",
           a->dt_bias = a->ddt_bias = ring2_new(GDN_F32, 0, 2, 4, 0, 0, 0),
           a->a = a->da = a->dg = ring2_new(GDN_F32, 0, 3, 9, 4, 0, 0));
    REFUSE("heads of db share memory", GDN_E_SHAPE, "db", a->db.stride[1] = 0);
    REFUSE("da rows share memory", GDN_E_SHAPE, "da", a->da.stride[0] = 0);
    REFUSE("da on dg", GDN_E_ARG, "da", a->da = a->dg);
    REFUSE("db on b", GDN_E_ARG, "db", a->db = a->b);
    REFUSE("dA_log on ddt_bias", GDN_E_ARG, "ddt_bias", a->ddt_bias = a->dA_log);
    REFUSE_SEEN(RING2_WORKSPACE, GDN_OP_GATES_BACKWARD, gates_backward, "workspace too small",
                GDN_E_MEMORY, "workspace_bytes", a->workspace = ring2_alloc(64, 64);
                a->workspace_bytes = 1);
}
#undef REFUSE

/* ---- Norms ---- */

static gdn_l2norm_args l2norm(void)
{
    gdn_l2norm_args a = gdn_l2norm_args_init();
    a.x = ring2_new(GDN_F32, 0, 2, 3, 10, 0, 0);
    a.out = ring2_new(GDN_F32, 0, 2, 3, 10, 0, 0);
    return a;
}

static gdn_l2norm_backward_args l2norm_backward(void)
{
    gdn_l2norm_backward_args a = gdn_l2norm_backward_args_init();
    a.x = ring2_new(GDN_F32, 0, 2, 3, 10, 0, 0);
    a.dout = ring2_new(GDN_F32, 0, 2, 3, 10, 0, 0);
    a.dx = ring2_new(GDN_F32, 0, 2, 3, 10, 0, 0);
    return a;
}

static gdn_prefill_backward_args prefill_backward(void)
{
    gdn_prefill_backward_args a = gdn_prefill_backward_args_init();
    a.q = ring2_new(GDN_F32, 0, 3, 5, 2, 8, 0), a.k = ring2_new(GDN_F32, 0, 3, 5, 2, 8, 0);
    a.v = ring2_new(GDN_F32, 0, 3, 5, 4, 6, 0), a.dout = ring2_new(GDN_F32, 0, 3, 5, 4, 6, 0);
    a.g = ring2_new(GDN_F32, 0, 2, 5, 4, 0, 0), a.beta = ring2_new(GDN_F32, 0, 2, 5, 4, 0, 0);
    a.dq = ring2_new(GDN_F32, 0, 3, 5, 2, 8, 0), a.dv = ring2_new(GDN_F32, 0, 3, 5, 4, 6, 0);
    a.dg = ring2_new(GDN_F32, 0, 2, 5, 4, 0, 0);
    a.state = ring2_new(GDN_F32, 0, 4, 1, 4, 6, 8), a.dstate = ring2_new(GDN_F32, 0, 4, 1, 4, 6, 8);
    return a;
}

static gdn_rmsnorm_gated_args rmsnorm_gated(void)
{
    gdn_rmsnorm_gated_args a = gdn_rmsnorm_gated_args_init();
    a.x = ring2_new(GDN_F32, 0, 2, 3, 10, 0, 0);
    a.z = ring2_new(GDN_F32, 0, 2, 3, 10, 0, 0);
    a.out = ring2_new(GDN_F32, 0, 2, 3, 10, 0, 0);
    a.weight = ring2_new(GDN_F32, 0, 1, 10, 0, 0, 0);
    return a;
}

#define REFUSE(...) REFUSE_SEEN(RING2_STRUCT, GDN_OP_L2NORM, l2norm, __VA_ARGS__)

static void refuse_l2norm(void)
{
    REFUSE("struct_size", GDN_E_ARG, "struct_size", a->struct_size = 0);
    REFUSE("flags", GDN_E_ARG, "flags", a->flags = 1);
    REFUSE("norm 4", GDN_E_ARG, "norm", a->norm = 4);
    REFUSE("eps below 0", GDN_E_ARG, "eps", a->eps = -1);
    REFUSE("x absent", GDN_E_ARG, "x", a->x.data = NULL);
    REFUSE("out absent", GDN_E_ARG, "out", a->out.data = NULL);
    REFUSE("x of U8", GDN_E_DTYPE, "x", a->x.dtype = GDN_U8);
    REFUSE("out of another shape", GDN_E_SHAPE, "out", a->out.size[1] = 9);
    REFUSE("x not dense", GDN_E_SHAPE, "x", a->x.stride[1] = 2);
    REFUSE("D 0", GDN_E_SHAPE, "x", a->x.size[1] = a->out.size[1] = 0);
    REFUSE("D 65537", GDN_E_UNSUPPORTED, "x", a->x = ring2_new(GDN_F32, 0, 1, 65537, 0, 0, 0);
           a->out = a->x);
    REFUSE("out on x, one element on", GDN_E_ARG, "out", a->out.data = (char *)a->x.data + 4);
    REFUSE("out on x of another dtype", GDN_E_ARG, "out", a->out = a->x; a->out.dtype = GDN_BF16);
    REFUSE("out rows share memory", GDN_E_SHAPE, "out", a->out.stride[0] = 9);
}
#undef REFUSE
#define REFUSE(...) REFUSE_SEEN(RING2_STRUCT, GDN_OP_L2NORM_BACKWARD, l2norm_backward, __VA_ARGS__)

static void refuse_l2norm_backward(void)
{
    REFUSE("struct_size", GDN_E_ARG, "struct_size", a->struct_size = 0);
    REFUSE("flags", GDN_E_ARG, "flags", a->flags = GDN_EXACT);
    REFUSE("norm 4", GDN_E_ARG, "norm", a->norm = 4);
    REFUSE("eps infinite", GDN_E_ARG, "eps", a->eps = INFINITY);
    REFUSE("x absent", GDN_E_ARG, "x", a->x.data = NULL);
    REFUSE("dout absent", GDN_E_ARG, "dout", a->dout.data = NULL);
    REFUSE("dx absent", GDN_E_ARG, "dx", a->dx.data = NULL);
    REFUSE("dout of I32", GDN_E_DTYPE, "dout", a->dout.dtype = GDN_I32);
    REFUSE("dout of another shape", GDN_E_SHAPE, "dout", a->dout.size[0] = 2);
    REFUSE("dx of another shape", GDN_E_SHAPE, "dx", a->dx.size[1] = 9);
    REFUSE("dx not dense", GDN_E_SHAPE, "dx", a->dx.stride[1] = 2);
    REFUSE("dx rows share memory", GDN_E_SHAPE, "dx", a->dx.stride[0] = 9);
    REFUSE("D 0", GDN_E_SHAPE, "x", a->x.size[1] = a->dout.size[1] = a->dx.size[1] = 0);
    REFUSE("D 65537", GDN_E_UNSUPPORTED, "x", a->x = ring2_new(GDN_F32, 0, 1, 65537, 0, 0, 0);
           a->dout = a->dx = a->x);
    REFUSE("dx on x", GDN_E_ARG, "dx", a->dx = a->x);
    REFUSE("dx on dout", GDN_E_ARG, "dx", a->dx = a->dout);
}
#undef REFUSE
#define REFUSE(...) \
    REFUSE_SEEN(RING2_STRUCT, GDN_OP_PREFILL_BACKWARD, prefill_backward, __VA_ARGS__)

static void refuse_prefill_backward(void)
{
    REFUSE("struct_size", GDN_E_ARG, "struct_size", a->struct_size = 0);
    REFUSE("flags", GDN_E_ARG, "flags", a->flags = GDN_EXACT);
    REFUSE("gate 3", GDN_E_ARG, "gate", a->gate = 3);
    REFUSE("norm 5", GDN_E_ARG, "norm", a->norm = 5);
    REFUSE("scale NaN", GDN_E_ARG, "scale", a->scale = NAN);
    REFUSE("norm_eps below 0", GDN_E_ARG, "norm_eps", a->norm_eps = -1);
    REFUSE("gate_lower_bound above 0", GDN_E_ARG, "gate_lower_bound", a->gate_lower_bound = 1);
    REFUSE("no gradient", GDN_E_ARG, "dq",
           a->dq.data = a->dv.data = a->dg.data = a->dstate.data = NULL);
    REFUSE("q absent", GDN_E_ARG, "q", a->q.data = NULL);
    REFUSE("dout absent", GDN_E_ARG, "dout", a->dout.data = NULL);
    REFUSE("raw without A_log", GDN_E_ARG, "A_log", a->gate = GDN_GATE_RAW);
    REFUSE("raw without a", GDN_E_ARG, "g", a->gate = GDN_GATE_RAW; a->g.data = NULL);
    REFUSE("A_log of log gates", GDN_E_ARG, "A_log",
           a->A_log = ring2_new(GDN_F32, 0, 1, 4, 0, 0, 0));
    REFUSE("dA_log of log gates", GDN_E_ARG, "dA_log",
           a->dA_log = ring2_new(GDN_F32, 0, 1, 4, 0, 0, 0));
    REFUSE("sigmoid of nothing", GDN_E_ARG, "beta", a->beta_kind = GDN_BETA_SIGMOID;
           a->beta.data = NULL);
    gdn_batch t = gdn_batch_init();
    t.checkpoint_every = 100;
    REFUSE("checkpoints without numbers", GDN_E_ARG, "checkpoint_positions",
           a->checkpoints = ring2_new(GDN_F32, 0, 4, 1, 4, 6, 8));
    REFUSE("checkpoint_every without checkpoints", GDN_E_ARG, "checkpoints", a->batch = &t);
    REFUSE("checkpoint_every of 100", GDN_E_ARG, "checkpoint_every",
           a->checkpoints = ring2_new(GDN_F32, 0, 4, 1, 4, 6, 8);
           a->batch = &t);
    t.checkpoint_every = 64, t.checkpoint_slots = ring2_indices(GDN_I32, 1, (int64_t[]){ 0 });
    REFUSE("checkpoint_slots", GDN_E_ARG, "checkpoint_slots",
           a->checkpoints = ring2_new(GDN_F32, 0, 4, 1, 4, 6, 8);
           a->batch = &t);
    REFUSE("checkpoints of other sizes", GDN_E_SHAPE, "checkpoints",
           a->checkpoints = ring2_new(GDN_F32, 0, 4, 1, 4, 8, 6);
           t.checkpoint_slots.data = NULL; a->batch = &t);
    REFUSE("dg of bf16", GDN_E_DTYPE, "dg", a->dg.dtype = GDN_BF16);
    REFUSE("dq of I32", GDN_E_DTYPE, "dq", a->dq.dtype = GDN_I32);
    REFUSE("state of 8 bits", GDN_E_DTYPE, "state", a->state.dtype = GDN_I8);
    REFUSE("dstate of bf16", GDN_E_DTYPE, "dstate", a->dstate.dtype = GDN_BF16);
    REFUSE("dq of another shape", GDN_E_SHAPE, "dq", a->dq.size[1] = 1);
    REFUSE("dout of fewer heads", GDN_E_SHAPE, "dout", a->dout.size[1] = 2);
    REFUSE("state of the other layout", GDN_E_SHAPE, "state", a->state_layout = GDN_STATE_KV);
    REFUSE("state without a stride of 1", GDN_E_SHAPE, "state: strides",
           a->state = ring2_new(GDN_F32, 0, 4, 1, 4, 6, 16);
           a->state.size[3] = 8; a->state.stride[3] = 2);
    REFUSE("dv rows share memory", GDN_E_SHAPE, "dv", a->dv.stride[0] = 0);
    REFUSE("dv on v", GDN_E_ARG, "dv", a->dv.data = a->v.data);
    REFUSE("dstate on state", GDN_E_ARG, "dstate", a->dstate.data = a->state.data);
}
#undef REFUSE
#define REFUSE(...) REFUSE_SEEN(RING2_STRUCT, GDN_OP_RMSNORM_GATED, rmsnorm_gated, __VA_ARGS__)

static void refuse_rmsnorm_gated(void)
{
    REFUSE("struct_size", GDN_E_ARG, "struct_size", a->struct_size = 0);
    REFUSE("activation 3", GDN_E_ARG, "activation", a->activation = 3);
    REFUSE("eps NaN", GDN_E_ARG, "eps", a->eps = NAN);
    REFUSE("z of another shape", GDN_E_SHAPE, "z", a->z.size[0] = 2);
    REFUSE("z of I32", GDN_E_DTYPE, "z", a->z.dtype = GDN_I32);
    REFUSE("weight of 9", GDN_E_SHAPE, "weight", a->weight.size[0] = 9);
    REFUSE("weight of 2 dimensions", GDN_E_SHAPE, "weight", a->weight.ndim = 2;
           a->weight.size[1] = 1);
    REFUSE("out on weight", GDN_E_ARG, "out", a->weight.data = a->out.data);
    REFUSE("out on z, one row on", GDN_E_ARG, "out", a->out.data = (char *)a->z.data + 40);
}
#undef REFUSE

static gdn_rmsnorm_gated_backward_args rmsnorm_gated_backward(void)
{
    gdn_rmsnorm_gated_backward_args a = gdn_rmsnorm_gated_backward_args_init();
    gdn_tensor *rows[] = { &a.x, &a.z, &a.dout, &a.dx, &a.dz };
    for (int i = 0; i < 5; i++) *rows[i] = ring2_new(GDN_F32, 0, 2, 3, 10, 0, 0);
    a.weight = ring2_new(GDN_F32, 0, 1, 10, 0, 0, 0);
    a.dweight = ring2_new(GDN_F32, 0, 1, 10, 0, 0, 0);
    return a;
}

#define REFUSE(...) \
    REFUSE_SEEN(RING2_STRUCT, GDN_OP_RMSNORM_GATED_BACKWARD, rmsnorm_gated_backward, __VA_ARGS__)

static void refuse_rmsnorm_gated_backward(void)
{
    REFUSE("struct_size", GDN_E_ARG, "struct_size", a->struct_size = 0);
    REFUSE("flags", GDN_E_ARG, "flags", a->flags = GDN_EXACT);
    REFUSE("activation 3", GDN_E_ARG, "activation", a->activation = 3);
    REFUSE("eps below 0", GDN_E_ARG, "eps", a->eps = -1);
    REFUSE("nothing to do", GDN_E_ARG, "dx", a->dx.data = a->dz.data = a->dweight.data = NULL);
    REFUSE("x absent", GDN_E_ARG, "x", a->x.data = NULL);
    REFUSE("dout absent", GDN_E_ARG, "dout", a->dout.data = NULL);
    REFUSE("z absent", GDN_E_ARG, "z", a->z.data = NULL);
    REFUSE("dz of I32", GDN_E_DTYPE, "dz", a->dz.dtype = GDN_I32);
    REFUSE("dweight of BF16", GDN_E_DTYPE, "dweight", a->dweight.dtype = GDN_BF16);
    REFUSE("z of another shape", GDN_E_SHAPE, "z", a->z.size[0] = 2);
    REFUSE("weight of 9", GDN_E_SHAPE, "weight", a->weight.size[0] = 9);
    REFUSE("dx not dense", GDN_E_SHAPE, "dx", a->dx.stride[1] = 2);
    REFUSE("dz rows share memory", GDN_E_SHAPE, "dz", a->dz.stride[0] = 9);
    REFUSE("dx on x", GDN_E_ARG, "dx", a->dx = a->x);
    REFUSE("dz on dx", GDN_E_ARG, "dz", a->dz = a->dx);
    REFUSE("dweight on weight", GDN_E_ARG, "dweight", a->dweight = a->weight);
    REFUSE_SEEN(RING2_WORKSPACE, GDN_OP_RMSNORM_GATED_BACKWARD, rmsnorm_gated_backward,
                "workspace too small", GDN_E_MEMORY, "workspace_bytes",
                a->workspace = ring2_alloc(64, 64);
                a->workspace_bytes = 1);
}
#undef REFUSE

/* ---- gdn_block ---- */

enum { HIDDEN = 10, HK = 1, HV = 2, K = 4, V = 3, D = 2 * HK * K + HV * V };

static gdn_block_args block(void)
{
    static const int64_t cu[3] = { 0, 5, 8 };
    gdn_block_args a = gdn_block_args_init();
    a.hidden = ring2_new(GDN_F32, 0, 2, 8, HIDDEN, 0, 0);
    a.out = ring2_new(GDN_F32, 0, 2, 8, HIDDEN, 0, 0);
    a.in_proj_qkvz = ring2_new(GDN_F32, 0, 2, D + HV * V, HIDDEN, 0, 0);
    a.in_proj_ba = ring2_new(GDN_F32, 0, 2, 2 * HV, HIDDEN, 0, 0);
    a.conv_weight = ring2_new(GDN_F32, 0, 2, D, 4, 0, 0);
    a.A_log = ring2_new(GDN_F32, 0, 1, HV, 0, 0, 0);
    a.dt_bias = ring2_new(GDN_F32, 0, 1, HV, 0, 0, 0);
    a.norm_weight = ring2_new(GDN_F32, 0, 1, V, 0, 0, 0);
    a.out_proj = ring2_new(GDN_F32, 0, 2, HIDDEN, HV * V, 0, 0);
    a.conv_state = ring2_new(GDN_F32, 0, 3, 4, D, 3, 0);
    a.state = ring2_new(GDN_F32, 0, 4, 4, HV, V, K);
    a.n_key_heads = HK, a.n_value_heads = HV, a.key_head_dim = K, a.value_head_dim = V;
    batch = gdn_batch_init();
    batch.cu_seqlens = ring2_indices(GDN_I32, 3, cu);
    a.batch = &batch;
    return a;
}

#define REFUSE(...) REFUSE_SEEN(RING2_STRUCT, GDN_OP_BLOCK, block, __VA_ARGS__)
#undef REFUSE_CONTENTS
#define REFUSE_CONTENTS(...) REFUSE_SEEN(RING2_CONTENTS, GDN_OP_BLOCK, block, __VA_ARGS__)

static void refuse_block_fields(void)
{
    REFUSE("struct_size", GDN_E_ARG, "struct_size", a->struct_size = 0);
    REFUSE("flags", GDN_E_ARG, "flags", a->flags = 16);
    REFUSE("bf16 products of f32", GDN_E_DTYPE, "flags", a->flags = GDN_BF16_PRODUCTS);
    REFUSE("gate_lower_bound 1", GDN_E_ARG, "gate_lower_bound: 1", a->gate_lower_bound = 1);
    REFUSE("n_key_heads 0", GDN_E_ARG, "n_key_heads", a->n_key_heads = 0);
    REFUSE("n_value_heads -1", GDN_E_ARG, "n_value_heads", a->n_value_heads = -1);
    REFUSE("value heads no multiple", GDN_E_ARG, "n_value_heads", a->n_key_heads = 2;
           a->n_value_heads = 3);
    REFUSE("K 257", GDN_E_UNSUPPORTED, "key_head_dim", a->key_head_dim = 257);
    REFUSE("V 1025", GDN_E_UNSUPPORTED, "value_head_dim", a->value_head_dim = 1025);
    REFUSE("V 0", GDN_E_ARG, "value_head_dim", a->value_head_dim = 0);
    REFUSE("state_layout 2", GDN_E_ARG, "state_layout", a->state_layout = 2);
    REFUSE("rms_eps NaN", GDN_E_ARG, "rms_eps", a->rms_eps = NAN);
    REFUSE("GDN_WRITE_EACH", GDN_E_UNSUPPORTED, "write", batch.write = GDN_WRITE_EACH);
    REFUSE("max_seqlen -1", GDN_E_ARG, "max_seqlen", batch.max_seqlen = -1);
    REFUSE_CONTENTS("cu_seqlens past N", GDN_E_ARG, "cu_seqlens",
                    ring2_set(&batch.cu_seqlens, 2, 9));
    REFUSE_CONTENTS("slot P", GDN_E_ARG, "read_slots",
                    batch.read_slots = ring2_indices(GDN_I32, 2, (int64_t[]){ 4, 1 }));
    REFUSE_CONTENTS("slot twice", GDN_E_ARG, "slot",
                    batch.read_slots = ring2_indices(GDN_I32, 2, (int64_t[]){ 1, 1 }));
    REFUSE_SEEN(RING2_WORKSPACE, GDN_OP_BLOCK, block, "workspace too small", GDN_E_MEMORY,
                "workspace_bytes", a->workspace = ring2_alloc(64, 64);
                a->workspace_bytes = 64);
}

static void refuse_block_tensors(void)
{
    REFUSE("hidden absent", GDN_E_ARG, "hidden", a->hidden.data = NULL);
    REFUSE("out absent", GDN_E_ARG, "out", a->out.data = NULL);
    REFUSE("hidden of I32", GDN_E_DTYPE, "hidden", a->hidden.dtype = GDN_I32);
    REFUSE("hidden of 9", GDN_E_SHAPE, "", a->hidden.size[1] = 9);
    REFUSE("hidden not dense", GDN_E_SHAPE, "hidden", a->hidden.stride[1] = 2);
    REFUSE("out of another dtype", GDN_E_DTYPE, "out", a->out.dtype = GDN_BF16);
    REFUSE("out of fewer tokens", GDN_E_SHAPE, "out", a->out.size[0] = 7);
    REFUSE("out on hidden", GDN_E_ARG, "out", a->out = a->hidden);
    REFUSE("out on a weight", GDN_E_ARG, "out", a->in_proj_ba.data = a->out.data);
    REFUSE("no projections", GDN_E_ARG, "in_proj",
           a->in_proj_qkvz.data = a->in_proj_ba.data = NULL);
    REFUSE("both kinds of projections", GDN_E_ARG, "in_proj_z",
           a->in_proj_z = ring2_new(GDN_F32, 0, 2, HV * V, HIDDEN, 0, 0));
    REFUSE("a low rank beside fused ones", GDN_E_ARG, "in_proj_z_down",
           a->in_proj_z_down = ring2_new(GDN_F32, 0, 2, 3, HIDDEN, 0, 0));
    REFUSE("channels with in_proj_ba", GDN_E_SHAPE, "dt_bias",
           a->dt_bias = ring2_new(GDN_F32, 0, 2, HV, K, 0, 0));
    REFUSE("in_proj_ba absent", GDN_E_ARG, "in_proj_ba", a->in_proj_ba.data = NULL);
    REFUSE("in_proj_qkvz of fewer rows", GDN_E_SHAPE, "in_proj_qkvz", a->in_proj_qkvz.size[0]--);
    REFUSE("in_proj_qkvz not dense", GDN_E_SHAPE, "in_proj_qkvz", a->in_proj_qkvz.stride[1] = 2);
    REFUSE("conv_weight absent", GDN_E_ARG, "conv_weight", a->conv_weight.data = NULL);
    REFUSE("conv_weight of fewer rows", GDN_E_SHAPE, "conv_weight", a->conv_weight.size[0]--);
    REFUSE("17 taps", GDN_E_UNSUPPORTED, "conv_weight",
           a->conv_weight = ring2_new(GDN_F32, 0, 2, D, 17, 0, 0));
    REFUSE("A_log absent", GDN_E_ARG, "A_log", a->A_log.data = NULL);
    REFUSE("dt_bias of 3", GDN_E_SHAPE, "dt_bias", a->dt_bias.size[0] = 3);
    REFUSE("norm_weight of I32", GDN_E_DTYPE, "norm_weight", a->norm_weight.dtype = GDN_I32);
    REFUSE("out_proj turned", GDN_E_SHAPE, "out_proj",
           a->out_proj = ring2_new(GDN_F32, 0, 2, HV * V, HIDDEN, 0, 0));
    REFUSE("conv_state of W - 2", GDN_E_SHAPE, "conv_state", a->conv_state.size[2] = 2);
    REFUSE("conv_state of I32", GDN_E_DTYPE, "conv_state", a->conv_state.dtype = GDN_I32);
    REFUSE("state turned", GDN_E_SHAPE, "state", a->state_layout = GDN_STATE_KV);
    REFUSE("state of other heads", GDN_E_SHAPE, "state", a->state.size[1] = 1);
    REFUSE("state of no dtype", GDN_E_DTYPE, "state", a->state.dtype = -5);
    REFUSE("state on conv_state", GDN_E_ARG, "state", a->state.data = a->conv_state.data);
    REFUSE("state on hidden", GDN_E_ARG, "state", a->hidden.data = a->state.data);
    REFUSE("other numbers of slots", GDN_E_SHAPE, "slots", a->state.size[0] = 3);
}
#undef REFUSE

enum { RANK = 5 };

typedef gdn_block_args gdn_kda_args; /* as REFUSE_SEEN() wants it */

/* A layer of KDA: one weight for each projection, or two of low rank. */
static gdn_kda_args kda(void)
{
    gdn_block_args a = block();
    a.in_proj_qkvz.data = a.in_proj_ba.data = NULL;
    a.in_proj_q = ring2_new(GDN_F32, 0, 2, HK * K, HIDDEN, 0, 0);
    a.in_proj_k = ring2_new(GDN_F32, 0, 2, HK * K, HIDDEN, 0, 0);
    a.in_proj_v = ring2_new(GDN_F32, 0, 2, HV * V, HIDDEN, 0, 0);
    a.in_proj_z_down = ring2_new(GDN_F32, 0, 2, RANK, HIDDEN, 0, 0);
    a.in_proj_z = ring2_new(GDN_F32, 0, 2, HV * V, RANK, 0, 0);
    a.in_proj_b = ring2_new(GDN_F32, 0, 2, HV, HIDDEN, 0, 0);
    a.in_proj_a_down = ring2_new(GDN_F32, 0, 2, RANK, HIDDEN, 0, 0);
    a.in_proj_a = ring2_new(GDN_F32, 0, 2, HV * K, RANK, 0, 0);
    a.dt_bias = ring2_new(GDN_F32, 0, 2, HV, K, 0, 0);
    return a;
}

#define REFUSE(...) REFUSE_SEEN(RING2_STRUCT, GDN_OP_BLOCK, kda, __VA_ARGS__)

static void refuse_kda(void)
{
    REFUSE("in_proj_k absent", GDN_E_ARG, "in_proj_k: absent", a->in_proj_k.data = NULL);
    REFUSE("in_proj_q absent", GDN_E_ARG, "in_proj_q: absent", a->in_proj_q.data = NULL);
    REFUSE("in_proj_qkv too", GDN_E_ARG, "in_proj_q: given beside in_proj_qkv",
           a->in_proj_qkv = ring2_new(GDN_F32, 0, 2, D, HIDDEN, 0, 0));
    REFUSE("in_proj_v of fewer rows", GDN_E_SHAPE, "in_proj_v", a->in_proj_v.size[0]--);
    REFUSE("in_proj_z of another rank", GDN_E_SHAPE, "in_proj_z", a->in_proj_z_down.size[0]--);
    REFUSE("in_proj_z_down absent", GDN_E_SHAPE, "in_proj_z", a->in_proj_z_down.data = NULL);
    REFUSE("in_proj_a_down of no rows", GDN_E_SHAPE, "in_proj_a_down",
           a->in_proj_a_down.size[0] = 0);
    REFUSE("in_proj_a_down not dense", GDN_E_SHAPE, "in_proj_a_down",
           a->in_proj_a_down.stride[1] = 2);
    REFUSE("in_proj_a_down of I32", GDN_E_DTYPE, "in_proj_a_down",
           a->in_proj_a_down.dtype = GDN_I32);
    REFUSE("dt_bias of heads alone", GDN_E_SHAPE, "in_proj_a",
           a->dt_bias = ring2_new(GDN_F32, 0, 1, HV, 0, 0, 0));
    REFUSE("dt_bias of 3 channels", GDN_E_SHAPE, "dt_bias", a->dt_bias.size[1] = 3);
    REFUSE("out on in_proj_q", GDN_E_ARG, "out", a->in_proj_q.data = a->out.data);
}
#undef REFUSE

/* ---- gdn_block_backward ---- */

static gdn_block_backward_args block_backward(void)
{
    const gdn_block_args f = block();
    gdn_block_backward_args a = gdn_block_backward_args_init();
    a.hidden = f.hidden, a.in_proj_qkvz = f.in_proj_qkvz, a.in_proj_ba = f.in_proj_ba;
    a.conv_weight = f.conv_weight, a.A_log = f.A_log, a.dt_bias = f.dt_bias;
    a.norm_weight = f.norm_weight, a.out_proj = f.out_proj;
    a.n_key_heads = f.n_key_heads, a.n_value_heads = f.n_value_heads;
    a.key_head_dim = f.key_head_dim, a.value_head_dim = f.value_head_dim;
    a.dout = f.out, a.dhidden = ring2_clone(&f.hidden);
    a.dout_proj = ring2_clone(&f.out_proj);
    return a;
}

#define REFUSE(...) REFUSE_SEEN(RING2_STRUCT, GDN_OP_BLOCK_BACKWARD, block_backward, __VA_ARGS__)

static void refuse_block_backward(void)
{
    REFUSE("struct_size", GDN_E_ARG, "struct_size", a->struct_size = 0);
    REFUSE("flags", GDN_E_ARG, "flags", a->flags = GDN_BATCH_INVARIANT);
    REFUSE("no heads", GDN_E_ARG, "n_key_heads", a->n_key_heads = 0);
    REFUSE("state_layout 2", GDN_E_ARG, "state_layout", a->state_layout = 2);
    REFUSE("rms_eps below 0", GDN_E_ARG, "rms_eps", a->rms_eps = -1);
    REFUSE("nothing to do", GDN_E_ARG, "dhidden", a->dhidden.data = a->dout_proj.data = NULL);
    REFUSE("hidden absent", GDN_E_ARG, "hidden", a->hidden.data = NULL);
    REFUSE("dout absent", GDN_E_ARG, "dout", a->dout.data = NULL);
    REFUSE("in_proj_ba absent", GDN_E_ARG, "in_proj_ba", a->in_proj_ba.data = NULL);
    REFUSE("in_proj_z beside in_proj_qkvz", GDN_E_ARG, "in_proj_z",
           a->in_proj_z = ring2_clone(&a->in_proj_ba));
    REFUSE("din_proj_z beside in_proj_qkvz", GDN_E_ARG, "din_proj_z",
           a->din_proj_z = ring2_clone(&a->in_proj_ba));
    REFUSE("din_proj_z_down alone", GDN_E_ARG, "din_proj_z_down",
           a->din_proj_z_down = ring2_clone(&a->in_proj_ba));
    REFUSE("ddt_bias of channels", GDN_E_SHAPE, "ddt_bias",
           a->ddt_bias = ring2_new(GDN_F32, 0, 2, HV, K, 0, 0));
    REFUSE("dout of I32", GDN_E_DTYPE, "dout", a->dout.dtype = GDN_I32);
    REFUSE("dout_proj of BF16", GDN_E_DTYPE, "dout_proj", a->dout_proj.dtype = GDN_BF16);
    REFUSE("dout of another shape", GDN_E_SHAPE, "dout", a->dout.size[0]--);
    REFUSE("dhidden not dense", GDN_E_SHAPE, "dhidden", a->dhidden.stride[1] = 2);
    REFUSE("dhidden rows share memory", GDN_E_SHAPE, "dhidden", a->dhidden.stride[0] = 1);
    REFUSE("conv_weight absent", GDN_E_ARG, "conv_weight", a->conv_weight.data = NULL);
    REFUSE("conv states of two lengths", GDN_E_SHAPE, "dconv_state",
           a->conv_state = ring2_new(GDN_F32, 0, 3, 1, a->conv_weight.size[0], 3, 0);
           a->dconv_state = ring2_new(GDN_F32, 0, 3, 1, a->conv_weight.size[0], 4, 0));
    REFUSE("state of 8 bits", GDN_E_DTYPE, "state",
           a->state = ring2_new(GDN_I8, 0, 4, 1, HV, V, K));
    REFUSE("dhidden on hidden", GDN_E_ARG, "dhidden", a->dhidden = a->hidden);
    REFUSE("dout_proj on out_proj", GDN_E_ARG, "dout_proj", a->dout_proj.data = a->out_proj.data);
    REFUSE_SEEN(RING2_WORKSPACE, GDN_OP_BLOCK_BACKWARD, block_backward, "workspace too small",
                GDN_E_MEMORY, "workspace_bytes", a->workspace = ring2_alloc(64, 64);
                a->workspace_bytes = 64);
}

int main(int argc, char **argv)
{
    ring2_options(argc, argv);
    ctx = ring2_ctx(2);
    refuse_conv1d();
    refuse_gates();
    refuse_gates_backward();
    refuse_l2norm();
    refuse_l2norm_backward();
    refuse_prefill_backward();
    refuse_rmsnorm_gated();
    refuse_rmsnorm_gated_backward();
    refuse_block_fields();
    refuse_block_tensors();
    refuse_kda();
    refuse_block_backward();
    return ring2_summary();
}
