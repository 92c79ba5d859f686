/* SPDX-License-Identifier: Apache-2.0 */
/* The keys that a model's JSON files may have. */
#ifndef CONFIG_KEYS_H
#define CONFIG_KEYS_H

#include "json_keys.h"
#include "model/config.h"

/* Keys of config.json, of a whole checkpoint or of its text model, with those of older files that
 * generation_config.json has now. */
const struct json_key *config_keys(enum family family);
/* Keys of linear_attn_config of Kimi-Linear's own files. */
extern const struct json_key config_kda_keys[];
/* Keys of a rotary embedding's parameters. */
extern const struct json_key config_rope_keys[];
/* Keys of generation_config.json. How a token is sampled is the caller's choice. */
extern const struct json_key config_generation_keys[];

#endif
