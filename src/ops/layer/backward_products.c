/* SPDX-License-Identifier: Apache-2.0 */
/* The matrix products of gdn_block_backward: of the forward, of the output, of the way back. */
#include "ops/layer/backward.h"

/* A weight of the projections, which may be absent: its columns of q, k, v, z or of b, a, in its
 * order. Of low rank, it projects `low`, which `down` makes of hidden. */
struct projection {
    const gdn_tensor *weight, *gradient;
    bool of_gates;
    int64_t first;
    const gdn_tensor *down, *ddown;
    char *low;
};
enum { N_PROJECTIONS = 9 };

static struct projection projection_of(const struct gdn_layer_backward *c, int i)
{
    static const gdn_tensor none = { .data = NULL };
    const gdn_block_backward_args *a = &c->args;
    const int64_t keys = c->Hk * c->K;
    char *const *low = c->m.low;
    const struct projection all[N_PROJECTIONS] = {
        { &a->in_proj_qkvz, &a->din_proj_qkvz, false, 0, &none, &none, NULL },
        { &a->in_proj_ba, &a->din_proj_ba, true, 0, &none, &none, NULL },
        { &a->in_proj_qkv, &a->din_proj_qkv, false, 0, &none, &none, NULL },
        { &a->in_proj_q, &a->din_proj_q, false, 0, &none, &none, NULL },
        { &a->in_proj_k, &a->din_proj_k, false, keys, &none, &none, NULL },
        { &a->in_proj_v, &a->din_proj_v, false, 2 * keys, &none, &none, NULL },
        { &a->in_proj_z, &a->din_proj_z, false, c->D, &a->in_proj_z_down, &a->din_proj_z_down,
          low[0] },
        { &a->in_proj_b, &a->din_proj_b, true, 0, &none, &none, NULL },
        { &a->in_proj_a, &a->din_proj_a, true, c->Hv, &a->in_proj_a_down, &a->din_proj_a_down,
          low[1] },
    };
    return all[i];
}

static struct gdn_matrix matrix_of(const gdn_tensor *t)
{
    return (struct gdn_matrix){ t->data, t->dtype, t->size[0] > 1 ? t->stride[0] : t->size[1], 1 };
}

static struct gdn_matrix turned(struct gdn_matrix m)
{
    const int64_t row = m.row;
    m.row = m.column, m.column = row;
    return m;
}

/* Returns the rows of a projection, before they are in the order of heads. */
static struct gdn_matrix projected(const struct gdn_layer_backward *c, const struct projection *p)
{
    if (p->of_gates)
        return gdn_layer_matrix(c->fused ? (void *)c->m.woven_gates : c->m.gates, GDN_F32,
                                c->n_gates, p->first);
    return gdn_layer_matrix(c->fused ? c->m.woven : c->m.y, c->dtype, c->qkvz, p->first);
}

/* Its gradient, in the order of the weight's rows. */
static struct gdn_matrix projected_gradient(const struct gdn_layer_backward *c,
                                            const struct projection *p)
{
    const bool moved = c->fused || c->dtype != GDN_F32;
    if (p->of_gates)
        return gdn_layer_matrix(moved ? (void *)c->m.woven_gates : c->m.dgates, c->dtype,
                                c->n_gates, p->first);
    return gdn_layer_matrix(c->fused ? c->m.woven : c->m.dy, c->dtype, c->qkvz, p->first);
}

/* Adds a product to those of the call. */
static void add(struct gdn_layer_backward *c, struct gdn_matrix out, struct gdn_matrix a,
                struct gdn_matrix b, const int64_t size[3], bool adds)
{
    struct gdn_matrix_product *p = &c->base.products.all[c->base.products.n++];
    *p = (struct gdn_matrix_product){ out, a, b, size[0], size[1], size[2], adds, 0 };
}

/* Multiplies n columns of every token by a weight. */
static void apply(struct gdn_layer_backward *c, const gdn_tensor *weight, struct gdn_matrix from,
                  struct gdn_matrix to)
{
    const int64_t size[] = { c->N, weight->size[0], weight->size[1] };
    add(c, to, from, matrix_of(weight), size, false);
}

static struct gdn_matrix low_of(const struct gdn_layer_backward *c, const struct projection *p,
                                char *buffer)
{
    return gdn_layer_matrix(buffer, c->dtype, p->down->size[0], 0);
}

