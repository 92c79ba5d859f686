/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_80 "G3" --every=2 */
/*
 * The guarantees that every op of ops.def gives alike, for random calls of each. Any number of
 * threads and sequences one by one (G2), runs after the first (G3), float environments (G12) and
 * contexts with the caller's workspace (G13) give the memory, byte by byte, that one thread gives.
 */
#include <string.h>

#include "ops/tensors.h"
#include "ring2_device.h"
#include "ring2_memory.h"
#include "ring2_replay.h"

/* Returns how many calls of an op are drawn: small ones have every feature now and then, large ones
 * are work for several threads, of which a device has no use. */
static int n_calls(bool large) { return ring2_on_device() ? 3 - 2 * large : large ? 4 : 16; }

/* A context that refuses contents that clash, on a device too. */
static gdn_ctx *strict_ctx(void)
{
    gdn_ctx *ctx = NULL;
    gdn_options o = gdn_options_init();
    o.n_threads = 1;
    o.flags = GDN_CTX_CHECK_CONTENTS;
    o.backend = ring2_on_device() ? GDN_BACKEND_CUDA : GDN_BACKEND_CPU;
    ring2_status(NULL, "a context", gdn_ctx_create(&o, &ctx), GDN_OK);
    return ctx;
}

/* Runs random calls of every op once, and passes each with its number to `check`. */
static void for_each_call(bool tiny, void (*check)(struct ring2_replay *r, int number))
{
    gdn_ctx *first = strict_ctx();
    for (int large = 0; large < 2; large++) {
        struct ring2_replay r;
        const int n = n_calls(large);
        ring2_replay_init(&r, large);
        r.draw.tiny = tiny;
        for (int i = 0; i < RING2_N_OPS * n && !ring2_failed(); i++) {
            if (!ring2_has_op(first, (gdn_op)(i / n))) continue;
            ring2_replay_draw(&r, first, (gdn_op)(i / n));
            check(&r, i);
        }
    }
    gdn_ctx_destroy(first);
}

static void other_threads(struct ring2_replay *r, int number)
{
    (void)number;
    for (int n = 2; n <= 4; n++) ring2_replay_run(r, ring2_ctx(n), "threads");
}

static void G2_threads(void) { for_each_call(false, other_threads); }

/* ---- Sequences alone ------------------------------------------------------------------------ */

/* How the rows of ops.def let a tensor be cut into sequences. */
enum cut { SHARED, BY_TOKENS, BY_SEQUENCES, BY_CHUNKS, BY_SLOTS };

static enum cut cut_of(const struct gdn_tensor_row *row)
{
    const bool whole = row->form == GDN_FORM_WHOLE;
    if (row->form >= GDN_FORM_TOKENS) return BY_TOKENS;
    if (row->form == GDN_FORM_POOL || (whole && row->size[0] == GDN_SIZE(P))) return BY_SLOTS;
    if (whole && row->size[0] == GDN_SIZE(B)) return BY_SEQUENCES;
    return whole && row->size[0] == GDN_SIZE(any) ? BY_CHUNKS : SHARED;
}

static int64_t chunks_of(const struct ring2_replay *r)
{
    const int64_t C = r->op == GDN_OP_CHUNK_STATES ? r->call.chunk_states.chunk_size
                                                   : r->call.chunk_output.chunk_size;
    return (r->draw.T + C - 1) / C;
}

/* Returns the row of a tensor of the call. */
static const struct gdn_tensor_row *row_of(struct ring2_replay *r, const gdn_tensor *t)
{
    size_t i = 0;
    while (ring2_call_tensor(r->op, &r->call, i) != t) i++;
    return &gdn_tensor_rows(r->op)[i];
}

/* Returns how many sequences, or states, the call has. */
static int64_t n_sequences(struct ring2_replay *r)
{
    for (size_t i = 0; i < gdn_op_shapes[r->op].n_tensors; i++) {
        const gdn_tensor *t = ring2_call_tensor(r->op, &r->call, i);
        if (t->data && cut_of(&gdn_tensor_rows(r->op)[i]) == BY_SEQUENCES) return t->size[0];
    }
    return r->draw.B;
}

/* Returns a batch of n sequences, from sequence b on, with the same slots. */
static gdn_batch batch_part(const struct ring2_replay *r, const gdn_tensor *identity, int64_t b,
                            int64_t n)
{
    const bool has_slots = r->op <= GDN_OP_BLOCK || r->op == GDN_OP_STEP;
    gdn_batch t = r->batch;
    gdn_tensor *const arrays[] = { &t.read_slots,        &t.write_slots,
                                   &t.has_initial_state, &t.num_accepted_tokens,
                                   &t.token_start,       &t.token_count,
                                   &t.parents,           &t.path };
    if (has_slots && !t.read_slots.data) t.read_slots = *identity;
    if (t.cu_seqlens.data) t.cu_seqlens = ring2_narrow(&t.cu_seqlens, 0, b, n + 1);
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        if (arrays[i]->data) *arrays[i] = ring2_narrow(arrays[i], 0, b, n);
    return t;
}

