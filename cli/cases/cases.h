/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Made-up work of a model's size, for `gdn bench` and `gdn run --all`: the rule, the convolution,
 * the whole layer. Each has a float64 judge for a part of it.
 *
 * q and k have length 1, v is uniform in [-1, 1), beta is sigmoid(x) for x normal. g is of one of
 * five kinds, of which one changes keys and beta too. From some thousand tokens on they repeat. Raw
 * gates: a, b, A_log and dt_bias instead, and q and k are normalised inside the call.
 */
#ifndef CASES_H
#define CASES_H

#include "files/compare.h"
#include "gdn_record.h"
#include "gdn_train.h"
#include "program/memory.h"

/* The sequences of a packed batch. */
struct case_batch {
    int64_t B, N, longest;
    const int64_t *cu_seqlens; /* [B+1] */
};
/* Makes a batch from B lengths. Its memory lives in m. If there is no memory,
 * cu_seqlens is NULL. */
struct case_batch case_batch(struct memory *m, const int64_t *lengths, int64_t B);

/* Log gates, or raw ones. */
enum case_gates {
    CASE_GATES_RECIPE,  /* logsigmoid(x) / 16, and 0 in every fourth head (a memory without end);
                          raw: A_log uniform in [0, 2.7), dt_bias in [-7, -2), a in [-1, 1) */
    CASE_GATES_NONE,    /* 0; raw: exp(A_log) is 0 */
    CASE_GATES_MODEL,   /* A uniform in [0.02, 16), softplus(dt_bias) log-uniform in [0.001, 0.1),
                          a normal */
    CASE_GATES_STRONG,  /* -2 */
    CASE_GATES_TRAINED, /* -0.02 exp(x), x normal; keys of a head have a cosine of 0.93, and beta is
                           sigmoid(3 + x): near 0.95. As reported of a layer of Kimi K3 */
    CASE_GATES_KINDS
};
extern const char *const case_gates_names[CASE_GATES_KINDS];

/* The rule of a case, by the shapes of its gates (gdn.h, "The family"). */
enum case_rule {
    CASE_RULE_GDN,
    CASE_RULE_KDA,     /* g per channel of a key */
    CASE_RULE_GDN2,    /* g and beta per channel, and a write gate */
    CASE_RULE_PRODUCT, /* several updates of a token */
    CASE_RULES
};
extern const char *const case_rule_names[CASE_RULES];

/* The layers of families of models (gdn.h, gdn_block). */
enum case_layer {
    CASE_LAYER_QWEN3_5,
    CASE_LAYER_QWEN3_NEXT,  /* projections fused, in rows by key head */
    CASE_LAYER_OLMO_HYBRID, /* q, k and v apart, beta up to 2 */
    CASE_LAYER_KIMI_LINEAR, /* KDA: q, k and v apart, gates of low rank, a sigmoid of z */
    CASE_LAYERS
};
extern const char *const case_layer_names[CASE_LAYERS];
static inline int case_layer_rule(int layer)
{
    return layer == CASE_LAYER_KIMI_LINEAR ? CASE_RULE_KDA : CASE_RULE_GDN;
}

/* A call of the rule may have more. Fast kernels of a device refuse some of that. */
enum case_call {
    CASE_CALL_PLAIN,
    CASE_CALL_PACKED,      /* sequences by cu_seqlens */
    CASE_CALL_COUNTS,      /* token_count, of all tokens */
    CASE_CALL_INTERLEAVED, /* GDN_HEADS_INTERLEAVED */
    CASE_CALL_SLOTS64,     /* slots of int64 */
    CASE_CALL_KINDS
};
extern const char *const case_call_names[CASE_CALL_KINDS];

