/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu */
/*
 * G1 for gdn_prefill and gdn_decode: a valid call, spoilt in one place, is refused for the
 * stated reason and changes nothing.
 */
#include <math.h>
#include <string.h>

#include "ring2_rule.h"

/* The call that is spoilt: 3 sequences, a pool of 9 slots, in place. */
static struct {
    gdn_ctx *ctx;
    gdn_op op;
    gdn_rule_args a;
    gdn_batch *t;
} now;

static bool begin(const char *what)
{
    static const int heads[3] = { 2, 2, 4 };
    static const int64_t lengths[3] = { 5, 12, 3 }, slots[3] = { 6, 2, 8 };
    if (!ring2_begin("G1 %s: %s", now.op == GDN_OP_DECODE ? "decode" : "prefill", what))
        return false;
    now.a = ring2_rule_packed(GDN_F32, GDN_F32, 3, lengths, heads, 8, 6, &now.t);
    now.a.state = ring2_new(GDN_F32, 0, 4, 9, 4, 6, 8);
    ring2_fill(&now.a.state, -1, 1);
    now.t->read_slots = ring2_indices(GDN_I32, 3, slots);
    return true;
}

static void refused(enum ring2_seen seen, gdn_status want, const char *needle)
{
    ring2_refused(now.ctx, now.op, &now.a, seen, want, needle);
    ring2_end();
}

/* Spoils the call by the statements, which see it as a and its batch as t. */
#define REFUSE_SEEN(seen, what, want, needle, ...) \
    do {                                           \
        if (!begin(what)) break;                   \
        gdn_rule_args *a = &now.a;                 \
        gdn_batch *t = now.t;                      \
        (void)a, (void)t;                          \
        __VA_ARGS__;                               \
        refused(seen, want, needle);               \
    } while (0)
#define REFUSE(...) REFUSE_SEEN(RING2_STRUCT, __VA_ARGS__)
#define REFUSE_CONTENTS(...) REFUSE_SEEN(RING2_CONTENTS, __VA_ARGS__)

static void fields(void)
{
    REFUSE("struct_size 0", GDN_E_ARG, "struct_size", a->struct_size = 0);
    REFUSE("struct_size 4", GDN_E_ARG, "struct_size", a->struct_size = 4);
    REFUSE("struct_size huge", GDN_E_ARG, "struct_size", a->struct_size = 0xffffffffu);
    REFUSE("flags", GDN_E_ARG, "flags", a->flags = 16);
    REFUSE("updates", GDN_E_ARG, "updates: 9", a->updates = 9);
    REFUSE("gate -1", GDN_E_ARG, "gate", a->gate = -1);
    REFUSE("gate 3", GDN_E_ARG, "gate", a->gate = 3);
    REFUSE("beta_kind 4", GDN_E_ARG, "beta_kind", a->beta_kind = 4);
    REFUSE("head_map 2", GDN_E_ARG, "head_map", a->head_map = 2);
    REFUSE("state_layout 2", GDN_E_ARG, "state_layout", a->state_layout = 2);
    REFUSE("norm 5", GDN_E_ARG, "norm", a->norm = 5);
    REFUSE("norm_eps below 0", GDN_E_ARG, "norm_eps", a->norm_eps = -1e-6f);
    REFUSE("norm_eps NaN", GDN_E_ARG, "norm_eps", a->norm_eps = NAN);
    REFUSE("scale NaN", GDN_E_ARG, "scale", a->scale = NAN);
    REFUSE("scale infinite", GDN_E_ARG, "scale", a->scale = INFINITY);
    REFUSE("gate_lower_bound above 0", GDN_E_ARG, "gate_lower_bound", a->gate = GDN_GATE_RAW;
           a->A_log = ring2_new(GDN_F32, 0, 1, 4, 0, 0, 0); a->gate_lower_bound = 1);
    REFUSE("gate_lower_bound without GDN_GATE_RAW", GDN_E_ARG, "gate_lower_bound",
           a->gate_lower_bound = -5);
}

