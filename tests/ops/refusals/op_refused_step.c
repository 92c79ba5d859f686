/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu */
/* G1 for gdn_step: a valid call, spoilt in one place, is refused and changes nothing. */
#include <math.h>

#include "step_calls.h"

static gdn_batch batch;

/* Three packed sequences of 2, 0 and 3 tokens, in slots 4, 0 and 2 of 5. */
static gdn_step_args valid(void)
{
    static const int64_t cu[4] = { 0, 2, 2, 5 }, slots[3] = { 4, 0, 2 };
    gdn_step_args a = make_call(&kinds[0], 1, 5, 5);
    gdn_tensor *const rows_[] = { &a.x, &a.a, &a.b, &a.z, &a.out };
    for (int i = 0; i < 5; i++) *rows_[i] = ring2_select(rows_[i], 0, 0);
    batch = gdn_batch_init();
    batch.cu_seqlens = ring2_indices(GDN_I32, 4, cu);
    batch.read_slots = ring2_indices(GDN_I64, 3, slots);
    a.batch = &batch;
    return a;
}

#define REFUSE_SEEN(seen, what, want, needle, ...)                       \
    do {                                                                 \
        if (!ring2_begin("G1 step: %s", what)) break;                    \
        gdn_step_args args = valid(), *a = &args;                        \
        __VA_ARGS__;                                                     \
        ring2_refused(ring2_ctx(2), GDN_OP_STEP, a, seen, want, needle); \
        ring2_end();                                                     \
    } while (0)
#define REFUSE(...) REFUSE_SEEN(RING2_STRUCT, __VA_ARGS__)
#define REFUSE_CONTENTS(...) REFUSE_SEEN(RING2_CONTENTS, __VA_ARGS__)

static void refuse_fields(void)
{
    REFUSE("struct_size", GDN_E_ARG, "struct_size", a->struct_size = 0);
    REFUSE("flags", GDN_E_ARG, "flags", a->flags = 16);
    REFUSE("activation", GDN_E_ARG, "activation", a->activation = 3);
    REFUSE("no key heads", GDN_E_ARG, "n_key_heads", a->n_key_heads = 0);
    REFUSE("3 value heads of 2", GDN_E_ARG, "n_value_heads", a->n_value_heads = 3);
    REFUSE("K 257", GDN_E_UNSUPPORTED, "key_head_dim", a->key_head_dim = 257);
    REFUSE("V 1025", GDN_E_UNSUPPORTED, "value_head_dim", a->value_head_dim = 1025);
    REFUSE("V -1", GDN_E_ARG, "value_head_dim", a->value_head_dim = -1);
    REFUSE("beta_kind", GDN_E_ARG, "beta_kind", a->beta_kind = 3);
    REFUSE("head_map", GDN_E_ARG, "head_map", a->head_map = 2);
    REFUSE("state_layout", GDN_E_ARG, "state_layout", a->state_layout = -1);
    REFUSE("norm", GDN_E_ARG, "norm", a->norm = 5);
    REFUSE("rounding", GDN_E_ARG, "rounding", a->rounding = 2);
    REFUSE("scale", GDN_E_ARG, "scale", a->scale = INFINITY);
    REFUSE("norm_eps", GDN_E_ARG, "norm_eps", a->norm_eps = -1e-6f);
    REFUSE("rms_eps", GDN_E_ARG, "rms_eps", a->rms_eps = NAN);
    REFUSE("gate_lower_bound", GDN_E_ARG, "gate_lower_bound", a->gate_lower_bound = 1);
    REFUSE("updates 9", GDN_E_ARG, "updates", a->updates = 9);
    REFUSE("updates -1", GDN_E_ARG, "updates", a->updates = -1);
    REFUSE("reserved", GDN_E_ARG, "reserved", a->reserved = 1);
    REFUSE("pad_policy", GDN_E_ARG, "pad_policy", batch.pad_policy = 9);
    REFUSE("path", GDN_E_UNSUPPORTED, "path", batch.token_count = batch.read_slots;
           batch.path = ring2_new(GDN_I32, 0, 2, 3, 2, 0, 0));
}