static void list_forward(struct gdn_layer_backward *c)
{
    for (int i = 0; i < N_PROJECTIONS; i++) {
        const struct projection p = projection_of(c, i);
        struct gdn_matrix x = gdn_layer_matrix(c->m.x, c->dtype, c->hidden, 0);
        if (!p.weight->data) continue;
        if (p.down->data) {
            const struct gdn_matrix low = low_of(c, &p, p.low);
            apply(c, p.down, x, low);
            x = low;
        }
        apply(c, p.weight, x, projected(c, &p));
    }
}

/* dn = dout out_proj, dout_proj = dout^T n. */
static void list_output(struct gdn_layer_backward *c)
{
    const gdn_tensor *w = &c->args.out_proj, *dw = &c->args.dout_proj;
    const struct gdn_matrix dout = gdn_layer_matrix(c->m.dout, c->dtype, c->hidden, 0);
    const struct gdn_matrix n = gdn_layer_matrix(c->m.n, c->dtype, c->VV, 0);
    const int64_t back[] = { c->N, c->VV, c->hidden }, sum[] = { c->hidden, c->VV, c->N };
    add(c, gdn_layer_matrix(c->m.dn, c->dtype, c->VV, 0), dout, turned(matrix_of(w)), back, false);
    if (dw->data) add(c, matrix_of(dw), turned(dout), turned(n), sum, c->adds);
}

/* A weight and its gradient; the rows that the weight multiplied; the gradients of its outputs
 * (dy) and of its inputs (dx). */
struct step_back {
    const gdn_tensor *weight, *gradient;
    struct gdn_matrix x, dy, dx;
    bool wants_dx, adds_dx;
};

static void go_back(struct gdn_layer_backward *c, const struct step_back *s)
{
    const int64_t n = s->weight->size[0], width = s->weight->size[1];
    const int64_t back[] = { c->N, width, n }, sum[] = { n, width, c->N };
    if (s->wants_dx) add(c, s->dx, s->dy, turned(matrix_of(s->weight)), back, s->adds_dx);
    if (s->gradient->data)
        add(c, matrix_of(s->gradient), turned(s->dy), turned(s->x), sum, c->adds);
}

static void list_backward(struct gdn_layer_backward *c)
{
    struct step_back s = { .x = gdn_layer_matrix(c->m.x, c->dtype, c->hidden, 0),
                           .dx = gdn_layer_matrix(c->m.dx, GDN_F32, c->hidden, 0),
                           .wants_dx = c->args.dhidden.data };
    for (int i = 0; i < N_PROJECTIONS; i++) {
        const struct projection p = projection_of(c, i);
        if (!p.weight->data) continue;
        s.weight = p.weight, s.gradient = p.gradient, s.dy = projected_gradient(c, &p);
        if (p.down->data) {
            struct step_back up = s;
            up.x = low_of(c, &p, p.low), up.dx = low_of(c, &p, c->m.dlow);
            up.wants_dx = s.wants_dx || p.ddown->data, up.adds_dx = false;
            go_back(c, &up);
            s.weight = p.down, s.gradient = p.ddown, s.dy = up.dx;
        }
        go_back(c, &s);
        s.adds_dx = true;
    }
}

void gdn_layer_list_products(struct gdn_layer_backward *c)
{
    int *const n = &c->base.products.n;
    *n = c->first[GDN_LAYER_FORWARD] = 0;
    list_forward(c);
    c->first[GDN_LAYER_OUTPUT] = *n;
    list_output(c);
    c->first[GDN_LAYER_BACKWARD] = *n;
    list_backward(c);
    c->first[GDN_LAYER_PHASES] = *n;
}

void gdn_layer_move_products(struct gdn_layer_backward *c, char *memory)
{
    for (int i = 0; i < c->base.products.n; i++) {
        struct gdn_matrix_product *p = &c->base.products.all[i];
        struct gdn_matrix *const matrices[] = { &p->out, &p->a, &p->b };
        for (int j = 0; j < 3; j++) {
            const uintptr_t place = (uintptr_t)matrices[j]->data - GDN_LAYER_NOWHERE;
            if (place < c->base.call.bytes) matrices[j]->data = memory + place;
        }
    }
}
