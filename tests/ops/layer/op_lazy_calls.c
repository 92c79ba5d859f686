/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_80 --every=4 */
/*
 * Records in other calls than gdn_decode() (op_lazy.c): gdn_step() has the bits of its parts;
 * gdn_prefill() and gdn_block() those of gdn_record_fold() and a plain call; and with
 * GDN_EXACT any sequence of calls has those of plain calls.
 */
#include <math.h>
#include <string.h>

#include "gdn_record.h"
#include "ring2_device.h"
#include "step_calls.h"

enum { P = 8, MOST_B = 4, ROWS = 12, CALLS = 24 };

/* Dtypes of states and of rows, layout, KDA, GDN_EXACT. */
static const struct form {
    int32_t state, rows, layout;
    bool channels, exact;
} forms[] = {
    { GDN_F32, GDN_F32, GDN_STATE_VK, 0, 1 },  { GDN_F32, GDN_F32, GDN_STATE_KV, 0, 1 },
    { GDN_F32, GDN_F32, GDN_STATE_VK, 1, 1 },  { GDN_F32, GDN_F32, GDN_STATE_VK, 0, 0 },
    { GDN_F32, GDN_BF16, GDN_STATE_KV, 0, 0 }, { GDN_BF16, GDN_BF16, GDN_STATE_VK, 0, 0 },
    { GDN_I8, GDN_F32, GDN_STATE_VK, 0, 0 },   { GDN_F32, GDN_F32, GDN_STATE_KV, 1, 0 },
};
enum { N_FORMS = sizeof forms / sizeof *forms };

/* ---- Pools ---- */

struct pools {
    gdn_tensor state, scales, conv, k, u, g, count;
};
enum { N_POOLS = sizeof(struct pools) / sizeof(gdn_tensor) };

static struct pools new_pools(const struct form *m)
{
    const int64_t zeros[P] = { 0 };
    const bool vk = m->layout == GDN_STATE_VK;
    struct pools p = { .state = ring2_new(m->state, 0, 4, P, HV, vk ? V : K, vk ? K : V) };
    p.conv = ring2_new(GDN_F32, 0, 3, P, D, W - 1, 0);
    ring2_fill_value(&p.state, 0), ring2_fill_value(&p.conv, 0);
    if (m->state >= GDN_I8) p.scales = ring2_new(GDN_F32, 0, 3, P, HV, V, 0);
    if (m->state >= GDN_I8) ring2_fill_value(&p.scales, 0);
    p.k = ring2_new(m->rows, 0, 4, P, ROWS, HK, K);
    p.u = ring2_new(m->rows, 0, 4, P, ROWS, HV, V);
    p.g = ring2_new(GDN_F32, 0, m->channels ? 4 : 3, P, ROWS, HV, K);
    gdn_tensor *const rows[] = { &p.k, &p.u, &p.g };
    for (int i = 0; i < 3; i++) ring2_fill_value(rows[i], (double)NAN);
    p.count = ring2_indices(GDN_I32, P, zeros);
    return p;
}

static struct pools clone_pools(const struct pools *p)
{
    struct pools c = *p;
    gdn_tensor *const all = &c.state;
    for (int i = 0; i < N_POOLS; i++)
        if (all[i].data) all[i] = ring2_clone(&all[i]);
    return c;
}

static void expect_pools(const struct pools *got, const struct pools *want)
{
    static const char *const names[] = { "state", "scales", "conv_state", "", "", "", "count" };
    for (int i = 0; i < N_POOLS; i++)
        if ((&got->state)[i].data && *names[i])
            ring2_expect_bits(names[i], &(&got->state)[i], &(&want->state)[i]);
}

static void fold(const struct form *m, const struct pools *p, const gdn_tensor *slots)
{
    gdn_record_fold_args f = gdn_record_fold_args_init();
    gdn_batch b = gdn_batch_init();
    b.read_slots = *slots;
    f.state = p->state, f.state_scales = p->scales;
    f.record_k = p->k, f.record_u = p->u, f.record_g = p->g, f.record_count = p->count;
    f.state_layout = m->layout, f.batch = &b;
    ring2_status(ring2_ctx(2), "fold", gdn_record_fold(ring2_ctx(2), &f), GDN_OK);
}

/* ---- Batches ---- */

struct lot {
    int64_t B, N, starts[MOST_B + 1], read[MOST_B], write[MOST_B], initial[MOST_B], count[MOST_B];
    gdn_batch batch;
};