static void activations(void)
{
    REFUSE("q absent", GDN_E_ARG, "q", a->q.data = NULL);
    REFUSE("k absent", GDN_E_ARG, "k", a->k.data = NULL);
    REFUSE("v absent", GDN_E_ARG, "v", a->v.data = NULL);
    REFUSE("q of I32", GDN_E_DTYPE, "q", a->q.dtype = GDN_I32);
    REFUSE("q of no dtype", GDN_E_DTYPE, "q", a->q.dtype = 77);
    REFUSE("q of dtype -1", GDN_E_DTYPE, "q", a->q.dtype = -1);
    REFUSE("q of 2 dimensions", GDN_E_SHAPE, "q", a->q.ndim = 2);
    REFUSE("q of 0 dimensions", GDN_E_SHAPE, "q", a->q.ndim = 0);
    REFUSE("k of 7 dimensions", GDN_E_SHAPE, "k", a->k.ndim = 7);
    REFUSE("v padded, q packed", GDN_E_SHAPE, "v", a->v.ndim = 4; a->v.size[3] = 1);
    REFUSE("q of size -1", GDN_E_SHAPE, "q", a->q.size[0] = -1);
    REFUSE("k of fewer tokens", GDN_E_SHAPE, "k", a->k.size[0]--);
    REFUSE("v of fewer tokens", GDN_E_SHAPE, "v", a->v.size[0]--);
    REFUSE("out of fewer tokens", GDN_E_SHAPE, "out", a->out.size[0]--);
    REFUSE("k of another K", GDN_E_SHAPE, "k", a->k.size[2]--);
    REFUSE("out of another V", GDN_E_SHAPE, "out", a->out.size[2]--);
    REFUSE("out of other heads", GDN_E_SHAPE, "out", a->out.size[1] = 2);
    REFUSE("heads do not divide", GDN_E_SHAPE, "heads", a->v.size[1] = 3; a->g.size[1] = 3;
           a->beta.size[1] = 3; a->out.size[1] = 3; a->state.data = NULL;
           t->read_slots.data = NULL);
    REFUSE("no heads", GDN_E_SHAPE, "heads", a->k.size[1] = 0);
    REFUSE("K 0", GDN_E_SHAPE, "q", a->q.size[2] = a->k.size[2] = 0);
    REFUSE("K 257", GDN_E_UNSUPPORTED, "q", a->q.size[2] = a->k.size[2] = 257);
    REFUSE("V 1025", GDN_E_UNSUPPORTED, "v", a->v.size[2] = a->out.size[2] = 1025);
    REFUSE("q not dense", GDN_E_SHAPE, "q", a->q.stride[2] = 2);
    REFUSE("k not dense", GDN_E_SHAPE, "k", a->k.stride[2] = 0);
    REFUSE("v not dense", GDN_E_SHAPE, "v", a->v.stride[2] = -1);
    REFUSE("out not dense", GDN_E_SHAPE, "out", a->out.stride[2] = 2);
    REFUSE("q misaligned", GDN_E_ARG, "q", a->q.data = (char *)a->q.data + 2);
    REFUSE("k stride overflows", GDN_E_SHAPE, "k", a->k.stride[0] = INT64_MAX / 2);
    REFUSE("v stride leaves memory", GDN_E_SHAPE, "v", a->v.stride[0] = INT64_MIN / 64);
    REFUSE("q sizes overflow", GDN_E_SHAPE, "q", a->q.size[0] = INT64_MAX; a->q.stride[0] = 0);
    REFUSE("out rows share memory", GDN_E_SHAPE, "out", a->out.stride[0] = 0);
    REFUSE("out heads share memory", GDN_E_SHAPE, "out", a->out.stride[1] = 3);
    REFUSE("nothing to do", GDN_E_ARG, "out", a->out.data = NULL; a->state.data = NULL;
           t->read_slots.data = NULL);
    REFUSE("nothing to do, frozen", GDN_E_ARG, "out", a->out.data = NULL;
           t->write = GDN_WRITE_NONE);
}