/* The batch of sequence b alone, whose tokens come first. */
static gdn_batch batch_alone(const struct ring2_replay *r, const gdn_tensor *identity, int64_t b)
{
    gdn_batch t = batch_part(r, identity, b, 1);
    if (t.cu_seqlens.data) t.cu_seqlens = ring2_narrow(&r->batch.cu_seqlens, 0, 0, 2);
    return t;
}

static void run_alone(struct ring2_replay *r, const gdn_tensor *identity, int64_t b)
{
    union ring2_call c = r->call;
    gdn_batch batch = batch_alone(r, identity, b), *its = &batch;
    const int64_t T = r->draw.T;
    for (size_t i = 0; i < gdn_op_shapes[r->op].n_tensors; i++) {
        gdn_tensor *t = ring2_call_tensor(r->op, &c, i);
        const enum cut cut = cut_of(&gdn_tensor_rows(r->op)[i]);
        if (!t->data) continue;
        if (cut == BY_TOKENS) *t = ring2_narrow(t, 0, b * T, T);
        if (cut == BY_SEQUENCES) *t = ring2_narrow(t, 0, b, 1);
        if (cut == BY_CHUNKS) *t = ring2_narrow(t, 0, b * chunks_of(r), chunks_of(r));
    }
    if (gdn_op_shapes[r->op].batch_at)
        memcpy(c.bytes + gdn_op_shapes[r->op].batch_at, &its, sizeof its);
    ring2_status(ring2_ctx(2), "alone", gdn_run_op(ring2_ctx(2), r->op, &c), GDN_OK);
}

/* Sums over all sequences are not compared. */
static void skip_sums(struct ring2_replay *r)
{
    const gdn_tensor *written[RING2_MAX_WRITTEN];
    const int n = ring2_written(r->op, &r->call, written);
    for (int i = 0; i < n; i++) {
        const gdn_tensor *t = written[i];
        if (!t->data || cut_of(row_of(r, t))) continue;
        for (int64_t j = 0; j < ring2_count(t); j++) {
            unsigned char *const at = ring2_element(t, j);
            memcpy(at, r->want + (at - r->draw.arena), gdn_dtype_bytes(t->dtype));
        }
    }
}

/* Slots of a copy are arrays of its struct; on a device the kernels of some ops depend on the form
 * of the batch. */
static bool has_alone(gdn_op op)
{
    const bool by_form = op == GDN_OP_PREFILL || op == GDN_OP_DECODE || op == GDN_OP_BLOCK ||
                         op == GDN_OP_BLOCK_BACKWARD;
    return op != GDN_OP_STATE_COPY && !(by_form && ring2_on_device());
}

/* Calls of one sequence, from the last to the first, give the bits of one call of all. */
static void alone(struct ring2_replay *r, int number)
{
    static const int64_t numbers[8] = { 0, 1, 2, 3, 4, 5, 6, 7 };
    const gdn_batch *t = &r->batch, *its = NULL;
    const bool lists = t->checkpoint_every || t->checkpoint_starts.data;
    const bool sinks = t->pad_policy == GDN_PAD_SINK; /* the batch's first padding row */
    (void)number;
    if (gdn_op_shapes[r->op].batch_at)
        memcpy(&its, r->call.bytes + gdn_op_shapes[r->op].batch_at, sizeof its);
    if (!has_alone(r->op) || lists || (gdn_op_shapes[r->op].batch_at && (!its || sinks))) return;
    const gdn_tensor identity = ring2_indices(GDN_I32, 8, numbers);
    ring2_replay_reset(r);
    for (int64_t b = n_sequences(r) - 1; b >= 0; b--) run_alone(r, &identity, b);
    skip_sums(r);
    ring2_replay_expect(r, "alone");
}

static void G2_batch_mates(void) { for_each_call(false, alone); }

/* ---- Parts of a batch ----------------------------------------------------------------------- */

/* Makes the call one of sequences [b, b + n) with the tokens of all before `end`. */
static void run_part(struct ring2_replay *r, const gdn_tensor *identity, int64_t b, int64_t n,
                     int64_t end)
{
    union ring2_call c = r->call;
    gdn_batch batch = batch_part(r, identity, b, n), *its = &batch;
    for (size_t i = 0; i < gdn_op_shapes[r->op].n_tensors; i++) {
        gdn_tensor *t = ring2_call_tensor(r->op, &c, i);
        const enum cut cut = cut_of(&gdn_tensor_rows(r->op)[i]);
        if (!t->data) continue;
        if (cut == BY_TOKENS) *t = ring2_narrow(t, 0, 0, end);
        if (cut == BY_SEQUENCES) *t = ring2_narrow(t, 0, b, n);
        if (cut == BY_CHUNKS) *t = ring2_narrow(t, 0, b * chunks_of(r), n * chunks_of(r));
    }
    memcpy(c.bytes + gdn_op_shapes[r->op].batch_at, &its, sizeof its);
    ring2_status(ring2_ctx(2), "a part", gdn_run_op(ring2_ctx(2), r->op, &c), GDN_OK);
}

