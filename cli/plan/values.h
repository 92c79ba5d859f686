/* SPDX-License-Identifier: Apache-2.0 */
/* Values of a configuration. CLI_BAD after one line that names the key; name is for that line. */
#ifndef PLAN_VALUES_H
#define PLAN_VALUES_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

/* Reads the first of up to three keys that the file has. Without them *to stays; if it is 0,
 * that is an error. */
int plan_read_size(const cJSON *json, const char *const *keys, int64_t max, int32_t *to,
                   const char *name);
#define KEYS(...) ((const char *const[]){ __VA_ARGS__, NULL })

/* Absent: stays. */
int plan_read_flag(const cJSON *json, const char *key, bool *value, const char *name);
int plan_read_dtype(const cJSON *json, const char *key, int32_t *dtype, const char *name);

#endif
