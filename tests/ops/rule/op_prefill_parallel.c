/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_80 --every=8 */
/*
 * gdn_prefill_parallel: ranks against gdn_prefill() of all tokens. A rank needs the maps of earlier
 * ranks alone, so they run one after the other.
 */
#include <math.h>
#include <string.h>

#include "gdn_parallel.h"
#include "ring2.h"

enum { MAX_RANKS = 8, B = 3, HK = 2, H = 4, K = 16, V = 12, TOKENS = 90 };

/* ---- A group ---- */

struct group {
    char *maps[MAX_RANKS]; /* what ranks sent */
};

struct rank {
    struct group *group;
    gdn_rule_args args;
    gdn_collective collective;
    gdn_status returns; /* what all_gather returns instead of gathering */
    size_t sent;
    int calls;
};

/* Later ranks send NaN. */
static gdn_status all_gather(void *user, const void *send, void *recv, size_t bytes, void *stream)
{
    struct rank *r = user;
    (void)stream;
    r->calls++, r->sent = bytes;
    if (r->returns) return r->returns;
    memset(recv, 255, bytes * (size_t)r->collective.size);
    r->group->maps[r->collective.rank] = memcpy(ring2_heap(bytes), send, bytes);
    for (int i = 0; i <= r->collective.rank; i++)
        memcpy((char *)recv + (size_t)i * bytes, r->group->maps[i], bytes);
    return GDN_OK;
}

static void run(gdn_ctx *ctx, struct rank *r, struct group *group, int rank, int size)
{
    r->group = group;
    r->collective = gdn_collective_init();
    r->collective.rank = rank, r->collective.size = size;
    r->collective.all_gather = all_gather, r->collective.user = r;
    ring2_status(
        ctx, "bytes",
        gdn_prefill_parallel_bytes(ctx, &r->args, &r->collective, &r->args.workspace_bytes),
        GDN_OK);
    r->args.workspace = ring2_alloc(r->args.workspace_bytes, 64);
    ring2_status(ctx, "gdn_prefill_parallel", gdn_prefill_parallel(ctx, &r->args, &r->collective),
                 GDN_OK);
}

/* ---- Batches ---- */

/* Ends of the sequences, for all ranks; sequence 1 is shorter than a rank's usual part. */
static const int64_t ends[B + 1] = { 0, 37, 40, TOKENS };

/* Tokens of sequence b before those of a rank. The last cut leaves ranks with nothing. */
static int64_t before(int64_t b, int rank, int size, int cut)
{
    const int64_t n = ends[b + 1] - ends[b];
    if (cut == 0) return n * rank / size;
    if (cut == 1) return rank == 0 ? 0 : rank == size ? n : n - n / (rank + 1);
    return rank <= size / 2 ? 0 : n;
}

/* Rows of the whole that a rank has, as one tensor. */
static gdn_tensor gathered(const gdn_tensor *whole, int rank, int size, int cut)
{
    const int64_t each = whole->size[0] / TOKENS; /* rows of a token */
    int64_t n = 0, row = 0;
    for (int64_t b = 0; b < B; b++)
        n += before(b, rank + 1, size, cut) - before(b, rank, size, cut);
    gdn_tensor t = ring2_new(whole->dtype, 0, whole->ndim, n * each, whole->size[1],
                             whole->ndim > 2 ? whole->size[2] : 0, 0);
    for (int64_t b = 0; b < B; b++) {
        const int64_t first = before(b, rank, size, cut);
        const int64_t m = (before(b, rank + 1, size, cut) - first) * each;
        gdn_tensor from = ring2_narrow(whole, 0, (ends[b] + first) * each, m);
        gdn_tensor to = ring2_narrow(&t, 0, row, m);
        if (m) ring2_copy(&to, &from);
        row += m;
    }
    return t;
}

/* Log gates per channel of any strength. */
static double channel_gate(int64_t t, int64_t x)
{
    const int64_t i = (t * 5 + x * 3) % 11;
    return i == 0                  ? 0
           : i == 1                ? -60
           : i == 2                ? -5
           : i == 3 && t % 16 == 9 ? -(double)INFINITY
                                   : ring2_uniform(-0.2, 0);
}

enum rule { GDN, KDA, GDN2, PRODUCT, ERASE };