struct case_dims {
    int64_t Hq, Hv, K, V; /* heads of k: the smaller of Hq and Hv */
    int64_t D, W;         /* channels and taps of the convolution */
    int64_t entries;      /* of its states; 0: W - 1 */
    int64_t hidden;
    int32_t dtype, state_dtype, state_layout;
    int gates;          /* enum case_gates */
    int rule;           /* enum case_rule: the rule and its gradients; a step: not GDN2, PRODUCT */
    int layer;          /* enum case_layer, which has its own rule */
    double lower_bound; /* of the layer's log gates; 0: none */
    int64_t updates;    /* of a token, of CASE_RULE_PRODUCT; 0 means 2 */
    int call;           /* enum case_call: the rule by rows */
    bool exact;         /* GDN_EXACT: the rule and the layer */
    bool bf16_products; /* GDN_BF16_PRODUCTS: the rule and the layer */
    bool batch_invariant; /* GDN_BATCH_INVARIANT: the rule and the layer */
    bool split;           /* GDN_SPLIT_INVARIANT: prefill, and decode with a record */
    bool no_early_stop;   /* GDN_NO_EARLY_STOP: the rule and the layer */
    bool raw;             /* gates and norms inside the call */
    bool pooled;          /* states in every other slot of a pool, backwards */
    bool each;            /* GDN_WRITE_EACH */
    bool rows;            /* sequences, of one length, as rows of a batch; false: by cu_seqlens */
    bool keep;            /* GDN_PAD_KEEP, the layer */
    bool gated;           /* the step: with the gated norm */
    bool judge_all;       /* the judge follows all tokens, not the first RULE_TOKENS alone */
};

uint32_t case_flags(const struct case_dims *dims);

/* Whether each channel of a key has a gate of its own, and updates of a token. */
static inline bool case_has_channels(const struct case_dims *d)
{
    return d->rule == CASE_RULE_KDA || d->rule == CASE_RULE_GDN2;
}
static inline int64_t case_updates(const struct case_dims *d)
{
    return d->rule != CASE_RULE_PRODUCT ? 1 : d->updates ? d->updates : 2;
}

/* One op with its memory. Not to be moved: args points into it. */
struct rule_case {
    struct memory memory;
    struct case_batch tokens;
    struct case_dims dims;
    gdn_batch batch;
    gdn_rule_args args; /* by tokens, whatever dims.rows says */
    gdn_rule_args call; /* as calls take them */
};
struct conv_case {
    struct memory memory;
    struct case_batch tokens;
    struct case_dims dims;
    gdn_batch batch;
    gdn_conv1d_args args;
};
/* The gradients of a convolution of packed sequences: of all that it reads. */
struct conv_gradient_case {
    struct conv_case conv;
    gdn_conv1d_backward_args args;
};
int conv_gradient_case_make(struct conv_gradient_case *c, const struct case_dims *dims,
                            const int64_t *lengths, int64_t B);
int conv_gradient_case_check(struct conv_gradient_case *c, gdn_ctx *ctx, struct comparison *found);

struct block_case {
    struct memory memory;
    struct case_batch tokens;
    struct case_dims dims;
    gdn_batch batch;
    gdn_tensor qkv, z, b, a; /* the projections of hidden, as Qwen3.5 has them */
    gdn_tensor z_up, a_up;   /* the second projections of low rank; else empty */
    gdn_block_args args;
};

/* The gradients of a layer that starts from zero: of all parameters and of hidden. */
struct layer_gradient_case {
    struct block_case block;
    gdn_tensor counts; /* for the check */
    gdn_block_backward_args args;
};
int layer_gradient_case_make(struct layer_gradient_case *c, const struct case_dims *dims,
                             const int64_t *lengths, int64_t B);
int layer_gradient_case_check(struct layer_gradient_case *c, gdn_ctx *ctx,
                              struct comparison *found);
double layer_gradient_case_flops(const struct layer_gradient_case *c);
double layer_gradient_case_bytes(const struct layer_gradient_case *c);

/* B sequences of T tokens, in slots of their own; convolution states are of the dtype of x. */
struct step_case {
    struct memory memory;
    struct case_dims dims;
    gdn_step_args args;
};
int64_t step_case_channels(const struct case_dims *d); /* of the convolution */
int step_case_make(struct step_case *c, const struct case_dims *dims, int64_t B, int64_t T);
int step_case_check(struct step_case *c, gdn_ctx *ctx, struct comparison *found);
double step_case_state_bytes(const struct step_case *c);
double step_case_bytes(const struct step_case *c);
double step_case_flops(const struct step_case *c);