static void gates(void)
{
    REFUSE("g of other heads", GDN_E_SHAPE, "g", a->g.size[1] = 2);
    REFUSE("g of fewer tokens", GDN_E_SHAPE, "g", a->g.size[0]--);
    REFUSE("g of 3 dimensions", GDN_E_SHAPE, "g", a->g.ndim = 3; a->g.size[2] = 3);
    REFUSE("beta of I32", GDN_E_DTYPE, "beta", a->beta.dtype = GDN_I32);
    REFUSE("beta of other heads", GDN_E_SHAPE, "beta", a->beta.size[1] = 2);
    REFUSE("beta_kind without beta", GDN_E_ARG, "beta", a->beta_kind = GDN_BETA_SIGMOID;
           a->beta.data = NULL);
    REFUSE("GDN_GATE_RAW without A_log", GDN_E_ARG, "A_log", a->gate = GDN_GATE_RAW);
    REFUSE("GDN_GATE_RAW without g", GDN_E_ARG, "g", a->gate = GDN_GATE_RAW; a->g.data = NULL;
           a->A_log = ring2_new(GDN_F32, 0, 1, 4, 0, 0, 0));
    REFUSE("A_log of I32", GDN_E_DTYPE, "A_log", a->gate = GDN_GATE_RAW;
           a->A_log = ring2_new(GDN_I32, 0, 1, 4, 0, 0, 0));
    REFUSE("A_log of 3", GDN_E_SHAPE, "A_log", a->gate = GDN_GATE_RAW;
           a->A_log = ring2_new(GDN_F32, 0, 1, 3, 0, 0, 0));
    REFUSE("dt_bias of 3", GDN_E_SHAPE, "dt_bias", a->gate = GDN_GATE_RAW;
           a->A_log = ring2_new(GDN_F32, 0, 1, 4, 0, 0, 0);
           a->dt_bias = ring2_new(GDN_F32, 0, 1, 3, 0, 0, 0));
    REFUSE("A_log without GDN_GATE_RAW", GDN_E_ARG, "A_log",
           a->A_log = ring2_new(GDN_F32, 0, 1, 4, 0, 0, 0));
}

static void states(void)
{
    REFUSE("state of I64", GDN_E_DTYPE, "state", a->state.dtype = GDN_I64);
    REFUSE("state of 3 dimensions", GDN_E_SHAPE, "state", a->state.ndim = 3);
    REFUSE("state of other heads", GDN_E_SHAPE, "state", a->state.size[1] = 2);
    REFUSE("state turned", GDN_E_SHAPE, "state", a->state_layout = GDN_STATE_KV);
    REFUSE("state_out turned", GDN_E_SHAPE, "state_out",
           a->state_out = ring2_new(GDN_F32, 0, 4, 9, 4, 8, 6));
    REFUSE("rows of a state share memory", GDN_E_SHAPE, "state", a->state.stride[3] = 2;
           a->state.stride[2] = 4; a->state.stride[1] = 96; a->state.stride[0] = 384;
           a->state.size[0] = 4);
    REFUSE("slots share memory", GDN_E_SHAPE, "state", a->state.stride[0] = 0);
    REFUSE("rows of the state share memory", GDN_E_SHAPE, "state", a->state.stride[2] = 4);
    REFUSE("state_out beside state by one row", GDN_E_ARG, "state_out", a->state_out = a->state;
           a->state_out.data = (char *)a->state.data + 32; a->state_out.size[0]--);
    REFUSE("state_out of another dtype in the same memory", GDN_E_ARG, "state_out",
           a->state_out = a->state;
           a->state_out.dtype = GDN_BF16);
    REFUSE("out on q", GDN_E_ARG, "out", a->out.data = a->q.data);
    REFUSE("out on v, one element on", GDN_E_ARG, "out", a->out.data = (char *)a->v.data + 4);
    REFUSE("out on g", GDN_E_ARG, "out", a->g.data = (char *)a->out.data + 8);
    REFUSE("out on beta", GDN_E_ARG, "out", a->beta.data = a->out.data);
    REFUSE("out on state", GDN_E_ARG, "overlaps", a->out.data = a->state.data);
    REFUSE("state on k", GDN_E_ARG, "state", a->k.data = a->state.data);
    REFUSE("state on cu_seqlens", GDN_E_ARG, "cu_seqlens", t->cu_seqlens.data = a->state.data);
    REFUSE("out on read_slots", GDN_E_ARG, "read_slots", t->read_slots.data = a->out.data);
    REFUSE("state_out on state, of a turned view", GDN_E_ARG, "state_out", a->state_out = a->state;
           a->state_out.stride[0] = 192 * 2; a->state_out.size[0] = 4);
}