static gdn_rule_args whole_call(int number, enum rule rule)
{
    const bool channels = rule == KDA || rule == GDN2;
    const int64_t each = rule == PRODUCT ? 2 : 1;
    gdn_rule_args a = gdn_rule_args_init();
    const bool raw = number % 2, kv = number / 2 % 2;
    a.q = ring2_new(GDN_F32, 0, 3, TOKENS, HK, K, 0);
    a.k = ring2_new(GDN_F32, 0, 3, each * TOKENS, HK, K, 0);
    a.v = ring2_new(GDN_F32, 0, 3, each * TOKENS, H, V, 0);
    a.out = ring2_new(GDN_F32, 0, 3, TOKENS, H, V, 0);
    a.g = ring2_new(GDN_F32, 0, 2, TOKENS, H, 0, 0);
    a.beta = rule == GDN2 || rule == ERASE ? ring2_new(GDN_F32, 0, 3, TOKENS, H, K, 0)
                                           : ring2_new(GDN_F32, 0, 2, each * TOKENS, H, 0, 0);
    if (rule >= GDN2) a.write_gate = ring2_new(GDN_F32, 0, 3, each * TOKENS, H, V, 0);
    if (rule >= GDN2) ring2_fill(&a.write_gate, 0, 1);
    a.updates = (int32_t)each;
    ring2_fill(&a.q, -1, 1), ring2_fill(&a.k, -1, 1), ring2_fill(&a.v, -1, 1);
    a.norm = GDN_NORM_L2, a.state_layout = kv ? GDN_STATE_KV : GDN_STATE_VK;
    if (raw) {
        a.A_log = ring2_new(GDN_F32, 0, 1, H, 0, 0, 0), a.dt_bias = ring2_clone(&a.A_log);
        a.gate = GDN_GATE_RAW, a.beta_kind = GDN_BETA_TWICE_SIGMOID;
        ring2_fill(&a.A_log, -2, 0), ring2_fill(&a.dt_bias, -3, 0);
    }
    if (channels) {
        a.g = ring2_new(GDN_F32, 0, 3, TOKENS, H, K, 0);
        if (raw) a.dt_bias = ring2_new(GDN_F32, 0, 2, H, K, 0, 0), ring2_fill(&a.dt_bias, -3, 0);
    }
    ring2_fill(&a.g, raw ? -2 : -0.2, raw ? 2 : 0);
    for (int64_t i = 0; channels && !raw && i < ring2_count(&a.g); i++)
        ring2_set(&a.g, i, channel_gate(i / K / H, i % K));
    ring2_fill(&a.beta, raw ? -2 : 0, raw ? 2 : 1);
    if (number % 3) {
        a.state = ring2_new(GDN_F32, 0, 4, B, H, kv ? K : V, kv ? V : K);
        ring2_fill(&a.state, -1, 1);
    }
    if (number % 3 != 1) a.state_out = ring2_new(GDN_F32, 0, 4, B, H, kv ? K : V, kv ? V : K);
    return a;
}

static gdn_batch batch_of(int rank, int size, int cut)
{
    int64_t cuts[B + 1] = { 0 };
    gdn_batch batch = gdn_batch_init();
    for (int64_t b = 0; b < B; b++)
        cuts[b + 1] = cuts[b] + before(b, rank + 1, size, cut) - before(b, rank, size, cut);
    batch.cu_seqlens = ring2_indices(GDN_I32, B + 1, cuts);
    return batch;
}

static void expect_near(const char *what, int rank, const gdn_tensor *got, const gdn_tensor *want)
{
    double most = 0, error = 0;
    for (int64_t i = 0; i < ring2_count(want); i++) {
        const double e = fabs(ring2_get(got, i) - ring2_get(want, i));
        most = fmax(most, fabs(ring2_get(want, i)));
        error = e <= error ? error : e; /* a NaN stays */
    }
    CHECK(error <= 4e-6 * most, "%s of rank %d: off by %g of %g", what, rank, error, most);
}

static const int sizes[] = { 1, 2, 3, 4, 8 };

/* Returns this rank's call, with its rows of all tensors and with states of its own. */
static gdn_rule_args call_of(const gdn_rule_args *all, const gdn_batch *batch, int rank, int size,
                             int cut)
{
    gdn_rule_args a = *all;
    gdn_tensor *rows[] = { &a.q, &a.k, &a.v, &a.g, &a.beta, &a.out, &a.write_gate };
    for (int i = 0; i < 7; i++)
        if (rows[i]->data) *rows[i] = gathered(rows[i], rank, size, cut);
    if (a.state.data) a.state = ring2_clone(&all->state);
    if (a.state_out.data) a.state_out = ring2_clone(&all->state_out);
    a.batch = batch;
    return a;
}