/* Sequences of at most `most` tokens in different slots. If `moves`, some begin anew, some are
 * written to another slot, and of some no token counts. */
static void draw_lot(struct lot *l, int64_t most, bool moves)
{
    const int64_t first = ring2_below(P), B = 1 + ring2_below(MOST_B);
    *l = (struct lot){ .B = B };
    for (int64_t b = 0; b < B; b++) {
        const bool goes = moves && ring2_below(4) == 0;
        l->starts[b + 1] = l->starts[b] + (ring2_below(8) ? 1 + ring2_below(most) : 0);
        l->read[b] = ring2_below(8) ? (first + b) % P : -1;
        l->write[b] = l->read[b] < 0 || !goes ? l->read[b] : (first + MOST_B + b) % P;
        l->initial[b] = !moves || ring2_below(5) > 0;
        l->count[b] = ring2_below(4) ? l->starts[b + 1] - l->starts[b] : 0;
    }
    l->N = l->starts[B] > 0 ? l->starts[B] : 1;
    l->batch = gdn_batch_init();
    l->batch.cu_seqlens = ring2_indices(GDN_I32, B + 1, l->starts);
    l->batch.read_slots = ring2_indices(GDN_I32, B, l->read);
    if (!moves) return;
    l->batch.write_slots = ring2_indices(GDN_I32, B, l->write);
    l->batch.has_initial_state = ring2_indices(GDN_I32, B, l->initial);
    l->batch.token_count = ring2_indices(GDN_I32, B, l->count);
}

/* Returns true if the state goes on, or to another slot. */
static bool changes(const struct lot *l, int64_t b)
{
    return l->starts[b + 1] > l->starts[b] &&
           (l->count[b] > 0 || l->write[b] != l->read[b] || !l->initial[b]);
}

/* Sequences whose rows a call folds. */
static gdn_tensor folded_slots(const struct lot *l)
{
    int64_t slots[MOST_B];
    for (int64_t b = 0; b < l->B; b++) slots[b] = l->initial[b] && changes(l, b) ? l->read[b] : -1;
    return ring2_indices(GDN_I32, l->B, slots);
}

/* Slots that a call wrote have no rows. */
static void forget(const struct pools *p, const struct lot *l)
{
    for (int64_t b = 0; b < l->B; b++)
        if (changes(l, b) && l->write[b] >= 0) ring2_set(&p->count, l->write[b], 0);
}

/* Outputs are near: the error of rows that are added in another order, or rounded. */
static void expect_alike(const gdn_tensor *got, const gdn_tensor *want, double most)
{
    double sum = 0, errors = 0;
    for (int64_t i = 0; i < ring2_count(want); i++) {
        const double d = ring2_get(got, i) - ring2_get(want, i);
        errors += d * d, sum += ring2_get(want, i) * ring2_get(want, i);
    }
    CHECK(errors <= most * most * sum, "an error of %g of the outputs", sqrt(errors / sum));
}

/* ---- gdn_prefill() among calls of gdn_decode() ---- */

static gdn_rule_args rule_of(const struct form *m, const struct lot *l)
{
    gdn_rule_args a = gdn_rule_args_init();
    a.q = ring2_new(GDN_F32, 0, 3, l->N, HK, K, 0), a.k = ring2_new(GDN_F32, 0, 3, l->N, HK, K, 0);
    a.v = ring2_new(GDN_F32, 0, 3, l->N, HV, V, 0);
    a.g = ring2_new(GDN_F32, 0, m->channels ? 3 : 2, l->N, HV, K, 0);
    a.beta = ring2_new(GDN_F32, 0, 2, l->N, HV, 0, 0);
    ring2_fill(&a.q, -1, 1), ring2_fill(&a.k, -1, 1), ring2_fill(&a.v, -1, 1);
    ring2_fill(&a.g, -0.3, 0), ring2_fill(&a.beta, 0, 1);
    a.norm = GDN_NORM_L2;
    a.state_layout = m->layout;
    a.flags = m->exact ? GDN_EXACT : 0;
    a.batch = &l->batch;
    return a;
}

static gdn_tensor run_rule(gdn_rule_args a, const struct pools *p, bool lazy, bool prefill)
{
    a.out = ring2_new(GDN_F32, 0, 3, a.v.size[0], HV, V, 0);
    a.state = p->state, a.state_scales = p->scales;
    if (lazy) a.record_k = p->k, a.record_u = p->u, a.record_g = p->g, a.record_count = p->count;
    ring2_status(ring2_ctx(3), "rule",
                 prefill ? gdn_prefill(ring2_ctx(3), &a) : gdn_decode(ring2_ctx(3), &a), GDN_OK);
    return a.out;
}

