/* SPDX-License-Identifier: Apache-2.0 */
/* Values of an object of JSON by their keys. A null counts as absent. */
#ifndef JSON_VALUES_H
#define JSON_VALUES_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

/* Returns the value; NULL: absent. */
const cJSON *json_get(const cJSON *json, const char *key);

/* Sets *value if the item is a whole number from min to max, else returns false. */
bool json_whole_number(const cJSON *item, double min, double max, int64_t *value);

#endif