static void matches(int number, enum rule rule)
{
    const int size = sizes[number % 5], cut = number / 5 % 3;
    gdn_ctx *ctx = ring2_ctx(2);
    gdn_rule_args all = whole_call(number / 3, rule), one = all;
    gdn_batch whole = gdn_batch_init(), batches[MAX_RANKS];
    struct rank ranks[MAX_RANKS] = { { 0 } };
    struct group group = { { NULL } };
    whole.cu_seqlens = ring2_indices(GDN_I32, B + 1, ends);
    one.batch = &whole, one.out = ring2_clone(&all.out);
    if (one.state.data) one.state = ring2_clone(&all.state);
    if (one.state_out.data) one.state_out = ring2_clone(&all.state_out);
    ring2_status(ctx, "gdn_prefill", gdn_prefill(ctx, &one), GDN_OK);
    for (int i = 0; i < size; i++) {
        struct rank *r = &ranks[i];
        batches[i] = batch_of(i, size, cut);
        r->args = call_of(&all, &batches[i], i, size, cut);
        run(ctx, r, &group, i, size);
        CHECK(r->calls == (size > 1), "%d all-gathers", r->calls);
        CHECK(size == 1 || r->sent == 4 * B * H * K * (K + V), "%zu bytes", r->sent);
        gdn_tensor want = gathered(&one.out, i, size, cut);
        if (ring2_count(&want)) expect_near("out", i, &r->args.out, &want);
    }
    const gdn_rule_args *last = &ranks[size - 1].args;
    if (last->state_out.data)
        expect_near("state_out", size - 1, &last->state_out, &one.state_out);
    else if (last->state.data)
        expect_near("state", size - 1, &last->state, &one.state);
}

static void matches_one_device(int number) { matches(number, GDN); }
static void matches_family(int number) { matches(number / 4, KDA + number % 4); }

/* The caller's workspace is enough, and one byte less is not. */
static void workspace(int number)
{
    gdn_ctx *ctx = ring2_ctx(1);
    gdn_rule_args a = whole_call(number, GDN + number);
    gdn_batch whole = gdn_batch_init();
    struct rank r = { .args = a };
    whole.cu_seqlens = ring2_indices(GDN_I32, B + 1, ends);
    r.args.batch = &whole;
    r.collective = gdn_collective_init();
    r.collective.size = 1, r.collective.all_gather = all_gather;
    size_t bytes;
    ring2_status(ctx, "bytes", gdn_prefill_parallel_bytes(ctx, &r.args, &r.collective, &bytes),
                 GDN_OK);
    r.args.workspace = ring2_alloc(bytes, 64), r.args.workspace_bytes = bytes;
    ring2_call_begin();
    ring2_may_write(&a.out), ring2_may_write_bytes(r.args.workspace, bytes);
    if (a.state_out.data)
        ring2_may_write(&a.state_out);
    else if (a.state.data)
        ring2_may_write(&a.state);
    ring2_status(ctx, "all of it", gdn_prefill_parallel(ctx, &r.args, &r.collective), GDN_OK);
    ring2_call_end();
    r.args.workspace_bytes--;
    ring2_status(ctx, "less", gdn_prefill_parallel(ctx, &r.args, &r.collective), GDN_E_MEMORY);
}

/* ---- Mistakes ---- */

static void refused(gdn_ctx *ctx, const struct rank *r, gdn_status want, const char *text)
{
    const gdn_status status = gdn_prefill_parallel(ctx, &r->args, &r->collective);
    CHECK(status == want && strstr(gdn_last_error(ctx), text), "%s: status %d, \"%s\"", text,
          (int)status, gdn_last_error(ctx));
}

static void mistakes(int number)
{
    gdn_ctx *ctx = ring2_ctx(1);
    struct rank good = { .args = whole_call(4, GDN) }, r;
    gdn_batch batch = gdn_batch_init();
    (void)number;
    batch.cu_seqlens = ring2_indices(GDN_I32, B + 1, ends);
    good.args.batch = &batch;
    good.collective = gdn_collective_init();
    good.collective.size = 2, good.collective.all_gather = all_gather, good.collective.user = &good;
    good.returns = GDN_E_UNSUPPORTED;

    refused(ctx, &good, GDN_E_UNSUPPORTED, "all_gather: ");
    r = good, r.collective.rank = 2;
    refused(ctx, &r, GDN_E_ARG, "rank: 2 of 2");
    r = good, r.collective.all_gather = NULL;
    refused(ctx, &r, GDN_E_ARG, "all_gather: NULL");
    r = good, r.args.gate = GDN_GATE_LINEAR;
    refused(ctx, &r, GDN_E_UNSUPPORTED, "gate");
    r = good, r.args.q.data = NULL;
    refused(ctx, &r, GDN_E_ARG, "q: absent");
    r = good, r.args.state = ring2_new(GDN_F32, 0, 4, B + 1, H, V, K);
    refused(ctx, &r, GDN_E_SHAPE, "state: 4 slots");
    batch.read_slots = ring2_indices(GDN_I32, B, (const int64_t[]){ 0, 1, 2 });
    refused(ctx, &good, GDN_E_ARG, "read_slots");
}

int main(int argc, char **argv)
{
    const struct ring2_cases tests[] = {
        { "parallel", matches_one_device, 30 },
        { "parallel: family", matches_family, 4 * 30 },
        { "parallel: workspace", workspace, 5 },
        { "parallel: mistakes", mistakes, 1 },
    };
    return ring2_cases_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
