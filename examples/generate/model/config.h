/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of config.json that a dense hybrid is made from. */
#ifndef CONFIG_H
#define CONFIG_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

enum { CONFIG_MAX_LAYERS = 1024, CONFIG_MAX_ENDS = 8 };

enum family { QWEN3_5, OLMO_HYBRID, KIMI_LINEAR };
enum norms { NORM_HEADS, NORM_ROWS, NORM_NONE }; /* of q and k in attention: each head, all */

struct config {
    enum family family;
    int64_t vocab, hidden, intermediate;
    int32_t n_layers, n_heads, n_kv_heads, head_dim, value_dim; /* head_dim: of q and k */
    int32_t rotary;              /* the first values of a head that are rotated; even */
    int32_t kv_rank, shared_dim; /* MLA, else 0: columns of what k and v are made from, and of k
                                  * that all heads share */
    enum norms norms;
    bool gated; /* attention has a gate */
    int32_t linear_key_heads, linear_value_heads, linear_key_dim, linear_value_dim, taps;
    float rope_theta, eps, gated_eps; /* gated_eps: of the norm of a GDN layer */
    float norm_center;                /* is added to the weights of the other norms */
    bool tied;                        /* the head is the embedding */
    bool sigmoid;                     /* gates the output of a GDN layer, else SiLU */
    bool twice;                       /* beta is twice the sigmoid */
    bool is_full[CONFIG_MAX_LAYERS];  /* attention over all tokens, in place of GDN */
    int64_t ends[CONFIG_MAX_ENDS];    /* tokens that end a text */
    int n_ends;
};

/* Returns the columns of q_proj for a head: q, and a gate. */
static inline int64_t config_q_width(const struct config *c)
{
    return (c->gated ? 2 : 1) * (int64_t)c->head_dim;
}

/* From the JSON of a whole checkpoint or of its text model. name is for errors: CLI_BAD after one
 * line that names the key. */
int config_read(struct config *config, const cJSON *json, const char *name);

/* From the JSON of generation_config.json: the ends that it names take the place of the others. */
int config_read_generation(struct config *config, const cJSON *json, const char *name);

#endif