static void refuse_tensors(void)
{
    REFUSE("x absent", GDN_E_ARG, "x: absent", a->x.data = NULL);
    REFUSE("x of fewer channels", GDN_E_SHAPE, "x", a->x.size[1]--);
    REFUSE("x of I32", GDN_E_DTYPE, "x", a->x.dtype = GDN_I32);
    REFUSE("x not dense", GDN_E_SHAPE, "x", a->x.stride[1] = 2);
    REFUSE("a absent", GDN_E_ARG, "a: absent", a->a.data = NULL);
    REFUSE("b absent", GDN_E_ARG, "b: absent", a->b.data = NULL);
    REFUSE("a of I32", GDN_E_DTYPE, "a", a->a.dtype = GDN_I32);
    REFUSE("b of fewer tokens", GDN_E_SHAPE, "b", a->b.size[0] = 4);
    REFUSE("x of one update", GDN_E_SHAPE, "x", a->updates = 2);
    REFUSE("b of K + 1", GDN_E_SHAPE, "b", a->b = rows(GDN_F32, 1, 5, HV, K + 1, 1);
           a->b = ring2_select(&a->b, 0, 0));
    REFUSE("write_gate of V + 1", GDN_E_SHAPE, "write_gate",
           a->write_gate = rows(GDN_F32, 1, 5, HV, V + 1, 1);
           a->write_gate = ring2_select(&a->write_gate, 0, 0));
    REFUSE("write_gate of I32", GDN_E_DTYPE, "write_gate", a->write_gate = a->z;
           a->write_gate.dtype = GDN_I32);
    REFUSE("z of bf16", GDN_E_DTYPE, "z", a->z.dtype = GDN_BF16);
    REFUSE("z of fewer heads", GDN_E_SHAPE, "z", a->z.size[1]--);
    REFUSE("out of 2 dimensions", GDN_E_SHAPE, "out", a->out.ndim = 2);
    REFUSE("heads of out share memory", GDN_E_SHAPE, "out", a->out.stride[1] = 1);
    REFUSE("conv_bias alone", GDN_E_ARG, "conv_bias: given", a->conv_weight.data = NULL);
    REFUSE("conv_state alone", GDN_E_ARG, "conv_state: given",
           a->conv_weight.data = a->conv_bias.data = NULL);
    REFUSE("conv_weight of fewer channels", GDN_E_SHAPE, "conv_weight", a->conv_weight.size[0]--);
    REFUSE("conv_bias of fewer channels", GDN_E_SHAPE, "conv_bias", a->conv_bias.size[0]--);
    REFUSE("A_log absent", GDN_E_ARG, "A_log: absent", a->A_log.data = NULL);
    REFUSE("dt_bias of 3", GDN_E_SHAPE, "dt_bias", a->dt_bias.size[0] = 3);
    REFUSE("norm_weight of I32", GDN_E_DTYPE, "norm_weight", a->norm_weight.dtype = GDN_I32);
    REFUSE("norm_weight of K", GDN_E_SHAPE, "norm_weight", a->norm_weight.size[0] = K);
    REFUSE("conv_state of W - 2", GDN_E_SHAPE, "conv_state", a->conv_state.size[2] = 2);
    REFUSE("state of another layout", GDN_E_SHAPE, "state", a->state_layout = GDN_STATE_KV);
    REFUSE("pools of different slots", GDN_E_SHAPE, "conv_state", a->conv_state.size[0] = 4);
    REFUSE("8 bits without scales", GDN_E_ARG, "state_scales", a->state.dtype = GDN_I8);
    REFUSE("scales of f32", GDN_E_ARG, "state_scales",
           a->state_scales = ring2_new(GDN_F32, 0, 3, 5, HV, V, 0));
    REFUSE("nothing is written", GDN_E_ARG, "out: absent", a->out.data = NULL;
           batch.write = GDN_WRITE_NONE);
    REFUSE("nothing at all", GDN_E_ARG, "out: absent",
           a->out.data = a->state.data = a->conv_state.data = NULL);
}