/* Gates, norms: rows of heads, n_rows tokens. */
struct rows_case {
    struct memory memory;
    struct case_dims dims;
    gdn_op op;
    int64_t n_rows;
    void *args;            /* the struct of the op */
    gdn_tensor tensors[6]; /* those whose bytes count */
    int n_tensors;
};
/* Returns the name of op i of such cases, and sets *op; NULL: there are no more. */
const char *rows_case_op(int i, gdn_op *op);
int rows_case_make(struct rows_case *c, const struct case_dims *dims, gdn_op op, int64_t n_rows);
int rows_case_check(struct rows_case *c, gdn_ctx *ctx, struct comparison *found);
double rows_case_bytes(const struct rows_case *c);

/* The gradients of a rule; the case's own gates, no pool. */
struct gradient_case {
    struct rule_case rule;
    gdn_tensor counts; /* for the check */
    gdn_prefill_backward_args args;
};
int gradient_case_make(struct gradient_case *c, const struct case_dims *dims,
                       const int64_t *lengths, int64_t B);
int gradient_case_check(struct gradient_case *c, gdn_ctx *ctx, struct comparison *found);
/* Runs prefill, which saves states after each `every` tokens, and gradients that begin at these
 * states. every 0: does nothing. Call it after gradient_case_check(). */
int gradient_case_save(struct gradient_case *c, gdn_ctx *ctx, int64_t every);
double gradient_case_flops(const struct gradient_case *c); /* 16 K V per token and head */
double gradient_case_bytes(const struct gradient_case *c);

/* All take B lengths of sequences; CLI_BAD after a line if there is no memory. States are
 * random for the rule and the convolution, zero for the layer. */
int rule_case_make(struct rule_case *c, const struct case_dims *dims, const int64_t *lengths,
                   int64_t B);
int conv_case_make(struct conv_case *c, const struct case_dims *dims, const int64_t *lengths,
                   int64_t B);
int block_case_make(struct block_case *c, const struct case_dims *dims, const int64_t *lengths,
                    int64_t B);

/* State head h of a slot, [V][K], whatever the layout; and the slots that sequence b starts from
 * and ends in. */
void rule_case_state(const struct rule_case *c, int64_t slot, int64_t h, double *state);
int64_t rule_case_start(const struct rule_case *c, int64_t b);
int64_t rule_case_end(const struct rule_case *c, int64_t b);

/*
 * The float64 recurrence over the first n tokens of sequence b, for state head h, from and to
 * `state` [V][K]. Writes its outputs and the library's beside each other, [n][V]. Returns
 * false without memory.
 */
bool rule_case_follow(const struct rule_case *c, int64_t b, int64_t h, int64_t n, double *state,
                      double *want, double *got);

/* The same for rules of the family; head h of a tensor in n rows from `first` on. */
bool family_case_follow(const struct rule_case *c, int64_t b, int64_t h, int64_t n, double *state,
                        double *want, double *got);
/* Describes n tokens of head h of sequence 0 in r, and writes their inputs to x. Returns the end
 * of the inputs. */
struct oracle_family;
double *family_case_inputs(const struct rule_case *c, int64_t h, int64_t n, double *x,
                           struct oracle_family *r);
void case_load_head(double *to, const gdn_tensor *t, int64_t first, int64_t n, int64_t h);
int64_t rule_case_head_of(const struct rule_case *c, int64_t n, int64_t h);

/* The judge in float64 follows so many tokens and heads of sequence 0. */
enum { RULE_TOKENS = 512, RULE_HEADS = 3 };
static inline int64_t rule_case_head(int i, int64_t H) { return i * (H - 1) / (RULE_HEADS - 1); }

/* Runs op once, and compares a part of sequence 0 with float64. Both CLI_BAD after a line. */
int rule_case_check(struct rule_case *c, gdn_ctx *ctx, gdn_op op, struct comparison *found);
int conv_case_check(struct conv_case *c, gdn_ctx *ctx, struct comparison *found);

/* The same for states that are rounded after each token (GDN_EXACT), see cases_exact.c. */
int rule_case_check_tokens(struct rule_case *c, gdn_ctx *ctx, gdn_op op, struct comparison *found);

/* The same for several calls that together have the result of one op. `run` makes them, and returns
 * GDN_OK or the first error. */
typedef gdn_status (*rule_case_run)(struct rule_case *c, gdn_ctx *ctx, void *arg);
int rule_case_check_by(struct rule_case *c, gdn_ctx *ctx, rule_case_run run, void *arg,
                       struct comparison *found);

