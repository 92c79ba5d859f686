/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lazy states as an engine uses them: 64 sequences whose records are filled to different rows,
 * with forks of prefixes and evictions between the steps. A second engine decodes the same tokens
 * without records, and the outputs of both are compared. docs/start/lazy-states.md explains it.
 */
#include <gdn.h>
#include <gdn_record.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEQUENCES = 64, SLOTS = 80, ROWS = 16, STEPS = 96 };
enum { KEY_HEADS = 2, HEADS = 4, K = 32, V = 32 };

static const int64_t state_floats = (int64_t)HEADS * V * K;
static const int64_t k_floats = (int64_t)ROWS * KEY_HEADS * K, u_floats = (int64_t)ROWS * HEADS * V;
static const int64_t g_floats = (int64_t)ROWS * HEADS;

/* Pools of both engines, and what one step reads and writes. */
struct engine {
    gdn_ctx *ctx;
    float *state, *plain, *record_k, *record_u, *record_g;
    int32_t count[SLOTS];
    float q[SEQUENCES * KEY_HEADS * K], k[SEQUENCES * KEY_HEADS * K], v[SEQUENCES * HEADS * V];
    float g[SEQUENCES * HEADS], beta[SEQUENCES * HEADS];
    float out[SEQUENCES * HEADS * V], plain_out[SEQUENCES * HEADS * V];
    int32_t slots[SEQUENCES]; /* of each sequence */
    int used[SLOTS];
};

static uint32_t random_state = 1;
static uint32_t below(uint32_t n)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) % n;
}
static void fill(float *x, size_t n, float low, float high)
{
    for (size_t i = 0; i < n; i++) x[i] = low + (high - low) * (float)below(1 << 16) / (1 << 16);
}

/* A record of which the rows of one head lie together, which reads them fastest: [P][H][R][..] in
 * memory, seen as [P][R][H][..]. */
static gdn_tensor by_head(float *data, int ndim, int64_t heads, int64_t size)
{
    const int64_t sizes[] = { SLOTS, ROWS, heads, size };
    const int64_t strides[] = { ROWS * heads * size, size, ROWS * size, 1 };
    return gdn_strided(data, GDN_F32, ndim, sizes, strides);
}

static gdn_rule_args step_args(struct engine *e, const gdn_batch *batch, float *state, float *out)
{
    gdn_rule_args a = gdn_rule_args_init();
    a.q = gdn_dense(e->q, GDN_F32, 4, SEQUENCES, 1, KEY_HEADS, K);
    a.k = gdn_dense(e->k, GDN_F32, 4, SEQUENCES, 1, KEY_HEADS, K);
    a.v = gdn_dense(e->v, GDN_F32, 4, SEQUENCES, 1, HEADS, V);
    a.g = gdn_dense(e->g, GDN_F32, 3, SEQUENCES, 1, HEADS, 0);
    a.beta = gdn_dense(e->beta, GDN_F32, 3, SEQUENCES, 1, HEADS, 0);
    a.state = gdn_dense(state, GDN_F32, 4, SLOTS, HEADS, V, K);
    a.out = gdn_dense(out, GDN_F32, 4, SEQUENCES, 1, HEADS, V);
    a.norm = GDN_NORM_L2;
    a.batch = batch;
    return a;
}

/* One token of each sequence, by both engines. */
static gdn_status step(struct engine *e)
{
    gdn_batch batch = gdn_batch_init(); /* GDN_WRITE_FINAL */
    batch.read_slots = gdn_dense(e->slots, GDN_I32, 1, SEQUENCES, 0, 0, 0);
    fill(e->q, sizeof e->q / sizeof *e->q, -1, 1), fill(e->k, sizeof e->k / sizeof *e->k, -1, 1);
    fill(e->v, sizeof e->v / sizeof *e->v, -1, 1);
    fill(e->g, sizeof e->g / sizeof *e->g, -0.1f, 0);
    fill(e->beta, sizeof e->beta / sizeof *e->beta, 0, 1);

    const gdn_rule_args plain = step_args(e, &batch, e->plain, e->plain_out);
    gdn_rule_args lazy = step_args(e, &batch, e->state, e->out);
    lazy.record_k = by_head(e->record_k, 4, KEY_HEADS, K);
    lazy.record_u = by_head(e->record_u, 4, HEADS, V);
    lazy.record_g = by_head(e->record_g, 3, HEADS, 1);
    lazy.record_count = gdn_dense(e->count, GDN_I32, 1, SLOTS, 0, 0, 0);
    const gdn_status status = gdn_decode(e->ctx, &plain);
    return status == GDN_OK ? gdn_decode(e->ctx, &lazy) : status;
}