/* Makes the call one of two updates. */
static void give_two_updates(gdn_step_args *a)
{
    const int64_t channels = HK * K + 2 * (HK * K + HV * V);
    const gdn_tensor x = rows(GDN_F32, 1, 5, channels, 0, 1), b = rows(GDN_F32, 1, 10, HV, 0, 1);
    a->updates = 2, a->conv_weight.data = a->conv_bias.data = a->conv_state.data = NULL;
    a->x = ring2_select(&x, 0, 0), a->b = ring2_select(&b, 0, 0);
}

static void refuse_updates(void)
{
    REFUSE("b of one update", GDN_E_SHAPE, "b", give_two_updates(a); a->b.size[0] = 5);
    REFUSE("updates of a tree", GDN_E_UNSUPPORTED, "updates: 2, wanted 1 with parents",
           give_two_updates(a);
           batch.parents = ring2_new(GDN_I32, 0, 2, 3, 3, 0, 0));
    REFUSE("updates with a record", GDN_E_UNSUPPORTED, "updates: 2, wanted 1 with a record",
           give_two_updates(a);
           a->record_k = ring2_new(GDN_F32, 0, 4, 5, 2, HK, K));
    REFUSE("channels of a record", GDN_E_SHAPE, "record_g: 4 dimensions, wanted [P][R][H]",
           a->record_k = ring2_new(GDN_F32, 0, 4, 5, 2, HK, K);
           a->record_u = ring2_new(GDN_F32, 0, 4, 5, 2, HV, V);
           a->record_g = ring2_new(GDN_F32, 0, 4, 5, 2, HV, 2);
           a->record_count = ring2_new(GDN_I32, 0, 1, 5, 0, 0, 0));
}

static void refuse_overlaps(void)
{
    REFUSE("out on z", GDN_E_ARG, "out: overlaps z", a->out = a->z);
    REFUSE("out on x", GDN_E_ARG, "out: overlaps x", a->x.data = a->out.data);
    REFUSE("state on conv_state", GDN_E_ARG, "overlaps", a->state.data = a->conv_state.data);
    REFUSE("state on conv_weight", GDN_E_ARG, "state: overlaps conv_weight",
           a->conv_weight.data = a->state.data);
    REFUSE("conv_state on A_log", GDN_E_ARG, "conv_state: overlaps A_log",
           a->A_log.data = a->conv_state.data);
    REFUSE("out on cu_seqlens", GDN_E_ARG, "out: overlaps cu_seqlens",
           batch.cu_seqlens.data = a->out.data);
}

static void refuse_contents(void)
{
    REFUSE_CONTENTS("cu_seqlens decreases", GDN_E_ARG, "cu_seqlens",
                    ring2_set(&batch.cu_seqlens, 1, 6));
    REFUSE_CONTENTS("slot P", GDN_E_ARG, "read_slots", ring2_set(&batch.read_slots, 2, 5));
    REFUSE_CONTENTS("slot written twice", GDN_E_ARG, "slot", ring2_set(&batch.read_slots, 2, 4));
    REFUSE_CONTENTS("slot P of the convolution alone", GDN_E_ARG, "read_slots",
                    a->state.data = NULL;
                    ring2_set(&batch.read_slots, 2, 5));
    REFUSE_SEEN(RING2_WORKSPACE, "workspace too small", GDN_E_MEMORY, "workspace_bytes",
                a->workspace = ring2_alloc(64, 64);
                a->workspace_bytes = 64);
    REFUSE_SEEN(RING2_WORKSPACE, "workspace misaligned", GDN_E_ARG, "workspace",
                a->workspace = (char *)ring2_alloc(128, 64) + 32;
                a->workspace_bytes = (size_t)1 << 40);
}

int main(int argc, char **argv)
{
    ring2_options(argc, argv);
    refuse_fields();
    refuse_tensors();
    refuse_updates();
    refuse_overlaps();
    refuse_contents();
    return ring2_summary();
}
