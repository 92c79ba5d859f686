/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_80 */
/*
 * Records of drafted tokens alone: rounding, odd values, refusals, and the guarantees that
 * every op keeps. What they are for is in op_rollback.c.
 */
#include <math.h>

#include "ring2_record.h"

/* ---- Rounded records and states ---- */

static double unit_of(int32_t dtype)
{
    return dtype == GDN_F32 ? 0x1p-24 : dtype == GDN_BF16 ? 0x1p-8 : 0x1p-11;
}

/* Element (j, x) of v and k of one head's state. */
static double state_at(const struct ring2_layer *m, const gdn_tensor *t, int64_t head, int64_t j,
                       int64_t x)
{
    const int64_t inner = m->layout == GDN_STATE_VK ? j * m->K + x : x * m->V + j;
    return ring2_get(t, head * m->K * m->V + inner);
}

/* Column j of head `head` (counted through the slots), of length |S|, and of the difference. */
static double column_norm(const struct ring2_layer *m, const gdn_tensor *a, const gdn_tensor *b,
                          int64_t head, int64_t j)
{
    double sum = 0;
    for (int64_t x = 0; x < m->K; x++) {
        const double d = state_at(m, a, head, j, x) - (b ? state_at(m, b, head, j, x) : 0);
        sum += d * d;
    }
    return sqrt(sum);
}

/* For rows rounded to a unit e: each adds an error of at most |k| |u| (2 e + e^2) to its column. */
static void add_rows(const struct ring2_layer *m, const struct ring2_record *r,
                     const struct ring2_accepted *n, double e, double *bound)
{
    const int64_t H = ring2_state_heads(m);
    for (int s = 0; s < B; s++)
        for (int64_t i = 0; ring2_slots[s] >= 0 && i < n->n[s]; i++) {
            const int64_t slot = ring2_slots[s], c = ring2_record_count(r, slot);
            const int64_t row = slot * R + c - n->n[s] + i;
            for (int64_t at = 0; at < H * m->V; at++)
                bound[ring2_slots[s] * H * m->V + at] +=
                    (2 * e + e * e) * fabs(ring2_get(&r->u, row * H * m->V + at));
        }
}

/*
 * Against float32 records and states. Keys have length 1 or less, beta is 0 to 1 and g <= 0, so
 * an error that a column has never grows in length; it is at most the sum of what records add
 * (above), of the roundings of each fold, |S| e and half the least number, and of float32: of
 * that, 2^-24 (8 + K / 16 + 8) times |S| + |u| for each token, both ways.
 */
static void rounded(const struct ring2_layer *m)
{
    struct ring2_layer f32 = *m;
    f32.dtype = f32.record = GDN_F32;
    const int64_t H = ring2_state_heads(m), columns = P * H * m->V;
    const double e = unit_of(m->dtype), least = m->dtype == GDN_F16 ? 0x1p-25 : 0;
    double *bound = ring2_heap((size_t)columns * sizeof *bound), largest = 0;
    gdn_tensor w = ring2_pool(m, m->dtype, P), ref = ring2_pool(&f32, GDN_F32, P);
    struct ring2_record r = ring2_record_new(m, m->record), want = ring2_record_new(&f32, GDN_F32);
    ring2_copy(&ref, &w);
    for (int round = 0; round < 12 && !ring2_failed(); round++) {
        const struct ring2_tokens t = ring2_draft(m, true);
        const struct ring2_accepted n = ring2_accept(&t);
        const gdn_batch b = ring2_drafts(&t, true);
        const bool due = ring2_record_is_full(&r, &t) || ring2_below(3) == 0;
        if (due) ring2_fold(m, &r, &w), ring2_fold(&f32, &want, &ref);
        for (int64_t c = 0; due && c < columns; c++) {
            const double S = column_norm(m, &ref, NULL, c / m->V, c % m->V);
            const double d = column_norm(m, &w, &ref, c / m->V, c % m->V);
            if (m->dtype != GDN_F32) bound[c] += e * (S + bound[c]) + sqrt((double)m->K) * least;
            CHECK(d <= bound[c], "column %d is off by %g, at most %g", (int)c, d, bound[c]);
            largest = fmax(largest, d);
        }
        ring2_record_drafts(m, &t, &t.x, &r, &w, &b);
        ring2_record_drafts(&f32, &t, &t.x, &want, &ref, &b);
        ring2_commit(&r, &n, true, t.T), ring2_commit(&want, &n, true, t.T);
        add_rows(m, &want, &n, m->record == GDN_F32 ? 0 : unit_of(m->record), bound);
        for (int64_t c = 0; c < columns; c++)
            bound[c] += 2 * MOST * 0x1p-24 * (16 + (double)m->K / 16) * 2 * sqrt((double)m->K);
    }
    CHECK(largest > 0, "nothing was rounded");
}

