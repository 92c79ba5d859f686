/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches: made from the levels of the factors that every op with states has, and read back
 * as gdn.h describes them, for the models of the ops.
 */
#ifndef RING2_BATCH_H
#define RING2_BATCH_H

#include "ring2.h"

/* ---- Making ---- */

enum { BATCH, LENGTHS, TAIL, VIEW, SLOTS, INITIAL, COUNT, ACCEPT, PAD, WRITE, N_BATCH_FACTORS };

enum { PACKED_I32, PACKED_I64, PLAIN, PADDED };                                   /* BATCH */
enum { DENSE, GAPS, FUSED, REVERSED };                                            /* VIEW */
enum { NO_STATE, IN_PLACE, SEPARATE, OUT_ONLY, READ, READ_WRITE, READ_SEPARATE }; /* SLOTS */
enum { NO_PAD, PAD_ZERO, PAD_KEEP, PAD_SINK };                                    /* PAD */
/* WRITE is gdn_write. */

struct ring2_factor {
    int n;
    const char *name[RING2_MAX_LEVELS];
};
extern const struct ring2_factor ring2_batch_factors[N_BATCH_FACTORS];

/* Returns true if two levels do not go together, in this order. */
bool ring2_batch_clash(int i, int a, int j, int b);

/* "bf16 padded ...": the names of a row of levels; the batch's factors first, then n others. */
void ring2_name_case(const int *level, const struct ring2_factor *others, int n, char *name,
                     size_t bytes);

struct ring2_batch {
    const int *level;
    int64_t B, T, N, P; /* T: the longest; N: rows of packed tensors; P: slots */
    int64_t length[8], cu[9];
    gdn_batch batch;
};

/* Lengths and the batch; slots from 0 to P - 1. The sink is P - 1, or 0 if slots start at 1. */
void ring2_batch_make(struct ring2_batch *b, const int *level);
bool ring2_batch_has_state(const struct ring2_batch *b);
bool ring2_batch_has_state_out(const struct ring2_batch *b);
/* A tensor [tokens][n][D], or [tokens][n] with D 0. */
gdn_tensor ring2_batch_rows(const struct ring2_batch *b, int32_t dtype, int64_t n, int64_t D);

/* ---- Reading ---- */

struct ring2_sequence {
    int64_t row, first, T, valid; /* tokens are rows first .. first + T of the tensors */
    int64_t read, write;          /* slots; -1: zero, nowhere */
    bool skipped, kept;           /* padding; its output stays */
};

/* The sequences of the tokens of `like`, whose rank for one token is `trailing`. Returns how
 * many. has_state: there is a state to start from. */
int64_t ring2_sequences(const gdn_batch *batch, const gdn_tensor *like, int trailing,
                        bool has_state, struct ring2_sequence **seqs);
/* Slot of the state after token t under GDN_WRITE_EACH; -1: dropped. */
int64_t ring2_each_slot(const gdn_batch *batch, const struct ring2_sequence *s, int64_t t);

#endif
