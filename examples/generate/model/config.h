/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of config.json that a dense Qwen3.5 text model is made from. */
#ifndef CONFIG_H
#define CONFIG_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

enum { CONFIG_MAX_LAYERS = 1024, CONFIG_MAX_ENDS = 8 };

struct config {
    int64_t vocab, hidden, intermediate;
    int32_t n_layers, n_heads, n_kv_heads, head_dim;
    int32_t rotary; /* the first values of a head that are rotated; even */
    int32_t linear_key_heads, linear_value_heads, linear_key_dim, linear_value_dim, taps;
    float rope_theta, eps;
    bool tied;                       /* the head is the embedding */
    bool sigmoid;                    /* gates the output of a GDN layer, else SiLU */
    bool is_full[CONFIG_MAX_LAYERS]; /* attention over all tokens, in place of GDN */
    int64_t ends[CONFIG_MAX_ENDS];   /* tokens that end a text */
    int n_ends;
};

/* From the JSON of a whole checkpoint or of its text model. name is for errors: CLI_BAD after one
 * line that names the key. */
int config_read(struct config *config, const cJSON *json, const char *name);

/* From the JSON of generation_config.json: the ends that it names take the place of the others. */
int config_read_generation(struct config *config, const cJSON *json, const char *name);

#endif