/* The last sequences in one call, then the others in a second call, give what one call gives.
 * Outputs of tokens before the first sequence stay, or the second call writes them. */
static void in_parts(struct ring2_replay *r, int number)
{
    static const int64_t numbers[8] = { 0, 1, 2, 3, 4, 5, 6, 7 };
    const gdn_batch *t = &r->batch, *its = NULL;
    const bool lists = t->checkpoint_every || t->checkpoint_starts.data;
    const int64_t B = n_sequences(r), b = 1 + number % 2;
    const bool sinks = t->pad_policy == GDN_PAD_SINK; /* the batch's first padding row */
    if (gdn_op_shapes[r->op].batch_at)
        memcpy(&its, r->call.bytes + gdn_op_shapes[r->op].batch_at, sizeof its);
    if (!has_alone(r->op) || lists || sinks || !its || !its->cu_seqlens.data || b >= B) return;
    const gdn_tensor identity = ring2_indices(GDN_I32, 8, numbers);
    ring2_replay_reset(r);
    run_part(r, &identity, b, B - b, B * r->draw.T);
    run_part(r, &identity, 0, b, b * r->draw.T);
    skip_sums(r);
    ring2_replay_expect(r, "parts");
}

static void G2_parts(void) { for_each_call(false, in_parts); }

/* ---- Again, in other environments and contexts ---------------------------------------------- */

static void again(struct ring2_replay *r, int number)
{
    for (int i = 0; i < 3; i++) ring2_replay_run(r, ring2_ctx(1 + number % 4), "again");
}

static void G3_repeat(void) { for_each_call(false, again); }

struct mode_call {
    gdn_ctx *ctx;
    const struct ring2_replay *replay;
};

static void run_in_mode(void *arg)
{
    const struct mode_call *c = arg;
    gdn_run_op(c->ctx, c->replay->op, &c->replay->call);
}

static void other_modes(struct ring2_replay *r, int number)
{
    struct mode_call c = { ring2_ctx(1 + number % 2 * 2), r };
    ring2_replay_reset(r);
    for (int mode = 0; ring2_float_mode(mode, run_in_mode, &c); mode++) {
        ring2_replay_expect(r, "mode");
        ring2_replay_reset(r);
    }
}

static void G12_float_environment(void) { for_each_call(true, other_modes); }

/* The context of 3 threads whose allocations are counted. */
static struct {
    gdn_ctx *ctx;
    struct ring2_memory memory;
} counting;

enum { CANARY = 4096 };

/* Gives the call exactly the workspace that it asks for. Returns the bytes behind it. */
static unsigned char *give_with_canary(gdn_ctx *ctx, struct ring2_replay *r)
{
    char *const at = r->call.bytes + gdn_op_shapes[r->op].workspace_at;
    size_t bytes = 0;
    ring2_status(ctx, "bytes", gdn_workspace_bytes(ctx, r->op, &r->call, &bytes), GDN_OK);
    unsigned char *const memory = ring2_alloc(bytes + CANARY, 64);
    memset(memory, 0xa5, bytes + CANARY);
    memcpy(at, &memory, sizeof memory);
    memcpy(at + sizeof memory, &bytes, sizeof bytes);
    return memory + bytes;
}

static void with_workspace(struct ring2_replay *r, int number)
{
    const unsigned char *const canary = give_with_canary(counting.ctx, r);
    /* The first call of a layer in a context opens cuBLAS. */
    if (ring2_on_device()) ring2_replay_run(r, counting.ctx, "at first");
    const int before = counting.memory.n_calls;
    ring2_replay_run(r, counting.ctx, "with a workspace");
    CHECK(counting.memory.n_calls == before, "op %d: %d allocations", (int)r->op,
          counting.memory.n_calls - before);
    for (int i = 0; i < CANARY && !ring2_failed(); i++)
        CHECK(canary[i] == 0xa5, "op %d, call %d: byte %d behind its workspace was written",
              (int)r->op, number, i);
}

static void G13_no_allocation(void)
{
    gdn_options o = ring2_memory_options(&counting.memory, 3);
    o.backend = ring2_on_device() ? GDN_BACKEND_CUDA : GDN_BACKEND_CPU;
    ring2_status(NULL, "a context", gdn_ctx_create(&o, &counting.ctx), GDN_OK);
    CHECK(counting.memory.n_calls > 0, "the hooks were not used");
    for_each_call(false, with_workspace);
    gdn_ctx_destroy(counting.ctx);
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "G2 threads", G2_threads },
        { "G2 batch mates", G2_batch_mates },
        { "G2 parts of a batch", G2_parts },
        { "G3 repeat", G3_repeat },
        { "G12 float environment", G12_float_environment },
        { "G13 no allocation", G13_no_allocation },
    };
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
