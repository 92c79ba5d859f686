/* SPDX-License-Identifier: Apache-2.0 */
/* See ring2_calls.h. */
#include "ring2_calls.h"

#include <stdlib.h>
#include <string.h>

#include "ops/fields.h"
#include "ops/tensors.h"
#include "ring2_draws.h"

/* ---- Random choices ---- */

uint32_t ring2_draw_bits(struct ring2_draw *d)
{
    uint32_t x = 0;
    if (!d->data) return (uint32_t)ring2_bits();
    for (int i = 0; i < 4 && d->size; i++, d->size--) x = x << 8 | *d->data++;
    return x;
}

int64_t ring2_draw_below(struct ring2_draw *d, int64_t n)
{
    return (int64_t)ring2_draw_bits(d) % n;
}

bool ring2_draw_one_in(struct ring2_draw *d, int64_t n) { return ring2_draw_below(d, n) == 0; }

static void init(struct ring2_draw *d, size_t room)
{
    *d = (struct ring2_draw){ .arena = ring2_alloc(room, 64), .room = room };
    for (size_t i = 0; i < room; i++) d->arena[i] = (unsigned char)(i * 7 + i / 251);
}

void ring2_draw_init(struct ring2_draw *d, bool fill)
{
    init(d, RING2_ARENA);
    d->fill = fill;
}

void ring2_draw_init_large(struct ring2_draw *d)
{
    init(d, RING2_LARGE_ARENA);
    d->fill = d->large = true;
}

void ring2_draw_init_vast(struct ring2_draw *d) { *d = (struct ring2_draw){ .vast = true }; }

/* ---- All of them ---- */

/* Gives a call both a tensor for checkpoints and a list of them, or neither. In one call of 16
 * it may leave one of them, which is refused. */
static void match_checkpoints(struct ring2_draw *d, gdn_op op, union ring2_call *c, gdn_batch *t,
                              bool has_batch)
{
    const bool is_rule = op == GDN_OP_PREFILL || op == GDN_OP_DECODE;
    gdn_tensor *all[3] = { NULL, NULL, NULL };
    if (is_rule)
        all[0] = &c->rule.checkpoints, all[1] = &c->rule.checkpoint_scales;
    else if (op == GDN_OP_CONV1D)
        all[0] = &c->conv1d.checkpoints;
    else if (op == GDN_OP_PREFILL_BACKWARD) {
        all[0] = &c->prefill_backward.checkpoints;
        if (!one_in(16)) { /* what gradients take */
            t->checkpoint_starts.data = t->checkpoint_positions.data = NULL;
            t->checkpoint_slots.data = NULL;
            t->checkpoint_every = 64 * below(3);
        }
    } else if (op == GDN_OP_BLOCK)
        all[0] = &c->block.checkpoints, all[1] = &c->block.conv_checkpoints,
        all[2] = &c->block.checkpoint_scales;
    const bool lists = has_batch && (t->checkpoint_every || t->checkpoint_starts.data);
    if (!all[0] || !all[0]->data == !lists || one_in(16)) return;
    for (int i = 0; i < 3; i++)
        if (all[i]) all[i]->data = NULL;
    t->checkpoint_every = 0;
    t->checkpoint_starts.data = t->checkpoint_positions.data = t->checkpoint_slots.data = NULL;
}

/* One sequence, a batch of an engine's steps, or many prompts. */
static void draw_vast_sizes(struct ring2_draw *d, gdn_op op, struct sizes *s)
{
    static const int64_t Ts[] = { 1, 1, 2, 5, 64, 70, 500, 4096, 20000, 65536, 131072 };
    static const int64_t Bs[] = { 1, 1, 2, 4, 8, 40, 300, 5000 };
    s->B = ANY(Bs), s->T = ANY(Ts);
    if ((op == GDN_OP_DECODE || op == GDN_OP_STEP) && !one_in(4)) s->T = 1;
    while (s->B * s->T > 1 << 20) s->T /= 2;
}

/* Makes the packed batch a padded one of as many tokens. */
static void pad(gdn_op op, union ring2_call *c, gdn_batch *t, const struct sizes *s)
{
    const struct gdn_tensor_row *row = gdn_tensor_rows(op);
    t->cu_seqlens.data = NULL;
    for (size_t i = 0; i < gdn_op_shapes[op].n_tensors; i++) {
        gdn_tensor *x = ring2_call_tensor(op, c, i);
        if (row[i].form != GDN_FORM_TOKENS || !x->data) continue;
        for (int k = x->ndim++; k > 0; k--) {
            x->size[k] = x->size[k - 1];
            x->stride[k] = x->stride[k - 1];
        }
        x->size[0] = s->B, x->size[1] = s->T;
        x->stride[0] = s->T * x->stride[1];
    }
}

