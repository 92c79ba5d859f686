/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One file as one call: the tensors and metadata of a safetensors file, made into the argument
 * struct of an op, run, and compared with the file's expected tensors.
 */
#ifndef JOB_H
#define JOB_H

#include "files/compare.h"
#include "gdn_train.h"
#include "program/memory.h"
#include "program/safetensors.h"

struct job_output {
    const char *name; /* "output", "final_state", ... */
    gdn_tensor got;
    const gdn_tensor *want; /* NULL: the file does not say */
    bool is_gradient, of_gate;
    int32_t dtype; /* of a gradient: that of the activations */
    struct comparison judged;
};

/* A part of the work that is timed alone. */
struct job_phase {
    const char *name;
    int64_t tokens;
    double seconds;
    char kernel[640]; /* what ran */
};

enum { JOB_OUTPUTS = 24 }; /* at most */

struct job {
    struct st_file file;
    struct memory memory; /* outputs, states */
    const struct job_kind *kind;
    int32_t precision; /* least exact dtype of activations and state */

    union {
        gdn_rule_args rule;
        gdn_conv1d_args conv1d;
        gdn_gates_args gates;
        gdn_l2norm_args l2norm;
        gdn_rmsnorm_gated_args rmsnorm_gated;
        gdn_block_args block;
    } args;
    union {
        gdn_prefill_backward_args rule;
        gdn_block_backward_args block;
    } gradients; /* of args */
    gdn_batch batch;

    struct job_output outputs[JOB_OUTPUTS];
    int n_outputs;
    gdn_tensor pool;       /* dense; updated in place by the call: an output */
    const void *pool_from; /* the contents of the pool before the call; NULL: zeros */
    bool keep;             /* outputs are zero before the call, and may stay so */

    struct job_phase phases[2];
    int n_phases;
    int64_t prefill_tokens; /* of a layer; the rest goes token by token */
    char prompt[80];        /* the text that a layer's tokens spell; "": none */
};

/* An op as files name it. */
struct job_kind {
    const char *name;
    gdn_op op;
    const char *const *tensors;  /* that a file may hold, NULL at the end */
    const char *const *metadata; /* that a file may hold; "op" is always allowed */
    /* Fills args, outputs and pool. */
    int (*prepare)(struct job *job);
    /* Runs once, fills phases. */
    int (*compute)(struct job *job, gdn_ctx *ctx);
};

extern const struct job_kind job_prefill, job_decode, job_layer, job_conv1d, job_gates, job_l2norm,
    job_rmsnorm_gated, job_prefill_backward, job_layer_backward;

/* Reads the file, computes, compares. CLI_OK, CLI_OUTSIDE, or CLI_BAD after its line. */
int job_run(struct job *job, gdn_ctx *ctx, const char *path);
void job_close(struct job *job);

/* ---- For the kinds ---- */

/* The file's tensor as a view; absent (data NULL) if it has none. */
gdn_tensor job_tensor(const struct job *job, const char *name);
/* Finds a tensor that the file may give under two names; a file with both is an error. Without
 * any, *found stays absent. */
int job_either(const struct job *job, const char *a, const char *b, gdn_tensor *found);
/* Refuses if absent. */
int job_need(const struct job *job, const gdn_tensor *t, const char *name);

/* Read metadata into *value: choice, the index of one of `names` (NULL at the end); number, a
 * number. If the key is absent, *value stays. */
int job_choice(const struct job *job, const char *key, const char *const *names, int32_t *value);
/* The same for an enumeration whose 0 is the default of an op: the names are of 1, 2, ... */
int job_formula(const struct job *job, const char *key, const char *const *names, int32_t *value);
int job_number(const struct job *job, const char *key, float *value);

/* Fills job->batch from read_slots, write_slots, ..., pad_policy, ... */
int job_batch(struct job *job);

/* Adds an output of these sizes. It is compared with expected.<name> of the file, which must
 * have the same sizes. alias: another name for that; NULL: none. */
int job_output(struct job *job, const char *name, const char *alias, gdn_tensor got);
/* Such an output in new memory. */
int job_new_output(struct job *job, const char *name, int32_t dtype, int ndim, const int64_t *size,
                   gdn_tensor *made);
/* Adds the gradient of a tensor, with its sizes; A: the dtype of activations. If the tensor is
 * absent, there is none. */
int job_gradient(struct job *job, const char *name, int32_t dtype, const gdn_tensor *of,
                 bool of_gate, int32_t A, gdn_tensor *made);
/* Adds a gradient whose memory is given. */
int job_gradient_at(struct job *job, const char *name, gdn_tensor at, bool of_gate, int32_t A);
/* The pool of states: starts as `from`, or, absent, as zeros of these sizes. An output. */
int job_pool(struct job *job, const char *name, const char *alias, const gdn_tensor *from, int ndim,
             const int64_t *size);

/* Runs one call of the op, as the phase `name`. */
int job_call(struct job *job, gdn_ctx *ctx, struct job_phase *phase, const char *name,
             int64_t tokens);
/* Runs one call of another op. */
int job_call_op(struct job *job, gdn_ctx *ctx, gdn_op op, const void *args, struct job_phase *phase,
                const char *name, int64_t tokens);

#endif