static void prefill(int number)
{
    const struct form *m = &forms[number];
    struct pools lazy = new_pools(m), plain = new_pools(m);
    for (int i = 0; i < CALLS && !ring2_failed(); i++) {
        struct lot l;
        const bool is_prefill = i % 4 == 3;
        draw_lot(&l, is_prefill ? 40 : 3, is_prefill);
        const gdn_rule_args a = rule_of(m, &l);
        const struct pools apart = clone_pools(&lazy);
        const gdn_tensor out = run_rule(a, &lazy, true, is_prefill);
        const gdn_tensor want = run_rule(a, &plain, false, is_prefill);
        if (m->exact) ring2_expect_bits("out", &out, &want);
        if (!is_prefill) continue;
        const gdn_tensor slots = folded_slots(&l);
        fold(m, &apart, &slots);
        const gdn_tensor folded = run_rule(a, &apart, false, true);
        forget(&apart, &l);
        ring2_expect_bits("out, folded", &out, &folded);
        expect_pools(&lazy, &apart);
    }
    const gdn_tensor all = ring2_indices(GDN_I32, P, (const int64_t[P]){ 0, 1, 2, 3, 4, 5, 6, 7 });
    fold(m, &lazy, &all);
    if (m->exact) ring2_expect_bits("state", &lazy.state, &plain.state);
}

/* Checkpoints in the pool of states have no rows, and are those of a plain call. */
static void checkpoints(int number)
{
    const struct form *m = &forms[number];
    const int64_t starts[2] = { 0, 20 }, slots[2] = { 3, 4 }, ones[P] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    struct pools lazy = new_pools(m);
    struct lot l = { .B = 1, .N = 20, .read = { 1 }, .write = { 1 }, .initial = { 1 } };
    l.batch = gdn_batch_init();
    l.batch.cu_seqlens = ring2_indices(GDN_I32, 2, starts);
    l.batch.read_slots = ring2_indices(GDN_I32, 1, l.read);
    l.batch.checkpoint_positions = ring2_indices(GDN_I32, 2, (const int64_t[]){ 8, 16 });
    l.batch.checkpoint_starts = ring2_indices(GDN_I32, 2, (const int64_t[]){ 0, 2 });
    l.batch.checkpoint_slots = ring2_indices(GDN_I32, 2, slots);
    gdn_rule_args a = rule_of(m, &l);
    ring2_fill_value(&lazy.k, 0.1), ring2_fill_value(&lazy.u, 0.2), ring2_fill_value(&lazy.g, 0.9);
    lazy.count = ring2_indices(GDN_I32, P, ones);
    const struct pools apart = clone_pools(&lazy);
    a.checkpoints = lazy.state, a.checkpoint_scales = lazy.scales;
    run_rule(a, &lazy, true, true);
    fold(m, &apart, &l.batch.read_slots);
    a.checkpoints = apart.state, a.checkpoint_scales = apart.scales;
    run_rule(a, &apart, false, true);
    for (int i = 0; i < 2; i++) ring2_set(&apart.count, slots[i], 0);
    expect_pools(&lazy, &apart);
}

/* ---- gdn_step() ---- */

static gdn_step_args step_of(const struct form *m, const struct lot *l)
{
    gdn_step_args a = gdn_step_args_init();
    a.n_key_heads = HK, a.n_value_heads = HV, a.key_head_dim = K, a.value_head_dim = V;
    a.x = ring2_new(GDN_F32, 0, 2, l->N, D, 0, 0);
    a.a = ring2_new(GDN_F32, 0, m->channels ? 3 : 2, l->N, HV, K, 0);
    a.b = ring2_new(GDN_F32, 0, 2, l->N, HV, 0, 0);
    a.z = ring2_new(GDN_F32, 0, 3, l->N, HV, V, 0);
    ring2_fill(&a.x, -2, 2), ring2_fill(&a.a, -3, 3), ring2_fill(&a.b, -3, 3);
    ring2_fill(&a.z, -2, 2);
    a.conv_weight = ring2_new(GDN_F32, 0, 2, D, W, 0, 0);
    ring2_fill(&a.conv_weight, -0.5, 0.5);
    a.A_log = vector(GDN_F32, HV, -1, 1);
    a.state_layout = m->layout;
    a.flags = m->exact ? GDN_EXACT : 0;
    a.batch = &l->batch;
    return a;
}