/* ---- Odd values: -0, denormals, a NaN behind a forgetting gate or a beta of 0 ---- */

static void odd_values(const struct ring2_layer *m)
{
    static const double odd[] = { -0.0, 0.0, 0x1p-149, -0x1p-140, 1e30, -1 };
    const int64_t H = ring2_state_heads(m), D = ring2_channels(m);
    struct ring2_tokens t = ring2_draft(m, false), one;
    struct ring2_record r = ring2_record_new(m, GDN_F32);
    gdn_tensor state = ring2_pool(m, GDN_F32, P), plain;
    t.T = MOST;
    t.x = ring2_new(GDN_F32, 0, 3, B, MOST, D, 0);
    t.g = ring2_new(GDN_F32, 0, 3, B, MOST, H, 0);
    t.beta = ring2_new(GDN_F32, 0, 3, B, MOST, H, 0);
    for (int64_t i = 0; i < ring2_count(&t.x); i++)
        ring2_set(&t.x, i, ring2_below(2) ? odd[ring2_below(3)] : ring2_uniform(-1, 1));
    ring2_fill(&t.g, -40, 0), ring2_fill(&t.beta, 0, 1);
    for (int64_t i = 0; i < ring2_count(&state); i++) ring2_set(&state, i, odd[ring2_below(6)]);
    for (int s = 0; s < B; s++) {
        t.count[s] = MOST;
        for (int64_t i = 0; i < MOST; i++) {
            const int64_t at = s * MOST + i;
            const bool silent = i == 1 || i == 4;
            for (int64_t h = 0; h < H; h++) {
                if (i == 3) ring2_set(&t.g, at * H + h, h % 2 ? -(double)INFINITY : 0);
                if (silent) ring2_set(&t.beta, at * H + h, 0);
            }
            for (int64_t d = m->heads[0] * m->K; d < D; d += 3) /* k and v */
                if (silent) ring2_set(&t.x, at * D + d, (double)NAN);
        }
    }
    one = t;
    plain = ring2_clone(&state);
    gdn_batch b = ring2_drafts(&t, false), final = b;
    final.write = GDN_WRITE_FINAL;
    gdn_rule_args a = ring2_layer_args(m, &one, &one.x, &plain, &final);
    a.norm = GDN_NORM_NONE;
    ring2_decode(&a);
    a = ring2_layer_args(m, &t, &t.x, &state, &b);
    a.norm = GDN_NORM_NONE;
    a.record_k = r.k, a.record_u = r.u, a.record_g = r.g, a.record_count = r.count;
    ring2_decode(&a);
    const struct ring2_accepted all = { .n = { MOST, MOST, MOST, MOST } };
    ring2_commit(&r, &all, false, MOST);
    ring2_fold(m, &r, &state);
    ring2_expect_bits("state", &state, &plain);
    CHECK(isfinite(ring2_get(&state, 0)), "the state is not finite");
}

/* ---- G2, G3, G12, G13 ---- */

/* One of everything after three drafted and two committed rounds. */
struct ready {
    struct ring2_record r;
    struct ring2_tokens t;
    gdn_tensor state;
    gdn_batch *b, *slots;
    gdn_rule_args a;
    gdn_record_fold_args f;
};