/* Told after every call of a run. */
struct case_called {
    void (*called)(void *arg);
    void *arg;
};

/* Makes a case whose call accepts its tokens at once. It has states, and records of R rows in
 * the dtype of the inputs, filled to different rows. Returns false without memory. */
bool rule_case_lazy(struct rule_case *c, int64_t R, gdn_rule_args *lazy);

/* Such calls: outputs by the stages of the chunked form, states by gdn_summary and its products.
 * A case in float32 states without gates of its own or a pool; sums: gdn_chunk_cumsum's. */
struct stages_case {
    struct case_called each;
    struct comparison sums;
};
gdn_status stages_case_run(struct rule_case *c, gdn_ctx *ctx, void *stages_case);
/* And: gdn_decode with a record, then gdn_record_commit and gdn_record_fold. */
gdn_status record_case_run(struct rule_case *c, gdn_ctx *ctx, void *case_called);
/* And, with a record that accepts tokens: gdn_decode, then gdn_record_fold; gdn_prefill. */
gdn_status lazy_case_run(struct rule_case *c, gdn_ctx *ctx, void *case_called);
gdn_status lazy_prompt_case_run(struct rule_case *c, gdn_ctx *ctx, void *case_called);
int block_case_check(struct block_case *c, gdn_ctx *ctx, struct comparison *found);

/* ---- Counting, per call ---- */

/* 6 K V per token and head, 4 K V for each further update. In chunks of 64, 4 C (K + V) more for
 * what lies inside a chunk. */
double rule_case_flops(const struct rule_case *c, bool in_chunks);
double rule_case_bytes(const struct rule_case *c);       /* q k v g beta out, states in and out */
double rule_case_state_bytes(const struct rule_case *c); /* B states */
double conv_case_flops(const struct conv_case *c);
double conv_case_bytes(const struct conv_case *c);
double block_case_flops(const struct block_case *c, double *projections);
double block_case_weights(const struct block_case *c); /* numbers of the input projections */
double block_case_bytes(const struct block_case *c);   /* weights, hidden, out, states */

/* ---- For the cases ---- */

/* Returns uniform in [0, 1). */
double case_random(uint64_t *seed);
/* A tensor in `m`, elements uniform in [low, high). */
gdn_tensor case_tensor(struct memory *m, int32_t dtype, int ndim, const int64_t *size, double low,
                       double high);
/* Returns a normal random number. */
double case_normal(uint64_t *seed);
/* A tensor in `m`; draw gives an element of column h of its last dimension. */
typedef double (*case_draw)(const void *arg, int64_t h, uint64_t *seed);
gdn_tensor case_drawn(struct memory *m, int32_t dtype, int ndim, const int64_t *size,
                      case_draw draw, const void *arg);
/* Gates of dims->gates: log gates [N][H]; raw ones [..][H], and what belongs to H heads. Where the
 * rule has channels, all but A_log end with [K]. */
gdn_tensor case_log_gates(struct memory *m, const struct case_dims *dims, const int64_t *size);
gdn_tensor case_raw_gates(struct memory *m, const struct case_dims *dims, int ndim,
                          const int64_t *size);
void case_gate_heads(struct memory *m, const struct case_dims *dims, const int64_t *H,
                     gdn_tensor *A_log, gdn_tensor *dt_bias);
/* Betas in (0, 1); raw: numbers whose sigmoids are such betas. */
gdn_tensor case_betas(struct memory *m, const struct case_dims *dims, int ndim,
                      const int64_t *size);
/* Keys [N][H][K] of length 1, as dims->gates has them. */
gdn_tensor case_keys(struct memory *m, const struct case_dims *dims, const int64_t *size);
/* Make a tensor: of rows of length 1; of slots with any values that a dtype of 8 bits can store. */
gdn_tensor case_unit_rows(struct memory *m, int32_t dtype, const int64_t *size);
gdn_tensor case_codes(struct memory *m, int32_t dtype, const int64_t *size);
static inline bool case_is_q8(int32_t dtype) { return dtype >= GDN_I8 && dtype <= GDN_E5M2; }
double case_bytes(const gdn_tensor *t);
gdn_batch case_gdn_batch(const struct case_batch *tokens);

#endif