static void give_record(gdn_step_args *a, const struct pools *p)
{
    a->state = p->state, a->state_scales = p->scales, a->conv_state = p->conv;
    a->record_k = p->k, a->record_u = p->u, a->record_g = p->g, a->record_count = p->count;
    a->out = ring2_new(GDN_F32, 0, 3, a->x.size[0], HV, V, 0);
    ring2_fill_value(&a->out, 0);
}

static void steps(int number)
{
    const struct form *m = &forms[number];
    struct pools p = new_pools(m);
    for (int i = 0; i < CALLS && !ring2_failed(); i++) {
        struct lot l;
        draw_lot(&l, 3, false);
        if (i % 6 == 5) { /* drafts, for which there is room */
            fold(m, &p, &l.batch.read_slots);
            l.batch.write = GDN_WRITE_NONE;
        }
        const struct pools q = clone_pools(&p);
        gdn_step_args whole = step_of(m, &l), parts = whole;
        give_record(&whole, &p), give_record(&parts, &q);
        ring2_status(ring2_ctx(3), "step", gdn_step(ring2_ctx(3), &whole), GDN_OK);
        const gdn_tensor y = convolve_alone(ring2_ctx(3), &parts);
        decode_alone(ring2_ctx(3), &parts, &y);
        norm_alone(ring2_ctx(3), &parts);
        ring2_expect_bits("out", &whole.out, &parts.out);
        expect_pools(&p, &q);
    }
}

/* ---- gdn_block() ---- */

static gdn_tensor some(int64_t rows, int64_t columns, double size)
{
    gdn_tensor t = ring2_new(GDN_F32, 0, columns ? 2 : 1, rows, columns, 0, 0);
    ring2_fill(&t, -size, size);
    return t;
}

static gdn_block_args layer_of(const struct form *m)
{
    gdn_block_args a = gdn_block_args_init();
    a.n_key_heads = HK, a.n_value_heads = HV, a.key_head_dim = K, a.value_head_dim = V;
    a.in_proj_qkv = some(D, HIDDEN, 0.4), a.in_proj_z = some(HV * V, HIDDEN, 0.4);
    a.in_proj_b = some(HV, HIDDEN, 0.4);
    a.in_proj_a = some(m->channels ? HV * K : HV, HIDDEN, 0.4);
    a.conv_weight = some(D, W, 0.5);
    a.A_log = some(HV, 0, 1), a.dt_bias = some(HV, m->channels ? K : 0, 1);
    a.norm_weight = some(V, 0, 2), a.out_proj = some(HIDDEN, HV * V, 0.2);
    a.state_layout = m->layout;
    a.flags = m->exact ? GDN_EXACT : 0;
    return a;
}

static gdn_tensor run_block(gdn_block_args a, const struct pools *p, bool lazy)
{
    a.out = ring2_new(GDN_F32, 0, 2, a.hidden.size[0], HIDDEN, 0, 0);
    a.state = p->state, a.state_scales = p->scales, a.conv_state = p->conv;
    if (lazy) a.record_k = p->k, a.record_u = p->u, a.record_g = p->g, a.record_count = p->count;
    ring2_status(ring2_ctx(3), "block", gdn_block(ring2_ctx(3), &a), GDN_OK);
    return a.out;
}

/* Prompts of up to 300 tokens (more than a window) among single tokens and a few. */
static void block(int number)
{
    const struct form *m = &forms[number];
    const double rows = m->rows == GDN_F32 ? 0 : 0x1p-8;
    const double state = m->state == GDN_F32 ? 0 : m->state == GDN_BF16 ? 0x1p-6 : 0x1p-4;
    struct pools lazy = new_pools(m), plain = new_pools(m);
    gdn_block_args a = layer_of(m);
    int lasted = 0;
    for (int i = 0; i < CALLS && !ring2_failed(); i++) {
        struct lot l;
        draw_lot(&l, i % 6 == 4 ? 300 : i % 3 == 2 ? 20 : 2, i % 3 == 2);
        a.hidden = some(l.N, HIDDEN, 1);
        a.batch = &l.batch;
        const gdn_tensor out = run_block(a, &lazy, true), want = run_block(a, &plain, false);
        if (m->exact) ring2_expect_bits("out", &out, &want);
        expect_alike(&out, &want, 1e-5 + rows + state);
        for (int64_t s = 0; s < P; s++) lasted += ring2_get(&lazy.count, s) > 0;
    }
    CHECK(ring2_on_device() ? lasted == 0 : lasted > CALLS, "%d lazy states in all calls", lasted);
    const gdn_tensor all = ring2_indices(GDN_I32, P, (const int64_t[P]){ 0, 1, 2, 3, 4, 5, 6, 7 });
    fold(m, &lazy, &all);
    if (m->exact) ring2_expect_bits("state", &lazy.state, &plain.state);
}

