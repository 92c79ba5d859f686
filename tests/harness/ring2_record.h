/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drafts, what is accepted of them, and records: a fixture for the tests of speculation. Four
 * sequences, the last of them padding, in a pool of six slots.
 */
#ifndef RING2_RECORD_H
#define RING2_RECORD_H

#include "gdn_record.h"
#include "ring2_rule.h"

enum { B = 4, P = 6, R = 9, MOST = 6 }; /* R: rows of a record; MOST: tokens of a draft */
extern const int64_t ring2_slots[B];

/* Storage and sizes; float32 in the first N_EXACT_LAYERS. */
struct ring2_layer {
    int32_t dtype, record, layout, map, exact;
    int heads[3];
    int64_t K, V;
};
enum { N_EXACT_LAYERS = 4, N_LAYERS = 7 };
extern const struct ring2_layer ring2_layers[N_LAYERS];

struct ring2_record {
    gdn_tensor k, u, g, count;
};

/* Tokens of all sequences: [B][T], of which count[b] are there. */
struct ring2_tokens {
    int64_t T, count[B];
    int64_t parents[B][MOST];
    gdn_tensor x, g, beta;
};

struct ring2_accepted {
    int64_t n[B], path[B][MOST];
};

/* H; channels of the convolution before the rule: q, k, v; a pool of n slots, filled. */
int64_t ring2_state_heads(const struct ring2_layer *m);
int64_t ring2_channels(const struct ring2_layer *m);
gdn_tensor ring2_pool(const struct ring2_layer *m, int32_t dtype, int64_t n);

/* Empty the record, with NaN in its rows; return the rows in use of a slot; return true if drafts
 * would need more rows. */
struct ring2_record ring2_record_new(const struct ring2_layer *m, int32_t dtype);
int64_t ring2_record_count(const struct ring2_record *r, int64_t slot);
bool ring2_record_is_full(const struct ring2_record *r, const struct ring2_tokens *t);

/* Random tokens; the path to a random one of each sequence, or none. */
struct ring2_tokens ring2_draft(const struct ring2_layer *m, bool tree);
struct ring2_accepted ring2_accept(const struct ring2_tokens *t);

/* Columns 0 to n - 1 of [B][MOST] numbers; a batch of drafts, states frozen. */
gdn_tensor ring2_paths(int64_t n, const int64_t *values);
gdn_batch ring2_drafts(const struct ring2_tokens *t, bool tree);

/* gdn_decode of tokens whose q, k, v are the channels of act [B][T][..], with an out. */
gdn_rule_args ring2_layer_args(const struct ring2_layer *m, const struct ring2_tokens *t,
                               const gdn_tensor *act, const gdn_tensor *state,
                               const gdn_batch *batch);
void ring2_decode(const gdn_rule_args *a);

/* Run calls and check that these write only what gdn.h says. The first returns the output. */
gdn_tensor ring2_record_drafts(const struct ring2_layer *m, const struct ring2_tokens *t,
                               const gdn_tensor *act, const struct ring2_record *r,
                               const gdn_tensor *state, const gdn_batch *b);
void ring2_commit(const struct ring2_record *r, const struct ring2_accepted *n, bool tree,
                  int64_t T);
void ring2_fold(const struct ring2_layer *m, const struct ring2_record *r, const gdn_tensor *state);
gdn_record_fold_args ring2_fold_args(const struct ring2_layer *m, const struct ring2_record *r,
                                     const gdn_tensor *state, const gdn_batch *batch);

#endif