static struct ready make_ready(const struct ring2_layer *m)
{
    struct ready y = { .r = ring2_record_new(m, m->record), .state = ring2_pool(m, m->dtype, P) };
    y.b = ring2_heap(sizeof *y.b), y.slots = ring2_heap(sizeof *y.slots);
    for (int i = 0; i < 2; i++) {
        struct ring2_tokens t = ring2_draft(m, true);
        for (int s = 0; s < B; s++) t.count[s] = t.count[s] > 3 ? 3 : t.count[s];
        const struct ring2_accepted n = ring2_accept(&t);
        const gdn_batch b = ring2_drafts(&t, true);
        ring2_record_drafts(m, &t, &t.x, &y.r, &y.state, &b);
        ring2_commit(&y.r, &n, true, t.T);
    }
    y.t = ring2_draft(m, true);
    for (int s = 0; s < B; s++) y.t.count[s] = y.t.count[s] > 3 ? 3 : y.t.count[s];
    *y.b = ring2_drafts(&y.t, true);
    *y.slots = gdn_batch_init();
    y.slots->read_slots = y.b->read_slots;
    y.a = ring2_layer_args(m, &y.t, &y.t.x, &y.state, y.b);
    y.a.record_k = y.r.k, y.a.record_u = y.r.u, y.a.record_g = y.r.g;
    y.a.record_count = y.r.count;
    y.f = ring2_fold_args(m, &y.r, &y.state, y.slots);
    return y;
}

/* ---- G1 ---- */

#define REFUSE(seen, op, args, what, want, needle, ...)                       \
    do {                                                                      \
        if (!ring2_begin("G1 record: %s", what)) break;                       \
        struct ready y = make_ready(&ring2_layers[0]);                        \
        gdn_record_commit_args c = gdn_record_commit_args_init();             \
        gdn_rule_args *a = &y.a;                                              \
        c.record_k = y.r.k, c.record_u = y.r.u, c.record_g = y.r.g;           \
        c.record_count = y.r.count, c.batch = y.slots;                        \
        c.n_accepted = ring2_indices(GDN_I32, B, (const int64_t[B]){ 1, 1 }); \
        c.path = ring2_new(GDN_I32, 0, 2, B, 3, 0, 0);                        \
        ring2_fill_value(&c.path, 0);                                         \
        (void)a;                                                              \
        __VA_ARGS__;                                                          \
        ring2_refused(ring2_ctx(2), op, args, seen, want, needle);            \
        ring2_end();                                                          \
    } while (0)
#define DECODE(...) REFUSE(RING2_STRUCT, GDN_OP_DECODE, a, "decode: " __VA_ARGS__)
#define COMMIT(...) REFUSE(RING2_STRUCT, GDN_OP_RECORD_COMMIT, &c, "commit: " __VA_ARGS__)
#define FOLD(...) REFUSE(RING2_STRUCT, GDN_OP_RECORD_FOLD, &y.f, "fold: " __VA_ARGS__)
#define DECODE_CONTENTS(...) REFUSE(RING2_CONTENTS, GDN_OP_DECODE, a, "decode: " __VA_ARGS__)
#define COMMIT_CONTENTS(...) \
    REFUSE(RING2_CONTENTS, GDN_OP_RECORD_COMMIT, &c, "commit: " __VA_ARGS__)
#define FOLD_CONTENTS(...) REFUSE(RING2_CONTENTS, GDN_OP_RECORD_FOLD, &y.f, "fold: " __VA_ARGS__)