static void batches(void)
{
    const bool decode = now.op == GDN_OP_DECODE;
    REFUSE("batch struct_size", GDN_E_ARG, "struct_size", t->struct_size = 0);
    REFUSE("pad_policy 3", GDN_E_ARG, "pad_policy", t->pad_policy = 3);
    REFUSE("write 3", GDN_E_ARG, "write", t->write = 3);
    REFUSE("max_seqlen", GDN_E_ARG, "max_seqlen", t->max_seqlen = -1);
    REFUSE("first_slot -1", GDN_E_ARG, "first_slot", t->first_slot = -1);
    REFUSE("first_slot alone", GDN_E_ARG, "read_slots", t->read_slots.data = NULL;
           t->first_slot = 1);
    REFUSE("sink_slot -1", GDN_E_ARG, "sink_slot", t->pad_policy = GDN_PAD_SINK; t->sink_slot = -1);
    REFUSE("cu_seqlens of F32", GDN_E_DTYPE, "cu_seqlens", t->cu_seqlens.dtype = GDN_F32);
    REFUSE("cu_seqlens of U8", GDN_E_DTYPE, "cu_seqlens", t->cu_seqlens.dtype = GDN_U8);
    REFUSE("cu_seqlens of 2 dimensions", GDN_E_SHAPE, "cu_seqlens", t->cu_seqlens.ndim = 2;
           t->cu_seqlens.size[1] = 1);
    REFUSE("cu_seqlens of none", GDN_E_SHAPE, "cu_seqlens", t->cu_seqlens.size[0] = 0);
    REFUSE("read_slots of 4", GDN_E_SHAPE, "read_slots", t->read_slots.size[0] = 4);
    REFUSE("read_slots of BF16", GDN_E_DTYPE, "read_slots", t->read_slots.dtype = GDN_BF16);
    REFUSE("write_slots of 2", GDN_E_SHAPE, "write_slots",
           t->write_slots = ring2_new(GDN_I32, 0, 1, 2, 0, 0, 0));
    REFUSE("has_initial_state of F32", GDN_E_DTYPE, "has_initial_state",
           t->has_initial_state = ring2_new(GDN_F32, 0, 1, 3, 0, 0, 0));
    REFUSE("token_count of U8", GDN_E_DTYPE, "token_count",
           t->token_count = ring2_new(GDN_U8, 0, 1, 3, 0, 0, 0));
    REFUSE("token_count of 1", GDN_E_SHAPE, "token_count",
           t->token_count = ring2_new(GDN_I32, 0, 1, 1, 0, 0, 0));
    REFUSE("num_accepted_tokens without read_slots", GDN_E_ARG, "read_slots",
           t->num_accepted_tokens = ring2_new(GDN_I32, 0, 1, 3, 0, 0, 0);
           t->read_slots.data = NULL);
    REFUSE("num_accepted_tokens with [B] slots", GDN_E_SHAPE, "read_slots",
           t->num_accepted_tokens = ring2_new(GDN_I32, 0, 1, 3, 0, 0, 0));
    REFUSE("GDN_WRITE_EACH without write_slots", decode ? GDN_E_ARG : GDN_E_UNSUPPORTED, "write",
           t->write = GDN_WRITE_EACH);
    REFUSE("GDN_WRITE_EACH with [B] slots", decode ? GDN_E_SHAPE : GDN_E_UNSUPPORTED, "write",
           t->write = GDN_WRITE_EACH;
           t->write_slots = ring2_new(GDN_I32, 0, 1, 3, 0, 0, 0));
}

static gdn_tensor three(int64_t x, int64_t y, int64_t z)
{
    const int64_t values[3] = { x, y, z };
    return ring2_indices(GDN_I64, 3, values);
}