/* Changes a number of the struct to another that is taken. */
static void draw_field(struct ring2_draw *d, gdn_op op, union ring2_call *c)
{
    int n;
    const struct gdn_field_row *row = gdn_field_rows(op, &n) + below(n);
    uint32_t bits = ring2_draw_bits(d) & row->takes;
    const float some = row->kind == GDN_FIELD_TO_0 ? -2 : 0.5f;
    if (row->kind == GDN_FIELD_ENUM) {
        bits = (uint32_t)below(32);
        while (!(row->takes >> bits & 1)) bits = (uint32_t)below(32);
    }
    memcpy(c->bytes + row->at, row->kind <= GDN_FIELD_ENUM ? (const void *)&bits : &some, 4);
}

void ring2_draw_call(struct ring2_draw *d, gdn_op op, union ring2_call *c, gdn_batch *batch)
{
    struct sizes s = { .B = 1 + below(4), .T = up_to(20) };
    const gdn_batch *t = batch;
    if (d->large) s.T += 40;
    if (d->vast) draw_vast_sizes(d, op, &s);
    s.N = s.B * s.T;
    s.P = s.B + below(3);
    d->B = s.B, d->T = s.T;
    memset(c, 0, sizeof *c);
    d->used = 0;
    *batch = ring2_draw_batch(d, op, &s);
    ring2_draws[op](d, c, &s);
    if (op == GDN_OP_DECODE && one_in(6)) ring2_draw_record(d, &c->rule, &s, batch);
    const bool has_batch = gdn_op_shapes[op].batch_at && !one_in(8);
    if (has_batch) memcpy(c->bytes + gdn_op_shapes[op].batch_at, &t, sizeof t);
    match_checkpoints(d, op, c, batch, has_batch);
    if (d->vast && one_in(4)) draw_field(d, op, c);
    if (d->vast && has_batch && one_in(2)) pad(op, c, batch, &s);
}

bool ring2_has_op(gdn_ctx *ctx, gdn_op op)
{
    gdn_supported(ctx, op, NULL);
    return strncmp(gdn_last_error(ctx), "op:", 3) != 0;
}

/* ---- What ops.def says of them ---- */

enum {
#define GDN_ARGS_ROW(args, first, last, batch) ARGS_##args,
#include "calls/ops.def"
};
static const int args_of[RING2_N_OPS] = {
#define GDN_OP_ROW(NUMBER, name, args) [GDN_OP_##NUMBER] = ARGS_##args,
#include "calls/ops.def"
};

/* Written unless the tensor at `unless` is given; 0: always. */
static const struct {
    int args;
    bool is_final;
    size_t at, unless;
} written[] = {
#define AT(args, tensor) offsetof(gdn_##args##_args, tensor)
#define GDN_WRITES(args, tensor) { ARGS_##args, false, AT(args, tensor), 0 },
#define GDN_WRITES_FINAL(args, tensor) { ARGS_##args, true, AT(args, tensor), 0 },
#define GDN_WRITES_FINAL_UNLESS(args, tensor, other) \
    { ARGS_##args, true, AT(args, tensor), AT(args, other) },
#include "calls/ops.def"
};
enum { N_WRITTEN = sizeof written / sizeof *written };

static const struct {
    int args;
    size_t written, other;
} pairs[RING2_N_PAIRS] = {
#define GDN_MAY_BE_SAME(args, written, other) { ARGS_##args, AT(args, written), AT(args, other) },
#include "calls/ops.def"
};

static const gdn_tensor *tensor_at(const union ring2_call *c, size_t at)
{
    return (const gdn_tensor *)(const void *)(c->bytes + at);
}

int ring2_written(gdn_op op, const union ring2_call *c, const gdn_tensor **list)
{
    int n = 0;
    for (int i = 0; i < N_WRITTEN; i++) {
        if (written[i].args != args_of[op]) continue;
        if (written[i].unless && tensor_at(c, written[i].unless)->data) continue;
        if (n == RING2_MAX_WRITTEN) abort();
        list[n++] = tensor_at(c, written[i].at);
    }
    return n;
}

bool ring2_is_final(gdn_op op, size_t at)
{
    for (int i = 0; i < N_WRITTEN; i++)
        if (written[i].args == args_of[op] && written[i].at == at) return written[i].is_final;
    return false;
}

bool ring2_has_pair(gdn_op op, int pair) { return pairs[pair].args == args_of[op]; }

int ring2_find_pair(gdn_op op, size_t first, size_t other)
{
    for (int i = 0; i < RING2_N_PAIRS; i++)
        if (ring2_has_pair(op, i) && pairs[i].written == first && pairs[i].other == other) return i;
    return -1;
}
