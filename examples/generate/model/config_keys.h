/* SPDX-License-Identifier: Apache-2.0 */
/* The keys that a model's JSON files may have. */
#ifndef CONFIG_KEYS_H
#define CONFIG_KEYS_H

#include "json_keys.h"

/* Keys of config.json, of a whole checkpoint or of its text model, with those of older files that
 * generation_config.json has now. */
extern const struct json_key config_keys[];
/* Keys of a rotary embedding's parameters. */
extern const struct json_key config_rope_keys[];
/* Keys of generation_config.json. How a token is sampled is the caller's choice. */
extern const struct json_key config_generation_keys[];

#endif