/* [3][12] slots of GDN_WRITE_EACH, all dropped but one. */
static gdn_tensor each(int64_t b, int64_t i, int64_t slot)
{
    gdn_tensor t = ring2_new(GDN_I32, 0, 2, 3, 12, 0, 0);
    ring2_fill_value(&t, -1);
    ring2_set(&t, b * 12 + i, (double)slot);
    return t;
}

static void contents(void)
{
    const int64_t far = INT64_C(1) << 62;
    REFUSE_CONTENTS("cu_seqlens from -1", GDN_E_ARG, "cu_seqlens",
                    ring2_set(&t->cu_seqlens, 0, -1));
    REFUSE_CONTENTS("cu_seqlens decreases", GDN_E_ARG, "cu_seqlens",
                    ring2_set(&t->cu_seqlens, 2, 4));
    REFUSE_CONTENTS("cu_seqlens past N", GDN_E_ARG, "cu_seqlens", ring2_set(&t->cu_seqlens, 3, 21));
    REFUSE_CONTENTS("cu_seqlens far past N", GDN_E_ARG, "cu_seqlens",
                    ring2_set(&t->cu_seqlens, 2, INT32_MAX));
    REFUSE_CONTENTS("slot read twice, in place", GDN_E_ARG, "slot", t->read_slots = three(1, 2, 1));
    REFUSE_CONTENTS("read slot P", GDN_E_ARG, "read_slots", t->read_slots = three(1, 9, 2));
    REFUSE_CONTENTS("read slot far", GDN_E_ARG, "read_slots", t->read_slots = three(1, 2, far));
    REFUSE_CONTENTS("no slots for 3 sequences", GDN_E_ARG, "read_slots", t->read_slots.data = NULL;
                    a->state.size[0] = 2);
    REFUSE_CONTENTS("write slot P", GDN_E_ARG, "write_slots", t->write_slots = three(0, 9, 1));
    REFUSE_CONTENTS("write slot far", GDN_E_ARG, "write_slots", t->write_slots = three(far, 0, 1));
    REFUSE_CONTENTS("slot written twice", GDN_E_ARG, "slot 4", t->write_slots = three(4, 1, 4));
    REFUSE_CONTENTS("another's slot written", GDN_E_ARG, "slot 2", t->write_slots = three(2, 0, 1));
    REFUSE_CONTENTS("write slot P of a smaller state_out", GDN_E_ARG, "write_slots",
                    a->state_out = ring2_new(GDN_F32, 0, 4, 3, 4, 6, 8);
                    t->write_slots = three(0, 3, 1));
    REFUSE_CONTENTS("read slot P of a smaller state_out", GDN_E_ARG, "slot",
                    a->state_out = ring2_new(GDN_F32, 0, 4, 3, 4, 6, 8));
    REFUSE_CONTENTS("sink_slot P", GDN_E_ARG, "sink_slot", t->pad_policy = GDN_PAD_SINK;
                    t->sink_slot = 9; t->read_slots = three(1, -1, 2));
    REFUSE_CONTENTS("sink_slot another's", GDN_E_ARG, "slot", t->pad_policy = GDN_PAD_SINK;
                    t->sink_slot = 1; t->read_slots = three(1, -1, 2));
    REFUSE_CONTENTS("num_accepted_tokens 0", GDN_E_ARG, "num_accepted_tokens",
                    t->num_accepted_tokens = three(1, 0, 1);
                    t->read_slots = each(0, 0, 1));
    REFUSE_CONTENTS("num_accepted_tokens 13", GDN_E_ARG, "num_accepted_tokens",
                    t->num_accepted_tokens = three(1, 2, 13);
                    t->read_slots = each(0, 0, 1));
    REFUSE_CONTENTS("accepted slot P", GDN_E_ARG, "read_slots",
                    t->num_accepted_tokens = three(1, 2, 1);
                    t->read_slots = each(1, 1, 9));
    REFUSE_CONTENTS("token_count -1", GDN_E_ARG, "token_count", t->token_count = three(5, 12, -1));
    REFUSE_CONTENTS("token_count above T", GDN_E_ARG, "token_count",
                    t->token_count = three(6, 12, 3));
    REFUSE_CONTENTS("token_count far", GDN_E_ARG, "token_count", t->token_count = three(5, far, 3));
    if (now.op != GDN_OP_DECODE) return;
    REFUSE_CONTENTS("each: slot P", GDN_E_ARG, "write_slots", t->write = GDN_WRITE_EACH;
                    t->write_slots = each(1, 11, 9));
    REFUSE_CONTENTS("each: another's slot", GDN_E_ARG, "slot 2", t->write = GDN_WRITE_EACH;
                    t->write_slots = each(0, 0, 2));
    REFUSE_CONTENTS("each: a slot twice", GDN_E_ARG, "slot 4", t->write = GDN_WRITE_EACH;
                    t->write_slots = each(1, 3, 4); ring2_set(&t->write_slots, 12 + 7, 4));
    REFUSE_CONTENTS("each: too few columns", GDN_E_SHAPE, "write_slots", t->write = GDN_WRITE_EACH;
                    t->write_slots = each(1, 3, 4); t->write_slots.size[1] = 11);
}

