/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_prefill_parallel: this rank's part of sequences that lie on several ranks, by other ops:
 *
 *     k, g, beta -> summary (U, M) -> all_gather -> fold of the ranks before -> prefill
 *
 * Gates are prepared first where prefill would do that itself.
 */
#include "calls/chunk_stage.h"
#include "gdn_parallel.h"
#include "ops/checks.h"
#include "ops/entry.h"
#include "ops/op_table.h"
#include "ops/parts.h"

struct parallel {
    gdn_rule_args args;
    gdn_collective group;
    struct gdn_tokens tokens;
    struct gdn_plan plan;
    gdn_batch summary_batch, prefill_batch;
    int64_t B, H, K, V;
    size_t part_bytes;
    /* float32: gates, the maps of this rank and of all, where its sequences start. A map
     * is U, then M, for every sequence and head. */
    char *g, *beta, *write, *own, *all, *starts, *part;
};

static bool has_state(const struct parallel *c) { return c->args.state.data; }
static bool is_last(const struct parallel *c) { return c->group.rank == c->group.size - 1; }
static bool is_raw(const struct parallel *c) { return c->args.gate == GDN_GATE_RAW; }
static bool squashes(const struct parallel *c)
{
    return gdn_beta_of(c->args.beta_kind, GDN_BETA_GIVEN) != GDN_NO_SIGMOID;
}

static bool squashes_write(const struct parallel *c)
{
    return squashes(c) && c->args.write_gate.data;
}

/* ---- Memory -------------------------------------------------------------------------------- */

static size_t n_floats(const gdn_tensor *t)
{
    size_t n = 1;
    for (int i = 0; i < t->ndim; i++) n *= (size_t)t->size[i];
    return n * sizeof(float);
}

static size_t lay_out(struct parallel *c, char *memory)
{
    const size_t state = (size_t)(c->B * c->H * c->K * c->V) * sizeof(float);
    const size_t map = state + (size_t)(c->B * c->H * c->K * c->K) * sizeof(float);
    const struct gdn_room rooms[] = {
        { &c->g, is_raw(c) ? n_floats(&c->args.g) : 0 },
        { &c->beta, squashes(c) ? n_floats(&c->args.beta) : 0 },
        { &c->write, squashes_write(c) ? n_floats(&c->args.write_gate) : 0 },
        { &c->own, map },
        { &c->all, map * (size_t)c->group.size },
        { &c->starts, state },
        { &c->part, c->part_bytes },
    };
    return gdn_lay_out_rooms(rooms, sizeof rooms / sizeof *rooms, memory);
}

/* Returns a dense float32 tensor of that shape. */
static gdn_tensor dense(char *buffer, const gdn_tensor *like)
{
    gdn_tensor t = { .data = buffer, .dtype = GDN_F32, .ndim = like->ndim };
    int64_t step = 1;
    for (int i = t.ndim - 1; i >= 0; i--) {
        t.size[i] = like->size[i], t.stride[i] = step;
        step *= t.size[i];
    }
    return t;
}

/* Returns n states [rows][columns] with `step` floats from one head to the next. */
static gdn_tensor states(const struct parallel *c, char *buffer, int64_t n, int64_t step,
                         int64_t rows, int64_t columns)
{
    return (gdn_tensor){ .data = buffer,
                         .dtype = GDN_F32,
                         .ndim = 4,
                         .size = { n, c->H, rows, columns },
                         .stride = { c->H * step, step, columns, 1 } };
}

/* Returns U, M of n maps. */
static gdn_tensor offsets(const struct parallel *c, char *maps, int64_t n)
{
    const bool kv = c->args.state_layout == GDN_STATE_KV;
    return states(c, maps, n, c->K * (c->V + c->K), kv ? c->K : c->V, kv ? c->V : c->K);
}

static gdn_tensor transitions(const struct parallel *c, char *maps, int64_t n)
{
    return states(c, maps + c->K * c->V * (int64_t)sizeof(float), n, c->K * (c->V + c->K), c->K,
                  c->K);
}

static gdn_tensor starts(const struct parallel *c)
{
    const bool kv = c->args.state_layout == GDN_STATE_KV;
    return states(c, c->starts, c->B, c->K * c->V, kv ? c->K : c->V, kv ? c->V : c->K);
}

/* ---- The ops ------------------------------------------------------------------------------- */