/* On a GPU each call first folds the rows that earlier calls left. */
static void block_folds(int number)
{
    const struct form *m = &forms[number];
    const int64_t twos[P] = { 2, 2, 2, 2, 2, 2, 2, 2 };
    if (!ring2_on_device()) {
        ring2_skip("a CPU leaves rows");
        return;
    }
    gdn_block_args a = layer_of(m);
    for (int i = 0; i < 6 && !ring2_failed(); i++) {
        struct pools lazy = new_pools(m);
        struct lot l;
        draw_lot(&l, i % 2 ? 40 : 3, true);
        a.hidden = some(l.N, HIDDEN, 1);
        a.batch = &l.batch;
        ring2_fill(&lazy.k, -0.3, 0.3), ring2_fill(&lazy.u, -1, 1), ring2_fill(&lazy.g, 0.8, 1);
        lazy.count = ring2_indices(GDN_I32, P, twos);
        const struct pools apart = clone_pools(&lazy);
        const gdn_tensor out = run_block(a, &lazy, true), slots = folded_slots(&l);
        fold(m, &apart, &slots);
        const gdn_tensor folded = run_block(a, &apart, false);
        forget(&apart, &l);
        ring2_expect_bits("out, folded", &out, &folded);
        expect_pools(&lazy, &apart);
    }
}

/* ---- G1 ---- */

static void refuse_rule(const char *what, gdn_status want, const char *needle, int32_t write,
                        bool moves)
{
    struct lot l;
    const struct pools p = new_pools(&forms[0]);
    draw_lot(&l, 3, moves);
    l.batch.write = write;
    gdn_rule_args a = rule_of(&forms[0], &l);
    a.state = p.state;
    a.out = ring2_new(GDN_F32, 0, 3, l.N, HV, V, 0);
    a.record_k = p.k, a.record_u = p.u, a.record_g = p.g, a.record_count = p.count;
    if (moves) a.state_out = ring2_clone(&a.state);
    ring2_refused(ring2_ctx(2), GDN_OP_PREFILL, &a, RING2_STRUCT, want, needle);
    (void)what;
}

static void refused(int number)
{
    (void)number;
    struct lot l;
    const struct pools p = new_pools(&forms[0]);
    refuse_rule("drafts", GDN_E_ARG, "write", GDN_WRITE_NONE, false);
    refuse_rule("another pool", GDN_E_ARG, "state_out", GDN_WRITE_FINAL, true);
    draw_lot(&l, 3, false);
    gdn_step_args s = step_of(&forms[0], &l);
    give_record(&s, &p);
    s.record_count.data = NULL;
    ring2_refused(ring2_ctx(2), GDN_OP_STEP, &s, RING2_STRUCT, GDN_E_ARG, "record_count");
    give_record(&s, &p);
    s.state.data = NULL;
    ring2_refused(ring2_ctx(2), GDN_OP_STEP, &s, RING2_STRUCT, GDN_E_ARG, "state");
    gdn_block_args b = layer_of(&forms[0]);
    b.hidden = some(l.N, HIDDEN, 1), b.out = some(l.N, HIDDEN, 1);
    b.state = p.state, b.batch = &l.batch;
    b.record_k = p.k, b.record_u = p.u, b.record_g = p.g, b.record_count = p.count;
    l.batch.write = GDN_WRITE_NONE;
    ring2_refused(ring2_ctx(2), GDN_OP_BLOCK, &b, RING2_STRUCT, GDN_E_ARG, "write");
}

int main(int argc, char **argv)
{
    static const struct ring2_cases tests[] = {
        { "prefill folds", prefill, N_FORMS },
        { "checkpoints", checkpoints, N_FORMS },
        { "step has the bits of its parts", steps, N_FORMS },
        { "block among plain blocks", block, N_FORMS },
        { "block folds", block_folds, N_FORMS },
        { "G1 records in other calls", refused, 1 },
    };
    return ring2_cases_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
