/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_80 batch --every=4 */
/*
 * gdn_block_backward against the chain rule in float64 over the oracle's pieces, which finite
 * differences of the forward model judge; and its guarantees by name.
 */
#include "block_gradients.h"

/* ---- Calls ---- */

/* in_proj_qkvz; in_proj_qkv; in_proj_q and the others; those, of KDA, with low ranks; KDA without,
 * whose gates have a bound. */
enum form { GROUPED, JOINED, APART, KDA, KDA_BOUND };

struct kind {
    int32_t dtype, weights, states, layout;
    enum form form;
    int64_t conv_rows;
    int32_t activation, beta_kind;
};

static const struct kind kinds[] = {
    { GDN_F32, GDN_F32, GDN_F32, GDN_STATE_VK, GROUPED, 3, 0, 0 },
    { GDN_F32, GDN_F32, GDN_BF16, GDN_STATE_KV, JOINED, 4, 0, 0 },
    { GDN_BF16, GDN_BF16, GDN_F32, GDN_STATE_VK, GROUPED, 4, 0, 0 },
    { GDN_F16, GDN_BF16, GDN_F16, GDN_STATE_KV, JOINED, 3, 0, 0 },
    { GDN_F32, GDN_F32, GDN_F32, GDN_STATE_VK, GROUPED, 3, GDN_ACT_SIGMOID, 0 },
    { GDN_F32, GDN_F32, GDN_F32, GDN_STATE_VK, JOINED, 3, 0, GDN_BETA_TWICE_SIGMOID },
    { GDN_BF16, GDN_BF16, GDN_F32, GDN_STATE_VK, JOINED, 3, GDN_ACT_SIGMOID,
      GDN_BETA_TWICE_SIGMOID },
    { GDN_F32, GDN_F32, GDN_F32, GDN_STATE_VK, APART, 3, 0, GDN_BETA_TWICE_SIGMOID },
    { GDN_F32, GDN_F32, GDN_F32, GDN_STATE_VK, KDA, 3, GDN_ACT_SIGMOID, 0 },
    { GDN_BF16, GDN_BF16, GDN_F32, GDN_STATE_KV, KDA, 4, GDN_ACT_SIGMOID, 0 },
    { GDN_F32, GDN_F32, GDN_F32, GDN_STATE_KV, KDA_BOUND, 3, 0, 0 },
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static gdn_tensor filled(int32_t dtype, double size, int64_t a, int64_t b, int64_t c, int64_t d)
{
    gdn_tensor t = ring2_new(dtype, 0, d ? 4 : c ? 3 : b ? 2 : 1, a, b, c, d);
    ring2_fill(&t, -size, size);
    return t;
}

static void give_projections(args *a, const struct kind *k)
{
    const int32_t w = k->weights;
    const int64_t z_in = k->form == KDA ? 8 : HIDDEN, a_in = k->form == KDA ? 24 : HIDDEN;
    if (k->form == GROUPED) {
        a->in_proj_qkvz = filled(w, 0.4, D + HV * V, HIDDEN, 0, 0);
        a->in_proj_ba = filled(w, 0.4, 2 * HV, HIDDEN, 0, 0);
        return;
    }
    if (k->form == JOINED) {
        a->in_proj_qkv = filled(w, 0.4, D, HIDDEN, 0, 0);
    } else {
        a->in_proj_q = filled(w, 0.4, HK * K, HIDDEN, 0, 0);
        a->in_proj_k = filled(w, 0.4, HK * K, HIDDEN, 0, 0);
        a->in_proj_v = filled(w, 0.4, HV * V, HIDDEN, 0, 0);
    }
    if (k->form == KDA) {
        a->in_proj_z_down = filled(w, 0.4, z_in, HIDDEN, 0, 0);
        a->in_proj_a_down = filled(w, 0.4, a_in, HIDDEN, 0, 0);
    }
    a->in_proj_z = filled(w, 0.4, HV * V, z_in, 0, 0);
    a->in_proj_b = filled(w, 0.4, HV, HIDDEN, 0, 0);
    a->in_proj_a = filled(w, 0.4, k->form < KDA ? HV : HV * K, a_in, 0, 0);
    a->conv_bias = filled(w, 0.1, D, 0, 0, 0);
}

static void give_weights(args *a, const struct kind *k)
{
    const int32_t w = k->weights;
    give_projections(a, k);
    a->conv_weight = filled(w, 0.5, D, W, 0, 0);
    a->A_log = filled(GDN_F32, 1, HV, 0, 0, 0);
    a->dt_bias = filled(w, 1, HV, k->form < KDA ? 0 : K, 0, 0);
    if (k->form == KDA_BOUND) a->gate_lower_bound = -5;
    a->norm_weight = filled(w, 2, V, 0, 0, 0);
    a->out_proj = filled(w, 0.2, HIDDEN, HV * V, 0, 0);
}

/* N tokens, or B rows of N. S: sequences, that have states; 0: none has. */
static args make_call(const struct kind *k, int64_t B, int64_t N, int64_t S)
{
    const bool kv = k->layout == GDN_STATE_KV;
    args a = gdn_block_backward_args_init();
    a.hidden = ring2_new(k->dtype, 3, B ? 3 : 2, B ? B : N, B ? N : HIDDEN, HIDDEN, 0);
    a.dout = ring2_new(k->dtype, 5, B ? 3 : 2, B ? B : N, B ? N : HIDDEN, HIDDEN, 0);
    ring2_fill(&a.hidden, -1, 1);
    ring2_fill(&a.dout, -1, 1);
    give_weights(&a, k);
    if (S) {
        a.conv_state = filled(k->states, 1, S, D, k->conv_rows, 0);
        a.dconv_state_out = filled(k->states, 0.5, S, D, k->conv_rows, 0);
        a.state = filled(k->states, 0.5, S, HV, kv ? K : V, kv ? V : K);
        a.dstate_out = filled(k->states, 0.5, S, HV, kv ? K : V, kv ? V : K);
    }
    a.n_key_heads = HK, a.n_value_heads = HV, a.key_head_dim = K, a.value_head_dim = V;
    a.state_layout = k->layout;
    a.activation = k->activation, a.beta_kind = k->beta_kind;
    return a;
}

/* Asks for the gradients of all given tensors, with random content. */
static void want_all(args *a)
{
    for (int i = 0; i < N_GRADIENTS; i++) {
        gdn_tensor *t = gradient_of(a, i);
        if (!source_of(a, i)->data) continue;
        *t = ring2_clone(source_of(a, i));
        if (i != GHIDDEN) {
            const gdn_tensor like = *source_of(a, i);
            *t = ring2_new(GDN_F32, 0, like.ndim, like.size[0], like.ndim > 1 ? like.size[1] : 0,
                           like.ndim > 2 ? like.size[2] : 0, like.ndim > 3 ? like.size[3] : 0);
        }
        ring2_fill(t, -1, 1);
    }
}

static args clone(const args *a)
{
    args b = *a;
    for (int i = 0; i < N_GRADIENTS; i++)
        if (gradient_of(&b, i)->data) *gradient_of(&b, i) = ring2_clone(gradient_of(&b, i));
    return b;
}

static void call(gdn_ctx *ctx, const args *a)
{
    ring2_status(ctx, "gdn_block_backward", gdn_block_backward(ctx, a), GDN_OK);
}

enum { MOVED = 16 };

/* Returns the effect of rounding on the way, as a root mean square: zero if all is float32. */
static struct gradients noise_of(args *a, const struct gradients *g)
{
    struct oracle_noise noise = { .dtype = a->hidden.dtype };
    const bool none = !ring2_on_device() || a->hidden.dtype == GDN_F32;
    struct gradients all;
    for (int i = 0; i < N_GRADIENTS; i++) all.of[i] = numbers(count_of(a, i));
    for (int run = 0; !none && run < MOVED; run++) {
        const struct gradients moved = make_gradients(a, &noise);
        for (int i = 0; i < N_GRADIENTS; i++)
            for (int64_t j = 0; j < count_of(a, i); j++)
                all.of[i][j] = hypot(all.of[i][j], (moved.of[i][j] - g->of[i][j]) / sqrt(MOVED));
    }
    return all;
}

/* In float32 twice the project's limit for the layer, relative to a tensor's root mean square: what
 * goes back has the errors of the forward steps and its own. A rounding error of v - S^T k comes
 * times beta, so the limit has its largest value, 1 or 2, as a factor. Where 16 bits pass from step
 * to step, 6 times the noise beside it: that of the element, and the tensor's, as the runs are
 * few. */
static void compare_gradient(args *a, int i, const double *want, const double *noise,
                             const double *old)
{
    const gdn_tensor *t = gradient_of(a, i);
    const int64_t n = ring2_count(t);
    double *value = numbers(n), *limit = numbers(n), sum = 0, moved = 0;
    for (int64_t j = 0; j < n; j++) {
        sum += want[j] * want[j] / (double)n;
        moved += noise[j] * noise[j] / (double)n;
    }
    for (int64_t j = 0; j < n; j++) {
        value[j] = want[j] + old[j];
        limit[j] = 4e-5 * most_beta(a) * sqrt(sum) + 1e-6 + 6 * (noise[j] + sqrt(moved)) +
                   oracle_half_ulp(t->dtype, value[j]);
    }
    ring2_compare(names[i], t, value, limit, NULL, NULL);
}

static void check_call(gdn_ctx *ctx, args *a)
{
    struct gradients g = make_gradients(a, NULL), noise = noise_of(a, &g);
    double *old[N_GRADIENTS];
    for (int i = 0; i < N_GRADIENTS; i++)
        old[i] = !gradient_of(a, i)->data    ? NULL
                 : a->flags & GDN_ACCUMULATE ? ring2_doubles(gradient_of(a, i))
                                             : numbers(ring2_count(gradient_of(a, i)));
    ring2_status(ctx, "gdn_supported", gdn_supported(ctx, GDN_OP_BLOCK_BACKWARD, a), GDN_OK);
    ring2_call_begin();
    for (int i = 0; i < N_GRADIENTS; i++) ring2_may_write(gradient_of(a, i));
    ring2_may_write_bytes(a->workspace, a->workspace_bytes);
    call(ctx, a);
    ring2_call_end();
    for (int i = 0; i < N_GRADIENTS && !ring2_failed(); i++)
        if (gradient_of(a, i)->data) compare_gradient(a, i, g.of[i], noise.of[i], old[i]);
}

/* ---- Tests ---- */

static gdn_batch packed(int n, const int64_t *lengths)
{
    int64_t cu[9] = { 0 };
    gdn_batch t = gdn_batch_init();
    for (int i = 0; i < n; i++) cu[i + 1] = cu[i] + lengths[i];
    t.cu_seqlens = ring2_indices(GDN_I32, n + 1, cu);
    return t;
}

/* Three tokens of the tensors belong to no sequence. On a device, which takes long here, a part. */
static void packed_batch(void)
{
    static const int64_t lengths[5] = { 20, 0, 1, 9, 66 };
    for (int i = 0; i < 2 * N_KINDS; i += ring2_on_device() ? 3 : 1) {
        gdn_batch t = packed(5, lengths);
        args a = make_call(&kinds[i / 2], 0, 99, i & 1 ? 0 : 5);
        a.batch = &t;
        want_all(&a);
        a.flags = (i & 1 ? GDN_ACCUMULATE : 0) | (i / 2 == 1 ? GDN_EXACT : 0);
        check_call(ring2_ctx(1 + i % 3), &a);
    }
}

/* Tokens that do not count hold NaN. */
static void padded_batch_with_masks(void)
{
    static const int64_t starts[3] = { 3, 0, 6 }, counts[3] = { 9, 5, 0 };
    for (int i = 0; i < N_KINDS; i++) {
        gdn_batch t = gdn_batch_init();
        args a = make_call(&kinds[i], 3, 12, 3);
        t.token_start = ring2_indices(GDN_I32, 3, starts);
        t.token_count = ring2_indices(GDN_I64, 3, counts);
        a.batch = &t;
        for (int64_t row = 0; row < 36; row++) {
            const int64_t b = row / 12, n = row % 12 - starts[b];
            for (int64_t j = 0; (n < 0 || n >= counts[b]) && j < HIDDEN; j++) {
                ring2_set(&a.hidden, row * HIDDEN + j, (double)NAN);
                ring2_set(&a.dout, row * HIDDEN + j, (double)NAN);
            }
        }
        want_all(&a);
        a.flags = i & 1 ? GDN_ACCUMULATE : 0;
        check_call(ring2_ctx(2), &a);
    }
}

/* A gradient that is asked for alone has the same bits as among all. */
static void gradients_alone(void)
{
    args all = make_call(&kinds[1], 0, 40, 1), before;
    want_all(&all);
    before = clone(&all);
    call(ring2_ctx(2), &all);
    for (int i = 0; i < N_GRADIENTS; i++) {
        args one = before;
        if (!gradient_of(&one, i)->data) continue;
        for (int j = 0; j < N_GRADIENTS; j++)
            if (j != i) gradient_of(&one, j)->data = NULL;
        call(ring2_ctx(2), &one);
        ring2_expect_bits(names[i], gradient_of(&one, i), gradient_of(&all, i));
    }
}

/* ---- The oracle ---- */

/* Multiples of 2^-12, to which a step can be added without rounding. */
static void coarsen(const gdn_tensor *t)
{
    for (int64_t i = 0; t->data && i < ring2_count(t); i++)
        ring2_set(t, i, rint(ring2_get(t, i) * 4096) / 4096);
}

static double loss(const args *a)
{
    gdn_block_args f = forward_of(a);
    struct model m;
    double sum = 0;
    run_model(&f, NULL, &m);
    for (int64_t i = 0; i < m.out.n; i++) sum += m.out.want[i] * ring2_get(&a->dout, i);
    for (int64_t i = 0; i < m.state.n; i++) sum += m.state.want[i] * ring2_get(&a->dstate_out, i);
    for (int64_t i = 0; i < m.conv.n; i++)
        sum += m.conv.want[i] * ring2_get(&a->dconv_state_out, i);
    return sum;
}

/* Moves a tensor along a direction of ones and minus ones, which `seed` gives. */
static void step_along(const gdn_tensor *t, uint64_t seed, double by)
{
    for (int64_t i = 0; i < ring2_count(t); i++) {
        ring2_set(t, i, ring2_get(t, i) + (seed >> 63 ? by : -by));
        seed = seed * 6364136223846793005u + 1442695040888963407u;
    }
}

static double difference(const args *a, const gdn_tensor *t, uint64_t seed, double h)
{
    step_along(t, seed, h);
    const double above = loss(a);
    step_along(t, seed, -2 * h);
    const double below = loss(a);
    step_along(t, seed, h);
    return (above - below) / (2 * h);
}

static void finite_differences(void)
{
    static const enum form forms[] = { GROUPED, JOINED, APART, KDA, KDA_BOUND };
    for (size_t n = 0; n < sizeof forms / sizeof *forms; n++) {
        struct kind k = kinds[0];
        k.form = forms[n];
        args a = make_call(&k, 0, 7, 1);
        for (int i = 0; i < N_GRADIENTS; i++) coarsen(source_of(&a, i));
        const struct gradients g = make_gradients(&a, NULL);
        for (int i = 0; i < N_GRADIENTS; i++) {
            const gdn_tensor *t = source_of(&a, i);
            if (!t->data) continue;
            for (uint64_t seed = 1; seed <= 2; seed++) {
                gdn_tensor signs = ring2_clone(t);
                double along = 0, size = 0;
                const double h = 0x1p-11, wide = difference(&a, t, seed << 60, h);
                const double narrow = difference(&a, t, seed << 60, h / 2);
                ring2_fill_value(&signs, 0);
                step_along(&signs, seed << 60, 1);
                for (int64_t j = 0; j < ring2_count(t); j++) {
                    along += ring2_get(&signs, j) * g.of[i][j];
                    size += g.of[i][j] * g.of[i][j];
                }
                const double seen = (4 * narrow - wide) / 3;
                CHECK(fabs(along - seen) <= 1e-6 * sqrt(size), "%s: %.9g, seen %.9g of %.3g",
                      names[i], along, seen, sqrt(size));
            }
        }
    }
}

/* Without tokens sums are zero, and gradients of states are those that were given. */
static void no_tokens(void)
{
    static const int64_t lengths[2] = { 0, 0 };
    gdn_batch t = packed(2, lengths);
    args a = make_call(&kinds[0], 0, 0, 2);
    a.batch = &t;
    want_all(&a);
    check_call(ring2_ctx(1), &a);
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "finite differences", finite_differences },
        { "packed batch", packed_batch },
        { "padded batch with masks", padded_batch_with_masks },
        { "gradients alone", gradients_alone },
        { "no tokens", no_tokens },
    };
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