/* Every op has the same workspace, and the stream of the call. */
#define IN_PART(a, c)                                                  \
    ((a).workspace = (c)->part, (a).workspace_bytes = (c)->part_bytes, \
     (a).stream = (c)->args.stream)

/* Gates that prefill prepares itself: of g; of beta, beside g if a head has one row of each; of the
 * write gate, whose sigmoid is never doubled. */
enum { OF_G, OF_BETA, OF_WRITE, N_GATES };

static bool is_beside(const struct parallel *c)
{
    return is_raw(c) && c->args.updates < 2 && c->args.beta.ndim <= c->args.g.ndim;
}

static bool has_gates(const struct parallel *c, int of)
{
    if (of == OF_G) return is_raw(c);
    return of == OF_BETA ? squashes(c) && !is_beside(c) : squashes_write(c);
}

static gdn_gates_args gates(const struct parallel *c, int of)
{
    gdn_gates_args a = gdn_gates_args_init();
    if (of == OF_G) {
        a.a = c->args.g, a.g = dense(c->g, &a.a);
        a.A_log = c->args.A_log, a.dt_bias = c->args.dt_bias;
        a.gate_lower_bound = c->args.gate_lower_bound;
    }
    if (of == OF_BETA || (of == OF_G && squashes(c) && is_beside(c))) {
        a.b = c->args.beta, a.beta = dense(c->beta, &a.b);
        a.beta_kind = c->args.beta_kind;
    }
    if (of == OF_WRITE) {
        a.b = c->args.write_gate, a.beta = dense(c->write, &a.b);
        a.beta_kind = GDN_BETA_SIGMOID;
    }
    IN_PART(a, c);
    return a;
}

/* Returns the call of gdn_summary for this rank. If sequences start from zero, rank 0 needs no
 * M. */
static gdn_summary_args summary(const struct parallel *c)
{
    gdn_summary_args a = gdn_summary_args_init();
    a.k = c->args.k, a.v = c->args.v;
    a.g = is_raw(c) ? dense(c->g, &c->args.g) : c->args.g;
    a.beta = squashes(c) ? dense(c->beta, &c->args.beta) : c->args.beta;
    a.write_gate = squashes_write(c) ? dense(c->write, &c->args.write_gate) : c->args.write_gate;
    a.updates = c->args.updates;
    a.U = offsets(c, c->own, c->B);
    if (c->group.rank > 0 || has_state(c)) a.M = transitions(c, c->own, c->B);
    a.batch = &c->summary_batch;
    a.head_map = c->args.head_map, a.state_layout = c->args.state_layout;
    a.norm = c->args.norm, a.norm_eps = c->args.norm_eps;
    a.flags = c->args.flags & (GDN_BATCH_INVARIANT | GDN_NO_EARLY_STOP | GDN_ZERO_AS_GIVEN);
    IN_PART(a, c);
    return a;
}

static gdn_summary_fold_args fold(const struct parallel *c)
{
    gdn_summary_fold_args a = gdn_summary_fold_args_init();
    const int64_t n = c->group.rank * c->B;
    a.M = transitions(c, c->all, n), a.U = offsets(c, c->all, n);
    a.state = c->args.state, a.state_out = starts(c);
    a.state_layout = c->args.state_layout;
    IN_PART(a, c);
    return a;
}

/* Returns the pool of final states; data NULL: there is none. */
static gdn_tensor final_pool(const struct parallel *c)
{
    const gdn_rule_args *a = &c->args;
    if (c->prefill_batch.write == GDN_WRITE_NONE) return (gdn_tensor){ 0 };
    return a->state_out.data ? a->state_out : a->state;
}

/* Prefill leaves the final state of an empty sequence alone. */
static gdn_state_copy_args begin(const struct parallel *c)
{
    gdn_state_copy_args a = gdn_state_copy_args_init();
    a.from_pool = starts(c), a.to_pool = final_pool(c);
    a.from_layout = a.to_layout = c->args.state_layout;
    IN_PART(a, c);
    return a;
}

static gdn_rule_args prefill(const struct parallel *c)
{
    gdn_rule_args a = c->args;
    if (c->group.rank > 0) a.state = starts(c), a.state_out = final_pool(c);
    a.batch = &c->prefill_batch;
    IN_PART(a, c);
    return a;
}

static bool begins(const struct parallel *c) { return c->group.rank > 0 && final_pool(c).data; }

