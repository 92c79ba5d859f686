/* SPDX-License-Identifier: Apache-2.0 */
/* The gradients of the rule as the CPU computes them. */
#ifndef GDN_CPU_BACKWARD_H
#define GDN_CPU_BACKWARD_H

#include "calls/backward.h"
#include "cpu/rule.h"

void gdn_backward_sets(struct gdn_backward *w);
size_t gdn_backward_scratch(const struct gdn_backward *w, const struct gdn_kernels *kr);
void gdn_backward_run(gdn_ctx *ctx, const struct gdn_backward *w, void *scratch);

/* ---- Token by token, for chunks of the family that are not finite: tokens.c --------- */

struct gdn_backward_tokens {
    const struct gdn_backward *work;
    const struct gdn_kernels *kr;
    ptrdiff_t ld; /* floats of a row of a state, and of rows of V */
    int rows;
    float *kq, *a, *b, *alpha, *beta, *v, *w, *u; /* of the rows of a chunk */
    float *before, *after, *dout, *du, *dw, *dk, *de, *dg, *e;
};

/* Places its scratch in memory (NULL: nowhere), and returns the bytes. */
size_t gdn_backward_tokens_lay_out(struct gdn_backward_tokens *s, const struct gdn_backward *w,
                                   ptrdiff_t ld, char *memory);
/* Computes the state after n tokens; `to` may be `from`. */
void gdn_backward_tokens_forward(struct gdn_backward_tokens *s, const struct gdn_seq *seq, int head,
                                 int64_t t, int n, const float *from, float *to);
/* J, the gradient of the state after n tokens of a chunk that starts from S, becomes that of S.
 * Adds to dq [n], dk and dv, a row per update, and stores the gradients of gates. */
void gdn_backward_tokens_chunk(struct gdn_backward_tokens *s, const struct gdn_seq *seq, int head,
                               int64_t t0, int n, const float *S, float *J, float *dq, float *dk,
                               float *dv, ptrdiff_t ld_k);

/* ---- Gates of the family: family_store.c ------------------------------------------- */

/* Store or add gradients of a token, and change them in place. dg: [K], of log a. db: [K] or one,
 * of b of update j. dw: of w of update j; w_row is this row of w. */
void gdn_family_store_dg(const struct gdn_backward *w, const struct gdn_kernels *kr,
                         const struct gdn_seq *seq, int head, int64_t t, float *dg);
void gdn_family_store_dbeta(const struct gdn_backward *w, const struct gdn_kernels *kr,
                            const struct gdn_seq *seq, int head, int64_t t, int j, float *db);
void gdn_family_store_dwrite(const struct gdn_backward *w, const struct gdn_kernels *kr,
                             const struct gdn_seq *seq, int head, int64_t t, int j,
                             const float *w_row, float *dw);

/* ---- Rows: rows.c ----------------------------------------------------------------- */

/* Stores n floats in a row of the dtype, or adds them to what is there. x is changed. */
void gdn_backward_store(const struct gdn_kernels *kr, void *row, int32_t dtype, bool adds, float *x,
                        int n);

/* dy, the gradient of y = x / the length of x, becomes that of x, which is a row of the dtype.
 * y: K floats of scratch. */
void gdn_backward_norm(const struct gdn_rule *r, const struct gdn_kernels *kr, const void *x,
                       int32_t dtype, float *dy, float *y);

/* Return the gradients of a given gate of a head, and of a given beta, from those
 * of log a and of beta itself. sums (NULL: not wanted) gets the parts of A_log and dt_bias. */
double gdn_backward_gate(const struct gdn_rule *r, const struct gdn_kernels *kr, const void *g,
                         int head, double dg, double *sums);
double gdn_backward_beta(const struct gdn_rule *r, const struct gdn_kernels *kr, const void *beta,
                         double dbeta);

/* The gradients of the log gates of all K channels of a token become those of the given ones, which
 * are loaded: dg. sums as above. */
void gdn_backward_gate_row(const struct gdn_rule *r, const struct gdn_kernels *kr,
                           const float *given, int head, float *dg, double *sums);

/* Changes dg and dbeta of n tokens of one head: from the gradients of log alpha and beta to the
 * gradients of the given gates. sums (NULL: not wanted) gets the parts of A_log and dt_bias. */
void gdn_backward_gates(const struct gdn_rule *r, const struct gdn_kernels *kr,
                        const struct gdn_seq *seq, int head, int64_t t0, int n, float *dg,
                        float *dbeta, double *sums);

#endif