/* Folds one slot, as before prefill, a blob or a copy of the state alone. */
static gdn_status fold(struct engine *e, int32_t slot)
{
    gdn_record_fold_args f = gdn_record_fold_args_init();
    gdn_batch batch = gdn_batch_init();
    batch.read_slots = gdn_dense(&slot, GDN_I32, 1, 1, 0, 0, 0);
    f.state = gdn_dense(e->state, GDN_F32, 4, SLOTS, HEADS, V, K);
    f.record_k = by_head(e->record_k, 4, KEY_HEADS, K);
    f.record_u = by_head(e->record_u, 4, HEADS, V);
    f.record_g = by_head(e->record_g, 3, HEADS, 1);
    f.record_count = gdn_dense(e->count, GDN_I32, 1, SLOTS, 0, 0, 0);
    f.batch = &batch;
    return gdn_record_fold(e->ctx, &f);
}

static int32_t free_slot(const struct engine *e)
{
    int32_t slot = (int32_t)below(SLOTS);
    while (e->used[slot]) slot = (slot + 1) % SLOTS;
    return slot;
}

static void move_to(struct engine *e, int sequence, int32_t slot)
{
    e->used[e->slots[sequence]] = 0;
    e->used[slot] = 1;
    e->slots[sequence] = slot;
}

/* A new sequence takes the place of another one. Its state is zero and has no rows. */
static void evict(struct engine *e, int sequence)
{
    const int32_t slot = free_slot(e);
    move_to(e, sequence, slot);
    memset(e->state + slot * state_floats, 0, (size_t)state_floats * sizeof(float));
    memset(e->plain + slot * state_floats, 0, (size_t)state_floats * sizeof(float));
    e->count[slot] = 0;
}

/* A sequence goes on from the prefix of another one: with its rows, or folded. */
static gdn_status fork_from(struct engine *e, int sequence, int32_t from, int folded)
{
    const int32_t slot = free_slot(e);
    const gdn_status status = folded ? fold(e, from) : GDN_OK;
    float *const pools[] = { e->state, e->plain, e->record_k, e->record_u, e->record_g };
    const int64_t floats[] = { state_floats, state_floats, k_floats, u_floats, g_floats };
    for (int i = 0; i < (folded ? 2 : 5); i++)
        memcpy(pools[i] + slot * floats[i], pools[i] + from * floats[i],
               (size_t)floats[i] * sizeof(float));
    e->count[slot] = e->count[from];
    move_to(e, sequence, slot);
    return status;
}

static gdn_status between(struct engine *e)
{
    const int sequence = (int)below(SEQUENCES), other = (int)below(SEQUENCES);
    if (below(4) == 0) evict(e, sequence);
    if (other == sequence) return GDN_OK;
    return fork_from(e, sequence, e->slots[other], below(2) == 0);
}

static double difference(const struct engine *e)
{
    double most = 0;
    for (size_t i = 0; i < sizeof e->out / sizeof *e->out; i++)
        if (!(fabs((double)e->out[i] - e->plain_out[i]) <= most))
            most = fabs((double)e->out[i] - e->plain_out[i]);
    return most;
}

static gdn_status run(struct engine *e, double *most)
{
    for (int i = 0; i < SEQUENCES; i++) e->slots[i] = i, e->used[i] = 1;
    for (int i = 0; i < STEPS; i++) {
        gdn_status status = step(e);
        if (status == GDN_OK) status = between(e);
        if (status != GDN_OK) return status;
        const double d = difference(e);
        if (!(d <= *most)) *most = d;
    }
    return GDN_OK;
}

int main(void)
{
    static struct engine e;
    double most = 0;
    int different = 0;
    float **const pools[] = { &e.state, &e.plain, &e.record_k, &e.record_u, &e.record_g };
    const int64_t floats[] = { state_floats, state_floats, k_floats, u_floats, g_floats };
    gdn_status status = gdn_ctx_create(NULL, &e.ctx);
    for (int i = 0; i < 5 && status == GDN_OK; i++) {
        *pools[i] = calloc((size_t)(SLOTS * floats[i]), sizeof(float));
        if (!*pools[i]) status = GDN_E_MEMORY;
    }
    if (status == GDN_OK) status = run(&e, &most);
    for (int i = 1; i < SEQUENCES; i++) different += e.count[e.slots[i]] != e.count[e.slots[i - 1]];
    if (status != GDN_OK)
        fprintf(stderr, "lazy: %s\n", e.ctx ? gdn_last_error(e.ctx) : gdn_status_name(status));
    else
        printf("%d steps of %d sequences; neighbours with other counts: %d; outputs differ by at "
               "most %.2g\n",
               STEPS, SEQUENCES, different, most);
    for (int i = 0; i < 5; i++) free(*pools[i]);
    gdn_ctx_destroy(e.ctx);
    return status == GDN_OK && different > 0 && most < 1e-5 ? 0 : 1;
}