static void padded(void)
{
    REFUSE(
        "cu_seqlens for padded tensors", GDN_E_ARG, "cu_seqlens",
        gdn_tensor * rows[] = { &a->q, &a->k, &a->v, &a->g, &a->beta, &a->out };
        for (int i = 0; i < 6; i++) {
            gdn_tensor *x = rows[i];
            for (int d = x->ndim++; d > 0; d--) {
                x->size[d] = x->size[d - 1];
                x->stride[d] = x->stride[d - 1];
            }
            x->size[0] = 1;
            x->stride[0] = 0;
        });
}

static void workspaces(void)
{
    size_t bytes = 0;
    REFUSE_SEEN(RING2_WORKSPACE, "workspace misaligned", GDN_E_ARG, "workspace",
                gdn_workspace_bytes(now.ctx, now.op, a, &bytes);
                a->workspace = (char *)ring2_alloc(bytes / 64 * 64 + 128, 64) + 4;
                a->workspace_bytes = bytes);
    REFUSE_SEEN(RING2_WORKSPACE, "workspace one byte short", GDN_E_MEMORY, "workspace_bytes",
                gdn_workspace_bytes(now.ctx, now.op, a, &bytes);
                a->workspace = ring2_alloc(bytes / 64 * 64 + 64, 64);
                a->workspace_bytes = bytes - 1);
}

/* Calls of newer programs that are not refused; and calls without a context. */
static void accepted(void)
{
    struct {
        gdn_rule_args args;
        uint64_t more[3];
    } newer;
    if (!begin("struct sizes")) return;
    memset(&newer, 0, sizeof newer);
    newer.args = now.a;
    newer.args.struct_size = sizeof newer;
    ring2_status(now.ctx, "newer", gdn_run_op(now.ctx, now.op, &newer), GDN_OK);
    newer.more[1] = 1;
    ring2_refused(now.ctx, now.op, &newer, RING2_STRUCT, GDN_E_ARG, "gdn_rule_args");
    ring2_refused(now.ctx, now.op, NULL, RING2_STRUCT, GDN_E_ARG, "NULL");
    CHECK(gdn_run_op(NULL, now.op, &now.a) == GDN_E_ARG, "a call without context");
    CHECK(gdn_supported(NULL, now.op, &now.a) == GDN_E_ARG, "a question without context");
    CHECK(gdn_supported(now.ctx, (gdn_op)99, &now.a) == GDN_E_ARG, "an unknown op");
    ring2_end();
}

int main(int argc, char **argv)
{
    ring2_options(argc, argv);
    now.ctx = ring2_ctx(2);
    for (int decode = 0; decode < 2; decode++) {
        now.op = decode ? GDN_OP_DECODE : GDN_OP_PREFILL;
        fields();
        activations();
        gates();
        states();
        batches();
        contents();
        padded();
        workspaces();
        accepted();
    }
    return ring2_summary();
}
