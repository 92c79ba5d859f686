/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients chunk by chunk: what the files of this folder share. An item is a sequence and a set of
 * heads (run.c). A chunk of one head is computed by chunk.c, in the family of gdn.h by family.c.
 *
 * States and all that has columns of V are rows, ld_v apart, so that a state is a matrix on either
 * side of a product.
 */
#ifndef GDN_CPU_BACKWARD_SWEEP_H
#define GDN_CPU_BACKWARD_SWEEP_H

#include "cpu/backward/backward.h"

/* The tokens whose keys are loaded. */
struct gdn_sweep_loaded {
    int hk, hq, n;
    int64_t t;
    bool queries, shared; /* q is loaded too; the head before loaded the same rows */
};

/* State, R and U that the next head works on. NULL: there is none. */
struct gdn_sweep_next {
    const float *S, *R, *U;
};

/* Scratch for vectors of gates: rows of K, ld apart, of the 16 updates of a chunk where nothing
 * else is said. */
struct gdn_sweep_vectors {
    float *a, *b, *e;         /* e = b k */
    float *scaled, *end;      /* e and q by the decays from the start; k to the end */
    float *dq, *de, *dk, *dg; /* gradients of q, e, k and log a */
    float *alpha, *written;   /* [16], as gdn_family_load_gates() has them */
    float *decays, *carried;  /* [K]: of the chunk; gradients of these */
};

/* Scratch of one thread; all 64-byte aligned. */
struct gdn_sweep {
    const struct gdn_backward *w;
    const struct gdn_kernels *kr;
    const struct gdn_seq *seq;
    struct gdn_sweep_loaded loaded;
    struct gdn_sweep_next next;
    int set, n_strips;
    int64_t segment; /* chunks */
    bool saved;      /* segments begin at checkpoints */
    ptrdiff_t ld, ld_v;
    size_t state;                      /* floats of a state */
    int chunk;                         /* tokens */
    struct gdn_sweep_vectors f;        /* of the family */
    struct gdn_backward_tokens tokens; /* for chunks of the family that are not finite */
    float *kq, *kqt;                   /* [32][ld], rows of k, then of q; kqt: the same by
                                          columns */
    float *gram, *ones, *unit;         /* [32][16]; filled with 1: [32][16], [32] */
    float *A, *B, *decay, *unused;     /* [16][16] */
    float *mixed;                      /* [16][32] */
    float *start, *end, *g, *beta;     /* [16] */
    float *p, *v, *r, *u;              /* [16][ld_v] */
    float *dz, *x;                     /* [32][ld_v]: dO, Z; what J gets of k, q */
    float *ut, *xt, *dots;             /* [V][16], [V][32], [32][16] */
    float *by, *rows;                  /* [K][32]: dK, dQ; as rows */
    float *S, *J, *strip, *column;     /* states of every head of the set */
    float *first, *states, *R, *U;     /* of segments; of the chunks of one */
    float *dq, *dk, *dv;               /* of a chunk: sums over the heads that share q, k or v */
};

/* A chunk or a piece of one, of one head: n tokens from token t on. */
struct gdn_sweep_chunk {
    int head, n;
    int64_t t;
    float *R, *U;        /* of its tokens */
    float *dq, *dk, *dv; /* what the gradients are added to; ld and ld_v apart */
};

/* ---- load.c -------------------------------------------------------------------------------- */

/* Prefetches the i-th of n parts of the rows of the chunk at token t, if the chunk is there. */
void gdn_sweep_prefetch(const struct gdn_sweep *s, const struct gdn_rows *rows, int head, int D,
                        int64_t t, int i, int n);
/* Prefetches the i-th of n parts of the rows of the next chunk. */
void gdn_sweep_prefetch_next(const struct gdn_sweep *s, int i, int n);
/* Loads rows of n tokens. Rows after them, and rows where `but` (may be NULL) is zero, are zero. */
void gdn_sweep_load_v(const struct gdn_sweep *s, float *to, const struct gdn_rows *rows, int64_t t,
                      int n, int head, const float *but);
/* Returns true if keys and queries of these n tokens are loaded. If not, it notes that the
 * caller loads them now. */
bool gdn_sweep_has_keys(struct gdn_sweep *s, int head, int64_t t, int n, bool queries);
/* Loads keys of n tokens and computes their products, unless a head before has done so. */
void gdn_sweep_load_keys(struct gdn_sweep *s, int head, int64_t t, int n, bool queries);

/* ---- chunk.c ------------------------------------------------------------------------------- */

/* Computes R and U of a chunk, and the state after it. `to` may be `from`. */
void gdn_sweep_forward(struct gdn_sweep *s, const struct gdn_sweep_chunk *x, const float *from,
                       float *to);
/* J, the gradient of the state after a chunk that starts from S, becomes that of S. Adds to dq, dk
 * and dv, and stores the gradients of gates. */
void gdn_sweep_backward(struct gdn_sweep *s, const struct gdn_sweep_chunk *x, const float *S,
                        float *J);
/* The same for J alone, which does not depend on any state. */
void gdn_sweep_state(struct gdn_sweep *s, const struct gdn_sweep_chunk *x, float *J);

/* ---- family.c: the same for the family ----------------------------------------------------- */

void gdn_sweep_family_forward(struct gdn_sweep *s, const struct gdn_sweep_chunk *x,
                              const float *from, float *to);
void gdn_sweep_family_backward(struct gdn_sweep *s, const struct gdn_sweep_chunk *x, const float *S,
                               float *J);
void gdn_sweep_family_state(struct gdn_sweep *s, const struct gdn_sweep_chunk *x, float *J);

#endif