static void refused_decode(void)
{
    const int64_t twice[B] = { 4, 0, 4, -1 }, ones[B] = { 1, 1, 1, 1 };
    DECODE("no u", GDN_E_ARG, "record_u", a->record_u.data = NULL);
    DECODE("no k", GDN_E_ARG, "record_k", a->record_k.data = NULL);
    DECODE("no g", GDN_E_ARG, "record_g", a->record_g.data = NULL);
    DECODE("no count", GDN_E_ARG, "record_count", a->record_count.data = NULL);
    DECODE("no state", GDN_E_ARG, "state", a->state.data = NULL);
    DECODE("a tree accepted at once", GDN_E_ARG, "parents", y.b->write = GDN_WRITE_FINAL);
    DECODE("fresh starts", GDN_E_ARG, "has_initial_state",
           y.b->has_initial_state = ring2_indices(GDN_I32, B, ones));
    DECODE("accepted slots", GDN_E_ARG, "num_accepted_tokens",
           y.b->num_accepted_tokens = ring2_indices(GDN_I32, B, ones);
           y.b->read_slots = ring2_new(GDN_I32, 0, 2, B, 1, 0, 0));
    DECODE("EXACT on 16 bits", GDN_E_UNSUPPORTED, "GDN_EXACT", a->flags = GDN_EXACT;
           a->state = ring2_pool(&ring2_layers[0], GDN_BF16, P));
    DECODE("heads of k", GDN_E_SHAPE, "record_k", a->record_k.size[2] = 1);
    DECODE("size of u", GDN_E_SHAPE, "record_u", a->record_u.size[3]--);
    DECODE("channels of g", GDN_E_SHAPE, "record_g: 4 dimensions, wanted [P][R][H]",
           a->record_g.ndim = 4, a->record_g.size[3] = 2, a->record_g.stride[3] = 1);
    DECODE("too few channels of g", GDN_E_SHAPE, "record_g: [", const int64_t *n = a->record_g.size;
           const int64_t K = a->q.size[3];
           a->g = ring2_new(GDN_F32, 0, 4, a->g.size[0], a->g.size[1], a->g.size[2], K);
           a->record_g = ring2_new(GDN_F32, 0, 4, n[0], n[1], n[2], K - 1));
    DECODE("rows of g", GDN_E_SHAPE, "record_g", a->record_g.size[1]--);
    DECODE("slots", GDN_E_SHAPE, "record_k", a->record_k.size[0]--);
    DECODE("count of floats", GDN_E_DTYPE, "record_count", a->record_count.dtype = GDN_F32);
    DECODE("k of indices", GDN_E_DTYPE, "record_k", a->record_k.dtype = GDN_I32);
    DECODE("g of 16 bits", GDN_E_DTYPE, "record_g", a->record_g.dtype = GDN_BF16);
    DECODE("u not dense", GDN_E_SHAPE, "record_u", a->record_u.stride[3] = 2);
    DECODE("rows at one address", GDN_E_SHAPE, "record_u", a->record_u.stride[1] = 0);
    DECODE("u in out", GDN_E_ARG, "overlap", a->record_u.data = a->out.data);
    DECODE("g in v", GDN_E_ARG, "overlap", a->record_g.data = a->v.data);
    DECODE("out in count", GDN_E_ARG, "overlap", a->record_count.data = a->out.data);
    DECODE("u in the state", GDN_E_ARG, "overlap", a->record_u.data = a->state.data);
    REFUSE(RING2_STRUCT, GDN_OP_PREFILL, a, "prefill", GDN_E_ARG, "write",
           y.b->parents.data = NULL);
    DECODE_CONTENTS("count -1", GDN_E_ARG, "record_count", ring2_set(&y.r.count, 4, -1));
    DECODE_CONTENTS("no rows left", GDN_E_ARG, "drafts, wanted at most",
                    ring2_set(&y.r.count, 0, R);
                    ring2_set(&y.b->token_count, 1, 1));
    DECODE_CONTENTS("a slot twice", GDN_E_ARG, "read_slots",
                    y.b->read_slots = ring2_indices(GDN_I32, B, twice));
    DECODE_CONTENTS("slot P", GDN_E_ARG, "read_slots", ring2_set(&y.b->read_slots, 0, P));
}

