/* SPDX-License-Identifier: Apache-2.0 */
/* Known keys of an object of JSON, and the values that they may have. An unknown key could change
 * the text of a model, so it is refused. */
#ifndef JSON_KEYS_H
#define JSON_KEYS_H

#include <cjson/cJSON.h>

struct json_key {
    const char *key;    /* NULL ends a list */
    const char *wanted; /* values as JSON, with | between them; NULL: any value */
};

/* null is a value of every key. Keys that begin with '_' are a program's notes. CLI_OK, or CLI_BAD
 * after one line "NAME: key ...". */
int json_check_keys(const cJSON *json, const struct json_key *known, const char *name);

#endif