static gdn_status check_parts(gdn_ctx *ctx, struct parallel *c)
{
    size_t bytes[4 + N_GATES] = { 0 };
    lay_out(c, (char *)((uintptr_t)1 << 60)); /* descriptors are looked at alone */
    const gdn_summary_args summary_args = summary(c);
    const gdn_summary_fold_args fold_args = fold(c);
    const gdn_state_copy_args copy_args = begin(c);
    const gdn_rule_args rule_args = prefill(c);
    for (int i = 0; i < N_GATES; i++) {
        const gdn_gates_args gates_args = gates(c, i);
        if (has_gates(c, i)) TRY(gdn_gates_check(ctx, &gates_args, &bytes[4 + i]));
    }
    TRY(gdn_summary_check(ctx, &summary_args, &bytes[0]));
    if (c->group.rank > 0) TRY(gdn_summary_fold_check(ctx, &fold_args, &bytes[1]));
    if (begins(c)) TRY(gdn_state_copy_check(ctx, &copy_args, &bytes[2]));
    TRY(gdn_prefill_check(ctx, &rule_args, &bytes[3]));
    for (int i = 0; i < 4 + N_GATES; i++)
        if (bytes[i] > c->part_bytes) c->part_bytes = bytes[i];
    return GDN_OK;
}

/* ---- A call -------------------------------------------------------------------------------- */

static gdn_status check_group(gdn_ctx *ctx, const struct parallel *c)
{
    const gdn_collective *g = &c->group;
    if (!g->all_gather) return gdn_fail(ctx, GDN_E_ARG, "all_gather: NULL, wanted a function");
    if (g->size < 1 || g->rank < 0 || g->rank >= g->size)
        return gdn_fail(ctx, GDN_E_ARG, "rank: %d of %d, wanted 0 to size - 1", (int)g->rank,
                        (int)g->size);
    if (g->reserved) return gdn_fail(ctx, GDN_E_ARG, "reserved: %d, wanted 0", (int)g->reserved);
    return GDN_OK;
}

/* Refuses what gdn_prefill takes, but a state that passes ranks does not allow. */
static gdn_status check_rule(gdn_ctx *ctx, const struct parallel *c)
{
    const gdn_rule_args *a = &c->args;
    if (a->gate == GDN_GATE_LINEAR)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED, "gate: GDN_GATE_LINEAR, wanted another kind");
    if (is_raw(c) && !a->dt_bias.data && a->g.ndim == a->q.ndim)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED,
                        "dt_bias: absent, wanted [H][K] with raw gates per "
                        "channel");
    if (a->state_scales.data || a->state_out_scales.data)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED, "%s: given, wanted no state of 8 bits",
                        a->state_scales.data ? "state_scales" : "state_out_scales");
    const gdn_tensor *pools[] = { &a->state, &a->state_out };
    for (int i = 0; i < 2; i++)
        if (pools[i]->data && pools[i]->size[0] != c->B)
            return gdn_fail(ctx, GDN_E_SHAPE,
                            "%s: %lld slots, wanted one for each of %lld "
                            "sequences",
                            i ? "state_out" : "state", (long long)pools[i]->size[0],
                            (long long)c->B);
    if (c->B > (INT64_MAX >> 40) / c->H / c->group.size)
        return gdn_fail(ctx, GDN_E_SHAPE, "batch: %lld sequences, wanted at most %lld",
                        (long long)c->B, (long long)((INT64_MAX >> 40) / c->H / c->group.size));
    return GDN_OK;
}

/* Reads the batches of the parts. Prefill writes no final states where the caller has no place. */
static gdn_status read_batch(gdn_ctx *ctx, struct parallel *c)
{
    const gdn_rule_args *a = &c->args;
    c->prefill_batch = gdn_batch_init();
    if (a->batch)
        TRY(gdn_copy_args(ctx, &c->prefill_batch, sizeof c->prefill_batch, a->batch, "batch"));
    c->summary_batch = c->prefill_batch;
    c->summary_batch.write = GDN_WRITE_FINAL;
    gdn_batch *b = &c->summary_batch;
    b->checkpoint_every = 0;
    b->checkpoint_starts = b->checkpoint_positions = b->checkpoint_slots = (gdn_tensor){ 0 };
    if (c->group.rank > 0 && !a->state.data && !a->state_out.data)
        c->prefill_batch.write = GDN_WRITE_NONE;
    TRY(gdn_plan_tokens(ctx, &a->q, "q", 2, &c->tokens));
    return gdn_stage_plan(ctx, b, &c->tokens, &c->plan);
}