static void refused_commit(void)
{
    COMMIT("flags", GDN_E_ARG, "flags", c.flags = 1);
    COMMIT("no counts", GDN_E_ARG, "n_accepted", c.n_accepted.data = NULL);
    COMMIT("no record", GDN_E_ARG, "record_k", c.record_k.data = NULL);
    COMMIT("heads of g", GDN_E_SHAPE, "record_g", c.record_g.size[2]--);
    COMMIT("path of one dimension", GDN_E_SHAPE, "path", c.path = ring2_select(&c.path, 1, 0));
    COMMIT("path of floats", GDN_E_DTYPE, "path", c.path.dtype = GDN_F32);
    COMMIT("counts in g", GDN_E_ARG, "overlap", c.n_accepted.data = c.record_g.data);
    COMMIT("sequences", GDN_E_ARG, "cu_seqlens",
           y.slots->cu_seqlens = ring2_indices(GDN_I32, B + 1, (const int64_t[B + 1]){ 0 }));
    COMMIT("masks", GDN_E_ARG, "token_count", y.slots->token_count = c.n_accepted);
    COMMIT("a tree", GDN_E_UNSUPPORTED, "parents", y.slots->parents = c.path);
    COMMIT_CONTENTS("-1 accepted", GDN_E_ARG, "n_accepted", ring2_set(&c.n_accepted, 0, -1));
    COMMIT_CONTENTS("too many accepted", GDN_E_ARG, "n_accepted",
                    ring2_set(&c.n_accepted, 0, R + 1));
    COMMIT_CONTENTS("path of too few", GDN_E_SHAPE, "path", ring2_set(&c.n_accepted, 0, 4);
                    ring2_set(&y.r.count, 4, 0));
    COMMIT_CONTENTS("path that stays", GDN_E_ARG, "path", ring2_set(&c.n_accepted, 0, 2));
    COMMIT_CONTENTS("path past the end", GDN_E_ARG, "path", ring2_set(&c.path, 0, R));
    COMMIT_CONTENTS("count -1", GDN_E_ARG, "record_count", ring2_set(&y.r.count, 3, -1));
    COMMIT_CONTENTS("count past the end", GDN_E_ARG, "record_count",
                    ring2_set(&y.r.count, 3, R + 1));
}

static void refused_fold(void)
{
    FOLD("flags", GDN_E_ARG, "flags", y.f.flags = GDN_EXACT);
    FOLD("reserved", GDN_E_ARG, "reserved", y.f.reserved = 1);
    FOLD("head_map", GDN_E_ARG, "head_map", y.f.head_map = 2);
    FOLD("state_layout", GDN_E_ARG, "state_layout", y.f.state_layout = -1);
    FOLD("rounding", GDN_E_ARG, "rounding", y.f.rounding = 2);
    FOLD("no state", GDN_E_ARG, "state", y.f.state.data = NULL);
    FOLD("scales", GDN_E_ARG, "state_scales", y.f.state_scales = y.f.record_g);
    FOLD("no count", GDN_E_ARG, "record_count", y.f.record_count.data = NULL);
    FOLD("heads of k", GDN_E_SHAPE, "record_k", y.f.record_k.size[2] = 3;
         y.f.record_k.stride[2] = 0);
    FOLD("size of the state", GDN_E_SHAPE, "state", y.f.state.size[3]--);
    FOLD("slots", GDN_E_SHAPE, "record_k", y.f.state.size[0]--);
    FOLD("state in u", GDN_E_ARG, "overlap", y.f.record_u.data = y.f.state.data);
    FOLD("count in g", GDN_E_ARG, "overlap", y.f.record_count.data = y.f.record_g.data);
    FOLD("starts", GDN_E_ARG, "token_start", y.slots->token_start = y.b->token_count);
    FOLD_CONTENTS("count -1", GDN_E_ARG, "record_count", ring2_set(&y.r.count, 4, -1));
    FOLD_CONTENTS("a slot twice", GDN_E_ARG, "read_slots", ring2_set(&y.slots->read_slots, 1, 4));
    FOLD_CONTENTS("slot P", GDN_E_ARG, "read_slots", ring2_set(&y.slots->read_slots, 1, P));
}

int main(int argc, char **argv)
{
    ring2_options(argc, argv);
    for (int i = N_EXACT_LAYERS; i < N_LAYERS; i++)
        for (int seed = 0; seed < 4; seed++)
            if (ring2_begin("rounded records and states, layer %d, draw %d", i, seed)) {
                rounded(&ring2_layers[i]);
                ring2_end();
            }
    for (int i = 0; i < N_EXACT_LAYERS; i++)
        for (int seed = 0; seed < 5; seed++)
            if (ring2_begin("G7 G8 G20 odd values, layer %d, draw %d", i, seed)) {
                odd_values(&ring2_layers[i]);
                ring2_end();
            }
    refused_decode();
    refused_commit();
    refused_fold();
    return ring2_summary();
}