static gdn_status describe(gdn_ctx *ctx, const gdn_rule_args *args, const gdn_collective *group,
                           struct parallel *c)
{
    const gdn_rule_args *a = &c->args;
    size_t bytes;
    TRY(gdn_copy_args(ctx, &c->args, sizeof c->args, args, "gdn_rule_args"));
    TRY(gdn_copy_args(ctx, &c->group, sizeof c->group, group, "gdn_collective"));
    TRY(check_group(ctx, c));
    TRY(gdn_prefill_check(ctx, a, &bytes));
    TRY(read_batch(ctx, c));
    const int64_t Hq = a->q.size[a->q.ndim - 2], Hv = a->v.size[a->v.ndim - 2];
    c->B = c->plan.B, c->H = Hq > Hv ? Hq : Hv;
    c->K = a->q.size[a->q.ndim - 1], c->V = a->v.size[a->v.ndim - 1];
    TRY(check_rule(ctx, c));
    return check_parts(ctx, c);
}

static gdn_status exchange(gdn_ctx *ctx, const struct parallel *c)
{
    const size_t bytes = (size_t)(c->B * c->H * c->K * (c->K + c->V)) * sizeof(float);
    const gdn_status status =
        c->group.all_gather(c->group.user, c->own, c->all, bytes, c->args.stream);
    if (status != GDN_OK)
        return gdn_fail(ctx, status, "all_gather: %s on rank %d of %d", gdn_status_name(status),
                        (int)c->group.rank, (int)c->group.size);
    return GDN_OK;
}

/* No rank reads the map of the last one, which joins the all-gather alone. */
static gdn_status run_summary(gdn_ctx *ctx, const struct parallel *c)
{
    const gdn_summary_args summary_args = summary(c);
    if (is_last(c)) return GDN_OK;
    for (int i = 0; i < N_GATES; i++) {
        const gdn_gates_args gates_args = gates(c, i);
        if (has_gates(c, i)) TRY(gdn_gates_part(ctx, &gates_args));
    }
    return gdn_summary_part(ctx, &summary_args);
}

static gdn_status run(gdn_ctx *ctx, const struct parallel *c)
{
    const gdn_summary_fold_args fold_args = fold(c);
    const gdn_state_copy_args copy_args = begin(c);
    const gdn_rule_args rule_args = prefill(c);
    if (c->group.size > 1) {
        TRY(run_summary(ctx, c));
        TRY(exchange(ctx, c));
    }
    if (c->group.rank > 0) TRY(gdn_summary_fold_part(ctx, &fold_args));
    if (begins(c)) TRY(gdn_state_copy_part(ctx, &copy_args));
    return gdn_prefill_part(ctx, &rule_args);
}

static gdn_status call(gdn_ctx *ctx, const gdn_rule_args *args, const gdn_collective *group,
                       size_t *bytes)
{
    struct parallel c = { 0 };
    void *memory;
    TRY(describe(ctx, args, group, &c));
    const size_t needed = lay_out(&c, NULL);
    if (bytes) {
        *bytes = needed;
        return GDN_OK;
    }
    TRY(ctx->backend->get_workspace(ctx, c.args.workspace, c.args.workspace_bytes, needed,
                                    &memory));
    lay_out(&c, memory);
    return run(ctx, &c);
}

gdn_status gdn_prefill_parallel(gdn_ctx *ctx, const gdn_rule_args *args,
                                const gdn_collective *group)
{
    uint32_t fp;
    TRY(gdn_enter(ctx, &fp));
    return gdn_leave(ctx, fp, call(ctx, args, group, NULL));
}

gdn_status gdn_prefill_parallel_bytes(gdn_ctx *ctx, const gdn_rule_args *args,
                                      const gdn_collective *group, size_t *bytes)
{
    uint32_t fp;
    TRY(gdn_enter(ctx, &fp));
    if (!bytes) return gdn_leave(ctx, fp, gdn_fail(ctx, GDN_E_ARG, "bytes: NULL"));
    *bytes = 0;
    return gdn_leave(ctx, fp, call(ctx, args, group, bytes));
}
